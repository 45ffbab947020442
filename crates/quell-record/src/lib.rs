//! What TLB shootdowns cost the programs that people run: from a recording to an answer.
pub mod import;
pub mod attribute;
pub mod event;
pub mod stack;
pub mod report;
pub mod advise;

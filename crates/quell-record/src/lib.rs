//! What TLB shootdowns cost the programs that people run: from a recording to an answer.
pub mod import;

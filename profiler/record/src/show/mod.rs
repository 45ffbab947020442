//! Writes a report as a page, and in the formats of other tools.

pub mod folded;
pub mod page;
pub mod perfetto;
pub mod timeline;

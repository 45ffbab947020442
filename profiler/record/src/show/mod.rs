//! A report in the formats that other tools read, and as a page.

pub mod folded;
pub mod page;
pub mod perfetto;
pub mod timeline;

//! Reads TOML files that people write, and reports all mistakes at once.
//!
//! Machine files and workload files are such files. [`Reader`] collects [`Mistake`]s, each with its line, its key and
//! the expected value. [`Reader::finish`] combines them into the [`FileError`] that the command `quell` prints.
//!
//! ```
//! use quell_workloads::files::Reader;
//!
//! let text = "name = 3\ncolor = 1\n";
//! let mut reader = Reader::new(text);
//! let document = reader.document();
//! let name = document.as_ref().and_then(|document| {
//!     reader.check_keys("", document.get_ref(), &["name"]);
//!     reader.text("name", document.get_ref().get("name")?)
//! });
//! let refused = reader.finish("mine.toml", name).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "mine.toml:1: name: expected a text in quotes, found `3`\n\
//!      mine.toml:2: color: unknown; expected one of name"
//! );
//! ```
//!
//! # Not guaranteed
//!
//! The reader doesn't find every mistake: it skips parts that don't parse, and keeps at most [`MOST_MISTAKES`]. The
//! messages are for people; no program should parse them.

mod error;
mod near;
mod reader;

pub use error::{FileError, Mistake};
pub use near::{hint, nearest};
pub use reader::{Item, MOST_MISTAKES, Reader, found, in_order};

//! Files that people write: machines, workloads.
//!
//! Both are TOML, and a person who has made three mistakes in one wants to hear of all three, each with its line, its
//! key and what was expected there. [`Reader`] collects [`Mistake`]s while a file is read; [`Reader::finish`] turns
//! them into the one [`FileError`] that the command prints.
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
//!     "mine.toml:1: name: expected a text in quotes, found integer\n\
//!      mine.toml:2: color: unknown; expected one of name"
//! );
//! ```
//!
//! # What is not guaranteed
//!
//! That every mistake is found: what stands in a part that could not be read at all is not looked at, and after
//! [`MOST_MISTAKES`] the reader keeps no more. The sentences are for people; no program should take them apart.

mod error;
mod near;
mod reader;

pub use error::{FileError, Mistake};
pub use near::{hint, nearest};
pub use reader::{Item, MOST_MISTAKES, Reader, in_order};

//! How the crates and modules of a workspace use each other.
//!
//! Four rules are checked by the test of this crate, on quell itself:
//!
//! * the modules of a crate use each other in one direction: no circle of imports ([`modules`]);
//! * a crate uses only crates that stand before it in the list that opens `docs/architecture.md`
//!   ([`crates`]);
//! * a source file of more than 500 lines, in whatever language, says at its head why it is long ([`length`]);
//! * no line of prose, in documents and comments, has more than 132 columns ([`width`]).
//!
//! # What counts as an import
//!
//! Every path in the code that leads to another module of the same crate, in a `use` or elsewhere, inside macros too. A
//! name that was re-exported is followed to the module that defines it, so a facade (`pub use inner::Thing;`) ties
//! nothing together unless it uses the name itself. A module does not import its children by declaring them. Code under
//! `#[cfg(test)]` is left out, and so are names that no path leads to: methods, and what a glob import brings in beyond
//! the module that it names.

pub mod crates;
pub mod length;
pub mod modules;
mod paths;
pub mod width;

use std::path::{Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// Why a workspace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// A file could not be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A source file is not Rust.
    #[error("{}: {error}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        error: syn::Error,
    },
    /// A manifest is not what Cargo would take.
    #[error("{}: {what}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// The text of a file.
/// The files below a folder. Left out are folders of what Cargo or Python build and of version control, and symbolic
/// links.
fn files(folder: &Path) -> impl Iterator<Item = Result<PathBuf, Unreadable>> {
    let looked_at = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        !["target", "__pycache__", ".git"].contains(&&*name)
    };
    let entries = WalkDir::new(folder).into_iter().filter_entry(looked_at);
    let folder = folder.to_owned();
    entries.filter_map(move |entry| match entry {
        Ok(entry) => entry.file_type().is_file().then(|| Ok(entry.into_path())),
        Err(error) => Some(Err(Unreadable::File {
            path: folder.clone(),
            error: error.into(),
        })),
    })
}

fn read(path: &Path) -> Result<String, Unreadable> {
    std::fs::read_to_string(path).map_err(|error| Unreadable::File {
        path: path.to_owned(),
        error,
    })
}

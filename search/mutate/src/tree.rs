//! A copy of the workspace with the mutated engine in it, below `target/mutate`.
//!
//! A file is written when it is not there as it should be, so that what is built stays built.

use crate::points::{self, Piece, Point};
use crate::sources::Source;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The module of the mutated engine that chooses.
const SELECTOR: &str = include_str!("selector.rs");

/// Where the copy is.
pub fn place(root: &Path) -> PathBuf {
    root.join("target/mutate/tree")
}

/// The engine's sources in the copy.
fn engine(tree: &Path) -> PathBuf {
    tree.join("engine/quell/src")
}

/// Copies the workspace, but for what is mutated, and forgets there what is gone here.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(root: &Path, sources: &[Source]) -> io::Result<()> {
    let tree = place(root);
    let engine = engine(&tree);
    let mut there: BTreeSet<PathBuf> = sources
        .iter()
        .map(|source| engine.join(&source.file))
        .collect();
    there.extend([engine.join("lib.rs"), engine.join("selector.rs")]);
    let lib = fs::read_to_string(root.join("engine/quell/src/lib.rs"))?;
    // Last in its file, so that the lines above stay what they are.
    let lib = lib + "#[allow(missing_docs)]\n#[doc(hidden)]\npub mod selector;\n";
    write(&engine.join("lib.rs"), lib.as_bytes())?;
    // Without its own test, which chooses mutants while others run.
    let selector = SELECTOR.split("#[cfg(test)]").next().unwrap_or_default();
    write(&engine.join("selector.rs"), selector.as_bytes())?;
    let is_ours = |name: &str| name != "target" && !name.starts_with('.');
    let files = WalkDir::new(root)
        .into_iter()
        .filter_entry(|entry| entry.depth() == 0 || is_ours(&entry.file_name().to_string_lossy()));
    for entry in files {
        let entry = entry?;
        let Ok(path) = entry.path().strip_prefix(root) else {
            continue;
        };
        let to = tree.join(path);
        if entry.file_type().is_file() && there.insert(to.clone()) {
            write(&to, &fs::read(entry.path())?)?;
        }
    }
    for entry in WalkDir::new(&tree) {
        let entry = entry?;
        if entry.file_type().is_file() && !there.contains(entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

/// Where the mutants are in the mutated files.
pub type Places = BTreeMap<String, Vec<Place>>;

/// A piece of a mutated file.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where it is.
    pub piece: Piece,
    /// The mutants whose it is.
    pub numbers: Vec<u32>,
    /// [`Point::stays`].
    pub stays: bool,
}

/// Writes the mutated files, without the mutants of these numbers.
///
/// # Errors
/// If a file cannot be written.
pub fn mutate(root: &Path, sources: &[Source], without: &HashSet<u32>) -> io::Result<Places> {
    let engine = engine(&place(root));
    let mut places = Places::new();
    let mut number = 1;
    for source in sources {
        let mut points: Vec<(&Point, u32)> = Vec::new();
        for point in &source.points {
            // A point is left out as a whole.
            if !without.contains(&number) {
                points.push((point, number));
            }
            number += point.changes.len() as u32;
        }
        let (text, pieces) = points::mutated(&source.text, &points);
        write(&engine.join(&source.file), text.as_bytes())?;
        let numbered = pieces.into_iter().map(|piece| {
            let (point, first) = points[piece.point];
            let numbers = (first..first + point.changes.len() as u32).collect();
            Place {
                piece,
                numbers,
                stays: point.stays(),
            }
        });
        places.insert(source.file.clone(), numbered.collect());
    }
    Ok(places)
}

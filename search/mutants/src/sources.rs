//! The mutated files of the engine, and the reasons to exclude the others.

use crate::points::{self, Enums, Point};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use syn::visit::Visit;

/// Files of `engine/quell/src` that we don't mutate, with the reasons. We mutate all others.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("example.rs", "a machine for the documentation"),
    (
        "features.rs",
        "which machines are refused: tests/arguments.rs asks of each mistake by name",
    ),
    ("lib.rs", "names alone"),
    (
        "policy.rs",
        "names and sets of mechanisms: no part of the protocol",
    ),
    ("stats.rs", "statistics: no part of the protocol"),
    (
        "word.rs",
        "what a kernel puts in place of it is its own; orderings are weakened under loom",
    ),
];

/// One mutant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mutant {
    /// The identity that survives edits of other lines.
    pub name: Name,
    /// The line, from 1.
    pub line: usize,
}

/// A mutant's identity, independent of line numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// The file, below `engine/quell/src`.
    pub file: String,
    /// The function, after its type.
    pub function: String,
    /// The mutated text in the source.
    pub text: String,
    /// The change of that text.
    pub change: String,
    /// The number, from 1, among mutants with the same description.
    pub nth: usize,
}

/// A file with its points.
#[derive(Debug)]
pub struct Source {
    /// The file, below `engine/quell/src`.
    pub file: String,
    /// The file's text.
    pub text: String,
    /// The points at which it can be mutated.
    pub points: Vec<Point>,
}

/// Reads the engine's files that we mutate, with their points.
///
/// # Errors
/// If a file can't be read, or isn't Rust.
pub fn read(root: &Path) -> io::Result<Vec<Source>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(root.join("engine/quell/src"))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.extension().is_some_and(|extension| extension == "rs")
            && LEFT_OUT.iter().all(|(file, _)| *file != name)
        {
            let text = fs::read_to_string(&path)?;
            let wrong = |error| io::Error::other(format!("{}: {error}", path.display()));
            let parsed = syn::parse_file(&text).map_err(wrong)?;
            files.insert(name, (text, parsed));
        }
    }
    let mut enums = Enums::default();
    for (_, parsed) in files.values() {
        enums.visit_file(parsed);
    }
    let sources = files.into_iter().map(|(file, (text, parsed))| {
        let points = points::of_parsed(&text, &parsed, &enums.0);
        Source { file, text, points }
    });
    Ok(sources.collect())
}

/// Returns the mutants of these files in order. A mutant's number is its index plus one.
pub fn mutants(sources: &[Source]) -> Vec<Mutant> {
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut met: BTreeMap<Name, usize> = BTreeMap::new();
    for source in sources {
        for point in &source.points {
            for change in &point.changes {
                let mut name = Name {
                    file: source.file.clone(),
                    function: point.function.clone(),
                    text: point.text.clone(),
                    change: change.clone(),
                    nth: 0,
                };
                let nth = met.entry(name.clone()).or_default();
                *nth += 1;
                name.nth = *nth;
                mutants.push(Mutant {
                    name,
                    line: point.line,
                });
            }
        }
    }
    mutants
}

//! The mutated files of the engine, and the reasons to exclude the others.

use crate::points::{self, Enums, Point};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use syn::visit::Visit;

/// Files of `engine/quell/src` that are not mutated, and why. Every other file is.
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
    /// The function, behind its type.
    pub function: String,
    /// What is mutated, as it stands in the source.
    pub text: String,
    /// What is done to it.
    pub change: String,
    /// Which one, from 1, of several that would be named the same.
    pub nth: usize,
}

/// A file with its points.
#[derive(Debug)]
pub struct Source {
    /// The file, below `engine/quell/src`.
    pub file: String,
    /// What is in it.
    pub text: String,
    /// Where it can be mutated.
    pub points: Vec<Point>,
}

/// The engine's files, with the points of those that are mutated.
///
/// # Errors
/// If one cannot be read, or is not Rust.
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

/// The mutants of these files in order: the number of each is its place here and one more.
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

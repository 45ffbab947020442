//! The mutated files, and the reasons to exclude the others.

use crate::points::{self, Enums, Point};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use syn::visit::Visit;
use walkdir::WalkDir;

/// The memory manager's sources.
pub const MANAGER: &str = "testbed/vm/src";

/// Folders of mutated sources in the workspace, and the crates whose tests judge the mutants.
pub const FOLDERS: [(&str, &[&str]); 3] = [
    ("engine/quell/src", &["engine/quell", "engine/quell-arch"]),
    ("engine/quell-zero/src", &["engine/quell-zero"]),
    (MANAGER, &["testbed/vm"]),
];

/// Returns the crates whose tests judge the mutants of this file.
pub fn tested_by(file: &str) -> &'static [&'static str] {
    let folder = FOLDERS.iter().find(|(folder, _)| file.starts_with(folder));
    folder.map_or(&[], |(_, crates)| *crates)
}

/// Files and folders of these that are not mutated, and why. Every other file is.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("engine/quell/src/example.rs", "a machine for the documentation"),
    (
        "engine/quell/src/features.rs",
        "which machines are refused: tests/arguments.rs asks of each mistake by name",
    ),
    ("engine/quell/src/lib.rs", "names alone"),
    ("engine/quell/src/policy.rs", "names and sets of mechanisms: no part of the protocol"),
    ("engine/quell/src/stats.rs", "statistics: no part of the protocol"),
    (
        "engine/quell/src/word.rs",
        "what a kernel puts in place of it is its own; orderings are weakened under loom",
    ),
    ("engine/quell-zero/src/lib.rs", "names alone"),
    ("engine/quell-zero/src/tests", "tests"),
    ("engine/quell-zero/src/tests.rs", "tests"),
    ("testbed/vm/src/audit.rs", "a judge"),
    ("testbed/vm/src/config.rs", "sizes, none of which may break the contract"),
    ("testbed/vm/src/contract", "a judge"),
    ("testbed/vm/src/contract.rs", "a judge"),
    ("testbed/vm/src/lib.rs", "names alone"),
    ("testbed/vm/src/sim", "parts of the machines in software"),
    ("testbed/vm/src/sim.rs", "parts of the machines in software"),
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
    /// The file, relative to the workspace.
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
    /// The file, relative to the workspace.
    pub file: String,
    /// The file's text.
    pub text: String,
    /// The points at which it can be mutated.
    pub points: Vec<Point>,
}

/// Returns the files that are mutated, with their points.
///
/// # Errors
/// If a file can't be read, or isn't Rust.
pub fn read(root: &Path) -> io::Result<Vec<Source>> {
    let mut files = BTreeMap::new();
    for entry in FOLDERS.iter().flat_map(|(folder, _)| WalkDir::new(root.join(folder))) {
        let entry = entry?;
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap_or(path);
        if path.extension().is_some_and(|extension| extension == "rs")
            && LEFT_OUT.iter().all(|(left, _)| !name.starts_with(left))
        {
            let text = fs::read_to_string(path)?;
            let wrong = |error| io::Error::other(format!("{}: {error}", path.display()));
            let parsed = syn::parse_file(&text).map_err(wrong)?;
            files.insert(name.to_string_lossy().into_owned(), (text, parsed));
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
                mutants.push(Mutant { name, line: point.line });
            }
        }
    }
    mutants
}

//! The orderings in the source of the engine and of the pool of zeroed frames, and the table of them in `docs/orderings.md`.

use crate::word::{Operation, weaker};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// An ordering in the source, and one that is a step weaker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Below the engine's `src`; in another crate, below `crates`.
    pub file: String,
    /// Below `crates`.
    pub path: String,
    pub line: u32,
    /// Which of the orderings on the line.
    pub nth: usize,
    pub function: String,
    /// The line of the source.
    pub code: String,
    pub order: Ordering,
    pub to: Ordering,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} `{}` | `{}` | {}",
            self.file,
            self.function,
            self.code.replace('|', "\\|"),
            match (self.order, self.to) {
                (_, Relaxed) if self.code.contains("fence(") => "no fence".to_string(),
                // The second is what an exchange is when it fails.
                (order, to) if self.nth > 0 => format!("{order:?} to {to:?} on failure"),
                (order, to) => format!("{order:?} to {to:?}"),
            }
        )
    }
}

/// Below `crates`: the source of the engine.
const ENGINE: &str = "quell/src";
/// Below `crates`: the source with the pool.
const POOL: &str = "quell-zero/src";

/// The folder `crates`.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(directory: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory).expect("the source can be read");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("as above").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            files(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// What stands behind `fn` in a line.
fn function_in(line: &str) -> Option<String> {
    let (before, after) = line.split_once("fn ")?;
    let declares = before
        .split_whitespace()
        .all(|word| word.starts_with("pub") || ["const", "unsafe", "extern"].contains(&word));
    let name: String = after
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (declares && !name.is_empty()).then_some(name)
}

/// The orderings above `Relaxed` that a line of code names.
fn orderings_in(line: &str) -> Vec<Ordering> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter_map(|word| match word {
            "Acquire" => Some(Acquire),
            "Release" => Some(Release),
            "AcqRel" => Some(AcqRel),
            "SeqCst" => Some(SeqCst),
            _ => None,
        })
        .collect()
}

/// What the ordering in a line belongs to: its last call that takes one.
fn operation_in(line: &str) -> Operation {
    let calls = [
        ("fence(", Operation::Fence),
        (".load(", Operation::Load),
        (".snapshot(", Operation::Load),
        (".is_within(", Operation::Load),
        (".store(", Operation::Store),
    ];
    let found = calls.iter().find(|(call, _)| line.contains(call));
    found.map_or(Operation::Modification, |(_, operation)| *operation)
}

/// Every step by which an ordering of the engine or of the pool could be weakened.
pub fn places() -> Vec<Place> {
    let crates = root();
    let mut paths = Vec::new();
    for source in [ENGINE, POOL] {
        files(&crates.join(source), &mut paths);
    }
    let mut places = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("the source can be read");
        let path = path.strip_prefix(&crates).expect("it is below");
        let file = path.strip_prefix(ENGINE).unwrap_or(path);
        let mut function = String::new();
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default().trim();
            if code.starts_with("#[cfg(test)]") {
                break;
            }
            function = function_in(code).unwrap_or(function);
            let orders = orderings_in(code);
            if orders.is_empty() || code.starts_with("use ") {
                continue;
            }
            for (nth, &order) in orders.iter().enumerate() {
                for to in weaker(order, operation_in(code)) {
                    places.push(Place {
                        file: file.display().to_string(),
                        path: path.display().to_string(),
                        line: index as u32 + 1,
                        nth,
                        function: function.clone(),
                        code: code.to_string(),
                        order,
                        to,
                    });
                }
            }
        }
    }
    places
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// [`Place`] as it is displayed.
    pub place: String,
    /// The race that is lost, or why none is.
    pub race: String,
}

fn document() -> PathBuf {
    root().join("../docs/orderings.md")
}

/// The rows of the table in the document.
pub fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(document()).expect("docs/orderings.md can be read");
    let row = |line: &str| {
        let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let mut cells = line.split(" | ");
        let place = [cells.next()?, cells.next()?, cells.next()?].join(" | ");
        let (_pairs, race) = (cells.next()?, cells.next()?.to_string());
        place.contains("rs `").then_some(Row { place, race })
    };
    text.lines().filter_map(row).collect()
}

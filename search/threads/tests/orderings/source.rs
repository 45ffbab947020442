//! The orderings to weaken: all that the races pass, each with the races that may be lost without it.

use crate::table::LOST;
use crate::word::{Operation, Seen};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// An ordering in the source, and a weaker one.
#[derive(Debug)]
pub struct Place {
    pub seen: Seen,
    pub to: Ordering,
    /// The function that contains it.
    pub function: &'static str,
    /// The races of which at least one is lost if it is weakened.
    pub races: Vec<&'static str>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { file, line, order, .. } = &self.seen;
        write!(f, "{file}:{line} `{}`: {order:?} to {:?}", self.function, self.to)
    }
}

/// Returns the name in the last line up to this one that begins a function.
fn function_at(text: &str, line: u32) -> &str {
    let names = text.lines().take(line as usize).filter_map(|line| {
        let (before, after) = line.split_once("fn ")?;
        let begins = before.is_empty() || before.ends_with(' ');
        let name = after.split(['(', '<']).next()?;
        (begins && !before.contains("//") && !name.is_empty()).then_some(name)
    });
    names.last().unwrap_or_default()
}

/// Returns the orderings one step below one that a race has passed.
fn weaker(seen: &Seen) -> &'static [Ordering] {
    match (seen.order, seen.operation) {
        (SeqCst, Operation::Load) => &[Acquire],
        (SeqCst, Operation::Store) => &[Release],
        (SeqCst, _) => &[AcqRel],
        (AcqRel, _) => &[Acquire, Release],
        _ => &[Relaxed],
    }
}

/// Returns every one-step weakening of the orderings seen that a wanted race needs.
///
/// # Panics
/// If [`LOST`] lacks a row for an ordering, or has a row without one. The message lists the functions.
pub fn places(all_seen: &[Seen]) -> &'static [Place] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut places, mut wrong) = (Vec::new(), Vec::new());
    let wanted = LOST.iter().filter(|row| crate::is_wanted(row.2));
    let mut unmet: BTreeSet<_> = wanted.map(|row| (row.0, row.1)).collect();
    for seen in all_seen {
        let Seen { file, line, order, .. } = seen;
        let text = std::fs::read_to_string(root.join(file)).expect("a source file");
        let name = function_at(&text, *line);
        let rows = || LOST.iter().filter(|row| row.0 == file && row.1 == name);
        let Some(&(file, function, _)) = rows().next() else {
            wrong.push(format!("no race for {file}:{line} `{name}`, {order:?}"));
            continue;
        };
        unmet.remove(&(file, function));
        let races: Vec<_> = rows().map(|row| row.2).collect();
        if races.iter().any(|race| crate::is_wanted(race)) {
            let place = |&to| Place { seen: seen.clone(), to, function, races: races.clone() };
            places.extend(weaker(seen).iter().map(place));
        }
    }
    wrong.extend(unmet.iter().map(|(file, name)| format!("no race passes {file} `{name}`")));
    assert!(wrong.is_empty(), "the table of races is out of date: {wrong:#?}");
    places.leak()
}

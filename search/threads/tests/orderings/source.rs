//! The orderings to weaken: all that the races pass, each with the races that may be lost without it.

use crate::table::LOST;
use crate::word::{ExercisedOrdering, weaker};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// An ordering in the source, and a weaker one.
#[derive(Clone, Debug)]
pub struct Place {
    pub seen: ExercisedOrdering,
    pub to: Ordering,
    /// The function that contains it.
    pub function: &'static str,
    /// The races of which at least one is lost if it is weakened.
    pub races: &'static [&'static str],
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExercisedOrdering { file, line, .. } = &self.seen;
        let (order, to) = (self.seen.order, self.to);
        write!(f, "{file}:{line} `{}`: {order:?} to {to:?}", self.function)
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

/// Returns every one-step weakening of the orderings seen that a wanted race needs.
///
/// # Panics
/// If [`LOST`] lacks a row for an ordering, or has a row without one. The message lists the functions.
pub fn places(seen: &[ExercisedOrdering]) -> Vec<Place> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut places, mut wrong) = (Vec::new(), Vec::new());
    let is_needed = |races: &[&str]| races.iter().any(|race| crate::is_wanted(race));
    let rows = LOST.iter().filter(|row| is_needed(row.2));
    let mut rows: BTreeSet<_> = rows.map(|row| (row.0, row.1)).collect();
    for seen in seen {
        let text = std::fs::read_to_string(root.join(&seen.file)).expect("a source file");
        let name = function_at(&text, seen.line);
        let row = LOST.iter().find(|row| row.0 == seen.file && row.1 == name);
        let Some(&(file, function, races)) = row else {
            let ExercisedOrdering { file, line, order, .. } = seen;
            wrong.push(format!("no race for {file}:{line} `{name}`, {order:?}"));
            continue;
        };
        rows.remove(&(file, function));
        if !is_needed(races) {
            continue;
        }
        places.extend(weaker(seen.order, seen.operation).into_iter().map(|to| Place {
            seen: seen.clone(),
            to,
            function,
            races,
        }));
    }
    wrong.extend(rows.iter().map(|(file, name)| format!("no race passes {file} `{name}`")));
    assert!(wrong.is_empty(), "the table of races is out of date: {wrong:#?}");
    places
}

//! Reviewed survivors, each with its reason: `search/mutants/kept.toml`.
//!
//! An entry identifies mutants by function and change instead of line numbers, and contains the reason why nothing
//! kills them. The list must be exact: the command fails if a listed mutant dies or doesn't exist, or if a survivor
//! isn't listed.

use crate::sources::{Mutant, Name};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// The kind of reason why a mutant may live.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// No run can distinguish it from the unchanged engine.
    Equivalent,
    /// It keeps the contract, but flushes, interrupts or waits more than necessary.
    Slower,
    /// It keeps the contract in another way that costs no more.
    Allowed,
    /// It leaves out a fence of the memory model. The tests here can't notice that, but a test under loom does.
    Fence,
    /// The test in its reason kills it with `--thorough`; less effort may not find it.
    Deep,
}

/// Survivors that live for the same reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The file, relative to the workspace.
    pub file: String,
    /// The function, after its type, for example `A::f`.
    pub function: String,
    /// The mutated text.
    pub text: String,
    /// The changes: one or several mutants.
    pub changes: Vec<String>,
    /// The number, from 1, among mutants with the same description; 0 for all of them.
    #[serde(default)]
    pub nth: usize,
    /// The kind of reason.
    pub kind: Kind,
    /// The reason why these mutants may live.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    kept: Vec<Entry>,
}

/// The path of the list.
pub const PLACE: &str = "search/mutants/kept.toml";

/// Reads the list.
///
/// # Errors
/// If the list can't be read.
pub fn read(root: &Path) -> io::Result<Vec<Entry>> {
    let text = fs::read_to_string(root.join(PLACE))?;
    let list: List =
        toml::from_str(&text).map_err(|error| io::Error::other(format!("{PLACE}: {error}")))?;
    Ok(list.kept)
}

impl Entry {
    /// Returns whether the entry describes this mutant.
    pub fn names(&self, name: &Name) -> bool {
        self.file == name.file
            && self.function == name.function
            && self.text == name.text
            && self.changes.contains(&name.change)
            && (self.nth == 0 || self.nth == name.nth)
    }
}

/// Returns the numbers of the listed mutants, each with its entry.
///
/// # Errors
/// Entries that match no mutant, or a mutant that is listed already.
pub fn numbers<'k>(
    kept: &'k [Entry],
    mutants: &[Mutant],
) -> Result<BTreeMap<u32, &'k Entry>, Vec<String>> {
    let mut numbers = BTreeMap::new();
    let mut wrong = Vec::new();
    for entry in kept {
        for change in &entry.changes {
            let Entry { file, function, text, .. } = entry;
            let mut say = |what| {
                wrong.push(format!("{PLACE} {what}: {file}, {function}, `{text}`, {change}"))
            };
            let named = |(_, mutant): &(u32, &Mutant)| {
                entry.names(&mutant.name) && mutant.name.change == *change
            };
            let found: Vec<_> = (1..).zip(mutants).filter(named).collect();
            if found.is_empty() {
                say("names what is no mutant");
            }
            for (number, _) in found {
                if numbers.insert(number, entry).is_some() {
                    say("names twice");
                }
            }
        }
    }
    if wrong.is_empty() { Ok(numbers) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(text: &str, change: &str, nth: usize) -> Mutant {
        let [file, function] = ["a.rs", "A::f"].map(String::from);
        Mutant {
            name: Name { file, function, text: text.into(), change: change.into(), nth },
            line: 1,
        }
    }

    fn entry(text: &str, changes: &[&str], nth: usize) -> Entry {
        let [file, function] = ["a.rs", "A::f"].map(String::from);
        let changes = changes.iter().map(|change| (*change).to_string()).collect();
        Entry {
            file,
            function,
            text: text.into(),
            changes,
            nth,
            kind: Kind::Slower,
            reason: String::new(),
        }
    }

    #[test]
    fn entries_name_what_is_there_and_each_once() {
        let mutants = [mutant("x", "true", 1), mutant("x", "true", 2), mutant("x", "false", 1)];
        let found = |kept: &[Entry]| {
            numbers(kept, &mutants).map(|numbers| numbers.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(found(&[entry("x", &["true"], 2)]), Ok(vec![2]));
        assert_eq!(found(&[entry("x", &["true", "false"], 0)]), Ok(vec![1, 2, 3]));
        assert_eq!(found(&[entry("x", &["false"], 2)]).expect_err("there is one").len(), 1);
        assert_eq!(found(&[entry("y", &["true"], 0)]).expect_err("there is none").len(), 1);
        let twice = [entry("x", &["true"], 0), entry("x", &["true"], 1)];
        assert_eq!(found(&twice).expect_err("one is named twice").len(), 1);
    }
}

//! The mutants written by hand: `mutants/*.toml`, compiled in.
//!
//! A mutant's number is its place in the lists, from 1. The instrumented copy passes that number to the selector.

use serde::Deserialize;
use std::sync::LazyLock;

/// A mistake that the instrumented copy can make, and the source that it replaces.
#[derive(Debug)]
pub struct Mutant {
    /// The number, from 1; 0 means no mutant.
    pub number: u32,
    /// The name, for people and replay codes. It never changes.
    pub name: String,
    /// The clause of the contract that breaks first.
    pub clause: String,
    /// The mistake, in a sentence that ends with the numbers of known bugs, if any.
    pub mistake: String,
    /// The pieces of source that it replaces.
    pub places: Vec<Place>,
}

impl PartialEq for Mutant {
    fn eq(&self, other: &Mutant) -> bool {
        self.number == other.number
    }
}

impl Eq for Mutant {}

/// A piece of source, and a mutant's replacement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The file, below the workspace.
    pub file: String,
    /// The function that contains the piece; `None` if we search the whole file.
    pub function: Option<String>,
    /// The piece: an expression or statements. It must be unique in its function, or in the file.
    pub stands: String,
    /// The replacement: an expression, or statements.
    pub instead: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    clause: String,
    mistake: String,
    file: String,
    function: Option<String>,
    stands: String,
    instead: String,
    #[serde(default)]
    also: Vec<Place>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Entry>,
}

/// The lists: the name and the text of each.
pub const LISTS: [(&str, &str); 4] = [
    ("engine.toml", include_str!("../mutants/engine.toml")),
    ("zero.toml", include_str!("../mutants/zero.toml")),
    ("vm.toml", include_str!("../mutants/vm.toml")),
    ("adversary.toml", include_str!("../mutants/adversary.toml")),
];

static ALL: LazyLock<Vec<Mutant>> = LazyLock::new(|| {
    let mut all: Vec<Mutant> = Vec::new();
    for (file, text) in LISTS {
        let list: List = toml::from_str(text)
            .unwrap_or_else(|error| panic!("search/mutants/mutants/{file}: {error}"));
        for entry in list.mutant {
            let mut places = vec![Place {
                file: entry.file,
                function: entry.function,
                stands: entry.stands,
                instead: entry.instead,
            }];
            places.extend(entry.also);
            all.push(Mutant {
                number: all.len() as u32 + 1,
                name: entry.name,
                clause: entry.clause,
                mistake: entry.mistake,
                places,
            });
        }
    }
    all
});

/// Whether this program was built in the instrumented copy. Elsewhere no mutant can be on.
pub const IN_COPY: bool = cfg!(quell_mutants);

/// Turns one mutant on for the whole process, and all others off.
///
/// # Panics
/// Outside the instrumented copy, if there is a mutant to turn on.
pub fn choose(mutant: Option<&Mutant>) {
    #[cfg(quell_mutants)]
    quell::selector::choose(mutant.map_or(0, |mutant| mutant.number));
    #[cfg(not(quell_mutants))]
    if let Some(mutant) = mutant {
        panic!("{} is a mistake that only the copy with the mutants can make", mutant.name);
    }
}

/// Sets the function that decides which mutants are on. Only the instrumented copy calls it.
pub fn install(asked: fn(u32) -> bool) {
    #[cfg(quell_mutants)]
    quell::selector::install(asked);
    #[cfg(not(quell_mutants))]
    let _ = asked;
}

/// Returns all mutants in the order of their numbers.
pub fn all() -> &'static [Mutant] {
    &ALL
}

/// Returns the mutant with this name.
pub fn named(name: &str) -> Option<&'static Mutant> {
    all().iter().find(|mutant| mutant.name == name)
}

/// Returns the mutant with this number.
pub fn numbered(number: u32) -> Option<&'static Mutant> {
    all().get((number as usize).checked_sub(1)?)
}

//! Tests `flush_needed` against the manuals. Each architecture has an oracle, which reads the bits of two words and
//! returns the flush that the manual demands for the change. We wrote the oracles without the crate's decoding or its
//! rules.
//!
//! We try all pairs of words over the bits that matter, with two frames among them, and every change of one or two of
//! the 64 bits of a few words. The result must never be less than the manual demands. It must not be more, either,
//! except where an oracle names the reason.

mod aarch64;
mod riscv64;
mod x86_64;

use quell::{Entry, Flush, Level, Need, Scope, TlbRules, flush_needed};

/// An architecture: its decoding of words, and the demands of its manual.
struct Architecture {
    decode: fn(u64, Level) -> Entry,
    rules: TlbRules,
    demand: fn(u64, u64, Level) -> Need,
    /// Returns whether the result may be more than the manual demands.
    may_exceed: fn(u64, u64, Level) -> bool,
    /// Returns whether the manual defines the word, apart from bits that hardware ignores.
    is_defined: fn(u64, Level) -> bool,
}

/// Returns whether the flush `needed` includes the flush `demanded`.
fn satisfies(needed: Need, demanded: Need) -> bool {
    match (needed, demanded) {
        (_, Need::Nothing) => true,
        (Need::Flush(has), Need::Flush(wants)) => {
            has.scope >= wants.scope
                && has.every_tag >= wants.every_tag
                && has.break_first >= wants.break_first
        }
        (Need::Flush(Flush { scope, .. }) | Need::Local(scope), Need::Local(wants)) => {
            scope >= wants
        }
        (Need::Nothing, _) | (Need::Local(_), Need::Flush(_)) => false,
    }
}

impl Architecture {
    fn check(
        &self,
        (old, old_entry): (u64, &Entry),
        (new, new_entry): (u64, &Entry),
        level: Level,
    ) {
        let needed = flush_needed(self.rules, old_entry, new_entry);
        let demanded = (self.demand)(old, new, level);
        assert!(
            satisfies(needed, demanded),
            "{old:#018x} to {new:#018x} at {level:?}: {needed:?}, but the manual demands \
             {demanded:?}\n{old_entry:?}\n{new_entry:?}"
        );
        assert!(
            needed == demanded || (self.may_exceed)(old, new, level),
            "{old:#018x} to {new:#018x} at {level:?}: {needed:?}, but the manual demands only \
             {demanded:?}\n{old_entry:?}\n{new_entry:?}"
        );
    }

    /// Checks every pair of words that consist of `base` and some of `parts`.
    fn check_all_pairs(&self, base: u64, parts: &[u64], level: Level) {
        let words: Vec<(u64, Entry)> = (0..1u32 << parts.len())
            .map(|choice| {
                let chosen = parts.iter().enumerate().filter(|(i, _)| choice >> i & 1 != 0);
                chosen.fold(base, |word, (_, part)| word ^ part)
            })
            .filter(|word| (self.is_defined)(*word, level))
            .map(|word| (word, (self.decode)(word, level)))
            .collect();
        assert!(words.len() > 1 << (parts.len() - 2), "too few words are defined");
        for (old, old_entry) in &words {
            for (new, new_entry) in &words {
                self.check((*old, old_entry), (*new, new_entry), level);
            }
        }
    }

    /// Checks every change of one or two bits of each word.
    fn check_all_bits(&self, words: &[u64], level: Level) {
        for &old in words {
            assert!((self.is_defined)(old, level), "{old:#x} is not defined");
            let old_entry = (self.decode)(old, level);
            for first in 0..64 {
                for second in first..64 {
                    let new = old ^ (1 << first | 1 << second);
                    if (self.is_defined)(new, level) {
                        let new_entry = (self.decode)(new, level);
                        self.check((old, &old_entry), (new, &new_entry), level);
                        self.check((new, &new_entry), (old, &old_entry), level);
                    }
                }
            }
        }
    }
}

/// The flush of a leaf under one tag that may follow the change.
const LEAF: Flush = Flush { scope: Scope::Leaf, every_tag: false, break_first: false };

fn is(word: u64, bit: u32) -> bool {
    word >> bit & 1 != 0
}

fn parts(bits: impl IntoIterator<Item = u32>) -> Vec<u64> {
    bits.into_iter().map(|bit| 1 << bit).collect()
}

/// Returns whether a bit changed from set to clear.
fn lost(old: u64, new: u64, bit: u32) -> bool {
    old & !new & 1 << bit != 0
}

/// Returns whether a bit changed from clear to set.
fn gained(old: u64, new: u64, bit: u32) -> bool {
    lost(new, old, bit)
}

/// Returns whether any bit of a field differs.
fn differs(old: u64, new: u64, bits: std::ops::RangeInclusive<u32>) -> bool {
    bits.into_iter().any(|bit| (old ^ new) & 1 << bit != 0)
}

#[test]
fn the_comparison_tells_less_from_more() {
    let tables = Flush { scope: Scope::Tables, ..LEAF };
    let breaks = Flush { break_first: true, ..tables };
    let order = [Need::Nothing, Need::Local(Scope::Leaf), Need::Flush(LEAF), Need::Flush(tables)];
    for (i, less) in order.iter().enumerate() {
        for (j, more) in order.iter().enumerate() {
            assert_eq!(satisfies(*more, *less), i <= j, "{less:?}, {more:?}");
        }
    }
    assert!(!satisfies(Need::Flush(tables), Need::Flush(breaks)));
    assert!(!satisfies(Need::Local(Scope::Leaf), Need::Local(Scope::Tables)));
}

#[test]
fn every_format_has_an_oracle() {
    let crate_folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(crate_folder.join("src")).expect("the source") {
        let folder = entry.expect("a file").path();
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name");
        let declared = include_str!("main.rs").contains(&format!("\nmod {name};\n"));
        assert!(
            declared || !folder.join("entry.rs").exists(),
            "the format {name} needs an oracle: tests/changes/{name}.rs, and `mod {name};` in main.rs"
        );
    }
}

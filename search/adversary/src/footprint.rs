//! Measures what is new in a run, to decide which programs to keep.
//!
//! The engine's protocol is operations of CPUs on words that others read. So the measure is pairs of places in the
//! code, on two CPUs and one word: a CPU *reads* (or overwrites) here a value that another has written there, or
//! *overtakes*: it reaches a word that another is just about to use, and one of the two writes. An operation without a
//! word (a flush, an access, a change of root) counts as an operation on a word of its own. Further parts are the
//! places passed, the engine's counters and the machine's events: the *transitions*.
//!
//! A place is the line and column of the call in the source, so the numbers are the same in every run.

use crate::action::MAX_CPUS;
use crate::coverage::{Coverage, Reach};
use crate::op::{AccessKind, Op};
use quell_mutants::Mutant;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use std::cell::Cell;
use std::hash::BuildHasher;
use std::panic::Location;

/// A place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Site(u32);

impl Site {
    #[inline]
    fn of(location: &'static Location<'static>) -> Self {
        // Files that are as long as one another and agree in the middle of their names are few.
        let file = location.file().as_bytes();
        let name = file.len() as u32 * 31 + u32::from(file[file.len().saturating_sub(6)]);
        Site(name << 20 ^ location.line() << 7 ^ location.column())
    }
}

/// The word that represents the translation hardware.
const TRANSLATION: usize = 1;
/// The one for interrupts.
const LINES: usize = 2;

/// An operation: on which word, from where, and whether it changes it.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    word: usize,
    site: Site,
    writes: bool,
}

impl Use {
    fn of(op: Op, site: Option<&'static Location<'static>>) -> Option<Self> {
        let site = site.map(Site::of).unwrap_or_default();
        let (word, site, writes) = match op {
            Op::Load(word, _) => (word as usize, site, false),
            Op::Store(word, _) | Op::Modify(word, _) => (word as usize, site, true),
            Op::Access(kind) => {
                let site = match kind {
                    AccessKind::Load => 1,
                    AccessKind::Store => 2,
                    AccessKind::Fetch => 12,
                };
                (TRANSLATION, Site(site), false)
            }
            Op::Invalidate => (TRANSLATION, Site(3), true),
            Op::Root => (TRANSLATION, Site(4), true),
            Op::Broadcast => (TRANSLATION, Site(5), true),
            Op::Complete => (TRANSLATION, Site(6), true),
            Op::Barrier => (TRANSLATION, Site(7), true),
            Op::Note => (TRANSLATION, Site(8), true),
            Op::Send(_) => (LINES, Site(9), true),
            Op::Content { frame, store } => {
                (16 + frame as usize, Site(10 + u32::from(store)), store)
            }
            // Other memory is allocated and freed unseen, and its place may be reused.
            Op::Touch { .. }
            | Op::Start
            | Op::Fence
            | Op::Relax
            | Op::Halt
            | Op::Park
            | Op::Mask => return None,
        };
        Some(Use { word, site, writes })
    }
}

/// The footprints of a program's runs.
#[derive(Debug, Default)]
pub(crate) struct Footprints {
    about: [Option<Use>; MAX_CPUS],
    written: FxHashMap<usize, (u8, Site)>,
    /// Pairs and places.
    found: FxHashSet<u64>,
    /// The last rule that each CPU passed in its present operation, and in the operation interrupted for that; 0 if
    /// none.
    asked: [[u16; 2]; MAX_CPUS],
    /// Pairs of rules that met, see [`Footprints::ask`].
    met: FxHashSet<Meeting>,
}

/// Two rules, by their numbers: one was passed while another CPU, or interrupted code of the same one, had just passed
/// the other.
pub(crate) type Meeting = (u16, u16);

const FOLLOWS: u64 = 0;
const OVERTAKES: u64 = 1;
const PASSES: u64 = 2;
const COUNTS: u64 = 3;
const MEETS: u64 = 4;

fn key(kind: u64, first: u32, second: u32) -> u64 {
    FxBuildHasher.hash_one((first, second)) << 3 | kind
}

impl Footprints {
    /// A run begins.
    pub(crate) fn begin(&mut self) {
        self.asked = Default::default();
        self.about = Default::default();
        self.written.clear();
    }

    /// A CPU is about to do something.
    #[inline]
    pub(crate) fn arrive(&mut self, cpu: usize, op: Op, site: Option<&'static Location<'static>>) {
        self.about[cpu] = Use::of(op, site);
    }

    /// Forgets a dropped word, whose place may be reused.
    pub(crate) fn forget(&mut self, word: usize) {
        self.written.remove(&word);
    }

    /// Records that a CPU passes a place of this mutant. The mistake may matter only if the others are in the middle
    /// of certain operations meanwhile.
    pub(crate) fn ask(&mut self, cpu: usize, number: u16) {
        for (other, [last, outer]) in self.asked.iter().enumerate() {
            let there = if other == cpu { *outer } else { *last };
            if there != 0 {
                self.met.insert((number, there));
            }
        }
        self.asked[cpu][0] = number;
    }

    /// An operation is over.
    pub(crate) fn come_further(&mut self, cpu: usize) {
        self.asked[cpu][0] = 0;
    }

    /// Begins or ends an interruption of the CPU's code.
    pub(crate) fn nest(&mut self, cpu: usize, begins: bool) {
        let [last, outer] = &mut self.asked[cpu];
        if begins {
            *outer = *last;
        } else {
            *last = std::mem::take(outer);
        }
    }

    /// Which rules met in all runs.
    pub(crate) fn met(&self) -> Vec<Meeting> {
        let mut met: Vec<Meeting> = self.met.iter().copied().collect();
        met.sort_unstable();
        met
    }

    /// It does it.
    #[inline]
    pub(crate) fn step(&mut self, cpu: usize) {
        let Some(mine) = self.about[cpu].take() else {
            return;
        };
        for other in self.about.iter().flatten() {
            if other.word == mine.word && (other.writes || mine.writes) {
                self.found.insert(key(OVERTAKES, other.site.0, mine.site.0));
            }
        }
        if let Some(&(writer, site)) = self.written.get(&mine.word)
            && usize::from(writer) != cpu
        {
            self.found.insert(key(FOLLOWS, site.0, mine.site.0));
        }
        if mine.writes {
            self.written.insert(mine.word, (cpu as u8, mine.site));
        }
        self.found.insert(key(PASSES, mine.site.0, 0));
    }
}

/// The capacity of [`Asked`] in mutants.
const MUTANTS: usize = 256;

/// Which mutants' places were come by.
#[derive(Clone, Copy, Default, Debug)]
pub struct Asked([u64; MUTANTS / 64]);

/// The word and the bit of a mutant's number.
#[inline]
fn place_of(number: u16) -> (usize, u64) {
    (usize::from(number) / 64, 1 << (number % 64))
}

/// Returns the meetings in which this rule was the one passed.
pub(crate) fn meetings_of(met: &[Meeting], mutant: &Mutant) -> impl Iterator<Item = u16> {
    let number = mutant.number as u16;
    let of = move |(asked, there): &Meeting| (*asked == number).then_some(*there);
    met.iter().filter_map(of)
}

impl Asked {
    /// Returns whether it contains a mutant.
    pub fn contains(&self, mutant: &Mutant) -> bool {
        let (word, bit) = place_of(mutant.number as u16);
        self.0[word] & bit != 0
    }

    /// A set of the mutants with these numbers.
    pub(crate) fn numbered(numbers: impl Iterator<Item = u16>) -> Self {
        let mut set = Asked::default();
        for number in numbers {
            let (word, bit) = place_of(number);
            set.0[word] |= bit;
        }
        set
    }

    /// Those of another set, too.
    pub fn add(&mut self, other: &Asked) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }
}

/// The same, while runs add to it.
#[derive(Debug, Default)]
pub(crate) struct Asking([Cell<u64>; MUTANTS / 64]);

impl Asking {
    #[inline]
    pub(crate) fn insert(&self, number: u16) {
        let (word, bit) = place_of(number);
        self.0[word].set(self.0[word].get() | bit);
    }

    /// Returns the present content.
    pub(crate) fn so_far(&self) -> Asked {
        Asked(self.0.each_ref().map(Cell::get))
    }
}

/// The footprints of all runs so far.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    found: FxHashSet<u64>,
}

impl Seen {
    /// Adds the footprints of one program's runs. Returns whether any are new. `family` separates machines on which
    /// the engine takes other paths.
    pub(crate) fn add(&mut self, footprints: Footprints, coverage: &Coverage, family: u64) -> bool {
        let fired = coverage
            .iter()
            .enumerate()
            .filter(|(_, (_, count))| *count > 0);
        let fired = fired.map(|(number, _): (usize, (Reach, u64))| key(COUNTS, number as u32, 1));
        let before = self.found.len();
        let met = footprints.met.into_iter();
        let met = met.map(|(rule, there)| key(MEETS, rule.into(), there.into()));
        let all = footprints.found.into_iter().chain(fired).chain(met);
        self.found.extend(all.map(|key| key ^ family << 56));
        self.found.len() > before
    }

    /// Adds the footprints of others.
    pub fn merge(&mut self, other: &Seen) {
        self.found.extend(&other.found);
    }

    fn of(&self, kinds: [u64; 2]) -> usize {
        self.found
            .iter()
            .filter(|key| kinds.contains(&(**key & 7)))
            .count()
    }

    /// How many transitions were seen.
    pub fn transitions(&self) -> usize {
        self.of([PASSES, COUNTS])
    }

    /// How many pairs.
    pub fn pairs(&self) -> usize {
        self.of([FOLLOWS, OVERTAKES])
    }
}

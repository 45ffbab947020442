//! Measures how much of a run is new, to decide which programs to keep.
//!
//! The engine's protocol consists of operations of CPUs on words that others read. So the measure counts pairs of
//! places in the code, for two CPUs and one word:
//!
//! * A CPU *reads* or overwrites a value here that another CPU has written there. For example, a target reads a request
//!   where an initiator has posted it.
//! * A CPU *overtakes* another: it reaches a word that the other is just about to use, and one of the two writes it.
//!
//! An operation without a word (a flush, an access, a change of root) counts as an operation on a word of its own. The
//! measure also counts *transitions*: the places passed, the engine's counters and the machine's events.
//!
//! A place is the line and column of the call in the source, so the numbers are the same in every run.

use crate::action::MAX_CPUS;
use crate::action::{AccessKind, Op};
use crate::coverage::{Coverage, ReachGoal};
use quell_mutants::Mutant;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use std::hash::BuildHasher;
use std::panic::Location;

/// A place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Site(u32);

impl Site {
    #[inline]
    fn of(location: &'static Location<'static>) -> Self {
        // Collisions are rare: few file names have the same length and the same byte six places before the end.
        let file = location.file().as_bytes();
        let name = file.len() as u32 * 31 + u32::from(file[file.len().saturating_sub(6)]);
        Site(name << 20 ^ location.line() << 7 ^ location.column())
    }
}

/// The word that represents the translation hardware.
const TRANSLATION: usize = 1;
/// The word that represents interrupts.
const LINES: usize = 2;

/// An operation: its word, its place in the code, and whether it writes.
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
            // This memory can be freed and reused without our notice, so an address doesn't identify it.
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
    /// The pairs and the places passed.
    found: FxHashSet<u64>,
    /// The last rule that each CPU passed in its present operation, and in the operation that this one interrupted; 0
    /// if none.
    asked: [[u16; 2]; MAX_CPUS],
    /// Pairs of rules that met ([`Footprints::ask`]).
    met: FxHashSet<PlacePair>,
}

/// Two rules, by the numbers of their mutants. One was passed while another CPU, or interrupted code of the same CPU,
/// had just passed the other.
pub(crate) type PlacePair = (u16, u16);

const FOLLOWS: u64 = 0;
const OVERTAKES: u64 = 1;
const PASSES: u64 = 2;
const COUNTS: u64 = 3;
const MEETS: u64 = 4;

fn key(kind: u64, first: u32, second: u32) -> u64 {
    FxBuildHasher.hash_one((first, second)) << 3 | kind
}

impl Footprints {
    /// Prepares for a run.
    pub(crate) fn begin(&mut self) {
        self.asked = Default::default();
        self.about = Default::default();
        self.written.clear();
    }

    /// Records that a CPU is about to perform an operation.
    #[inline]
    pub(crate) fn arrive(&mut self, cpu: usize, op: Op, site: Option<&'static Location<'static>>) {
        self.about[cpu] = Use::of(op, site);
    }

    /// Forgets a dropped word, whose place may be reused.
    pub(crate) fn forget(&mut self, word: usize) {
        self.written.remove(&word);
    }

    /// Records that a CPU passes a place of this mutant. Its mistake may matter only while other CPUs are in the middle
    /// of certain operations, so we record which rules they have just passed.
    pub(crate) fn ask(&mut self, cpu: usize, number: u16) {
        for (other, [last, outer]) in self.asked.iter().enumerate() {
            let there = if other == cpu { *outer } else { *last };
            if there != 0 {
                self.met.insert((number, there));
            }
        }
        self.asked[cpu][0] = number;
    }

    /// Records the end of an operation.
    pub(crate) fn come_further(&mut self, cpu: usize) {
        self.asked[cpu][0] = 0;
    }

    /// Records the beginning or the end of an interruption of the CPU's code.
    pub(crate) fn nest(&mut self, cpu: usize, begins: bool) {
        let [last, outer] = &mut self.asked[cpu];
        if begins {
            *outer = *last;
        } else {
            *last = std::mem::take(outer);
        }
    }

    /// Returns the rules that met in all runs.
    pub(crate) fn met(&self) -> Vec<PlacePair> {
        let mut met: Vec<PlacePair> = self.met.iter().copied().collect();
        met.sort_unstable();
        met
    }

    /// Records that the CPU performs the operation at which it arrived.
    #[inline]
    pub(crate) fn step(&mut self, cpu: usize) {
        let Some(mine) = self.about[cpu].take() else { return };
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

/// The number of mutants for which [`PassedRules`] has room.
const MUTANTS: usize = 256;

/// The set of mutants whose rules runs have passed.
///
/// A mutant's rule is the place in the code that it changes.
#[derive(Clone, Copy, Default, Debug)]
pub struct PassedRules([u64; MUTANTS / 64]);

/// Returns the word and the bit of a mutant's number.
#[inline]
fn place_of(number: u16) -> (usize, u64) {
    (usize::from(number) / 64, 1 << (number % 64))
}

/// Returns the other rule of each meeting in which `mutant`'s rule was the one passed.
pub(crate) fn meetings_of(met: &[PlacePair], mutant: &Mutant) -> impl Iterator<Item = u16> {
    let number = mutant.number as u16;
    let of = move |(asked, there): &PlacePair| (*asked == number).then_some(*there);
    met.iter().filter_map(of)
}

impl PassedRules {
    /// Returns whether runs have passed the mutant's rule.
    pub fn contains(&self, mutant: &Mutant) -> bool {
        let (word, bit) = place_of(mutant.number as u16);
        self.0[word] & bit != 0
    }

    /// Creates the set of the mutants with these numbers.
    pub(crate) fn numbered(numbers: impl Iterator<Item = u16>) -> Self {
        let mut set = PassedRules::default();
        numbers.for_each(|number| set.insert(number));
        set
    }

    /// Adds the mutant of this number.
    #[inline]
    pub(crate) fn insert(&mut self, number: u16) {
        let (word, bit) = place_of(number);
        self.0[word] |= bit;
    }

    /// Adds the mutants of another set.
    pub fn add(&mut self, other: &PassedRules) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }
}

/// The footprints of all runs so far: the pairs and transitions that they showed.
#[derive(Clone, Default, Debug)]
pub struct FootprintSet {
    found: FxHashSet<u64>,
}

impl FootprintSet {
    /// Adds the footprints of one program's runs. Returns whether any are new. `family` separates machines on which the
    /// engine takes different paths.
    pub(crate) fn add(&mut self, footprints: Footprints, coverage: &Coverage, family: u64) -> bool {
        let fired = coverage.iter().enumerate().filter(|(_, (_, count))| *count > 0);
        let fired =
            fired.map(|(number, _): (usize, (ReachGoal, u64))| key(COUNTS, number as u32, 1));
        let before = self.found.len();
        let met = footprints.met.into_iter();
        let met = met.map(|(rule, there)| key(MEETS, rule.into(), there.into()));
        let all = footprints.found.into_iter().chain(fired).chain(met);
        self.found.extend(all.map(|key| key ^ family << 56));
        self.found.len() > before
    }

    /// Adds another collection of footprints.
    pub fn merge(&mut self, other: &FootprintSet) {
        self.found.extend(&other.found);
    }

    fn of(&self, kinds: [u64; 2]) -> usize {
        self.found.iter().filter(|key| kinds.contains(&(**key & 7))).count()
    }

    /// Returns the number of transitions seen.
    pub fn transitions(&self) -> usize {
        self.of([PASSES, COUNTS])
    }

    /// Returns the number of pairs seen.
    pub fn pairs(&self) -> usize {
        self.of([FOLLOWS, OVERTAKES])
    }
}

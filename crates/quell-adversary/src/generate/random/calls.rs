//! What programs over the memory manager may do, and the phrases that do it. [`whole_calls`](super::whole_calls) makes
//! programs of them.

use super::pages::few_of;
use crate::generated::program::{CallOp, FLAGS, Lane, WINDOW};
use crate::schedule::Rng;

/// What a program over the manager may do.
#[derive(Clone)]
pub(super) struct CallSwarm {
    pub(super) kinds: Vec<u8>,
    pub(super) pages: Vec<u64>,
    /// How many files there are when the run begins, and how long they are.
    pub(super) files: u32,
    pub(super) length: u64,
    pub(super) large: bool,
    /// Small pages are put together to a large one; else a large one is taken apart.
    pub(super) collapses: bool,
    /// The range that most of it is about.
    pub(super) focus: (u64, u64),
    pub(super) theme: Option<&'static [u8]>,
    /// The kind that one side of a duel is, if that is known.
    pub(super) centre: Option<u8>,
}

/// How many kinds of calls there are.
const CALLS: u8 = 26;

/// The kind that gives frames one life after another.
pub(super) const TURNOVER: u8 = 25;

/// Kinds that are about one thing, as in programs over the engine.
const THEMES: [&[u8]; 5] = [
    // Memory is short: page out, discard, migrate, demote, reclaim, frames that come back.
    &[7, 5, 18, 20, 21, TURNOVER],
    // One life of a frame after another: page out, discard.
    &[7, 5, TURNOVER],
    // Files: map, page out, discard, write, read, truncate, sync, migrate.
    &[3, 7, 5, 14, 15, 16, 17, 18],
    // Processes that share: fork, twice as often, another process, exit, unmap, protect, page out, reclaim.
    &[FORK, FORK, ENTER, 13, 4, 6, 7, 21],
    // What lies where: map, unmap, discard, remap, protect, code.
    &[2, 4, 5, 9, 6, 23],
];

/// The same in programs with large pages.
const LARGE_THEMES: [&[u8]; 2] = [
    // One CPU takes a large page apart while another takes hold of it: unmap, discard, protect, page out, migrate,
    // reclaim.
    &[4, 5, 6, 7, 18, 18, 21],
    // Processes that share one: fork, another process, discard, protect, and writes.
    &[FORK, ENTER, 5, 6, 1],
];

/// Where memory comes and goes that nothing else is about, and how much: all that there is where it is short.
pub(super) const ELSEWHERE: (u64, u64) = (100, 4);

/// The kind that forks.
pub(super) const FORK: u8 = 11;

/// The kind that goes on in another process.
pub(super) const ENTER: u8 = 12;

/// The kind that collapses pages.
const COLLAPSE: u8 = 10;

/// Kinds that are about files: map, write, read, truncate, sync.
const OF_FILES: [u8; 5] = [3, 14, 15, 16, 17];

/// Kinds that take a large page apart where they are about a part of it: unmap, discard, protect, page out, fork,
/// migrate, reclaim.
pub(super) const SPLITS: [u8; 7] = [4, 5, 6, 7, 11, 18, 21];

/// Kinds that take entries or rights away: unmap, discard, protect, page out, remap, fork, truncate, migrate, demote,
/// reclaim. Other calls' duties are mostly about them.
pub(super) const CLEARS: [u8; 10] = [4, 5, 6, 7, 9, 11, 16, 18, 20, 21];

/// How often a program over the manager is about large pages. Its runs take long then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargePages {
    /// One in sixteen.
    Seldom,
    /// One in three.
    Often,
    /// Each.
    Always,
    /// None.
    Never,
}

impl CallSwarm {
    /// The same, about the pages that a program has used so far.
    pub(super) fn about(mut self, pages: &[u64], rng: &mut Rng) -> Self {
        if !pages.is_empty() {
            self.pages = pages.to_vec();
            self.focus.0 = rng.pick(pages);
        }
        self
    }

    /// Other kinds of calls for one CPU of a duel: the kind that is its part, or accesses alone.
    pub(super) fn part(&self, kind: Option<u8>) -> Self {
        CallSwarm {
            kinds: kind.map_or(vec![0, 1], |kind| vec![kind; 1]),
            ..self.clone()
        }
    }

    pub(super) fn draw(rng: &mut Rng, large: LargePages) -> Self {
        let large = match large {
            LargePages::Seldom => rng.one_in(16),
            LargePages::Often => rng.one_in(3),
            LargePages::Always => true,
            LargePages::Never => false,
        };
        let collapses = large && rng.one_in(3);
        let mut kinds = vec![0, 1];
        if large {
            kinds.extend(
                [if collapses {
                    COLLAPSE
                } else {
                    rng.pick(&SPLITS)
                }; 3],
            );
        }
        let themes: &[&'static [u8]] = if large { &LARGE_THEMES } else { &THEMES };
        let theme = rng.one_in(2).then(|| rng.pick(themes));
        for _ in 0..1 + rng.few(4) {
            // Each as often as the two that are always there.
            let kind = match theme {
                Some(theme) => rng.pick(theme),
                None => rng.below(CALLS.into()) as u8,
            };
            kinds.extend([kind; 2]);
        }
        let far = if large { WINDOW } else { 4 };
        let count = rng.weigh(&[(6, 1), (3, 2), (1, 3)]);
        let pages: Vec<u64> = (0..count)
            .map(|_| match rng.below(4) {
                0 => rng.below(far),
                _ => rng.below(3),
            })
            .collect();
        let focus = (pages[0], rng.few(3));
        CallSwarm {
            kinds,
            pages,
            files: rng.weigh(&[(2, 0), (4, 1), (2, 2)]),
            length: rng.few(3),
            large,
            collapses,
            focus,
            theme,
            centre: None,
        }
    }

    /// The same about one of these kinds of calls, and what goes with it.
    pub(super) fn about_kinds(mut self, kinds: &[u8], rng: &mut Rng) -> Self {
        if kinds.is_empty() {
            return self;
        }
        let one = rng.pick(kinds);
        let themes: &[&'static [u8]] = if self.large { &LARGE_THEMES } else { &THEMES };
        let fitting: Vec<_> = { themes.iter().copied() }
            .filter(|theme| theme.contains(&one))
            .collect();
        self.theme = (!fitting.is_empty()).then(|| rng.pick(&fitting));
        let other = self.any_kind(rng);
        self.kinds.truncate(2);
        self.kinds.extend([one, one, rng.pick(kinds), other]);
        self.centre = Some(one);
        if OF_FILES.contains(&one) {
            self.files = self.files.max(1);
        }
        self
    }

    fn page(&self, rng: &mut Rng) -> u64 {
        rng.pick(&self.pages)
    }

    /// A page to use: one that the program is about, or another that may lie in the same large one, or the same range.
    fn used(&self, rng: &mut Rng) -> u64 {
        let page = self.page(rng);
        match rng.below(if self.large { 4 } else { 16 }) {
            0 => page ^ 1,
            1 if self.large => rng.below(WINDOW),
            _ => page,
        }
    }

    pub(super) fn access(&self, rng: &mut Rng) -> CallOp {
        let page = self.used(rng);
        if rng.one_in(2) {
            CallOp::Read { page }
        } else {
            CallOp::Write { page }
        }
    }

    /// A kind for one side of a duel: of those that it is about, of those of the swarm that do more than use memory, or
    /// any.
    pub(super) fn any_kind(&self, rng: &mut Rng) -> u8 {
        if let Some(theme) = self.theme {
            return rng.pick(theme);
        }
        match rng.pick(&self.kinds) {
            kind @ 2.. => kind,
            _ if rng.one_in(2) => rng.pick(&CLEARS),
            _ => 2 + rng.below(u64::from(CALLS) - 2) as u8,
        }
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let page = self.page(rng);
        match rng.below(16) {
            0..6 => (page, 1),
            12 if self.large => (0, WINDOW),
            12.. => self.focus,
            6..8 => (self.focus.0, 1),
            8..10 => (page, rng.few(4)),
            10 => (0, 4),
            _ if self.large => (0, WINDOW),
            _ => (page.saturating_sub(1), 2),
        }
    }

    pub(super) fn map_file(&self, rng: &mut Rng, page: u64) -> CallOp {
        let shared = rng.below(3) > 0;
        CallOp::MapFile {
            page,
            pages: rng.few(self.length.max(1)),
            file: rng.below(self.files.max(1).into()) as u32,
            from: if rng.one_in(6) {
                rng.below(self.length.max(1))
            } else {
                0
            },
            shared,
            write: rng.one_in(2),
        }
    }

    pub(super) fn phrase(&self, rng: &mut Rng, into: &mut Vec<CallOp>) {
        let (page, pages) = self.range(rng);
        let file = rng.below(self.files.max(1).into()) as u32;
        // Now and then beyond the end.
        let beyond = rng.below(3) / 2;
        let at = match beyond {
            0 => rng.below(self.length.max(1)),
            _ => self.length,
        };
        let process = rng.weigh(&[(1, 1), (3, 2), (1, 3)]);
        let op = match rng.pick(&self.kinds) {
            0 => CallOp::Read {
                page: self.used(rng),
            },
            1 => CallOp::Write {
                page: self.used(rng),
            },
            2 => CallOp::Map {
                page,
                pages,
                large: self.large && rng.one_in(2),
            },
            3 => self.map_file(rng, page),
            4 => CallOp::Unmap { page, pages },
            5 => CallOp::Discard { page, pages },
            6 => CallOp::Protect {
                page,
                pages,
                rights: rng.weigh(&[(1, 0), (4, 1), (2, 2), (1, 3), (1, 4)]),
            },
            7 | 8 => {
                if rng.one_in(4) {
                    into.push(CallOp::Write { page });
                }
                CallOp::PageOut { page, pages }
            }
            9 => {
                let to = rng.pick(&[8, 9, 64, WINDOW, 2 * WINDOW]) + rng.below(2);
                into.push(CallOp::Remap { page, pages, to });
                // What is there now, perhaps with a stop on the way.
                match rng.below(4) {
                    0 => CallOp::Write { page },
                    1 => CallOp::Read { page: to },
                    _ => CallOp::Write { page: to },
                }
            }
            COLLAPSE if self.large => CallOp::Collapse { page },
            COLLAPSE => CallOp::Sync { file },
            FORK => {
                into.push(CallOp::Fork);
                match rng.below(4) {
                    0 => CallOp::Enter { process },
                    1 | 2 => {
                        into.push(CallOp::Enter { process });
                        CallOp::Write { page }
                    }
                    _ => CallOp::Write { page },
                }
            }
            ENTER => {
                into.push(CallOp::Enter { process });
                if rng.one_in(2) {
                    CallOp::Read { page }
                } else {
                    CallOp::Write { page }
                }
            }
            13 => {
                if rng.one_in(2) {
                    into.push(CallOp::Enter { process: 1 });
                }
                CallOp::Exit { process }
            }
            14 => CallOp::WriteFile { file, page: at },
            15 => CallOp::ReadFile { file, page: at },
            16 => CallOp::Truncate {
                file,
                pages: rng.weigh(&[(3, 0), (2, at), (1, self.length), (1, self.length + 1)]),
            },
            17 => CallOp::Sync { file },
            18 | 19 => CallOp::Migrate {
                page,
                pages,
                node: rng.weigh(&[(1, 0), (3, 1)]),
            },
            20 => CallOp::Demote { pages: rng.few(4) },
            21 => CallOp::Reclaim { pages: rng.few(4) },
            22 => match rng.below(6) {
                0 => CallOp::Offline,
                1 => CallOp::Online,
                2 => CallOp::Nothing,
                _ => CallOp::Idle,
            },
            23 => {
                // Code is made executable, run, and taken away.
                let rights = rng.pick(&[1, 3, 4]);
                into.push(CallOp::Protect {
                    page,
                    pages,
                    rights,
                });
                CallOp::Fetch { page }
            }
            TURNOVER => {
                // A page goes, its frame is used elsewhere, is free, and the page comes back.
                if rng.below(3) > 0 {
                    into.push(CallOp::PageOut { page, pages });
                }
                let (elsewhere, most) = ELSEWHERE;
                into.push(CallOp::Fill {
                    page: elsewhere,
                    pages: 1 + rng.below(most),
                });
                into.push(CallOp::Discard {
                    page: elsewhere,
                    pages: most,
                });
                self.access(rng)
            }
            _ => {
                let flag = rng.below(FLAGS as u64) as u8;
                if rng.one_in(2) {
                    CallOp::Tell { flag }
                } else {
                    CallOp::Wait { flag }
                }
            }
        };
        into.push(op);
    }
}

/// The pages that programs map and use, the first few of them.
pub(super) fn pages_of(cpu: &[Lane<CallOp>]) -> Vec<u64> {
    few_of(cpu, |op| match *op {
        CallOp::Read { page } | CallOp::Write { page } | CallOp::MapFile { page, .. } => Some(page),
        _ => None,
    })
}

/// The kinds of calls that a program makes in its run, accesses aside.
pub(super) fn kinds_of(cpu: &[Lane<CallOp>]) -> Vec<u8> {
    let kind = |op: &CallOp| match *op {
        CallOp::Fill { page, .. } if page == ELSEWHERE.0 => Some(TURNOVER),
        CallOp::Map { .. } => Some(2),
        CallOp::MapFile { .. } => Some(3),
        CallOp::Unmap { .. } => Some(4),
        CallOp::Discard { page, .. } if page != ELSEWHERE.0 => Some(5),
        CallOp::Protect { .. } => Some(6),
        CallOp::PageOut { .. } => Some(7),
        CallOp::Remap { .. } => Some(9),
        CallOp::Collapse { .. } => Some(COLLAPSE),
        CallOp::Fork => Some(FORK),
        CallOp::Enter { .. } => Some(ENTER),
        CallOp::Exit { .. } => Some(13),
        CallOp::WriteFile { .. } => Some(14),
        CallOp::ReadFile { .. } => Some(15),
        CallOp::Truncate { .. } => Some(16),
        CallOp::Sync { .. } => Some(17),
        CallOp::Migrate { .. } => Some(18),
        CallOp::Demote { .. } => Some(20),
        CallOp::Reclaim { .. } => Some(21),
        CallOp::Fetch { .. } => Some(23),
        _ => None,
    };
    let mut kinds: Vec<u8> = { cpu.iter() }
        .flat_map(|lane| lane.run.iter().filter_map(kind))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

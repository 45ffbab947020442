//! Programs over the memory manager, drawn.

use super::pages::few_of;
use super::turns::take_turns;
use crate::action::MAX_CPUS;
use crate::generated::program::{CallOp, FLAGS, Lane, Memory, Program, WINDOW};
use crate::schedule::Rng;

/// What a program over the manager may do.
#[derive(Clone)]
pub(super) struct CallSwarm {
    kinds: Vec<u8>,
    pages: Vec<u64>,
    /// How many files there are when the run begins, and how long they are.
    files: u32,
    length: u64,
    pub(super) large: bool,
    /// Small pages are put together to a large one; else a large one is taken apart.
    collapses: bool,
    /// The range that most of it is about.
    focus: (u64, u64),
    theme: Option<&'static [u8]>,
}

/// How many kinds of calls there are.
const CALLS: u8 = 26;

/// The kind that gives frames one life after another.
const TURNOVER: u8 = 25;

/// Kinds that are about one thing, as in programs over the engine.
const THEMES: [&[u8]; 5] = [
    // Memory is short: page out, discard, migrate, demote, reclaim, frames that come back.
    &[7, 5, 18, 20, 21, TURNOVER],
    // One life of a frame after another: page out, discard.
    &[7, 5, TURNOVER],
    // Files: map, page out, discard, write, read, truncate, sync.
    &[3, 7, 5, 14, 15, 16, 17],
    // Processes that share: fork, another process, exit, unmap, protect, page out.
    &[FORK, ENTER, 13, 4, 6, 7],
    // What lies where: map, unmap, discard, remap, protect, code.
    &[2, 4, 5, 9, 6, 23],
];

/// Where memory comes and goes that nothing else is about, and how much: all that there is where it is short.
const ELSEWHERE: (u64, u64) = (100, 4);

/// The kind that forks.
const FORK: u8 = 11;

/// The kind that goes on in another process.
const ENTER: u8 = 12;

/// The kind that collapses pages.
const COLLAPSE: u8 = 10;

/// Kinds that take a large page apart where they are about a part of it: unmap, discard, protect, page out, fork,
/// migrate, reclaim.
const SPLITS: [u8; 7] = [4, 5, 6, 7, 11, 18, 21];

/// Kinds that take entries or rights away: unmap, discard, protect, page out, remap, fork, truncate, migrate, demote,
/// reclaim. What other calls must do is mostly about them.
const CLEARS: [u8; 10] = [4, 5, 6, 7, 9, 11, 16, 18, 20, 21];

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
    fn part(&self, kind: Option<u8>) -> Self {
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
        let theme = rng.one_in(3).then(|| rng.pick(&THEMES));
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
        }
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

    fn access(&self, rng: &mut Rng) -> CallOp {
        let page = self.used(rng);
        if rng.one_in(2) {
            CallOp::Read { page }
        } else {
            CallOp::Write { page }
        }
    }

    /// A kind for one side of a duel: of those that it is about, of those of the swarm that do more than use memory, or any.
    fn any_kind(&self, rng: &mut Rng) -> u8 {
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

    fn map_file(&self, rng: &mut Rng, page: u64) -> CallOp {
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

/// The same of a file at another page: privately where it was shared, shared where it was private.
fn mapped_again(before: CallOp, at: u64) -> CallOp {
    match before {
        CallOp::MapFile {
            pages,
            file,
            from,
            shared,
            ..
        } => CallOp::MapFile {
            page: at,
            pages,
            file,
            from,
            shared: !shared,
            write: true,
        },
        other => other,
    }
}

/// The pages that programs map and use, the first few of them.
pub(super) fn pages_of(cpu: &[Lane<CallOp>]) -> Vec<u64> {
    few_of(cpu, |op| match *op {
        CallOp::Read { page } | CallOp::Write { page } | CallOp::MapFile { page, .. } => Some(page),
        _ => None,
    })
}

/// A program over the memory manager.
pub fn calls_program(rng: &mut Rng, large: LargePages) -> Program {
    let mut swarm = CallSwarm::draw(rng, large);
    // Every other program is a duel: one CPU does one kind of thing, another another or no more than use memory, and the
    // rest of them use what it is done to; perhaps not before one of the two says that it is done.
    let duel = rng.one_in(2).then(|| {
        let second = match rng.one_in(4) {
            true => rng.below(2) as u8,
            false => swarm.any_kind(rng),
        };
        let first = if swarm.theme.is_none() && rng.one_in(2) {
            rng.pick(&CLEARS)
        } else {
            swarm.any_kind(rng)
        };
        [first, second]
    });
    let cpus = rng.weigh(&[(5, 2), (3, 3), (1, MAX_CPUS)]);
    let mut cpu = vec![Lane::default(); cpus];
    let first = &mut cpu[0].start;
    for file in 0..swarm.files {
        first.push(CallOp::Create {
            pages: swarm.length,
        });
        if rng.below(4) > 0 {
            first.push(CallOp::WriteFile { file, page: 0 });
            if rng.below(3) > 0 {
                first.push(CallOp::Sync { file });
            }
        }
    }
    // What a fault maps may be a large page, too.
    let untouched = swarm.large && !swarm.collapses && rng.one_in(3);
    if swarm.large {
        let large = !swarm.collapses;
        first.push(CallOp::Map {
            page: 0,
            pages: WINDOW,
            large,
        });
        if large && !untouched {
            first.push(CallOp::Write { page: 0 });
        } else if !large {
            first.push(CallOp::Fill {
                page: 0,
                pages: if rng.one_in(3) { 4 } else { WINDOW },
            });
        }
    }
    let mut mapped = None;
    for &page in &swarm.pages {
        // A file cuts the range of a large page.
        if swarm.files > 0 && rng.below(5) < if swarm.large { 1 } else { 3 } {
            let map = swarm.map_file(rng, page);
            // Now and then what lies elsewhere already, the other way.
            let again = mapped.filter(|_| rng.one_in(2));
            let map = again.map_or(map, |before| mapped_again(before, page));
            mapped = Some(map);
            first.push(map);
            if rng.one_in(4) {
                let beside = page ^ 4;
                first.push(mapped_again(map, beside));
                first.push(CallOp::Read { page: beside });
                if rng.one_in(3) {
                    let pages = 1;
                    first.push(CallOp::PageOut {
                        page: beside,
                        pages,
                    });
                }
            }
        } else if !swarm.large {
            let pages = rng.few(3);
            first.push(CallOp::Map {
                page,
                pages,
                large: false,
            });
        }
        if !untouched && rng.below(4) > 0 {
            first.push(if rng.one_in(2) {
                CallOp::Write { page }
            } else {
                CallOp::Read { page }
            });
            if rng.one_in(8) {
                first.push(CallOp::PageOut { page, pages: 1 });
            }
        }
    }
    if duel.is_some() && rng.one_in(2) {
        // Whatever else is there.
        let one = rng.pick(&swarm.pages);
        swarm.pages = vec![one];
        swarm.focus.0 = one;
    }
    let about_processes = swarm.kinds.contains(&FORK) || swarm.kinds.contains(&ENTER);
    let forked = rng.one_in(if about_processes {
        2
    } else if swarm.large {
        4
    } else {
        12
    });
    if forked {
        first.push(CallOp::Fork);
    }
    // Then some run the parent, others the child: each as it comes, or one this and all others that.
    let alone = rng.one_in(2).then(|| rng.below(2) as usize);
    // A page beside them, so that their table stays.
    if !swarm.large && (swarm.kinds.contains(&TURNOVER) || rng.below(3) > 0) {
        let (page, pages) = ELSEWHERE;
        first.push(CallOp::Map {
            page,
            pages,
            large: false,
        });
        first.push(CallOp::Write { page });
    }
    let turns_over = match duel {
        Some(kinds) => kinds.contains(&TURNOVER),
        None => swarm.kinds.contains(&TURNOVER),
    };
    let told = (rng.below(2) as usize, rng.below(FLAGS as u64) as u8);
    let waits = duel.is_some() && rng.one_in(2);
    for (number, lane) in cpu.iter_mut().enumerate() {
        let (part, most) = match duel {
            Some(kinds) => {
                // Now and then there are two on a side.
                let side = if rng.one_in(3) { number % 2 } else { number };
                (swarm.part(kinds.get(side).copied()), 2)
            }
            None => (swarm.clone(), 4),
        };
        let child = match alone {
            Some(alone) => number != alone,
            None => rng.one_in(2),
        };
        if forked && child {
            lane.start.push(CallOp::Enter { process: 2 });
        }
        // What lies behind the start of a run: pages taken out, moved, shared with a child.
        if rng.one_in(3) {
            swarm.phrase(rng, &mut lane.start);
        }
        for _ in 0..rng.few(most) {
            part.phrase(rng, &mut lane.run);
        }
        // Who has done something uses it, too.
        if duel.is_some() && rng.one_in(2) {
            lane.run.push(swarm.access(rng));
        }
        if waits && number == told.0 {
            lane.run.push(CallOp::Tell { flag: told.1 });
        } else if waits {
            lane.run.push(CallOp::Wait { flag: told.1 });
            lane.run.push(swarm.access(rng));
        }
    }
    if rng.one_in(5) {
        let tells = [0, 1].map(|flag| CallOp::Tell { flag });
        let waits = [0, 1].map(|flag| CallOp::Wait { flag });
        take_turns(rng, &mut cpu, tells, waits);
    }
    let fast = if swarm.collapses {
        2072
    } else if swarm.large {
        rng.pick(&[1040, 1110])
    } else if turns_over && rng.one_in(2) {
        // Frames come back where there are few.
        rng.weigh(&[(3, 6), (2, 7), (1, 8)])
    } else {
        rng.weigh(&[(1, 6), (1, 7), (2, 8), (2, 10), (2, 12), (6, 32)])
    };
    let memory = Memory {
        fast,
        slow: rng.weigh(&[(3, 0), (3, 4), (1, 8)]),
        ledger: rng.weigh(&[(1, 1), (2, 2), (4, 4)]),
        nmis: rng.weigh(&[(12, 0), (1, 1)]),
    };
    Program::Calls { memory, cpu }
}

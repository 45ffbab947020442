//! Whole programs over the memory manager, drawn.
//!
//! Every program begins with memory and files mapped, and mostly used, because nothing can go wrong before.

use super::calls::{
    CLEARS, CallSwarm, ELSEWHERE, ENTER, FORK, LargePages, SPLITS, TURNOVER, kinds_of,
};
use super::turns::{repeat, take_turns};
use crate::action::MAX_CPUS;
use crate::generated::program::{CallOp, FLAGS, Lane, Memory, Program, WINDOW};
use crate::schedule::Rng;

/// A program over the memory manager.
pub fn calls_program(rng: &mut Rng, large: LargePages) -> Program {
    calls_program_like(rng, large, None)
}

/// A program over the memory manager, about what another is about.
pub(in crate::generate) fn calls_program_like(
    rng: &mut Rng,
    large: LargePages,
    like: Option<&Program>,
) -> Program {
    let mut swarm = CallSwarm::draw(rng, large);
    if let Some(Program::Calls { cpu, .. }) = like {
        swarm = swarm.about_kinds(&kinds_of(cpu), rng);
    }
    // What a fault maps may be a large page, too.
    let untouched = swarm.large && !swarm.collapses && rng.one_in(3);
    // Every other program is a duel: one CPU does one kind of thing, another another or no more than use memory, and
    // the rest of them use what it is done to; perhaps not before one of the two says that it is done.
    let duel = rng.one_in(2).then(|| {
        let second = match rng.one_in(if untouched { 2 } else { 4 }) {
            true => rng.below(2) as u8,
            false => swarm.any_kind(rng),
        };
        let first = if (swarm.theme.is_none() || swarm.centre.is_some()) && rng.one_in(2) {
            rng.pick(if swarm.large { &SPLITS } else { &CLEARS })
        } else {
            swarm.any_kind(rng)
        };
        match swarm.centre {
            Some(centre) if rng.one_in(2) => [centre, second],
            Some(centre) => [first, centre],
            None => [first, second],
        }
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
        // Those that a duel is not left to have used what it is about: what is left behind is in their TLBs.
        if duel.is_some() && number > 1 && rng.one_in(2) {
            lane.start.push(swarm.access(rng));
        }
        // What lies behind the start of a run: pages taken out, moved, shared with a child.
        if rng.one_in(3) {
            swarm.phrase(rng, &mut lane.start);
        }
        for _ in 0..rng.few(most) {
            part.phrase(rng, &mut lane.run);
        }
        // A CPU that has done something uses it, too.
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
    if !swarm.large && rng.one_in(6) {
        repeat(rng, &mut cpu);
    }
    if rng.one_in(5) {
        let tells = [0, 1].map(|flag| CallOp::Tell { flag });
        let waits = [0, 1].map(|flag| CallOp::Wait { flag });
        take_turns(rng, &mut cpu, tells, waits);
    }
    let memory = memory(rng, &swarm, turns_over);
    Program::Calls { memory, cpu }
}

/// The sizes of the machine under a program, which may be about frames that come and go.
pub(super) fn memory(rng: &mut Rng, swarm: &CallSwarm, turns_over: bool) -> Memory {
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
    Memory {
        fast,
        slow: rng.weigh(&[(3, 0), (3, 4), (1, 8)]),
        ledger: rng.weigh(&[(1, 1), (2, 2), (4, 4)]),
        nmis: rng.weigh(&[(12, 0), (1, 1)]),
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

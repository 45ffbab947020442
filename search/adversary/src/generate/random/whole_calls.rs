//! Draws whole programs over the memory manager.
//!
//! Every program begins with mapped memory and files, which are mostly used, because nothing can fail without them.

use super::calls::{
    CLEARS, CallKind, CallSwarm, ELSEWHERE, LargePages, SPLITS, USES, kinds_of, read, write,
};
use super::turns::{repeat, take_turns};
use crate::action::MAX_CPUS;
use crate::generated::program::{CallOp, CpuProgram, FLAGS, Memory, Program, WINDOW};
use crate::schedule::Rng;

/// Draws a program over the memory manager.
pub fn calls_program(rng: &mut Rng, large: LargePages) -> Program {
    calls_program_like(rng, large, None)
}

/// Draws a program over the memory manager with the subject of another one.
pub(in crate::generate) fn calls_program_like(
    rng: &mut Rng,
    large: LargePages,
    like: Option<&Program>,
) -> Program {
    let mut swarm = CallSwarm::draw(rng, large);
    if let Some(Program::Calls { cpu, .. }) = like {
        swarm = swarm.about_kinds(&kinds_of(cpu), rng);
    }
    // A fault may map a large page, too.
    let untouched = swarm.large && !swarm.collapses && rng.one_in(3);
    let duel = rng.one_in(2).then(|| duel(rng, &swarm, untouched));
    let cpus = rng.weigh(&[(5, 2), (3, 3), (1, MAX_CPUS)]);
    let mut cpu = vec![CpuProgram::default(); cpus];
    let first = &mut cpu[0].start;
    create_files(rng, &swarm, first);
    if swarm.large {
        map_large(rng, &swarm, untouched, first);
    }
    map_pages(rng, &swarm, untouched, first);
    if duel.is_some() && rng.one_in(2) {
        // The duel is then about a single page.
        let one = rng.pick(&swarm.pages);
        swarm.pages = vec![one];
        swarm.focus.0 = one;
    }
    let forked = forks(rng, &swarm);
    if forked {
        first.push(CallOp::Fork);
    }
    // After the fork, some CPUs run the parent and others the child. Either we draw a process for each CPU, or one CPU
    // runs one of the two processes alone, and all others run the other.
    let alone = rng.one_in(2).then(|| rng.below(2) as usize);
    // A page beside them keeps their table.
    if !swarm.large && (swarm.kinds.contains(&CallKind::Turnover) || rng.below(3) > 0) {
        let (page, pages) = ELSEWHERE;
        first.push(CallOp::Map { page, pages, large: false });
        first.push(write(page));
    }
    let turns_over = match duel {
        Some(kinds) => kinds.contains(&CallKind::Turnover),
        None => swarm.kinds.contains(&CallKind::Turnover),
    };
    let told = (rng.below(2) as usize, rng.below(FLAGS as u64) as u8);
    let waits = duel.is_some() && rng.one_in(2);
    for (number, lane) in cpu.iter_mut().enumerate() {
        let part = match duel {
            Some(kinds) => {
                // Sometimes there are two CPUs on a side.
                let side = if rng.one_in(3) { number % 2 } else { number };
                swarm.part(kinds.get(side).copied())
            }
            None => swarm.clone(),
        };
        let child = match alone {
            Some(alone) => number != alone,
            None => rng.one_in(2),
        };
        if forked && child {
            lane.start.push(CallOp::Enter { process: 2 });
        }
        let side = duel.map(|_| number);
        draw_lane(rng, &swarm, &part, side, lane);
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

/// Draws the two kinds of a duel.
///
/// Every other program is a duel: one CPU makes one kind of call, and another CPU makes another kind or only uses
/// memory. The remaining CPUs use the memory concerned, perhaps only after one of the two has signalled that it is
/// done.
fn duel(rng: &mut Rng, swarm: &CallSwarm, untouched: bool) -> [CallKind; 2] {
    let second = match rng.one_in(if untouched { 2 } else { 4 }) {
        true => rng.pick(&USES),
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
}

/// Creates the files of a program. Mostly they are written, and mostly also on their device.
fn create_files(rng: &mut Rng, swarm: &CallSwarm, first: &mut Vec<CallOp>) {
    for file in 0..swarm.files {
        first.push(CallOp::Create { pages: swarm.length });
        if rng.below(4) > 0 {
            for word in 0..1 + u8::from(rng.one_in(3)) {
                first.push(CallOp::WriteFile { file, page: 0, word });
            }
            if rng.below(3) > 0 {
                first.push(CallOp::Sync { file });
            }
        }
    }
}

/// Maps memory for a large page: either a large page, or base pages to collapse.
fn map_large(rng: &mut Rng, swarm: &CallSwarm, untouched: bool, first: &mut Vec<CallOp>) {
    let large = !swarm.collapses;
    first.push(CallOp::Map { page: 0, pages: WINDOW, large });
    if large && !untouched {
        first.push(write(0));
    } else if !large {
        first.push(CallOp::Fill { page: 0, pages: if rng.one_in(3) { 4 } else { WINDOW } });
    }
}

/// Maps the pages that a program uses, of files or anonymous. Mostly they are accessed, and sometimes paged out.
fn map_pages(rng: &mut Rng, swarm: &CallSwarm, untouched: bool, first: &mut Vec<CallOp>) {
    let mut mapped = None;
    for &page in &swarm.pages {
        // A file would cut the range of a large page.
        if swarm.files > 0 && rng.below(5) < if swarm.large { 1 } else { 3 } {
            let map = swarm.map_file(rng, page);
            // Sometimes we map the same part of the file again, private instead of shared or vice versa.
            let again = mapped.filter(|_| rng.one_in(2));
            let map = again.map_or(map, |before| mapped_again(before, page));
            mapped = Some(map);
            first.push(map);
            if rng.one_in(4) {
                map_beside(rng, map, page ^ 4, first);
            }
        } else if !swarm.large {
            let pages = rng.few(3);
            first.push(CallOp::Map { page, pages, large: false });
        }
        if !untouched && rng.below(4) > 0 {
            first.push(match rng.one_in(2) {
                true => write(page),
                false => read(page),
            });
            if rng.one_in(8) {
                first.push(CallOp::PageOut { page, pages: 1 });
            }
        }
    }
}

/// Maps the same part of a file once more, private instead of shared or vice versa. That mapping is used, and perhaps
/// paged out.
fn map_beside(rng: &mut Rng, map: CallOp, page: u64, first: &mut Vec<CallOp>) {
    first.push(mapped_again(map, page));
    first.push(read(page));
    if rng.one_in(3) {
        first.push(CallOp::PageOut { page, pages: 1 });
    }
}

/// Draws whether there are a parent and a child at the beginning of the run.
fn forks(rng: &mut Rng, swarm: &CallSwarm) -> bool {
    let about_processes =
        swarm.kinds.contains(&CallKind::Fork) || swarm.kinds.contains(&CallKind::Enter);
    rng.one_in(match () {
        () if about_processes => 2,
        () if swarm.large => 4,
        () => 12,
    })
}

/// Draws the work of one CPU. `in_duel` is the CPU's number if the program is a duel.
fn draw_lane(
    rng: &mut Rng,
    swarm: &CallSwarm,
    part: &CallSwarm,
    in_duel: Option<usize>,
    lane: &mut CpuProgram<CallOp>,
) {
    // The CPUs beside a duel have used its pages, so their TLBs may hold stale translations.
    if in_duel.is_some_and(|number| number > 1) && rng.one_in(2) {
        lane.start.push(swarm.access(rng));
    }
    // Before the run, pages may have been paged out, moved, or shared with a child.
    if rng.one_in(3) {
        swarm.phrase(rng, &mut lane.start);
    }
    for _ in 0..rng.few(if in_duel.is_some() { 2 } else { 4 }) {
        part.phrase(rng, &mut lane.run);
    }
    // A CPU that has changed memory then uses it.
    if in_duel.is_some() && rng.one_in(2) {
        lane.run.push(swarm.access(rng));
    }
}

/// Draws the sizes of the machine under a program. With `turns_over`, the program needs frames to be reused.
pub(super) fn memory(rng: &mut Rng, swarm: &CallSwarm, turns_over: bool) -> Memory {
    let fast = if swarm.collapses {
        2072
    } else if swarm.large {
        rng.pick(&[1040, 1110])
    } else if turns_over && rng.one_in(2) {
        // With few frames, each is soon used again.
        rng.weigh(&[(3, 6), (2, 7), (1, 8)])
    } else {
        rng.weigh(&[(1, 6), (1, 7), (2, 8), (2, 10), (2, 12), (6, 32)])
    };
    Memory {
        fast,
        slow: match swarm.large {
            // There may be room for a large page, too.
            true => rng.weigh(&[(4, 0), (2, 4), (1, 8), (3, 560)]),
            false => rng.weigh(&[(3, 0), (3, 4), (1, 8)]),
        },
        ledger: rng.weigh(&[(1, 1), (2, 2), (4, 4)]),
        nmis: rng.weigh(&[(12, 0), (1, 1)]),
        swap: rng.weigh(&[(8, 64), (1, 0), (1, 2)]),
        together: rng.weigh(&[(8, 64), (1, 1), (1, 2)]),
    }
}

/// Returns a mapping of the same part of a file at another page: private if it was shared, shared if it was private.
fn mapped_again(before: CallOp, at: u64) -> CallOp {
    match before {
        CallOp::MapFile { pages, file, from, shared, .. } => {
            CallOp::MapFile { page: at, pages, file, from, shared: !shared, write: true }
        }
        other => other,
    }
}

//! Draws whole programs over the engine.
//!
//! Every program begins with mapped pages and loaded spaces, because nothing can fail without them.

use super::engine::Kind;
use super::engine::{Swarm, allow, kinds_of};
use crate::action::MAX_CPUS;
use crate::generated::program::{
    BATCHES, CpuProgram, EngineOp, FILE_PAGES, FLAGS, HUGE, PLACES, Program, SPACES, Shape, WINDOW,
};
use crate::schedule::Rng;

/// Draws a program over the engine.
pub fn engine_program(rng: &mut Rng) -> Program {
    engine_program_like(rng, None)
}

/// Draws a program with the subject of another one, mostly on a machine of the same sizes.
pub(in crate::generate) fn engine_program_like(rng: &mut Rng, like: Option<&Program>) -> Program {
    let mut shape = shape(rng);
    let like = match like {
        Some(Program::Engine { shape, cpu }) => Some((*shape, cpu)),
        _ => None,
    };
    if let Some((theirs, _)) = like
        && rng.below(3) > 0
    {
        shape = theirs;
    }
    let mut swarm = Swarm::draw(rng, shape.spaces.into());
    if let Some((_, cpu)) = like {
        swarm = swarm.about_kinds(&kinds_of(cpu), rng);
    }
    if swarm.goes_round {
        // There are hardly more tags than CPUs, and more spaces than tags.
        shape.spare_bits = 0;
        shape.spaces = shape.spaces.max(4);
        swarm.spaces = shape.spaces.into();
    }
    shape.nmi_page = rng.pick(&swarm.pages);
    // A thread that preempts a flush then has another space than the interrupted code. The flush mustn't confuse the
    // two.
    let strangers = swarm.nests && shape.spaces > 1 && rng.one_in(2);
    if strangers || swarm.nests && rng.one_in(2) {
        shape.preemptions = 1;
        shape.leaves_space |= strangers;
    }
    let cpus = rng.weigh(&[(5, 2), (3, 3), (1, MAX_CPUS)]);
    let mut cpu = vec![CpuProgram::default(); cpus];
    map_all(rng, &shape, &swarm, &mut cpu[0].start);
    let homes = Homes::draw(rng, &shape, &swarm, strangers);
    let told = (rng.below(2) as usize, rng.below(FLAGS as u64) as u8);
    let waits = rng.one_in(3);
    let duel = rng.one_in(2).then(|| duel(rng, &swarm));
    for (number, lane) in cpu.iter_mut().enumerate() {
        let part = Swarm { home: homes.of(number), ..swarm.part(number, duel, rng) };
        // A thread that preempts the owner of a batch has its own batch.
        let preempting = Swarm {
            home: homes.of(number + 1),
            batches: BATCHES as u64 - 1..BATCHES as u64,
            ..swarm.clone()
        };
        homes.load(rng, &part, lane);
        begin(rng, &swarm, &mut lane.start);
        for _ in 0..rng.few(if duel.is_some() { 2 } else { 4 }) {
            part.phrase(rng, &mut lane.run);
        }
        // A CPU that has changed a page then uses it.
        if duel.is_some() && rng.one_in(2) {
            lane.run.push(swarm.look(rng));
        }
        if duel.is_some() && waits {
            if number == told.0 {
                lane.run.push(EngineOp::Tell { flag: told.1 });
            } else {
                lane.run.push(EngineOp::Wait { flag: told.1 });
                lane.run.push(swarm.look(rng));
            }
        }
        if shape.preemptions > 0 {
            // Mostly it is a thread of another space.
            if strangers || rng.one_in(2) {
                let space = preempting.space(rng);
                lane.preempts.push(EngineOp::Switch { space });
            }
            for _ in 0..rng.few(2) {
                preempting.phrase(rng, &mut lane.preempts);
            }
        }
    }
    if rng.one_in(8) {
        repeat(rng, &mut cpu);
    }
    if rng.one_in(5) {
        let tells = [0, 1].map(|flag| EngineOp::Tell { flag });
        let waits = [0, 1].map(|flag| EngineOp::Wait { flag });
        take_turns(rng, &mut cpu, tells, waits);
    }
    // Sometimes one CPU's last operation moves to another CPU.
    if rng.one_in(5) {
        let from = rng.below(cpus as u64) as usize;
        let to = rng.below(cpus as u64) as usize;
        if let Some(op) = cpu[from].run.pop() {
            cpu[to].run.push(op);
        }
    }
    Program::Engine { shape, cpu }
}

/// Draws the initial mappings.
fn map_all(rng: &mut Rng, shape: &Shape, swarm: &Swarm, first: &mut Vec<EngineOp>) {
    let mapped = match usize::from(shape.spaces) {
        SPACES => shape.spaces,
        _ => shape.spaces.min(5),
    };
    for space in 0..mapped {
        for &page in &swarm.pages {
            if rng.one_in(5) {
                continue;
            }
            first.push(map(rng, swarm, space, page));
            if swarm.has(Kind::Code) && page < HUGE {
                first.push(allow(space, page));
            }
        }
        for &file in &swarm.files {
            let write = rng.one_in(4);
            first.push(EngineOp::MapFile { space, file, write });
            if swarm.has(Kind::Code) && rng.one_in(2) {
                first.push(allow(space, FILE_PAGES[usize::from(file)]));
            }
        }
    }
    if swarm.uses_own_half() {
        first.extend(swarm.own.iter().map(|&own| EngineOp::MapOwn { own }));
    }
}

/// Draws an operation that maps a page, or its whole table as a large page.
fn map(rng: &mut Rng, swarm: &Swarm, space: u8, page: u64) -> EngineOp {
    let write = rng.below(3) > 0;
    let window = (page / WINDOW) as u8;
    match page {
        HUGE.. => EngineOp::MapHuge { space },
        _ if swarm.has(Kind::Block) && page % WINDOW < 2 && rng.below(4) > 0 => {
            EngineOp::MapBlock { space, page }
        }
        _ if rng.one_in(12) && window < 2 => EngineOp::MapLarge { space, window },
        _ => EngineOp::Map { space, page, write },
    }
}

/// The choice of a space for each CPU, to which most of its operations apply.
struct Homes {
    spaces: u8,
    /// Whether each CPU has its own space, and a preempting thread another CPU's. Then their effects on each other
    /// don't hide mistakes.
    apart: bool,
    /// Whether all CPUs use a space that none has loaded before.
    fresh: bool,
    /// Whether all CPUs use the last of more spaces than a batch has room for.
    last: bool,
}

impl Homes {
    fn draw(rng: &mut Rng, shape: &Shape, swarm: &Swarm, strangers: bool) -> Self {
        let spaces = shape.spaces;
        let apart = strangers || spaces > 1 && rng.one_in(4);
        let fresh = spaces > 1 && !apart && rng.one_in(6);
        let often = if swarm.crowded { 2 } else { 4 };
        Homes {
            spaces,
            apart,
            fresh,
            last: fresh || usize::from(spaces) > PLACES && rng.one_in(often),
        }
    }

    fn of(&self, cpu: usize) -> u8 {
        match self.apart {
            true => (cpu % usize::from(self.spaces)) as u8,
            false if self.last => self.spaces - 1,
            false => 0,
        }
    }

    /// Loads spaces before the run; the last one stays.
    fn load(&self, rng: &mut Rng, part: &Swarm, lane: &mut CpuProgram<EngineOp>) {
        let loaded = u64::from(self.spaces - u8::from(self.fresh));
        for _ in 0..rng.few(3) - 1 {
            let space = rng.below(loaded) as u8;
            lane.start.push(EngineOp::Switch { space });
        }
        let space = match self.fresh {
            true => rng.below(loaded) as u8,
            false => part.space(rng),
        };
        lane.start.push(EngineOp::Switch { space });
        if self.fresh && rng.one_in(2) {
            lane.run.push(EngineOp::Switch { space: part.home });
        }
    }
}

/// Draws the two kinds of a duel.
///
/// Every other program is a duel: one CPU performs one kind of operation, and another the same or another kind. The
/// remaining CPUs use the pages concerned, perhaps only after one of the two has signalled that it is done.
fn duel(rng: &mut Rng, swarm: &Swarm) -> [(u64, Kind); 2] {
    let first = swarm.any_kind(rng);
    let second = match rng.one_in(4) {
        true => first,
        false => swarm.any_kind(rng),
    };
    [first, second]
}

/// Draws the state of a CPU at the beginning of the run.
fn begin(rng: &mut Rng, swarm: &Swarm, start: &mut Vec<EngineOp>) {
    if swarm.has(Kind::Undisturbed) && rng.one_in(2) {
        start.push(EngineOp::Undisturbed);
    } else if (swarm.has(Kind::Idle) || swarm.has(Kind::Hotplug)) && rng.one_in(2) {
        start.push(EngineOp::Lazy);
    } else if rng.one_in(6) {
        start.push(rng.weigh(&[
            (6, EngineOp::Lazy),
            (1, EngineOp::Offline),
            (1, EngineOp::Mask { on: true }),
        ]));
    }
}

/// Draws the sizes of a machine.
pub(super) fn shape(rng: &mut Rng) -> Shape {
    let spaces = rng.weigh(&[(7, 1), (11, 2), (6, 3), (4, 4), (2, 6), (1, SPACES as u8)]);
    let mask = |rng: &mut Rng| 1 | rng.below(1 << spaces) as u16;
    Shape {
        first_cpu: rng.weigh(&[(30, 0), (1, 62), (1, 63), (1, 126)]),
        spaces,
        files: [mask(rng), mask(rng), mask(rng)],
        ledger: rng.weigh(&[(1, 0), (3, 1), (6, 2), (3, 3), (1, 8)]),
        tags: rng.weigh(&[(3, 1), (6, 2), (2, 3), (1, 8)]),
        spare_bits: rng.weigh(&[(5, 0), (2, 1)]),
        full_above: rng.weigh(&[(1, 0), (2, 1), (6, 3), (2, 33)]),
        nmis: rng.weigh(&[(5, 0), (1, 1), (1, 2)]),
        nmi_page: 0,
        spurious: rng.weigh(&[(8, 0), (1, 1), (1, 2)]),
        preemptions: rng.weigh(&[(5, 0), (2, 1)]),
        leaves_space: rng.one_in(2),
        open_batches: rng.weigh(&[(16, 0), (1, 1), (1, 2), (1, 3)]),
        unscheduled: rng.weigh(&[(28, 0), (1, 0b1), (1, 0b10), (1, 0b110), (1, 0b1111)]),
    }
}

/// Makes the first or second CPU wait somewhere until the other has performed a part of its work, and makes the other
/// wait, too. `tells` and `waits` contain two flags in ascending order that the program doesn't use otherwise.
pub(super) fn take_turns<O: Copy>(
    rng: &mut Rng,
    cpu: &mut [CpuProgram<O>],
    tells: [O; 2],
    waits: [O; 2],
) {
    let first = rng.below(2) as usize;
    let mut place =
        |from: usize, run: &[O]| from + rng.below((run.len() - from) as u64 + 1) as usize;
    let run = &mut cpu[first].run;
    let at = place(0, run);
    run.splice(at..at, [tells[0], waits[1]]);
    let run = &mut cpu[1 - first].run;
    let from = place(0, run);
    let to = place(from, run);
    run.insert(to, tells[1]);
    run.insert(from, waits[0]);
}

/// The number of operations up to which a run is repeated.
const SHORT: usize = 6;

/// Makes most CPUs repeat their work several times.
pub(super) fn repeat<O: Copy>(rng: &mut Rng, cpu: &mut [CpuProgram<O>]) {
    for lane in cpu {
        let times = rng.below(4) as usize;
        if lane.run.len() <= SHORT && times > 0 {
            lane.run = lane.run.repeat(times);
        }
    }
}

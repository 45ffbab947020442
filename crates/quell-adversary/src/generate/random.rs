//! Drawing programs at random, and changing them. The file is long because every operation of both grammars has its
//! phrases here.
//!
//! Programs are drawn by swarms (Groce et al., ISSTA 2012): each may use a few kinds of operations and a
//! few pages only, drawn anew every time. What it does do then meets, and what it leaves out cannot hide
//! anything. Operations come in *phrases* (open a batch, change something, finish it), which are cut,
//! spread over CPUs and mixed; and every program begins with pages mapped and spaces loaded, because
//! nothing can go wrong before.

use super::text::Recorded;
use crate::action::MAX_CPUS;
use crate::generated::program::{
    BATCHES, CallOp, EngineOp, FILE_PAGES, FILES, FLAGS, For, HUGE, Lane, Memory, PAGES, Program,
    Reported, SPACES, Shape, WINDOW,
};
use crate::kind::MachineKind;
use crate::schedule::Rng;
use quell::{Policy, TagPolicy};

impl Rng {
    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// One of them, each as often as its weight says.
    fn weigh<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut at = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in of {
            if at < *weight {
                return *one;
            }
            at -= weight;
        }
        of[0].1
    }

    /// Small numbers more often.
    fn few(&mut self, most: u64) -> u64 {
        let mut count = 1;
        while count < most && self.below(5) < 3 {
            count += 1;
        }
        count
    }
}

/// A program on a machine, all drawn.
pub fn draw(rng: &mut Rng) -> Recorded {
    let program = if rng.below(5) < 3 {
        engine_program(rng)
    } else {
        calls_program(rng)
    };
    place(rng, program)
}

/// Puts a program on some machine under some policy.
pub fn place(rng: &mut Rng, program: Program) -> Recorded {
    Recorded {
        kind: rng.pick(MachineKind::ALL),
        policy: policy(rng),
        mistake: None,
        clause: None,
        schedule: Vec::new(),
        program,
    }
}

fn policy(rng: &mut Rng) -> Policy {
    match rng.below(8) {
        0..4 => Policy::ALL,
        4 => Policy::BASELINE.with(quell::Mechanism::Batch),
        5 => Policy::BASELINE,
        _ => Policy {
            batch: rng.one_in(2),
            extents: rng.one_in(2),
            tags: if rng.one_in(3) {
                TagPolicy::Off
            } else {
                TagPolicy::Slots(1 + rng.below(4) as u16)
            },
            lazy_unmap: rng.below(3) > 0,
            concurrent: rng.one_in(2),
            asynchronous: rng.one_in(2),
            inline_requests: rng.one_in(2),
            ..Policy::BASELINE
        },
    }
}

/// What a program may do.
struct Swarm {
    kinds: Vec<(u64, Kind)>,
    pages: Vec<u64>,
    files: Vec<u8>,
    spaces: u64,
    batches: u64,
}

/// Kinds of phrases over the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    Map,
    MapFile,
    MapLarge,
    Unmap,
    Protect,
    Reclaim,
    Sweep,
    Unlink,
    Mixed,
    Confirm,
    Unprotect,
    Move,
    Migrate,
    Split,
    Collapse,
    Switch,
    Idle,
    FileReclaim,
    Lazily,
    Claim,
    Rescue,
    WriteFile,
    Pay,
    CatchUp,
    Hotplug,
    Retire,
    Mask,
    Signal,
    Tour,
}

const KINDS: [(u64, Kind); 31] = [
    (8, Kind::Read),
    (5, Kind::Write),
    (4, Kind::Map),
    (2, Kind::MapFile),
    (1, Kind::MapLarge),
    (8, Kind::Unmap),
    (4, Kind::Protect),
    (3, Kind::Reclaim),
    (1, Kind::Sweep),
    (3, Kind::Unlink),
    (2, Kind::Mixed),
    (3, Kind::Confirm),
    (2, Kind::Unprotect),
    (2, Kind::Move),
    (2, Kind::Migrate),
    (1, Kind::Split),
    (1, Kind::Collapse),
    (5, Kind::Switch),
    (4, Kind::Idle),
    (3, Kind::FileReclaim),
    (6, Kind::Lazily),
    (4, Kind::Claim),
    (3, Kind::Rescue),
    (3, Kind::WriteFile),
    (1, Kind::Pay),
    (1, Kind::CatchUp),
    (2, Kind::Hotplug),
    (2, Kind::Retire),
    (1, Kind::Mask),
    (2, Kind::Signal),
    (5, Kind::Tour),
];

impl Swarm {
    fn draw(rng: &mut Rng, spaces: u64) -> Self {
        let wanted = 2 + rng.few(6);
        let mut kinds = vec![(8, Kind::Read)];
        for _ in 0..wanted {
            let kind = rng.weigh(&KINDS.map(|(weight, kind)| (weight, (weight, kind))));
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let small = &PAGES[..9];
        let count = rng.weigh(&[(6, 1), (3, 2), (1, 3)]);
        let pages = (0..count).map(|_| match rng.below(24) {
            0 => rng.pick(&[HUGE, HUGE + 1]),
            1..12 => rng.below(3),
            _ => rng.pick(small),
        });
        let pages: Vec<u64> = pages.collect();
        let files = (0..rng.few(2))
            .map(|_| rng.below(FILES as u64) as u8)
            .collect();
        let batches = rng.few(BATCHES as u64);
        Swarm {
            kinds,
            pages,
            files,
            spaces,
            batches,
        }
    }

    /// Whether what a program does is about files.
    fn files(&self) -> bool {
        let about = |(_, kind): &(u64, Kind)| {
            use Kind::{Claim, FileReclaim, Lazily, MapFile, Rescue, WriteFile};
            matches!(
                kind,
                MapFile | FileReclaim | Lazily | Claim | Rescue | WriteFile
            )
        };
        self.kinds.iter().any(about)
    }

    fn page(&self, rng: &mut Rng) -> u64 {
        if rng.below(8) < if self.files() { 5 } else { 1 } {
            return FILE_PAGES[usize::from(rng.pick(&self.files))];
        }
        rng.pick(&self.pages)
    }

    fn space(&self, rng: &mut Rng) -> u8 {
        if rng.below(3) > 0 {
            return 0;
        }
        rng.below(self.spaces) as u8
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let page = self.page(rng);
        match rng.below(10) {
            0..6 => (page, 1),
            6 => (page.saturating_sub(1), 2),
            7 => (page, 1 + rng.below(4)),
            8 => (page.saturating_sub(rng.below(WINDOW)), WINDOW),
            _ => (0, 2 * WINDOW),
        }
    }

    fn change(&self, rng: &mut Rng, batch: u8, protects: bool) -> EngineOp {
        let (page, pages) = self.range(rng);
        let space = self.space(rng);
        if protects {
            let capture = rng.one_in(2);
            return EngineOp::Protect {
                batch,
                space,
                page,
                pages,
                capture,
            };
        }
        let report = rng.pick(&[
            Reported::Each,
            Reported::Each,
            Reported::Range,
            Reported::All,
        ]);
        EngineOp::Unmap {
            batch,
            space,
            page,
            pages,
            report,
        }
    }

    /// A phrase.
    fn phrase(&self, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        let space = self.space(rng);
        let page = self.page(rng);
        let file = rng.pick(&self.files);
        let batch = rng.below(self.batches) as u8;
        let window = u8::from(page / WINDOW == 1);
        let end = |rng: &mut Rng, into: &mut Vec<EngineOp>| match rng.below(12) {
            0 => into.push(EngineOp::Forget { batch }),
            1 => {}
            _ => into.push(EngineOp::Finish { batch }),
        };
        let open = |purpose: For| EngineOp::Open { batch, purpose };
        match rng.weigh(&self.kinds) {
            Kind::Read => into.push(EngineOp::Read { page }),
            Kind::Write => into.push(EngineOp::Write { page }),
            Kind::Map => {
                let write = rng.below(3) > 0;
                into.push(EngineOp::Map { space, page, write });
            }
            Kind::MapFile => {
                let write = rng.one_in(3);
                into.push(EngineOp::MapFile { space, file, write });
            }
            Kind::MapLarge if page >= HUGE => into.push(EngineOp::MapHuge { space }),
            Kind::MapLarge => into.push(EngineOp::MapLarge { space, window }),
            kind @ (Kind::Unmap | Kind::Protect | Kind::Reclaim | Kind::Mixed) => {
                let purpose = match kind {
                    Kind::Reclaim => For::Reclaim,
                    Kind::Mixed => rng.pick(&[For::Call, For::Reclaim, For::Migration]),
                    _ => For::Call,
                };
                into.push(open(purpose));
                for _ in 0..rng.few(if kind == Kind::Mixed { 4 } else { 2 }) {
                    let protects = kind == Kind::Protect || (kind == Kind::Mixed && rng.one_in(3));
                    into.push(self.change(rng, batch, protects));
                }
                end(rng, into);
            }
            Kind::Sweep => {
                into.push(open(rng.pick(&[For::Call, For::Reclaim])));
                into.push(EngineOp::Sweep { batch, page });
                end(rng, into);
            }
            Kind::Unlink => {
                into.push(open(For::Call));
                if rng.one_in(3) {
                    into.push(self.change(rng, batch, false));
                }
                into.push(EngineOp::Unlink {
                    batch,
                    space,
                    window,
                });
                end(rng, into);
            }
            Kind::Confirm => {
                let (page, pages) = self.range(rng);
                into.push(EngineOp::Confirm { space, page, pages });
            }
            Kind::Unprotect => into.push(EngineOp::Unprotect { space, page }),
            Kind::Move => {
                let to = self.page(rng);
                into.push(EngineOp::Move { space, page, to });
            }
            Kind::Migrate => into.push(EngineOp::Migrate { space, page }),
            Kind::Split => into.push(EngineOp::Split { space, window }),
            Kind::Collapse => into.push(EngineOp::Collapse { space, window }),
            Kind::Switch => into.push(EngineOp::Switch { space }),
            Kind::Idle => {
                into.push(EngineOp::Lazy);
                if rng.below(4) > 0 {
                    into.push(EngineOp::Switch { space });
                    into.push(EngineOp::Read { page });
                }
            }
            Kind::Tour => {
                for _ in 0..1 + rng.few(4) {
                    let space = rng.below(self.spaces) as u8;
                    into.push(EngineOp::Switch { space });
                    if rng.one_in(2) {
                        into.push(EngineOp::Read { page });
                    }
                }
            }
            Kind::FileReclaim => into.push(EngineOp::Reclaim { file }),
            Kind::Lazily => {
                let files = match rng.below(3) {
                    0 => rng.below(1 << FILES) as u8,
                    _ => 1 << file,
                };
                into.push(EngineOp::ReclaimLazily { files });
                if rng.one_in(3) {
                    into.push(EngineOp::Claim { file });
                }
            }
            Kind::Claim => into.push(EngineOp::Claim { file }),
            Kind::Rescue => into.push(EngineOp::Rescue { file }),
            Kind::WriteFile => into.push(EngineOp::WriteFile { file }),
            Kind::Pay => into.push(EngineOp::Pay),
            Kind::CatchUp => into.push(EngineOp::CatchUp),
            Kind::Hotplug => {
                into.push(EngineOp::Offline);
                if rng.below(3) > 0 {
                    into.push(EngineOp::Online);
                    into.push(EngineOp::Switch { space });
                }
            }
            Kind::Retire => {
                into.push(EngineOp::Lazy);
                into.push(EngineOp::Retire { space });
                if rng.one_in(2) {
                    into.push(EngineOp::Revive { space });
                    into.push(EngineOp::Switch { space });
                }
            }
            Kind::Mask => into.push(EngineOp::Mask { on: rng.one_in(2) }),
            Kind::Signal => {
                let flag = rng.below(FLAGS as u64) as u8;
                into.push(if rng.one_in(2) {
                    EngineOp::Tell { flag }
                } else {
                    EngineOp::Wait { flag }
                });
            }
        }
    }
}

fn shape(rng: &mut Rng) -> Shape {
    let spaces = rng.weigh(&[(8, 1), (12, 2), (6, 3), (3, 4), (1, SPACES as u8)]);
    let mask = |rng: &mut Rng| 1 | rng.below(1 << spaces) as u16;
    Shape {
        first_cpu: rng.weigh(&[(30, 0), (1, 62), (1, 63), (1, 126)]),
        spaces,
        files: [mask(rng), mask(rng), mask(rng)],
        epochs: rng.weigh(&[(1, 0), (3, 1), (6, 2), (3, 3), (1, 8)]),
        tags: rng.weigh(&[(3, 1), (6, 2), (2, 3), (1, 8)]),
        spare_bits: rng.weigh(&[(5, 0), (2, 1)]),
        full_above: rng.weigh(&[(1, 0), (2, 1), (6, 3), (2, 33)]),
        nmis: rng.weigh(&[(5, 0), (1, 1), (1, 2)]),
        nmi_page: 0,
        spurious: rng.weigh(&[(8, 0), (1, 1), (1, 2)]),
        preemptions: rng.weigh(&[(5, 0), (2, 1)]),
        open_batches: rng.weigh(&[(16, 0), (1, 1), (1, 2), (1, 3)]),
    }
}

/// A program over the engine.
pub fn engine_program(rng: &mut Rng) -> Program {
    let mut shape = shape(rng);
    let swarm = Swarm::draw(rng, shape.spaces.into());
    shape.nmi_page = rng.pick(&swarm.pages);
    let cpus = rng.weigh(&[(5, 2), (3, 3), (1, MAX_CPUS)]);
    let mut cpu = vec![Lane::default(); cpus];
    // What is mapped when the run begins.
    let first = &mut cpu[0].start;
    for space in 0..shape.spaces.min(5) {
        for &page in &swarm.pages {
            if rng.one_in(5) {
                continue;
            }
            let write = rng.below(3) > 0;
            let window = (page / WINDOW) as u8;
            first.push(match page {
                HUGE.. => EngineOp::MapHuge { space },
                _ if rng.one_in(12) && window < 2 => EngineOp::MapLarge { space, window },
                _ => EngineOp::Map { space, page, write },
            });
        }
        for &file in &swarm.files {
            let write = rng.one_in(4);
            first.push(EngineOp::MapFile { space, file, write });
        }
    }
    for lane in &mut cpu {
        // The last one stays.
        for _ in 0..rng.few(3) - 1 {
            let space = rng.below(shape.spaces.into()) as u8;
            lane.start.push(EngineOp::Switch { space });
        }
        let space = swarm.space(rng);
        lane.start.push(EngineOp::Switch { space });
        if rng.one_in(6) {
            lane.start.push(rng.weigh(&[
                (6, EngineOp::Lazy),
                (1, EngineOp::Offline),
                (1, EngineOp::Mask { on: true }),
            ]));
        }
        let phrases = rng.few(4);
        for _ in 0..phrases {
            swarm.phrase(rng, &mut lane.run);
        }
        if shape.preemptions > 0 {
            for _ in 0..rng.few(2) {
                swarm.phrase(rng, &mut lane.preempts);
            }
        }
    }
    // Now and then the end of one CPU's work is left to another.
    if rng.one_in(5) {
        let from = rng.below(cpus as u64) as usize;
        let to = rng.below(cpus as u64) as usize;
        if let Some(op) = cpu[from].run.pop() {
            cpu[to].run.push(op);
        }
    }
    Program::Engine { shape, cpu }
}

/// What a program over the manager may do.
struct CallSwarm {
    kinds: Vec<u8>,
    pages: Vec<u64>,
    /// How many files there are when the run begins, and how long they are.
    files: u32,
    length: u64,
    large: bool,
    /// The range that most of it is about.
    focus: (u64, u64),
}

/// How many kinds of calls there are.
const CALLS: u8 = 25;

impl CallSwarm {
    fn draw(rng: &mut Rng) -> Self {
        let large = rng.one_in(40);
        let mut kinds = vec![0, 1];
        for _ in 0..1 + rng.few(4) {
            // Each as often as the two that are always there.
            let kind = rng.below(CALLS.into()) as u8;
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
            focus,
        }
    }

    fn page(&self, rng: &mut Rng) -> u64 {
        rng.pick(&self.pages)
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let page = self.page(rng);
        match rng.below(16) {
            0..6 => (page, 1),
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

    fn phrase(&self, rng: &mut Rng, into: &mut Vec<CallOp>) {
        let (page, pages) = self.range(rng);
        let file = rng.below(self.files.max(1).into()) as u32;
        let at = rng.below(self.length.max(1));
        let process = 1 + rng.below(3) as u32;
        let op = match rng.pick(&self.kinds) {
            0 => CallOp::Read { page },
            1 => CallOp::Write { page },
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
            7 | 8 => CallOp::PageOut { page, pages },
            9 => CallOp::Remap {
                page,
                pages,
                to: rng.pick(&[8, 9, 64, WINDOW, 2 * WINDOW]) + rng.below(2),
            },
            10 if self.large => CallOp::Collapse { page },
            10 => CallOp::Sync { file },
            11 => {
                into.push(CallOp::Fork);
                if rng.one_in(2) {
                    CallOp::Enter { process }
                } else {
                    CallOp::Write { page }
                }
            }
            12 => CallOp::Enter { process },
            13 => {
                if rng.one_in(2) {
                    into.push(CallOp::Enter { process: 1 });
                }
                CallOp::Exit { process }
            }
            14 => CallOp::WriteFile { file, page: at },
            15 => CallOp::ReadFile { file, page: at },
            16 => CallOp::Truncate { file, pages: at },
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

/// A program over the memory manager.
pub fn calls_program(rng: &mut Rng) -> Program {
    let swarm = CallSwarm::draw(rng);
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
        let large = rng.below(3) > 0;
        first.push(CallOp::Map {
            page: 0,
            pages: WINDOW,
            large,
        });
        if large {
            first.push(CallOp::Write { page: 0 });
        } else {
            first.push(CallOp::Fill {
                page: 0,
                pages: rng.pick(&[4, WINDOW]),
            });
        }
    }
    for &page in &swarm.pages {
        if swarm.files > 0 && rng.below(5) < 3 {
            first.push(swarm.map_file(rng, page));
        } else if !swarm.large {
            let pages = rng.few(3);
            first.push(CallOp::Map {
                page,
                pages,
                large: false,
            });
        }
        if rng.below(4) > 0 {
            first.push(if rng.one_in(2) {
                CallOp::Write { page }
            } else {
                CallOp::Read { page }
            });
        }
    }
    // A page beside them, so that their table stays.
    if rng.below(3) > 0 {
        first.push(CallOp::Map {
            page: 100,
            pages: 1,
            large: false,
        });
        first.push(CallOp::Write { page: 100 });
    }
    for lane in &mut cpu {
        // What lies behind the start of a run: pages taken out, moved, shared with a child.
        if rng.one_in(3) {
            swarm.phrase(rng, &mut lane.start);
        }
        for _ in 0..rng.few(4) {
            swarm.phrase(rng, &mut lane.run);
        }
    }
    let fast = if swarm.large {
        rng.pick(&[1040, 1110, 2072])
    } else {
        rng.weigh(&[(1, 7), (2, 8), (2, 10), (2, 12), (6, 32)])
    };
    let memory = Memory {
        fast,
        slow: rng.weigh(&[(3, 0), (3, 4), (1, 8)]),
        epochs: rng.weigh(&[(1, 1), (2, 2), (4, 4)]),
        nmis: rng.weigh(&[(12, 0), (1, 1)]),
    };
    Program::Calls { memory, cpu }
}

/// Changes a program a little, now and then its machine, too.
pub fn change(rng: &mut Rng, recorded: &mut Recorded, other: &Recorded) {
    for _ in 0..rng.few(4) {
        match rng.below(16) {
            0 => recorded.kind = rng.pick(MachineKind::ALL),
            1 => recorded.policy = policy(rng),
            _ => match (&mut recorded.program, &other.program) {
                (Program::Engine { shape, cpu }, theirs) => {
                    let swarm = Swarm::draw(rng, shape.spaces.into());
                    let theirs = match theirs {
                        Program::Engine { cpu, .. } => cpu.as_slice(),
                        Program::Calls { .. } => &[],
                    };
                    if rng.one_in(12) {
                        let drawn = self::shape(rng);
                        *shape = Shape {
                            spaces: shape.spaces,
                            files: shape.files,
                            nmi_page: shape.nmi_page,
                            ..drawn
                        };
                    } else {
                        change_lanes(rng, cpu, theirs, |rng, ops| swarm.phrase(rng, ops));
                    }
                }
                (Program::Calls { memory, cpu }, theirs) => {
                    let mut swarm = CallSwarm::draw(rng);
                    swarm.large &= memory.fast > 500;
                    let theirs = match theirs {
                        Program::Calls { cpu, .. } => cpu.as_slice(),
                        Program::Engine { .. } => &[],
                    };
                    change_lanes(rng, cpu, theirs, |rng, ops| swarm.phrase(rng, ops));
                }
            },
        }
    }
    recorded.schedule.clear();
}

/// The most operations of one CPU's run that changes lead to.
const LONGEST: usize = 24;

fn change_lanes<O: Copy>(
    rng: &mut Rng,
    cpu: &mut Vec<Lane<O>>,
    theirs: &[Lane<O>],
    phrase: impl Fn(&mut Rng, &mut Vec<O>),
) {
    let at = rng.below(cpu.len() as u64) as usize;
    let before = rng.one_in(6);
    let other = rng.below(cpu.len() as u64) as usize;
    if rng.one_in(30) && cpu.len() < MAX_CPUS {
        let lane = cpu[at].clone();
        cpu.push(lane);
        return;
    }
    if rng.one_in(6) && !theirs.is_empty() {
        let lane = &theirs[rng.below(theirs.len() as u64) as usize];
        cpu[at].run.clone_from(&lane.run);
        return;
    }
    let lane = &mut cpu[at];
    let ops = match before {
        true if !lane.preempts.is_empty() && rng.one_in(2) => &mut lane.preempts,
        true => &mut lane.start,
        false => &mut lane.run,
    };
    let place = rng.below(ops.len() as u64 + 1) as usize;
    match rng.below(8) {
        0..3 if ops.len() < LONGEST => {
            let mut new = Vec::new();
            phrase(rng, &mut new);
            ops.splice(place..place, new);
        }
        3 | 4 if place < ops.len() => {
            ops.remove(place);
        }
        5 if place < ops.len() => {
            let op = ops[place];
            let there = rng.below(ops.len() as u64) as usize;
            if rng.one_in(2) && ops.len() < LONGEST {
                ops.insert(there, op);
            } else {
                ops.swap(there, place);
            }
        }
        6 if place < ops.len() => {
            let op = ops.remove(place);
            let ops = &mut cpu[other].run;
            let there = rng.below(ops.len() as u64 + 1) as usize;
            ops.insert(there, op);
        }
        _ => {
            let mut new = Vec::new();
            phrase(rng, &mut new);
            ops.truncate(place);
            if ops.len() < LONGEST {
                ops.extend(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_drawn_and_changed_can_be_run() {
        let mut rng = Rng::new(3);
        let mut recorded = draw(&mut rng);
        for _ in 0..2000 {
            let other = draw(&mut rng);
            assert_eq!(other.program.check(), Ok(()));
            change(&mut rng, &mut recorded, &other);
            assert_eq!(recorded.program.check(), Ok(()));
            if rng.one_in(20) {
                recorded = other;
            }
        }
    }
}

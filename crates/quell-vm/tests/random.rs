//! Random programs against a model of what they should see: plain vectors.

mod common;

use common::{Options, Program, be, release_machines};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use quell::Rule;
use quell::{Frame, Mechanism, PageSize, Policy, Tagging};
use quell_vm::{Backing, Call, Error, Fault, MemoryMap, Node, Protection};
use std::collections::BTreeMap;

const PAGE: u64 = 4096;
const PAGES: u64 = 24;
/// Where programs map: in the middle of a large page.
const BASE: u64 = (1 << 40) + 500 * PAGE;
const FILE_PAGES: u64 = 12;
const FILES: u64 = 2;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Zeros,
    Shared(u64, u64),
    Private(u64, u64),
}

#[derive(Clone, Debug)]
enum Op {
    Map(u64, u64, Kind, bool),
    Unmap(u64, u64),
    Protect(u64, u64, u8),
    Discard(u64, u64),
    PageOut(u64, u64),
    Remap(u64, u64, u64),
    Read(u64),
    Write(u64, u64),
    FileWrite(u64, u64, u64),
    FileRead(u64, u64),
    Truncate(u64, u64),
    Sync(u64),
    Fork,
    Switch(usize),
    Cpu(usize),
    Exit(usize),
    Migrate(u64, u64, u32),
    Demote(u64),
    Reclaim(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..PAGES, 1..10u64);
    let kind = prop_oneof![
        3 => Just(Kind::Zeros),
        2 => (0..FILES, 0..8u64).prop_map(|(file, first)| Kind::Shared(file, first)),
        1 => (0..FILES, 0..8u64).prop_map(|(file, first)| Kind::Private(file, first)),
    ];
    prop_oneof![
        6 => (range(), kind, any::<bool>()).prop_map(|((at, n), kind, w)| Op::Map(at, n, kind, w)),
        2 => range().prop_map(|(at, n)| Op::Unmap(at, n)),
        3 => (range(), 0..3u8).prop_map(|((at, n), p)| Op::Protect(at, n, p)),
        2 => range().prop_map(|(at, n)| Op::Discard(at, n)),
        3 => range().prop_map(|(at, n)| Op::PageOut(at, n)),
        1 => (range(), 0..PAGES).prop_map(|((at, n), to)| Op::Remap(at, n, to)),
        20 => (0..PAGES).prop_map(Op::Read),
        15 => (0..PAGES, 1..1000u64).prop_map(|(at, v)| Op::Write(at, v)),
        3 => (0..FILES, 0..FILE_PAGES, 1..1000u64).prop_map(|(f, at, v)| Op::FileWrite(f, at, v)),
        2 => (0..FILES, 0..FILE_PAGES).prop_map(|(f, at)| Op::FileRead(f, at)),
        1 => (0..FILES, 0..FILE_PAGES).prop_map(|(f, n)| Op::Truncate(f, n)),
        2 => (0..FILES).prop_map(Op::Sync),
        1 => Just(Op::Fork),
        2 => (0..4usize).prop_map(Op::Switch),
        3 => (0..2usize).prop_map(Op::Cpu),
        1 => (0..4usize).prop_map(Op::Exit),
        2 => (range(), 0..2u32).prop_map(|((at, n), node)| Op::Migrate(at, n, node)),
        1 => (0..40u64).prop_map(Op::Demote),
        2 => (0..40u64).prop_map(Op::Reclaim),
    ]
}

/// A mapped page of the model.
#[derive(Clone, Copy)]
struct ModelPage {
    kind: Kind,
    protection: Protection,
    /// The page's own value, if it has one: anonymous, or a private copy.
    own: Option<u64>,
}

#[derive(Clone, Default)]
struct ModelProcess {
    pages: BTreeMap<u64, ModelPage>,
}

#[derive(Default)]
struct Model {
    files: Vec<Vec<u64>>,
    processes: BTreeMap<u32, ModelProcess>,
}

impl Model {
    /// What a load of the page gives.
    fn load(&self, process: u32, at: u64) -> Result<u64, Fault> {
        let page = self.processes[&process]
            .pages
            .get(&at)
            .ok_or(Fault::NotMapped)?;
        if page.protection == Protection::NONE {
            return Err(Fault::Forbidden);
        }
        match (page.own, page.kind) {
            (Some(value), _) => Ok(value),
            (None, Kind::Zeros) => Ok(0),
            (None, Kind::Shared(file, index) | Kind::Private(file, index)) => self.files
                [file as usize]
                .get(index as usize)
                .copied()
                .ok_or(Fault::BeyondEnd),
        }
    }

    fn store(&mut self, process: u32, at: u64, value: u64) -> Result<(), Fault> {
        let page = self.processes.get_mut(&process).unwrap().pages.get_mut(&at);
        let page = page.ok_or(Fault::NotMapped)?;
        if !page.protection.write {
            return Err(Fault::Forbidden);
        }
        match page.kind {
            Kind::Zeros => page.own = Some(value),
            Kind::Shared(file, index) | Kind::Private(file, index) => {
                let exists = (index as usize) < self.files[file as usize].len();
                match page.kind {
                    Kind::Private(..) if page.own.is_some() || exists => page.own = Some(value),
                    Kind::Shared(..) if exists => self.files[file as usize][index as usize] = value,
                    _ => return Err(Fault::BeyondEnd),
                }
            }
        }
        Ok(())
    }
}

fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

struct Run {
    program: Program,
    model: Model,
    current: [u32; 2],
    cpu: usize,
}

impl Run {
    fn start(options: Options) -> Run {
        let program = Program::start(options);
        let mut model = Model::default();
        for _ in 0..FILES {
            program
                .call(Call::Create {
                    bytes: FILE_PAGES * PAGE,
                })
                .unwrap();
            model.files.push(vec![0; FILE_PAGES as usize]);
        }
        model.processes.insert(1, ModelProcess::default());
        be(1);
        program.vm.enter(1).unwrap();
        be(0);
        Run {
            program,
            model,
            current: [1; 2],
            cpu: 0,
        }
    }

    fn mine(&mut self) -> &mut BTreeMap<u64, ModelPage> {
        &mut self
            .model
            .processes
            .get_mut(&self.current[self.cpu])
            .unwrap()
            .pages
    }

    fn covered(&mut self, at: u64, n: u64) -> bool {
        (at..at + n).all(|page| self.mine().contains_key(&page))
    }

    fn step(&mut self, op: &Op) {
        let program = self.program;
        let me = self.current[self.cpu];
        match *op {
            Op::Map(at, n, kind, writable) => {
                let protection = if writable {
                    Protection::READ_WRITE
                } else {
                    Protection::READ
                };
                let backing = match kind {
                    Kind::Zeros => Backing::Anonymous {
                        page: PageSize::Large,
                    },
                    Kind::Shared(file, first) => Backing::Shared {
                        file: file as u32,
                        offset: first * PAGE,
                    },
                    Kind::Private(file, first) => Backing::Private {
                        file: file as u32,
                        offset: first * PAGE,
                    },
                };
                let address = address(at);
                let call = Call::Map {
                    address: Some(address),
                    bytes: n * PAGE,
                    protection,
                    backing,
                };
                assert_eq!(program.call(call), Ok(address));
                for page in at..at + n {
                    let kind = match kind {
                        Kind::Zeros => kind,
                        Kind::Shared(file, first) => Kind::Shared(file, first + page - at),
                        Kind::Private(file, first) => Kind::Private(file, first + page - at),
                    };
                    self.mine().insert(
                        page,
                        ModelPage {
                            kind,
                            protection,
                            own: None,
                        },
                    );
                }
            }
            Op::Unmap(at, n) => {
                let call = Call::Unmap {
                    address: address(at),
                    bytes: n * PAGE,
                };
                assert_eq!(program.call(call), Ok(0));
                (at..at + n).for_each(|page| {
                    self.mine().remove(&page);
                });
            }
            Op::Protect(at, n, level) => {
                let all = [Protection::NONE, Protection::READ, Protection::READ_WRITE];
                let protection = all[level as usize];
                let call = Call::Protect {
                    address: address(at),
                    bytes: n * PAGE,
                    protection,
                };
                let expected = if self.covered(at, n) {
                    Ok(0)
                } else {
                    Err(Error::NotMapped)
                };
                assert_eq!(program.call(call), expected);
                if expected.is_ok() {
                    for page in at..at + n {
                        self.mine().get_mut(&page).unwrap().protection = protection;
                    }
                }
            }
            Op::Discard(at, n) => {
                let call = Call::Discard {
                    address: address(at),
                    bytes: n * PAGE,
                };
                let expected = if self.covered(at, n) {
                    Ok(0)
                } else {
                    Err(Error::NotMapped)
                };
                assert_eq!(program.call(call), expected);
                if expected.is_ok() {
                    for page in at..at + n {
                        self.mine().get_mut(&page).unwrap().own = None;
                    }
                }
            }
            Op::PageOut(at, n) => {
                let call = Call::PageOut {
                    address: address(at),
                    bytes: n * PAGE,
                };
                assert_eq!(program.call(call).is_ok(), self.covered(at, n));
            }
            Op::Remap(at, n, to) => {
                let call = Call::Remap {
                    address: address(at),
                    bytes: n * PAGE,
                    to: Some(address(to)),
                };
                let expected = if !self.covered(at, n) {
                    Err(Error::NotMapped)
                } else if to < at + n && at < to + n {
                    Err(Error::Overlap)
                } else {
                    Ok(address(to))
                };
                assert_eq!(program.call(call), expected);
                if expected.is_ok() {
                    for page in 0..n {
                        let moved = self.mine().remove(&(at + page)).unwrap();
                        self.mine().insert(to + page, moved);
                    }
                }
            }
            Op::Read(at) => {
                let expected = self.model.load(me, at);
                assert_eq!(program.try_access(address(at), None), expected, "page {at}");
                assert_eq!(
                    program.peek(address(at)),
                    expected.ok(),
                    "peek at page {at}"
                );
            }
            Op::Write(at, value) => {
                let expected = self.model.store(me, at, value);
                assert_eq!(
                    program.try_access(address(at), Some(value)).map(drop),
                    expected,
                    "store to page {at}"
                );
            }
            Op::FileWrite(file, at, value) => {
                let call = Call::Write {
                    file: file as u32,
                    offset: at * PAGE,
                    value,
                };
                assert_eq!(program.call(call), Ok(0));
                let pages = &mut self.model.files[file as usize];
                let length = pages.len().max(at as usize + 1);
                pages.resize(length, 0);
                pages[at as usize] = value;
            }
            Op::FileRead(file, at) => {
                let call = Call::Read {
                    file: file as u32,
                    offset: at * PAGE,
                };
                let held = self.model.files[file as usize].get(at as usize).copied();
                assert_eq!(program.call(call), held.ok_or(Error::BeyondEnd));
            }
            Op::Truncate(file, n) => {
                let call = Call::Truncate {
                    file: file as u32,
                    bytes: n * PAGE,
                };
                assert_eq!(program.call(call), Ok(0));
                self.model.files[file as usize].resize(n as usize, 0);
            }
            Op::Sync(file) => assert!(program.call(Call::Sync { file: file as u32 }).is_ok()),
            Op::Fork => {
                if self.model.processes.len() < 4 {
                    let child = program.call(Call::Fork).unwrap() as u32;
                    let copy = self.model.processes[&me].clone();
                    self.model.processes.insert(child, copy);
                }
            }
            Op::Switch(which) => {
                if let Some(&process) = self.model.processes.keys().nth(which) {
                    assert_eq!(program.call(Call::Enter { process }), Ok(0));
                    self.current[self.cpu] = process;
                }
            }
            Op::Cpu(cpu) => {
                self.cpu = cpu;
                be(cpu);
            }
            Op::Exit(which) => {
                if let Some(&process) = self.model.processes.keys().nth(which) {
                    let busy = self.current.contains(&process);
                    let expected = if busy { Err(Error::Busy) } else { Ok(0) };
                    assert_eq!(program.call(Call::Exit { process }), expected);
                    if !busy {
                        self.model.processes.remove(&process);
                    }
                }
            }
            Op::Migrate(at, n, node) => {
                let call = Call::Migrate {
                    address: address(at),
                    bytes: n * PAGE,
                    node,
                };
                assert_eq!(program.call(call).is_ok(), self.covered(at, n));
            }
            Op::Demote(pages) => assert!(program.call(Call::Demote { pages }).is_ok()),
            Op::Reclaim(pages) => assert!(program.call(Call::Reclaim { pages }).is_ok()),
        }
    }

    fn finish(mut self) {
        for cpu in 0..2 {
            self.step(&Op::Cpu(cpu));
            (0..PAGES).for_each(|at| self.step(&Op::Read(at)));
        }
        let processes: Vec<u32> = self.model.processes.keys().copied().collect();
        self.program.finish(&processes);
    }
}

fn options() -> impl Strategy<Value = Options> {
    let policies = [Policy::BASELINE, Policy::ALL]
        .into_iter()
        .chain(Mechanism::ALL.map(Policy::only))
        .collect::<Vec<_>>();
    let machines = vec![
        (Tagging::None, false, true),
        (Tagging::PerCpu { count: 6 }, false, true),
        (Tagging::Global { bits: 8 }, true, false),
    ];
    // Memory for everything, or for so little that every allocation reclaims.
    let sizes = vec![(256, 256), (48, 32), (40, 0)];
    let choices = (
        prop::sample::select(policies),
        prop::sample::select(machines),
        prop::sample::select(sizes),
    );
    choices.prop_map(
        |(policy, (tagging, broadcast, hardware_dirty), (fast, slow))| {
            let node = |first, frames, slow| Node {
                extent: quell::Extent {
                    first: Frame(first),
                    frames,
                },
                slow,
            };
            let nodes = [node(0x1000, fast, false), node(0x2000, slow.max(16), true)];
            Options {
                map: MemoryMap::new(&nodes),
                policy,
                tagging,
                broadcast,
                hardware_dirty,
                ..Options::new(0)
            }
        },
    )
}

/// Runs random programs until one goes wrong; `Err` says how many passed.
fn kill(rule: &'static Rule, cases: u32) -> Result<(), u32> {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let strategy = (options(), prop::collection::vec(op(), 40..200));
    let result = runner.run(&strategy, |(options, ops)| {
        // SAFETY: what an earlier case left is used no more.
        unsafe { release_machines() };
        be(0);
        let mut run = Run::start(Options {
            forgotten: Some(rule),
            ..options
        });
        for op in &ops {
            run.step(op);
        }
        run.finish();
        Ok(())
    });
    if result.is_err() { Ok(()) } else { Err(cases) }
}

/// The mistakes that show even when one call runs after the other. The others take an
/// interleaving, which the adversary of the machine in software looks for.
#[test]
fn known_mistakes_are_noticed() {
    std::panic::set_hook(Box::new(|_| ()));
    let survivors: Vec<&'static Rule> = [
        &quell_vm::rules::VmSkipsZeroing,
        &quell_vm::rules::VmKeepsZeroFlag,
        &quell_vm::rules::VmIgnoresMarker,
        &quell_vm::rules::VmRewritesOwedEntry,
        &quell_vm::rules::VmOwesDirtyPages,
        &quell::rules::FinishSkipsFlush,
    ]
    .into_iter()
    .filter(|&rule| kill(rule, 300).is_err())
    .collect();
    drop(std::panic::take_hook());
    assert!(survivors.is_empty(), "nobody noticed {survivors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_see_what_the_model_says(
        options in options(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        // SAFETY: what an earlier case left is used no more.
        unsafe { release_machines() };
        be(0);
        let mut run = Run::start(options);
        for op in &ops {
            run.step(op);
        }
        run.finish();
    }
}

//! Random programs, whose results the abstract machine judges.

use crate::common::{Options, Program, be, nodes};
use proptest::prelude::*;
use quell::{Mechanism, PageSize, Policy, Tagging};
use quell_vm::contract::AbstractMachine;
use quell_vm::{Access, Backing, Call, Error, Protection};

const PAGE: u64 = 4096;
const PAGES: u64 = 24;
/// The address of mappings: in the middle of a large page.
const BASE: u64 = (1 << 40) + 500 * PAGE;
const FILE_PAGES: u64 = 12;
const FILES: u32 = 2;

fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

#[derive(Clone, Debug)]
enum Op {
    Call(Call),
    /// Loads a page's first word.
    Load(u64),
    /// Stores to it.
    Store(u64, u64),
    Fork,
    /// Enters, or ends, one of the processes.
    Enter(usize),
    Exit(usize),
    /// Continues on this CPU.
    Cpu(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..PAGES, 1..10u64).prop_map(|(at, n)| (address(at), n * PAGE));
    let file = || (0..FILES, 0..8u64).prop_map(|(file, first)| (file, first * PAGE));
    let backing = prop_oneof![
        3 => Just(Backing::Anonymous { page: PageSize::Large }),
        2 => file().prop_map(|(file, offset)| Backing::Shared { file, offset }),
        1 => file().prop_map(|(file, offset)| Backing::Private { file, offset }),
    ];
    const RIGHTS: [Protection; 3] = [Protection::NONE, Protection::READ, Protection::READ_WRITE];
    let word = || (0..FILES, 0..FILE_PAGES).prop_map(|(file, at)| (file, at * PAGE));
    let call = prop_oneof![
        6 => (range(), backing, prop::sample::select(&RIGHTS[1..])).prop_map(
            |((address, bytes), backing, protection)| {
                Call::Map { address: Some(address), bytes, protection, backing }
            }
        ),
        2 => range().prop_map(|(address, bytes)| Call::Unmap { address, bytes }),
        3 => (range(), prop::sample::select(&RIGHTS[..])).prop_map(
            |((address, bytes), protection)| Call::Protect { address, bytes, protection }
        ),
        2 => range().prop_map(|(address, bytes)| Call::Discard { address, bytes }),
        3 => range().prop_map(|(address, bytes)| Call::PageOut { address, bytes }),
        1 => (range(), prop::option::weighted(0.9, 0..PAGES)).prop_map(
            |((from, bytes), to)| Call::Remap { address: from, bytes, to: to.map(address) }
        ),
        3 => (word(), 1..1000u64).prop_map(
            |((file, offset), value)| Call::Write { file, offset, value }
        ),
        2 => word().prop_map(|(file, offset)| Call::Read { file, offset }),
        1 => (0..FILES, 0..2 * FILE_PAGES).prop_map(
            |(file, halves)| Call::Truncate { file, bytes: halves * PAGE / 2 }
        ),
        2 => (0..FILES).prop_map(|file| Call::Sync { file }),
        2 => (range(), 0..2u32).prop_map(
            |((address, bytes), node)| Call::Migrate { address, bytes, node }
        ),
        1 => (0..40u64).prop_map(|pages| Call::Demote { pages }),
        2 => (0..40u64).prop_map(|pages| Call::Reclaim { pages }),
    ];
    prop_oneof![
        30 => call.prop_map(Op::Call),
        20 => (0..PAGES).prop_map(Op::Load),
        15 => (0..PAGES, 1..1000u64).prop_map(|(at, value)| Op::Store(at, value)),
        1 => Just(Op::Fork),
        2 => (0..4usize).prop_map(Op::Enter),
        1 => (0..4usize).prop_map(Op::Exit),
        3 => (0..2usize).prop_map(Op::Cpu),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let policies = [Policy::BASELINE, Policy::ALL].into_iter();
    let policies: Vec<_> = policies.chain(Mechanism::ALL.map(Policy::only)).collect();
    let machines = vec![
        (Tagging::None, false, true),
        (Tagging::PerCpu { count: 6 }, false, true),
        (Tagging::Global { bits: 8 }, true, false),
    ];
    // Enough memory for everything, or so little that every allocation reclaims.
    let sizes = vec![(256, 256), (48, 32), (40, 16)];
    let choices = (
        prop::sample::select(policies),
        prop::sample::select(machines),
        prop::sample::select(sizes),
    );
    choices.prop_map(|(policy, (tagging, broadcast, hardware_dirty), (fast, slow))| {
        let map = nodes(fast, slow);
        Options { map, policy, tagging, broadcast, hardware_dirty, ..Options::new(0) }
    })
}

/// A program, and the abstract machine that judges it.
struct Run {
    program: Program,
    judge: AbstractMachine,
    processes: Vec<u32>,
    /// The process that each CPU runs.
    current: [u32; 2],
    cpu: usize,
}

impl Run {
    fn start(options: Options) -> Run {
        let program = Program::start(options);
        let mut judge = AbstractMachine::default();
        judge.reset(2, 1);
        let mut run = Run { program, judge, processes: vec![1], current: [1; 2], cpu: 0 };
        for _ in 0..FILES {
            run.call(Call::Create { bytes: FILE_PAGES * PAGE }).unwrap();
        }
        be(1);
        program.vm.enter(1).unwrap();
        be(0);
        run
    }

    fn call(&mut self, call: Call) -> Result<u64, Error> {
        let vm = self.program.vm;
        self.judge.begin_call(self.cpu, self.current[self.cpu], call);
        let result = self.program.call(call);
        assert_ne!(result, Err(Error::OutOfMemory), "{call:?}");
        // SAFETY: this test has one thread.
        let device = |file, at| unsafe { vm.peek_device(file, at) };
        let verdict = self.judge.end_call(self.cpu, result, device);
        verdict.unwrap_or_else(|violation| panic!("{call:?}: {violation}"));
        self.judge.drained(self.cpu);
        result
    }

    fn access(&mut self, at: u64, store: Option<u64>) {
        let access = if store.is_some() { Access::Write } else { Access::Read };
        let (process, page) = (self.current[self.cpu], address(at) / PAGE);
        self.judge.begin_access(self.cpu, process, access, page, 0, store.unwrap_or(0));
        let result = self.program.try_access(address(at), store);
        let verdict = self.judge.end_access(self.cpu, result, false);
        verdict.unwrap_or_else(|violation| panic!("page {at}: {violation}"));
        self.judge.drained(self.cpu);
        if store.is_none() {
            assert_eq!(self.program.peek(address(at)), result.ok(), "peek at page {at}");
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Call(call) => _ = self.call(call),
            Op::Load(at) => self.access(at, None),
            Op::Store(at, value) => self.access(at, Some(value)),
            Op::Fork if self.processes.len() < 4 => {
                let child = self.call(Call::Fork).unwrap();
                self.processes.push(child as u32);
            }
            Op::Enter(which) if which < self.processes.len() => {
                let process = self.processes[which];
                self.call(Call::Enter { process }).unwrap();
                self.current[self.cpu] = process;
            }
            Op::Exit(which) if which < self.processes.len() => {
                let process = self.processes[which];
                if self.call(Call::Exit { process }).is_ok() {
                    self.processes.remove(which);
                }
            }
            Op::Fork | Op::Enter(_) | Op::Exit(_) => {}
            Op::Cpu(cpu) => {
                self.cpu = cpu;
                be(cpu);
            }
        }
    }

    fn finish(mut self) {
        for cpu in 0..2 {
            self.step(&Op::Cpu(cpu));
            (0..PAGES).for_each(|at| self.access(at, None));
        }
        let vm = self.program.vm;
        // SAFETY: this test has one thread.
        let page = |process, page, word| unsafe { vm.peek(process, page * PAGE + 8 * word as u64) };
        // SAFETY: as above.
        let file = |file, at| unsafe { vm.peek_file(file, at) };
        let verdict = self.judge.judge_rest(page, file);
        verdict.unwrap_or_else(|violation| panic!("{violation}"));
        self.program.finish(&self.processes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_see_what_the_abstract_machine_allows(
        options in options(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        be(0);
        let mut run = Run::start(options);
        for op in &ops {
            run.step(op);
        }
        run.finish();
    }
}

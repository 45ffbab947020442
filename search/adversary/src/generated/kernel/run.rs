//! Runs the kernel on its machine: prepares the kernel, starts its CPUs, and names its words.

use super::batches::BatchTable;
use super::own_half;
use super::own_half::OwnHalf;
use super::state::{Kernel, Space};
use super::state::{Layout, SINGLES};
use crate::action::MAX_CPUS;
use crate::context;
use crate::coverage::Coverage;
use crate::generated::program::{
    CpuProgram, EngineOp, FIRST_CPU, Flags, LEDGER_ENTRIES, Shape, WINDOW,
};
use crate::hardware::Adversary;
use crate::stage::Stage;
use crate::timeline::Address;
use crate::word::AdversaryWord;
use quell::{
    Batch, DeferredFlush, Engine, Extent, KernelEntries, LedgerEntry, Page, PageRange, PerCpuData,
    Purpose, Scope, TagPolicy, Word,
};
use quell_vm::contract::timeline::Line;
use quell_vm::machine::{Machine, MemoryMap, Node};
use std::mem::ManuallyDrop;

/// Runs a program over the engine.
// Inlined, its large frame would be part of every run, and the host touches each page of a frame.
#[inline(never)]
pub(in crate::generated) fn perform(
    shape: &Shape,
    lanes: &[CpuProgram<EngineOp>],
    flags: Flags,
    stage: Stage<'_>,
    coverage: &mut Coverage,
) -> Vec<Line> {
    let layout = Layout::of(shape, lanes);
    let count = lanes.len();
    let memory = MemoryMap::new(&[Node {
        extent: Extent {
            first: layout.single(0),
            frames: layout.frames() as u64 - layout.single(0).0,
        },
        slow: false,
    }]);
    let first = usize::from(shape.first_cpu);
    let mut features = stage.kind.features(first + count);
    features.full_above = shape.full_above.into();
    match &mut features.tagging {
        quell::Tagging::PerCpu { count } => *count = shape.tags.into(),
        quell::Tagging::Global { bits } => *bits += shape.spare_bits,
        quell::Tagging::None => {}
    }
    // The machine checks requests against its features.
    context::with(|core| core.features = features);
    let machine = Adversary::with(stage.kind, features, shape.first_cpu, count, memory)
        .with_unscheduled(shape.unscheduled);
    let hw = stage.broken(machine);
    // The words are on the stack, like all others of the kernel. So they have the same order and distances in every
    // run, whatever the host's allocator does. Mostly there are few CPUs.
    let (few, many): (
        [PerCpuData<'_, Adversary>; MAX_CPUS],
        [PerCpuData<'_, Adversary>; FIRST_CPU + MAX_CPUS],
    );
    let cpus: &[PerCpuData<'_, Adversary>] = if first == 0 {
        few = std::array::from_fn(|_| PerCpuData::new());
        &few[..count]
    } else {
        many = std::array::from_fn(|_| PerCpuData::new());
        &many[..first + count]
    };
    let ledger: [LedgerEntry<Adversary>; LEDGER_ENTRIES] =
        std::array::from_fn(|_| LedgerEntry::new());
    let ledger = &ledger[..shape.ledger.into()];
    let mut policy = stage.policy;
    if let TagPolicy::Slots(slots) = &mut policy.tags {
        *slots = shape.tags.into();
    }
    stage.weaken(cpus);
    let engine = Engine::new(&hw, cpus, ledger, policy)
        .expect("the engine runs on every machine that is tried on");
    // SAFETY: in this machine in software a root is just a number, and every number is valid.
    let space = |slot: usize| unsafe { engine.new_space(layout.root(slot)) };
    // SAFETY: a root is just a number here, too, and the page decides whether an entry is global.
    let own = |entries| unsafe { engine.new_kernel_space(own_half::ROOT, entries) };
    let word = |value: u64| AdversaryWord::new(value);
    let kernel = Kernel {
        hw: &hw,
        shape: *shape,
        layout,
        spaces: std::array::from_fn(|slot| std::array::from_fn(|_| space(slot))),
        lives: std::array::from_fn(|slot| word(u64::from(slot < usize::from(shape.spaces)))),
        locks: std::array::from_fn(|_| word(0)),
        sharing: std::array::from_fn(|_| word(0)),
        file_locks: std::array::from_fn(|_| word(0)),
        slots: std::array::from_fn(|_| word(0)),
        disks: std::array::from_fn(|file| word(file as u64 + 1)),
        shadows: std::array::from_fn(|_| word(0)),
        deferrers: std::array::from_fn(|_| word(0)),
        deferred_flushes: std::array::from_fn(|_| DeferredFlush::new()),
        free_singles: word((1 << SINGLES) - 1),
        free_blocks: word((1 << layout.blocks) - 1),
        free_tables: word((1 << layout.leaves()) - 1),
        told: std::array::from_fn(|_| word(0)),
        busy: std::array::from_fn(|_| word(0)),
        traces: std::array::from_fn(|_| word(0)),
        current: Default::default(),
        flags,
        own: OwnHalf::new([KernelEntries::Global, KernelEntries::Tagged].map(own)),
        engine,
    };
    let desk = BatchTable::new(&kernel, lanes);
    for slot in 0..usize::from(shape.spaces) {
        let top = &hw.table(layout.root(slot))[0];
        kernel.link(top, layout.middle(slot));
    }
    kernel.link_own_half();
    // The batches that preempted threads of a busy program would hold open.
    let mut preempted: Vec<ManuallyDrop<Batch<'_, &Space>>> = Vec::new();
    for (cpu, lane) in lanes.iter().enumerate() {
        stage.prepare(cpu, &desk, || {
            kernel.come_online();
            context::faultlessly(|| hw.faultlessly(|| desk.run(&lane.start)));
        });
    }
    if shape.open_batches > 0 {
        let mut open = || {
            for _ in 0..shape.open_batches {
                let mut batch = kernel.engine.batch(Purpose::Call);
                let space = &kernel.spaces[0][0];
                batch.changed(space, PageRange::base(Page(2 * WINDOW), 1), Scope::Leaf);
                preempted.push(ManuallyDrop::new(batch));
            }
        };
        stage.prepare(0, &desk, || {
            context::faultlessly(|| hw.faultlessly(&mut open));
        });
    }
    let names = |word: usize| kernel.name(cpus, ledger, word);
    desk.begun.set(true);
    let body = |cpu: usize| desk.run(&lanes[cpu].run);
    let lines = stage.perform(&desk, &body, &|| {}, &names);
    coverage.add_engine(&kernel.engine.stats());
    lines
}

impl Kernel<'_> {
    /// Returns the name of a word, for timelines.
    fn name(
        &self,
        cpus: &[PerCpuData<'_, Adversary>],
        ledger: &[LedgerEntry<Adversary>],
        word: usize,
    ) -> Option<String> {
        let at = Address(word);
        at.of_cpus(cpus)
            .or_else(|| {
                let lives = self.spaces.iter().enumerate();
                at.of_spaces(lives.flat_map(|(index, lives)| {
                    lives.iter().map(move |space| (format!("space{index}"), space))
                }))
            })
            .or_else(|| {
                let names = ["global", "tagged"].map(|name| format!("{name} kernel space"));
                at.of_spaces(names.into_iter().zip(&self.own.spaces))
            })
            .or_else(|| {
                let own = at.lies_in(&self.own.lock);
                own.then(|| "lock of the kernel's own half".into())
            })
            .or_else(|| at.numbered("lock of space", &self.locks[..]))
            .or_else(|| at.numbered("life of space", &self.lives[..]))
            .or_else(|| at.numbered("lock of file", &self.file_locks[..]))
            .or_else(|| at.numbered("flag", &self.told[..]))
            .or_else(|| at.numbered("batch", &self.busy[..]))
            .or_else(|| {
                let index = self.deferred_flushes.iter().position(|one| at.lies_in(one))?;
                let frame = self.layout.single(index as u64);
                Some(format!("deferred_flush of frame {:#x}", frame.0))
            })
            .or_else(|| at.of_engine(&self.engine, ledger))
            .or_else(|| {
                let (table, index) = context::place_of(word)?;
                Some(format!("entry {index} of table {table:#x}"))
            })
    }
}

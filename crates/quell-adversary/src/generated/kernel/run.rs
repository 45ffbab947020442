//! A run: the kernel on its machine, made ready, set in motion, and its words by their names.

use super::batches::Desk;
use super::layout::{Layout, SINGLES};
use super::state::{Kernel, Space};
use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use crate::context;
use crate::coverage::Coverage;
use crate::generated::program::{EngineOp, Flags, LEDGER_ENTRIES, Lane, Shape, WINDOW};
use crate::hardware::{Adversary, RunRules};
use crate::stage::{Hw, Stage};
use quell::{
    Batch, Engine, Extent, Frame, LedgerEntry, Page, PageRange, PerCpu, Purpose, Residue, Scope,
    TagPolicy, Word,
};
use quell_contract::timeline::Line;
use quell_vm::machine::{Machine, MemoryMap, Node};
use std::mem::ManuallyDrop;

/// Runs a program over the engine.
pub(in crate::generated) fn perform(
    shape: &Shape,
    lanes: &[Lane<EngineOp>],
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
    // The machine judges what it is asked by what it can do.
    context::with(|core| core.features = features);
    let machine = Adversary::with(stage.kind, features, shape.first_cpu, count, memory);
    let hw = stage.broken(machine);
    // Few lie on the stack, at the same place in every run of a search.
    let (few, many): ([PerCpu<'_, Hw>; MAX_CPUS], Vec<_>);
    let cpus: &[PerCpu<'_, Hw>] = if first == 0 {
        few = std::array::from_fn(|_| PerCpu::new());
        &few[..count]
    } else {
        many = (0..first + count)
            .map(|_| PerCpu::new())
            .collect::<Vec<_>>();
        &many
    };
    let ledger: [LedgerEntry<Hw>; LEDGER_ENTRIES] = std::array::from_fn(|_| LedgerEntry::new());
    let ledger = &ledger[..shape.ledger.into()];
    let mut policy = stage.policy;
    if let TagPolicy::Slots(slots) = &mut policy.tags {
        *slots = shape.tags.into();
    }
    stage.weaken(cpus);
    let engine = Engine::with_rules(&hw, cpus, ledger, policy, RunRules)
        .expect("the engine runs on every machine that is hunted on");
    // SAFETY: in this machine in software a root is a number, and every number will do.
    let space = |slot: usize| unsafe { engine.new_space(layout.root(slot)) };
    let word = |value: u64| AdversaryWord::new(value);
    let kernel = Kernel {
        hw: &hw,
        shape: *shape,
        layout,
        spaces: std::array::from_fn(|slot| std::array::from_fn(|_| space(slot))),
        lives: std::array::from_fn(|slot| word(u64::from(slot < usize::from(shape.spaces)))),
        locks: std::array::from_fn(|_| word(0)),
        file_locks: std::array::from_fn(|_| word(0)),
        slots: std::array::from_fn(|_| word(0)),
        disks: std::array::from_fn(|file| word(file as u64 + 1)),
        shadows: std::array::from_fn(|_| word(0)),
        debtors: std::array::from_fn(|_| word(0)),
        residues: std::array::from_fn(|_| Residue::new()),
        free_singles: word((1 << SINGLES) - 1),
        free_blocks: word((1 << layout.blocks) - 1),
        free_tables: word((1 << layout.leaves()) - 1),
        told: std::array::from_fn(|_| word(0)),
        busy: std::array::from_fn(|_| word(0)),
        traces: std::array::from_fn(|_| word(0)),
        current: Default::default(),
        flags,
        engine,
    };
    let desk = Desk::new(&kernel, lanes);
    for slot in 0..usize::from(shape.spaces) {
        let top = &hw.table(layout.root(slot))[0];
        kernel.link(top, layout.middle(slot));
    }
    // As many batches as the threads of a busy program hold open while they are preempted.
    let mut preempted: Vec<ManuallyDrop<Batch<'_, '_, Hw, &Space, Frame, RunRules>>> = Vec::new();
    for (cpu, lane) in lanes.iter().enumerate() {
        stage.prepare(cpu, &desk, || {
            kernel.hw.online();
            kernel.engine.cpu_online();
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
    /// The name of a word, for timelines.
    fn name(
        &self,
        cpus: &[PerCpu<'_, Hw>],
        ledger: &[LedgerEntry<Hw>],
        word: usize,
    ) -> Option<String> {
        let inside = |start: usize, size: usize| (start..start + size).contains(&word);
        let at = |list: &[AdversaryWord]| {
            list.iter()
                .position(|one| std::ptr::from_ref(one) as usize == word)
        };
        for (index, cpu) in cpus.iter().enumerate() {
            if inside(std::ptr::from_ref(cpu) as usize, size_of_val(cpu)) {
                let field = cpu.word_name(word).unwrap_or("?");
                return Some(format!("cpu{index}.{field}"));
            }
        }
        for (index, lives) in self.spaces.iter().enumerate() {
            if let Some(field) = lives.iter().find_map(|space| space.word_name(word)) {
                return Some(format!("space{index}.{field}"));
            }
        }
        for (list, what) in [
            (&self.locks[..], "lock of space"),
            (&self.lives[..], "life of space"),
            (&self.file_locks[..], "lock of file"),
            (&self.told[..], "flag"),
            (&self.busy[..], "batch"),
        ] {
            if let Some(index) = at(list) {
                return Some(format!("{what} {index}"));
            }
        }
        for (index, residue) in self.residues.iter().enumerate() {
            if inside(std::ptr::from_ref(residue) as usize, size_of_val(residue)) {
                let frame = self.layout.single(index as u64);
                return Some(format!("residue of frame {:#x}", frame.0));
            }
        }
        for (index, entry) in ledger.iter().enumerate() {
            if inside(std::ptr::from_ref(entry) as usize, size_of_val(entry)) {
                return Some(format!("ledger[{index}]"));
            }
        }
        let engine = std::ptr::from_ref(&self.engine) as usize;
        if inside(engine, size_of_val(&self.engine)) {
            return Some(format!("engine+{:#x}", word - engine));
        }
        let (table, index) = context::place_of(word)?;
        Some(format!("entry {index} of table {table:#x}"))
    }
}

//! Runs a program on the bare kernel: creates the kernel, prepares each CPU, and starts all of them.

use super::own_half::{OWN, OWN_ROOT};
use super::{
    BareKernel, BareProgram, FIRST, FRAMES, MOST_LEDGER_ENTRIES, SECOND, SPACES, leaf_of, root_of,
};
use crate::action::MAX_CPUS;
use crate::context::Kernel;
use crate::coverage::{Coverage, MachineEvent};
use crate::hardware::Adversary;
use crate::stage::Stage;
use crate::timeline;
use crate::timeline::Address;
use crate::word::AdversaryWord;
use quell::{
    CpuId, DeferredFlush, Engine, Extent, Frame, Hardware, KernelEntries, LedgerEntry, PerCpuData,
    Word,
};
use quell_vm::contract::timeline::Line;
use quell_vm::machine::{Machine, MemoryMap};
use quell_vm::sim::heap;
use std::cell::Cell;
use std::mem::ManuallyDrop;

impl Kernel for BareKernel<'_> {
    fn interrupt(&self) {
        self.engine.this_cpu().mask_interrupts().on_interrupt();
    }

    fn preempt(&self) {
        if self.hw.this_cpu() == CpuId(0) {
            (self.preempts)(self);
        }
    }

    fn nmi(&self) {
        if self.has_own_half() {
            // The NMI may have interrupted a program or a program's entry into the kernel, so its handler enters the
            // kernel first.
            self.engine.this_cpu().enter_kernel();
            self.read_own(OWN);
        } else if self.engine.this_cpu().user_access_allowed() {
            self.read(0);
        } else {
            self.hw.happen(MachineEvent::NmiRefused);
        }
    }

    fn kept(&self, cpu: usize) -> u64 {
        self.current[cpu].get().map_or(0, |space| space as u64 + 1)
    }
}

impl BareProgram {
    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        if let Some(kernel) = stage.resumed() {
            // SAFETY: `keep` below stored the pointer to a kernel of this type. Its borrows are on the heap like
            // itself, and all of it has been restored. The lifetime is that of this call, during which the heap isn't
            // cleared.
            let kernel = unsafe { &*kernel.cast::<BareKernel<'_>>() };
            return self.run(kernel, &stage, coverage, &|_| None);
        }
        let count = stage.cpus;
        let memory = MemoryMap::new(&[quell_vm::machine::Node {
            extent: Extent { first: Frame(FIRST), frames: FRAMES as u64 - FIRST },
            slow: false,
        }]);
        // We put all words on the heap, so that they have the same addresses in every run.
        let machine = Adversary::new(stage.kind, count, memory).with_unscheduled(self.unscheduled);
        let hw = Box::new(stage.broken(machine));
        let hw = &*hw;
        let cpus: Box<ManuallyDrop<[PerCpuData<'_, Adversary>; MAX_CPUS]>> =
            Box::new(ManuallyDrop::new(std::array::from_fn(|_| PerCpuData::new())));
        let ledger: Box<ManuallyDrop<[LedgerEntry<Adversary>; MOST_LEDGER_ENTRIES]>> =
            Box::new(ManuallyDrop::new(std::array::from_fn(|_| LedgerEntry::new())));
        stage.weaken(&cpus[..count]);
        let engine = Engine::new(hw, &cpus[..count], &ledger[..self.ledger], stage.policy)
            .expect("the engine runs on every machine under the adversary");
        // SAFETY: in this machine in software a root is just a number, and every number is valid.
        let space = |space: usize| unsafe { engine.new_space(root_of(space)) };
        // SAFETY: a root is just a number here, and entries are global as `entries` declares.
        let own = |entries| unsafe { engine.new_kernel_space(OWN_ROOT, entries) };
        let kernel = Box::new(BareKernel {
            hw,
            own: ManuallyDrop::new([KernelEntries::Global, KernelEntries::Tagged].map(own)),
            own_lock: ManuallyDrop::new(AdversaryWord::new(0)),
            has_own_half: Cell::new(false),
            spaces: ManuallyDrop::new(std::array::from_fn(space)),
            locks: ManuallyDrop::new(std::array::from_fn(|_| AdversaryWord::new(0))),
            deferred_flushes: ManuallyDrop::new(std::array::from_fn(|_| DeferredFlush::new())),
            flags: ManuallyDrop::new(std::array::from_fn(|_| AdversaryWord::new(0))),
            lent: Cell::new(std::ptr::null_mut()),
            current: Default::default(),
            preempts: self.preempts,
            engine,
        });
        for space in 0..SPACES {
            kernel.link(space, 0);
        }
        for cpu in 0..count {
            stage.prepare(cpu, &*kernel, || {
                hw.online();
                kernel.engine.cpu_online();
                if cpu == 0 {
                    (self.first)(&kernel);
                }
                (self.each)(&kernel, cpu);
                if cpu == 1 {
                    (self.second)(&kernel);
                }
            });
        }
        stage.keep(std::ptr::from_ref(&*kernel).cast());
        let names = |word: usize| kernel.name(&cpus[..count], &ledger[..], word);
        self.run(&kernel, &stage, coverage, &names)
    }

    /// Runs the CPUs.
    fn run(
        &self,
        kernel: &BareKernel<'_>,
        stage: &Stage<'_>,
        coverage: &mut Coverage,
        names: &timeline::WordNames<'_>,
    ) -> Vec<Line> {
        let body = |cpu: usize| {
            (self.all)(kernel, cpu);
            (self.cpus[cpu])(kernel);
        };
        let lines = stage.perform(kernel, &body, &|| {}, names);
        heap::off(|| coverage.add_engine(&kernel.engine.stats()));
        lines
    }
}

impl BareKernel<'_> {
    /// Returns the name of a word, for timelines.
    fn name(
        &self,
        cpus: &[PerCpuData<'_, Adversary>],
        ledger: &[LedgerEntry<Adversary>],
        word: usize,
    ) -> Option<String> {
        let at = Address(word);
        at.of_cpus(cpus)
            .or_else(|| at.of_spaces((0..).map(|n| format!("space{n}")).zip(self.spaces.iter())))
            .or_else(|| {
                let names = ["global", "tagged"].map(|name| format!("{name} kernel space"));
                at.of_spaces(names.into_iter().zip(self.own.iter()))
            })
            .or_else(|| {
                let own = at.lies_in(&*self.own_lock);
                own.then(|| "lock of the kernel's own tables".into())
            })
            .or_else(|| at.numbered("lock of the tables of space", &self.locks[..]))
            .or_else(|| at.numbered("flag", &self.flags[..]))
            .or_else(|| {
                let index = self.deferred_flushes.iter().position(|one| at.lies_in(one))?;
                Some(format!("deferred_flush of frame {:#x}", FIRST + index as u64))
            })
            .or_else(|| at.of_engine(&self.engine, ledger))
            .or_else(|| self.entry_name(at))
    }

    /// Returns the name of a table's entry.
    fn entry_name(&self, at: Address) -> Option<String> {
        (0..SPACES).find_map(|space| {
            let leaf = [0, SECOND].into_iter().find_map(|base| {
                let page = base + at.offset_in(self.hw.table(leaf_of(space, base)))? as u64 / 8;
                Some(format!("entry of page {page:#x} in space{space}"))
            });
            leaf.or_else(|| {
                let index = at.offset_in(self.hw.table(root_of(space)))? / 8;
                Some(format!("root entry {index} of space{space}"))
            })
        })
    }
}

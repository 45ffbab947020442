//! A run of a program on the bare kernel: the kernel is made, each CPU prepares, all are set in motion.

use super::{
    BareKernel, BareProgram, FIRST, FRAMES, MOST_LEDGER_ENTRIES, SECOND, SPACES, leaf_of, root_of,
};
use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use crate::context::Kernel;
use crate::coverage::{Coverage, Happening};
use crate::hardware::RunRules;
use crate::stage::{Hw, Stage};
use quell::{Engine, Extent, Frame, Hardware, LedgerEntry, PerCpu, Residue, Word};
use quell_contract::timeline::Line;
use quell_vm::machine::{Machine, MemoryMap};
use std::mem::ManuallyDrop;

impl Kernel for BareKernel<'_> {
    fn interrupt(&self) {
        self.engine.on_interrupt();
    }

    fn preempt(&self) {
        (self.preempts)(self, self.hw.this_cpu().index());
    }

    fn nmi(&self) {
        if self.engine.user_access_allowed() {
            self.read(0);
        } else {
            self.hw.happen(Happening::NmiRefused);
        }
    }

    fn kept(&self, cpu: usize) -> u64 {
        self.current[cpu].get().map_or(0, |space| space as u64 + 1)
    }
}

impl BareProgram {
    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        let count = stage.cpus;
        let memory = MemoryMap::new(&[quell_vm::machine::Node {
            extent: Extent {
                first: Frame(FIRST),
                frames: FRAMES as u64 - FIRST,
            },
            slow: false,
        }]);
        let hw = stage.machine(memory);
        let cpus: ManuallyDrop<[PerCpu<'_, Hw>; MAX_CPUS]> =
            ManuallyDrop::new(std::array::from_fn(|_| PerCpu::new()));
        let ledger: ManuallyDrop<[LedgerEntry<Hw>; MOST_LEDGER_ENTRIES]> =
            ManuallyDrop::new(std::array::from_fn(|_| LedgerEntry::new()));
        stage.weaken(&cpus[..count]);
        let engine = Engine::with_rules(
            &hw,
            &cpus[..count],
            &ledger[..self.ledger],
            stage.policy,
            RunRules,
        )
        .expect("the engine runs on every machine under the adversary");
        // SAFETY: in this machine in software a root is a number, and every number will do.
        let space = |space: usize| unsafe { engine.new_space(root_of(space)) };
        let kernel = BareKernel {
            hw: &hw,
            spaces: ManuallyDrop::new(std::array::from_fn(space)),
            locks: ManuallyDrop::new(std::array::from_fn(|_| AdversaryWord::new(0))),
            residues: ManuallyDrop::new(std::array::from_fn(|_| Residue::new())),
            flags: ManuallyDrop::new(std::array::from_fn(|_| AdversaryWord::new(0))),
            current: Default::default(),
            preempts: self.preempts,
            engine,
        };
        for space in 0..SPACES {
            kernel.link(space, 0);
        }
        for cpu in 0..count {
            stage.prepare(cpu, &kernel, || {
                hw.online();
                kernel.engine.cpu_online();
                (self.start)(&kernel, cpu);
            });
        }
        let names = |word: usize| kernel.name(&cpus[..count], &ledger[..], word);
        let lines = stage.perform(&kernel, &|cpu| (self.body)(&kernel, cpu), &|| {}, &names);
        coverage.add_engine(&kernel.engine.stats());
        lines
    }
}

impl BareKernel<'_> {
    /// The name of a word, for timelines.
    fn name(
        &self,
        cpus: &[PerCpu<'_, Hw>],
        ledger: &[LedgerEntry<Hw>],
        word: usize,
    ) -> Option<String> {
        let inside = |start: usize, size: usize| (start..start + size).contains(&word);
        for (index, cpu) in cpus.iter().enumerate() {
            if inside(std::ptr::from_ref(cpu) as usize, size_of_val(cpu)) {
                return Some(match cpu.word_name(word) {
                    Some(field) => format!("cpu{index}.{field}"),
                    None => format!("cpu{index}.?"),
                });
            }
        }
        for (index, space) in self.spaces.iter().enumerate() {
            if let Some(field) = space.word_name(word) {
                return Some(format!("space{index}.{field}"));
            }
        }
        for (index, lock) in self.locks.iter().enumerate() {
            if std::ptr::from_ref(lock) as usize == word {
                return Some(format!("lock of space{index}'s tables"));
            }
        }
        for (index, flag) in self.flags.iter().enumerate() {
            if std::ptr::from_ref(flag) as usize == word {
                return Some(format!("flag {index}"));
            }
        }
        for (index, residue) in self.residues.iter().enumerate() {
            if inside(std::ptr::from_ref(residue) as usize, size_of_val(residue)) {
                return Some(format!("residue of frame {:#x}", FIRST + index as u64));
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
        for space in 0..SPACES {
            for base in [0, SECOND] {
                let table = self.hw.table(leaf_of(space, base));
                let start = table.as_ptr() as usize;
                if inside(start, size_of_val(table)) {
                    let page = base + ((word - start) / 8) as u64;
                    return Some(format!("entry of page {page:#x} in space{space}"));
                }
            }
            let table = self.hw.table(root_of(space));
            let start = table.as_ptr() as usize;
            if inside(start, size_of_val(table)) {
                return Some(format!("root entry {} of space{space}", (word - start) / 8));
            }
        }
        None
    }
}

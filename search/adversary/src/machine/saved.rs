//! Saves a machine whose programs are ready, so that further runs begin there.
//!
//! It doesn't contain the footprints that a run leaves for the next, nor a run's settings: its schedule, its limits,
//! the number of spurious interrupts.

use super::{Core, Cpu, Text};
use crate::action::MAX_CPUS;
use crate::action::Op;
use crate::coverage::MachineEvent;
use crate::digest::{Locals, Sums};
use crate::machine::user_half::UserHalfState;
use crate::mmu;
use crate::oracle::{Moment, Oracle};
use crate::word::FRAME_WORDS;
use quell_vm::contract::AbstractMachine;

pub(crate) struct SavedMachine {
    text: Option<Text>,
    halves: [UserHalfState; MAX_CPUS],
    synchronized: [Moment; MAX_CPUS],
    cpus: Vec<IdleCpu>,
    mmu: mmu::SavedMmu,
    oracle: Oracle,
    abstract_machine: AbstractMachine,
    content: Box<[[u64; FRAME_WORDS]]>,
    touched: Vec<u32>,
    now: Moment,
    current: usize,
    second_looks: u8,
    events: [u64; MachineEvent::COUNT],
    sums: Sums,
    programs: u8,
}

/// The state of a CPU that has only prepared its program.
#[derive(Clone, Copy)]
struct IdleCpu {
    online: bool,
    interrupts_on: bool,
    interrupt: bool,
    call_began: Moment,
}

impl IdleCpu {
    /// Returns `None` if the CPU has more state than that.
    fn of(cpu: &Cpu) -> Option<IdleCpu> {
        let rests = cpu.buffer.is_empty()
            && cpu.watch.is_empty()
            && cpu.broadcasts.is_empty()
            && cpu.pending == Op::Start
            && cpu.epoch == 0
            && !cpu.in_nmi
            && !cpu.woken;
        rests.then_some(IdleCpu {
            online: cpu.online,
            interrupts_on: cpu.interrupts_on,
            interrupt: cpu.interrupt,
            call_began: cpu.call_began,
        })
    }

    fn restore(&self, cpu: &mut Cpu) {
        cpu.reset();
        cpu.online = self.online;
        cpu.interrupts_on = self.interrupts_on;
        cpu.interrupt = self.interrupt;
        cpu.call_began = self.call_began;
    }
}

impl Core {
    /// Saves the machine before the CPUs run.
    ///
    /// Returns `None` if preparing the programs depended on a schedule or has broken the contract.
    pub(crate) fn save(&self) -> Option<SavedMachine> {
        let untouched = self.decisions == 0 && self.end.is_none() && !self.past.is_kept();
        let cpus: Option<Vec<IdleCpu>> = self.cpus[..self.count].iter().map(IdleCpu::of).collect();
        let cpus = cpus.filter(|_| untouched)?;
        Some(SavedMachine {
            text: self.text,
            halves: self.halves,
            synchronized: self.synchronized,
            cpus,
            mmu: self.mmu.save(),
            oracle: self.oracle.clone(),
            abstract_machine: self.abstract_machine.clone(),
            content: self.content.clone(),
            touched: self.touched.clone(),
            now: self.now,
            current: self.current,
            second_looks: self.second_looks,
            events: self.events,
            sums: self.sums,
            programs: self.programs,
        })
    }

    /// Restores a saved machine, as [`Core::reset`] restores the machine before any program.
    pub(crate) fn restore(&mut self, saved: &SavedMachine) {
        self.text = saved.text;
        self.halves = saved.halves;
        self.synchronized = saved.synchronized;
        for (cpu, saved) in self.cpus.iter_mut().zip(&saved.cpus) {
            saved.restore(cpu);
        }
        self.outdate_all();
        self.waiting = 0;
        self.brisk = false;
        self.mmu.restore(&saved.mmu);
        self.oracle.restore(&saved.oracle);
        self.abstract_machine.clone_from(&saved.abstract_machine);
        self.content.copy_from_slice(&saved.content);
        self.touched.clone_from(&saved.touched);
        self.past.clear();
        self.decisions = 0;
        self.now = saved.now;
        self.current = saved.current;
        self.second_looks = saved.second_looks;
        self.end = None;
        self.trail.clear();
        self.events = saved.events;
        self.sums = saved.sums;
        self.locals = Locals::default();
        self.open = false;
        self.programs = saved.programs;
        if let Some(footprints) = &mut self.footprints {
            footprints.begin();
        }
    }
}

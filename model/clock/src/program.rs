//! Runs programs on the machine: loads and stores through the MMU, and calls into the kernel.

use crate::context;
use crate::cpu::Activity;
use crate::kernel::Kernel;
use crate::machine;
use crate::mmu;
use crate::trace::Mark;
use crate::word::Line;
use quell::Word;
use quell_vm::{Access, Call, Error, Fault, User};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The number of control words that the CPUs of a workload share.
pub const SHARED_WORDS: usize = 64;

/// A program's interface to one CPU of the machine.
///
/// It implements [`User`](quell_vm::User), through which workloads run.
pub struct ModelUser<'k> {
    pub(crate) cpu: usize,
    pub(crate) cpus: usize,
    pub(crate) kernel: &'k dyn Kernel,
    pub(crate) control: &'k [Line<1>],
    pub(crate) tally: &'k Cell<u64>,
    pub(crate) progress: &'k Progress,
}

impl ModelUser<'_> {
    #[inline]
    fn access(&self, address: u64, store: Option<u64>) -> Result<u64, Fault> {
        loop {
            match mmu::access(address, store) {
                Ok(value) => return Ok(value),
                Err(access) => self.fault(address, access)?,
            }
        }
    }

    #[cold]
    fn fault(&self, address: u64, access: Access) -> Result<(), Fault> {
        let start = context::with(|core| {
            let cpu = core.cpu();
            cpu.counts.faults += 1;
            cpu.in_fault = true;
            cpu.now
        });
        let served = self.kernel.fault(address, access);
        context::with(|core| {
            core.cpu().in_fault = false;
            core.trace_since(start, Mark::Fault(address));
        });
        served
    }

    /// Accesses every line of a span: one translation per page, and the memory's rate for the rest.
    fn span(&self, address: u64, bytes: u64, store: Option<u64>) -> Result<(), Fault> {
        let end = address + bytes;
        let mut at = address;
        while at < end {
            let page_end = (at / 4096 + 1) * 4096;
            let here = page_end.min(end) - at;
            loop {
                self.access(at, store)?;
                // The translation may be dropped while the CPU waits for its turn at the memory.
                if context::shared(|core| core.stream_page(at, here, store)) {
                    break;
                }
            }
            at += here;
        }
        Ok(())
    }
}

impl User for ModelUser<'_> {
    fn cpu(&self) -> usize {
        self.cpu
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    #[inline]
    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        self.access(address, None)
    }

    #[inline]
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        self.access(address, Some(value)).map(|_| ())
    }

    fn try_read_span(&self, address: u64, bytes: u64) -> Result<(), Fault> {
        self.span(address, bytes, None)
    }

    fn try_write_span(&self, address: u64, bytes: u64, value: u64) -> Result<(), Fault> {
        self.span(address, bytes, Some(value))
    }

    fn call(&self, call: Call) -> Result<u64, Error> {
        let start = context::shared(|core| {
            let began = core.oracle.event();
            core.cpu().counts.calls += 1;
            core.cpu().call = Some((call, began));
            core.cpu().now
        });
        let result = self.kernel.call(call);
        context::shared(|core| {
            core.cpu().call = None;
            core.call_ended(call.name(), start);
            core.trace_since(start, Mark::Call(call.name()));
        });
        result
    }

    fn compute(&self, nanoseconds: u64) {
        let time = context::with(|core| core.shared_core(nanoseconds.saturating_mul(1000)));
        machine::pass(time, Activity::Computing);
    }

    fn now(&self) -> u64 {
        context::with(|core| core.cpu().now / 1000)
    }

    fn step(&self, done: u64, all: u64) {
        self.progress.tell(done, all);
        context::with(|core| core.stepped = core.cpu().now);
    }

    fn at(&self, line: u32) -> bool {
        context::with(|core| core.cpu().line = line);
        true
    }

    fn tally(&self, add: u64) -> u64 {
        self.tally.update(|count| count.wrapping_add(add));
        self.tally.get()
    }

    fn mark(&self, mark: quell_vm::Mark) {
        context::shared(|core| core.mark_window(mark));
        context::quietly(|kernel| kernel.mark(mark));
    }

    fn shared(&self, index: usize) -> u64 {
        self.control[index].word().load(SeqCst)
    }

    fn set_shared(&self, index: usize, value: u64) {
        self.control[index].word().store(value, SeqCst);
    }

    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.control[index].word().fetch_add(value, SeqCst)
    }
}

/// The progress of a run: the number of steps that its program has completed.
///
/// The run writes it and other threads of the host read it. It has no effect on the run and orders nothing.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    /// Creates a progress without completed steps.
    pub const fn new() -> Self {
        Progress { done: AtomicU64::new(0), all: AtomicU64::new(0) }
    }

    pub(crate) fn tell(&self, done: u64, all: u64) {
        self.done.store(done, Relaxed);
        self.all.store(all, Relaxed);
    }

    /// Records that the run has ended, for whatever reason.
    pub fn end(&self) {
        self.tell(1, 1);
    }

    /// Returns the completed part, from 0 to 1. It's 0 while the number of steps is unknown.
    pub fn share(&self) -> f64 {
        match self.all.load(Relaxed) {
            0 => 0.0,
            all => (self.done.load(Relaxed) as f64 / all as f64).min(1.0),
        }
    }
}

//! Runs programs on the machine: loads and stores through the MMU, and calls into the kernel.

use crate::cell::ModelWord;
use crate::context;
use crate::cpu::Activity;
use crate::kernel::Kernel;
use crate::machine;
use crate::mmu;
use crate::progress::Progress;
use crate::trace::Mark;
use quell::Word;
use quell_vm::{Access, Call, Error, Fault, User};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;

/// The number of control words that the CPUs of a workload share.
pub const SHARED_WORDS: usize = 64;

/// A control word on a cache line of its own.
#[repr(align(64))]
pub(crate) struct Control(ModelWord);

impl Control {
    /// Returns the words of a run, all zero.
    pub(crate) fn all() -> Vec<Control> {
        (0..SHARED_WORDS).map(|_| Control(ModelWord::new(0))).collect()
    }

    /// Returns the word's value.
    pub(crate) fn value(&self) -> u64 {
        self.0.peek()
    }
}

/// A program's interface to one CPU of the machine.
///
/// It implements [`User`](quell_vm::User), through which workloads run.
pub struct ModelUser<'k> {
    pub(crate) cpu: usize,
    pub(crate) cpus: usize,
    pub(crate) kernel: &'k dyn Kernel,
    pub(crate) control: &'k [Control],
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
            let cpu = core.cpu();
            cpu.in_fault = false;
            let now = cpu.now;
            core.trace.span(core.current, start, now, Mark::Fault(address));
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
            let now = core.cpu().now;
            core.call_ended(call.name(), start);
            core.trace.span(core.current, start, now, Mark::Call(call.name()));
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
        self.control[index].0.load(SeqCst)
    }

    fn set_shared(&self, index: usize, value: u64) {
        self.control[index].0.store(value, SeqCst);
    }

    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.control[index].0.fetch_add(value, SeqCst)
    }
}

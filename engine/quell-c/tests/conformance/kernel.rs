//! The functions that `quell.h` requires of a kernel, on the machine of `quell-conformance`'s own tests.

use crate::machine::{self, CPUS, PanicGuard, Toy};
use engine::{
    Broadcast, CpuId, CpuSet, Frame, Hardware, Invalidation, Page, PageRange, PageSize, Scope, Tag,
    Tagging,
};
use quell_c::machine::{quell_cpu_set, quell_hooks, quell_invalidation, quell_invalidation_kind};
use quell_c::place::{quell_cpu, quell_engine};
use quell_c::values::{quell_range, quell_scope};
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// A mistake in the embedder's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    Nothing,
    /// Batches are never finished.
    NotFinished,
    /// A batch gets a page of another table.
    PageTooFar,
    /// An unlinked table is reported as an unmapped page.
    TablesAsLeaves,
    /// Later observers don't flush pending changes.
    NotFlushed,
    /// Frames are reused without their deferred flush.
    NotReused,
    /// Addresses of the kernel's half are used again without their deferred flush.
    StampNotFlushed,
    /// The kernel space with tagged entries is made as if they were global.
    TaggedAsGlobal,
    /// A CPU enters the kernel without a call of quell_enter_kernel.
    EntersUnsaid,
    /// The engine gets no hooks for the device that walks the tables.
    DeviceNotTold,
}

pub struct Kernel {
    pub machine: Toy,
    wrong: Mistake,
    engine: AtomicPtr<quell_engine>,
    /// The engine's state for each CPU.
    states: [AtomicPtr<quell_cpu>; CPUS],
}

thread_local! {
    /// The kernel of this thread's CPU.
    static HERE: Cell<Option<&'static Kernel>> = const { Cell::new(None) };
}

fn kernel() -> &'static Kernel {
    HERE.get().expect("this thread is a CPU")
}

fn machine() -> &'static Toy {
    &kernel().machine
}

impl Kernel {
    /// Creates a kernel, which is never freed.
    pub fn new(tagging: Tagging, wrong: Mistake) -> &'static Kernel {
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel {
            machine: Toy::new(tagging, machine::Mistake::Nothing),
            wrong,
            engine: AtomicPtr::default(),
            states: Default::default(),
        }));
        kernel.machine.handle_with(|| {
            // SAFETY: CPUs are online, so the engine was made.
            unsafe { quell_c::cpu::quell_on_interrupt(kernel.engine.load(SeqCst), Kernel::here()) };
        });
        kernel
    }

    /// Makes this thread a CPU of the machine.
    pub fn enter(&'static self, cpu: usize) -> PanicGuard<'static> {
        HERE.set(Some(self));
        self.machine.enter(cpu)
    }

    /// Sends shootdown interrupts to this engine.
    pub fn handle_with(&self, engine: *mut quell_engine, states: [*mut quell_cpu; CPUS]) {
        for (to, state) in self.states.iter().zip(states) {
            to.store(state, SeqCst);
        }
        self.engine.store(engine, SeqCst);
    }

    /// Calls `what` with the interrupts of this CPU masked.
    pub fn masked<T>(what: impl FnOnce() -> T) -> T {
        let were_on = quell_hw_mask_interrupts();
        let result = what();
        quell_hw_restore_interrupts(were_on);
        result
    }

    /// Returns the engine's state for this thread's CPU.
    pub fn here() -> *mut quell_cpu {
        kernel().states[machine().this_cpu().index()].load(SeqCst)
    }

    /// Returns the mistake of this thread's kernel.
    pub fn wrong() -> Mistake {
        kernel().wrong
    }

    /// Returns the functions for the machine's device.
    pub fn hooks(&self) -> quell_hooks {
        match self.wrong {
            Mistake::DeviceNotTold => quell_hooks::default(),
            _ => quell_hooks {
                start_secondary: Some(start_secondary),
                mark_secondary: Some(mark_secondary),
                secondary_is_done: Some(secondary_is_done),
                ..quell_hooks::default()
            },
        }
    }
}

/// Returns a range as the engine has it.
fn range_of(range: quell_range) -> PageRange {
    let strides = [PageSize::Base, PageSize::Large, PageSize::Huge];
    let stride = strides[range.stride as usize];
    PageRange { start: Page(range.start), pages: range.pages, stride }
}

/// Returns an invalidation as the engine has it.
fn invalidation_of(what: &quell_invalidation) -> Invalidation {
    let (tag, range) = (Tag(what.tag), range_of(what.range));
    let scope = match what.scope {
        quell_scope::Leaf => Scope::Leaf,
        quell_scope::Tables => Scope::Tables,
    };
    match what.kind {
        quell_invalidation_kind::Range => Invalidation::Range { tag, range, scope },
        quell_invalidation_kind::Tag => Invalidation::Tag(tag),
        quell_invalidation_kind::All => Invalidation::All,
        quell_invalidation_kind::Kernel => Invalidation::Kernel { range, scope },
        quell_invalidation_kind::Everything => Invalidation::Everything,
    }
}

extern "C" fn start_secondary(root: u64, range: *const quell_range, scope: u32) {
    let scope = if scope == 0 { Scope::Leaf } else { Scope::Tables };
    // SAFETY: NULL, or a range that lives for the call.
    let range = unsafe { range.as_ref() }.copied().map(range_of);
    machine().start_secondary(Frame(root), range, scope);
}

extern "C" fn mark_secondary() -> u64 {
    machine().mark_secondary()
}

extern "C" fn secondary_is_done(mark: u64) -> bool {
    machine().secondary_is_done(mark)
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_this_cpu() -> u32 {
    machine().this_cpu().0.into()
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_fence() {
    machine().fence();
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_invalidate(what: &quell_invalidation) {
    machine().invalidate(invalidation_of(what));
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_broadcast_start(what: &quell_invalidation) {
    machine().start(invalidation_of(what));
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_broadcast_complete() {
    machine().complete();
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_load_root(root: u64, tag: u16, keep: bool) {
    // SAFETY: in this machine in software a root is a number, and any number is valid.
    unsafe { machine().load_root(Frame(root), Tag(tag), keep) };
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_unload_root() {
    machine().unload_root();
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_interrupt(targets: &quell_cpu_set) {
    let mut cpus = CpuSet::default();
    let targets = (0..CPUS).filter(|&cpu| targets.bits[0] >> cpu & 1 != 0);
    targets.for_each(|cpu| cpus.insert(CpuId(cpu as u16)));
    machine().interrupt(&cpus);
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_mask_interrupts() -> bool {
    machine().mask_interrupts()
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_restore_interrupts(were_on: bool) {
    machine().restore_interrupts(were_on);
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_relax() {
    machine().relax();
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_may_wait() -> bool {
    true
}

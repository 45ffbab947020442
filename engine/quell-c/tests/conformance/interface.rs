//! The engine's types and methods that the suite uses, implemented with the functions of `quell.h`.

use crate::kernel::{Kernel, Mistake};
use crate::machine::{CPUS, Toy};
use engine::{Frame, KernelEntries, PageRange, Purpose, Scope, Tagging};
use quell_c::batch::*;
use quell_c::engine::*;
use quell_c::machine::quell_hooks;
use quell_c::place::*;
use quell_c::status::quell_status;
use quell_c::values::quell_range;
use quell_c::{cpu, lazy, space};
use std::cell::UnsafeCell;
use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;

#[track_caller]
pub fn done(status: quell_status) {
    assert_eq!(status, quell_status::Ok);
}

/// Memory as C would provide it: zeroed, never moved, shared.
pub struct CMemory<T>(Box<UnsafeCell<MaybeUninit<T>>>);

// SAFETY: only the C functions use the memory, and they may be called on any CPU.
unsafe impl<T> Sync for CMemory<T> {}
// SAFETY: only the C functions use the memory, and they may be called on any CPU.
unsafe impl<T> Send for CMemory<T> {}

impl<T> CMemory<T> {
    pub fn new() -> Self {
        CMemory(Box::new(UnsafeCell::new(MaybeUninit::zeroed())))
    }
    pub fn at(&self) -> *mut T {
        self.0.get().cast()
    }
}

fn array<T>(count: usize) -> *mut T {
    let memory: Vec<MaybeUninit<T>> = (0..count).map(|_| MaybeUninit::zeroed()).collect();
    memory.leak().as_mut_ptr().cast()
}

/// Allocates the state of the CPUs: in one array, or in a place for each CPU.
fn state_of_cpus(apart: bool) -> (*mut quell_cpu, *const *mut quell_cpu) {
    if apart {
        let places: Vec<*mut quell_cpu> = (0..CPUS).map(|_| array(1)).collect();
        (std::ptr::null_mut(), places.leak().as_ptr())
    } else {
        (array(CPUS), std::ptr::null())
    }
}

pub struct Engine<'m, H> {
    place: CMemory<quell_engine>,
    hw: &'m H,
}

impl Engine<'static, Toy> {
    pub fn new(kernel: &'static Kernel, policy: &str) -> Self {
        Self::with(kernel, policy, &kernel.hooks())
    }
    pub fn with(kernel: &'static Kernel, policy: &str, hooks: &quell_hooks) -> Self {
        let place = CMemory::new();
        let policy = CString::new(policy).expect("a text");
        let (tagging, tags) = match kernel.machine.tagging {
            Tagging::None => (quell_tagging::None, 0),
            Tagging::PerCpu { count } => (quell_tagging::PerCpu, count.into()),
            Tagging::Global { bits } => (quell_tagging::Global, bits.into()),
        };
        let features = engine::Hardware::features(&kernel.machine);
        // The suite tests both layouts, each on some machines.
        let (cpus, cpu_places) =
            state_of_cpus(!matches!(kernel.machine.tagging, Tagging::Global { .. }));
        let setup = quell_setup {
            interface: QUELL_INTERFACE,
            features: quell_features {
                tagging: tagging as u32,
                tags,
                full_above: features.full_above,
                broadcast: features.broadcast.into(),
                shares_lines_from: CPUS as u32 - 1,
            },
            policy: policy.as_ptr(),
            cpus,
            cpu_places,
            cpu_count: CPUS,
            slots: std::ptr::null_mut(),
            slots_per_cpu: 0,
            ledger: array(8),
            ledger_entries: 8,
            hooks,
            message: std::ptr::null_mut(),
            message_size: 0,
        };
        // SAFETY: zeroed memory and arrays that live for ever; the policy outlives the call.
        done(unsafe { quell_engine_new(place.at(), &raw const setup) });
        let states = std::array::from_fn(|cpu| match cpus.is_null() {
            // SAFETY: there is a place for each CPU.
            true => unsafe { *cpu_places.add(cpu) },
            false => cpus.wrapping_add(cpu),
        });
        kernel.handle_with(place.at(), states);
        Engine { place, hw: &kernel.machine }
    }
}

impl<'m, H> Engine<'m, H> {
    pub fn at(&self) -> *mut quell_engine {
        self.place.at()
    }
    pub fn hw(&self) -> &'m H {
        self.hw
    }
    /// Returns the engine itself: C's functions determine their CPU and mask interrupts themselves.
    pub fn this_cpu(&self) -> &Self {
        self
    }
    pub fn mask_interrupts(&self) -> &Self {
        self
    }
    pub unsafe fn new_space(&self, root: Frame) -> AddressSpace<H> {
        let place = CMemory::new();
        // SAFETY: memory for a space; the caller vouches for the root.
        done(unsafe { space::quell_space_new(self.at(), place.at(), root.0) });
        AddressSpace(place, root, PhantomData)
    }
    pub unsafe fn new_kernel_space(&self, root: Frame, entries: KernelEntries) -> AddressSpace<H> {
        let place = CMemory::new();
        let entries = match entries {
            KernelEntries::Tagged if Kernel::wrong() != Mistake::TaggedAsGlobal => 1,
            KernelEntries::Tagged | KernelEntries::Global => 0,
        };
        // SAFETY: memory for a space; the caller vouches for the root.
        done(unsafe { space::quell_kernel_space_new(self.at(), place.at(), root.0, entries) });
        AddressSpace(place, root, PhantomData)
    }
    pub fn enter_lazy(&self) {
        // SAFETY: an engine, which is never moved.
        done(unsafe { cpu::quell_enter_lazy(self.at(), Kernel::here()) });
    }
    pub fn leave(&self, space: &AddressSpace<H>) {
        // SAFETY: an engine and its space, which are never moved.
        done(unsafe { cpu::quell_leave(self.at(), space.0.at()) });
    }
    /// Notes that this CPU enters user mode.
    ///
    /// # Safety
    /// As the engine's.
    pub unsafe fn enter_user(&self) {
        // SAFETY: an engine, which is never moved; the caller vouches for the mappings that this CPU uses.
        done(unsafe { cpu::quell_enter_user(self.at()) });
    }
    pub fn enter_kernel(&self) {
        if Kernel::wrong() != Mistake::EntersUnsaid {
            // SAFETY: an engine, which is never moved.
            done(unsafe { cpu::quell_enter_kernel(self.at()) });
        }
    }
    pub fn flush_until(&self, stamp: quell_stamp) {
        if Kernel::wrong() != Mistake::StampNotFlushed {
            // SAFETY: an engine, which is never moved, and a stamp that a batch wrote.
            done(unsafe { lazy::quell_flush_until(self.at(), &raw const stamp) });
        }
    }
    pub fn retire(&self, space: &AddressSpace<H>) {
        // SAFETY: an engine, which is never moved, and a space that the suite no longer uses.
        let status = unsafe { space::quell_space_retire(self.at(), space.0.at()) };
        // An unfinished batch is detected here at the latest.
        if Kernel::wrong() != Mistake::NotFinished || status != quell_status::InBatch {
            done(status);
        }
    }
    pub fn cpu_online(&self) {
        // SAFETY: an engine, which is never moved.
        done(unsafe { cpu::quell_cpu_online(self.at()) });
    }
    pub fn cpu_offline(&self, current: Option<&AddressSpace<H>>) {
        // SAFETY: an engine, which is never moved, and spaces of it.
        done(unsafe { cpu::quell_cpu_offline(self.at(), AddressSpace::at(current)) });
    }
    pub fn switch(&self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) {
        let here = Kernel::here();
        // SAFETY: an engine, which is never moved, and spaces of it; interrupts are masked.
        done(Kernel::masked(|| unsafe {
            cpu::quell_switch_to(self.at(), here, AddressSpace::at(from), to.0.at())
        }));
    }
    pub fn flush_pending(&self, space: &AddressSpace<H>) {
        if Kernel::wrong() != Mistake::NotFlushed {
            // SAFETY: an engine, which is never moved, and a space of it.
            done(unsafe { lazy::quell_flush_pending(self.at(), space.0.at()) });
        }
    }
    pub fn flush_before_reuse(&self, deferred_flush: &DeferredFlush<H>) -> Option<()> {
        if Kernel::wrong() == Mistake::NotReused {
            return None;
        }
        // SAFETY: an engine, which is never moved, and a deferred flush.
        unsafe { lazy::quell_flush_before_reuse(self.at(), deferred_flush.0.at()) }.then_some(())
    }
    pub fn batch<S, F>(&self, purpose: Purpose) -> Batch<S, F> {
        let place = CMemory::new();
        let purpose = match purpose {
            Purpose::Call => 0,
            Purpose::Reclaim => 1,
            Purpose::Migration => 2,
            Purpose::Lazy => 3,
        };
        let frames: CMemory<[*mut std::ffi::c_void; 3]> = CMemory::new();
        let at = frames.at().cast();
        // SAFETY: an engine, and memory for a batch and its frames, which stay together.
        done(unsafe { quell_batch_begin(self.at(), place.at(), purpose, at, 3) });
        Batch(place, frames, PhantomData)
    }
}

pub struct AddressSpace<H>(CMemory<quell_space>, Frame, PhantomData<fn(H)>);

impl<H> AddressSpace<H> {
    pub fn root(&self) -> Frame {
        // The suite must get back the root that it provided, so that it frees the right frame.
        // SAFETY: a space, or the zeroed memory of a retired space.
        let root = unsafe { space::quell_space_root(self.0.at()) };
        assert!(root == self.1.0 || root == 0);
        self.1
    }
    pub fn at(space: Option<&Self>) -> *mut quell_space {
        space.map_or(std::ptr::null_mut(), |space| space.0.at())
    }
}

pub struct DeferredFlush<H>(CMemory<quell_deferred_flush>, PhantomData<fn(H)>);

impl<H> DeferredFlush<H> {
    pub fn new() -> Self {
        DeferredFlush(CMemory::new(), PhantomData)
    }
    pub fn begin(&self) {
        // SAFETY: zeroed memory is a deferred flush.
        done(unsafe { lazy::quell_deferred_flush_begin(self.0.at()) });
    }
    pub fn defer(&self, stamp: quell_stamp) {
        // SAFETY: a deferred flush, and a stamp that a batch wrote.
        done(unsafe { lazy::quell_deferred_flush_defer(self.0.at(), &raw const stamp) });
    }
    pub fn clear(&self) {
        // SAFETY: a deferred flush.
        done(unsafe { lazy::quell_deferred_flush_flushed(self.0.at()) });
    }
}

pub struct DeferredFrames(quell_stamp);

impl DeferredFrames {
    pub fn stamp(&self) -> quell_stamp {
        self.0
    }
}

pub enum Outcome {
    Flushed(()),
    Deferred(DeferredFrames),
}

pub struct Batch<S, F>(
    CMemory<quell_batch>,
    CMemory<[*mut std::ffi::c_void; 3]>,
    PhantomData<fn(S, F)>,
);

impl<H, S: Deref<Target = AddressSpace<H>>> Batch<S, Frame> {
    fn range(range: PageRange) -> quell_range {
        let far = u64::from(Kernel::wrong() == Mistake::PageTooFar) << 9;
        quell_range { start: range.start.0 + far, ..range.into() }
    }
    /// Returns a name for a frame.
    fn name(frame: Frame) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(frame.0 as usize)
    }
    pub fn changed(&mut self, space: S, range: PageRange, scope: Scope) {
        let quell_range { start, pages, stride } = Self::range(range);
        let scope = u32::from(scope == Scope::Tables);
        // SAFETY: a batch, used by this thread alone, and a space that outlives it.
        done(unsafe { quell_batch_report(self.0.at(), space.0.at(), start, pages, stride, scope) });
    }
    pub fn changed_all(&mut self, space: S, scope: Scope) {
        let scope = u32::from(scope == Scope::Tables);
        // SAFETY: a batch, used by this thread alone, and a space that outlives it.
        done(unsafe { quell_batch_changed_all(self.0.at(), space.0.at(), scope) });
    }
    pub fn unmapped(&mut self, space: S, range: PageRange, frame: Frame) {
        let quell_range { start, pages, stride } = Self::range(range);
        let (at, frame) = (space.0.at(), Self::name(frame));
        // The header's `quell_batch_unmapped` makes this call for a range that doesn't follow the last one.
        // SAFETY: a batch, used by this thread alone, and a space that outlives it.
        done(unsafe { quell_batch_report_unmapped(self.0.at(), at, start, pages, stride, frame) });
    }
    pub fn table_unlinked(&mut self, space: S, range: PageRange, frame: Frame) {
        if Kernel::wrong() == Mistake::TablesAsLeaves {
            return self.unmapped(space, range, frame);
        }
        let (range, frame) = (Self::range(range), Self::name(frame));
        // SAFETY: a batch, used by this thread alone, and a space that outlives it.
        done(unsafe { quell_batch_table_unlinked(self.0.at(), space.0.at(), range, frame) });
    }
    fn frames(&self, count: usize) -> Vec<Frame> {
        // SAFETY: zeroed memory, to which a batch that is finished now has written names.
        let names = unsafe { *self.1.at() };
        let names = names[..count].iter();
        names.map(|name| Frame(name.addr() as u64)).collect()
    }
    pub fn finish(&mut self) -> std::vec::IntoIter<Frame> {
        let mut count = 0;
        if Kernel::wrong() == Mistake::NotFinished {
            // The library detects another batch that is begun in the same memory.
            std::mem::forget(std::mem::replace(&mut self.0, CMemory::new()));
        } else {
            // SAFETY: a batch, used by this thread alone, whose spaces live.
            done(unsafe { quell_batch_finish(self.0.at(), &raw mut count) });
        }
        self.frames(count).into_iter()
    }
    pub fn finish_deferred(&mut self) -> Outcome {
        let (mut stamp, mut count) = (MaybeUninit::<quell_stamp>::zeroed(), 0);
        // SAFETY: a batch, used by this thread alone, whose spaces live. The stamp was written, and zero is a valid
        // value.
        let stamp = unsafe {
            done(quell_batch_finish_deferred(self.0.at(), &raw mut count, stamp.as_mut_ptr()));
            stamp.assume_init()
        };
        // The suite reports the entries whose flush it defers without frames.
        assert_eq!(count, 0);
        // SAFETY: eight bytes that were initialised.
        match unsafe { std::mem::transmute::<quell_stamp, u64>(stamp) } {
            0 => Outcome::Flushed(()),
            _ => Outcome::Deferred(DeferredFrames(stamp)),
        }
    }
}

//! The engine from an embedder's view: the number of flushes for each list of frames, the invalidations for each set of
//! ranges, and the calls that are refused.
//!
//! One thread runs each of the two CPUs in turn: the target handles its interrupt while the initiator waits.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::serve;
use quell::{
    AddressSpace, Batch, CpuId, CpuSet, Engine, Features, Frame, FrameList, Hardware, InPlace,
    Invalidate, LedgerEntry, NoBroadcasts, Page, PageRange, PerCpu, Policy, Purpose, Scope, Tag,
    Tagging,
};

#[derive(Default)]
struct Machine {
    me: Cell<u16>,
    pending: Cell<bool>,
    interrupts: Cell<usize>,
    /// The invalidations of CPU 1.
    invalidated: RefCell<Vec<Invalidate>>,
    engine: OnceCell<&'static Engine<'static, Machine>>,
}

// SAFETY: the test has one thread, and each test a machine of its own.
unsafe impl Sync for Machine {}

// SAFETY: there's one thread, which keeps no translations.
unsafe impl Hardware for Machine {
    type Word = AtomicU64;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get())
    }
    fn features(&self) -> Features {
        Features {
            tagging: Tagging::None,
            broadcast: false,
            full_above: 33,
        }
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidate) {
        if self.me.get() == 1 {
            self.invalidated.borrow_mut().push(what);
        }
    }
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {}
    fn unload_root(&self) {}
    fn interrupt(&self, targets: &CpuSet) {
        assert!(targets.contains(CpuId(1)) && targets.len() == 1);
        self.interrupts.set(self.interrupts.get() + 1);
        self.pending.set(true);
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {
        assert!(self.pending.take(), "the initiator waits in vain");
        let me = self.me.replace(1);
        serve(self.engine.get());
        self.me.set(me);
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Makes a machine whose CPUs both run one space.
fn both_run() -> (
    &'static Machine,
    &'static Engine<'static, Machine>,
    &'static AddressSpace<Machine>,
) {
    let machine = leak(Machine::default());
    let cpus = leak([PerCpu::new(), PerCpu::new()]);
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let engine =
        leak(Engine::new(machine, cpus, ledger, Policy::ALL).expect("a machine that holds"));
    assert!(machine.engine.set(engine).is_ok());
    // SAFETY: this machine walks no tables, so a root is only a number.
    let space = leak(unsafe { engine.new_space(Frame(1)) });
    for cpu in [1, 0] {
        machine.me.set(cpu);
        engine.cpu_online();
        engine.this_cpu().mask_interrupts().switch(None, space);
    }
    machine.invalidated.borrow_mut().clear();
    (machine, engine, space)
}

/// The index of the next frame in a chain; [`END`] for none.
const END: usize = usize::MAX;

/// Frames that are linked to one another through the array of their descriptors.
struct Chain<'d> {
    next: &'d [Cell<usize>],
    first: usize,
}

impl FrameList for Chain<'_> {
    type Frame = Frame;

    fn is_full(&self) -> bool {
        false
    }
    fn is_empty(&self) -> bool {
        self.first == END
    }
    fn push(&mut self, frame: Frame) {
        self.next[frame.0 as usize].set(self.first);
        self.first = frame.0 as usize;
    }
    fn take(&mut self) -> Option<Frame> {
        let first = Some(self.first).filter(|&first| first != END)?;
        self.first = self.next[first].get();
        Some(Frame(first as u64))
    }
}

const PAGES: u64 = 512;

/// Unmaps 512 pages in ascending order, and returns the number of interrupts.
///
/// It finishes the batch whenever the list is full.
fn unmap<L: FrameList<Frame = Frame>>(list: L) -> usize {
    let (machine, engine, space) = both_run();
    let mut freed = Vec::new();
    let mut batch: Batch<'_, &AddressSpace<Machine>, L> = engine.batch_into(Purpose::Call, list);
    for page in 0..PAGES {
        if batch.is_full() {
            freed.extend(batch.finish());
        }
        batch.unmapped(space, PageRange::base(Page(page), 1), Frame(page));
    }
    let before = machine.interrupts.get();
    freed.extend(batch.finish());
    assert_eq!(
        machine.interrupts.get(),
        before + 1,
        "the last frames came out behind a flush"
    );
    assert!(batch.is_empty());
    freed.sort_unstable_by_key(|frame: &Frame| frame.0);
    assert!(
        freed.into_iter().eq((0..PAGES).map(Frame)),
        "every frame came back once"
    );
    machine.interrupts.get()
}

#[test]
fn a_longer_list_flushes_less_often() {
    assert_eq!(unmap(InPlace::<Frame>::new()), 8);
    assert_eq!(unmap(InPlace::<Frame, 100>::new()), 6);
    assert_eq!(unmap(InPlace::<Frame, 512>::new()), 1);
    let next: Vec<_> = (0..PAGES).map(|_| Cell::new(END)).collect();
    let chain = Chain {
        next: &next,
        first: END,
    };
    assert_eq!(unmap(chain), 1);
}

#[test]
fn a_dropped_batch_flushes_before_its_list_is_dropped() {
    struct Dropped<'m>(&'m Machine, InPlace<Frame>);
    impl FrameList for Dropped<'_> {
        type Frame = Frame;

        fn is_full(&self) -> bool {
            self.1.is_full()
        }
        fn is_empty(&self) -> bool {
            self.1.is_empty()
        }
        fn push(&mut self, frame: Frame) {
            self.1.push(frame);
        }
        fn take(&mut self) -> Option<Frame> {
            self.1.take()
        }
    }
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            assert_eq!(self.0.invalidated.borrow().len(), 1);
        }
    }
    let (machine, engine, space) = both_run();
    let mut batch: Batch<'_, &AddressSpace<Machine>, _> =
        engine.batch_into(Purpose::Call, Dropped(machine, InPlace::new()));
    batch.unmapped(space, PageRange::base(Page(3), 1), Frame(3));
}

/// Returns the invalidations of CPU 1 when every other one of `2 * pages` pages loses rights.
fn protect(pages: u64) -> Vec<Invalidate> {
    let (machine, engine, space) = both_run();
    let mut batch: Batch<'_, &AddressSpace<Machine>> = engine.batch(Purpose::Call);
    for page in 0..pages {
        batch.changed(space, PageRange::base(Page(2 * page), 1), Scope::Leaf);
    }
    assert_eq!(batch.finish().count(), 0);
    assert_eq!(machine.interrupts.get(), 1);
    machine.invalidated.take()
}

#[test]
fn scattered_pages_are_invalidated_one_by_one_up_to_a_bound() {
    for pages in [1, 3, 4, 8, 11] {
        let invalidated = protect(pages);
        let expected = (0..pages).map(|page| Invalidate::Range {
            tag: Tag::KERNEL,
            range: PageRange::base(Page(2 * page), 1),
            scope: Scope::Leaf,
        });
        assert!(
            invalidated.iter().copied().eq(expected),
            "{pages}: {invalidated:?}"
        );
    }
    assert_eq!(protect(12), [Invalidate::Tag(Tag::KERNEL)]);
}

#[test]
#[should_panic(expected = "before it has called cpu_online")]
fn a_cpu_that_no_initiator_asks_loads_nothing() {
    let (machine, engine, space) = both_run();
    machine.me.set(1);
    engine.cpu_offline(Some(space));
    engine.this_cpu().mask_interrupts().switch(None, space);
}

/// Otherwise it would treat its loaded space as none, and ignore that space's flushes.
#[test]
#[should_panic(expected = "CPU 1 comes online, and is online already")]
fn a_cpu_that_runs_a_space_does_not_come_online() {
    let (machine, engine, _) = both_run();
    machine.me.set(1);
    engine.cpu_online();
}

/// If a kernel doesn't define `synchronize_text`, it panics before text changes under a CPU.
#[test]
#[should_panic(expected = "does not define synchronize_text")]
fn text_is_not_changed_on_machines_that_do_not_say_how() {
    Machine::default().synchronize_text();
}

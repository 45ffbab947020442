//! Every CPU reports a change of one space at the same moment, when the space already counts its maximum of batches.
//!
//! A report first counts its batch and then checks whether that is one too many. In between the count exceeds the
//! limit. Here we stop each CPU at that place, one inside the other, as many as the engine supports. The count must not
//! overflow into the generation. If it did, nothing would seem outstanding to later observers and to CPUs that load the
//! space, and its flush generation would be one that no flush has taken. With the feature `cpus-8192` there are 8192 of
//! them.

use std::cell::Cell;

use quell::MAX_CPUS;
use quell::{
    AddressSpace, Batch, CpuId, CpuSet, Engine, Features, Frame, FrameArray, Hardware,
    Invalidation, NoBroadcasts, Page, PageRange, PerCpuData, Policy, Purpose, Scope, Tag, Tagging,
    Word,
};

use crate::support::word::{AccessHooks, HookedWord};

type E = &'static Engine<'static, Machine>;
type S = &'static AddressSpace<Machine>;

thread_local! {
    /// The CPU that executes.
    static ME: Cell<u16> = const { Cell::new(0) };
    /// The engine and the space in which the next CPU reports after an addition, if any.
    static AT_ADDITION: Cell<Option<(E, S)>> = const { Cell::new(None) };
    /// The number of counted CPUs at which nothing seemed outstanding, if that happened.
    static FOUND_NOTHING: Cell<Option<u16>> = const { Cell::new(None) };
}

/// Runs the next CPU after each addition.
struct CrowdHook;

impl AccessHooks for CrowdHook {
    fn after_addition() {
        if let Some((engine, space)) = AT_ADDITION.get() {
            next_cpu(engine, space);
        }
    }
}

/// Runs the next CPU while this one has counted its batch and not checked the limit yet.
fn next_cpu(engine: E, space: S) {
    let me = ME.get();
    if !space.is_in_batch() {
        AT_ADDITION.set(None);
        FOUND_NOTHING.set(Some(me + 1));
    } else if usize::from(me) + 1 == MAX_CPUS {
        AT_ADDITION.set(None);
    } else {
        ME.set(me + 1);
        std::mem::forget(report(engine, space));
        ME.set(me);
    }
}

/// Makes a batch with a change of the space.
fn report(engine: E, space: S) -> Batch<'static, S, quell::FrameArray<Frame, 1>, 1> {
    let mut batch = engine.batch_of_spaces(Purpose::Call, FrameArray::new());
    batch.changed(space, PageRange::base(Page(5), 1), Scope::Leaf);
    batch
}

struct Machine;

// SAFETY: no frame has memory, so a stale translation of this machine is harmless.
unsafe impl Hardware for Machine {
    type Word = HookedWord<CrowdHook>;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(ME.get())
    }
    fn features(&self) -> Features {
        Features { tagging: Tagging::None, broadcast: false, full_above: 33 }
    }
    fn fence(&self) {}
    fn invalidate(&self, _what: Invalidation) {}
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {}
    fn unload_root(&self) {}
    fn interrupt(&self, _targets: &CpuSet) {
        unreachable!("no CPU has the space loaded");
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {}
}

/// If the count overflowed into the generation, nothing would seem outstanding while every CPU has a change to flush.
#[test]
fn all_cpus_at_once_do_not_exhaust_the_count_of_batches() {
    let crowd = || {
        let cpus: &[_] = Vec::leak((0..MAX_CPUS).map(|_| PerCpuData::new()).collect());
        let engine: E = Box::leak(Box::new(
            Engine::new(&Machine, cpus, &[], Policy::ALL).expect("a machine that holds"),
        ));
        // SAFETY: this machine walks no tables, so a root is only a number.
        let space: S = Box::leak(Box::new(unsafe { engine.new_space(Frame(1)) }));
        // More batches than the space counts: it refuses the rest, as it'll refuse those of the crowd.
        let most = 1 << <HookedWord<CrowdHook> as Word>::BATCH_BITS;
        let open: Vec<_> = (0..most).map(|_| report(engine, space)).collect();
        AT_ADDITION.set(Some((engine, space)));
        std::mem::forget(report(engine, space));
        assert!(AT_ADDITION.get().is_none(), "not all CPUs came");
        drop(open);
        (FOUND_NOTHING.get(), space.is_in_batch())
    };
    // The stack needs one call of `report` for each CPU.
    let thread = std::thread::Builder::new().stack_size(1 << 30).spawn(crowd);
    let (found_nothing, counted) = thread.expect("a thread").join().expect("an end");
    assert_eq!(found_nothing, None, "so many CPUs exhaust the count");
    assert!(!counted, "a batch that is over is still counted");
}

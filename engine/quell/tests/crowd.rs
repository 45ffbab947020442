//! Every CPU reports a change of one space at the same moment, and as many batches as are counted are open already.
//!
//! A report counts its batch and looks then whether that is one too many; in between the count is higher than the
//! bound. Here each CPU is stopped at that place, one inside the other, as many as the engine handles. The count must
//! not run over: the space would look as if nothing were outstanding, to later observers and to CPUs that load it, and
//! its flush generation would be one that no flush has taken. With the feature `cpus-8192` there are the most of them.

use std::cell::Cell;

use quell::MAX_CPUS;
use quell::{
    AddressSpace, Batch, CpuId, CpuSet, Engine, Features, Frame, Hardware, InPlace, Invalidate,
    NoBroadcasts, Page, PageRange, PerCpu, Policy, Purpose, Scope, Tag, Tagging, Word,
};

use crate::support::word::{Around, Surrounded};

type E = &'static Engine<'static, Machine>;
type S = &'static AddressSpace<Machine>;

thread_local! {
    /// The CPU that executes.
    static ME: Cell<u16> = const { Cell::new(0) };
    /// What other CPUs do after each addition, if they do anything.
    static AT_ADDITION: Cell<Option<(E, S)>> = const { Cell::new(None) };
    /// With how many CPUs that had counted themselves nothing seemed outstanding.
    static FOUND_NOTHING: Cell<Option<u16>> = const { Cell::new(None) };
}

/// After additions other CPUs come.
struct Crowd;

impl Around for Crowd {
    fn after_addition() {
        if let Some((engine, space)) = AT_ADDITION.get() {
            next_cpu(engine, space);
        }
    }
}

/// A CPU stands where its batch is counted and the bound was not looked at: the next one comes there, too.
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

/// A batch that has a deferred flush of the space.
fn report(engine: E, space: S) -> Batch<'static, S, quell::InPlace<Frame, 1>, 1> {
    let mut batch = engine.batch_of_spaces(Purpose::Call, InPlace::new());
    batch.changed(space, PageRange::base(Page(5), 1), Scope::Leaf);
    batch
}

struct Machine;

// SAFETY: no memory is behind any frame: what a flush of this machine leaves behind harms nothing.
unsafe impl Hardware for Machine {
    type Word = Surrounded<Crowd>;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(ME.get())
    }
    fn features(&self) -> Features {
        Features {
            tagging: Tagging::None,
            broadcast: false,
            full_above: 33,
        }
    }
    fn fence(&self) {}
    fn invalidate(&self, _what: Invalidate) {}
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

/// Where the count runs into the generation, nothing seems outstanding while every CPU has a change to flush.
#[test]
fn all_cpus_at_once_do_not_exhaust_the_count_of_batches() {
    let crowd = || {
        let cpus: &[_] = Vec::leak((0..MAX_CPUS).map(|_| PerCpu::new()).collect());
        let engine: E = Box::leak(Box::new(
            Engine::new(&Machine, cpus, &[], Policy::ALL).expect("a machine that holds"),
        ));
        // SAFETY: this machine walks no tables, so a root is nothing but a name.
        let space: S = Box::leak(Box::new(unsafe { engine.new_space(Frame(1)) }));
        // More than are counted: the rest are refused, as the crowd's will be.
        let most = 1 << <Surrounded<Crowd> as Word>::BATCH_BITS;
        let open: Vec<_> = (0..most).map(|_| report(engine, space)).collect();
        AT_ADDITION.set(Some((engine, space)));
        std::mem::forget(report(engine, space));
        assert!(AT_ADDITION.get().is_none(), "not all CPUs came");
        drop(open);
        (FOUND_NOTHING.get(), space.is_in_batch())
    };
    // One frame of the stack for each CPU.
    let thread = std::thread::Builder::new().stack_size(1 << 30).spawn(crowd);
    let (found_nothing, counted) = thread.expect("a thread").join().expect("an end");
    assert_eq!(found_nothing, None, "so many CPUs exhaust the count");
    assert!(!counted, "a batch that is over is still counted");
}

//! The measured machine, and operations that several measurements share.

use crate::Threads;
use quell::{
    AddressSpace, Batch, Engine, Features, Frame, Hardware, Outcome, Page, PageRange, Purpose,
    Stamp, Tagging,
};
use std::hint::black_box;

pub type Machine = Threads<false>;
pub type SpaceBatch<'a, H = Machine> = Batch<'a, &'a AddressSpace<H>>;

pub const TAGGED: Features =
    Features { tagging: Tagging::PerCpu { count: 8 }, broadcast: false, full_above: 33 };

/// The number of operations in each timed loop.
pub const LOOP: usize = 512;

/// The reason why an engine can be created here.
pub const HOLDS: &str = "the engine runs on such machines";

pub fn page(index: usize) -> PageRange {
    PageRange::base(Page(index as u64), 1)
}

/// Unmaps `pages` of `space` in one batch.
#[inline]
pub fn unmap<'a, H: Hardware>(
    engine: &'a Engine<'a, H>,
    space: &'a AddressSpace<H>,
    pages: impl Iterator<Item = usize>,
) {
    let mut batch: SpaceBatch<'a, H> = engine.batch(Purpose::Call);
    for index in pages {
        batch.unmapped(space, page(index), Frame(index as u64));
    }
    for frame in batch.finish() {
        black_box(frame);
    }
}

/// Defers the flush of a page of `space`, and then makes the deferred flush. Returns its stamp.
pub fn flushed_deferral<H: Hardware>(engine: &Engine<'_, H>, space: &AddressSpace<H>) -> Stamp {
    let stamp = {
        let mut batch: Batch<'_, &AddressSpace<H>> = engine.batch(Purpose::Lazy);
        batch.unmapped(space, page(0), Frame(0));
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => deferred.stamp(),
            Outcome::Flushed(_) => unreachable!("an empty ledger has room"),
        }
    };
    engine.flush_deferred();
    stamp
}

/// Switches [`LOOP`] times between two spaces.
pub fn ping_pong<H: Hardware>(engine: &Engine<'_, H>, spaces: &[AddressSpace<H>; 2]) {
    for _ in 0..LOOP / 2 {
        engine.this_cpu().mask_interrupts().switch(Some(&spaces[1]), &spaces[0]);
        engine.this_cpu().mask_interrupts().switch(Some(&spaces[0]), &spaces[1]);
    }
}

/// Creates a space without any table.
pub fn new_space<'m, const STRESS: bool>(
    engine: &Engine<'m, Threads<STRESS>>,
    root: u64,
) -> AddressSpace<Threads<STRESS>> {
    // SAFETY: in this machine in software a root is just a number, and every number is valid.
    unsafe { engine.new_space(Frame(root)) }
}

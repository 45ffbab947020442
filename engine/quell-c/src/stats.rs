//! Reads the engine's counters, by number and by name.

use crate::place::{engine, quell_engine};
use crate::status::{answer, quell_status};
use crate::text::terminated;
use crate::values::enum_quell_counter;
use core::ffi::c_char;
use quell::{Counter, CpuId, Stats};

/// The number of counters.
pub const QUELL_COUNTERS: usize = 40;

/// The engine's counters.
///
/// Each CPU counts for itself, so a sum over CPUs isn't a snapshot of one moment.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_counter {
    /// Flushes requested because entries changed.
    Requested,
    /// Shootdowns that interrupted at least one CPU.
    Shootdowns,
    /// Interrupts sent.
    Sent,
    /// Requests posted to a CPU for which an interrupt was already under way.
    Merged,
    /// Targets skipped because they are lazy, or will flush when they enter the kernel.
    SkippedLazy,
    /// Targets skipped because they have left the space.
    SkippedLeft,
    /// Targets skipped because they are offline.
    SkippedOffline,
    /// Flushes that had no target besides the initiator.
    SkippedNoTarget,
    /// Requests taken for a space that the CPU no longer runs.
    IgnoredOtherSpace,
    /// Requests taken although an earlier flush had already covered them.
    IgnoredGeneration,
    /// Lazy CPUs that left their space because of a request.
    Evicted,
    /// Requests whose ranges were invalidated stride by stride.
    FlushedRanges,
    /// Flushes of a whole tag.
    FlushedFull,
    /// Requests that became a flush of a whole tag because their ranges had too many strides.
    EscalatedLength,
    /// Requests that became a flush of a whole tag because two initiators met at a target.
    EscalatedContention,
    /// Requests that became a flush of a whole tag because the target had missed an earlier request.
    EscalatedGap,
    /// Changes that didn't fit into a batch: too many spaces in one batch, or too many batches of one space.
    EscalatedBatch,
    /// Waits for a target's acknowledgement.
    Waited,
    /// Waits for a receipt only. They are also counted as QUELL_COUNTER_WAITED.
    WaitedReceipt,
    /// Requests that a CPU served before their interrupt arrived, while it waited or in the handler of an earlier
    /// interrupt.
    ServedEarly,
    /// Broadcast invalidations sent.
    Broadcasts,
    /// Waits for the completion of broadcasts.
    Barriers,
    /// Context switches.
    Switches,
    /// Switches that kept the space's TLB entries.
    SwitchKept,
    /// Switches and returns from lazy mode that had to flush because the space had changed.
    SwitchBehind,
    /// Switches that took a tag over from another space.
    SwitchTagTaken,
    /// System-wide tag rollovers.
    Rollovers,
    /// Batches whose flush was deferred until reuse.
    FlushesDeferred,
    /// Batches whose flush couldn't be deferred because the ledger was full.
    DeferralsRefused,
    /// Reused frames whose deferred flush had already been made by other flushes.
    ReusedFree,
    /// Deferred flushes made before a frame was reused.
    FlushedForReuse,
    /// Deferred flushes made before an entry or a slot was filled again.
    FlushedForRefill,
    /// Flushes made for a later observer that found a cleared entry.
    FlushedPending,
    /// Deferred flushes made by a CPU that switched to the space or left lazy mode.
    FlushedBySwitch,
    /// Deferred flushes made in the background.
    FlushedInBackground,
    /// CPUs that had already flushed when a deferred flush was made.
    FoundFlushed,
    /// Flushes by which a CPU caught up with the flush clock before an initiator sent it a request.
    CaughtUp,
    /// Frames reinstated for the page that they belonged to.
    Reinstated,
    /// Targets skipped because they are virtual CPUs that aren't running.
    SkippedNotRunning,
    /// Full flushes that a task shared instead of making its own.
    Coalesced,
}

macro_rules! same {
    ($($name:ident)*) => {
        const _: () = {
            $(assert!(quell_counter::$name as usize == Counter::$name as usize);)*
            assert!([$(Counter::$name),*].len() == Counter::ALL.len());
            assert!(QUELL_COUNTERS == Counter::ALL.len());
        };
    };
}
same! {
    Requested Shootdowns Sent Merged SkippedLazy SkippedLeft SkippedOffline SkippedNoTarget
    IgnoredOtherSpace IgnoredGeneration Evicted FlushedRanges FlushedFull EscalatedLength
    EscalatedContention EscalatedGap EscalatedBatch Waited WaitedReceipt ServedEarly Broadcasts
    Barriers Switches SwitchKept SwitchBehind SwitchTagTaken Rollovers FlushesDeferred
    DeferralsRefused ReusedFree FlushedForReuse FlushedForRefill FlushedPending FlushedBySwitch
    FlushedInBackground FoundFlushed CaughtUp Reinstated SkippedNotRunning Coalesced
}

/// Returns the meanings or the labels of the counters, ended with zero bytes.
const fn texts<const N: usize>(meaning: bool) -> [[u8; N]; QUELL_COUNTERS] {
    let mut texts = [[0; N]; QUELL_COUNTERS];
    let mut index = 0;
    while index < QUELL_COUNTERS {
        let counter = Counter::ALL[index];
        texts[index] = terminated(if meaning { counter.meaning() } else { counter.label() });
        index += 1;
    }
    texts
}

static LABELS: [[u8; 24]; QUELL_COUNTERS] = texts(false);
static MEANINGS: [[u8; 96]; QUELL_COUNTERS] = texts(true);

fn text<const N: usize>(
    texts: &'static [[u8; N]; QUELL_COUNTERS],
    counter: enum_quell_counter,
) -> *const c_char {
    match texts.get(counter as usize) {
        Some(text) => text.as_ptr().cast(),
        None => core::ptr::null(),
    }
}

/// Returns the name of a counter in reports, ended with a zero byte.
///
/// Returns NULL if there is no such counter.
///
/// Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn quell_counter_label(counter: enum_quell_counter) -> *const c_char {
    text(&LABELS, counter)
}

/// Returns a sentence that explains a counter, ended with a zero byte.
///
/// Returns NULL if there is no such counter.
///
/// Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn quell_counter_meaning(counter: enum_quell_counter) -> *const c_char {
    text(&MEANINGS, counter)
}

/// Writes the counters to QUELL_COUNTERS numbers at `counts`.
///
/// # Safety
/// `counts` has room for them, or is NULL.
unsafe fn write(stats: &Stats, counts: *mut u64) -> Result<(), quell_status> {
    if counts.is_null() {
        return Err(quell_status::Null);
    }
    if crate::capacity::SMALL {
        return Err(quell_status::Unsupported);
    }
    for (counter, value) in stats.iter() {
        // SAFETY: as the caller promises.
        unsafe { counts.add(counter as usize).write(value) };
    }
    Ok(())
}

/// Writes the counters, summed over all CPUs, to `counts`.
///
/// `counts` has room for QUELL_COUNTERS numbers and is indexed by `enum quell_counter`. Counters only grow, and wrap
/// around. A small library refuses, because it counts nothing.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_stats(
    engine: *const quell_engine,
    counts: *mut u64,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    answer(|| unsafe { write(&self::engine(engine)?.stats(), counts) })
}

/// Writes the counters of one CPU, online or not, as quell_stats does.
///
/// Refuses a CPU that the engine doesn't have.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_cpu_stats(
    engine: *const quell_engine,
    cpu: u32,
    counts: *mut u64,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let made = unsafe { crate::place::made(engine) }?;
        let known = (cpu as usize) < made.cpus;
        let cpu = known.then_some(CpuId(cpu as u16)).ok_or(quell_status::Cpu)?;
        // SAFETY: C vouches for the memory behind `counts`.
        unsafe { write(&made.engine().cpu_stats(cpu), counts) }
    })
}

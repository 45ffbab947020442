//! Why and how often: the engine's counters by number and by name.

use crate::place::{engine, quell_engine};
use crate::status::{answer, quell_status};
use crate::text::terminated;
use core::ffi::c_char;
use quell::{Counter, CpuId, Stats};

/// How many counters there are.
pub const QUELL_COUNTERS: usize = 40;

/// What is counted, each on its own CPU: a sum of CPUs is not one moment in time.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_counter {
    /// Flushes that a change of an entry asked for.
    Requested,
    /// Shootdowns that interrupted at least one CPU.
    Shootdowns,
    /// Interrupts sent.
    Sent,
    /// Requests posted to a CPU for which an interrupt was already under way.
    Merged,
    /// Targets left out because they keep the space lazily, or flush as they enter the kernel.
    SkippedLazy,
    /// Targets left out because they have left the space.
    SkippedLeft,
    /// Targets left out because they are offline.
    SkippedOffline,
    /// Flushes that no other CPU had to hear of.
    SkippedNoTarget,
    /// Requests taken for a space that the CPU no longer runs.
    IgnoredOtherSpace,
    /// Requests taken that an earlier flush had already covered.
    IgnoredGeneration,
    /// Lazy CPUs that left their space because of a request.
    Evicted,
    /// Requests flushed by their ranges, stride by stride.
    FlushedRanges,
    /// Flushes of a whole tag.
    FlushedFull,
    /// Requests that became a whole tag because their ranges had too many strides.
    EscalatedLength,
    /// Requests that became a whole tag because two initiators met at a target.
    EscalatedContention,
    /// Requests that became a whole tag because the target had missed one.
    EscalatedGap,
    /// Changes that no batch counts: a space too many in one batch, or a batch too many of one space.
    EscalatedBatch,
    /// Waits for a target's acknowledgement.
    Waited,
    /// Of these, waits that were content with the receipt.
    WaitedReceipt,
    /// Own requests served before their interrupt came: in a wait, or as the handler looked again.
    ServedEarly,
    /// Broadcast invalidations sent.
    Broadcasts,
    /// Waits for the completion of broadcasts.
    Barriers,
    /// Context switches.
    Switches,
    /// Switches that kept the space's entries.
    SwitchKept,
    /// Switches that had to flush because the space changed meanwhile.
    SwitchBehind,
    /// Switches that took a tag over from another space.
    SwitchTagTaken,
    /// System-wide tag rollovers.
    Rollovers,
    /// Batches whose flush is deferred until reuse.
    FlushesDeferred,
    /// Batches that could not defer because the ledger was full.
    DeferralsRefused,
    /// Frames reused whose deferred flush had been paid by other flushes.
    ReusedFree,
    /// Payments made for a reuse.
    FlushedForReuse,
    /// Payments made because an entry or a slot was about to be filled again.
    FlushedForRefill,
    /// Payments made by a later observer that met a cleared entry.
    FlushedPending,
    /// Payments made by a switch to an with a deferred flush space.
    FlushedBySwitch,
    /// Payments made in the background.
    FlushedInBackground,
    /// CPUs that a payment found flushed already.
    FoundFlushed,
    /// Flushes by which a CPU caught up with the flush clock before an initiator asked it to.
    CaughtUp,
    /// Frames taken back by the page they belonged to.
    Reinstated,
    /// Targets left out because they are virtual CPUs that do not run.
    SkippedNotRunning,
    /// Flushes of everything that another task has made for this one.
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
    Requested
    Shootdowns
    Sent
    Merged
    SkippedLazy
    SkippedLeft
    SkippedOffline
    SkippedNoTarget
    IgnoredOtherSpace
    IgnoredGeneration
    Evicted
    FlushedRanges
    FlushedFull
    EscalatedLength
    EscalatedContention
    EscalatedGap
    EscalatedBatch
    Waited
    WaitedReceipt
    ServedEarly
    Broadcasts
    Barriers
    Switches
    SwitchKept
    SwitchBehind
    SwitchTagTaken
    Rollovers
    FlushesDeferred
    DeferralsRefused
    ReusedFree
    FlushedForReuse
    FlushedForRefill
    FlushedPending
    FlushedBySwitch
    FlushedInBackground
    FoundFlushed
    CaughtUp
    Reinstated
    SkippedNotRunning
    Coalesced
}

/// Texts of the counters, ended with zero bytes.
const fn texts<const N: usize>(meaning: bool) -> [[u8; N]; QUELL_COUNTERS] {
    let mut texts = [[0; N]; QUELL_COUNTERS];
    let mut index = 0;
    while index < QUELL_COUNTERS {
        let counter = Counter::ALL[index];
        texts[index] = terminated(if meaning {
            counter.meaning()
        } else {
            counter.label()
        });
        index += 1;
    }
    texts
}

static LABELS: [[u8; 24]; QUELL_COUNTERS] = texts(false);
static MEANINGS: [[u8; 96]; QUELL_COUNTERS] = texts(true);

fn text<const N: usize>(texts: &'static [[u8; N]; QUELL_COUNTERS], counter: u32) -> *const c_char {
    match texts.get(counter as usize) {
        Some(text) => text.as_ptr().cast(),
        None => core::ptr::null(),
    }
}

/// The name of a counter (`enum quell_counter`) in reports, ended with a zero byte; NULL if there is none.
///
/// Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn quell_counter_label(counter: u32) -> *const c_char {
    text(&LABELS, counter)
}

/// What a counter counts, in a sentence, ended with a zero byte; NULL if there is none.
///
/// Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn quell_counter_meaning(counter: u32) -> *const c_char {
    text(&MEANINGS, counter)
}

/// Writes the counters to QUELL_COUNTERS numbers at `counts`.
///
/// # Safety
/// There is room for them, or `counts` is NULL.
unsafe fn write(stats: &Stats, counts: *mut u64) -> Result<(), quell_status> {
    if counts.is_null() {
        return Err(quell_status::Null);
    }
    for (counter, value) in stats.iter() {
        // SAFETY: as the caller promises.
        unsafe { counts.add(counter as usize).write(value) };
    }
    Ok(())
}

/// Writes the counters of all CPUs together to `counts`, which has room for QUELL_COUNTERS numbers and is indexed by
/// `enum quell_counter`. They only grow, and wrap around.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_stats(
    engine: *const quell_engine,
    counts: *mut u64,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    answer(|| unsafe { write(&self::engine(engine)?.stats(), counts) })
}

/// As quell_stats, for one CPU, online or not.
///
/// Refuses a CPU that the engine has no number for.
///
/// Context: any.
///
/// # Safety
/// As the header says.
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
        let cpu = known
            .then_some(CpuId(cpu as u16))
            .ok_or(quell_status::Cpu)?;
        // SAFETY: C vouches for the memory behind `counts`.
        unsafe { write(&made.engine().cpu_stats(cpu), counts) }
    })
}

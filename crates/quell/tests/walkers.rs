//! Software that walks page tables without a lock (what Linux's `get_user_pages_fast` does), and what C6 leaves to the embedder.
//!
//! The engine's promise is about hardware: when a batch yields a table, no CPU's walker reads it any more. Code that has
//! loaded the pointer to it may. Such a walker is a reader of RCU, and the table goes to RCU after it has come out of
//! the batch, not to the allocator. RCU's grace period alone would not do, because the hardware reads under no guard; and the
//! flush alone would not, because it asks no CPU that it knows not to hold a translation: a walker that masks
//! interrupts holds off nothing.
//!
//! A walker that takes a reference to the frame that it has found looks at the entry once more afterwards: if that has changed, the
//! frame may have had a new owner in between, and the reference is given back.

mod support;

use crossbeam_epoch::{Atomic, Guard, Owned, Shared, pin};
use quell::{Page, PageRange, Policy, Purpose};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use support::{Machine, run_on_both, space, world};

/// A page-table page of one entry: a frame, or 0.
struct Table {
    entry: AtomicU64,
    freed: Arc<AtomicBool>,
}

impl Drop for Table {
    fn drop(&mut self) {
        self.freed.store(true, SeqCst);
    }
}

/// A frame that may have references beside its mappings.
#[derive(Default)]
struct Counted {
    references: AtomicU64,
}

/// The walker: takes a reference to the frame that is mapped, if it still is.
fn get_page<'g>(
    root: &Atomic<Table>,
    frame: &Counted,
    between: impl FnOnce(),
    guard: &'g Guard,
) -> (Option<u64>, Option<&'g Table>) {
    // SAFETY: tables are destroyed by `defer_destroy` alone, so not before this guard is gone.
    let table = unsafe { root.load(Acquire, guard).as_ref() };
    let Some(found) = table else {
        return (None, None);
    };
    let entry = found.entry.load(Acquire);
    between();
    frame.references.fetch_add(1, SeqCst);
    if found.entry.load(SeqCst) != entry || root.load(SeqCst, guard).is_null() {
        frame.references.fetch_sub(1, SeqCst);
        return (None, table);
    }
    (Some(entry), table)
}

#[test]
fn a_table_is_freed_after_the_flush_and_after_the_walkers() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let of = space(engine, 1);
    run_on_both(machine, engine, of);
    let freed = Arc::new(AtomicBool::new(false));
    let frame = Counted::default();
    let root = Atomic::new(Table {
        entry: AtomicU64::new(42),
        freed: Arc::clone(&freed),
    });

    // The frees of one call: unlinks the table, flushes, and gives it to RCU.
    let unlink = || {
        let guard = pin();
        let table = root.swap(Shared::null(), AcqRel, &guard);
        // SAFETY: this guard keeps it.
        unsafe { table.deref() }.entry.store(0, SeqCst);
        let mut batch = engine.batch::<_, Shared<'_, Table>>(Purpose::Call);
        batch.table_unlinked(of, PageRange::base(Page(0), 512), table);
        for table in batch.finish() {
            // SAFETY: it is unlinked, and came out of the batch once.
            unsafe { guard.defer_destroy(table) };
        }
    };

    let guard = pin();
    let (got, table) = get_page(&root, &frame, unlink, &guard);
    assert!(machine.interrupts.get() > 0, "the hardware was told");
    assert_eq!(got, None, "what was unmapped meanwhile is not taken");
    assert_eq!(frame.references.load(SeqCst), 0);
    // The walker still reads the table, which is empty, and is there.
    assert_eq!(table.map(|table| table.entry.load(SeqCst)), Some(0));
    guard.flush();
    assert!(!freed.load(SeqCst), "freed under a walker");
    drop(guard);
    for _ in 0..64 {
        pin().flush();
    }
    assert!(freed.load(SeqCst), "never freed");
}

/// The same without the grace period: the walker is left with a table that is gone.
#[test]
fn a_table_that_is_freed_after_the_flush_alone_goes_under_a_walker() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let of = space(engine, 1);
    run_on_both(machine, engine, of);
    let freed = Arc::new(AtomicBool::new(false));
    let table = Owned::new(Table {
        entry: AtomicU64::new(42),
        freed: Arc::clone(&freed),
    });
    // A walker in software has loaded the pointer to it.
    let mut batch = engine.batch::<_, Owned<Table>>(Purpose::Call);
    batch.table_unlinked(of, PageRange::base(Page(0), 512), table);
    batch.finish().for_each(drop);
    assert!(
        freed.load(SeqCst),
        "the flush waits for hardware, not for walkers in software"
    );
}

//! Software that walks page tables without a lock (what Linux's `get_user_pages_fast` does), and what C6 leaves to the
//! embedder.
//!
//! The engine's promise is about hardware: when a batch yields a table, no CPU's walker reads it any more. Code that
//! has loaded the pointer to it may. Such a walker is a reader of RCU, and the table goes to RCU after it has come out
//! of the batch, not to the allocator. RCU's grace period alone would not do, because the hardware reads under no
//! guard; and the flush alone would not, because it asks no CPU that it knows not to hold a translation: a walker that
//! masks interrupts holds off nothing.
//!
//! A walker that takes a reference to the frame that it has found looks at the entry once more afterwards: if that has
//! changed, the frame may have had a new owner in between, and the reference is given back.

use crate::support::{Machine, run_on_both, space, world};
use crossbeam_epoch::{Atomic, Guard, Shared, pin};
use quell::{Page, PageRange, Policy, Purpose};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

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

/// A walker looks while another thread unlinks the table; `free` says what becomes of it once it has come out of the
/// batch. Whether the table was free while the walker was in it.
fn walks_into_freed(free: impl Fn(Shared<'_, Table>, &Guard)) -> bool {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let of = space(engine, 1);
    run_on_both(machine, engine, of);
    let freed = Arc::new(AtomicBool::new(false));
    let frame = Counted::default();
    let root = Atomic::new(Table {
        entry: AtomicU64::new(42),
        freed: Arc::clone(&freed),
    });
    let unlink = || {
        let guard = pin();
        let table = root.swap(Shared::null(), AcqRel, &guard);
        // SAFETY: this guard keeps it.
        unsafe { table.deref() }.entry.store(0, SeqCst);
        let mut batch = engine.batch::<_, Shared<'_, Table>>(Purpose::Call);
        batch.table_unlinked(of, PageRange::base(Page(0), 512), table);
        batch.finish().for_each(|table| free(table, &guard));
    };

    let guard = pin();
    let (got, table) = get_page(&root, &frame, unlink, &guard);
    assert!(machine.interrupts.get() > 0, "the hardware was told");
    assert_eq!(got, None, "what was unmapped meanwhile is not taken");
    assert_eq!(frame.references.load(SeqCst), 0);
    // The walker still reads the table, which is empty.
    assert_eq!(table.map(|table| table.entry.load(SeqCst)), Some(0));
    guard.flush();
    let under_walker = freed.load(SeqCst);
    drop(guard);
    for _ in 0..64 {
        pin().flush();
    }
    assert!(freed.load(SeqCst), "never freed");
    under_walker
}

#[test]
fn a_table_is_freed_after_the_flush_and_after_the_walkers() {
    // SAFETY: it is unlinked, and came out of the batch once.
    let after_walkers =
        |table: Shared<'_, Table>, guard: &Guard| unsafe { guard.defer_destroy(table) };
    assert!(!walks_into_freed(after_walkers), "freed under a walker");
}

/// The flush waits for hardware, not for walkers in software.
#[test]
fn a_table_that_is_freed_after_the_flush_alone_goes_under_a_walker() {
    // It says that it is free and stays where it is, so that the walker can be asked.
    // SAFETY: it is never destroyed.
    let at_once =
        |table: Shared<'_, Table>, _: &Guard| unsafe { table.deref() }.freed.store(true, SeqCst);
    assert!(walks_into_freed(at_once));
}

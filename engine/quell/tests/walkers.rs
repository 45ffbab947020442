//! Software that walks page tables without a lock (for example Linux's `get_user_pages_fast`), and the part of C6 that
//! we leave to the embedder.
//!
//! The engine's promise covers hardware: when a batch returns a table, no CPU's walker reads it any more. Code that has
//! loaded the pointer to it still may. Such a walker is an RCU reader, so a table that has come out of the batch must
//! be freed through RCU, not directly. RCU's grace period alone isn't enough, because the hardware reads without a
//! guard. The flush alone isn't enough either, because it interrupts only CPUs that may hold a translation. So a walker
//! in software can't hold it off by masking interrupts.
//!
//! A walker that takes a reference to the frame that it has found reads the entry again afterwards. If that has
//! changed, the frame may have had a new owner in between, and the walker drops the reference.

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

/// A frame that may have references besides its mappings.
#[derive(Default)]
struct CountedFrame {
    references: AtomicU64,
}

/// Walks the table and takes a reference to the mapped frame, if it's still mapped.
fn get_page<'g>(
    root: &Atomic<Table>,
    frame: &CountedFrame,
    between: impl FnOnce(),
    guard: &'g Guard,
) -> (Option<u64>, Option<&'g Table>) {
    // SAFETY: only `defer_destroy` destroys tables, so not before this guard is dropped.
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

/// Walks a table while another thread unlinks it. Returns whether the table was free while the walker read it.
///
/// `free` disposes of the table once it has come out of the batch.
fn walks_into_freed(free: impl Fn(Shared<'_, Table>, &Guard)) -> bool {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let of = space(engine, 1);
    run_on_both(machine, engine, of);
    let freed = Arc::new(AtomicBool::new(false));
    let frame = CountedFrame::default();
    let root = Atomic::new(Table { entry: AtomicU64::new(42), freed: Arc::clone(&freed) });
    let unlink = || {
        let guard = pin();
        let table = root.swap(Shared::null(), AcqRel, &guard);
        // SAFETY: this guard keeps the table.
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
    // SAFETY: the table is unlinked, and came out of the batch once.
    let after_walkers =
        |table: Shared<'_, Table>, guard: &Guard| unsafe { guard.defer_destroy(table) };
    assert!(!walks_into_freed(after_walkers), "freed under a walker");
}

/// The flush waits for hardware, not for walkers in software.
#[test]
fn a_table_that_is_freed_after_the_flush_alone_goes_under_a_walker() {
    // We only mark the table as free and leave it in memory, so that the walker can check the mark.
    // SAFETY: the table is never destroyed.
    let at_once =
        |table: Shared<'_, Table>, _: &Guard| unsafe { table.deref() }.freed.store(true, SeqCst);
    assert!(walks_into_freed(at_once));
}

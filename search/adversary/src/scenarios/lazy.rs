//! Lazy unmap, which leaves the flush for later. Also flushes in flight.

use super::*;

/// Fills two frames with different values, and maps the first.
fn filled_page(k: &BareKernel<'_>) {
    k.fill(frame(0), 1).fill(frame(1), 2).map(0, 0, frame(0), false);
}

/// Unmaps a page lazily, and gives its frame to a new owner.
fn reclaim_and_reuse(k: &BareKernel<'_>) {
    k.flush_before_reuse(k.take_lazily(&[0], 0));
}

pub(super) const ALL: &[Scenario] = &[
    Scenario::engine("lazy-reuse")
        .about("a frame with a deferred flush gets a new owner")
        .bugs(&["L4"])
        .finds(&["ReuseSkipsFlush"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForReuse), Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(reclaim_and_reuse)
        .cpu(read_twice),
    // CPU 0 frees a table of a space that CPU 1 keeps loaded lazily, in a batch of lazy unmap whose last change is
    // smaller.
    Scenario::engine("lazy-tables")
        .about("a table is freed by a batch of lazy unmap")
        .finds(&["TablesDeferred"])
        .must(Every, &[Machine(TableFreed)])
        .start(|k| _ = k.map(0, 0, frame(0), false).map(1, SECOND, frame(1), true).link(1, SECOND))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| k.free_table_lazily(1, SECOND, 0))
        .cpu(|k| _ = k.idle().switch(1).read(SECOND)),
    Scenario::engine("lazy-rewrite")
        .about("an entry whose flush is deferred is written again")
        .bugs(&["L1", "L2", "L3"])
        .finds(&["RefillSkipsFlush"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForRefill)])
        .start(filled_page)
        .cpu(|k| _ = k.reclaim_lazily(0, 0))
        .cpu(|k| {
            if k.refill(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
            }
        })
        .cpu(read_twice),
    // CPU 0 unmaps a clean page lazily and reuses its frame. Meanwhile CPU 1, which has the translation, maps another
    // page there and reads it.
    Scenario::engine("lazy-reuse-refill")
        .about("an entry whose flush is deferred is written again while its frame is reused")
        .finds(&["ReuseTakesFirst"])
        .must(Every, &[Engine(FlushedForReuse), Engine(FlushedForRefill)])
        .must(Every, &[Machine(Reusable)])
        .start(filled_page)
        .cpu(reclaim_and_reuse)
        .cpu(|k| {
            k.read(0);
            if k.refill(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2)).read(0);
            }
        }),
    Scenario::engine("lazy-unmap-call")
        .about("a call finds an entry whose flush is deferred")
        .bugs(&["3", "19"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedPending)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(|k| _ = k.reclaim_lazily(0, 0))
        .cpu(|k| _ = k.read(0).unmap(0, 0).read(0)),
    // CPU 0 removes a clean page from its space and from its file, drops the locks and then defers the flush. Meanwhile
    // CPU 1 fills the page-cache slot again, and reads the new page.
    Scenario::engine("lazy-late-fill")
        .about("a page-cache slot is filled while its page's flush is being deferred")
        .bugs(&["L2", "L3"])
        .finds(&["RefillSkipsFlush"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForRefill)])
        .start(filled_page)
        .cpu(|k| _ = k.reclaim_then_defer(0, 0))
        .cpu(|k| {
            k.read(0);
            if k.fill_slot(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2)).read(0);
            }
        }),
    // CPU 1 finds that an earlier flush is deferred and flushes without holding a lock. Meanwhile CPU 0 unmaps another
    // page lazily, and then unmaps it for the program. CPU 1's flush counts only for flushes that were deferred before
    // it.
    Scenario::engine("lazy-late-pending")
        .about("a flush is deferred while a later observer flushes")
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedPending)])
        .start(|k| _ = k.map_first(2, false))
        .each(|k, cpu| {
            k.switch(0);
            if cpu == 0 {
                k.reclaim_lazily(0, 0);
            }
        })
        .cpu(|k| _ = k.reclaim_lazily(0, 1).unmap(0, 1).read(1))
        .cpu(|k| {
            k.engine.flush_pending(k.space(0));
        }),
    // CPU 0 unmaps a clean page, drops the table's lock and then defers the flush. Meanwhile CPU 1 unmaps the page for
    // the program. The batch that cleared the entry may be outstanding, or may have deferred its flush, or may be
    // between the two.
    Scenario::engine("lazy-late-unmap")
        .about("a call finds an entry whose flush is deferred after the table's lock was dropped")
        .bugs(&["3", "19"])
        .finds(&["FlushPendingSkipped", "PendingEndsBeforeDeferred"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedPending)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(|k| _ = k.reclaim_then_defer(0, 0))
        .cpu(|k| _ = k.read(0).unmap(0, 0).read(0)),
    // CPU 0 unmaps a clean page, drops the table's lock and then defers the flush. Meanwhile CPU 1, which has used the
    // page, switches away and back. Its entries under the tag are flushed before it can read the slot's new page.
    Scenario::engine("lazy-late-switch")
        .about("a CPU switches while its page's flush is being deferred")
        .bugs(&["L2"])
        .must(Every, &[Engine(FlushesDeferred)])
        .start(filled_page)
        .cpu(|k| {
            k.reclaim_then_defer(0, 0);
            if k.fill_slot(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
            }
        })
        .cpu(|k| _ = k.read(0).switch(1).switch(0).read(0)),
    Scenario::engine("lazy-reinstate")
        .about("reinstating a frame against reusing it")
        .finds(&["ReinstateUnchecked"])
        .must(Every, &[Engine(FlushesDeferred), Engine(Reinstated), Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(|k| _ = k.reinstate(0, 0, k.take_lazily(&[0], 0)))
        .cpu(|k| _ = k.flush_before_reuse(Some(frame(0))))
        .cpu(read_twice),
    // A page that two spaces map is unmapped lazily, reinstated in one of them, and then unmapped with a flush. CPU 1
    // runs the other space, where the page wasn't mapped again. Its stale entry is still in use, but reinstating the
    // frame has cleared the deferred flush. So the kernel must still treat that place as a mapping of the frame.
    Scenario::engine("lazy-reinstate-one")
        .about("a frame that was reinstated in only one of its spaces is reclaimed")
        .finds(&["VmIgnoresMarker"])
        .must(Every, &[Engine(FlushesDeferred), Engine(Reinstated), Machine(FrameReused)])
        .start(|k| _ = k.map(0, 0, frame(0), false).map(1, 0, frame(0), false))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| {
            k.reinstate(0, 0, k.take_lazily(&[0, 1], 0));
            k.give_away(k.reclaim_reinstated(0, 1, 0));
        })
        .cpu(read_twice),
    Scenario::engine("lazy-switch")
        .about("a context switch to a space with a deferred flush")
        .finds(&["SwitchIgnoresDeferral"])
        .must(Every, &[Engine(FlushesDeferred)])
        .must(OwnTags, &[Engine(FlushedBySwitch)])
        .must(Every, &[Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(reclaim_and_reuse)
        .cpu(|k| _ = k.switch(1).switch(0).read(0)),
    Scenario::engine("lazy-idle")
        .about("a lazy CPU returns to a space with a deferred flush")
        .must(Every, &[Engine(FlushesDeferred)])
        .must(Interrupts, &[Engine(FlushedBySwitch)])
        .must(Every, &[Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(reclaim_and_reuse)
        .cpu(|k| _ = k.idle().switch(0).read(0)),
    // CPU 1 flushes for another reason while CPU 0 defers a flush. CPU 1's flush may or may not cover it.
    Scenario::engine("lazy-stranger")
        .about("another CPU's flush may already cover a deferred flush")
        .finds(&["ClockReadAfterFlush"])
        .must(Every, &[Engine(FlushesDeferred)])
        .must(Interrupts, &[Engine(FoundFlushed)])
        .must(Every, &[Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .each(|k, cpu| _ = k.switch(1 - cpu))
        .cpu(reclaim_and_reuse)
        .cpu(|k| _ = k.flush_all(0).read(0)),
    // CPU 1 makes a flush in the background that CPU 0 is just deferring, reuses the frame, and signals CPU 0. CPU 0
    // still holds the translation unless it was interrupted.
    Scenario::engine("lazy-background")
        .about("a flush is made in the background while another CPU defers it")
        .finds(&["LedgerReadRelaxed"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .must(Every, &[Engine(ReusedFree), Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false))
        .cpu(|k| _ = k.reclaim_lazily(0, 0).wait_for(0).read(0))
        .cpu(|k| _ = k.flush_deferred().flush_before_reuse(Some(frame(0))).tell(0)),
    Scenario::engine("lazy-two-reuses")
        .about("two frames with the same deferred flush are reused")
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForReuse)])
        .start(|k| _ = k.map_first(2, false))
        .cpu(|k| {
            let first = k.take_lazily(&[0], 0);
            k.reclaim_lazily(0, 1);
            k.flush_before_reuse(first);
        })
        .cpu(|k| _ = k.flush_before_reuse(Some(frame(1))))
        .cpu(|k| _ = k.read(0).read(1)),
    // CPU 1 is idle, or entering or leaving lazy mode. Meanwhile CPU 0 unmaps a page of CPU 1's space lazily, then a
    // page of its own space, and reuses the first frame. A translation that no running CPU can hold needs no interrupt,
    // but CPU 1 may resume.
    Scenario::engine("lazy-younger")
        .about("a deferred flush for an idle CPU, and a later one for a running CPU")
        .finds(&["ReuseTrustsFlushes"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForReuse), Machine(Reusable)])
        .start(|k| _ = k.map(0, 0, frame(0), false).map(1, 1, frame(1), false))
        .each(|k, cpu| _ = k.switch(1 - cpu))
        .cpu(|k| {
            let first = k.take_lazily(&[0], 0);
            k.reclaim_lazily(1, 1);
            k.flush_before_reuse(first);
        })
        .cpu(|k| _ = k.read(0).idle().switch(0).read(0)),
    // More flushes are deferred than the ledger holds. Meanwhile CPU 1 makes deferred flushes in the background.
    Scenario::engine("lazy-ledger")
        .about("more flushes are deferred than the ledger holds")
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .must(Every, &[Engine(ReusedFree)])
        .start(|k| _ = k.map_first(4, false))
        .cpu(|k| {
            for page in 0..3 {
                k.reclaim_lazily(0, page);
            }
            k.flush_before_reuse(Some(frame(0)));
        })
        .cpu(|k| _ = k.flush_deferred().reclaim_lazily(0, 3).flush_before_reuse(Some(frame(1))))
        .cpu(|k| _ = k.read(0).read(1)),
    // CPU 0 has taken a stamp and stalls before it publishes its deferred flush. CPU 1 defers two later flushes, makes
    // all deferred flushes and maps another page. CPU 2 mustn't read the old page.
    Scenario::engine("lazy-gap")
        .about("deferred flushes are made while an earlier one is not published")
        .finds(&["PaymentStopsAtGap"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .with_ledger(4)
        .start(|k| {
            for page in 0..3 {
                k.fill(frame(page), page).map(usize::from(page != 0), page, frame(page), false);
            }
            k.fill(frame(5), 5);
        })
        .each(|k, _| _ = k.switch(1))
        .cpu(|k| _ = k.reclaim_lazily(0, 0))
        .cpu(|k| {
            k.reclaim_lazily(1, 1).reclaim_lazily(1, 2);
            k.flush_deferred();
            k.lock(1);
            k.map(1, 1, frame(5), false).unlock(1);
            k.must_read(1, 1, Some(5));
        })
        .cpu(|k| _ = k.read(1).read(1)),
    // CPU 0 flushes under the lock of the tables, for which CPU 1 spins with interrupts off.
    Scenario::engine("lock-masked")
        .about("a CPU spins with interrupts off for a lock that a flushing CPU holds")
        .finds(&["PollSkipsInbox"])
        .must(Interrupts, &[Engine(Waited)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.give_away(k.unmap_locked(0, 0)))
        .cpu(|k| _ = k.pass_lock_masked(0).read(0)),
    // CPU 0 starts a flush and continues. It is notified when CPU 1, which reads or is idle, has answered. CPU 2
    // flushes all the time.
    Scenario::engine("started-unmap")
        .about("a flush is started without waiting for it")
        .finds(&["StarterNotTold", "SkipWait", "AnswerUnheard"])
        .must(Interrupts, &[Engine(Sent)])
        .start(two_pages)
        .cpu(|k| _ = k.give_away(k.unmap_started(0, 0)))
        .cpu(read_twice)
        .cpu(|k| _ = k.free(0, 1).read(0)),
    // CPU 0 starts a flush and continues, while CPU 1, a target, is taken offline.
    Scenario::engine("started-offline")
        .about("a target of a started flush goes offline")
        .finds(&["StarterNotTold"])
        .must(Every, &[Machine(Offline)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.give_away(k.unmap_started(0, 0)))
        .cpu(|k| _ = k.read(0).offline()),
];

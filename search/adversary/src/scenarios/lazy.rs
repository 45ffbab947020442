//! Pages that are taken away without a flush, and flushes that are not waited for.

use super::*;

/// Two frames hold different values, and the first is mapped.
fn filled_page(k: &BareKernel<'_>) {
    k.fill(frame(0), 1);
    k.fill(frame(1), 2);
    k.map(0, 0, frame(0), false);
}

/// Takes a page away without a flush, and gives its frame to a new owner.
fn reclaim_and_claim(k: &BareKernel<'_>) {
    if let Some(frame) = k.reclaim_lazily(0, 0) {
        k.claim(frame);
    }
}

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 unmaps a clean page without a flush and then wants its frame for a new owner; CPU 1 goes on reading.
    Scenario::engine("lazy-claim")
        .about("a frame that owes a flush gets a new owner")
        .bugs(&["L4"])
        .finds(&["ClaimSkipsDebt"])
        .must(
            Every,
            &[Engine(DebtsTaken), Engine(PaidByClaim), Machine(Claimed)],
        )
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(reclaim_and_claim)
        .cpu(read_twice),
    // CPU 0 unmaps a clean page without a flush; CPU 1 maps another page of the file there; CPU 2 reads.
    Scenario::engine("lazy-rewrite")
        .about("an owed entry is written again")
        .bugs(&["L1", "L2", "L3"])
        .finds(&["RefillSkipsDebt"])
        .must(Every, &[Engine(DebtsTaken), Engine(PaidByRefill)])
        .start(filled_page)
        .cpu(|k| {
            k.reclaim_lazily(0, 0);
        })
        .cpu(|k| {
            if k.refill(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
            }
        })
        .cpu(read_twice),
    // CPU 0 unmaps a clean page without a flush, and claims its frame; CPU 1, which has the translation, maps another page
    // there meanwhile, and reads it.
    Scenario::engine("lazy-claim-refill")
        .about("an owed entry is written again while its frame is claimed")
        .finds(&["ClaimTakesFirst"])
        .must(Every, &[Engine(PaidByClaim), Engine(PaidByRefill)])
        .must(Every, &[Machine(Claimed)])
        .start(filled_page)
        .cpu(reclaim_and_claim)
        .cpu(|k| {
            k.read(0);
            if k.refill(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
                k.read(0);
            }
        }),
    // CPU 0 unmaps a clean page without a flush; CPU 1 unmaps it for the program and returns.
    Scenario::engine("lazy-unmap-call")
        .about("an owed entry meets a call")
        .bugs(&["3", "19"])
        .must(Every, &[Engine(DebtsTaken), Engine(PaidBySettle)])
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(|k| {
            k.reclaim_lazily(0, 0);
        })
        .cpu(|k| {
            k.read(0);
            k.unmap(0, 0);
            k.read(0);
        }),
    // CPU 0 takes a clean page from its space and from its file, gives the locks back and then owes the flush; CPU 1 fills
    // the slot of the page cache again meanwhile, and reads what is there now.
    Scenario::engine("lazy-late-fill")
        .about("a slot is filled while the debt of its page is taken")
        .bugs(&["L2", "L3"])
        .finds(&["RefillSkipsDebt"])
        .must(Every, &[Engine(DebtsTaken), Engine(PaidByRefill)])
        .start(filled_page)
        .cpu(|k| k.reclaim_then_owe(0, 0))
        .cpu(|k| {
            k.read(0);
            if k.fill_slot(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
                k.read(0);
            }
        }),
    // CPU 1 finds that an earlier flush is owed and flushes, under no lock; meanwhile CPU 0 takes another page away
    // without a flush, and then unmaps it for the program. CPU 1 calls paid only debts from before it flushed.
    Scenario::engine("lazy-late-settle")
        .about("a debt that is taken while a second actor flushes")
        .must(Every, &[Engine(DebtsTaken), Engine(PaidBySettle)])
        .start(|k| {
            k.map(0, 0, frame(0), false);
            k.map(0, 1, frame(1), false);
        })
        .each(|k, cpu| {
            k.switch(0);
            if cpu == 0 {
                k.reclaim_lazily(0, 0);
            }
        })
        .cpu(|k| {
            k.reclaim_lazily(0, 1);
            k.unmap(0, 1);
            k.read(1);
        })
        .cpu(|k| {
            k.engine.settle(k.space(0));
        }),
    // CPU 0 takes a clean page from its space, gives the table's lock back and then owes the flush; CPU 1 unmaps the page
    // for the program meanwhile: it finds the entry cleared by a batch that is to flush, or one that owes, or one in
    // between.
    Scenario::engine("lazy-late-unmap")
        .about("a call meets an entry whose debt is taken without its lock")
        .bugs(&["3", "19"])
        .finds(&["SettleSkipped", "DebtEndsBeforeOwed"])
        .must(Every, &[Engine(DebtsTaken), Engine(PaidBySettle)])
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(|k| k.reclaim_then_owe(0, 0))
        .cpu(|k| {
            k.read(0);
            k.unmap(0, 0);
            k.read(0);
        }),
    // CPU 0 takes a clean page from a space, gives the table's lock back and then owes the flush; CPU 1, which has used
    // the page, switches away and back meanwhile. Its entries under the tag go before the slot's new page can be read.
    Scenario::engine("lazy-late-switch")
        .about("a CPU switches while the debt of its page is taken")
        .bugs(&["L2"])
        .must(Every, &[Engine(DebtsTaken)])
        .start(filled_page)
        .cpu(|k| {
            k.reclaim_then_owe(0, 0);
            if k.fill_slot(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
            }
        })
        .cpu(|k| {
            k.read(0);
            k.switch(1);
            k.switch(0);
            k.read(0);
        }),
    // A frame that owes a flush is wanted back by its page and, at the same moment, by an allocator.
    Scenario::engine("lazy-rescue")
        .about("rescue against claim")
        .finds(&["RescueUnchecked"])
        .must(
            Every,
            &[Engine(DebtsTaken), Engine(Rescued), Machine(Claimed)],
        )
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(|k| {
            if let Some(frame) = k.reclaim_lazily(0, 0) {
                k.rescue(0, 0, frame);
            }
        })
        .cpu(|k| {
            k.claim(frame(0));
        })
        .cpu(read_twice),
    // A page that two spaces map is taken away lazily, taken back in one of them, and then taken away for good. CPU 1 runs
    // the other, where nothing was mapped again: its stale entry is still in use, and the residue, which the rescue has
    // cleared, says nothing of it. The kernel goes on treating the place as a mapping of the frame.
    Scenario::engine("lazy-rescue-one")
        .about("a frame that is rescued at one of its places is taken away")
        .finds(&["VmIgnoresMarker"])
        .must(
            Every,
            &[Engine(DebtsTaken), Engine(Rescued), Machine(FrameReused)],
        )
        .start(|k| {
            k.map(0, 0, frame(0), false);
            k.map(1, 0, frame(0), false);
        })
        .each(|k, cpu| k.switch(cpu))
        .cpu(|k| {
            if let Some(taken) = k.reclaim_lazily_from(&[0, 1], 0) {
                k.rescue(0, 0, taken);
            }
            if let Some(frame) = k.reclaim_rescued(0, 1, 0) {
                k.give_away(frame);
            }
        })
        .cpu(read_twice),
    // CPU 1 leaves a space with its entries kept; CPU 0 unmaps a page without a flush and reuses the frame; CPU 1 comes
    // back.
    Scenario::engine("lazy-switch")
        .about("a debt met by a context switch")
        .finds(&["SwitchIgnoresDebt"])
        .must(Every, &[Engine(DebtsTaken)])
        .must(OwnTags, &[Engine(PaidBySwitch)])
        .must(Every, &[Machine(Claimed)])
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(reclaim_and_claim)
        .cpu(|k| {
            k.switch(1);
            k.switch(0);
            k.read(0);
        }),
    // CPU 1 is idle while CPU 0 unmaps a page without a flush and reuses the frame; CPU 1 comes back.
    Scenario::engine("lazy-idle")
        .about("a debt met by a lazy CPU")
        .must(Every, &[Engine(DebtsTaken)])
        .must(Interrupts, &[Engine(PaidBySwitch)])
        .must(Every, &[Machine(Claimed)])
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(reclaim_and_claim)
        .cpu(|k| {
            k.idle();
            k.switch(0);
            k.read(0);
        }),
    // CPU 1 flushes for a reason of its own just as CPU 0 begins to owe: the flush pays, or it does not.
    Scenario::engine("lazy-stranger")
        .about("a debt paid by a stranger's flush")
        .finds(&["ClockReadAfterFlush"])
        .must(Every, &[Engine(DebtsTaken)])
        .must(Interrupts, &[Engine(PaidByOthers)])
        .must(Every, &[Machine(Claimed)])
        .start(|k| k.map(0, 0, frame(0), false))
        .each(|k, cpu| k.switch(1 - cpu))
        .cpu(reclaim_and_claim)
        .cpu(|k| {
            k.flush_all(0);
            k.read(0);
        }),
    // CPU 1 pays in the background what CPU 0 has just begun to owe, claims the frame, and tells CPU 0, which still holds
    // the translation unless it was interrupted.
    Scenario::engine("lazy-background")
        .about("a debt is paid in the background as it is taken")
        .finds(&["LedgerReadRelaxed"])
        .must(Every, &[Engine(DebtsTaken), Engine(PaidByBackground)])
        .must(Every, &[Engine(ClaimsFree), Machine(Claimed)])
        .start(|k| k.map(0, 0, frame(0), false))
        .cpu(|k| {
            k.reclaim_lazily(0, 0);
            k.wait_for(0);
            k.read(0);
        })
        .cpu(|k| {
            k.engine.pay_all();
            k.claim(frame(0));
            k.tell(0);
        }),
    // CPUs 0 and 1 claim two frames of the same debt; CPU 2 reads both pages.
    Scenario::engine("lazy-two-claims")
        .about("two claims of one debt")
        .must(Every, &[Engine(DebtsTaken), Engine(PaidByClaim)])
        .start(|k| {
            k.map(0, 0, frame(0), false);
            k.map(0, 1, frame(1), false);
        })
        .cpu(|k| {
            let first = k.reclaim_lazily(0, 0);
            k.reclaim_lazily(0, 1);
            if let Some(frame) = first {
                k.claim(frame);
            }
        })
        .cpu(|k| {
            k.claim(frame(1));
        })
        .cpu(|k| {
            k.read(0);
            k.read(1);
        }),
    // CPU 1 is idle, or in between, while CPU 0 unmaps a page of its space without a flush, then one of
    // its own space, and reuses the first frame: what no CPU is known to hold needs no interrupt, but
    // CPU 1 comes back.
    Scenario::engine("lazy-younger")
        .about("a debt of an idle CPU with a younger one behind it")
        .finds(&["ClaimTrustsFlushes"])
        .must(
            Every,
            &[Engine(DebtsTaken), Engine(PaidByClaim), Machine(Claimed)],
        )
        .start(|k| {
            k.map(0, 0, frame(0), false);
            k.map(1, 1, frame(1), false);
        })
        .each(|k, cpu| k.switch(1 - cpu))
        .cpu(|k| {
            let first = k.reclaim_lazily(0, 0);
            k.reclaim_lazily(1, 1);
            if let Some(frame) = first {
                k.claim(frame);
            }
        })
        .cpu(|k| {
            k.read(0);
            k.idle();
            k.switch(0);
            k.read(0);
        }),
    // More debts are taken than the ledger holds, while CPU 1 pays in the background.
    Scenario::engine("lazy-ledger")
        .about("a full ledger")
        .must(Every, &[Engine(DebtsTaken), Engine(PaidByBackground)])
        .must(Every, &[Engine(ClaimsFree)])
        .start(|k| {
            for page in 0..4 {
                k.map(0, page, frame(page), false);
            }
        })
        .cpu(|k| {
            for page in 0..3 {
                k.reclaim_lazily(0, page);
            }
            k.claim(frame(0));
        })
        .cpu(|k| {
            k.engine.pay_all();
            k.reclaim_lazily(0, 3);
            k.claim(frame(1));
        })
        .cpu(|k| {
            k.read(0);
            k.read(1);
        }),
    // CPU 0 has taken a stamp and stalls before it publishes its debt; CPU 1 takes two debts behind it, pays
    // all there are and maps another page: CPU 2 must not read what was there before.
    Scenario::engine("lazy-gap")
        .about("a payment past a debt that is not published")
        .finds(&["PaymentStopsAtGap"])
        .must(Every, &[Engine(DebtsTaken), Engine(PaidByBackground)])
        .with_ledger(4)
        .start(|k| {
            for page in 0..3 {
                k.fill(frame(page), page);
                k.map(usize::from(page != 0), page, frame(page), false);
            }
            k.fill(frame(5), 5);
        })
        .each(|k, _| k.switch(1))
        .cpu(|k| {
            k.reclaim_lazily(0, 0);
        })
        .cpu(|k| {
            k.reclaim_lazily(1, 1);
            k.reclaim_lazily(1, 2);
            k.engine.pay_all();
            k.lock(1);
            k.map(1, 1, frame(5), false);
            k.unlock(1);
            k.must_read(1, 1, Some(5));
        })
        .cpu(|k| {
            k.read(1);
            k.read(1);
        }),
    // CPU 0 flushes under the lock of the tables, for which CPU 1 spins with interrupts off.
    Scenario::engine("lock-masked")
        .about("a CPU spins with interrupts off for a lock that a flushing CPU holds")
        .finds(&["PollSkipsInbox"])
        .must(Interrupts, &[Engine(Waited)])
        .start(|k| k.map(0, 0, frame(0), true))
        .cpu(|k| {
            if let Some(frame) = k.unmap_locked(0, 0) {
                k.give_away(frame);
            }
        })
        .cpu(|k| {
            k.pass_lock_masked(0);
            k.read(0);
        }),
    // CPU 0 starts a flush and goes on; it is told when CPU 1, which reads or is idle, has answered. CPU 2 flushes all the
    // time.
    Scenario::engine("started-unmap")
        .about("a flush that is started, and not waited for")
        .finds(&["StarterNotTold", "SkipWait", "AnswerUnheard"])
        .must(Interrupts, &[Engine(Sent)])
        .start(two_pages)
        .cpu(|k| {
            if let Some(frame) = k.unmap_started(0, 0) {
                k.give_away(frame);
            }
        })
        .cpu(read_twice)
        .cpu(|k| {
            k.free(0, 1);
            k.read(0);
        }),
    // CPU 0 starts a flush and goes on, while CPU 1, which is to answer, goes offline.
    Scenario::engine("started-offline")
        .about("a CPU goes offline that a flush was started for")
        .finds(&["StarterNotTold"])
        .must(Every, &[Machine(Offline)])
        .start(|k| k.map(0, 0, frame(0), true))
        .cpu(|k| {
            if let Some(frame) = k.unmap_started(0, 0) {
                k.give_away(frame);
            }
        })
        .cpu(|k| {
            k.read(0);
            k.offline();
        }),
];

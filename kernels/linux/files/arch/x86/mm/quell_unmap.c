// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: pages that a task unmaps, from try_to_unmap_one() to try_to_unmap_flush().
 *
 * Reclaim and migration have a batch while they unmap. mm/quell_lazy.c decides whether it is deferred in the end.
 */
#include <linux/mm.h>
#include <linux/quell_reclaim.h>
#include <linux/sched.h>

#include <asm/tlbflush.h>

#include "quell.h"

/*
 * From the first entry of an mm on, every later observer in it calls the engine, which knows the outstanding
 * flushes. The mm's count of pending batches is not 0, and the number of flushed ones is not kept there.
 */
void quell_reclaim_add(struct mm_struct *mm, bool writable, unsigned long address)
{
	struct tlbflush_unmap_batch *unflushed = &current->tlb_ubc;

	if (!unflushed->arch.quell) {
		unflushed->arch.quell = quell_reclaim_begin();
		if (!unflushed->arch.quell) {
			address &= PAGE_MASK;
			quell_mm_flush(mm, address, address + PAGE_SIZE, PAGE_SHIFT, false);
			return;
		}
	}
	quell_reclaim_report(unflushed->arch.quell, mm, address);
	unflushed->flush_required = true;
	if (!atomic_read(&mm->tlb_flush_batched))
		atomic_set(&mm->tlb_flush_batched, 1);
	quell_reclaim_added(mm, writable);
}

void quell_reclaim_flush(struct arch_tlbflush_unmap_batch *batch)
{
	struct quell_reclaim *reclaim = batch->quell;

	if (!reclaim)
		return;
	batch->quell = NULL;
	if (reclaim->count)
		quell_stay();
	quell_reclaim_end(reclaim);
}

/* Whether something that this task has unmapped and not flushed was dirty. */
bool quell_reclaim_writable(void)
{
	return current->tlb_ubc.writable;
}

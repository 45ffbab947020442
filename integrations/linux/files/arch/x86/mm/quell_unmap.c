// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: what a task unmaps, from try_to_unmap_one() to try_to_unmap_flush().
 *
 * Reclaim and migration have a batch while they unmap. Whether it is owed in the end is for mm/quell_lazy.c to say.
 */
#include <linux/mm.h>
#include <linux/quell_reclaim.h>
#include <linux/sched.h>

#include <asm/tlbflush.h>

#include "quell.h"

void quell_reclaim_add(struct arch_tlbflush_unmap_batch *batch,
		       struct mm_struct *mm, unsigned long address)
{
	struct quell_reclaim *reclaim = batch->quell;

	if (!reclaim) {
		reclaim = quell_reclaim_begin();
		if (!reclaim) {
			address &= PAGE_MASK;
			quell_mm_flush(mm, address, address + PAGE_SIZE, PAGE_SHIFT, false);
			return;
		}
		batch->quell = reclaim;
	}
	/* Mostly one page more of the same mm. */
	if (reclaim->covered != mm)
		quell_reclaim_report(reclaim, mm, address);
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

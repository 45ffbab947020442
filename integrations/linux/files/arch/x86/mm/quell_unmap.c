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

/* What set_tlb_ubc_flush_pending() does first, for an mm of which something has to be reported; then it goes on. */
void quell_reclaim_add(struct mm_struct *mm, pte_t entry, unsigned long address)
{
	struct arch_tlbflush_unmap_batch *batch = &current->tlb_ubc.arch;
	struct quell_reclaim *reclaim = batch->quell;
	bool covered;

	if (!reclaim) {
		reclaim = quell_reclaim_begin();
		if (!reclaim) {
			address &= PAGE_MASK;
			quell_mm_flush(mm, address, address + PAGE_SIZE, PAGE_SHIFT, false);
			return;
		}
		batch->quell = reclaim;
	}
	quell_reclaim_report(reclaim, mm, address);
	covered = reclaim->covered == mm;
	/* Of this entry nothing more need be reported. */
	reclaim->covered = mm;
	set_tlb_ubc_flush_pending(mm, entry, address);
	if (!covered)
		reclaim->covered = NULL;
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

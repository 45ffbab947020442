// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: write protection of file pages that are about to be written, with one flush for many.
 *
 * folio_mkclean() flushes each page by itself, because the content is captured right after it. Writeback takes folios
 * in batches (writeback_get_folio()), so here the whole batch loses its writable entries first.
 */
#include <linux/backing-dev.h>
#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/pagevec.h>
#include <linux/quell.h>
#include <linux/quell_reclaim.h>
#include <linux/rmap.h>

#include "internal.h"

/*
 * Takes the right to write, and the dirty bit, from one mapping of a folio, and says in `arg` if it had one. The entry is
 * flushed with what this task unmaps: so another that meets it before, and has nothing to take from it any more, as
 * mprotect(), flushes.
 */
static bool quell_clean_one(struct folio *folio, struct vm_area_struct *vma,
			    unsigned long address, void *arg)
{
	DEFINE_FOLIO_VMA_WALK(pvmw, folio, vma, address, PVMW_SYNC);
	struct mmu_notifier_range range;
	bool *cleaned = arg;

	mmu_notifier_range_init(&range, MMU_NOTIFY_PROTECTION_PAGE, 0, vma->vm_mm,
				address, vma_address_end(&pvmw));
	mmu_notifier_invalidate_range_start(&range);
	while (page_vma_mapped_walk(&pvmw)) {
		pte_t entry;

		/* Larger entries are left to folio_mkclean(). */
		if (!pvmw.pte)
			continue;
		entry = ptep_get(pvmw.pte);
		if (!pte_present(entry) || (!pte_dirty(entry) && !pte_write(entry)))
			continue;
		entry = ptep_get_and_clear(vma->vm_mm, pvmw.address, pvmw.pte);
		set_pte_at(vma->vm_mm, pvmw.address, pvmw.pte,
			   pte_mkclean(pte_wrprotect(entry)));
		set_tlb_ubc_flush_pending(vma->vm_mm, entry, pvmw.address);
		if (quell_lazy())
			quell_lazy_spoil();
		*cleaned = true;
	}
	mmu_notifier_invalidate_range_end(&range);
	return true;
}

static bool quell_cannot_clean(struct vm_area_struct *vma, void *arg)
{
	return !(vma->vm_flags & VM_SHARED);
}

/*
 * Write-protects folios that are about to be written, with one flush for all: folio_clear_dirty_for_io() then finds
 * nothing to flush for those that no CPU has written to meanwhile.
 *
 * The folios stay locked until the flush is done. A task that captures the content of a folio holds its lock, so none
 * takes an entry that is clean in the table for one that no CPU writes through any more. What a CPU writes before the
 * flush belongs to a folio that is still dirty.
 */
void quell_clean_folios(struct address_space *mapping, struct folio_batch *folios)
{
	bool cleaned;
	struct rmap_walk_control walk = {
		.rmap_one = quell_clean_one,
		.invalid_vma = quell_cannot_clean,
		.arg = &cleaned,
	};
	DECLARE_BITMAP(locked, PAGEVEC_SIZE);
	unsigned int i;

	/* Where no other CPU is told, a flush for each folio costs less than a second walk of its mappings. */
	if (folio_batch_count(folios) < 2 || num_online_cpus() < 2)
		return;
	bitmap_zero(locked, PAGEVEC_SIZE);
	for (i = 0; i < folio_batch_count(folios); i++) {
		struct folio *folio = folios->folios[i];

		/* Never a wait for one lock under another. */
		if (!folio_mapped(folio) || !folio_trylock(folio))
			continue;
		if (folio->mapping != mapping || !folio_test_dirty(folio) ||
		    folio_test_writeback(folio) || !mapping_can_writeback(mapping)) {
			folio_unlock(folio);
			continue;
		}
		__set_bit(i, locked);
		cleaned = false;
		rmap_walk(folio, &walk);
		/* What was written through the mapping may be more than the buffers know of. */
		if (cleaned)
			folio_mark_dirty(folio);
	}
	try_to_unmap_flush();
	for_each_set_bit(i, locked, PAGEVEC_SIZE)
		folio_unlock(folios->folios[i]);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: write-protects file pages before writeback, with one flush for many.
 *
 * folio_mkclean() flushes each page by itself, because the content is captured right after it. Writeback takes
 * folios in batches (writeback_get_folio()), so this removes the writable entries of a whole batch first.
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
 * Clears the writable and dirty bits of one mapping of a folio, and sets `arg` if they were set. The entry is
 * flushed with the pages that this task unmaps. Code that finds the entry before that, and has nothing left to
 * clear, flushes: mprotect(), for example.
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
 * Write-protects folios that are about to be written, with one flush for all. Then folio_clear_dirty_for_io() has
 * nothing to flush for folios that no CPU has written meanwhile.
 *
 * The folios stay locked until the flush is complete. Code that captures the content of a folio holds its lock, so
 * it never relies on a clean entry in the table through which a CPU may still write. Writes before the flush belong
 * to a folio that is still dirty.
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

	/*
	 * If no other CPU must be interrupted, a flush for each folio costs less than a second walk of its mappings.
	 */
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
		/* More may have been written through the mapping than the buffers record. */
		if (cleaned)
			folio_mark_dirty(folio);
	}
	try_to_unmap_flush();
	for_each_set_bit(i, locked, PAGEVEC_SIZE)
		folio_unlock(folios->folios[i]);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: batches of reclaim, migration and writeback, and deferred flushes.
 *
 * A batch (struct quell_reclaim) holds a reference to each mm in it, because spaces must outlive the batches that
 * name them. It ends with a flush or, if everything in it was clean and read-only, with a deferred flush (S3), which
 * has a number.
 */
#include <linux/mm.h>
#include <linux/quell_reclaim.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include <asm/tlbflush.h>

#include "quell.h"

static struct kmem_cache *reclaim_cache __ro_after_init;

/* A batch that was begun and is empty, for the next task on this CPU: each call of reclaim needs one. */
static DEFINE_PER_CPU(struct quell_reclaim *, spare_reclaim);

static_assert(sizeof(struct quell_stamp) == sizeof(u64));

static u64 quell_stamp_number(const struct quell_stamp *stamp)
{
	u64 number;

	memcpy(&number, stamp, sizeof(number));
	return number;
}

static struct quell_stamp quell_stamp_of(u64 number)
{
	struct quell_stamp stamp;

	memcpy(&stamp, &number, sizeof(number));
	return stamp;
}

void __init quell_reclaim_init(void)
{
	reclaim_cache = KMEM_CACHE(quell_reclaim, SLAB_PANIC);
}

struct quell_reclaim *quell_reclaim_begin(void)
{
	u32 purpose = quell_batch() ? QUELL_PURPOSE_RECLAIM : QUELL_PURPOSE_CALL;
	struct quell_reclaim *reclaim = this_cpu_xchg(spare_reclaim, NULL);
	unsigned int i;

	if (reclaim)
		return reclaim;
	/* Not from the reserves, which reclaim may touch and others need: one flush more is no harm. */
	reclaim = kmem_cache_alloc(reclaim_cache, GFP_NOWAIT | __GFP_NOMEMALLOC | __GFP_NOWARN);
	if (!reclaim)
		return NULL;
	reclaim->count = 0;
	reclaim->covered = NULL;
	reclaim->number = 0;
	reclaim->pages = 0;
	reclaim->unmapped = NULL;
	for (i = 0; i < QUELL_WAITING; i++)
		folio_batch_init(&reclaim->waiting[i]);
	preempt_disable();
	quell_check(quell_batch_begin(&quell_engine, &reclaim->batch, purpose, NULL, 0));
	preempt_enable();
	return reclaim;
}

static __always_inline void quell_reclaim_forget(struct quell_reclaim *reclaim)
{
	reclaim->covered = NULL;
	while (reclaim->count)
		mmdrop(reclaim->mms[--reclaim->count]);
}

void quell_reclaim_finish(struct quell_reclaim *reclaim)
{
	if (!reclaim->count)
		return;
	preempt_disable();
	this_cpu_write(quell_this.reason, TLB_LOCAL_SHOOTDOWN);
	quell_expect(quell_batch_finish(&reclaim->batch, NULL));
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
	preempt_enable();
	quell_reclaim_forget(reclaim);
}

/* The spaces and the ledger keep the deferred flush, not the batch. So the mms may be freed. */
u64 quell_reclaim_defer(struct quell_reclaim *reclaim)
{
	struct quell_stamp stamp = { };

	preempt_disable();
	this_cpu_write(quell_this.reason, TLB_LOCAL_SHOOTDOWN);
	/* Stamp zero means that no flush is deferred. */
	if (quell_check(quell_batch_finish_deferred(&reclaim->batch, NULL, &stamp)))
		quell_check(quell_batch_finish(&reclaim->batch, NULL));
	quell_expect(quell_catch_up(&quell_engine));
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
	preempt_enable();
	quell_reclaim_forget(reclaim);
	return quell_stamp_number(&stamp);
}

void quell_reclaim_end(struct quell_reclaim *reclaim)
{
	quell_reclaim_finish(reclaim);
	if (quell_lazy())
		quell_lazy_end(reclaim);
	reclaim = this_cpu_xchg(spare_reclaim, reclaim);
	if (reclaim)
		kmem_cache_free(reclaim_cache, reclaim);
}

/*
 * The first page of an mm is reported by itself. The second reports the whole mm, as in Linux; then the batch covers
 * the mm, and nothing need be added. If more batches of the mm are outstanding than the engine counts, each report
 * takes a generation of its own, so each page is reported. A batch without a place for another mm is flushed first
 * and waited for, under the page table's lock: nobody spins for that with interrupts off. The last reference to an
 * mm may be dropped there, which takes pgd_lock: the page table's lock is its own, never the mm's
 * (SPLIT_PTE_PTLOCKS), which nests inside pgd_lock.
 */
void quell_reclaim_report(struct quell_reclaim *reclaim, struct mm_struct *mm,
			  unsigned long address)
{
	struct quell_range page = {
		.start = address >> PAGE_SHIFT,
		.pages = 1,
		.stride = QUELL_STRIDE_BASE,
	};
	unsigned int i;

	for (i = 0; i < reclaim->count; i++) {
		if (reclaim->mms[i] != mm)
			continue;
		preempt_disable();
		quell_expect(quell_batch_changed_all(&reclaim->batch, mm->context.quell, QUELL_SCOPE_LEAF));
		if (quell_batch_covers(&reclaim->batch, mm->context.quell, QUELL_SCOPE_LEAF))
			reclaim->covered = mm;
		preempt_enable();
		return;
	}
	if (reclaim->count == QUELL_BATCH_SPACES)
		quell_reclaim_finish(reclaim);
	mmgrab(mm);
	reclaim->mms[reclaim->count++] = mm;
	preempt_disable();
	quell_expect(quell_batch_changed(&reclaim->batch, mm->context.quell, page, QUELL_SCOPE_LEAF));
	preempt_enable();
}

/* Deferred flushes. */

/*
 * This CPU is in the kernel, where it waits for a page or reclaims: if it has not flushed for some deferred flushes it
 * does so now, and so is not interrupted as those are paid.
 */
void quell_lazy_catch_up(void)
{
	preempt_disable();
	quell_expect(quell_catch_up(&quell_engine));
	preempt_enable();
}

void quell_deferral_flush_pending(u64 number)
{
	struct quell_stamp stamp = quell_stamp_of(number);

	preempt_disable();
	quell_check(quell_flush_until(&quell_engine, &stamp));
	preempt_enable();
}

bool quell_deferral_is_paid(u64 number)
{
	struct quell_stamp stamp = quell_stamp_of(number);
	struct quell_deferred_flush deferred_flush = { };

	quell_check(quell_deferred_flush_defer(&deferred_flush, &stamp));
	return quell_is_flushed(&quell_engine, &deferred_flush);
}

/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * quell in Linux: batches of entries, of many address spaces, that wait for one flush, or defer it.
 */
#ifndef _LINUX_QUELL_RECLAIM_H
#define _LINUX_QUELL_RECLAIM_H

#include <linux/mmu_notifier.h>
#include <linux/pagevec.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/types.h>

#include <quell/engine.h>

struct folio;
struct mm_struct;

/* The number of lots of frames that wait for the end of a batch. A call of reclaim mostly has some 50 frames. */
#define QUELL_WAITING	2

/* In place of the last unmapped folio: something in the batch must not be deferred. */
#define QUELL_SPOILT	((struct folio *)1)

struct quell_reclaim {
	/* The mm reported last if there is nothing to be added, as all of it is flushed; or NULL. */
	struct mm_struct *covered;
	/*
	 * For mm/quell_lazy.c (S3): the last unmapped folio that is still in the page cache, or NULL, or
	 * QUELL_SPOILT.
	 */
	struct folio *unmapped;
	/* The number of the batch, once a page of it may be deferred, or 0; and how many those are since frames last waited. */
	u64 number;
	unsigned int pages;
	/* Frames that nothing maps any more, which wait for the end of the batch. */
	struct folio_batch waiting[QUELL_WAITING];
	unsigned int count;
	/* Each is referred to: its space is part of the batch. */
	struct mm_struct *mms[QUELL_BATCH_SPACES];
	struct quell_batch batch;
};

/*
 * Replaces set_tlb_ubc_flush_pending(): an entry of an mm that is not covered was cleared or lost rights, and was
 * writable. Called under the lock of its table.
 */
void quell_reclaim_add(struct mm_struct *mm, bool writable, unsigned long address);

/* Begins a batch; NULL if there is no memory for it. Does not sleep. The caller ends it. */
struct quell_reclaim *quell_reclaim_begin(void);

/* An entry of a page was cleared or lost rights, of an mm that is not covered. Under the lock of its table. */
void quell_reclaim_report(struct quell_reclaim *reclaim, struct mm_struct *mm,
			  unsigned long address);

/* On return no CPU uses a translation that was reported. Interrupts are on. */
void quell_reclaim_end(struct quell_reclaim *reclaim);

/* The same, and the batch may be filled again. */
void quell_reclaim_finish(struct quell_reclaim *reclaim);

/*
 * Defers the flush (S3), and the batch may be filled again. Returns the deferred flush's number, larger than any before;
 * or 0 if there was no room for a deferred flush: then it is as quell_reclaim_finish(). Everything reported was clean
 * and read-only.
 */
u64 quell_reclaim_defer(struct quell_reclaim *reclaim);

/* Completes the deferred flushes up to this number. One load if they are complete already. */
void quell_deferral_flush_pending(u64 number);
/* Whether it is so for this number; a smaller one may still be deferred. */
bool quell_deferral_is_paid(u64 number);

/* Of mm/quell_lazy.c, for the architecture. */
void quell_lazy_end_flushed(struct quell_reclaim *reclaim);
/* Allocates memory before the engine is created; false if there is none. Undone if there is no engine. */
bool quell_lazy_init(void);
void quell_lazy_exit(void);
bool quell_lazy_leave_out(const char *name);
extern u32 quell_parked;

/* Whether nothing need be reported of the mm to the batch of this task. */
static __always_inline bool quell_reclaim_covers(struct mm_struct *mm)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	return reclaim && reclaim->covered == mm;
}

/* Handles an entry of an mm that is covered, or was reported. Devices are notified when it is cleared. */
static __always_inline void quell_reclaim_added(struct mm_struct *mm, bool writable)
{
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, 0, -1UL);
	if (writable)
		current->tlb_ubc.writable = true;
}

/* Everything that this task has unmapped was flushed or deferred; the next batch begins. */
static __always_inline void quell_lazy_end(struct quell_reclaim *reclaim)
{
	/* Without a number there is no page that may be deferred, and so no frame that waits. */
	if (reclaim->number)
		quell_lazy_end_flushed(reclaim);
	reclaim->unmapped = NULL;
}

/*
 * Of S3: an entry of the folio was reported. A folio that was unmapped and has not left the page cache as the next one
 * is, and an entry that was not clean and read-only, or that a task waits for to be written through, must not be
 * deferred.
 */
static __always_inline void quell_lazy_unmapped(struct folio *folio, pte_t entry)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	/* Without a batch it was flushed at once. */
	if (!reclaim)
		return;
	if (pte_dirty(entry) || pte_write(entry) || pte_uffd_wp(entry) ||
	    (reclaim->unmapped && reclaim->unmapped != folio))
		folio = QUELL_SPOILT;
	reclaim->unmapped = folio;
}

/* Of mm/rmap.c: an entry was cleared, or lost rights; try_to_unmap_flush() flushes it. Under the lock of its table. */
void set_tlb_ubc_flush_pending(struct mm_struct *mm, pte_t pteval, unsigned long uaddr);

/* Rules of the glue that a test leaves out: of mm/quell_lazy.c. */
enum quell_rule {
	FILL_FLUSHES_PENDING,
	CHANGE_FLUSHES_PENDING,
	PENDING_IS_SEEN,
	FRAMES_ARE_REUSED,
	NMIS_ASK,
	FILE_SYSTEMS_OPT_IN,
};

#ifdef CONFIG_QUELL_MUTANTS
bool quell_keeps(enum quell_rule rule);
/* Controls and counters of mm/quell_lazy.c for tests. */
extern u32 quell_hold;
extern atomic_t quell_held;
void quell_stay(void);
#else
static inline bool quell_keeps(enum quell_rule rule) { return true; }
static inline void quell_stay(void) { }
#endif

#endif /* _LINUX_QUELL_RECLAIM_H */

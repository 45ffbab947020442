// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: lazy unmap (S3). Reclaim takes clean file pages away and owes the flush.
 *
 * A page that every mapping maps clean and read-only cannot change through a stale entry. So its entries are cleared
 * and the page leaves the page cache without a flush; a stale read returns the right bytes as long as the frame keeps
 * them and they are the file's. The file is long because it sees to both, from a page's last mapping to its frame's
 * next owner:
 *
 *   - The frame is parked: it has no owner, and goes to the page allocator after what is owed was paid. There are at
 *     most quell_most frames that owe; for one more, for drain_all_pages() (memory is short, or a caller wants these
 *     very frames) or after a second all are paid for, up to the number of the youngest debt, with one round of
 *     interrupts to the CPUs that have not flushed since.
 *   - What is owed for a page of a file stands in a table, by (mapping, index). A task that fills the slot of the page
 *     cache again, or changes the file's bytes without filling it, looks there and pays first.
 *   - A task that takes the mapping away finds mm->tlb_flush_batched, as for any entry that reclaim has cleared.
 *
 * One word per place of the table is enough although places are shared: it has a fingerprint of the page, and where two
 * debts that are not paid meet, none, which stands for all. A page is pending from before it leaves the page cache
 * until its batch has a number; a task that meets it so (a page that comes back within one call of reclaim)
 * has all CPUs flush.
 *
 * Not owed, but flushed as ever: folios of more than one page, what is not a regular file on a file system with a block
 * device of its own, a page that one mapping could be written through or that is dirty, and a page that stays in the
 * page cache after all.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/list.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/page-isolation.h>
#include <linux/pagemap.h>
#include <linux/pagevec.h>
#include <linux/quell.h>
#include <linux/quell_reclaim.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include <asm/tlbflush.h>

#include "internal.h"

/* What a task has unmapped, from shrink_folio_list() to try_to_unmap_flush(). */
struct quell_lazy {
	/* The entries. */
	struct quell_reclaim *reclaim;
	/* The folio that is being unmapped, or was and is still in the page cache. Locked by this task. */
	struct folio *folio;
	/* Whether entries that are cleared now are its. */
	bool open;
	/* Whether one was reported. */
	bool reported;
	/* Whether an entry was reported that must not be owed: then all are flushed. */
	bool spoilt;
	/* What has left the page cache since the last debt; each page is pending. */
	struct folio_batch folios;
	/* By keys(). */
	u64 keys[PAGEVEC_SIZE];
};

/*
 * A place of the table. What is owed: the number of the last debt in the low 44 bits, above it a fingerprint, or 0 for
 * any. What is pending: how many pages in the low 16 bits, above it the sum of their fingerprints.
 */
struct quell_place {
	atomic64_t owed;
	atomic64_t pending;
};

#define QUELL_NUMBER_BITS	44
#define QUELL_NUMBER		(BIT_ULL(QUELL_NUMBER_BITS) - 1)
#define QUELL_PENDING		((u64)0xffff)

/* A range of more pages than this is not looked up page by page. */
#define QUELL_LOOK_UP		16

static struct quell_place *places __ro_after_init;
static unsigned int place_bits __ro_after_init;

static DEFINE_SPINLOCK(parked_lock);
/* Frames that owe their flush, how many there are, and the number of their youngest debt. */
static LIST_HEAD(parked);
u32 quell_parked;
static u64 parked_number;
/* Frames that were paid for since, and have not been given to the page allocator yet. */
static LIST_HEAD(paid);
/* How often all frames were asked for. */
static unsigned int drains;
static u32 quell_most __ro_after_init;

static atomic_t pending_pages = ATOMIC_INIT(0);

static struct kmem_cache *lazy_cache __ro_after_init;

/* One that is empty, with its batch, for the next task on this CPU. */
static DEFINE_PER_CPU(struct quell_lazy *, spare_lazy);

/* Rules of this file that a test leaves out. */

enum quell_rule {
	FILL_SETTLES,
	CHANGE_SETTLES,
	PENDING_IS_SEEN,
	FRAMES_ARE_CLAIMED,
};

#ifdef CONFIG_QUELL_MUTANTS
static const char * const mistakes[] = {
	[FILL_SETTLES] = "LinuxFillUnsettled",
	[CHANGE_SETTLES] = "LinuxChangeUnsettled",
	[PENDING_IS_SEEN] = "LinuxPendingUnseen",
	[FRAMES_ARE_CLAIMED] = "LinuxFrameUnclaimed",
};

static unsigned int left_out __ro_after_init;

bool __init quell_lazy_leave_out(const char *name)
{
	int rule = match_string(mistakes, ARRAY_SIZE(mistakes), name);

	if (rule >= 0)
		left_out |= BIT(rule);
	return rule >= 0;
}

static bool quell_keeps(enum quell_rule rule)
{
	return !(left_out & BIT(rule));
}

/*
 * For so many milliseconds, for each batch, a task stops before it flushes or owes, unless a test writes 0 before: it
 * does meanwhile what it likes. Who stops there is counted.
 */
u32 quell_hold;
atomic_t quell_held = ATOMIC_INIT(0);

void quell_stay(void)
{
	unsigned long end = jiffies + msecs_to_jiffies(READ_ONCE(quell_hold));

	if (!READ_ONCE(quell_hold))
		return;
	atomic_inc(&quell_held);
	while (READ_ONCE(quell_hold) && time_before(jiffies, end))
		msleep(1);
	atomic_dec(&quell_held);
}
#else
static inline bool quell_keeps(enum quell_rule rule)
{
	return true;
}
#endif

/* The table. */

static u64 quell_key(struct address_space *mapping, pgoff_t index)
{
	u64 key = (u64)(unsigned long)mapping * GOLDEN_RATIO_64 + index;

	key = (key ^ (key >> 32)) * GOLDEN_RATIO_64;
	return key ^ (key >> 29);
}

static struct quell_place *quell_place(u64 key)
{
	return &places[key >> (64 - place_bits)];
}

static u64 quell_fingerprint(u64 key)
{
	/* Other bits than those that say which place, as far as there are; never 0. */
	return ((key >> 8) & (BIT_ULL(64 - QUELL_NUMBER_BITS) - 1)) ?: 1;
}

static u64 quell_pending_of(u64 key)
{
	return (key << 16) | 1;
}

/* The page is about to leave the page cache unflushed. Under the locks of its slot. */
static void quell_begin_pending(u64 key)
{
	atomic_inc(&pending_pages);
	atomic64_add(quell_pending_of(key), &quell_place(key)->pending);
}

/*
 * It did not, or what it owes can be found under a number, or is flushed. The count of all pages that are pending is
 * the caller's to lower, after that.
 */
static __always_inline void quell_end_pending(struct quell_place *place, u64 key)
{
	/* A value is returned, so that a CPU that sees the page no longer pending sees what was done before. */
	atomic64_sub_return(quell_pending_of(key), &place->pending);
}

static __always_inline void quell_record(struct quell_place *place, u64 key, u64 number)
{
	atomic64_t *word = &place->owed;
	u64 print = quell_fingerprint(key);
	s64 held = atomic64_read(word);
	u64 before, next;

	do {
		before = held & QUELL_NUMBER;
		next = max(before, number);
		if (!before || (u64)held >> QUELL_NUMBER_BITS == print || quell_debt_is_paid(before))
			next |= print << QUELL_NUMBER_BITS;
	} while (!atomic64_try_cmpxchg(word, &held, next));
}

/* Whether a debt that stands in a place may be this page's. */
static __always_inline bool quell_may_be_of(u64 owed, u64 key)
{
	u64 print = owed >> QUELL_NUMBER_BITS;

	return owed && (!print || print == quell_fingerprint(key));
}

static noinline void quell_settle_found(struct quell_place *place, u64 key)
{
	/* Before what is owed: see quell_end_pending(). */
	u64 waiting = atomic64_read_acquire(&place->pending), owed;

	if ((waiting & QUELL_PENDING) && quell_keeps(PENDING_IS_SEEN) &&
	    ((waiting & QUELL_PENDING) > 1 || waiting == quell_pending_of(key)))
		flush_tlb_all();
	owed = atomic64_read(&place->owed);
	if (quell_may_be_of(owed, key))
		quell_debt_settle(owed & QUELL_NUMBER);
}

/*
 * On return no CPU uses a translation to what was the page at this place. Where nothing is found, which is seen in the
 * same order, its caller saves no registers for it.
 */
static __always_inline void quell_settle_page(u64 key)
{
	struct quell_place *place = quell_place(key);

	if ((atomic64_read_acquire(&place->pending) & QUELL_PENDING) ||
	    quell_may_be_of(atomic64_read(&place->owed), key))
		quell_settle_found(place, key);
}

/* Parked frames. */

/* Takes all frames that owe, and pays for them. Sleeps not, but waits for other CPUs. */
static void quell_take_parked(struct list_head *list)
{
	u64 number;

	spin_lock(&parked_lock);
	list_splice_tail_init(&parked, list);
	number = parked_number;
	WRITE_ONCE(quell_parked, 0);
	spin_unlock(&parked_lock);
	if (!list_empty(list) && quell_keeps(FRAMES_ARE_CLAIMED))
		quell_debt_settle(number);
}

/* Gives the frames of a list to the page allocator. */
static void quell_free(struct list_head *list)
{
	struct folio_batch folios;
	struct folio *folio, *next;

	folio_batch_init(&folios);
	list_for_each_entry_safe(folio, next, list, lru) {
		if (!folio_batch_add(&folios, folio))
			free_unref_folios(&folios);
	}
	if (folio_batch_count(&folios))
		free_unref_folios(&folios);
	INIT_LIST_HEAD(list);
}

/*
 * Gives all of them to the page allocator. Sleeps not, but waits for other CPUs. For those that a task is paying for it
 * does not wait: that task gives them.
 */
void quell_lazy_drain(void)
{
	LIST_HEAD(list);

	quell_take_parked(&list);
	spin_lock(&parked_lock);
	drains++;
	list_splice_init(&paid, &list);
	spin_unlock(&parked_lock);
	quell_free(&list);
}

static void quell_drain_later(struct work_struct *unused)
{
	quell_lazy_drain();
}
static DECLARE_DELAYED_WORK(drain_work, quell_drain_later);

static void quell_park(struct folio_batch *folios, u64 number)
{
	unsigned int i, count = folio_batch_count(folios), drained;
	struct list_head *at;
	LIST_HEAD(list);
	bool full;

	spin_lock(&parked_lock);
	for (i = 0; i < count; i++)
		list_add_tail(&folios->folios[i]->lru, &parked);
	parked_number = max(parked_number, number);
	WRITE_ONCE(quell_parked, quell_parked + count);
	full = quell_parked > quell_most;
	drained = drains;
	/* As many leave as have come: all at once they would not fit into the page allocator's lists of this CPU. */
	at = &paid;
	for (i = 0; i < count && !list_is_last(at, &paid); i++)
		at = at->next;
	list_cut_position(&list, &paid, at);
	spin_unlock(&parked_lock);
	folio_batch_reinit(folios);
	quell_free(&list);
	if (full) {
		quell_take_parked(&list);
		spin_lock(&parked_lock);
		/* Who has asked for all of them meanwhile did not find these. */
		if (drained == drains)
			list_splice_tail_init(&list, &paid);
		spin_unlock(&parked_lock);
		quell_free(&list);
	}
	schedule_delayed_work(&drain_work, HZ);
}

/* A task's. */

static struct quell_lazy *quell_lazy_new(void)
{
	struct quell_lazy *lazy = this_cpu_xchg(spare_lazy, NULL);

	if (lazy)
		return lazy;
	lazy = kmem_cache_alloc(lazy_cache, GFP_NOWAIT | __GFP_NOMEMALLOC | __GFP_NOWARN);
	if (!lazy)
		return NULL;
	lazy->reclaim = quell_reclaim_begin();
	if (!lazy->reclaim) {
		kmem_cache_free(lazy_cache, lazy);
		return NULL;
	}
	lazy->folio = NULL;
	lazy->open = false;
	lazy->reported = false;
	lazy->spoilt = false;
	folio_batch_init(&lazy->folios);
	return lazy;
}

/* What this task unmaps and may owe, until try_to_unmap_flush(); NULL if there is nothing. */
static __always_inline struct quell_lazy *quell_lazy_of_task(void)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	return reclaim ? reclaim->lazy : NULL;
}

/* The same, begun if there is nothing; NULL if there is no memory for that. */
static struct quell_lazy *quell_lazy_begun(void)
{
	struct tlbflush_unmap_batch *batch = &current->tlb_ubc;
	struct quell_reclaim *reclaim = batch->arch.quell;

	if (!reclaim) {
		reclaim = quell_reclaim_begin();
		if (!reclaim)
			return NULL;
		batch->arch.quell = reclaim;
		/* So that try_to_unmap_flush() ends it. */
		batch->flush_required = true;
	}
	if (!reclaim->lazy)
		reclaim->lazy = quell_lazy_new();
	return reclaim->lazy;
}

/* The last folio stayed in the page cache, or was not unmapped: no task would look for a debt of it. */
static void quell_lazy_leave(struct quell_lazy *lazy)
{
	if (lazy->folio && lazy->reported)
		lazy->spoilt = true;
	lazy->folio = NULL;
	lazy->open = false;
	lazy->reported = false;
}

/* Owes what was unmapped, or flushes it, and lets the frames go. */
static void quell_lazy_close(struct quell_lazy *lazy)
{
	unsigned int i, count = folio_batch_count(&lazy->folios);
	u64 number = 0;

	if (count)
		quell_stay();
	if (lazy->spoilt || !count)
		quell_reclaim_finish(lazy->reclaim);
	else
		number = quell_reclaim_owe(lazy->reclaim);
	lazy->spoilt = false;
	if (unlikely(number > QUELL_NUMBER)) {
		quell_debt_settle(number);
		number = 0;
	}
	if (!count)
		return;
	for (i = 0; i < count; i++) {
		u64 key = lazy->keys[i];
		struct quell_place *place = quell_place(key);

		if (number)
			quell_record(place, key, number);
		quell_end_pending(place, key);
	}
	atomic_sub_return(count, &pending_pages);
	mem_cgroup_uncharge_folios(&lazy->folios);
	if (number)
		quell_park(&lazy->folios, number);
	else
		free_unref_folios(&lazy->folios);
}

void quell_lazy_end(struct quell_lazy *lazy)
{
	quell_lazy_leave(lazy);
	quell_lazy_close(lazy);
	lazy = this_cpu_xchg(spare_lazy, lazy);
	if (lazy) {
		quell_reclaim_end(lazy->reclaim);
		kmem_cache_free(lazy_cache, lazy);
	}
}

/* Whether all that may change these bytes comes by here, and the folio is one that this file knows what to do with. */
static bool quell_may_owe(struct folio *folio)
{
	/* All at once: as many tests are as many loads. */
	const unsigned long unfit = BIT(PG_head) | BIT(PG_swapbacked) | BIT(PG_dirty) | BIT(PG_writeback);
	struct address_space *mapping = folio->mapping;
	struct inode *inode;

	if ((READ_ONCE(folio->flags) & unfit) || folio_test_anon(folio) || !mapping)
		return false;
	/* Its frame is wanted by a caller that has drained already: alloc_contig_range(), or memory that goes offline. */
	if (is_migrate_isolate_page(&folio->page))
		return false;
	inode = mapping->host;
	return inode && S_ISREG(inode->i_mode) && !IS_SWAPFILE(inode) && !IS_DAX(inode) &&
	       /* Not of a server, in user space or elsewhere, that changes files by itself. */
	       (inode->i_sb->s_type->fs_flags & (FS_REQUIRES_DEV | FS_HAS_SUBTYPE)) == FS_REQUIRES_DEV &&
	       !mapping_exiting(mapping);
}

/* The folio is locked, mapped, and about to be unmapped to be reclaimed. */
void quell_lazy_begin(struct folio *folio)
{
	struct quell_lazy *lazy;

	if (!quell_may_owe(folio))
		return;
	lazy = quell_lazy_begun();
	if (!lazy)
		return;
	quell_lazy_leave(lazy);
	lazy->folio = folio;
	lazy->open = true;
}

/* It was unmapped, or that failed. */
void quell_lazy_unmapped(void)
{
	struct quell_lazy *lazy = quell_lazy_of_task();

	if (lazy)
		lazy->open = false;
}

/* An entry was cleared. Under the lock of its table. */
bool quell_lazy_takes(struct quell_lazy *lazy, struct mm_struct *mm, unsigned long address)
{
	if (!lazy->open)
		return false;
	lazy->reported = true;
	quell_reclaim_report(lazy->reclaim, mm, address);
	return true;
}

/* The entry that is reported next was not clean, not read-only, or a task waits for it to be written through. */
void quell_lazy_spoil(void)
{
	struct quell_lazy *lazy = quell_lazy_of_task();

	if (lazy && lazy->open)
		lazy->spoilt = true;
}

/*
 * The locked folio is about to leave the page cache for good: from here on a task that fills its slot again finds it
 * pending. False if nothing of it is owed.
 */
bool quell_lazy_remove(struct address_space *mapping, struct folio *folio)
{
	struct quell_lazy *lazy = quell_lazy_of_task();
	u64 key;

	if (!lazy || lazy->folio != folio || !lazy->reported)
		return false;
	key = quell_key(mapping, folio->index);
	lazy->keys[folio_batch_count(&lazy->folios)] = key;
	quell_begin_pending(key);
	return true;
}

/* It did not: another part of the kernel refers to it, or it is dirty after all. */
void quell_lazy_keep(struct address_space *mapping, struct folio *folio)
{
	u64 key = quell_key(mapping, folio->index);

	quell_end_pending(quell_place(key), key);
	atomic_dec_return(&pending_pages);
	quell_lazy_leave(quell_lazy_of_task());
}

/* The folio has left the page cache and belongs to this task alone. False: it is freed as ever. */
bool quell_lazy_park(struct folio *folio)
{
	struct quell_lazy *lazy = quell_lazy_of_task();

	if (!lazy || lazy->folio != folio || !lazy->reported)
		return false;
	lazy->folio = NULL;
	lazy->reported = false;
	if (!folio_batch_add(&lazy->folios, folio))
		quell_lazy_close(lazy);
	return true;
}

/* Callers that change files. */

/*
 * A task that takes a mapping away settles: where there is none, nothing is owed. A mapping that has left an entry
 * behind was there before the slot was empty, as the caller has found it.
 */
static bool quell_is_mapped(struct address_space *mapping)
{
	bool mapped = mapping_mapped(mapping);

	if (mapped)
		return true;
	/* A mapping that is split or joined is in the tree no more, and then again, under this lock. */
	i_mmap_lock_read(mapping);
	mapped = mapping_mapped(mapping);
	i_mmap_unlock_read(mapping);
	return mapped;
}

static noinline void quell_settle_range(struct address_space *mapping, pgoff_t first, pgoff_t last)
{
	pgoff_t index;

	if (last - first < QUELL_LOOK_UP) {
		for (index = first; index <= last; index++)
			quell_settle_page(quell_key(mapping, index));
		return;
	}
	if (!quell_is_mapped(mapping))
		return;
	if (atomic_read_acquire(&pending_pages) && quell_keeps(PENDING_IS_SEEN))
		flush_tlb_all();
	quell_debts_settle();
}

/*
 * A new folio was put into slots of the page cache. It is locked, so no task has changed it yet. What was there before
 * left without a flush, perhaps.
 */
void quell_lazy_filled(struct address_space *mapping, unsigned long index, long nr)
{
	if (!quell_keeps(FILL_SETTLES))
		return;
	if (likely(nr == 1))
		quell_settle_page(quell_key(mapping, index));
	else
		quell_settle_range(mapping, index, index + nr - 1);
}

/* The bytes of these pages are others now, or there are none, and nothing of them is in the page cache. */
void quell_lazy_changed(struct address_space *mapping, unsigned long first, unsigned long last)
{
	if (quell_keeps(CHANGE_SETTLES) && !mapping_exiting(mapping) && first <= last)
		quell_settle_range(mapping, first, last);
}

void __init quell_lazy_cache_init(void)
{
	lazy_cache = KMEM_CACHE(quell_lazy, SLAB_PANIC);
}

bool __init quell_lazy_init(void)
{
	unsigned long pages = totalram_pages();

	/* One byte for each page of memory. */
	place_bits = clamp(order_base_2(pages / sizeof(struct quell_place)), 10, 24);
	places = kvcalloc(1UL << place_bits, sizeof(struct quell_place), GFP_KERNEL);
	quell_most = clamp(pages / 512, 64UL, 2048UL);
	return places != NULL;
}

void __init quell_lazy_exit(void)
{
	kvfree(places);
	places = NULL;
}

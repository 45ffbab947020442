// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: lazy unmap (S3). Reclaim unmaps clean file pages and defers the flush.
 *
 * If every mapping of a page is clean and read-only, no stale entry can change it. So its entries are cleared and
 * the page leaves the page cache without a flush. A stale read returns the right bytes as long as the frame keeps
 * them and they are the file's. This file ensures both, from a page's last mapping to its frame's next owner:
 *
 *   - The pages that a task unmaps between two flushes are a batch, which is deferred or flushed as a whole. It is
 *     deferred if each unmapped page has left the page cache and was suitable (quell_lazy_remove()).
 *   - With the first such page the batch gets a number. The table of places records the number for each page, by
 *     (mapping, index), before the page leaves the page cache. stamps[] holds the state of each number: pending, the
 *     stamp of the deferred flush, or flushed. A task that fills the slot again, or changes the file's bytes without
 *     filling it, looks there and flushes first. It cannot wait for the task of a pending batch, which may sleep.
 *     Instead it flushes what is pending in each mm that maps the page, like a task that removes such a mapping. No
 *     other CPU is interrupted.
 *   - The frames are parked: they have no owner, and return to the page allocator after the deferred flush. At most
 *     quell_most are parked. A further one makes the flushes of the oldest eighth. drain_all_pages() makes all of
 *     them (memory is short, or a caller needs these very frames), and so does a timer after a second. Each time,
 *     one round of interrupts reaches the CPUs that have not flushed since. A CPU that reclaims or reads pages
 *     flushes by itself while its deferred flushes are younger than that, since it is in the kernel anyway
 *     (quell_lazy_catch_up()). Such CPUs are not interrupted for the oldest eighth.
 *   - A task that removes the mapping finds mm->tlb_flush_batched, as for any entry that reclaim has cleared.
 *
 * One word per place of the table is enough although pages share places. It has a fingerprint of the page. If two
 * outstanding batches meet there, it has none, which matches every page and every batch up to the later one.
 *
 * Numbers up to quell_lazy_places.paid are flushed: mostly a task that fills a slot checks only this.
 *
 * Always flushed: folios of more than one page; files that are not regular files on a file system with
 * FS_FLUSHES_DEFERRED; pages that are dirty or have a writable mapping; pages that stay in the page cache after all;
 * and anything unmapped in one batch with these.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/fs.h>
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

/* A word of the table: the number of a batch, and below it a fingerprint of the page, or 0 for any. */
#define QUELL_PRINT_BITS	16
#define QUELL_PRINT		(BIT_ULL(QUELL_PRINT_BITS) - 1)
#define QUELL_LAST_NUMBER	(U64_MAX >> QUELL_PRINT_BITS)

/* The most batches that are neither flushed nor finished; a further one gets no number and is flushed. */
#define QUELL_BATCHES		512
/* In the place of a batch's stamp: it is neither flushed nor deferred yet. */
#define QUELL_PENDING		U64_MAX

/* If too many frames are parked, one in this many lots is flushed. */
#define QUELL_PAID_PART		8

/* A range of more pages than this is not looked up page by page. */
#define QUELL_LOOK_UP		16

struct quell_lazy_places quell_lazy_places;

/* Never taken with interrupts off. */
static DEFINE_SPINLOCK(lazy_lock);

/* Of batch n, at n % QUELL_BATCHES: the stamp of its deferred flush, QUELL_PENDING, or 0 if it was flushed. */
static u64 stamps[QUELL_BATCHES];
/* The number that was given out last. */
static u64 last_number;

/*
 * Parked frames in lots: a ring. Lots from lots_first to lots_paid are flushed and may leave; those from there to
 * lots_next are deferred. Lots before lots_sealed accept no more frames, because a task is flushing them.
 */
static struct folio_batch *lots __ro_after_init;
static unsigned int lots_mask __ro_after_init;
static unsigned int lots_first, lots_paid, lots_sealed, lots_next;
/* Of each lot the youngest deferred flush of its frames and of those parked before; and the youngest of all. */
static u64 *lot_stamps __ro_after_init;
static u64 parked_stamp;
/* How many frames defer. */
u32 quell_parked;
static u32 quell_most __ro_after_init;

/* Rules that a test leaves out. */

#ifdef CONFIG_QUELL_MUTANTS
static const char * const mistakes[] = {
	[FILL_FLUSHES_PENDING] = "LinuxFillUnflushed",
	[CHANGE_FLUSHES_PENDING] = "LinuxChangeUnflushed",
	[PENDING_IS_SEEN] = "LinuxPendingUnseen",
	[FRAMES_ARE_REUSED] = "LinuxFrameUnclaimed",
	[NMIS_ASK] = "LinuxNmiUnasked",
	[FILE_SYSTEMS_OPT_IN] = "LinuxAnyFileSystem",
};

static unsigned int left_out __ro_after_init;

bool __init quell_lazy_leave_out(const char *name)
{
	int rule = match_string(mistakes, ARRAY_SIZE(mistakes), name);

	if (rule >= 0)
		left_out |= BIT(rule);
	return rule >= 0;
}

bool quell_keeps(enum quell_rule rule)
{
	return !(left_out & BIT(rule));
}

/*
 * Milliseconds for which a task pauses before it flushes or defers a batch, until a test writes 0. Meanwhile the
 * test can interfere. Paused tasks are counted.
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
#endif

/* Numbers. */

/* Moves the number up to which everything was flushed or paid for. Under lazy_lock. */
static void quell_advance(void)
{
	u64 paid = quell_lazy_places.paid >> QUELL_PRINT_BITS;

	while (paid < last_number) {
		/* Pairs with quell_end(): the batch is flushed, or its deferred flush published. */
		u64 stamp = smp_load_acquire(&stamps[(paid + 1) % QUELL_BATCHES]);

		if (stamp == QUELL_PENDING || (stamp && !quell_deferral_is_paid(stamp)))
			break;
		paid++;
	}
	/* A task that reads a number here sees the flushes completed. */
	smp_store_release(&quell_lazy_places.paid, (paid << QUELL_PRINT_BITS) | QUELL_PRINT);
}

/* Returns the number of a new pending batch; 0 if there is none. */
static u64 quell_number_new(void)
{
	u64 number = 0;

	spin_lock(&lazy_lock);
	/* Making a deferred flush advances it too; here it is advanced past flushed batches. */
	if (last_number - (quell_lazy_places.paid >> QUELL_PRINT_BITS) >= QUELL_BATCHES)
		quell_advance();
	if (last_number - (quell_lazy_places.paid >> QUELL_PRINT_BITS) < QUELL_BATCHES &&
	    last_number < QUELL_LAST_NUMBER) {
		number = last_number + 1;
		WRITE_ONCE(stamps[number % QUELL_BATCHES], QUELL_PENDING);
		/* Pairs with quell_flush_pending_range(). */
		smp_store_release(&last_number, number);
	}
	spin_unlock(&lazy_lock);
	return number;
}

/*
 * Completes the flushes of all translations to these pages of the file, unless one of their mappings was removed:
 * that task flushes what is pending. A mapping that left an entry behind existed before the caller found the slot
 * empty. One that is split or merged leaves the tree and returns under this lock. Waits for other CPUs.
 */
static noinline void quell_flush_pending_mappings(struct address_space *mapping, pgoff_t first, pgoff_t last)
{
	struct vm_area_struct *vma;

	i_mmap_lock_read(mapping);
	vma_interval_tree_foreach(vma, &mapping->i_mmap, first, last)
		quell_mm_flush_pending(vma->vm_mm);
	i_mmap_unlock_read(mapping);
}

/* Completes the flushes of all translations to the page of this word. Waits for other CPUs. */
static noinline void quell_flush_pending_word(u64 word, struct address_space *mapping, pgoff_t index)
{
	u64 last = word >> QUELL_PRINT_BITS, number = last, youngest = 0;
	bool pending = false;

	if (!(word & QUELL_PRINT))
		number = (READ_ONCE(quell_lazy_places.paid) >> QUELL_PRINT_BITS) + 1;
	for (; number <= last; number++) {
		/* If the place is another batch's by now, this one was paid for: then it is one flush too many. */
		u64 stamp = smp_load_acquire(&stamps[number % QUELL_BATCHES]);

		if (stamp == QUELL_PENDING)
			pending = true;
		else
			youngest = max(youngest, stamp);
	}
	if (pending && quell_keeps(PENDING_IS_SEEN))
		quell_flush_pending_mappings(mapping, index, index);
	if (youngest)
		quell_deferral_flush_pending(youngest);
	spin_lock(&lazy_lock);
	quell_advance();
	spin_unlock(&lazy_lock);
}

/* The table. */

static u64 quell_fingerprint(u64 key)
{
	/* Bits other than those that select the place, as far as there are any; never 0. */
	return (key >> QUELL_LEAST_PLACE_BITS & QUELL_PRINT) | 1;
}

/* The place is taken, by a page that is not paid for, or another task has just written there. */
static noinline void quell_record_beside(u64 *place, u64 word)
{
	u64 held = READ_ONCE(*place), next;

	do {
		next = held > READ_ONCE(quell_lazy_places.paid) ? max(held, word) & ~QUELL_PRINT : word;
	} while (!try_cmpxchg(place, &held, next));
}

/* The page is about to leave the page cache unflushed. Before the locks of its slot are taken. */
static __always_inline void quell_record(u64 key, u64 number)
{
	u64 *place = quell_place(key), word = (number << QUELL_PRINT_BITS) | quell_fingerprint(key);
	u64 held = READ_ONCE(*place);

	if (likely(held <= READ_ONCE(quell_lazy_places.paid)) && likely(try_cmpxchg(place, &held, word)))
		return;
	quell_record_beside(place, word);
}

/* Completes the flushes of all translations to the former page at this place. */
static void quell_flush_pending_page(struct address_space *mapping, pgoff_t index)
{
	u64 key = quell_key(mapping, index), word = READ_ONCE(*quell_place(key)), print = word & QUELL_PRINT;

	if (word > smp_load_acquire(&quell_lazy_places.paid) && (!print || print == quell_fingerprint(key)))
		quell_flush_pending_word(word, mapping, index);
}

/* Parked frames. */

/*
 * Makes the deferred flushes of the oldest lots, one in this many. The younger a deferred flush, the more CPUs have
 * not flushed since. Does not sleep, but waits for other CPUs.
 */
static void quell_pay_parked(unsigned int one_of)
{
	unsigned int upto;
	u64 stamp;

	spin_lock(&lazy_lock);
	upto = lots_paid + DIV_ROUND_UP(lots_next - lots_paid, one_of);
	/* The last lot is the only one that may take frames yet. */
	if (upto == lots_next)
		lots_sealed = upto;
	stamp = lot_stamps[(upto - 1) & lots_mask];
	spin_unlock(&lazy_lock);
	if (quell_keeps(FRAMES_ARE_REUSED))
		quell_deferral_flush_pending(stamp);
	spin_lock(&lazy_lock);
	/* Another task may have paid for more meanwhile. */
	while ((int)(upto - lots_paid) > 0)
		WRITE_ONCE(quell_parked, quell_parked - folio_batch_count(&lots[lots_paid++ & lots_mask]));
	quell_advance();
	spin_unlock(&lazy_lock);
}

/*
 * Removes the first lot from the ring, in reverse order. The page allocator hands out the last freed frame first. So
 * pages that are read in one after the other get frames in the order in which theirs were reclaimed, mostly
 * adjacent, and requests to devices have fewer segments. Under lazy_lock; the lot is flushed.
 */
static void quell_take_lot(struct folio_batch *folios)
{
	struct folio_batch *lot = &lots[lots_first++ & lots_mask];
	unsigned int count = folio_batch_count(lot), i;

	folio_batch_init(folios);
	folios->nr = count;
	for (i = 0; i < count; i++)
		folios->folios[i] = lot->folios[count - 1 - i];
}

/* Gives all of them to the page allocator. Sleeps not, but waits for other CPUs. */
void quell_lazy_drain(void)
{
	struct folio_batch folios;
	bool some;

	quell_pay_parked(1);
	do {
		spin_lock(&lazy_lock);
		some = lots_first != lots_paid;
		if (some)
			quell_take_lot(&folios);
		spin_unlock(&lazy_lock);
		if (some)
			free_unref_folios(&folios);
	} while (some);
}

static void quell_drain_later(struct work_struct *work)
{
	quell_lazy_drain();
	/* Another task has parked frames meanwhile. */
	if (READ_ONCE(lots_first) != READ_ONCE(lots_next))
		schedule_delayed_work(to_delayed_work(work), HZ);
}
static DECLARE_DELAYED_WORK(drain_work, quell_drain_later);

/*
 * Takes the frames of a batch that defers, and gives frames in exchange that were paid for, or none: a lot for a lot,
 * as all at once would not fit into the page allocator's lists of this CPU.
 */
static void quell_park(struct folio_batch *folios, u64 stamp)
{
	unsigned int count = folio_batch_count(folios);
	struct folio_batch *lot = NULL;
	bool first, full;

	spin_lock(&lazy_lock);
	first = lots_first == lots_next;
	if (lots_next != lots_sealed && folio_batch_space(&lots[(lots_next - 1) & lots_mask]) >= count) {
		lot = &lots[(lots_next - 1) & lots_mask];
	} else if (lots_next - lots_first <= lots_mask) {
		lot = &lots[lots_next++ & lots_mask];
		folio_batch_init(lot);
	} else {
		spin_unlock(&lazy_lock);
		/* No room: the caller frees them. */
		if (quell_keeps(FRAMES_ARE_REUSED))
			quell_deferral_flush_pending(stamp);
		return;
	}
	memcpy(&lot->folios[lot->nr], folios->folios, count * sizeof(struct folio *));
	lot->nr += count;
	parked_stamp = max(parked_stamp, stamp);
	lot_stamps[lot - lots] = parked_stamp;
	WRITE_ONCE(quell_parked, quell_parked + count);
	full = quell_parked > quell_most;
	if (lot->nr == count && lots_first != lots_paid)
		quell_take_lot(folios);
	else
		folio_batch_reinit(folios);
	spin_unlock(&lazy_lock);
	if (full)
		quell_pay_parked(QUELL_PAID_PART);
	if (first)
		schedule_delayed_work(&drain_work, HZ);
}

/* A task's. */

/* A flag of a file's mapping, beside Linux's own: quell_is_fit() has found it fit. */
#define QUELL_AS_FIT		30
static_assert(QUELL_AS_FIT >= AS_FOLIO_ORDER_MAX + AS_FOLIO_ORDER_BITS);

/* Whether all that may change the bytes of this file comes by here; then it is noted. */
static bool quell_is_fit(struct address_space *mapping)
{
	struct inode *inode = mapping->host;

	if (!inode || !S_ISREG(inode->i_mode) || mapping_exiting(mapping) ||
	    (!(inode->i_sb->s_type->fs_flags & FS_FLUSHES_DEFERRED) && quell_keeps(FILE_SYSTEMS_OPT_IN)))
		return false;
	set_bit(QUELL_AS_FIT, &mapping->flags);
	/* Pairs with quell_lazy_unfit(). */
	smp_mb__after_atomic();
	if (!(READ_ONCE(inode->i_flags) & (S_SWAPFILE | S_DAX)))
		return true;
	clear_bit(QUELL_AS_FIT, &mapping->flags);
	return false;
}

/* The file has become a swap file; its flags show it. */
void quell_lazy_unfit(struct address_space *mapping)
{
	/* Pairs with quell_is_fit(): it sees the flags, or its note is taken away here. */
	smp_mb();
	clear_bit(QUELL_AS_FIT, &mapping->flags);
}

/* Returns whether this file can handle the folio, given a suitable file. */
static __always_inline bool quell_is_plain(struct folio *folio)
{
	return !folio_test_large(folio) &&
	       /* Frames for callers that have drained already: alloc_contig_range(), memory offlining. */
	       !is_migrate_isolate_page(&folio->page);
}

/* Prevents deferring the pages that this task unmaps next, or has unmapped. */
void quell_lazy_spoil(void)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	if (reclaim)
		reclaim->unmapped = QUELL_SPOILT;
}

static __always_inline void quell_note(struct quell_reclaim *reclaim, struct address_space *mapping, struct folio *folio)
{
	reclaim->unmapped = NULL;
	reclaim->pages++;
	quell_record(quell_key(mapping, folio->index), reclaim->number);
}

/* The same as below, for the first page of a batch, and the first of a file. */
static noinline void quell_lazy_remove_first(struct address_space *mapping, struct folio *folio)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	/* A page that may not be deferred stays the last unmapped one, which makes the batch flush. */
	if (!quell_is_plain(folio) || !quell_is_fit(mapping))
		return;
	if (!reclaim->number)
		reclaim->number = quell_number_new();
	if (reclaim->number)
		quell_note(reclaim, mapping, folio);
}

/*
 * Reclaim is about to take the locked folio, which nothing maps, out of the page cache for good: from here on a task
 * that fills its slot again finds the batch that has unmapped it. Called before the locks of the slot are taken.
 */
void quell_lazy_remove(struct address_space *mapping, struct folio *folio)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;
	unsigned long fit = BIT(QUELL_AS_FIT);

	/* It was not mapped, or is flushed already, or will be. */
	if (!reclaim || reclaim->unmapped != folio)
		return;
	if (unlikely(!reclaim->number || (READ_ONCE(mapping->flags) & (fit | BIT(AS_EXITING))) != fit)) {
		quell_lazy_remove_first(mapping, folio);
		return;
	}
	if (quell_is_plain(folio))
		quell_note(reclaim, mapping, folio);
}

/* Whether all of them may be parked; `deferring` of them defer, which are fit for it. */
static bool quell_may_park(struct folio_batch *folios, unsigned int deferring)
{
	unsigned int i;

	if (likely(deferring == folio_batch_count(folios)))
		return true;
	for (i = 0; i < folio_batch_count(folios); i++) {
		struct folio *folio = folios->folios[i];

		if (!quell_is_plain(folio))
			return false;
	}
	return true;
}

/* Returns whether this task's unmapped pages may be deferred, and there are any. */
static bool quell_may_end_deferred(struct quell_reclaim *reclaim)
{
	return reclaim && reclaim->number && !reclaim->unmapped;
}

/*
 * Ends this task's batch: deferred with this stamp, or flushed if it is 0. Records that under the batch's number,
 * which becomes free, and parks or frees the waiting frames.
 */
static void quell_end(struct quell_reclaim *reclaim, u64 stamp)
{
	struct folio_batch *lot;

	/* Pairs with quell_advance(). */
	if (reclaim->number)
		smp_store_release(&stamps[reclaim->number % QUELL_BATCHES], stamp);
	reclaim->number = 0;
	reclaim->pages = 0;
	for (lot = reclaim->waiting; lot < reclaim->waiting + QUELL_WAITING && folio_batch_count(lot); lot++) {
		if (stamp)
			quell_park(lot, stamp);
		free_unref_folios(lot);
	}
}

/*
 * Defers the flush of this task's unmapped pages, and parks the waiting frames and those of `folios`. Folios to be
 * freed instead may take their place.
 */
static void quell_end_deferred(struct quell_reclaim *reclaim, struct folio_batch *folios)
{
	u64 stamp;

	quell_stay();
	stamp = quell_reclaim_defer(reclaim);
	quell_end(reclaim, stamp);
	if (stamp && folios)
		quell_park(folios, stamp);
}

/* Has these folios wait for the end of the batch; false if there is no room. */
static bool quell_keep_waiting(struct quell_reclaim *reclaim, struct folio_batch *folios)
{
	unsigned int count = folio_batch_count(folios);
	struct folio_batch *lot;

	for (lot = reclaim->waiting; lot < reclaim->waiting + QUELL_WAITING; lot++) {
		if (folio_batch_space(lot) < count)
			continue;
		memcpy(&lot->folios[lot->nr], folios->folios, count * sizeof(struct folio *));
		lot->nr += count;
		folio_batch_reinit(folios);
		reclaim->pages = 0;
		return true;
	}
	return false;
}

/*
 * Called when reclaim is about to flush and to free these folios. This task has unmapped some of them; others may
 * never have been mapped. Returns true if the flush may be deferred: then there is nothing to flush, and the folios
 * wait for the end of the batch. That is the end of this call of reclaim (quell_lazy_close()), or here, if no more
 * may wait or there is no such call (MADV_PAGEOUT). Then they are parked, and the folios left in their place are
 * others to be freed.
 */
bool quell_lazy_defer(struct folio_batch *folios)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	if (!quell_may_end_deferred(reclaim) || !quell_may_park(folios, reclaim->pages))
		return false;
	if (!current->reclaim_state) {
		quell_end_deferred(reclaim, folios);
		/* Nothing needs a flush; the batch ends. */
		return false;
	}
	if (!quell_keep_waiting(reclaim, folios))
		quell_end_deferred(reclaim, folios);
	return true;
}

/* A call of reclaim ends. */
void quell_lazy_close(void)
{
	struct quell_reclaim *reclaim = current->tlb_ubc.arch.quell;

	if (quell_may_end_deferred(reclaim))
		quell_end_deferred(reclaim, NULL);
	try_to_unmap_flush();
}

/* Updates numbers and waiting frames at the end of a flushed batch. */
void quell_lazy_end_flushed(struct quell_reclaim *reclaim)
{
	quell_end(reclaim, 0);
}

/* Callers that change files. */

static void quell_flush_pending_range(struct address_space *mapping, pgoff_t first, pgoff_t last)
{
	pgoff_t index;

	/*
	 * A page that the caller has not found in the page cache had its number, and its word in the table, before it
	 * left.
	 */
	smp_rmb();
	if (last - first < QUELL_LOOK_UP) {
		for (index = first; index <= last; index++)
			quell_flush_pending_page(mapping, index);
		return;
	}
	if (smp_load_acquire(&last_number) << QUELL_PRINT_BITS > smp_load_acquire(&quell_lazy_places.paid))
		quell_flush_pending_mappings(mapping, first, last);
}

/*
 * A new folio was put into slots of the page cache. It is locked, so no task has changed it yet. The former page may
 * have left without a flush: its word is outstanding, or there is more than one page.
 */
void quell_lazy_fill(struct address_space *mapping, unsigned long index, long nr)
{
	if (quell_keeps(FILL_FLUSHES_PENDING))
		quell_flush_pending_range(mapping, index, index + nr - 1);
}

/* The bytes of these pages are others now, or there are none, and nothing of them is in the page cache. */
void quell_lazy_changed(struct address_space *mapping, unsigned long first, unsigned long last)
{
	if (quell_keeps(CHANGE_FLUSHES_PENDING) && !mapping_exiting(mapping) && first <= last)
		quell_flush_pending_range(mapping, first, last);
}

bool __init quell_lazy_init(void)
{
	unsigned long pages = totalram_pages(), most_lots;
	unsigned int bits;

	/* One byte for each page of memory. */
	bits = clamp(order_base_2(pages / sizeof(u64)), QUELL_LEAST_PLACE_BITS, 24);
	quell_lazy_places.place = kvcalloc(1UL << bits, sizeof(u64), GFP_KERNEL);
	quell_lazy_places.mask = BIT(bits) - 1;
	quell_most = clamp(pages / 256, 64UL, 2048UL);
	/* Two lots have more frames than one has room for; as many as defer may have been paid for. */
	most_lots = roundup_pow_of_two(4 * (quell_most / PAGEVEC_SIZE + 2));
	lots = kvcalloc(most_lots, sizeof(struct folio_batch), GFP_KERNEL);
	lot_stamps = kvcalloc(most_lots, sizeof(u64), GFP_KERNEL);
	lots_mask = most_lots - 1;
	return quell_lazy_places.place && lots && lot_stamps;
}

void __init quell_lazy_exit(void)
{
	kvfree(quell_lazy_places.place);
	kvfree(lots);
	kvfree(lot_stamps);
	quell_lazy_places.place = NULL;
	lots = NULL;
	lot_stamps = NULL;
}

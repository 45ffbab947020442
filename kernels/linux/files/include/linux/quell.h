/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * quell in Linux: the hooks that memory management calls.
 *
 * Four static branches enable parts of the engine: quell_tlb() switches and flushes (S2, S4), which the others need;
 * quell_batch() common flushes (S0); quell_extents() zeroing (S1); quell_lazy() deferred flushes (S3). All are off
 * unless the command line enables them, and never change after boot.
 */
#ifndef _LINUX_QUELL_H
#define _LINUX_QUELL_H

#include <linux/types.h>

struct address_space;
struct arch_tlbflush_unmap_batch;
struct folio;
struct folio_batch;
struct mm_struct;
struct task_struct;

#ifdef CONFIG_QUELL

#include <linux/hash.h>
#include <linux/jump_label.h>

DECLARE_STATIC_KEY_FALSE(quell_tlb_key);
DECLARE_STATIC_KEY_FALSE(quell_batch_key);
DECLARE_STATIC_KEY_FALSE(quell_extents_key);
DECLARE_STATIC_KEY_FALSE(quell_lazy_key);

static __always_inline bool quell_tlb(void)
{
	return static_branch_unlikely(&quell_tlb_key);
}

static __always_inline bool quell_batch(void)
{
	return static_branch_unlikely(&quell_batch_key);
}

static __always_inline bool quell_extents(void)
{
	return static_branch_unlikely(&quell_extents_key);
}

static __always_inline bool quell_lazy(void)
{
	return static_branch_unlikely(&quell_lazy_key);
}

void quell_init(void);
void quell_cpu_up(struct mm_struct *mm);
void quell_cpu_down(void);

/* Makes the space of an mm that has its root table, and was never used; false if there is no memory. */
bool quell_mm_new(struct mm_struct *mm);
/* Ends the space of an mm that no task refers to, not even lazily. */
void quell_mm_retire(struct mm_struct *mm);
/* Frees the memory of a space that was retired or never used. */
void quell_mm_free(struct mm_struct *mm);

void quell_mm_switch(struct mm_struct *next, struct task_struct *tsk);
void quell_mm_lazy(void);
void quell_mm_flush(struct mm_struct *mm, unsigned long start,
		    unsigned long end, unsigned int stride_shift,
		    bool freed_tables);
void quell_mm_flush_pending(struct mm_struct *mm);
bool quell_nmi_uaccess_okay(void);
/* Completes every earlier flush for which a receipt was enough for others. May wait. */
void quell_flushed(void);

void quell_reclaim_flush(struct arch_tlbflush_unmap_batch *batch);
bool quell_reclaim_writable(void);
void quell_clean_folios(struct address_space *mapping,
			struct folio_batch *folios);
bool quell_zero_folio(struct folio *folio, unsigned long address);

void quell_lazy_spoil(void);
void quell_lazy_remove(struct address_space *mapping, struct folio *folio);
void quell_lazy_unfit(struct address_space *mapping);
bool quell_lazy_defer(struct folio_batch *folios);
void quell_lazy_close(void);
void quell_lazy_drain(void);
void quell_lazy_catch_up(void);
void quell_lazy_fill(struct address_space *mapping, unsigned long index,
		     long nr);
void quell_lazy_changed(struct address_space *mapping, unsigned long first,
			unsigned long last);

/* The state of mm/quell_lazy.c for the page that was in a slot of the page cache. The smallest table size. */
#define QUELL_LEAST_PLACE_BITS	10

struct quell_lazy_places {
	u64 *place;
	u64 mask;
	/* Words up to this one have been flushed. */
	u64 paid;
};
extern struct quell_lazy_places quell_lazy_places;

static __always_inline u64 quell_key(struct address_space *mapping,
				     unsigned long index)
{
	/* Pages of a file follow one another in the table. */
	return ((unsigned long)mapping * GOLDEN_RATIO_64 >> 16) + index;
}

static __always_inline u64 *quell_place(u64 key)
{
	return &quell_lazy_places.place[key & quell_lazy_places.mask];
}

/* One fill of this many slots of a file checks whether its CPU is behind with deferred flushes. */
#define QUELL_FILLS_TOGETHER	16

/* A folio of this many pages was put into slots of the page cache. */
static __always_inline void quell_lazy_filled(struct address_space *mapping,
					      unsigned long index, long nr)
{
	if (unlikely(!(index % QUELL_FILLS_TOGETHER)))
		quell_lazy_catch_up();
	if (unlikely(nr != 1 ||
		     READ_ONCE(*quell_place(quell_key(mapping, index))) >
		     smp_load_acquire(&quell_lazy_places.paid)))
		quell_lazy_fill(mapping, index, nr);
}

/* The most pages that one call of migrate_pages() unmaps before it flushes: 32 MB. */
#define QUELL_MIGRATE_TOGETHER	8192

#else

static inline bool quell_tlb(void) { return false; }
static inline bool quell_batch(void) { return false; }
static inline bool quell_extents(void) { return false; }
static inline bool quell_lazy(void) { return false; }
static inline void quell_init(void) { }
static inline void quell_cpu_up(struct mm_struct *mm) { }
static inline void quell_cpu_down(void) { }
static inline bool quell_mm_new(struct mm_struct *mm) { return true; }
static inline void quell_mm_retire(struct mm_struct *mm) { }
static inline void quell_mm_free(struct mm_struct *mm) { }
static inline void quell_mm_switch(struct mm_struct *next,
				   struct task_struct *tsk) { }
static inline void quell_mm_lazy(void) { }
static inline void quell_mm_flush(struct mm_struct *mm, unsigned long start,
				  unsigned long end, unsigned int stride_shift,
				  bool freed_tables) { }
static inline void quell_mm_flush_pending(struct mm_struct *mm) { }
static inline bool quell_nmi_uaccess_okay(void) { return true; }
static inline void quell_flushed(void) { }
static inline void
quell_reclaim_flush(struct arch_tlbflush_unmap_batch *batch) { }
static inline bool quell_reclaim_writable(void) { return false; }
static inline void quell_clean_folios(struct address_space *mapping,
				      struct folio_batch *folios) { }
static inline bool quell_zero_folio(struct folio *folio, unsigned long address)
{
	return false;
}
static inline void quell_lazy_spoil(void) { }
static inline void quell_lazy_remove(struct address_space *mapping,
				     struct folio *folio) { }
static inline void quell_lazy_unfit(struct address_space *mapping) { }
static inline bool quell_lazy_defer(struct folio_batch *folios) { return false; }
static inline void quell_lazy_close(void) { }
static inline void quell_lazy_drain(void) { }
static inline void quell_lazy_filled(struct address_space *mapping,
				     unsigned long index, long nr) { }
static inline void quell_lazy_changed(struct address_space *mapping,
				      unsigned long first,
				      unsigned long last) { }
#define QUELL_MIGRATE_TOGETHER	8192

#endif /* CONFIG_QUELL */
#endif /* _LINUX_QUELL_H */

/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * quell in Linux: batches of entries, of many address spaces, that wait for one flush.
 */
#ifndef _LINUX_QUELL_RECLAIM_H
#define _LINUX_QUELL_RECLAIM_H

struct mm_struct;
struct quell_reclaim;

/* Begins a batch; NULL if there is no memory for it. Does not sleep. The caller ends it. */
struct quell_reclaim *quell_reclaim_begin(void);

/* An entry of a page was cleared or lost rights. Under the lock of its table. */
void quell_reclaim_report(struct quell_reclaim *reclaim, struct mm_struct *mm,
			  unsigned long address);

/* On return no CPU uses a translation that was reported. Interrupts are on. */
void quell_reclaim_end(struct quell_reclaim *reclaim);

#endif /* _LINUX_QUELL_RECLAIM_H */

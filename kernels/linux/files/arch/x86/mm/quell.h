/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* quell in Linux: declarations for the glue in this folder, and for its part in tlb.c. */
#ifndef _ARCH_X86_MM_QUELL_H
#define _ARCH_X86_MM_QUELL_H

#include <linux/bug.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/quell.h>

#include <asm/tlbflush.h>

#include <quell/engine.h>

/* The engine's tags: all of Linux's ASIDs but one, which is the kernel's. */
#define QUELL_TAGS		(TLB_NR_DYN_ASIDS - 1)
#define QUELL_ALL_ASIDS		(BIT(TLB_NR_DYN_ASIDS) - 1)

extern struct quell_engine quell_engine;
extern struct quell_zero_plan quell_zero_plan;
extern struct quell_hooks quell_hooks;

/* The engine refuses only mistakes of these files. */
#define quell_check(status) ({						\
	enum quell_status __status = (status);				\
	WARN_ONCE(__status != QUELL_STATUS_OK, "%s",			\
		  quell_status_text(__status));				\
})

/*
 * The same for calls that the engine refuses only if it checks for misuse, as it does in the kernels for testing
 * these files.
 */
#define quell_expect(status) ({						\
	enum quell_status __expected = (status);			\
	if (IS_ENABLED(CONFIG_QUELL_MUTANTS) || IS_ENABLED(CONFIG_KASAN)) \
		quell_check(__expected);				\
})

/* Once, after the engine was made and before the first space. */
void quell_spaces_init(void);
void quell_reclaim_init(void);

struct quell_this_cpu {
	/* The engine's state of this CPU. */
	struct quell_cpu *cpu;
	/* Which space the engine has loaded last on this CPU, whether it was made to leave it or not; or none. */
	struct quell_space *space;
	/* The mm whose space is being loaded, or was loaded last. */
	struct mm_struct *mm;
	/* ASIDs under which kernel entries are out of date: see quell_kernel_entries_are_stale(). */
	u16 stale;
	/* Why something is invalidated (enum tlb_flush_reason). */
	u8 reason;
};
DECLARE_PER_CPU(struct quell_this_cpu, quell_this);

/* The space of an mm that was made by hand. */
void quell_space_of_static(struct mm_struct *mm);
/* Back to the space that was kept lazily. Interrupts are off. */
void quell_come_back(struct mm_struct *mm);
/* Leaves the space that was loaded last, if this CPU has not left it yet; the engine knows none here any more. */
void quell_forget(void);

/* Of quell_probe.c, for a test: called between the receipt of a request and its flush. */
#ifdef CONFIG_QUELL_MUTANTS
void quell_probe(void);
void quell_probe_init(struct dentry *folder);
#else
static inline void quell_probe(void) { }
#endif

#endif /* _ARCH_X86_MM_QUELL_H */

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: the engine and its machine.
 *
 * The engine is an object without source here (quell_engine.o), behind <quell/engine.h>. It decides which CPUs must
 * flush what and when, and waits for them. This file provides a machine (quell_hw_*), spaces (mm->context.quell) and
 * CPUs, and passes changes of one mm to the engine: flush_tlb_mm_range() becomes one flush, without a batch.
 *
 * These files build on it:
 *
 *   - quell_reclaim.c: batches of many mms, and deferred flushes;
 *   - mm/quell.c: write protection of file pages before writeback, with such a batch;
 *   - mm/quell_lazy.c: clean file pages that reclaim unmaps, with a flush that may be deferred;
 *   - quell_unmap.c: pages that a task unmaps, until try_to_unmap_flush();
 *   - quell_init.c: command line, initialization, statistics.
 *
 * Context switches and CR3 are in quell_tlb.h, which is part of tlb.c.
 *
 * Callers of the engine stay on their CPU meanwhile: preemption or interrupts are off.
 */
#define pr_fmt(fmt) "quell: " fmt

#include <linux/cpu.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/quell_reclaim.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/vmstat.h>

#include <asm/apic.h>
#include <asm/hardirq.h>
#include <asm/idtentry.h>
#include <asm/tlbflush.h>

#include <asm/trace/irq_vectors.h>
#include <trace/events/ipi.h>
#include <trace/events/tlb.h>

#include "mm_internal.h"
#include "quell.h"

DEFINE_STATIC_KEY_FALSE(quell_tlb_key);
DEFINE_STATIC_KEY_FALSE(quell_batch_key);
DEFINE_STATIC_KEY_FALSE(quell_extents_key);
DEFINE_STATIC_KEY_FALSE(quell_lazy_key);

DEFINE_PER_CPU(struct quell_this_cpu, quell_this) = {
	.reason = TLB_LOCAL_MM_SHOOTDOWN,
};

struct quell_engine quell_engine;
struct quell_zero_plan quell_zero_plan __ro_after_init;

static struct kmem_cache *space_cache __ro_after_init;

/* The machine. Functions that access CR3 are in quell_tlb.h. */

uint32_t quell_hw_this_cpu(void)
{
	return raw_smp_processor_id();
}

void quell_hw_fence(void)
{
	smp_mb();
}

bool quell_hw_mask_interrupts(void)
{
	unsigned long flags;

	local_irq_save(flags);
	return !irqs_disabled_flags(flags);
}

void quell_hw_restore_interrupts(bool were_on)
{
	if (were_on)
		local_irq_enable();
}

void quell_hw_relax(void)
{
	cpu_relax();
}

void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
	/*
	 * Its first nr_cpu_ids bits are a cpumask; quell_init() has seen to that. The words behind them are not written, so it
	 * is not copied.
	 */
	const struct cpumask *mask = (const struct cpumask *)targets->bits;
	unsigned int first = cpumask_first(mask);

	count_vm_tlb_event(NR_TLB_REMOTE_FLUSH);
	trace_tlb_flush(TLB_REMOTE_SEND_IPI, TLB_FLUSH_ALL);
	trace_ipi_send_cpumask(mask, _RET_IP_, asm_sysvec_quell);
	/* One CPU needs no walk over the others, and neither do all of them. */
	if (cpumask_next(first, mask) >= nr_cpu_ids)
		__apic_send_IPI(first, QUELL_VECTOR);
	else if (cpumask_or_equal(mask, cpumask_of(raw_smp_processor_id()), cpu_online_mask))
		apic_send_IPI_allbutself(QUELL_VECTOR);
	else
		__apic_send_IPI_mask(mask, QUELL_VECTOR);
}

/* Serves this CPU's inbox without locks, clock or wakeups. The gate exists even without an engine. */
DEFINE_IDTENTRY_SYSVEC_SIMPLE(sysvec_quell)
{
	u8 reason = this_cpu_read(quell_this.reason);

	apic_eoi();
	trace_quell_entry(QUELL_VECTOR);
	inc_irq_stat(irq_tlb_count);
	count_vm_tlb_event(NR_TLB_REMOTE_FLUSH_RECEIVED);
	this_cpu_write(quell_this.reason, TLB_REMOTE_SHOOTDOWN);
	if (quell_tlb())
		quell_expect(quell_on_interrupt(&quell_engine, this_cpu_read(quell_this.cpu)));
	this_cpu_write(quell_this.reason, reason);
	trace_quell_exit(QUELL_VECTOR);
}

/*
 * Warns that another CPU does not answer: when the wait exceeds a long handler's, and each time that it has doubled.
 */
static void quell_waits_long(uint32_t target, uint64_t turns)
{
	if (turns >= 1 << 26)
		pr_warn("CPU %u has waited for CPU %u for %llu turns\n", raw_smp_processor_id(), target, turns);
}

/* In a guest of KVM arch/x86/kernel/kvm.c adds flush_on_reentry, before the engine is made. */
struct quell_hooks quell_hooks = { .waits_long = quell_waits_long };

void quell_panic(const char *message, size_t length)
{
	panic("quell: %.*s", (int)length, message);
}

/*
 * Copies and clears the engine's memory, some hundred bytes at a time. For that length, string instructions are
 * slower than eight bytes at a time. The engine's object calls these instead of memcpy() and memset().
 */
void *quell_copy(void *to, const void *from, size_t bytes);
void *quell_fill(void *to, int byte, size_t bytes);

void *quell_copy(void *to, const void *from, size_t bytes)
{
	const u64 *source = from;
	u64 *target = to;

	if (bytes % 32)
		return memcpy(to, from, bytes);
	for (; bytes; bytes -= 32, source += 4, target += 4) {
		u64 a = source[0], b = source[1], c = source[2], d = source[3];

		target[0] = a;
		target[1] = b;
		target[2] = c;
		target[3] = d;
	}
	return to;
}

void *quell_fill(void *to, int byte, size_t bytes)
{
	u64 *target = to;

	if (byte || bytes % 32)
		return memset(to, byte, bytes);
	for (; bytes; bytes -= 32, target += 4) {
		WRITE_ONCE(target[0], 0);
		WRITE_ONCE(target[1], 0);
		WRITE_ONCE(target[2], 0);
		WRITE_ONCE(target[3], 0);
	}
	return to;
}

/* CPUs. */

/* Its interrupts are about to be lost; from here on it runs kernel threads without a user root. */
void quell_cpu_down(void)
{
	quell_check(quell_cpu_offline(&quell_engine, this_cpu_read(quell_this.space)));
	this_cpu_write(quell_this.space, NULL);
}

void quell_cpu_up(struct mm_struct *mm)
{
	enum quell_status status = quell_cpu_online(&quell_engine);

	if (status == QUELL_STATUS_ONLINE) {
		/* Back from a sleep with its TLB and CR3 in an unknown state: leave, come again, load the root anew. */
		quell_cpu_down();
		status = quell_cpu_online(&quell_engine);
		if (mm != &init_mm)
			quell_mm_switch(mm, NULL);
	}
	quell_check(status);
}

/* Spaces. */

void __init quell_spaces_init(void)
{
	space_cache = KMEM_CACHE(quell_space, SLAB_PANIC);
}

static void quell_space_make(struct mm_struct *mm, struct quell_space *made)
{
	quell_check(quell_space_new(&quell_engine, made, __pa(mm->pgd) >> PAGE_SHIFT));
	mm->context.quell = made;
	/* A child's is a copy of its parent's, and nothing of the child was ever reclaimed. */
	atomic_set(&mm->tlb_flush_batched, 0);
}

bool quell_mm_new(struct mm_struct *mm)
{
	struct quell_space *made = kmem_cache_alloc(space_cache, GFP_KERNEL_ACCOUNT);

	if (!made)
		return false;
	quell_space_make(mm, made);
	return true;
}

/*
 * Called after the last reference is dropped. No CPU has the mm loaded lazily any more, because switch_mm_irqs_off()
 * precedes mmdrop_lazy_tlb(). So no CPU is waited for.
 */
void quell_mm_retire(struct mm_struct *mm)
{
	preempt_disable();
	quell_check(quell_space_retire(&quell_engine, mm->context.quell));
	preempt_enable();
}

void quell_mm_free(struct mm_struct *mm)
{
	kmem_cache_free(space_cache, mm->context.quell);
}

/* An mm that was made by hand and is never freed, like that of the firmware's calls, gets its space when it is loaded. */
void quell_space_of_static(struct mm_struct *mm)
{
	static struct quell_space made[4];
	static atomic_t used = ATOMIC_INIT(0);
	unsigned int n = atomic_fetch_inc(&used);

	if (n >= ARRAY_SIZE(made))
		panic("quell: an mm without init_new_context()");
	quell_space_make(mm, &made[n]);
}

void quell_come_back(struct mm_struct *mm)
{
	this_cpu_write(quell_this.reason, TLB_FLUSH_ON_TASK_SWITCH);
	quell_expect(quell_switch_to(&quell_engine, this_cpu_read(quell_this.cpu), mm->context.quell,
					 mm->context.quell));
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
}

void quell_forget(void)
{
	quell_check(quell_leave(&quell_engine, this_cpu_read(quell_this.space)));
	this_cpu_write(quell_this.space, NULL);
}

void quell_mm_lazy(void)
{
	quell_expect(quell_enter_lazy(&quell_engine, this_cpu_read(quell_this.cpu)));
}

bool quell_nmi_uaccess_okay(void)
{
	return quell_user_access_allowed(&quell_engine) || !quell_keeps(NMIS_ASK);
}

/* Flushes. */

/* The engine's name of a range, at `range`; or NULL, which is everything. */
static __always_inline const struct quell_range *
quell_range_between(struct quell_range *range, unsigned long start, unsigned long end,
	       unsigned int stride_shift)
{
	/* Everything also if it is empty: then the difference is as large as can be. */
	if ((end - start - 1) >> stride_shift >= tlb_single_page_flush_ceiling)
		return NULL;
	switch (stride_shift) {
	case PAGE_SHIFT:
		range->stride = QUELL_STRIDE_BASE;
		break;
	case PMD_SHIFT:
		range->stride = QUELL_STRIDE_LARGE;
		break;
	case PUD_SHIFT:
		range->stride = QUELL_STRIDE_HUGE;
		break;
	default:
		return NULL;
	}
	/* Whole strides: a table's range may begin and end anywhere in one. */
	start = (start >> stride_shift) << (stride_shift - PAGE_SHIFT);
	end = (((end - 1) >> stride_shift) + 1) << (stride_shift - PAGE_SHIFT);
	range->start = start;
	range->pages = end - start;
	return range;
}

/* Flushes on this CPU's behalf. Preemption is off. */
static __always_inline void quell_flush_space(struct quell_space *space, const struct quell_range *range, u32 scope)
{
	quell_expect(quell_flush(&quell_engine, this_cpu_read(quell_this.cpu), space, range, scope));
}

/*
 * Returns whether this task may share a full flush. If several threads unmap at the same time, mmu_gather makes each
 * flush everything. Two CPUs gain nothing.
 */
static __always_inline bool quell_may_join(struct mm_struct *mm)
{
	return num_online_cpus() > 2 && atomic_read(&mm->mm_users) > 1;
}

/*
 * The engine learns of a change when it is flushed. Until then, mm_tlb_flush_pending() is for code that finds the
 * entry.
 */
void quell_mm_flush(struct mm_struct *mm, unsigned long start,
		    unsigned long end, unsigned int stride_shift,
		    bool freed_tables)
{
	/* A large page may be split: no CPU may hold it beside its pieces (AMD erratum 383), so a receipt is not enough. */
	u32 scope = freed_tables || stride_shift > PAGE_SHIFT ? QUELL_SCOPE_TABLES : QUELL_SCOPE_LEAF;
	struct quell_space *space = mm->context.quell;
	struct quell_range buffer __uninitialized;
	const struct quell_range *range;

	/* Without one it was never loaded. */
	if (likely(space)) {
		range = quell_range_between(&buffer, start, end, stride_shift);
		preempt_disable();
		if (!range && freed_tables && quell_may_join(mm))
			quell_expect(quell_flush_coalesced(&quell_engine, this_cpu_read(quell_this.cpu), space));
		else
			quell_flush_space(space, range, scope);
		preempt_enable();
	}
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, start, end);
}

/* For a task that has found an entry that reclaim cleared. Under the table's lock. */
void quell_mm_flush_pending(struct mm_struct *mm)
{
	preempt_disable();
	quell_check(quell_flush_pending(&quell_engine, mm->context.quell));
	preempt_enable();
}

void quell_flushed(void)
{
	preempt_disable();
	quell_check(quell_quiesce(&quell_engine));
	preempt_enable();
}

/* Zeroing. */

static void quell_resched(void)
{
	cond_resched();
}

/* The folio is contiguous in the direct map. The page to be touched is zeroed last. */
bool quell_zero_folio(struct folio *folio, unsigned long address)
{
	void *start = folio_address(folio);
	size_t at = address & (folio_size(folio) - 1);

	might_sleep();
	return quell_zero(&quell_zero_plan, start, folio_size(folio), start + at, quell_resched) == QUELL_STATUS_OK;
}

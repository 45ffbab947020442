/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * quell in Linux: context switches, and the engine's operations on this CPU's TLB. Included at the end of tlb.c,
 * whose static functions it uses for all accesses to CR3 and PCIDs. So Linux still handles page-table isolation,
 * linear address masking and memory encryption.
 *
 * cpu_tlbstate stays valid: whenever interrupts are on, loaded_mm and loaded_mm_asid match CR3. mm_cpumask()
 * contains every CPU that has ever loaded the mm. Only ctxs[] is unused, because the engine has its own. The
 * engine's tag is Linux's ASID plus one. One ASID is reserved for the kernel's own root, so that a walker that has
 * left a user's tables finds none of their entries.
 */
#include "quell.h"

/*
 * With page-table isolation kernel entries are not global, and a flush of kernel memory leaves them under the PCIDs
 * that are not loaded. Linux forgets those contexts; here they are remembered, and flushed as they are loaded.
 */
static noinline bool quell_kernel_entries_are_stale(u16 asid)
{
	bool stale;

	if (this_cpu_read(cpu_tlbstate.invalidate_other)) {
		this_cpu_write(cpu_tlbstate.invalidate_other, false);
		/* All but the loaded one, which is up to date. */
		this_cpu_or(quell_this.stale, QUELL_ALL_ASIDS &
			    ~BIT(this_cpu_read(cpu_tlbstate.loaded_mm_asid)));
	}
	stale = this_cpu_read(quell_this.stale) & BIT(asid);
	if (stale)
		this_cpu_and(quell_this.stale, ~BIT(asid));
	return stale;
}

/* The parts of a load besides CR3. `prev` is used only for its LDT. */
static __always_inline void quell_loaded(struct mm_struct *next, unsigned long lam, bool flush)
{
	struct mm_struct *prev = NULL;

	trace_tlb_flush(TLB_FLUSH_ON_TASK_SWITCH, flush ? TLB_FLUSH_ALL : 0);
	cpu_tlbstate_update_lam(lam, mm_untag_mask(next));
	/* loaded_mm comes after CR3. */
	barrier();
	if (IS_ENABLED(CONFIG_MODIFY_LDT_SYSCALL))
		prev = this_cpu_read(cpu_tlbstate.loaded_mm);
	this_cpu_write(cpu_tlbstate.loaded_mm, next);
	/* cr4_update_pce_mm(), where it has something to write: mostly no space may read performance counters. */
	if (static_branch_unlikely(&rdpmc_always_available_key) ||
	    unlikely(atomic_read(&next->context.perf_rdpmc_allowed)) ||
	    unlikely(this_cpu_read(cpu_tlbstate.cr4) & X86_CR4_PCE))
		cr4_update_pce_mm(next);
	switch_ldt(prev, next);
}

static noinline void quell_load_tagged(struct mm_struct *next, u16 asid, bool keep)
{
	unsigned long lam = mm_lam_cr3_mask(next);
	bool flush = quell_kernel_entries_are_stale(asid) || !keep;

	load_new_mm_cr3(next->pgd, asid, lam, flush);
	this_cpu_write(cpu_tlbstate.loaded_mm_asid, asid);
	quell_loaded(next, lam, flush);
}

/* Without PCIDs there is one ASID, and nothing to remember of others. */
static __always_inline void quell_load_untagged(struct mm_struct *next, unsigned long root)
{
	unsigned long lam = mm_lam_cr3_mask(next);

	write_cr3(__sme_set(root) | lam);
	quell_loaded(next, lam, true);
}

/* Called only from quell_mm_switch(). Without tags, it and its last callee save no registers. */
void quell_hw_load_root(uint64_t root, uint16_t tag, bool keep)
{
	struct mm_struct *next = this_cpu_read(quell_this.mm);

	if (static_cpu_has(X86_FEATURE_PCID))
		quell_load_tagged(next, tag - 1, keep);
	else
		quell_load_untagged(next, root << PAGE_SHIFT);
}

/*
 * Called from quell_mm_switch(), from the handler on a lazy CPU, and when the CPU goes offline. Entries under the
 * kernel's own tag are kept: Linux flushes the kernel's mappings by itself, and the engine has no kernel space here.
 */
void quell_hw_unload_root(void)
{
	if (this_cpu_read(cpu_tlbstate.loaded_mm) == &init_mm)
		return;
	if (static_cpu_has(X86_FEATURE_PCID))
		quell_load_tagged(&init_mm, QUELL_TAGS, true);
	else
		quell_load_untagged(&init_mm, __pa(init_mm.pgd));
	this_cpu_write(cpu_tlbstate_shared.is_lazy, false);
}

/*
 * Invalidates under the tag that is loaded: no other space's entries are invalidated one by one. Returns how many were. Apart
 * from its caller, which saves no registers for the one page that it mostly is.
 */
static noinline unsigned long quell_invalidate_pages(const struct quell_range *range)
{
	unsigned int shift = PAGE_SHIFT + 9 * range->stride;
	unsigned long address = range->start << PAGE_SHIFT;
	unsigned long entries = (range->pages << PAGE_SHIFT) >> shift, left;

	for (left = entries; left; left--, address += 1UL << shift)
		flush_tlb_one_user(address);
	return entries;
}

void quell_hw_invalidate(const struct quell_invalidation *what)
{
	enum tlb_flush_reason reason;
	unsigned long entries = 1;

	quell_probe();
	switch (what->kind) {
	case QUELL_INVALIDATION_KIND_RANGE:
		if (likely(what->range.pages == 1))
			flush_tlb_one_user(what->range.start << PAGE_SHIFT);
		else
			entries = quell_invalidate_pages(&what->range);
		reason = this_cpu_read(quell_this.reason);
		if (reason != TLB_REMOTE_SHOOTDOWN)
			count_vm_tlb_events(NR_TLB_LOCAL_FLUSH_ONE, entries);
		trace_tlb_flush(reason, entries);
		break;
	case QUELL_INVALIDATION_KIND_TAG:
		flush_tlb_local();
		reason = this_cpu_read(quell_this.reason);
		if (reason != TLB_REMOTE_SHOOTDOWN)
			count_vm_tlb_event(NR_TLB_LOCAL_FLUSH_ALL);
		trace_tlb_flush(reason, TLB_FLUSH_ALL);
		break;
	case QUELL_INVALIDATION_KIND_ALL:
	case QUELL_INVALIDATION_KIND_EVERYTHING:
		__flush_tlb_all();
		break;
	case QUELL_INVALIDATION_KIND_KERNEL:
		/* Of a kernel space, and none is made here. */
		WARN_ON_ONCE(1);
		break;
	}
}

/* The rest of quell_mm_switch(): `next` is loaded, in quell_hw_load_root(). */
static __always_inline void quell_mm_load(struct mm_struct *next)
{
	struct quell_space *from = this_cpu_read(quell_this.space), *to = next->context.quell;

	this_cpu_write(quell_this.mm, next);
	this_cpu_write(quell_this.space, to);
	quell_expect(quell_switch_to(&quell_engine, this_cpu_read(quell_this.cpu), from, to));
}

/* The same, the first time on this CPU. */
static noinline void quell_mm_load_first(struct mm_struct *next)
{
	cpumask_set_cpu(smp_processor_id(), mm_cpumask(next));
	if (!next->context.quell)
		quell_space_of_static(next);
	quell_mm_load(next);
}

static __always_inline void quell_mm_exchange(struct mm_struct *next)
{
	if (unlikely(next == &init_mm))
		quell_forget();
	/*
	 * Add the CPU to mm_cpumask(), which Linux interrupts, before reading LAM. A CPU that has left stays in it,
	 * and finds another mm when interrupted.
	 */
	else if (unlikely(!cpumask_test_cpu(smp_processor_id(), mm_cpumask(next))))
		quell_mm_load_first(next);
	else
		quell_mm_load(next);
}

static noinline void quell_mm_exchange_guarded(struct mm_struct *next, struct task_struct *tsk)
{
	cond_mitigation(tsk);
	quell_mm_exchange(next);
}

/* The mm to load is loaded already. */
static noinline void quell_mm_stay(struct mm_struct *mm)
{
	if (this_cpu_read(cpu_tlbstate_shared.is_lazy)) {
		this_cpu_write(cpu_tlbstate_shared.is_lazy, false);
		quell_come_back(mm);
	} else if (mm == &init_mm && this_cpu_read(quell_this.space)) {
		/* It was made to leave; now the mm may die. */
		quell_forget();
	}
}

/* Interrupts are off. Rare cases are separate functions, so that the usual path saves no registers. */
void quell_mm_switch(struct mm_struct *next, struct task_struct *tsk)
{
	lockdep_assert_irqs_disabled();
	VM_WARN_ON_ONCE(__read_cr3() !=
			build_cr3(this_cpu_read(cpu_tlbstate.loaded_mm)->pgd,
				  this_cpu_read(cpu_tlbstate.loaded_mm_asid),
				  tlbstate_lam_cr3_mask()));

	if (this_cpu_read(cpu_tlbstate.loaded_mm) == next) {
		quell_mm_stay(next);
		return;
	}
	if (unlikely(this_cpu_read(cpu_tlbstate_shared.is_lazy)))
		this_cpu_write(cpu_tlbstate_shared.is_lazy, false);
	/* Mitigations that no static branch has switched on have nothing to remember. */
	if (static_branch_unlikely(&switch_mm_cond_ibpb) || static_branch_unlikely(&switch_mm_always_ibpb) ||
	    static_branch_unlikely(&switch_mm_cond_l1d_flush))
		quell_mm_exchange_guarded(next, tsk);
	else
		quell_mm_exchange(next);
}

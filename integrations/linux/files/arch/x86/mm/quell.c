// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux: the engine, its machine, and what memory management asks of it.
 *
 * The engine is an object without source here (quell_engine.o), behind <quell/engine.h>. It decides which CPUs must
 * forget what, when, and when that is done; this file gives it a machine (quell_hw_*), spaces (mm->context.quell) and
 * CPUs, and brings it what changed:
 *
 *   - flush_tlb_mm_range() becomes a batch of one request on this CPU, begun and finished in one go.
 *   - Reclaim and migration get a batch each while they unmap (struct quell_reclaim), which holds a reference to each mm
 *     that it was told of: a space outlives the batches that name it.
 *   - Write protection of file pages before they are written gets one as well (mm/quell.c).
 *   - Clean file pages that reclaim takes away get one that may end with a debt in the place of a flush (mm/quell_lazy.c).
 *
 * Switches, and what touches CR3, are in quell_tlb.h, which is part of tlb.c.
 *
 * Everything that calls the engine stays on its CPU meanwhile: preemption is off, or interrupts are.
 */
#define pr_fmt(fmt) "quell: " fmt

#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/quell_reclaim.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/vmstat.h>

#include <asm/apic.h>
#include <asm/hardirq.h>
#include <asm/idtentry.h>
#include <asm/tlbflush.h>

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

/* The batch of the flush that is under way on this CPU. */
static DEFINE_PER_CPU(struct quell_batch, quell_call);

static struct quell_engine engine;
static struct quell_zero_plan zero_plan __ro_after_init;
static struct kmem_cache *reclaim_cache __ro_after_init;
static struct kmem_cache *space_cache __ro_after_init;

/* The engine refuses only what would be a mistake of this file. */
#define quell_check(status) ({						\
	enum quell_status __status = (status);				\
	WARN_ONCE(__status != QUELL_STATUS_OK, "%s",			\
		  quell_status_text(__status));				\
})

/* The command line. */

enum { WANT_BATCH = 1, WANT_EXTENTS = 2, WANT_TAGS = 4, WANT_REMOTE = 8, WANT_LAZY = 16 };

static const struct {
	const char *name;
	const char *policy;
	unsigned int bit;
} mechanisms[] = {
	{ "batch", "+S0", WANT_BATCH },
	{ "extents", "+S1", WANT_EXTENTS },
	{ "tags", "+S2", WANT_TAGS },
	{ "remote", "+S4", WANT_REMOTE },
	/* Asked for by name alone: see README.md, "What it does not do". */
	{ "lazy", "+S3", WANT_LAZY },
};

static unsigned int wanted __initdata;

static int __init quell_setup(char *text)
{
	char *word;
	int i;

	while ((word = strsep(&text, ",")) != NULL) {
		if (!strcmp(word, "off")) {
			wanted = 0;
			continue;
		}
		if (!strcmp(word, "all")) {
			wanted |= WANT_BATCH | WANT_EXTENTS | WANT_TAGS | WANT_REMOTE;
			continue;
		}
		for (i = 0; i < ARRAY_SIZE(mechanisms); i++) {
			if (!strcmp(word, mechanisms[i].name)) {
				wanted |= mechanisms[i].bit;
				break;
			}
		}
		if (i == ARRAY_SIZE(mechanisms))
			pr_warn("there is no \"%s\": quell= takes off, all, batch, extents, tags, remote, lazy\n", word);
	}
	return 0;
}
early_param("quell", quell_setup);

#ifdef CONFIG_QUELL_MUTANTS
static int __init quell_forget_setup(char *name)
{
	enum quell_status status;

	/* Rules of the glue have names of their own. */
	if (quell_lazy_leave_out(name))
		status = QUELL_STATUS_OK;
	else
		status = quell_leave_out(name);
	if (status != QUELL_STATUS_OK)
		panic("quell_forget=%s: %s", name, quell_status_text(status));
	pr_warn("%s: a rule of the engine is left out, memory will be corrupted\n", name);
	add_taint(TAINT_USER, LOCKDEP_STILL_OK);
	return 0;
}
early_param("quell_forget", quell_forget_setup);
#endif

/* The machine. What touches CR3 is in quell_tlb.h. */

uint32_t quell_hw_this_cpu(void)
{
	return raw_smp_processor_id();
}

void quell_hw_fence(void)
{
	smp_mb();
}

void quell_hw_broadcast_start(const struct quell_invalidate *what)
{
	BUG();
}

void quell_hw_broadcast_complete(void)
{
	BUG();
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
	/* Its first nr_cpu_ids bits are a cpumask; quell_init() has seen to that. */
	const struct cpumask *mask = (const struct cpumask *)targets->bits;

	count_vm_tlb_event(NR_TLB_REMOTE_FLUSH);
	trace_tlb_flush(TLB_REMOTE_SEND_IPI, TLB_FLUSH_ALL);
	__apic_send_IPI_mask(mask, QUELL_VECTOR);
}

/* Serves this CPU's inbox. It takes no lock, reads no clock and wakes no task up. */
DEFINE_IDTENTRY_SYSVEC_SIMPLE(sysvec_quell)
{
	u8 reason = this_cpu_read(quell_this.reason);

	apic_eoi();
	inc_irq_stat(irq_tlb_count);
	count_vm_tlb_event(NR_TLB_REMOTE_FLUSH_RECEIVED);
	this_cpu_write(quell_this.reason, TLB_REMOTE_SHOOTDOWN);
	quell_on_interrupt(&engine);
	this_cpu_write(quell_this.reason, reason);
}

void quell_panic(const char *message, size_t length)
{
	panic("quell: %.*s", (int)length, message);
}

/*
 * The engine's memory is copied and cleared some hundred bytes at a time, where what the processor has for long runs is
 * slower than eight bytes at a time. Its object calls these in the place of memcpy() and memset().
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

void quell_cpu_up(struct mm_struct *mm)
{
	struct mm_struct *from = this_cpu_read(quell_this.mm);
	enum quell_status status = quell_cpu_online(&engine);

	if (status == QUELL_STATUS_ONLINE) {
		/* Back from a sleep with its TLB and CR3 in an unknown state: leave, come again, load the root anew. */
		quell_check(quell_cpu_offline(&engine, from ? from->context.quell : NULL));
		this_cpu_write(quell_this.mm, NULL);
		status = quell_cpu_online(&engine);
		if (mm != &init_mm)
			quell_mm_switch(mm, NULL);
	}
	quell_check(status);
	quell_check(quell_batch_begin(&engine, this_cpu_ptr(&quell_call),
				      QUELL_PURPOSE_CALL, NULL, 0));
}

/* Its interrupts are about to be lost; from here on it runs kernel threads without a user root. */
void quell_cpu_down(void)
{
	struct mm_struct *mm = this_cpu_read(quell_this.mm);

	quell_check(quell_cpu_offline(&engine, mm ? mm->context.quell : NULL));
	this_cpu_write(quell_this.mm, NULL);
}

/* Spaces. */

static bool quell_space_make(struct mm_struct *mm, struct quell_space *space)
{
	quell_check(quell_space_new(&engine, space, __pa(mm->pgd) >> PAGE_SHIFT));
	mm->context.quell = space;
	return true;
}

bool quell_mm_new(struct mm_struct *mm)
{
	struct quell_space *space = kmem_cache_alloc(space_cache, GFP_KERNEL_ACCOUNT);

	return space && quell_space_make(mm, space);
}

/*
 * The last reference is gone, and with it every CPU that had the mm loaded lazily: switch_mm_irqs_off() comes before
 * mmdrop_lazy_tlb(). So no CPU is waited for.
 */
void quell_mm_retire(struct mm_struct *mm)
{
	preempt_disable();
	quell_check(quell_space_retire(&engine, mm->context.quell));
	preempt_enable();
}

void quell_mm_free(struct mm_struct *mm)
{
	kmem_cache_free(space_cache, mm->context.quell);
}

/* An mm that was made by hand and is never freed, like that of the firmware's calls, gets its space when it is loaded. */
static noinline void quell_space_of_static(struct mm_struct *mm)
{
	static struct quell_space spaces[4];
	static atomic_t used = ATOMIC_INIT(0);
	unsigned int n = atomic_fetch_inc(&used);

	if (n >= ARRAY_SIZE(spaces))
		panic("quell: an mm without init_new_context()");
	quell_space_make(mm, &spaces[n]);
}

void quell_enter(struct mm_struct *from, struct mm_struct *next)
{
	if (unlikely(!next->context.quell))
		quell_space_of_static(next);
	quell_check(quell_switch_to(&engine, from ? from->context.quell : NULL, next->context.quell));
}

void quell_come_back(struct mm_struct *mm)
{
	this_cpu_write(quell_this.reason, TLB_FLUSH_ON_TASK_SWITCH);
	quell_check(quell_switch_to(&engine, mm->context.quell, mm->context.quell));
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
}

void quell_forget(struct mm_struct *from)
{
	quell_check(quell_leave(&engine, from->context.quell));
	this_cpu_write(quell_this.mm, NULL);
}

void quell_mm_lazy(void)
{
	quell_check(quell_enter_lazy(&engine));
}

bool quell_nmi_uaccess_okay(void)
{
	return quell_user_access_allowed(&engine);
}

/* Flushes. */

/* Reports a change; false if no CPU can ever have loaded the mm. */
static bool quell_report(struct quell_batch *batch, struct mm_struct *mm,
			 unsigned long start, unsigned long end,
			 unsigned int stride_shift, bool freed_tables)
{
	u32 scope = freed_tables ? QUELL_SCOPE_TABLES : QUELL_SCOPE_LEAF;
	struct quell_space *space = mm->context.quell;
	struct quell_range range;
	enum quell_status status;
	unsigned long mask;

	/* Never loaded: see quell_space_of_static(). */
	if (unlikely(!space))
		return false;
	switch (stride_shift) {
	case PAGE_SHIFT:
		range.stride = QUELL_STRIDE_BASE;
		break;
	case PMD_SHIFT:
		range.stride = QUELL_STRIDE_LARGE;
		break;
	case PUD_SHIFT:
		range.stride = QUELL_STRIDE_HUGE;
		break;
	default:
		end = TLB_FLUSH_ALL;
	}
	if (end == TLB_FLUSH_ALL ||
	    (end - start) >> stride_shift > tlb_single_page_flush_ceiling) {
		status = quell_batch_changed_all(batch, space, scope);
	} else {
		/* Whole strides: a table's range may begin and end anywhere in one. */
		mask = (1UL << stride_shift) - 1;
		start &= ~mask;
		end = (end + mask) & ~mask;
		range.start = start >> PAGE_SHIFT;
		range.pages = (end - start) >> PAGE_SHIFT;
		status = quell_batch_changed(batch, space, range, scope);
		if (unlikely(status == QUELL_STATUS_RANGE))
			status = quell_batch_changed_all(batch, space, scope);
	}
	quell_check(status);
	return true;
}

void quell_mm_flush(struct mm_struct *mm, unsigned long start,
		    unsigned long end, unsigned int stride_shift,
		    bool freed_tables)
{
	struct quell_batch *batch;

	preempt_disable();
	batch = this_cpu_ptr(&quell_call);
	if (quell_report(batch, mm, start, end, stride_shift, freed_tables))
		quell_check(quell_batch_finish(batch, NULL));
	preempt_enable();
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, start, end);
}

/* For a task that has found an entry that reclaim cleared. Under the table's lock. */
void quell_mm_settle(struct mm_struct *mm)
{
	preempt_disable();
	quell_check(quell_settle(&engine, mm->context.quell));
	preempt_enable();
}

/* Batches of reclaim, migration and writeback. */

/* So many batches can be owed at once; one more pays for the others first. 48 KB. */
#define QUELL_LEDGER	256

/* As many spaces as a batch of the engine's has room for. */
#define QUELL_SPACES	8

struct quell_reclaim {
	struct quell_batch batch;
	unsigned int count;
	/* Each is referred to: its space is part of the batch. */
	struct mm_struct *mms[QUELL_SPACES];
	/* What a task unmaps while it reclaims and may owe; NULL if there is nothing. */
	struct quell_lazy *lazy;
};

struct quell_reclaim *quell_reclaim_begin(void)
{
	u32 purpose = quell_batch() ? QUELL_PURPOSE_RECLAIM : QUELL_PURPOSE_CALL;
	struct quell_reclaim *reclaim;

	/* Not from the reserves, which reclaim may touch and others need: one flush more is no harm. */
	reclaim = kmem_cache_alloc(reclaim_cache, GFP_NOWAIT | __GFP_NOMEMALLOC | __GFP_NOWARN);
	if (!reclaim)
		return NULL;
	reclaim->count = 0;
	reclaim->lazy = NULL;
	preempt_disable();
	quell_check(quell_batch_begin(&engine, &reclaim->batch, purpose, NULL, 0));
	preempt_enable();
	return reclaim;
}

static u64 quell_stamp_number(const struct quell_stamp *stamp);

static void quell_reclaim_forget(struct quell_reclaim *reclaim)
{
	while (reclaim->count)
		mmdrop(reclaim->mms[--reclaim->count]);
}

void quell_reclaim_finish(struct quell_reclaim *reclaim)
{
	preempt_disable();
	this_cpu_write(quell_this.reason, TLB_LOCAL_SHOOTDOWN);
	quell_check(quell_batch_finish(&reclaim->batch, NULL));
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
	preempt_enable();
	quell_reclaim_forget(reclaim);
}

/* What is owed stands in the spaces and in the ledger, not in the batch: the mms may go. */
u64 quell_reclaim_owe(struct quell_reclaim *reclaim)
{
	struct quell_stamp stamp;

	preempt_disable();
	this_cpu_write(quell_this.reason, TLB_LOCAL_SHOOTDOWN);
	quell_check(quell_batch_finish_owed(&reclaim->batch, NULL, &stamp));
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
	preempt_enable();
	quell_reclaim_forget(reclaim);
	return quell_stamp_number(&stamp);
}

void quell_reclaim_end(struct quell_reclaim *reclaim)
{
	quell_reclaim_finish(reclaim);
	kmem_cache_free(reclaim_cache, reclaim);
}

/*
 * One page is reported as what it is. With the second of an mm everything is, as Linux does it, and again with each
 * later one: mostly the engine finds that it has nothing to add. Where so many batches of the mm are outstanding that
 * it counts no more, it has flushed what it was told so far at once, and must hear of each page.
 */
void quell_reclaim_report(struct quell_reclaim *reclaim, struct mm_struct *mm,
			  unsigned long address)
{
	unsigned int i;

	for (i = 0; i < reclaim->count; i++) {
		if (reclaim->mms[i] != mm)
			continue;
		preempt_disable();
		quell_report(&reclaim->batch, mm, 0, TLB_FLUSH_ALL, PAGE_SHIFT, false);
		preempt_enable();
		return;
	}
	if (reclaim->count == QUELL_SPACES)
		quell_reclaim_finish(reclaim);
	mmgrab(mm);
	reclaim->mms[reclaim->count++] = mm;
	address &= PAGE_MASK;
	preempt_disable();
	quell_report(&reclaim->batch, mm, address, address + PAGE_SIZE, PAGE_SHIFT, false);
	preempt_enable();
}

void quell_reclaim_add(struct arch_tlbflush_unmap_batch *batch,
		       struct mm_struct *mm, unsigned long address)
{
	struct quell_reclaim *reclaim = batch->quell;

	if (!reclaim) {
		reclaim = quell_reclaim_begin();
		if (!reclaim) {
			address &= PAGE_MASK;
			quell_mm_flush(mm, address, address + PAGE_SIZE, PAGE_SHIFT, false);
			return;
		}
		batch->quell = reclaim;
	}
	if (quell_lazy() && reclaim->lazy && quell_lazy_takes(reclaim->lazy, mm, address))
		return;
	quell_reclaim_report(reclaim, mm, address);
}

void quell_reclaim_flush(struct arch_tlbflush_unmap_batch *batch)
{
	struct quell_reclaim *reclaim = batch->quell;

	if (!reclaim)
		return;
	batch->quell = NULL;
	if (reclaim->lazy)
		quell_lazy_end(reclaim->lazy);
	quell_reclaim_end(reclaim);
}

/* Whether something that this task has unmapped and not flushed was dirty. */
bool quell_reclaim_writable(void)
{
	return current->tlb_ubc.writable;
}

/* Debts of clean file pages (S3): mm/quell_lazy.c. */

static_assert(sizeof(struct quell_stamp) == sizeof(u64));
static_assert(sizeof(struct quell_residue) == sizeof(void *));

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

/* What this task unmaps and may owe, until try_to_unmap_flush(); NULL if there is nothing, and no memory to begin. */
struct quell_lazy *quell_task_lazy(bool begin)
{
	struct tlbflush_unmap_batch *batch = &current->tlb_ubc;
	struct quell_reclaim *reclaim = batch->arch.quell;

	if (!begin || (reclaim && reclaim->lazy))
		return reclaim ? reclaim->lazy : NULL;
	if (!reclaim) {
		reclaim = quell_reclaim_begin();
		if (!reclaim)
			return NULL;
		batch->arch.quell = reclaim;
		/* So that try_to_unmap_flush() ends it. */
		batch->flush_required = true;
	}
	reclaim->lazy = quell_lazy_new();
	return reclaim->lazy;
}

void quell_debt_settle(u64 number)
{
	struct quell_stamp stamp = quell_stamp_of(number);

	preempt_disable();
	quell_check(quell_settle_stamp(&engine, &stamp));
	preempt_enable();
}

/* Never waits. */
bool quell_debt_is_paid(u64 number)
{
	struct quell_stamp stamp = quell_stamp_of(number);
	struct quell_residue residue = { };

	quell_check(quell_residue_owe(&residue, &stamp));
	return quell_is_paid(&engine, &residue);
}

void quell_debts_settle(void)
{
	if (!quell_owes_anything(&engine))
		return;
	preempt_disable();
	quell_check(quell_pay_all(&engine));
	preempt_enable();
}

/* The frame owes its flush from here on; what it owes stands in the word. */
void quell_frame_owes(void **word, u64 number)
{
	struct quell_stamp stamp = quell_stamp_of(number);

	quell_check(quell_residue_init((struct quell_residue *)word));
	quell_check(quell_residue_owe((struct quell_residue *)word, &stamp));
}

/* Pays what the frame owes: then it may have a new owner. */
void quell_frame_claim(void **word)
{
	bool claimed;

	preempt_disable();
	this_cpu_write(quell_this.reason, TLB_LOCAL_SHOOTDOWN);
	claimed = quell_claim(&engine, (struct quell_residue *)word);
	this_cpu_write(quell_this.reason, TLB_LOCAL_MM_SHOOTDOWN);
	preempt_enable();
	WARN_ON_ONCE(!claimed);
}

/* Zeroing. */

static void quell_resched(void)
{
	cond_resched();
}

/* The folio lies in the direct map, in one piece. The page that will be touched is zeroed last. */
bool quell_zero_folio(struct folio *folio, unsigned long address)
{
	void *start = folio_address(folio);
	size_t at = address & (folio_size(folio) - 1);

	might_sleep();
	return quell_zero(&zero_plan, start, folio_size(folio), start + at, quell_resched) == QUELL_STATUS_OK;
}

/* Beginning. */

/* On the boot CPU, alone, with interrupts off, after the allocators and before the first mm. */
void __init quell_init(void)
{
	struct quell_setup setup = { .interface = QUELL_INTERFACE };
	char policy[32] = "baseline", why[160] = "";
	enum quell_status status;
	int i;

	if (!wanted)
		return;
	if (nr_cpu_ids > QUELL_MAX_CPUS) {
		pr_warn("off: %u CPUs are more than %u\n", nr_cpu_ids, QUELL_MAX_CPUS);
		return;
	}
	for (i = 0; i < ARRAY_SIZE(mechanisms); i++)
		if (wanted & mechanisms[i].bit)
			strlcat(policy, mechanisms[i].policy, sizeof(policy));
	setup.features.tagging = boot_cpu_has(X86_FEATURE_PCID) ? QUELL_TAGGING_PER_CPU : QUELL_TAGGING_NONE;
	setup.features.tags = QUELL_TAGS;
	setup.features.full_above = tlb_single_page_flush_ceiling;
	setup.policy = policy;
	setup.cpu_count = nr_cpu_ids;
	setup.cpus = alloc_pages_exact(nr_cpu_ids * sizeof(struct quell_cpu), GFP_KERNEL | __GFP_ZERO);
	setup.message = why;
	setup.message_size = sizeof(why);
	if (wanted & WANT_LAZY) {
		setup.ledger_entries = QUELL_LEDGER;
		setup.ledger = alloc_pages_exact(QUELL_LEDGER * sizeof(struct quell_ledger_entry),
						 GFP_KERNEL | __GFP_ZERO);
		if (!setup.ledger || !quell_lazy_init()) {
			pr_warn("off: no memory\n");
			return;
		}
	}
	reclaim_cache = KMEM_CACHE(quell_reclaim, 0);
	space_cache = KMEM_CACHE(quell_space, 0);
	if (!setup.cpus || !reclaim_cache || !space_cache) {
		pr_warn("off: no memory\n");
		return;
	}
	status = quell_engine_new(&engine, &setup);
	if (status == QUELL_STATUS_OK)
		status = quell_zero_plan_new(&zero_plan, &engine, false);
	if (status != QUELL_STATUS_OK) {
		pr_warn("off: %s (%s)\n", quell_status_text(status), why);
		return;
	}
	if (wanted & WANT_EXTENTS)
		static_branch_enable(&quell_extents_key);
	if (wanted & ~WANT_EXTENTS) {
		quell_cpu_up(&init_mm);
		static_branch_enable(&quell_tlb_key);
	}
	if (wanted & WANT_BATCH)
		static_branch_enable(&quell_batch_key);
	if (wanted & WANT_LAZY)
		static_branch_enable(&quell_lazy_key);
	pr_info("%s, %u CPUs, %s\n", policy, nr_cpu_ids,
		setup.features.tagging == QUELL_TAGGING_NONE ? "no tags" : "tags");
}

/* What it counted. */

static int statistics_show(struct seq_file *file, void *unused)
{
	u64 counts[QUELL_COUNTERS];
	u32 i;

	quell_check(quell_stats(&engine, (uint64_t *)counts));
	for (i = 0; i < QUELL_COUNTERS; i++)
		seq_printf(file, "%s %llu\n", quell_counter_label(i), counts[i]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(statistics);

static int policy_show(struct seq_file *file, void *unused)
{
	char text[64];

	quell_check(quell_policy_text(&engine, text, sizeof(text)));
	seq_printf(file, "%s\n", text);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(policy);

static int __init quell_debugfs(void)
{
	struct dentry *folder;

	if (!quell_tlb() && !quell_extents())
		return 0;
	folder = debugfs_create_dir("quell", arch_debugfs_dir);
	debugfs_create_file("statistics", 0400, folder, NULL, &statistics_fops);
	debugfs_create_file("policy", 0400, folder, NULL, &policy_fops);
	if (quell_lazy())
		debugfs_create_u32("parked", 0400, folder, &quell_parked);
	return 0;
}
late_initcall(quell_debugfs);

// SPDX-License-Identifier: GPL-2.0 OR MIT
/* quell in Linux: command line, initialization, statistics. */
#define pr_fmt(fmt) "quell: " fmt

#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/quell_reclaim.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include <asm/tlbflush.h>

#include "mm_internal.h"
#include "quell.h"

/*
 * The most batches that can be deferred at once; a further one first makes the others' flushes. A CPU that is a
 * sixteenth of them behind flushes by itself (quell_catch_up()). So reclaiming CPUs, a few batches behind, have
 * flushed long before the frames are needed. 12 KB.
 */
#define QUELL_LEDGER	64

/* The command line. */

enum {
	WANT_BATCH = 1, WANT_EXTENTS = 2, WANT_TAGS = 4, WANT_LAZY = 8, WANT_REMOTE = 16,
	/* Without tags: see quell_init(). */
	WANT_ALL = WANT_BATCH | WANT_EXTENTS | WANT_LAZY | WANT_REMOTE,
};

static const struct {
	const char *name;
	const char *policy;
	unsigned int bit;
} mechanisms[] = {
	{ "batch", "+S0", WANT_BATCH },
	{ "extents", "+S1", WANT_EXTENTS },
	{ "tags", "+S2", WANT_TAGS },
	{ "lazy", "+S3", WANT_LAZY },
	{ "remote", "+S4", WANT_REMOTE },
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
			wanted |= WANT_ALL;
			continue;
		}
		for (i = 0; i < ARRAY_SIZE(mechanisms); i++) {
			if (!strcmp(word, mechanisms[i].name)) {
				wanted |= mechanisms[i].bit;
				break;
			}
		}
		if (i == ARRAY_SIZE(mechanisms))
			pr_warn("there is no \"%s\": quell= takes off, all, batch, extents, tags, lazy, remote\n", word);
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

/* Beginning. */

/* Where the engine has the state of each CPU, which it keeps. */
static struct quell_cpu __percpu *cpus __initdata;
static struct quell_cpu **cpu_places __initdata;

static bool __init quell_cpus_init(void)
{
	unsigned int cpu;

	cpus = alloc_percpu(struct quell_cpu);
	cpu_places = kcalloc(nr_cpu_ids, sizeof(*cpu_places), GFP_KERNEL);
	if (!cpus || !cpu_places)
		return false;
	for_each_possible_cpu(cpu)
		cpu_places[cpu] = per_cpu_ptr(cpus, cpu);
	return true;
}

/*
 * Creates the engine and everything that only an engine needs: first the parts that may be refused, then the caches,
 * which are not. If it returns false, nothing is kept.
 */
static bool __init quell_make(struct quell_setup *setup)
{
	enum quell_status status;

	if (!quell_cpus_init())
		goto no_memory;
	setup->cpu_places = cpu_places;
	if (wanted & WANT_LAZY) {
		setup->ledger_entries = QUELL_LEDGER;
		setup->ledger = alloc_pages_exact(QUELL_LEDGER * sizeof(struct quell_ledger_entry),
						  GFP_KERNEL | __GFP_ZERO);
		if (!setup->ledger || !quell_lazy_init())
			goto no_memory;
	}
	status = quell_engine_new(&quell_engine, setup);
	if (status == QUELL_STATUS_OK)
		status = quell_zero_plan_new(&quell_zero_plan, &quell_engine, false);
	if (status != QUELL_STATUS_OK) {
		pr_warn("off: %s (%s)\n", quell_status_text(status), setup->message);
		goto free;
	}
	quell_spaces_init();
	quell_reclaim_init();
	return true;

no_memory:
	pr_warn("off: no memory\n");
free:
	quell_lazy_exit();
	if (setup->ledger)
		free_pages_exact(setup->ledger, QUELL_LEDGER * sizeof(struct quell_ledger_entry));
	kfree(cpu_places);
	free_percpu(cpus);
	return false;
}

/* On the boot CPU, alone, with interrupts off, after the allocators and before the first mm. */
void __init quell_init(void)
{
	struct quell_setup setup = { .interface = QUELL_INTERFACE };
	char policy[32] = "baseline", why[160] = "";
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
	setup.hooks = &quell_hooks;
	setup.cpu_count = nr_cpu_ids;
	setup.message = why;
	setup.message_size = sizeof(why);
	if (!quell_make(&setup))
		return;
	if (wanted & WANT_EXTENTS)
		static_branch_enable(&quell_extents_key);
	for_each_possible_cpu(i)
		per_cpu(quell_this.cpu, i) = cpu_places[i];
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
	if (!(wanted & WANT_TAGS))
		pr_info("tags (PCIDs) are not part of \"all\": \"tags\" adds them\n");
}

/* Prints the engine's counters. */

static int statistics_show(struct seq_file *file, void *unused)
{
	u64 counts[QUELL_COUNTERS];
	u32 i;

	quell_check(quell_stats(&quell_engine, (uint64_t *)counts));
	for (i = 0; i < QUELL_COUNTERS; i++)
		seq_printf(file, "%s %llu\n", quell_counter_label(i), counts[i]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(statistics);

static int policy_show(struct seq_file *file, void *unused)
{
	char text[64];

	quell_check(quell_policy_text(&quell_engine, text, sizeof(text)));
	seq_printf(file, "%s\n", text);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(policy);

#ifdef CONFIG_QUELL_MUTANTS
/* On any write, returns parked frames to the page allocator's lists of this CPU. */
static ssize_t drain_write(struct file *file, const char __user *text, size_t bytes, loff_t *at)
{
	quell_lazy_drain();
	return bytes;
}
static const struct file_operations drain_fops = { .owner = THIS_MODULE, .write = drain_write };
#endif

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
#ifdef CONFIG_QUELL_MUTANTS
	debugfs_create_u32("hold", 0600, folder, &quell_hold);
	debugfs_create_atomic_t("held", 0400, folder, &quell_held);
	if (quell_lazy())
		debugfs_create_file("drain", 0200, folder, NULL, &drain_fops);
	quell_probe_init(folder);
#endif
	return 0;
}
late_initcall(quell_debugfs);

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * quell in Linux, for a test: raises an NMI between the receipt of a request and its flush. The handler reads a
 * string of the interrupted program.
 *
 * Write "CPU ADDRESS" to the file `probe`. The next request that this CPU receives pauses before its flush, until
 * the next write, for at most ten seconds. Then the CPU sends itself an NMI. Reading the file shows the results of
 * strncpy_from_user_nofault() and strnlen_user_nofault() in the handler, and the string.
 */
#include <linux/debugfs.h>
#include <linux/nmi.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include <asm/apic.h>
#include <asm/nmi.h>
#include <asm/tsc.h>

#include "quell.h"

enum { IDLE, ARMED, STOPPED, RELEASED, SENT, DONE };

static int probe_state = IDLE;
static unsigned int probe_cpu;
static unsigned long probe_address;
static char probe_text[16];
static long probe_copied, probe_length;

static int quell_probe_nmi(unsigned int kind, struct pt_regs *regs)
{
	if (READ_ONCE(probe_state) != SENT || raw_smp_processor_id() != probe_cpu)
		return NMI_DONE;
	probe_copied = strncpy_from_user_nofault(probe_text, (void __user *)probe_address, sizeof(probe_text));
	probe_length = strnlen_user_nofault((void __user *)probe_address, sizeof(probe_text));
	smp_store_release(&probe_state, DONE);
	return NMI_HANDLED;
}

/* Interrupts are off. The CPU's own flushes may call this too. */
void quell_probe(void)
{
	cycles_t end;

	if (likely(READ_ONCE(probe_state) != ARMED) || raw_smp_processor_id() != probe_cpu ||
	    this_cpu_read(quell_this.reason) != TLB_REMOTE_SHOOTDOWN)
		return;
	smp_store_release(&probe_state, STOPPED);
	end = get_cycles() + 10000ULL * tsc_khz;
	while (READ_ONCE(probe_state) != RELEASED && get_cycles() < end)
		cpu_relax();
	WRITE_ONCE(probe_state, SENT);
	__apic_send_IPI_mask(cpumask_of(probe_cpu), NMI_VECTOR);
	while (READ_ONCE(probe_state) != DONE)
		cpu_relax();
}

static int probe_show(struct seq_file *file, void *unused)
{
	static const char * const names[] = { "idle", "armed", "stopped", "released", "sent", "done" };
	int state = smp_load_acquire(&probe_state);

	seq_printf(file, "%s %ld %ld %.*s\n", names[state], probe_copied, probe_length,
		   probe_copied > 0 ? (int)sizeof(probe_text) - 1 : 0, probe_text);
	return 0;
}

static int probe_open(struct inode *inode, struct file *file)
{
	return single_open(file, probe_show, NULL);
}

static ssize_t probe_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	char text[40];
	unsigned long address;
	unsigned int cpu;

	if (bytes >= sizeof(text) || copy_from_user(text, from, bytes))
		return -EINVAL;
	text[bytes] = 0;
	if (cmpxchg(&probe_state, STOPPED, RELEASED) == STOPPED)
		return bytes;
	if (sscanf(text, "%u %lx", &cpu, &address) != 2 || cpu >= nr_cpu_ids)
		return -EINVAL;
	probe_cpu = cpu;
	probe_address = address;
	probe_copied = 0;
	probe_length = 0;
	smp_store_release(&probe_state, ARMED);
	return bytes;
}

static const struct file_operations probe_fops = {
	.open = probe_open,
	.read = seq_read,
	.write = probe_write,
	.llseek = seq_lseek,
	.release = single_release,
};

void __init quell_probe_init(struct dentry *folder)
{
	if (!register_nmi_handler(NMI_LOCAL, quell_probe_nmi, 0, "quell"))
		debugfs_create_file("probe", 0600, folder, NULL, &probe_fops);
}

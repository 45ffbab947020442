// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The first process of a Linux to hunt in. Makes one kind of call that takes translations away, while other threads of
 * the process run in user mode, and restarts the machine. `all` makes all kinds for which the kernel has the device. It
 * checks nothing: the judge of `quell hunt` does. `symbols` prints the kernel's functions instead.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PAGE 4096ul
#define PAGES 32ul
#define SIZE (PAGES * PAGE)
#define HUGE_SIZE (2ul << 20)

static void must(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		sync();
		reboot(RB_AUTOBOOT);
	}
}

/* The thread of CPU 1 sleeps. */
static volatile int sleeps;

static void *spin(void *cpu)
{
	struct timespec moment = { .tv_nsec = 1000000 };
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((long)cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	for (;;) {
#ifdef __x86_64__
		__builtin_ia32_pause();
#else
		asm volatile("yield");
#endif
		while (sleeps && (long)cpu == 1)
			nanosleep(&moment, NULL);
	}
	return NULL;
}

/* Runs in user mode for this long. */
static void work_ms(long ms)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < ms);
}

static void set_file(const char *path, const char *value)
{
	int file = open(path, O_WRONLY);

	must(file >= 0 && write(file, value, strlen(value)) > 0, path);
	close(file);
}

static long number_in(const char *path)
{
	char text[32] = "";
	int file = open(path, O_RDONLY);

	must(file >= 0 && read(file, text, sizeof(text) - 1) > 0, path);
	close(file);
	return atol(text);
}

/* Returns private memory whose pages are all present and alike. */
static char *memory(size_t size)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED, "mmap");
	for (size_t page = 0; page < size; page += PAGE)
		at[page] = 1;
	return at;
}

/* Returns untouched private memory in which one large page fits, aligned. */
static char *room_for_large(void)
{
	char *at = mmap(NULL, 2 * HUGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED, "mmap");
	return (char *)(((uintptr_t)at + HUGE_SIZE - 1) & -HUGE_SIZE);
}

static void do_munmap(void)
{
	must(!munmap(memory(SIZE), SIZE), "munmap");
}

static void do_discard(void)
{
	must(!madvise(memory(SIZE), SIZE, MADV_DONTNEED), "MADV_DONTNEED");
}

static void do_mprotect(void)
{
	must(!mprotect(memory(SIZE), SIZE, PROT_READ), "mprotect");
}

static void do_mremap(void)
{
	char *to = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(mremap(memory(SIZE), SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
}

static void do_fork(void)
{
	memory(SIZE);
	pid_t child = fork();

	must(child >= 0, "fork");
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
}

/* A store to memory that a child shares. */
static void do_copy(void)
{
	char *at = memory(SIZE);
	pid_t child = fork();

	must(child >= 0, "fork");
	if (!child) {
		pause();
		_exit(0);
	}
	work_ms(20);
	for (size_t page = 0; page < SIZE; page += PAGE)
		at[page] = 2;
	kill(child, 9);
	waitpid(child, NULL, 0);
}

static void do_collapse(void)
{
	char *at = room_for_large();

	must(!madvise(at, HUGE_SIZE, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
	for (size_t page = 0; page < HUGE_SIZE; page += PAGE)
		at[page] = 1;
	must(!madvise(at, HUGE_SIZE, MADV_HUGEPAGE), "MADV_HUGEPAGE");
	must(!madvise(at, HUGE_SIZE, MADV_COLLAPSE), "MADV_COLLAPSE");
}

/* Makes holes in memory, and has the kernel move pages together. */
static void do_compact(void)
{
	size_t size = 128ul << 20;
	char *at = memory(size);

	for (size_t page = 0; page < size; page += 4 * PAGE)
		must(!madvise(at + page, 3 * PAGE, MADV_DONTNEED), "MADV_DONTNEED");
	set_file("/proc/sys/vm/compact_memory", "1");
	munmap(at, size);
}

/* Pages that are alike become one, by a thread of the kernel. */
static void do_merge(void)
{
	set_file("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	set_file("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	set_file("/sys/kernel/mm/ksm/run", "1");
	for (int round = 0; round < 4; round++) {
		must(!madvise(memory(SIZE), SIZE, MADV_MERGEABLE), "MADV_MERGEABLE");
		/* The judge waits before it judges a change by such a thread. */
		work_ms(200);
	}
	must(number_in("/sys/kernel/mm/ksm/pages_sharing") > 0, "merging");
	set_file("/sys/kernel/mm/ksm/run", "0");
}

static void do_pageout(void)
{
	static int ready;
	static char header[PAGE];
	uint32_t *numbers = (uint32_t *)(header + 1024);
	int disk;

	if (!ready++) {
		set_file("/sys/block/zram0/disksize", "16M");
		numbers[0] = 1;
		numbers[1] = 16 * 256 - 1;
		memcpy(header + PAGE - 10, "SWAPSPACE2", 10);
		disk = open("/dev/zram0", O_WRONLY);
		must(disk >= 0 && write(disk, header, PAGE) == (ssize_t)PAGE && !fsync(disk), "/dev/zram0");
		close(disk);
		must(!swapon("/dev/zram0", 0), "swapon");
	}
	must(!madvise(memory(SIZE), SIZE, MADV_PAGEOUT), "MADV_PAGEOUT");
}

static void do_msync(void)
{
	int disk = open("/dev/ram0", O_RDWR);
	char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, disk, 0);

	must(at != MAP_FAILED, "/dev/ram0");
	memset(at, 1, SIZE);
	must(!msync(at, SIZE, MS_SYNC), "msync");
}

static void do_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect protect = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	char *at = memory(SIZE);
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	range.range.start = protect.range.start = (uintptr_t)at;
	range.range.len = protect.range.len = SIZE;
	must(uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api), "userfaultfd");
	must(!ioctl(uffd, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
	must(!ioctl(uffd, UFFDIO_WRITEPROTECT, &protect), "UFFDIO_WRITEPROTECT");
}

/* Two processes share the table of large pages of a whole gigabyte, and one of them changes its rights. */
static void do_unshare(void)
{
	size_t gigabyte = 1ul << 30;
	char *at = mmap(NULL, 2 * gigabyte, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int file = memfd_create("large", MFD_HUGETLB);
	pid_t child;

	set_file("/proc/sys/vm/nr_hugepages", "4");
	must(at != MAP_FAILED && file >= 0 && !ftruncate(file, gigabyte), "memfd_create");
	at = (char *)(((uintptr_t)at + gigabyte - 1) & -gigabyte);
	at = mmap(at, gigabyte, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
	must(at != MAP_FAILED, "large pages");
	child = fork();
	must(child >= 0, "fork");
	if (!child) {
		at[0] = 1;
		pause();
		_exit(0);
	}
	work_ms(20);
	at[0] = 2;
	must(!mprotect(at, gigabyte, PROT_READ), "mprotect of large pages");
	kill(child, 9);
	waitpid(child, NULL, 0);
	munmap(at, gigabyte);
	close(file);
	set_file("/proc/sys/vm/nr_hugepages", "0");
}

/* Frees page tables that hold nothing any more. */
static void do_tables(void)
{
	char *at = room_for_large();

	must(!madvise(at, HUGE_SIZE, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
	memset(at, 1, SIZE);
	must(!madvise(at, SIZE, MADV_DONTNEED), "MADV_DONTNEED");
	must(!munmap(at, HUGE_SIZE), "munmap of empty tables");
}

/* The same, while a CPU is idle and still has the address space loaded. */
static void do_lazy(void)
{
	sleeps = 1;
	work_ms(20);
	do_tables();
	sleeps = 0;
	work_ms(20);
}

/* Splits a large page of which most is zero. The zeros become the page of zeros, and their frames free. */
static void do_split(void)
{
	char *at = room_for_large();

	set_file("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	set_file("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none", "100");
	must(!madvise(at, HUGE_SIZE, MADV_HUGEPAGE), "MADV_HUGEPAGE");
	at[HUGE_SIZE - PAGE] = 1;
	set_file("/proc/sys/vm/drop_caches", "2");
}

/* More processes take turns on this CPU than Linux keeps tags for. All have the same addresses. */
static void do_switch(void)
{
	char *at = memory(SIZE);
	pid_t child[8];

	for (int i = 0; i < 8; i++) {
		child[i] = fork();
		must(child[i] >= 0, "fork");
		for (int round = 0; !child[i] && round < 200; round++) {
			for (size_t page = 0; page < SIZE; page += PAGE)
				at[page] = i;
			sched_yield();
		}
		if (!child[i])
			_exit(0);
	}
	for (int i = 0; i < 8; i++)
		waitpid(child[i], NULL, 0);
}

/*
 * A new program. The kernel wrote its arguments to the top of the address space, and has moved the stack down from there
 * since.
 */
static void do_exec(void)
{
	pid_t child = fork();

	must(child >= 0, "fork");
	if (!child) {
		execl("/proc/self/exe", "init", "executed", NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
}

#ifdef __aarch64__
/* Sixteen pages that the kernel maps with one contiguous set of entries. One of them gets fewer rights. */
static void do_contiguous(void)
{
	size_t set = 16 * PAGE;
	char *at;

	set_file("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "always");
	at = mmap(NULL, 2 * set, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(at != MAP_FAILED, "mmap");
	at = (char *)(((uintptr_t)at + set - 1) & -set);
	for (size_t page = 0; page < set; page += PAGE)
		at[page] = 1;
	must(!mprotect(at + PAGE, PAGE, PROT_READ), "mprotect");
	set_file("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "never");
}
#endif

#ifdef __x86_64__
/* A disk behind an IOMMU reads and writes memory whose addresses for devices are used again and again. */
static void do_disk(void)
{
	int disk = open("/dev/nvme0n1", O_RDWR | O_DIRECT);

	must(disk >= 0, "/dev/nvme0n1");
	for (int round = 0; round < 64; round++) {
		char *at = memory(SIZE);

		must(pwrite(disk, at, SIZE, round * SIZE) == (ssize_t)SIZE, "write");
		must(pread(disk, at, SIZE, round * SIZE) == (ssize_t)SIZE, "read");
		munmap(at, SIZE);
	}
	close(disk);
}

/*
 * Takes a block of memory that has our pages offline, and brings it back. It must be movable: `movablecore=` on the
 * kernel's command line. The last block may have a hole, and stays online then. Arm's kernel keeps all memory from boot.
 */
static void do_offline(void)
{
	char path[64] = "", text[32] = "";
	int pagemap = open("/proc/self/pagemap", O_RDONLY), state;
	int size = open("/sys/devices/system/memory/block_size_bytes", O_RDONLY);
	int tries = 0;
	uint64_t entry;

	must(read(size, text, sizeof(text) - 1) > 0, "block_size_bytes");
	do {
		char *at = memory(8 * HUGE_SIZE);

		must(tries++ < 16, path);
		must(pread(pagemap, &entry, sizeof(entry), (uintptr_t)at / PAGE * 8) == sizeof(entry), "pagemap");
		snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%lu/state",
			 (entry << 9 >> 9) * PAGE / strtoul(text, NULL, 16));
		state = open(path, O_WRONLY);
	} while (write(state, "offline", 7) != 7);
	work_ms(20);
	must(write(state, "online_movable", 14) == 14, path);
	close(state);
	close(pagemap);
	close(size);
}

/* Profiles a CPU: its NMIs read the stack frames of the thread that it runs. */
static void profile(int cpu)
{
	struct perf_event_attr event = {
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.size = sizeof(event),
		.sample_period = 1000000,
		.sample_type = PERF_SAMPLE_CALLCHAIN,
	};

	must(syscall(SYS_perf_event_open, &event, -1, cpu, -1, 0) >= 0, "perf_event_open (without --nmi?)");
}

static char *volatile frame;

/* Yields CPU 1 again and again, with the address of a stack frame in its register. */
static void *yield(void *unused)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(1, &set);
	sched_setaffinity(0, sizeof(set), &set);
	while (frame) {
		long number = SYS_sched_yield;
		char *at = frame;

		asm volatile("xchg %%rbp, %1; syscall; xchg %%rbp, %1"
			     : "+a"(number), "+b"(at) : : "rcx", "r11", "memory");
	}
	return unused;
}

/* Discards a stack frame, while the CPU of its thread switches to another process and back, and is profiled. */
static void do_nmi(void)
{
	pid_t child[2];

	frame = memory(PAGE);
	profile(1);
	sleeps = 1;
	for (int i = 0; i < 2; i++) {
		pthread_t thread;

		child[i] = fork();
		must(child[i] >= 0, "fork");
		if (!child[i] && i)
			yield(NULL);
		if (child[i])
			continue;
		must(!pthread_create(&thread, NULL, yield, NULL), "pthread_create");
		work_ms(20);
		for (int round = 0; round < 8000; round++) {
			memset(frame, 0, PAGE);
			must(!madvise(frame, PAGE, MADV_DONTNEED), "MADV_DONTNEED");
		}
		_exit(0);
	}
	waitpid(child[0], NULL, 0);
	kill(child[1], 9);
	waitpid(child[1], NULL, 0);
	sleeps = 0;
}
#endif

/* Prints the kernel's functions, those of modules excepted, as a System.map has them. */
static void print_symbols(void)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	char line[512];

	must(file != NULL, "/proc/kallsyms");
	while (fgets(line, sizeof(line), file)) {
		if (strlen(line) > 17 && strchr("tTwW", line[17]) && !strchr(line, '['))
			fputs(line, stdout);
	}
	fflush(stdout);
	reboot(RB_AUTOBOOT);
}

static const struct {
	const char *name;
	void (*act)(void);
	/* What `all` needs for it. A machine without NMIs has no events to profile. */
	const char *device;
} calls[] = {
#ifdef __x86_64__
	/* First, as other calls may pin pages in the block. */
	{ "offline", do_offline, "/sys/devices/system/memory/block_size_bytes" },
#endif
	{ "munmap", do_munmap },   { "discard", do_discard },   { "mprotect", do_mprotect },
	{ "mremap", do_mremap },   { "fork", do_fork },	        { "copy", do_copy },
	{ "collapse", do_collapse }, { "compact", do_compact }, { "merge", do_merge },
	{ "pageout", do_pageout, "/dev/zram0" }, { "msync", do_msync, "/dev/ram0" }, { "uffd", do_uffd },
	{ "unshare", do_unshare }, { "tables", do_tables },     { "switch", do_switch },
	{ "lazy", do_lazy },       { "split", do_split },       { "exec", do_exec },
#ifdef __x86_64__
	{ "disk", do_disk, "/dev/nvme0n1" }, { "nmi", do_nmi, "nmi" },
#else
	{ "contiguous", do_contiguous, "/sys/kernel/mm/transparent_hugepage/hugepages-64kB" },
#endif
};

int main(int count, char **words)
{
	const char *wanted = count > 1 ? words[count - 1] : "all";
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t first;
	int known = 0;

	if (!strcmp(wanted, "executed"))
		return 0;
	must(!mount("proc", "/proc", "proc", 0, NULL), "/proc");
	must(!mount("sysfs", "/sys", "sysfs", 0, NULL), "/sys");
	must(!mount("dev", "/dev", "devtmpfs", 0, NULL), "/dev");
	if (!strcmp(wanted, "symbols"))
		print_symbols();
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	sched_setaffinity(0, sizeof(first), &first);
	for (long cpu = 1; cpu < cpus; cpu++) {
		pthread_t thread;

		must(!pthread_create(&thread, NULL, spin, (void *)cpu), "pthread_create");
	}
	work_ms(20);
	for (size_t call = 0; call < sizeof(calls) / sizeof(*calls); call++) {
		if (strcmp(wanted, "all") && strcmp(wanted, calls[call].name))
			continue;
		if (!strcmp(wanted, "all") && calls[call].device && access(calls[call].device, F_OK))
			continue;
		printf("calls: %s\n", calls[call].name);
		fflush(stdout);
		calls[call].act();
		work_ms(20);
		known++;
	}
	must(known, wanted);
	printf("calls: done\n");
	fflush(stdout);
	reboot(RB_AUTOBOOT);
}

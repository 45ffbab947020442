// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests that a read through a file mapping returns the file's content, even if the kernel has unmapped the page and
 * left a stale translation behind.
 *
 *   fresh [ROUNDS [ACT]] one thread acts, the others have the pages in their TLBs and read again when it has acted
 *   fresh on TYPE ROUNDS the same with everything that changes a file, on a file system of this type, made on
 * /dev/ram1
 *   fresh soak SECONDS readers and writers of files larger than the memory of their control group, at random
 *
 * Runs as root in its own control group (version 2), /sys/fs/cgroup/program, and keeps its files in /files or on
 * that file system. Prints results as TAP.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
/* The emulator's TLB has room for this many besides others. */
#define PAGES 64ul
#define SIZE (PAGES * PAGE)
#define RECLAIM "/sys/fs/cgroup/program/memory.reclaim"
/* The engine's counters, and controls for tests if the kernel has them. */
#define QUELL "/sys/kernel/debug/x86/quell/"

/* Where the files are. */
static const char *folder = "/files";

static const char *in_folder(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

/* A look that may fault. */

static _Thread_local sigjmp_buf away;

static void faulted(int signal)
{
	siglongjmp(away, signal);
}

static void catch_faults(void)
{
	struct sigaction action = { .sa_handler = faulted, .sa_flags = SA_NODEFER };

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}

/* Returns the word there, or the signal of the access. With `stores`, it writes the same word back. */
static uint64_t look(volatile uint64_t *place, bool stores)
{
	int signal = sigsetjmp(away, 0);
	uint64_t saw;

	if (signal)
		return (uint64_t)signal;
	saw = *place;
	if (stores)
		*place = saw;
	return saw;
}

/* Directed: one acts, the others look. */

static volatile uint64_t *mapping;
static int file;
static atomic_uint turn, answered;
static atomic_ulong stale;
/* The expected result of each page: its first word, or a signal. */
static _Atomic uint64_t expected[PAGES];
static _Atomic uint64_t found;
static unsigned int watchers;
static atomic_bool storing;
/* The act is not one of this file system's. */
static bool lacking;

/* Whether other threads of this CPU, the kernel's among them, wait for this one. */
static void stay(bool alone)
{
	struct sched_param priority = { .sched_priority = alone };

	if (sched_setscheduler(0, alone ? SCHED_FIFO : SCHED_OTHER, &priority))
		die("sched_setscheduler");
}

/*
 * Turns are odd for "touch the pages, so that the TLB has them", even for "read". No kernel thread runs on this CPU
 * between the two: on returning from one, a CPU makes its address space's deferred flushes.
 */
static void *watch(void *argument)
{
	unsigned int last = 0, now;

	pin((int)(intptr_t)argument);
	for (;;) {
		/* No system call: the kernel has no reason to flush. */
		while ((now = atomic_load(&turn)) == last)
			__builtin_ia32_pause();
		last = now;
		if (now & 1)
			stay(true);
		/*
		 * The last page is unmapped last. A page that faults is read in again, which makes the kernel flush
		 * all the others.
		 */
		for (size_t page = PAGES; page-- > 0;) {
			uint64_t want = atomic_load(&expected[page]), saw = look(mapping + page * WORDS, atomic_load(&storing));

			if (!(now & 1) && saw != want) {
				atomic_fetch_add(&stale, 1);
				atomic_store(&found, saw);
			}
		}
		if (!(now & 1))
			stay(false);
		atomic_fetch_add(&answered, 1);
	}
	return NULL;
}

static void next_turn(void)
{
	atomic_store(&answered, 0);
	atomic_fetch_add(&turn, 1);
	while (atomic_load(&answered) < watchers)
		usleep(100);
}

/* Pages from `first` on show a value and which page of the file they were, or the same if that is a signal or 0. */
static void expect_from(size_t first, size_t end, uint64_t value, size_t was)
{
	for (size_t page = first; page < end; page++)
		atomic_store(&expected[page], value < 256 ? value : value + page - first + was);
}

static void expect(uint64_t value)
{
	expect_from(0, PAGES, value, 0);
}

/* Fills a file with one value, and with which page it is. */
static void fill(int to, uint64_t value)
{
	static uint64_t page[WORDS] __attribute__((aligned(PAGE)));

	for (size_t at = 0; at < PAGES; at++) {
		for (size_t word = 0; word < WORDS; word++)
			page[word] = value + at;
		if (pwrite(to, page, PAGE, at * PAGE) != PAGE)
			die("pwrite");
	}
}

/* How many pages of the mapping are in the page cache. */
static size_t present(void)
{
	unsigned char there[PAGES];
	size_t count = 0;

	if (mincore((void *)mapping, SIZE, there))
		die("mincore");
	for (size_t page = 0; page < PAGES; page++)
		count += there[page] & 1;
	return count;
}

/* Writes to a kernel file; false if there is none of that name. */
static bool tell(const char *place, const char *what)
{
	int told = open(place, O_WRONLY);

	if (told < 0)
		return false;
	if (write(told, what, strlen(what)) < 0)
		die(place);
	close(told);
	return true;
}

/*
 * Makes the kernel reclaim this many clean pages, never more than there are. Otherwise it would try again and again,
 * and at last run a kernel thread on every CPU, which would make the deferred flush, and wait for watchers.
 */
static void reclaim_some(size_t pages)
{
	int reclaim = open(RECLAIM, O_WRONLY);
	char how[64];

	if (reclaim < 0)
		die(RECLAIM);
	snprintf(how, sizeof(how), "%zuK swappiness=0", pages * PAGE / 1024);
	(void)!write(reclaim, how, strlen(how));
	close(reclaim);
}

/*
 * Has the kernel reclaim the pages of the mapping, by and by; false if they stay. It forgets first that they were
 * looked at, as it would keep them: that takes nothing out of a TLB.
 */
static bool evict(void)
{
	if (!tell("/proc/self/clear_refs", "1"))
		die("/proc/self/clear_refs");
	for (int again = 0; again < 200; again++) {
		size_t count = present();

		if (!count)
			return true;
		reclaim_some(count);
	}
	return false;
}

/* Kept by an act until the others have read: its cleanup would flush the entries under test. */

static void *left;
static size_t left_bytes;
static pthread_t helper;
static bool helped;

static void leave(void *memory, size_t bytes)
{
	left = memory;
	left_bytes = bytes;
}

/* Makes a helper do something, on the acting thread's CPU. */
static void have_helper(void *(*work)(void *))
{
	if (pthread_create(&helper, NULL, work, NULL))
		die("pthread_create");
	helped = true;
}

/*
 * The same, but returns when the helper has paused before its flush, where it stays until tidy(); false if it does
 * not get there. A kernel without test controls pauses nobody, and the act runs concurrently with the helper.
 */
static bool hold_helper(void *(*work)(void *))
{
	char count[16] = "";

	if (!tell(QUELL "hold", "60000")) {
		have_helper(work);
		return true;
	}
	have_helper(work);
	for (int again = 0; again < 100000; again++) {
		int held = open(QUELL "held", O_RDONLY);

		if (held < 0 || read(held, count, sizeof(count) - 1) <= 0)
			die(QUELL "held");
		close(held);
		if (atoi(count))
			return true;
		usleep(100);
	}
	return false;
}

static void tidy(void)
{
	if (left)
		munmap(left, left_bytes);
	left = NULL;
	tell(QUELL "hold", "0");
	if (helped)
		pthread_join(helper, NULL);
	helped = false;
}

static void *map(void *at, int protection, int flags, int from)
{
	void *place = mmap(at, SIZE, protection, flags, from, 0);

	if (place == MAP_FAILED)
		die("mmap");
	return place;
}

static void map_file(void)
{
	map((void *)mapping, PROT_READ, MAP_SHARED | MAP_FIXED, file);
}

static void map_writable(void)
{
	map((void *)mapping, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file);
}

/* Another file, with this value. */
static int fill_other(uint64_t value)
{
	int other = open(in_folder("fresh.other"), O_RDWR | O_CREAT, 0600);

	if (other < 0)
		die("fresh.other");
	fill(other, value);
	return other;
}

static void by_write(uint64_t value)
{
	fill(file, value);
	expect(value);
}

static void *reclaim(void *unused)
{
	evict();
	return unused;
}

static bool evict_meanwhile(void)
{
	return hold_helper(reclaim);
}

static void *write_back(void *unused)
{
	if (fsync(file))
		die("fsync");
	return unused;
}

static bool write_back_meanwhile(void)
{
	return hold_helper(write_back);
}

static void by_child(uint64_t value)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (!child) {
		fill(file, value);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	expect(value);
}

/* The file's content before an act changed it to `value`. */
#define WAS(value)	((value) - CHANGED)
#define CHANGED		0x1000ul
/* An act that this file system does not have: the pages are as they were. */
static void lacks(const char *what, uint64_t value)
{
	if (errno != EOPNOTSUPP && errno != ENOTTY && errno != EINVAL)
		die(what);
	lacking = true;
	expect(WAS(value));
}

/* The file, past the page cache; less than 0 if its file system has no such way. */
static int open_direct(void)
{
	static char page[PAGE] __attribute__((aligned(PAGE)));
	int direct = open(in_folder("fresh"), O_RDWR | O_DIRECT);

	return direct < 0 || pread(direct, page, PAGE, 0) < 0 ? -1 : direct;
}

static void by_direct_write(uint64_t value)
{
	int direct = open_direct();

	if (direct < 0) {
		lacks("O_DIRECT", value);
		return;
	}
	fill(direct, value);
	close(direct);
	expect(value);
}

static void by_store(uint64_t value)
{
	uint64_t *other = map(NULL, PROT_READ | PROT_WRITE, MAP_SHARED, file);

	for (size_t page = 0; page < PAGES; page++)
		other[page * WORDS] = value + page;
	expect(value);
	leave(other, SIZE);
}

static void by_truncate(uint64_t value)
{
	(void)value;
	if (ftruncate(file, 0))
		die("ftruncate");
	expect(SIGBUS);
}

static void by_cut_and_grow(uint64_t value)
{
	(void)value;
	if (ftruncate(file, 0) || ftruncate(file, SIZE))
		die("ftruncate");
	expect(0);
}

static void by_munmap(uint64_t value)
{
	(void)value;
	munmap((void *)mapping, SIZE);
	expect(SIGSEGV);
}

static void by_mprotect(uint64_t value)
{
	(void)value;
	if (mprotect((void *)mapping, SIZE, PROT_NONE))
		die("mprotect");
	expect(SIGSEGV);
}

/* Page by page: where one of a call needs a flush, the others are flushed with it. */
static void by_mprotect_pages(uint64_t value)
{
	(void)value;
	for (size_t page = 0; page < PAGES; page++)
		if (mprotect((void *)(mapping + page * WORDS), PAGE, PROT_READ))
			die("mprotect");
	expect(SIGSEGV);
}

static void by_mremap(uint64_t value)
{
	void *place = map(NULL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	(void)value;
	if (mremap((void *)mapping, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED)
		die("mremap");
	expect(SIGSEGV);
	leave(place, SIZE);
}

static void by_map_fixed(uint64_t value)
{
	int other = fill_other(value);

	map((void *)mapping, PROT_READ, MAP_SHARED | MAP_FIXED, other);
	close(other);
	expect(value);
}

/*
 * Gives the frames to others, who write to them: the kernel parks them for a second, or until a write to its control
 * file. Meanwhile no mapping is removed, and no page of a file is read in, because both would make the kernel flush.
 */
static void by_reuse(uint64_t value)
{
	size_t bytes = 8ul << 20;
	uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)value;
	if (memory == MAP_FAILED)
		die("mmap");
	if (!tell(QUELL "drain", "1") && !access(QUELL "parked", F_OK))
		sleep(2);
	for (size_t word = 0; word < bytes / sizeof(uint64_t); word += WORDS)
		memory[word] = 0x5eed5eed5eed5eed;
	leave(memory, bytes);
}

/* The pages that are collapsed or inserted: whole blocks of every file system here. */
#define SOME		16ul

static void by_punch(uint64_t value)
{
	if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE / 2)) {
		lacks("punching a hole", value);
		return;
	}
	expect_from(0, PAGES / 2, 0, 0);
	expect_from(PAGES / 2, PAGES, WAS(value), PAGES / 2);
}

static void by_small_holes(uint64_t value)
{
	for (size_t page = 0; page < PAGES; page++) {
		if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, PAGE / 4)) {
			lacks("punching a small hole", value);
			return;
		}
	}
	expect(0);
}

static void by_zero_range(uint64_t value)
{
	if (fallocate(file, FALLOC_FL_ZERO_RANGE, SIZE / 2, SIZE / 2)) {
		lacks("zeroing a range", value);
		return;
	}
	expect_from(0, PAGES / 2, WAS(value), 0);
	expect_from(PAGES / 2, PAGES, 0, 0);
}

static void by_collapse(uint64_t value)
{
	if (fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, SOME * PAGE)) {
		lacks("collapsing a range", value);
		return;
	}
	expect_from(0, PAGES - SOME, WAS(value), SOME);
	expect_from(PAGES - SOME, PAGES, SIGBUS, 0);
}

static void by_insert(uint64_t value)
{
	if (fallocate(file, FALLOC_FL_INSERT_RANGE, 0, SOME * PAGE)) {
		lacks("inserting a range", value);
		return;
	}
	expect_from(0, SOME, 0, 0);
	expect_from(SOME, PAGES, WAS(value), 0);
}

static void by_clone(uint64_t value)
{
	int other = fill_other(value);

	if (ioctl(file, FICLONE, other))
		lacks("cloning", value);
	else
		expect(value);
	close(other);
}

static void by_clone_of_half(uint64_t value)
{
	int other = fill_other(value);
	struct file_clone_range half = { .src_fd = other, .src_length = SIZE / 2 };

	if (ioctl(file, FICLONERANGE, &half)) {
		lacks("cloning a range", value);
	} else {
		expect_from(0, PAGES / 2, value, 0);
		expect_from(PAGES / 2, PAGES, WAS(value), PAGES / 2);
	}
	close(other);
}

static void by_copy(uint64_t value)
{
	int other = fill_other(value);
	loff_t from = 0, to = 0;

	while (to < (loff_t)SIZE)
		if (copy_file_range(other, &from, file, &to, SIZE - to, 0) <= 0)
			break;
	if (to < (loff_t)SIZE)
		lacks("copy_file_range", value);
	else
		expect(value);
	close(other);
}

/* Whole extents of two files change places; only XFS has it, from Linux 6.10 on. */
static void by_exchange(uint64_t value)
{
	struct {
		int32_t file1;
		uint32_t pad;
		uint64_t offset1, offset2, length, flags;
	} both = { .file1 = fill_other(value), .length = SIZE };

	fsync(both.file1);
	if (ioctl(file, _IOC(_IOC_WRITE, 'X', 129, sizeof(both)), &both))
		lacks("exchanging", value);
	else
		expect(value);
	close(both.file1);
}

/* The first page that is to be direct has no memory behind it: some of the file may have changed, and none has to. */
static void by_failed_write(uint64_t value)
{
	int direct = open_direct();
	char *memory = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *words = (uint64_t *)memory;

	if (memory == MAP_FAILED)
		die("mmap");
	if (direct < 0) {
		lacks("a direct write", value);
		return;
	}
	for (size_t word = 0; word < SIZE / 2 / sizeof(uint64_t); word++)
		words[word] = value + word / WORDS;
	munmap(memory + SIZE / 2, SIZE / 2);
	(void)!pwrite(direct, memory, SIZE, 0);
	/* The file's present content, bypassing the page cache. */
	if (pread(direct, memory, SIZE / 2, 0) != (ssize_t)SIZE / 2)
		die("a direct read");
	for (size_t page = 0; page < PAGES / 2; page++)
		atomic_store(&expected[page], words[page * WORDS]);
	expect_from(PAGES / 2, PAGES, WAS(value), PAGES / 2);
	close(direct);
	munmap(memory, SIZE / 2);
	munmap(memory + SIZE, SIZE);
}

/* Atomic writes, which only f2fs has: they show in the file, and are the file's own only when they are committed. */
enum atomic { ATOMIC_START = 1, ATOMIC_COMMIT = 2, ATOMIC_ABORT = 5, ATOMIC_REPLACE = 25 };

static bool atomic(enum atomic what)
{
	return !ioctl(file, _IO(0xf5, what));
}

static void by_atomic_write(uint64_t value)
{
	if (!atomic(ATOMIC_START)) {
		lacks("an atomic write", value);
		return;
	}
	fill(file, value);
	if (!atomic(ATOMIC_COMMIT))
		die("committing");
	expect(value);
}

/* The file has nothing but what is written until the commit: nothing here. */
static void by_replace(uint64_t value)
{
	if (!atomic(ATOMIC_REPLACE)) {
		lacks("replacing", value);
		return;
	}
	if (!atomic(ATOMIC_COMMIT))
		die("committing");
	expect(SIGBUS);
}

/* Maps pages of an atomic write that are clean. If there are no such writes, it maps the file as it is. */
static void map_uncommitted(void)
{
	uint64_t was;

	if (pread(file, &was, sizeof(was), 0) != sizeof(was))
		die("pread");
	if (atomic(ATOMIC_START)) {
		fill(file, was + CHANGED / 2);
		if (sync_file_range(file, 0, SIZE, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
			die("sync_file_range");
	}
	map_file();
}

static void by_abort(uint64_t value)
{
	if (!atomic(ATOMIC_ABORT))
		lacks("aborting", value);
	else
		expect(WAS(value));
}

static const struct {
	const char *name;
	/* Maps the watchers' memory. They store too, but to a mapping that is read-only. */
	void (*map)(void);
	/* Has the kernel take the pages away, or the right to write to them; false if it does not. */
	bool (*evict)(void);
	void (*act)(uint64_t value);
	/* Tried in /files, on other file systems, or on both. */
	enum { BOTH, FILES, OTHERS } where;
} acts[] = {
	{ "write", map_file, evict, by_write, BOTH },
	{ "write by a child", map_file, evict, by_child, BOTH },
	{ "direct write", map_file, evict, by_direct_write, BOTH },
	{ "store through another mapping", map_file, evict, by_store, BOTH },
	{ "truncate", map_file, evict, by_truncate, BOTH },
	{ "truncate and grow", map_file, evict, by_cut_and_grow, BOTH },
	{ "munmap", map_file, evict, by_munmap, BOTH },
	{ "mprotect", map_file, evict, by_mprotect, BOTH },
	{ "mremap", map_file, evict, by_mremap, BOTH },
	{ "map another file", map_file, evict, by_map_fixed, BOTH },
	{ "reuse of the frames", map_file, evict, by_reuse, BOTH },
	{ "write while reclaim goes on", map_file, evict_meanwhile, by_write, BOTH },
	/* Not every file system's writeback takes folios by the way that is held open. */
	{ "mprotect while writeback goes on", map_writable, write_back_meanwhile, by_mprotect_pages, FILES },
	{ "punch a hole", map_file, evict, by_punch, OTHERS },
	{ "punch small holes", map_file, evict, by_small_holes, OTHERS },
	{ "zero a range", map_file, evict, by_zero_range, OTHERS },
	{ "collapse a range", map_file, evict, by_collapse, OTHERS },
	{ "insert a range", map_file, evict, by_insert, OTHERS },
	{ "clone", map_file, evict, by_clone, OTHERS },
	{ "clone half", map_file, evict, by_clone_of_half, OTHERS },
	{ "copy_file_range", map_file, evict, by_copy, OTHERS },
	{ "exchange", map_file, evict, by_exchange, OTHERS },
	{ "a direct write that fails", map_file, evict, by_failed_write, OTHERS },
	{ "punch a hole while reclaim goes on", map_file, evict_meanwhile, by_punch, OTHERS },
	{ "direct write while reclaim goes on", map_file, evict_meanwhile, by_direct_write, OTHERS },
	{ "atomic write", map_file, evict, by_atomic_write, OTHERS },
	{ "replace", map_file, evict, by_replace, OTHERS },
	{ "abort an atomic write", map_uncommitted, evict, by_abort, OTHERS },
};

#define ACTS (sizeof(acts) / sizeof(acts[0]))

/* A counter of the engine's; 0 without one. */
static unsigned long counter(const char *name)
{
	FILE *statistics = fopen(QUELL "statistics", "r");
	unsigned long count = 0, value;
	char known[64];

	while (statistics && fscanf(statistics, "%63s %lu", known, &value) == 2)
		if (!strcmp(known, name))
			count = value;
	if (statistics)
		fclose(statistics);
	return count;
}

static void create(void)
{
	file = open(in_folder("fresh"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (file < 0)
		die("fresh");
}

/*
 * With `defers` flushes are deferred here. Where they are not, a page in a batch of reclaim that has left the page cache is as
 * stale as on a stock kernel, until the batch is flushed.
 */
static int directed(unsigned long rounds, const char *only, bool everything, bool defers)
{
	unsigned long cpus = (unsigned long)sysconf(_SC_NPROCESSORS_ONLN), failed = 0;

	catch_faults();
	create();
	mapping = map(NULL, PROT_READ, MAP_SHARED, file);
	pin(0);
	for (unsigned long cpu = 1; cpu < cpus; cpu++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, watch, (void *)cpu))
			die("pthread_create");
		watchers++;
	}
	if (!watchers) {
		puts("1..0 # SKIP on one CPU no other watches");
		return 4;
	}
	for (size_t act = 0; act < ACTS; act++) {
		unsigned long evicted = 0;

		if (!strstr(acts[act].name, only) || acts[act].where == (everything ? FILES : OTHERS) ||
		    (acts[act].evict == evict_meanwhile && !defers))
			continue;
		atomic_store(&stale, 0);
		lacking = false;
		for (unsigned long round = 0; round < rounds; round++) {
			uint64_t value = 0x1000000ul * (act + 1) + 0x10000 * (round + 1);

			fill(file, value);
			if (fsync(file))
				die("fsync");
			acts[act].map();
			atomic_store(&storing, acts[act].map == map_writable);
			expect(value);
			next_turn();
			evicted += acts[act].evict();
			acts[act].act(value + CHANGED);
			next_turn();
			tidy();
			/*
			 * The next round needs a new file: recently used pages are not reclaimed at once, and some acts
			 * leave the file's page cache marked.
			 */
			close(file);
			if (unlink(in_folder("fresh")))
				die("unlink");
			create();
		}
		if (atomic_load(&stale) || !evicted) {
			failed++;
			printf("not ok %zu %s\n", act + 1, acts[act].name);
			printf("# %lu looks were stale, the last saw %#lx; %lu of %lu times the kernel took the pages away\n",
			       atomic_load(&stale), (unsigned long)atomic_load(&found), evicted, rounds);
		} else {
			printf("ok %zu %s%s\n", act + 1, acts[act].name, lacking ? " # SKIP this file system lacks it" : "");
		}
		fflush(stdout);
	}
	printf("1..%zu\n", ACTS);
	return failed != 0;
}

/* On a file system of this type. */
static int on_file_system(const char *type, unsigned long rounds)
{
	static const char * const may_defer[] = { "ext2", "ext4", "xfs", "btrfs", "vfat" };
	unsigned long before = counter("flushes_deferred"), deferred;
	char command[128], policy[64] = "";
	bool defers = false, lazy;
	int told, failed;

	snprintf(command, sizeof(command), "/sbin/mkfs.%s %s /dev/ram1 > /dev/null 2>&1", type,
		 strcmp(type, "ext2") && strcmp(type, "ext4") && strcmp(type, "vfat") && strcmp(type, "minix") ? "-f" : "");
	if (system(command)) {
		printf("1..0 # SKIP mkfs.%s\n", type);
		return 4;
	}
	folder = "/disk";
	mkdir(folder, 0700);
	if (mount("/dev/ram1", folder, type, 0, NULL)) {
		if (errno != ENODEV)
			die(type);
		printf("1..0 # SKIP this kernel has no %s\n", type);
		return 4;
	}
	for (size_t at = 0; at < sizeof(may_defer) / sizeof(may_defer[0]); at++)
		defers |= !strcmp(type, may_defer[at]);
	failed = directed(rounds, "", true, defers);
	/* The next type has the disk when this process, which still maps a file of it, has ended. */
	umount2(folder, MNT_DETACH);
	deferred = counter("flushes_deferred") - before;
	told = open(QUELL "policy", O_RDONLY);
	lazy = told >= 0 && read(told, policy, sizeof(policy) - 1) > 0 && (strstr(policy, "S3") || strstr(policy, "all"));
	if (lazy && (deferred > 0) != defers) {
		printf("not ok %zu flushes deferred\n", ACTS + 1);
		failed = 1;
	}
	printf("# %lu batches were deferred\n", deferred);
	return failed;
}

/* At random: readers and writers of one file, in processes of their own. */

#define LARGE 6144ul

struct page_state {
	/* The version that a writer is about to write, and the last complete one. */
	_Atomic uint64_t begun, done;
};

struct shared {
	struct page_state pages[LARGE];
	atomic_ulong reads, writes, wrong;
	_Atomic uint64_t seen[4];
	atomic_bool stop;
};

static struct shared *shared;

static uint64_t draw(unsigned short seed[3])
{
	return (uint64_t)nrand48(seed);
}

static uint64_t content(size_t page, uint64_t version)
{
	return (uint64_t)page << 40 | version;
}

static void wrong(size_t page, uint64_t least, uint64_t saw, uint64_t most)
{
	if (atomic_fetch_add(&shared->wrong, 1))
		return;
	shared->seen[0] = page;
	shared->seen[1] = least;
	shared->seen[2] = saw;
	shared->seen[3] = most;
}

static void read_at_random(int from, unsigned short seed[3])
{
	volatile uint64_t *pages = NULL;
	unsigned long count = 0;
	size_t hot = 0;

	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		/* Some pages are looked at over and over, so that there is a translation when they go. */
		if (draw(seed) % 64 == 0)
			hot = draw(seed) % LARGE;
		size_t page = draw(seed) % 4 ? (hot + draw(seed) % 16) % LARGE : draw(seed) % LARGE;
		struct page_state *state = &shared->pages[page];
		uint64_t least, saw, last;

		if (!pages || draw(seed) % 65536 == 0) {
			if (pages)
				munmap((void *)pages, LARGE * PAGE);
			pages = mmap(NULL, LARGE * PAGE, PROT_READ, draw(seed) & 1 ? MAP_SHARED : MAP_PRIVATE, from, 0);
			if (pages == MAP_FAILED)
				die("mmap");
			/* Readahead would bring in pages that no reader uses. */
			madvise((void *)pages, LARGE * PAGE, MADV_RANDOM);
		}
		least = atomic_load(&state->done);
		saw = pages[page * WORDS];
		last = pages[page * WORDS + WORDS - 1];
		uint64_t most = atomic_load(&state->begun);

		if (saw < content(page, least) || saw > content(page, most))
			wrong(page, least, saw, most);
		if (last < content(page, least) || last > content(page, most))
			wrong(page, least, last, most);
		count++;
	}
	atomic_fetch_add(&shared->reads, count);
}

static void write_at_random(int buffered, int direct, unsigned short seed[3], size_t first, size_t step)
{
	static uint64_t bytes[WORDS] __attribute__((aligned(PAGE)));
	unsigned long count = 0;

	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		/* Each page has one writer. */
		size_t page = first + draw(seed) % (LARGE / step) * step;
		struct page_state *state;
		uint64_t version;

		if (page >= LARGE)
			continue;
		state = &shared->pages[page];
		version = atomic_load(&state->done) + 1;
		for (size_t word = 0; word < WORDS; word++)
			bytes[word] = content(page, version);
		atomic_store(&state->begun, version);
		if (pwrite(draw(seed) % 4 ? buffered : direct, bytes, PAGE, page * PAGE) != PAGE)
			die("pwrite");
		atomic_store(&state->done, version);
		count++;
		/* Dirty pages are not reclaimed without a flush. */
		if (draw(seed) % 256 == 0)
			fdatasync(buffered);
	}
	atomic_fetch_add(&shared->writes, count);
}

static int soak(unsigned int seconds)
{
	static uint64_t bytes[WORDS] __attribute__((aligned(PAGE)));
	unsigned long cpus = (unsigned long)sysconf(_SC_NPROCESSORS_ONLN);
	unsigned long children = 2 * cpus + 2;
	int buffered, direct, status, bad = 0;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	buffered = open(in_folder("fresh.large"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	direct = open(in_folder("fresh.large"), O_RDWR | O_DIRECT);
	if (shared == MAP_FAILED || buffered < 0 || direct < 0)
		die("fresh.large");
	for (size_t page = 0; page < LARGE; page++) {
		for (size_t word = 0; word < WORDS; word++)
			bytes[word] = content(page, 0);
		if (pwrite(buffered, bytes, PAGE, page * PAGE) != PAGE)
			die("pwrite");
	}
	fsync(buffered);
	for (unsigned long child = 0; child < children; child++) {
		unsigned short seed[3] = { 1, 0, (unsigned short)child };
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid)
			continue;
		if (child < 2) {
			write_at_random(buffered, direct, seed, child, 2);
		} else {
			pin((int)(child % cpus));
			read_at_random(buffered, seed);
		}
		_exit(0);
	}
	sleep(seconds);
	atomic_store(&shared->stop, true);
	while (wait(&status) > 0)
		bad |= status;
	printf("# %lu reads, %lu writes\n", atomic_load(&shared->reads), atomic_load(&shared->writes));
	if (atomic_load(&shared->wrong))
		printf("# page %#lx: at least version %#lx, saw %#lx, at most %#lx\n", (unsigned long)shared->seen[0],
		       (unsigned long)shared->seen[1], (unsigned long)shared->seen[2], (unsigned long)shared->seen[3]);
	printf("%s 1 %lu reads were wrong\n1..1\n", atomic_load(&shared->wrong) || bad ? "not ok" : "ok",
	       atomic_load(&shared->wrong));
	return atomic_load(&shared->wrong) || bad;
}

int main(int count, char **arguments)
{
	if (count > 2 && !strcmp(arguments[1], "soak"))
		return soak((unsigned int)strtoul(arguments[2], NULL, 10));
	if (count > 3 && !strcmp(arguments[1], "on"))
		return on_file_system(arguments[2], strtoul(arguments[3], NULL, 10));
	return directed(count > 1 ? strtoul(arguments[1], NULL, 10) : 4, count > 2 ? arguments[2] : "", false, true);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests that a discarded page is gone for all threads when the call returns, even if all threads discard pages at
 * the same time and share a flush.
 *
 *   coalesced [ROUNDS]
 *
 * One thread on each CPU. In each round each but one writes its page, reads everybody's so that its TLB has them
 * all, discards its own at the same time as the others, and reads again each page whose owner's call has returned:
 * only zero may be there. The remaining thread reads all the time, so that its TLB has the pages again between the
 * flush for one and the flush for the next. Prints results as TAP.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define MOST 64
/* The thread that discards nothing: not the first, which runs before and after each of the others. */
#define WATCHER 1

static unsigned long rounds = 500, threads;
static volatile uint64_t *pages;
static atomic_ulong gone[MOST], arrived, stale, lost, looks;

static void die(const char *what)
{
	perror(what);
	exit(2);
}

/* Waits without a call of the kernel: it has no reason to flush. */
static void meet(unsigned long times)
{
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < times * threads)
		__builtin_ia32_pause();
}

/* Reads a page, which must be zero if its owner's call has returned. Returns whether it had. */
static bool look(unsigned long owner, unsigned long round)
{
	bool is_gone = atomic_load(&gone[owner]) == round;

	if (pages[owner * WORDS] && is_gone)
		atomic_fetch_add(&stale, 1);
	if (is_gone)
		atomic_fetch_add(&looks, 1);
	return is_gone;
}

static void *work(void *argument)
{
	unsigned long me = (unsigned long)(uintptr_t)argument, round, owner, times = 0, there;
	volatile uint64_t *mine = pages + me * WORDS;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(me, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
	for (round = 1; round <= rounds; round++) {
		if (me != WATCHER)
			*mine = round;
		meet(++times);
		for (owner = 0; owner < threads; owner++)
			if (pages[owner * WORDS] != (owner == WATCHER ? 0 : round))
				atomic_fetch_add(&lost, 1);
		meet(++times);
		if (me != WATCHER && madvise((void *)mine, PAGE, MADV_DONTNEED))
			die("madvise");
		atomic_store(&gone[me], round);
		do {
			there = 0;
			for (owner = 0; owner < threads; owner++)
				there += !look(owner, round);
			__builtin_ia32_pause();
		} while (there);
		meet(++times);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t others[MOST];
	unsigned long thread;

	if (count > 1)
		rounds = strtoul(arguments[1], NULL, 10);
	threads = (unsigned long)sysconf(_SC_NPROCESSORS_ONLN);
	if (threads > MOST)
		threads = MOST;
	if (threads < 3) {
		puts("1..0 # SKIP no flush is shared by fewer than three CPUs");
		return 0;
	}
	pages = mmap(NULL, threads * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		die("mmap");
	for (thread = 1; thread < threads; thread++)
		if (pthread_create(&others[thread], NULL, work, (void *)(uintptr_t)thread))
			die("pthread_create");
	work((void *)0);
	for (thread = 1; thread < threads; thread++)
		pthread_join(others[thread], NULL);
	printf("# %lu of %lu looks were stale\n", atomic_load(&stale), atomic_load(&looks));
	printf("%s 1 discard beside others\n", atomic_load(&stale) ? "not ok" : "ok");
	printf("%s 2 look before that\n1..2\n", atomic_load(&lost) ? "not ok" : "ok");
	return atomic_load(&stale) || atomic_load(&lost);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Tests that no NMI reads another process's page through a translation whose flush was received and not made yet.
 *
 *   nmi
 *
 * A thread on CPU 1 reads a page all the time. CPU 0 discards the page, and returns when CPU 1 has received the
 * request. The kernel pauses CPU 1 there, before its flush (quell_probe.c, only in kernels built for tests). Another
 * process gets the frame and writes to it. Then CPU 1 takes an NMI whose handler reads a string at the page's
 * address, as BPF programs on perf events do. The read must be refused.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PROBE "/sys/kernel/debug/x86/quell/probe"
/* More pages than the kernel has freed since. */
#define OTHERS 256

static volatile char *page;
static atomic_ulong looks;

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

static void tell(const char *what)
{
	int probe = open(PROBE, O_WRONLY);

	if (probe < 0 || write(probe, what, strlen(what)) < 0)
		die(PROBE);
	close(probe);
}

static void ask(char state[16], long *copied, long *length, char text[32])
{
	FILE *probe = fopen(PROBE, "r");

	text[0] = 0;
	if (!probe || fscanf(probe, "%15s %ld %ld %31[^\n]", state, copied, length, text) < 3)
		die(PROBE);
	fclose(probe);
}

static void *watch(void *unused)
{
	pin(1);
	for (;;) {
		/* The kernel reads it, too: emulators keep translations of the kernel's accesses apart. */
		(void)access((const char *)page, F_OK);
		(void)*page;
		atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
	}
	return unused;
}

static void *memory(size_t bytes)
{
	void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (place == MAP_FAILED)
		die("mmap");
	return place;
}

int main(void)
{
	char state[16] = "", text[32], command[64];
	int go[2], done[2];
	long copied, length;
	pthread_t thread;
	pid_t other;

	if (access(PROBE, F_OK) || sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		puts("1..0 # SKIP this kernel was not built for it, or has one CPU");
		return 4;
	}
	if (pipe(go) || pipe(done))
		die("pipe");
	pin(0);
	other = fork();
	if (other < 0)
		die("fork");
	if (!other) {
		char *pages = memory(OTHERS * PAGE);

		/* It has its page tables then, and the frame is not taken for one. */
		pages[0] = pages[OTHERS * PAGE - 1] = 1;
		if (read(go[0], command, 1) != 1)
			_exit(1);
		for (size_t at = 0; at < OTHERS; at++)
			strcpy(pages + at * PAGE, "not yours");
		(void)!write(done[1], "", 1);
		pause();
	}
	page = memory(PAGE);
	strcpy((char *)page, "mine");
	if (pthread_create(&thread, NULL, watch, NULL))
		die("pthread_create");
	while (atomic_load(&looks) < 1000)
		usleep(100);
	/* Makes all allocations before the frame is free. */
	ask(state, &copied, &length, text);
	snprintf(command, sizeof(command), "1 %lx", (unsigned long)page);
	tell(command);
	if (madvise((void *)page, PAGE, MADV_DONTNEED))
		die("madvise");
	ask(state, &copied, &length, text);
	if (strcmp(state, "stopped")) {
		printf("not ok 1 an NMI before the flush\n# CPU 1 is not stopped: %s\n1..1\n", state);
		kill(other, SIGKILL);
		return 1;
	}
	if (write(go[1], "", 1) != 1 || read(done[0], command, 1) != 1)
		die("the other process");
	tell("go");
	for (int again = 0; strcmp(state, "done") && again < 10000; again++) {
		usleep(100);
		ask(state, &copied, &length, text);
	}
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	printf("%s 1 an NMI before the flush\n# %s: strncpy_from_user_nofault gave %ld \"%s\", strnlen_user_nofault %ld\n1..1\n",
	       !strcmp(state, "done") && copied == -EFAULT && !length ? "ok" : "not ok", state, copied, text, length);
	return strcmp(state, "done") || copied != -EFAULT || length;
}

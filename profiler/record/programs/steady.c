/* Work that is the same all the time, to find out what recording it costs: some threads that each give memory back and fill it
 * again, read a file, or compute.
 *
 * cc -O1 -g -fno-omit-frame-pointer -o steady steady.c -lpthread
 * steady memory|calls|compute THREADS: each thread stays on a CPU of its own, as far as there are so many. Prints each
 * millisecond the time, how much work was done by all threads so far, and their CPU time, both times in nanoseconds. Ends
 * with the process that started it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 16, PAGE = 4096, PAGES = 16, READ = 512 };

/* What each thread has done, and its CPU time. The kernel tells nobody else's to the nanosecond, so each writes its own, every
 * tenth of a millisecond. Each in a cache line of its own. */
static struct {
  _Alignas(64) _Atomic uint64_t count;
  _Atomic uint64_t cpu;
} done[THREADS];
static int threads;
static uint64_t (*work)(void);

static uint64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t memory(void) {
  static _Thread_local char *area;
  if (!area) area = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) abort();
  for (int page = 0; page < PAGES; page++) area[page * PAGE] = 1;
  return (uint64_t)madvise(area, PAGES * PAGE, MADV_DONTNEED);
}

static uint64_t compute(void) {
  static _Thread_local uint64_t state = 88172645463325252;
  for (int step = 0; step < 4096; step++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
  }
  return state;
}

static uint64_t calls(void) {
  static _Thread_local int file = -1;
  char text[READ];
  if (file < 0) file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  uint64_t got = 0;
  for (int read = 0; read < 16; read++) got += (uint64_t)pread(file, text, READ, read * READ);
  return got;
}

/* The first thread tells. */
static void *worker(void *argument) {
  uintptr_t self = (uintptr_t)argument;
  volatile uint64_t seen;
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(self % (uintptr_t)sysconf(_SC_NPROCESSORS_ONLN), &here);
  /* Where that CPU is not to be had, the thread runs wherever it may. */
  sched_setaffinity(0, sizeof here, &here);
  for (uint64_t count = 0, written = 0, told = 0;;) {
    seen = work();
    count++;
    uint64_t time = now(CLOCK_MONOTONIC);
    if (time - written < 100000) continue;
    written = time;
    atomic_store_explicit(&done[self].count, count, memory_order_relaxed);
    atomic_store_explicit(&done[self].cpu, now(CLOCK_THREAD_CPUTIME_ID), memory_order_relaxed);
    if (self || time - told < 1000000) continue;
    told = time;
    uint64_t all = 0, cpu = 0;
    for (int thread = 0; thread < threads; thread++) {
      all += atomic_load_explicit(&done[thread].count, memory_order_relaxed);
      cpu += atomic_load_explicit(&done[thread].cpu, memory_order_relaxed);
    }
    if (printf("%lu %lu %lu\n", (unsigned long)time, (unsigned long)all, (unsigned long)cpu) < 0 || fflush(stdout)) exit(1);
  }
  (void)seen;
}

int main(int count, char **words) {
  threads = count == 3 ? atoi(words[2]) : 0;
  if (count == 3 && !strcmp(words[1], "memory")) work = memory;
  if (count == 3 && !strcmp(words[1], "calls")) work = calls;
  if (count == 3 && !strcmp(words[1], "compute")) work = compute;
  if (!work || threads < 1 || threads > THREADS) {
    fprintf(stderr, "steady memory|calls|compute THREADS (1 to %d)\n", THREADS);
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (uintptr_t thread = 1; thread < (uintptr_t)threads; thread++) {
    pthread_t other;
    if (pthread_create(&other, 0, worker, (void *)thread)) abort();
  }
  worker(0);
}

/* A server's memory: three threads that each keep 64 buffers of 16 to 216 KB, and for each request free one and make
 * another. What the allocator does with what was freed is what is looked at.
 *
 * cc -O1 -g -fno-omit-frame-pointer -o allocator allocator.c -lpthread
 * allocator SECONDS: prints how many requests, and the CPU time in seconds. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS = 3, BUFFERS = 64 };

static double until;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void handle_request(char **buffers, unsigned short seed[3]) {
  size_t size = 16384 + nrand48(seed) % 200000;
  size_t at = nrand48(seed) % BUFFERS;
  free(buffers[at]);
  buffers[at] = malloc(size);
  if (!buffers[at]) abort();
  memset(buffers[at], 1, size);
}

static void *serve(void *argument) {
  char *buffers[BUFFERS] = {0};
  unsigned short seed[3] = {1, 0, (unsigned short)(uintptr_t)argument};
  uintptr_t requests = 0;
  while (now() < until) {
    handle_request(buffers, seed);
    requests++;
  }
  return (void *)requests;
}

int main(int count, char **words) {
  pthread_t threads[THREADS];
  uintptr_t requests = 0;
  until = now() + (count > 1 ? atoi(words[1]) : 2);
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, serve, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(threads[i], &result);
    requests += (uintptr_t)result;
  }
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  double cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  printf("%lu %.3f\n", (unsigned long)requests, cpu);
  return 0;
}

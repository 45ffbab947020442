/* A server's memory: three threads that each keep 64 buffers of 16 to 216 KB, and for each request free one and
 * allocate another.
 *
 * allocator REQUESTS: each thread serves this many. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, BUFFERS = 64 };

static int requests;

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
  for (int i = 0; i < requests; i++) handle_request(buffers, seed);
  return 0;
}

int main(int count, char **words) {
  pthread_t threads[THREADS];
  requests = count > 1 ? atoi(words[1]) : 30000;
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, serve, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
  return 0;
}

// Programs that do one thing all the time, to measure what recording costs: costs KIND COUNT.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096, THREADS = 2 };
static long count;

static char *memory(size_t bytes) {
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(start, bytes, MADV_NOHUGEPAGE);
    return start;
}

// Gives a page back and touches it again.
static void *discard(void *ignored) {
    char *page = memory(PAGE);
    for (long at = 0; at < count; at++) {
        *(volatile char *)page = 1;
        madvise(page, PAGE, MADV_DONTNEED);
    }
    return ignored;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    count = atol(argv[2]);
    if (!strcmp(argv[1], "discards")) {
        pthread_t threads[THREADS];
        for (int at = 0; at < THREADS; at++)
            pthread_create(&threads[at], NULL, discard, NULL);
        for (int at = 0; at < THREADS; at++)
            pthread_join(threads[at], NULL);
    } else if (!strcmp(argv[1], "mprotect")) {
        char *page = memory(PAGE);
        for (long at = 0; at < count; at++) {
            *(volatile char *)page = 1;
            mprotect(page, PAGE, PROT_READ);
            mprotect(page, PAGE, PROT_READ | PROT_WRITE);
        }
    } else if (!strcmp(argv[1], "faults")) {
        char *start = memory((size_t)PAGES * PAGE);
        for (long at = 0; at < count; at++) {
            *(volatile char *)(start + at % PAGES * PAGE) = 1;
            if (at % PAGES == PAGES - 1)
                madvise(start, (size_t)PAGES * PAGE, MADV_DONTNEED);
        }
    } else if (!strcmp(argv[1], "forks")) {
        char *start = memory(64 * PAGE);
        for (long at = 0; at < count; at++) {
            memset(start, 1, 64 * PAGE);
            pid_t child = fork();
            if (!child)
                _exit(0);
            waitpid(child, NULL, 0);
        }
    } else {
        return 2;
    }
    return 0;
}

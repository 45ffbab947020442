/*
 * A complete kernel that embeds the engine. Its CPUs are two threads, and each TLB has one entry.
 *
 * It unmaps a page that another CPU is using, and gives the frame a new owner as soon as the batch returns it. Then it
 * shows that the other CPU doesn't use the frame again. `cargo test --test c programs` builds and runs it; by hand:
 *
 *     cargo rustc --release -p quell-c --crate-type staticlib
 *     cc -std=c11 -Iengine/quell-c/include engine/quell-c/examples/embed.c target/release/libquell_c.a -lpthread -ldl -lm
 *
 * With -DWITHOUT_INVALIDATE the machine's TLBs ignore invalidations, and the program detects that.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "quell.h"

#define CPUS 2
#define PAGE 5
#define FRAME 42

/* ---- The machine: no tags, no broadcasts, and interrupts that it polls for. ---- */

static _Thread_local unsigned this_cpu;

/* A CPU: the frame that its TLB has for PAGE (0 if none), and whether another CPU has interrupted it. */
static struct {
    uint64_t tlb;
    atomic_bool interrupted;
} cpus[CPUS];

uint32_t quell_hw_this_cpu(void) { return this_cpu; }
void quell_hw_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

void quell_hw_invalidate(const struct quell_invalidation *what)
{
#ifndef WITHOUT_INVALIDATE
    bool covered = what->kind != QUELL_INVALIDATION_KIND_RANGE ||
                   (what->range.start <= PAGE && PAGE - what->range.start < what->range.pages);
    if (covered)
        cpus[this_cpu].tlb = 0;
#else
    (void)what;
#endif
}

void quell_hw_load_root(uint64_t root, uint16_t tag, bool keep)
{
    (void)root, (void)tag, (void)keep;
    cpus[this_cpu].tlb = 0;
}
void quell_hw_unload_root(void) { cpus[this_cpu].tlb = 0; }

void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        if (targets->bits[cpu / 64] >> cpu % 64 & 1)
            atomic_store(&cpus[cpu].interrupted, true);
}

/* Interrupts are never on: this machine polls for them. */
bool quell_hw_mask_interrupts(void) { return false; }
void quell_hw_restore_interrupts(bool were_on) { (void)were_on; }
void quell_hw_relax(void) { sched_yield(); }
bool quell_hw_may_wait(void) { return true; }

/* This machine has no broadcasts, and its features declare that. */
void quell_hw_broadcast_start(const struct quell_invalidation *what) { (void)what; abort(); }
void quell_hw_broadcast_complete(void) { abort(); }

/* A library for kernels calls this function when it panics. */
void quell_panic(const char *message, size_t length)
{
    fprintf(stderr, "quell: %.*s\n", (int)length, message);
    abort();
}

/* ---- The kernel: it provides all memory, and has one page table of one entry. ---- */

static struct quell_engine engine;
static struct quell_cpu engine_cpus[CPUS];
static struct quell_ledger_entry ledger[64];
static struct quell_space space;

static _Atomic uint64_t entry = FRAME;  /* the page table: PAGE -> FRAME, 0 if not present */
static atomic_int owner = 1;            /* the owner of the data in FRAME */
static atomic_ulong accesses;           /* the number of CPU 1's accesses to FRAME */
static atomic_ulong looks;              /* the number of turns of CPU 1's loop */
static atomic_bool done;

/* Every call here must succeed, so an error status is a mistake in this program. */
static void check(enum quell_status status, const char *what)
{
    if (status != QUELL_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", what, quell_status_text((uint32_t)status));
        exit(2);
    }
}
#define CHECK(call) check(call, #call)

/* Makes an access of this CPU: through the TLB, or by a walk that fills it. */
static uint64_t access_page(void)
{
    if (!cpus[this_cpu].tlb)
        cpus[this_cpu].tlb = atomic_load(&entry);
    return cpus[this_cpu].tlb;
}

static void *other_cpu(void *unused)
{
    (void)unused;
    this_cpu = 1;
    CHECK(quell_cpu_online(&engine));
    CHECK(quell_switch_to(&engine, &engine_cpus[this_cpu], NULL, &space));
    while (!atomic_load(&done)) {
        if (access_page() == FRAME) {
            if (atomic_load(&owner) != 1) {
                fprintf(stderr, "CPU 1 has used a frame that has a new owner\n");
                exit(1);
            }
            atomic_fetch_add(&accesses, 1);
        }
        if (atomic_exchange(&cpus[1].interrupted, false))
            quell_on_interrupt(&engine, &engine_cpus[this_cpu]);
        atomic_fetch_add(&looks, 1);
    }
    CHECK(quell_cpu_offline(&engine, &space));
    return NULL;
}

int main(void)
{
    char why[160] = "";
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_NONE, .full_above = 33},
        .policy = "all",
        .cpus = engine_cpus,
        .cpu_count = CPUS,
        .ledger = ledger,
        .ledger_entries = 64,
        .message = why,
        .message_size = sizeof why,
    };
    enum quell_status made = quell_engine_new(&engine, &setup);
    if (made != QUELL_STATUS_OK) {
        /* Without a message the status says why: the header is another library's. */
        fprintf(stderr, "%s\n", why[0] ? why : quell_status_text(made));
        return 2;
    }
    /* This machine walks no tables, so a root is only a name. */
    CHECK(quell_space_new(&engine, &space, 1));

    pthread_t thread;
    if (pthread_create(&thread, NULL, other_cpu, NULL))
        return 2;
    CHECK(quell_cpu_online(&engine));
    CHECK(quell_switch_to(&engine, &engine_cpus[this_cpu], NULL, &space));
    while (!atomic_load(&accesses))
        sched_yield();

    /* The unmap: clear the entry, pass the frame to the batch, and get it back after the flush. */
    struct quell_batch batch;
    void *frames[8];
    size_t count;
    static char frame;
    CHECK(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, frames, 8));
    atomic_store(&entry, 0);
    CHECK(quell_batch_unmapped(&batch, &space, (struct quell_range){.start = PAGE, .pages = 1}, &frame));
    CHECK(quell_batch_finish(&batch, &count));
    for (size_t i = 0; i < count && frames[i] == &frame; i++) {
        atomic_store(&owner, 2);
        printf("the frame has a new owner after %lu accesses\n", atomic_load(&accesses));
    }
    if (atomic_load(&owner) != 2) {
        fprintf(stderr, "the frame did not come back\n");
        return 2;
    }

    /* CPU 1 accesses the page for some more turns, and finds it unmapped. */
    for (unsigned long end = atomic_load(&looks) + 1000; atomic_load(&looks) < end;)
        sched_yield();
    atomic_store(&done, true);
    pthread_join(thread, NULL);
    CHECK(quell_cpu_offline(&engine, &space));
    CHECK(quell_space_retire(&engine, &space));

    uint64_t counts[QUELL_COUNTERS];
    CHECK(quell_stats(&engine, counts));
    for (uint32_t counter = 0; counter < QUELL_COUNTERS; counter++)
        if (counts[counter])
            printf("%20s %llu\n", quell_counter_label(counter), (unsigned long long)counts[counter]);
    return 0;
}

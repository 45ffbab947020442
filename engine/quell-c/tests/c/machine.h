/* A machine of one thread that records its calls, for programs that check the interface. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quell.h"

static uint32_t this_cpu;
static bool interrupts_on = true;
static struct quell_invalidation invalidated, broadcast;
static unsigned invalidations, broadcasts, completions, roots;
static uint64_t root;
static uint16_t root_tag;
static bool root_kept;

uint32_t quell_hw_this_cpu(void) { return this_cpu; }
void quell_hw_fence(void) {}
/* The first invalidations since `invalidations` was zero. */
#define RECORDED 64
static struct quell_invalidation recorded[RECORDED];
void quell_hw_invalidate(const struct quell_invalidation *what)
{
    if (invalidations < RECORDED)
        recorded[invalidations] = *what;
    invalidated = *what, invalidations++;
}
void quell_hw_broadcast_start(const struct quell_invalidation *what) { broadcast = *what, broadcasts++; }
void quell_hw_broadcast_complete(void) { completions++; }
void quell_hw_load_root(uint64_t frame, uint16_t tag, bool keep) { root = frame, root_tag = tag, root_kept = keep, roots++; }
void quell_hw_unload_root(void) { root = 0; }
/* No other CPU can answer, unless the program defines OTHERS_ANSWER and implements these functions. */
#if !defined(OTHERS_ANSWER)
void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
    printf("interrupts are sent to %llx\n", (unsigned long long)targets->bits[0]);
    exit(3);
}
void quell_hw_relax(void) {}
#endif
bool quell_hw_mask_interrupts(void)
{
    bool were_on = interrupts_on;
    interrupts_on = false;
    return were_on;
}
void quell_hw_restore_interrupts(bool were_on) { interrupts_on = were_on; }
bool quell_hw_may_wait(void) { return true; }
void quell_panic(const char *message, size_t length)
{
    if (message[length] != 0)
        exit(4);
    fprintf(stderr, "quell_panic: %s\n", message);
    exit(7);
}

/* The state of this CPU, in programs that keep the states in one array. */
#define HERE (&cpus[this_cpu])

#define UNUSED __attribute__((unused))
/* Makes an engine for one CPU without tags, and brings that CPU online. */
UNUSED static enum quell_status engine_of_one_cpu(struct quell_engine *engine, struct quell_cpu *cpu)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_NONE, .full_above = 33},
        .cpus = cpu,
        .cpu_count = 1,
    };
    enum quell_status status = quell_engine_new(engine, &setup);
    return status == QUELL_STATUS_OK ? quell_cpu_online(engine) : status;
}

/* The calls that a kernel makes with interrupts masked. */
UNUSED static enum quell_status switch_to(struct quell_engine *engine, struct quell_cpu *here, struct quell_space *from,
                                          struct quell_space *to)
{
    bool were_on = quell_hw_mask_interrupts();
    enum quell_status status = quell_switch_to(engine, here, from, to);
    quell_hw_restore_interrupts(were_on);
    return status;
}
UNUSED static enum quell_status on_interrupt(struct quell_engine *engine, struct quell_cpu *here)
{
    bool were_on = quell_hw_mask_interrupts();
    enum quell_status status = quell_on_interrupt(engine, here);
    quell_hw_restore_interrupts(were_on);
    return status;
}

/* Checks that each started flush calls back once, when it's over: at once, when the last CPU has answered, whichever
   CPU checks for it, or when a poll finds that a device has answered. */
#define OTHERS_ANSWER
#include "checks.h"
#include "machine.h"

#define CPUS 3
static struct quell_engine engine;
static struct quell_cpu cpus[CPUS];
static struct quell_space spaces[CPUS];
static struct quell_batch batches[CPUS];
static bool interrupted[CPUS];
static unsigned called[CPUS];

void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        interrupted[cpu] |= targets->bits[0] >> cpu & 1;
}
void quell_hw_relax(void) { puts("a flush is waited for"), exit(1); }

/* Makes another CPU take its interrupt. */
static void answers(uint32_t cpu)
{
    uint32_t before = this_cpu;
    IS(interrupted[cpu], true);
    interrupted[cpu] = false, this_cpu = cpu;
    DONE(on_interrupt(&engine, HERE));
    this_cpu = before;
}

/* Ends the batch of CPU n, whose space that CPU and CPU 0 run. If `nested` is set, the callback for CPU 1 makes CPU 2
   answer while this CPU checks. */
static bool nested;
static void ended(void *batch)
{
    struct quell_batch *own = batch;
    uint32_t cpu = (uint32_t)(own - batches);
    called[cpu]++;
    IS(interrupts_on, false);
    IS(quell_batch_poll(own), true);
    DONE(quell_batch_finish(own, NULL));
    if (nested && cpu == 1)
        answers(2);
}

static void start_with(uint32_t cpu, void (*callback)(void *))
{
    DONE(quell_batch_begin(&engine, &batches[cpu], QUELL_PURPOSE_CALL, NULL, 0));
    DONE(quell_batch_changed_all(&batches[cpu], &spaces[cpu], QUELL_SCOPE_LEAF));
    DONE(quell_batch_start(&batches[cpu], callback, &batches[cpu]));
}
static void start(uint32_t cpu) { start_with(cpu, ended); }

/* A device that completes what was started once it isn't busy. */
static uint64_t started;
static bool busy;
static unsigned checks;
static void start_secondary(uint64_t root, const struct quell_range *range, uint32_t scope)
{
    (void)root, (void)range, (void)scope;
    started++;
}
static uint64_t mark_secondary(void) { return started; }
static bool secondary_is_done(uint64_t mark)
{
    IS(0 < mark && mark <= started, true);
    checks++;
    return !busy;
}
static const struct quell_hooks hooks = {
    .start_secondary = start_secondary,
    .mark_secondary = mark_secondary,
    .secondary_is_done = secondary_is_done,
};

int main(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_NONE, .full_above = 33},
        .cpus = cpus,
        .cpu_count = CPUS,
        .hooks = &hooks,
    };
    DONE(quell_engine_new(&engine, &setup));
    for (this_cpu = 0; this_cpu < CPUS; this_cpu++) {
        DONE(quell_cpu_online(&engine));
        DONE(quell_space_new(&engine, &spaces[this_cpu], 9 + this_cpu));
        DONE(switch_to(&engine, HERE, NULL, &spaces[this_cpu]));
    }
    this_cpu = 0;
    (void)invalidations;
    /* This flush needs no other CPU. */
    start(0);
    IS(called[0], 1);
    /* CPUs answer in any order. In half of the rounds one answers while another CPU checks, also for a flush that this
       one has already checked. */
    for (unsigned order = 0; order < 4; order++) {
        nested = order >= 2;
        start(1 + order % 2);
        start(2 - order % 2);
        IS(called[1] + called[2], 2 * order);
        IS(quell_batch_poll(&batches[2]), false);
        /* Even a library without checks refuses this call. */
        REFUSED(quell_batch_finish(&batches[2], NULL), IN_FLIGHT);
        answers(1);
        IS(called[1], order + 1);
        if (!nested)
            answers(2);
        IS(called[2], order + 1);
    }
    /* No CPU notices that a device has answered: each poll asks it once. */
    nested = false;
    for (unsigned with = 0; with < 2; with++) {
        unsigned before = called[1];
        busy = true;
        start_with(1, with ? ended : NULL);
        answers(1);
        checks = 0;
        IS(quell_batch_poll(&batches[1]), false);
        IS(checks, 1);
        busy = false;
        IS(called[1], before);
        IS(quell_batch_poll(&batches[1]), true);
        IS(called[1], before + with);
        if (!with)
            DONE(quell_batch_finish(&batches[1], NULL));
    }
    printf("%u answers were right\n", asked);
    return 0;
}

/*
 * Checks a library that was built for batches of one space and requests of two ranges, with a header for the same
 * numbers. A batch is smaller, a third range turns a request into a full one, and a second space is flushed whole at
 * the batch's end. With another header, the library refuses to make an engine.
 */
#include "checks.h"
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[1];
static struct quell_space spaces[2];

#if QUELL_BATCH_SPACES == 1
static uint64_t counted(unsigned counter)
{
    uint64_t counters[QUELL_COUNTERS];
    DONE(quell_stats(&engine, counters));
    return counters[counter];
}

static void finish(unsigned pages)
{
    struct quell_batch batch;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    for (unsigned page = 0; page < pages; page++) {
        struct quell_range range = {.start = 16 * page, .pages = 1};
        DONE(quell_batch_changed(&batch, &spaces[0], range, QUELL_SCOPE_LEAF));
    }
    invalidations = 0;
    DONE(quell_batch_finish(&batch, NULL));
}
#endif

int main(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .cpus = cpus,
        .cpu_count = 1,
    };
#if QUELL_BATCH_SPACES == 1
    struct quell_batch batch;
    struct quell_range range = {.start = 7, .pages = 1};
    IS(sizeof(batch), QUELL_BATCH_SIZE);
    IS(QUELL_BATCH_SIZE < 512, true);
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    DONE(quell_space_new(&engine, &spaces[0], 9));
    DONE(quell_space_new(&engine, &spaces[1], 10));
    DONE(switch_to(&engine, HERE, NULL, &spaces[0]));
    finish(2);
    IS(invalidations, 2);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_RANGE);
    finish(3);
    IS(invalidations, 1);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
    /* One space more than the batch has places for: it is reported all the same, and flushed. */
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    DONE(quell_batch_changed(&batch, &spaces[1], range, QUELL_SCOPE_LEAF));
    IS(counted(QUELL_COUNTER_ESCALATED_BATCH), 0);
    DONE(quell_batch_changed(&batch, &spaces[0], range, QUELL_SCOPE_LEAF));
    IS(counted(QUELL_COUNTER_ESCALATED_BATCH), 1);
    invalidations = 0;
    DONE(quell_batch_finish(&batch, NULL));
    IS(invalidations, 1);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
#else
    REFUSED(quell_engine_new(&engine, &setup), INTERFACE);
    (void)spaces;
    (void)invalidations;
#endif
    printf("%u answers were right\n", asked);
    return 0;
}

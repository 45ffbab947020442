/*
 * Checks that the last of 8192 CPUs is interrupted, and no other. With a header for fewer CPUs than the library's, no
 * engine is made.
 */
#define OTHERS_ANSWER
#include "checks.h"
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[QUELL_MAX_CPUS];
static struct quell_space space;
static const uint32_t last = QUELL_MAX_CPUS - 1;
static bool pending;
static unsigned interrupts;

void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
    for (unsigned word = 0; word < QUELL_CPU_SET_WORDS; word++)
        IS(targets->bits[word], word == last / 64 ? 1ull << last % 64 : 0);
    pending = true;
    interrupts++;
}

void quell_hw_relax(void)
{
    if (!pending)
        return;
    uint32_t me = this_cpu;
    pending = false;
    this_cpu = last;
    on_interrupt(&engine, HERE);
    this_cpu = me;
}

int main(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .cpus = cpus,
        .cpu_count = QUELL_MAX_CPUS,
    };
#if defined(QUELL_CPUS_8192)
    IS(QUELL_MAX_CPUS, 8192);
    struct quell_batch batch;
    struct quell_range range = {.start = 0x1000, .pages = 1};
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    DONE(quell_space_new(&engine, &space, 9));
    this_cpu = last;
    DONE(quell_cpu_online(&engine));
    DONE(switch_to(&engine, HERE, NULL, &space));
    this_cpu = 0;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    DONE(quell_batch_changed(&batch, &space, range, QUELL_SCOPE_LEAF));
    DONE(quell_batch_unlocked(&batch));
    IS(interrupts, 0);
    DONE(quell_batch_finish(&batch, NULL));
    IS(interrupts, 1);
    IS(invalidated.range.start, 0x1000);
    setup.cpu_count++;
    this_cpu = last;
    DONE(quell_cpu_offline(&engine, &space));
    this_cpu = 0;
    DONE(quell_cpu_offline(&engine, NULL));
    REFUSED(quell_engine_new(&engine, &setup), UNSUPPORTED);
#else
    REFUSED(quell_engine_new(&engine, &setup), INTERFACE);
    (void)space;
    (void)pending;
    (void)interrupts;
#endif
    printf("%u answers were right\n", asked);
    return 0;
}

/*
 * A library with S0 alone: an engine that asks for more is refused, for a policy and for a machine, and the engine that
 * was in its place goes on.
 */
#include "checks.h"
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[1];
static struct quell_space space;

int main(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .policy = "S0",
        .cpus = cpus,
        .cpu_count = 1,
    };
    DONE(quell_engine_new(&engine, &setup));
    setup.policy = "S0+S3";
    REFUSED(quell_engine_new(&engine, &setup), UNSUPPORTED);
    setup.policy = "S0", setup.features.broadcast = 1;
    setup.features.tagging = QUELL_TAGGING_GLOBAL, setup.features.tags = 16;
    REFUSED(quell_engine_new(&engine, &setup), UNSUPPORTED);
    DONE(quell_cpu_online(&engine));
    DONE(quell_space_new(&engine, &space, 9));
    (void)invalidations;
    printf("%u answers were right\n", asked);
    return 0;
}

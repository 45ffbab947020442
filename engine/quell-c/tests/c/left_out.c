/*
 * Checks a library with S0 alone, with and without policies as text. It refuses an engine whose policy or machine needs
 * more, and the engine that was in the same memory still works.
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
#if defined(WITHOUT_TEXT)
    char text[8];
    REFUSED(quell_engine_new(&engine, &setup), POLICY);
    setup.policy = NULL;
    DONE(quell_engine_new(&engine, &setup));
    REFUSED(quell_policy_text(&engine, text, sizeof text), UNSUPPORTED);
#else
    DONE(quell_engine_new(&engine, &setup));
    setup.policy = "S0+S3";
    REFUSED(quell_engine_new(&engine, &setup), UNSUPPORTED);
    setup.policy = NULL;
    DONE(quell_engine_new(&engine, &setup));
#endif
    /* The policy NULL means every mechanism of the library. */
    IS(quell_policy_has(&engine, 0), 1);
    IS(quell_policy_has(&engine, 3), 0);
    setup.features.broadcast = 1;
    setup.features.tagging = QUELL_TAGGING_GLOBAL, setup.features.tags = 16;
    REFUSED(quell_engine_new(&engine, &setup), UNSUPPORTED);
    DONE(quell_cpu_online(&engine));
    DONE(quell_space_new(&engine, &space, 9));
    /* The library was also built without the feature "start". */
    static struct quell_batch batch;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    REFUSED(quell_batch_start(&batch, NULL, NULL), UNSUPPORTED);
    (void)invalidations;
    printf("%u answers were right\n", asked);
    return 0;
}

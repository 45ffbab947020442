/*
 * Calls that a library with checks for misuse refuses, and that a library built with QUELL_UNCHECKED accepts. With
 * REFUSES defined, the program is linked to the library with checks. Everything here is harmless in the other library,
 * too, but only because we know this version of it.
 */
#include "checks.h"
#include "machine.h"

#if defined(REFUSES)
#define MISUSE(call, status) REFUSED(call, status)
#else
#define MISUSE(call, status) DONE(call)
#endif

static struct quell_engine engine;
static struct quell_cpu cpus[2];
static struct quell_space space;

int main(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_NONE, .full_above = 33},
        .cpus = cpus,
        .cpu_count = 2,
    };
    struct quell_range range = {.start = 7, .pages = 1};
    struct quell_cpu *places[2] = {&cpus[0], NULL};
    /* Both libraries refuse mistakes in calls that are made once for each boot. */
    REFUSED(quell_engine_new(NULL, &setup), NULL);
    REFUSED(quell_engine_new((struct quell_engine *)((char *)&engine + 8), &setup), MISALIGNED);
    setup.cpus = (struct quell_cpu *)((char *)cpus + 8);
    REFUSED(quell_engine_new(&engine, &setup), MISALIGNED);
    setup.cpus = NULL;
    setup.cpu_places = places;
    REFUSED(quell_engine_new(&engine, &setup), NULL);
    setup.cpus = cpus;
    setup.cpu_places = NULL;
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    REFUSED(quell_cpu_online(&engine), ONLINE);
    DONE(quell_space_new(&engine, &space, 9));
    DONE(switch_to(&engine, HERE, NULL, &space));
    DONE(quell_flush(&engine, HERE, &space, &range, QUELL_SCOPE_TABLES));
    IS(invalidated.range.start, 7);
    MISUSE(quell_flush(&engine, HERE, &space, &range, 2), VALUE);
    range.stride = 3;
    range.start = 0;
    range.pages = 1 << 18;
    MISUSE(quell_flush(&engine, HERE, &space, &range, QUELL_SCOPE_LEAF), VALUE);
    this_cpu = 1;
    IS(quell_is_online(&engine), 0);
    MISUSE(quell_enter_lazy(&engine, HERE), OFFLINE);
    printf("%u answers were right\n", asked);
    return 0;
}

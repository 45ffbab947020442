/*
 * Misuses the interface: an argument that is NULL, zero, misaligned or out of range, or a call in the wrong order, is
 * refused with the status that the header names, and changes nothing. Correct calls reach the machine unchanged. This
 * file is long because it calls every function of the interface with every argument that must be refused.
 */
#include "checks.h"
#include "machine.h"

#define CPUS 3
static struct quell_engine engine, nothing;
static struct quell_cpu cpus[CPUS], *places[CPUS];
static struct quell_slot slots[CPUS * 2];
static struct quell_ledger_entry ledger[4];
static struct quell_space space, other, no_space;
static struct quell_deferred_flush deferred_flush;
static char why[160];
static int frames[201];

static const struct quell_range one = {5, 1, QUELL_STRIDE_BASE};

static struct quell_setup good(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .cpus = cpus,
        .cpu_count = CPUS,
        .ledger = ledger,
        .ledger_entries = 4,
        .message = why,
        .message_size = sizeof why,
    };
    return setup;
}

static void says(const char *part)
{
    asked++;
    if (!strstr(why, part)) {
        printf("\"%s\" does not say \"%s\"\n", why, part);
        exit(1);
    }
    why[0] = 0;
}

static void texts(void)
{
    for (uint32_t a = 0; a <= QUELL_STATUS_IN_FLIGHT; a++)
        for (uint32_t b = 0; b < a; b++)
            IS(strcmp(quell_status_text(a), quell_status_text(b)) != 0, 1);
    /* Each text names something in the interface, so that the reader knows what to change. */
    for (uint32_t a = QUELL_STATUS_NULL; a <= QUELL_STATUS_IN_FLIGHT; a++)
        IS(strstr(quell_status_text(a), "quell") || strstr(quell_status_text(a), "QUELL_"), 1);
    IS(strcmp(quell_status_text(QUELL_STATUS_IN_FLIGHT + 1), quell_status_text(UINT32_MAX)), 0);
    IS(strcmp(quell_counter_label(QUELL_COUNTER_SHOOTDOWNS), "shootdowns"), 0);
    IS(strcmp(quell_counter_label(QUELL_COUNTER_REINSTATED), "reinstated"), 0);
    IS(strlen(quell_counter_meaning(QUELL_COUNTERS - 1)) > 10, 1);
    IS(quell_counter_label(QUELL_COUNTERS) == NULL, 1);
    IS(quell_counter_meaning(UINT32_MAX) == NULL, 1);
}

/* Checks that the message of a refusal explains the mistake with C's names. */
static void explains(const struct quell_setup *setup)
{
    asked++;
    if (setup->message && setup->message_size > 8 && (!strstr(why, "quell_") || strstr(why, "::"))) {
        printf("\"%s\" explains nothing to C\n", why);
        exit(1);
    }
}

static void setups(void)
{
#define NO_ENGINE(status)                                         \
    do {                                                          \
        IS(quell_engine_new(&engine, &setup), QUELL_STATUS_##status); \
        explains(&setup);                                         \
    } while (0)
    struct quell_setup setup = good();
    REFUSED(quell_engine_new(NULL, &setup), NULL);
    REFUSED(quell_engine_new(&engine, NULL), NULL);
    REFUSED(quell_engine_new((struct quell_engine *)((char *)&engine + 8), &setup), MISALIGNED);
    explains(&setup);
    setup.interface = 0;
    REFUSED(quell_engine_new(&engine, &setup), INTERFACE);
    setup = good(), setup.hooks = (const struct quell_hooks *)((const char *)&engine + 1);
    NO_ENGINE(MISALIGNED);

    setup = good(), setup.policy = "S0+S9";
    NO_ENGINE(POLICY);
    says("S9");
    setup.policy = "";
    NO_ENGINE(POLICY);
    says("a term is missing");
    setup.policy = "all\xff";
    NO_ENGINE(POLICY);
    says("UTF-8");
    char endless[QUELL_POLICY_LENGTH + 1];
    memset(endless, 'x', sizeof endless);
    setup.policy = endless;
    NO_ENGINE(POLICY);
    says("255 bytes");
    /* With no room or little room for the message, nothing behind it is written. */
    setup.policy = "S9", setup.message_size = 0, memset(why, '?', sizeof why);
    NO_ENGINE(POLICY);
    IS(why[0], '?');
    setup.message_size = 4;
    NO_ENGINE(POLICY);
    IS(strlen(why), 3);
    IS(why[4], '?');
    setup.message = NULL;
    NO_ENGINE(POLICY);

    setup = good(), setup.features.tagging = 3;
    NO_ENGINE(UNSUPPORTED);
    says("enum quell_tagging");
    setup = good(), setup.features.tags = 65536;
    NO_ENGINE(UNSUPPORTED);
    says("above 65535");
    setup.features.tags = 0;
    NO_ENGINE(UNSUPPORTED);
    says("QUELL_TAGGING_NONE");
    setup = good(), setup.features.tagging = QUELL_TAGGING_GLOBAL;
    NO_ENGINE(UNSUPPORTED);
    says("broadcast is 0 with QUELL_TAGGING_GLOBAL");
    setup.features.broadcast = 1, setup.features.tags = 256;
    NO_ENGINE(UNSUPPORTED);
    says("tags is above 16");
    setup.features.tags = 17;
    NO_ENGINE(UNSUPPORTED);
    says("tags is above 16");
    setup = good(), setup.features.broadcast = 2;
    NO_ENGINE(UNSUPPORTED);
    says("neither 0 nor 1");
    setup = good(), setup.features.broadcast = 1;
    NO_ENGINE(UNSUPPORTED);
    says("broadcast is 1 with QUELL_TAGGING_PER_CPU");

    setup = good(), setup.cpu_count = 0;
    NO_ENGINE(UNSUPPORTED);
    says("cpu_count");
    setup.cpu_count = QUELL_MAX_CPUS + 1;
    NO_ENGINE(UNSUPPORTED);
    says("QUELL_MAX_CPUS");
    setup = good(), setup.cpus = NULL;
    NO_ENGINE(NULL);
    says("cpus");
    setup = good(), setup.cpus = (struct quell_cpu *)((char *)cpus + 8);
    NO_ENGINE(MISALIGNED);
    /* The setup has one array or a place for each CPU, but not both. */
    setup = good(), setup.cpu_places = places;
    NO_ENGINE(UNSUPPORTED);
    says("both cpus and cpu_places");
    setup.cpus = NULL, places[0] = &cpus[2], places[2] = &cpus[0];
    NO_ENGINE(NULL);
    says("cpu_places");
    places[1] = (struct quell_cpu *)((char *)cpus + 8);
    NO_ENGINE(MISALIGNED);
    says("cpu_places");
    setup.cpu_places = (struct quell_cpu *const *)((char *)places + 1);
    NO_ENGINE(MISALIGNED);
    setup = good(), setup.ledger = NULL;
    NO_ENGINE(NULL);
    says("ledger");
    setup = good(), setup.slots_per_cpu = 2;
    NO_ENGINE(NULL);
    says("slots");
    setup.slots_per_cpu = SIZE_MAX / 2;
    NO_ENGINE(UNSUPPORTED);
    says("slots_per_cpu");

    /* After a refusal there is no engine. */
    REFUSED(quell_cpu_online(&engine), NO_ENGINE);
    setup = good(), setup.slots = slots, setup.slots_per_cpu = 2;
    DONE(quell_engine_new(&engine, &setup));
    setup.cpus = NULL, places[1] = &cpus[1], setup.cpu_places = places;
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    IS(quell_is_online(&engine), 1);
    this_cpu = CPUS;
    REFUSED(quell_cpu_online(&engine), CPU);
    this_cpu = 0;
    DONE(quell_cpu_offline(&engine, NULL));
    /* An engine can be made again in the same memory while no CPU is online. */
    setup = good(), setup.policy = "all,tags=4,cap=8M";
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    NO_ENGINE(ONLINE);
    DONE(quell_cpu_offline(&engine, NULL));

    char text[64];
    DONE(quell_policy_text(&engine, text, sizeof text));
    setup.policy = text;
    DONE(quell_engine_new(&engine, &setup));
    IS(quell_policy_cap(&engine), 8 << 20);
    for (uint32_t mechanism = 0; mechanism < 5; mechanism++)
        IS(quell_policy_has(&engine, mechanism), 1);
    IS(quell_policy_has(&engine, 5), 0);
    REFUSED(quell_policy_text(&engine, NULL, 9), NULL);
    DONE(quell_policy_text(&engine, text, 0));
}

/* Calls every function with NULL and with zeroed memory. */
static void nothings(void)
{
    struct quell_batch batch, no_batch;
    struct quell_stamp stamp;
    uint64_t counts[QUELL_COUNTERS];
    void *taken[1];
    size_t count;
    char text[8];
    memset(&no_batch, 0, sizeof no_batch), memset(&stamp, 0, sizeof stamp);
    DONE(quell_space_new(&engine, &space, 11));

#define ENGINE_REFUSED(call)                                      \
    do {                                                          \
        struct quell_engine *e = NULL;                            \
        REFUSED(call, NULL);                                      \
        e = &nothing;                                             \
        REFUSED(call, NO_ENGINE);                                 \
    } while (0)
#define ENGINE_FALSE(call)                                        \
    do {                                                          \
        struct quell_engine *e = NULL;                            \
        IS(call, 0);                                              \
        e = &nothing;                                             \
        IS(call, 0);                                              \
    } while (0)
#define SPACE_REFUSED(call)                                       \
    do {                                                          \
        struct quell_engine *e = &engine;                         \
        struct quell_space *s = NULL;                             \
        REFUSED(call, NULL);                                      \
        s = &no_space;                                            \
        REFUSED(call, NO_SPACE);                                  \
        s = &space;                                               \
        ENGINE_REFUSED(call);                                     \
        (void)e;                                                  \
    } while (0)
#define BATCH_REFUSED(call)                                       \
    do {                                                          \
        struct quell_batch *b = NULL;                             \
        REFUSED(call, NULL);                                      \
        b = &no_batch;                                            \
        REFUSED(call, NO_BATCH);                                  \
    } while (0)

    ENGINE_REFUSED(quell_policy_text(e, text, sizeof text));
    ENGINE_FALSE(quell_policy_has(e, 0));
    ENGINE_FALSE(quell_policy_cap(e));
    ENGINE_REFUSED(quell_cpu_online(e));
    ENGINE_REFUSED(quell_cpu_offline(e, NULL));
    ENGINE_REFUSED(on_interrupt(e, HERE));
    ENGINE_REFUSED(quell_poll(e));
    ENGINE_REFUSED(quell_enter_lazy(e, HERE));
    ENGINE_REFUSED(quell_leave(e, &space));
    ENGINE_REFUSED(quell_enter_user(e));
    ENGINE_REFUSED(quell_enter_kernel(e));
    ENGINE_REFUSED(quell_synchronize_text(e));
    ENGINE_REFUSED(quell_quiesce(e));
    ENGINE_REFUSED(quell_kernel_space_new(e, &other, 1, 0));
    ENGINE_FALSE(quell_is_online(e));
    ENGINE_FALSE(quell_runs(e, &space));
    ENGINE_FALSE(quell_resume(e, &space));
    ENGINE_FALSE(quell_user_access_allowed(e));
    ENGINE_FALSE(quell_is_detached(e));
    ENGINE_FALSE(quell_has_deferred(e));
    ENGINE_REFUSED(quell_flush_deferred(e));
    ENGINE_REFUSED(quell_catch_up(e));
    ENGINE_REFUSED(quell_stats(e, counts));
    ENGINE_REFUSED(quell_cpu_stats(e, 0, counts));
    ENGINE_REFUSED(quell_space_new(e, &other, 1));
    ENGINE_REFUSED(quell_batch_begin(e, &batch, 0, taken, 1));
    ENGINE_REFUSED(quell_flush_until(e, &stamp));
    ENGINE_FALSE(quell_flush_before_reuse(e, &deferred_flush));
    ENGINE_FALSE(quell_reinstate(e, &deferred_flush));
    ENGINE_FALSE(quell_is_flushed(e, &deferred_flush));

    SPACE_REFUSED(switch_to(e, HERE, NULL, s));
    SPACE_REFUSED(quell_flush(e, &cpus[0], s, NULL, 0));
    ENGINE_REFUSED(quell_enter_lazy(e, &cpus[0]));
    ENGINE_REFUSED(on_interrupt(e, &cpus[0]));
    SPACE_REFUSED(quell_space_retire(e, s));
    SPACE_REFUSED(quell_refresh(e, s, one));
    SPACE_REFUSED(quell_flush_pending(e, s));
    SPACE_REFUSED(quell_flush_coalesced(e, &cpus[0], s));
    SPACE_REFUSED(quell_flush(e, HERE, s, &one, 0));
    SPACE_REFUSED(quell_flush_pending_batches(e, s));
    SPACE_REFUSED(quell_flush_pending_tables(e, s));
    SPACE_REFUSED(quell_flush_before_refill(e, &deferred_flush, s));
    IS(quell_space_id(NULL), 0);
    IS(quell_space_id(&no_space), 0);
    IS(quell_space_root(&no_space), 0);
    IS(quell_space_is_in_batch(&no_space), 0);
    IS(quell_runs(&engine, &no_space), 0);
    IS(quell_resume(&engine, NULL), 0);
    REFUSED(switch_to(&engine, HERE, &no_space, &space), NO_SPACE);
    REFUSED(quell_cpu_offline(&engine, &no_space), NO_SPACE);
    REFUSED(quell_space_new(&engine, NULL, 1), NULL);
    REFUSED(quell_space_new(&engine, (struct quell_space *)((char *)&other + 8), 1), MISALIGNED);

    BATCH_REFUSED(quell_batch_changed(b, &space, one, 0));
    BATCH_REFUSED(quell_batch_changed_all(b, &space, 0));
    BATCH_REFUSED(quell_batch_unmapped(b, &space, one, frames));
    BATCH_REFUSED(quell_batch_table_unlinked(b, &space, one, frames));
    BATCH_REFUSED(quell_batch_hold(b, frames));
    BATCH_REFUSED(quell_batch_finish(b, &count));
    BATCH_REFUSED(quell_batch_finish_deferred(b, &count, &stamp));
    BATCH_REFUSED(quell_batch_start(b, NULL, NULL));
    IS(quell_batch_poll(NULL), 1);
    IS(quell_batch_poll(&no_batch), 1);
    IS(quell_batch_is_empty(&no_batch), 1);
    IS(quell_batch_covers(&no_batch, &space, QUELL_SCOPE_LEAF), 0);
    IS(quell_batch_is_full(NULL), 1);
    IS(quell_batch_is_full(&no_batch), 1);
    REFUSED(quell_batch_begin(&engine, NULL, 0, taken, 1), NULL);
    REFUSED(quell_batch_begin(&engine, (struct quell_batch *)((char *)&batch + 1), 0, taken, 1), MISALIGNED);
    REFUSED(quell_batch_begin(&engine, &batch, 0, NULL, 1), NULL);
    REFUSED(quell_batch_begin(&engine, &batch, 0, (void **)((char *)taken + 1), 1), MISALIGNED);

    /* Pointers to objects, but misaligned. */
    REFUSED(quell_poll((struct quell_engine *)((char *)&engine + 1)), MISALIGNED);
    REFUSED(quell_flush_pending(&engine, (struct quell_space *)((char *)&space + 8)), MISALIGNED);
    REFUSED(quell_batch_finish((struct quell_batch *)((char *)&batch + 4), &count), MISALIGNED);
    REFUSED(quell_deferred_flush_begin((struct quell_deferred_flush *)((char *)&deferred_flush + 4)), MISALIGNED);
    IS(quell_flush_before_reuse(&engine, (struct quell_deferred_flush *)((char *)&deferred_flush + 4)), 0);

    REFUSED(quell_deferred_flush_init(NULL), NULL);
    REFUSED(quell_deferred_flush_begin(NULL), NULL);
    REFUSED(quell_deferred_flush_defer(NULL, &stamp), NULL);
    REFUSED(quell_deferred_flush_defer(&deferred_flush, NULL), NULL);
    REFUSED(quell_deferred_flush_flushed(NULL), NULL);
    IS(quell_deferred_flush_is_clear(NULL), 1);
    IS(quell_flush_before_reuse(&engine, NULL), 0);
    IS(quell_reinstate(&engine, NULL), 0);
    IS(quell_is_flushed(&engine, NULL), 0);
    REFUSED(quell_flush_before_refill(&engine, NULL, &space), NULL);
    REFUSED(quell_flush_until(&engine, NULL), NULL);
    REFUSED(quell_stats(&engine, NULL), NULL);
    REFUSED(quell_cpu_stats(&engine, 0, NULL), NULL);
    REFUSED(quell_cpu_stats(&engine, CPUS, counts), CPU);
    REFUSED(quell_cpu_stats(&engine, UINT32_MAX, counts), CPU);
}

/* Calls every function that acts on the calling CPU, on a CPU that the engine doesn't have. */
static void nowhere(uint32_t cpu)
{
    struct quell_batch batch;
    struct quell_stamp stamp;
    void *taken[1];
    memset(&stamp, 0, sizeof stamp);
    this_cpu = cpu;
    REFUSED(quell_cpu_online(&engine), CPU);
    REFUSED(quell_cpu_offline(&engine, NULL), CPU);
    REFUSED(on_interrupt(&engine, HERE), CPU);
    REFUSED(quell_poll(&engine), CPU);
    REFUSED(switch_to(&engine, HERE, NULL, &space), CPU);
    REFUSED(quell_enter_lazy(&engine, &cpus[0]), CPU);
    REFUSED(quell_flush(&engine, &cpus[0], &space, NULL, 0), CPU);
    REFUSED(quell_flush_coalesced(&engine, &cpus[0], &space), CPU);
    REFUSED(quell_leave(&engine, &space), CPU);
    REFUSED(quell_enter_user(&engine), CPU);
    REFUSED(quell_enter_kernel(&engine), CPU);
    REFUSED(quell_quiesce(&engine), CPU);
    REFUSED(quell_batch_begin(&engine, &batch, 0, taken, 1), CPU);
    REFUSED(quell_space_retire(&engine, &space), CPU);
    REFUSED(quell_refresh(&engine, &space, one), CPU);
    REFUSED(quell_flush_pending(&engine, &space), CPU);
    REFUSED(quell_flush_pending_batches(&engine, &space), CPU);
    REFUSED(quell_flush_pending_tables(&engine, &space), CPU);
    REFUSED(quell_flush_before_refill(&engine, &deferred_flush, &space), CPU);
    REFUSED(quell_flush_until(&engine, &stamp), CPU);
    REFUSED(quell_flush_deferred(&engine), CPU);
    REFUSED(quell_catch_up(&engine), CPU);
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 0);
    IS(quell_reinstate(&engine, &deferred_flush), 0);
    IS(quell_resume(&engine, &space), 0);
    IS(quell_runs(&engine, &space), 0);
    IS(quell_is_online(&engine), 0);
    IS(quell_is_detached(&engine), 0);
    IS(quell_user_access_allowed(&engine), 0);
}

static void order(void)
{
    /* CPUs that the engine doesn't have, that aren't online, or that are online already. */
    this_cpu = CPUS;
    REFUSED(quell_cpu_online(&engine), CPU);
    this_cpu = 65536;
    REFUSED(quell_cpu_online(&engine), CPU);
    REFUSED(switch_to(&engine, HERE, NULL, &space), CPU);
    nowhere(CPUS);
    nowhere(65535);
    nowhere(UINT32_MAX);
    this_cpu = 0;
    REFUSED(switch_to(&engine, HERE, NULL, &space), OFFLINE);
    REFUSED(quell_enter_lazy(&engine, HERE), OFFLINE);
    REFUSED(quell_quiesce(&engine), OFFLINE);
    REFUSED(quell_leave(&engine, &space), OFFLINE);
    REFUSED(quell_cpu_offline(&engine, NULL), OFFLINE);
    DONE(quell_cpu_online(&engine));
    REFUSED(quell_cpu_online(&engine), ONLINE);
    IS(quell_is_detached(&engine), 1);
    IS(quell_user_access_allowed(&engine), 0);

    /* Spaces that run, that were retired, and that are made again in the same memory. */
    DONE(switch_to(&engine, HERE, NULL, &space));
    IS(root, 11);
    IS(root_kept, 0);
    IS(quell_user_access_allowed(&engine), 1);
    REFUSED(quell_space_retire(&engine, &space), RUNNING);
    IS(quell_space_root(&space), 11);
    DONE(quell_enter_lazy(&engine, HERE));
    IS(quell_user_access_allowed(&engine), 0);
    DONE(switch_to(&engine, HERE, &space, &space));
    IS(quell_user_access_allowed(&engine), 1);
    DONE(quell_space_new(&engine, &other, 12));
    DONE(switch_to(&engine, HERE, &space, &other));
    IS(root, 12);
    IS(root_tag, 2);
    DONE(switch_to(&engine, HERE, &other, &space));
    IS(root_kept, 1);
    IS(root_tag, 1);
    /* The CPU leaves its root and returns: the tag has kept its entries, and no initiator sends a request meanwhile. */
    DONE(quell_leave(&engine, &space));
    IS(quell_is_detached(&engine), 1);
    IS(quell_user_access_allowed(&engine), 0);
    DONE(quell_leave(&engine, &space));
    DONE(switch_to(&engine, HERE, NULL, &space));
    IS(quell_user_access_allowed(&engine), 1);
    IS(root_kept, 1);
    uint64_t id = quell_space_id(&other);
    DONE(quell_space_retire(&engine, &other));
    REFUSED(quell_space_retire(&engine, &other), NO_SPACE);
    REFUSED(switch_to(&engine, HERE, &space, &other), NO_SPACE);
    DONE(quell_space_new(&engine, &other, 13));
    /* The same calls with `here`: the kernel passes the CPU's state. */
    REFUSED(switch_to(&engine, NULL, &space, &other), NULL);
    REFUSED(switch_to(&engine, &cpus[1], &space, &other), CPU);
    REFUSED(quell_enter_lazy(&engine, &cpus[1]), CPU);
    REFUSED(quell_enter_lazy(&engine, NULL), NULL);
    REFUSED(on_interrupt(&engine, &cpus[1]), CPU);
    REFUSED(quell_flush(&engine, &cpus[1], &space, NULL, 0), CPU);
    REFUSED(quell_flush(&engine, &cpus[0], &no_space, NULL, 0), NO_SPACE);
    REFUSED(quell_flush_coalesced(&engine, &cpus[1], &space), CPU);
    REFUSED(quell_flush_coalesced(&engine, &cpus[0], &no_space), NO_SPACE);
    REFUSED(quell_flush(&engine, &cpus[0], &space, NULL, 2), VALUE);
    interrupts_on = 0;
    DONE(on_interrupt(&engine, &cpus[0]));
    DONE(switch_to(&engine, &cpus[0], &space, &other));
    IS(root, 13);
    DONE(switch_to(&engine, &cpus[0], &other, &space));
    IS(root, 11);
    IS(root_kept, 1);
    DONE(quell_enter_lazy(&engine, &cpus[0]));
    IS(quell_user_access_allowed(&engine), 0);
    DONE(switch_to(&engine, &cpus[0], &space, &space));
    IS(quell_user_access_allowed(&engine), 1);
    interrupts_on = 1;
    DONE(quell_flush(&engine, &cpus[0], &space, NULL, 0));
    DONE(quell_flush_coalesced(&engine, &cpus[0], &space));
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
    IS(quell_space_id(&other) != id, 1);
    IS(interrupts_on, 1);
}

#define ROOM 200
static void batches(void)
{
    struct quell_batch batch;
    void *taken[ROOM + 1];
    size_t count = 99;
    REFUSED(quell_batch_begin(&engine, &batch, 4, taken, ROOM), VALUE);
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, taken, ROOM));
    IS(quell_batch_is_full(&batch), 0);

    /* Invalid ranges. */
    static const struct quell_range none[] = {
        {5, 0, QUELL_STRIDE_BASE},
        {5, 512, QUELL_STRIDE_LARGE},      {512, 100, QUELL_STRIDE_LARGE},
        {512, 512, QUELL_STRIDE_HUGE},     {UINT64_MAX, 1, QUELL_STRIDE_BASE},
        {5, UINT64_MAX, QUELL_STRIDE_BASE}, {1ull << 52, 1, QUELL_STRIDE_BASE},
        {(1ull << 52) - 1, 2, QUELL_STRIDE_BASE},
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        REFUSED(quell_batch_changed(&batch, &space, none[i], 0), RANGE);
        REFUSED(quell_batch_unmapped(&batch, &space, none[i], frames), RANGE);
        REFUSED(quell_batch_table_unlinked(&batch, &space, none[i], frames), RANGE);
        REFUSED(quell_refresh(&engine, &space, none[i]), RANGE);
        REFUSED(quell_flush(&engine, HERE, &space, &none[i], 0), RANGE);
    }
    static const struct quell_range unnamed = {5, 1, 3};
    REFUSED(quell_batch_changed(&batch, &space, unnamed, 0), VALUE);
    REFUSED(quell_flush(&engine, HERE, &space, &unnamed, 0), VALUE);
    REFUSED(quell_flush(&engine, HERE, &space, (const struct quell_range *)((const char *)&one + 1), 0), MISALIGNED);
    REFUSED(quell_flush(&engine, HERE, &space, &one, 2), VALUE);
    REFUSED(quell_batch_changed(&batch, &space, one, 2), VALUE);
    REFUSED(quell_batch_changed_all(&batch, &space, 2), VALUE);
    REFUSED(quell_batch_unmapped(&batch, NULL, one, frames), NULL);
    REFUSED(quell_batch_unmapped(&batch, &no_space, one, frames), NO_SPACE);
    /* None of these calls reported anything: the batch has nothing to flush and no frame. */
    unsigned before = invalidations;
    DONE(quell_batch_finish(&batch, &count));
    IS(count, 0);
    IS(invalidations, before);

    /* Correct calls reach the machine unchanged. */
    struct quell_range large = {1024, 512, QUELL_STRIDE_LARGE};
    DONE(quell_batch_table_unlinked(&batch, &space, large, &frames[0]));
    IS(invalidations, before);
    DONE(quell_batch_finish(&batch, &count));
    IS(count, 1);
    IS(taken[0] == &frames[0], 1);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_RANGE);
    IS(invalidated.scope, QUELL_SCOPE_TABLES);
    IS(invalidated.tag, 1);
    IS(invalidated.range.start, 1024);
    IS(invalidated.range.pages, 512);
    IS(invalidated.range.stride, QUELL_STRIDE_LARGE);
    DONE(quell_batch_finish(&batch, &count));
    IS(count, 0);

    /* The same without a batch: one flush, of the range or of everything. */
    before = invalidations;
    DONE(quell_flush(&engine, HERE, &space, &one, QUELL_SCOPE_LEAF));
    IS(invalidations, before + 1);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_RANGE);
    IS(invalidated.scope, QUELL_SCOPE_LEAF);
    IS(invalidated.range.start, one.start);
    IS(invalidated.range.pages, one.pages);
    DONE(quell_flush(&engine, HERE, &space, NULL, QUELL_SCOPE_LEAF));
    IS(invalidations, before + 2);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
    before = invalidations;

    /* The batch is full twice, with one flush each. It refuses the extra frame, which isn't lost, and returns all
       others in order. */
    for (int round = 0; round < 2; round++) {
        struct quell_range range = {100, 1, QUELL_STRIDE_BASE};
        taken[ROOM] = &taken;
        for (int i = 0; i < ROOM; i++, range.start++)
            DONE(quell_batch_unmapped(&batch, &space, range, i ? &frames[i] : NULL));
        IS(quell_batch_is_full(&batch), 1);
        REFUSED(quell_batch_unmapped(&batch, &space, range, &frames[ROOM]), FULL);
        REFUSED(quell_batch_table_unlinked(&batch, &space, range, &frames[ROOM]), FULL);
        REFUSED(quell_batch_hold(&batch, &frames[ROOM]), FULL);
        before = invalidations;
        DONE(quell_batch_finish(&batch, &count));
        IS(invalidations, before + 1);
        IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
        IS(count, ROOM);
        for (int i = 1; i < ROOM; i++)
            IS(taken[i] == &frames[i], 1);
        IS(taken[0] == NULL && taken[ROOM] == &taken, 1);
        IS(quell_batch_is_full(&batch), 0);
    }
    /* A batch without room for frames takes only changes. */
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    IS(quell_batch_is_full(&batch), 1);
    REFUSED(quell_batch_hold(&batch, &frames[0]), FULL);
    DONE(quell_batch_changed(&batch, &space, one, QUELL_SCOPE_LEAF));
    DONE(quell_batch_finish(&batch, NULL));
    IS(invalidated.scope, QUELL_SCOPE_LEAF);
    IS(invalidated.range.start, 5);
    DONE(quell_batch_changed_all(&batch, &space, QUELL_SCOPE_TABLES));
    DONE(quell_enter_lazy(&engine, HERE));
    REFUSED(quell_space_retire(&engine, &space), IN_BATCH);
    DONE(switch_to(&engine, HERE, &space, &space));
    DONE(quell_batch_finish(&batch, NULL));
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
    DONE(quell_refresh(&engine, &space, one));
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_RANGE);
    IS(interrupts_on, 1);
}

/* Unmaps a frame without a flush. The caller then reuses it, reinstates it, or flushes after all. */
static struct quell_stamp defer(struct quell_batch *batch)
{
    struct quell_stamp stamp, garbage;
    void *taken[1];
    size_t count;
    memset(&stamp, 0xff, sizeof stamp), garbage = stamp;
    DONE(quell_deferred_flush_begin(&deferred_flush));
    IS(quell_deferred_flush_is_clear(&deferred_flush), 0);
    IS(quell_is_flushed(&engine, &deferred_flush), 0);
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 0);
    DONE(quell_batch_begin(&engine, batch, QUELL_PURPOSE_LAZY, taken, 1));
    DONE(quell_batch_unmapped(batch, &space, one, &frames[0]));
    REFUSED(quell_batch_finish_deferred(batch, &count, NULL), NULL);
    DONE(quell_batch_finish_deferred(batch, &count, &stamp));
    IS(memcmp(&stamp, &garbage, sizeof stamp) != 0, 1);
    IS(count, 1);
    IS(taken[0] == &frames[0], 1);
    DONE(quell_deferred_flush_defer(&deferred_flush, &stamp));
    return stamp;
}

static void lazies(void)
{
    static const struct quell_deferred_flush zero;
    static const struct quell_stamp no_stamp;
    struct quell_batch batch;
    struct quell_stamp stamp;
    memset(&deferred_flush, 0xff, sizeof deferred_flush);
    DONE(quell_deferred_flush_init(&deferred_flush));
    IS(memcmp(&deferred_flush, &zero, sizeof zero), 0);
    IS(quell_deferred_flush_is_clear(&deferred_flush), 1);
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 0);
    IS(quell_reinstate(&engine, &deferred_flush), 0);

    unsigned before = invalidations;
    stamp = defer(&batch);
    IS(memcmp(&stamp, &no_stamp, sizeof stamp) != 0, 1);
    IS(invalidations, before);
    IS(quell_has_deferred(&engine), 1);
    IS(quell_is_flushed(&engine, &deferred_flush), 0);
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 1);
    IS(invalidations, before + 1);
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 0);
    IS(memcmp(&deferred_flush, &zero, sizeof zero), 0);
    IS(quell_has_deferred(&engine), 0);

    defer(&batch);
    before = invalidations;
    IS(quell_reinstate(&engine, &deferred_flush), 1);
    IS(quell_reinstate(&engine, &deferred_flush), 0);
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 0);
    IS(invalidations, before);
    DONE(quell_flush_deferred(&engine));
    IS(quell_has_deferred(&engine), 0);

    before = invalidations;
    stamp = defer(&batch);
    DONE(quell_flush_before_refill(&engine, &deferred_flush, &space));
    IS(invalidations, before + 1);
    IS(quell_is_flushed(&engine, &deferred_flush), 1);
    DONE(quell_flush_pending(&engine, &space));
    DONE(quell_flush_pending_batches(&engine, &space));
    DONE(quell_flush_pending_tables(&engine, &space));
    DONE(quell_flush_until(&engine, &stamp));
    DONE(quell_flush_until(&engine, &no_stamp));
    DONE(quell_catch_up(&engine));
    IS(quell_flush_before_reuse(&engine, &deferred_flush), 1);
    DONE(quell_deferred_flush_begin(&deferred_flush));
    DONE(quell_deferred_flush_flushed(&deferred_flush));
    IS(quell_deferred_flush_is_clear(&deferred_flush), 1);

    uint64_t counts[QUELL_COUNTERS], one_cpu[QUELL_COUNTERS];
    DONE(quell_stats(&engine, counts));
    DONE(quell_cpu_stats(&engine, 0, one_cpu));
    IS(memcmp(counts, one_cpu, sizeof counts), 0);
    IS(counts[QUELL_COUNTER_FLUSHES_DEFERRED], 3);
    IS(counts[QUELL_COUNTER_REINSTATED], 1);
    DONE(quell_cpu_stats(&engine, 1, one_cpu));
    IS(one_cpu[QUELL_COUNTER_FLUSHES_DEFERRED], 0);

    /* Without ledger entries the same calls flush the frame at once. */
    DONE(switch_to(&engine, HERE, &space, &other));
    DONE(quell_space_retire(&engine, &space));
    DONE(quell_cpu_offline(&engine, &other));
    DONE(quell_space_retire(&engine, &other));
    struct quell_setup setup = good();
    setup.ledger = NULL, setup.ledger_entries = 0;
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_space_new(&engine, &space, 11));
    DONE(quell_cpu_online(&engine));
    DONE(switch_to(&engine, HERE, NULL, &space));
    before = invalidations;
    stamp = defer(&batch);
    IS(memcmp(&stamp, &no_stamp, sizeof stamp), 0);
    IS(invalidations, before + 1);
    IS(quell_deferred_flush_is_clear(&deferred_flush), 1);
    DONE(quell_flush_deferred(&engine));
    DONE(quell_flush_until(&engine, &stamp));
}

/* Broadcasts reach the machine's functions for them. */
static void broadcasting(void)
{
    DONE(quell_cpu_offline(&engine, &space));
    DONE(quell_space_retire(&engine, &space));
    struct quell_setup setup = good();
    setup.features.tagging = QUELL_TAGGING_GLOBAL, setup.features.tags = 8, setup.features.broadcast = 1;
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_space_new(&engine, &space, 11));
    DONE(quell_cpu_online(&engine));
    DONE(switch_to(&engine, HERE, NULL, &space));
    struct quell_batch batch;
    broadcasts = completions = 0;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_MIGRATION, NULL, 0));
    DONE(quell_batch_changed(&batch, &space, one, QUELL_SCOPE_LEAF));
    IS(broadcasts, 1);
    IS(completions, 0);
    DONE(quell_batch_finish(&batch, NULL));
    IS(completions, 1);
    IS(broadcast.range.start, 5);
    IS(broadcast.tag, root_tag);
    DONE(quell_cpu_offline(&engine, &space));
    IS(interrupts_on, 1);
}

static unsigned preempted;
static void preempt(void) { preempted++; }

static void zeroing(void)
{
    static _Alignas(4096) unsigned char memory[10 * 4096];
    static struct quell_engine small;
    static struct quell_cpu small_cpus[1];
    struct quell_zero_plan plan, no_plan;
    unsigned char *start = memory + 4096;
    size_t bytes = 8 * 4096;
    memset(&no_plan, 0, sizeof no_plan);
    REFUSED(quell_zero_plan_new(NULL, NULL, false), NULL);
    REFUSED(quell_zero_plan_new((struct quell_zero_plan *)((char *)&plan + 1), NULL, false), MISALIGNED);
    REFUSED(quell_zero_plan_new(&plan, &nothing, false), NO_ENGINE);
    REFUSED(quell_zero(NULL, start, bytes, NULL, NULL), NULL);
    REFUSED(quell_zero(&no_plan, start, bytes, NULL, NULL), NO_PLAN);
    for (int vectors = 0; vectors < 2; vectors++) {
        DONE(quell_zero_plan_new(&plan, NULL, vectors));
        memset(memory, 0xa5, sizeof memory);
        REFUSED(quell_zero(&plan, NULL, bytes, NULL, NULL), NULL);
        REFUSED(quell_zero(&plan, start + 8, bytes, NULL, NULL), MISALIGNED);
        REFUSED(quell_zero(&plan, start, 0, NULL, NULL), RANGE);
        REFUSED(quell_zero(&plan, start, 100, NULL, NULL), RANGE);
        REFUSED(quell_zero(&plan, start, (size_t)-4096, NULL, NULL), RANGE);
        for (size_t i = 0; i < sizeof memory; i++)
            if (memory[i] != 0xa5)
                IS(memory[i], 0xa5);
        DONE(quell_zero(&plan, start, bytes, start + 4 * 4096 + 17, preempt));
        for (size_t i = 0; i < sizeof memory; i++)
            if (memory[i] != (i < 4096 || i >= 9 * 4096 ? 0xa5 : 0))
                IS(i, sizeof memory);
    }
    /* There are three runs: before the fault, after it, and around it. So each of the two passes has two preemption
       points. */
    IS(preempted, 4);
    /* With a fault before or after the memory there is only one run. */
    DONE(quell_zero(&plan, start, bytes, memory, preempt));
    DONE(quell_zero(&plan, start, bytes, start + bytes, preempt));
    IS(preempted, 4);
    /* The engine's policy zeroes one page at a time. */
    struct quell_setup setup = good();
    setup.policy = "all,cap=4K", setup.cpus = small_cpus, setup.cpu_count = 1;
    setup.ledger = NULL, setup.ledger_entries = 0;
    DONE(quell_engine_new(&small, &setup));
    DONE(quell_zero_plan_new(&plan, &small, false));
    DONE(quell_zero(&plan, start, bytes, NULL, preempt));
    IS(preempted, 4 + 7);
    DONE(quell_zero(&plan, start, bytes, NULL, NULL));
}

int main(void)
{
    texts();
    setups();
    nothings();
    order();
    batches();
    lazies();
    broadcasting();
    zeroing();
    printf("%u answers were right\n", asked);
    return 0;
}

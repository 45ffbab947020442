/*
 * Checks that C's arguments reach the engine, and the engine's arguments reach C, unchanged: ranges, strides, scopes,
 * purposes, sets of CPUs beyond one word, the slots of each CPU, and the state that an interrupt handler passes.
 */
#define OTHERS_ANSWER
#include "checks.h"
#include "machine.h"

enum { CPUS = 130, SLOTS = 12 };

static struct quell_engine engine;
static struct quell_cpu cpus[CPUS];
static struct quell_slot slots[CPUS * SLOTS];
static struct quell_ledger_entry ledger[4];
static struct quell_space space, other;
static const struct quell_range page = {.start = 0x1000, .pages = 1};
static struct quell_cpu_set told, waiting;
static unsigned interrupts, answers;
static struct quell_range device_range;
static uint64_t device_root;
static uint32_t device_scope;
static bool device_everything;
static unsigned device_calls;

void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
    /* We read only the words that cover the engine's CPUs: quell doesn't write the others. */
    for (unsigned word = 0; word < (CPUS + 63) / 64; word++) {
        told.bits[word] = targets->bits[word];
        waiting.bits[word] |= targets->bits[word];
    }
    interrupts++;
}

/* Makes every interrupted CPU answer, as a kernel's handler does. */
void quell_hw_relax(void)
{
    static unsigned turns;
    uint32_t me = this_cpu;
    bool on = interrupts_on;
    interrupts_on = false;
    for (this_cpu = 0; this_cpu < CPUS; this_cpu++)
        if (waiting.bits[this_cpu / 64] & 1ull << this_cpu % 64) {
            DONE(on_interrupt(&engine, &cpus[this_cpu]));
            answers++;
        }
    if (++turns > 100000) {
        puts("a flush waits for CPUs that have answered");
        exit(1);
    }
    memset(&waiting, 0, sizeof waiting);
    interrupts_on = on;
    this_cpu = me;
}

static void start_secondary(uint64_t of, const struct quell_range *range, uint32_t scope)
{
    device_root = of, device_scope = scope, device_everything = !range, device_calls++;
    if (range)
        device_range = *range;
}
static const struct quell_hooks hooks = {.start_secondary = start_secondary};

static void make(const char *policy)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 30, .full_above = 33},
        .policy = policy,
        .cpus = cpus,
        .cpu_count = CPUS,
        .slots = slots,
        .slots_per_cpu = SLOTS,
        .ledger = ledger,
        .ledger_entries = 4,
        .hooks = &hooks,
    };
    memset(&engine, 0, sizeof engine);
    memset(&space, 0, sizeof space);
    memset(&other, 0, sizeof other);
    this_cpu = 0;
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    DONE(quell_space_new(&engine, &space, 5));
    DONE(quell_space_new(&engine, &other, 6));
}

static void run_on(uint32_t cpu)
{
    this_cpu = cpu;
    if (!quell_is_online(&engine))
        DONE(quell_cpu_online(&engine));
    DONE(switch_to(&engine, HERE, NULL, &space));
    this_cpu = 0;
}

static void everyone_leaves(void)
{
    for (this_cpu = 0; this_cpu < CPUS; this_cpu++)
        if (quell_is_online(&engine))
            DONE(quell_cpu_offline(&engine, quell_runs(&engine, &space) ? &space : NULL));
    this_cpu = 0;
}

/* The interrupted CPUs are those that run the space, in every word of the set. Each answers once. */
static void sets_of_cpus(void)
{
    make("all");
    const uint32_t running[] = {1, 63, 64, 70, 129};
    for (unsigned i = 0; i < sizeof running / sizeof *running; i++)
        run_on(running[i]);
    interrupts = answers = 0;
    DONE(quell_flush(&engine, HERE, &space, &page, QUELL_SCOPE_TABLES));
    IS(interrupts, 1);
    IS(told.bits[0], 1ull << 1 | 1ull << 63);
    IS(told.bits[1], 1ull << 0 | 1ull << 6);
    IS(told.bits[2], 1ull << 1);
    IS(answers, 5);
    IS(invalidated.range.start, page.start);
    everyone_leaves();
}

/* A range keeps its stride and a flush keeps its scope, on the CPU and for devices. */
static void ranges(void)
{
    static const uint32_t strides[] = {QUELL_STRIDE_BASE, QUELL_STRIDE_LARGE, QUELL_STRIDE_HUGE};
    static const uint32_t scopes[] = {QUELL_SCOPE_LEAF, QUELL_SCOPE_TABLES};
    make("all");
    run_on(0);
    for (unsigned i = 0; i < 3; i++)
        for (unsigned j = 0; j < 2; j++) {
            uint64_t stride = 1ull << 9 * i;
            struct quell_range range = {.start = 4 * stride, .pages = 3 * stride, .stride = strides[i]};
            device_calls = 0;
            DONE(quell_flush(&engine, HERE, &space, &range, scopes[j]));
            IS(invalidated.kind, QUELL_INVALIDATION_KIND_RANGE);
            IS(invalidated.range.start, range.start);
            IS(invalidated.range.pages, range.pages);
            IS(invalidated.range.stride, strides[i]);
            IS(invalidated.scope, scopes[j]);
            IS(device_calls, 1);
            IS(device_root, 5);
            IS(device_everything, 0);
            IS(device_range.start, range.start);
            IS(device_range.pages, range.pages);
            IS(device_range.stride, strides[i]);
            IS(device_scope, scopes[j]);
        }
    DONE(quell_flush(&engine, HERE, &space, NULL, QUELL_SCOPE_TABLES));
    IS(device_everything, 1);
    IS(device_scope, QUELL_SCOPE_TABLES);
    everyone_leaves();
}

/* With S0 off, reclaim flushes when its lock is dropped, and a call at its end. With S0 on, both flush at the end. */
static void purposes(void)
{
    static const struct {
        const char *policy;
        uint32_t purpose;
        bool as_the_lock_goes;
    } cases[] = {
        {"all-S0", QUELL_PURPOSE_RECLAIM, true},
        {"all-S0", QUELL_PURPOSE_CALL, false},
        {"all-S0", QUELL_PURPOSE_MIGRATION, true},
        {"all", QUELL_PURPOSE_RECLAIM, false},
        {"all", QUELL_PURPOSE_CALL, false},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct quell_batch batch;
        make(cases[i].policy);
        run_on(0);
        DONE(quell_batch_begin(&engine, &batch, cases[i].purpose, NULL, 0));
        DONE(quell_batch_changed(&batch, &space, page, QUELL_SCOPE_LEAF));
        unsigned before = invalidations;
        DONE(quell_batch_unlocked(&batch));
        IS(invalidations - before, cases[i].as_the_lock_goes);
        DONE(quell_batch_finish(&batch, NULL));
        IS(invalidations - before, 1);
        everyone_leaves();
    }
}

/* A later observer flushes outstanding batches. It makes deferred flushes only with quell_flush_pending. */
static void later_observers(void)
{
    struct quell_batch batch;
    struct quell_stamp stamp;
    make("all");
    run_on(0);
    run_on(1);
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_RECLAIM, NULL, 0));
    DONE(quell_batch_changed(&batch, &space, page, QUELL_SCOPE_LEAF));
    interrupts = 0;
    DONE(quell_flush_pending_batches(&engine, &other));
    IS(interrupts, 0);
    DONE(quell_flush_pending_batches(&engine, &space));
    IS(interrupts, 1);
    DONE(quell_batch_finish(&batch, NULL));
    interrupts = 0;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_LAZY, NULL, 0));
    DONE(quell_batch_changed(&batch, &space, page, QUELL_SCOPE_LEAF));
    DONE(quell_batch_finish_deferred(&batch, NULL, &stamp));
    DONE(quell_flush_pending_batches(&engine, &space));
    IS(interrupts, 0);
    DONE(quell_flush_pending(&engine, &space));
    IS(interrupts, 1);
    everyone_leaves();
}

/* Retiring a space makes a CPU that holds it lazily leave it. */
static void ends(void)
{
    make("all");
    run_on(0);
    DONE(quell_enter_lazy(&engine, HERE));
    IS(root, 5);
    DONE(quell_space_retire(&engine, &space));
    IS(root, 0);
    IS(quell_is_detached(&engine), 1);
    everyone_leaves();
}

/* A CPU's tags don't depend on those of another CPU: each has slots of its own. */
static void slots_of_each_cpu(void)
{
    make("all");
    run_on(0);
    run_on(1);
    IS(root_kept, 0);
    this_cpu = 1;
    DONE(switch_to(&engine, HERE, &space, &other));
    DONE(switch_to(&engine, HERE, &other, &space));
    IS(root_kept, 1);
    this_cpu = 0;
    everyone_leaves();
}

int main(void)
{
    sets_of_cpus();
    ranges();
    purposes();
    later_observers();
    ends();
    slots_of_each_cpu();
    printf("%u answers were right\n", asked);
    return 0;
}

/*
 * Checks the kernel's own mappings: reported changes reach the machine with their kind, either at once or when their
 * deferred flush is made. It also checks the calls that the interface refuses for them.
 */
#include "checks.h"
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[1];
static struct quell_ledger_entry ledger[4];
static struct quell_space user, kernel, tagged;
static const struct quell_range two = {.start = 0x1000, .pages = 2};
static const struct quell_range many = {.start = 0x2000, .pages = 64};

static void flush(struct quell_space *space, struct quell_range range, uint32_t scope)
{
    struct quell_batch batch;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    DONE(quell_batch_changed(&batch, space, range, scope));
    DONE(quell_batch_finish(&batch, NULL));
}

int main(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .cpus = cpus,
        .cpu_count = 1,
        .ledger = ledger,
        .ledger_entries = 4,
    };
    DONE(quell_engine_new(&engine, &setup));
    REFUSED(quell_enter_user(&engine), OFFLINE);
    REFUSED(quell_enter_kernel(&engine), OFFLINE);
    IS(quell_is_online(&engine), 0);
    DONE(quell_cpu_online(&engine));
    IS(quell_is_online(&engine), 1);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_EVERYTHING);

    REFUSED(quell_kernel_space_new(&engine, &kernel, 9, 2), VALUE);
    REFUSED(quell_kernel_space_new(&engine, NULL, 9, 0), NULL);
    REFUSED(quell_kernel_space_new(NULL, &kernel, 9, 0), NULL);
    IS(quell_space_id(&kernel), 0);
    DONE(quell_kernel_space_new(&engine, &kernel, 9, QUELL_KERNEL_ENTRIES_GLOBAL));
    DONE(quell_kernel_space_new(&engine, &tagged, 9, QUELL_KERNEL_ENTRIES_TAGGED));
    IS(quell_space_root(&kernel), 9);
    REFUSED(quell_space_retire(&engine, &kernel), RUNNING);
    REFUSED(switch_to(&engine, HERE, NULL, &kernel), RUNNING);
    REFUSED(switch_to(&engine, &cpus[0], NULL, &kernel), RUNNING);
    REFUSED(switch_to(&engine, &cpus[0], &kernel, &kernel), RUNNING);
    IS(quell_space_root(&kernel), 9);
    IS(quell_runs(&engine, &kernel), 0);

    /* A few pages are invalidated page by page, also with their tables; many pages as a whole. */
    flush(&kernel, two, QUELL_SCOPE_LEAF);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_KERNEL);
    IS(invalidated.scope, QUELL_SCOPE_LEAF);
    IS(invalidated.range.start, two.start);
    IS(invalidated.range.pages, two.pages);
    flush(&kernel, two, QUELL_SCOPE_TABLES);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_KERNEL);
    IS(invalidated.scope, QUELL_SCOPE_TABLES);
    flush(&kernel, many, QUELL_SCOPE_LEAF);
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_EVERYTHING);

    /* Entries with tags: a flush also drops those under tags that aren't loaded. */
    DONE(quell_space_new(&engine, &user, 1));
    struct quell_space other;
    memset(&other, 0, sizeof other);
    DONE(quell_space_new(&engine, &other, 2));
    DONE(switch_to(&engine, HERE, NULL, &user));
    DONE(switch_to(&engine, HERE, &user, &other));
    DONE(switch_to(&engine, HERE, &other, &user));
    IS(root_kept, 1);
    flush(&kernel, two, QUELL_SCOPE_LEAF);
    DONE(switch_to(&engine, HERE, &user, &other));
    IS(root_kept, 1);
    flush(&tagged, two, QUELL_SCOPE_LEAF);
    DONE(switch_to(&engine, HERE, &other, &user));
    IS(root_kept, 0);

    /* A flush that is deferred until the addresses are used again. */
    struct quell_batch batch;
    struct quell_stamp stamp;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_LAZY, NULL, 0));
    DONE(quell_batch_changed(&batch, &kernel, two, QUELL_SCOPE_LEAF));
    unsigned before = invalidations;
    DONE(quell_batch_finish_deferred(&batch, NULL, &stamp));
    IS(invalidations, before);
    IS(quell_has_deferred(&engine), 1);
    flush(&user, many, QUELL_SCOPE_LEAF);
    IS(quell_has_deferred(&engine), 1);
    DONE(quell_flush_until(&engine, &stamp));
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_EVERYTHING);
    before = invalidations;
    DONE(quell_flush_until(&engine, &stamp));
    IS(invalidations, before);

    /* This CPU has nothing to flush, because no mapping changed while it ran its program. */
    DONE(quell_enter_user(&engine));
    DONE(quell_enter_kernel(&engine));
    IS(invalidations, before);

    /* A flush that needs no other CPU is over at once. */
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    DONE(quell_batch_changed(&batch, &kernel, two, QUELL_SCOPE_LEAF));
    IS(quell_batch_covers(&batch, &kernel, QUELL_SCOPE_LEAF), 0);
    DONE(quell_batch_changed_all(&batch, &kernel, QUELL_SCOPE_LEAF));
    IS(quell_batch_covers(&batch, &kernel, QUELL_SCOPE_LEAF), 1);
    IS(quell_batch_covers(&batch, &kernel, QUELL_SCOPE_TABLES), 0);
    IS(quell_batch_covers(&batch, &user, QUELL_SCOPE_LEAF), 0);
    IS(quell_batch_poll(&batch), 1);
    DONE(quell_batch_start(&batch, NULL, NULL));
    IS(quell_batch_covers(&batch, &kernel, QUELL_SCOPE_LEAF), 0);
    REFUSED(quell_batch_start(&batch, NULL, NULL), IN_FLIGHT);
    IS(quell_batch_poll(&batch), 1);
    DONE(quell_batch_finish(&batch, NULL));
    IS(quell_batch_is_empty(&batch), 1);

    DONE(quell_quiesce(&engine));
    REFUSED(quell_synchronize_text(&engine), UNSUPPORTED);
    printf("%u answers were right\n", asked);
    return 0;
}

/*
 * Checks that pages that extend the last range reach the machine as one range, whatever is called in between, and that
 * nothing else extends it.
 */
#include "checks.h"
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[1];
static struct quell_space space, other;
static struct quell_batch batch;
static void *frames[4];

static enum quell_status changed(struct quell_space *of, quell_u64 page, quell_u64 pages, enum quell_scope scope)
{
    return quell_batch_changed(&batch, of, (struct quell_range){page, pages, QUELL_STRIDE_BASE}, scope);
}

/* Finishes the batch. There must be `times` invalidations, the last of this range. */
static void finished(unsigned times, quell_u64 start, quell_u64 pages, enum quell_scope scope)
{
    unsigned before = invalidations;
    DONE(quell_batch_finish(&batch, NULL));
    IS(invalidations - before, times);
    IS(invalidated.range.start, start);
    IS(invalidated.range.pages, pages);
    IS(invalidated.scope, scope);
}

int main(void)
{
    DONE(engine_of_one_cpu(&engine, cpus));
    DONE(quell_space_new(&engine, &space, 9));
    DONE(quell_space_new(&engine, &other, 10));
    DONE(switch_to(&engine, HERE, NULL, &space));
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, frames, 4));
    /* The second turn checks that nothing is left of the first run. */
    for (int twice = 0; twice < 2; twice++) {
        DONE(changed(&space, 7, 1, QUELL_SCOPE_LEAF));
        IS(quell_space_is_in_batch(&space), true);
        DONE(changed(&space, 8, 2, QUELL_SCOPE_LEAF));
        IS(quell_batch_covers(&batch, &space, QUELL_SCOPE_LEAF), false);
        DONE(changed(&space, 10, 1, QUELL_SCOPE_LEAF));
        DONE(quell_batch_unmapped(&batch, &space, (struct quell_range){11, 1, QUELL_STRIDE_BASE}, &space));
        DONE(quell_batch_hold(&batch, &other));
        DONE(changed(&space, 12, 3, QUELL_SCOPE_LEAF));
        DONE(quell_batch_unlocked(&batch));
        DONE(changed(&space, 15, 1, QUELL_SCOPE_LEAF));
        finished(1, 7, 9, QUELL_SCOPE_LEAF);
    }
    /* Another space, another scope, a gap or a larger stride doesn't extend the range. */
    DONE(changed(&other, 1, 1, QUELL_SCOPE_LEAF));
    DONE(changed(&space, 2, 1, QUELL_SCOPE_LEAF));
    DONE(changed(&space, 3, 1, QUELL_SCOPE_LEAF));
    finished(1, 2, 2, QUELL_SCOPE_LEAF);
    DONE(changed(&space, 2, 1, QUELL_SCOPE_LEAF));
    DONE(changed(&space, 3, 1, QUELL_SCOPE_TABLES));
    finished(1, 2, 2, QUELL_SCOPE_TABLES);
    DONE(changed(&space, 2, 1, QUELL_SCOPE_LEAF));
    DONE(changed(&space, 4, 1, QUELL_SCOPE_LEAF));
    finished(2, 4, 1, QUELL_SCOPE_LEAF);
    DONE(changed(&space, 511, 1, QUELL_SCOPE_LEAF));
    DONE(quell_batch_changed(&batch, &space, quell_range_of(512 * 4096, 512 * 4096, QUELL_STRIDE_LARGE), QUELL_SCOPE_LEAF));
    finished(2, 512, 512, QUELL_SCOPE_LEAF);
    /* A long run becomes a flush of everything. A range that names no pages is refused, even right after another range.
       */
    DONE(changed(&space, 1, 1, QUELL_SCOPE_LEAF));
    REFUSED(changed(&space, 2, 0, QUELL_SCOPE_LEAF), RANGE);
    REFUSED(changed(&space, 2, ~(quell_u64)0, QUELL_SCOPE_LEAF), RANGE);
    finished(1, 1, 1, QUELL_SCOPE_LEAF);
    /* Nor does a range reach beyond the lower half. */
    const quell_u64 half = (quell_u64)1 << 44;
    DONE(changed(&space, half - 4, 2, QUELL_SCOPE_LEAF));
    REFUSED(changed(&space, half - 2, 4, QUELL_SCOPE_LEAF), RANGE);
    DONE(changed(&space, half - 2, 2, QUELL_SCOPE_LEAF));
    REFUSED(changed(&space, half, 1, QUELL_SCOPE_LEAF), RANGE);
    finished(1, half - 4, 4, QUELL_SCOPE_LEAF);
    DONE(changed(&space, 1, 1, QUELL_SCOPE_LEAF));
    for (quell_u64 page = 2; page < 100; page++)
        DONE(changed(&space, page, 1, QUELL_SCOPE_LEAF));
    DONE(quell_batch_finish(&batch, NULL));
    IS(invalidated.kind, QUELL_INVALIDATION_KIND_TAG);
    /* Before the first report there is no page to extend. */
    static struct quell_batch none;
    REFUSED(quell_batch_changed(&none, NULL, (struct quell_range){0, 1, QUELL_STRIDE_BASE}, QUELL_SCOPE_LEAF), NO_BATCH);
    REFUSED(quell_batch_changed(&batch, NULL, (struct quell_range){100, 1, QUELL_STRIDE_BASE}, QUELL_SCOPE_LEAF), NULL);
    /* Addresses and lengths that aren't whole pages are refused, and so are addresses in the place of page numbers. */
    struct quell_range whole = quell_range_of(0x7000, 0x3000, QUELL_STRIDE_BASE);
    IS(whole.start, 7);
    IS(whole.pages, 3);
    REFUSED(quell_batch_changed(&batch, &space, quell_range_of(0x7010, 0x3000, QUELL_STRIDE_BASE), QUELL_SCOPE_LEAF), RANGE);
    REFUSED(quell_batch_changed(&batch, &space, quell_range_of(0x7000, 3, QUELL_STRIDE_BASE), QUELL_SCOPE_LEAF), RANGE);
    REFUSED(quell_batch_changed(&batch, &space, quell_range_of(0x201000, 0x200000, QUELL_STRIDE_LARGE), QUELL_SCOPE_LEAF), RANGE);
    REFUSED(changed(&space, 0x7f0000001000, 1, QUELL_SCOPE_LEAF), RANGE);
    REFUSED(changed(&space, 0xffff800000001000, 1, QUELL_SCOPE_LEAF), RANGE);
    REFUSED(changed(&space, ((quell_u64)1 << 44) - 1, 2, QUELL_SCOPE_LEAF), RANGE);
    DONE(changed(&space, ((quell_u64)1 << 52) - 1, 1, QUELL_SCOPE_LEAF));
    REFUSED(changed(&space, (quell_u64)1 << 52, 1, QUELL_SCOPE_LEAF), RANGE);
    DONE(quell_batch_finish(&batch, NULL));
    printf("%u answers were right\n", asked);
    return 0;
}

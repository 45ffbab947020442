/*
 * Checks that the header's inline functions agree with the library's. Two batches get the same random reports: one
 * through the inline functions, the other through the functions of the library that these call for other pages.
 */
#include "checks.h"
#include "machine.h"

#define ROOM 9
static struct quell_engine engine;
static struct quell_cpu cpus[1];
static struct quell_space spaces[2];
static struct quell_batch batches[2];
static void *frames[2][ROOM];

static quell_u64 seed = 1;
static quell_u64 random_below(quell_u64 below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

/* Reports the same to both batches. They must give the same answer, and have the same range and room. */
static void report(struct quell_space *space, quell_u64 page, quell_u64 pages, enum quell_stride stride, unsigned how)
{
    struct quell_range range = {page, pages, stride};
    enum quell_status inline_status, status;
    if (how < 2) {
        enum quell_scope scope = how ? QUELL_SCOPE_TABLES : QUELL_SCOPE_LEAF;
        inline_status = quell_batch_changed(&batches[0], space, range, scope);
        status = quell_batch_report(&batches[1], space, page, pages, stride, scope);
    } else {
        void *frame = (void *)(uintptr_t)random_below(1000);
        inline_status = quell_batch_unmapped(&batches[0], space, range, frame);
        status = quell_batch_report_unmapped(&batches[1], space, page, pages, stride, frame);
    }
    IS(inline_status, status);
    IS(batches[0].run.of, batches[1].run.of);
    IS(batches[0].run.next, batches[1].run.next);
    IS(batches[0].frames.next - frames[0], batches[1].frames.next - frames[1]);
}

/* Finishes both batches, which must have invalidated the same and return the same frames. */
static void finish(void)
{
    quell_size counts[2];
    unsigned many[2];
    static struct quell_invalidation done[2][RECORDED];
    for (int i = 0; i < 2; i++) {
        invalidations = 0;
        DONE(quell_batch_finish(&batches[i], &counts[i]));
        many[i] = invalidations;
        memcpy(done[i], recorded, sizeof recorded);
    }
    IS(counts[0], counts[1]);
    for (quell_size i = 0; i < counts[0]; i++)
        IS((uintptr_t)frames[0][i], (uintptr_t)frames[1][i]);
    IS(many[0], many[1]);
    for (unsigned i = 0; i < many[0]; i++) {
        IS(done[0][i].kind, done[1][i].kind);
        IS(done[0][i].scope, done[1][i].scope);
        IS(done[0][i].range.start, done[1][i].range.start);
        IS(done[0][i].range.pages, done[1][i].range.pages);
    }
}

int main(void)
{
    DONE(engine_of_one_cpu(&engine, cpus));
    for (int i = 0; i < 2; i++) {
        DONE(quell_space_new(&engine, &spaces[i], 9 + i));
        DONE(quell_batch_begin(&engine, &batches[i], QUELL_PURPOSE_CALL, frames[i], ROOM));
    }
    DONE(switch_to(&engine, HERE, NULL, &spaces[0]));
    /* Numbers of pages: those that extend a range, and others. */
    static const quell_u64 pages[] = {1, 1, 1, 1, 2, 65536, 65537, 0, ~(quell_u64)0};
    unsigned fast = 0, full = 0;
    quell_u64 page = 7;
    for (int round = 0; round < 20000; round++) {
        struct quell_space *space = &spaces[random_below(8) == 0];
        quell_u64 more = pages[random_below(random_below(8) ? 4 : 9)];
        unsigned how = random_below(8) ? 2 : random_below(4);
        if (random_below(8) == 0)
            page = 512 * random_below(1000) + random_below(3);
        fast += batches[0].run.next == page && more == 1;
        full += quell_batch_is_full(&batches[0]);
        report(space, page, more, random_below(32) ? QUELL_STRIDE_BASE : QUELL_STRIDE_LARGE, how);
        page += more < 3 ? more : 1;
        if (random_below(16) == 0)
            finish();
    }
    finish();
    IS(fast > 5000 && full > 1000, true);
    printf("%u answers were right\n", asked);
    return 0;
}

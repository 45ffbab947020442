/* Counts the instructions of the calls in a kernel's hot paths, with a machine whose functions do almost nothing. */
#define _GNU_SOURCE
#define OTHERS_ANSWER
#include "checks.h"
#include "machine.h"
#include "steps.h"

#define PAGES 100
static struct quell_engine engine;
static struct quell_cpu cpus[2];
static struct quell_space space, other;
static struct quell_batch batch;
static void *frames[PAGES];

/* Makes CPU 1 take its interrupt: when CPU 0 has waited for a turn, or when the program calls it. */
static bool interrupted;
static void answer(void)
{
    if (!interrupted)
        return;
    interrupted = false;
    this_cpu = 1;
    DONE(quell_on_interrupt(&engine, &cpus[1]));
    this_cpu = 0;
}
void quell_hw_interrupt(const struct quell_cpu_set *targets) { interrupted = targets->bits[0] & 2; }
void quell_hw_relax(void) { answer(); }
static unsigned called;
static void call_back(void *argument) { called += argument == &batch; }

/* We call these like a kernel, whose batch may be anywhere in memory. The loops belong to the caller. */
__attribute__((noinline)) static void unmap(struct quell_batch *from, quell_u64 start, quell_u64 pages)
{
    for (quell_u64 page = start; page < start + pages; page++)
        if (quell_batch_unmapped(from, &space, (struct quell_range){page, 1, QUELL_STRIDE_BASE}, &space))
            abort();
}
__attribute__((noinline)) static void change(struct quell_batch *to, quell_u64 start, quell_u64 pages)
{
    for (quell_u64 page = start; page < start + pages; page++)
        if (quell_batch_changed(to, &space, (struct quell_range){page, 1, QUELL_STRIDE_BASE}, QUELL_SCOPE_LEAF))
            abort();
}

static void run(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .cpus = cpus,
        .cpu_count = 2,
    };
    DONE(quell_engine_new(&engine, &setup));
    DONE(quell_cpu_online(&engine));
    DONE(quell_space_new(&engine, &space, 9));
    DONE(quell_space_new(&engine, &other, 10));
    interrupts_on = false;
    DONE(quell_switch_to(&engine, HERE, NULL, &space));
    enum quell_status status = QUELL_STATUS_OK;
    for (int twice = 0; twice < 2; twice++) {
        /* In the first turn memory is cold and tags are new, so the reader of the output keeps the last line of each
           name. */
        MEASURE("quell_batch_begin", status = quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, frames, PAGES));
        DONE(status);
        MEASURE("quell_batch_changed, the first page", change(&batch, 100, 1));
        MEASURE("quell_batch_changed, 100 pages that follow", change(&batch, 101, PAGES));
        MEASURE("quell_batch_changed, a page elsewhere", change(&batch, 500, 1));
        MEASURE("quell_batch_unmapped, 100 pages that follow", unmap(&batch, 501, PAGES));
        MEASURE("quell_batch_finish, no other CPU", status = quell_batch_finish(&batch, NULL));
        DONE(status);
        MEASURE("quell_switch_to, tag kept", status = quell_switch_to(&engine, HERE, &space, &other));
        DONE(status);
        DONE(quell_switch_to(&engine, HERE, &other, &space));
        MEASURE("quell_enter_lazy", status = quell_enter_lazy(&engine, HERE));
        DONE(status);
        DONE(quell_switch_to(&engine, HERE, &space, &space));
        MEASURE("quell_on_interrupt, no request", status = quell_on_interrupt(&engine, HERE));
        DONE(status);
        MEASURE("quell_poll, no request", status = quell_poll(&engine));
        DONE(status);
        struct quell_range one = {7, 1, QUELL_STRIDE_BASE};
        /* The same calls with another CPU that runs the space: with and without a wait. */
        this_cpu = 1;
        DONE(quell_cpu_online(&engine));
        DONE(quell_switch_to(&engine, HERE, NULL, &space));
        this_cpu = 0;
        change(&batch, 100, 1);
        MEASURE("quell_batch_finish, and the other CPU's interrupt", status = quell_batch_finish(&batch, NULL));
        DONE(status);
        change(&batch, 100, 1);
        called = 0;
        MEASURE("quell_batch_start with a callback, that interrupt, quell_batch_finish",
                status = quell_batch_start(&batch, call_back, &batch); answer(); status |= quell_batch_finish(&batch, NULL));
        DONE(status);
        IS(called, 1);
        this_cpu = 1;
        DONE(quell_cpu_offline(&engine, &space));
        this_cpu = 0;
        MEASURE("quell_flush, no other CPU", status = quell_flush(&engine, HERE, &space, &one, QUELL_SCOPE_LEAF));
        DONE(status);
    }
}

int main(void)
{
    return count_steps(run);
}

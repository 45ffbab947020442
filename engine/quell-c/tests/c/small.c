/* A kernel that uses only batches, remote flushes and tags. We link it to measure the code that the library adds. */
#include "quell.h"
static struct quell_engine engine;
static struct quell_cpu cpus[4];
static struct quell_space space;
static struct quell_batch batch;
static void *frames[64];
extern void sink(int);
void _start(void);
void _start(void)
{
    struct quell_setup setup = {
        .interface = QUELL_INTERFACE,
        .features = {.tagging = QUELL_TAGGING_PER_CPU, .tags = 6, .full_above = 33},
        .cpus = cpus,
        .cpu_count = 4,
    };
    const struct quell_range range = quell_range_of(4096, 4096, QUELL_STRIDE_BASE);
    quell_size count;
    sink(quell_engine_new(&engine, &setup));
    sink(quell_cpu_online(&engine));
    sink(quell_space_new(&engine, &space, 9));
    sink(quell_switch_to(&engine, &cpus[0], 0, &space));
    sink(quell_enter_lazy(&engine, &cpus[0]));
    sink(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, frames, 64));
    sink(quell_batch_changed(&batch, &space, range, QUELL_SCOPE_LEAF));
    sink(quell_batch_unmapped(&batch, &space, range, 0));
    sink(quell_batch_table_unlinked(&batch, &space, range, 0));
    sink(quell_batch_is_full(&batch));
    sink(quell_batch_finish(&batch, &count));
    sink(quell_on_interrupt(&engine, &cpus[0]));
    sink(quell_poll(&engine));
    sink(quell_cpu_offline(&engine, &space));
    sink(quell_space_retire(&engine, &space));
}

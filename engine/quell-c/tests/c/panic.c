/* Breaks a promise that no function checks: in the middle of a batch, the CPU's number becomes one that no CPU has. */
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[2];
static struct quell_space space;

int main(void)
{
    struct quell_setup setup = {.interface = QUELL_INTERFACE, .cpus = cpus, .cpu_count = 2};
    struct quell_range range = {5, 1, QUELL_STRIDE_BASE};
    struct quell_batch batch;
    if (quell_engine_new(&engine, &setup) != QUELL_STATUS_OK || quell_cpu_online(&engine) != QUELL_STATUS_OK ||
        quell_space_new(&engine, &space, 1) != QUELL_STATUS_OK ||
        quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0) != QUELL_STATUS_OK ||
        quell_batch_changed(&batch, &space, range, QUELL_SCOPE_LEAF) != QUELL_STATUS_OK)
        return 2;
    this_cpu = 99;
    if (quell_batch_finish(&batch, NULL) == QUELL_STATUS_CPU)
        puts("refused");
    puts("quell went on");
    return 0;
}

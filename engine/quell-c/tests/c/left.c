/* Leaves a function without finishing its batch. A debug library must detect that at the next call, which uses the same
   memory. */
#include "checks.h"
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[1];
static struct quell_space space;

__attribute__((noinline)) static void unmap(quell_u64 page, bool fails)
{
    struct quell_batch batch;
    DONE(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, NULL, 0));
    DONE(quell_batch_changed(&batch, &space, (struct quell_range){page, 1, QUELL_STRIDE_BASE}, QUELL_SCOPE_LEAF));
    if (fails)
        return;
    DONE(quell_batch_finish(&batch, NULL));
}

int main(void)
{
    DONE(engine_of_one_cpu(&engine, cpus));
    DONE(quell_space_new(&engine, &space, 9));
    DONE(switch_to(&engine, HERE, NULL, &space));
    unmap(1, false);
    unmap(2, false);
    printf("space at %#lx\n", (unsigned long)&space);
    fflush(stdout);
    unmap(3, true);
    unmap(4, false);
    (void)invalidations;
    printf("nothing was noticed\n");
    return 0;
}

/* Makes an engine in the memory of another one's CPU, and leaves a function without finishing its batch. A debug library
   must detect both: the batch at the next call, which uses the same memory. */
#include "checks.h"
#include "machine.h"

static struct quell_engine engine, first, second;
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
    DONE(engine_of_one_cpu(&first, cpus));
    if (engine_of_one_cpu(&second, cpus) == QUELL_STATUS_ONLINE) {
        printf("the memory is in use\n");
        DONE(quell_cpu_offline(&first, NULL));
        DONE(engine_of_one_cpu(&second, cpus));
    }
    DONE(quell_cpu_offline(&second, NULL));
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

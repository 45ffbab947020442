/* A promise is broken that no function looks at: the CPU gets a number that there is none of, inside the engine. */
#include "machine.h"

static struct quell_engine engine;
static struct quell_cpu cpus[2];

int main(void)
{
    struct quell_setup setup = {.interface = QUELL_INTERFACE, .cpus = cpus, .cpu_count = 2};
    if (quell_engine_new(&engine, &setup) != QUELL_STATUS_OK)
        return 2;
    this_cpu = 99;
    quell_poll(&engine);
    puts("quell went on");
    return 0;
}

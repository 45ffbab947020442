/* Compilers must reject an enumerator of another enumeration. With RIGHT defined, this file compiles. */
#include "quell.h"

#if defined(RIGHT)
#define PURPOSE QUELL_PURPOSE_CALL
#define SCOPE QUELL_SCOPE_TABLES
#else
#define PURPOSE QUELL_SCOPE_TABLES
#define SCOPE QUELL_PURPOSE_CALL
#endif

int begins(struct quell_engine *engine, struct quell_batch *batch);
int begins(struct quell_engine *engine, struct quell_batch *batch)
{
    return quell_batch_begin(engine, batch, PURPOSE, 0, 0) != QUELL_STATUS_OK;
}

int changes(struct quell_batch *batch, struct quell_space *space);
int changes(struct quell_batch *batch, struct quell_space *space)
{
    return quell_batch_changed(batch, space, quell_range_of(0, 4096, QUELL_STRIDE_BASE), SCOPE) != QUELL_STATUS_OK;
}

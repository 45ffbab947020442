// C++17 compiles quell.h, with the same sizes as C.
#include "quell.h"

static_assert(sizeof(quell_engine) == QUELL_ENGINE_SIZE && alignof(quell_engine) == QUELL_LINE_ALIGN, "");
static_assert(sizeof(quell_cpu) == QUELL_CPU_SIZE && alignof(quell_cpu) == QUELL_LINE_ALIGN, "");
static_assert(sizeof(quell_slot) == QUELL_SLOT_SIZE && alignof(quell_slot) == QUELL_LINE_ALIGN, "");
static_assert(sizeof(quell_ledger_entry) == QUELL_LEDGER_ENTRY_SIZE && alignof(quell_ledger_entry) == QUELL_LINE_ALIGN, "");
static_assert(sizeof(quell_space) == QUELL_SPACE_SIZE && alignof(quell_space) == QUELL_LINE_ALIGN, "");
static_assert(sizeof(quell_batch) == QUELL_BATCH_SIZE && alignof(quell_batch) == QUELL_WORD_ALIGN, "");
static_assert(sizeof(quell_deferred_flush) == QUELL_DEFERRED_FLUSH_SIZE && alignof(quell_deferred_flush) == QUELL_WORD_ALIGN, "");
static_assert(sizeof(quell_stamp) == QUELL_STAMP_SIZE && alignof(quell_stamp) == QUELL_WORD_ALIGN, "");

// C++ calls what the header declares.
quell_status unmap(quell_engine *engine, quell_space *space, void *frame)
{
    quell_batch batch;
    void *frames[1];
    quell_size count;
    quell_status status = quell_batch_begin(engine, &batch, QUELL_PURPOSE_CALL, frames, 1);
    if (status == QUELL_STATUS_OK)
        status = quell_batch_unmapped(&batch, space, quell_range{5, 1, QUELL_STRIDE_BASE}, frame);
    if (status == QUELL_STATUS_OK)
        status = quell_batch_finish(&batch, &count);
    return status;
}

/* Checks that this compiler has the sizes and alignments in quell.h, and that the header needs only freestanding C11.
   */
#include "quell.h"
#include <stddef.h>

#define SAME(type, size, align)                                                  \
    _Static_assert(sizeof(struct type) == (size), "size of " #type);             \
    _Static_assert(_Alignof(struct type) == (align), "alignment of " #type)

SAME(quell_engine, QUELL_ENGINE_SIZE, QUELL_LINE_ALIGN);
SAME(quell_cpu, QUELL_CPU_SIZE, QUELL_LINE_ALIGN);
SAME(quell_slot, QUELL_SLOT_SIZE, QUELL_LINE_ALIGN);
SAME(quell_ledger_entry, QUELL_LEDGER_ENTRY_SIZE, QUELL_LINE_ALIGN);
SAME(quell_space, QUELL_SPACE_SIZE, QUELL_LINE_ALIGN);
SAME(quell_batch, QUELL_BATCH_SIZE, QUELL_WORD_ALIGN);
SAME(quell_deferred_flush, QUELL_DEFERRED_FLUSH_SIZE, QUELL_WORD_ALIGN);
SAME(quell_zero_plan, QUELL_ZERO_PLAN_SIZE, QUELL_WORD_ALIGN);
SAME(quell_stamp, QUELL_STAMP_SIZE, QUELL_WORD_ALIGN);

/* The inline functions write these fields of a batch, and src/held.rs asserts the same. */
#define AT(field, offset) _Static_assert(offsetof(struct quell_batch, field) == (offset), "place of " #field)
AT(run.of, 0);
AT(run.next, 8);
AT(frames.next, 16);
AT(frames.end, 24);

_Static_assert(sizeof(struct quell_cpu_set) * 8 == QUELL_MAX_CPUS, "a bit for each CPU");
_Static_assert(QUELL_COUNTER_COALESCED + 1 == QUELL_COUNTERS, "a number for each counter");
_Static_assert(QUELL_STATUS_OK == 0, "no error is zero");

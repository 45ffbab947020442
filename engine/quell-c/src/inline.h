/// Returns the range of `bytes` bytes from `address`, mapped by entries of size `stride`.
///
/// If `address` or `bytes` is not a multiple of that size, the range is empty, and every function refuses it.
static inline struct quell_range quell_range_of(quell_u64 address, quell_u64 bytes, enum quell_stride stride)
{
    quell_u64 size = (quell_u64)4096 << 9 * (unsigned)stride;
    struct quell_range range;
    range.start = address / 4096;
    range.pages = (address | bytes) & (size - 1) ? 0 : bytes / 4096;
    range.stride = stride;
    return range;
}

/// Reports that entries of `space` were cleared or lost rights, without a frame.
///
/// If the range follows the last reported one, the call costs about eight instructions.
///
/// Context: after the tables were written, under their lock. Does not wait for other CPUs. Where invalidations are
/// broadcast and batching is off, it executes the barrier for the broadcasts of its own CPU.
QUELL_MUST_USE
static inline enum quell_status quell_batch_changed(struct quell_batch *batch, struct quell_space *space,
                                                    struct quell_range range, enum quell_scope scope)
{
    if (batch && batch->run.next == range.start && batch->run.of == (quell_size)space + (quell_size)scope + 2 &&
        range.stride == QUELL_STRIDE_BASE && ((range.pages - 1) | ((range.start & 65535) + range.pages)) < 65536) {
        batch->run.next += range.pages;
        return QUELL_STATUS_OK;
    }
    return quell_batch_report(batch, space, range.start, range.pages, range.stride, scope);
}

/// Reports that entries of `space` that mapped `frame` were cleared.
///
/// `frame` is any name that the kernel gives to the frame. quell stores it in the batch's array and never dereferences
/// it. If the range follows the last reported one, the call costs about fourteen instructions.
///
/// Refuses a full batch, and then reports nothing.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
static inline enum quell_status quell_batch_unmapped(struct quell_batch *batch, struct quell_space *space,
                                                     struct quell_range range, void *frame)
{
    if (batch && batch->run.next == range.start && batch->run.of == (quell_size)space + QUELL_SCOPE_LEAF + 2 &&
        range.stride == QUELL_STRIDE_BASE && ((range.pages - 1) | ((range.start & 65535) + range.pages)) < 65536 &&
        batch->frames.next != batch->frames.end) {
        *batch->frames.next++ = frame;
        batch->run.next += range.pages;
        return QUELL_STATUS_OK;
    }
    return quell_batch_report_unmapped(batch, space, range.start, range.pages, range.stride, frame);
}

/** @cond */
// The library was built for enums as large as an int. With -fshort-enums the structures would have another layout.
#if defined(__cplusplus)
#define QUELL_ASSERT static_assert
#else
#define QUELL_ASSERT _Static_assert
#endif
QUELL_ASSERT(sizeof(enum quell_status) == sizeof(int), "quell.h is read without -fshort-enums");
QUELL_ASSERT(sizeof(quell_u8) == 1 && (quell_u8)-1 > 0, "quell_u8 is unsigned and has 8 bits");
QUELL_ASSERT(sizeof(quell_u16) == 2 && (quell_u16)-1 > 0, "quell_u16 is unsigned and has 16 bits");
QUELL_ASSERT(sizeof(quell_u32) == 4 && (quell_u32)-1 > 0, "quell_u32 is unsigned and has 32 bits");
QUELL_ASSERT(sizeof(quell_u64) == 8 && (quell_u64)-1 > 0, "quell_u64 is unsigned and has 64 bits");
QUELL_ASSERT(sizeof(quell_size) == sizeof(void *) && (quell_size)-1 > 0, "quell_size is as large as a pointer");
QUELL_ASSERT(sizeof(quell_bool) == 1 && (quell_bool)2 == 1, "quell_bool is _Bool: one byte, 0 or 1");
#undef QUELL_ASSERT
/** @endcond */

//! Flushes without a batch: for one change, or a full flush that several tasks share.

use crate::place::{made_here, quell_cpu, quell_engine, quell_space, reject, space};
use crate::status::{answer, quell_status};
use crate::values::{enum_quell_scope, quell_range, scope};
use quell::PageRange;

/// Flushes a change of `space` at once, without a batch.
///
/// Entries in `*range` changed, or anywhere in the space if `range` is NULL. After it returns, no user access on any
/// CPU uses a translation that the change removed.
///
/// It's quicker than a batch with one change, but until it returns, quell_flush_pending doesn't wait for this change.
/// So call it under the lock of the table. Without the lock, other code may find the entry already cleared and rely on
/// that. Such code must then learn of the flush in another way: Linux's mm_tlb_flush_pending, for example.
///
/// `here` is this CPU's state, one of `quell_setup.cpus` or `cpu_places`. Another CPU's is refused.
///
/// Context: after the tables were written, interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
    space: *mut quell_space,
    range: *const quell_range,
    scope: enum_quell_scope,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space.
        let ((made, here), space, range) =
            unsafe { (made_here(engine, here)?, self::space(space)?, range_if_any(range)?) };
        let scope = self::scope(scope)?;
        // SAFETY: checked above, or C vouches for it.
        unsafe { made.engine().on_cpu(here) }.flush(space, range, scope);
        Ok(())
    })
}

/// Flushes all of `space`, or waits for another task's flush that begins after this call.
///
/// It flushes like quell_flush with QUELL_SCOPE_TABLES: entries may have changed anywhere, and page tables may have
/// been freed. It saves time if several threads change one space at once and more than two CPUs have it loaded. `here`
/// is this CPU's state; another CPU's is refused.
///
/// Context: as quell_flush. Masks interrupts for as long as two flushes take at most.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_coalesced(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space.
        let ((made, here), space) = unsafe { (made_here(engine, here)?, self::space(space)?) };
        // SAFETY: checked above, or C vouches for it.
        unsafe { made.engine().on_cpu(here) }.flush_coalesced(space);
        Ok(())
    })
}

/// Returns the range, or `None` if the pointer is NULL.
///
/// # Errors
/// If the pointer is refused, or if the range doesn't consist of whole strides.
///
/// # Safety
/// It is NULL, or C has initialised the range.
#[inline]
unsafe fn range_if_any(range: *const quell_range) -> Result<Option<PageRange>, quell_status> {
    if range.is_null() {
        return Ok(None);
    }
    reject(range)?;
    // SAFETY: it isn't NULL, so C has initialised it.
    Ok(Some(unsafe { *range }.checked()?))
}

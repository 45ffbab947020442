//! Flushes without a batch: of one change, and of everything, which tasks may share.

use crate::place::{
    coalesced, engine_here, made_here, quell_coalesced, quell_cpu, quell_engine, quell_space,
    reject, space,
};
use crate::status::{answer, quell_status};
use crate::values::{quell_range, scope};
use quell::PageRange;

/// Entries of `space` in `*range` changed, or anywhere if that is NULL: flushes at once, without a batch. On return no
/// CPU uses a translation that the change took away, in any later user access. `scope` is an `enum quell_scope`.
///
/// It does in fewer steps what a batch of this one change does; but quell_flush_pending does not know of it before it
/// is flushed. So it is called under the lock of the table, or where a later observer that meets the entry hears of the
/// flush in another way (Linux's mm_tlb_flush_pending), or relies on nothing.
///
/// Context: after the tables were written, interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush(
    engine: *mut quell_engine,
    space: *mut quell_space,
    range: *const quell_range,
    scope: u32,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space.
        let (engine, space, range) = unsafe {
            (
                engine_here(engine)?,
                self::space(space)?,
                range_if_any(range)?,
            )
        };
        engine.flush_at_once(space, range, self::scope(scope)?);
        Ok(())
    })
}

/// quell_flush for a kernel that knows where the engine's state of each CPU is: `here` is that of this CPU, one of
/// `quell_setup.cpus` or `cpu_places`.
///
/// Refuses the state of another CPU.
///
/// Context: as quell_flush.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_here(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
    space: *mut quell_space,
    range: *const quell_range,
    scope: u32,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space.
        let ((made, here), space, range) = unsafe {
            (
                made_here(engine, here)?,
                self::space(space)?,
                range_if_any(range)?,
            )
        };
        let scope = self::scope(scope)?;
        // SAFETY: looked for above, or C vouches for it.
        unsafe { made.engine().flush_at_once_here(here, space, range, scope) };
        Ok(())
    })
}

/// Entries of `space` changed anywhere, page tables may be free: flushes everything, as quell_flush with
/// QUELL_SCOPE_TABLES, or lets a flush of another task do that begins after this call has. Worth it where several
/// threads change one space at the same time and more than two CPUs have it loaded. `coalesced` is that space's, in
/// all such calls.
///
/// Context: as quell_flush, but not from an interrupt handler, and the kernel does not preempt the task meanwhile by
/// one that shares a flush of the same space: it would wait for what it has interrupted. May wait, for that task too.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_coalesced(
    engine: *mut quell_engine,
    space: *mut quell_space,
    coalesced: *mut quell_coalesced,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space.
        let (engine, space, coalesced) = unsafe {
            (
                engine_here(engine)?,
                self::space(space)?,
                self::coalesced(coalesced)?,
            )
        };
        engine.flush_coalesced(space, coalesced);
        Ok(())
    })
}

/// quell_flush_coalesced for a kernel that knows where the engine's state of each CPU is: `here` is that of this CPU,
/// one of `quell_setup.cpus` or `cpu_places`.
///
/// Refuses the state of another CPU.
///
/// Context: as quell_flush_coalesced.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_coalesced_here(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
    space: *mut quell_space,
    coalesced: *mut quell_coalesced,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space.
        let ((made, here), space, coalesced) = unsafe {
            (
                made_here(engine, here)?,
                self::space(space)?,
                self::coalesced(coalesced)?,
            )
        };
        // SAFETY: looked for above, or C vouches for it.
        unsafe { made.engine().flush_coalesced_here(here, space, coalesced) };
        Ok(())
    })
}

/// The range, if the pointer is not NULL.
///
/// # Errors
/// If the pointer is refused, or if it is no range of whole strides.
///
/// # Safety
/// It is NULL, or C has initialised what it points to.
#[inline]
unsafe fn range_if_any(range: *const quell_range) -> Result<Option<PageRange>, quell_status> {
    if range.is_null() {
        return Ok(None);
    }
    reject(range)?;
    // SAFETY: it is not NULL, so C has initialised it.
    Ok(Some(unsafe { *range }.checked()?))
}

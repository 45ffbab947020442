//! Mistakes on purpose, so that a kernel's tests can show that they notice.
//!
//! A library that is built in the instrumented copy of the workspace (`search/mutants`) makes the mistake that
//! [`quell_leave_out`] names. Every other one makes none, and asks nothing.

use crate::status::{answer, quell_status};
use core::ffi::c_char;

/// From now on the engine makes this mistake, by the name of its mutant (`quell explore --list` has the names): a test
/// can show so that it notices. QUELL_STATUS_UNSUPPORTED in a library that was not built in the copy that holds the
/// mutants, QUELL_STATUS_VALUE if there is no such mutant.
///
/// Context: any, before the first engine is made.
///
/// # Safety
/// `name` is NULL, or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_leave_out(name: *const c_char) -> quell_status {
    answer(|| {
        #[cfg(not(quell_mutants))]
        {
            let _ = name;
            Err(quell_status::Unsupported)
        }
        #[cfg(quell_mutants)]
        {
            if name.is_null() {
                return Err(quell_status::Null);
            }
            // SAFETY: as the caller promises.
            let name = unsafe { crate::text::of_c(name, LONGEST) }.ok_or(quell_status::Value)?;
            let number = quell::selector::number_of(name).ok_or(quell_status::Value)?;
            quell::selector::choose(number);
            Ok(())
        }
    })
}

/// The longest name of a mutant.
#[cfg(quell_mutants)]
const LONGEST: usize = 64;

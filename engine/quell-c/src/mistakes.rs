//! Turns on a deliberate mistake (a mutant) of the engine, so that a kernel's tests can show that they detect it.
//!
//! Mutants exist only in a library that was built in the instrumented copy of the workspace (`search/mutants`). There,
//! the function [`quell_leave_out`] chooses one. Every other library contains neither mutants nor checks for them.

use crate::status::{answer, quell_status};
use core::ffi::c_char;

/// Turns on a mutant of the engine, so that a test can detect the mistake.
///
/// `quell explore --list` lists the names. Returns QUELL_STATUS_UNSUPPORTED if the library wasn't built with mutants,
/// and QUELL_STATUS_VALUE if there is no mutant of this name.
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

/// The longest name of a mutant in bytes.
#[cfg(quell_mutants)]
const LONGEST: usize = 64;

//! Mistakes on purpose, so that a kernel's tests can show that they notice.
//!
//! A library that is built with the feature `mutants` leaves out the rule that [`quell_leave_out`] names. Without the
//! feature every rule is kept, and nothing is asked.

use crate::status::{answer, quell_status};
use crate::text::of_c;
use core::ffi::c_char;
use core::sync::atomic::{AtomicPtr, Ordering};
use quell::{Rule, Rules};

/// The longest name of a rule.
const LONGEST: usize = 64;

/// The rule that is not kept; null for none.
static FORGOTTEN: AtomicPtr<Rule> = AtomicPtr::new(core::ptr::null_mut());

/// The rules that the engine keeps: all, but for one that a test leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept;

impl Rules for Kept {
    #[inline(always)]
    fn keeps(&self, rule: &'static Rule) -> bool {
        // Relaxed: a test says it before there is an engine.
        cfg!(not(feature = "mutants"))
            || !core::ptr::eq(FORGOTTEN.load(Ordering::Relaxed), core::ptr::from_ref(rule))
    }
}

/// From now on the engine leaves one of its rules out, named by its mutant (`quell explore --list` has the names): a
/// test can show so that it notices. QUELL_STATUS_UNSUPPORTED in a library that was built without the feature
/// "mutants", QUELL_STATUS_VALUE if there is no such rule.
///
/// Context: any, before the first engine is made.
///
/// # Safety
/// `name` is NULL, or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_leave_out(name: *const c_char) -> quell_status {
    answer(|| {
        if cfg!(not(feature = "mutants")) {
            return Err(quell_status::Unsupported);
        }
        if name.is_null() {
            return Err(quell_status::Null);
        }
        // SAFETY: as the caller promises.
        let name = unsafe { of_c(name, LONGEST) }.ok_or(quell_status::Value)?;
        let rule = quell::rules::ALL.iter().find(|rule| rule.name == name);
        let rule: &Rule = rule.ok_or(quell_status::Value)?;
        FORGOTTEN.store(core::ptr::from_ref(rule).cast_mut(), Ordering::Relaxed);
        Ok(())
    })
}

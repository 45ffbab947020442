//! The verdict of one CPU about a check.

/// The result of a check on one CPU: `Ok`, or `Err` with this CPU's observation.
///
/// # Examples
///
/// ```
/// use quell_conformance::verdict::{Verdict, expect};
/// fn check(read: u64) -> Verdict {
///     expect(read == 42, "read a stale word")
/// }
/// assert_eq!(check(41), Err("read a stale word"));
/// ```
pub type Verdict = Result<(), &'static str>;

/// Returns `Err(otherwise)` unless the condition holds.
///
/// # Errors
/// `otherwise`, if the condition is false.
pub fn expect(condition: bool, otherwise: &'static str) -> Verdict {
    if condition { Ok(()) } else { Err(otherwise) }
}

//! The verdict of one CPU about a check.

/// The result of a check on one CPU: `Ok`, or `Err` with this CPU's observation.
pub type Verdict = Result<(), &'static str>;

/// Returns `Err(otherwise)` unless the condition holds.
///
/// # Errors
/// `otherwise`, if the condition is false.
pub fn expect(condition: bool, otherwise: &'static str) -> Verdict {
    if condition { Ok(()) } else { Err(otherwise) }
}

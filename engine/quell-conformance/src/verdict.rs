//! The verdict of a check.

/// `Ok`, or `Err` with this CPU's observation.
pub type Verdict = Result<(), &'static str>;

/// Fails with `otherwise` unless the condition holds.
///
/// # Errors
/// `otherwise`.
pub fn expect(condition: bool, otherwise: &'static str) -> Verdict {
    if condition { Ok(()) } else { Err(otherwise) }
}

//! Finds the addresses that a system call in progress may change, for the oracles.

use crate::Call;

/// Returns whether a call that hasn't returned may change the content of a place.
///
/// `covers` returns whether a range, given as address and bytes, includes that place.
pub fn may_change(call: Call, covers: impl Fn(u64, u64) -> bool) -> bool {
    match call {
        Call::Unmap { address, bytes }
        | Call::Discard { address, bytes }
        | Call::Protect { address, bytes, .. }
        | Call::Map { address: Some(address), bytes, .. } => covers(address, bytes),
        Call::Remap { address, bytes, to } => {
            covers(address, bytes) || to.is_some_and(|to| covers(to, bytes))
        }
        // The file's pages may be mapped anywhere.
        Call::Write { .. } | Call::Truncate { .. } => true,
        _ => false,
    }
}

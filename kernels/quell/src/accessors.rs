//! Accesses of the kernel that may fault: to user memory, and to test pages of the kernel's half.
//!
//! Two functions in assembly perform them, in each architecture's `traps.s`. A page fault that we can't handle makes
//! them return. Nothing else in the kernel may fault.

use crate::{arch, tables};

unsafe extern "C" {
    /// Loads a word into `value`. Returns a number other than 0 if that faults.
    unsafe fn probe_load(address: u64, value: *mut u64) -> u64;
    /// Stores a word. Returns a number other than 0 if that faults.
    unsafe fn probe_store(address: u64, value: u64) -> u64;
}

/// Returns whether these accesses may fault: in user mode's half, and on tests' pages.
pub fn may_fault(address: u64) -> bool {
    address < arch::DIRECT_MAP || tables::is_own(address)
}

/// Loads a word of user memory from kernel mode. Returns `None` if we couldn't handle the fault, or if the address
/// isn't in user mode's half.
pub fn load_user(address: u64) -> Option<u64> {
    // SAFETY: that half contains only open memory.
    in_user_half(address).then(|| unsafe { load(address) })?
}

/// Loads a word of a test page of the kernel's half. Returns `None` if that faults.
///
/// # Panics
/// If the address isn't in such a page.
pub fn load_own(address: u64) -> Option<u64> {
    tables::assert_is_own(address);
    // SAFETY: these pages map only open memory.
    unsafe { load(address) }
}

/// Loads a word. Returns `None` if that faults.
///
/// # Safety
/// If something is mapped at the address, it's open memory.
unsafe fn load(address: u64) -> Option<u64> {
    let mut value = 0;
    // SAFETY: as the caller promises, and a fault is handled; the value is this call's.
    let refused = unsafe { probe_load(address, &raw mut value) } != 0;
    (!refused).then_some(value)
}

/// Stores a word to user memory from kernel mode. Returns `false` if we couldn't handle the fault, or if the address
/// isn't in user mode's half.
pub fn store_user(address: u64, value: u64) -> bool {
    // SAFETY: that half contains only open memory, and a fault is handled.
    in_user_half(address) && unsafe { probe_store(address, value) } == 0
}

/// Returns whether a word at the address is in user mode's half.
fn in_user_half(address: u64) -> bool {
    address <= arch::USER_HALF - 8
}

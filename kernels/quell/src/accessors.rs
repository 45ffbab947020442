//! Accesses of the kernel that may fault: to user memory, and to test pages of the kernel's half.
//!
//! Two functions in assembly perform them, in each architecture's `traps.s`; a page fault that cannot be handled
//! leaves them. Nothing else of the kernel may fault.

use crate::{arch, tables};

unsafe extern "C" {
    /// Loads a word into `value`; not 0 if that faults.
    unsafe fn probe_load(address: u64, value: *mut u64) -> u64;
    /// Stores a word; not 0 if that faults.
    unsafe fn probe_store(address: u64, value: u64) -> u64;
}

/// Returns whether these accesses may fault at an address: in user mode's half, and where tests map pages.
pub fn may_fault(address: u64) -> bool {
    address < arch::DIRECT_MAP || tables::is_own(address)
}

/// Loads a word of user memory from kernel mode; `None` if the fault could not be handled, or the
/// address is not in user mode's half.
pub fn load_user(address: u64) -> Option<u64> {
    // SAFETY: in that half there is open memory alone.
    in_user_half(address).then(|| unsafe { load(address) })?
}

/// Loads a word of a test page of the kernel's half; `None` if it faults.
///
/// # Panics
/// If the address is in no such page.
pub fn load_own(address: u64) -> Option<u64> {
    tables::assert_is_own(address);
    // SAFETY: these pages map open memory alone.
    unsafe { load(address) }
}

/// Loads a word; `None` if it faults.
///
/// # Safety
/// If something is mapped there, it is open memory.
unsafe fn load(address: u64) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the caller's claim, and a fault is handled; the value is this call's.
    let refused = unsafe { probe_load(address, &raw mut value) } != 0;
    (!refused).then_some(value)
}

/// Stores a word to user memory from kernel mode; false if the fault could not be handled, or the
/// address is not in user mode's half.
pub fn store_user(address: u64, value: u64) -> bool {
    // SAFETY: in that half there is open memory alone, and a fault is handled.
    in_user_half(address) && unsafe { probe_store(address, value) } == 0
}

/// Returns whether a word at the address is in user mode's half.
fn in_user_half(address: u64) -> bool {
    address <= arch::USER_HALF - 8
}

//! The interface to the kernel: system calls, accesses that it may refuse, and shared memory.

use crate::arch;
use crate::layout::{self, Control};
use core::sync::atomic::Ordering;

/// Returns the memory shared with the kernel.
pub fn control() -> &'static Control {
    // SAFETY: the kernel maps it there, zeroed, before the program starts. It contains only atomics.
    unsafe { &*(layout::CONTROL as *const Control) }
}

/// Returns the file of the workload, if the workload isn't built in.
pub fn file() -> Option<&'static str> {
    let bytes = control().file_bytes.load(Ordering::Relaxed) as usize;
    if bytes == 0 {
        return None;
    }
    // SAFETY: the kernel maps that many bytes there before the program starts, and no code writes them.
    let bytes = unsafe { core::slice::from_raw_parts(layout::FILE as *const u8, bytes) };
    core::str::from_utf8(bytes).ok()
}

/// Makes a system call with up to six operands. Returns the value and the error number.
pub fn system_call(number: u64, operands: &[u64]) -> (u64, u64) {
    let mut words = [number, 0, 0, 0, 0, 0, 0];
    words[1..=operands.len()].copy_from_slice(operands);
    arch::system_call(words)
}

/// Loads a word. The error number is 0 unless the kernel refused the access.
///
/// # Panics
/// If the address is in the program itself.
#[inline(always)]
pub fn load(address: u64) -> (u64, u64) {
    assert_no_object(address);
    arch::load(address)
}

/// Stores a word. Returns the error number, which is 0 unless the kernel refused the access.
///
/// # Panics
/// If the address is in the program itself.
#[inline(always)]
pub fn store(address: u64, value: u64) -> u64 {
    assert_no_object(address);
    // SAFETY: as asserted.
    unsafe { arch::store(address, value) }
}

/// Panics if an address is in the program, its stacks or its shared memory. So accesses by number reach only memory
/// under test, but no object of this program.
#[inline]
fn assert_no_object(address: u64) {
    // A word below the program may reach into it.
    let mine = layout::PROGRAM - 7..layout::CONTROL + size_of::<Control>() as u64;
    assert!(!mine.contains(&address), "{address:#x} is the program's own");
}

//! The memory that program and kernel share, and its layout.

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

/// Panics if an address is in the program, its stacks or its shared memory. So accesses by number reach only memory
/// under test, but no object of this program.
#[inline]
pub fn assert_no_object(address: u64) {
    // A word below the program may reach into it.
    let mine = layout::PROGRAM - 7..layout::CONTROL + size_of::<Control>() as u64;
    assert!(!mine.contains(&address), "{address:#x} is the program's own");
}

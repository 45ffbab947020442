//! The memory that the program shares with the kernel, and what lies where.

use crate::layout::{self, Control};

/// The memory shared with the kernel.
pub fn control() -> &'static Control {
    // SAFETY: the kernel maps it there, zeroed, before the program starts; it holds only atomics.
    unsafe { &*(layout::CONTROL as *const Control) }
}

/// Panics if the program, its stacks or what it shares with the kernel lie at an address: whatever is
/// accessed there by its number alone is memory under test, and no object of this program's.
#[inline]
pub fn assert_no_object(address: u64) {
    // A word may reach into it from below.
    let mine = layout::PROGRAM - 7..layout::CONTROL + size_of::<Control>() as u64;
    assert!(
        !mine.contains(&address),
        "{address:#x} is the program's own"
    );
}

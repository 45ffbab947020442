//! The direct map: all physical memory, at its address plus a constant.

use crate::arch::DIRECT_MAP;

/// Returns the address of the byte at a physical address in the direct map.
#[inline]
pub fn pointer<T>(physical: u64) -> *mut T {
    (DIRECT_MAP + physical) as *mut T
}

/// Returns the physical address of something in the direct map, including the kernel's image.
#[inline]
pub fn physical<T>(pointer: *const T) -> u64 {
    pointer as u64 - DIRECT_MAP
}

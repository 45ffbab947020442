//! The direct map: all physical memory, at its address plus a constant.

use crate::arch::DIRECT_MAP;

/// Where the byte at a physical address is in the direct map.
#[inline]
pub fn pointer<T>(physical: u64) -> *mut T {
    (DIRECT_MAP + physical) as *mut T
}

/// The physical address of something in the direct map, the kernel's image included.
#[inline]
pub fn physical<T>(pointer: *const T) -> u64 {
    pointer as u64 - DIRECT_MAP
}

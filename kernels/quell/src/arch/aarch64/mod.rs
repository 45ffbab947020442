//! AArch64: Linux boot image, GICv3, exception vectors at level 1, user roots in TTBR0 with ASIDs.

pub mod boot;
pub mod console;
pub mod cpu;
pub mod interrupts;
pub mod paging;
pub mod traps;

/// The architecture's name.
pub const NAME: &str = "aarch64";

/// The address of the direct map of physical memory, which includes the kernel's image.
pub const DIRECT_MAP: u64 = 0xffff_0000_0000_0000;

/// The end of user mode's half.
pub const USER_HALF: u64 = 1 << 48;

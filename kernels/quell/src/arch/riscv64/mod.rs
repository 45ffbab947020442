//! RISC-V, 64 bits: supervisor mode on firmware with SBI, Sv48, interrupts between CPUs through the firmware.
//!
//! One register contains the root of both halves, so every address space has the kernel's entries in its upper half, as
//! on x86-64. There are no broadcasts, so other CPUs invalidate on an interrupt. There are no non-maskable interrupts:
//! supervisor mode can mask everything that the firmware passes on.

pub mod boot;
pub mod console;
pub mod cpu;
pub mod interrupts;
pub mod paging;
mod software;
pub mod traps;

/// The architecture's name.
pub const NAME: &str = "riscv64";

/// The address of the direct map of physical memory, which includes the kernel's image.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// The end of user mode's half.
pub const USER_HALF: u64 = 1 << 47;

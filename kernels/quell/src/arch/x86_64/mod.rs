//! x86-64: PVH boot, local APIC, IDT, four-level page tables, PCIDs if available.

mod acpi;
pub mod boot;
pub mod console;
pub mod cpu;
pub mod interrupts;
mod loader;
pub mod paging;
pub mod traps;

/// The architecture's name.
pub const NAME: &str = "x86_64";

/// The address of the direct map of physical memory, which includes the kernel's image.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// The end of user mode's half.
pub const USER_HALF: u64 = 1 << 47;

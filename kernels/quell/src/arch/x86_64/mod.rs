//! x86-64: PVH boot, local APIC, IDT, four-level page tables, PCIDs where there are any.

mod acpi;
pub mod boot;
pub mod console;
pub mod cpu;
pub mod interrupts;
mod loader;
pub mod paging;
mod processor;
pub mod start;
pub mod traps;
pub mod user_mode;

/// The architecture's name.
pub const NAME: &str = "x86_64";

/// Where physical address 0 is mapped; the kernel's image lies in this map too.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// Where user mode's half ends.
pub const USER_HALF: u64 = 1 << 47;

//! The loader's information, and the start of the other CPUs, which we find in the ACPI tables.

use super::{acpi, interrupts};
use crate::{clock, cpu, direct_map, sched};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    static boot_trampoline: u8;
    static boot_trampoline_end: u8;
    static boot_other_stack: AtomicU64;
}

/// The address of the copied trampoline. Its page number is the vector of the start-up interrupt.
const TRAMPOLINE: u64 = 0x8000;

/// The loader's information.
pub struct BootInfo {
    /// The command line.
    pub command_line: &'static str,
    /// The user program's file, as physical addresses.
    pub module: Option<Range<u64>>,
    /// The firmware's tables.
    pub acpi: acpi::Tables,
}

/// Starts all other CPUs, and returns the number of CPUs that run.
pub fn start_others(info: &BootInfo) -> usize {
    // SAFETY: the trampoline's page is below 1 MB, which the kernel doesn't use otherwise.
    unsafe {
        let from = &raw const boot_trampoline;
        let length = (&raw const boot_trampoline_end).offset_from_unsigned(from);
        core::ptr::copy_nonoverlapping(from, direct_map::pointer::<u8>(TRAMPOLINE), length);
    }
    let me = cpu::this().hardware_id.load(Ordering::Relaxed);
    for &id in info.acpi.cpus().iter().filter(|&&id| u64::from(id) != me) {
        let index = cpu::count();
        if index == cpu::MAX {
            break;
        }
        let stack = alloc::vec![0u128; sched::STACK / 16].leak();
        // SAFETY: the other CPU reads the word once, and hasn't started yet.
        unsafe { &boot_other_stack }.store(stack.as_ptr_range().end as u64, Ordering::Release);
        // SAFETY: the trampoline is in place, and the CPU has a stack.
        unsafe { interrupts::start(id, TRAMPOLINE) };
        if !clock::wait_for(cpu::START_LIMIT, || cpu::count() > index) {
            crate::report::event(&crate::report::Event::Failed {
                what: "cpu start",
                why: "no answer within two minutes, the last resort",
            });
            break;
        }
    }
    cpu::count()
}

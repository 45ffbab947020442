//! The loader's information, and the start of the other CPUs by SBI.
//!
//! We request one hart after the other from the firmware, from number 0, because the emulator numbers them without
//! gaps. Any of them may have been the first.

use crate::{clock, cpu, direct_map, sched};
use core::ops::Range;
use core::sync::atomic::Ordering;

unsafe extern "C" {
    static boot_other_entry: u8;
}

/// The loader's information.
pub struct BootInfo {
    /// The command line.
    pub command_line: &'static str,
    /// The user program's file, as physical addresses.
    pub module: Option<Range<u64>>,
}

fn failed(why: &str) {
    crate::report::event(&crate::report::Event::Failed { what: "cpu start", why });
}

/// Starts all other CPUs, and returns the number of CPUs that run.
pub fn start_others(_info: &BootInfo) -> usize {
    // SAFETY: only the address of the symbol is taken.
    let entry = direct_map::physical(&raw const boot_other_entry);
    let me = cpu::this().hardware_id.load(Ordering::Relaxed) as usize;
    for hart in (0..cpu::MAX).filter(|&hart| hart != me) {
        // The firmware returns an error if there is no such hart.
        if sbi_rt::hart_get_status(hart).is_err() {
            break;
        }
        let index = cpu::count();
        let stack = alloc::vec![0u128; sched::STACK / 16].leak();
        quell_arch::riscv64::tlb::fence_devices();
        let stack = stack.as_ptr_range().end as usize;
        if sbi_rt::hart_start(hart, entry as usize, stack).is_err() {
            failed("the firmware refused");
            break;
        }
        if !clock::wait_for(cpu::START_LIMIT, || cpu::count() > index) {
            failed("no answer within two minutes, the last resort");
            break;
        }
    }
    cpu::count()
}

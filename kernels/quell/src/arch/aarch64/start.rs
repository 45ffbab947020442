//! The loader's information, and the start of the other CPUs by PSCI.
//!
//! We find CPUs by requesting that the firmware starts one after the other, in the order of their affinity numbers (16
//! to a cluster, as with every GICv3).

use crate::{clock, cpu, direct_map, sched};
use core::ops::Range;
use smccc::{Hvc, psci};

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

/// Returns the affinity fields of CPU `index`.
fn affinity(index: usize) -> u64 {
    (index % 16) as u64 | ((index / 16) as u64) << 8
}

/// Starts all other CPUs, and returns the number of CPUs that run.
pub fn start_others(_info: &BootInfo) -> usize {
    // SAFETY: only the address of the symbol is taken.
    let entry = direct_map::physical(&raw const boot_other_entry);
    for index in 1..cpu::MAX {
        let stack = alloc::vec![0u128; sched::STACK / 16].leak();
        quell_arch::aarch64::tlb::fence();
        let started = psci::cpu_on::<Hvc>(affinity(index), entry, stack.as_ptr_range().end as u64);
        if let Err(error) = started {
            // The firmware returns this error if there is no such CPU.
            if error != psci::Error::InvalidParameters {
                let why = "the firmware refused";
                crate::report::event(&crate::report::Event::Failed { what: "cpu start", why });
            }
            break;
        }
        if !clock::wait_for(cpu::START_LIMIT, || cpu::count() > index) {
            let why = "no answer within two minutes, the last resort";
            crate::report::event(&crate::report::Event::Failed { what: "cpu start", why });
            break;
        }
    }
    cpu::count()
}

//! Boots as a Linux image, contains the entry of every CPU, and starts the other CPUs by PSCI.
//!
//! The loader passes a device tree with the memory ranges, the command line and the place of the user program's file.

use super::{cpu as registers, interrupts, paging, traps};
use crate::device_tree::DeviceTree;
use crate::{cpu, memory, tables};
use hermit_dtb::Dtb;
use smccc::{Hvc, psci};

core::arch::global_asm!(include_str!("boot.s"));

unsafe extern "C" {
    static boot_other_entry: u8;
}

/// The first CPU's first Rust code: `tree` is the physical address of the device tree.
#[unsafe(no_mangle)]
extern "C" fn boot_first(tree: u64) -> ! {
    // SAFETY: this is the first CPU.
    unsafe { registers::init(0) };
    traps::init_cpu();
    // SAFETY: the loader put it there, in the first GB of memory, which is mapped.
    let dtb = unsafe { Dtb::from_raw(memory::pointer::<u8>(tree)) }.expect("a device tree");
    let told = DeviceTree::read(&dtb, tree, "memory@40000000");
    // The boot tables map the first GB of memory, which is the second GB of addresses.
    // SAFETY: the device tree describes this memory, and `boot.s` makes the root with its table of 1 GB pages.
    unsafe { tables::extend_direct_map(paging::kernel_root(), 2..told.end.div_ceil(1 << 30)) };
    // SAFETY: this memory is mapped now, and doesn't include the image, the file and the tree.
    unsafe { memory::init(told.free) };
    // SAFETY: this is the first CPU, in the upper half.
    unsafe { init_cpu(0) };
    crate::main(told.boot)
}

/// Sets up the CPU this runs on as CPU `index`.
///
/// # Safety
/// That is its number, and it runs in the upper half, with interrupts masked.
unsafe fn init_cpu(index: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        paging::init_cpu();
        interrupts::init_cpu(index);
    }
    cpu::set_started(index);
}

/// The first Rust code of the other CPUs.
#[unsafe(no_mangle)]
extern "C" fn boot_other() -> ! {
    let index = cpu::count();
    // SAFETY: CPUs are started one after the other, and the first waits until this one counts itself.
    unsafe { registers::init(index) };
    traps::init_cpu();
    // SAFETY: CPUs are started one after the other, and the entry jumped to the upper half.
    unsafe { init_cpu(index) };
    crate::idle()
}

/// Starts all other CPUs. We find them by requesting that the firmware starts one after the other, in the order of
/// their affinity numbers (16 to a cluster, as with every GICv3).
pub fn start_others() {
    // SAFETY: only the address of the symbol is taken.
    let entry = memory::physical(&raw const boot_other_entry);
    for index in 1..cpu::MAX {
        let affinity = (index % 16) as u64 | ((index / 16) as u64) << 8;
        let started = cpu::start_next(|stack| {
            quell_arch::aarch64::tlb::fence();
            match psci::cpu_on::<Hvc>(affinity, entry, stack) {
                Ok(()) => Ok(()),
                // There is no such CPU.
                Err(psci::Error::InvalidParameters) => Err(None),
                Err(_) => Err(Some("the firmware refused")),
            }
        });
        if !started {
            break;
        }
    }
}

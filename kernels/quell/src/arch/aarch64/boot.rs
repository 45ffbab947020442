//! Boots as a Linux image, and contains the entry of every CPU.
//!
//! The loader passes a device tree with the memory ranges, the command line and the place of the user program's file.

use super::start::BootInfo;
use super::{cpu as registers, interrupts, paging, traps};
use crate::device_tree::DeviceTree;
use crate::{console, cpu, direct_map, memory, sched};
use hermit_dtb::Dtb;

core::arch::global_asm!(include_str!("boot.s"));

/// The first CPU's first Rust code: `tree` is the physical address of the device tree.
#[unsafe(no_mangle)]
extern "C" fn boot_first(tree: u64) -> ! {
    // SAFETY: this is the first CPU.
    unsafe { registers::init(0) };
    traps::init_cpu();
    // SAFETY: first and only call, on the first CPU, before anything else uses the serial line.
    console::init(unsafe { super::console::Serial::new() });
    // SAFETY: the loader put it there, in the first GB of memory, which is mapped.
    let dtb = unsafe { Dtb::from_raw(direct_map::pointer::<u8>(tree)) }.expect("a device tree");
    let told = DeviceTree::read(&dtb, tree, "memory@40000000");
    // SAFETY: the device tree describes this memory.
    unsafe { paging::map_all_memory(told.end) };
    // SAFETY: this memory is mapped now, and doesn't include the image, the file and the tree.
    unsafe { memory::init(told.free) };
    // SAFETY: this is the first CPU, in the upper half.
    unsafe { init_cpu(0) };
    crate::main(BootInfo { command_line: told.command_line, module: told.module })
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
    sched::init_cpu();
    cpu::set_started(index);
    registers::restore_interrupts(true);
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

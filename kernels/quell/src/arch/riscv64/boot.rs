//! The entry of every CPU. The firmware calls it in supervisor mode, without translation.
//!
//! The firmware passes a device tree with the memory ranges, the processor's features, the command line and the place
//! of the user program's file.

use super::start::BootInfo;
use super::{cpu as registers, interrupts, paging, processor, traps};
use crate::device_tree::{DeviceTree, number, text};
use crate::{console, cpu, direct_map, memory, sched};
use hermit_dtb::Dtb;

core::arch::global_asm!(include_str!("boot.s"));

/// The first CPU's first Rust code. The CPU is the firmware's `hart`, and `tree` is the physical address of the device
/// tree.
#[unsafe(no_mangle)]
extern "C" fn boot_first(hart: u64, tree: u64) -> ! {
    // SAFETY: this is the first CPU.
    unsafe { registers::init(0) };
    traps::init_cpu();
    // SAFETY: first and only call, on the first CPU, before anything else uses the serial line.
    console::init(unsafe { super::console::Serial::new() });
    // The boot tables map the first GB of memory; the loader puts the tree into its first 3 GB.
    assert!(
        (0x8000_0000..0xc000_0000).contains(&tree),
        "the device tree is at {tree:#x}: give the machine at most 1 GB of memory"
    );
    // SAFETY: the firmware put it there, in memory that is mapped.
    let dtb = unsafe { Dtb::from_raw(direct_map::pointer::<u8>(tree)) }.expect("a device tree");
    // All processors are alike, so we read only the first.
    let isa = dtb.get_property("cpus/cpu@", "riscv,isa");
    // SAFETY: this is the first CPU, with interrupts masked, on the boot tables.
    unsafe { processor::detect(isa.and_then(text).unwrap_or_default()) };
    let frequency = dtb.get_property("cpus", "timebase-frequency");
    registers::set_frequency(number(frequency.expect("the tree has the clock's frequency")));
    let told = DeviceTree::read(&dtb, tree, "memory@80000000");
    // SAFETY: the device tree describes this memory.
    unsafe { paging::map_all_memory(told.end) };
    // SAFETY: this memory is mapped now, and doesn't include the image, the file and the tree.
    unsafe { memory::init(told.free) };
    // SAFETY: this is the first CPU, in the upper half.
    unsafe { init_cpu(0, hart) };
    crate::main(BootInfo { command_line: told.command_line, module: told.module })
}

/// Sets up the CPU this runs on, which is the firmware's `hart`, as CPU `index`.
///
/// # Safety
/// That is its number, and it runs in the upper half, with interrupts masked.
unsafe fn init_cpu(index: usize, hart: u64) {
    // SAFETY: as the caller promises.
    unsafe {
        paging::init_cpu();
        interrupts::init_cpu(index, hart);
    }
    sched::init_cpu();
    cpu::set_started(index);
    registers::restore_interrupts(true);
}

/// The first Rust code of another CPU, which is the firmware's `hart`.
#[unsafe(no_mangle)]
extern "C" fn boot_other(hart: u64) -> ! {
    quell_arch::riscv64::tlb::fence_instructions();
    let index = cpu::count();
    // SAFETY: CPUs are started one after the other, and the first waits until this one counts itself.
    unsafe { registers::init(index) };
    traps::init_cpu();
    // SAFETY: CPUs are started one after the other, and the entry jumped to the upper half.
    unsafe { init_cpu(index, hart) };
    crate::idle()
}

//! The entry of every CPU, which the firmware calls in supervisor mode, without translation; and the start of the other
//! CPUs by SBI.
//!
//! The firmware passes a device tree with the memory ranges, the processor's features, the command line and the place
//! of the user program's file.

use super::{cpu as registers, interrupts, paging, traps};
use crate::device_tree::{DeviceTree, number, text};
use crate::{cpu, memory, tables};
use core::sync::atomic::Ordering;
use hermit_dtb::Dtb;

core::arch::global_asm!(include_str!("boot.s"));

unsafe extern "C" {
    static boot_other_entry: u8;
}

/// The first CPU's first Rust code. The CPU is the firmware's `hart`, and `tree` is the physical address of the device
/// tree.
#[unsafe(no_mangle)]
extern "C" fn boot_first(hart: u64, tree: u64) -> ! {
    // SAFETY: this is the first CPU.
    unsafe { registers::init(0) };
    traps::init_cpu();
    super::console::init();
    // The boot tables map the first GB of memory; the loader puts the tree into its first 3 GB.
    assert!(
        (0x8000_0000..0xc000_0000).contains(&tree),
        "the device tree is at {tree:#x}: give the machine at most 1 GB of memory"
    );
    // SAFETY: the firmware put it there, in memory that is mapped.
    let dtb = unsafe { Dtb::from_raw(memory::pointer::<u8>(tree)) }.expect("a device tree");
    // All processors are alike, so we read only the first.
    let isa = dtb.get_property("cpus/cpu@", "riscv,isa");
    // SAFETY: this is the first CPU, with interrupts masked, on the boot tables.
    unsafe { registers::detect(isa.and_then(text).unwrap_or_default()) };
    let frequency = dtb.get_property("cpus", "timebase-frequency");
    registers::set_frequency(number(frequency.expect("the tree has the clock's frequency")));
    let told = DeviceTree::read(&dtb, tree, "memory@80000000");
    // The boot tables map devices in the first GB of addresses, and memory in the third.
    // SAFETY: the device tree describes this memory, and `boot.s` makes the root with its table of 1 GB pages.
    unsafe { tables::extend_direct_map(paging::kernel_root(), 3..told.end.div_ceil(1 << 30)) };
    // SAFETY: this memory is mapped now, and doesn't include the image, the file and the tree.
    unsafe { memory::init(told.free) };
    // SAFETY: this is the first CPU, in the upper half.
    unsafe { init_cpu(0, hart) };
    crate::main(told.boot)
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
    cpu::set_started(index);
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

/// Starts all other CPUs. We request one hart after the other from the firmware, from number 0, because the emulator
/// numbers them without gaps. Any of them may have been the first.
pub fn start_others() {
    // SAFETY: only the address of the symbol is taken.
    let entry = memory::physical(&raw const boot_other_entry);
    let me = cpu::this().hardware_id.load(Ordering::Relaxed) as usize;
    for hart in (0..cpu::MAX).filter(|&hart| hart != me) {
        let started = cpu::start_next(|stack| {
            // The firmware returns an error if there is no such hart.
            if sbi_rt::hart_get_status(hart).is_err() {
                return Err(None);
            }
            quell_arch::riscv64::tlb::fence_devices();
            match sbi_rt::hart_start(hart, entry as usize, stack as usize).is_ok() {
                true => Ok(()),
                false => Err(Some("the firmware refused")),
            }
        });
        if !started {
            break;
        }
    }
}

//! The way of every CPU into the kernel: entered by the firmware in supervisor mode, without translation.
//!
//! The firmware passes a device tree, which says where memory lies, what the processor can do, what the command
//! line is and where the user program's file is.

use super::start::Info;
use super::{cpu as registers, interrupts, paging, processor, traps};
use crate::{console, cpu, direct_map, memory, sched};
use hermit_dtb::Dtb;

core::arch::global_asm!(include_str!("boot.s"));

unsafe extern "C" {
    static kernel_end: u8;
}

/// A big-endian number of four or eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A text that ends with a zero.
fn text(bytes: &'static [u8]) -> Option<&'static str> {
    core::ffi::CStr::from_bytes_until_nul(bytes)
        .ok()?
        .to_str()
        .ok()
}

/// The first CPU's first Rust code: it is the firmware's `hart`, and `tree` is the physical address of the device
/// tree.
#[unsafe(no_mangle)]
extern "C" fn boot_first(hart: u64, tree: u64) -> ! {
    // SAFETY: the first CPU.
    unsafe { registers::init(0) };
    traps::init_cpu();
    // SAFETY: first and only call, on the first CPU, before anything else uses the serial line.
    console::init(unsafe { super::console::Serial::new() });
    // The boot tables map the first GB of memory; the loader puts the tree into its first 3 GB.
    assert!(
        (0x8000_0000..0xc000_0000).contains(&tree),
        "the device tree lies at {tree:#x}: give the machine at most 1 GB of memory"
    );
    // SAFETY: the firmware put it there, in memory that is mapped.
    let dtb = unsafe { Dtb::from_raw(direct_map::pointer::<u8>(tree)) }.expect("a device tree");
    let chosen = |name| dtb.get_property("chosen", name);
    let module = match (chosen("linux,initrd-start"), chosen("linux,initrd-end")) {
        (Some(start), Some(end)) => Some(number(start)..number(end)),
        _ => None,
    };
    let command_line =
        chosen("bootargs").map_or("", |line| text(line).expect("the command line is text"));
    // All processors are alike; the first stands for them.
    let isa = dtb.get_property("cpus/cpu@", "riscv,isa");
    // SAFETY: the first CPU, interrupts masked, on the boot tables.
    unsafe { processor::detect(isa.and_then(text).unwrap_or_default()) };
    let frequency = dtb.get_property("cpus", "timebase-frequency");
    registers::set_frequency(number(
        frequency.expect("the tree says how fast the clock is"),
    ));
    let reg = dtb
        .get_property("memory@80000000", "reg")
        .expect("the tree describes the memory");
    let (start, bytes) = (number(&reg[..8]), number(&reg[8..16]));
    // SAFETY: only the address of the linker's symbol is taken.
    let mut free = direct_map::physical(&raw const kernel_end)..start + bytes;
    // The loader puts the file and the tree behind the image: take the larger part, before or after.
    for taken in [Some(tree..tree + (1 << 20)), module.clone()]
        .into_iter()
        .flatten()
    {
        if taken.start >= free.start && taken.start < free.end {
            let (before, after) = (free.start..taken.start, taken.end.min(free.end)..free.end);
            free = if before.end - before.start >= after.end - after.start {
                before
            } else {
                after
            };
        }
    }
    // SAFETY: as the tree says.
    unsafe { paging::map_all_memory(start + bytes) };
    // SAFETY: memory, mapped now, without the image, the file and the tree.
    unsafe { memory::init(free) };
    // SAFETY: the first CPU, in the upper half.
    unsafe { init_cpu(0, hart) };
    crate::main(Info {
        command_line,
        module,
    })
}

/// Sets up the CPU this runs on, the firmware's `hart`, as CPU `index`.
///
/// # Safety
/// That is its number, and it runs in the upper half, with interrupts masked.
unsafe fn init_cpu(index: usize, hart: u64) {
    // SAFETY: the caller's claims.
    unsafe {
        paging::init_cpu();
        interrupts::init_cpu(index, hart);
    }
    sched::init_cpu();
    cpu::set_started(index);
    registers::restore_interrupts(true);
}

/// The first Rust code of the other CPUs: this one is the firmware's `hart`.
#[unsafe(no_mangle)]
extern "C" fn boot_other(hart: u64) -> ! {
    quell_arch::riscv64::tlb::fence_instructions();
    let index = cpu::count();
    // SAFETY: CPUs are started one after the other, and the first waits until this one counts itself.
    unsafe { registers::init(index) };
    traps::init_cpu();
    // SAFETY: as above; the entry jumped to the upper half.
    unsafe { init_cpu(index, hart) };
    crate::idle()
}

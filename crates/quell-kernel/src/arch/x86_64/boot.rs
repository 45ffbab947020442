//! The first CPU's way into the kernel, and the start of the other CPUs.
//!
//! The loader enters `boot_pvh` (named by an ELF note) or `boot_multiboot` (named by a header) in
//! 32-bit mode with the address of what it passes; `boot.s` turns paging on with the first gigabyte
//! mapped twice and calls [`boot_first`].
//! The other CPUs are those that the ACPI tables list; they are started one after the other.

use super::{acpi, cpu as registers, interrupts, loader, paging, traps};
use crate::{console, cpu, memory, sched};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

core::arch::global_asm!(include_str!("boot.s"), options(att_syntax));

unsafe extern "C" {
    static boot_trampoline: u8;
    static boot_trampoline_end: u8;
    static boot_other_stack: AtomicU64;
    static kernel_start: u8;
    static kernel_end: u8;
}

/// Where the trampoline is copied; the page number is the vector of the start-up interrupt.
const TRAMPOLINE: u64 = 0x8000;

/// What the loader said.
pub struct Info {
    /// The command line.
    pub command_line: &'static str,
    /// The user program's file, as physical addresses.
    pub module: Option<Range<u64>>,
    acpi: acpi::Tables,
}

/// The first CPU's first Rust code: `info` is the physical address of what the loader passed, and
/// `magic` says how ([`loader::Passed::read`]).
#[unsafe(no_mangle)]
extern "C" fn boot_first(info: u64, magic: u32) -> ! {
    registers::init_early();
    // SAFETY: first and only call, on the first CPU, before anything else uses the serial line.
    console::init(unsafe { super::console::Serial::new() });
    // SAFETY: the loader put it there, in the first GB, which is mapped; nothing below frees its
    // memory.
    let passed = unsafe { loader::Passed::read(info, magic) };
    // Nothing may need the heap before here. The boot tables map 1 GB; the rest comes below.
    // SAFETY: only the addresses of the linker's symbols are taken.
    let image = memory::physical(&raw const kernel_start)..memory::physical(&raw const kernel_end);
    let free = passed.free_range(image);
    // SAFETY: usable memory without the image and what was passed, in the first GB.
    unsafe { paging::map_all_memory(passed.memory_end(), free.start) };
    let free = free.start + paging::TABLES_BYTES..free.end;
    // SAFETY: usable memory, mapped now, without the image, what was passed and the tables.
    unsafe { memory::init(free) };
    // SAFETY: the firmware's tables, reachable through the direct map.
    let acpi = unsafe { acpi::Tables::read(passed.rsdp) };
    // SAFETY: the first CPU, on its boot tables.
    unsafe { init_cpu(0) };
    registers::calibrate(acpi.timer_port);
    interrupts::calibrate();
    crate::main(Info {
        command_line: passed.command_line,
        module: passed.module,
        acpi,
    })
}

/// Sets up the CPU this runs on as CPU `index`.
///
/// # Safety
/// No other CPU has that number, and this one runs on the boot tables, with interrupts masked.
unsafe fn init_cpu(index: usize) {
    // SAFETY: the caller's claims; the image and the stacks are in the direct map.
    unsafe {
        registers::init(index);
        traps::init_cpu();
        paging::init_cpu();
        interrupts::init_cpu();
    }
    sched::init_cpu();
    cpu::set_started(index);
    registers::restore_interrupts(true);
}

/// Starts all other CPUs; returns how many run.
pub fn start_others(info: &Info) -> usize {
    // SAFETY: the trampoline's page is below 1 MB, which the kernel does not use otherwise.
    unsafe {
        let from = &raw const boot_trampoline;
        let length = (&raw const boot_trampoline_end).offset_from_unsigned(from);
        core::ptr::copy_nonoverlapping(from, memory::pointer::<u8>(TRAMPOLINE), length);
    }
    let me = cpu::this().hardware_id.load(Ordering::Relaxed);
    for &id in info.acpi.cpus().iter().filter(|&&id| u64::from(id) != me) {
        let index = cpu::count();
        if index == cpu::MAX {
            break;
        }
        let stack = alloc::vec![0u128; sched::STACK / 16].leak();
        // SAFETY: the other CPU reads the word once, and is not started yet.
        unsafe { &boot_other_stack }.store(stack.as_ptr_range().end as u64, Ordering::Release);
        // SAFETY: the trampoline is there, and the CPU has a stack.
        unsafe { interrupts::start(id, TRAMPOLINE) };
        if !registers::wait_for(cpu::START_LIMIT, || cpu::count() > index) {
            crate::report::event(&crate::report::Event::Failed {
                what: "cpu start",
                why: "no answer within two minutes, the last resort",
            });
            break;
        }
    }
    cpu::count()
}

/// The first Rust code of the other CPUs.
#[unsafe(no_mangle)]
extern "C" fn boot_other() -> ! {
    // SAFETY: CPUs are started one after the other, and the first waits until this one counts itself.
    unsafe { init_cpu(cpu::count()) };
    crate::idle()
}

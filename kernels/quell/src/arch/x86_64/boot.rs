//! The first CPU's entry, and the start of the other CPUs.
//!
//! The loader enters `boot_pvh` (named by an ELF note) or `boot_multiboot` (named by a header) in 32-bit mode, with the
//! address of its information. `boot.s` enables paging with the first gigabyte mapped twice, and calls [`boot_first`].

use super::{acpi, cpu as registers, interrupts, loader, paging, traps};
use crate::{cpu, memory};
use core::sync::atomic::{AtomicU64, Ordering};

core::arch::global_asm!(include_str!("boot.s"), options(att_syntax));

unsafe extern "C" {
    static kernel_start: u8;
    static kernel_end: u8;
    static boot_trampoline: u8;
    static boot_trampoline_end: u8;
    static boot_other_stack: AtomicU64;
}

/// The firmware's tables, read by the first CPU.
static TABLES: spin::Once<acpi::Tables> = spin::Once::new();

/// The first CPU's first Rust code. `info` is the physical address of the loader's information, and `magic` is its
/// format ([`loader::LoaderInfo::read`]).
#[unsafe(no_mangle)]
extern "C" fn boot_first(info: u64, magic: u32) -> ! {
    registers::init_early();
    super::console::init();
    // SAFETY: the loader put it there, in the first GB, which is mapped. Nothing below frees its memory.
    let passed = unsafe { loader::LoaderInfo::read(info, magic) };
    // Nothing may need the heap before this point. The boot tables map 1 GB; we map the rest below.
    // SAFETY: we only take the addresses of the linker's symbols.
    let image = memory::physical(&raw const kernel_start)..memory::physical(&raw const kernel_end);
    let free = passed.free_range(image);
    // SAFETY: usable memory without the image and the loader's information, in the first GB.
    unsafe { paging::map_all_memory(passed.memory_end(), free.start) };
    let free = free.start + paging::TABLES_BYTES..free.end;
    // SAFETY: usable memory, mapped now, without the image, the loader's information and the tables.
    unsafe { memory::init(free) };
    // SAFETY: these are the firmware's tables, reachable through the direct map.
    let acpi = TABLES.call_once(|| unsafe { acpi::Tables::read(passed.rsdp) });
    // SAFETY: this is the first CPU, on its boot tables.
    unsafe { init_cpu(0) };
    registers::calibrate(acpi.timer_port);
    interrupts::calibrate();
    crate::main(passed.boot)
}

/// Sets up the CPU this runs on as CPU `index`.
///
/// # Safety
/// No other CPU has that number, and this one runs on the boot tables, with interrupts masked.
unsafe fn init_cpu(index: usize) {
    // SAFETY: as the caller promises; the image and the stacks are in the direct map.
    unsafe {
        registers::init(index);
        traps::init_cpu();
        paging::init_cpu();
        interrupts::init_cpu();
    }
    cpu::set_started(index);
}

/// The first Rust code of the other CPUs.
#[unsafe(no_mangle)]
extern "C" fn boot_other() -> ! {
    // SAFETY: CPUs are started one after the other, and the first waits until this one counts itself.
    unsafe { init_cpu(cpu::count()) };
    crate::idle()
}

/// The address of the copied trampoline. Its page number is the vector of the start-up interrupt.
const TRAMPOLINE: u64 = 0x8000;

/// Starts all other CPUs, which the ACPI tables name.
pub fn start_others() {
    // SAFETY: the trampoline's page is below 1 MB, which the kernel doesn't use otherwise.
    unsafe {
        let from = &raw const boot_trampoline;
        let length = (&raw const boot_trampoline_end).offset_from_unsigned(from);
        core::ptr::copy_nonoverlapping(from, memory::pointer::<u8>(TRAMPOLINE), length);
    }
    let me = cpu::this().hardware_id.load(Ordering::Relaxed);
    let ids = TABLES.get().expect("read by the first CPU").cpus();
    for &id in ids.iter().filter(|&&id| u64::from(id) != me) {
        let started = cpu::start_next(|stack| {
            // SAFETY: the other CPU reads the word once, and hasn't started yet.
            unsafe { &boot_other_stack }.store(stack, Ordering::Release);
            // SAFETY: the trampoline is in place, and the CPU has a stack.
            unsafe { interrupts::start(id, TRAMPOLINE) };
            Ok(())
        });
        if !started {
            break;
        }
    }
}

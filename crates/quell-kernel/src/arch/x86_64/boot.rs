//! Boot by PVH, and the start of the other CPUs.
//!
//! The loader enters `boot_pvh` (named by an ELF note) in 32-bit mode with the address of the start
//! info; `boot.s` turns paging on with the first gigabyte mapped twice and calls [`boot_first`].
//! The other CPUs are those that the ACPI tables list; they are started one after the other.

use super::{acpi, cpu as registers, interrupts, paging, traps};
use crate::{console, cpu, memory, sched};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

core::arch::global_asm!(include_str!("boot.s"), options(att_syntax));

unsafe extern "C" {
    static boot_trampoline: u8;
    static boot_trampoline_end: u8;
    static boot_other_stack: AtomicU64;
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

/// `struct hvm_start_info` of the PVH boot protocol.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

/// `struct hvm_modlist_entry`.
#[repr(C)]
struct Module {
    start: u64,
    bytes: u64,
    command_line: u64,
    reserved: u64,
}

/// `struct hvm_memmap_table_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryRange {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;
const USABLE: u32 = 1;

/// The first CPU's first Rust code: `info` is the physical address of the start info.
#[unsafe(no_mangle)]
extern "C" fn boot_first(info: u64) -> ! {
    registers::init_early();
    // SAFETY: first and only call, on the first CPU, before anything else uses the serial line.
    console::init(unsafe { super::console::Serial::new() });
    // SAFETY: the loader put the start info there, in the first GB, which is mapped.
    let start = unsafe { &*memory::pointer::<StartInfo>(info) };
    assert!(
        start.magic == MAGIC && start.version >= 1,
        "not started by PVH with a memory map"
    );
    // SAFETY: the start info holds the address and the length of the memory map.
    let ranges = unsafe {
        core::slice::from_raw_parts(
            memory::pointer::<MemoryRange>(start.memory_map),
            start.memory_map_entries as usize,
        )
    };
    // SAFETY: the start info counts its modules, and they stay: nothing below frees their memory.
    let module = (start.modules > 0).then(|| unsafe {
        let module = &*memory::pointer::<Module>(start.module_list);
        module.start..module.start + module.bytes
    });
    let command_line = match start.command_line {
        0 => "",
        // SAFETY: a C string in memory that is never reused, because it lies outside the free range.
        address => unsafe { core::ffi::CStr::from_ptr(memory::pointer(address)) }
            .to_str()
            .expect("the command line is text"),
    };
    // Nothing may need the heap before here. The boot tables map 1 GB; the rest comes below.
    let free = free_range(ranges, info, module.as_ref());
    let usable = ranges.iter().filter(|range| range.kind == USABLE);
    let end = usable
        .map(|range| range.start + range.bytes)
        .max()
        .unwrap_or(0);
    paging::map_all_memory(end, free.start);
    let free = free.start + paging::TABLES_BYTES..free.end;
    // SAFETY: usable memory, mapped now, without the image, the module and the tables.
    unsafe { memory::init(free) };
    // SAFETY: the firmware's tables, reachable through the direct map.
    let acpi = unsafe { acpi::Tables::read(start.rsdp) };
    init_cpu(0);
    registers::calibrate(acpi.timer_port);
    crate::main(Info {
        command_line,
        module,
        acpi,
    })
}

/// The largest usable range without the kernel's image and what the loader passed, of those that
/// begin in the first GB: the boot tables map no more, and the other CPUs start on them.
fn free_range(ranges: &[MemoryRange], info: u64, module: Option<&Range<u64>>) -> Range<u64> {
    // SAFETY: only the address of the linker's symbol is taken.
    let image_end = memory::physical(&raw const kernel_end);
    let mut best = 0..0;
    for range in ranges
        .iter()
        .filter(|r| r.kind == USABLE && r.start < 1 << 30)
    {
        let start = range.start.max(image_end);
        let mut end = range.start + range.bytes;
        // The loader puts what it passes at the ends of memory.
        for at in [Some(info), module.map(|m| m.start)].into_iter().flatten() {
            if (start..end).contains(&at) {
                end = at;
            }
        }
        if end.saturating_sub(start) > best.end - best.start {
            best = start..end;
        }
    }
    best
}

/// Sets up the CPU this runs on as CPU `index`.
fn init_cpu(index: usize) {
    registers::init(index);
    traps::init_cpu();
    paging::init_cpu();
    interrupts::init_cpu();
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
        interrupts::start(id, TRAMPOLINE);
        if !registers::wait_for(1_000_000_000, || cpu::count() > index) {
            crate::report::event(&crate::report::Event::Failed {
                what: "cpu start",
                why: "no answer within a second",
            });
            break;
        }
    }
    cpu::count()
}

/// The first Rust code of the other CPUs.
#[unsafe(no_mangle)]
extern "C" fn boot_other() -> ! {
    init_cpu(cpu::count());
    crate::idle()
}

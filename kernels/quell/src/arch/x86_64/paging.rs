//! The kernel's own page tables, and the engine's operations on translations.

use super::cpu::processor;
use crate::{memory, tables};
use core::sync::atomic::{AtomicU64, Ordering};
use quell::{
    Entry, Features, Frame, Invalidation, Level, MemoryType, Page, Tag, Tagging, TlbRules,
};
use quell_arch::x86_64::{entry, tlb};
use x86_64::registers::control::{Cr4, Cr4Flags};

/// The bytes at the start of free memory that we reserve for the direct map. They contain a root, a table of pointers,
/// and, if there are no 1 GB pages, a directory for each GB up to 64.
pub const TABLES_BYTES: u64 = 66 * 4096;
const MAX_GB: u64 = 64;

static ROOT: AtomicU64 = AtomicU64::new(0);
/// Returns the kernel's own root, which has no user translations.
pub fn kernel_root() -> Frame {
    Frame::containing(ROOT.load(Ordering::Relaxed))
}

/// Builds and loads the direct map up to `end`. It covers at least 4 GB, for the devices. Its tables are in the memory
/// at `tables`, which the boot tables map. We make every entry of the root's upper half that we'll ever use, because
/// roots of address spaces copy them.
///
/// # Safety
/// [`TABLES_BYTES`] bytes from the next page at or above `tables` are unused memory in the first GB. The first CPU
/// calls this once.
pub unsafe fn map_all_memory(end: u64, tables: u64) {
    let tables = tables.next_multiple_of(4096);
    let gigabytes = end.div_ceil(1 << 30).max(4);
    assert!(gigabytes <= MAX_GB, "more than {MAX_GB} GB of physical addresses");
    let table = |index: u64| memory::pointer::<[u64; 512]>(tables + index * 4096);
    // SAFETY: the tables' memory is free, in the first GB, and large enough.
    unsafe { core::ptr::write_bytes(table(0).cast::<u8>(), 0, TABLES_BYTES as usize) };
    let huge = processor().huge_pages;
    let map = |frame, level, memory| {
        let leaf = Entry {
            present: true,
            frame,
            writable: true,
            executable: true,
            global: true,
            accessed: true,
            dirty: true,
            memory,
            ..Entry::ABSENT
        };
        entry::encode(leaf, level)
    };
    let table_entry = |address, level| {
        let table = Entry::table(Frame::containing(address));
        entry::encode(table, level)
    };
    for gb in 0..gigabytes {
        // The last GB below 4 GB contains the devices, and our machines have no memory there.
        let memory = if gb == 3 { entry::DEVICE } else { MemoryType::NORMAL };
        let raw = if huge {
            map(Frame(gb << 18), Level::HUGE, memory)
        } else {
            for large in 0..512 {
                let frame = Frame((gb << 18) + (large << 9));
                // SAFETY: this is a table in the memory zeroed above.
                unsafe { (*table(2 + gb))[large as usize] = map(frame, Level::LARGE, memory) };
            }
            table_entry(tables + (2 + gb) * 4096, Level::HUGE)
        };
        // SAFETY: this is a table in the memory zeroed above.
        unsafe { (*table(1))[gb as usize] = raw };
    }
    // SAFETY: the tables are in the memory zeroed above, and the new root maps at least the upper half of the boot
    // root. From here on, only atomics change the tables.
    unsafe {
        (*table(0))[256] = table_entry(tables + 4096, Level::ROOT);
        ROOT.store(tables, Ordering::Relaxed);
        tlb::load_cr3(tables);
        memory::open_tables(tables..tables + TABLES_BYTES);
    }
}

/// Copies the kernel's half to a new root. The top level of that half no longer changes in the kernel's own root.
///
/// # Panics
/// If the root isn't open memory.
pub fn prepare_root(root: Frame) {
    tables::copy_upper_half(kernel_root(), root);
}

/// Enables the features that the kernel uses on this CPU, and loads the kernel's root.
///
/// # Safety
/// This CPU runs on the boot tables, and uses none of their mappings except the direct map any more.
pub unsafe fn init_cpu() {
    // SAFETY: the kernel's root maps everything that the kernel uses. We turn PCIDE on while tag 0 is loaded.
    unsafe {
        tlb::load_cr3(kernel_root().address());
        let mut flags = Cr4Flags::PAGE_GLOBAL;
        if processor().pcid {
            flags |= Cr4Flags::PCID;
        }
        Cr4::update(|cr4| *cr4 |= flags);
    }
}

/// Returns the behaviour of TLBs that the engine may assume.
pub fn tlb_rules() -> TlbRules {
    entry::RULES
}

/// Returns the features that the engine may use.
pub fn engine_features() -> Features {
    let processor = processor();
    Features {
        // We need INVPCID to flush a tag that isn't loaded.
        tagging: if processor.pcid && processor.invpcid {
            Tagging::PerCpu { count: tlb::MAX_TAG }
        } else {
            Tagging::None
        },
        broadcast: false,
        full_above: 33,
    }
}

/// Returns the tag that is loaded on this CPU.
fn loaded_tag() -> u64 {
    // SAFETY: this only reads a register.
    unsafe { tlb::read_cr3() & 0xfff }
}

/// Invalidates on this CPU.
pub fn invalidate(what: Invalidation) {
    let pcid = engine_features().tagging != Tagging::None;
    // SAFETY: we're at level 0, and use INVPCID only if `engine_features` found it.
    unsafe {
        match what {
            Invalidation::Range { tag, range, .. } => {
                let pages = range.each().map(Page::address);
                if pcid && u64::from(tag.0) != loaded_tag() {
                    pages.for_each(|page| tlb::invpcid(tlb::Invpcid::Address, tag, page));
                } else {
                    pages.for_each(|page| tlb::invlpg(page));
                }
            }
            // This drops global entries, too.
            Invalidation::Kernel { range, .. } => {
                range.each().for_each(|page| tlb::invlpg(page.address()));
            }
            Invalidation::Everything if pcid => {
                tlb::invpcid(tlb::Invpcid::AllAndGlobal, Tag::KERNEL, 0)
            }
            Invalidation::Everything => tlb::flush_all_by_cr4(),
            Invalidation::Tag(tag) if pcid => tlb::invpcid(tlb::Invpcid::Tag, tag, 0),
            Invalidation::All if pcid => tlb::invpcid(tlb::Invpcid::All, Tag::KERNEL, 0),
            Invalidation::Tag(_) | Invalidation::All => tlb::load_cr3(tlb::read_cr3()),
        }
    }
}

/// Invalidates a page on this CPU if it's mapped globally.
pub fn invalidate_global(page: Page) {
    // SAFETY: we're at level 0.
    unsafe { tlb::invlpg(page.address()) };
}

/// Starts broadcast invalidations, and returns the number of instructions.
pub fn broadcast(what: Invalidation) -> u64 {
    let mut count = 0;
    let mut send = |request| {
        count += 1;
        // SAFETY: the engine broadcasts only if `engine_features` allows it.
        unsafe { tlb::invlpgb(request) }
    };
    match what {
        Invalidation::Range { tag, range, scope } => {
            tlb::Broadcast::range(tag, range, scope, processor().invlpgb_pages).for_each(send);
        }
        Invalidation::Tag(tag) => send(tlb::Broadcast::tag(tag)),
        Invalidation::All => send(tlb::Broadcast::ALL),
        Invalidation::Kernel { range, scope } => {
            tlb::Broadcast::kernel(range, scope, processor().invlpgb_pages).for_each(send);
        }
        Invalidation::Everything => send(tlb::Broadcast::ALL_AND_GLOBAL),
    }
    count
}

/// Waits for this CPU's broadcasts.
pub fn complete_broadcasts() {
    if processor().invlpgb {
        // SAFETY: the processor has the instruction.
        unsafe { tlb::tlbsync() }
    }
}

/// Loads the root of an address space.
///
/// # Safety
/// [`prepare_root`] gave the root the kernel's half, and all memory that its other half reaches is open memory.
pub unsafe fn load_root(root: Frame, tag: Tag, keep: bool) {
    let tagged = engine_features().tagging != Tagging::None;
    let value = if tagged { tlb::cr3(root, tag, keep) } else { tlb::cr3(root, Tag::KERNEL, false) };
    // SAFETY: as the caller promises, the kernel continues in the same memory.
    unsafe { tlb::load_cr3(value) }
}

/// Loads the kernel's own root. We drop the entries under its tag, which may be as old as the last time it was loaded.
pub fn unload_root() {
    // SAFETY: this is the kernel's own root, whose other half is empty.
    unsafe { load_root(kernel_root(), Tag::KERNEL, false) };
}

/// Ensures that no instruction fetched before is executed afterwards.
pub fn synchronize_text() {
    core::arch::x86_64::__cpuid(0);
}

/// Makes instructions that were written as data visible to fetches. On x86-64 the processor does so itself.
pub fn publish_instructions(_frame: Frame) {}

/// Returns whether the walker sets the accessed and dirty flags. On x86-64 it always does.
pub fn hardware_dirty() -> bool {
    true
}

//! The kernel's own page tables, and the engine's operations on translations.
//!
//! One root serves both halves, so each address space has the kernel's entries in its upper half. They are global, so a
//! flush by tag keeps them.

use super::cpu::processor;
use crate::{memory, tables};
use core::sync::atomic::{AtomicU64, Ordering};
use quell::{Entry, Features, Frame, Invalidation, Level, Page, Scope, Tag, Tagging, TlbRules};
use quell_arch::riscv64::{entry, tlb};

unsafe extern "C" {
    static boot_kernel_root: u8;
}

/// Returns the kernel's own root, which has no user translations.
pub fn kernel_root() -> Frame {
    // SAFETY: only the address of the symbol is taken.
    Frame::containing(memory::physical(&raw const boot_kernel_root))
}

/// Copies the kernel's half to a new root. The top level of that half no longer changes in the kernel's own root.
///
/// # Panics
/// If the root isn't open memory.
pub fn prepare_root(root: Frame) {
    tables::copy_upper_half(kernel_root(), root);
}

/// Leaves the boot tables, which map the lower half, too.
///
/// # Safety
/// This CPU runs in the upper half, and uses nothing in the lower half any more.
pub unsafe fn init_cpu() {
    // SAFETY: the kernel's root maps everything that the kernel uses.
    unsafe {
        tlb::load_satp(tlb::satp(kernel_root(), Tag::KERNEL));
        tlb::invalidate_all();
    }
}

/// Returns the features that the engine may use. Tags are per CPU, because the architecture lets CPUs differ.
pub fn engine_features() -> Features {
    Features {
        tagging: match processor().asid_bits {
            0 => Tagging::None,
            bits => Tagging::PerCpu { count: ((1u32 << bits) - 1) as u16 },
        },
        broadcast: false,
        // Linux uses the same number.
        full_above: 64,
    }
}

/// Returns the behaviour of TLBs that the engine may assume.
pub fn tlb_rules() -> TlbRules {
    entry::rules(processor().svvptc)
}

/// Returns the tag for the hardware, which is the kernel's if the hardware has no tags.
fn held(tag: Tag) -> Tag {
    match processor().asid_bits {
        0 => Tag::KERNEL,
        _ => tag,
    }
}

/// Invalidates on this CPU.
pub fn invalidate(what: Invalidation) {
    // SAFETY: we're in supervisor mode.
    unsafe {
        match what {
            Invalidation::Range { tag, range, scope } => {
                tlb::operations(range, scope).for_each(|one| tlb::invalidate(one, held(tag)));
            }
            Invalidation::Tag(tag) => tlb::invalidate(tlb::Operation::Tag, held(tag)),
            Invalidation::Kernel { range, scope: Scope::Leaf } => {
                range.each().for_each(|page| tlb::invalidate_page(page.address()));
            }
            // No operation with an address drops the walker's cached tables.
            Invalidation::All | Invalidation::Kernel { .. } => tlb::invalidate_all(),
            Invalidation::Everything => {
                tlb::fence();
                tlb::invalidate_all();
            }
        }
    }
}

/// Invalidates a page on this CPU if it's mapped globally, and under all tags.
pub fn invalidate_global(page: Page) {
    // SAFETY: we're in supervisor mode.
    unsafe { tlb::invalidate_page(page.address()) }
}

/// Starts broadcast invalidations.
///
/// # Panics
/// Always, because [`engine_features`] reports none.
pub fn broadcast(what: Invalidation) -> u64 {
    panic!("this architecture cannot broadcast {what:?}");
}

/// Waits for this CPU's broadcasts. There are none.
pub fn complete_broadcasts() {}

/// Loads the root of an address space.
///
/// # Safety
/// [`prepare_root`] gave the root the kernel's half, and all memory that its other half reaches is open memory.
pub unsafe fn load_root(root: Frame, tag: Tag, keep: bool) {
    // SAFETY: as the caller promises, the kernel continues in the same memory.
    unsafe {
        tlb::load_satp(tlb::satp(root, held(tag)));
        // We invalidate after the load, to drop entries filled from the old root until then.
        if !keep || processor().asid_bits == 0 {
            tlb::invalidate(tlb::Operation::Tag, held(tag));
        }
    }
}

/// Loads the kernel's own root. We drop the entries under its tag, which may be as old as the last time it was loaded.
pub fn unload_root() {
    // SAFETY: this is the kernel's own root, whose other half is empty.
    unsafe { load_root(kernel_root(), Tag::KERNEL, false) };
}

/// Ensures that no instruction fetched before is executed afterwards.
pub fn synchronize_text() {
    tlb::fence_instructions();
}

/// Makes instructions that were written as data visible to fetches of all CPUs.
///
/// # Panics
/// If the firmware refuses.
pub fn publish_instructions(_frame: Frame) {
    tlb::fence_devices();
    tlb::fence_instructions();
    // CPUs that haven't started execute a fence when they start (`boot.rs`).
    if crate::cpu::count() > 1 {
        let fenced = sbi_rt::remote_fence_i(sbi_rt::HartMask::all());
        assert!(fenced.is_ok(), "the firmware fences no instructions: {fenced:?}");
    }
}

/// Returns whether the walker sets the accessed and dirty flags. It may do so even if the device tree doesn't mention
/// it.
pub fn hardware_dirty() -> bool {
    processor().svadu
}

/// Returns the loaded root's translation of an address. Returns `None` if there is none, or if the address isn't valid
/// in Sv48. Another CPU may change the translation at any time.
///
/// Call this with interrupts masked, so that no table on the path is freed meanwhile: a CPU that frees one waits until
/// this CPU has flushed.
///
/// # Panics
/// If a table isn't open memory.
pub fn translation(address: u64) -> Option<Entry> {
    // Bits 63 to 47 are the same.
    if (address as i64) << 16 >> 16 != address as i64 {
        return None;
    }
    // SAFETY: we're in supervisor mode.
    let mut table = Frame(unsafe { tlb::read_satp() } & tlb::ROOT);
    for level in (0..=Level::ROOT.0).rev().map(Level) {
        let word: &AtomicU64 = &memory::words(table)[level.index(Page::containing(address))];
        let found = entry::decode(word.load(Ordering::Acquire), level);
        if !found.table || !found.present {
            return found.present.then_some(found);
        }
        table = found.frame;
    }
    None
}

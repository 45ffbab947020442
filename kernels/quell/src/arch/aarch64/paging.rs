//! The kernel's own page tables, and the engine's operations on translations.
//!
//! The upper half is the kernel's (TTBR1), the lower user mode's (TTBR0). An address space is a root for TTBR0 alone,
//! so a new root needs no kernel entries.

use super::cpu::processor;
use crate::{cpu, memory};
use aarch64_cpu::registers::{ReadWriteable, TCR_EL1};
use core::arch::asm;
use quell::{Features, Frame, Invalidation, Page, PageRange, Scope, Tag, Tagging, TlbRules};
use quell_arch::aarch64::{entry, tlb};

/// The root that TTBR0 contains when no address space is loaded: an empty table.
static EMPTY: spin::Once<Frame> = spin::Once::new();

/// Returns the kernel's own root.
pub fn kernel_root() -> Frame {
    let root: u64;
    // SAFETY: reading a register.
    unsafe { asm!("mrs {}, ttbr1_el1", out(reg) root, options(nomem, nostack, preserves_flags)) };
    Frame::containing(root & entry::ADDRESS)
}

/// Fills the kernel's half of a new root, which has none on this architecture.
pub fn prepare_root(_root: Frame) {}

/// Enables the features that the kernel uses, and unloads the boot tables' lower half.
///
/// # Safety
/// This CPU runs in the upper half, and uses nothing in the lower half any more.
pub unsafe fn init_cpu() {
    let empty = *EMPTY.call_once(memory::take_frame);
    // SAFETY: the kernel runs in the upper half, and nothing uses the lower half from here on.
    unsafe {
        tlb::load_ttbr0(tlb::ttbr0(empty, Tag::KERNEL));
        if processor().asid_bits == 16 {
            TCR_EL1.modify(TCR_EL1::AS::ASID16Bits);
        }
        if processor().hardware_access {
            TCR_EL1.modify(TCR_EL1::HA::Enable);
        }
        if processor().hardware_dirty {
            TCR_EL1.modify(TCR_EL1::HD::Enable);
        }
        asm!("isb", options(nostack, preserves_flags));
        tlb::tlbi_all(false);
    }
    tlb::complete_local();
}

/// Returns the behaviour of TLBs that the engine may assume.
pub fn tlb_rules() -> TlbRules {
    entry::RULES
}

/// Returns the features that the engine may use.
pub fn engine_features() -> Features {
    Features {
        tagging: Tagging::Global { bits: processor().asid_bits },
        broadcast: true,
        full_above: 512,
    }
}

/// Issues the instructions for `what`, and returns their number. They aren't complete yet.
fn issue(what: Invalidation, broadcast: bool) -> u64 {
    tlb::publish_tables();
    let with = tlb::Operands {
        range: processor().range,
        level_hint: processor().level_hint,
        wide_addresses: false,
    };
    let mut count = 0;
    // SAFETY: we're at level 1, and use range operations only if the processor has them.
    unsafe {
        match what {
            Invalidation::Kernel { range, scope } => {
                for operation in tlb::operations(Tag::KERNEL, range, scope, with) {
                    tlb::tlbi_any_tag(operation, scope, broadcast);
                    count += 1;
                }
            }
            Invalidation::Range { tag, range, scope } => {
                for operation in tlb::operations(tag, range, scope, with) {
                    tlb::tlbi(operation, scope, broadcast);
                    count += 1;
                }
            }
            Invalidation::Tag(tag) => {
                tlb::tlbi_tag(tag, broadcast);
                count = 1;
            }
            // This drops global entries, too.
            Invalidation::All | Invalidation::Everything => {
                tlb::tlbi_all(broadcast);
                count = 1;
            }
        }
    }
    count
}

/// Ensures that no instruction fetched before is executed afterwards.
pub fn synchronize_text() {
    // SAFETY: a barrier.
    unsafe { tlb::isb() }
}

/// Invalidates on this CPU.
pub fn invalidate(what: Invalidation) {
    if what == Invalidation::Everything {
        tlb::fence();
    }
    issue(what, false);
    tlb::complete_local();
}

/// Invalidates a page on this CPU if it's mapped globally.
pub fn invalidate_global(page: Page) {
    // An invalidation by address drops global entries under any tag.
    invalidate(Invalidation::Range {
        tag: Tag::KERNEL,
        range: PageRange::base(page, 1),
        scope: Scope::Leaf,
    });
}

/// Starts broadcast invalidations, and returns the number of instructions.
pub fn broadcast(what: Invalidation) -> u64 {
    issue(what, true)
}

/// Waits for this CPU's broadcasts.
pub fn complete_broadcasts() {
    tlb::complete();
}

/// Loads the root of an address space.
///
/// # Safety
/// All memory that the root reaches is open memory.
pub unsafe fn load_root(root: Frame, tag: Tag, keep: bool) {
    if !keep {
        // Entries under this tag may be in use, but user mode isn't running.
        issue(Invalidation::Tag(tag), false);
        tlb::complete_local();
    }
    tlb::publish_tables();
    // SAFETY: the kernel runs in the upper half.
    unsafe { tlb::load_ttbr0(tlb::ttbr0(root, tag)) };
    if !keep {
        // Entries filled from the old root in between must not stay either.
        issue(Invalidation::Tag(tag), false);
        tlb::complete_local();
    }
}

/// Loads the empty table.
pub fn unload_root() {
    let empty = *EMPTY.get().expect("made when the first CPU started");
    // SAFETY: the kernel runs in the upper half.
    unsafe { tlb::load_ttbr0(tlb::ttbr0(empty, Tag::KERNEL)) };
    debug_assert!(cpu::this().loaded.load(core::sync::atomic::Ordering::Relaxed) == 0);
}

/// Makes instructions that were written as data visible to fetches of all CPUs.
pub fn publish_instructions(frame: Frame) {
    let start = memory::pointer::<u8>(frame.address()) as usize;
    // No AArch64 processor has smaller lines than this.
    for line in (start..start + 4096).step_by(16) {
        // SAFETY: this cleans the line of mapped memory to the point that instruction fetches use.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: this drops instructions that were fetched before.
    unsafe { asm!("dsb ish", "ic ialluis", "dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// Returns whether the walker sets the accessed and dirty flags.
pub fn hardware_dirty() -> bool {
    processor().hardware_dirty
}

//! The kernel's own page tables, for the user program and for tests.

use crate::{arch, memory};
use core::sync::atomic::{AtomicU64, Ordering};
use quell::{Entry, Frame, KernelEntries, Level, Page};
use quell_arch::native::entry;

/// Returns the word that maps `address` with the size of `level`. Makes the missing tables above it.
///
/// # Panics
/// If the root, or a table below it, isn't open memory, or if a larger page maps the address.
fn word(root: Frame, address: u64, level: Level) -> &'static AtomicU64 {
    let page = Page::containing(address);
    let mut table = root;
    for above in (level.0 + 1..=Level::ROOT.0).rev().map(Level) {
        let word = &memory::words(table)[above.index(page)];
        let found = entry::decode(word.load(Ordering::Acquire), above);
        assert!(found.table || !found.present, "{address:#x} is mapped by a larger page");
        table = found.frame;
        if !found.present {
            table = memory::take_frame();
            word.store(entry::encode(Entry::table(table), above), Ordering::Release);
        }
    }
    &memory::words(table)[level.index(page)]
}

/// Copies a root's upper half. It does so if the root serves both halves and the upper one is the kernel's.
///
/// # Panics
/// If one of the roots isn't open memory.
#[cfg(not(target_arch = "aarch64"))]
pub fn copy_upper_half(from: Frame, to: Frame) {
    let words = memory::words(from).iter().zip(memory::words(to));
    for (from, to) in words.skip(256) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Maps these gigabytes of memory in the direct map, which the boot tables don't map.
///
/// # Safety
/// There is memory, or nothing, at these addresses. `root` is that of the boot tables, with the table of 1 GB pages
/// behind it, and only atomics change both from here on. The first CPU calls this once.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn extend_direct_map(root: Frame, gigabytes: core::ops::Range<u64>) {
    let tables = root.address();
    // SAFETY: as the caller promises.
    unsafe { memory::open_tables(tables..tables + 2 * 4096) };
    for gb in gigabytes {
        let leaf = Entry {
            present: true,
            frame: Frame(gb << 18),
            writable: true,
            global: true,
            accessed: true,
            dirty: true,
            ..Entry::ABSENT
        };
        // SAFETY: this is the address of that memory in the direct map.
        unsafe { map_kernel(root, arch::DIRECT_MAP + (gb << 30), leaf, Level::HUGE) };
    }
}

/// Maps an unmapped page of the size of `level`.
///
/// We need no flush. On AArch64 a barrier publishes the store to the walkers. On RISC-V, a CPU that cached the absent
/// entry faults and drops it.
///
/// # Safety
/// The address is in the kernel's half, and nothing else is or will be there. Code that may access the leaf's frames by
/// its rights may store there.
///
/// # Panics
/// If something is mapped at the address.
pub unsafe fn map_kernel(root: Frame, address: u64, leaf: Entry, level: Level) {
    let word = word(root, address, level);
    let before = word.swap(entry::encode(leaf, level), Ordering::AcqRel);
    assert!(before == 0, "{address:#x} is mapped already");
    quell_arch::native::tlb::fence();
}

/// Returns the entry that maps a frame for user mode.
pub fn leaf(frame: Frame, writable: bool) -> Entry {
    Entry {
        present: true,
        frame,
        writable,
        user: true,
        accessed: true,
        dirty: writable,
        ..Entry::ABSENT
    }
}

/// Writes the entry of a base page of user mode's half, without invalidation. This is safe because a program reaches
/// only open memory through it.
///
/// # Panics
/// If the page isn't in user mode's half, the root or the leaf's frame isn't open memory, or the leaf covers more than
/// its frame.
pub fn set(root: Frame, page: Page, leaf: Option<Entry>) {
    assert!(page.address() < arch::USER_HALF, "{page:?} is not in user mode's half");
    store(root, page, leaf);
}

/// Writes the entry of a base page, which may refer only to open memory.
fn store(root: Frame, page: Page, leaf: Option<Entry>) {
    let to = leaf.map_or(0, |leaf| {
        // This panics if the frame isn't open.
        memory::words(leaf.frame);
        assert!(leaf.present && !leaf.table && !leaf.contiguous, "a base page");
        entry::encode(leaf, Level::LEAF)
    });
    word(root, page.address(), Level::LEAF).store(to, Ordering::SeqCst);
}

/// The first page of the kernel's half that tests map. It's behind the direct map, and every root shares the tables
/// above it.
pub const TEST_PAGE: Page = Page::containing(arch::DIRECT_MAP + (100 << 30));
/// The number of these pages.
const TEST_PAGES: u64 = 2;

/// Checks that a word at the address is in these pages.
///
/// # Panics
/// If it isn't.
pub fn assert_is_own(address: u64) {
    assert!(is_own(address) && address.is_multiple_of(8), "{address:#x} is not there for tests");
}

/// Returns whether an address is in these pages.
pub fn is_own(address: u64) -> bool {
    Page::containing(address).0.wrapping_sub(TEST_PAGE.0) < TEST_PAGES
}

/// Maps a test page of the kernel's half to a frame, read-only and perhaps globally, without invalidation. This is safe
/// because any code reaches only open memory through it.
///
/// # Panics
/// If the page isn't a test page, or the frame isn't open memory.
pub fn set_own(page: Page, to: Option<(Frame, KernelEntries)>) {
    assert_is_own(page.address());
    let leaf = to.map(|(frame, entries)| Entry {
        present: true,
        frame,
        global: entries == KernelEntries::Global,
        accessed: true,
        ..Entry::ABSENT
    });
    store(arch::paging::kernel_root(), page, leaf);
}

/// Removes the lowest table above a page of user mode's half from its parent. Returns the table's frame.
///
/// # Panics
/// If the page isn't in user mode's half, or if there is no table.
pub fn unlink(root: Frame, page: Page) -> Frame {
    assert!(page.address() < arch::USER_HALF, "{page:?} is not in user mode's half");
    let word = word(root, page.address(), Level::LARGE).swap(0, Ordering::SeqCst);
    let found = entry::decode(word, Level::LARGE);
    assert!(found.table, "no table above {page:?}: {found:?}");
    found.frame
}

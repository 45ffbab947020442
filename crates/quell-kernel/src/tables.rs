//! Page tables made by the kernel itself: for the user program, and for the tests.

use crate::{arch, memory};
use core::sync::atomic::{AtomicU64, Ordering};
use quell::{Frame, Page};
use quell_arch::entry::{Entry, Leaf, index, level_of};
use quell_arch::native::entry;

/// The word that maps `address` with the size of `level`, making tables on the way.
///
/// # Panics
/// If the root, or a table below it, is not open memory, or a larger page maps the address.
fn word(root: Frame, address: u64, level: u8) -> &'static AtomicU64 {
    let mut table = root;
    for above in (level + 1..4).rev() {
        let word = &memory::words(table)[index(address, above)];
        table = match entry::decode(word.load(Ordering::Acquire), above) {
            Entry::Table(next) => next,
            Entry::Absent(_) => {
                let next = memory::take_frame();
                word.store(entry::table(next), Ordering::Release);
                next
            }
            Entry::Leaf(_) => panic!("{address:#x} is mapped by a larger page"),
        };
    }
    &memory::words(table)[index(address, level)]
}

/// Maps a page that was not mapped. No flush is needed for that on x86-64; on AArch64 the store is
/// published to the walkers by a barrier.
///
/// # Safety
/// The address is in the kernel's half, where nothing else is or will be; whoever may access the leaf's
/// frames by its rights may store there.
///
/// # Panics
/// If something is mapped there.
pub unsafe fn map_kernel(root: Frame, address: u64, leaf: Leaf) {
    let word = word(root, address, level_of(leaf.size));
    let before = word.swap(entry::leaf(leaf), Ordering::AcqRel);
    assert!(before == 0, "{address:#x} is mapped already");
    quell_arch::native::tlb::fence();
}

/// Writes the entry of a base page of user mode's half. It invalidates nothing. Safe because all that it
/// lets anybody reach is open memory.
///
/// # Panics
/// If the page is not in user mode's half, or the root or the leaf's frame is not open memory.
pub fn set(root: Frame, page: Page, leaf: Option<Leaf>) {
    assert!(
        page.address() < arch::USER_HALF,
        "{page:?} is not in user mode's half"
    );
    let to = leaf.map_or(0, |leaf| {
        // Panics if it is not open.
        memory::words(leaf.frame);
        assert!(level_of(leaf.size) == 0, "a base page");
        entry::leaf(leaf)
    });
    word(root, page.address(), 0).store(to, Ordering::SeqCst);
}

/// Takes the lowest table above a page of user mode's half out of its parent; returns its frame.
///
/// # Panics
/// If the page is not in user mode's half, or there is no table.
pub fn unlink(root: Frame, page: Page) -> Frame {
    assert!(
        page.address() < arch::USER_HALF,
        "{page:?} is not in user mode's half"
    );
    let word = word(root, page.address(), 1).swap(0, Ordering::SeqCst);
    match entry::decode(word, 1) {
        Entry::Table(table) => table,
        other => panic!("no table above {page:?}: {other:?}"),
    }
}

//! Page tables made by the kernel itself: for the user program, and for the self-test.

use crate::memory;
use core::sync::atomic::{AtomicU64, Ordering};
use quell::Frame;
use quell_arch::entry::{Entry, Leaf, index, level_of};
use quell_arch::native::entry;

/// The words of a table.
pub fn words(table: Frame) -> &'static [AtomicU64; 512] {
    // SAFETY: every frame is in the direct map and stays there; the words are atomics, so that
    // walkers and other CPUs may change them.
    unsafe { &*memory::pointer(table.address()) }
}

/// The word that maps `address` with the size of `level`, making tables on the way.
pub fn word(root: Frame, address: u64, level: u8) -> &'static AtomicU64 {
    let mut table = root;
    for above in (level + 1..4).rev() {
        let word = &words(table)[index(address, above)];
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
    &words(table)[index(address, level)]
}

/// Maps a page that was not mapped. No flush is needed for that on x86-64; on AArch64 the caller
/// publishes the store to the walkers with a barrier.
///
/// # Panics
/// If something is mapped there.
pub fn map(root: Frame, address: u64, leaf: Leaf) {
    let word = word(root, address, level_of(leaf.size));
    let before = word.swap(entry::leaf(leaf), Ordering::AcqRel);
    assert!(before == 0, "{address:#x} is mapped already");
    quell_arch::native::tlb::fence();
}

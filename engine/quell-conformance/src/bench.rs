//! The operations that a kernel adds to its [`Hardware`] for the suite: writing table entries and accessing memory,
//! which the engine never does.

use quell::{Extent, Frame, Hardware, KernelEntries, Page};
use quell_zero::Clear;

/// The rights of a program to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// Provides memory, table entries and accesses, which the suite needs besides [`Hardware`].
///
/// Every method may be called on every CPU at any time.
///
/// # Safety
/// [`Bench::take_frames`] gives memory that nothing else uses, [`Bench::new_root`] gives a root of the machine's
/// format that maps the kernel as every root does, and the accesses of words reach these frames alone.
pub unsafe trait Bench: Hardware + Clear {
    /// Returns the number of CPUs that will run the suite. Their numbers begin at 0.
    fn cpus(&self) -> usize;

    /// Allocates physically contiguous frames that nothing else uses until they are given back.
    fn take_frames(&self, frames: u64) -> Extent;

    /// Takes back the frames of one [`Bench::take_frames`]. By default it does nothing, and they are lost.
    fn give_back(&self, frames: Extent) {
        let _ = frames;
    }

    /// Creates a root table that maps nothing of the suite.
    fn new_root(&self) -> Frame;

    /// Takes back a root or an unlinked table, with the tables below. No walker reads them any more. By default it does
    /// nothing, and they are lost.
    fn free_tables(&self, top: Frame) {
        let _ = top;
    }

    /// Writes the entry of a base page, and makes missing tables above it. Invalidates nothing; a plain atomic store is
    /// enough.
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>);

    /// Unlinks the lowest table above a page, which exists, and returns its frame.
    fn unlink_table(&self, root: Frame, page: Page) -> Frame;

    /// Returns where the suite may map two pages in the kernel's half: the root of that half, and the first of the two
    /// pages, whose tables every root shares. By default `None`, and the suite doesn't check kernel mappings.
    fn own_half(&self) -> Option<(Frame, Page)> {
        None
    }

    /// Writes the entry of a page of [`Bench::own_half`]: read-only, global or not. Invalidates nothing.
    ///
    /// # Panics
    /// By default: a bench with such pages must implement it.
    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let _ = to;
        panic!("own_half names {page:?}, so implement set_own");
    }

    /// Loads eight bytes as the kernel from a page of [`Bench::own_half`], whatever root is loaded. `None` if the load
    /// faults.
    fn try_read_own(&self, address: u64) -> Option<u64> {
        self.try_read(address)
    }

    /// Returns whether a device also walks the tables of the suite's spaces and can be made to load through them. It
    /// must then drop changed translations as CPUs do. By default false, and the suite doesn't check devices.
    fn has_device(&self) -> bool {
        false
    }

    /// Makes the device load eight bytes through this root. `None` if the load faults. The device may keep the
    /// translation for this root.
    ///
    /// # Panics
    /// By default: a bench with a device must implement it.
    fn try_read_by_device(&self, root: Frame, address: u64) -> Option<u64> {
        let _ = (root, address);
        panic!("has_device is true, so implement try_read_by_device");
    }

    /// Makes the device stop using this root, whose space is about to be retired. By default it does nothing.
    fn detach_device(&self, root: Frame) {
        let _ = root;
    }

    /// Reads a word of a frame without using the translations under test.
    fn word(&self, frame: Frame, index: usize) -> u64;

    /// Writes a word of a frame without using the translations under test.
    fn set_word(&self, frame: Frame, index: usize, value: u64);

    /// Loads eight bytes through the loaded root. `None` if the load faults.
    fn try_read(&self, address: u64) -> Option<u64>;

    /// Stores eight bytes through the loaded root. `false` if the store faults.
    fn try_write(&self, address: u64, value: u64) -> bool;
}

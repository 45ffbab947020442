//! What a kernel adds to its [`Hardware`] so that the suite can run on it: writing table entries and
//! touching memory, which the engine never does.

use quell::{Extent, Frame, Hardware, KernelEntries, Page};
use quell_zero::Clear;

/// What a program may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// What the suite needs besides [`Hardware`]: memory, table entries, and accesses.
///
/// Every method may be called on every CPU at any time.
///
/// # Safety
/// [`Bench::take_frames`] gives memory that nothing else uses, [`Bench::new_root`] gives a root of the machine's
/// format that maps the kernel as every root does, and the accesses of words reach these frames alone.
pub unsafe trait Bench: Hardware + Clear {
    /// How many CPUs will run the suite, those numbered from 0.
    fn cpus(&self) -> usize;

    /// Physically contiguous frames that nothing else uses until they are given back.
    fn take_frames(&self, frames: u64) -> Extent;

    /// Takes back the frames of one [`Bench::take_frames`]. By default nothing happens, and they are lost.
    fn give_back(&self, frames: Extent) {
        let _ = frames;
    }

    /// An empty root table: nothing of the suite's is mapped in it.
    fn new_root(&self) -> Frame;

    /// Takes back a root, or a table that was unlinked, with the tables below: no walker reads them any
    /// more. By default nothing happens, and they are lost.
    fn free_tables(&self, top: Frame) {
        let _ = top;
    }

    /// Writes the entry of a base page, making the tables above it where they are missing. It
    /// invalidates nothing; a plain atomic store is enough.
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>);

    /// Takes the lowest table above a page, which exists, out of its parent; returns its frame.
    fn unlink_table(&self, root: Frame, page: Page) -> Frame;

    /// Where the suite may map two pages in the kernel's own half: the root of that half, and the first of the two,
    /// whose tables every root shares. By default nowhere: then nothing is said of the kernel's own mappings.
    fn own_half(&self) -> Option<(Frame, Page)> {
        None
    }

    /// Writes the entry of a page of [`Bench::own_half`]: read-only, global or not. It invalidates nothing.
    ///
    /// # Panics
    /// By default: a bench that has such pages says how their entries are written.
    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let _ = to;
        panic!("own_half names {page:?}, and set_own does not write its entry");
    }

    /// One load of eight bytes by the kernel from a page of [`Bench::own_half`], whatever root is loaded; `None` if it
    /// faults.
    fn try_read_own(&self, address: u64) -> Option<u64> {
        self.try_read(address)
    }

    /// Whether a device walks the tables of the suite's spaces, too, and can be made to load from there: then it must
    /// forget what changed, as CPUs do. By default there is none, and nothing is said of devices.
    fn has_device(&self) -> bool {
        false
    }

    /// One load of eight bytes by the device, through this root; `None` if it faults. Under the root it may keep what
    /// it finds.
    ///
    /// # Panics
    /// By default: a bench that has a device says how it loads.
    fn try_read_by_device(&self, root: Frame, address: u64) -> Option<u64> {
        let _ = (root, address);
        panic!(
            "has_device says that there is a device, and try_read_by_device does not make it load"
        );
    }

    /// The device uses this root no more: its space is about to end. By default nothing happens.
    fn detach_device(&self, root: Frame) {
        let _ = root;
    }

    /// Reads a word of a frame, not through the translations under test.
    fn word(&self, frame: Frame, index: usize) -> u64;

    /// Writes a word of a frame, not through the translations under test.
    fn set_word(&self, frame: Frame, index: usize, value: u64);

    /// One load of eight bytes through the loaded root; `None` if it faults.
    fn try_read(&self, address: u64) -> Option<u64>;

    /// One store of eight bytes through the loaded root; `false` if it faults.
    fn try_write(&self, address: u64, value: u64) -> bool;
}

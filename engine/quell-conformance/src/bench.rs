//! Defines the operations that a kernel adds to its [`Hardware`] for the suite.
//!
//! They write table entries and access memory, which the engine never does.

use quell::{Extent, Frame, Hardware, KernelEntries, Page};
use quell_zero::PhysicalMemory;

/// A program's rights to a page.
///
/// # Examples
///
/// ```
/// use quell::{Entry, Frame};
/// use quell_conformance::Rights;
/// /// The entry that a kernel's `Bench::set` encodes and writes.
/// fn entry(frame: Frame, rights: Rights) -> Entry {
///     let stores = rights == Rights::Write;
///     Entry { present: true, frame, writable: stores, dirty: stores, accessed: true, ..Entry::ABSENT }
/// }
/// assert!(entry(Frame(42), Rights::Write).writable);
/// assert!(!entry(Frame(42), Rights::Read).writable);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Loads are allowed.
    Read,
    /// Loads and stores are allowed.
    Write,
}

/// Provides the memory, table entries and accesses that the suite needs besides [`Hardware`].
///
/// Every method may be called on every CPU at any time.
///
/// # Examples
///
/// The crate's test `tests/toy/machine.rs` implements the trait. This check uses it:
///
/// ```
/// use quell::{Frame, Page};
/// use quell_conformance::{Bench, Rights};
/// /// Returns whether a program could read the word that the bench wrote. `root` is loaded.
/// fn is_readable<B: Bench>(bench: &B, root: Frame, page: Page) -> bool {
///     let frame = bench.take_frames(1).first;
///     bench.set_word(frame, 0, 42);
///     bench.set(root, page, Some((frame, Rights::Read)));
///     bench.try_read(page.address()) == Some(42)
/// }
/// ```
///
/// # Safety
/// [`Bench::take_frames`] returns memory that nothing else uses. [`Bench::new_root`] returns a root of the machine's
/// format that maps the kernel as every root does. The methods that access words reach only these frames.
pub unsafe trait Bench: Hardware + PhysicalMemory {
    /// Returns the number of CPUs that will run the suite, numbered from 0.
    fn cpus(&self) -> usize;

    /// Allocates physically contiguous frames that nothing else uses until [`Bench::give_back`].
    fn take_frames(&self, frames: u64) -> Extent;

    /// Frees the frames of one [`Bench::take_frames`].
    ///
    /// By default it does nothing, and the frames are lost.
    fn give_back(&self, frames: Extent) {
        let _ = frames;
    }

    /// Creates a root table that maps no page of the suite.
    fn new_root(&self) -> Frame;

    /// Frees a root or an unlinked table, with the tables below it.
    ///
    /// No walker reads them any more. By default it does nothing, and the tables are lost.
    fn free_tables(&self, top: Frame) {
        let _ = top;
    }

    /// Writes the entry of a base page, and makes missing tables above it.
    ///
    /// It invalidates nothing, so a plain atomic store is enough.
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>);

    /// Unlinks the lowest table above a page, and returns its frame.
    ///
    /// The suite calls it only if there is such a table.
    fn unlink_table(&self, root: Frame, page: Page) -> Frame;

    /// Returns two adjacent pages of the kernel's half that the suite may map.
    ///
    /// The result is the root of that half and the first page. All roots must share the tables above these pages. By
    /// default it returns `None`, and kernel mappings aren't checked.
    fn own_half(&self) -> Option<(Frame, Page)> {
        None
    }

    /// Writes the entry of a page of [`Bench::own_half`].
    ///
    /// The entry is read-only, and global or not as requested. Invalidates nothing.
    ///
    /// # Panics
    /// By default, because a bench with such pages must implement it.
    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let _ = to;
        panic!("own_half names {page:?}, so implement set_own");
    }

    /// Loads eight bytes as the kernel from a page of [`Bench::own_half`], under any root.
    ///
    /// Returns `None` if the load faults.
    fn try_read_own(&self, address: u64) -> Option<u64> {
        self.try_read(address)
    }

    /// Returns whether a device also walks the tables of the suite's spaces and can load through them.
    ///
    /// The machine must drop changed translations of the device as it does for CPUs. By default it returns `false`, and
    /// devices aren't checked.
    fn has_device(&self) -> bool {
        false
    }

    /// Makes the device load eight bytes through this root.
    ///
    /// Returns `None` if the load faults. The device may keep the translation for this root.
    ///
    /// # Panics
    /// By default, because a bench with a device must implement it.
    fn try_read_by_device(&self, root: Frame, address: u64) -> Option<u64> {
        let _ = (root, address);
        panic!("has_device is true, so implement try_read_by_device");
    }

    /// Makes the device stop using this root, whose space is about to be retired.
    ///
    /// By default it does nothing.
    fn detach_device(&self, root: Frame) {
        let _ = root;
    }

    /// Reads a word of a frame without using the translations under test.
    fn word(&self, frame: Frame, index: usize) -> u64;

    /// Writes a word of a frame without using the translations under test.
    fn set_word(&self, frame: Frame, index: usize, value: u64);

    /// Loads eight bytes through the loaded root, or returns `None` if the load faults.
    fn try_read(&self, address: u64) -> Option<u64>;

    /// Stores eight bytes through the loaded root, or returns `false` if the store faults.
    fn try_write(&self, address: u64, value: u64) -> bool;
}

//! The conformance suite on ostd with quell, only in the kernel that runs it.
//!
//! Tables are written word by word in the suite's own frames. Of ostd's page tables, only the kernel's half takes
//! part. Accesses use the copies that recover from faults.

use core::{
    ops::Range,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use quell::{Extent, Frame, KernelEntries, Page};
pub use quell_conformance::Check;
use quell_conformance::{Bench, Rights, Suite};
use quell_zero::{PhysicalMemory, Strategy};
use spin::Once;

use super::{
    CachePolicy, FrameAllocOptions, PAGE_SIZE, Paddr, PageFlags, PageProperty,
    frame::segment::Segment,
    kspace::{KERNEL_PAGE_TABLE, kvirt_area::KVirtArea},
    paddr_to_vaddr,
    page_prop::PrivilegedPageFlags,
    tlb::{Cpus, engine},
};
use crate::{arch::mm::__memcpy_fallible, cpu::num_cpus};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const GLOBAL: u64 = 1 << 8;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const ENTRIES: usize = 512;
/// The entries of a root that map programs; those behind them are the kernel's.
const OF_USERS: usize = 256;
/// The pages of the kernel's own half that the suite may map.
const OWN_PAGES: usize = 2;

static SUITE: Once<Suite<'static, 'static, Cpus>> = Once::new();
static OWN: Once<Page> = Once::new();

/// Runs the suite on this CPU, as every CPU must. The first CPU passes each check's result to `report`.
pub fn run(report: impl FnMut(Check)) {
    SUITE.call_once(|| Suite::new(engine())).run(None, report);
}

fn words(table: Frame) -> &'static [AtomicU64; ENTRIES] {
    let address = paddr_to_vaddr(table.address() as Paddr);
    // SAFETY: the kernel maps all of memory there, and the suite names its own tables and frames, or the kernel's
    // tables, which are never freed.
    unsafe { &*(address as *const [AtomicU64; ENTRIES]) }
}

/// The word that points to the table below, or maps the page, in the table of this level.
fn entry(table: Frame, page: Page, level: u32) -> &'static AtomicU64 {
    &words(table)[page.0 as usize >> (9 * level) & (ENTRIES - 1)]
}

fn below(word: u64) -> Frame {
    Frame::containing(word & ADDRESS)
}

/// The table of the lowest level above a page, made if it is missing.
fn leaf_table(root: Frame, page: Page) -> Frame {
    (1..4).rev().fold(root, |table, level| {
        let entry = entry(table, page, level);
        let word = entry.load(Acquire);
        if word & PRESENT != 0 {
            return below(word);
        }
        let made = Cpus.take_frames(1);
        // SAFETY: the frame was just taken, and nobody knows it yet.
        unsafe { Cpus.zero(made, Strategy::Stores) };
        let link = made.first.address() | PRESENT | WRITABLE | USER;
        match entry.compare_exchange(word, link, AcqRel, Acquire) {
            Ok(_) => made.first,
            Err(other) => {
                Cpus.give_back(made);
                below(other)
            }
        }
    })
}

fn physical(frames: Extent) -> Range<Paddr> {
    let start = frames.first.address() as Paddr;
    start..start + frames.frames as usize * PAGE_SIZE
}

impl PhysicalMemory for Cpus {
    unsafe fn zero(&self, extent: Extent, _: Strategy) {
        for frame in 0..extent.frames {
            for word in words(extent.first.plus(frame)) {
                word.store(0, Relaxed);
            }
        }
    }
}

// SAFETY: frames come from the allocator and are the suite's until they are given back; a root maps the kernel as the
// kernel's own does.
unsafe impl Bench for Cpus {
    fn cpus(&self) -> usize {
        num_cpus()
    }

    fn take_frames(&self, frames: u64) -> Extent {
        let segment = FrameAllocOptions::new().alloc_segment(frames as usize);
        let taken = segment.expect("memory for the suite").into_raw();
        Extent {
            first: Frame::containing(taken.start as u64),
            frames,
        }
    }

    fn give_back(&self, frames: Extent) {
        // SAFETY: they were a segment's, which was taken apart in `take_frames`, and no code uses them any more.
        drop(unsafe { Segment::<()>::from_raw(physical(frames)) });
    }

    fn new_root(&self) -> Frame {
        let root = self.take_frames(1);
        // SAFETY: the frame was just taken, and nobody knows it yet.
        unsafe { self.zero(root, Strategy::Stores) };
        let (kernel, _) = self.own_half().expect("the kernel's own root");
        for index in OF_USERS..ENTRIES {
            let word = words(kernel)[index].load(Acquire);
            words(root.first)[index].store(word, Release);
        }
        root.first
    }

    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
        let word = to.map_or(0, |(frame, rights)| {
            let writable = if rights == Rights::Write { WRITABLE } else { 0 };
            frame.address() | PRESENT | USER | writable
        });
        entry(leaf_table(root, page), page, 0).store(word, Release);
    }

    fn unlink_table(&self, root: Frame, page: Page) -> Frame {
        let parent = (2..4).rev().fold(root, |table, level| {
            below(entry(table, page, level).load(Acquire))
        });
        below(entry(parent, page, 1).swap(0, AcqRel))
    }

    fn own_half(&self) -> Option<(Frame, Page)> {
        let kernel = KERNEL_PAGE_TABLE.get().expect("a kernel page table");
        let first = OWN.call_once(|| {
            let frames = (0..OWN_PAGES).map(|_| {
                let frame = FrameAllocOptions::new().alloc_frame();
                frame.expect("memory for the suite")
            });
            let property = PageProperty {
                flags: PageFlags::R,
                cache: CachePolicy::Writeback,
                priv_flags: PrivilegedPageFlags::empty(),
            };
            let area = KVirtArea::map_frames(OWN_PAGES * PAGE_SIZE, 0, frames, property);
            let first = Page::containing(area.range().start as u64);
            // The suite keeps these addresses for ever, for its own mappings.
            core::mem::forget(area);
            first
        });
        Some((Frame::containing(kernel.root_paddr() as u64), *first))
    }

    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let (kernel, _) = self.own_half().expect("the kernel's own root");
        let word = to.map_or(0, |(frame, entries)| {
            let global = if entries == KernelEntries::Global {
                GLOBAL
            } else {
                0
            };
            frame.address() | PRESENT | global
        });
        entry(leaf_table(kernel, page), page, 0).store(word, Release);
    }

    fn word(&self, frame: Frame, index: usize) -> u64 {
        words(frame)[index].load(Acquire)
    }

    fn set_word(&self, frame: Frame, index: usize, value: u64) {
        words(frame)[index].store(value, Release);
    }

    fn try_read(&self, address: u64) -> Option<u64> {
        let mut value = 0u64;
        // SAFETY: the copy returns how much of it faulted; the memory is the suite's, and words.
        let left = unsafe { __memcpy_fallible((&raw mut value).cast(), address as *const u8, 8) };
        (left == 0).then_some(value)
    }

    fn try_write(&self, address: u64, value: u64) -> bool {
        // SAFETY: the copy returns how much of it faulted; the memory is the suite's, and words.
        let left = unsafe { __memcpy_fallible(address as *mut u8, (&raw const value).cast(), 8) };
        left == 0
    }
}

//! Detects translations that a tag carries from one address space to another, which no emulator shows.
//!
//! QEMU drops a CPU's translations when another tag is loaded. So with an engine that lends a tag to a new owner
//! without a flush (C5), programs still read correct data there. A processor may keep the entries. So the kernel
//! records, for each CPU and tag, the root whose translations may be cached under the tag: the last one loaded, until
//! the tag is flushed. Loading a root under another's tag and keeping its entries is a violation.
//!
//! The audit sees only the engine's calls of [`quell::Hardware`]. It ignores tags from [`TAGS`] up, and does not
//! distinguish a root table that was freed and reused for a new space under the same tag.

use crate::cpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use quell::{Frame, Tag};

/// How many tags are watched, from 0.
pub const TAGS: usize = 64;

static WATCHES: AtomicBool = AtomicBool::new(false);
/// The root whose entries may be under a tag on a CPU; 0 for none.
static HELD: [[AtomicU64; TAGS]; cpu::MAX] =
    [const { [const { AtomicU64::new(0) }; TAGS] }; cpu::MAX];
/// The tag that is loaded on a CPU, and one more; 0 for none.
static CURRENT: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];
static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
/// CPU and tag of the last violation.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Watches from now on. Without it each call costs a load.
pub fn start() {
    WATCHES.store(true, Relaxed);
}

/// How many violations there were, and CPU and tag of the last.
pub fn violations() -> (u64, usize, u16) {
    let last = LAST.load(Relaxed);
    (VIOLATIONS.load(Relaxed), (last >> 16) as usize, last as u16)
}

/// This CPU loads a root under a tag.
#[inline]
pub fn loaded(root: Frame, tag: Tag, keep: bool) {
    if !WATCHES.load(Relaxed) {
        return;
    }
    let me = crate::arch::cpu::index();
    CURRENT[me].store(u64::from(tag.0) + 1, Relaxed);
    if usize::from(tag.0) < TAGS {
        let before = HELD[me][usize::from(tag.0)].swap(root.address(), Relaxed);
        if keep && before != 0 && before != root.address() {
            LAST.store((me as u64) << 16 | u64::from(tag.0), Relaxed);
            VIOLATIONS.fetch_add(1, Relaxed);
        }
    }
}

/// This CPU leaves its root: nothing fills a tag any more.
#[inline]
pub fn unloaded() {
    if WATCHES.load(Relaxed) {
        CURRENT[crate::arch::cpu::index()].store(0, Relaxed);
    }
}

/// A tag was flushed, or all were: on this CPU, or everywhere.
#[inline]
pub fn flushed(tag: Option<Tag>, everywhere: bool) {
    if !WATCHES.load(Relaxed) {
        return;
    }
    let me = crate::arch::cpu::index();
    let cpus = if everywhere {
        0..cpu::count()
    } else {
        me..me + 1
    };
    for index in cpus {
        // The loaded root fills its tag again at once.
        let current = CURRENT[index].load(Relaxed);
        let forget = |tag: usize| {
            if current != tag as u64 + 1 {
                HELD[index][tag].store(0, Relaxed);
            }
        };
        match tag {
            Some(tag) if usize::from(tag.0) < TAGS => forget(tag.0.into()),
            Some(_) => {}
            None => (0..TAGS).for_each(forget),
        }
    }
}

//! Detects translations that a tag carries from one address space to another. No emulator shows these.
//!
//! QEMU drops a CPU's translations when it loads another tag. So even if an engine lends a tag to a new owner without a
//! flush (C5), programs read correct data there. A processor may keep the entries, though. So the kernel records, for
//! each CPU and tag, the root whose translations may be cached under the tag. That is the last root loaded, until the
//! tag is flushed. A CPU commits a violation if it loads a root under another root's tag and keeps the entries.
//!
//! The audit sees only the engine's calls of [`quell::Hardware`]. It ignores tags from [`TAGS`] up. It also can't
//! detect that a root table was freed and reused for a new space under the same tag.

use crate::cpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use quell::{Frame, Tag};

/// The number of tags that we watch, from 0.
pub const TAGS: usize = 64;

static WATCHES: AtomicBool = AtomicBool::new(false);
/// The root whose entries may be under a tag on a CPU, or 0 if there is none.
static HELD: [[AtomicU64; TAGS]; cpu::MAX] =
    [const { [const { AtomicU64::new(0) }; TAGS] }; cpu::MAX];
/// The tag that is loaded on a CPU, plus one, or 0 if there is none.
static CURRENT: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];
static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
/// The CPU and the tag of the last violation.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Starts to watch. Until then, each call costs only a load.
pub fn start() {
    WATCHES.store(true, Relaxed);
}

/// Returns the number of violations, and the CPU and the tag of the last one.
pub fn violations() -> (u64, usize, u16) {
    let last = LAST.load(Relaxed);
    (VIOLATIONS.load(Relaxed), (last >> 16) as usize, last as u16)
}

/// Records that this CPU loads a root under a tag.
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

/// Records that this CPU leaves its root, so nothing fills a tag any more.
#[inline]
pub fn unloaded() {
    if WATCHES.load(Relaxed) {
        CURRENT[crate::arch::cpu::index()].store(0, Relaxed);
    }
}

/// Records that a tag, or every tag, was flushed on this CPU or everywhere.
#[inline]
pub fn flushed(tag: Option<Tag>, everywhere: bool) {
    if !WATCHES.load(Relaxed) {
        return;
    }
    let me = crate::arch::cpu::index();
    let cpus = if everywhere { 0..cpu::count() } else { me..me + 1 };
    for index in cpus {
        // The loaded root may fill its tag again at once.
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

//! Measures the cost of filling memory on this host, just before a recording.
//!
//! A program that gives memory back and uses it again pays for page faults, and for the zeroing in them. A recording
//! only counts faults, because timing each would cost as much as the fault itself. So we fill and give back memory of
//! our own, and read this process's CPU time. The lower bound is a program's best case: the same few pages, and no
//! other thread. The upper bound is a busy program: a large area on every CPU at once, so that CPUs share locks, and the
//! pages come from memory and not from caches.

use std::ptr::null_mut;
use std::thread::{self, Builder};

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

use super::host::timed;
use super::running::EVENT_NS;
use crate::figures::Range;
use crate::perf::sample::Prices;

/// The smallest page size of all supported machines.
const PAGE: usize = 4096;
/// The pages of a small area, and of one that exceeds a core's part of the caches.
const FEW: usize = 16;
const MANY: usize = 4096;
/// The largest number of threads. More would take longer and hardly change the result.
const THREADS: usize = 8;

/// Measures the costs in about 10 ms. Returns `None` if there is no memory for it.
pub(super) fn measure(cpus: usize) -> Option<Prices> {
    let least = Area::new(FEW)?.rounds(64, f64::min)?;
    let each = thread::scope(|scope| {
        let busy = |_| Builder::new().spawn_scoped(scope, || Area::new(MANY)?.rounds(2, f64::max));
        let threads = (0..cpus.clamp(1, THREADS)).map(busy);
        // Where the system refuses a thread, fewer measure.
        let threads: Vec<_> = threads.filter_map(Result::ok).collect();
        let ended = threads.into_iter().map(|thread| thread.join().ok()?);
        ended.collect::<Option<Vec<_>>>()
    })?;
    let range = |of: usize| {
        let least: f64 = least[of];
        Range { least, most: each.iter().map(|took| took[of]).fold(least, f64::max) }
    };
    Some(Prices { fault_ns: range(0), zero_ns: range(1), event_ns: EVENT_NS })
}

/// The number of flushes of [`flush_ns`].
pub(super) const FLUSHES: u32 = 2000;

/// Returns the CPU time of a flush of one page, in nanoseconds: the mean of many. `None` if there is no memory for it.
pub(super) fn flush_ns() -> Option<f64> {
    let area = Area::new(1)?;
    let both = MprotectFlags::READ | MprotectFlags::WRITE;
    let took = timed(|| {
        for _ in 0..FLUSHES / 2 {
            area.touch();
            for rights in [MprotectFlags::READ, both] {
                // SAFETY: the page is the mapping of `area`. It may be written again at the end, before anything does.
                let _ = unsafe { mprotect(area.start.cast(), PAGE, rights) };
            }
        }
    });
    Some(took / f64::from(FLUSHES))
}

/// Private anonymous memory in pages of the smallest size.
struct Area {
    start: *mut u8,
    pages: usize,
}

impl Area {
    fn new(pages: usize) -> Option<Area> {
        let (read, write) = (ProtFlags::READ, ProtFlags::WRITE);
        // SAFETY: the kernel chooses an address where nothing is.
        let start =
            unsafe { mmap_anonymous(null_mut(), pages * PAGE, read | write, MapFlags::PRIVATE) };
        let area = Area { start: start.ok()?.cast(), pages };
        // A kernel without huge pages refuses this advice, and doesn't need it.
        let _ = area.advise(Advice::LinuxNoHugepage);
        Some(area)
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is the mapping of `self`, to which there is no reference; discarded pages read as zeros,
        // which are bytes as good as any.
        unsafe { madvise(self.start.cast(), self.pages * PAGE, advice) }
    }

    /// Writes a word to each page.
    fn touch(&self) {
        for page in 0..self.pages {
            // SAFETY: within the mapping of `self`, which may be written and to which there is no reference.
            unsafe { self.start.add(page * PAGE).write_volatile(1) };
        }
    }

    /// Zeroes all pages, one after the other.
    fn zero(&self) {
        for page in 0..self.pages {
            // SAFETY: as in `touch`; the page lies in the mapping as a whole.
            unsafe { self.start.add(page * PAGE).write_bytes(0, PAGE) };
            std::hint::black_box(self.start);
        }
    }

    /// Fills and zeroes all pages several times, and chooses among the rounds.
    ///
    /// Returns the times for one page in nanoseconds: to fill it, and to zero it.
    fn rounds(&self, count: usize, choose: fn(f64, f64) -> f64) -> Option<[f64; 2]> {
        let mut chosen: Option<[f64; 2]> = None;
        for _ in 0..count {
            let [fault, zero] = [timed(|| self.touch()), timed(|| self.zero())]
                .map(|took| took / self.pages as f64);
            self.advise(Advice::LinuxDontNeed).ok()?;
            let [known_fault, known_zero] = chosen.unwrap_or([fault, zero]);
            chosen = Some([choose(known_fault, fault), choose(known_zero, zero)]);
        }
        chosen
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.cast(), self.pages * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_costs_more_than_nothing_and_a_range_is_one() {
        let memory = measure(2).unwrap();
        for Range { least, most } in [memory.fault_ns, memory.zero_ns] {
            assert!(0.0 < least && least <= most, "{memory:?}");
        }
    }
}

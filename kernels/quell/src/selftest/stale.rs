//! Tests that this machine shows stale translations until we flush them.

use super::{ADDRESS, Outcome, Space, check, marked, space};
use crate::machine::Kernel;
use crate::program::Puppet;
use crate::sched::on_every_cpu;
use crate::{accessors, arch, cpu, tables, trap, watchdog};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use quell::{
    Broadcast, CpuId, CpuSet, Entry, Hardware, Invalidation, KernelEntries, Page, PageRange, Scope,
    Tag,
};

/// The first words of a page's frames, before and after it is mapped elsewhere.
const OLD: u64 = 0xaaaa;
const NEW: u64 = 0xbbbb;

/// A barrier at which all CPUs wait for each other.
struct Barrier(AtomicUsize);

impl Barrier {
    /// Waits until every CPU has called this as often as this one.
    fn wait(&self) {
        let round = self.0.fetch_add(1, SeqCst) / cpu::count();
        while self.0.load(SeqCst) < (round + 1) * cpu::count() {
            watchdog::relax();
        }
        watchdog::progress();
    }
}

/// The invalidation of the page after we've mapped it elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    Nowhere,
    OnInitiator,
    EverywhereByInterrupt,
    EverywhereByBroadcast,
}

static FLUSHED: AtomicU64 = AtomicU64::new(0);

/// The invalidation of pages of user mode.
fn pages(count: u64) -> Invalidation {
    let range = PageRange::base(Page::containing(ADDRESS), count);
    Invalidation::Range { tag: Tag(1), range, scope: Scope::Leaf }
}

fn flush_page() {
    Kernel.invalidate(pages(1));
    FLUSHED.fetch_add(1, SeqCst);
}

/// Makes every CPU read a page, maps another frame there and flushes on CPU 0, and makes every CPU read again. Returns,
/// by CPU, whether the second read saw the new frame.
fn remap(flush: Flush) -> Result<Vec<bool>, String> {
    trap::set_on_shootdown(flush_page);
    let new = tables::leaf(marked(NEW), true);
    let space = space(OLD, true);
    let change = move || {
        space.set(Page::containing(ADDRESS), new);
        match flush {
            Flush::Nowhere => {}
            Flush::OnInitiator => Kernel.invalidate(pages(1)),
            Flush::EverywhereByInterrupt => {
                Kernel.invalidate(pages(1));
                FLUSHED.store(0, SeqCst);
                let mut others = CpuSet::first(cpu::count());
                others.remove(CpuId(0));
                Kernel.interrupt(&others);
                while FLUSHED.load(SeqCst) < cpu::count() as u64 - 1 {
                    Kernel.relax();
                }
            }
            Flush::EverywhereByBroadcast => {
                Kernel.start(pages(1));
                Kernel.complete();
            }
        }
    };
    let barrier = Barrier(AtomicUsize::new(0));
    let read = move |index| {
        let mut puppet = Puppet::new(index);
        let before = puppet.load(ADDRESS);
        barrier.wait();
        if index == 0 {
            change();
        }
        barrier.wait();
        let after = puppet.load(ADDRESS);
        barrier.wait();
        (before, after)
    };
    let reads = on_every_cpu(move |index| space.run(1, || read(index)));
    reads
        .into_iter()
        .enumerate()
        .map(|(index, reads)| match reads {
            (Ok(OLD), Ok(OLD)) => Ok(false),
            (Ok(OLD), Ok(NEW)) => Ok(true),
            other => Err(format!("cpu {index} read {other:x?}")),
        })
        .collect()
}

pub fn stale_shows() -> Outcome {
    let fresh = remap(Flush::Nowhere)?;
    check(fresh.iter().all(|fresh| !fresh), || {
        format!("this machine hides stale translations; fresh without a flush: {fresh:?}")
    })?;
    let fresh = remap(Flush::OnInitiator)?;
    check(fresh[0], || String::from("the flush on the initiator did not reach it"))?;
    check(fresh[1..].iter().all(|fresh| !fresh), || {
        format!("this machine hides missing shootdowns; fresh: {fresh:?}")
    })?;
    Ok(format!("on {} CPUs", cpu::count()))
}

pub fn flush_works() -> Outcome {
    let fresh = remap(Flush::EverywhereByInterrupt)?;
    check(fresh.iter().all(|&fresh| fresh), || format!("by interrupt, fresh: {fresh:?}"))?;
    if !Kernel.features().broadcast {
        return Ok(String::from("by interrupt"));
    }
    let fresh = remap(Flush::EverywhereByBroadcast)?;
    check(fresh.iter().all(|&fresh| fresh), || format!("by broadcast, fresh: {fresh:?}"))?;
    Ok(String::from("by interrupt and by broadcast"))
}

/// Makes every CPU read a global page, load another space, and read again. The other space maps another frame there.
/// Processors may keep the global page when they load the space, but must not keep it after a flush.
pub fn global_pages() -> Outcome {
    let from = Space::new(Entry { global: true, ..tables::leaf(marked(OLD), true) });
    let to = space(NEW, true);
    let reads = on_every_cpu(move |index| {
        let mut puppet = Puppet::new(index);
        from.run(1, || {
            let before = puppet.load(ADDRESS);
            to.run(1, || {
                let kept = puppet.load(ADDRESS) == Ok(OLD);
                arch::paging::invalidate_global(Page::containing(ADDRESS));
                (before, kept, puppet.load(ADDRESS))
            })
        })
    });
    let kept = reads.iter().filter(|read| read.1).count();
    for (index, (before, _, after)) in reads.into_iter().enumerate() {
        check(before == Ok(OLD) && after == Ok(NEW), || {
            format!("cpu {index} read {before:x?}, after the flush {after:x?}")
        })?;
    }
    Ok(format!("{kept} of {} CPUs kept them across a load", cpu::count()))
}

/// Reads a range's pages, maps other frames there, and flushes the range in one piece. Does so for a range of a program
/// and for one of the kernel's own half. The flush must not leave out a page.
pub fn whole_ranges() -> Outcome {
    let first = Page::containing(ADDRESS);
    let space = space(OLD, true);
    let range = [0, 1, 2].map(|nth| first.plus(nth));
    let map = |value| {
        for page in range {
            space.set(page, tables::leaf(marked(value), true));
        }
    };
    map(OLD);
    let (before, after) = space.run(1, || {
        let mut puppet = Puppet::new(0);
        let mut read = || range.map(|page| puppet.load(page.address()).ok());
        let before = read();
        map(NEW);
        Kernel.invalidate(pages(range.len() as u64));
        (before, read())
    });
    check(before == [Some(OLD); 3] && after == [Some(NEW); 3], || {
        format!("a program's range: {before:x?}, after the flush {after:x?}")
    })?;

    let range = [0, 1].map(|nth| tables::TEST_PAGE.plus(nth));
    let map = |value: Option<u64>| {
        for page in range {
            let to = value.map(|value| (marked(value), KernelEntries::Global));
            tables::set_own(page, to);
        }
        Kernel.fence();
        Kernel.invalidate(Invalidation::Kernel {
            range: PageRange::base(range[0], range.len() as u64),
            scope: Scope::Leaf,
        });
    };
    let read = || range.map(|page| accessors::load_own(page.address()));
    map(Some(OLD));
    let before = read();
    map(Some(NEW));
    let after = read();
    map(None);
    check(before == [Some(OLD); 2] && after == [Some(NEW); 2], || {
        format!("the kernel's range: {before:x?}, after the flush {after:x?}")
    })?;
    Ok(String::from("of a program and of the kernel"))
}

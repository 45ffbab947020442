//! Tests that this machine shows stale translations until we flush them.

use super::bare::{ADDRESS, Barrier, Outcome, check, leaf, marked, space, space_of};
use crate::machine::Kernel;
use crate::program::Puppet;
use crate::sched::on_every_cpu;
use crate::{accessors, arch, cpu, sched, tables, trap};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use quell::{Broadcast, CpuId, CpuSet, Entry, Hardware, Invalidation, Page, PageRange, Scope, Tag};

/// The invalidation of the page after we've mapped it elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    Nowhere,
    OnInitiator,
    EverywhereByInterrupt,
    EverywhereByBroadcast,
}

static FLUSHED: AtomicU64 = AtomicU64::new(0);

fn page() -> Invalidation {
    let range = PageRange::base(Page::containing(ADDRESS), 1);
    Invalidation::Range { tag: Tag(1), range, scope: Scope::Leaf }
}

fn flush_page() {
    Kernel.invalidate(page());
    FLUSHED.fetch_add(1, SeqCst);
}

/// Makes every CPU read a page, maps another frame there and flushes on CPU 0, and makes every CPU read again. Returns,
/// by CPU, whether the second read saw the new frame.
fn remap(flush: Flush) -> Result<Vec<bool>, String> {
    const OLD: u64 = 0xaaaa;
    const NEW: u64 = 0xbbbb;
    trap::set_on_shootdown(flush_page);
    let new = marked(NEW);
    let root = space(marked(OLD), true);
    let barrier = Barrier::new();
    let reads = on_every_cpu(move |index| {
        // SAFETY: `tables::new_root` made the root above, and we don't free it before the thread has left it.
        unsafe { sched::enter_space(root, Tag(1)) };
        let mut puppet = Puppet::new(index);
        let before = puppet.load(ADDRESS);
        barrier.wait();
        if index == 0 {
            tables::set(root, Page::containing(ADDRESS), Some(leaf(new, true)));
            Kernel.fence();
            match flush {
                Flush::Nowhere => {}
                Flush::OnInitiator => Kernel.invalidate(page()),
                Flush::EverywhereByInterrupt => {
                    Kernel.invalidate(page());
                    FLUSHED.store(0, SeqCst);
                    let mut others = CpuSet::first(cpu::count());
                    others.remove(CpuId(0));
                    Kernel.interrupt(&others);
                    while FLUSHED.load(SeqCst) < cpu::count() as u64 - 1 {
                        Kernel.relax();
                    }
                }
                Flush::EverywhereByBroadcast => {
                    Kernel.start(page());
                    Kernel.complete();
                }
            }
        }
        barrier.wait();
        let after = puppet.load(ADDRESS);
        barrier.wait();
        sched::leave_space();
        (before, after)
    });
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
    const OLD: u64 = 0xaaaa;
    const NEW: u64 = 0xbbbb;
    let global = Entry { global: true, ..leaf(marked(OLD), true) };
    let from = space_of(global);
    let to = space(marked(NEW), true);
    let reads = on_every_cpu(move |index| {
        let mut puppet = Puppet::new(index);
        // SAFETY: `tables::new_root` made the root above, and we don't free it before the thread has left it.
        unsafe { sched::enter_space(from, Tag(1)) };
        let before = puppet.load(ADDRESS);
        // SAFETY: `tables::new_root` made the root above, and we don't free it before the thread has left it.
        unsafe { sched::enter_space(to, Tag(1)) };
        let kept = puppet.load(ADDRESS) == Ok(OLD);
        arch::paging::invalidate_global(Page::containing(ADDRESS));
        let after = puppet.load(ADDRESS);
        sched::leave_space();
        (before, kept, after)
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
    const OLD: u64 = 0xaaaa;
    const NEW: u64 = 0xbbbb;
    let first = Page::containing(ADDRESS);
    let root = space(marked(OLD), true);
    let pages = [0, 1, 2].map(|nth| first.plus(nth));
    for page in &pages[1..] {
        tables::set(root, *page, Some(leaf(marked(OLD), true)));
    }
    Kernel.fence();
    // SAFETY: `tables::new_root` made the root above, and we don't free it before the thread has left it.
    unsafe { sched::enter_space(root, Tag(1)) };
    let mut puppet = Puppet::new(0);
    let mut read = || pages.map(|page| puppet.load(page.address()).ok());
    let before = read();
    for page in pages {
        tables::set(root, page, Some(leaf(marked(NEW), true)));
    }
    Kernel.fence();
    Kernel.invalidate(Invalidation::Range {
        tag: Tag(1),
        range: PageRange::base(first, pages.len() as u64),
        scope: Scope::Leaf,
    });
    let after = read();
    sched::leave_space();
    check(before == [Some(OLD); 3] && after == [Some(NEW); 3], || {
        format!("a program's range: {before:x?}, after the flush {after:x?}")
    })?;

    let pages = [0, 1].map(|nth| tables::TEST_PAGE.plus(nth));
    let map = |value: Option<u64>| {
        for page in pages {
            let leaf = value.map(|value| Entry {
                present: true,
                frame: marked(value),
                global: true,
                accessed: true,
                ..Entry::ABSENT
            });
            tables::set_own(arch::paging::kernel_root(), page, leaf);
        }
        Kernel.fence();
    };
    let flush = || {
        Kernel.invalidate(Invalidation::Kernel {
            range: PageRange::base(pages[0], pages.len() as u64),
            scope: Scope::Leaf,
        });
    };
    let read = || pages.map(|page| accessors::load_own(page.address()));
    map(Some(OLD));
    flush();
    let before = read();
    map(Some(NEW));
    flush();
    let after = read();
    map(None);
    flush();
    check(before == [Some(OLD); 2] && after == [Some(NEW); 2], || {
        format!("the kernel's range: {before:x?}, after the flush {after:x?}")
    })?;
    Ok(String::from("of a program and of the kernel"))
}

//! Runs the conformance suite of `quell-conformance` on every CPU of this kernel, and supplies its requirements
//! besides [`quell::Hardware`].

use crate::platform::{PLATFORM, Platform};
use crate::{accessors, arch, cpu, machine, memory, sched, tables, trap};
use alloc::boxed::Box;
use core::sync::atomic::Ordering::SeqCst;
use quell::{Engine, Extent, Frame, Hardware, Invalidation, KernelEntries, Page};
use quell_conformance::{Bench, Check, Rights, Suite};

// SAFETY: the frames come from the kernel's allocator, and `machine::new_root` makes the roots. Words are accessed
// through the direct map, after a check that the frame is memory.
unsafe impl Bench for Platform {
    fn cpus(&self) -> usize {
        cpu::count()
    }

    fn take_frames(&self, frames: u64) -> Extent {
        memory::take_frames(frames)
    }

    fn new_root(&self) -> Frame {
        machine::new_root()
    }

    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
        let leaf = |(frame, rights)| tables::leaf(frame, rights == Rights::Write);
        tables::set(root, page, to.map(leaf));
    }

    fn unlink_table(&self, root: Frame, page: Page) -> Frame {
        tables::unlink(root, page)
    }

    fn own_half(&self) -> Option<(Frame, Page)> {
        Some((arch::paging::kernel_root(), tables::TEST_PAGE))
    }

    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        tables::set_own(page, to);
    }

    fn try_read_own(&self, address: u64) -> Option<u64> {
        accessors::load_own(address)
    }

    fn word(&self, frame: Frame, index: usize) -> u64 {
        memory::words(frame)[index].load(SeqCst)
    }

    fn set_word(&self, frame: Frame, index: usize, value: u64) {
        memory::words(frame)[index].store(value, SeqCst);
    }

    fn try_read(&self, address: u64) -> Option<u64> {
        accessors::load_user(address)
    }

    fn try_write(&self, address: u64, value: u64) -> bool {
        accessors::store_user(address, value)
    }
}

static ENGINE: spin::Once<Engine<'static, Platform>> = spin::Once::new();

/// Runs the suite on its own engine. No CPU of it is online afterwards, because another engine may lend the same tags.
pub fn run(engine: Engine<'static, Platform>, report: fn(Check)) {
    let engine = ENGINE.call_once(|| engine);
    trap::set_on_shootdown(|| {
        if let Some(engine) = ENGINE.get() {
            engine.this_cpu().mask_interrupts().on_interrupt();
        }
    });
    let suite: &'static Suite<'static, 'static, Platform> = Box::leak(Box::new(Suite::new(engine)));
    sched::on_every_cpu(move |_| {
        engine.cpu_online();
        suite.run(None, report);
        engine.cpu_offline(None);
        PLATFORM.invalidate(Invalidation::All);
    });
}

//! The address space under test, and the programs that read it.

use crate::{pinned, program};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use ostd::arch::cpu::context::{CpuException, UserContext};
use ostd::cpu::num_cpus;
use ostd::mm::{
    CachePolicy, FrameAllocOptions, PAGE_SIZE, PageFlags, PageProperty, UFrame, Vaddr, VmIo,
    VmSpace,
};
use ostd::task::{Task, disable_preempt};
use ostd::user::{ReturnReason, UserMode};

/// The address of the program.
pub const TEXT: Vaddr = 0x40_0000;
/// A page that stays mapped, which idle programs read. The pages under test follow it.
pub const STAYS: Vaddr = 0x1000_0000;
/// The first page under test.
const PAGES: Vaddr = STAYS + PAGE_SIZE;

/// How many pages each program reads.
static READ: AtomicUsize = AtomicUsize::new(1);
/// How many programs run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// The number of stale reads.
static STALE: AtomicUsize = AtomicUsize::new(0);

/// The state of the test.
pub struct World {
    /// The address space, loaded on every CPU.
    pub space: Arc<VmSpace>,
}

/// Returns the addresses of pages under test.
pub fn range(pages: usize) -> Range<Vaddr> {
    PAGES..PAGES + pages * PAGE_SIZE
}

/// Returns the properties of the pages that programs read and write.
pub fn property() -> PageProperty {
    PageProperty::new_user(PageFlags::RW, CachePolicy::Writeback)
}

/// Frames that hold zeros.
pub fn frames(count: usize) -> Vec<UFrame> {
    (0..count)
        .map(|_| UFrame::from(FrameAllocOptions::new().alloc_frame().expect("memory")))
        .collect()
}

/// Waits for this long.
pub fn pass(nanoseconds: u64) {
    let until = ostd::arch::read_tsc() + nanoseconds;
    while ostd::arch::read_tsc() < until {
        core::hint::spin_loop();
    }
}

impl World {
    /// Starts a program on each CPU but this one, and loads their space here too.
    pub fn start() -> Self {
        let space = Arc::new(VmSpace::new());
        let world = World { space };
        let text = frames(1);
        text[0].write_bytes(0, program::text()).expect("one page of text");
        let executable = PageProperty::new_user(PageFlags::RX, CachePolicy::Writeback);
        world.map_at(TEXT, &text, executable);
        world.map_at(STAYS, &frames(1), property());
        for cpu in 1..num_cpus() {
            pinned::spawn(cpu, Some(world.space.clone()), read);
        }
        while RUNNING.load(SeqCst) < num_cpus() - 1 {
            core::hint::spin_loop();
        }
        pass(5_000_000);
        world.space.activate();
        world
    }

    /// Maps frames from this address on.
    pub fn map_at(&self, start: Vaddr, frames: &[UFrame], property: PageProperty) {
        let guard = disable_preempt();
        let range = start..start + frames.len() * PAGE_SIZE;
        let mut cursor = self.space.cursor_mut(&guard, &range).expect("a range");
        for frame in frames {
            cursor.map(frame.clone(), property);
        }
    }

    /// Maps pages under test, from the first on.
    pub fn map(&self, frames: &[UFrame]) {
        self.map_at(PAGES, frames, property());
    }

    /// Unmaps this many of them. The caller completes the flush.
    pub fn unmap(&self, pages: usize) {
        let guard = disable_preempt();
        let mut cursor = self.space.cursor_mut(&guard, &range(pages)).expect("a range");
        cursor.unmap(pages * PAGE_SIZE);
        cursor.flusher().sync_tlb_flush();
    }

    /// Makes the programs read this many pages under test, besides the one that stays.
    pub fn read(&self, pages: usize) {
        READ.store(1 + pages, SeqCst);
        // Each program notices with its CPU's next interrupt.
        pass(3_000_000);
    }

    /// Returns the number of stale reads since the last call.
    #[cfg(not(feature = "calls"))]
    pub fn stale(&self) -> usize {
        STALE.swap(0, SeqCst)
    }
}

fn read() {
    let mut context = UserContext::default();
    context.set_rip(TEXT);
    context.set_r12(STAYS);
    context.set_r13(program::TAKEN as usize);
    let mut user = UserMode::new(context);
    RUNNING.fetch_add(1, SeqCst);
    loop {
        let pages = READ.load(SeqCst);
        user.context_mut().set_r14(pages);
        match user.execute(|| READ.load(SeqCst) != pages) {
            // ostd frees frames when each CPU has switched to another task.
            ReturnReason::KernelEvent if cfg!(feature = "calls") => Task::yield_now(),
            ReturnReason::KernelEvent => {}
            ReturnReason::UserSyscall => {
                STALE.fetch_add(1, SeqCst);
            }
            ReturnReason::UserException => {
                let context = user.context_mut();
                match context.take_exception() {
                    Some(CpuException::PageFault(fault)) if fault.addr >= STAYS => {
                        let next = context.rip() + program::LOAD_LENGTH;
                        context.set_rip(next);
                        context.set_rax(0);
                    }
                    other => panic!("a program ended with {:?} at {:x}", other, context.rip()),
                }
            }
        }
    }
}

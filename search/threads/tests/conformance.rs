//! Runs the conformance suite on threads: its checks under the host's memory ordering, including that of the kernel's
//! half, and proof that this check finds mutants of the engine.
//!
//! This is the code that a kernel adds to its machine for the suite. Tables have one level, so unlinking a table clears
//! a single entry (we test C6 elsewhere); memory is words.

use crate::turn;
use quell::{
    CpuId, CpuSet, Engine, Extent, Features, Frame, Hardware, Invalidation, KernelEntries,
    LedgerEntry, Page, PerCpuData, Policy, Tag, Tagging,
};
use quell_conformance::{Bench, Check, Rights, Suite};
use quell_mutants::Mutant;
use quell_threads::Threads;
use quell_threads::tables::{FIRST_KERNEL_PAGE, GLOBAL, PAGES, PRESENT};
use quell_zero::{PhysicalMemory, Strategy};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};

const CPUS: usize = 3;
const FRAMES: usize = 64;
const WRITABLE: u64 = 2;
const FRAME_SHIFT: u32 = 3;

const PCID: Tagging = Tagging::PerCpu { count: 4 };
const ASID: Tagging = Tagging::Global { bits: 3 };

struct Kernel {
    hw: Threads<true>,
    memory: Vec<[AtomicU64; 512]>,
    next_frame: AtomicUsize,
    next_root: AtomicUsize,
    handler: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Kernel {
    fn new(tagging: Tagging, mutant: Option<&'static Mutant>) -> &'static Kernel {
        let features = Features {
            tagging,
            broadcast: matches!(tagging, Tagging::Global { .. }),
            // So a range that is flushed whole still fits into a table.
            full_above: 3,
        };
        Box::leak(Box::new(Kernel {
            hw: Threads::new(CPUS, 2, features)
                .with_kernel(true)
                .sharing_lines_from(CPUS - 1)
                .with_mutant(mutant),
            memory: (0..FRAMES).map(|_| [const { AtomicU64::new(0) }; 512]).collect(),
            next_frame: AtomicUsize::new(0),
            next_root: AtomicUsize::new(0),
            handler: OnceLock::new(),
        }))
    }

    /// Takes a pending interrupt before a step of the kernel.
    fn poll(&self) {
        self.hw.progress();
        if self.hw.interrupt_pending() {
            self.handler.get().expect("set before the CPUs run")();
        }
    }

    fn frame(&self, frame: u64) -> &[AtomicU64; 512] {
        &self.memory[frame as usize]
    }

    /// Returns the word to which a translation maps an address.
    fn at(&self, entry: u64, address: u64) -> &AtomicU64 {
        &self.frame(entry >> FRAME_SHIFT)[address as usize % 4096 / 8]
    }
}

fn number(page: Page) -> u32 {
    page.0.try_into().expect("a page that the machine has")
}

// SAFETY: each call is passed on to the machine.
unsafe impl Hardware for Kernel {
    type Word = AtomicU64;
    type Broadcasts = Threads<true>;

    fn broadcasts(&self) -> Option<&Threads<true>> {
        self.hw.broadcasts()
    }
    fn this_cpu(&self) -> CpuId {
        self.hw.this_cpu()
    }
    fn features(&self) -> Features {
        self.hw.features()
    }
    fn shares_lines_from(&self) -> usize {
        self.hw.shares_lines_from()
    }
    fn fence(&self) {
        self.hw.fence();
    }
    fn invalidate(&self, what: Invalidation) {
        self.hw.invalidate(what);
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        // SAFETY: the caller promises the same.
        unsafe { self.hw.load_root(root, tag, keep) };
    }
    fn unload_root(&self) {
        self.hw.unload_root();
    }
    fn interrupt(&self, targets: &CpuSet) {
        self.hw.interrupt(targets);
    }
    fn mask_interrupts(&self) -> bool {
        self.hw.mask_interrupts()
    }
    fn restore_interrupts(&self, were_on: bool) {
        self.hw.restore_interrupts(were_on);
    }
    fn relax(&self) {
        self.hw.relax();
        if self.hw.interrupt_pending() {
            self.handler.get().expect("set before the CPUs run")();
        }
    }
}

impl PhysicalMemory for Kernel {
    unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
        let frames = extent.first.0..extent.first.0 + extent.frames;
        frames.flat_map(|frame| self.frame(frame)).for_each(|word| word.store(0, SeqCst));
    }
}

// SAFETY: frames are the machine's own words, and roots are its tables.
unsafe impl Bench for Kernel {
    fn cpus(&self) -> usize {
        CPUS
    }
    fn take_frames(&self, frames: u64) -> Extent {
        let first = self.next_frame.fetch_add(frames as usize, SeqCst) as u64;
        Extent { first: Frame(first), frames }
    }
    fn new_root(&self) -> Frame {
        Frame(self.next_root.fetch_add(1, SeqCst) as u64)
    }
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
        let entry = to.map_or(0, |(frame, rights)| {
            let writable = u64::from(rights == Rights::Write) * WRITABLE;
            frame.0 << FRAME_SHIFT | writable | PRESENT
        });
        self.hw.table(root.0 as usize)[page.0 as usize % PAGES].store(entry, SeqCst);
    }
    fn unlink_table(&self, root: Frame, page: Page) -> Frame {
        self.set(root, page, None);
        self.take_frames(1).first
    }
    fn own_half(&self) -> Option<(Frame, Page)> {
        Some((Frame(0), Page(FIRST_KERNEL_PAGE.into())))
    }
    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let entry = to.map_or(0, |(frame, entries)| {
            let global = u64::from(entries == KernelEntries::Global) * GLOBAL;
            frame.0 << FRAME_SHIFT | global | PRESENT
        });
        let index = number(page) - FIRST_KERNEL_PAGE;
        self.hw.kernel_table()[index as usize].store(entry, SeqCst);
    }
    fn try_read_own(&self, address: u64) -> Option<u64> {
        self.poll();
        let page = number(Page::containing(address));
        self.hw.access(page, |held| self.at(held.entry, address).load(SeqCst))
    }
    fn word(&self, frame: Frame, index: usize) -> u64 {
        self.frame(frame.0)[index].load(SeqCst)
    }
    fn set_word(&self, frame: Frame, index: usize, value: u64) {
        self.frame(frame.0)[index].store(value, SeqCst);
    }
    fn try_read(&self, address: u64) -> Option<u64> {
        self.poll();
        let page = number(Page::containing(address));
        self.hw.access(page, |held| self.at(held.entry, address).load(SeqCst))
    }
    fn try_write(&self, address: u64, value: u64) -> bool {
        self.poll();
        let page = number(Page::containing(address));
        let wrote = self.hw.access(page, |held| {
            let allowed = held.entry & WRITABLE != 0;
            if allowed {
                self.at(held.entry, address).store(value, SeqCst);
            }
            allowed
        });
        wrote == Some(true)
    }
}

/// Runs the suite on an engine that may make a mistake.
fn run(tagging: Tagging, policy: Policy, mutant: Option<&'static Mutant>) -> Vec<Check> {
    let _turn = turn();
    let kernel = Kernel::new(tagging, mutant);
    let cpus: &'static [PerCpuData<'_, Kernel>] =
        Box::leak(Box::new([(); CPUS].map(|()| PerCpuData::new())));
    let ledger: &'static [LedgerEntry<Kernel>] =
        Box::leak(Box::new([(); 8].map(|()| LedgerEntry::new())));
    let engine = Engine::new(kernel, cpus, ledger, policy);
    let engine: &'static _ = Box::leak(Box::new(engine.expect("such a machine")));
    let _ = kernel.handler.set(Box::new(|| engine.this_cpu().mask_interrupts().on_interrupt()));
    let suite = Suite::new(engine);
    let checks = Mutex::new(Vec::new());
    let results = kernel.hw.run(|_| {
        engine.cpu_online();
        suite.run(None, |check| checks.lock().unwrap().push(check));
    });
    for result in results {
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    checks.into_inner().unwrap()
}

const OWN_HALF: &str = "C1 C3 the_kernels_own_mappings_change_everywhere";

#[test]
fn the_suite_passes_on_threads() {
    for (tagging, policy) in [
        (Tagging::None, Policy::ALL),
        (PCID, Policy::ALL),
        (PCID, Policy::BASELINE),
        (ASID, Policy::ALL),
    ] {
        let checks = run(tagging, policy, None);
        let kept = checks.iter().find_map(|check| check.kept);
        assert!(kept > Some(0), "nothing was stale to see");
        assert!(checks.iter().any(|check| check.name == OWN_HALF));
        for check in checks {
            assert_eq!(check.failures, 0, "{tagging:?} {policy:?} {check:?}");
        }
    }
}

#[cfg(quell_mutants)]
#[test]
fn mutants_of_flushes_of_the_kernels_half_are_noticed() {
    for name in [
        "FinishSkipsFlush",
        "HandlerSkipsFlush",
        "KernelSkipsIdle",
        "KernelKeptUnderTags",
        "KernelDeferralFlushedByTag",
        "EntrySkipsFlush",
    ] {
        let checks = run(PCID, Policy::ALL, quell_mutants::list::named(name));
        let failed: Vec<_> = checks.iter().filter(|check| check.failures > 0).collect();
        let found = failed.iter().any(|check| check.name == OWN_HALF);
        assert!(found, "{name}: {failed:?}");
    }
}

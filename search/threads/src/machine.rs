//! Implements the engine's machine with threads as CPUs.
//!
//! An interrupt is a flag in the target's mailbox. A thread checks its mailbox when it accesses memory
//! ([`Threads::interrupt_pending`]) and in the engine's waiting loops. Only its own CPU touches its mask flag, root and
//! tag.
//!
//! With broadcasts ([`Features::broadcast`]), other CPUs may empty lines of this CPU's TLB during an access. So each
//! access is bracketed by a counter that is odd during the access. The completion of a broadcast waits until every CPU
//! has left its access of that moment. A walk that overlaps an invalidation isn't cached. Without broadcasts, none of
//! this has a cost.
//!
//! Walkers read [`PageTables`]. Pages of the kernel's half have entries under every root.
//!
//! A wait that never ends is a violation (C7); [`life`] detects it.
//!
//! # Windows
//!
//! Some mistakes show only if a CPU pauses between two of its steps while another CPU makes many. On a busy host, CPUs
//! seldom run side by side, and a thread loses its core only after a million steps. So under stress, a CPU pauses at
//! random: once in [`STOPS_ONCE_IN`] times that the engine masks interrupts, invalidates or loads a root.

use crate::cores;
use crate::handler;
use crate::life::{self, CpuStatus};
use crate::tables::{FlatTable, PageTables};
use crate::tlb::{CachedEntry, EntryTag, Tlb};
use quell::{Broadcast, CpuId, CpuSet, Features, Frame, Hardware, Invalidation, Tag, Tagging};
use quell_mutants::Mutant;
use rand::RngExt;
use rand_pcg::Pcg64;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::Builder;

const NO_ROOT: u64 = u64::MAX;

const WITHOUT_BROADCASTS: &str = "a broadcast on a machine without broadcasts";

/// A CPU under stress pauses once in this many windows.
const STOPS_ONCE_IN: u16 = 16;
/// How many times [`PATIENCE`](life::PATIENCE) a CPU waits on a machine that is already known to hang, before we end
/// the process.
const LAST_RESORT: u32 = 4;

#[derive(Default)]
#[repr(align(128))]
struct Cpu {
    mailbox: AtomicBool,
    masked: AtomicBool,
    root: AtomicU64,
    tag: AtomicU64,
    /// Odd while the CPU is inside an access.
    access: AtomicU64,
    /// The number of broadcasts that have reached this CPU.
    broadcasts: AtomicU64,
    /// The page that its program used last.
    last: AtomicU64,
    life: CpuStatus,
    tlb: Tlb,
}

impl Cpu {
    fn loaded_root(&self) -> Option<Frame> {
        let root = self.root.load(Ordering::Relaxed);
        (root != NO_ROOT).then_some(Frame(root))
    }

    fn loaded_tag(&self) -> Tag {
        Tag(self.tag.load(Ordering::Relaxed) as u16)
    }
}

thread_local! {
    static THIS_CPU: Cell<u16> = const { Cell::new(0) };
    /// The random generator for the CPU's TLB and pauses.
    static DICE: RefCell<Pcg64> = RefCell::new(Pcg64::new(0, 0));
}

/// A machine whose CPUs are threads. Its walkers read the tables `T`.
///
/// With `STRESS`, TLBs also fill speculatively. Without it, that is compiled away, and only the engine's own cost
/// remains.
pub struct Threads<const STRESS: bool, T = FlatTable> {
    features: Features,
    cpus: Box<[Cpu]>,
    pub(crate) tables: T,
    mutant: Option<&'static Mutant>,
    /// Whether the machine omits waits for broadcasts. It has an effect only with `STRESS`.
    pub(crate) skips_barrier: bool,
    /// See [`Hardware::shares_lines_from`].
    pub(crate) shares_lines_from: usize,
    crowded: bool,
    hung: AtomicBool,
}

impl<const STRESS: bool, T: PageTables> Threads<STRESS, T> {
    /// Creates a machine of `cpus` CPUs whose walkers read these tables.
    ///
    /// # Panics
    /// If there is no CPU.
    pub fn with_tables(cpus: usize, tables: T, features: Features) -> Self {
        assert!(cpus > 0, "a machine needs a CPU");
        let cpu = |_| Cpu { root: AtomicU64::new(NO_ROOT), ..Cpu::default() };
        Threads {
            features,
            cpus: (0..cpus).map(cpu).collect(),
            tables,
            mutant: None,
            skips_barrier: false,
            shares_lines_from: usize::MAX,
            crowded: may_use().len() < cpus,
            hung: AtomicBool::new(false),
        }
    }

    pub fn tables(&self) -> &T {
        &self.tables
    }

    /// Sets the mistake that engine and manager make while the machine runs.
    ///
    /// The mistake applies to the whole process, so only one such machine may run at a time. It needs the [instrumented
    /// copy](quell_mutants).
    #[must_use]
    pub fn with_mutant(mut self, mutant: Option<&'static Mutant>) -> Self {
        self.mutant = mutant;
        self
    }

    pub fn root(&self) -> Option<Frame> {
        self.me().loaded_root()
    }

    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Runs `body` on every CPU at once. Returns the result or panic of each.
    ///
    /// Each CPU is a thread pinned to a core of this process.
    ///
    /// # Panics
    /// If the system creates fewer threads. Then `body` hasn't run at all, because CPUs would wait for the missing
    /// ones.
    pub fn run<R: Send>(&self, body: impl Fn(CpuId) -> R + Sync) -> Vec<std::thread::Result<R>> {
        let cores = may_use();
        let body = &body;
        if self.mutant.is_some() {
            quell_mutants::list::choose(self.mutant);
        }
        // Whether all threads exist, once that is known.
        let complete = &OnceLock::new();
        let results = std::thread::scope(|scope| {
            let start = |index: usize| {
                let core = cores.get(index % cores.len().max(1)).copied();
                let running = self.cpus[index].life.begin();
                Builder::new().spawn_scoped(scope, move || {
                    let _running = running;
                    if !complete.wait() {
                        return None;
                    }
                    if let Some(core) = core {
                        // We ignore a refusal, because it changes only the speed.
                        let _ = cores::pin(&[core]);
                    }
                    cores::nap_as_told();
                    THIS_CPU.set(index as u16);
                    DICE.set(Pcg64::new(0, index as u128));
                    Some(body(CpuId(index as u16)))
                })
            };
            let threads: std::io::Result<Vec<_>> = (0..self.cpus.len()).map(start).collect();
            let _ = complete.set(threads.is_ok());
            let threads = threads.unwrap_or_else(|error| panic!("failed to spawn thread: {error}"));
            let results = threads.into_iter().map(|thread| thread.join());
            let ran = |result| match result {
                Ok(Some(result)) => Ok(result),
                Ok(None) => unreachable!("all threads were there"),
                Err(panic) => Err(panic),
            };
            results.map(ran).collect()
        });
        self.mend();
        results
    }

    #[inline]
    fn me(&self) -> &Cpu {
        &self.cpus[usize::from(THIS_CPU.get())]
    }

    /// Serves this CPU's pending interrupt if interrupts are on and a [`handler`] is set.
    ///
    /// Returns whether it served one.
    #[inline]
    pub fn poll(&self) -> bool {
        let served = handler::is_set() && self.interrupt_pending();
        if served {
            handler::call();
        }
        served
    }

    /// Records a step of this CPU's program. It's a sign of life, and ends the CPU's wait.
    #[inline]
    pub fn progress(&self) {
        self.me().life.step();
    }

    /// Returns whether a CPU has waited without end (C7), as [`life`] defines it.
    ///
    /// From then on, the machine makes no mistakes and interrupts every CPU all the time, so that programs can end.
    pub fn is_hung(&self) -> bool {
        self.hung.load(Ordering::Relaxed)
    }

    /// Stops making mistakes, so that a broken run ends.
    pub fn mend(&self) {
        if self.mutant.is_some() {
            quell_mutants::list::choose(None);
        }
    }

    /// Takes this CPU's pending interrupt, if interrupts are on. Returns whether there was one.
    ///
    /// The caller then runs the engine's handler. Programs call this where they access memory.
    #[inline]
    pub fn interrupt_pending(&self) -> bool {
        let me = self.me();
        if STRESS && self.is_hung() {
            return !me.masked.load(Ordering::Relaxed);
        }
        me.mailbox.load(Ordering::Relaxed)
            && !me.masked.load(Ordering::Relaxed)
            && me.mailbox.swap(false, Ordering::Acquire)
    }

    /// Accesses `page`, with a translation of this CPU's TLB or of a table walk.
    ///
    /// Calls `access` while the translation is in use. Returns `None` if the walk faults. Also returns `None` if no
    /// root is loaded and the page isn't the kernel's.
    pub fn access_for<R>(
        &self,
        page: u64,
        store: bool,
        access: impl FnOnce(CachedEntry) -> R,
    ) -> Option<R> {
        let me = self.me();
        let inside = self.features.broadcast;
        if inside {
            me.access.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        let cached = self.translate(me, page, store);
        if STRESS && inside && roll(64) == 0 {
            // This stretches the time between translation and memory.
            std::thread::yield_now();
        }
        let result = cached.map(access);
        if inside {
            me.access.fetch_add(1, Ordering::SeqCst);
        }
        result
    }

    /// Accesses a page like [`Threads::access_for`], for tables that don't distinguish loads and stores.
    pub fn access<R>(&self, page: u32, access: impl FnOnce(CachedEntry) -> R) -> Option<R> {
        self.access_for(page.into(), false, access)
    }

    fn translate(&self, me: &Cpu, page: u64, store: bool) -> Option<CachedEntry> {
        let root = me.loaded_root();
        let (tag, in_kernel) = (EntryTag::Tag(me.loaded_tag()), T::is_kernels(page));
        if root.is_none() && !in_kernel {
            return None;
        }
        if STRESS {
            me.last.store(page, Ordering::Relaxed);
        }
        for under in [tag, EntryTag::All] {
            if under == EntryTag::All && !in_kernel {
                continue;
            }
            if let Some(cached) = me.tlb.find(under, page, T::SIZES) {
                if !store || self.tables.takes_stores(cached.entry) {
                    return Some(cached);
                }
                // Like hardware, we drop the entry that would fault, and walk.
                me.tlb.forget(under, page, cached.size);
            }
        }
        let broadcasts = me.broadcasts.load(Ordering::SeqCst);
        let walked = self.tables.walk(root, page, store)?;
        let under = if walked.global { EntryTag::All } else { tag };
        let cached = CachedEntry {
            entry: walked.entry,
            size: walked.size,
            root: root.unwrap_or_default().0,
            since: walked.since,
        };
        me.tlb.fill(under, page, cached);
        if self.features.broadcast {
            // Either the sender's scan finds the line, or we notice that there was a broadcast.
            fence(Ordering::SeqCst);
            if me.broadcasts.load(Ordering::SeqCst) != broadcasts {
                me.tlb.forget(under, page, cached.size);
            }
        }
        Some(cached)
    }

    /// Returns the tag whose entries of the kernel's half an invalidation of that half drops, besides global ones.
    /// `None` means all tags.
    fn reaches(&self, cpu: &Cpu) -> Option<Tag> {
        let own = !matches!(self.features.tagging, Tagging::Global { .. });
        own.then(|| cpu.loaded_tag())
    }

    /// Lets the TLB fill from some page of the tables, for the stress test.
    fn speculate(&self) {
        if STRESS {
            let last = self.me().last.load(Ordering::Relaxed);
            self.access_for(self.tables.stray(last, roll), false, |_| ());
            self.me().last.store(last, Ordering::Relaxed);
        }
    }

    fn stop_sometimes(&self) {
        if STRESS && roll(STOPS_ONCE_IN) == 0 {
            cores::nap();
        }
    }

    /// Checks whether this CPU's wait never ends. If so, mends the machine, or ends the process when that doesn't help.
    #[cold]
    fn look_at_others(&self) {
        let waits_for_ever = life::patience_lost(self.cpus.iter().map(|cpu| &cpu.life));
        if waits_for_ever > 0 {
            self.hung.store(true, Ordering::Relaxed);
            self.mend();
        }
        if waits_for_ever > LAST_RESORT {
            // We write around the test harness, which would swallow the line.
            let line = format!("CPU {} waits for ever, and nothing helps\n", self.this_cpu().0);
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            std::process::exit(101);
        }
    }
}

impl<const STRESS: bool, T: PageTables> Broadcast for Threads<STRESS, T> {
    fn start(&self, what: Invalidation) {
        assert!(self.features.broadcast, "{WITHOUT_BROADCASTS}");
        for cpu in &self.cpus {
            cpu.broadcasts.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            cpu.tlb.invalidate(what, self.reaches(cpu), T::SIZES);
        }
    }

    fn complete(&self) {
        if STRESS && self.skips_barrier {
            return;
        }
        assert!(self.features.broadcast, "{WITHOUT_BROADCASTS}");
        let me = self.this_cpu().index();
        for (_, cpu) in self.cpus.iter().enumerate().filter(|&(index, _)| index != me) {
            let inside = cpu.access.load(Ordering::SeqCst);
            while inside % 2 == 1 && cpu.access.load(Ordering::SeqCst) == inside {
                self.relax();
            }
        }
    }
}

// SAFETY: the TLB is in software, and its entries lead only to words of the world. Each invalidation drops everything
// that it covers, and each CPU is one thread.
unsafe impl<const STRESS: bool, T: PageTables> Hardware for Threads<STRESS, T> {
    type Word = AtomicU64;
    type Broadcasts = Self;

    #[inline]
    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }

    #[inline]
    fn this_cpu(&self) -> CpuId {
        CpuId(THIS_CPU.get())
    }

    fn features(&self) -> Features {
        self.features
    }

    #[inline]
    fn shares_lines_from(&self) -> usize {
        self.shares_lines_from
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn invalidate(&self, what: Invalidation) {
        self.stop_sometimes();
        self.speculate();
        let me = self.me();
        me.tlb.invalidate(what, self.reaches(me), T::SIZES);
    }

    #[inline]
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let me = self.me();
        self.stop_sometimes();
        self.speculate();
        if !keep || self.features.tagging == quell::Tagging::None {
            me.tlb.invalidate(Invalidation::Tag(tag), None, T::SIZES);
        }
        me.tag.store(tag.0.into(), Ordering::Relaxed);
        me.root.store(root.0, Ordering::Relaxed);
        self.speculate();
    }

    fn unload_root(&self) {
        let me = self.me();
        me.root.store(NO_ROOT, Ordering::Relaxed);
        // An entry that is filled without a root gets the kernel's tag, for which nothing may be cached yet.
        me.tag.store(Tag::KERNEL.0.into(), Ordering::Relaxed);
        if STRESS {
            me.tlb.invalidate(Invalidation::Tag(Tag::KERNEL), None, T::SIZES);
        }
    }

    #[inline]
    fn interrupt(&self, targets: &CpuSet) {
        for cpu in targets.iter() {
            self.cpus[cpu.index()].mailbox.store(true, Ordering::Release);
        }
    }

    #[inline]
    fn mask_interrupts(&self) -> bool {
        self.stop_sometimes();
        let masked = &self.me().masked;
        let were_on = !masked.load(Ordering::Relaxed);
        masked.store(true, Ordering::Relaxed);
        were_on
    }

    #[inline]
    fn restore_interrupts(&self, were_on: bool) {
        self.me().masked.store(!were_on, Ordering::Relaxed);
    }

    fn relax(&self) {
        std::hint::spin_loop();
        if STRESS {
            self.poll();
        }
        if let Some(signs) = self.me().life.turn() {
            self.speculate();
            if self.crowded && life::is_time_to_nap() {
                cores::nap();
            }
            if life::is_time_to_look(signs) {
                self.look_at_others();
            }
        }
    }
}

/// Draws a number below `bound` for this CPU.
pub(crate) fn roll(bound: u16) -> u16 {
    DICE.with_borrow_mut(|dice| dice.random_range(0..bound))
}

/// Returns the cores that this process may use; empty if the system call fails.
fn may_use() -> Vec<usize> {
    cores::allowed().unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! Threads as CPUs.
//!
//! An interrupt is a flag in the target's mailbox, looked at where a thread accesses memory
//! ([`Threads::interrupt_pending`]) and in the engine's own waiting loops. Masking is a flag that only its
//! own CPU touches. A CPU's user root and tag are words that it alone writes.
//!
//! On a machine with broadcasts ([`Features::broadcast`]) other CPUs empty lines of this one's TLB
//! while it may be in the middle of an access. So each access is bracketed by a counter that is odd
//! inside, and completing a broadcast waits until every CPU has left the access in which it was; a
//! walk that overlapped an invalidation is not kept. Without broadcasts none of this is paid for.
//!
//! The kernel's half is one table of its own, which every CPU walks whatever root it has loaded.
//!
//! A wait without end is a violation (C7); what that is, [`life`] says.
//!
//! # Windows
//!
//! Some mistakes show only if a CPU stands still between two of its steps while another makes many. Where two
//! cores are the machine's own, that happens by itself; on a busy host CPUs hardly ever run side by
//! side, and the host takes one off its core after a million steps. So under stress a CPU stops for a moment of
//! its own accord, once in [`STOPS_ONCE_IN`] times that the engine masks interrupts, invalidates or loads a
//! root: in the middle of what has windows.

use crate::cores;
use crate::life::{self, Life};
use crate::tables::{FIRST_KERNEL_PAGE, GLOBAL, KERNEL_PAGES, KernelTable, PAGES, PRESENT, Table};
use crate::tlb::{Cached, Tlb, Under};
use quell::{
    Broadcast, CpuId, CpuSet, Features, Frame, Hardware, Invalidate, Rule, Rules, Tag, Tagging,
};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

const NO_ROOT: u64 = u64::MAX;

const WITHOUT_BROADCASTS: &str = "a broadcast on a machine without broadcasts";

/// How seldom a CPU under stress stops in a window.
const STOPS_ONCE_IN: u16 = 16;
/// How many times [`PATIENCE`](life::PATIENCE) a CPU waits on a machine that is hung and helps, before the process is
/// ended.
const LAST_RESORT: u32 = 4;

#[repr(align(128))]
struct Cpu {
    mailbox: AtomicBool,
    masked: AtomicBool,
    root: AtomicU64,
    tag: AtomicU64,
    /// Odd while the CPU is inside an access.
    access: AtomicU64,
    /// Counts broadcasts that reached this CPU.
    broadcasts: AtomicU64,
    life: Life,
    tlb: Tlb,
}

impl Cpu {
    fn loaded_tag(&self) -> Tag {
        Tag(self.tag.load(Ordering::Relaxed) as u16)
    }
}

thread_local! {
    static THIS_CPU: Cell<u16> = const { Cell::new(0) };
    /// What the CPU's TLB and its pauses are drawn from.
    static DICE: RefCell<Pcg64> = RefCell::new(Pcg64::new(0, 0));
}

/// The machine. With `STRESS`, TLBs fill speculatively and the machine, as the engine's [`Rules`], may
/// leave one out; without, both are compiled away and the engine's own cost remains.
pub struct Threads<const STRESS: bool> {
    features: Features,
    cpus: Box<[Cpu]>,
    tables: Box<[Table]>,
    kernel: KernelTable,
    /// Whether TLBs fill from the kernel's half as they like.
    speculates_in_kernel: bool,
    forgotten: Option<&'static Rule>,
    skips_barrier: bool,
    crowded: bool,
    hung: AtomicBool,
}

impl<const STRESS: bool> Threads<STRESS> {
    /// A machine of `cpus` CPUs with `tables` page tables. Root `Frame(n)` is table `n`.
    ///
    /// # Panics
    /// If there is no CPU.
    pub fn new(cpus: usize, tables: usize, features: Features) -> Self {
        assert!(cpus > 0, "a machine needs a CPU");
        let cpu = |_| Cpu {
            mailbox: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            root: AtomicU64::new(NO_ROOT),
            tag: AtomicU64::new(0),
            access: AtomicU64::new(0),
            broadcasts: AtomicU64::new(0),
            life: Life::default(),
            tlb: Tlb::default(),
        };
        Threads {
            features,
            cpus: (0..cpus).map(cpu).collect(),
            tables: (0..tables)
                .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
            kernel: std::array::from_fn(|_| AtomicU64::new(0)),
            speculates_in_kernel: false,
            forgotten: None,
            skips_barrier: false,
            crowded: may_use().len() < cpus,
            hung: AtomicBool::new(false),
        }
    }

    /// The same machine, whose broadcasts are never waited for if `skips` says so. Without `STRESS` it has no
    /// effect.
    #[must_use]
    pub fn skipping_barrier(mut self, skips: bool) -> Self {
        self.skips_barrier = skips;
        self
    }

    /// The same machine, under an engine that does not keep this rule. Without `STRESS` it has no effect.
    #[must_use]
    pub fn forgetting(mut self, rule: Option<&'static Rule>) -> Self {
        self.forgotten = rule;
        self
    }

    /// The same machine, whose TLBs fill from the kernel's half as they like, too. Without `STRESS` it has no effect.
    #[must_use]
    pub fn with_kernel(mut self, has: bool) -> Self {
        self.speculates_in_kernel = has;
        self
    }

    /// The table of the kernel's half: page [`FIRST_KERNEL_PAGE`] and those that follow.
    pub fn kernel_table(&self) -> &KernelTable {
        &self.kernel
    }

    /// Page table `index`.
    pub fn table(&self, index: usize) -> &Table {
        &self.tables[index]
    }

    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Runs `body` on every CPU at once, each on a thread of its own, pinned to one of the cores
    /// that this process may use. Returns what each returned, or its panic.
    pub fn run<R: Send>(&self, body: impl Fn(CpuId) -> R + Sync) -> Vec<std::thread::Result<R>> {
        let cores = may_use();
        let body = &body;
        std::thread::scope(|scope| {
            let start = |index: usize| {
                let core = cores.get(index % cores.len().max(1)).copied();
                let running = self.cpus[index].life.begin();
                scope.spawn(move || {
                    let _running = running;
                    if let Some(core) = core {
                        // A refusal is ignored: it changes speed, not meaning.
                        let _ = cores::pin(&[core]);
                    }
                    cores::nap_as_told();
                    THIS_CPU.set(index as u16);
                    DICE.set(Pcg64::new(0, index as u128));
                    body(CpuId(index as u16))
                })
            };
            let threads: Vec<_> = (0..self.cpus.len()).map(start).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        })
    }

    #[inline]
    fn me(&self) -> &Cpu {
        &self.cpus[usize::from(THIS_CPU.get())]
    }

    /// This CPU has made a step of its program: a sign of life, and the end of its wait.
    #[inline]
    pub fn progress(&self) {
        self.me().life.step();
    }

    /// Whether a CPU has waited without end (C7), as [`life`] defines it.
    ///
    /// From then on the machine makes no mistake any more and interrupts every CPU all the time, so
    /// that a program can end.
    pub fn is_hung(&self) -> bool {
        self.hung.load(Ordering::Relaxed)
    }

    /// Takes the interrupt that is pending for this CPU, if there is one and they are on: the caller
    /// then calls the engine's handler. The threads' access points call this.
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

    /// Makes one user access: translates `page` as this CPU's TLB or a walk of the loaded table has
    /// it, and calls `access` with the translation while that is in use. `None` if the entry is
    /// not present or no root is loaded.
    pub fn access<R>(&self, page: u32, access: impl FnOnce(Cached) -> R) -> Option<R> {
        self.in_access(|me| self.translate(me, page), access)
    }

    /// Makes one access of the kernel's to its own half, whatever root is loaded: as [`Threads::access`], to the page that
    /// has this number.
    pub fn access_kernel<R>(&self, page: u32, access: impl FnOnce(Cached) -> R) -> Option<R> {
        self.in_access(|me| self.translate_kernel(me, page), access)
    }

    fn in_access<R>(
        &self,
        translate: impl FnOnce(&Cpu) -> Option<Cached>,
        access: impl FnOnce(Cached) -> R,
    ) -> Option<R> {
        let me = self.me();
        let inside = self.features.broadcast;
        if inside {
            me.access.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        let cached = translate(me);
        if STRESS && inside && roll(64) == 0 {
            // An access takes its time between translation and memory.
            std::thread::yield_now();
        }
        let result = cached.map(access);
        if inside {
            me.access.fetch_add(1, Ordering::SeqCst);
        }
        result
    }

    fn translate(&self, me: &Cpu, page: u32) -> Option<Cached> {
        let root = me.root.load(Ordering::Relaxed);
        if root == NO_ROOT {
            return None;
        }
        let under = Under::Tag(me.loaded_tag());
        if let Some(cached) = me.tlb.find(under, page) {
            return Some(cached);
        }
        let word = &self.tables[root as usize][page as usize % PAGES];
        self.walk(me, word, page, root as u16, |_| under)
    }

    fn translate_kernel(&self, me: &Cpu, page: u32) -> Option<Cached> {
        let under = [Under::All, Under::Tag(me.loaded_tag())];
        let found = under.into_iter().find_map(|under| me.tlb.find(under, page));
        if found.is_some() {
            return found;
        }
        let [global, tagged] = under;
        let word = &self.kernel[(page - FIRST_KERNEL_PAGE) as usize];
        self.walk(me, word, page, 0, |entry| match entry & GLOBAL {
            0 => tagged,
            _ => global,
        })
    }

    /// Reads an entry of a table, and keeps it.
    fn walk(
        &self,
        me: &Cpu,
        word: &AtomicU64,
        page: u32,
        root: u16,
        under: impl FnOnce(u64) -> Under,
    ) -> Option<Cached> {
        let broadcasts = me.broadcasts.load(Ordering::SeqCst);
        // A walker follows a pointer that it has just read: acquire stands for that dependency.
        let entry = word.load(Ordering::Acquire);
        if entry & PRESENT == 0 {
            return None;
        }
        let (under, cached) = (under(entry), Cached { entry, root });
        me.tlb.fill(under, page, cached);
        if self.features.broadcast {
            // Either the sender's scan finds the line, or we find that there was a broadcast.
            fence(Ordering::SeqCst);
            if me.broadcasts.load(Ordering::SeqCst) != broadcasts {
                me.tlb.forget(under, page);
            }
        }
        Some(cached)
    }

    /// Which tag's entries of the kernel's half an invalidation of those takes besides global ones; `None`: all.
    fn reaches(&self, cpu: &Cpu) -> Option<Tag> {
        let own = !matches!(self.features.tagging, Tagging::Global { .. });
        own.then(|| cpu.loaded_tag())
    }

    /// Lets the TLB fill from the loaded table as it likes: for the stress test.
    fn speculate(&self) {
        if STRESS {
            if self.speculates_in_kernel && roll(2) == 0 {
                let page = u32::from(roll(KERNEL_PAGES as u16));
                self.access_kernel(FIRST_KERNEL_PAGE + page, |_| ());
            } else {
                self.access(roll(PAGES as u16).into(), |_| ());
            }
        }
    }

    /// Stands still for a moment, now and then.
    fn stop_sometimes(&self) {
        if STRESS && roll(STOPS_ONCE_IN) == 0 {
            cores::nap();
        }
    }

    /// Whether this CPU's wait has become one without end.
    #[cold]
    fn look_at_others(&self) {
        let waits_for_ever = life::patience_lost(self.cpus.iter().map(|cpu| &cpu.life));
        if waits_for_ever > 0 {
            self.hung.store(true, Ordering::Relaxed);
        }
        if waits_for_ever > LAST_RESORT {
            // Past the test harness, which would keep the line to itself.
            let line = format!(
                "CPU {} waits for ever, and nothing helps\n",
                self.this_cpu().0
            );
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            std::process::exit(101);
        }
    }
}

impl<const STRESS: bool> Rules for Threads<STRESS> {
    #[inline(always)]
    fn keeps(&self, rule: &'static Rule) -> bool {
        !STRESS || self.forgotten != Some(rule) || self.is_hung()
    }
}

impl<const STRESS: bool> Broadcast for Threads<STRESS> {
    fn start(&self, what: Invalidate) {
        assert!(self.features.broadcast, "{WITHOUT_BROADCASTS}");
        for cpu in &self.cpus {
            cpu.broadcasts.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            cpu.tlb.invalidate(what, self.reaches(cpu));
        }
    }

    fn complete(&self) {
        if STRESS && self.skips_barrier {
            return;
        }
        assert!(self.features.broadcast, "{WITHOUT_BROADCASTS}");
        let me = self.this_cpu().index();
        for (_, cpu) in self
            .cpus
            .iter()
            .enumerate()
            .filter(|&(index, _)| index != me)
        {
            let inside = cpu.access.load(Ordering::SeqCst);
            while inside % 2 == 1 && cpu.access.load(Ordering::SeqCst) == inside {
                self.relax();
            }
        }
    }
}

// SAFETY: a TLB in software, whose entries reach no memory but the words of the world; what it must
// invalidate, it invalidates, and each CPU is one thread.
unsafe impl<const STRESS: bool> Hardware for Threads<STRESS> {
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
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn invalidate(&self, what: Invalidate) {
        self.stop_sometimes();
        self.speculate();
        let me = self.me();
        me.tlb.invalidate(what, self.reaches(me));
    }

    #[inline]
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let me = self.me();
        self.stop_sometimes();
        self.speculate();
        if !keep || self.features.tagging == quell::Tagging::None {
            me.tlb.invalidate(Invalidate::Tag(tag), None);
        }
        me.tag.store(tag.0.into(), Ordering::Relaxed);
        me.root.store(root.0, Ordering::Relaxed);
        self.speculate();
    }

    fn unload_root(&self) {
        let me = self.me();
        me.root.store(NO_ROOT, Ordering::Relaxed);
        // What is filled without a root stands under the kernel's tag, of which nothing was kept.
        me.tag.store(Tag::KERNEL.0.into(), Ordering::Relaxed);
        if STRESS {
            me.tlb.invalidate(Invalidate::Tag(Tag::KERNEL), None);
        }
    }

    #[inline]
    fn interrupt(&self, targets: &CpuSet) {
        for cpu in targets.iter() {
            self.cpus[cpu.index()]
                .mailbox
                .store(true, Ordering::Release);
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

/// A number below `bound`, drawn for this CPU.
fn roll(bound: u16) -> u16 {
    DICE.with_borrow_mut(|dice| dice.random_range(0..bound))
}

/// The cores that this process may run on; empty where the system does not say.
fn may_use() -> Vec<usize> {
    cores::allowed().unwrap_or_default()
}

#[cfg(test)]
mod tests;

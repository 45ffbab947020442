//! Two ways to flush on one machine: a sketch of Linux's use of INVLPGB.
//!
//! A process on few CPUs has per-CPU tags, and its flushes interrupt. A process on many CPUs gets a system-wide tag,
//! and its flushes are broadcast. We use two engines over one machine, which divide its tags between them, and a
//! process has a space in each. It changes over while it runs: from then on CPUs load its second space, and a change is
//! reported to both engines. Once the first space is loaded nowhere, it's retired and gets no more reports.
//!
//! The kernel's duties:
//!
//! * a CPU that leaves an engine's space for one of the other engine calls [`Cpu::leave`] of the first, then
//!   [`Masked::switch`] of the second, with interrupts masked from before until after;
//! * before the first space is retired, the kernel reports every change to both engines, whichever space a CPU has
//!   loaded;
//! * the interrupt handler calls both engines.

use quell::{
    AddressSpace, Broadcast, CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidate,
    LedgerEntry, Page, PageRange, PerCpu, Policy, Purpose, Scope, Tag, Tagging,
};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const CPUS: usize = 3;
/// The per-CPU tags are 1 to `OWN`; the system-wide tags follow them.
const OWN: u16 = 6;

/// The machine below both engines. One thread runs each of its CPUs in turn.
#[derive(Default)]
struct SharedMachine {
    me: Cell<usize>,
    loaded: [Cell<Option<Tag>>; CPUS],
    tlb: [RefCell<HashSet<(Tag, Page)>>; CPUS],
    pending: [Cell<bool>; CPUS],
    interrupts: Cell<u64>,
    broadcasts: Cell<u64>,
}

impl SharedMachine {
    fn drop_from(&self, cpu: usize, what: Invalidate) {
        self.tlb[cpu].borrow_mut().retain(|&(of, page)| match what {
            Invalidate::Range { tag, range, .. } => of != tag || !range.contains(page),
            Invalidate::Tag(tag) => of != tag,
            Invalidate::Kernel { .. } => true,
            Invalidate::All | Invalidate::Everything => false,
        });
    }

    fn on<R>(&self, cpu: usize, action: impl FnOnce() -> R) -> R {
        let before = self.me.replace(cpu);
        let result = action();
        self.me.set(before);
        result
    }

    /// Uses a page, as a program.
    fn touch(&self, page: Page) {
        let tag = self.loaded[self.me.get()].get().expect("a root");
        self.tlb[self.me.get()].borrow_mut().insert((tag, page));
    }

    /// Returns whether the TLB of `cpu` has a translation of the page for its program.
    fn finds(&self, cpu: usize, page: Page) -> bool {
        let tag = self.loaded[cpu].get();
        tag.is_some_and(|tag| self.tlb[cpu].borrow().contains(&(tag, page)))
    }
}

/// The machine as one of the engines sees it: with per-CPU tags, or with system-wide ones.
struct EngineView<const EVERYWHERE: bool> {
    below: &'static SharedMachine,
    kernel: &'static OnceLock<&'static Kernel>,
}

// SAFETY: each test has one thread, and a machine of its own.
unsafe impl<const EVERYWHERE: bool> Sync for EngineView<EVERYWHERE> {}
// SAFETY: each test has one thread, and a machine of its own.
unsafe impl<const EVERYWHERE: bool> Send for EngineView<EVERYWHERE> {}

impl<const EVERYWHERE: bool> EngineView<EVERYWHERE> {
    /// Returns the machine's tag for an engine's tag.
    fn tag(tag: Tag) -> Tag {
        Tag(tag.0 + if EVERYWHERE { OWN } else { 0 })
    }

    fn what(what: Invalidate) -> Invalidate {
        match what {
            Invalidate::Range { tag, range, scope } => Invalidate::Range {
                tag: Self::tag(tag),
                range,
                scope,
            },
            Invalidate::Tag(tag) => Invalidate::Tag(Self::tag(tag)),
            other => other,
        }
    }
}

impl<const EVERYWHERE: bool> Broadcast for EngineView<EVERYWHERE> {
    fn start(&self, what: Invalidate) {
        self.below.broadcasts.set(self.below.broadcasts.get() + 1);
        (0..CPUS).for_each(|cpu| self.below.drop_from(cpu, Self::what(what)));
    }
    fn complete(&self) {}
}

// SAFETY: the TLBs are sets of numbers, which reach no memory, and every invalidation drops its entries.
unsafe impl<const EVERYWHERE: bool> Hardware for EngineView<EVERYWHERE> {
    type Word = AtomicU64;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        EVERYWHERE.then_some(self)
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(self.below.me.get() as u16)
    }
    fn features(&self) -> Features {
        Features {
            tagging: if EVERYWHERE {
                Tagging::Global { bits: 11 }
            } else {
                Tagging::PerCpu { count: OWN }
            },
            broadcast: EVERYWHERE,
            full_above: 33,
        }
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidate) {
        self.below.drop_from(self.below.me.get(), Self::what(what));
    }
    unsafe fn load_root(&self, _root: Frame, tag: Tag, keep: bool) {
        let tag = Self::tag(tag);
        let me = self.below.me.get();
        if !keep {
            self.below.drop_from(me, Invalidate::Tag(tag));
        }
        self.below.loaded[me].set(Some(tag));
    }
    fn unload_root(&self) {
        self.below.loaded[self.below.me.get()].set(None);
    }
    fn interrupt(&self, targets: &CpuSet) {
        for target in targets.iter() {
            self.below.interrupts.set(self.below.interrupts.get() + 1);
            self.below.pending[target.index()].set(true);
        }
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {
        let kernel = self.kernel.get().expect("a kernel");
        for cpu in (0..CPUS).filter(|&cpu| self.below.pending[cpu].take()) {
            self.below.on(cpu, || {
                kernel.own.this_cpu().mask_interrupts().on_interrupt();
                kernel
                    .everywhere
                    .this_cpu()
                    .mask_interrupts()
                    .on_interrupt();
            });
        }
    }
}

type Own = EngineView<false>;
type Everywhere = EngineView<true>;

struct Kernel {
    below: &'static SharedMachine,
    own: Engine<'static, Own>,
    everywhere: Engine<'static, Everywhere>,
}

/// A process with its space in each engine.
struct Process {
    own: AddressSpace<Own>,
    everywhere: AddressSpace<Everywhere>,
    changed_over: Cell<bool>,
}

/// The space that a CPU has loaded.
#[derive(Clone, Copy)]
enum Loaded<'p> {
    Nothing,
    Own(&'p Process),
    Everywhere(&'p Process),
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Kernel {
    fn new() -> &'static Kernel {
        let below: &SharedMachine = leak(SharedMachine::default());
        let kernel = leak(OnceLock::new());
        let own = leak(EngineView { below, kernel });
        let everywhere = leak(EngineView { below, kernel });
        let made = leak(Kernel {
            below,
            own: Engine::new(own, states(), ledger(), Policy::ALL).expect("an engine"),
            everywhere: Engine::new(everywhere, states(), ledger(), Policy::ALL)
                .expect("an engine"),
        });
        assert!(kernel.set(made).is_ok());
        for cpu in 0..CPUS {
            below.on(cpu, || {
                made.own.cpu_online();
                made.everywhere.cpu_online();
            });
        }
        made
    }

    fn process(&self, root: u64) -> Process {
        Process {
            // SAFETY: this machine walks no tables.
            own: unsafe { self.own.new_space(Frame(root)) },
            // SAFETY: this machine walks no tables.
            everywhere: unsafe { self.everywhere.new_space(Frame(root)) },
            changed_over: Cell::new(false),
        }
    }

    /// Switches this CPU to a process.
    fn switch<'p>(&self, from: Loaded<'_>, to: &'p Process) -> Loaded<'p> {
        if to.changed_over.get() {
            let same = match from {
                Loaded::Everywhere(from) => Some(&from.everywhere),
                Loaded::Own(from) => {
                    self.own.this_cpu().leave(&from.own);
                    None
                }
                Loaded::Nothing => None,
            };
            self.everywhere
                .this_cpu()
                .mask_interrupts()
                .switch(same, &to.everywhere);
            return Loaded::Everywhere(to);
        }
        let same = match from {
            Loaded::Own(from) => Some(&from.own),
            Loaded::Everywhere(from) => {
                self.everywhere.this_cpu().leave(&from.everywhere);
                None
            }
            Loaded::Nothing => None,
        };
        self.own.this_cpu().mask_interrupts().switch(same, &to.own);
        Loaded::Own(to)
    }

    /// Flushes a page that was removed from the tables.
    fn flush(&self, process: &Process, page: Page) {
        let range = PageRange::base(page, 1);
        let mut own = self.own.batch::<_, Frame>(Purpose::Call);
        own.changed(&process.own, range, Scope::Leaf);
        if process.changed_over.get() {
            let mut everywhere = self.everywhere.batch::<_, Frame>(Purpose::Call);
            everywhere.changed(&process.everywhere, range, Scope::Leaf);
            everywhere.finish().for_each(drop);
        }
        own.finish().for_each(drop);
    }
}

fn states<H: Hardware + 'static>() -> &'static [PerCpu<'static, H>] {
    leak([(); CPUS].map(|()| PerCpu::new()))
}

fn ledger<H: Hardware + 'static>() -> &'static [LedgerEntry<H>] {
    leak([(); 4].map(|()| LedgerEntry::new()))
}

#[test]
fn a_process_changes_over_to_broadcasts_while_it_runs() {
    let kernel = Kernel::new();
    let below = kernel.below;
    let process: &Process = leak(kernel.process(1));
    let other: &Process = leak(kernel.process(2));
    let mut loaded = [Loaded::Nothing; CPUS];
    let mut switch = |cpu: usize, to: &'static Process| {
        loaded[cpu] = below.on(cpu, || kernel.switch(loaded[cpu], to));
    };
    let touch = |cpu: usize, page: u64| below.on(cpu, || below.touch(Page(page)));
    let found = |page: u64| {
        (0..CPUS)
            .filter(|&cpu| below.finds(cpu, Page(page)))
            .count()
    };

    // With per-CPU tags the two others are interrupted.
    for cpu in 0..CPUS {
        switch(cpu, process);
        (0..5).for_each(|page| touch(cpu, page));
    }
    kernel.flush(process, Page(0));
    assert_eq!((below.interrupts.get(), below.broadcasts.get()), (2, 0));
    assert_eq!((found(0), found(1)), (0, CPUS));

    // The process changes over. CPU 2 has switched, and CPU 1 hasn't.
    process.changed_over.set(true);
    switch(2, other);
    switch(2, process);
    touch(2, 1);
    kernel.flush(process, Page(1));
    assert_eq!((below.interrupts.get(), below.broadcasts.get()), (3, 1));
    assert_eq!((found(1), found(2)), (0, 2));

    // Every CPU has switched: the first space is loaded nowhere, and no CPU is interrupted.
    for cpu in 0..2 {
        switch(cpu, process);
        (2..5).for_each(|page| touch(cpu, page));
    }
    kernel.own.retire(&process.own);
    kernel.flush(process, Page(2));
    assert_eq!((below.interrupts.get(), below.broadcasts.get()), (3, 2));
    assert_eq!((found(2), found(3)), (0, 2));

    // The tag keeps its entries through a switch, except those that were flushed meanwhile.
    switch(1, other);
    kernel.flush(process, Page(3));
    switch(1, process);
    assert_eq!((found(3), found(4)), (0, 2));
    assert_eq!(below.interrupts.get(), 3);
}

#[test]
fn a_cpu_that_has_not_changed_over_must_be_told() {
    let kernel = Kernel::new();
    let below = kernel.below;
    let process: &Process = leak(kernel.process(1));
    for cpu in 0..2 {
        below.on(cpu, || {
            kernel.switch(Loaded::Nothing, process);
            below.touch(Page(0));
        });
    }
    process.changed_over.set(true);
    // This leaves out the engine whose tags CPU 1 still has loaded.
    let mut batch = kernel.everywhere.batch::<_, Frame>(Purpose::Call);
    batch.changed(
        &process.everywhere,
        PageRange::base(Page(0), 1),
        Scope::Leaf,
    );
    batch.finish().for_each(drop);
    assert!(below.finds(1, Page(0)));
}

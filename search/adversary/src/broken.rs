//! Makes deliberate mistakes at the machine's interface, with a decorator of [`Hardware`].
//!
//! [`BrokenMachine`] forwards the engine's interrupts, invalidations, barriers and root loads, but omits or changes
//! some. A kernel's port of the engine could make the same mistakes. So the engine itself needs no mistakes for this.

use quell::{
    Break, Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, PageRange,
    PageSize, Scope, Tag, TlbRules,
};
use quell_vm::machine::{Entry, Event, Level, Machine, MemoryMap, TABLE_WORDS, Work};
use quell_zero::{PhysicalMemory, Strategy};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

macro_rules! boundary {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// A mistake at the machine's interface.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Boundary { $($(#[doc = $doc])+ $name,)* }

        impl Boundary {
            /// Every mistake.
            pub const ALL: &'static [Boundary] = &[$(Boundary::$name,)*];

            /// Returns the mistake's name.
            pub const fn name(self) -> &'static str {
                match self { $(Boundary::$name => stringify!($name),)* }
            }

            /// Describes the mistake.
            pub const fn account(self) -> &'static str {
                match self { $(Boundary::$name => concat!($($doc,)+),)* }
            }
        }
    };
}

boundary! {
    /// Requests are posted but no interrupt is sent.
    SkipInterrupt,
    /// The last page of a range is not invalidated (bugs 17, 36).
    RangeLosesTail,
    /// Base pages are invalidated in strides of large pages, so only one in 512 is dropped.
    BasePagesInLargeStrides,
    /// A large page is invalidated as if it were a base page.
    LargePageAsBasePage,
    /// A flush does not reach the walker caches although page-table pages were freed (family d).
    TablesFlushedAsLeaf,
    /// Invalidations of all entries are omitted.
    AllStaysCached,
    /// Ranges are broadcast, but a whole tag is invalidated only on the initiator's CPU (bug 35).
    WholeTagStaysLocal,
    /// Masked interrupts stay off.
    InterruptsStayOff,
    /// The batch ends without the completion barrier.
    SkipBarrier,
    /// A root is loaded with its tag's entries kept although they should be dropped (C5).
    RootKeepsEntries,
    /// A CPU that leaves its root keeps it loaded (C6).
    RootStaysLoaded,
    /// The barrier that makes table stores visible to walkers is omitted (bug 16).
    FenceLeftOut,
    /// A CPU does not drop the instructions that it has fetched.
    FetchedTextStays,
    /// The machine reports that a hypervisor will flush a virtual CPU before it runs again, but none does.
    ReentryUnflushed,
    /// A target answers, but the code that polls the flush in flight is not notified (C7).
    AnswerUnheard,
    /// The manager gets another architecture's TLB rules, which don't require break before make.
    RulesOfAnother,
}

/// A machine that may make a mistake at its interface.
#[derive(Debug)]
pub struct BrokenMachine<H> {
    machine: H,
    mistake: Option<Boundary>,
    /// Whether the mistake is suspended ([`BrokenMachine::faultlessly`]).
    spared: AtomicBool,
}

impl<H> BrokenMachine<H> {
    /// Wraps a machine. `mistake` is the mistake to make, if any.
    pub fn new(machine: H, mistake: Option<Boundary>) -> Self {
        BrokenMachine { machine, mistake, spared: AtomicBool::new(false) }
    }

    /// Runs `body` without the mistake.
    pub fn faultlessly<R>(&self, body: impl FnOnce() -> R) -> R {
        self.spared.store(true, Relaxed);
        let result = body();
        self.spared.store(false, Relaxed);
        result
    }

    /// Returns the mistake, unless it is suspended.
    fn mistake(&self) -> Option<Boundary> {
        self.mistake.filter(|_| !self.spared.load(Relaxed))
    }

    fn has(&self, mistake: Boundary) -> bool {
        self.mistake() == Some(mistake)
    }

    /// Returns the part of an invalidation that reaches the machine.
    fn passed_on(&self, what: Invalidation) -> Option<Invalidation> {
        match (self.mistake(), what) {
            (Some(Boundary::AllStaysCached), Invalidation::All | Invalidation::Everything) => None,
            (Some(Boundary::TablesFlushedAsLeaf), Invalidation::Range { tag, range, .. }) => {
                let scope = Scope::Leaf;
                Some(Invalidation::Range { tag, range, scope })
            }
            (Some(Boundary::RangeLosesTail), Invalidation::Range { tag, range, scope })
                if range.pages > range.stride.pages() =>
            {
                let pages = range.pages - range.stride.pages();
                let range = PageRange { pages, ..range };
                Some(Invalidation::Range { tag, range, scope })
            }
            (
                Some(Boundary::BasePagesInLargeStrides),
                Invalidation::Range { tag, range, scope },
            ) if range.stride == PageSize::Base => {
                let stride = PageSize::Large;
                let pages = range.pages.next_multiple_of(stride.pages());
                let range = PageRange { pages, stride, ..range };
                Some(Invalidation::Range { tag, range, scope })
            }
            (Some(Boundary::LargePageAsBasePage), Invalidation::Range { tag, range, scope })
                if range.stride == PageSize::Large =>
            {
                let range = PageRange::base(range.start, 1);
                Some(Invalidation::Range { tag, range, scope })
            }
            _ => Some(what),
        }
    }
}

impl<H> Deref for BrokenMachine<H> {
    type Target = H;
    #[inline]
    fn deref(&self) -> &H {
        &self.machine
    }
}

// SAFETY: the wrapped machine fulfils the contract and is in software, so this decorator's mistakes reach no real
// memory.
unsafe impl<H: Hardware> Hardware for BrokenMachine<H> {
    type Word = H::Word;
    type Broadcasts = Self;
    const RANGES: usize = H::RANGES;

    fn ranges(&self) -> usize {
        self.machine.ranges()
    }

    fn shares_lines_from(&self) -> usize {
        self.machine.shares_lines_from()
    }

    fn broadcasts(&self) -> Option<&Self> {
        self.machine.broadcasts().map(|_| self)
    }

    #[inline]
    fn this_cpu(&self) -> CpuId {
        self.machine.this_cpu()
    }
    fn features(&self) -> Features {
        self.machine.features()
    }
    fn fence(&self) {
        if !self.has(Boundary::FenceLeftOut) {
            self.machine.fence();
        }
    }
    fn invalidate(&self, what: Invalidation) {
        if let Some(what) = self.passed_on(what) {
            self.machine.invalidate(what);
        }
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let keep = keep || self.has(Boundary::RootKeepsEntries);
        // SAFETY: the caller promises the same about the root.
        unsafe { self.machine.load_root(root, tag, keep) };
    }
    fn unload_root(&self) {
        if !self.has(Boundary::RootStaysLoaded) {
            self.machine.unload_root();
        }
    }
    fn flush_answered(&self) {
        if !self.has(Boundary::AnswerUnheard) {
            self.machine.flush_answered();
        }
    }
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        self.has(Boundary::ReentryUnflushed) || self.machine.flush_on_reentry(target)
    }
    fn synchronize_text(&self) {
        if !self.has(Boundary::FetchedTextStays) {
            self.machine.synchronize_text();
        }
    }
    fn interrupt(&self, targets: &CpuSet) {
        if !self.has(Boundary::SkipInterrupt) {
            self.machine.interrupt(targets);
        }
    }
    fn mask_interrupts(&self) -> bool {
        self.machine.mask_interrupts()
    }
    fn restore_interrupts(&self, were_on: bool) {
        if !self.has(Boundary::InterruptsStayOff) {
            self.machine.restore_interrupts(were_on);
        }
    }
    fn relax(&self) {
        self.machine.relax();
    }
}

impl<H: PhysicalMemory> PhysicalMemory for BrokenMachine<H> {
    unsafe fn zero(&self, extent: Extent, strategy: Strategy) {
        // SAFETY: the caller promises the same.
        unsafe { self.machine.zero(extent, strategy) };
    }
}

impl<H: Hardware> Broadcast for BrokenMachine<H> {
    fn start(&self, what: Invalidation) {
        match (self.passed_on(what), self.machine.broadcasts()) {
            (Some(Invalidation::Tag(tag)), _) if self.has(Boundary::WholeTagStaysLocal) => {
                self.machine.invalidate(Invalidation::Tag(tag));
            }
            (Some(what), Some(broadcasts)) => broadcasts.start(what),
            _ => {}
        }
    }
    fn complete(&self) {
        if let Some(broadcasts) = self.machine.broadcasts()
            && !self.has(Boundary::SkipBarrier)
        {
            broadcasts.complete();
        }
    }
}

// SAFETY: the wrapped machine fulfils the contract.
unsafe impl<M: Machine> Machine for BrokenMachine<M> {
    fn memory(&self) -> MemoryMap {
        self.machine.memory()
    }
    fn cpu_count(&self) -> usize {
        self.machine.cpu_count()
    }
    fn home_node(&self, cpu: CpuId) -> usize {
        self.machine.home_node(cpu)
    }
    fn prepare_root(&self, root: Frame) {
        self.machine.prepare_root(root);
    }
    fn tlb_rules(&self) -> TlbRules {
        let rules = self.machine.tlb_rules();
        if self.has(Boundary::RulesOfAnother) {
            let break_before_make = Break::Never;
            return TlbRules { break_before_make, ..rules };
        }
        rules
    }
    fn preempt(&self) {
        self.machine.preempt();
    }
    fn charge(&self, work: Work) {
        self.machine.charge(work);
    }
    fn table(&self, frame: Frame) -> &[M::Word; TABLE_WORDS] {
        self.machine.table(frame)
    }

    fn words_in_use(&self, frame: Frame) -> impl Iterator<Item = usize> {
        self.machine.words_in_use(frame)
    }
    fn encode(&self, entry: Entry, level: Level) -> u64 {
        self.machine.encode(entry, level)
    }
    fn decode(&self, word: u64, level: Level) -> Entry {
        self.machine.decode(word, level)
    }
    fn hardware_dirty(&self) -> bool {
        self.machine.hardware_dirty()
    }
    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        self.machine.read_frame(frame, offset, into);
    }
    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        self.machine.write_frame(frame, offset, from);
    }
    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        self.machine.copy_frames(from, to, frames);
    }
    fn now(&self) -> u64 {
        self.machine.now()
    }
    fn halt(&self, until: u64) {
        self.machine.halt(until);
    }
    fn note(&self, event: Event) {
        self.machine.note(event);
    }
}

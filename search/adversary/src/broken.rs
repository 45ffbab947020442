//! Lists the deliberate mistakes at the machine's interface.
//!
//! The [machine](Adversary) omits or changes some of the engine's interrupts, invalidations, barriers and root loads. A
//! kernel's port of the engine could make the same mistakes. So the engine itself needs no mistakes for this.

use crate::hardware::Adversary;
use quell::{Invalidation, PageRange, PageSize, Scope};

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

impl Adversary {
    /// Returns whether the run makes this mistake now.
    #[inline]
    pub(crate) fn has(&self, mistake: Boundary) -> bool {
        self.mistake() == Some(mistake)
    }

    /// Returns the part of an invalidation that reaches the machine.
    pub(crate) fn passed_on(&self, what: Invalidation) -> Option<Invalidation> {
        let Some(mistake) = self.mistake() else { return Some(what) };
        let omits = mistake == Boundary::AllStaysCached;
        if omits && matches!(what, Invalidation::All | Invalidation::Everything) {
            return None;
        }
        let Invalidation::Range { tag, range, scope } = what else { return Some(what) };
        let stride = range.stride.pages();
        let (range, scope) = match mistake {
            Boundary::TablesFlushedAsLeaf => (range, Scope::Leaf),
            Boundary::RangeLosesTail if range.pages > stride => {
                (PageRange { pages: range.pages - stride, ..range }, scope)
            }
            Boundary::BasePagesInLargeStrides if range.stride == PageSize::Base => {
                let stride = PageSize::Large;
                let pages = range.pages.next_multiple_of(stride.pages());
                (PageRange { pages, stride, ..range }, scope)
            }
            Boundary::LargePageAsBasePage if range.stride == PageSize::Large => {
                (PageRange::base(range.start, 1), scope)
            }
            _ => (range, scope),
        };
        Some(Invalidation::Range { tag, range, scope })
    }
}

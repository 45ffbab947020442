//! Describes the kinds of calls in a workload, and counts similar calls.

/// The size of a page in bytes.
pub const PAGE: u64 = 4096;

/// The largest range in the file in bytes. Larger ones are cut to this.
pub const LARGEST: u64 = 1 << 30;

/// The largest number of pages shared by a fork that one statement copies.
const COPIED: u64 = 64;

/// The number of pages that Linux reclaims for each flush (`SWAP_CLUSTER_MAX`).
const RECLAIMED: u64 = 32;

/// The kind of a call, or of a flush for the kernel's own reason.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Discard,
    PageOut,
    Unmap,
    Protect,
    Remap,
    /// The thread writes to a page that it shares with a child.
    Copy,
    /// The thread reclaims pages of files, because its memory is short.
    Reclaim,
}

impl Kind {
    pub fn of(call: &str, how: u64) -> Option<Kind> {
        match (call, how) {
            // MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT.
            ("madvise", 4 | 8) => Some(Kind::Discard),
            ("madvise", 21) => Some(Kind::PageOut),
            ("munmap", _) => Some(Kind::Unmap),
            ("mprotect" | "pkey_mprotect", _) => Some(Kind::Protect),
            ("mremap", _) => Some(Kind::Remap),
            _ => None,
        }
    }

    /// Returns the kind of flush for this kernel reason, in the thread that triggers it.
    pub fn of_cause(cause: &str) -> Option<Kind> {
        match cause {
            "copy-on-write" => Some(Kind::Copy),
            "reclaim (memory cgroup)" | "reclaim (direct)" => Some(Kind::Reclaim),
            _ => None,
        }
    }

    /// Returns whether the program makes a call for it.
    pub fn is_call(self) -> bool {
        !matches!(self, Kind::Copy | Kind::Reclaim)
    }

    /// Returns the number of bytes that one flush covers.
    pub fn unit(self) -> u64 {
        match self {
            Kind::Reclaim => RECLAIMED * PAGE,
            _ => PAGE,
        }
    }
}

/// The properties of similar calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallKey {
    pub kind: Kind,
    pub bytes: u64,
    /// Whether it was about to interrupt others ("remote IPI send"). After that event, the kernel still skips lazy
    /// CPUs.
    pub said: bool,
    /// Whether it interrupted other CPUs.
    pub asked: bool,
}

/// The number of similar calls, and their effects.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTotals {
    pub count: u64,
    /// The largest number of pages that one of them found.
    pub pages: u64,
    /// The interrupts that they sent.
    pub interrupts: u64,
}

impl CallTotals {
    /// Combines several copies into one statement. A fork for each would cost more than the copy.
    pub fn together(self, alike: CallKey) -> (CallKey, CallTotals) {
        if alike.kind != Kind::Copy || self.count == 0 {
            return (alike, self);
        }
        let pages = self.count.min(COPIED);
        let made = CallTotals { count: self.count.div_ceil(pages), pages, ..self };
        let bytes = pages * PAGE;
        (CallKey { bytes, ..alike }, made)
    }

    /// Returns the number of flushes by these calls, if they flush other CPUs.
    pub fn flushes(self, alike: &CallKey) -> u64 {
        match alike.kind {
            Kind::Copy => self.count * self.pages,
            _ => self.count,
        }
    }

    pub fn add(&mut self, other: CallTotals) {
        self.count += other.count;
        self.pages = self.pages.max(other.pages);
        self.interrupts += other.interrupts;
    }
}

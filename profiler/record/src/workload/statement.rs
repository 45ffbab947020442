//! A call as a workload's statement: what kind it is of, and how often calls that are alike were made.

/// What memory is counted in, in bytes.
pub const PAGE: u64 = 4096;

/// How large a range is in the file; larger ones become as large.
pub const LARGEST: u64 = 1 << 30;

/// How many pages that were shared by a fork are copied in one statement of the file.
const COPIED: u64 = 64;

/// How many pages Linux reclaims behind one flush (`SWAP_CLUSTER_MAX`).
const RECLAIMED: u64 = 32;

/// What a call becomes; and what the kernel does to a process that it did not call for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Discard,
    PageOut,
    Unmap,
    Protect,
    Remap,
    /// A write to a page that a child shares.
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
}

impl Kind {
    /// What the kernel does for this reason, in the thread that it happens to.
    pub fn of_cause(cause: &str) -> Option<Kind> {
        match cause {
            "copy-on-write" => Some(Kind::Copy),
            "reclaim (memory cgroup)" | "reclaim (direct)" => Some(Kind::Reclaim),
            _ => None,
        }
    }

    /// Whether the program calls for it.
    pub fn is_call(self) -> bool {
        !matches!(self, Kind::Copy | Kind::Reclaim)
    }

    /// How many bytes one flush of it is about.
    pub fn unit(self) -> u64 {
        match self {
            Kind::Reclaim => RECLAIMED * PAGE,
            _ => PAGE,
        }
    }
}

/// Calls that are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Alike {
    pub kind: Kind,
    pub bytes: u64,
    /// Whether it said that it asks others ("remote IPI send"), which the kernel does before it leaves out lazy CPUs.
    pub said: bool,
    /// Whether it asked other CPUs to flush.
    pub asked: bool,
}

/// How often calls that are alike were made, and what they did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Made {
    pub count: u64,
    /// How many pages one of them found, at most.
    pub pages: u64,
    /// Interrupts that they sent.
    pub interrupts: u64,
}

impl Made {
    /// Copies, taken together: a fork for each would be dearer than what it is there for.
    pub fn together(self, alike: Alike) -> (Alike, Made) {
        if alike.kind != Kind::Copy || self.count == 0 {
            return (alike, self);
        }
        let pages = self.count.min(COPIED);
        let made = Made {
            count: self.count.div_ceil(pages),
            pages,
            ..self
        };
        let bytes = pages * PAGE;
        (Alike { bytes, ..alike }, made)
    }

    /// How often one of these flushes, if it asks others.
    pub fn flushes(self, alike: &Alike) -> u64 {
        match alike.kind {
            Kind::Copy => self.count * self.pages,
            _ => self.count,
        }
    }

    pub fn add(&mut self, other: Made) {
        self.count += other.count;
        self.pages = self.pages.max(other.pages);
        self.interrupts += other.interrupts;
    }
}

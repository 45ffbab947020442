//! A call as a workload's statement: what kind it is of, and how often calls that are alike were made.

/// What memory is counted in, in bytes.
pub const PAGE: u64 = 4096;

/// How large a range is in the file; larger ones become as large.
pub const LARGEST: u64 = 1 << 30;

/// What a call becomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Discard,
    PageOut,
    Unmap,
    Protect,
    Remap,
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
    pub fn add(&mut self, other: Made) {
        self.count += other.count;
        self.pages = self.pages.max(other.pages);
        self.interrupts += other.interrupts;
    }
}

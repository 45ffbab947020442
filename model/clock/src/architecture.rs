//! Collects the properties of an architecture: entry format, reach of invalidations, cost of orderings, and tags.
//!
//! To add an architecture, extend [`Architecture`]. The compiler then reports every decision that depends on it.

use quell::{Entry, Frame, Level, TlbRules};
use quell_arch::{aarch64, x86_64};
use std::sync::atomic::Ordering;

/// The architecture of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Architecture {
    /// x86-64.
    X86_64,
    /// AArch64.
    Aarch64,
}

impl Architecture {
    /// Every architecture, in the order of [`Architecture::NAMES`].
    pub const ALL: &[Architecture] = &[Architecture::X86_64, Architecture::Aarch64];

    /// The names of all architectures in machine files.
    pub const NAMES: &[&str] = &["x86-64", "aarch64"];

    /// Returns the architecture's name in machine files.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the architecture's name in Linux (`uname -m`).
    pub const fn in_linux(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        }
    }

    /// Returns whether its processors have the tags with this name in machine files (`tlb.tags`).
    pub(crate) fn has_tags(self, tags: &str) -> bool {
        match self {
            _ if tags == "none" => true,
            Architecture::X86_64 => tags == "pcid",
            Architecture::Aarch64 => matches!(tags, "asid8" | "asid16"),
        }
    }

    /// Returns the word of a present entry.
    pub(crate) fn encode(self, entry: Entry, level: Level) -> u64 {
        match self {
            Architecture::X86_64 => x86_64::entry::encode(entry, level),
            Architecture::Aarch64 => aarch64::entry::encode(entry, level),
        }
    }

    /// Decodes a word of a table of `level`.
    #[inline(always)]
    pub(crate) fn decode(self, raw: u64, level: Level) -> Entry {
        match self {
            Architecture::X86_64 => x86_64::entry::decode(raw, level),
            Architecture::Aarch64 => aarch64::entry::decode(raw, level),
        }
    }

    /// Returns the table to which a word of a table of `level` points, if any. A walk needs nothing else above the
    /// leaf.
    #[inline(always)]
    pub(crate) fn table(self, raw: u64, level: Level) -> Option<Frame> {
        let entry = self.decode(raw, level);
        entry.table.then_some(entry.frame)
    }

    /// Returns the TLB rules that the engine may rely on.
    pub(crate) fn tlb_rules(self) -> TlbRules {
        match self {
            Architecture::X86_64 => x86_64::entry::RULES,
            Architecture::Aarch64 => aarch64::entry::RULES,
        }
    }

    /// Returns the word after a walker used it: accessed, and dirty after a store.
    #[inline]
    pub(crate) fn used(self, raw: u64, write: bool) -> u64 {
        match self {
            Architecture::X86_64 => {
                let dirty = if write { x86_64::entry::DIRTY } else { 0 };
                raw | x86_64::entry::ACCESSED | dirty
            }
            Architecture::Aarch64 => aarch64::entry::mark_dirty(raw, write).unwrap_or(raw),
        }
    }

    /// Returns whether an invalidation of leaf entries names their level and keeps entries of other levels (Arm's level
    /// hint, for example).
    #[inline]
    pub(crate) fn hints_level(self) -> bool {
        match self {
            Architecture::X86_64 => false,
            Architecture::Aarch64 => true,
        }
    }

    /// Returns whether an invalidation of a page drops everything under its tag in the walker caches (INVLPG).
    #[inline]
    pub(crate) fn page_drops_walkers(self) -> bool {
        match self {
            Architecture::X86_64 => true,
            Architecture::Aarch64 => false,
        }
    }

    /// Returns whether a fence of this ordering is an instruction.
    #[inline]
    pub(crate) fn fences(self, order: Ordering) -> bool {
        match self {
            Architecture::X86_64 => order == Ordering::SeqCst,
            Architecture::Aarch64 => true,
        }
    }

    /// Returns whether an atomic exchange of this ordering waits until the stores before it are done.
    #[inline]
    pub(crate) fn drains_stores(self, order: Ordering) -> bool {
        match self {
            Architecture::X86_64 => true,
            Architecture::Aarch64 => !matches!(order, Ordering::Relaxed | Ordering::Acquire),
        }
    }
}

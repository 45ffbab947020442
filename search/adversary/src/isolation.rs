//! Tracks the user's half of each address space under page-table isolation.
//!
//! A port of the engine must keep such a record, because user mode has its own tags, which the engine doesn't know. The
//! record is [`quell_arch::x86_64::isolation::UserHalves`]. The module [`machine`](crate::machine) contains the machine
//! with these tags.

use quell::{Invalidation, Tag};
use quell_arch::x86_64::isolation::UserHalves;

/// The bit of CR3 that keeps the entries under the tag.
pub(crate) const KEEP: u64 = 1 << 63;

/// The user halves of a CPU that need a flush, and whether the CPU is in user mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserHalfState {
    behind: u64,
    /// The root and the engine's tag, while the CPU is in user mode.
    pub(crate) user: Option<(u32, u16)>,
}

impl UserHalfState {
    /// Creates the state of a CPU that has used no half.
    pub(crate) fn new() -> Self {
        UserHalfState { behind: UserHalves::new().to_bits(), user: None }
    }

    /// Returns the state that affects the CPU's future.
    pub(crate) fn state(&self) -> (u64, bool) {
        (self.behind, self.user.is_some())
    }

    pub(crate) fn note<R>(&mut self, note: impl FnOnce(&UserHalves) -> R) -> R {
        let halves = UserHalves::from_bits(self.behind);
        let noted = note(&halves);
        self.behind = halves.to_bits();
        noted
    }

    /// Records that the kernel's half was invalidated: the user's half of the same space needs a flush.
    pub(crate) fn invalidated(&mut self, what: Invalidation) {
        self.note(|halves| halves.invalidated(what));
    }

    /// Records that a root was loaded. If the tag's entries weren't kept, the tag belongs to another space now, in user
    /// mode too.
    pub(crate) fn loaded(&mut self, tag: u16, keep: bool) {
        self.note(|halves| halves.loaded(Tag(tag), keep));
    }
}

//! The user's half of each address space, as in a port of the engine with page-table isolation.
//!
//! User mode has its own tags, unknown to the engine. The machine that has them is in [`machine`](crate::machine).

use quell::{Invalidate, Tag};
use quell_arch::x86_64::isolation::UserHalves;

/// Set in CR3 to keep the entries under the tag.
pub(crate) const KEEP: u64 = 1 << 63;

/// Which halves of a CPU are behind, and where it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    behind: u64,
    /// The root and the engine's tag, while the CPU is in user mode.
    pub(crate) user: Option<(u32, u16)>,
}

impl Halves {
    /// Of a CPU that has used none.
    pub(crate) fn new() -> Self {
        Halves {
            behind: UserHalves::new().to_bits(),
            user: None,
        }
    }

    /// Returns the state that determines its future.
    pub(crate) fn state(&self) -> (u64, bool) {
        (self.behind, self.user.is_some())
    }

    pub(crate) fn note<R>(&mut self, note: impl FnOnce(&UserHalves) -> R) -> R {
        let halves = UserHalves::from_bits(self.behind);
        let noted = note(&halves);
        self.behind = halves.to_bits();
        noted
    }

    /// Notes that the kernel's half was invalidated: the user's half, under the tag of the same space, is behind.
    pub(crate) fn invalidated(&mut self, what: Invalidate) {
        self.note(|halves| halves.invalidated(what));
    }

    /// Records a loaded root. A tag loaded without its entries belongs to another space now, in user mode too.
    pub(crate) fn loaded(&mut self, tag: u16, keep: bool) {
        self.note(|halves| halves.loaded(Tag(tag), keep));
    }
}

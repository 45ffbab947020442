//! What a port of the engine with page-table isolation must not forget: rules as the engine's own, with a mutant for
//! each.
//!
//! User mode runs under tags of its own, of which the engine does not know. The machine that has them is in
//! [`machine`](crate::machine); what it notes of them, in `quell_arch::x86_64::isolation`, is told by what these rules
//! let through.

use quell::{Invalidate, Tag};
use quell_arch::x86_64::isolation::UserHalves;

quell::rules! {
    /// What a port with page-table isolation must not forget.
    pub(crate) trait IsolationRules, mod list;

    /// An invalidation of the kernel's half reaches the user's too, under the tag of the same space.
    "C1" fn half_to_note(what: Invalidate) -> Option<Invalidate> { Some(what) }
        or UserHalfKept { None } "What the engine invalidates stays in the user's half."
        or WrongHalfNoted { Some(of_neighbour(what)) } "The user's half of another tag is flushed in place of the one that is behind.";

    /// A tag that is loaded without what it held is another space's now, in user mode too.
    "C5" fn half_is_kept(keep: bool) -> bool { keep }
        or UserHalfOutlivesTag { true } "A tag goes to another space, and its user's half keeps what it held (C5).";
}

/// The same for the other of two tags.
fn of_neighbour(what: Invalidate) -> Invalidate {
    let neighbour = |tag: Tag| Tag(tag.0 ^ 3);
    match what {
        Invalidate::Range { tag, range, scope } => Invalidate::Range {
            tag: neighbour(tag),
            range,
            scope,
        },
        Invalidate::Tag(tag) => Invalidate::Tag(neighbour(tag)),
        other => other,
    }
}

pub use list::ALL;

/// Set in CR3, what is held under the tag stays.
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

    /// What its future depends on.
    pub(crate) fn state(&self) -> (u64, bool) {
        (self.behind, self.user.is_some())
    }

    pub(crate) fn note<R>(&mut self, note: impl FnOnce(&UserHalves) -> R) -> R {
        let halves = UserHalves::from_bits(self.behind);
        let noted = note(&halves);
        self.behind = halves.to_bits();
        noted
    }

    /// The kernel's half was invalidated.
    pub(crate) fn invalidated(&mut self, what: Invalidate) {
        self.note(|halves| halves.invalidated(what));
    }

    /// A root was loaded.
    pub(crate) fn loaded(&mut self, tag: u16, keep: bool) {
        self.note(|halves| halves.loaded(Tag(tag), keep));
    }
}

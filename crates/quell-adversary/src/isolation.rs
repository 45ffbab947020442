//! What a port of the engine with page-table isolation must not forget: rules as the engine's own, with a mutant for each.
//!
//! User mode runs under tags of its own, of which the engine does not know. The machine that has them is in
//! [`machine`](crate::machine), with `quell_arch::x86_64::isolation`, which these rules feed.

use quell::{Invalidate, Tag};

quell::rules! {
    /// What a port with page-table isolation must not forget.
    pub(crate) trait IsolationRules, mod list;

    /// What is invalidated of the kernel's half goes from the user's too, under the tag of the same space.
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

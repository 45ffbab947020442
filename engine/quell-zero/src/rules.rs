//! The rules of zeroing that must never be forgotten.
//!
//! The form is that of [`quell::rules`]: the decision, what it keeps, the reason, and what each mutant decides instead.
//! C8 is the clause of the contract; a rule of S1 keeps no clause but a promise of [`ClearPolicy`](crate::ClearPolicy)
//! or [`Budget`](crate::Budget), and a machine that forgets it clears slowly, not wrongly.

use crate::zeroed::Zeroed;
use quell::Extent;

quell::rules! {
    /// The rules of zeroing.
    pub trait ZeroRules, mod zero;

    /// The new owner reads every byte of its pages.
    "C8" fn run(piece: Extent, last: bool, hot: bool) -> Extent { piece }
        or ZeroSkipsTail { without_tail(piece, last) }
            "Clearing leaves out the last page of an extent (C8)."
        or ZeroSkipsFaultingPage { unless_hot(piece, hot) }
            "Clearing leaves out the faulting page and its neighbours (C8).";

    /// The pages cleared last are still in the caches when the program reads them.
    "S1" fn order<T>(before: T, after: T, fault: T) -> [T; 3] { [before, after, fault] }
        or ZeroFaultingPageFirst { [fault, after, before] }
            "The faulting page is cleared first, so that it is cold when the program reads it (S1).";

    /// No other thread runs on the CPU until a piece has been cleared.
    "S1" fn cap(bytes: Option<u64>) -> Option<u64> { bytes }
        or ZeroIgnoresCap { None }
            "A piece may be longer than the cap (S1).";

    /// A kernel that is preempted only where it asks to be must ask.
    "S1" fn between_pieces(preempt: impl FnOnce()) { preempt() }
        or ZeroHoldsCpu {}
            "There is no preemption point between pieces (S1).";

    /// A fault that takes a frame out of the pool does not clear it again.
    "C8" fn into_pool<F>(frame: F, clear: impl FnOnce(F) -> Zeroed<F>) -> Zeroed<F> { clear(frame) }
        or PoolHandsOutDirty { Zeroed::unchecked(frame) }
            "The pool takes frames in without clearing them (C8).";

    /// Programs that run need the memory's bandwidth more than the pool does.
    "S1" fn may_fill(granted: bool) -> bool { granted }
        or PoolIgnoresBudget { true }
            "The pool is filled without regard to the budget of bandwidth.";
}

/// The extent without its last frame, if it is the last extent.
fn without_tail(extent: Extent, last: bool) -> Extent {
    Extent {
        frames: extent.frames - u64::from(last),
        ..extent
    }
}

/// The extent, or none of it if it is read next.
fn unless_hot(extent: Extent, hot: bool) -> Extent {
    Extent {
        frames: if hot { 0 } else { extent.frames },
        ..extent
    }
}

//! The kinds of phrases from which programs over the engine are drawn.

use crate::generated::program::{EngineOp, Right};

/// A kind of phrase of a program over the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    Map,
    MapFile,
    MapLarge,
    /// Maps blocks of contiguous entries, and unmaps them or one of their pages.
    Block,
    Unmap,
    Protect,
    Reclaim,
    Sweep,
    Unlink,
    Mixed,
    Confirm,
    Unprotect,
    Code,
    Move,
    Migrate,
    Withdraw,
    Split,
    Collapse,
    Switch,
    Idle,
    FileReclaim,
    Lazily,
    Reuse,
    Reinstate,
    WriteFile,
    Pay,
    CatchUp,
    Hotplug,
    Retire,
    Mask,
    Signal,
    Tour,
    /// Uses the kernel's own half.
    Own,
    /// Unmaps pages of it.
    UnmapOwn,
    /// Unmaps pages of it lazily.
    OwnLazily,
    /// Unmaps all of it, with its table.
    UnlinkOwn,
    /// Writes its text.
    Patch,
    /// Runs an undisturbed program.
    Undisturbed,
    /// Flushes without waiting for the flush.
    Start,
    /// Fills a batch that another CPU ends.
    Share,
    /// Flushes without a batch.
    AtOnce,
}

impl Kind {
    /// Returns the kind of phrases to which an operation belongs, unless it is just an access.
    pub(super) fn of(op: &EngineOp) -> Option<Self> {
        Some(match *op {
            EngineOp::Switch { .. } => Kind::Tour,
            EngineOp::Lazy | EngineOp::Leave | EngineOp::Resume => Kind::Idle,
            EngineOp::Undisturbed => Kind::Undisturbed,
            EngineOp::Map { .. } => Kind::Map,
            EngineOp::MapFile { .. } => Kind::MapFile,
            EngineOp::MapLarge { .. } | EngineOp::MapHuge { .. } => Kind::MapLarge,
            EngineOp::MapBlock { .. } => Kind::Block,
            EngineOp::Unmap { .. } => Kind::Unmap,
            EngineOp::Sweep { .. } => Kind::Sweep,
            EngineOp::Protect { right, .. } => match right {
                Right::Write => Kind::Protect,
                Right::Execute => Kind::Code,
            },
            EngineOp::Unlink { .. } => Kind::Unlink,
            EngineOp::UnmapAtOnce { .. }
            | EngineOp::UnlinkAtOnce { .. }
            | EngineOp::UnmapCoalesced { .. } => Kind::AtOnce,
            EngineOp::Start { .. } => Kind::Start,
            EngineOp::Confirm { .. } => Kind::Confirm,
            EngineOp::Unprotect { .. } => Kind::Unprotect,
            EngineOp::Move { .. } => Kind::Move,
            EngineOp::Migrate { .. } => Kind::Migrate,
            EngineOp::Withdraw { .. } => Kind::Withdraw,
            EngineOp::Split { .. } => Kind::Split,
            EngineOp::Collapse { .. } => Kind::Collapse,
            EngineOp::Reclaim { .. } => Kind::FileReclaim,
            EngineOp::ReclaimLazily { .. } | EngineOp::ReclaimWithOwn { .. } => Kind::Lazily,
            EngineOp::Reuse { .. } => Kind::Reuse,
            EngineOp::Reinstate { .. } => Kind::Reinstate,
            EngineOp::WriteFile { .. } => Kind::WriteFile,
            EngineOp::Pay => Kind::Pay,
            EngineOp::CatchUp => Kind::CatchUp,
            EngineOp::Offline | EngineOp::Online => Kind::Hotplug,
            EngineOp::Retire { .. } | EngineOp::Revive { .. } => Kind::Retire,
            EngineOp::MapOwn { .. } | EngineOp::ReadOwn { .. } | EngineOp::RunOwn { .. } => {
                Kind::Own
            }
            EngineOp::UnmapOwn { .. } => Kind::UnmapOwn,
            EngineOp::UnlinkOwn => Kind::UnlinkOwn,
            EngineOp::UnmapOwnLazily { .. } | EngineOp::ReuseOwn { .. } => Kind::OwnLazily,
            EngineOp::Patch { .. } => Kind::Patch,
            EngineOp::Mask { .. } => Kind::Mask,
            EngineOp::Read { .. }
            | EngineOp::Write { .. }
            | EngineOp::Fetch { .. }
            | EngineOp::Open { .. }
            | EngineOp::Finish { .. }
            | EngineOp::Forget { .. }
            | EngineOp::Tell { .. }
            | EngineOp::Wait { .. } => return None,
        })
    }

    /// Returns whether it removes pages of the kernel's own half, or writes there.
    pub(super) fn changes_own(self) -> bool {
        use Kind::{OwnLazily, Patch, UnlinkOwn, UnmapOwn};
        matches!(self, UnmapOwn | OwnLazily | UnlinkOwn | Patch)
    }
}

/// Every kind with its weight.
pub(super) const KINDS: [(u64, Kind); 43] = [
    (8, Kind::Read),
    (5, Kind::Write),
    (4, Kind::Map),
    (2, Kind::MapFile),
    (1, Kind::MapLarge),
    (1, Kind::Block),
    (8, Kind::Unmap),
    (4, Kind::Protect),
    (3, Kind::Reclaim),
    (1, Kind::Sweep),
    (3, Kind::Unlink),
    (2, Kind::Mixed),
    (3, Kind::Confirm),
    (2, Kind::Unprotect),
    (3, Kind::Code),
    (2, Kind::Move),
    (2, Kind::Migrate),
    (1, Kind::Withdraw),
    (1, Kind::Split),
    (1, Kind::Collapse),
    (5, Kind::Switch),
    (4, Kind::Idle),
    (3, Kind::FileReclaim),
    (6, Kind::Lazily),
    (4, Kind::Reuse),
    (3, Kind::Reinstate),
    (3, Kind::WriteFile),
    (2, Kind::Pay),
    (1, Kind::CatchUp),
    (2, Kind::Hotplug),
    (2, Kind::Retire),
    (2, Kind::Mask),
    (2, Kind::Signal),
    (5, Kind::Tour),
    (2, Kind::Own),
    (3, Kind::UnmapOwn),
    (2, Kind::OwnLazily),
    (1, Kind::UnlinkOwn),
    (1, Kind::Patch),
    (3, Kind::Undisturbed),
    (2, Kind::Start),
    (2, Kind::Share),
    (2, Kind::AtOnce),
];

/// Kinds with a common subject. Some mistakes show only if several of them meet.
pub(super) const THEMES: [&[Kind]; 7] = [
    // CPUs and spaces that appear and disappear.
    &[Kind::Switch, Kind::Tour, Kind::Idle, Kind::Hotplug, Kind::Retire, Kind::Unmap, Kind::Unlink],
    // Spaces that end, CPUs that go offline, and lazy CPUs.
    &[Kind::Retire, Kind::Hotplug, Kind::Idle, Kind::Unlink],
    // Deferred flushes.
    &[
        Kind::FileReclaim,
        Kind::Lazily,
        Kind::Reuse,
        Kind::Reinstate,
        Kind::WriteFile,
        Kind::Pay,
        Kind::CatchUp,
        Kind::OwnLazily,
        Kind::Undisturbed,
    ],
    // Flushes of both halves that are deferred together, and CPUs that run undisturbed during one of them.
    &[Kind::Lazily, Kind::Reuse, Kind::OwnLazily, Kind::Undisturbed],
    // The kernel's own half and its users.
    &[
        Kind::Own,
        Kind::UnmapOwn,
        Kind::OwnLazily,
        Kind::UnlinkOwn,
        Kind::Patch,
        Kind::Undisturbed,
        Kind::Idle,
        Kind::Hotplug,
    ],
    NESTED,
    ROUND,
];

/// Tags that run out while CPUs switch between spaces.
pub(super) const ROUND: &[Kind] =
    &[Kind::Tour, Kind::Switch, Kind::Unlink, Kind::Unmap, Kind::Hotplug];

/// Flushes that interrupt each other, for example by threads that preempt others.
pub(super) const NESTED: &[Kind] = &[
    Kind::Unmap,
    Kind::Reclaim,
    Kind::Protect,
    Kind::Start,
    Kind::Share,
    Kind::Mask,
    Kind::Switch,
    Kind::Tour,
    Kind::Idle,
];

//! Phrases that use the kernel's own half.

use super::engine::Swarm;
use super::kinds::Kind;
use crate::generated::program::{BatchPurpose, EngineOp};
use crate::schedule::Rng;

impl Swarm {
    /// Returns whether a program uses the kernel's own half.
    pub(super) fn uses_own_half(&self) -> bool {
        use Kind::{Own, Undisturbed};
        let uses = |kind| matches!(kind, Own | Undisturbed) || kind.changes_own();
        self.kinds.iter().any(|&(_, kind)| uses(kind))
    }

    /// Draws a phrase that unmaps pages there, or writes text.
    pub(super) fn change_own(&self, kind: Kind, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        let own = rng.pick(&self.own);
        match kind {
            Kind::UnmapOwn => {
                let purpose = rng.pick(&[BatchPurpose::Call, BatchPurpose::Reclaim]);
                into.push(EngineOp::UnmapOwn { own, purpose });
                if rng.one_in(3) {
                    into.push(EngineOp::MapOwn { own });
                }
            }
            Kind::OwnLazily => {
                into.push(EngineOp::UnmapOwnLazily { own });
                into.push(match rng.below(4) {
                    0 => EngineOp::MapOwn { own },
                    1 => EngineOp::Pay,
                    _ => EngineOp::ReuseOwn { own },
                });
            }
            Kind::UnlinkOwn => {
                into.push(EngineOp::UnlinkOwn);
                if rng.one_in(2) {
                    into.push(EngineOp::MapOwn { own });
                }
            }
            _ => into.push(EngineOp::Patch { own }),
        }
    }

    /// Draws an undisturbed program: its accesses, and mostly a reason to enter the kernel.
    pub(super) fn run_undisturbed(&self, page: u64, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        into.push(EngineOp::Undisturbed);
        for _ in 0..rng.below(3) {
            into.push(EngineOp::Read { page });
        }
        if rng.below(3) > 0 {
            into.push(self.use_own(rng));
        }
    }

    /// Draws an access.
    pub(super) fn use_own(&self, rng: &mut Rng) -> EngineOp {
        let own = rng.pick(&self.own);
        if rng.one_in(3) { EngineOp::RunOwn { own } } else { EngineOp::ReadOwn { own } }
    }
}

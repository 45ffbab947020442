//! Models page-table isolation: user mode has its own tag, and the user's half of each space is flushed late.
//!
//! On a machine with isolation, the engine assigns tags as on any other, and flushes the kernel's half. The user's half
//! is the responsibility of the port, as in a real kernel. [`UserHalfState`] records the halves that need a
//! flush. The return to user mode precedes an access of a program: it loads the user's tag, and
//! flushes it if necessary. In user mode, the walker fills under that tag until the CPU does anything else: an
//! operation of the kernel, an interrupt, an NMI. An NMI handler that accesses user memory does so in kernel mode,
//! under the engine's tag. The kernel's own half isn't walked in user mode.
//!
//! Both roots lead to the same tables. On real machines they differ in the kernel's half.

use super::Core;
use quell::{Frame, Invalidation, Tag};
use quell_arch::x86_64::isolation::{UserHalves, user_tag};

impl Core {
    /// Takes the CPU to user mode, if it isn't there yet.
    pub(crate) fn enter_user_half(&mut self, me: usize, root: u32) {
        if !self.kind.isolated || self.halves[me].user.is_some() {
            return;
        }
        let tag = self.mmu.tag(me);
        let cr3 = self.halves[me].note(|halves| halves.cr3(Frame(root.into()), Tag(tag)));
        self.halves[me].user = Some((root, tag));
        self.load_half(me, root, user_tag(Tag(tag)).0, cr3 & KEEP != 0, true);
    }

    /// Takes the CPU to the kernel, if it is in user mode.
    #[inline]
    pub(crate) fn leave_user_half(&mut self, me: usize) {
        if self.kind.isolated {
            self.leave_isolated_half(me);
        }
    }

    fn leave_isolated_half(&mut self, me: usize) {
        if let Some((root, tag)) = self.halves[me].user.take() {
            self.load_half(me, root, tag, true, false);
        }
    }

    fn load_half(&mut self, me: usize, root: u32, tag: u16, keep: bool, user: bool) {
        let now = self.now;
        self.mmu.load_half(me, now, (root, tag), keep, user);
        self.check_tables();
    }
}

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

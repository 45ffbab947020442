//! Page-table isolation: user mode under a tag of its own, the user's half of each space flushed late.
//!
//! On the machine that has it the engine lends tags as on any other, and what it flushes is the kernel's half. The
//! user's is the port's business, as it is of a kernel's: [`Halves`](crate::isolation::Halves) notes what is behind,
//! and the way back to user mode, which is taken before an access of a program, loads the user's tag, flushed if it is
//! behind. In user mode the walker fills under that tag, until the CPU does anything else: an operation of the
//! kernel's, an interrupt, an NMI. An NMI handler that accesses user memory does so in the kernel, under the engine's
//! tag. The kernel's own half is not walked in user mode.
//!
//! Both roots lead to the same tables: what differs of them on real machines is the kernel's half.

use super::Core;
use crate::isolation::KEEP;
use quell::{Frame, Tag};
use quell_arch::x86_64::isolation::user_tag;
use std::rc::Rc;

impl Core {
    /// Takes the CPU to user mode, if it is not there.
    pub(crate) fn enter_user_half(&mut self, me: usize, root: u32) {
        if !self.kind.isolated || self.halves[me].user.is_some() {
            return;
        }
        let tag = self.mmu.tag(me);
        let cr3 = self.halves[me].note(|halves| halves.cr3(Frame(root.into()), Tag(tag)));
        self.halves[me].user = Some((root, tag));
        self.load_half(me, root, user_tag(Tag(tag)).0, cr3 & KEEP != 0, true);
    }

    /// The CPU is in the kernel from here on.
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
        let arena = Rc::clone(&self.arena);
        let now = self.now;
        self.mmu.load_half(&arena, me, now, (root, tag), keep, user);
        self.check_tables();
    }
}

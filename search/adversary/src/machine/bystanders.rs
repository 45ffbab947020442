//! Judges the accesses that programs could make at a moment, without making them.
//!
//! A program may use any of its memory at any time while its CPU runs it. So the judge checks every CPU that is in a
//! program whenever it learns something: a frame gets an owner, content is captured, a call returns. It checks if
//! the program's next access could break the contract, through a translation that the TLB may hold. Whether this
//! program makes that access doesn't matter. So a generated program needn't contain the right access at the right
//! place. It only has to bring the CPUs to a point where the access would be wrong.
//!
//! The code that performs programs reports which CPUs are in one ([`Core::enter_program`]); the CPU's next step ends
//! that. Scenarios don't report it, because they make their accesses themselves. Exhaustive searches ignore the report:
//! the footprints of their actions don't include these checks.

use super::Core;
use super::buffer::Target;
use crate::action::AccessKind;
use crate::kind::Stores;
use crate::mmu::Leaf;
use crate::oracle::UsedTranslation;
use crate::tables;
use quell::Frame;
use quell_vm::Protection;
use quell_vm::contract::Violation;
use quell_vm::contract::abstract_machine::PossibleAccess;
use smallvec::SmallVec;

/// The kinds of access that a program can make, each with the right that it needs.
const KINDS: [(AccessKind, u64); 3] = [
    (AccessKind::Load, 0),
    (AccessKind::Store, tables::WRITABLE),
    (AccessKind::Fetch, tables::EXECUTABLE),
];

impl Core {
    /// Records that the CPU is in the code of a program until its next step. Judges at once which accesses that program
    /// could make.
    pub(crate) fn enter_program(&mut self, me: usize) {
        if !self.searches {
            self.programs |= 1 << me;
            if let (true, Some(root)) = (self.in_program(me), self.mmu.root(me)) {
                self.enter_user_half(me, root);
            }
            self.judge_program(me);
        }
    }

    /// Records that the CPU isn't in a program any more. Returns whether it was.
    #[inline]
    pub(crate) fn leave_program(&mut self, me: usize) -> bool {
        let bit = 1 << me;
        let was = self.programs & bit != 0;
        self.programs &= !bit;
        was
    }

    /// Returns whether a program runs on this CPU, with interrupts on and all the CPU's invalidations done.
    pub(crate) fn in_program(&self, me: usize) -> bool {
        let cpu = &self.cpus[me];
        let runs = cpu.online && cpu.interrupts_on && !cpu.in_nmi && !cpu.invalidates();
        self.programs & 1 << me != 0 && runs
    }

    /// Judges every program's possible accesses. Called when the judge has learned something.
    pub(super) fn judge_programs(&mut self) {
        if self.programs != 0 {
            for cpu in 0..self.count {
                self.judge_program(cpu);
            }
        }
    }

    /// Checks that the programs of all CPUs see the content behind a new entry. Called when an entry has become
    /// visible.
    pub(super) fn judge_contents(&mut self) {
        let fills = |cpu: &super::Cpu| cpu.fills().next().is_some();
        if self.programs == 0
            || self.kind.stores == Stores::Ordered
            || !self.cpus[..self.count].iter().any(fills)
        {
            return;
        }
        for cpu in 0..self.count {
            if !self.in_program(cpu) {
                continue;
            }
            let readable = tables::PRESENT | tables::USER;
            let leaves = self.mmu.held(cpu);
            let leaves: Vec<Leaf> =
                leaves.filter(|leaf| leaf.word & readable == readable).copied().collect();
            for leaf in leaves {
                self.check_content(cpu, &leaf, &leaf.used(leaf.pages_of().start));
            }
        }
    }

    fn judge_program(&mut self, cpu: usize) {
        if self.in_program(cpu) {
            self.judge_user_half(cpu);
        }
    }

    /// Judges the possible accesses of an NMI handler that may use the interrupted program's memory.
    pub(crate) fn judge_handler(&mut self, cpu: usize) {
        if !self.searches && !self.cpus[cpu].invalidates() {
            self.judge_user_half(cpu);
        }
    }

    fn judge_user_half(&mut self, cpu: usize) {
        if self.end.is_some() {
            return;
        }
        if let Some(root) = self.mmu.root(cpu)
            && let Some(violation) = self.could_break(cpu, root, tables::USER)
        {
            self.fail(violation);
        }
    }

    /// Judges the possible accesses of the kernel to its own half on this CPU.
    pub(crate) fn judge_kernel(&mut self, cpu: usize) {
        let there = self.cpus[cpu].online && !self.cpus[cpu].invalidates();
        if self.end.is_some() || self.searches || !there {
            return;
        }
        if let Some(root) = self.mmu.kernel()
            && let Some(violation) = self.could_break(cpu, root, 0)
        {
            self.fail(violation);
        }
    }

    pub(crate) fn may_take_nmi(&self, cpu: usize) -> bool {
        self.nmis > 0 && !self.cpus[cpu].in_nmi
    }

    /// Returns the translations of a leaf's first and last page. The machine has only the beginning of the largest pages.
    fn ends(&self, leaf: &Leaf) -> impl Iterator<Item = UsedTranslation> {
        let pages = leaf.pages_of();
        let last = (pages.end - 1 > pages.start).then_some(pages.end - 1);
        let used = [Some(pages.start), last].into_iter().flatten().map(|page| leaf.used(page));
        used.filter(|used| (used.frame as usize) < self.content.len())
    }

    /// Returns how an access with this right could break the contract, through anything that the TLB may hold.
    fn could_break(&self, cpu: usize, root: u32, right: u64) -> Option<Violation> {
        self.mmu.held(cpu).find_map(|leaf| {
            // The right selects one of the two halves.
            if leaf.word & tables::PRESENT == 0 || leaf.word & tables::USER != right {
                return None;
            }
            self.ends(leaf).find_map(|used| {
                let page = used.page;
                let live = self.mmu.walk(cpu, root, page);
                let fresh = live.filter(|live| leaf.is_fresh(live, root, page));
                let may = |&(kind, needed): &(AccessKind, u64)| {
                    leaf.word & needed == needed && !self.walks_again(leaf, kind)
                };
                let used: UsedTranslation = fresh.map_or(used, |live| live.used(page));
                let mut kinds = KINDS.iter().filter(|kind| may(kind));
                kinds.find_map(|&(kind, _)| self.oracle.judge(cpu as u8, root, &used, kind))
            })
        })
    }

    /// Returns everything that a CPU's program could access now, through anything that the TLB may hold. With
    /// `stale_only`, only through translations to which the tables no longer lead.
    pub(crate) fn reaches(&self, cpu: usize, stale_only: bool) -> SmallVec<[PossibleAccess; 8]> {
        let runs = self.cpus[cpu].online && self.cpus[cpu].interrupts_on && !self.cpus[cpu].in_nmi;
        let (Some(root), true, None) = (self.mmu.root(cpu), runs, &self.end) else {
            return SmallVec::new();
        };
        let mut reaches = SmallVec::new();
        if self.cpus[cpu].invalidates() {
            return reaches;
        }
        let usable = tables::PRESENT | tables::USER;
        for leaf in self.mmu.held(cpu).filter(|leaf| leaf.word & usable == usable) {
            for used in self.ends(leaf).filter(|used| used.root == root) {
                let page = used.page;
                let live = self.mmu.walk(cpu, root, page);
                let stale = live.is_none_or(|live| live.used(page).frame != used.frame);
                if stale_only && !stale || stale && self.stores_to(cpu, used.frame) {
                    continue;
                }
                let rights = Protection {
                    read: true,
                    write: leaf.word & tables::WRITABLE != 0,
                    execute: leaf.word & tables::EXECUTABLE != 0,
                };
                let held = std::array::from_fn(|word| self.content_seen(cpu, used.frame, word));
                let frame = Frame(used.frame.into());
                reaches.push(PossibleAccess { page, frame, rights, held, stale });
            }
        }
        reaches
    }

    /// Marks the stores of CPUs in the abstract machine as visible, except for CPUs that have some in a buffer.
    pub(crate) fn show_stores(&mut self) {
        let waits = |entry: &super::BufferedOp| {
            matches!(entry.target, Target::Content { .. } | Target::Fill(_))
        };
        for cpu in 0..self.count {
            if self.abstract_machine.has_unseen(cpu) && !self.cpus[cpu].buffer.others().any(waits) {
                self.abstract_machine.drained(cpu);
            }
        }
    }
}

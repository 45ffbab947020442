//! Translations: invalidations, roots, and the accesses of programs through them.

use super::{AccessOutcome, Core, Target, Text, breach};
use crate::action::AccessKind;
use crate::coverage::MachineEvent;
use crate::kind::Stores;
use crate::mmu::Leaf;
use crate::oracle::{Moment, UsedTranslation};
use crate::tables;
use quell::{CpuId, Frame, Invalidation, Page};
use quell_vm::contract::{Clause, Violation};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::atomic::Ordering;

impl Core {
    pub(crate) fn invalidate(&mut self, me: usize, what: Invalidation, at_once: bool) {
        self.check_invalidation(me, what);
        self.leave_user_half(me);
        self.check_own_tag(me, what);
        self.publish_observed();
        let sent = self.now;
        if at_once || self.kind.stores == Stores::Ordered {
            self.mmu.invalidate(me, what, sent);
        } else {
            self.current = me;
            self.buffer(me, Target::Invalidation { what, sent }, 0, Ordering::Relaxed);
        }
    }

    /// Flushes a CPU that a hypervisor has descheduled.
    ///
    /// The hypervisor drops every translation before the CPU's next step, and the CPU's earlier stores are visible by
    /// then. Nothing happens on the CPU before that step, so we let both take effect now.
    pub(crate) fn flush_on_reentry(&mut self, cpu: usize) {
        self.drain_all(cpu);
        self.mmu.barrier(self.now);
        self.mmu.invalidate(cpu, Invalidation::Everything, self.now);
    }

    pub(crate) fn broadcast(&mut self, me: usize, what: Invalidation) {
        self.check_broadcast(me);
        self.check_invalidation(me, what);
        let now = self.now;
        self.cpus[me].broadcasts.push((what, now));
    }

    pub(crate) fn complete_broadcasts(&mut self, me: usize) {
        self.check_broadcast(me);
        self.mmu.barrier(self.now);
        let mut sent = std::mem::take(&mut self.cpus[me].broadcasts);
        for (what, at) in sent.drain(..) {
            for cpu in 0..self.count {
                self.mmu.invalidate(cpu, what, at);
            }
        }
        self.cpus[me].broadcasts = sent;
    }

    /// Lets walks see everything that this CPU has observed of others' tables.
    ///
    /// On machines without broadcasts, an invalidation begins with such a barrier ([`Hardware`](quell::Hardware),
    /// "Guarantees").
    fn publish_observed(&mut self) {
        if !self.kind.broadcasts() && self.mmu.lags() {
            self.mmu.barrier(self.now);
        }
    }

    pub(crate) fn load_root(&mut self, me: usize, root: u32, tag: u16, keep: bool) {
        self.check_root(me, tag);
        self.leave_user_half(me);
        let keep = keep && self.kind.tagged();
        if !keep {
            self.publish_observed();
        }
        self.mmu.load_root(me, self.now, root, tag, keep);
        self.check_breaks(me);
        self.check_tables();
    }

    pub(crate) fn unload_root(&mut self, me: usize) {
        self.leave_user_half(me);
        self.mmu.unload_root(me, self.now);
        self.check_breaks(me);
    }

    /// Gives the kernel its own half under this root; `page` is the first page of that half.
    pub(crate) fn use_kernel(&mut self, root: u32, page: u64) {
        for cpu in 0..self.count {
            let junk = (!self.cpus[cpu].online).then_some(page);
            self.mmu.use_kernel(cpu, root, junk);
            self.check_breaks(cpu);
        }
    }

    /// Checks that no walker can read a freed table (C6).
    pub(crate) fn check_tables(&mut self) {
        for cpu in 0..self.count {
            let dead = |frame: u32| self.oracle.frame(frame).dead_table;
            let Some((table, base)) = self.mmu.dead_table(cpu, dead) else { continue };
            let freed_by = self.oracle.frame(table).freed_by;
            self.fail(
                breach(
                    Clause::C6,
                    "the walker can read a page-table page after it was freed",
                    cpu,
                    table,
                )
                .after(CpuId(freed_by.into()))
                .through(Page(base).address()),
            );
        }
    }

    /// Checks that no CPU can load from this frame any more, not even speculatively. No CPU that had to flush (`asked`)
    /// may hold a translation to it under a loaded root. An issued invalidation counts as made, because the machine is
    /// responsible for its delay.
    pub(crate) fn check_withdrawn(
        &mut self,
        me: usize,
        frame: Frame,
        asked: impl Fn(usize) -> bool,
    ) {
        let is_under_way = |cpu: usize, leaf: &Leaf| {
            let mut issued = self.cpus[cpu].buffer.others();
            issued.any(|entry| match entry.target {
                Target::Invalidation { what, sent } => self.mmu.will_lose(cpu, leaf, (what, sent)),
                _ => false,
            })
        };
        let holder = (0..self.count).filter(|cpu| asked(*cpu)).find_map(|cpu| {
            self.mmu.root(cpu)?;
            let mut held = self.mmu.held(cpu).filter(|leaf| !is_under_way(cpu, leaf));
            let page = held.find_map(|leaf| leaf.page_of(frame.0 as u32))?;
            Some((cpu, page))
        });
        if let Some((cpu, page)) = holder {
            let account = "a CPU may still load speculatively from a withdrawn frame";
            self.fail(
                Violation::new(Clause::C1, account)
                    .by(CpuId(cpu as u16))
                    .after(CpuId(me as u16))
                    .in_frame(frame)
                    .through(Page(page).address()),
            );
        }
    }

    /// Performs a program's access through the translation hardware.
    pub(crate) fn access(
        &mut self,
        me: usize,
        page: u64,
        word: usize,
        what: (AccessKind, u64),
    ) -> AccessOutcome {
        if !self.check_user(me) {
            return AccessOutcome::Fault;
        }
        let Some(root) = self.mmu.root(me) else {
            if self.tracing() {
                self.say(me, || format!("page {page:#x}: no root is loaded"));
            }
            return AccessOutcome::Fault;
        };
        if !self.in_nmi(me) {
            self.enter_user_half(me, root);
        }
        self.access_from(me, root, tables::USER, (page, word), what)
    }

    /// Performs an access of the kernel to its own half. That's allowed at any time while the CPU is online, under any
    /// root, with interrupts on or off.
    pub(crate) fn access_kernel(
        &mut self,
        me: usize,
        page: u64,
        what: (AccessKind, u64),
    ) -> AccessOutcome {
        if !self.check_kernel(me) {
            return AccessOutcome::Fault;
        }
        let Some(root) = self.mmu.kernel() else {
            unreachable!("the program has said that the kernel has a half of its own");
        };
        self.leave_user_half(me);
        self.happen(MachineEvent::KernelAccess);
        if what.0 == AccessKind::Fetch {
            self.check_fetched(me, page);
        }
        self.access_from(me, root, 0, (page, 0), what)
    }

    /// Returns whether the walker reads the tables again for such an access: for a store through an entry that isn't
    /// dirty.
    pub(super) fn walks_again(&self, leaf: &Leaf, kind: AccessKind) -> bool {
        kind == AccessKind::Store
            && self.kind.hardware_dirty
            && leaf.word & tables::DIRTY == 0
            && leaf.until != Moment::MAX
    }

    fn access_from(
        &mut self,
        me: usize,
        root: u32,
        right: u64,
        (page, word): (u64, usize),
        (kind, value): (AccessKind, u64),
    ) -> AccessOutcome {
        let needed = tables::PRESENT
            | right
            | match kind {
                AccessKind::Load => 0,
                AccessKind::Store => tables::WRITABLE,
                AccessKind::Fetch => tables::EXECUTABLE,
            };
        let live = self.mmu.walk(me, root, page);
        let allowed = |leaf: &Leaf| leaf.word & needed == needed;
        // Everything that the hardware may use for this access. The result of a walk comes first.
        let mut options = SmallVec::<[Leaf; 8]>::new();
        let mut fault = true;
        let mut broken = None;
        if let Some(leaf) = live
            && allowed(&leaf)
        {
            broken = self.oracle.judge(me as u8, root, &leaf.used(page), kind);
            options.push(leaf);
            fault = false;
        }
        for leaf in self.mmu.cached(me, page) {
            if !allowed(leaf) || broken.is_some() {
                continue;
            }
            let used = leaf.used(page);
            let fresh = live.is_some_and(|live| leaf.is_fresh(&live, root, page));
            if fresh || self.walks_again(leaf, kind) {
                continue;
            }
            broken = self.oracle.judge(me as u8, root, &used, kind);
            let known = { options.iter() }.any(|other| other.used(page).frame == used.frame);
            if !known {
                options.push(*leaf);
            }
        }
        if let Some(violation) = broken {
            self.fail(violation);
            return AccessOutcome::Fault;
        }
        let alternatives = options.len() + usize::from(fault);
        let choice = self.pick_data(alternatives);
        // If the walk finds nothing, the first alternative is a fault.
        let chosen = if fault { choice.checked_sub(1) } else { Some(choice) };
        let Some(leaf) = chosen.map(|at| options[at]) else {
            if self.tracing() {
                self.say(me, || format!("page {page:#x}: fault"));
            }
            self.happen(MachineEvent::Fault);
            return AccessOutcome::Fault;
        };
        let used = leaf.used(page);
        if self.kind.stores == Stores::Unordered {
            self.check_content(me, &leaf, &used);
        }
        let stale = live.is_none_or(|live| live.used(page).frame != used.frame);
        if stale {
            self.happen(MachineEvent::StaleUse);
        }
        if self.in_nmi(me) {
            self.happen(MachineEvent::NmiAccess);
        }
        if self.kind.hardware_dirty && leaf.until == Moment::MAX {
            self.set_bits(me, &leaf, kind == AccessKind::Store);
        }
        let held = self.content_seen(me, used.frame, word);
        if self.tracing() {
            let frame = used.frame;
            let how = if stale { " through a stale translation" } else { "" };
            self.say(me, || match kind {
                AccessKind::Store => {
                    format!("page {page:#x}: stores {value:#x} to frame {frame:#x}{how}")
                }
                AccessKind::Load | AccessKind::Fetch => {
                    format!("page {page:#x}: {kind} of {held:#x} from frame {frame:#x}{how}")
                }
            });
        }
        match kind {
            AccessKind::Store => {
                if self.has_room(&self.cpus[me]) {
                    self.current = me;
                    self.buffer(me, Target::Content { used, word }, value, Ordering::Relaxed);
                }
            }
            AccessKind::Load | AccessKind::Fetch => self.check_fresh(me, root, &used, word, held),
        }
        let stale = (stale && !self.stores_to(me, used.frame)).then_some(used.frame);
        AccessOutcome::Value { held, stale }
    }

    /// Records a change of the kernel's text at this page. With `done`, every CPU has synchronized.
    pub(crate) fn change_text(&mut self, page: u64, done: bool) {
        let changed = match self.text {
            Some(text) if done => text.changed,
            _ => self.now,
        };
        self.text = Some(Text { page, changed, done });
    }

    /// Records that a CPU has dropped its fetched instructions.
    pub(crate) fn synchronize_text(&mut self, me: usize) {
        self.happen(MachineEvent::TextSynchronized);
        self.synchronized[me] = self.now;
    }

    /// Returns whether the CPU may hold text of the kernel that it fetched before the last change.
    pub(super) fn text_is_old(&self, me: usize) -> bool {
        self.text.is_some_and(|text| self.synchronized[me] < text.changed)
    }

    /// Checks that no CPU executes instructions fetched before the text changed, after all have synchronized.
    fn check_fetched(&mut self, me: usize, page: u64) {
        let old = self.text_is_old(me);
        if old && self.text.is_some_and(|text| text.done && text.page == page) {
            let account =
                "a CPU executed an instruction that it had fetched before the text changed";
            self.fail(
                Violation::new(Clause::C4, account)
                    .by(CpuId(me as u16))
                    .through(Page(page).address()),
            );
        }
    }

    /// Returns whether the CPU's buffer holds a store to this frame.
    pub(super) fn stores_to(&self, me: usize, frame: u32) -> bool {
        self.cpus[me].buffer.others().any(|entry| match entry.target {
            Target::Content { used, .. } => used.frame == frame,
            Target::Fill(fill) => fill.holds(frame),
            _ => false,
        })
    }

    /// Returns a word of a frame as the CPU sees it: its own buffered stores come first.
    pub(crate) fn content_seen(&self, me: usize, frame: u32, word: usize) -> u64 {
        let mine = self.cpus[me].buffer.others().filter_map(|entry| {
            let value = match entry.target {
                Target::Content { used, word: w } if used.frame == frame && w == word => {
                    entry.value
                }
                Target::Fill(fill) if fill.holds(frame) => fill.words[word]?,
                _ => return None,
            };
            Some((entry.order, value))
        });
        mine.max_by_key(|(order, _)| *order)
            .map_or_else(|| self.content(frame, word), |(_, value)| value)
    }

    /// Checks that a CPU that reaches a frame through an entry sees everything written there before the entry.
    pub(super) fn check_content(&mut self, me: usize, leaf: &Leaf, used: &UsedTranslation) {
        let late = |cpu: &usize| {
            let fills = self.cpus[*cpu].fills();
            fills.into_iter().find_map(|(entry, fill)| {
                let deferred =
                    entry.promised && entry.issued < leaf.written() && fill.holds(used.frame);
                deferred.then_some((*cpu, fill.zeroes))
            })
        };
        let others = (0..self.count).filter(|&cpu| cpu != me);
        let Some((by, zeroes)) = others.clone().find_map(|cpu| late(&cpu)) else { return };
        let (clause, what) = if zeroes { (Clause::C8, "zeroes") } else { (Clause::C4, "content") };
        let account = format!("a page was mapped before its {what} became visible");
        self.fail(
            breach(clause, account, me, used.frame)
                .after(CpuId(by as u16))
                .through(Page(used.page).address()),
        );
    }

    /// Sets the accessed and dirty bits, as the walker does.
    pub(super) fn set_bits(&mut self, me: usize, leaf: &Leaf, store: bool) {
        let (table, index) = leaf.place();
        let arena = Rc::clone(&self.arena);
        let word = &arena.table(table)[index];
        let held = word.peek();
        let bits = tables::ACCESSED | if store { tables::DIRTY } else { 0 };
        if held & tables::PRESENT != 0 && held & bits != bits {
            self.write(me, word, held | bits);
        }
    }

    pub(super) fn check_fresh(
        &mut self,
        me: usize,
        root: u32,
        used: &UsedTranslation,
        word: usize,
        value: u64,
    ) {
        let Some(expected) = self.oracle.expected_of(root, used.page) else { return };
        if word == 0 && expected != value {
            self.fail(
                breach(
                    Clause::C4,
                    format!("a load returned {value:#x}, but the page contains {expected:#x}"),
                    me,
                    used.frame,
                )
                .through(Page(used.page).address()),
            );
        }
    }
}

//! Determines the possible next actions, and performs one.
//!
//! The set of possible actions is kept from one operation to the next. So the code that changes the set is here, beside
//! the code that reads it.

use super::buffer::{BufferedOp, Target};
use super::{Core, Cpu, End, Interruption, SECOND_LOOKS, Verdict};
use crate::action::{AccessKind, Op};
use crate::action::{
    Action, Actions, DATA, Footprint, Kind, UNPROMPTED, default_action, fair_action,
};
use crate::coverage::MachineEvent;
use crate::kind::Stores;
use crate::schedule::Strategy;
use crate::timeline::RunEvent;
use crate::word::AdversaryWord;
use quell::CpuId;
use quell_vm::contract::{Clause, Violation};
use std::panic::Location;
use std::sync::atomic::Ordering;

impl Core {
    /// Lets CPU `me` arrive at `op`. `site` is the place in the code, for an operation on a word.
    ///
    /// We inline this where the kind of operation is known, because these few instructions dominate the host's time in
    /// a search. `asked` means that the strategy has decided already, and that the CPU doesn't simply continue.
    #[inline(always)]
    pub(crate) fn arrive(
        &mut self,
        me: usize,
        op: Op,
        site: Option<&'static Location<'static>>,
        asked: bool,
    ) -> Verdict {
        self.cpus[me].pending = op;
        if let Some(footprints) = &mut self.footprints {
            footprints.arrive(me, op, site);
        }
        self.current = me;
        if op == Op::Relax {
            self.waiting |= 1 << me;
        }
        if self.searches || op == Op::Relax {
            self.cpus[me].watch.take_notes();
        }
        if self.searches {
            self.outdate(me);
            self.open = true;
            return Verdict::Suspend;
        }
        if self.end.is_some() {
            return Verdict::Suspend;
        }
        let may_step = self.may_step(&self.cpus[me], op);
        let decision = self.decisions + 1;
        if self.is_late(decision) {
            self.renew_step(me, op, may_step);
            return self.choose(Some(me));
        }
        self.decisions = decision;
        let repeats = may_step && self.outdated == 0 && self.picked == Action::step(me);
        if cfg!(test) && repeats {
            self.renew_step(me, op, may_step);
            self.check_enabled();
        }
        let mut picked = Some(Action::step(me));
        if asked || !(self.strategy.goes_on(decision, repeats) && may_step) {
            self.renew_step(me, op, may_step);
            picked = self.pick_any(decision);
        }
        if picked == Some(Action::step(me)) {
            self.step(me, op);
            return Verdict::Go;
        }
        self.carry_out(Some(me), picked)
    }

    /// Lets the CPU perform its next operation, if it may continue at once. Otherwise returns whether the strategy has
    /// decided.
    ///
    /// This is the short path of [`Core::arrive`], and suffices for most operations.
    #[inline(always)]
    fn goes_at_once(&mut self, me: usize) -> Result<(), bool> {
        let decision = self.decisions + 1;
        if !self.brisk || self.is_late(decision) {
            return Err(false);
        }
        let repeats = self.outdated == 0 && self.picked == Action::step(me);
        match self.strategy.goes_on_at_once(repeats) {
            Some(true) => {}
            refused => return Err(refused.is_some()),
        }
        self.decisions = decision;
        self.current = me;
        self.now += 1;
        self.leave_program(me);
        Ok(())
    }

    /// Loads a word, if the CPU continues at once and sees the value in memory. Otherwise returns whether the strategy
    /// has decided.
    #[inline(always)]
    pub(crate) fn load_at_once(&mut self, me: usize, word: &AdversaryWord) -> Result<u64, bool> {
        let cpu = &self.cpus[me];
        if cpu.watch.is_full() || !cpu.buffer.leaves_alone(word) {
            return Err(false);
        }
        self.goes_at_once(me)?;
        let value = word.peek();
        self.cpus[me].watch.read(word, value);
        Ok(value)
    }

    /// Performs an operation that uses no word, if the CPU continues at once. Otherwise returns whether the strategy
    /// has decided.
    #[inline(always)]
    pub(crate) fn steps_at_once(&mut self, me: usize, op: Op) -> Result<(), bool> {
        // With an empty buffer, a CPU may perform every other operation at any time.
        let may_wait = matches!(op, Op::Relax | Op::Park | Op::Complete);
        if may_wait || !self.cpus[me].buffer.is_empty() {
            return Err(false);
        }
        self.goes_at_once(me)?;
        self.take_effect(me, op);
        Ok(())
    }

    /// Updates the possible actions of a CPU that has reached another operation. Only its step depends on the
    /// operation, so we keep the others, unless [`Core::enabled_on`] checks for this kind of operation.
    #[inline(always)]
    fn renew_step(&mut self, me: usize, op: Op, may_step: bool) {
        if op == Op::Park {
            self.outdate(me);
        }
        let step = Action::step(me).bit();
        let others = self.enabled[me] & !step;
        self.enabled[me] = others | if may_step { step } else { 0 };
    }

    /// Makes the first choice of a run. Returns the CPU whose turn it is.
    pub(crate) fn begin(&mut self) -> Option<usize> {
        if self.kind.reorders {
            self.past.keep();
        }
        let noted = self.footprints.is_some() || self.timeline.is_some() || self.past.is_kept();
        self.brisk = !noted && !self.searches && !self.kind.isolated && self.end.is_none();
        self.choose(None);
        self.turn()
    }

    /// Returns the CPU that continues, or `None` if the run has ended.
    pub(crate) fn turn(&mut self) -> Option<usize> {
        if std::mem::take(&mut self.open) {
            self.choose(None);
        }
        self.end.is_none().then_some(self.current)
    }

    /// Performs the step of the CPU that was resumed.
    pub(crate) fn resumed(&mut self, me: usize) -> Verdict {
        self.perform(me, self.granted)
    }

    pub(super) fn choose(&mut self, me: Option<usize>) -> Verdict {
        if self.end.is_some() {
            return Verdict::Suspend;
        }
        let picked = self.pick();
        self.carry_out(me, picked)
    }

    /// Performs the picked action, and further ones until it is a CPU's turn. `me` is the CPU whose code calls this.
    fn carry_out(&mut self, me: Option<usize>, mut picked: Option<Action>) -> Verdict {
        while let Some(action) = picked {
            let cpu = action.cpu();
            if let Kind::Drain(place) = action.kind() {
                self.drain(cpu, place);
                if self.end.is_some() {
                    break;
                }
                picked = self.pick();
                continue;
            }
            self.current = cpu;
            if me == Some(cpu) {
                return self.perform(cpu, action);
            }
            self.granted = action;
            break;
        }
        Verdict::Suspend
    }

    pub(super) fn perform(&mut self, me: usize, action: Action) -> Verdict {
        let by = match action.kind() {
            Kind::Interrupt => Interruption::Interrupt,
            Kind::Nmi => Interruption::Nmi,
            Kind::Preempt => Interruption::Preemption,
            Kind::Step | Kind::Drain(_) => {
                self.step(me, self.cpus[me].pending);
                return Verdict::Go;
            }
        };
        self.now += 1;
        self.waiting &= !(1 << me);
        Verdict::Interrupted(by)
    }

    /// Performs the operation at which the CPU has arrived.
    #[inline(always)]
    fn step(&mut self, me: usize, op: Op) {
        self.now += 1;
        self.leave_program(me);
        if !matches!(op, Op::Access(_)) {
            self.leave_user_half(me);
        }
        if let Some(footprints) = &mut self.footprints {
            footprints.step(me);
        }
        if self.timeline.is_some() {
            self.record(me, RunEvent::Step(op));
        }
        self.take_effect(me, op);
    }

    /// Applies the effect of a CPU's operation to the machine.
    #[inline(always)]
    fn take_effect(&mut self, me: usize, op: Op) {
        match op {
            Op::Relax => {
                self.waiting &= !(1 << me);
                self.past.look_again(me);
                self.cpus[me].watch.turn();
                self.cpus[me].woken = false;
            }
            Op::Barrier | Op::Complete => {
                if self.has_to_wait(me) {
                    self.past.took_effect(me, self.now);
                }
                self.past.fence(me);
                self.mmu.barrier(self.now);
            }
            Op::Fence => self.past.fence(me),
            // Nothing interrupts a CPU before its first step, so its possible actions change now.
            Op::Start => self.outdate(me),
            _ => {}
        }
    }

    pub(super) fn pick(&mut self) -> Option<Action> {
        self.decisions += 1;
        let (decision, current) = (self.decisions, self.current);
        if self.is_late(decision) {
            return self.pick_late(decision);
        }
        let cpu = &self.cpus[current];
        if self.strategy.goes_on(decision, false) && self.may_step(cpu, cpu.pending) {
            return Some(Action::step(current));
        }
        self.pick_any(decision)
    }

    /// Returns whether this decision is no longer the strategy's.
    #[inline(always)]
    fn is_late(&self, decision: u32) -> bool {
        decision > self.fair_after.min(self.limit)
    }

    /// Picks the next action in the fair part of a run, which always ends.
    #[cold]
    fn pick_late(&mut self, decision: u32) -> Option<Action> {
        if decision > self.limit {
            let account = format!(
                "no end after {} steps, the last {} of them fair to all",
                self.limit, self.patience
            );
            self.fail(Violation::new(Clause::C7, account).by(CpuId(self.current as u16)));
            return None;
        }
        fair_action(self.whatever_is_enabled()?, decision)
    }

    /// Returns the possible next actions. If there are none, ends the run.
    #[inline(always)]
    fn whatever_is_enabled(&mut self) -> Option<Actions> {
        let enabled = self.enabled();
        if enabled & !UNPROMPTED != 0 {
            return Some(enabled);
        }
        if !self.look_again() {
            self.finish();
            return None;
        }
        Some(self.enabled())
    }

    /// Lets the strategy pick among all possible next actions.
    fn pick_any(&mut self, decision: u32) -> Option<Action> {
        let current = self.current;
        let enabled = self.whatever_is_enabled()?;
        let picked = match &mut self.strategy {
            Strategy::Exhaustive(_) => self.search_on(enabled),
            Strategy::Pct(pct) => Some(pct.pick(enabled)),
            _ if enabled.is_power_of_two() => Some(Action(enabled.trailing_zeros() as u8)),
            strategy => Some(strategy.pick(decision, enabled, current)),
        };
        let Some(action) = picked else {
            self.stop(End::Pruned);
            return None;
        };
        self.picked = action;
        if self.searches {
            self.learn(action);
        }
        // A step of the current CPU is the default whenever it is possible, so this rarely computes the default.
        if action != Action::step(current) && Some(action) != default_action(enabled, current) {
            self.trail.push((decision, action.0));
        }
        Some(action)
    }

    /// Picks the next action in an exhaustive search, or `None` if its continuation is known.
    fn search_on(&mut self, enabled: Actions) -> Option<Action> {
        let Strategy::Exhaustive(search) = &mut self.strategy else {
            return None;
        };
        let mut search = std::mem::take(search);
        let picked = search.pick(
            enabled,
            self.current,
            |action| self.footprint(action),
            |action| self.concerns_no_other(action),
            || self.state(),
        );
        self.strategy = Strategy::Exhaustive(search);
        picked
    }

    /// Chooses one of `count` alternatives.
    pub(crate) fn pick_data(&mut self, count: usize) -> usize {
        if count < 2 {
            return 0;
        }
        assert!(count <= usize::from(DATA), "a choice is written in seven bits");
        self.decisions += 1;
        let choice = self.strategy.pick_data(self.decisions, count);
        if choice != 0 {
            self.trail.push((self.decisions, DATA | choice as u8));
        }
        choice
    }

    /// Chooses which of `count` values a load returns; 0 is the newest. In the fair part of a run no load is early.
    pub(super) fn pick_early(&mut self, count: usize) -> usize {
        if count < 2 {
            return 0;
        }
        self.decisions += 1;
        if self.decisions > self.fair_after {
            return 0;
        }
        let choice = self.strategy.pick_early(self.decisions, count);
        if choice != 0 {
            self.happen(MachineEvent::LoadedEarly);
            self.trail.push((self.decisions, DATA | choice as u8));
        }
        choice
    }

    /// Lets every waiting CPU check its condition a few more times before it counts as waiting for ever. The condition
    /// of an outer loop may have changed while an inner one ran.
    pub(super) fn look_again(&mut self) -> bool {
        if self.second_looks == SECOND_LOOKS {
            return false;
        }
        self.second_looks += 1;
        let mut any = false;
        for (index, cpu) in self.cpus[..self.count].iter_mut().enumerate() {
            if cpu.pending == Op::Relax {
                cpu.woken = true;
                self.outdated |= 1 << index;
                any = true;
            }
        }
        any
    }

    /// Ends a run in which no CPU can do anything: all programs have ended, or a CPU waits for ever.
    pub(super) fn finish(&mut self) {
        let waiting = (0..self.count).find(|&cpu| self.cpus[cpu].pending != Op::Park);
        let Some(cpu) = waiting else {
            self.stop(End::Finished);
            return;
        };
        let other = (0..self.count).find(|&other| {
            other != cpu && self.cpus[other].interrupt && !self.cpus[other].interrupts_on
        });
        let account = "waits forever: no CPU can take a step";
        let mut violation = Violation::new(Clause::C7, account).by(CpuId(cpu as u16));
        violation.other = other.map(|other| CpuId(other as u16));
        self.fail(violation);
    }

    /// Returns the possible next actions.
    #[inline(always)]
    pub(super) fn enabled(&mut self) -> Actions {
        let mut outdated = std::mem::take(&mut self.outdated);
        while outdated != 0 {
            let index = outdated.trailing_zeros() as usize;
            outdated &= outdated - 1;
            self.enabled[index] = self.enabled_on(index);
        }
        if cfg!(test) {
            self.check_enabled();
        }
        self.enabled.iter().fold(0, |all, one| all | one)
    }

    /// Checks that the stored set of possible actions is up to date.
    fn check_enabled(&self) {
        for index in 0..self.count {
            let (known, found) = (self.enabled[index], self.enabled_on(index));
            assert_eq!(known, found, "what CPU {index} may do was not found out");
        }
    }

    /// Returns the possible next actions of one CPU. It is out of line, because the compiler would otherwise evaluate
    /// rare conditions early.
    #[inline(never)]
    fn enabled_on(&self, index: usize) -> Actions {
        let cpu = &self.cpus[index];
        let mut enabled = 0;
        if self.may_step(cpu, cpu.pending) {
            enabled |= Action::step(index).bit();
        }
        if cpu.interrupts_on
            && !cpu.in_nmi
            && cpu.pending != Op::Start
            && (cpu.interrupt || (self.spurious > 0 && cpu.pending != Op::Park))
        {
            enabled |= Action::interrupt(index).bit();
        }
        if self.nmis > 0 && !cpu.in_nmi && cpu.pending != Op::Start {
            enabled |= Action::nmi(index).bit();
        }
        if self.preemptions > 0
            && cpu.interrupts_on
            && !cpu.in_nmi
            && !matches!(cpu.pending, Op::Start | Op::Park)
        {
            enabled |= Action::preempt(index).bit();
        }
        if !cpu.buffer.is_empty() {
            enabled |= self.drains(index, cpu);
        }
        enabled
    }

    /// Returns whether a CPU may perform this operation next.
    #[inline(always)]
    pub(super) fn may_step(&self, cpu: &Cpu, op: Op) -> bool {
        let ordered = self.kind.stores == Stores::Ordered;
        let empty = cpu.buffer.is_empty();
        match op {
            // A halted CPU's clock may wake it at any time.
            Op::Start | Op::Mask | Op::Halt => true,
            Op::Access(AccessKind::Load | AccessKind::Fetch) => !cpu.invalidates(),
            Op::Load(_, order) => {
                ordered
                    || order != Ordering::SeqCst
                    || !cpu.buffer.others().any(|entry| entry.sequential)
            }
            Op::Store(_, order) => match order {
                Ordering::SeqCst if ordered => empty,
                _ => self.has_room(cpu),
            },
            Op::Access(AccessKind::Store) => self.has_room(cpu) && !cpu.invalidates(),
            Op::Modify(word, order) => {
                empty
                    || (!ordered
                        && matches!(order, Ordering::Relaxed | Ordering::Acquire)
                        && !cpu.holds(word)
                        && cpu.buffer.is_of_epoch(cpu.epoch)
                        && !self.zeroes(cpu, word))
            }
            // Loading a root orders stores only on x86, where the instruction is serialising. Invalidations and
            // interrupts order them everywhere, as the interface promises.
            Op::Root => empty || (!ordered && !cpu.invalidates()),
            Op::Fence | Op::Barrier | Op::Invalidate | Op::Send(_) => empty,
            Op::Content { store: true, .. } if !ordered => self.has_room(cpu),
            Op::Content { store, .. } => empty || !store,
            // An invalidation completes only after the stores through the entries that it covers.
            Op::Complete => empty && !self.stores_under_way(),
            Op::Touch { writes, .. } => empty || !writes,
            Op::Broadcast => true,
            // The kernel passes freed memory on with a release store, which follows its own invalidation.
            Op::Note => !cpu.invalidates(),
            Op::Relax => cpu.woken || cpu.watch.has_overflowed() || cpu.sees_change(),
            Op::Park => false,
        }
    }

    /// Returns whether a CPU's buffer holds a store that zeroes the word.
    #[inline(never)]
    fn zeroes(&self, cpu: &Cpu, word: *const AdversaryWord) -> bool {
        let place = self.arena.place(word);
        place
            .is_some_and(|(frame, _)| cpu.fills().any(|(_, fill)| fill.zeroes && fill.holds(frame)))
    }

    /// Returns whether a buffer holds a store of a program.
    #[inline(never)]
    pub(super) fn stores_under_way(&self) -> bool {
        let stores = |entry: &BufferedOp| matches!(entry.target, Target::Content { .. });
        self.cpus[..self.count].iter().any(|cpu| cpu.buffer.others().any(stores))
    }

    /// Returns whether an action commutes with all actions that others may perform before it. Such an action uses
    /// nothing, or a word that only its own CPU ever uses, and no interrupt can intervene.
    ///
    /// That no other CPU uses the word and that nothing interrupts the CPU is only an observation from the runs so far.
    /// If a later run contradicts it, the search restarts ([`Core::take_surprise`]), so in the end all runs agree with
    /// it.
    fn concerns_no_other(&self, action: Action) -> bool {
        let cpu = &self.cpus[action.cpu()];
        let left_alone = match action.kind() {
            Kind::Drain(_) => true,
            Kind::Step => {
                let interrupted = cpu.interrupts_on
                    && (self.spurious > 0 || self.interrupted & 1 << action.cpu() != 0);
                let kind = matches!(
                    cpu.pending,
                    Op::Start
                        | Op::Fence
                        | Op::Load(..)
                        | Op::Store(..)
                        | Op::Modify(..)
                        | Op::Touch { .. }
                );
                kind && !interrupted
            }
            Kind::Interrupt | Kind::Nmi | Kind::Preempt => false,
        };
        let print = self.footprint(action);
        let private = || {
            let users = self.users.get(&print.address).copied().unwrap_or_default();
            users & !(1 << action.cpu()) == 0
        };
        left_alone && self.nmis == 0 && self.preemptions == 0 && print.translation == 0 && private()
    }

    /// Remembers which CPUs use a word, for [`Core::concerns_no_other`].
    fn learn(&mut self, action: Action) {
        let print = self.footprint(action);
        if print.address != 0 {
            let users = self.users.entry(print.address).or_default();
            let before = *users;
            *users |= 1 << action.cpu();
            self.surprised |= before.is_power_of_two() && before != *users;
        }
        if let (Kind::Step, Op::Send(lines)) = (action.kind(), self.cpus[action.cpu()].pending) {
            self.surprised |= lines & !self.interrupted != 0;
            self.interrupted |= lines;
        }
    }

    /// Returns whether a run has contradicted an observation on which the search relied.
    pub(crate) fn take_surprise(&mut self) -> bool {
        std::mem::take(&mut self.surprised)
    }

    /// Returns the drains of a CPU's buffered stores that may happen next.
    #[inline(never)]
    pub(super) fn drains(&self, index: usize, cpu: &Cpu) -> Actions {
        let Some((place, oldest)) = cpu.buffer.oldest() else {
            return 0;
        };
        let mut set = Action::drain(index, place).bit();
        if self.kind.stores == Stores::Ordered || cpu.buffer.holds_one() {
            return set;
        }
        // Nothing comes before the oldest store, and all others come after it.
        let free = |place: usize, entry: &BufferedOp| {
            !entry.release
                && entry.epoch == oldest.epoch
                && cpu
                    .buffer
                    .is_unhindered((place, entry), |other| self.meet(&other.target, &entry.target))
        };
        for (place, entry) in cpu.buffer.placed() {
            if entry.order != oldest.order && free(place, entry) {
                set |= Action::drain(index, place).bit();
            }
        }
        set
    }

    /// Returns whether anything waits for a barrier of this CPU to take effect: a store to a table, or a broadcast.
    pub(super) fn has_to_wait(&self, cpu: usize) -> bool {
        self.mmu.lags() || !self.cpus[cpu].broadcasts.is_empty()
    }

    pub(crate) fn footprint(&self, action: Action) -> Footprint {
        let index = action.cpu();
        let cpu = &self.cpus[index];
        let mut print = Footprint { cpu: index as u8, ..Footprint::default() };
        match action.kind() {
            Kind::Interrupt => print.lines = 1 << index,
            Kind::Nmi | Kind::Preempt => {}
            Kind::Drain(place) => {
                print.drain = true;
                print.writes = true;
                if let Some(entry) = cpu.buffer.get(place) {
                    match entry.target {
                        Target::Word(word) => {
                            print.address = word as usize;
                            print.translation = 2 * u8::from(self.arena.place(word).is_some());
                        }
                        Target::Content { used, .. } => {
                            print.address = used.frame as usize + 1;
                            print.translation = 1;
                        }
                        Target::Invalidation { .. } => print.translation = 1,
                        Target::Fill(fill) => {
                            print.address = fill.first as usize + 1;
                            let tables =
                                fill.zeroes && self.mmu.written_words(fill.first).next().is_some();
                            let many = fill.frames > 1;
                            print.translation = 1 + u8::from(many || tables);
                            print.many_words = many || tables;
                        }
                    }
                }
            }
            Kind::Step => match cpu.pending {
                Op::Start | Op::Mask | Op::Fence | Op::Halt | Op::Park => {}
                Op::Relax => print.looks = true,
                Op::Touch { place, writes } => {
                    print.address = place;
                    print.writes = writes;
                }
                Op::Load(word, _) => print.address = word as usize,
                Op::Store(word, order) => {
                    if order == Ordering::SeqCst && self.kind.stores == Stores::Ordered {
                        print.address = word as usize;
                        print.writes = true;
                        print.translation = 2 * u8::from(self.arena.place(word).is_some());
                    }
                }
                Op::Modify(word, _) => {
                    print.address = word as usize;
                    print.writes = true;
                    print.translation = 2 * u8::from(self.arena.place(word).is_some());
                }
                Op::Barrier | Op::Complete => {
                    let waits = self.has_to_wait(index);
                    print.translation = 2 * u8::from(waits);
                    print.looks = waits && self.kind.reorders;
                }
                Op::Invalidate | Op::Root | Op::Broadcast => print.translation = 1,
                Op::Note => print.translation = 2,
                Op::Send(lines) => print.lines = lines,
                // A walker may set bits in a table, and we don't know which frame a load reads.
                Op::Access(_) => print.translation = 2,
                Op::Content { frame, store } => {
                    print.address = frame as usize + 1;
                    print.writes = store;
                    print.translation = 1;
                }
            },
        }
        // Early loads can distinguish the order of two stores.
        print.looks |= print.writes && self.kind.reorders;
        print
    }
}

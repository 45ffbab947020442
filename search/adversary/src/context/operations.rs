//! Performs CPUs' operations, each in its turn.
//!
//! Mostly the turn comes at once. Then arriving and performing are one visit to the machine ([`Context::operate`]).
//! Otherwise we suspend the CPU's coroutine, or interrupt the CPU, until it may continue.
//!
//! We compile each operation twice: for exhaustive searches, which compare stacks (`LEGIBLE`), and for others. A stack
//! frame contains leftovers of earlier calls in words that it hasn't used yet, and these would make equal states look
//! different. So in legible runs, a frame that exists while the coroutine is suspended uses few words.

use super::Context;
use crate::action::Op;
use crate::machine::{Core, Interruption, Verdict};
use crate::mistake::OperationKind;
use crate::word::AdversaryWord;
use quell_vm::sim::fiber;
use std::panic::Location;
use std::sync::atomic::Ordering;

/// Operations on words in a run, with the place in the code that performs them. They are out of line, because code that
/// reads a machine at rest doesn't need them.
impl Context {
    #[inline]
    pub(crate) fn load(
        &self,
        word: &AdversaryWord,
        order: Ordering,
        site: &'static Location<'static>,
    ) -> u64 {
        match self.legible {
            true => self.load_in::<true>(word, order, site, false),
            false => self.load_at_once(word, order, site),
        }
    }

    /// Loads a word, mostly on the short path. It is a function of its own, so that this path saves no registers for
    /// the long one.
    #[inline(never)]
    fn load_at_once(
        &self,
        word: &AdversaryWord,
        order: Ordering,
        site: &'static Location<'static>,
    ) -> u64 {
        let me = usize::from(self.cpu.get());
        let loaded = self.core.borrow_mut().load_at_once(me, word);
        match loaded {
            Ok(value) => value,
            Err(asked) => self.load_in::<false>(word, order, site, asked),
        }
    }

    #[inline(never)]
    fn load_in<const LEGIBLE: bool>(
        &self,
        word: &AdversaryWord,
        order: Ordering,
        site: &'static Location<'static>,
        asked: bool,
    ) -> u64 {
        let order = self.order(site, OperationKind::Load, order);
        let op = Op::Load(word, order);
        self.operate::<LEGIBLE, _>(op, Some(site), asked, |core, me| core.load(me, word, order))
    }

    #[inline]
    pub(crate) fn store(
        &self,
        word: &AdversaryWord,
        value: u64,
        order: Ordering,
        site: &'static Location<'static>,
    ) {
        match self.legible {
            true => self.store_in::<true>(word, value, order, site),
            false => self.store_in::<false>(word, value, order, site),
        }
    }

    #[inline(never)]
    fn store_in<const LEGIBLE: bool>(
        &self,
        word: &AdversaryWord,
        value: u64,
        order: Ordering,
        site: &'static Location<'static>,
    ) {
        let order = self.order(site, OperationKind::Store, self.store_order(word, order));
        let op = Op::Store(word, order);
        self.operate::<LEGIBLE, _>(op, Some(site), false, |core, me| {
            core.store(me, word, value, order)
        });
    }

    /// Performs an atomic operation: replaces the value by that of `change` and returns the old one. With `fails`, it
    /// replaces only the given value; any other it just loads, with the given ordering.
    #[inline]
    pub(crate) fn modify(
        &self,
        word: &AdversaryWord,
        order: Ordering,
        fails: Option<(u64, Ordering)>,
        site: &'static Location<'static>,
        change: impl FnOnce(u64) -> u64,
    ) -> u64 {
        match self.legible {
            true => self.modify_in::<true, _>(word, order, fails, site, change),
            false => self.modify_in::<false, _>(word, order, fails, site, change),
        }
    }

    #[inline(never)]
    fn modify_in<const LEGIBLE: bool, F: FnOnce(u64) -> u64>(
        &self,
        word: &AdversaryWord,
        order: Ordering,
        fails: Option<(u64, Ordering)>,
        site: &'static Location<'static>,
        change: F,
    ) -> u64 {
        let order = self.order(site, OperationKind::Modify, order);
        let fails = fails.map(|(held, order)| (held, self.order(site, OperationKind::Load, order)));
        let op = Op::Modify(word, order);
        self.operate::<LEGIBLE, _>(op, Some(site), false, |core, me| {
            core.modify(me, word, order, fails, change)
        })
    }

    /// Performs an operation when its turn comes, which is mostly at once.
    #[inline(always)]
    fn operate<const LEGIBLE: bool, R>(
        &self,
        op: Op,
        site: Option<&'static Location<'static>>,
        asked: bool,
        operation: impl FnOnce(&mut Core, usize) -> R,
    ) -> R {
        let me = usize::from(self.cpu.get());
        if LEGIBLE {
            let verdict = self.arrive(me, op, site);
            self.wait_for_turn(me, verdict, op, site);
            return self.apart(me, operation);
        }
        let mut visit = self.visit();
        let verdict = visit.core.arrive(me, op, site, asked);
        if verdict != Verdict::Go {
            drop(visit);
            self.wait_for_turn(me, verdict, op, site);
            visit = self.visit();
        }
        operation(&mut visit.core, me)
    }

    #[inline(never)]
    fn arrive(&self, me: usize, op: Op, site: Option<&'static Location<'static>>) -> Verdict {
        self.machine(|core| core.arrive(me, op, site, false))
    }

    #[inline(never)]
    fn apart<R>(&self, me: usize, operation: impl FnOnce(&mut Core, usize) -> R) -> R {
        self.machine(|core| operation(core, me))
    }

    /// Waits until the CPU, which has arrived at `op` with this verdict, may perform it. Meanwhile others run and
    /// interrupts are taken.
    #[inline(never)]
    fn wait_for_turn(
        &self,
        me: usize,
        mut verdict: Verdict,
        op: Op,
        site: Option<&'static Location<'static>>,
    ) {
        loop {
            match verdict {
                Verdict::Go => return,
                Verdict::Suspend => {
                    if self.legible {
                        fiber::suspend_legibly();
                    } else {
                        fiber::suspend();
                    }
                    self.cpu.set(me as u8);
                    verdict = self.machine(|core| core.resumed(me));
                    continue;
                }
                Verdict::Interrupted(by) => {
                    let were_on = self.machine(|core| core.interrupt(me, by));
                    match by {
                        Interruption::Interrupt => self.kernel().interrupt(),
                        Interruption::Nmi => self.kernel().nmi(),
                        Interruption::Preemption => self.kernel().preempt(),
                    }
                    self.machine(|core| core.resume(me, by, were_on));
                }
            }
            verdict = self.arrive(me, op, site);
        }
    }

    /// Waits as [`point`](super::point) does, in a run.
    #[inline]
    pub(super) fn wait_at(&self, op: Op) -> bool {
        match self.legible {
            true => self.wait_in::<true>(op, false),
            false => self.wait_at_once(op),
        }
        true
    }

    #[inline(never)]
    fn wait_at_once(&self, op: Op) {
        let me = usize::from(self.cpu.get());
        let goes_on = self.visit().core.steps_at_once(me, op);
        if let Err(asked) = goes_on {
            self.wait_in::<false>(op, asked);
        }
    }

    #[inline(never)]
    fn wait_in<const LEGIBLE: bool>(&self, op: Op, asked: bool) {
        self.operate::<LEGIBLE, _>(op, None, asked, |_, _| {});
    }

    /// Returns the ordering of an operation under the run's mistake.
    #[inline]
    fn order(&self, site: &Location<'_>, operation: OperationKind, order: Ordering) -> Ordering {
        match self.weakened {
            Some(weakened) if !self.spared.get() => weakened.order(site.file(), operation, order),
            _ => order,
        }
    }

    /// Performs a fence of the memory model.
    pub(crate) fn fence(&self, order: Ordering, site: &Location<'_>) {
        let me = self.cpu.get().into();
        match self.order(site, OperationKind::Fence, order) {
            Ordering::SeqCst => {
                self.wait_at(Op::Fence);
            }
            order => self.machine(|core| {
                if matches!(order, Ordering::Acquire | Ordering::AcqRel) {
                    core.order_loads(me);
                }
                if matches!(order, Ordering::Release | Ordering::AcqRel) {
                    core.order_stores(me);
                }
            }),
        }
    }

    #[inline]
    fn store_order(&self, word: &AdversaryWord, order: Ordering) -> Ordering {
        let address = std::ptr::from_ref(word) as usize;
        if self.weakens.get() && self.weak.borrow().contains(&address) {
            return Ordering::Relaxed;
        }
        order
    }
}

//! Runs the suite on all CPUs together, and reports the results.

use crate::bench::Bench;
use crate::part::{Part, SharedState};
use crate::{checks, promises};
use core::sync::atomic::Ordering::SeqCst;
use quell::{AddressSpace, Engine, Word};

/// The result of one check.
///
/// # Examples
///
/// ```
/// use quell_conformance::Check;
/// /// The line that a kernel logs for a check.
/// fn line(check: Check) -> String {
///     match check.failures {
///         0 => format!("ok {}", check.name),
///         cpus => format!("FAILED on {cpus} CPUs: {}: {}", check.name, check.saw),
///     }
/// }
/// let check = Check { name: "C1 C7 words_are_shared", failures: 0, saw: "", kept: None };
/// assert_eq!(line(check), "ok C1 C7 words_are_shared");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// The check's name, after the numbers of the contract's clauses that it checks.
    pub name: &'static str,
    /// The number of CPUs on which it failed; 0 if it succeeded.
    pub failures: u64,
    /// CPU 0's observation if the check failed there; otherwise empty.
    pub saw: &'static str,
    /// The number of CPUs that saw a stale translation, for the check `stale_translations_can_be_seen`; `None` for
    /// others.
    pub kept: Option<u64>,
}

/// The suite of checks, shared by all CPUs.
///
/// # Examples
///
/// After a CPU has made the suite, each CPU of a kernel calls a function like this one, at the same time:
///
/// ```
/// use quell_conformance::{Bench, Suite};
/// /// Runs the suite, and returns the number of failed checks on CPU 0.
/// fn test<B: Bench>(suite: &Suite<'_, '_, B>) -> usize {
///     let mut failed = 0;
///     suite.run(None, |check| failed += usize::from(check.failures > 0));
///     failed
/// }
/// ```
pub struct Suite<'e, 'm, H: Bench> {
    engine: &'e Engine<'m, H>,
    shared: SharedState<H>,
}

impl<'e, 'm, H: Bench> Suite<'e, 'm, H> {
    /// Creates a suite for the CPUs that [`Bench::cpus`] counts. The engine may also have other spaces.
    pub fn new(engine: &'e Engine<'m, H>) -> Self {
        Suite { engine, shared: SharedState::new(engine) }
    }

    /// Runs every check on this CPU, once.
    ///
    /// All CPUs that [`Bench::cpus`] counts must call it at the same time. CPU 0 passes the result of each check to
    /// `report`.
    ///
    /// The calling CPU is online in the engine, takes interrupts, and has `current` loaded, or no space if that's
    /// `None`. On return it runs `current`, even if that was loaded lazily before. Then no CPU has a space of the suite
    /// loaded, and the suite has freed all its memory.
    ///
    /// If two CPUs have the same number, or words aren't shared, the suite ends early, because a flush on such a
    /// machine may never end. It then keeps its memory.
    ///
    /// # Panics
    /// If the suite has run already.
    pub fn run(&self, current: Option<&AddressSpace<H>>, mut report: impl FnMut(Check)) {
        let (shared, cpus) = (&self.shared, self.engine.hw().cpus());
        let arrived = shared.arrivals.load(SeqCst);
        assert!(arrived < cpus, "a suite runs once");
        let part = Part::new(shared, self.engine, current);
        for (name, check) in promises::all() {
            if self.check(&part, name, check, None, &mut report) > 0 {
                return;
            }
        }
        part.enter(0);
        let checks = checks::all();
        let lacks = |name| match name {
            checks::OWN_HALF => shared.own_half.is_none(),
            checks::DEVICES => !self.engine.hw().has_device(),
            _ => false,
        };
        for (name, check) in checks {
            if lacks(name) {
                continue;
            }
            let kept = (name == checks[0].0).then_some(&shared.kept);
            self.check(&part, name, check, kept, &mut report);
        }
        part.barrier();
        part.leave();
        part.barrier();
        if part.me == 0 {
            shared.give_back(self.engine);
        }
        part.barrier();
    }

    /// Runs one check on this CPU, and returns the number of CPUs on which it failed. CPU 0 reports it.
    fn check<'s>(
        &self,
        part: &Part<'s, 'm, H>,
        name: &'static str,
        check: checks::Step<'s, 'm, H>,
        kept: Option<&H::Word>,
        report: &mut impl FnMut(Check),
    ) -> u64 {
        part.barrier();
        check(part);
        let verdict = part.verdict.replace(Ok(()));
        if verdict.is_err() {
            self.shared.failures.fetch_add(1, SeqCst);
        }
        part.barrier();
        let failures = self.shared.failures.load(SeqCst);
        part.barrier();
        if part.me == 0 {
            self.shared.failures.store(0, SeqCst);
            report(Check {
                name,
                failures,
                saw: verdict.err().unwrap_or(""),
                kept: kept.map(|kept| kept.load(SeqCst)),
            });
        }
        failures
    }
}

//! The suite: how all CPUs run it together, and how it reports.

use crate::bench::Bench;
use crate::part::{Part, Shared};
use crate::{checks, promises};
use core::sync::atomic::Ordering::SeqCst;
use quell::{AddressSpace, Engine, Word};

/// The result of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// Its name, the clauses of the contract first.
    pub name: &'static str,
    /// On how many CPUs it failed.
    pub failures: u64,
    /// If the check failed on CPU 0, the observation that made it fail; else empty.
    pub saw: &'static str,
    /// For the check whether stale translations can be seen at all: on how many CPUs they were seen.
    pub kept: Option<u64>,
}

/// The suite, shared by all CPUs.
pub struct Suite<'e, 'm, H: Bench> {
    engine: &'e Engine<'m, H>,
    shared: Shared<H>,
}

impl<'e, 'm, H: Bench> Suite<'e, 'm, H> {
    /// A suite for the CPUs of the bench, on an engine that may also have spaces that are not the suite's.
    pub fn new(engine: &'e Engine<'m, H>) -> Self {
        Suite {
            engine,
            shared: Shared::new(engine),
        }
    }

    /// Runs every check on this CPU, once; all CPUs of the bench must call it. CPU 0 passes the result of
    /// each check to `report`.
    ///
    /// The CPU is online in the engine, takes interrupts, and has `current` loaded, or nothing. When this returns, it
    /// runs `current`, even if that was loaded lazily before. By then no CPU has a space of the suite loaded, and the
    /// suite has given back what it took. If CPUs do not have numbers of their own, or words are not shared, the suite
    /// ends there, with what it took: on such a machine a flush may not end.
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

    /// One check on this CPU, reported by CPU 0; on how many it failed.
    fn check<'s>(
        &self,
        part: &Part<'s, 'm, H>,
        name: &'static str,
        check: checks::Step<'s, 'm, H>,
        kept: Option<&H::Word>,
        report: &mut impl FnMut(Check),
    ) -> u64 {
        part.barrier();
        let verdict = check(part);
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

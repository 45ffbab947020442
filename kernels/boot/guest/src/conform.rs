//! Runs the conformance suite's programs on Linux: its flushes must keep the contract, as far as programs can see.

use crate::control::{Control, pin};
use crate::linux::Linux;
use crate::protocol::{Event, Job, STRESS};
use crate::visitor::{JobProcesses, Visitor};
use crate::{faults, setup, team};
use anyhow::Context;
use quell_workloads::conformance::programs::Suite;
use quell_workloads::conformance::stress::{self, Length, Progress};
use std::cell::{Cell, RefCell};

/// The number of the process in which programs begin.
const HOME: u32 = 0;

/// The memory limit of the stress in bytes, so low that memory runs short.
const SHORT: u64 = 48 << 20;

/// A check: its name, the number of CPUs on which it failed, and the finding.
type CheckResult = (String, u64, String);

/// Performs a job and returns the results of its checks.
pub fn perform(number: usize, job: &Job) -> anyhow::Result<Vec<Event>> {
    setup::clean()?;
    let (control, others) = (Control::new()?, JobProcesses::new()?);
    let stressed = job.workload == STRESS;
    if stressed {
        setup::limit(SHORT)?;
    }
    let part = |cpu: usize| -> anyhow::Result<Vec<CheckResult>> {
        pin(cpu)?;
        let home = Linux::new(control, cpu, job.team, HOME as usize, false);
        let user = Visitor::new(home, others);
        if stressed {
            return disturbed(&user, job);
        }
        let checks = RefCell::new(Vec::new());
        Suite::new(&user, HOME).run(|name, failures, saw| {
            checks.borrow_mut().push((name.into(), failures, saw.into()));
        });
        Ok(checks.into_inner())
    };
    let checks: Vec<CheckResult> = team::processes(1, &|_| {
        faults::handle().context("handling faults")?;
        if stressed {
            setup::join_group()?;
        }
        let parts: anyhow::Result<Vec<_>> = team::threads(0..job.team, part).into_iter().collect();
        Ok(Some(parts?.into_iter().flatten().collect()))
    })?;
    let checked = |(name, failures, saw)| Event::Checked { job: number, name, failures, saw };
    Ok(checks.into_iter().map(checked).collect())
}

/// Runs this CPU's part of the stress. The first CPU reports the work done, and each CPU its findings.
fn disturbed(user: &Visitor<'_>, job: &Job) -> anyhow::Result<Vec<CheckResult>> {
    let number = |name: &str| -> anyhow::Result<u64> {
        let value = |pair: &'_ String| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        let given = job.parameters.iter().find_map(value);
        let given = given.with_context(|| format!("a stress needs {name}=N"))?;
        given.parse().with_context(|| format!("{name}={given}"))
    };
    let (rounds, seed) = (number("rounds")?, number("seed")?);
    let done = Cell::new(None::<Progress>);
    let outcome = stress::run(user, seed, HOME, Length::Rounds(rounds), &|_| {}, |progress| {
        done.set(Some(progress));
    });
    let name = || "every operation at random".to_string();
    Ok(match (outcome, done.get()) {
        (Err(saw), _) => vec![(name(), 1, saw)],
        (Ok(()), Some(done)) => vec![(name(), 0, format!("{} operations", done.operations))],
        (Ok(()), None) => Vec::new(),
    })
}

//! Converts a run to a replay code, a line of text, and repeats it.

use crate::action::Deviation;
use crate::kind::MachineKind;
use crate::machine::End;
use crate::mistake::Mistake;
use crate::scenario::Scenario;
use crate::session::{Case, Session};
use quell_conformance::{PolicyText, parse_policy};
use quell_vm::contract::Violation;
use quell_vm::contract::timeline::Line;
use quell_workloads::files::hint;
use std::fmt::Write;

/// Returns the code that replays a run.
///
/// It has the form `scenario:machine:policy[!mistake]:deviations`, for example `unmap-access:x86:all:12.3-4.5`.
/// [`quell_conformance::policy_text`] formats the policy.
pub fn replay_code(case: &Case, deviations: &[Deviation]) -> String {
    let mut code = format!("{}:{}:{}", case.scenario.name, case.kind.name, PolicyText(case.policy));
    if let Some(mistake) = case.mistake {
        let _ = write!(code, "!{}", mistake.name());
    }
    let _ = write!(code, ":{}", schedule_words(deviations));
    code
}

/// Formats a schedule as its deviations from the fixed scheduler.
///
/// Each deviation is the number of decisions since the last one, and the choice.
pub fn schedule_words(deviations: &[Deviation]) -> String {
    let mut words = String::new();
    let mut last = 0;
    for (at, &(decision, choice)) in deviations.iter().enumerate() {
        let dash = if at > 0 { "-" } else { "" };
        let _ = write!(words, "{dash}{:x}.{choice:x}", decision - last);
        last = decision;
    }
    words
}

/// Parses the result of [`schedule_words`].
///
/// # Errors
/// Returns a message with the invalid choice.
pub fn parse_schedule(words: &str) -> Result<Vec<Deviation>, String> {
    let mut deviations = Vec::new();
    let mut decision = 0u32;
    for choice in words.split('-').filter(|choice| !choice.is_empty()) {
        let read = || {
            let (delta, action) = choice.split_once('.')?;
            let delta = u32::from_str_radix(delta, 16).ok()?;
            Some((delta, u8::from_str_radix(action, 16).ok()?))
        };
        let (delta, action) = read().ok_or_else(|| {
            format!("`{choice}` in the replay code: expected two hexadecimal numbers like 1f.2")
        })?;
        decision = decision.checked_add(delta).ok_or_else(|| {
            format!("`{choice}` in the replay code: the number of decisions is too large")
        })?;
        deviations.push((decision, action));
    }
    Ok(deviations)
}

/// Parses a replay code.
///
/// # Errors
/// If it contains an unknown name or is cut off.
pub fn parse_code(code: &str) -> Result<(Case<'static>, Vec<Deviation>), String> {
    parse_code_of(code, |name| {
        Scenario::named(name).ok_or_else(|| {
            let near = hint(name, Scenario::ALL.iter().map(|known| known.name));
            format!("no scenario `{name}`{near}; `quell explore --list` lists them")
        })
    })
}

/// Parses a replay code whose scenario `named` finds.
///
/// # Errors
/// Fails like [`parse_code`], or with an error of `named`.
pub fn parse_code_of<'p>(
    code: &str,
    named: impl FnOnce(&str) -> Result<&'p Scenario<'p>, String>,
) -> Result<(Case<'p>, Vec<Deviation>), String> {
    let parts: Vec<&str> = code.trim().split(':').collect();
    let [scenario, machine, policy, choices] = parts[..] else {
        return Err(format!(
            "`{code}` is not a replay code: expected scenario:machine:policy[!mistake]:deviations"
        ));
    };
    let scenario = named(scenario)?;
    let kind = MachineKind::find(machine)?;
    let (policy, mistake) = match policy.split_once('!') {
        None => (policy, None),
        Some((policy, name)) => (policy, Some(Mistake::find(name)?)),
    };
    let policy = parse_policy(policy).map_err(|error| format!("policy `{policy}`: {error}"))?;
    let deviations = parse_schedule(choices)?;
    let case = Case { scenario, kind: *kind, policy, mistake };
    if !scenario.runs_on(kind) {
        return Err(format!("the scenario `{}` does not run on `{}`", scenario.name, kind.name));
    }
    Ok((case, deviations))
}

/// Repeats a run. Returns the violation, if any, and the run's steps.
pub fn replay(case: Case, deviations: Vec<Deviation>) -> (Option<Violation>, Vec<Line>) {
    let (run, lines) = Session::new(case).replay(deviations);
    let violation = match run.end {
        End::Violated(violation) => Some(*violation),
        _ => None,
    };
    (violation, lines)
}

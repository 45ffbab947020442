//! Running steps, two at a time where they can.
//!
//! A step that runs beside another is told of as it begins, and its lines are kept and printed together as it ends. One
//! that runs alone passes them on as they come, and has the terminal if there is one.

use super::cargo;
use super::steps::{Builds, Step};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::process::Stdio;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What came of a step that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// It has shown what it shows.
    Whole,
    /// It has shown nothing: a tool is missing, and it has said which.
    Skipped,
}

/// What came of a step.
pub struct Outcome {
    pub step: &'static Step,
    /// For one that failed the last lines of its output; none where a terminal showed them.
    pub result: Result<Passed, Vec<String>>,
    pub took: Duration,
}

/// What a step ends with that lacks a tool. It is automake's number; the smaller ones mean failures of cargo, pytest
/// and `quell`.
pub const SKIPPED: u8 = 77;

/// How many lines of a step that failed are repeated at the end.
const REPEATED: usize = 30;

/// How many steps run at a time.
const LANES: usize = 2;

/// Whether two steps may run at the same time.
fn beside(one: &Step, other: &Step) -> bool {
    match (one.builds, other.builds) {
        (Builds::Alone, _) | (_, Builds::Alone) => false,
        (Builds::Apart, _) | (_, Builds::Apart) => true,
        (one, other) => one != other,
    }
}

/// Steps that wait, in their order, and those that run.
struct Queue {
    waiting: Vec<&'static Step>,
    running: Vec<&'static Step>,
}

impl Queue {
    /// The first step that may run beside those that do, which now runs too.
    fn begin(&mut self) -> Option<&'static Step> {
        let fits = |step: &Step| self.running.iter().all(|other| beside(step, other));
        let place = self.waiting.iter().position(|step| fits(step))?;
        let step = self.waiting.remove(place);
        self.running.push(step);
        Some(step)
    }

    fn end(&mut self, step: &Step) {
        self.running.retain(|other| other.name != step.name);
    }
}

/// The lock of what a lane that panicked left as whole as every other.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all of the steps; what came of them, in their order.
pub fn run(steps: Vec<&'static Step>) -> Vec<Outcome> {
    let order: Vec<_> = steps.iter().map(|step| step.name).collect();
    let single = steps.len() == 1;
    let queue = Mutex::new(Queue {
        waiting: steps,
        running: Vec::new(),
    });
    let ended = Condvar::new();
    let outcomes = Mutex::new(Vec::new());
    let lane = || {
        let mut state = lock(&queue);
        while !state.waiting.is_empty() {
            let Some(step) = state.begin() else {
                state = ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let outcome = step_alone_or_beside(step, single || step.builds == Builds::Alone);
            lock(&outcomes).push(outcome);
            state = lock(&queue);
            state.end(step);
            ended.notify_all();
        }
    };
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(lane);
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.sort_by_key(|outcome| order.iter().position(|name| *name == outcome.step.name));
    outcomes
}

fn step_alone_or_beside(step: &'static Step, alone: bool) -> Outcome {
    let title = format!("\n== {}: {}\n   {step}\n", step.name, step.shows);
    if alone {
        print(title.as_bytes());
    } else {
        print(format!("-- {} begins\n", step.name).as_bytes());
    }
    let begun = Instant::now();
    let said = Mutex::new(Said {
        all: (!alone).then(|| title.into_bytes()),
        last: VecDeque::new(),
    });
    let result = execute(step, alone, &said);
    let took = begun.elapsed();
    let said = said.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut all) = said.all {
        let how = if result.is_ok() { "ends" } else { "FAILED" };
        all.extend(format!("-- {} {how} after {} s\n", step.name, took.as_secs()).bytes());
        print(&all);
    }
    let result = result.map_err(|why| said.last.into_iter().chain(why).collect());
    Outcome { step, result, took }
}

/// Lines of one step are not torn apart: each call holds standard output until it has written all.
fn print(text: &[u8]) {
    let mut out = io::stdout().lock();
    // Whoever has closed it wants no more of it; the steps' outcome is the exit code's.
    let _ = out.write_all(text).and_then(|()| out.flush());
}

/// What a step has said.
struct Said {
    /// All of it, where it is kept.
    all: Option<Vec<u8>>,
    /// Its last lines.
    last: VecDeque<String>,
}

/// Runs a step's command.
///
/// # Errors
/// If the command does not end well: what else there is to say of that.
fn execute(step: &Step, alone: bool, said: &Mutex<Said>) -> Result<Passed, Option<String>> {
    let mut command = cargo::command();
    command
        .args(step.cargo)
        .envs(step.environment.iter().copied());
    let watched = alone && io::stdout().is_terminal();
    if !watched {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let status = command.spawn().and_then(|mut child| {
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        thread::scope(|scope| {
            if let Some(output) = output {
                scope.spawn(|| pass_on(output, io::stdout(), said));
            }
            if let Some(errors) = errors {
                scope.spawn(|| pass_on(errors, io::stderr(), said));
            }
            child.wait()
        })
    });
    match status {
        Ok(status) if status.success() => Ok(Passed::Whole),
        Ok(status) if status.code() == Some(SKIPPED.into()) => Ok(Passed::Skipped),
        Ok(status) if !watched => Err(Some(status.to_string())),
        Ok(_) => Err(None),
        Err(error) => Err(Some(format!("cargo does not start: {error}"))),
    }
}

/// Keeps lines, or passes them on as they come.
fn pass_on(from: impl Read, mut to: impl Write, said: &Mutex<Said>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // What cannot be read or written any more ends this output and not the step.
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let mut said = lock(said);
        match &mut said.all {
            Some(all) => all.extend(&line),
            None => {
                let _ = to.write_all(&line).and_then(|()| to.flush());
            }
        }
        if said.last.len() == REPEATED {
            said.last.pop_front();
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        said.last.push_back(text);
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::STEPS;

    /// Runs all steps in thought, each as long as `length` says; tells of each which others ran beside it, in the order
    /// in which they began.
    fn schedule(length: impl Fn(&Step) -> u64) -> Vec<(&'static Step, Vec<&'static Step>)> {
        let mut queue = Queue {
            waiting: STEPS.iter().collect(),
            running: Vec::new(),
        };
        let (mut begun, mut ends, mut now) = (Vec::new(), Vec::new(), 0);
        loop {
            while queue.running.len() < LANES
                && let Some(step) = queue.begin()
            {
                let others = queue.running.iter().copied();
                let others = others.filter(|other| other.name != step.name).collect();
                begun.push((step, others));
                ends.push((now + length(step), step));
            }
            let Some(first) = (0..ends.len()).min_by_key(|place| ends[*place].0) else {
                assert!(queue.waiting.is_empty());
                return begun;
            };
            let (end, step) = ends.remove(first);
            now = end;
            queue.end(step);
        }
    }

    #[test]
    fn every_step_runs_once_and_beside_none_that_it_disturbs() {
        // Lengths that no two runs share, so that steps meet in many ways.
        for seed in 1..200 {
            let begun = schedule(|step| 1 + (step.name.len() as u64 * 7919 * seed) % 101);
            assert_eq!(begun.len(), STEPS.len());
            let mut names: Vec<_> = begun.iter().map(|(step, _)| step.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), STEPS.len(), "a step ran twice");
            for (step, others) in &begun {
                let alone = step.builds == Builds::Alone;
                assert!(!alone || others.is_empty(), "{} is not alone", step.name);
                for other in others {
                    assert!(other.builds != Builds::Alone, "{}", other.name);
                    let same = step.builds == other.builds && step.builds != Builds::Apart;
                    assert!(!same, "{} builds where {} does", step.name, other.name);
                }
            }
            assert!(begun.iter().any(|(_, others)| !others.is_empty()));
        }
    }

    /// `linux` boots what `kernels` has built.
    #[test]
    fn linux_is_booted_when_it_is_built() {
        for slow in STEPS {
            let begun = schedule(|step| if step.name == slow.name { 1000 } else { 1 });
            let place = |name: &str| begun.iter().position(|(step, _)| step.name == name);
            let (_, beside) = &begun[place("linux").expect("a step")];
            assert!(place("kernels") < place("linux") && beside.is_empty());
        }
    }
}

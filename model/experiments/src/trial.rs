//! Runs one trial: a workload on a machine in software, under a policy.

use std::cell::{Cell, RefCell};

use quell::{Policy, Stats};
use quell_clock::file::DEFAULT_POLICY;
use quell_clock::{
    Architecture, Counts, Latency, LineMove, MachineFile, ModelUser, Parameter, Progress, Run,
    RunError, Setup, Trace, built_in,
};
use quell_vm::User;
use quell_workloads::{Failure, Measure, WORDS, Window, Workload};
use quell_zero::{ClearPolicy, Plan, Strategy};

use crate::machines;

/// The inputs of one run.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The machine.
    pub machine: &'a MachineFile,
    /// The workload.
    pub workload: Workload,
    /// The mechanisms that are on.
    pub policy: Policy,
    /// The number of CPUs.
    pub cpus: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of events to trace; 0 for no trace.
    pub trace: usize,
}

/// The results of a run. Counts are those of the measured window.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The workload's figure.
    pub measure: Measure,
    /// The engine's counts.
    pub engine: Stats,
    /// The machine's counts.
    pub machine: Counts,
    /// The length of the measured window, in virtual nanoseconds; 0 if the workload opened none.
    pub window_nanoseconds: f64,
    /// The length of the whole run, in virtual nanoseconds.
    pub elapsed_nanoseconds: f64,
    /// The durations of the calls in the measured window, by name.
    pub latencies: Vec<Latency>,
    /// The number of the workload's operations in the measured window, or 0 if the file's expression has no value.
    pub operations: u64,
    /// The moves of cache lines, if they were recorded.
    pub moves: Option<Vec<LineMove>>,
    /// The number of violations of the contract in the whole run.
    pub violations: u64,
    /// The number of accesses that break a clause which the policy gives up.
    pub expected_violations: u64,
    /// The first violations, in words.
    pub breaches: Vec<String>,
    /// The trace. It's empty unless enabled.
    pub trace: Trace,
    /// The simulated accesses of the whole run, per second of the host.
    pub accesses_per_second: f64,
    /// The host's time in seconds.
    pub host_seconds: f64,
}

/// The reason why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The workload can't run with these parameters on this number of CPUs.
    #[error("{workload}: {why}")]
    Unfit {
        /// The name of the workload.
        workload: &'static str,
        /// The reason, and a remedy.
        why: String,
    },
    /// The workload needs a kind of memory that the machine lacks.
    #[error(
        "{workload} needs {needs}, which {machine} does not have ({} is {value}); {} has it",
        parameter.name(),
        having(*parameter)
    )]
    Memory {
        /// The name of the workload.
        workload: &'static str,
        /// The missing feature.
        needs: &'static str,
        /// The machine.
        machine: String,
        /// The machine's parameter that enables the feature.
        parameter: Parameter,
        /// The parameter's value.
        value: usize,
    },
    /// The policy broadcasts, but the machine can't.
    #[error(
        "the policy {policy} broadcasts, and {machine} cannot: its {} is no",
        Parameter::Broadcast.name()
    )]
    Broadcast {
        /// The name of the policy.
        policy: String,
        /// The machine.
        machine: String,
    },
    /// The machine failed to finish the run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The workload failed.
    #[error("{workload}, CPU {cpu}: {failure}")]
    Failed {
        /// The workload's file.
        workload: &'static str,
        /// The CPU.
        cpu: usize,
        /// The failure.
        failure: Failure,
    },
}

/// Returns the built-in machines with the greatest value of a parameter, as a list in words.
fn having(parameter: Parameter) -> String {
    let all: Vec<_> = machines::names().filter_map(built_in).collect();
    let most = all.iter().map(|machine| machine.count(parameter)).max();
    let having: Vec<_> = all
        .iter()
        .filter(|machine| Some(machine.count(parameter)) == most)
        .map(|machine| format!("--machine {}", machine.name()))
        .collect();
    having.join(", ")
}

impl TrialError {
    /// Returns whether the user named a machine, value or other thing that doesn't exist.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            TrialError::Unfit { .. }
                | TrialError::Broadcast { .. }
                | TrialError::Memory { .. }
                | TrialError::Run(RunError::Unsupported(_))
        )
    }
}

impl Trial<'_> {
    fn check(&self) -> Result<(), TrialError> {
        let workload = self.workload.name();
        self.workload.check(self.cpus).map_err(|why| TrialError::Unfit { workload, why })?;
        let has = self.machine.choice(Parameter::Broadcast) == "yes";
        let needs = |cpus: usize| cpus > self.machine.count(Parameter::BroadcastAbove);
        if self.machine.policy() != DEFAULT_POLICY && needs(self.cpus) && !has {
            return Err(TrialError::Broadcast {
                policy: self.machine.policy().into(),
                machine: self.machine.name().into(),
            });
        }
        let memory = self.workload.memory(self.cpus);
        let lacks = |needs, parameter: Parameter| TrialError::Memory {
            workload,
            needs,
            machine: self.machine.name().into(),
            parameter,
            value: self.machine.count(parameter),
        };
        if memory.slow.is_some() && self.machine.count(Parameter::SlowNodes) == 0 {
            return Err(lacks("slow memory", Parameter::SlowNodes));
        }
        if (self.machine.count(Parameter::Nodes) as u64) < memory.nodes {
            return Err(lacks("several memory nodes", Parameter::Nodes));
        }
        Ok(())
    }

    fn clear(&self) -> ClearPolicy {
        let strategy = match (self.machine.choice(Parameter::ZeroLoop), self.machine.architecture())
        {
            ("stores", _) => Strategy::Stores,
            ("clzero", _) => Strategy::Clzero,
            ("nontemporal", Architecture::X86_64) => Strategy::NonTemporal64,
            ("nontemporal", Architecture::Aarch64) => Strategy::NonTemporal128,
            ("string", Architecture::X86_64) => Strategy::RepStos,
            ("string", Architecture::Aarch64) => Strategy::DcZva,
            (other, _) => unreachable!("the loop `{other}` needs a line here"),
        };
        ClearPolicy {
            cap_bytes: self.policy.cap_bytes,
            ..ClearPolicy::cooperative(Plan::uniform(strategy))
        }
    }

    /// Runs the trial.
    ///
    /// # Errors
    /// See [`TrialError`]. Violations of the contract aren't errors: the outcome contains them.
    pub fn run(&self) -> Result<Outcome, TrialError> {
        self.run_without(&[])
    }

    /// Runs the trial without some guards of the engine and of the manager.
    ///
    /// `without` contains the names of the guards' mutants. It works only in the instrumented copy.
    ///
    /// # Errors
    /// See [`TrialError`].
    pub fn run_without(&self, without: &[&str]) -> Result<Outcome, TrialError> {
        self.run_watched(without, &Progress::new(), false)
    }

    /// Runs the trial like [`Trial::run_without`], and reports the progress.
    ///
    /// If `lines` is set, it also records which cache lines move.
    ///
    /// # Errors
    /// See [`TrialError`].
    pub fn run_watched(
        &self,
        without: &[&str],
        progress: &Progress,
        lines: bool,
    ) -> Result<Outcome, TrialError> {
        self.check()?;
        let memory = self.workload.memory(self.cpus);
        let clear = self.clear();
        let setup = Setup {
            cpus: Some(self.cpus),
            seed: self.seed,
            trace: self.trace,
            lines,
            node_bytes: Some(memory.node),
            slow_node_bytes: memory.slow.or(Some(16 << 20)),
            without,
            progress,
            ..Setup::new(self.machine)
        };
        let program = Program {
            workload: self.workload,
            seed: self.seed,
            words: Cell::new([0; WORDS]),
            failure: RefCell::default(),
        };
        let run = Run {
            configure: &|config| {
                config.demotion = memory.demotion;
                config.reclaim_ahead = memory.ahead.unwrap_or(config.reclaim_ahead);
                config.reclaim_idle = memory.idle_reclaims;
                let together = memory.together.map(|pages| pages as usize);
                config.flush_together = together.unwrap_or(config.flush_together);
                config.clear = clear;
            },
            ..Run::new(setup, self.policy)
        };
        let outcome = run.execute(&|user| program.body(user))?;
        if let Some((cpu, failure)) = program.failure.take() {
            return Err(TrialError::Failed { workload: self.workload.path(), cpu, failure });
        }
        let run = outcome.run;
        Ok(Outcome {
            measure: self.workload.measure(&program.words.get(), self.cpus),
            engine: outcome.engine_window,
            machine: run.window.map_or_else(|| run.counts(), |(_, counts)| counts),
            window_nanoseconds: run.window.map_or(0.0, |(time, _)| time as f64 / 1e3),
            elapsed_nanoseconds: run.elapsed as f64 / 1e3,
            accesses_per_second: run.accesses_per_second(),
            latencies: run.latencies,
            moves: run.moves,
            operations: Window::of(&program.words.get())
                .map_or(0, |window| self.workload.operations(window.done)),
            violations: run.violation_count,
            expected_violations: run.expected_violations,
            breaches: run.violations.iter().map(ToString::to_string).collect(),
            host_seconds: run.host_seconds,
            trace: run.trace,
        })
    }
}

/// The workload on all CPUs, and its results.
struct Program {
    workload: Workload,
    seed: u64,
    words: Cell<[u64; WORDS]>,
    failure: RefCell<Option<(usize, Failure)>>,
}

impl Program {
    fn body(&self, user: &ModelUser<'_>) {
        if let Err(failure) = self.workload.run(user, self.seed) {
            let mut kept = self.failure.borrow_mut();
            // Keep the original error instead of `Elsewhere`.
            if kept.is_none_or(|(_, known)| known == Failure::Elsewhere) {
                *kept = Some((user.cpu(), failure));
            }
        }
        if user.cpu() == 0 {
            self.words.set(std::array::from_fn(|index| user.shared(index)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_clock::built_in;

    /// Checks `together`: by default a discard needs a flush for each 64 pages; with it, one for all 256.
    #[test]
    fn a_file_says_how_many_pages_one_flush_serves() {
        let machine = built_in("haswell-server").unwrap();
        let shootdowns = |together: &str| {
            let text = format!(
                r#"
name = "large"
title = "discards"
mechanism = "S4"
cpus = 2
[memory]
touched = "2M"
{together}
[figure]
says = "ns"
value = "nanoseconds"
[operation]
is = "discard"
[[threads]]
when = "cpu == 0"
program = [
    {{ map = "a", bytes = "1M" }},
    {{ write = "a", bytes = "1M" }},
    {{ open = true }},
    {{ discard = "a", bytes = "1M" }},
    {{ close = true }},
]
[[threads]]
program = [ {{ bystand = "1us" }} ]
"#
            );
            let workload = Workload::parse("large.toml", &text).unwrap();
            let trial = Trial {
                machine: &machine,
                workload,
                policy: Policy::BASELINE,
                cpus: 2,
                seed: 1,
                trace: 0,
            };
            let outcome = trial.run().unwrap();
            assert_eq!(outcome.violations, 0);
            outcome.engine.get(quell::Counter::Shootdowns)
        };
        assert_eq!((shootdowns(""), shootdowns("together = 10_000")), (4, 1));
    }

    /// Returns the error of a two-CPU run whose first CPU performs this program, in line 15.
    fn told(program: &str) -> String {
        let text = format!(
            "name = \"stuck\"\ntitle = \"t\"\nmechanism = \"S4\"\ncpus = 2\n[memory]\ntouched = \"4K\"\n[figure]\nsays = \"ns\"\n\
             value = \"nanoseconds\"\n[operation]\nis = \"nothing\"\n[[threads]]\nwhen = \"cpu == 0\"\nprogram = [\n{program}\n]\n\
             [[threads]]\nprogram = [\n{{ begin = true }}\n]\n"
        );
        let trial = Trial {
            machine: &built_in("haswell-server").unwrap(),
            workload: Workload::parse("stuck.toml", &text).unwrap(),
            policy: Policy::ALL,
            cpus: 2,
            seed: 1,
            trace: 0,
        };
        trial.run().unwrap_err().to_string()
    }

    #[test]
    fn a_barrier_to_which_not_all_come_is_told_at_once_with_its_line() {
        let told = told("{ begin = true }, { end = true }");
        assert!(
            told.starts_with("stuck.toml, CPU 0: line 15: end: no other CPU can reach it"),
            "{told}"
        );
    }

    #[test]
    fn a_loop_without_an_end_is_told_with_its_line() {
        let told = told("{ begin = true }, { while = true, do = [ { compute = \"1s\" } ] }");
        assert!(
            told.starts_with("no step in 60 s of virtual time: CPU 0 in its program at line 15;"),
            "{told}"
        );
    }

    /// Checks that a discard doesn't flush for others: if it has removed every page of its range itself, it has found
    /// no entry with another call's pending flush.
    #[test]
    fn calls_that_discard_pages_of_their_own_do_not_flush_for_each_other() {
        let mut workload = Workload::from_name("crowd").unwrap();
        workload.set("iterations=20").unwrap();
        let trial = Trial {
            machine: &built_in("haswell-server").unwrap(),
            workload,
            policy: Policy::BASELINE,
            cpus: 8,
            seed: 1,
            trace: 0,
        };
        let outcome = trial.run().unwrap();
        assert_eq!(outcome.violations, 0);
        let engine = |counter| outcome.engine.get(counter);
        assert_eq!(engine(quell::Counter::FlushedPending), 0);
        assert_eq!(engine(quell::Counter::Requested), 8 * 20);
    }

    /// Checks that a run's figures don't depend on where the host's allocator places memory.
    #[test]
    fn a_run_gives_the_same_figures_wherever_its_memory_is() {
        let machine = built_in("xeon-6430-cxl").unwrap();
        let policy = quell_conformance::parse_policy("S0+S2+S4,asynchronous=no,inline=no").unwrap();
        let mut workload = Workload::from_name("readers").unwrap();
        // Readers that are always short of memory.
        for pair in ["threads=2", "size=2M", "fast=2M", "slow=2M", "ahead=32", "reclaimers=2"] {
            workload.set(pair).unwrap();
        }
        let trial =
            Trial { machine: &machine, workload, policy, cpus: workload.cpus(), seed: 1, trace: 0 };
        // Each run finds the allocator in another state, because the earlier runs left holes.
        let figures = [0, 1000, 2000, 3000].map(|held| {
            let _held: Vec<_> = (0..held).map(|size| vec![0u8; size % 97 + 1]).collect();
            trial.run().unwrap().measure.value
        });
        assert_eq!(figures, [figures[0]; 4]);
    }
}

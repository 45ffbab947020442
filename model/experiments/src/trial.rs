//! Runs one trial: a workload on a machine in software, under a policy.

use std::cell::{Cell, RefCell};

use quell::Stats;
use quell_clock::file::DEFAULT_POLICY;
use quell_clock::{
    Architecture, Counts, ModelUser, Parameter, Progress, Run, RunError, RunResult, Setup, built_in,
};
use quell_vm::User;
use quell_workloads::{Failure, Measure, WORDS, Window, Workload};
use quell_zero::{ClearPolicy, Plan, Strategy};

use crate::jobs::Job;
use crate::machines;

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
    /// The number of the workload's operations in the measured window, or 0 if the file's expression has no value.
    pub operations: u64,
    /// The result of the whole run.
    pub run: RunResult,
}

/// The reason why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The machine can't run the workload or the policy, or not on this number of CPUs.
    #[error("{0}")]
    Unfit(String),
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
        matches!(self, TrialError::Unfit(_) | TrialError::Run(RunError::Unsupported(_)))
    }
}

impl Job {
    fn check(&self) -> Result<(), TrialError> {
        let (workload, machine) = (self.workload.name(), self.machine.name());
        let unfit = |why: String| Err(TrialError::Unfit(why));
        if let Err(why) = self.workload.check(self.cpus) {
            return unfit(format!("{workload}: {why}"));
        }
        let has = self.machine.choice(Parameter::Broadcast) == "yes";
        let needs = |cpus: usize| cpus > self.machine.count(Parameter::BroadcastAbove);
        if self.machine.policy() != DEFAULT_POLICY && needs(self.cpus) && !has {
            return unfit(format!(
                "the policy {} broadcasts, and {machine} cannot: its {} is no",
                self.machine.policy(),
                Parameter::Broadcast.name()
            ));
        }
        let memory = self.workload.memory(self.cpus);
        for (needs, parameter, least) in [
            ("slow memory", Parameter::SlowNodes, u64::from(memory.slow.is_some())),
            ("several memory nodes", Parameter::Nodes, memory.nodes),
        ] {
            let value = self.machine.count(parameter);
            if (value as u64) < least {
                return unfit(format!(
                    "{workload} needs {needs}, which {machine} does not have ({} is {value}); {} has it",
                    parameter.name(),
                    having(parameter)
                ));
            }
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
        self.run_watched(&Progress::new())
    }

    /// Runs the trial, and reports the progress.
    pub(crate) fn run_watched(&self, progress: &Progress) -> Result<Outcome, TrialError> {
        self.check()?;
        let memory = self.workload.memory(self.cpus);
        let clear = self.clear();
        let setup = Setup {
            cpus: Some(self.cpus),
            seed: self.seed,
            trace: self.trace,
            lines: self.lines,
            node_bytes: Some(memory.node),
            slow_node_bytes: memory.slow.or(Some(16 << 20)),
            without: self.without,
            progress,
            ..Setup::new(&self.machine)
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
            engine: outcome.engine,
            machine: run.window.map_or_else(|| run.counts(), |(_, counts)| counts),
            window_nanoseconds: run.window.map_or(0.0, |(time, _)| time as f64 / 1e3),
            operations: Window::of(&program.words.get())
                .map_or(0, |window| self.workload.operations(window.done)),
            run,
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
    use crate::workloads::known;
    use quell::Policy;
    use quell_clock::built_in;
    use std::sync::Arc;

    /// Checks `together`: by default a discard needs a flush for each 64 pages; with it, one for all 256.
    #[test]
    fn a_file_says_how_many_pages_one_flush_serves() {
        let machine = Arc::new(built_in("haswell-server").unwrap());
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
            let trial = Job::new(machine.clone(), workload, Policy::BASELINE, 2);
            let outcome = trial.run().unwrap();
            assert_eq!(outcome.run.violation_count, 0);
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
        let machine = built_in("haswell-server").unwrap();
        let workload = Workload::parse("stuck.toml", &text).unwrap();
        Job::new(machine.into(), workload, Policy::ALL, 2).run().unwrap_err().to_string()
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
        let workload = known("crowd", ["iterations=20"]);
        let machine = built_in("haswell-server").unwrap();
        let outcome = Job::new(machine.into(), workload, Policy::BASELINE, 8).run().unwrap();
        assert_eq!(outcome.run.violation_count, 0);
        let engine = |counter| outcome.engine.get(counter);
        assert_eq!(engine(quell::Counter::FlushedPending), 0);
        assert_eq!(engine(quell::Counter::Requested), 8 * 20);
    }

    /// Checks that a run's figures don't depend on where the host's allocator places memory.
    #[test]
    fn a_run_gives_the_same_figures_wherever_its_memory_is() {
        let machine = built_in("xeon-6430-cxl").unwrap();
        let policy = quell_conformance::parse_policy("S0+S2+S4,asynchronous=no,inline=no").unwrap();
        // Readers that are always short of memory.
        let parameters = ["threads=2", "size=2M", "fast=2M", "slow=2M", "ahead=32", "reclaimers=2"];
        let workload = known("readers", parameters);
        let trial = Job::new(machine.into(), workload, policy, workload.cpus());
        // Each run finds the allocator in another state, because the earlier runs left holes.
        let figures = [0, 1000, 2000, 3000].map(|held| {
            let _held: Vec<_> = (0..held).map(|size| vec![0u8; size % 97 + 1]).collect();
            trial.run().unwrap().measure.value
        });
        assert_eq!(figures, [figures[0]; 4]);
    }

    /// Workload, parameters, machine, policy, CPUs, seed; calls, faults, interrupts taken, the engine's counters.
    type Row = (&'static str, &'static str, &'static str, &'static str, usize, u64, [u64; 4]);

    #[rustfmt::skip]
    const COUNTED: &[Row] = &[
        ("dontneed", "iterations=300", "haswell-server", "all", 2, 1, [300, 300, 300, 2100]),
        ("dontneed", "iterations=300 pages=40 stride=2", "haswell-server", "all", 4, 1, [300, 12000, 900, 4500]),
        ("dontneed", "iterations=200 unmap=yes", "haswell-server", "baseline", 3, 1, [400, 200, 400, 2000]),
        ("dontneed", "iterations=200 idle=yes touch=no", "haswell-server", "S0+S4", 3, 1, [202, 0, 0, 0]),
        ("fileio", "duration=4ms", "haswell-server", "all", 4, 1, [48, 1372, 162, 810]),
        ("fileio", "duration=3ms files=3 size=100K block=1000", "haswell-server", "baseline", 6, 7, [18, 404, 1765, 6354]),
        ("swap", "rounds=3", "haswell-server", "all", 3, 1, [3, 768, 48, 264]),
        ("swap", "rounds=3 clean=yes", "haswell-server", "all", 3, 1, [3, 0, 0, 0]),
        ("swap", "rounds=2 zeros=yes size=3M", "haswell-server", "baseline", 1, 1, [2, 1536, 0, 4608]),
        ("migrate", "rounds=2 size=2M", "kunpeng-920", "all", 1, 1, [2, 0, 0, 2050]),
        ("migrate", "rounds=3 size=2M readers=yes", "kunpeng-920", "baseline", 4, 1, [3, 4552, 0, 4608]),
        ("demand", "size=300M", "haswell-server", "all", 2, 1, [0, 300, 0, 0]),
        ("demand", "size=3M page=4K", "haswell-server", "baseline", 3, 1, [0, 2304, 0, 0]),
        ("demand", "size=2G page=1G", "haswell-server", "all", 1, 1, [0, 2, 0, 0]),
        ("pingpong", "switches=500", "haswell-server", "all", 1, 1, [500, 0, 0, 1000]),
        ("pingpong", "switches=300 pages=20 drops=3 processes=5", "haswell-server", "all", 3, 1, [1264, 1018, 96, 2912]),
        ("pingpong", "switches=300 pages=20 drops=3 clean=yes", "haswell-server", "baseline", 2, 1, [935, 1329, 465, 4575]),
        ("readers", "threads=3 size=6M fast=4M slow=8M ahead=128", "xeon-6430-cxl", "all", 9, 1, [0, 4608, 295, 10741]),
        ("readers", "threads=2 size=4M fast=3M slow=0 ahead=64 reclaimers=2 own=0", "haswell-server", "all-S3", 8, 3, [3720, 3072, 574, 2968]),
    ];

    /// Checks that workload files count the same events as the Rust programs that they replaced. The counts depend on the
    /// order in which CPUs arrive, so a change of a machine file or of the engine may move some; then update them from
    /// `quell run --json`.
    #[test]
    fn files_count_what_the_programs_in_rust_counted() {
        for &(name, parameters, machine, policy, cpus, seed, counted) in COUNTED {
            let machine = built_in(machine).unwrap();
            let workload = known(name, parameters.split(' '));
            let policy = quell_conformance::parse_policy(policy).unwrap();
            let trial = Job { seed, ..Job::new(machine.into(), workload, policy, cpus) };
            let outcome = trial.run().unwrap();
            let counts = outcome.machine;
            let engine = outcome.engine.iter().map(|(_, count)| count).sum();
            let now = [counts.calls, counts.faults, counts.interrupts_taken, engine];
            assert_eq!(now, counted, "{name} {parameters} on {cpus} CPUs");
        }
    }
}

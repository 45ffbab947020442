//! Runs grids: all combinations of machines, their parameters, policies, CPUs, workload parameters and seeds.
//!
//! The grid alone determines the order of its cells, and a cell alone its result. So any part may run anywhere and at
//! any time. The longest runs start first, so that no core waits for one of them at the end.
//!
//! [`results`](crate::results) stores the results as text, [`columns`] in columns, and [`summary`] as points, CSV and a
//! plot.

pub mod columns;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
pub mod summary;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell_clock::MachineFile;
use quell_workloads::Workload;
use serde::{Deserialize, Serialize};

use crate::jobs::{Job, in_order};
use crate::policies::PolicyChoice;
use crate::results::{Header, digest};
use crate::run::CallLatency;
use crate::trial::Outcome;

/// A grid of runs.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The workload.
    pub workload: Workload,
    /// The machines.
    pub machines: Vec<Arc<MachineFile>>,
    /// The parameters of each machine (for example `interrupt.send`) and their values, in the notation of `--set`.
    pub figures: Vec<(String, Vec<String>)>,
    /// The policies.
    pub policies: Vec<PolicyChoice>,
    /// The numbers of CPUs. If empty, each run has the workload's default.
    pub cpus: Vec<usize>,
    /// The parameters of the workload and their values, in the workload's notation.
    pub axes: Vec<(String, Vec<String>)>,
    /// The number of seeds. They count from 1.
    pub seeds: u64,
}

/// One run of a grid.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The index of the run in the grid.
    pub index: usize,
    /// The run, or the reason why the workload can't run with these values.
    job: Result<Job, String>,
    machine: String,
    policy: PolicyChoice,
    cpus: usize,
    seed: u64,
    /// The values of all parameters that the grid names, the workload's and the machine's.
    values: BTreeMap<String, String>,
}

/// The most runs in a grid.
pub const MOST_CELLS: usize = 1_000_000;

/// A part of a grid, or of any list.
///
/// For example, `2/5` is the second of five parts. It contains the items 1, 6, 11 …, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// The number of the part, from 1.
    part: usize,
    /// The number of parts.
    of: usize,
}

impl Shard {
    /// Returns whether this part contains an index.
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.part - 1
    }

    /// Returns this part's items of a list.
    pub fn of<T>(self, list: Vec<T>) -> impl Iterator<Item = T> {
        list.into_iter().skip(self.part - 1).step_by(self.of)
    }
}

impl Display for Shard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected a part and how many there are, as in 2/5";
        let (part, of) = text.split_once('/').ok_or(expected)?;
        let [part, of] = [part, of].map(str::parse::<usize>);
        match (part, of) {
            (Ok(part), Ok(of)) if (1..=of).contains(&part) => Ok(Shard { part, of }),
            _ => Err(expected.into()),
        }
    }
}

impl Grid {
    /// Returns the number of cells without making them, or `usize::MAX` if there are more.
    pub fn size(&self) -> usize {
        let values = self.axes.iter().chain(&self.figures);
        let numbers = [
            self.machines.len(),
            self.policies.len(),
            self.cpus.len().max(1),
            usize::try_from(self.seeds).unwrap_or(usize::MAX),
        ];
        let lengths = values.map(|(_, values)| values.len()).chain(numbers);
        lengths.fold(1, usize::saturating_mul)
    }

    /// Returns every cell of the grid, in order.
    ///
    /// Seeds change fastest, then the last parameter, CPUs, policies, the last machine parameter, and machines.
    ///
    /// # Errors
    /// If a name or a value of a parameter is invalid.
    pub fn cells(&self) -> Result<Vec<Cell>, String> {
        let settings = each(self.workload, &self.axes, |workload, pair| {
            let mut workload = *workload;
            workload.set(pair).map_err(|wrong| format!("--param {pair}: {wrong}"))?;
            Ok(workload)
        })?;
        let mut machines = Vec::new();
        for machine in &self.machines {
            machines.extend(each(machine.clone(), &self.figures, |machine, pair| {
                let changed = machine.with_text("--set", &[pair]);
                changed.map(Arc::new).map_err(|wrong| wrong.to_string())
            })?);
        }
        let mut cells = Vec::new();
        for (machine, figures) in &machines {
            for &policy in &self.policies {
                let numbers = match &self.cpus[..] {
                    [] => vec![None],
                    numbers => numbers.iter().copied().map(Some).collect(),
                };
                for number in numbers {
                    for (workload, values) in &settings {
                        for seed in 1..=self.seeds {
                            let cpus = number.unwrap_or(workload.cpus());
                            let job = workload.fitted(cpus).map(|workload| Job {
                                seed,
                                ..Job::new(machine.clone(), workload, policy, cpus)
                            });
                            cells.push(Cell {
                                index: cells.len(),
                                job,
                                machine: machine.name().to_owned(),
                                policy,
                                cpus,
                                seed,
                                values: figures
                                    .iter()
                                    .chain(values)
                                    .map(|(name, value)| (name.clone(), value.clone()))
                                    .collect(),
                            });
                        }
                    }
                }
            }
        }
        Ok(cells)
    }
}

/// A changed input, and its parameters' values.
type Axis<T> = (T, BTreeMap<String, String>);

/// Returns an object for each combination of values; the last name's values change first. `set` sets a name's value
/// from text like `pages=512`.
fn each<T: Clone>(
    plain: T,
    axes: &[(String, Vec<String>)],
    set: impl Fn(&T, &str) -> Result<T, String>,
) -> Result<Vec<Axis<T>>, String> {
    let mut all = vec![(plain, BTreeMap::new())];
    for (name, values) in axes {
        let mut more = Vec::new();
        for (so_far, known) in &all {
            for value in values {
                let mut known = known.clone();
                known.insert(name.clone(), value.clone());
                more.push((set(so_far, &format!("{name}={value}"))?, known));
            }
        }
        all = more;
    }
    Ok(all)
}

/// The result of one run, which depends on neither host nor time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    pub(crate) index: usize,
    pub(crate) workload: String,
    pub(crate) machine: String,
    pub(crate) policy: String,
    pub(crate) cpus: usize,
    pub(crate) seed: u64,
    /// The parameters that the grid names, the workload's and the machine's.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The workload's figure. Absent if the run failed or measured nothing.
    pub(crate) value: Option<f64>,
    pub(crate) window_ns: f64,
    pub(crate) violations: u64,
    #[serde(default)]
    pub(crate) latencies: Vec<CallLatency>,
    /// The engine's counts that aren't zero, and the machine's. All counts and durations are of the measured window.
    pub(crate) engine: BTreeMap<String, u64>,
    pub(crate) machine_counts: BTreeMap<String, u64>,
    /// The reason why there is no figure.
    pub(crate) error: Option<String>,
}

impl Record {
    /// Builds the record of a cell.
    pub fn of(grid: &Grid, cell: &Cell, outcome: Result<Outcome, String>) -> Record {
        let mut record = Record {
            index: cell.index,
            workload: grid.workload.name().into(),
            machine: cell.machine.clone(),
            policy: cell.policy.to_string(),
            cpus: cell.cpus,
            seed: cell.seed,
            parameters: cell.values.clone(),
            ..Record::default()
        };
        match outcome {
            Err(why) => record.error = Some(why),
            Ok(outcome) => {
                record.value = Some(outcome.measure.value).filter(|value| value.is_finite());
                record.window_ns = outcome.window_nanoseconds;
                record.violations = outcome.run.violation_count;
                record.latencies = CallLatency::all(&outcome);
                let engine = outcome.engine.iter().filter(|&(_, count)| count != 0);
                record.engine =
                    engine.map(|(counter, count)| (counter.label().to_owned(), count)).collect();
                let machine = outcome.machine.rows().filter(|&(.., count)| count != 0);
                record.machine_counts =
                    machine.map(|(name, _, count)| (name.to_owned(), count)).collect();
            }
        }
        record
    }
}

/// The first line of a grid's results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The workload's name.
    pub workload: String,
    /// The text of the workload's file. It reveals a change of the file.
    pub file: String,
    /// The figure's name.
    pub metric: String,
    /// The number of all runs of the grid.
    pub runs: usize,
    /// The machines, each with a digest of every figure of its file.
    machines: Vec<String>,
    figures: Vec<(String, Vec<String>)>,
    policies: Vec<String>,
    cpus: Vec<usize>,
    axes: Vec<(String, Vec<String>)>,
    seeds: u64,
}

impl Head {
    /// Creates the header of a grid.
    pub fn of(grid: &Grid, cells: &[Cell]) -> Head {
        Head {
            workload: grid.workload.name().into(),
            file: grid.workload.text().into(),
            metric: grid.workload.metric().into(),
            runs: cells.len(),
            machines: grid
                .machines
                .iter()
                .map(|machine| {
                    let digest = digest(&format!("{machine:?}"));
                    format!("{} {digest:016x}", machine.name())
                })
                .collect(),
            figures: grid.figures.clone(),
            policies: grid.policies.iter().map(ToString::to_string).collect(),
            cpus: grid.cpus.clone(),
            axes: grid.axes.clone(),
            seeds: grid.seeds,
        }
    }
}

impl Header for Head {
    type Row = Record;
    const WHAT: &'static str = "a sweep";
    const EACH: &'static str = "run";

    fn size(&self) -> usize {
        self.runs
    }

    fn place(record: &Record) -> usize {
        record.index
    }
}

#[cfg(test)]
impl Head {
    /// Returns a header of a grid with this many seeds.
    pub(crate) fn example(seeds: u64) -> Head {
        Head {
            workload: "w".into(),
            file: "text".into(),
            metric: "ns".into(),
            runs: 3,
            machines: vec!["m 0123".into()],
            figures: Vec::new(),
            policies: vec!["all".into()],
            cpus: vec![2],
            axes: Vec::new(),
            seeds,
        }
    }
}

/// Runs cells on all cores of the host, and [shows](crate::progress::show) the progress.
///
/// Calls `each` after each cell, on its core. After `stop` is set, no further cell begins, and those under way finish.
pub fn run(
    cells: &[Cell],
    stop: &AtomicBool,
    each: impl Fn(&Cell, Result<Outcome, String>) + Sync,
) {
    let mut cells: Vec<&Cell> = cells.iter().collect();
    // Many CPUs take longest, and people list values from small to large.
    cells.sort_by_key(|cell| Reverse((cell.cpus, cell.index)));
    in_order(
        "running",
        &cells,
        |cell| cell.cpus,
        stop,
        |_, cell, progress| {
            let outcome = match &cell.job {
                Ok(job) => job.run_watched(progress).map_err(|error| error.to_string()),
                Err(why) => Err(why.clone()),
            };
            each(cell, outcome);
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::known;
    use quell::Policy;
    use quell_clock::built_in;
    use std::sync::Mutex;

    fn grid() -> Grid {
        Grid {
            workload: known("dontneed", ["iterations=5"]),
            machines: vec![Arc::new(built_in("haswell-server").unwrap())],
            figures: Vec::new(),
            policies: vec![Policy::BASELINE.into(), Policy::ALL.into()],
            cpus: vec![1, 2],
            axes: vec![("pages".into(), vec!["1".into(), "4".into()])],
            seeds: 2,
        }
    }

    #[test]
    fn every_cell_is_there_once_and_in_order() {
        let cells = grid().cells().unwrap();
        assert_eq!(cells.len(), 2 * 2 * 2 * 2);
        assert_eq!(grid().size(), cells.len());
        for (index, cell) in cells.iter().enumerate() {
            assert_eq!(cell.index, index);
            assert!(cell.job.is_ok());
        }
        assert_eq!((cells[0].seed, cells[1].seed), (1, 2));
        assert_eq!((&cells[1].values["pages"][..], &cells[2].values["pages"][..]), ("1", "4"));
        let wrong = Grid { axes: vec![("page".into(), vec!["1".into()])], ..grid() };
        assert!(wrong.cells().unwrap_err().contains("no parameter `page`"));
        let wrong = Grid { figures: vec![("interrupt.sent".into(), vec!["1us".into()])], ..grid() };
        assert!(wrong.cells().unwrap_err().contains("interrupt.send"));
    }

    #[test]
    fn a_shard_is_one_of_several() {
        let second: Shard = "2/5".parse().unwrap();
        let has: Vec<_> = (0..12).filter(|&index| second.has(index)).collect();
        assert_eq!(has, [1, 6, 11]);
        assert_eq!(second.of((0..12).collect()).collect::<Vec<_>>(), has);
        assert_eq!(second.to_string(), "2/5");
        for wrong in ["0/5", "6/5", "2", "2/", "a/b", "1/0"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_sweep_that_is_stopped_begins_no_further_cell() {
        let cells = grid().cells().unwrap();
        run(&cells, &AtomicBool::new(true), |cell, _| {
            panic!("{} was run", cell.index);
        });
    }

    #[test]
    fn figures_of_the_machine_are_an_axis() {
        let slower = Grid {
            figures: vec![("interrupt.send".into(), vec!["500ns".into(), "5us".into()])],
            policies: vec![Policy::BASELINE.into()],
            cpus: vec![2],
            seeds: 1,
            ..grid()
        };
        let cells = slower.cells().unwrap();
        assert_eq!(cells.len(), 2 * 2);
        let at = |index: usize| cells[index].values["interrupt.send"].as_str();
        assert_eq!([at(0), at(1), at(2), at(3)], ["500ns", "500ns", "5us", "5us"]);
        let took = Mutex::new([f64::NAN; 4]);
        run(&cells, &AtomicBool::new(false), |cell, outcome| {
            took.lock().unwrap()[cell.index] = outcome.unwrap().measure.value;
        });
        let took = took.into_inner().unwrap();
        assert!(took[2] > took[0] && took[3] > took[1], "{took:?}");
    }
}

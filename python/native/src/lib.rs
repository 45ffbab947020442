//! The native part of the Python module `quell`.
//!
//! It returns text: the JSON that the command prints. The Python code in `python/quell` makes objects from it. So we
//! have only one description of a result, and round no figure on its way. The command's own code checks arguments. A
//! mistake raises `ValueError`, and a failed run raises `RuntimeError`.
//!
//! While a call works, Python's other threads run, and we check for signals ([`watched`]).
//!
//! A request to another host contains the files that it names: for example, machines as TOML, and workloads and
//! programs by their names. The result of a part of a grid, or of the adversary's cases, depends only on that part. So
//! it may run on any host, and may be repeated.

mod explore;
mod published;
mod requests;
mod watched;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use quell_clock::MachineFile;
use quell_model::jobs::Job;
use quell_model::sweep::{self, Grid, MOST_CELLS, Record};
use quell_model::{machines, run, workloads};
use quell_record::analyse;
use quell_record::import::Import;
use quell_record::perf::file::Recording;
use quell_record::perf::{Source, SourceError};
use quell_record::report::Report;

use requests::{cpus, failed, json, policy_or_file, shard, value_error, workload};
use watched::{Listeners, watched};

/// Makes a run's figures independent of Python's heap.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

/// A machine: all figures of a built-in machine or of a machine file.
#[pyclass(module = "quell._native", from_py_object)]
#[derive(Clone)]
struct Machine {
    file: MachineFile,
}

#[pymethods]
impl Machine {
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        let file = machines::find(name).map_err(value_error)?;
        Ok(Machine { file })
    }

    /// Parses a machine from text that needs no other file.
    #[staticmethod]
    fn from_toml(name: &str, text: &str) -> PyResult<Self> {
        let file = MachineFile::parse(name, text).map_err(value_error)?;
        Ok(Machine { file })
    }

    fn to_toml(&self) -> String {
        self.file.to_toml()
    }

    #[getter]
    fn name(&self) -> &str {
        self.file.name()
    }

    #[getter]
    fn title(&self) -> &str {
        self.file.title()
    }

    /// Sets a figure from text in the form that `--set` takes.
    fn set_text(&mut self, pair: &str) -> PyResult<()> {
        self.file = self.file.with_text("set", &[pair]).map_err(value_error)?;
        Ok(())
    }

    fn copy(&self) -> Self {
        self.clone()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

/// Runs a workload with several seeds. Returns the JSON of `quell run --json`.
#[pyfunction]
#[pyo3(signature = (workload, machine, policy_text, number, seed, seeds, parameters, lines, progress))]
#[expect(clippy::too_many_arguments, reason = "python/quell names each of them")]
fn run_json(
    py: Python<'_>,
    workload: &str,
    machine: Machine,
    policy_text: &str,
    number: Option<usize>,
    seed: u64,
    seeds: u16,
    parameters: Vec<String>,
    lines: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let mut workload = requests::workload(workload, None)?;
    for pair in &parameters {
        workload.set(pair).map_err(|wrong| value_error(format_args!("params {pair}: {wrong}")))?;
    }
    if !(1..=1000).contains(&seeds) {
        return Err(value_error(format_args!("seeds {seeds}: expected 1 to 1000")));
    }
    let number = number.map_or(Ok(workload.cpus()), cpus)?;
    let job = Job {
        seed,
        lines,
        ..Job::new(Arc::new(machine.file), workload, policy_or_file(policy_text)?, number)
    };
    let listeners = Listeners { progress, found: None };
    let report = watched(py, listeners, None, seeds.into(), |work| {
        run::with_seeds(&job, seeds, &work.stop, || work.done())
    })?;
    let report = report.map_err(|error| failed(&error))?;
    json(&report)
}

/// The values of each axis, by its name.
type Axes = Vec<(String, Vec<String>)>;

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct GridRequest {
    workload: String,
    /// The text of its file, if the file isn't on this host.
    text: Option<String>,
    machines: Vec<Machine>,
    policies: Vec<String>,
    cpus: Vec<usize>,
    seeds: u64,
    axes: Axes,
    figures: Axes,
}

impl GridRequest {
    /// Returns the grid, or an exception if it can't be run.
    fn grid(self) -> PyResult<Grid> {
        let policies = self.policies.iter().map(|text| policy_or_file(text));
        let machines = self.machines.into_iter();
        let grid = Grid {
            workload: workload(&self.workload, self.text.as_deref())?,
            machines: machines.map(|machine| Arc::new(machine.file)).collect(),
            figures: self.figures,
            policies: policies.collect::<PyResult<_>>()?,
            cpus: self.cpus.into_iter().map(cpus).collect::<PyResult<_>>()?,
            axes: self.axes,
            seeds: self.seeds,
        };
        match grid.size() {
            0 => Err(value_error("no runs: a list of values is empty, or seeds is 0")),
            size if size > MOST_CELLS => Err(value_error(format_args!(
                "more than {MOST_CELLS} runs: use fewer values or seeds"
            ))),
            _ => Ok(grid),
        }
    }
}

/// Returns the number of runs of a grid.
#[pyfunction]
fn sweep_size(asked: GridRequest) -> PyResult<usize> {
    Ok(asked.grid()?.cells().map_err(value_error)?.len())
}

/// Runs a part of a grid. Returns a line of JSON for each run, like those of `quell sweep`'s results, in the grid's
/// order.
#[pyfunction]
#[pyo3(signature = (asked, part, threads, progress, found))]
fn sweep_json(
    py: Python<'_>,
    asked: GridRequest,
    part: &str,
    threads: Option<usize>,
    progress: Option<&Bound<'_, PyAny>>,
    found: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<String>> {
    let grid = asked.grid()?;
    let part = shard(part)?;
    let mut cells = grid.cells().map_err(value_error)?;
    cells.retain(|cell| part.has(cell.index));
    let records = Mutex::new(Vec::with_capacity(cells.len()));
    let listeners = Listeners { progress, found };
    watched(py, listeners, threads, cells.len(), |work| {
        sweep::run(&cells, &work.stop, |cell, outcome| {
            let line = json(&Record::of(&grid, cell, outcome));
            if let Ok(line) = &line {
                work.found(line);
            }
            // A panic can't interrupt a push, so the list is intact even if another run panicked.
            let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
            records.push((cell.index, line));
        });
    })?;
    let mut records = records.into_inner().unwrap_or_else(PoisonError::into_inner);
    records.sort_by_key(|(index, _)| *index);
    records.into_iter().map(|(_, line)| line).collect()
}

/// Reads a recording, or a recording's text, to its end. Returns the JSON of `quell record --json`.
#[pyfunction]
#[pyo3(signature = (path, program))]
fn read_json(py: Python<'_>, path: PathBuf, program: Option<String>) -> PyResult<String> {
    let report = watched(py, Listeners::default(), None, 1, |work| {
        let mut source: Box<dyn Source> = match Recording::is_one(&path) {
            true => Box::new(Recording::open(&path)?),
            false => Box::new(Import::open(&path)?),
        };
        let mut go_on = |_, _| !work.stop.load(Relaxed);
        let all = analyse(&mut *source, &mut (), &mut go_on)?;
        Ok(Report::new(all, program.as_deref()).json())
    })?;
    let report = report.map_err(|error: SourceError| value_error(error))?;
    json(&report)
}

/// Returns a parameter's value as a number, in bytes or nanoseconds if it has a unit.
#[pyfunction]
fn amount(text: &str) -> Option<u64> {
    sweep::columns::amount(text)
}

/// Returns the text of a workload's or a program's file. Returns `None` if the name isn't a file's.
#[pyfunction]
fn file_text(name: &str) -> PyResult<Option<String>> {
    let is_file = quell_adversary::cases::is_file(name)
        || workloads::is_path(name) && quell_adversary::Scenario::named(name).is_none();
    if !is_file {
        return Ok(None);
    }
    let text = machines::read(name.as_ref());
    text.map(Some).map_err(|error| value_error(format_args!("{name}: {error}")))
}

/// Returns the names of the built-in machines.
#[pyfunction]
fn machine_names() -> Vec<&'static str> {
    machines::names().collect()
}

/// Returns the names of the built-in workloads.
#[pyfunction]
fn workload_names() -> Vec<&'static str> {
    workloads::names()
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Machine>()?;
    for function in [
        wrap_pyfunction!(run_json, module)?,
        wrap_pyfunction!(sweep_size, module)?,
        wrap_pyfunction!(sweep_json, module)?,
        wrap_pyfunction!(explore::explore_size, module)?,
        wrap_pyfunction!(explore::explore_json, module)?,
        wrap_pyfunction!(read_json, module)?,
        wrap_pyfunction!(published::reproduce_json, module)?,
        wrap_pyfunction!(published::held_out_json, module)?,
        wrap_pyfunction!(amount, module)?,
        wrap_pyfunction!(file_text, module)?,
        wrap_pyfunction!(machine_names, module)?,
        wrap_pyfunction!(workload_names, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

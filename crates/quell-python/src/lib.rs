//! The native part of the Python module `quell`.
//!
//! It hands over text: what a run comes to is the JSON that the command prints, and the Python in `python/quell` makes
//! objects of it. So there is one description of a result, and no figure is rounded on its way. Arguments are checked by
//! the same code as the command's; what is wrong with them is a `ValueError`, what goes wrong in a run a `RuntimeError`.
//!
//! While a call works Python's other threads run, and its own looks for signals every few hundredths of a second. After
//! Ctrl-C no further run begins, and `KeyboardInterrupt` is raised when those under way have ended.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use quell::Policy;
use quell_clock::MachineFile;
use quell_experiments::jobs::Job;
use quell_experiments::sweep::{self, Grid, MOST_CELLS, Record};
use quell_experiments::trial::TrialError;
use quell_experiments::{machines, run, workloads};

/// A run's figures do not depend on where Python's heap is: what this module allocates comes from here.
#[global_allocator]
static ALLOCATOR: quell_sim::LineAllocator = quell_sim::LineAllocator;

/// How often signals are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// No machine has more CPUs.
const MOST_CPUS: usize = 1024;

fn refused(why: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(why.to_string())
}

fn failed(error: &TrialError) -> PyErr {
    match error.is_usage() {
        true => refused(error),
        false => PyRuntimeError::new_err(error.to_string()),
    }
}

fn policy(text: &str) -> PyResult<Policy> {
    text.parse()
        .map_err(|why| refused(format_args!("policy {text}: {why}")))
}

fn cpus(number: usize) -> PyResult<usize> {
    match number {
        1..=MOST_CPUS => Ok(number),
        _ => Err(refused(format_args!(
            "cpus {number}: expected 1 to {MOST_CPUS}"
        ))),
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!(
        "the machine in software has failed: {}",
        text.unwrap_or("it does not say why")
    )
}

/// Works beside Python's thread, which looks for signals meanwhile and tells `progress` how many pieces are done, of
/// how many.
///
/// # Errors
/// What a signal's handler or `progress` raised; then `work` was told to stop, and has ended.
fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    pieces: usize,
    work: impl FnOnce(&AtomicBool, &AtomicUsize) -> T + Send,
) -> PyResult<T> {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let told = |last: &mut usize| {
        let now = done.load(Relaxed);
        match progress {
            Some(progress) if now != *last => {
                *last = now;
                progress.call1((now, pieces)).map(|_| ())
            }
            _ => Ok(()),
        }
    };
    thread::scope(|scope| {
        let caller = thread::current();
        let (stop, done) = (&stop, &done);
        let worker = scope.spawn(move || {
            let result = work(stop, done);
            caller.unpark();
            result
        });
        let mut last = 0;
        let mut raised = Ok(());
        while raised.is_ok() && !worker.is_finished() {
            py.detach(|| thread::park_timeout(LOOK));
            raised = py.check_signals().and_then(|()| told(&mut last));
        }
        stop.store(raised.is_err(), Relaxed);
        let result = py.detach(|| worker.join());
        raised?;
        told(&mut last)?;
        result.map_err(|panic| PyRuntimeError::new_err(said(&*panic)))
    })
}

/// A machine: every figure of a machine file, built in or a file.
#[pyclass(module = "quell._native", from_py_object)]
#[derive(Clone)]
struct Machine {
    file: MachineFile,
}

#[pymethods]
impl Machine {
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        let file = machines::find(name).map_err(refused)?;
        Ok(Machine { file })
    }

    #[getter]
    fn name(&self) -> &str {
        self.file.name()
    }

    #[getter]
    fn title(&self) -> &str {
        self.file.title()
    }

    /// Sets a figure, from text as `--set` takes it.
    fn set_text(&mut self, pair: &str) -> PyResult<()> {
        self.file = self.file.with_text("set", &[pair]).map_err(refused)?;
        Ok(())
    }

    fn copy(&self) -> Self {
        self.clone()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

/// Runs a workload with several seeds: the JSON of `quell run --json`.
#[pyfunction]
#[pyo3(signature = (workload, machine, policy_text, number, seed, seeds, parameters, progress))]
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
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let mut workload = workloads::find(workload).map_err(refused)?;
    for pair in &parameters {
        workload
            .set(pair)
            .map_err(|wrong| refused(format_args!("params {pair}: {wrong}")))?;
    }
    if !(1..=1000).contains(&seeds) {
        return Err(refused(format_args!("seeds {seeds}: expected 1 to 1000")));
    }
    let number = number.map_or(Ok(workload.cpus()), cpus)?;
    let job = Job {
        seed,
        ..Job::new(
            Arc::new(machine.file),
            workload,
            policy(policy_text)?,
            number,
        )
    };
    let report = watched(py, progress, seeds.into(), |stop, done| {
        run::with_seeds(&job, seeds, stop, || {
            done.fetch_add(1, Relaxed);
        })
    })?;
    let report = report.map_err(|error| failed(&error))?;
    serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Names with the values that each takes.
type Axes = Vec<(String, Vec<String>)>;

/// Runs a grid: a line of JSON for each run, those of `quell sweep`'s results, in the grid's order.
#[pyfunction]
#[pyo3(signature = (workload, machines, policies, numbers, seeds, axes, figures, progress))]
#[expect(clippy::too_many_arguments, reason = "python/quell names each of them")]
fn sweep_json(
    py: Python<'_>,
    workload: &str,
    machines: Vec<Machine>,
    policies: Vec<String>,
    numbers: Vec<usize>,
    seeds: u64,
    axes: Axes,
    figures: Axes,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<String>> {
    let grid = Grid {
        workload: workloads::find(workload).map_err(refused)?,
        machines: machines
            .into_iter()
            .map(|machine| Arc::new(machine.file))
            .collect(),
        figures,
        policies: policies
            .iter()
            .map(|text| policy(text))
            .collect::<PyResult<_>>()?,
        cpus: numbers.into_iter().map(cpus).collect::<PyResult<_>>()?,
        axes,
        seeds,
    };
    match grid.size() {
        0 => return Err(refused("no runs: a list of values is empty, or seeds is 0")),
        size if size > MOST_CELLS => {
            return Err(refused(format_args!(
                "more than {MOST_CELLS} runs: take fewer values or seeds"
            )));
        }
        _ => {}
    }
    let cells = grid.cells().map_err(refused)?;
    let records = Mutex::new(Vec::with_capacity(cells.len()));
    watched(py, progress, cells.len(), |stop, done| {
        sweep::run(&cells, stop, |cell, outcome| {
            let line = serde_json::to_string(&Record::of(&grid, cell, outcome));
            // A list is never half pushed to: another run's panic has not harmed it.
            let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
            records.push((cell.index, line));
            done.fetch_add(1, Relaxed);
        });
    })?;
    let mut records = records.into_inner().unwrap_or_else(PoisonError::into_inner);
    records.sort_by_key(|(index, _)| *index);
    let lines: Result<_, _> = records.into_iter().map(|(_, line)| line).collect();
    lines.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// The names of the built-in machines.
#[pyfunction]
fn machine_names() -> Vec<&'static str> {
    machines::names().collect()
}

/// The names of the built-in workloads.
#[pyfunction]
fn workload_names() -> Vec<&'static str> {
    workloads::names()
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Machine>()?;
    for function in [
        wrap_pyfunction!(run_json, module)?,
        wrap_pyfunction!(sweep_json, module)?,
        wrap_pyfunction!(machine_names, module)?,
        wrap_pyfunction!(workload_names, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

//! Compares published figures with the model's: headlines, and tables that calibrated nothing.

use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use quell_model::held_out;
use quell_model::jobs::Results;
use quell_model::reproduce::Experiment;
use serde::Serialize;

use crate::requests::{json, value_error};
use crate::watched::{Listeners, watched};

/// Runs the experiments of a mechanism or a workload, or all. Returns the JSON of each row of `quell reproduce --json`.
#[pyfunction]
#[pyo3(signature = (only, progress))]
pub fn reproduce_json(
    py: Python<'_>,
    only: Option<&str>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<String>> {
    let plans = Experiment::all(only);
    if plans.is_empty() {
        let only = only.unwrap_or_default();
        return Err(value_error(format_args!(
            "only {only}: expected a mechanism, S0 to S4, or a workload with published figures"
        )));
    }
    rows(py, progress, &plans, |plan, results| {
        results.run("running the experiments", plan.runs());
        vec![plan.row(results)]
    })
}

/// Runs tables by name or path, or all built-in ones. Returns the JSON of each row of `quell held-out --json`.
#[pyfunction]
#[pyo3(signature = (tables, calibrate, progress))]
pub fn held_out_json(
    py: Python<'_>,
    tables: Vec<String>,
    calibrate: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<String>> {
    let tables = held_out::named(&tables).map_err(value_error)?;
    rows(py, progress, &tables, |table, results| {
        results.run("running the tables", table.jobs());
        if !calibrate {
            return table.rows(results);
        }
        let (calibrated, _) = table.calibrated(results);
        results.run("running the calibrated tables", calibrated.jobs());
        table.rows_with(&calibrated, results)
    })
}

/// Makes rows of the items, one item after the other, and returns them as JSON. Each item is a piece.
///
/// # Errors
/// Returns the exception of a signal handler or of `progress`, after the work has stopped.
fn rows<I: Sync, R: Send + Serialize>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    items: &[I],
    rows_of: impl Fn(&I, &mut Results) -> Vec<R> + Send,
) -> PyResult<Vec<String>> {
    let listeners = Listeners { progress, found: None };
    let rows = watched(py, listeners, None, items.len(), move |work| {
        let mut results = Results::default();
        let mut rows = Vec::new();
        for item in items {
            if work.stop.load(Relaxed) {
                break;
            }
            rows.extend(rows_of(item, &mut results));
            work.done();
        }
        rows
    })?;
    rows.iter().map(json).collect()
}

//! Compares published figures with the model's.

use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quell_experiments::jobs::Results;
use quell_experiments::reproduce::Experiment;

use crate::asked::refused;
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
        return Err(refused(format_args!(
            "only {only}: expected a mechanism, S0 to S4, or a workload with published figures"
        )));
    }
    let listeners = Listeners {
        progress,
        found: None,
    };
    let rows = watched(py, listeners, None, plans.len(), |work| {
        let mut results = Results::default();
        let mut rows = Vec::new();
        for plan in &plans {
            if work.stop.load(Relaxed) {
                break;
            }
            results.run("running the experiments", plan.runs());
            rows.push(serde_json::to_string(&plan.row(&results)));
            work.done();
        }
        rows
    })?;
    let rows: Result<_, _> = rows.into_iter().collect();
    rows.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

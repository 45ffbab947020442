//! Compares published tables that calibrated nothing with the model's predictions.

use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quell_experiments::held_out;
use quell_experiments::jobs::Results;

use crate::asked::refused;
use crate::watched::{Listeners, watched};

/// Runs tables by name or path, or all built-in ones. Returns the JSON of each row of `quell held-out --json`.
#[pyfunction]
#[pyo3(signature = (tables, calibrate, progress))]
pub fn held_out_json(
    py: Python<'_>,
    tables: Vec<String>,
    calibrate: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<String>> {
    let tables = held_out::named(&tables).map_err(refused)?;
    let listeners = Listeners {
        progress,
        found: None,
    };
    let rows = watched(py, listeners, None, tables.len(), |work| {
        let mut results = Results::default();
        let mut rows = Vec::new();
        for table in &tables {
            if work.stop.load(Relaxed) {
                break;
            }
            results.run("running the tables", table.jobs());
            rows.extend(match calibrate {
                false => table.rows(&results),
                true => {
                    let (calibrated, _) = table.calibrated(&mut results);
                    results.run("running the calibrated tables", calibrated.jobs());
                    table.rows_with(&calibrated, &results)
                }
            });
            work.done();
        }
        rows
    })?;
    let lines: Result<_, _> = rows.iter().map(serde_json::to_string).collect();
    lines.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

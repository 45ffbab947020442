//! Compares published tables that calibrated nothing with the model's predictions.

use pyo3::prelude::*;
use quell_model::held_out;

use crate::requests::value_error;
use crate::watched::rows;

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

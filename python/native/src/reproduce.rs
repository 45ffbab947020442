//! Compares published figures with the model's.

use pyo3::prelude::*;
use quell_model::reproduce::Experiment;

use crate::requests::value_error;
use crate::watched::rows;

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

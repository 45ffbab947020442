//! Reads recordings, and returns the JSON of `quell record --json`.

use std::path::PathBuf;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quell_record::analyse;
use quell_record::import::Import;
use quell_record::perf::Source;
use quell_record::perf::file::Recording;
use quell_record::report::Report;

use crate::requests::value_error;
use crate::watched::{Listeners, watched};

/// Reads a recording, or a recording's text, to its end.
#[pyfunction]
#[pyo3(signature = (path, program))]
pub fn read_json(py: Python<'_>, path: PathBuf, program: Option<String>) -> PyResult<String> {
    let report = watched(py, Listeners::default(), None, 1, |work| {
        let mut source: Box<dyn Source> = match Recording::is_one(&path) {
            true => Box::new(Recording::open(&path)?),
            false => Box::new(Import::open(&path)?),
        };
        let mut go_on = |_, _| !work.stop.load(std::sync::atomic::Ordering::Relaxed);
        let all = analyse(&mut *source, &mut (), &mut go_on)?;
        Ok(Report::new(all, program.as_deref()).json())
    })?;
    let json = report.map_err(|error: quell_record::perf::SourceError| value_error(error))?;
    serde_json::to_string(&json).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

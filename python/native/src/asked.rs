//! Parses requests with the command's own code, and raises their mistakes as exceptions.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use quell::Policy;
use quell_conformance::parse_policy;
use quell_experiments::sweep::Shard;
use quell_experiments::trial::TrialError;
use quell_experiments::workloads;
use quell_workloads::Workload;

/// No machine has more CPUs.
const MOST_CPUS: usize = 1024;

/// The request is wrong.
pub fn refused(why: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// The result of a trial without a figure.
pub fn failed(error: &TrialError) -> PyErr {
    match error.is_usage() {
        true => refused(error),
        false => PyRuntimeError::new_err(error.to_string()),
    }
}

/// A policy, as `--policy` takes it.
pub fn policy(text: &str) -> PyResult<Policy> {
    parse_policy(text).map_err(|why| refused(format_args!("policy {text}: {why}")))
}

/// A number of CPUs that a machine can have.
pub fn cpus(number: usize) -> PyResult<usize> {
    match number {
        1..=MOST_CPUS => Ok(number),
        _ => Err(refused(format_args!(
            "cpus {number}: expected 1 to {MOST_CPUS}"
        ))),
    }
}

/// A part of a list, as `--shard` takes it.
pub fn shard(text: &str) -> PyResult<Shard> {
    text.parse()
        .map_err(|why| refused(format_args!("part {text}: {why}")))
}

/// Returns a workload from the text of its file, or from this host.
pub fn workload(name: &str, text: Option<&str>) -> PyResult<Workload> {
    match text {
        Some(text) => Workload::parse(name, text).map_err(refused),
        None => workloads::find(name).map_err(refused),
    }
}

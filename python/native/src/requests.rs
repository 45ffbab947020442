//! Parses requests with the command's own code, and raises mistakes as Python exceptions.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use quell::Policy;
use quell_conformance::parse_policy;
use quell_model::policies::{self, PolicyChoice};
use quell_model::sweep::Shard;
use quell_model::trial::TrialError;
use quell_model::workloads;
use quell_workloads::Workload;
use serde::Serialize;

/// The most CPUs of a machine.
const MOST_CPUS: usize = 1024;

/// Returns the exception for a wrong request.
pub fn value_error(why: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// Returns the exception for a trial that failed.
pub fn failed(error: &TrialError) -> PyErr {
    match error.is_usage() {
        true => value_error(error),
        false => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Returns a result as text.
pub fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Parses a policy, in the form that `--policy` takes.
pub fn policy(text: &str) -> PyResult<Policy> {
    parse_policy(text).map_err(|why| value_error(format_args!("policy {text}: {why}")))
}

/// Finds a policy of a simulated machine: mechanisms, or a policy file.
pub fn policy_or_file(text: &str) -> PyResult<PolicyChoice> {
    policies::find(text).map_err(|why| value_error(format_args!("policy {text}: {why}")))
}

/// Checks a number of CPUs.
pub fn cpus(number: usize) -> PyResult<usize> {
    match number {
        1..=MOST_CPUS => Ok(number),
        _ => Err(value_error(format_args!("cpus {number}: expected 1 to {MOST_CPUS}"))),
    }
}

/// Parses a part of a list, in the form that `--shard` takes.
pub fn shard(text: &str) -> PyResult<Shard> {
    text.parse().map_err(|why| value_error(format_args!("part {text}: {why}")))
}

/// Returns a workload from its file's text, or finds it on this host by name.
pub fn workload(name: &str, text: Option<&str>) -> PyResult<Workload> {
    match text {
        Some(text) => Workload::parse(name, text).map_err(value_error),
        None => workloads::find(name).map_err(value_error),
    }
}

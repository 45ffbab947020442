//! Finds workloads by name or path.

use std::path::Path;

use quell_workloads::Workload;
use quell_workloads::files::hint;

use crate::machines;

/// Returns whether a text can only be a file's path, not a built-in workload's name.
pub fn is_path(text: &str) -> bool {
    let path = Path::new(text);
    Workload::from_name(text).is_none()
        && (path.exists() || path.extension().is_some() || path.components().count() != 1)
}

/// Finds a built-in workload, or reads a workload file if the text is a path.
///
/// Parameters have their default values.
///
/// # Errors
/// If there is no such workload, or if the file can't be read or is invalid. The error lists every mistake with line
/// and key.
pub fn find(text: &str) -> Result<Workload, String> {
    if let Some(workload) = Workload::from_name(text) {
        return Ok(workload);
    }
    if !is_path(text) {
        let names = names();
        return Err(format!(
            "no workload `{text}`{}; there are {}; for a file of your own, give its path",
            hint(text, names.iter().copied()),
            names.join(", ")
        ));
    }
    let content = machines::read(Path::new(text))
        .map_err(|error| format!("workload file {text}: {error}"))?;
    Workload::parse(text, &content).map_err(|error| error.to_string())
}

/// Returns the names of the built-in workloads.
pub fn names() -> Vec<&'static str> {
    Workload::all().iter().map(Workload::name).collect()
}

/// Returns a built-in workload with some parameters set, for tables of experiments.
///
/// # Panics
/// If there is no such workload or parameter. Tests read all tables.
pub(crate) fn known<T: AsRef<str>>(
    name: &str,
    parameters: impl IntoIterator<Item = T>,
) -> Workload {
    let mut workload = Workload::from_name(name).expect("a built-in workload");
    for pair in parameters {
        workload.set(pair.as_ref()).expect("a parameter of the workload");
    }
    workload
}

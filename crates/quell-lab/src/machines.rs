//! Machines by name or by path.

use std::fs;
use std::path::Path;

use anyhow::Result;
use quell_clock::MachineFile;
use quell_clock::file::{BUILT_IN, built_in};

use crate::usage::usage;

/// The machine of a built-in name, or of a file if the text looks like a path.
///
/// # Errors
/// If there is none; if the file cannot be read or is wrong, with every mistake, its line and key.
pub fn find(text: &str) -> Result<MachineFile> {
    if let Some(machine) = built_in(text) {
        return Ok(machine);
    }
    let path = Path::new(text);
    if !path.exists() && path.extension().is_none() && path.components().count() == 1 {
        return Err(usage(format_args!(
            "no machine `{text}`: built in are {}; for a file of your own, give its path",
            names().collect::<Vec<_>>().join(", ")
        )));
    }
    let content = fs::read_to_string(path)
        .map_err(|error| usage(format_args!("machine file {text}: {error}")))?;
    MachineFile::parse(text, &content).map_err(usage)
}

/// The names of the built-in machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

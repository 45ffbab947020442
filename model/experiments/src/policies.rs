//! Finds policies: the engine's mechanisms, or a policy file by name or path.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use quell::Policy;
use quell_clock::file::{DEFAULT_POLICY, POLICIES, built_in_policy, not_built_in};
use quell_clock::{MachineFile, PolicyFile};
use quell_conformance::{PolicyText, parse_policy};
use quell_workloads::files::hint;

use crate::machines;

/// The engine's mechanisms beside another protocol: batches of reclaim, and tags. Linux has both.
const BESIDE: &str = "S0+S2";

/// A policy of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PolicyChoice {
    /// The engine's mechanisms that are on.
    pub mechanisms: Policy,
    /// The protocol that flushes instead of the engine.
    pub file: Option<&'static PolicyFile>,
}

impl From<Policy> for PolicyChoice {
    fn from(mechanisms: Policy) -> Self {
        PolicyChoice { mechanisms, file: None }
    }
}

impl Display for PolicyChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.file {
            Some(file) => f.write_str(file.name()),
            None => PolicyText(self.mechanisms).fmt(f),
        }
    }
}

/// Finds a policy: mechanisms (`S0+S4`), a built-in policy file, or the path of one.
///
/// It keeps each file that it finds in memory until the process ends.
///
/// # Errors
/// If there is no such policy, or its file is wrong.
pub fn find(text: &str) -> Result<PolicyChoice, String> {
    let file = if let Some(file) = built_in_policy(text) {
        file
    } else if text.ends_with(".toml") {
        let content = machines::read(Path::new(text));
        let content = content.map_err(|error| format!("policy file {text}: {error}"))?;
        PolicyFile::parse(text, &content).map_err(|error| error.to_string())?
    } else {
        let mechanisms = mechanisms(text)
            .map_err(|error| format!("{error}; {}", not_built_in("policy file", text, POLICIES)))?;
        return Ok(mechanisms.into());
    };
    Ok(PolicyChoice {
        mechanisms: parse_policy(BESIDE).map_err(|error| error.to_string())?,
        file: Some(Box::leak(Box::new(file))),
    })
}

/// The names of whole policies.
pub const WHOLE: [&str; 2] = ["baseline", "all"];

/// Parses the engine's mechanisms, as in `S0+S4`.
///
/// # Errors
/// If the text is no policy. The error suggests the nearest name.
pub fn mechanisms(text: &str) -> Result<Policy, String> {
    parse_policy(text).map_err(|error| format!("{error}{}", hint(text, WHOLE)))
}

/// Returns the names of the built-in policy files.
pub fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|(name, _)| *name)
}

/// Returns the name of a run's policy: its file, or the engine's mechanisms.
pub fn name_of(machine: &MachineFile, mechanisms: Policy) -> String {
    match machine.policy() {
        DEFAULT_POLICY => PolicyText(mechanisms).to_string(),
        other => other.to_owned(),
    }
}

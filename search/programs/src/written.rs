//! Programs as files, and as one line.
//!
//! A file is TOML. The line is the same content as JSON, so that we can paste it. [`WrittenProgram::parse`] reads both. This
//! module doesn't interpret the names of machines, policies, mistakes and schedules.

use crate::Program;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;

/// A program and all inputs of its runs, in words.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenProgram {
    /// The machine.
    pub machine: String,
    /// The policy.
    pub policy: String,
    /// The mistake that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistake: Option<String>,
    /// The clause that was broken, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clause: Option<String>,
    /// The schedule of the violation, or empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// The program.
    pub program: Program,
}

impl WrittenProgram {
    /// Returns the program as a file, with one operation on each line.
    ///
    /// # Panics
    /// Never: all its values can be written.
    pub fn to_toml(&self) -> String {
        let value: Value = serde_json::from_str(&self.to_line()).expect("a line can be read");
        let mut text = String::new();
        let table = |value: &Value| value.as_object().cloned().unwrap_or_default();
        for (key, value) in table(&value).iter().filter(|(key, _)| *key != "program") {
            let _ = writeln!(text, "{key} = {value}");
        }
        for (grammar, program) in table(&value["program"]) {
            for (sizes, values) in table(&program).iter().filter(|(key, _)| *key != "cpu") {
                let _ = writeln!(text, "\n[program.{grammar}.{sizes}]");
                for (key, value) in table(values) {
                    let _ = writeln!(text, "{key} = {value}");
                }
            }
            for lane in program["cpu"].as_array().into_iter().flatten() {
                let _ = writeln!(text, "\n[[program.{grammar}.cpu]]");
                for (part, ops) in table(lane) {
                    let _ = writeln!(text, "{part} = [");
                    for op in ops.as_array().into_iter().flatten() {
                        // Words, numbers and booleans have the same form in TOML and JSON.
                        let fields = table(op);
                        let fields = fields.iter().map(|(key, value)| format!("{key} = {value}"));
                        let fields: Vec<_> = fields.collect();
                        let _ = writeln!(text, "    {{ {} }},", fields.join(", "));
                    }
                    let _ = writeln!(text, "]");
                }
            }
        }
        text
    }

    /// Returns the program as one line.
    ///
    /// # Panics
    /// Never: all its values can be written.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("programs can be written down")
    }

    /// Reads a file or a line, without checking the program's limits ([`Program::check`]).
    ///
    /// # Errors
    /// A message that describes the mistake, with its place if known.
    pub fn parse(text: &str) -> Result<Self, String> {
        // We convert a line to the values of a file. Compiling the grammars for one type of errors instead of two
        // halves their build time.
        if text.trim_start().starts_with('{') {
            let values: toml::Value =
                serde_json::from_str(text).map_err(|error| error.to_string())?;
            let read = values.try_into();
            read.map_err(|error: toml::de::Error| error.message().to_owned())
        } else {
            toml::from_str(text).map_err(|error| error.to_string())
        }
    }
}

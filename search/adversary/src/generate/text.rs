//! Reads and prints programs, as files and as one line.
//!
//! A file is TOML. The line is the same content as JSON, so that we can paste it.

use crate::action::Deviation;
use crate::generated::Program;
use crate::kind::MachineKind;
use crate::mistake::Mistake;
use crate::replay::{parse_schedule, schedule_words};
use quell::Policy;
use quell_conformance::{PolicyText, parse_policy};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;

/// A program with all inputs of its runs.
#[derive(Clone, PartialEq, Debug)]
pub struct RecordedProgram {
    /// The machine.
    pub kind: MachineKind,
    /// The policy.
    pub policy: Policy,
    /// The deliberate mistake, if any.
    pub mistake: Option<Mistake>,
    /// The clause that was broken. It's information for the reader of a file.
    pub clause: Option<String>,
    /// The schedule that broke the clause.
    pub schedule: Vec<Deviation>,
    /// The program.
    pub program: Program,
}

/// The same in words.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenProgram {
    /// The machine.
    machine: String,
    /// The policy.
    policy: String,
    /// The mistake that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mistake: Option<String>,
    /// The clause that was broken, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clause: Option<String>,
    /// The schedule of the violation, or empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    schedule: String,
    /// The program.
    program: Program,
}

impl RecordedProgram {
    /// Formats the program as one line.
    ///
    /// # Panics
    /// Never: all its values can be written.
    pub fn to_line(&self) -> String {
        let written = WrittenProgram {
            machine: self.kind.name.into(),
            policy: PolicyText(self.policy).to_string(),
            mistake: self.mistake.map(|mistake| mistake.name().into()),
            clause: self.clause.clone(),
            schedule: schedule_words(&self.schedule),
            program: self.program.clone(),
        };
        serde_json::to_string(&written).expect("programs can be written down")
    }

    /// Formats the program as a file, with one operation per line.
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

    /// Parses a file or a line.
    ///
    /// # Errors
    /// Returns a message about the error, with its place if that's known.
    pub fn parse(text: &str) -> Result<Self, String> {
        // We convert a line to the values of a file. Compiling the grammars for one type of errors instead of two
        // halves their build time.
        let written: WrittenProgram = if text.trim_start().starts_with('{') {
            let values: toml::Value =
                serde_json::from_str(text).map_err(|error| error.to_string())?;
            let read = values.try_into();
            read.map_err(|error: toml::de::Error| error.message().to_owned())?
        } else {
            toml::from_str(text).map_err(|error| error.to_string())?
        };
        let kind = *MachineKind::find(&written.machine)?;
        let policy = parse_policy(&written.policy)
            .map_err(|error| format!("policy `{}`: {error}", written.policy))?;
        written.program.check()?;
        Ok(RecordedProgram {
            kind,
            policy,
            mistake: written.mistake.as_deref().map(Mistake::find).transpose()?,
            clause: written.clause,
            schedule: parse_schedule(&written.schedule)?,
            program: written.program,
        })
    }

    /// Returns a digest of the program and its machine, as a name for its file.
    ///
    /// It is the same on every host.
    pub fn number(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.to_line().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::random;
    use super::*;
    use crate::schedule::Rng;
    use proptest::prelude::*;

    fn any_recorded() -> impl Strategy<Value = RecordedProgram> {
        let steps = proptest::collection::vec((1u32..9_000, any::<u8>()), 0..12);
        (any::<u64>(), any::<bool>(), steps).prop_map(|(seed, broken, steps)| {
            let mut rng = Rng::new(seed);
            let all: Vec<_> = Mistake::all().collect();
            let mistake = all[rng.below(all.len() as u64) as usize];
            let mut decision = 0;
            let schedule = steps.into_iter().map(|(delta, choice)| {
                decision += delta;
                (decision, choice)
            });
            RecordedProgram {
                mistake: broken.then_some(mistake),
                clause: broken.then(|| "C1".into()),
                schedule: schedule.collect(),
                ..random::draw(&mut rng)
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(recorded in any_recorded()) {
            prop_assert_eq!(RecordedProgram::parse(&recorded.to_toml()), Ok(recorded.clone()));
            prop_assert_eq!(RecordedProgram::parse(&recorded.to_line()), Ok(recorded));
        }

        #[test]
        fn whatever_is_read_can_be_run_or_is_refused(
            recorded in any_recorded(),
            at in any::<prop::sample::Index>(),
            with in "[0-9a-z\"{}\\[\\]=-]{0,4}",
        ) {
            let mut text = recorded.to_toml();
            let at = at.index(text.len());
            text.replace_range(at..(at + 1).min(text.len()), &with);
            if let Ok(read) = RecordedProgram::parse(&text) {
                prop_assert_eq!(read.program.check(), Ok(()));
            }
        }

        #[test]
        fn no_text_is_too_much(text in "\\PC{0,200}") {
            let _ = RecordedProgram::parse(&text);
            let _ = parse_schedule(&text);
        }
    }

    #[test]
    fn errors_name_the_culprit() {
        let error = |text: &str| RecordedProgram::parse(text).expect_err("it is wrong");
        assert!(
            error("machine = \"vax\"\npolicy = \"all\"\n[program.engine]\ncpu = []")
                .contains("vax")
        );
        assert!(
            error("machine = \"x86\"\npolicy = \"never\"\n[program.engine]\ncpu = []")
                .contains("never")
        );
        assert!(parse_schedule("1.2-zz").is_err_and(|e| e.contains("zz")));
    }
}

//! Programs as files, and as one line.
//!
//! A file is TOML: the machine, the policy, the program, and, if it was found to break something, the
//! mistake that was made, the clause and the schedule. The line that a replay is asked for by is the same
//! as JSON, so it can be pasted; both are read by [`Recorded::parse`].

use crate::action::Deviation;
use crate::generated::program::Program;
use crate::kind::MachineKind;
use crate::mistake::Mistake;
use crate::replay::{parse_schedule, schedule_words};
use quell::Policy;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;

/// A program with everything that its runs depend on.
#[derive(Clone, PartialEq, Debug)]
pub struct Recorded {
    /// The machine.
    pub kind: MachineKind,
    /// The policy.
    pub policy: Policy,
    /// The mistake that was made.
    pub mistake: Option<Mistake>,
    /// The clause that was broken, for people.
    pub clause: Option<String>,
    /// The schedule in which it was.
    pub schedule: Vec<Deviation>,
    /// The program.
    pub program: Program,
}

/// The same in words.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    machine: String,
    policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mistake: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clause: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    schedule: String,
    program: Program,
}

impl Recorded {
    fn file(&self) -> File {
        File {
            machine: self.kind.name.into(),
            policy: self.policy.to_string(),
            mistake: self.mistake.map(|mistake| mistake.name().into()),
            clause: self.clause.clone(),
            schedule: schedule_words(&self.schedule),
            program: self.program.clone(),
        }
    }

    /// As a file: an operation a line.
    ///
    /// # Panics
    /// Never: everything in it can be written.
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
                        // The same values in TOML as in JSON: words, numbers and truths.
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

    /// As one line.
    ///
    /// # Panics
    /// Never: everything in it can be written.
    pub fn to_line(&self) -> String {
        serde_json::to_string(&self.file()).expect("programs can be written down")
    }

    /// Reads a file or a line.
    ///
    /// # Errors
    /// Says what is wrong, and where if that is known.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A line is read as the values of a file: to compile the grammars for one kind of errors instead of two halves what
        // they take.
        let file: File = if text.trim_start().starts_with('{') {
            let values: toml::Value =
                serde_json::from_str(text).map_err(|error| error.to_string())?;
            let read = values.try_into();
            read.map_err(|error: toml::de::Error| error.message().to_owned())?
        } else {
            toml::from_str(text).map_err(|error| error.to_string())?
        };
        let kind = MachineKind::named(&file.machine)
            .ok_or_else(|| format!("there is no machine `{}`", file.machine))?;
        let known = |name: &String| {
            Mistake::named(name).ok_or_else(|| format!("there is no mistake `{name}`"))
        };
        let policy = file
            .policy
            .parse()
            .map_err(|error| format!("policy `{}`: {error}", file.policy))?;
        file.program.check()?;
        Ok(Recorded {
            kind: *kind,
            policy,
            mistake: file.mistake.as_ref().map(known).transpose()?,
            clause: file.clause,
            schedule: parse_schedule(&file.schedule)?,
            program: file.program,
        })
    }

    /// A number that stands for the program on its machine, the same on every host: a name for its file.
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

    fn any_recorded() -> impl Strategy<Value = Recorded> {
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
            Recorded {
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
            prop_assert_eq!(Recorded::parse(&recorded.to_toml()), Ok(recorded.clone()));
            prop_assert_eq!(Recorded::parse(&recorded.to_line()), Ok(recorded));
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
            if let Ok(read) = Recorded::parse(&text) {
                prop_assert_eq!(read.program.check(), Ok(()));
            }
        }

        #[test]
        fn no_text_is_too_much(text in "\\PC{0,200}") {
            let _ = Recorded::parse(&text);
            let _ = parse_schedule(&text);
        }
    }

    #[test]
    fn errors_name_the_culprit() {
        let error = |text: &str| Recorded::parse(text).expect_err("it is wrong");
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

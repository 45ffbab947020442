//! Reads and prints programs, as files and as one line.
//!
//! A [`WrittenProgram`] holds the words of the text. This module checks them: the machine, the policy, the program, and
//! after a violation the mistake, the clause and the schedule.

use crate::action::Deviation;
use crate::generated::program::Program;
use crate::generated::program::WrittenProgram;
use crate::kind::MachineKind;
use crate::mistake::Mistake;
use crate::replay::{parse_schedule, schedule_words};
use quell::Policy;
use quell_conformance::{PolicyText, parse_policy};

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

impl RecordedProgram {
    fn written(&self) -> WrittenProgram {
        WrittenProgram {
            machine: self.kind.name.into(),
            policy: PolicyText(self.policy).to_string(),
            mistake: self.mistake.map(|mistake| mistake.name().into()),
            clause: self.clause.clone(),
            schedule: schedule_words(&self.schedule),
            program: self.program.clone(),
        }
    }

    /// Formats the program as a file, with one operation per line.
    pub fn to_toml(&self) -> String {
        self.written().to_toml()
    }

    /// Formats the program as one line.
    pub fn to_line(&self) -> String {
        self.written().to_line()
    }

    /// Parses a file or a line.
    ///
    /// # Errors
    /// Returns a message about the error, with its place if that's known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let written = WrittenProgram::parse(text)?;
        let kind = MachineKind::find(&written.machine)?;
        let known = |name: &String| Mistake::find(name);
        let policy = parse_policy(&written.policy)
            .map_err(|error| format!("policy `{}`: {error}", written.policy))?;
        written.program.check()?;
        Ok(RecordedProgram {
            kind: *kind,
            policy,
            mistake: written.mistake.as_ref().map(known).transpose()?,
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

//! What a machine file says, once it is read; and what is wrong with one that is refused.

use crate::architecture::Architecture;

use super::parameter::{Description, Parameter, Unit};
use std::fmt;

/// Picoseconds: the unit of virtual time.
pub type Time = u64;

/// One value of a machine file.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// The value in the canonical unit (see [`Unit::spellings`]); times in picoseconds. For a
    /// [`Unit::Choice`], the index of the word.
    pub amount: f64,
    /// The number as the file writes it.
    pub written: String,
    /// The unit as the file writes it; empty for choices.
    pub unit: String,
    /// Where the value comes from.
    pub source: String,
    /// Whether the value is a guess.
    pub assumed: bool,
}

/// A machine: a complete set of parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineFile {
    pub(super) name: String,
    pub(super) title: String,
    /// In the order of [`PARAMETERS`](super::PARAMETERS).
    pub(super) values: Vec<Value>,
}

impl MachineFile {
    /// The machine's short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machine in words.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What the file says about a parameter.
    pub fn value(&self, parameter: Parameter) -> &Value {
        &self.values[parameter as usize]
    }

    /// The amount of a parameter in its canonical unit.
    #[inline]
    pub fn amount(&self, parameter: Parameter) -> f64 {
        self.values[parameter as usize].amount
    }

    /// A time in picoseconds.
    #[inline]
    pub fn time(&self, parameter: Parameter) -> Time {
        debug_assert_eq!(parameter.description().unit, Unit::Time);
        self.amount(parameter).round() as Time
    }

    /// A count or a number of bytes.
    #[inline]
    pub fn count(&self, parameter: Parameter) -> usize {
        self.amount(parameter) as usize
    }

    /// The word of a choice.
    pub fn choice(&self, parameter: Parameter) -> &'static str {
        match parameter.description().unit {
            Unit::Choice(words) => words[self.amount(parameter) as usize],
            _ => "",
        }
    }

    /// The architecture.
    #[inline]
    pub fn architecture(&self) -> Architecture {
        Architecture::ALL[self.amount(Parameter::Architecture) as usize]
    }

    /// The parameters that are guesses, for sensitivity reports.
    pub fn assumed(&self) -> impl Iterator<Item = Parameter> + '_ {
        Parameter::ALL
            .iter()
            .copied()
            .filter(|&parameter| self.value(parameter).assumed)
    }

    /// The same machine with one amount multiplied by `factor`, kept within its range; choices stay.
    pub fn scaled(&self, parameter: Parameter, factor: f64) -> Self {
        let mut scaled = self.clone();
        let description = parameter.description();
        if !matches!(description.unit, Unit::Choice(_)) {
            let (least, most) = bounds(description);
            let value = &mut scaled.values[parameter as usize];
            value.amount = (value.amount * factor).clamp(least, most);
            value.source = format!("{} ({} times {factor})", value.source, value.written);
        }
        scaled
    }

    /// The same machine with one amount, in the canonical unit, set.
    ///
    /// # Errors
    /// If the amount is outside the parameter's range; the message says what the range is.
    pub fn with(&self, parameter: Parameter, amount: f64) -> Result<Self, Diagnostic> {
        let description = parameter.description();
        let (least, most) = bounds(description);
        if !(least..=most).contains(&amount) {
            return Err(Diagnostic {
                line: 0,
                key: parameter.name(),
                message: format!("{amount} is outside {least} to {most}"),
            });
        }
        let mut changed = self.clone();
        let value = &mut changed.values[parameter as usize];
        value.amount = amount;
        value.written = amount.to_string();
        value.unit = String::new();
        value.source = "set by the caller".into();
        Ok(changed)
    }
}

/// One mistake in a machine file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The line, from 1; 0 if the mistake is that something is missing.
    pub line: usize,
    /// The key, `section.key`; empty if the mistake is not at a key.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

/// Why a machine file was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// The file.
    pub path: String,
    /// Every mistake found, in the order of lines; never empty.
    pub mistakes: Vec<Diagnostic>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", self.path)?;
            if mistake.line > 0 {
                write!(f, ":{}", mistake.line)?;
            }
            if !mistake.key.is_empty() {
                write!(f, ": {}", mistake.key)?;
            }
            write!(f, ": {}", mistake.message)?;
        }
        Ok(())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

impl std::error::Error for FileError {}
impl std::error::Error for Diagnostic {}

/// The range of a parameter in its canonical unit.
pub(super) fn bounds(description: &Description) -> (f64, f64) {
    match description.unit {
        // Ranges of times are written in nanoseconds.
        Unit::Time => (description.least * 1e3, description.most * 1e3),
        Unit::Choice(words) => (0.0, (words.len() - 1) as f64),
        _ => (description.least, description.most),
    }
}

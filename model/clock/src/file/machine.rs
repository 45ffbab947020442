//! The contents of a machine file.

use crate::architecture::Architecture;

use super::parameter::{Description, Parameter, Unit};
use quell_vm::contract::Clause;
use quell_workloads::files::Mistake;

/// A time in picoseconds, the unit of virtual time.
pub type Time = u64;

/// One value of a machine file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Value {
    /// The value in the canonical unit (see [`Unit::spellings`]); times are in picoseconds.
    ///
    /// For a [`Unit::Choice`], it's the index of the word.
    pub amount: f64,
    /// The number as it's written in the file.
    pub written: String,
    /// The unit as it's written in the file; empty for choices.
    pub unit: String,
    /// The origin of the value, as text.
    pub source: String,
    /// Whether the value is a guess.
    pub assumed: bool,
    /// Whether a kernel or policy file contains the value, so that another one replaces it.
    pub from_part: bool,
}

impl Value {
    /// Returns the same value on a clock of this period in picoseconds.
    pub(super) fn on_clock(&self, cycle: f64) -> Self {
        let mut value = self.clone();
        if let ("cycles", Ok(number)) = (self.unit.as_str(), self.written.parse::<f64>()) {
            value.amount = number * cycle;
        }
        value
    }
}

/// Defines a file with a part of a machine's parameters.
macro_rules! part_file {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name {
            /// A machine with a clock of 1 GHz of which only these parameters are set.
            pub(super) costs: MachineFile,
        }

        impl $name {
            /// Returns the short name.
            pub fn name(&self) -> &str {
                &self.costs.name
            }

            /// Returns the title.
            pub fn title(&self) -> &str {
                &self.costs.title
            }
        }
    };
}

part_file!(
    /// A kernel file: the costs of a kernel's own code on any machine.
    KernelFile
);
part_file!(
    /// A policy file: a protocol for coherent TLBs, its parameters, the clauses that it keeps.
    PolicyFile
);

impl KernelFile {
    /// Returns the value of one of the kernel's parameters.
    ///
    /// # Panics
    /// If the parameter is a machine's.
    pub fn value(&self, parameter: Parameter) -> &Value {
        assert!(parameter.of_kernel(), "{} is a machine's", parameter.name());
        self.costs.value(parameter)
    }

    /// Returns the parameters that kernel files contain.
    pub fn parameters() -> impl Iterator<Item = Parameter> {
        let all = Parameter::ALL.iter().copied();
        all.filter(|parameter| parameter.of_kernel())
    }
}

/// Returns the parameter of each clause of the contract.
fn clauses() -> impl Iterator<Item = (Parameter, Clause)> {
    use Clause::{C1, C2, C3, C4, C5, C6, C7, C8};
    let parameters = Parameter::ALL[Parameter::Clause1 as usize..].iter();
    parameters.copied().zip([C1, C2, C3, C4, C5, C6, C7, C8])
}

impl PolicyFile {
    /// Returns the clauses that the policy loses or needs something for, each with the reason.
    pub fn exceptions(&self) -> impl Iterator<Item = (Clause, &'static str, &str)> {
        clauses().filter_map(|(parameter, clause)| {
            let state = self.costs.choice(parameter);
            let why = self.costs.value(parameter).source.as_str();
            (state != "kept").then_some((clause, state, why))
        })
    }
}

/// A machine file: a complete set of parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineFile {
    pub(super) name: String,
    pub(super) title: String,
    /// The name of the kernel that runs on it.
    pub(super) kernel: String,
    /// The name of the policy file with the protocol that keeps its TLBs coherent.
    pub(super) policy: String,
    /// The values, in the order of [`PARAMETERS`](super::PARAMETERS).
    pub(super) values: Vec<Value>,
}

impl MachineFile {
    /// Returns a machine with a clock of 1 GHz, of which nothing is set.
    pub(super) fn unset() -> Self {
        let unset = Value {
            amount: 1.0,
            written: "1".into(),
            assumed: true,
            from_part: true,
            ..Value::default()
        };
        MachineFile {
            name: String::new(),
            title: String::new(),
            kernel: String::new(),
            policy: String::new(),
            values: vec![unset; Parameter::ALL.len()],
        }
    }

    /// Returns the machine's short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the machine's title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the name of the kernel that runs on the machine.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Returns the same machine with another kernel.
    ///
    /// Costs that the machine's own file sets stay.
    #[must_use]
    pub fn with_kernel(&self, kernel: &KernelFile) -> Self {
        let mut changed = self.with_part(&kernel.costs, Parameter::of_kernel);
        changed.kernel.clone_from(&kernel.costs.name);
        changed
    }

    /// Returns the same machine under another policy.
    ///
    /// Parameters of policies that the machine's own file sets stay.
    #[must_use]
    pub fn with_policy(&self, policy: &PolicyFile) -> Self {
        let mut changed = self.with_part(&policy.costs, Parameter::of_policy);
        changed.policy.clone_from(&policy.costs.name);
        changed
    }

    /// Returns the name of the policy file, which is [`DEFAULT_POLICY`](super::DEFAULT_POLICY) for the engine.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the clauses of the contract that the policy gives up.
    pub fn lost_clauses(&self) -> Vec<Clause> {
        let lost = clauses().filter(|(parameter, _)| self.choice(*parameter) == "lost");
        lost.map(|(_, clause)| clause).collect()
    }

    fn with_part(&self, part: &MachineFile, of: fn(Parameter) -> bool) -> Self {
        let mut changed = self.clone();
        let cycle = 1000.0 / self.amount(Parameter::Frequency);
        for parameter in Parameter::ALL.iter().copied().filter(|&known| of(known)) {
            let value = &mut changed.values[parameter as usize];
            if value.from_part {
                *value = part.value(parameter).on_clock(cycle);
                value.from_part = true;
            }
        }
        changed
    }

    /// Returns the value of a parameter with its unit and source.
    pub fn value(&self, parameter: Parameter) -> &Value {
        &self.values[parameter as usize]
    }

    /// Returns the amount of a parameter in its canonical unit.
    #[inline]
    pub fn amount(&self, parameter: Parameter) -> f64 {
        self.values[parameter as usize].amount
    }

    /// Returns a time in picoseconds.
    #[inline]
    pub fn time(&self, parameter: Parameter) -> Time {
        debug_assert_eq!(parameter.description().unit, Unit::Time);
        self.amount(parameter).round() as Time
    }

    /// Returns a count or a number of bytes.
    #[inline]
    pub fn count(&self, parameter: Parameter) -> usize {
        self.amount(parameter) as usize
    }

    /// Returns the word of a choice.
    pub fn choice(&self, parameter: Parameter) -> &'static str {
        match parameter.description().unit {
            Unit::Choice(words) => words[self.amount(parameter) as usize],
            _ => "",
        }
    }

    /// Returns the architecture.
    #[inline]
    pub fn architecture(&self) -> Architecture {
        Architecture::ALL[self.amount(Parameter::Architecture) as usize]
    }

    /// Returns the parameters that are guesses, for sensitivity reports.
    pub fn assumed(&self) -> impl Iterator<Item = Parameter> + '_ {
        Parameter::ALL.iter().copied().filter(|&parameter| self.value(parameter).assumed)
    }

    /// Returns the same machine with one amount multiplied by `factor`.
    ///
    /// The result is kept within the parameter's range. A choice stays as it is.
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

    /// Returns the same machine with one amount replaced, in the canonical unit.
    ///
    /// # Errors
    /// If the amount is outside the parameter's range. The message contains the range.
    pub fn with(&self, parameter: Parameter, amount: f64) -> Result<Self, Mistake> {
        let description = parameter.description();
        let (least, most) = bounds(description);
        if !(least..=most).contains(&amount) {
            return Err(Mistake {
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
        value.from_part = false;
        Ok(changed)
    }
}

/// Returns the range of a parameter in its canonical unit.
pub(super) fn bounds(description: &Description) -> (f64, f64) {
    match description.unit {
        // Files give ranges of times in nanoseconds.
        Unit::Time => (description.least * 1e3, description.most * 1e3),
        Unit::Choice(words) => (0.0, (words.len() - 1) as f64),
        _ => (description.least, description.most),
    }
}

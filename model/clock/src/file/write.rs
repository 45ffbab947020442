//! Prints a machine as a complete file, which lists every parameter with its source.

use super::machine::{MachineFile, Value};
use super::parameter::{Parameter, Unit};
use super::parse::built_in_kernel;
use std::fmt::Write;

impl MachineFile {
    /// Returns the text of a machine file that reads back as this machine.
    ///
    /// The text names a built-in kernel instead of listing its parameters.
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut file = format!("name = {}\ntitle = {}\n", quoted(&self.name), quoted(&self.title));
        let built_in = built_in_kernel(&self.kernel).is_some();
        if built_in {
            let _ = writeln!(file, "runs = {}", quoted(&self.kernel));
        }
        let mut section = "";
        for &parameter in Parameter::ALL {
            let description = parameter.description();
            let value = self.value(parameter);
            if value.from_part && (built_in || parameter.of_policy()) {
                continue;
            }
            if description.section != section {
                section = description.section;
                let _ = write!(file, "\n[{section}]\n");
            }
            let number = match description.unit {
                Unit::Choice(_) => quoted(self.choice(parameter)),
                unit => {
                    let (number, unit) = self.written(unit, value);
                    format!("{number}, unit = {}", quoted(unit))
                }
            };
            let assumed = if value.assumed { ", assumed = true" } else { "" };
            let _ = writeln!(
                file,
                "{} = {{ value = {number}{assumed}, source = {} }}",
                description.key,
                quoted(&value.source)
            );
        }
        file
    }

    /// Returns number and unit as written in the file, if they still have the same value.
    fn written<'v>(&self, unit: Unit, value: &'v Value) -> (f64, &'v str) {
        let factor = |name: &str| match name {
            "cycles" => Some(1000.0 / self.amount(Parameter::Frequency)),
            _ => {
                let mut known = unit.spellings().iter();
                known.find(|(known, _)| *known == name).map(|&(_, factor)| factor)
            }
        };
        if let (Ok(number), Some(factor)) = (value.written.parse::<f64>(), factor(&value.unit))
            && number * factor == value.amount
        {
            return (number, &value.unit);
        }
        let mut plain = unit.spellings().iter().filter(|(_, factor)| *factor != 0.0);
        match plain.next() {
            Some((unit, factor)) => (value.amount / factor, unit),
            None => (value.amount, ""),
        }
    }
}

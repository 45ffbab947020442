//! Sets parameters from text, as in `--set interrupt.send=900ns`, and writes a machine as a complete file.
//!
//! To set, we convert the text to a line of a machine file that is based on the machine to change. So the code that reads files
//! checks units, ranges and consistency.

use super::machine::{MachineFile, Value};
use super::parameter::{Parameter, Unit};
use super::parse::built_in_kernel;
use quell_workloads::files::{FileError, Mistake, hint};
use std::collections::BTreeMap;
use std::fmt::Write;

impl MachineFile {
    /// Returns the same machine with parameters set from text.
    ///
    /// Texts are, for example, `interrupt.send=900ns`, `cpu.cpus=72`, or `tlb.tags=none`. Units and checks are those of
    /// files. If two texts set one parameter, the later one is used. Only messages use `origin`.
    ///
    /// # Errors
    /// If a text sets nothing, or the values can't be combined.
    pub fn with_text(&self, origin: &str, texts: &[impl AsRef<str>]) -> Result<Self, FileError> {
        let refuse = |mistakes| FileError { path: origin.into(), mistakes };
        let mut lines = BTreeMap::new();
        for text in texts {
            let (name, line) = as_line(text.as_ref()).map_err(|mistake| refuse(vec![mistake]))?;
            lines.insert(name, line);
        }
        let lines: Vec<_> = lines.into_values().collect();
        let file = format!("name = \"\"\nbased_on = \"\"\n{}", lines.join("\n"));
        let mut changed =
            Self::parse_on(origin, &file, |_| Ok(self.clone())).map_err(|mut error| {
                error.mistakes.iter_mut().for_each(|mistake| mistake.line = 0);
                error
            })?;
        changed.name.clone_from(&self.name);
        changed.title.clone_from(&self.title);
        Ok(changed)
    }
}

/// Returns the name of the parameter that a text like `interrupt.send=900ns` sets, and the line of a machine file that
/// sets it.
fn as_line(text: &str) -> Result<(String, String), Mistake> {
    let refuse = |message: String| Mistake { line: 0, key: text.into(), message };
    let form = || refuse("expected SECTION.KEY=VALUE, as in interrupt.send=900ns".into());
    let (name, value) = text.split_once('=').ok_or_else(form)?;
    let (name, value) = (name.trim(), value.trim());
    let parameter = Parameter::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Parameter::ALL.iter().map(|known| known.name()).collect();
        let hint = hint(name, names.iter().map(String::as_str));
        refuse(format!("no parameter `{name}`{hint}"))
    })?;
    // No word or unit contains other characters, so a quoted one is TOML.
    let known = |c: char| c.is_ascii_alphanumeric() || "/-_".contains(c);
    let (number, word) = match parameter.description().unit {
        Unit::Choice(_) => (None, value),
        unit => {
            // `nan` and `1e300` are no units, so they are part of the number.
            let power = |at: usize| {
                value[at..].starts_with(['e', 'E'])
                    && value[at + 1..].starts_with(|c: char| c.is_ascii_digit())
            };
            let part =
                |&(at, c): &(usize, char)| c.is_ascii_digit() || ".+-".contains(c) || power(at);
            let end = value.char_indices().find(|place| !part(place)).map(|(at, _)| at);
            let (number, written) = value.split_at(end.unwrap_or(value.len()));
            let spellings = unit.spellings();
            let written = match written.trim() {
                // In files, a number without dimension has the unit `1`; here it may be left out.
                "" if spellings[0].0 == "1" => "1",
                "" => {
                    let units: Vec<_> = spellings.iter().map(|(unit, _)| *unit).collect();
                    return Err(refuse(format!(
                        "the unit is missing: one of {}",
                        units.join(", ")
                    )));
                }
                written => written,
            };
            let number = number.parse::<f64>();
            let wrong = |_| refuse("expected a number and its unit, as in 900ns".into());
            (Some(number.map_err(wrong)?), written)
        }
    };
    if !word.chars().all(known) {
        return Err(form());
    }
    let value = match number {
        Some(number) => format!("{number:?}, unit = \"{word}\""),
        None => format!("\"{word}\""),
    };
    let line = format!("{name} = {{ value = {value}, source = \"set by the caller\" }}");
    Ok((name.to_owned(), line))
}

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

//! Describes the parameters of a workload: names, units, defaults, ranges and meanings.
//!
//! Each workload declares its parameters in its file. All values are unsigned words, so that they fit into a kernel's
//! registers.

use alloc::format;
use alloc::string::{String, ToString};

/// The unit of a parameter. It determines how values are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number without unit: `2000`.
    Count,
    /// Bytes, with an optional `K`, `M` or `G` (powers of 1024): `64M`.
    Bytes,
    /// Time, with an optional `ns`, `us`, `ms` or `s`: `20ms`. A number without suffix means nanoseconds.
    Time,
    /// `yes` or `no`.
    Switch,
    /// A page size: `4K`, `2M` or `1G`.
    PageSize,
}

/// The spellings of byte counts, largest first.
const BYTES: [(&str, u64); 3] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
/// The spellings of times; `s` last, because the others end with it too.
const TIMES: [(&str, u64); 4] = [("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000)];

/// Returns a whole number with the suffix of any unit, or none; `None` for everything else.
pub(crate) fn scaled(text: &str) -> Option<u64> {
    scaled_by(text, BYTES.iter().chain(&TIMES))
}

fn scaled_by<'u>(text: &str, units: impl IntoIterator<Item = &'u (&'u str, u64)>) -> Option<u64> {
    let (digits, factor) = units
        .into_iter()
        .find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?.trim_end(), factor)))
        .unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

impl Unit {
    /// Every unit, with its name in workload files.
    pub(crate) const ALL: [(&str, Unit); 5] = [
        ("count", Unit::Count),
        ("bytes", Unit::Bytes),
        ("time", Unit::Time),
        ("switch", Unit::Switch),
        ("page", Unit::PageSize),
    ];

    /// Parses a value. Returns `None` if the text isn't in the unit's notation.
    pub fn parse(self, text: &str) -> Option<u64> {
        match self {
            Unit::Count => text.parse().ok(),
            Unit::Bytes => scaled_by(text, &BYTES),
            Unit::Time => scaled_by(text, &TIMES),
            Unit::Switch => match text {
                "yes" => Some(1),
                "no" => Some(0),
                _ => None,
            },
            Unit::PageSize => {
                scaled_by(text, &BYTES).filter(|bytes| [1 << 12, 1 << 21, 1 << 30].contains(bytes))
            }
        }
    }

    /// Prints a value in the form that [`Unit::parse`] reads.
    pub fn show(self, value: u64) -> String {
        let scaled = |units: &[(&str, u64)]| {
            units
                .iter()
                .filter(|&&(_, factor)| value != 0 && value.is_multiple_of(factor))
                .max_by_key(|&&(_, factor)| factor)
                .map_or_else(
                    || value.to_string(),
                    |(unit, factor)| format!("{}{unit}", value / factor),
                )
        };
        match self {
            Unit::Count => value.to_string(),
            Unit::Bytes | Unit::PageSize => scaled(&BYTES),
            Unit::Time => scaled(&TIMES),
            Unit::Switch => if value == 0 { "no" } else { "yes" }.to_string(),
        }
    }

    /// Returns a description of the notation, for messages.
    pub const fn spelling(self) -> &'static str {
        match self {
            Unit::Count => "a whole number",
            Unit::Bytes => "a number of bytes like 4096, 64K, 16M or 1G",
            Unit::Time => "a time like 500ns, 20us, 15ms or 1s",
            Unit::Switch => "yes or no",
            Unit::PageSize => "4K, 2M or 1G",
        }
    }
}

/// One parameter of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The name that users type.
    pub name: &'static str,
    /// The parameter's unit.
    pub unit: Unit,
    /// The default value.
    pub default: u64,
    /// The least value.
    pub least: u64,
    /// The largest value.
    pub most: u64,
    /// The parameter's meaning, in a sentence.
    pub meaning: &'static str,
}

/// The reason why a parameter was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadParameter {
    /// The text isn't of the form `name=value`.
    #[error("`{0}` is not of the form name=value")]
    NotAPair(String),
    /// The workload has no parameter with this name.
    #[error("{workload} has no parameter `{name}`{hint}; it has {known}")]
    Unknown {
        /// The workload.
        workload: &'static str,
        /// The given name.
        name: String,
        /// The end of the message, which suggests the nearest name.
        hint: String,
        /// The known names.
        known: String,
    },
    /// The value isn't in the unit's notation.
    #[error("{name}: expected {expected}, found `{found}`")]
    Unreadable {
        /// The parameter.
        name: &'static str,
        /// A description of the notation.
        expected: &'static str,
        /// The given text.
        found: String,
    },
    /// The value is out of the parameter's range.
    #[error("{name}: {found} is out of range, expected {least} to {most}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// The given text.
        found: String,
        /// The least value.
        least: String,
        /// The largest value.
        most: String,
    },
}

impl Parameter {
    /// Reads a value and checks its range.
    pub(crate) fn read(&self, text: &str) -> Result<u64, BadParameter> {
        let value = self.unit.parse(text).ok_or_else(|| BadParameter::Unreadable {
            name: self.name,
            expected: self.unit.spelling(),
            found: text.to_string(),
        })?;
        if (self.least..=self.most).contains(&value) {
            return Ok(value);
        }
        Err(BadParameter::OutOfRange {
            name: self.name,
            found: self.unit.show(value),
            least: self.unit.show(self.least),
            most: self.unit.show(self.most),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_are_written() {
        for (unit, text, value) in [
            (Unit::Count, "17", 17),
            (Unit::Bytes, "70M", 70 << 20),
            (Unit::Bytes, "4097", 4097),
            (Unit::Time, "15ms", 15_000_000),
            (Unit::Time, "2s", 2_000_000_000),
            (Unit::Time, "1500ns", 1500),
            (Unit::Switch, "no", 0),
            (Unit::PageSize, "2M", 2 << 20),
        ] {
            assert_eq!(unit.parse(text), Some(value), "{text}");
            assert_eq!(unit.show(value), text);
        }
        for (unit, text) in [
            (Unit::Count, "-1"),
            (Unit::Bytes, "99999999999G"),
            (Unit::Bytes, "M"),
            (Unit::Time, "1h"),
            (Unit::Switch, "true"),
            (Unit::PageSize, "8K"),
        ] {
            assert_eq!(unit.parse(text), None, "{text}");
        }
    }
}

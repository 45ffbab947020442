//! Reads the parameters of a workload file.

use super::names::Names;
use super::reader::keep;
use crate::files::{Item, Reader, in_order};
use crate::parameter::{Parameter, Unit};
use crate::script::PARAMETERS;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use toml::de::DeTable;

/// A parameter of a file that may still have mistakes.
pub(super) struct Draft {
    pub(super) name: String,
    unit: Unit,
    default: u64,
    least: u64,
    most: u64,
    meaning: String,
}

impl Draft {
    pub(super) fn keep(self) -> Parameter {
        Parameter {
            name: keep(self.name),
            unit: self.unit,
            default: self.default,
            least: self.least,
            most: self.most,
            meaning: keep(self.meaning),
        }
    }
}

pub(super) fn parameters(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &mut Names,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    let Some(section) = document.get("parameters") else {
        return drafts;
    };
    let Some(table) = section.get_ref().as_table() else {
        reader.refuse(section.span().start, "parameters", "expected a table");
        return drafts;
    };
    for (at, name, item) in in_order(table) {
        let key = format!("parameters.{name}");
        if let Err(why) = names.add_parameter(name) {
            reader.refuse(at, &key, why);
            continue;
        }
        if drafts.len() == PARAMETERS {
            reader.refuse(at, &key, format!("more than {PARAMETERS} parameters"));
            break;
        }
        drafts.extend(parameter(reader, name, &key, item));
    }
    drafts
}

fn parameter(reader: &mut Reader<'_>, name: &str, key: &str, item: &Item<'_>) -> Option<Draft> {
    let known = ["unit", "default", "least", "most", "meaning"];
    let table = reader.table(key, item, &known)?;
    let here = item.span().start;
    let need = |reader: &mut Reader<'_>, word: &str| {
        let found = table.get(word);
        if found.is_none() {
            reader.refuse(here, key, format!("`{word}` is missing"));
        }
        found
    };
    let unit = need(reader, "unit")?;
    let word = reader.text(key, unit)?;
    let Some((_, unit_of)) = Unit::ALL.into_iter().find(|(known, _)| *known == word) else {
        let known: Vec<_> = Unit::ALL.iter().map(|(known, _)| *known).collect();
        reader.refuse(
            unit.span().start,
            key,
            format!("unit `{word}` is not one of {}", known.join(", ")),
        );
        return None;
    };
    let value = |reader: &mut Reader<'_>, item: &Item<'_>| {
        let value = item.get_ref();
        let read = if let Some(text) = value.as_str() {
            unit_of.parse(text)
        } else if let Some(integer) = value.as_integer() {
            u64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
        } else {
            value.as_bool().filter(|_| unit_of == Unit::Switch).map(u64::from)
        };
        if read.is_none() {
            reader.refuse(item.span().start, key, format!("expected {}", unit_of.spelling()));
        }
        read
    };
    let default = need(reader, "default").and_then(|item| value(reader, item));
    let bound = |reader: &mut Reader<'_>, word: &str, otherwise| match table.get(word) {
        Some(item) => value(reader, item),
        None => Some(otherwise),
    };
    let (lowest, highest) = match unit_of {
        Unit::Switch => (0, 1),
        Unit::PageSize => (1 << 12, 1 << 30),
        Unit::Count | Unit::Bytes | Unit::Time => (0, u64::MAX),
    };
    let least = bound(reader, "least", lowest);
    let most = bound(reader, "most", highest);
    let meaning = need(reader, "meaning").and_then(|item| reader.text(key, item));
    let draft = Draft {
        name: name.to_owned(),
        unit: unit_of,
        default: default?,
        least: least?,
        most: most?,
        meaning: meaning?,
    };
    if !(draft.least..=draft.most).contains(&draft.default) {
        let [default, least, most] =
            [draft.default, draft.least, draft.most].map(|value| unit_of.show(value));
        reader.refuse(here, key, format!("the default, {default}, is not from {least} to {most}"));
        return None;
    }
    Some(draft)
}

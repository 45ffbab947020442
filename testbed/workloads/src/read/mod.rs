//! Parses a workload file into a [`Script`] or a list of mistakes with lines.
//!
//! `docs/workloads.md` describes the format; a test compares it with the table in [`forms`].

mod fields;
mod forms;
mod names;
mod parameters;
mod reader;
mod sections;
mod statement;

use crate::expression::Expression;
use crate::files::{FileError, Reader, in_order};
use crate::script::{Script, Thread};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use names::{Context, Names};
use parameters::{Draft, parameters};
use quell::Mechanism;
use reader::{Expressions, keep, list};
use sections::{figure, memory, operation, refusals, together};
use toml::de::DeTable;

pub use forms::{STATEMENTS, Statement as StatementForm};

/// Reads a file.
pub(crate) fn read(path: &str, text: &str) -> Result<Script, FileError> {
    let mut reader = Reader::new(text);
    let script = script(&mut reader, path);
    reader.finish(path, script)
}

const KEYS: [&str; 15] = [
    "name",
    "title",
    "mechanism",
    "cpus",
    "processes",
    "parameters",
    "shared",
    "fit",
    "memory",
    "figure",
    "operation",
    "refuse",
    "blocks",
    "threads",
    "about",
];

fn script(reader: &mut Reader<'_>, path: &str) -> Option<Script> {
    let text = reader.source();
    let document = reader.document()?;
    let document = document.get_ref();
    reader.check_keys("", document, &KEYS);
    let line = |reader: &mut Reader<'_>, key: &str, what: &str| match document.get(key) {
        Some(item) => reader.text(key, item),
        None => {
            reader.missing(key, what);
            None
        }
    };
    let name = line(reader, "name", "a short name, one word");
    let title = line(reader, "title", "its purpose, in a sentence");
    if let Some(item) = document.get("about") {
        reader.text("about", item);
    }
    let mechanism = mechanism(reader, document);
    if let (Some(name), Some(item)) = (&name, document.get("name"))
        && !names::is_name(&name.replace('-', "_"))
    {
        reader.refuse(
            item.span().start,
            "name",
            format!("`{name}`: expected a word of small letters, digits and hyphens"),
        );
    }
    let mut names = Names::new();
    let parameters = parameters(reader, document, &mut names);
    shared(reader, document, &mut names);
    let cpus = reader.or("cpus", document.get("cpus"), &names, Context::Parameters, 1);
    let processes =
        reader.or("processes", document.get("processes"), &names, Context::Parameters, 1);
    let fits = fits(reader, document, &names, &parameters);
    let memory = memory(reader, document, &names);
    let together = together(reader, document, &names);
    let figure = figure(reader, document, &names);
    let operation = operation(reader, document, &names);
    let refusals = refusals(reader, document, &names, &parameters);
    let threads = threads(reader, document, &mut names);
    if reader.mistakes() > 0 {
        return None;
    }
    Some(Script {
        path: keep(path.to_owned()),
        text: keep(text.to_owned()),
        name: keep(name?),
        title: keep(title?),
        mechanism: mechanism?,
        parameters: Vec::leak(parameters.into_iter().map(Draft::keep).collect()),
        cpus,
        processes,
        fits,
        memory: memory?,
        together,
        figure: figure?,
        operation: operation?,
        refusals,
        threads: threads?,
    })
}

fn mechanism(reader: &mut Reader<'_>, document: &DeTable<'_>) -> Option<Mechanism> {
    let Some(item) = document.get("mechanism") else {
        let all: Vec<_> = Mechanism::ALL
            .iter()
            .map(|known| format!("{} ({})", known.name(), known.title()))
            .collect();
        reader.missing(
            "mechanism",
            format!("the mechanism that it shows, one of {}", all.join(", ")),
        );
        return None;
    };
    let text = reader.text("mechanism", item)?;
    let found = Mechanism::ALL.into_iter().find(|known| known.name() == text);
    if found.is_none() {
        reader.refuse(
            item.span().start,
            "mechanism",
            format!("`{text}` is not one of S0, S1, S2, S3, S4"),
        );
    }
    found
}

fn shared(reader: &mut Reader<'_>, document: &DeTable<'_>, names: &mut Names) {
    let Some(section) = document.get("shared") else {
        return;
    };
    let Some(table) = section.get_ref().as_table() else {
        reader.refuse(section.span().start, "shared", "expected a table");
        return;
    };
    for (at, name, item) in in_order(table) {
        let key = format!("shared.{name}");
        let count = item
            .get_ref()
            .as_integer()
            .and_then(|integer| u8::from_str_radix(integer.as_str(), integer.radix()).ok());
        let added = match count {
            Some(count) if count > 0 => names.add_shared(name, count),
            _ => Err("expected a number of words, as in `address = 1`".into()),
        };
        if let Err(why) = added {
            reader.refuse(at, &key, why);
        }
    }
}

fn fits(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &Names,
    parameters: &[Draft],
) -> Vec<(u8, Expression)> {
    let mut fits = Vec::new();
    let Some(section) = document.get("fit") else {
        return fits;
    };
    let known: Vec<_> = parameters.iter().map(|known| known.name.as_str()).collect();
    let Some(table) = reader.table("fit", section, &known) else {
        return fits;
    };
    for (_, name, item) in in_order(table) {
        let place = known.iter().position(|known| *known == name);
        let value = reader.expression(&format!("fit.{name}"), item, names, Context::Static);
        fits.extend(place.zip(value).map(|(place, value)| (place as u8, value)));
    }
    fits
}

fn threads(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &mut Names,
) -> Option<Vec<Thread>> {
    let no_blocks = DeTable::new();
    let blocks = match document.get("blocks") {
        None => &no_blocks,
        Some(item) => match item.get_ref().as_table() {
            Some(table) => table,
            None => {
                reader.refuse(item.span().start, "blocks", "expected a table of programs");
                return None;
            }
        },
    };
    let items = list(reader, document, "threads");
    if items.is_empty() {
        reader.missing("threads", "programs of the CPUs: `[[threads]]` with a `program`");
        return None;
    }
    let mut threads = Vec::new();
    for item in items {
        let Some(table) = reader.table("threads", item, &["when", "program"]) else {
            continue;
        };
        names.forget_locals();
        let when = reader.or("threads.when", table.get("when"), names, Context::Place, 1);
        let Some(program) = table.get("program") else {
            reader.refuse(item.span().start, "threads", "`program` is missing");
            continue;
        };
        let program: Box<[_]> = statement::program(reader, program, blocks, names).into();
        threads.push(Thread { when, program });
    }
    Some(threads)
}

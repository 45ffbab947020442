//! Parses a workload file into a [`Script`] or a list of mistakes with lines.
//!
//! `docs/workloads.md` describes the format; a test compares it with the table in [`forms`].
//!
//! After a mistake we continue with a stand-in, such as the number 0, to find more mistakes. A file with mistakes is
//! refused at the end.

mod forms;
mod names;
mod statement;

use crate::expression::{Expression, Name};
use crate::files::{FileError, Item, Reader, found, in_order};
use crate::parameter::{Parameter, Unit};
use crate::script::{
    Figure, MemoryNeed, MessagePart, Operation, PARAMETERS, Refusal, Script, Thread,
};
use crate::team::word;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use names::{Context, Names};
use quell::Mechanism;
use toml::de::{DeTable, DeValue};

pub use forms::{STATEMENTS, Statement as StatementForm};

/// Reads a file.
pub(crate) fn read(path: &str, text: &str) -> Result<Script, FileError> {
    let mut reader = Reader::new(text);
    let Some(document) = reader.document() else {
        return reader.finish(path, None);
    };
    let (names, parameters) = (Names::default(), Vec::new());
    let mut file = WorkloadFile { reader, document: document.get_ref(), names, parameters };
    let script = file.script(path);
    file.reader.finish(path, script)
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

/// Keeps a text until the process ends, as long as its workload.
fn keep(text: String) -> &'static str {
    String::leak(text)
}

/// Returns an integer as TOML writes it, in any base.
fn integer(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

/// A file that is being read, and what is known of it so far.
struct WorkloadFile<'d, 't> {
    reader: Reader<'t>,
    document: &'d DeTable<'t>,
    names: Names,
    parameters: Vec<Parameter>,
}

impl<'d, 't> WorkloadFile<'d, 't> {
    fn script(&mut self, path: &str) -> Option<Script> {
        let document = self.document;
        self.reader.check_keys("", document, &KEYS);
        let name = self.line("name", "a short name, one word");
        let title = self.line("title", "its purpose, in a sentence");
        if let Some(item) = document.get("about") {
            self.reader.text("about", item);
        }
        let mechanism = self.mechanism();
        if let (Some(name), Some(item)) = (&name, document.get("name"))
            && !names::is_name(&name.replace('-', "_"))
        {
            let message = format!("`{name}`: expected a word of small letters, digits and hyphens");
            self.reader.refuse(item.span().start, "name", message);
        }
        self.read_parameters();
        self.read_shared();
        let cpus = self.or("cpus", document.get("cpus"), Context::Parameters, 1);
        let processes = self.or("processes", document.get("processes"), Context::Parameters, 1);
        let fits = self.fits();
        let memory = self.memory();
        let together = self.together();
        let figure = self.figure();
        let operation = self.operation();
        let refusals = self.refusals();
        let threads = self.threads();
        if self.reader.mistakes() > 0 {
            return None;
        }
        Some(Script {
            path: keep(path.to_owned()),
            text: keep(self.reader.source().to_owned()),
            name: keep(name?),
            title: keep(title?),
            mechanism: mechanism?,
            parameters: core::mem::take(&mut self.parameters).leak(),
            cpus,
            processes,
            fits,
            memory: memory?,
            together,
            figure: figure?,
            operation: operation?,
            refusals,
            threads,
        })
    }

    fn refuse<T>(&mut self, at: usize, key: &str, message: impl Into<String>) -> Option<T> {
        self.reader.refuse(at, key, message);
        None
    }

    /// Reads an expression: a text, a number, or true or false.
    fn expression(&mut self, key: &str, item: &Item<'_>, context: Context) -> Expression {
        let value = item.get_ref();
        let read = match value {
            DeValue::String(text) => {
                Expression::parse(text, &mut |name| self.names.find(name, context))
            }
            DeValue::Integer(_) => integer(value)
                .map(Expression::Number)
                .ok_or_else(|| "expected a number from 0 to 2^64 - 1".to_string()),
            DeValue::Boolean(truth) => Ok(Expression::Number((*truth).into())),
            DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                let found = found(value);
                Err(format!("expected a number or an expression in quotes, found {found}"))
            }
        };
        let why = match read {
            Err(why) => why,
            Ok(read) if context == Context::Figure && read.has_real_value() => return read,
            Ok(_) if context == Context::Figure => {
                "a figure has numbers, + - * /, comparisons, min, max and choose alone".into()
            }
            Ok(read) if read.is_real() => {
                "fractions and exponents are for `figure.value` alone".into()
            }
            Ok(read) if context != Context::Program && read.is_random() => {
                "random is for programs alone".into()
            }
            Ok(read) => return read,
        };
        self.reader.refuse(item.span().start, key, why);
        Expression::Number(0)
    }

    /// Reads an expression, or returns this default if it is absent.
    fn or(
        &mut self,
        key: &str,
        item: Option<&Item<'_>>,
        context: Context,
        otherwise: u64,
    ) -> Expression {
        match item {
            Some(item) => self.expression(key, item, context),
            None => Expression::Number(otherwise),
        }
    }

    /// Reads a text of the file's own keys.
    fn line(&mut self, key: &str, what: &str) -> Option<String> {
        match self.document.get(key) {
            Some(item) => self.reader.text(key, item),
            None => {
                self.reader.missing(key, what);
                None
            }
        }
    }

    /// Returns the entries of a table, in the order of the file; none if it is absent.
    fn entries(&mut self, key: &str) -> Vec<(usize, &'d str, &'d Item<'t>)> {
        let Some(section) = self.document.get(key) else {
            return Vec::new();
        };
        match section.get_ref().as_table() {
            Some(table) => in_order(table),
            None => {
                self.reader.refuse(section.span().start, key, "expected a table");
                Vec::new()
            }
        }
    }

    /// Returns the items of an array of tables; none if it is absent.
    fn list(&mut self, key: &str) -> Vec<&'d Item<'t>> {
        let Some(item) = self.document.get(key) else {
            return Vec::new();
        };
        match item.get_ref().as_array() {
            Some(items) => items.iter().collect(),
            None => {
                let expected = format!("expected tables, each under `[[{key}]]`");
                self.reader.refuse(item.span().start, key, expected);
                Vec::new()
            }
        }
    }

    /// Returns a section that every file has, and its place.
    fn section(
        &mut self,
        key: &str,
        known: &[&str],
        what: &str,
    ) -> Option<(usize, &'d DeTable<'t>)> {
        let Some(item) = self.document.get(key) else {
            self.reader.missing(key, what);
            return None;
        };
        Some((item.span().start, self.reader.table(key, item, known)?))
    }

    fn mechanism(&mut self) -> Option<Mechanism> {
        let all = Mechanism::ALL.map(|known| format!("{} ({})", known.name(), known.title()));
        let what = format!("the mechanism that it shows, one of {}", all.join(", "));
        let text = self.line("mechanism", &what)?;
        let found = Mechanism::ALL.into_iter().find(|known| known.name() == text);
        found.or_else(|| {
            let at = self.document.get("mechanism")?.span().start;
            let message = format!("`{text}` is not one of S0, S1, S2, S3, S4");
            self.refuse(at, "mechanism", message)
        })
    }

    fn read_parameters(&mut self) {
        for (at, name, item) in self.entries("parameters") {
            let key = format!("parameters.{name}");
            if let Err(why) = self.names.add_parameter(name) {
                self.reader.refuse(at, &key, why);
                continue;
            }
            if self.parameters.len() == PARAMETERS {
                self.reader.refuse(at, &key, format!("more than {PARAMETERS} parameters"));
                break;
            }
            let parameter = self.parameter(name, &key, item);
            self.parameters.extend(parameter);
        }
    }

    fn parameter(&mut self, name: &str, key: &str, item: &Item<'_>) -> Option<Parameter> {
        let known = ["unit", "default", "least", "most", "meaning"];
        let table = self.reader.table(key, item, &known)?;
        let here = item.span().start;
        for needed in ["unit", "default", "meaning"] {
            if !table.contains_key(needed) {
                return self.refuse(here, key, format!("`{needed}` is missing"));
            }
        }
        let (unit_item, meaning) = (table.get("unit")?, table.get("meaning")?);
        let text = self.reader.text(key, unit_item)?;
        let Some((_, unit)) = Unit::ALL.into_iter().find(|(known, _)| *known == text) else {
            let known = Unit::ALL.map(|(known, _)| known).join(", ");
            let message = format!("unit `{text}` is not one of {known}");
            return self.refuse(unit_item.span().start, key, message);
        };
        let (lowest, highest) = match unit {
            Unit::Switch => (0, 1),
            Unit::PageSize => (1 << 12, 1 << 30),
            Unit::Count | Unit::Bytes | Unit::Time => (0, u64::MAX),
        };
        let mut value = |word: &str, otherwise: u64| {
            let Some(item) = table.get(word) else {
                return Some(otherwise);
            };
            let value = item.get_ref();
            let truth = || value.as_bool().filter(|_| unit == Unit::Switch).map(u64::from);
            let text = value.as_str().map(|text| unit.parse(text));
            let read = text.unwrap_or_else(|| integer(value).or_else(truth));
            read.or_else(|| {
                self.refuse(item.span().start, key, format!("expected {}", unit.spelling()))
            })
        };
        let (default, least, most) =
            (value("default", 0), value("least", lowest), value("most", highest));
        let meaning = self.reader.text(key, meaning)?;
        let (default, least, most) = (default?, least?, most?);
        if !(least..=most).contains(&default) {
            let [default, least, most] = [default, least, most].map(|value| unit.show(value));
            let message = format!("the default, {default}, is not from {least} to {most}");
            return self.refuse(here, key, message);
        }
        let (name, meaning) = (keep(name.to_owned()), keep(meaning));
        Some(Parameter { name, unit, default, least, most, meaning })
    }

    fn read_shared(&mut self) {
        for (at, name, item) in self.entries("shared") {
            let count = integer(item.get_ref()).and_then(|count| u8::try_from(count).ok());
            let added = match count {
                Some(count @ 1..) => self.names.add_shared(name, count),
                Some(0) | None => Err("expected a number of words, as in `address = 1`".into()),
            };
            if let Err(why) = added {
                self.reader.refuse(at, &format!("shared.{name}"), why);
            }
        }
    }

    fn fits(&mut self) -> Vec<(u8, Expression)> {
        let known: Vec<_> = self.parameters.iter().map(|known| known.name).collect();
        let section = self.document.get("fit");
        let Some(table) = section.and_then(|section| self.reader.table("fit", section, &known))
        else {
            return Vec::new();
        };
        let mut fits = Vec::new();
        for (_, name, item) in in_order(table) {
            let value = self.expression(&format!("fit.{name}"), item, Context::Static);
            let place = known.iter().position(|known| *known == name);
            fits.extend(place.map(|place| (place as u8, value)));
        }
        fits
    }

    fn memory(&mut self) -> Option<MemoryNeed> {
        let known = ["touched", "nodes", "node", "slow", "ahead", "idle_reclaims", "together"];
        let what = "its memory: `touched`, or `node` and `slow` if memory is to be short";
        let (at, table) = self.section("memory", &known, what)?;
        let mut or = |word: &str, otherwise| {
            self.or(&format!("memory.{word}"), table.get(word), Context::Static, otherwise)
        };
        let nodes = or("nodes", 1);
        match (table.contains_key("touched"), table.contains_key("node")) {
            (true, false) => {
                let bytes = or("touched", 0);
                for word in ["slow", "ahead", "idle_reclaims"] {
                    if let Some(item) = table.get(word) {
                        let why = "needs `node` instead of `touched`";
                        self.reader.refuse(item.span().start, &format!("memory.{word}"), why);
                    }
                }
                Some(MemoryNeed::Touched { bytes, nodes })
            }
            (false, true) => Some(MemoryNeed::Exact {
                node: or("node", 0),
                slow: or("slow", 0),
                nodes,
                ahead: table.contains_key("ahead").then(|| or("ahead", 0)),
                idle_reclaims: or("idle_reclaims", 0),
            }),
            (true, true) | (false, false) => self.refuse(
                at,
                "memory",
                "expected `touched` (bytes that are touched; there is room) or `node` (bytes that there are)",
            ),
        }
    }

    /// Reads the number of pages that a call unmaps with one flush, if the file sets it.
    fn together(&mut self) -> Option<Expression> {
        let memory = self.document.get("memory")?.get_ref().as_table()?;
        Some(self.expression("memory.together", memory.get("together")?, Context::Static))
    }

    fn figure(&mut self) -> Option<Figure> {
        let known = ["says", "value", "more_is_better"];
        let what = "the measurement: `says` and `value`";
        let (at, table) = self.section("figure", &known, what)?;
        let (Some(says), Some(value)) = (table.get("says"), table.get("value")) else {
            let expected = "expected `says`, as in \"ns per iteration\", and `value`, as in \"nanoseconds / done\"";
            return self.refuse(at, "figure", expected);
        };
        let more_is_better =
            self.reader.truth("figure.more_is_better", table.get("more_is_better"));
        let says = self.reader.text("figure.says", says);
        let value = self.expression("figure.value", value, Context::Figure);
        Some(Figure { metric: keep(says?), more_is_better, value })
    }

    fn operation(&mut self) -> Option<Operation> {
        let known = ["is", "count", "faults", "first_cpu_works"];
        let what = "one operation: `is`, and `count` if it is not `done`";
        let (at, table) = self.section("operation", &known, what)?;
        let Some(name) = table.get("is") else {
            return self.refuse(at, "operation", "expected `is`, as in \"page touched\"");
        };
        let name = self.reader.text("operation.is", name);
        let count = match table.get("count") {
            Some(count) => self.expression("operation.count", count, Context::Count),
            None => Expression::Name(Name::Shared(word::DONE as u8)),
        };
        let mut truth =
            |word: &str| self.reader.truth(&format!("operation.{word}"), table.get(word));
        let (faults, first_cpu_works) = (truth("faults"), truth("first_cpu_works"));
        Some(Operation { name: keep(name?), count, faults, first_cpu_works })
    }

    fn refusals(&mut self) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for item in self.list("refuse") {
            let Some(table) = self.reader.table("refuse", item, &["when", "why"]) else {
                continue;
            };
            let (Some(when), Some(why)) = (table.get("when"), table.get("why")) else {
                let expected = "expected `when`, an expression, and `why`, a text";
                self.reader.refuse(item.span().start, "refuse", expected);
                continue;
            };
            let when = self.expression("refuse.when", when, Context::Static);
            let Some(text) = self.reader.text("refuse.why", why) else {
                continue;
            };
            match self.message(&text) {
                Ok(why) => refusals.push(Refusal { when, why }),
                Err(wrong) => self.reader.refuse(why.span().start, "refuse.why", wrong),
            }
        }
        refusals
    }

    /// Splits a message with expressions in braces.
    fn message(&self, text: &str) -> Result<Vec<MessagePart>, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            pieces.push(MessagePart::Text(before.into()));
            let (inner, after) = behind.split_once('}').ok_or("expected `}`")?;
            let place = self.parameters.iter().position(|known| known.name == inner);
            let find = &mut |name: &str| self.names.find(name, Context::Static);
            pieces.push(match place {
                Some(index) => MessagePart::Parameter(index as u8),
                None => MessagePart::Value(Expression::parse(inner, find)?),
            });
            rest = after;
        }
        pieces.push(MessagePart::Text(rest.into()));
        Ok(pieces)
    }

    fn threads(&mut self) -> Vec<Thread> {
        let no_blocks = DeTable::new();
        let blocks = self.document.get("blocks");
        let table = blocks.map_or(Some(&no_blocks), |item| item.get_ref().as_table());
        let (Some(blocks), items) = (table, self.list("threads")) else {
            let at = blocks.map_or(0, |item| item.span().start);
            self.reader.refuse(at, "blocks", "expected a table of programs");
            return Vec::new();
        };
        if items.is_empty() {
            let what = "programs of the CPUs: `[[threads]]` with a `program`";
            self.reader.missing("threads", what);
        }
        let mut threads = Vec::new();
        for item in items {
            let Some(table) = self.reader.table("threads", item, &["when", "program"]) else {
                continue;
            };
            self.names.forget_locals();
            let when = self.or("threads.when", table.get("when"), Context::Place, 1);
            let Some(program) = table.get("program") else {
                self.reader.refuse(item.span().start, "threads", "`program` is missing");
                continue;
            };
            let program = statement::program(self, program, blocks).into();
            threads.push(Thread { when, program });
        }
        threads
    }
}

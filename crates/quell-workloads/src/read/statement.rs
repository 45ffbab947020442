//! Statements of a program: a table of them, and reading one by the table.

use super::names::{Context, Names, settable};
use super::{Item, Reader};
use crate::expression::{Expression, Meaning, Name, Place};
use crate::script::{Behind, Does, Kind, Order, Range, Statement as Operation, Target};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use quell_vm::Protection;
use toml::de::DeTable;

/// How many operations a program has at most, blocks put in place.
const OPERATIONS: usize = 20_000;

/// What stands behind the first word of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Main {
    /// An expression.
    Value,
    /// The name of a variable, which the statement sets.
    Variable,
    /// `true`.
    True,
    /// The name of a block.
    Block,
}

/// One form of statement, as files write it and as documents list it.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The word that it begins with.
    pub word: &'static str,
    main: Main,
    /// Keys that it must have.
    pub needs: &'static [&'static str],
    /// Keys that it may have.
    pub takes: &'static [&'static str],
    /// What it does, in a sentence.
    pub meaning: &'static str,
}

impl Statement {
    /// A line of the table in `docs/workloads.md`.
    pub fn row(&self) -> String {
        let of = match self.main {
            Main::Value => "value",
            Main::Variable => "variable",
            Main::True => "`true`",
            Main::Block => "block",
        };
        let needs = self.needs.iter().map(|key| format!("`{key}`"));
        let takes = self.takes.iter().map(|key| format!("[`{key}`]"));
        let keys: Vec<_> = needs.chain(takes).collect();
        format!(
            "| `{}` | {of} | {} | {} |",
            self.word,
            keys.join(", "),
            self.meaning
        )
    }
}

const fn form(
    word: &'static str,
    main: Main,
    needs: &'static [&'static str],
    takes: &'static [&'static str],
    meaning: &'static str,
) -> Statement {
    Statement {
        word,
        main,
        needs,
        takes,
        meaning,
    }
}

/// Every statement there is.
pub const STATEMENTS: &[Statement] = {
    use Main::*;
    &[
        form(
            "read",
            Value,
            &[],
            &["bytes", "stride", "order", "count"],
            "Loads a word at an address; with `bytes`, one at each `stride` (4K) of a range: `order` is ascending, descending, or random with a `count`.",
        ),
        form(
            "write",
            Value,
            &[],
            &["value", "bytes", "stride", "order", "count"],
            "Stores a word, likewise; `value` may use `offset`, how far from the range's beginning.",
        ),
        form(
            "stream_read",
            Value,
            &["bytes"],
            &[],
            "Loads every cache line of a range in order.",
        ),
        form(
            "stream_write",
            Value,
            &["bytes"],
            &["value"],
            "Stores to every cache line of a range in order.",
        ),
        form(
            "map",
            Variable,
            &["bytes"],
            &["at", "page", "protection", "shared", "private", "offset"],
            "Maps memory and sets the variable to its address: anonymous in pages of up to `page` (4K), or a `shared` or `private` file from `offset` on; `at` replaces what is there. `protection` is none, r, rw or rx.",
        ),
        form("unmap", Value, &["bytes"], &[], "Unmaps a range (munmap)."),
        form(
            "protect",
            Value,
            &["bytes", "protection"],
            &[],
            "Changes what is allowed in a range (mprotect).",
        ),
        form(
            "discard",
            Value,
            &["bytes"],
            &[],
            "Drops the pages of a range (MADV_DONTNEED).",
        ),
        form(
            "page_out",
            Value,
            &["bytes"],
            &["into"],
            "Reclaims the pages of a range (MADV_PAGEOUT); how many went.",
        ),
        form(
            "remap",
            Value,
            &["bytes"],
            &["to", "into"],
            "Moves the pages of a range elsewhere (mremap); where to.",
        ),
        form(
            "collapse",
            Value,
            &[],
            &["into"],
            "Makes one 2 MB page of the 2 MB around an address (MADV_COLLAPSE); whether it was done.",
        ),
        form(
            "migrate",
            Value,
            &["bytes", "node"],
            &["into"],
            "Moves the pages of a range to a memory node (move_pages); how many moved.",
        ),
        form(
            "demote",
            Value,
            &[],
            &["into"],
            "Moves that many pages to a slow node; how many moved.",
        ),
        form(
            "reclaim",
            Value,
            &[],
            &["into"],
            "Reclaims that many pages; how many went.",
        ),
        form(
            "spawn",
            Variable,
            &[],
            &[],
            "Makes an empty process and sets the variable to its number.",
        ),
        form(
            "fork",
            Variable,
            &[],
            &[],
            "Makes a copy of this process and sets the variable to its number.",
        ),
        form("enter", Value, &[], &[], "Goes on in that process."),
        form("exit", Value, &[], &[], "Ends a process that no CPU runs."),
        form(
            "create",
            Variable,
            &["bytes"],
            &[],
            "Makes a file of zeros and sets the variable to its number.",
        ),
        form(
            "sync",
            Value,
            &[],
            &["into"],
            "Writes a file's dirty pages (fdatasync); how many there were.",
        ),
        form(
            "truncate",
            Value,
            &["bytes"],
            &[],
            "Cuts or extends a file.",
        ),
        form(
            "file_write",
            Value,
            &["offset", "value"],
            &[],
            "Writes a word of a file by a call (pwrite).",
        ),
        form(
            "file_read",
            Value,
            &["offset"],
            &["into"],
            "Reads a word of a file by a call (pread); what it held.",
        ),
        form(
            "sleep",
            Value,
            &[],
            &[],
            "Sleeps for that many nanoseconds.",
        ),
        form("nothing", True, &[], &[], "Enters and leaves the kernel."),
        form(
            "compute",
            Value,
            &[],
            &[],
            "Computes for that many nanoseconds without touching memory.",
        ),
        form(
            "let",
            Variable,
            &["be"],
            &[],
            "Sets a variable of this CPU's or a shared word.",
        ),
        form(
            "add",
            Variable,
            &["by"],
            &["into"],
            "Adds to a shared word in one step; what it held before.",
        ),
        form(
            "if",
            Value,
            &["then"],
            &["else"],
            "Performs `then` unless the value is 0, else `else`.",
        ),
        form(
            "while",
            Value,
            &["do"],
            &[],
            "Performs `do` as long as the value is not 0.",
        ),
        form(
            "repeat",
            Value,
            &["do"],
            &["as"],
            "Performs `do` that many times; `as` names a variable that counts from 0.",
        ),
        form(
            "for",
            Variable,
            &["below", "do"],
            &["from", "by"],
            "Performs `do` with the variable at `from` (0), then `by` (1) more, as long as it is less than `below`.",
        ),
        form(
            "use",
            Block,
            &[],
            &[],
            "Performs a block of `[blocks]`, as if it stood here.",
        ),
        form(
            "barrier",
            True,
            &[],
            &[],
            "Waits until every CPU has come to a barrier.",
        ),
        form(
            "without",
            Value,
            &[],
            &[],
            "From the next barrier on so many CPUs do not come any more; all others say so.",
        ),
        form(
            "begin",
            True,
            &[],
            &[],
            "A barrier, after which the measured window is open.",
        ),
        form(
            "end",
            True,
            &[],
            &[],
            "A barrier that closes the window, and stops the CPUs that stand by.",
        ),
        form(
            "open",
            True,
            &[],
            &[],
            "CPU 0 opens the window, whatever the others do.",
        ),
        form(
            "close",
            True,
            &[],
            &[],
            "CPU 0 closes the window, and stops the CPUs that stand by.",
        ),
        form(
            "done",
            Value,
            &[],
            &[],
            "So much more was done in the window.",
        ),
        form(
            "bystand",
            Value,
            &[],
            &["asleep"],
            "Is there until the window closes and looks every so many nanoseconds; computes, or sleeps if `asleep` is not 0.",
        ),
        form(
            "give_up",
            True,
            &[],
            &[],
            "Ends this CPU's part and the run, because another CPU failed.",
        ),
        form(
            "progress",
            Value,
            &["of"],
            &[],
            "CPU 0 tells whoever waits how far the run is. Takes no time.",
        ),
    ]
};

/// The operations of a program under construction.
struct Writer<'v, 't> {
    operations: Vec<Operation>,
    blocks: &'v DeTable<'t>,
    /// Blocks that are being put in place.
    inside: Vec<String>,
    full: bool,
}

/// Reads a program: an array of statements.
pub(super) fn program<'v, 't>(
    reader: &mut Reader<'_>,
    item: &'v Item<'t>,
    blocks: &'v DeTable<'t>,
    names: &mut Names,
) -> Vec<Operation> {
    let mut writer = Writer {
        operations: Vec::new(),
        blocks,
        inside: Vec::new(),
        full: false,
    };
    writer.body(reader, "program", item, names);
    if writer.full {
        let message = format!("more than {OPERATIONS} statements, blocks put in place");
        reader.refuse(item.span().start, "program", message);
    }
    writer.operations
}

/// A statement's table, and what is known of it.
struct Form<'v, 't> {
    form: &'static Statement,
    table: &'v DeTable<'t>,
    at: usize,
}

impl<'v, 't> Writer<'v, 't> {
    fn body(&mut self, reader: &mut Reader<'_>, key: &str, item: &'v Item<'t>, names: &mut Names) {
        let Some(statements) = item.get_ref().as_array() else {
            let found = item.get_ref().type_str();
            let message = format!("expected statements in brackets, found {found}");
            return reader.refuse(item.span().start, key, message);
        };
        for statement in statements.iter() {
            self.statement(reader, statement, names);
        }
    }

    fn push(&mut self, reader: &Reader<'_>, form: &Form<'_, '_>, does: Does) -> usize {
        let index = self.operations.len();
        if index == OPERATIONS {
            self.full = true;
            return 0;
        }
        self.operations.push(Operation {
            line: reader.line(form.at) as u32,
            verb: form.form.word,
            does,
        });
        index
    }

    fn here(&self) -> u32 {
        self.operations.len() as u32
    }

    fn statement(&mut self, reader: &mut Reader<'_>, item: &'v Item<'t>, names: &mut Names) {
        let at = item.span().start;
        if self.full {
            return;
        }
        let Some(table) = item.get_ref().as_table() else {
            let found = item.get_ref().type_str();
            let message = format!("expected a statement like {{ read = \"area\" }}, found {found}");
            return reader.refuse(at, "program", message);
        };
        let first = STATEMENTS
            .iter()
            .find(|form| table.contains_key(form.word) && fits(form, table));
        let Some(form) =
            first.or_else(|| STATEMENTS.iter().find(|form| table.contains_key(form.word)))
        else {
            let words: Vec<_> = STATEMENTS.iter().map(|form| form.word).collect();
            let found: Vec<_> = table.keys().map(|key| key.get_ref().as_ref()).collect();
            let message = format!(
                "`{}` is no statement; there are {}",
                found.join("`, `"),
                words.join(", ")
            );
            return reader.refuse(at, "program", message);
        };
        for (key, _) in table {
            let word: &str = key.get_ref().as_ref();
            if word != form.word && !form.needs.contains(&word) && !form.takes.contains(&word) {
                let known: Vec<_> = form.needs.iter().chain(form.takes).copied().collect();
                let message = match &known[..] {
                    [] => format!("`{}` takes nothing else, found `{word}`", form.word),
                    _ => format!("`{}` takes {}, found `{word}`", form.word, known.join(", ")),
                };
                return reader.refuse(key.span().start, form.word, message);
            }
        }
        for need in form.needs {
            if !table.contains_key(*need) {
                let message = format!("`{need}` is missing: {}", form.meaning);
                return reader.refuse(at, form.word, message);
            }
        }
        let form = Form { form, table, at };
        // What could not be read has been refused.
        let _ = self.write(reader, &form, names);
    }

    /// Writes a statement's operations; `None` if something in it was refused.
    fn write(
        &mut self,
        reader: &mut Reader<'_>,
        form: &Form<'v, 't>,
        names: &mut Names,
    ) -> Option<()> {
        let word = form.form.word;
        match word {
            "if" => return self.branch(reader, form, names),
            "while" => return self.while_loop(reader, form, names),
            "repeat" | "for" => return self.counted(reader, form, names),
            "use" => return self.block(reader, form, names),
            _ => {}
        }
        if form.form.main == Main::True {
            let main = form.table.get(word)?;
            if main.get_ref().as_bool() != Some(true) {
                let message = format!("expected `{word} = true`");
                reader.refuse(main.span().start, word, message);
                return None;
            }
        }
        let mut fields = Fields {
            reader,
            form,
            names,
        };
        let does = match word {
            "read" | "stream_read" | "write" | "stream_write" => fields.access()?,
            "map" => fields.map()?,
            "protect" => Does::Protect {
                address: fields.value(word)?,
                bytes: fields.value("bytes")?,
                protection: fields.protection()?,
            },
            "let" => {
                // Read first: a variable has no value before it is set.
                let value = fields.value("be")?;
                Does::Let {
                    to: fields.target(word)?,
                    value,
                }
            }
            "add" => Does::Add {
                word: fields.shared_word()?,
                by: fields.value("by")?,
                into: fields.result()?,
            },
            "compute" => Does::Compute(fields.value(word)?),
            "barrier" => Does::Barrier,
            "begin" => Does::Begin,
            "end" => Does::End,
            "open" => Does::Open,
            "close" => Does::Close,
            "give_up" => Does::GiveUp,
            "done" => Does::Done(fields.value(word)?),
            "without" => Does::Without(fields.value(word)?),
            "bystand" => Does::Bystand {
                every: fields.value(word)?,
                asleep: fields.or("asleep", 0)?,
            },
            "progress" => Does::Progress {
                done: fields.value(word)?,
                all: fields.value("of")?,
            },
            _ => fields.call()?,
        };
        self.push(reader, form, does);
        Some(())
    }

    fn branch(
        &mut self,
        reader: &mut Reader<'_>,
        form: &Form<'v, 't>,
        names: &mut Names,
    ) -> Option<()> {
        let condition = value(reader, form, names, "if")?;
        let test = self.push(reader, form, Does::Unless { condition, to: 0 });
        self.body(reader, "if.then", form.table.get("then")?, names);
        let mut end = self.here();
        if let Some(other) = form.table.get("else") {
            let jump = self.push(reader, form, Does::Jump(0));
            end = self.here();
            self.body(reader, "if.else", other, names);
            let behind = self.here();
            self.aim(jump, behind);
        }
        self.aim(test, end);
        Some(())
    }

    fn while_loop(
        &mut self,
        reader: &mut Reader<'_>,
        form: &Form<'v, 't>,
        names: &mut Names,
    ) -> Option<()> {
        let condition = value(reader, form, names, "while")?;
        let head = self.push(reader, form, Does::Unless { condition, to: 0 });
        self.body(reader, "while.do", form.table.get("do")?, names);
        self.push(reader, form, Does::Jump(head as u32));
        let behind = self.here();
        self.aim(head, behind);
        Some(())
    }

    /// `repeat` and `for`.
    fn counted(
        &mut self,
        reader: &mut Reader<'_>,
        form: &Form<'v, 't>,
        names: &mut Names,
    ) -> Option<()> {
        let repeats = form.form.word == "repeat";
        let below = if repeats { "repeat" } else { "below" };
        let limit = value(reader, form, names, below)?;
        let mut or = |key: &str, otherwise| match form.table.get(key) {
            Some(_) => value(reader, form, names, key),
            None => Some(Expression::number(otherwise)),
        };
        let (from, by) = (or("from", 0)?, or("by", 1)?);
        let counter = match (repeats, form.table.get("as")) {
            (true, None) => names.hidden(),
            (true, Some(item)) => variable(reader, "repeat.as", item, names)?,
            (false, _) => variable(reader, "for", form.table.get("for")?, names)?,
        };
        let places = counter.and_then(|counter| Ok((counter, names.hidden()?)));
        let (variable, end) = match places {
            Ok(places) => places,
            Err(why) => {
                reader.refuse(form.at, form.form.word, why);
                return None;
            }
        };
        let to = Target::Local(end);
        self.push(reader, form, Does::Let { to, value: limit });
        let to = Target::Local(variable);
        self.push(reader, form, Does::Let { to, value: from });
        let test = Does::Below {
            variable,
            limit: end,
            to: 0,
        };
        let head = self.push(reader, form, test);
        self.body(reader, form.form.word, form.table.get("do")?, names);
        let to = head as u32;
        self.push(reader, form, Does::Next { variable, by, to });
        let behind = self.here();
        self.aim(head, behind);
        Some(())
    }

    fn block(
        &mut self,
        reader: &mut Reader<'_>,
        form: &Form<'v, 't>,
        names: &mut Names,
    ) -> Option<()> {
        let item = form.table.get("use")?;
        let name = reader.text("use", item)?;
        let Some(block) = self.blocks.get(name.as_str()) else {
            let known: Vec<_> = self
                .blocks
                .keys()
                .map(|key| key.get_ref().as_ref())
                .collect();
            let message = format!("no block `{name}`; there are: {}", known.join(", "));
            reader.refuse(item.span().start, "use", message);
            return None;
        };
        if self.inside.contains(&name) {
            let message = format!("the block `{name}` uses itself");
            reader.refuse(item.span().start, "use", message);
            return None;
        }
        self.inside.push(name);
        let key = format!("blocks.{}", self.inside.last()?);
        self.body(reader, &key, block, names);
        self.inside.pop();
        Some(())
    }

    /// Says where a jump goes.
    fn aim(&mut self, jump: usize, target: u32) {
        if let Some(operation) = self.operations.get_mut(jump)
            && let Does::Jump(to) | Does::Unless { to, .. } | Does::Below { to, .. } =
                &mut operation.does
        {
            *to = target;
        }
    }
}

/// Whether every key of a table is one of the form's: of two words that begin statements, it is this one that does.
fn fits(form: &Statement, table: &DeTable<'_>) -> bool {
    table.keys().all(|key| {
        let word: &str = key.get_ref().as_ref();
        word == form.word || form.needs.contains(&word) || form.takes.contains(&word)
    })
}

fn value(
    reader: &mut Reader<'_>,
    form: &Form<'_, '_>,
    names: &Names,
    key: &str,
) -> Option<Expression> {
    let item = form.table.get(key)?;
    let whole = label(form, key);
    reader.expression(&whole, item, names, Context::Program)
}

fn label(form: &Form<'_, '_>, key: &str) -> String {
    match form.form.word {
        word if word == key => key.to_string(),
        word => format!("{word}.{key}"),
    }
}

/// The variable of a loop, which is one of this CPU's; the inner error is for the whole statement.
fn variable(
    reader: &mut Reader<'_>,
    key: &str,
    item: &Item<'_>,
    names: &mut Names,
) -> Option<Result<u8, String>> {
    let name = reader.text(key, item)?;
    Some(match names.place(&name) {
        Ok(Meaning::One(Name::Local(index))) => Ok(index),
        Ok(_) => Err(format!(
            "`{name}` is shared: expected a variable of this CPU's"
        )),
        Err(why) => Err(why),
    })
}

/// Reads the keys of a statement.
struct Fields<'f, 'r, 'v, 't> {
    reader: &'f mut Reader<'r>,
    form: &'f Form<'v, 't>,
    names: &'f mut Names,
}

impl Fields<'_, '_, '_, '_> {
    fn has(&self, key: &str) -> bool {
        self.form.table.contains_key(key)
    }

    fn value(&mut self, key: &str) -> Option<Expression> {
        value(self.reader, self.form, self.names, key)
    }

    fn optional(&mut self, key: &str) -> Option<Option<Expression>> {
        if !self.has(key) {
            return Some(None);
        }
        self.value(key).map(Some)
    }

    fn or(&mut self, key: &str, otherwise: u64) -> Option<Expression> {
        let found = self.optional(key)?;
        Some(found.unwrap_or(Expression::number(otherwise)))
    }

    fn word(&mut self, key: &str) -> Option<Option<(usize, String)>> {
        let Some(item) = self.form.table.get(key) else {
            return Some(None);
        };
        let text = self.reader.text(&label(self.form, key), item)?;
        Some(Some((item.span().start, text)))
    }

    fn refuse<T>(&mut self, at: usize, key: &str, message: String) -> Option<T> {
        self.reader.refuse(at, &label(self.form, key), message);
        None
    }

    /// A variable, which is made if there is none: `name`, or `name[index]` of a shared one.
    fn target(&mut self, key: &str) -> Option<Target> {
        let (at, text) = self.word(key)??;
        let (name, index) = match text.split_once('[') {
            None => (text.as_str(), None),
            Some((name, rest)) => match rest.strip_suffix(']') {
                Some(index) => (name, Some(index)),
                None => return self.refuse(at, key, "expected `]` at the end".into()),
            },
        };
        let meaning = match self.names.place(name.trim()) {
            Ok(meaning) => meaning,
            Err(why) => return self.refuse(at, key, why),
        };
        match (meaning, index) {
            (Meaning::One(name), None) => match settable(name) {
                Some(Place::Local(index)) => Some(Target::Local(index)),
                Some(Place::Shared(index)) => Some(Target::Shared(index)),
                None => self.refuse(at, key, format!("`{text}` cannot be set")),
            },
            (Meaning::Many { base, count }, Some(index)) => {
                let names = &*self.names;
                let read = Expression::parse(index, &mut |name| names.find(name, Context::Program));
                match read {
                    Ok(index) if !index.is_real() => Some(Target::Element { base, count, index }),
                    Ok(_) => self.refuse(at, key, "expected a whole number".into()),
                    Err(why) => self.refuse(at, key, why),
                }
            }
            (Meaning::Many { count, .. }, None) => {
                let message = format!("`{text}` is {count} words: write which, as in `{text}[0]`");
                self.refuse(at, key, message)
            }
            (Meaning::One(_), Some(_)) => {
                self.refuse(at, key, format!("`{name}` is one word and has no elements"))
            }
        }
    }

    fn result(&mut self) -> Option<Option<Target>> {
        if !self.has("into") {
            return Some(None);
        }
        self.target("into").map(Some)
    }

    fn shared_word(&mut self) -> Option<u8> {
        let (at, name) = self.word("add")??;
        match self.names.shared_word(&name) {
            Ok(word) => Some(word),
            Err(why) => self.refuse(at, "add", why),
        }
    }

    fn protection(&mut self) -> Option<Protection> {
        let Some((at, text)) = self.word("protection")? else {
            return Some(Protection::READ_WRITE);
        };
        match text.as_str() {
            "none" => Some(Protection::NONE),
            "r" => Some(Protection::READ),
            "rw" => Some(Protection::READ_WRITE),
            "rx" => Some(Protection::READ_EXECUTE),
            _ => {
                let message = format!("`{text}` is not one of none, r, rw, rx");
                self.refuse(at, "protection", message)
            }
        }
    }

    fn access(&mut self) -> Option<Does> {
        let word = self.form.form.word;
        let address = self.value(word)?;
        let stores = word.ends_with("write");
        let ranged = self.has("bytes");
        let value = match (stores, self.form.table.get("value")) {
            (false, _) => None,
            (true, None) => Some(Expression::number(1)),
            (true, Some(item)) => {
                let context = match word {
                    "write" if ranged => Context::Stored,
                    _ => Context::Program,
                };
                let key = label(self.form, "value");
                Some(self.reader.expression(&key, item, self.names, context)?)
            }
        };
        if word.starts_with("stream") {
            return Some(Does::Stream {
                address,
                bytes: self.value("bytes")?,
                value,
            });
        }
        if !ranged {
            for key in ["stride", "order", "count"] {
                if self.has(key) {
                    let message = format!("`{key}` goes with `bytes`");
                    return self.refuse(self.form.at, key, message);
                }
            }
            return Some(Does::Access {
                address,
                range: None,
                value,
            });
        }
        let order = match self.word("order")? {
            None => Order::Ascending,
            Some((at, text)) => match text.as_str() {
                "ascending" => Order::Ascending,
                "descending" => Order::Descending,
                "random" => Order::Random,
                _ => {
                    let message = format!("`{text}` is not one of ascending, descending, random");
                    return self.refuse(at, "order", message);
                }
            },
        };
        if (order == Order::Random) != self.has("count") {
            let message = "expected `count` with the random order, and with no other".into();
            return self.refuse(self.form.at, "count", message);
        }
        Some(Does::Access {
            address,
            range: Some(Box::new(Range {
                bytes: self.value("bytes")?,
                stride: self.or("stride", 4096)?,
                order,
                count: self.or("count", 0)?,
            })),
            value,
        })
    }

    fn map(&mut self) -> Option<Does> {
        let bytes = self.value("bytes")?;
        let at = self.optional("at")?;
        let protection = self.protection()?;
        let file = match (self.optional("shared")?, self.optional("private")?) {
            (Some(_), Some(_)) => {
                let message = "expected `shared` or `private`, not both".into();
                return self.refuse(self.form.at, "shared", message);
            }
            (Some(file), None) => Some((file, true)),
            (None, file) => file.map(|file| (file, false)),
        };
        let behind = match file {
            Some(_) if self.has("page") => {
                return self.refuse(
                    self.form.at,
                    "page",
                    "a file is mapped in pages of 4K".into(),
                );
            }
            None if self.has("offset") => {
                return self.refuse(
                    self.form.at,
                    "offset",
                    "goes with `shared` or `private`".into(),
                );
            }
            None => Behind::Anonymous {
                page: self.or("page", 4096)?,
            },
            Some((file, shared)) => {
                let offset = self.or("offset", 0)?;
                match shared {
                    true => Behind::Shared { file, offset },
                    false => Behind::Private { file, offset },
                }
            }
        };
        Some(Does::Map {
            // Last: the address may have been that of what is replaced.
            to: self.target("map")?,
            bytes,
            at,
            protection,
            behind: Box::new(behind),
        })
    }

    /// A system call that takes numbers and brings one.
    fn call(&mut self) -> Option<Does> {
        let word = self.form.form.word;
        let (kind, keys): (_, [&str; 3]) = match word {
            "unmap" => (Kind::Unmap, [word, "bytes", ""]),
            "discard" => (Kind::Discard, [word, "bytes", ""]),
            "page_out" => (Kind::PageOut, [word, "bytes", ""]),
            "remap" => (Kind::Remap, [word, "bytes", "to"]),
            "collapse" => (Kind::Collapse, [word, "", ""]),
            "migrate" => (Kind::Migrate, [word, "bytes", "node"]),
            "demote" => (Kind::Demote, [word, "", ""]),
            "reclaim" => (Kind::Reclaim, [word, "", ""]),
            "spawn" => (Kind::Spawn, ["", "", ""]),
            "fork" => (Kind::Fork, ["", "", ""]),
            "enter" => (Kind::Enter, [word, "", ""]),
            "exit" => (Kind::Exit, [word, "", ""]),
            "create" => (Kind::Create, ["bytes", "", ""]),
            "sync" => (Kind::Sync, [word, "", ""]),
            "truncate" => (Kind::Truncate, [word, "bytes", ""]),
            "file_write" => (Kind::FileWrite, [word, "offset", "value"]),
            "file_read" => (Kind::FileRead, [word, "offset", ""]),
            "sleep" => (Kind::Sleep, [word, "", ""]),
            _ => (Kind::Nothing, ["", "", ""]),
        };
        let mut arguments = [None, None, None];
        for (argument, key) in arguments.iter_mut().zip(keys) {
            if !key.is_empty() {
                *argument = self.optional(key)?;
            }
        }
        let into = match self.form.form.main {
            Main::Variable => Some(self.target(word)?),
            _ => self.result()?,
        };
        Some(Does::Call {
            kind,
            arguments,
            into,
        })
    }
}

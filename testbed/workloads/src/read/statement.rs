//! Compiles statements to operations, by the table of their forms. Loops and branches become jumps.

use super::fields::{Fields, Form, value};
use super::forms::{BlockKind, MainArgument, STATEMENTS, Statement, StatementKind};
use super::names::Names;
use crate::expression::{Expression, Name, Symbol};
use crate::files::{Item, Reader};
use crate::script::{Op, Statement as Operation, Target};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use toml::de::DeTable;

/// The most operations of a program, including inserted blocks.
const OPERATIONS: usize = 20_000;

/// The operations of a program under construction.
struct Writer<'v, 't> {
    operations: Vec<Operation>,
    blocks: &'v DeTable<'t>,
    /// Blocks that are being inserted.
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
    let mut writer = Writer { operations: Vec::new(), blocks, inside: Vec::new(), full: false };
    writer.body(reader, "program", item, names);
    if writer.full {
        let message = format!("more than {OPERATIONS} statements, blocks put in place");
        reader.refuse(item.span().start, "program", message);
    }
    writer.operations
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

    fn push(&mut self, reader: &Reader<'_>, form: &Form<'_, '_>, does: Op) -> usize {
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
        let first =
            STATEMENTS.iter().find(|form| table.contains_key(form.word) && fits(form, table));
        let Some(form) =
            first.or_else(|| STATEMENTS.iter().find(|form| table.contains_key(form.word)))
        else {
            let words: Vec<_> = STATEMENTS.iter().map(|form| form.word).collect();
            let found: Vec<_> = table.keys().map(|key| key.get_ref().as_ref()).collect();
            let message = format!(
                "`{}` is not a statement; there are {}",
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
        // The mistakes are recorded already.
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
        if form.form.main == MainArgument::True {
            let main = form.table.get(word)?;
            if main.get_ref().as_bool() != Some(true) {
                let message = format!("expected `{word} = true`");
                reader.refuse(main.span().start, word, message);
                return None;
            }
        }
        let mut fields = Fields { reader, form, names };
        let does = match form.form.reads {
            StatementKind::Operation(read) => read(&mut fields)?,
            StatementKind::Call(make) => fields.call(make)?,
            StatementKind::Block(holds) => {
                return match holds {
                    BlockKind::If => self.branch(reader, form, names),
                    BlockKind::While => self.while_loop(reader, form, names),
                    BlockKind::Repeat | BlockKind::For => self.counted(reader, form, names),
                    BlockKind::Use => self.block(reader, form, names),
                };
            }
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
        let test = self.push(reader, form, Op::Unless { condition, to: 0 });
        self.body(reader, "if.then", form.table.get("then")?, names);
        let mut end = self.here();
        if let Some(other) = form.table.get("else") {
            let jump = self.push(reader, form, Op::Jump(0));
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
        let head = self.push(reader, form, Op::Unless { condition, to: 0 });
        self.body(reader, "while.do", form.table.get("do")?, names);
        self.push(reader, form, Op::Jump(head as u32));
        let behind = self.here();
        self.aim(head, behind);
        Some(())
    }

    /// Writes `repeat` and `for`.
    fn counted(
        &mut self,
        reader: &mut Reader<'_>,
        form: &Form<'v, 't>,
        names: &mut Names,
    ) -> Option<()> {
        let repeats = form.table.contains_key("repeat");
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
        self.push(reader, form, Op::Let { to, value: limit });
        let to = Target::Local(variable);
        self.push(reader, form, Op::Let { to, value: from });
        let test = Op::Below { variable, limit: end, to: 0 };
        let head = self.push(reader, form, test);
        self.body(reader, form.form.word, form.table.get("do")?, names);
        let to = head as u32;
        self.push(reader, form, Op::Next { variable, by, to });
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
            let known: Vec<_> = self.blocks.keys().map(|key| key.get_ref().as_ref()).collect();
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

    /// Sets the target of a jump.
    fn aim(&mut self, jump: usize, target: u32) {
        if let Some(operation) = self.operations.get_mut(jump)
            && let Op::Jump(to) | Op::Unless { to, .. } | Op::Below { to, .. } = &mut operation.does
        {
            *to = target;
        }
    }
}

/// Returns whether every key of a table belongs to this form. If a table has two words that may begin statements, this
/// decides which one begins it.
fn fits(form: &Statement, table: &DeTable<'_>) -> bool {
    table.keys().all(|key| {
        let word: &str = key.get_ref().as_ref();
        word == form.word || form.needs.contains(&word) || form.takes.contains(&word)
    })
}

/// Returns the variable of a loop, which belongs to this CPU. The inner error is for the whole statement.
fn variable(
    reader: &mut Reader<'_>,
    key: &str,
    item: &Item<'_>,
    names: &mut Names,
) -> Option<Result<u8, String>> {
    let name = reader.text(key, item)?;
    Some(match names.place(&name) {
        Ok(Symbol::One(Name::Local(index))) => Ok(index),
        Ok(_) => Err(format!("`{name}` is shared: expected a variable of this CPU's")),
        Err(why) => Err(why),
    })
}

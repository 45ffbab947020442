//! Compiles statements to operations, by the table of their forms. Loops and branches become jumps.

use super::WorkloadFile;
use super::forms::{BlockKind, MainArgument, STATEMENTS, Statement, StatementKind};
use super::names::Context;
use crate::expression::{Expression, Name, Symbol};
use crate::files::Item;
use crate::script::{
    ARGUMENTS, BackingExpr, CallBuilder, Op, Order, Range, Statement as Operation, Target,
};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use quell_vm::Protection;
use toml::de::DeTable;

/// The most operations of a program, including inserted blocks.
const OPERATIONS: usize = 20_000;

/// Reads a program: an array of statements.
pub(super) fn program<'d, 't>(
    file: &mut WorkloadFile<'_, 't>,
    item: &'d Item<'t>,
    blocks: &'d DeTable<'t>,
) -> Vec<Operation> {
    let (operations, inside) = (Vec::new(), Vec::new());
    let mut writer = Writer { file, operations, blocks, inside, full: false };
    writer.body("program", item);
    let Writer { file, operations, full, .. } = writer;
    if full {
        let message = format!("more than {OPERATIONS} statements, blocks put in place");
        file.reader.refuse(item.span().start, "program", message);
    }
    operations
}

/// A statement's table with its form.
#[derive(Clone, Copy)]
struct Form<'d, 't> {
    form: &'static Statement,
    table: &'d DeTable<'t>,
    at: usize,
}

/// The operations of a program under construction.
struct Writer<'w, 'f, 'd, 't> {
    file: &'w mut WorkloadFile<'f, 't>,
    operations: Vec<Operation>,
    blocks: &'d DeTable<'t>,
    /// Blocks that are being inserted.
    inside: Vec<String>,
    full: bool,
}

impl<'f, 'd, 't> Writer<'_, 'f, 'd, 't> {
    fn refuse(&mut self, at: usize, key: &str, message: impl Into<String>) {
        self.file.reader.refuse(at, key, message);
    }

    fn body(&mut self, key: &str, item: &'d Item<'t>) {
        match item.get_ref().as_array() {
            Some(statements) => {
                statements.iter().for_each(|statement| self.statement(statement));
            }
            None => {
                let found = item.get_ref().type_str();
                let message = format!("expected statements in brackets, found {found}");
                self.refuse(item.span().start, key, message);
            }
        }
    }

    fn push(&mut self, form: Form<'_, '_>, does: Op) -> usize {
        let index = self.operations.len();
        if index == OPERATIONS {
            self.full = true;
            return 0;
        }
        let line = self.file.reader.line(form.at) as u32;
        self.operations.push(Operation { line, verb: form.form.word, does });
        index
    }

    fn here(&self) -> u32 {
        self.operations.len() as u32
    }

    fn statement(&mut self, item: &'d Item<'t>) {
        let at = item.span().start;
        if self.full {
            return;
        }
        let Some(table) = item.get_ref().as_table() else {
            let found = item.get_ref().type_str();
            let message = format!("expected a statement like {{ read = \"area\" }}, found {found}");
            return self.refuse(at, "program", message);
        };
        // If a table has two words that may begin statements, the form to which all keys belong decides.
        let begins = |form: &&Statement| table.contains_key(form.word);
        let fits = |form: &&Statement| table.keys().all(|key| form.has(key.get_ref()));
        let first = STATEMENTS.iter().filter(begins).find(fits);
        let Some(form) = first.or_else(|| STATEMENTS.iter().find(begins)) else {
            let words: Vec<_> = STATEMENTS.iter().map(|form| form.word).collect();
            let found: Vec<_> = table.keys().map(|key| key.get_ref().as_ref()).collect();
            let (found, words) = (found.join("`, `"), words.join(", "));
            let message = format!("`{found}` is not a statement; there are {words}");
            return self.refuse(at, "program", message);
        };
        if let Some(key) = table.keys().find(|key| !form.has(key.get_ref())) {
            let known: Vec<_> = form.needs.iter().chain(form.takes).copied().collect();
            let known = if known.is_empty() { "nothing else".into() } else { known.join(", ") };
            let message = format!("`{}` takes {known}, found `{}`", form.word, key.get_ref());
            return self.refuse(key.span().start, form.word, message);
        }
        if let Some(need) = form.needs.iter().find(|need| !table.contains_key(**need)) {
            let message = format!("`{need}` is missing: {}", form.meaning);
            return self.refuse(at, form.word, message);
        }
        if form.main == MainArgument::True
            && let Some(main) = table.get(form.word)
            && main.get_ref().as_bool() != Some(true)
        {
            let message = format!("expected `{} = true`", form.word);
            return self.refuse(main.span().start, form.word, message);
        }
        self.write(Form { form, table, at });
    }

    fn write(&mut self, form: Form<'d, 't>) {
        let mut fields = Fields { file: &mut *self.file, form };
        let does = match form.form.reads {
            StatementKind::Operation(read) => read(&mut fields),
            StatementKind::SystemCall(make) => fields.call(make),
            StatementKind::Control(BlockKind::If) => return self.branch(form),
            StatementKind::Control(BlockKind::While) => return self.while_loop(form),
            StatementKind::Control(BlockKind::Repeat | BlockKind::For) => {
                return self.counted(form);
            }
            StatementKind::Control(BlockKind::Use) => return self.block(form),
        };
        self.push(form, does);
    }

    fn value(&mut self, form: Form<'d, 't>, key: &str) -> Expression {
        Fields { file: &mut *self.file, form }.value(key)
    }

    /// Writes the statements of a key, if the table has it.
    fn inner(&mut self, form: Form<'d, 't>, key: &str) {
        if let Some(body) = form.table.get(key) {
            self.body(&format!("{}.{key}", form.form.word), body);
        }
    }

    fn branch(&mut self, form: Form<'d, 't>) {
        let condition = self.value(form, "if");
        let test = self.push(form, Op::Unless { condition, to: 0 });
        self.inner(form, "then");
        let mut end = self.here();
        if form.table.contains_key("else") {
            let jump = self.push(form, Op::Jump(0));
            end = self.here();
            self.inner(form, "else");
            self.aim_here(jump);
        }
        self.aim(test, end);
    }

    fn while_loop(&mut self, form: Form<'d, 't>) {
        let condition = self.value(form, "while");
        let head = self.push(form, Op::Unless { condition, to: 0 });
        self.inner(form, "do");
        self.push(form, Op::Jump(head as u32));
        self.aim_here(head);
    }

    /// Writes `repeat` and `for`.
    fn counted(&mut self, form: Form<'d, 't>) {
        let mut fields = Fields { file: &mut *self.file, form };
        let (counter, limit) = match form.form.word {
            "for" => ("for", fields.value("below")),
            repeat => ("as", fields.value(repeat)),
        };
        let (from, by) = (fields.or("from", 0), fields.or("by", 1));
        let variable = fields.counter(counter);
        let places = variable.and_then(|variable| Ok((variable, self.file.names.hidden()?)));
        let (variable, end) = match places {
            Ok(places) => places,
            Err(why) => return self.refuse(form.at, form.form.word, why),
        };
        self.push(form, Op::Let { to: Target::Local(end), value: limit });
        self.push(form, Op::Let { to: Target::Local(variable), value: from });
        let head = self.push(form, Op::Below { variable, limit: end, to: 0 });
        self.inner(form, "do");
        self.push(form, Op::Next { variable, by, to: head as u32 });
        self.aim_here(head);
    }

    fn block(&mut self, form: Form<'d, 't>) {
        let Some(item) = form.table.get("use") else { return };
        let Some(name) = self.file.reader.text("use", item) else { return };
        let at = item.span().start;
        let Some(block) = self.blocks.get(name.as_str()) else {
            let known: Vec<_> = self.blocks.keys().map(|key| key.get_ref().as_ref()).collect();
            let message = format!("no block `{name}`; there are: {}", known.join(", "));
            return self.refuse(at, "use", message);
        };
        if self.inside.contains(&name) {
            return self.refuse(at, "use", format!("the block `{name}` uses itself"));
        }
        let key = format!("blocks.{name}");
        self.inside.push(name);
        self.body(&key, block);
        self.inside.pop();
    }

    /// Sets the target of a jump to the next operation.
    fn aim_here(&mut self, jump: usize) {
        let here = self.here();
        self.aim(jump, here);
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

/// A kind of access to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Load,
    Store,
}

/// Reads the keys of a statement.
pub(super) struct Fields<'w, 'f, 'd, 't> {
    file: &'w mut WorkloadFile<'f, 't>,
    form: Form<'d, 't>,
}

impl Fields<'_, '_, '_, '_> {
    fn has(&self, key: &str) -> bool {
        self.form.table.contains_key(key)
    }

    /// Returns the key as messages name it.
    fn label(&self, key: &str) -> String {
        match self.form.form.word {
            word if word == key => key.to_string(),
            word => format!("{word}.{key}"),
        }
    }

    fn refuse(&mut self, at: usize, key: &str, message: impl Into<String>) {
        let label = self.label(key);
        self.file.reader.refuse(at, &label, message);
    }

    fn in_context(&mut self, key: &str, context: Context) -> Option<Expression> {
        let item = self.form.table.get(key)?;
        let label = self.label(key);
        Some(self.file.expression(&label, item, context))
    }

    fn optional(&mut self, key: &str) -> Option<Expression> {
        self.in_context(key, Context::Program)
    }

    pub(super) fn or(&mut self, key: &str, otherwise: u64) -> Expression {
        self.optional(key).unwrap_or(Expression::Number(otherwise))
    }

    /// Returns the value of a key that the statement has.
    pub(super) fn value(&mut self, key: &str) -> Expression {
        self.or(key, 0)
    }

    /// Returns the value of the statement's own word.
    fn main(&mut self) -> Expression {
        self.value(self.form.form.word)
    }

    fn word(&mut self, key: &str) -> Option<(usize, String)> {
        let item = self.form.table.get(key)?;
        let label = self.label(key);
        Some((item.span().start, self.file.reader.text(&label, item)?))
    }

    /// Returns the variable of a loop, which belongs to this CPU; one without a name if the key is absent.
    fn counter(&mut self, key: &str) -> Result<u8, String> {
        let Some((_, name)) = self.word(key) else {
            return self.file.names.hidden();
        };
        match self.file.names.place(&name)? {
            Symbol::One(Name::Local(index)) => Ok(index),
            Symbol::One(_) | Symbol::Many { .. } => {
                Err(format!("`{name}` is shared: expected a variable of this CPU's"))
            }
        }
    }

    /// Returns a variable, created if necessary: `name`, or `name[index]` of a shared one.
    pub(super) fn target(&mut self, key: &str) -> Target {
        let Some((at, text)) = self.word(key) else {
            return Target::Local(0);
        };
        self.parse_target(&text).unwrap_or_else(|why| {
            self.refuse(at, key, why);
            Target::Local(0)
        })
    }

    fn parse_target(&mut self, text: &str) -> Result<Target, String> {
        let (name, index) = match text.split_once('[') {
            None => (text, None),
            Some((name, rest)) => {
                (name, Some(rest.strip_suffix(']').ok_or("expected `]` at the end")?))
            }
        };
        match (self.file.names.place(name.trim())?, index) {
            (Symbol::One(Name::Local(index)), None) => Ok(Target::Local(index)),
            (Symbol::One(Name::Shared(index)), None) => Ok(Target::Shared(index)),
            (Symbol::One(_), None) => Err(format!("`{text}` cannot be set")),
            (Symbol::One(_), Some(_)) => Err(format!("`{name}` is one word and has no elements")),
            (Symbol::Many { count, .. }, None) => {
                Err(format!("`{text}` is {count} words: write which, as in `{text}[0]`"))
            }
            (Symbol::Many { base, count }, Some(index)) => {
                let names = &self.file.names;
                let find = &mut |name: &str| names.find(name, Context::Program);
                match Expression::parse(index, find)? {
                    index if index.is_real() => Err("expected a whole number".into()),
                    index => Ok(Target::Element { base, count, index }),
                }
            }
        }
    }

    pub(super) fn result(&mut self) -> Option<Target> {
        self.has("into").then(|| self.target("into"))
    }

    pub(super) fn shared_word(&mut self) -> u8 {
        let Some((at, name)) = self.word("add") else {
            return 0;
        };
        self.file.names.shared_word(&name).unwrap_or_else(|why| {
            self.refuse(at, "add", why);
            0
        })
    }

    /// Returns the meaning of a key's word: one of `known`, or the first if the key is absent.
    fn one_of<T: Copy>(&mut self, key: &str, known: &[(&str, T)]) -> T {
        let Some((at, text)) = self.word(key) else {
            return known[0].1;
        };
        let found = known.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
            self.refuse(at, key, format!("`{text}` is not one of {}", words.join(", ")));
        }
        found.unwrap_or(&known[0]).1
    }

    pub(super) fn protection(&mut self) -> Protection {
        let known = [
            ("rw", Protection::READ_WRITE),
            ("r", Protection::READ),
            ("rx", Protection::READ_EXECUTE),
            ("none", Protection::NONE),
        ];
        self.one_of("protection", &known)
    }

    /// Returns the value to store, if the access stores: 1 by default.
    fn stored(&mut self, access: Access, context: Context) -> Option<Expression> {
        match access {
            Access::Load => None,
            Access::Store => {
                Some(self.in_context("value", context).unwrap_or(Expression::Number(1)))
            }
        }
    }

    /// Reads an access to every line of a range.
    pub(super) fn stream(&mut self, access: Access) -> Op {
        let value = self.stored(access, Context::Program);
        Op::Stream { address: self.main(), value, bytes: self.value("bytes") }
    }

    /// Reads an access to one word, or to one at each stride of a range.
    pub(super) fn access(&mut self, access: Access) -> Op {
        let (address, ranged) = (self.main(), self.has("bytes"));
        let value = self.stored(access, if ranged { Context::Stored } else { Context::Program });
        if !ranged {
            if let Some(key) = ["stride", "order", "count"].into_iter().find(|key| self.has(key)) {
                self.refuse(self.form.at, key, format!("`{key}` needs `bytes`"));
            }
            return Op::Access { address, range: None, value };
        }
        let known = [
            ("ascending", Order::Ascending),
            ("descending", Order::Descending),
            ("random", Order::Random),
        ];
        let order = self.one_of("order", &known);
        if (order == Order::Random) != self.has("count") {
            let message = "expected `count` with the random order, and with no other";
            self.refuse(self.form.at, "count", message);
        }
        let (bytes, stride) = (self.value("bytes"), self.or("stride", 4096));
        let range = Box::new(Range { bytes, stride, order, count: self.or("count", 0) });
        Op::Access { address, range: Some(range), value }
    }

    pub(super) fn map(&mut self) -> Op {
        let (bytes, at) = (self.value("bytes"), self.optional("at"));
        let protection = self.protection();
        let (shared, private) = (self.optional("shared"), self.optional("private"));
        let refused = match (shared.is_some(), private.is_some()) {
            (true, true) => Some(("shared", "expected `shared` or `private`, not both")),
            (false, false) if self.has("offset") => Some(("offset", "needs `shared` or `private`")),
            (false, false) => None,
            (_, _) if self.has("page") => Some(("page", "a file is mapped in pages of 4K")),
            (_, _) => None,
        };
        if let Some((key, why)) = refused {
            self.refuse(self.form.at, key, why);
        }
        let behind = match (shared, private) {
            (Some(file), _) => BackingExpr::Shared { file, offset: self.or("offset", 0) },
            (None, Some(file)) => BackingExpr::Private { file, offset: self.or("offset", 0) },
            (None, None) => BackingExpr::Anonymous { page: self.or("page", 4096) },
        };
        // Read last, because the address may be in the variable that is replaced.
        let to = self.target("map");
        Op::Map { to, bytes, at, protection, behind: Box::new(behind) }
    }

    /// Reads a system call with numbers as arguments and result.
    fn call(&mut self, make: CallBuilder) -> Op {
        let form = self.form.form;
        let mut arguments = [const { None }; ARGUMENTS];
        for (argument, key) in arguments.iter_mut().zip(form.arguments()) {
            *argument = self.optional(key);
        }
        let into = match form.main {
            MainArgument::Variable => Some(self.target(form.word)),
            MainArgument::Value | MainArgument::True | MainArgument::Block => self.result(),
        };
        Op::Call { make, arguments, into }
    }
}

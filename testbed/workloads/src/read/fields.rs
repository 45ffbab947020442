//! Turns the keys of one statement into an operation.

use super::forms::{MainArgument, Statement};
use super::names::{Context, Names, settable};
use super::reader::Expressions;
use crate::expression::{Expression, Place, Symbol};
use crate::files::Reader;
use crate::script::{ARGUMENTS, BackingExpr, CallBuilder, Op, Order, Range, Target};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use quell_vm::Protection;
use toml::de::DeTable;

/// A statement's table with its form.
pub(super) struct Form<'v, 't> {
    pub(super) form: &'static Statement,
    pub(super) table: &'v DeTable<'t>,
    pub(super) at: usize,
}

pub(super) fn value(
    reader: &mut Reader<'_>,
    form: &Form<'_, '_>,
    names: &Names,
    key: &str,
) -> Option<Expression> {
    let item = form.table.get(key)?;
    let whole = label(form, key);
    reader.expression(&whole, item, names, Context::Program)
}

pub(super) fn label(form: &Form<'_, '_>, key: &str) -> String {
    match form.form.word {
        word if word == key => key.to_string(),
        word => format!("{word}.{key}"),
    }
}

/// A kind of access to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Load,
    Store,
}

/// Reads the keys of a statement.
pub(super) struct Fields<'f, 'r, 'v, 't> {
    pub(super) reader: &'f mut Reader<'r>,
    pub(super) form: &'f Form<'v, 't>,
    pub(super) names: &'f mut Names,
}

impl Fields<'_, '_, '_, '_> {
    fn has(&self, key: &str) -> bool {
        self.form.table.contains_key(key)
    }

    pub(super) fn value(&mut self, key: &str) -> Option<Expression> {
        value(self.reader, self.form, self.names, key)
    }

    fn optional(&mut self, key: &str) -> Option<Option<Expression>> {
        if !self.has(key) {
            return Some(None);
        }
        self.value(key).map(Some)
    }

    pub(super) fn or(&mut self, key: &str, otherwise: u64) -> Option<Expression> {
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

    /// Returns a variable, created if necessary: `name`, or `name[index]` of a shared one.
    pub(super) fn target(&mut self, key: &str) -> Option<Target> {
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
            (Symbol::One(name), None) => match settable(name) {
                Some(Place::Local(index)) => Some(Target::Local(index)),
                Some(Place::Shared(index)) => Some(Target::Shared(index)),
                None => self.refuse(at, key, format!("`{text}` cannot be set")),
            },
            (Symbol::Many { base, count }, Some(index)) => {
                let names = &*self.names;
                let read = Expression::parse(index, &mut |name| names.find(name, Context::Program));
                match read {
                    Ok(index) if !index.is_real() => Some(Target::Element { base, count, index }),
                    Ok(_) => self.refuse(at, key, "expected a whole number".into()),
                    Err(why) => self.refuse(at, key, why),
                }
            }
            (Symbol::Many { count, .. }, None) => {
                let message = format!("`{text}` is {count} words: write which, as in `{text}[0]`");
                self.refuse(at, key, message)
            }
            (Symbol::One(_), Some(_)) => {
                self.refuse(at, key, format!("`{name}` is one word and has no elements"))
            }
        }
    }

    pub(super) fn result(&mut self) -> Option<Option<Target>> {
        if !self.has("into") {
            return Some(None);
        }
        self.target("into").map(Some)
    }

    pub(super) fn shared_word(&mut self) -> Option<u8> {
        let (at, name) = self.word("add")??;
        match self.names.shared_word(&name) {
            Ok(word) => Some(word),
            Err(why) => self.refuse(at, "add", why),
        }
    }

    pub(super) fn protection(&mut self) -> Option<Protection> {
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

    /// Returns the value to store, if the access stores: 1 by default.
    fn stored(&mut self, access: Access, context: Context) -> Option<Option<Expression>> {
        match (access, self.form.table.get("value")) {
            (Access::Load, _) => Some(None),
            (Access::Store, None) => Some(Some(Expression::number(1))),
            (Access::Store, Some(item)) => {
                let key = label(self.form, "value");
                let value = self.reader.expression(&key, item, self.names, context)?;
                Some(Some(value))
            }
        }
    }

    /// Reads an access to every line of a range.
    pub(super) fn stream(&mut self, access: Access) -> Option<Op> {
        Some(Op::Stream {
            address: self.value(self.form.form.word)?,
            value: self.stored(access, Context::Program)?,
            bytes: self.value("bytes")?,
        })
    }

    /// Reads an access to one word, or to one at each stride of a range.
    pub(super) fn access(&mut self, access: Access) -> Option<Op> {
        let address = self.value(self.form.form.word)?;
        let ranged = self.has("bytes");
        let context = match ranged {
            true => Context::Stored,
            false => Context::Program,
        };
        let value = self.stored(access, context)?;
        if !ranged {
            for key in ["stride", "order", "count"] {
                if self.has(key) {
                    let message = format!("`{key}` needs `bytes`");
                    return self.refuse(self.form.at, key, message);
                }
            }
            return Some(Op::Access { address, range: None, value });
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
        Some(Op::Access {
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

    pub(super) fn map(&mut self) -> Option<Op> {
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
                return self.refuse(self.form.at, "page", "a file is mapped in pages of 4K".into());
            }
            None if self.has("offset") => {
                return self.refuse(self.form.at, "offset", "needs `shared` or `private`".into());
            }
            None => BackingExpr::Anonymous { page: self.or("page", 4096)? },
            Some((file, shared)) => {
                let offset = self.or("offset", 0)?;
                match shared {
                    true => BackingExpr::Shared { file, offset },
                    false => BackingExpr::Private { file, offset },
                }
            }
        };
        Some(Op::Map {
            // Read last, because the address may be in the variable that is replaced.
            to: self.target("map")?,
            bytes,
            at,
            protection,
            behind: Box::new(behind),
        })
    }

    /// Reads a system call with numbers as arguments and result.
    pub(super) fn call(&mut self, make: CallBuilder) -> Option<Op> {
        let form = self.form.form;
        let mut arguments = [const { None }; ARGUMENTS];
        for (argument, key) in arguments.iter_mut().zip(form.arguments()) {
            *argument = self.optional(key)?;
        }
        let into = match form.main {
            MainArgument::Variable => Some(self.target(form.word)?),
            MainArgument::Value | MainArgument::True | MainArgument::Block => self.result()?,
        };
        Some(Op::Call { make, arguments, into })
    }
}

//! What every part of the reading stands on: values with their places, and the mistakes found so far.

use super::names::{Context, Names};
use crate::expression::Expression;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A mistake in a workload file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The line, from 1; 0 if something is missing that has no line.
    pub line: usize,
    /// The key; empty if the mistake is not at a key.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

/// A value of the file, with its place.
pub(super) type Item<'t> = Spanned<DeValue<'t>>;

/// So many mistakes are kept: a file that has more is something else.
const MISTAKES: usize = 20;

/// Collects mistakes.
pub(super) struct Reader<'t> {
    pub(super) text: &'t str,
    pub(super) mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    pub(super) fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }

    pub(super) fn refuse(&mut self, offset: usize, key: &str, message: impl Into<String>) {
        let line = self.line(offset);
        self.refuse_line(line, key, message.into());
    }

    pub(super) fn missing(&mut self, key: &str, message: impl Into<String>) {
        self.refuse_line(0, key, format!("missing: {}", message.into()));
    }

    pub(super) fn refuse_line(&mut self, line: usize, key: &str, message: String) {
        if self.mistakes.len() < MISTAKES {
            self.mistakes.push(Mistake {
                line,
                key: key.into(),
                message,
            });
        }
    }

    /// The keys of a table, in the order of the file, each of which must be known.
    pub(super) fn table<'v, 't>(
        &mut self,
        key: &str,
        item: &'v Item<'t>,
        known: &[&str],
    ) -> Option<&'v DeTable<'t>> {
        let Some(table) = item.get_ref().as_table() else {
            let found = item.get_ref().type_str();
            self.refuse(
                item.span().start,
                key,
                format!("expected a table, found {found}"),
            );
            return None;
        };
        self.check_keys(key, table, known);
        Some(table)
    }

    pub(super) fn check_keys(&mut self, key: &str, table: &DeTable<'_>, known: &[&str]) {
        for (inner, _) in table {
            let word = inner.get_ref().as_ref();
            if !known.contains(&word) {
                let whole = match key {
                    "" => word.to_owned(),
                    key => format!("{key}.{word}"),
                };
                self.refuse(
                    inner.span().start,
                    &whole,
                    format!("unknown; expected one of {}", known.join(", ")),
                );
            }
        }
    }

    pub(super) fn text(&mut self, key: &str, item: &Item<'_>) -> Option<String> {
        match item.get_ref().as_str() {
            Some(text) => Some(text.to_owned()),
            None => {
                let found = item.get_ref().type_str();
                self.refuse(
                    item.span().start,
                    key,
                    format!("expected a text, found {found}"),
                );
                None
            }
        }
    }

    pub(super) fn truth(&mut self, key: &str, item: Option<&Item<'_>>) -> bool {
        let Some(item) = item else { return false };
        match item.get_ref().as_bool() {
            Some(truth) => truth,
            None => {
                self.refuse(item.span().start, key, "expected true or false");
                false
            }
        }
    }

    /// An expression: a text, a number, or true or false.
    pub(super) fn expression(
        &mut self,
        key: &str,
        item: &Item<'_>,
        names: &Names,
        context: Context,
    ) -> Option<Expression> {
        let value = item.get_ref();
        let at = item.span().start;
        let read = if let Some(text) = value.as_str() {
            Expression::parse(text, &mut |name| names.find(name, context))
        } else if let Some(integer) = value.as_integer() {
            u64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix())
                .map(Expression::number)
                .map_err(|_| "expected a number from 0 to 2^64 - 1".to_string())
        } else if let Some(truth) = value.as_bool() {
            Ok(Expression::number(truth.into()))
        } else {
            Err(format!(
                "expected a number or an expression in quotes, found {}",
                value.type_str()
            ))
        };
        let read = read.and_then(|expression| {
            if context == Context::Figure {
                return if expression.has_real_value() {
                    Ok(expression)
                } else {
                    Err(
                        "a figure has numbers, + - * /, comparisons, min, max and choose alone"
                            .into(),
                    )
                };
            }
            if expression.is_real() {
                return Err("fractions and exponents are for `figure.value` alone".into());
            }
            if context != Context::Program && expression.is_random() {
                return Err("random is for programs alone".into());
            }
            Ok(expression)
        });
        read.map_err(|why| self.refuse(at, key, why)).ok()
    }

    /// An expression of parameters (and CPUs), or this number where there is none.
    pub(super) fn or(
        &mut self,
        key: &str,
        item: Option<&Item<'_>>,
        names: &Names,
        context: Context,
        otherwise: u64,
    ) -> Expression {
        item.and_then(|item| self.expression(key, item, names, context))
            .unwrap_or(Expression::number(otherwise))
    }
}

/// Kept for as long as the process runs, as a workload is.
pub(super) fn keep(text: String) -> &'static str {
    String::leak(text)
}

/// The entries of a table in the order of the file.
pub(super) fn in_order<'v, 't>(table: &'v DeTable<'t>) -> Vec<(usize, &'v str, &'v Item<'t>)> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, item)| (key.span().start, key.get_ref().as_ref(), item))
        .collect();
    entries.sort_by_key(|&(at, ..)| at);
    entries
}

/// The items of an array of tables; none if there is none of that name.
pub(super) fn list<'v, 't>(
    reader: &mut Reader<'_>,
    document: &'v DeTable<'t>,
    key: &str,
) -> Vec<&'v Item<'t>> {
    let Some(item) = document.get(key) else {
        return Vec::new();
    };
    match item.get_ref().as_array() {
        Some(items) => items.iter().collect(),
        None => {
            let expected = format!("expected tables, each under `[[{key}]]`");
            reader.refuse(item.span().start, key, expected);
            Vec::new()
        }
    }
}

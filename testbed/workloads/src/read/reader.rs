//! Reads expressions and lists of tables, which only workload files have.

use super::names::{Context, Names};
use crate::expression::Expression;
use crate::files::{Item, Reader};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use toml::de::DeTable;

/// Reads expressions and records their mistakes.
pub(super) trait Expressions {
    /// Reads an expression: a text, a number, or true or false.
    fn expression(
        &mut self,
        key: &str,
        item: &Item<'_>,
        names: &Names,
        context: Context,
    ) -> Option<Expression>;

    /// Reads an expression of parameters (and CPUs), or returns this default.
    fn or(
        &mut self,
        key: &str,
        item: Option<&Item<'_>>,
        names: &Names,
        context: Context,
        otherwise: u64,
    ) -> Expression;
}

impl Expressions for Reader<'_> {
    fn expression(
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
                crate::files::found(value)
            ))
        };
        let read = read.and_then(|expression| {
            if context == Context::Figure {
                return if expression.has_real_value() {
                    Ok(expression)
                } else {
                    Err("a figure has numbers, + - * /, comparisons, min, max and choose alone"
                        .into())
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

    fn or(
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

/// Keeps a text until the process ends, as long as its workload.
pub(super) fn keep(text: String) -> &'static str {
    String::leak(text)
}

/// Returns the items of an array of tables; empty if it is absent.
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

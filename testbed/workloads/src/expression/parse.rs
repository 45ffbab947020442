//! Parses expressions by recursive descent: one function serves all rows of operators.

use super::{Expression, Function, NESTING, Operator, Symbol};
use crate::parameter::scaled;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Parses an expression.
///
/// # Errors
/// A description of the expected text.
pub(super) fn expression(
    text: &str,
    lookup: &mut dyn FnMut(&str) -> Result<Symbol, String>,
) -> Result<Expression, String> {
    let mut parser = Parser { rest: text, lookup };
    let parsed = parser.row(0, 0)?;
    match parser.rest.trim() {
        "" => Ok(parsed),
        rest => Err(format!("expected an operator or the end, found `{rest}`")),
    }
}

/// Operators from loosest to tightest. Of two that begin alike in one row, the longer is first.
const OPERATORS: [&[(&str, Operator)]; 7] = [
    &[("||", Operator::Or)],
    &[("&&", Operator::And)],
    &[
        ("<=", Operator::AtMost),
        (">=", Operator::AtLeast),
        ("==", Operator::Equal),
        ("!=", Operator::Unequal),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ],
    &[("|", Operator::Bits)],
    &[("<<", Operator::Left), (">>", Operator::Right)],
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)],
];

/// The functions: name, meaning and number of arguments.
const FUNCTIONS: [(&str, Function, usize); 6] = [
    ("min", Function::Min, 2),
    ("max", Function::Max, 2),
    ("align", Function::Align, 2),
    ("excess", Function::Excess, 2),
    ("choose", Function::Choose, 3),
    ("random", Function::Random, 1),
];

struct Parser<'t, 'l> {
    rest: &'t str,
    lookup: &'l mut dyn FnMut(&str) -> Result<Symbol, String>,
}

impl<'t> Parser<'t, '_> {
    /// Takes the token if it comes next.
    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        rest.inspect(|rest| self.rest = rest).is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) {
            return Ok(());
        }
        Err(format!("expected `{token}`, {}", self.found()))
    }

    fn found(&self) -> String {
        match self.rest.trim_start().chars().next() {
            Some(next) => format!("found `{next}`"),
            None => "found the end".into(),
        }
    }

    /// Takes the operator of a row that comes next.
    fn operator(&mut self, row: usize) -> Option<Operator> {
        let rest = self.rest.trim_start();
        // `<<` is not `<`, `||` is not `|`.
        if row == 2 && (rest.starts_with("<<") || rest.starts_with(">>"))
            || row == 3 && rest.starts_with("||")
        {
            return None;
        }
        let found = OPERATORS[row].iter().find(|(sign, _)| self.take(sign));
        found.map(|(_, operator)| *operator)
    }

    fn row(&mut self, row: usize, nesting: usize) -> Result<Expression, String> {
        if row == OPERATORS.len() {
            return self.operand(nesting);
        }
        let first = self.row(row + 1, nesting)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.operator(row) {
            rest.push((operator, self.row(row + 1, nesting)?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(Expression::Row(Box::new(first), rest.into())),
        }
    }

    fn operand(&mut self, nesting: usize) -> Result<Expression, String> {
        if nesting > NESTING {
            return Err("nests too deep: give a part of it a name with `let`".into());
        }
        let rest = self.rest.trim_start();
        if !rest.starts_with("!=") && self.take("!") {
            return Ok(Expression::Not(Box::new(self.operand(nesting + 1)?)));
        }
        if self.take("(") {
            let inner = self.row(0, nesting + 1)?;
            return self.expect(")").map(|()| inner);
        }
        self.rest = rest;
        match rest.chars().next() {
            Some('0'..='9') => self.literal(),
            Some('a'..='z' | 'A'..='Z' | '_') => self.named(nesting),
            _ => Err(format!("expected a number or a name, {}", self.found())),
        }
    }

    /// Takes the letters, digits, underscores and points that come next.
    fn word(&mut self) -> &'t str {
        let is_outside = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.';
        let end = self.rest.find(is_outside).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn literal(&mut self) -> Result<Expression, String> {
        let word = self.word();
        let plain = word.replace('_', "");
        // Without a suffix, the rest may be a fraction or an exponent.
        match (scaled(&plain), plain.parse::<f64>()) {
            (Some(value), _) => Ok(Expression::Number(value)),
            (None, Ok(value)) if value.is_finite() => Ok(Expression::Real(value)),
            (None, _) => Err(format!(
                "expected a number of at most 64 bits, with K, M, G, ns, us, ms or s, found `{word}`"
            )),
        }
    }

    fn named(&mut self, nesting: usize) -> Result<Expression, String> {
        let word = self.word();
        if self.take("(") {
            let Some(&(_, function, count)) = FUNCTIONS.iter().find(|(name, ..)| *name == word)
            else {
                let known = FUNCTIONS.map(|(name, ..)| name).join(", ");
                return Err(format!("no function `{word}`; there are {known}"));
            };
            let mut arguments = Vec::with_capacity(count);
            for index in 0..count {
                if index > 0 {
                    self.expect(",")?;
                }
                arguments.push(self.row(0, nesting + 1)?);
            }
            self.expect(")")?;
            return Ok(Expression::Call(function, arguments.into()));
        }
        match ((self.lookup)(word)?, self.take("[")) {
            (Symbol::One(name), false) => Ok(Expression::Name(name)),
            (Symbol::One(_), true) => Err(format!("`{word}` is one word and has no elements")),
            (Symbol::Many { count, .. }, false) => {
                Err(format!("`{word}` is {count} words: write which, as in `{word}[0]`"))
            }
            (Symbol::Many { base, count }, true) => {
                let index = Box::new(self.row(0, nesting + 1)?);
                self.expect("]")?;
                Ok(Expression::Element { base, count, index })
            }
        }
    }
}

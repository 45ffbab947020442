//! Parses expressions by recursive descent: one function serves all rows of operators.

use super::code::{Binary, Code, DEPTH, FUNCTIONS, NESTING, Symbol};
use crate::parameter::scaled;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Compiles an expression.
///
/// # Errors
/// A description of the expected text.
pub(super) fn code(
    text: &str,
    lookup: &mut dyn FnMut(&str) -> Result<Symbol, String>,
) -> Result<Vec<Code>, String> {
    let mut reader = Reader { rest: text, lookup, code: Vec::new(), depth: 0 };
    reader.binary(0, 0)?;
    if !reader.rest.trim_start().is_empty() {
        let rest = reader.rest.trim();
        return Err(format!("expected an operator or the end, found `{rest}`"));
    }
    if reader.code.len() > 1000 {
        return Err("is too long".into());
    }
    Ok(reader.code)
}

/// Operators from loosest to tightest. Of two that begin alike in one row, the longer is first.
const OPERATORS: [&[(&str, Option<Binary>)]; 7] = [
    &[("||", None)],
    &[("&&", None)],
    &[
        ("<=", Some(Binary::AtMost)),
        (">=", Some(Binary::AtLeast)),
        ("==", Some(Binary::Equal)),
        ("!=", Some(Binary::Unequal)),
        ("<", Some(Binary::Less)),
        (">", Some(Binary::Greater)),
    ],
    &[("|", Some(Binary::Bits))],
    &[("<<", Some(Binary::Left)), (">>", Some(Binary::Right))],
    &[("+", Some(Binary::Add)), ("-", Some(Binary::Subtract))],
    &[("*", Some(Binary::Multiply)), ("/", Some(Binary::Divide)), ("%", Some(Binary::Remainder))],
];

struct Reader<'t, 'l> {
    rest: &'t str,
    lookup: &'l mut dyn FnMut(&str) -> Result<Symbol, String>,
    code: Vec<Code>,
    /// Words on the stack so far.
    depth: usize,
}

impl<'t> Reader<'t, '_> {
    fn push(&mut self, code: Code, grows: bool) -> Result<(), String> {
        self.code.push(code);
        if grows {
            self.depth += 1;
            if self.depth > DEPTH {
                return Err("is too deep: give a part of it a name with `let`".into());
            }
        }
        Ok(())
    }

    /// Takes the token if it comes next.
    fn take(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
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
    fn operator(&mut self, row: usize) -> Option<(&'static str, Option<Binary>)> {
        let rest = self.rest.trim_start();
        // `<<` is not `<`, `||` is not `|`.
        if row == 2 && (rest.starts_with("<<") || rest.starts_with(">>"))
            || row == 3 && rest.starts_with("||")
        {
            return None;
        }
        let found = OPERATORS[row].iter().find(|(sign, _)| rest.starts_with(sign))?;
        self.rest = &rest[found.0.len()..];
        Some(*found)
    }

    fn binary(&mut self, row: usize, nesting: usize) -> Result<(), String> {
        if row == OPERATORS.len() {
            return self.unary(nesting);
        }
        self.binary(row + 1, nesting)?;
        while let Some((sign, operator)) = self.operator(row) {
            let jump = self.code.len();
            match operator {
                Some(_) => {}
                None => {
                    self.code.push(Code::Not);
                    self.depth -= 1;
                }
            }
            self.binary(row + 1, nesting)?;
            match operator {
                Some(binary) => {
                    self.code.push(Code::Binary(binary));
                    self.depth -= 1;
                }
                None => {
                    self.code.push(Code::Truth);
                    let by = u16::try_from(self.code.len() - jump - 1)
                        .map_err(|_| "is too long".to_string())?;
                    self.code[jump] = if sign == "&&" { Code::And(by) } else { Code::Or(by) };
                }
            }
        }
        Ok(())
    }

    fn unary(&mut self, nesting: usize) -> Result<(), String> {
        if nesting > NESTING {
            return Err("nests too deep: give a part of it a name with `let`".into());
        }
        let rest = self.rest.trim_start();
        if rest.starts_with('!') && !rest.starts_with("!=") {
            self.rest = &rest[1..];
            self.unary(nesting + 1)?;
            self.code.push(Code::Not);
            return Ok(());
        }
        if self.take("(") {
            self.binary(0, nesting + 1)?;
            return self.expect(")");
        }
        self.rest = rest;
        match rest.chars().next() {
            Some('0'..='9') => self.literal(),
            Some('a'..='z' | 'A'..='Z' | '_') => self.named(nesting),
            _ => Err(format!("expected a number or a name, {}", self.found())),
        }
    }

    /// Takes the letters, digits and underscores that come next.
    fn word(&mut self) -> &'t str {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn literal(&mut self) -> Result<(), String> {
        let word = self.word();
        let plain: String = word.chars().filter(|&c| c != '_').collect();
        if let Some(value) = scaled(&plain) {
            return self.push(Code::Number(value), true);
        }
        // No suffix: the rest is a fraction or an exponent.
        match plain.parse::<f64>() {
            Ok(value) if value.is_finite() => self.push(Code::Real(value), true),
            _ => Err(format!(
                "expected a number of at most 64 bits, with K, M, G, ns, us, ms or s, found `{word}`"
            )),
        }
    }

    fn named(&mut self, nesting: usize) -> Result<(), String> {
        let word = self.word();
        if self.take("(") {
            let Some(&(_, function, arguments)) = FUNCTIONS.iter().find(|(name, ..)| *name == word)
            else {
                let known: Vec<_> = FUNCTIONS.iter().map(|(name, ..)| *name).collect();
                return Err(format!("no function `{word}`; there are {}", known.join(", ")));
            };
            for index in 0..arguments {
                if index > 0 {
                    self.expect(",")?;
                }
                self.binary(0, nesting + 1)?;
            }
            self.expect(")")?;
            self.code.push(Code::Call(function));
            self.depth -= arguments - 1;
            return Ok(());
        }
        let code = match (self.lookup)(word)? {
            Symbol::One(name) => Code::Name(name),
            Symbol::Many { base, count } => {
                if !self.take("[") {
                    return Err(format!(
                        "`{word}` is {count} words: write which, as in `{word}[0]`"
                    ));
                }
                self.binary(0, nesting + 1)?;
                self.expect("]")?;
                self.code.push(Code::Element { base, count });
                return Ok(());
            }
        };
        if self.take("[") {
            return Err(format!("`{word}` is one word and has no elements"));
        }
        self.push(code, true)
    }
}

//! Expressions of workload files: `(pages - 1) * stride + 1`, `cpu < readers && !stopped`.
//!
//! An expression is read once, into instructions for a stack of at most [`DEPTH`] words, and evaluated as often as the
//! program comes by, without allocating. Values are unsigned words of 64 bits. What leaves them (an overflow, a
//! difference below zero, a division by zero) ends the run with the place in the file, because a workload that goes on
//! with a wrong number measures something else. The one figure of a workload is evaluated in floating point instead,
//! by the same instructions.
//!
//! From loosest to tightest: `||`, `&&`, comparisons, `|`, `<<` `>>`, `+` `-`, `*` `/` `%`, `!`. The right side of `||`
//! and `&&` is evaluated only if it decides. Numbers take `K`, `M`, `G` (powers of 1024) and `ns`, `us`, `ms`, `s`
//! (nanoseconds).

use crate::parameter::scaled;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// How many words an expression's stack holds.
pub(crate) const DEPTH: usize = 16;
/// How deep parentheses nest, so that reading them cannot exhaust the reader's own stack.
const NESTING: usize = 32;

/// What an expression can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// A parameter of the workload.
    Parameter(u8),
    /// A variable of this CPU's.
    Local(u8),
    /// A control word that all CPUs share.
    Shared(u8),
    /// This CPU, from 0.
    Cpu,
    /// How many CPUs run the workload.
    Cpus,
    /// The clock, in nanoseconds.
    Now,
    /// Whether the measurement is over.
    Stopped,
    /// In the value of a store to a range: how far from its beginning.
    Offset,
    /// In the figure: how long the window was.
    Nanoseconds,
}

/// A variable that a statement can set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Of this CPU's.
    Local(u8),
    /// Of all CPUs, in a control word.
    Shared(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Unequal,
    Bits,
    Left,
    Right,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Function {
    Min,
    Max,
    Align,
    Excess,
    Choose,
    Random,
}

/// What functions there are: name, number of arguments.
const FUNCTIONS: [(&str, Function, usize); 6] = [
    ("min", Function::Min, 2),
    ("max", Function::Max, 2),
    ("align", Function::Align, 2),
    ("excess", Function::Excess, 2),
    ("choose", Function::Choose, 3),
    ("random", Function::Random, 1),
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Code {
    Number(u64),
    Real(f64),
    Name(Name),
    /// The shared word at `base` plus what is on the stack, which is less than `count`.
    Element {
        base: u8,
        count: u8,
    },
    Binary(Binary),
    Not,
    Call(Function),
    /// Goes so many instructions on and leaves 0 if the top of the stack is 0; else drops it.
    And(u16),
    /// Goes so many instructions on and leaves 1 unless the top of the stack is 0; else drops it.
    Or(u16),
    /// Makes the top of the stack 0 or 1.
    Truth,
}

/// Why an expression has no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoValue {
    /// More than 64 bits, or a difference below zero.
    #[error("the result is below zero or above 64 bits")]
    Overflow,
    /// A division by zero, a step of zero, or something random below zero.
    #[error("a division by zero, a step of zero, or a random number below zero")]
    Zero,
    /// An index that is not below the number of elements.
    #[error("the index is beyond the last element")]
    Index,
}

/// Where an expression takes its values from.
pub(crate) trait Values {
    /// The value of a name.
    fn value(&self, name: Name) -> u64;
    /// Something random, less than `bound`, which is not 0.
    fn random(&self, bound: u64) -> u64;
}

/// An expression, ready to be evaluated.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Expression {
    code: Box<[Code]>,
}

/// What a name in a file stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// One word.
    One(Name),
    /// So many shared words.
    Many { base: u8, count: u8 },
}

impl Expression {
    /// A number.
    pub fn number(value: u64) -> Self {
        Expression {
            code: Box::new([Code::Number(value)]),
        }
    }

    /// A name.
    pub fn name(name: Name) -> Self {
        Expression {
            code: Box::new([Code::Name(name)]),
        }
    }

    /// Reads an expression. `lookup` says what names stand for, or why there is none of that name.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(
        text: &str,
        lookup: &mut dyn FnMut(&str) -> Result<Meaning, String>,
    ) -> Result<Self, String> {
        let mut reader = Reader {
            rest: text,
            lookup,
            code: Vec::new(),
            depth: 0,
        };
        reader.binary(0, 0)?;
        if !reader.rest.trim_start().is_empty() {
            let rest = reader.rest.trim();
            return Err(format!("expected an operator or the end, found `{rest}`"));
        }
        if reader.code.len() > 1000 {
            return Err("is too long".into());
        }
        Ok(Expression {
            code: reader.code.into(),
        })
    }

    /// Whether there is a number with a fraction or an exponent in it.
    pub fn is_real(&self) -> bool {
        self.code.iter().any(|code| matches!(code, Code::Real(_)))
    }

    /// Whether it is random.
    pub fn is_random(&self) -> bool {
        self.code.contains(&Code::Call(Function::Random))
    }

    /// Its value.
    ///
    /// # Errors
    /// If there is none.
    #[inline]
    pub fn evaluate(&self, values: &impl Values) -> Result<u64, NoValue> {
        match self.code[..] {
            [Code::Number(value)] => Ok(value),
            [Code::Name(name)] => Ok(values.value(name)),
            _ => self.compute(values),
        }
    }

    fn compute(&self, values: &impl Values) -> Result<u64, NoValue> {
        let mut stack = [0u64; DEPTH];
        let mut top = 0;
        let mut at = 0;
        while let Some(code) = self.code.get(at) {
            at += 1;
            match *code {
                Code::Number(value) => {
                    stack[top] = value;
                    top += 1;
                }
                // Refused where values are whole, as the file is read.
                Code::Real(_) => return Err(NoValue::Overflow),
                Code::Name(name) => {
                    stack[top] = values.value(name);
                    top += 1;
                }
                Code::Element { base, count } => {
                    let index = stack[top - 1];
                    if index >= u64::from(count) {
                        return Err(NoValue::Index);
                    }
                    stack[top - 1] = values.value(Name::Shared(base + index as u8));
                }
                Code::Binary(binary) => {
                    top -= 1;
                    stack[top - 1] = whole(binary, stack[top - 1], stack[top])?;
                }
                Code::Not => stack[top - 1] = u64::from(stack[top - 1] == 0),
                Code::Truth => stack[top - 1] = u64::from(stack[top - 1] != 0),
                Code::And(by) if stack[top - 1] == 0 => at += usize::from(by),
                Code::Or(by) if stack[top - 1] != 0 => {
                    stack[top - 1] = 1;
                    at += usize::from(by);
                }
                Code::And(_) | Code::Or(_) => top -= 1,
                Code::Call(Function::Random) => {
                    let bound = stack[top - 1];
                    if bound == 0 {
                        return Err(NoValue::Zero);
                    }
                    stack[top - 1] = values.random(bound);
                }
                Code::Call(Function::Choose) => {
                    top -= 2;
                    if stack[top - 1] != 0 {
                        stack[top - 1] = stack[top];
                    } else {
                        stack[top - 1] = stack[top + 1];
                    }
                }
                Code::Call(function) => {
                    top -= 1;
                    let (left, right) = (stack[top - 1], stack[top]);
                    stack[top - 1] = match function {
                        Function::Min => left.min(right),
                        Function::Max => left.max(right),
                        Function::Excess => left.saturating_sub(right),
                        _ if right == 0 => return Err(NoValue::Zero),
                        _ => left
                            .checked_next_multiple_of(right)
                            .ok_or(NoValue::Overflow)?,
                    };
                }
            }
        }
        Ok(stack[0])
    }

    /// Its value in floating point, where nothing overflows; not finite after a division by zero.
    pub fn real(&self, value: &dyn Fn(Name) -> f64) -> f64 {
        let mut stack = [0f64; DEPTH];
        let mut top = 0;
        let mut at = 0;
        while let Some(code) = self.code.get(at) {
            at += 1;
            match *code {
                Code::Number(number) => {
                    stack[top] = number as f64;
                    top += 1;
                }
                Code::Real(number) => {
                    stack[top] = number;
                    top += 1;
                }
                Code::Name(name) => {
                    stack[top] = value(name);
                    top += 1;
                }
                Code::Binary(binary) => {
                    top -= 1;
                    stack[top - 1] = real(binary, stack[top - 1], stack[top]);
                }
                Code::Not => stack[top - 1] = f64::from(u8::from(stack[top - 1] == 0.0)),
                Code::Truth => stack[top - 1] = f64::from(u8::from(stack[top - 1] != 0.0)),
                Code::And(by) if stack[top - 1] == 0.0 => at += usize::from(by),
                Code::Or(by) if stack[top - 1] != 0.0 => at += usize::from(by),
                Code::And(_) | Code::Or(_) => top -= 1,
                Code::Call(Function::Choose) => {
                    top -= 2;
                    let chosen = if stack[top - 1] != 0.0 { top } else { top + 1 };
                    stack[top - 1] = stack[chosen];
                }
                Code::Call(Function::Min) => {
                    top -= 1;
                    stack[top - 1] = stack[top - 1].min(stack[top]);
                }
                Code::Call(Function::Max) => {
                    top -= 1;
                    stack[top - 1] = stack[top - 1].max(stack[top]);
                }
                // Refused in a figure, as the file is read.
                Code::Call(_) | Code::Element { .. } => return f64::NAN,
            }
        }
        stack[0]
    }

    /// Whether a figure may hold it.
    pub fn has_real_value(&self) -> bool {
        !self.code.iter().any(|code| {
            matches!(
                code,
                Code::Element { .. }
                    | Code::Call(Function::Align | Function::Excess | Function::Random)
                    | Code::Binary(Binary::Bits | Binary::Left | Binary::Right | Binary::Remainder)
            )
        })
    }
}

fn whole(binary: Binary, left: u64, right: u64) -> Result<u64, NoValue> {
    let checked = |value: Option<u64>| value.ok_or(NoValue::Overflow);
    Ok(match binary {
        Binary::Add => checked(left.checked_add(right))?,
        Binary::Subtract => checked(left.checked_sub(right))?,
        Binary::Multiply => checked(left.checked_mul(right))?,
        Binary::Divide => left.checked_div(right).ok_or(NoValue::Zero)?,
        Binary::Remainder => left.checked_rem(right).ok_or(NoValue::Zero)?,
        Binary::Less => u64::from(left < right),
        Binary::AtMost => u64::from(left <= right),
        Binary::Greater => u64::from(left > right),
        Binary::AtLeast => u64::from(left >= right),
        Binary::Equal => u64::from(left == right),
        Binary::Unequal => u64::from(left != right),
        Binary::Bits => left | right,
        Binary::Left => match right {
            0..64 if left << right >> right == left => left << right,
            _ => return Err(NoValue::Overflow),
        },
        Binary::Right => left.checked_shr(right.min(64) as u32).unwrap_or(0),
    })
}

fn real(binary: Binary, left: f64, right: f64) -> f64 {
    let truth = |value: bool| f64::from(u8::from(value));
    match binary {
        Binary::Add => left + right,
        Binary::Subtract => left - right,
        Binary::Multiply => left * right,
        Binary::Divide => left / right,
        Binary::Less => truth(left < right),
        Binary::AtMost => truth(left <= right),
        Binary::Greater => truth(left > right),
        Binary::AtLeast => truth(left >= right),
        Binary::Equal => truth(left == right),
        Binary::Unequal => truth(left != right),
        // Refused in a figure, as the file is read.
        Binary::Bits | Binary::Left | Binary::Right | Binary::Remainder => f64::NAN,
    }
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
    &[
        ("*", Some(Binary::Multiply)),
        ("/", Some(Binary::Divide)),
        ("%", Some(Binary::Remainder)),
    ],
];

struct Reader<'t, 'l> {
    rest: &'t str,
    lookup: &'l mut dyn FnMut(&str) -> Result<Meaning, String>,
    code: Vec<Code>,
    /// Words on the stack after what was read.
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

    /// Takes a token if it comes next.
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

    /// The operator of a row that comes next.
    fn operator(&mut self, row: usize) -> Option<(&'static str, Option<Binary>)> {
        let rest = self.rest.trim_start();
        // `<<` is not `<`, `||` is not `|`.
        if row == 2 && (rest.starts_with("<<") || rest.starts_with(">>"))
            || row == 3 && rest.starts_with("||")
        {
            return None;
        }
        let found = OPERATORS[row]
            .iter()
            .find(|(sign, _)| rest.starts_with(sign))?;
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
                    self.code[jump] = if sign == "&&" {
                        Code::And(by)
                    } else {
                        Code::Or(by)
                    };
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

    /// The letters, digits and underscores that come next.
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
        // No suffix, so what is left is a fraction or an exponent.
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
                return Err(format!(
                    "no function `{word}`; there are {}",
                    known.join(", ")
                ));
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
            Meaning::One(name) => Code::Name(name),
            Meaning::Many { base, count } => {
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Known;
    impl Values for Known {
        fn value(&self, name: Name) -> u64 {
            match name {
                Name::Parameter(index) => 10 + u64::from(index),
                Name::Shared(index) => 100 + u64::from(index),
                _ => panic!("{name:?} must not be looked at"),
            }
        }
        fn random(&self, bound: u64) -> u64 {
            bound - 1
        }
    }

    fn read(text: &str) -> Result<Expression, String> {
        Expression::parse(text, &mut |name| match name {
            "a" => Ok(Meaning::One(Name::Parameter(0))),
            "b" => Ok(Meaning::One(Name::Parameter(1))),
            "now" => Ok(Meaning::One(Name::Now)),
            "files" => Ok(Meaning::Many { base: 8, count: 2 }),
            _ => Err(format!("no {name}")),
        })
    }

    fn value(text: &str) -> Result<u64, NoValue> {
        read(text).unwrap().evaluate(&Known)
    }

    #[test]
    fn operators_bind_as_in_rust() {
        for (text, expected) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("10 - 2 - 3", 5),
            ("7 / 2 * 2", 6),
            ("1 << 2 + 1", 8),
            ("1 | 2 == 3", 1),
            ("1 << 20 | 5", (1 << 20) + 5),
            ("a < b && b < 12", 1),
            ("0 || 5", 1),
            ("7 || now", 1),
            ("0 && now", 0),
            ("!a + 1", 1),
            ("a != b", 1),
            ("files[1] - files[0]", 1),
            ("min(a, b) + max(a, 3) % 3", 11),
            ("align(4097, 4K)", 8192),
            ("excess(3, 5) + excess(5, 3)", 2),
            ("choose(a > b, 1, 2)", 2),
            ("random(6)", 5),
            ("1_000us + 1ms", 2_000_000),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_leaves_the_words_has_no_value() {
        for (text, why) in [
            ("1 - 2", NoValue::Overflow),
            ("1 << 64", NoValue::Overflow),
            ("(1 << 63) + (1 << 63)", NoValue::Overflow),
            ("1 / (a - a)", NoValue::Zero),
            ("1 % 0", NoValue::Zero),
            ("align(1, 0)", NoValue::Zero),
            ("random(0)", NoValue::Zero),
            ("files[2]", NoValue::Index),
        ] {
            assert_eq!(value(text), Err(why), "{text}");
        }
    }

    #[test]
    fn a_figure_is_computed_as_it_is_written() {
        let figure = read("a / 1e9 * (100.0 * 1G) / b").unwrap();
        let by_hand = 10.0 / 1e9 * (100.0 * (1u64 << 30) as f64) / 11.0;
        assert!(figure.is_real() && figure.has_real_value());
        let value = figure.real(&|name| Known.value(name) as f64);
        assert_eq!(value, by_hand);
        assert!(!read("a % 2").unwrap().has_real_value());
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        for (text, why) in [
            ("", "expected a number or a name, found the end"),
            ("1 +", "expected a number or a name, found the end"),
            ("(1", "expected `)`, found the end"),
            ("1 2", "expected an operator or the end, found `2`"),
            ("c", "no c"),
            ("files", "`files` is 2 words: write which, as in `files[0]`"),
            ("a[0]", "`a` is one word and has no elements"),
            (
                "mix(1)",
                "no function `mix`; there are min, max, align, excess, choose, random",
            ),
            ("min(1)", "expected `,`, found `)`"),
            (
                "12Q",
                "expected a number of at most 64 bits, with K, M, G, ns, us, ms or s, found `12Q`",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), why, "{text}");
        }
        let deep = "(".repeat(10_000);
        assert!(read(&deep).unwrap_err().contains("too deep"));
        let wide = "1+(".repeat(DEPTH) + "1" + &")".repeat(DEPTH);
        assert!(read(&wide).unwrap_err().contains("too deep"));
        assert!(read(&"!".repeat(10_000)).unwrap_err().contains("too deep"));
    }
}

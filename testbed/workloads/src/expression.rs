//! Parses and evaluates expressions of workload files, for example `(pages - 1) * stride + 1`.
//!
//! An expression is parsed once and evaluated without allocating. Values are unsigned 64-bit words. An overflow, a
//! negative difference or a division by zero ends the run and names the place in the file, because a wrong number would
//! measure something else. Only the workload's figure is evaluated in floating point.
//!
//! From loosest to tightest: `||`, `&&`, comparisons, `|`, `<<` `>>`, `+` `-`, `*` `/` `%`, `!`. `||` and `&&` evaluate
//! their right side only if it decides. Numbers take the suffixes `K`, `M`, `G` (powers of 1024) and `ns`, `us`, `ms`,
//! `s` (nanoseconds).

mod parse;

use alloc::boxed::Box;
use alloc::string::String;

/// The most nested parentheses, so that parsing and evaluating need little stack.
const NESTING: usize = 32;

/// A name that an expression may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// A parameter of the workload.
    Parameter(u8),
    /// A variable of this CPU.
    Local(u8),
    /// A control word that all CPUs share.
    Shared(u8),
    /// This CPU, counted from 0.
    Cpu,
    /// The number of CPUs that run the workload.
    Cpus,
    /// The clock, in nanoseconds.
    Now,
    /// Whether the measurement is over.
    Stopped,
    /// In the value of a store to a range: the distance from its beginning.
    Offset,
    /// In the figure: the length of the window.
    Nanoseconds,
}

/// The meaning of a name in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Symbol {
    /// One word.
    One(Name),
    /// An array of `count` shared words.
    Many { base: u8, count: u8 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operator {
    Or,
    And,
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
pub(crate) enum Function {
    Min,
    Max,
    Align,
    Excess,
    Choose,
    Random,
}

/// The most arguments of a function.
const ARGUMENTS: usize = 3;

/// The reason why an expression has no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EvalError {
    /// The value has more than 64 bits, or is a difference below zero.
    #[error("the result is below zero or above 64 bits")]
    Overflow,
    /// A divisor or a step is zero, or the bound of a random number is.
    #[error("a division by zero, a step of zero, or a random number below zero")]
    Zero,
    /// An index isn't below the number of elements.
    #[error("the index is beyond the last element")]
    Index,
}

/// A source of an expression's values.
pub(crate) trait Values {
    /// Returns the value of a name.
    fn value(&self, name: Name) -> u64;
    /// Returns a random number less than `bound`, which is not 0.
    fn random(&self, bound: u64) -> u64;
}

/// A parsed expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Expression {
    Number(u64),
    /// A number with a fraction or an exponent.
    Real(f64),
    Name(Name),
    /// The shared word at `base` plus the index, which is less than `count`.
    Element {
        base: u8,
        count: u8,
        index: Box<Expression>,
    },
    Not(Box<Expression>),
    /// An operand, then operators that bind alike with their right operands, evaluated from left to right.
    Row(Box<Expression>, Box<[(Operator, Expression)]>),
    Call(Function, Box<[Expression]>),
}

impl Expression {
    /// Parses an expression. `lookup` returns the meaning of a name, or an error message.
    ///
    /// # Errors
    /// A description of the expected text.
    pub fn parse(
        text: &str,
        lookup: &mut dyn FnMut(&str) -> Result<Symbol, String>,
    ) -> Result<Self, String> {
        parse::expression(text, lookup)
    }

    /// Returns whether this or a part of it passes the test.
    fn any(&self, test: fn(&Expression) -> bool) -> bool {
        let parts = match self {
            Expression::Number(_) | Expression::Real(_) | Expression::Name(_) => false,
            Expression::Element { index: part, .. } | Expression::Not(part) => part.any(test),
            Expression::Row(first, rest) => {
                first.any(test) || rest.iter().any(|(_, part)| part.any(test))
            }
            Expression::Call(_, arguments) => arguments.iter().any(|part| part.any(test)),
        };
        parts || test(self)
    }

    /// Returns whether it contains a number with a fraction or an exponent.
    pub fn is_real(&self) -> bool {
        self.any(|part| matches!(part, Expression::Real(_)))
    }

    /// Returns whether it is random.
    pub fn is_random(&self) -> bool {
        self.any(|part| matches!(part, Expression::Call(Function::Random, _)))
    }

    /// Returns whether it is allowed in a figure.
    pub fn has_real_value(&self) -> bool {
        use Operator::{Bits, Left, Remainder, Right};
        !self.any(|part| match part {
            Expression::Element { .. } => true,
            Expression::Call(function, _) => {
                matches!(function, Function::Align | Function::Excess | Function::Random)
            }
            Expression::Row(_, rest) => {
                rest.iter().any(|(operator, _)| matches!(operator, Bits | Left | Right | Remainder))
            }
            Expression::Number(_)
            | Expression::Real(_)
            | Expression::Name(_)
            | Expression::Not(_) => false,
        })
    }

    /// Returns its value.
    ///
    /// # Errors
    /// If it has none.
    pub fn evaluate(&self, values: &impl Values) -> Result<u64, EvalError> {
        match self {
            Expression::Number(value) => Ok(*value),
            // Our parser refuses fractions where values are whole.
            Expression::Real(_) => Err(EvalError::Overflow),
            Expression::Name(name) => Ok(values.value(*name)),
            Expression::Element { base, count, index } => match index.evaluate(values)? {
                index if index < u64::from(*count) => {
                    Ok(values.value(Name::Shared(base + index as u8)))
                }
                _ => Err(EvalError::Index),
            },
            Expression::Not(part) => Ok(u64::from(part.evaluate(values)? == 0)),
            Expression::Row(first, rest) => {
                let mut left = first.evaluate(values)?;
                for (operator, right) in rest {
                    let decided = match left {
                        0 => *operator == Operator::And,
                        _ => *operator == Operator::Or,
                    };
                    left = match decided {
                        true => u64::from(left != 0),
                        false => whole(*operator, left, right.evaluate(values)?)?,
                    };
                }
                Ok(left)
            }
            Expression::Call(function, arguments) => {
                let mut given = [0; ARGUMENTS];
                for (value, argument) in given.iter_mut().zip(arguments) {
                    *value = argument.evaluate(values)?;
                }
                let [first, second, third] = given;
                match function {
                    Function::Min => Ok(first.min(second)),
                    Function::Max => Ok(first.max(second)),
                    Function::Excess => Ok(first.saturating_sub(second)),
                    Function::Align if second == 0 => Err(EvalError::Zero),
                    Function::Align => {
                        first.checked_next_multiple_of(second).ok_or(EvalError::Overflow)
                    }
                    Function::Choose => Ok(if first != 0 { second } else { third }),
                    Function::Random if first == 0 => Err(EvalError::Zero),
                    Function::Random => Ok(values.random(first)),
                }
            }
        }
    }

    /// Returns its value in floating point, where nothing overflows. The value is not finite after a division by zero.
    pub fn real(&self, value: &dyn Fn(Name) -> f64) -> f64 {
        let truth = |holds: bool| f64::from(u8::from(holds));
        match self {
            Expression::Number(number) => *number as f64,
            Expression::Real(number) => *number,
            Expression::Name(name) => value(*name),
            Expression::Not(part) => truth(part.real(value) == 0.0),
            Expression::Row(first, rest) => {
                rest.iter().fold(first.real(value), |left, (by, right)| {
                    let right = right.real(value);
                    match by {
                        Operator::Or => truth(left != 0.0 || right != 0.0),
                        Operator::And => truth(left != 0.0 && right != 0.0),
                        Operator::Add => left + right,
                        Operator::Subtract => left - right,
                        Operator::Multiply => left * right,
                        Operator::Divide => left / right,
                        Operator::Less => truth(left < right),
                        Operator::AtMost => truth(left <= right),
                        Operator::Greater => truth(left > right),
                        Operator::AtLeast => truth(left >= right),
                        Operator::Equal => truth(left == right),
                        Operator::Unequal => truth(left != right),
                        // The reader refuses these in a figure.
                        Operator::Bits | Operator::Left | Operator::Right | Operator::Remainder => {
                            f64::NAN
                        }
                    }
                })
            }
            Expression::Call(function, arguments) => {
                let argument = |index: usize| arguments[index].real(value);
                match function {
                    Function::Choose => argument(if argument(0) != 0.0 { 1 } else { 2 }),
                    Function::Min => argument(0).min(argument(1)),
                    Function::Max => argument(0).max(argument(1)),
                    // The reader refuses these in a figure.
                    Function::Align | Function::Excess | Function::Random => f64::NAN,
                }
            }
            // The reader refuses this in a figure.
            Expression::Element { .. } => f64::NAN,
        }
    }
}

fn whole(operator: Operator, left: u64, right: u64) -> Result<u64, EvalError> {
    let value = match operator {
        Operator::Or => Some(u64::from(left != 0 || right != 0)),
        Operator::And => Some(u64::from(left != 0 && right != 0)),
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => Some(left.checked_div(right).ok_or(EvalError::Zero)?),
        Operator::Remainder => Some(left.checked_rem(right).ok_or(EvalError::Zero)?),
        Operator::Less => Some(u64::from(left < right)),
        Operator::AtMost => Some(u64::from(left <= right)),
        Operator::Greater => Some(u64::from(left > right)),
        Operator::AtLeast => Some(u64::from(left >= right)),
        Operator::Equal => Some(u64::from(left == right)),
        Operator::Unequal => Some(u64::from(left != right)),
        Operator::Bits => Some(left | right),
        Operator::Left => {
            (right < 64).then(|| left << right).filter(|shifted| shifted >> right == left)
        }
        Operator::Right => Some(left.checked_shr(right.min(64) as u32).unwrap_or(0)),
    };
    value.ok_or(EvalError::Overflow)
}

#[cfg(test)]
mod tests;

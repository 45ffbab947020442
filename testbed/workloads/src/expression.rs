//! Compiles and evaluates expressions of workload files, for example `(pages - 1) * stride + 1`.
//!
//! An expression is compiled once, for a stack of at most [`DEPTH`] words, and evaluated without allocating. Values are
//! unsigned 64-bit words. An overflow, a negative difference or a division by zero ends the run and names the place in
//! the file, because a wrong number would measure something else. Only the workload's figure is evaluated in floating
//! point, by the same instructions.
//!
//! From loosest to tightest: `||`, `&&`, comparisons, `|`, `<<` `>>`, `+` `-`, `*` `/` `%`, `!`. `||` and `&&` evaluate
//! their right side only if it decides. Numbers take the suffixes `K`, `M`, `G` (powers of 1024) and `ns`, `us`, `ms`,
//! `s` (nanoseconds).

mod code;
mod read;

use alloc::boxed::Box;
use alloc::string::String;
use code::{Binary, Code, DEPTH, Function};
pub(crate) use code::{Name, Symbol};

/// A variable that a statement can set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A variable of this CPU.
    Local(u8),
    /// A variable of all CPUs, in a control word.
    Shared(u8),
}

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

/// A compiled expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Expression {
    code: Box<[Code]>,
}

impl Expression {
    /// Creates an expression that is a number.
    pub fn number(value: u64) -> Self {
        Expression { code: Box::new([Code::Number(value)]) }
    }

    /// Creates an expression that is a name.
    pub fn name(name: Name) -> Self {
        Expression { code: Box::new([Code::Name(name)]) }
    }

    /// Parses an expression. `lookup` returns the meaning of a name, or an error message.
    ///
    /// # Errors
    /// A description of the expected text.
    pub fn parse(
        text: &str,
        lookup: &mut dyn FnMut(&str) -> Result<Symbol, String>,
    ) -> Result<Self, String> {
        read::code(text, lookup).map(|code| Expression { code: code.into() })
    }

    /// Returns whether it contains a number with a fraction or an exponent.
    pub fn is_real(&self) -> bool {
        self.code.iter().any(|code| matches!(code, Code::Real(_)))
    }

    /// Returns whether it is random.
    pub fn is_random(&self) -> bool {
        self.code.contains(&Code::Call(Function::Random))
    }

    /// Returns its value.
    ///
    /// # Errors
    /// If it has none.
    #[inline]
    pub fn evaluate(&self, values: &impl Values) -> Result<u64, EvalError> {
        match self.code[..] {
            [Code::Number(value)] => Ok(value),
            [Code::Name(name)] => Ok(values.value(name)),
            _ => self.compute(values),
        }
    }

    fn compute(&self, values: &impl Values) -> Result<u64, EvalError> {
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
                // Our reader refuses fractions where values are whole.
                Code::Real(_) => return Err(EvalError::Overflow),
                Code::Name(name) => {
                    stack[top] = values.value(name);
                    top += 1;
                }
                Code::Element { base, count } => {
                    let index = stack[top - 1];
                    if index >= u64::from(count) {
                        return Err(EvalError::Index);
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
                        return Err(EvalError::Zero);
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
                Code::Call(Function::Min) => {
                    top -= 1;
                    stack[top - 1] = stack[top - 1].min(stack[top]);
                }
                Code::Call(Function::Max) => {
                    top -= 1;
                    stack[top - 1] = stack[top - 1].max(stack[top]);
                }
                Code::Call(Function::Excess) => {
                    top -= 1;
                    stack[top - 1] = stack[top - 1].saturating_sub(stack[top]);
                }
                Code::Call(Function::Align) => {
                    top -= 1;
                    if stack[top] == 0 {
                        return Err(EvalError::Zero);
                    }
                    let aligned = stack[top - 1].checked_next_multiple_of(stack[top]);
                    stack[top - 1] = aligned.ok_or(EvalError::Overflow)?;
                }
            }
        }
        Ok(stack[0])
    }

    /// Returns its value in floating point, where nothing overflows. The value is not finite after a division by zero.
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
                // The reader refuses this in a figure.
                Code::Call(_) | Code::Element { .. } => return f64::NAN,
            }
        }
        stack[0]
    }

    /// Returns whether it is allowed in a figure.
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

fn whole(binary: Binary, left: u64, right: u64) -> Result<u64, EvalError> {
    let checked = |value: Option<u64>| value.ok_or(EvalError::Overflow);
    Ok(match binary {
        Binary::Add => checked(left.checked_add(right))?,
        Binary::Subtract => checked(left.checked_sub(right))?,
        Binary::Multiply => checked(left.checked_mul(right))?,
        Binary::Divide => left.checked_div(right).ok_or(EvalError::Zero)?,
        Binary::Remainder => left.checked_rem(right).ok_or(EvalError::Zero)?,
        Binary::Less => u64::from(left < right),
        Binary::AtMost => u64::from(left <= right),
        Binary::Greater => u64::from(left > right),
        Binary::AtLeast => u64::from(left >= right),
        Binary::Equal => u64::from(left == right),
        Binary::Unequal => u64::from(left != right),
        Binary::Bits => left | right,
        Binary::Left => match right {
            0..64 if left << right >> right == left => left << right,
            _ => return Err(EvalError::Overflow),
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
        // The reader refuses this in a figure.
        Binary::Bits | Binary::Left | Binary::Right | Binary::Remainder => f64::NAN,
    }
}

#[cfg(test)]
mod tests;

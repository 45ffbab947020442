//! Operators, expressions without a value, and error messages.

use super::*;
use alloc::format;

struct TestValues;
impl Values for TestValues {
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
        "a" => Ok(Symbol::One(Name::Parameter(0))),
        "b" => Ok(Symbol::One(Name::Parameter(1))),
        "now" => Ok(Symbol::One(Name::Now)),
        "files" => Ok(Symbol::Many { base: 8, count: 2 }),
        _ => Err(format!("no {name}")),
    })
}

fn value(text: &str) -> Result<u64, EvalError> {
    read(text).unwrap().evaluate(&TestValues)
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
        ("0 || 2 && 3", 1),
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
        ("1 - 2", EvalError::Overflow),
        ("1 << 64", EvalError::Overflow),
        ("(1 << 63) + (1 << 63)", EvalError::Overflow),
        ("1 / (a - a)", EvalError::Zero),
        ("1 % 0", EvalError::Zero),
        ("align(1, 0)", EvalError::Zero),
        ("random(0)", EvalError::Zero),
        ("files[2]", EvalError::Index),
    ] {
        assert_eq!(value(text), Err(why), "{text}");
    }
}

#[test]
fn a_figure_is_computed_as_it_is_written() {
    let figure = read("a / 1e9 * (100.0 * 1G) / b").unwrap();
    let by_hand = 10.0 / 1e9 * (100.0 * (1u64 << 30) as f64) / 11.0;
    assert!(figure.is_real() && figure.has_real_value());
    let value = figure.real(&|name| TestValues.value(name) as f64);
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
        ("mix(1)", "no function `mix`; there are min, max, align, excess, choose, random"),
        ("min(1)", "expected `,`, found `)`"),
        ("12Q", "expected a number of at most 64 bits, with K, M, G, ns, us, ms or s, found `12Q`"),
    ] {
        assert_eq!(read(text).unwrap_err(), why, "{text}");
    }
    let deep = "(".repeat(10_000);
    assert!(read(&deep).unwrap_err().contains("too deep"));
    let wide = "1+(".repeat(NESTING + 1) + "1" + &")".repeat(NESTING + 1);
    assert!(read(&wide).unwrap_err().contains("too deep"));
    assert!(read(&"!".repeat(10_000)).unwrap_err().contains("too deep"));
}

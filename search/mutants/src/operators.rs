//! Selects the mutant at run time. This file becomes a module of the engine's copy. Wherever the engine's code can be
//! mutated, the copy calls one of these functions, with the number of its first mutant.
//!
//! The environment variable `QUELL_MUTANT` contains the number of the selected mutant; 0 or no variable selects the
//! unchanged engine. With `QUELL_MUTANTS_REACHED` the engine stays unchanged, and appends to the file of that name the
//! mutants that would have made a difference, one per line. If the mutated value can be compared with the right one,
//! these are only mutants for which it differed. This file uses only relaxed atomics of the standard library, no word
//! of the machine under test. So no machine treats a choice as a point at which another CPU may step in.

extern crate std;

use core::ops::{
    Add, AddAssign, BitAnd, BitAndAssign, BitOr, BitOrAssign, Not, Shl, Shr, Sub, SubAssign,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

/// The number of the selected mutant, or one of the two values below.
static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
/// The environment wasn't read yet.
const UNREAD: u32 = u32::MAX;
/// No mutant is selected; those that would be reached are recorded.
const RECORDS: u32 = u32::MAX - 1;

/// A bit for each mutant that was recorded.
static WRITTEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static RECORD: OnceLock<Option<File>> = OnceLock::new();

/// Reads the environment.
#[cold]
fn read() -> u32 {
    let record = std::env::var_os("QUELL_MUTANTS_REACHED");
    let chosen = std::env::var("QUELL_MUTANT");
    let chosen = match (&record, chosen.map(|number| number.parse())) {
        (Some(_), _) => RECORDS,
        (None, Ok(number)) => number.expect("QUELL_MUTANT is a number"),
        (None, Err(_)) => 0,
    };
    RECORD.get_or_init(|| {
        let mut file = File::options();
        record.map(|name| {
            file.append(true).create(true).open(name).expect("QUELL_MUTANTS_REACHED is a file")
        })
    });
    CHOSEN.store(chosen, Relaxed);
    chosen
}

#[cold]
fn record(number: u32) {
    let (word, bit) = (&WRITTEN[number as usize / 64 % WRITTEN.len()], 1 << (number % 64));
    if word.fetch_or(bit, Relaxed) & bit == 0
        && let Some(mut file) = RECORD.get().and_then(Option::as_ref)
    {
        let mut line = [b'\n'; 8];
        let mut rest = number;
        for digit in line[..7].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // The test of the record notices a failed write.
        let _ = file.write_all(&line);
    }
}

/// Returns whether this mutant is selected. `differs` returns whether it makes a difference.
#[inline]
fn is(number: u32, differs: impl FnOnce() -> bool) -> bool {
    let mut chosen = CHOSEN.load(Relaxed);
    if chosen == UNREAD {
        chosen = read();
    }
    if chosen == RECORDS {
        if differs() {
            record(number);
        }
        return false;
    }
    chosen == number
}

/// Returns whether this mutant is selected.
#[inline]
pub fn on(number: u32) -> bool {
    is(number, || true)
}

/// Returns a condition; the mutant returns true.
#[inline]
pub fn or_true(number: u32, condition: bool) -> bool {
    is(number, || !condition) || condition
}

/// Returns a condition; the mutant returns false.
#[inline]
pub fn or_false(number: u32, condition: bool) -> bool {
    !is(number, || condition) && condition
}

/// Returns a condition; the mutant returns true, and the next one false.
#[inline]
pub fn or_forced(number: u32, condition: bool) -> bool {
    or_false(number + 1, or_true(number, condition))
}

/// Defines comparisons that include or exclude equal values.
macro_rules! compared {
    ($($name:ident: $right:tt, $wrong:tt;)*) => {$(
        /// Makes the first comparison; the mutant makes the second.
        #[inline]
        pub fn $name<A: PartialOrd<B> + ?Sized, B: ?Sized>(number: u32, a: &A, b: &B) -> bool {
            if is(number, || (a $right b) != (a $wrong b)) { a $wrong b } else { a $right b }
        }
    )*};
}

compared! {
    less: <, <=;
    less_or_same: <=, <;
    more: >, >=;
    more_or_same: >=, >;
}

/// Computes `a == b`. The mutant computes `a <= b`, and the next one `a >= b`.
#[inline]
pub fn same<A: PartialOrd<B> + ?Sized, B: ?Sized>(number: u32, a: &A, b: &B) -> bool {
    if is(number, || a < b) {
        a <= b
    } else if is(number + 1, || a > b) {
        a >= b
    } else {
        a == b
    }
}

/// Computes `a != b`. The mutant computes `a > b`, and the next one `a < b`.
#[inline]
pub fn other<A: PartialOrd<B> + ?Sized, B: ?Sized>(number: u32, a: &A, b: &B) -> bool {
    if is(number, || a < b) {
        a > b
    } else if is(number + 1, || a > b) {
        a < b
    } else {
        a != b
    }
}

/// Defines pairs of operators that replace each other.
macro_rules! swapped {
    ($($name:ident, $other_name:ident: $one:ident::$first:ident, $other:ident::$second:ident;)*) => {$(
        /// Applies the first operator; the mutant applies the second.
        #[inline]
        pub fn $name<A: $one<B, Output = A> + $other<B, Output = A>, B>(number: u32, a: A, b: B) -> A {
            if on(number) { a.$second(b) } else { a.$first(b) }
        }

        /// Applies the second operator; the mutant applies the first.
        #[inline]
        pub fn $other_name<A: $one<B, Output = A> + $other<B, Output = A>, B>(number: u32, a: A, b: B) -> A {
            if on(number) { a.$first(b) } else { a.$second(b) }
        }
    )*};
}

swapped! {
    add, sub: Add::add, Sub::sub;
    bit_and, bit_or: BitAnd::bitand, BitOr::bitor;
    shl, shr: Shl::shl, Shr::shr;
}

/// Defines pairs of assigning operators that replace each other.
macro_rules! swapped_assigning {
    ($($name:ident, $other_name:ident: $one:ident::$first:ident, $other:ident::$second:ident;)*) => {$(
        /// Applies the first operator; the mutant applies the second.
        #[inline]
        pub fn $name<A: $one<B> + $other<B>, B>(number: u32, a: &mut A, b: B) {
            if on(number) { a.$second(b) } else { a.$first(b) }
        }

        /// Applies the second operator; the mutant applies the first.
        #[inline]
        pub fn $other_name<A: $one<B> + $other<B>, B>(number: u32, a: &mut A, b: B) {
            if on(number) { a.$first(b) } else { a.$second(b) }
        }
    )*};
}

swapped_assigning! {
    add_to, sub_from: AddAssign::add_assign, SubAssign::sub_assign;
    and_into, or_into: BitAndAssign::bitand_assign, BitOrAssign::bitor_assign;
}

/// Computes `!a`; the mutant returns `a`.
#[inline]
pub fn not<A: Not<Output = A>>(number: u32, a: A) -> A {
    if on(number) { a } else { !a }
}

/// Returns the smaller value; the mutant returns the larger one.
#[inline]
pub fn min<T: Ord>(number: u32, a: T, b: T) -> T {
    if is(number, || a != b) { a.max(b) } else { a.min(b) }
}

/// Returns the larger value; the mutant returns the smaller one.
#[inline]
pub fn max<T: Ord>(number: u32, a: T, b: T) -> T {
    if is(number, || a != b) { a.min(b) } else { a.max(b) }
}

/// Calls `any`; the mutant calls `all`.
#[inline]
pub fn any<I: Iterator>(number: u32, mut list: I, test: impl FnMut(I::Item) -> bool) -> bool {
    if on(number) { list.all(test) } else { list.any(test) }
}

/// Calls `all`; the mutant calls `any`.
#[inline]
pub fn all<I: Iterator>(number: u32, mut list: I, test: impl FnMut(I::Item) -> bool) -> bool {
    if on(number) { list.any(test) } else { list.all(test) }
}

/// An integer.
pub trait Number: Copy {
    /// Returns the sum, wrapping at the end.
    fn plus(self, by: i8) -> Self;
}

macro_rules! numbers {
    ($($kind:ident)*) => {$(
        impl Number for $kind {
            #[inline]
            fn plus(self, by: i8) -> Self {
                self.wrapping_add(by as $kind)
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize }

/// Returns a number; the mutant adds one.
#[inline]
pub fn up<T: Number>(number: u32, value: T) -> T {
    if on(number) { value.plus(1) } else { value }
}

/// Returns a number; the mutant adds one, and the next one subtracts one.
#[inline]
pub fn near<T: Number>(number: u32, value: T) -> T {
    if on(number) {
        value.plus(1)
    } else if on(number + 1) {
        value.plus(-1)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the result of each function with mutants 1 and 2, and with none. This is one test, because the whole
    /// process has one selection.
    #[test]
    fn a_choice_makes_its_own_difference_and_no_other() {
        let all = || {
            (
                [or_true(1, false), or_false(1, true), or_forced(1, false), or_forced(1, true)],
                [
                    less(1, &2, &2),
                    less_or_same(1, &2, &2),
                    more(1, &2, &2),
                    more_or_same(1, &2, &2),
                ],
                [same(1, &1, &2), same(1, &2, &1), other(1, &1, &2), other(1, &2, &1)],
                [
                    add(1, 5, 3),
                    sub(1, 5, 3),
                    bit_and(1, 5, 3),
                    bit_or(1, 5, 3),
                    shl(1, 5, 1),
                    shr(1, 5, 1),
                ],
                [min(1, 5, 3), max(1, 5, 3), near(1, 5), up(1, 5), not(1, 5)],
                [any(1, 0..2, |n| n == 0), all(1, 0..2, |n| n == 0)],
            )
        };
        CHOSEN.store(0, Relaxed);
        let right = (
            [false, true, false, true],
            [false, true, false, true],
            [false, false, true, true],
            [8, 2, 1, 7, 10, 2],
            [3, 5, 5, 5, !5],
            [true, false],
        );
        assert_eq!(all(), right);
        CHOSEN.store(1, Relaxed);
        let first = (
            [true, false, true, true],
            [true, false, true, false],
            [true, false, false, true],
            [2, 8, 7, 1, 2, 10],
            [5, 3, 6, 6, 5],
            [false, true],
        );
        assert_eq!(all(), first);
        CHOSEN.store(2, Relaxed);
        let second = (
            [false, true, false, false],
            right.1,
            [false, true, true, false],
            right.3,
            [3, 5, 4, 5, !5],
            right.5,
        );
        assert_eq!(all(), second);
    }
}

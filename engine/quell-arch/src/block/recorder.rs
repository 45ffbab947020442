//! Records the text of the blocks that would have executed, and the values of their registers.
//!
//! It records only inside [`record`], on the thread that called it.

use std::cell::RefCell;
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

std::thread_local! {
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Notes {
    /// A line for each executed block.
    lines: Vec<String>,
    /// The functions of these blocks.
    functions: Vec<&'static str>,
    /// The results of the blocks to come, in order.
    results: Vec<u64>,
}

/// A value that an instruction takes in a register.
pub(crate) trait Operand {
    /// Returns the register's value, or the words behind a pointer.
    fn words(self) -> Vec<u64>;
}

impl Operand for u64 {
    fn words(self) -> Vec<u64> {
        vec![self]
    }
}

impl Operand for u32 {
    fn words(self) -> Vec<u64> {
        vec![self.into()]
    }
}

impl Operand for *const [u64; 2] {
    fn words(self) -> Vec<u64> {
        // SAFETY: a descriptor of INVPCID, which is on its function's stack.
        unsafe { *self }.to_vec()
    }
}

/// Records a block as one line: for example, `invlpg [rax] | rax=0x1000`. Instructions are separated by `; `, and the
/// words behind a pointer are in brackets.
pub(crate) fn note(function: &'static str, text: &[&str], inputs: &[(&str, Vec<u64>)]) {
    NOTES.with_borrow_mut(|notes| {
        let Some(notes) = notes else { return };
        let mut line = text.join("; ");
        for (index, (register, words)) in inputs.iter().enumerate() {
            let value = match words[..] {
                [word] => format!("{word:#x}"),
                _ => format!("{words:#x?}").split_whitespace().collect(),
            };
            let before = if index == 0 { " | " } else { " " };
            line += &format!("{before}{register}={value}");
        }
        notes.lines.push(line);
        notes.functions.push(function);
    });
}

/// Returns a block's result in a register: the next value of [`record`]'s results.
///
/// # Panics
/// If none is left, or nothing is being recorded.
pub(crate) fn result(register: &str) -> u64 {
    NOTES.with_borrow_mut(|notes| {
        let notes = notes.as_mut().expect("a test that reads a register records");
        assert!(!notes.results.is_empty(), "nothing was given for {register}");
        notes.results.remove(0)
    })
}

/// Runs `body`, whose blocks return `results` one after another. Returns the executed blocks and functions.
///
/// # Panics
/// If a result is left over.
pub(crate) fn record(results: &[u64], body: impl FnOnce()) -> (Vec<String>, Vec<String>) {
    NOTES.set(Some(Notes { results: results.to_vec(), ..Notes::default() }));
    body();
    let notes = NOTES.take().expect("set above");
    assert!(notes.results.is_empty(), "results that no block has read");
    let functions = notes.functions.iter().map(ToString::to_string).collect();
    (notes.lines, functions)
}

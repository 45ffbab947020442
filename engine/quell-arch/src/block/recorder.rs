//! Records the blocks that would have executed: their text and the values of their registers.
//!
//! It records only inside [`record`], on that thread.

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
    /// The functions that did.
    functions: Vec<&'static str>,
    /// The results of blocks, next one first.
    results: Vec<u64>,
}

/// A value that an instruction takes in a register.
pub(crate) trait Operand {
    /// The register's value; of a pointer, the words behind it.
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
        // SAFETY: a descriptor of INVPCID, which its function has on its stack.
        unsafe { *self }.to_vec()
    }
}

/// Notes a block: one line, as in `invlpg [rax] | rax=0x1000`, with `; ` between instructions, and with the words
/// behind a pointer in brackets.
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

/// Returns a block's result in a register: the next value given to [`record`].
///
/// # Panics
/// If none is left, or nothing is being recorded.
pub(crate) fn result(register: &str) -> u64 {
    NOTES.with_borrow_mut(|notes| {
        let notes = notes
            .as_mut()
            .expect("a test that reads a register records");
        assert!(
            !notes.results.is_empty(),
            "nothing was given for {register}"
        );
        notes.results.remove(0)
    })
}

/// Runs `body`, whose blocks return `results` one after another. Returns the executed blocks and functions.
///
/// # Panics
/// If a result is left over.
pub(crate) fn record(results: &[u64], body: impl FnOnce()) -> (Vec<String>, Vec<String>) {
    NOTES.set(Some(Notes {
        results: results.to_vec(),
        ..Notes::default()
    }));
    body();
    let notes = NOTES.take().expect("set above");
    assert!(notes.results.is_empty(), "results that no block has read");
    let functions = notes.functions.iter().map(ToString::to_string).collect();
    (notes.lines, functions)
}

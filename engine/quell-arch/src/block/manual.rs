//! Compares the instructions of the crate's functions with the architectures' manuals.
//!
//! We wrote the texts and operands here from the manuals, not from the crate; each table names the sections. A line is
//! the output of [`recorder::note`] for a block. The tests run on every host.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "in unit tests these functions execute nothing but barriers"
)]

use super::{Block, recorder};
use std::collections::BTreeSet;
use std::string::String;

mod aarch64;
mod riscv64;
mod x86_64;

/// A description, the results of blocks, the call, and the instructions that it must execute.
type Case = (&'static str, &'static [u64], fn(), &'static [&'static str]);

/// Compares each case, and checks that the cases cover every block of `tables`.
fn compare(cases: &[Case], tables: &[&[Block]]) {
    let mut compared = BTreeSet::<String>::new();
    for (what, results, call, expected) in cases {
        let (lines, functions) = recorder::record(results, call);
        assert_eq!(lines, *expected, "{what}");
        compared.extend(functions);
    }
    for block in tables.iter().copied().flatten() {
        assert!(compared.contains(block.name), "no case has {}", block.name);
    }
}

//! Counts the instructions of the calls in a kernel's hot paths: in the library for kernels, with its checks and
//! without.
//!
//! ```text
//! cargo test --test c cost -- --ignored --nocapture
//! ```
//!
//! prints the table in `docs/guide/adopt.md`. The test compares the counts with that table. If a count differs by more
//! than a [`SLACK`]th, with another compiler or another engine, review it and update the table.

use crate::support::{kernel_library_of, program, run, source};

/// A count may differ by one part in this many with another compiler.
const SLACK: u64 = 10;

/// Returns the calls and their instructions, in the order of the program.
fn counted(unchecked: &str) -> Option<Vec<(String, u64)>> {
    let library = kernel_library_of(&[("QUELL_UNCHECKED", unchecked)])?;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = program(folder.path(), "tests/c/cost.c", &library, &["-O2"])?;
    let (ok, output) = run(&mut command);
    assert!(ok, "{output}");
    let mut rows: Vec<(String, u64)> = Vec::new();
    for (count, name) in output.lines().filter_map(|line| line.split_once('\t')) {
        let count = count.parse().expect("a number");
        // We keep the second count: the first call meets new tags.
        match rows.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = count,
            None => rows.push((name.to_owned(), count)),
        }
    }
    Some(rows)
}

#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn calls_take_as_many_instructions_as_the_guide_says() {
    let (Some(checked), Some(unchecked)) = (counted(""), counted("1")) else {
        return;
    };
    let guide = std::fs::read_to_string(source("../../docs/guide/adopt.md")).expect("the guide");
    let mut wrong = Vec::new();
    for ((name, checked), (_, unchecked)) in checked.iter().zip(&unchecked) {
        println!("| `{name}` | {checked} | {unchecked} |");
        let row = format!("| `{name}` | ");
        let said = guide.lines().find_map(|line| line.strip_prefix(&row));
        let said = said.map(|rest| rest.trim_end_matches(" |").split(" | "));
        let said: Vec<u64> =
            said.into_iter().flatten().filter_map(|cell| cell.parse().ok()).collect();
        let near = |is: u64, said: u64| is.abs_diff(said) <= said / SLACK + 1;
        if !matches!(*said, [one, two] if near(*checked, one) && near(*unchecked, two)) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "docs/guide/adopt.md says something else of {wrong:?}");
    // Three of the instructions are the loop's own.
    for (call, each) in [("changed", 8), ("unmapped", 12)] {
        let (_, follow) = checked
            .iter()
            .find(|(name, _)| *name == format!("quell_batch_{call}, 100 pages that follow"))
            .expect("a row");
        assert!(
            *follow <= 100 * (each + 3) + 20,
            "{follow} instructions for 100 pages that follow ({call})"
        );
    }
}

//! Tests workload files: the documented format, mistakes, statements without effect.

use super::*;

/// The description of the format.
const DESCRIPTION: &str = include_str!("../../../../docs/workloads.md");

#[test]
fn the_description_lists_every_statement_and_its_example_can_be_read() {
    for statement in STATEMENTS {
        let row = statement.row();
        assert!(DESCRIPTION.contains(&row), "missing in the table:\n{row}");
    }
    let rows = DESCRIPTION.lines().filter(|line| {
        let first = line.split('|').nth(1).unwrap_or_default().trim();
        let words = STATEMENTS.iter().map(|statement| statement.word);
        line.matches('|').count() == 5 && words.into_iter().any(|word| first == format!("`{word}`"))
    });
    assert_eq!(rows.count(), STATEMENTS.len());
    let (_, rest) = DESCRIPTION.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let workload = Workload::parse("mine.toml", example).unwrap_or_else(|wrong| panic!("{wrong}"));
    let run = run(workload, 2, |_| false);
    assert!(run.results.iter().all(Result::is_ok), "{:?}", run.results);
    assert!(run.measure.value > 0.0);
}

/// Returns the example with one part changed.
fn changed(from: &str, to: &str) -> Result<Workload, FileError> {
    let (_, rest) = DESCRIPTION.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    assert!(example.contains(from), "{from}");
    Workload::parse("mine.toml", &example.replacen(from, to, 1))
}

#[test]
fn a_mistake_is_told_with_its_line_its_key_and_what_was_expected() {
    for (from, to, expected) in [
        ("name = \"mine\"", "name = 7", "mine.toml:1: name: expected a text in quotes, found `7`"),
        ("name = \"mine\"", "", "mine.toml: name: missing: a short name, one word"),
        ("\"S4\"", "\"S5\"", "mine.toml:3: mechanism: `S5` is not one of S0, S1, S2, S3, S4"),
        (
            "cpus = 4",
            "cpu = 4",
            "mine.toml:4: cpu: unknown; did you mean `cpus`?; expected one of name, title,",
        ),
        (
            "default = 100",
            "default = 0",
            "mine.toml:7: parameters.rounds: the default, 0, is not from 1 to 1000000",
        ),
        (
            "\"count\"",
            "\"pages\"",
            "mine.toml:7: parameters.rounds: unit `pages` is not one of count, bytes, time, switch, page",
        ),
        (
            "touched = \"size\"",
            "touched = \"sice\"",
            "mine.toml:11: memory.touched: no `sice` here; there are rounds, size, cpus",
        ),
        (
            "\"nanoseconds / done\"",
            "\"nanoseconds %\"",
            "mine.toml:15: figure.value: expected a number or a name, found the end",
        ),
        (
            "when = \"cpu == 0\"",
            "when = \"now == 0\"",
            "mine.toml:21: threads.when: `now` has no value here; these have one: `cpu`, `cpus`, parameters",
        ),
        (
            "map = \"area\"",
            "map = \"size\"",
            "mine.toml:23: map: `size` means something else already",
        ),
        ("{ begin = true }", "{ begin = 1 }", "mine.toml:24: begin: expected `begin = true`"),
        (
            "{ begin = true }",
            "{ beginn = true }",
            "mine.toml:24: program: `beginn` is not a statement; there are read, write,",
        ),
        (
            "discard = \"area\", bytes = \"size\"",
            "discard = \"area\"",
            "mine.toml:27: discard: `bytes` is missing: Drops the pages of a range",
        ),
        (
            "discard = \"area\", bytes",
            "discard = \"area\", size",
            "mine.toml:27: discard: `discard` takes bytes, found `size`",
        ),
        (
            "value = \"round\"",
            "value = \"1.5\"",
            "mine.toml:26: write.value: fractions and exponents are for `figure.value` alone",
        ),
        (
            "bystand = \"100us\"",
            "bystand = \"area\"",
            "mine.toml:37: bystand: no `area` here; there are rounds, size, cpu,",
        ),
        ("[[threads]]", "[threads]", "mine.toml:"),
    ] {
        let wrong = changed(from, to).expect_err(to).to_string();
        let told = wrong.lines().any(|line| line.starts_with(expected));
        assert!(told, "`{to}`: expected {expected}\n{wrong}");
    }
    let two = changed("[[threads]]", "[[threads]]\nprogam = 3").unwrap_err();
    assert!(two.mistakes.len() == 1 && two.to_string().contains("threads.progam"));
}

#[test]
fn a_statement_without_effect_ends_the_run_with_its_line() {
    for (from, to, expected) in [
        (
            "bytes = \"size\", value = \"round\"",
            "bytes = \"size - 1G\"",
            "line 26: write: the result is below zero or above 64 bits",
        ),
        (
            "{ write = \"area\"",
            "{ write = \"area + 1\"",
            "line 26: write: 0x100001 is not the address of a word that a program can have",
        ),
        (
            "{ begin = true }",
            "{ begin = true }, { begin = true }",
            "line 24: begin: the measured window opens once, and closes once after that",
        ),
        (
            "{ begin = true }",
            "{ while = 1, do = [] }",
            "line 24: while: nothing that takes time for 10 million statements: does the loop end?",
        ),
        (
            "bytes = \"size\" },",
            "bytes = \"size\", page = 5 },",
            "line 23: map: 5 is not a page size; there are 4K, 2M and 1G",
        ),
        (
            "{ begin = true }",
            "{ without = 1 }",
            "line 24: without: fewer CPUs than this take part in barriers",
        ),
        (
            "{ begin = true }",
            "{ compute = \"7200s\" }",
            "line 24: compute: 7200000000000 ns: expected at most an hour, and at least 100 ns between two looks",
        ),
        (
            "{ begin = true }",
            "{ repeat = 3, as = \"i\", do = [{ for = \"k\", below = 2, by = \"i\", do = [] }] }",
            "line 24: for: a division by zero, a step of zero, or a random number below zero",
        ),
    ] {
        let workload = changed(from, to).unwrap_or_else(|wrong| panic!("{to}: {wrong}"));
        let run = run(workload, 1, |_| false);
        let told: Vec<_> = run.results.iter().filter_map(|result| result.err()).collect();
        let told: Vec<_> = told.iter().map(ToString::to_string).collect();
        assert_eq!(told, [expected], "{to}");
    }
}

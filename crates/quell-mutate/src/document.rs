//! `docs/engine-mutants.md`: what was written by hand, and tables from the sources and the list of survivors.

use crate::kept::{Entry, Kind};
use crate::sources::{LEFT_OUT, Mutant};
use std::fmt::Write;

/// What the document says before the tables.
const HEAD: &str = include_str!("head.md");

/// In a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// As code in a cell, cut where it is long.
fn code(text: &str) -> String {
    let short: String = text.chars().take(90).collect();
    let dots = if short.len() < text.len() { " …" } else { "" };
    format!("`{}`{dots}", cell(&short))
}

/// The document.
pub fn document(mutants: &[Mutant], kept: &[Entry]) -> String {
    let mut text = HEAD.to_string();
    text += "\n## Where they are\n\n| file | mutants | kept |\n| --- | ---: | ---: |\n";
    let mut files: Vec<&str> = mutants.iter().map(|mutant| &*mutant.name.file).collect();
    files.dedup();
    let kept_in = |file: &str| {
        let all = mutants.iter().filter(|mutant| mutant.name.file == file);
        all.filter(|mutant| kept.iter().any(|entry| entry.names(&mutant.name)))
            .count()
    };
    let (mut all, mut living) = (0, 0);
    for file in files {
        let count = mutants
            .iter()
            .filter(|mutant| mutant.name.file == file)
            .count();
        let kept = kept_in(file);
        (all, living) = (all + count, living + kept);
        // A text that is written cannot fail.
        let _ = writeln!(text, "| `{file}` | {count} | {kept} |");
    }
    let _ = writeln!(text, "| all | {all} | {living} |\n\nNot mutated:\n");
    for (file, why) in LEFT_OUT {
        let _ = writeln!(text, "* `{file}`: {why}.");
    }
    for (kind, title) in [
        (Kind::Equivalent, "Equivalent"),
        (Kind::Slower, "Slower"),
        (Kind::Allowed, "Allowed"),
    ] {
        let entries: Vec<&Entry> = kept.iter().filter(|entry| entry.kind == kind).collect();
        if entries.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n## {title}\n\n| in | what | becomes | why it may live |\n| --- | --- | --- | --- |"
        );
        for entry in entries {
            let file = entry.file.trim_end_matches(".rs");
            let what = code(&entry.text);
            let changes = entry
                .changes
                .iter()
                .map(|change| cell(change))
                .collect::<Vec<_>>()
                .join("; ");
            let _ = writeln!(
                text,
                "| `{file}`, `{}` | {what} | {changes} | {} |",
                entry.function,
                cell(&entry.reason)
            );
        }
    }
    text
}

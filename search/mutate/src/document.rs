//! `docs/engine-mutants.md`: what was written by hand, and tables of the survivors.

use crate::kept::{Entry, Kind};
use crate::sources::LEFT_OUT;
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
pub fn document(kept: &[Entry]) -> String {
    let mut text = HEAD.to_string();
    // A text that is written cannot fail.
    text += "\n## Not mutated\n\n";
    for (file, why) in LEFT_OUT {
        let _ = writeln!(text, "* `{file}`: {why}.");
    }
    for (kind, title) in [
        (Kind::Equivalent, "Equivalent"),
        (Kind::Slower, "Slower"),
        (Kind::Allowed, "Allowed"),
        (Kind::Fence, "Fences"),
        (Kind::Deep, "Found on more schedules"),
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

//! `docs/orderings.md`, from the comments.

use crate::site::{Lost, Site};
use crate::tokens::{Kind, Strength};
use std::fmt::Write;

impl Site {
    /// The ordering as it is weakened.
    fn step(&self) -> &'static str {
        match (self.strength, self.kind) {
            (Strength::Fence, _) => "`Hardware::fence` left out",
            (Strength::Acquire | Strength::Release, Kind::Fence) => "no fence",
            (Strength::SeqCst, Kind::Load) => "SeqCst to Acquire",
            (Strength::SeqCst, Kind::Store) => "SeqCst to Release",
            (Strength::SeqCst, _) => "SeqCst to AcqRel",
            (Strength::AcqRel, _) => "AcqRel to Relaxed",
            (Strength::Acquire, Kind::Failure) => "Acquire to Relaxed on failure",
            (Strength::Acquire, _) => "Acquire to Relaxed",
            (Strength::Release, _) => "Release to Relaxed",
        }
    }
}

/// The text of `docs/orderings.md`.
pub fn document(sites: &[Site]) -> String {
    let mut text = include_str!("head.md").trim_end().to_string();
    let mut file = "";
    for site in sites {
        if site.file != file {
            file = &site.file;
            let _ = write!(
                text,
                "\n\n### {file}\n\n\
                 | in | weakened | pairs with | because | lost without it |\n\
                 | --- | --- | --- | --- | --- |"
            );
        }
        let owner = site.owner.as_ref().map(|owner| format!("{owner}::"));
        let call = match site.call.as_str() {
            "" | "fence" => String::new(),
            call => format!(", `{call}`"),
        };
        let lost = match &site.lost {
            Lost::Race(name) => name.clone(),
            Lost::Mutant(name) => format!("mutant `{name}`"),
        };
        let _ = write!(
            text,
            "\n| `{}{}`{call} | {} | {} | {} | {lost} |",
            owner.unwrap_or_default(),
            site.function,
            site.step(),
            site.partners,
            site.reason,
        );
    }
    text.push('\n');
    text
}

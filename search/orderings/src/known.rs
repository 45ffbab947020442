//! The races and mutants that exist.

use crate::site::{Lost, Site};
use crate::wrong::{Wrong, text};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::Path;

/// Where the races are written down, below the root of the workspace.
const RACES: &str = "search/orderings/tests/orderings/races.rs";

/// Checks that what the comments say is lost exists.
pub(crate) fn check(root: &Path, sites: &[Site], wrong: &mut Vec<String>) -> Result<(), Wrong> {
    let path = root.join(RACES);
    let stream: TokenStream = text(&path)?
        .parse()
        .map_err(|error| Wrong::Source { path, error })?;
    let mut races = Vec::new();
    names(stream, &mut races);
    for site in sites {
        let (known, what) = match &site.lost {
            Lost::Race(name) => (races.contains(name), format!("race \"{name}\" in {RACES}")),
            Lost::Mutant(name) => (
                quell_vm::rules::named(name).is_some(),
                format!("mutant `{name}`"),
            ),
        };
        if !known {
            wrong.push(format!("{}:{}: there is no {what}", site.file, site.line));
        }
    }
    Ok(())
}

/// The texts behind `race(` and `free(`.
fn names(stream: TokenStream, into: &mut Vec<String>) {
    let mut last = String::new();
    for token in stream {
        if let TokenTree::Group(group) = &token {
            let first = group.stream().into_iter().next();
            if let (true, "race" | "free", Some(TokenTree::Literal(name))) = (
                group.delimiter() == Delimiter::Parenthesis,
                last.as_str(),
                first,
            ) {
                into.push(name.to_string().trim_matches('"').to_string());
            }
            names(group.stream(), into);
        }
        last = token.to_string();
    }
}

//! A search that keeps its results in a file. It continues after an interruption, and any host may search a part of it.
//!
//! The result of a case depends only on the case, the effort, the seed and the depth. So the file contains nothing
//! about the host, and merged parts are identical to the file that one machine would write.

use quell_conformance::PolicyText;
use std::path::Path;

use anyhow::Result;
use quell_adversary::cases::{self, Choice, Effort};
use quell_adversary::{Case, Report};
use quell_model::machines;
use quell_model::results::{Header, Results, digest};
use serde::{Deserialize, Serialize};

use super::args::ExploreArgs;
use super::output::{self, Outcome};

/// The description of a search: the first line of its results.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    /// The names on the command line; empty if everything is searched.
    search: Vec<String>,
    /// The texts of the names that are files, so that we notice a changed file.
    files: Vec<String>,
    /// The number of cases.
    cases: usize,
    /// The digest of the name, machine and policy of each case, in order.
    digest: String,
    /// The effort for each case.
    effort: Effort,
    seed: u64,
    depth: u32,
}

/// The result of a case.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoundRow {
    /// The index of the case in the search.
    index: usize,
    #[serde(flatten)]
    row: cases::Row,
}

impl Header for Head {
    type Row = FoundRow;
    const WHAT: &'static str = "a search";
    const EACH: &'static str = "case";

    fn size(&self) -> usize {
        self.cases
    }

    fn place(found: &FoundRow) -> usize {
        found.index
    }
}

impl Head {
    /// Describes a search of all these cases.
    pub fn of(
        args: &ExploreArgs,
        choice: &Choice<'_>,
        all: &[Case<'_>],
        effort: Effort,
    ) -> Result<Head> {
        let files = choice.names.iter().filter(|name| cases::is_file(name));
        let named: String = all
            .iter()
            .map(|case| {
                format!("{} {} {}\n", case.scenario.name, case.kind.name, PolicyText(case.policy))
            })
            .collect();
        Ok(Head {
            search: choice.names.to_vec(),
            files: files.map(|name| machines::read(Path::new(name))).collect::<Result<_, _>>()?,
            cases: all.len(),
            digest: format!("{:016x}", digest(&named)),
            effort,
            seed: args.seed,
            depth: args.depth,
        })
    }
}

impl FoundRow {
    pub fn of(index: usize, case: &Case<'_>, report: &Report) -> FoundRow {
        let row = cases::row(case, report);
        FoundRow { index, row }
    }
}

/// Returns whether this first line of a results file describes a search.
pub fn is_search(first: &[u8]) -> bool {
    serde_json::from_slice::<Head>(first).is_ok()
}

/// Prints all results for people, or as JSON.
pub fn print(results: &Results<Head>, json: bool) -> Outcome {
    let rows: Vec<_> = results.rows().map(|found| found.row).collect();
    let exhaustive = matches!(results.head.effort, Effort::Exhaustive(_));
    match json {
        true => quell_model::output::object(serde_json::json!({ "scenarios": rows })),
        false => output::rows(&rows, exhaustive),
    }
    Outcome::of(&rows, exhaustive)
}

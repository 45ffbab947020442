//! A search whose results are kept in a file: it goes on where it was interrupted, and is cut into parts that any host
//! may search.
//!
//! What comes of a case depends on the case, the effort, the seed and the depth alone. So a file of results has nothing
//! of the host in it, and parts that are merged are the file that one machine writes.

use quell_conformance::PolicyText;
use std::path::Path;

use anyhow::Result;
use quell_adversary::cases::{self, Choice, Effort};
use quell_adversary::{Case, Report};
use quell_experiments::machines;
use quell_experiments::results::{Header, Results, digest};
use serde::{Deserialize, Serialize};

use super::args::ExploreArgs;
use super::output::{self, Outcome};

/// What is searched: the first line of its results.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    /// The names that were asked for; everything if there is none.
    search: Vec<String>,
    /// The texts of those that are files, so that a change of one is noticed.
    files: Vec<String>,
    /// How many cases there are.
    cases: usize,
    /// Of the name, machine and policy of each case, in order.
    digest: String,
    /// How much each gets.
    effort: Effort,
    seed: u64,
    depth: u32,
}

/// What came of a case.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    /// Its place in the search.
    index: usize,
    #[serde(flatten)]
    row: cases::Row,
}

impl Header for Head {
    type Row = Found;
    const WHAT: &'static str = "a search";
    const EACH: &'static str = "case";

    fn size(&self) -> usize {
        self.cases
    }

    fn place(found: &Found) -> usize {
        found.index
    }
}

impl Head {
    /// What a search of all these cases is.
    ///
    /// # Errors
    /// If a file can no longer be read.
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
                format!(
                    "{} {} {}\n",
                    case.scenario.name,
                    case.kind.name,
                    PolicyText(case.policy)
                )
            })
            .collect();
        Ok(Head {
            search: choice.names.to_vec(),
            files: files
                .map(|name| machines::read(Path::new(name)))
                .collect::<Result<_, _>>()?,
            cases: all.len(),
            digest: format!("{:016x}", digest(&named)),
            effort,
            seed: args.seed,
            depth: args.depth,
        })
    }
}

impl Found {
    /// What came of the case at that place.
    pub fn of(index: usize, case: &Case<'_>, report: &Report) -> Found {
        let row = cases::row(case, report);
        Found { index, row }
    }
}

/// Whether this first line of a file of results is that of a search.
pub fn is_search(first: &[u8]) -> bool {
    serde_json::from_slice::<Head>(first).is_ok()
}

/// Prints what there is.
pub fn print(results: &Results<Head>) -> Outcome {
    let (rows, exhaustive) = rows(results);
    output::rows(&rows, exhaustive);
    Outcome::of(&rows, exhaustive)
}

/// The same as the object that `--json` prints.
pub fn json(results: &Results<Head>) -> (serde_json::Value, Outcome) {
    let (rows, exhaustive) = rows(results);
    let outcome = Outcome::of(&rows, exhaustive);
    (serde_json::json!({ "scenarios": rows }), outcome)
}

/// What came of the cases, and whether every schedule of each was asked for.
fn rows(results: &Results<Head>) -> (Vec<cases::Row>, bool) {
    let rows = results.rows().map(|found| found.row).collect();
    let exhaustive = matches!(results.head.effort, Effort::Exhaustive(_));
    (rows, exhaustive)
}

//! What the sources say of their memory orderings.
//!
//! Above each ordering stronger than `Relaxed`, and above each fence, of the engine, of `quell-zero` and of
//! `quell-vm` stands a comment of one form:
//!
//! ```text
//! // Release pairs with `is_paid_up_to` and `outstanding`: a CPU that finds a debt paid sees the flushes done.
//! // Lost without it: a refill against a claim.
//! ```
//!
//! It names the ordering; the functions on the other side of the race, in backticks (with their type or module
//! in front where the name alone does not find them); what the two sides give each other; and the race that is
//! lost if the ordering is one step weaker, or, in backticks, the mutant of the adversary that weakens it. The
//! weaker ordering of a compare-and-exchange says `Acquire on failure pairs with …`; a fence of the machine, which
//! is no matter of atomics, says `Fence pairs with …`.
//!
//! [`read`] reads these comments and refuses what they get wrong: an ordering without a comment, a comment
//! without an ordering, a partner that does not exist, that does not name this side in turn or whose side cannot
//! be the other half (two loads pair with nothing), a race or mutant that does not exist. [`document`] writes
//! `docs/orderings.md` from them. That each race is lost indeed is tried by the test `orderings`, on the
//! orderings found here; it needs the feature `loom`:
//!
//! ```text
//! cargo test --release -p quell-orderings --features loom
//! ```

mod comment;
mod document;
mod known;
mod pairs;
mod site;
mod tokens;
mod wrong;

pub use document::document;
pub use site::{Lost, Site};
pub use tokens::{Kind, Strength};
pub use wrong::Wrong;

use std::path::Path;
use wrong::text;

/// Where the orderings are, below the root of the workspace.
const SOURCES: [&str; 3] = [
    "engine/quell/src",
    "engine/quell-zero/src",
    "testbed/vm/src",
];

/// The orderings in the sources of the workspace at `root`, in the order of files and lines.
///
/// # Errors
/// If a source cannot be read, or a comment is missing or wrong: all that is wrong, a line each.
pub fn read(root: &Path) -> Result<Vec<Site>, Wrong> {
    let mut sites = Vec::new();
    let mut wrong = Vec::new();
    for source in SOURCES {
        let files = walkdir::WalkDir::new(root.join(source)).sort_by_file_name();
        for entry in files
            .into_iter()
            .filter_entry(|entry| !is_test(entry.path()))
        {
            let entry = entry.map_err(|error| Wrong::File {
                path: root.join(source),
                error: error.into(),
            })?;
            if entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "rs")
            {
                let text = text(entry.path())?;
                let uses = tokens::orderings(&text).map_err(|error| Wrong::Source {
                    path: entry.path().to_owned(),
                    error,
                })?;
                let file = entry.path().strip_prefix(root);
                let file = file.unwrap_or(entry.path()).display().to_string();
                comment::attach(&file, uses, &text, &mut sites, &mut wrong);
            }
        }
    }
    pairs::check(&sites, &mut wrong);
    known::check(root, &sites, &mut wrong)?;
    if wrong.is_empty() {
        Ok(sites)
    } else {
        Err(Wrong::Comments(wrong))
    }
}

fn is_test(path: &Path) -> bool {
    path.file_stem().is_some_and(|name| name == "tests")
}

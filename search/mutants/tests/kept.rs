//! The list of survivors fits the engine's sources.

use quell_mutants::{kept, sources};
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn what_is_kept_is_a_mutant_and_has_a_reason() {
    let sources = sources::read(root()).expect("the engine");
    let mutants = sources::mutants(&sources);
    assert!(mutants.len() > 2000, "only {} mutants are found", mutants.len());
    let kept = kept::read(root()).expect("the list");
    if let Err(wrong) = kept::numbers(&kept, &mutants) {
        panic!("{}", wrong.join("\n"));
    }
    for entry in &kept {
        assert!(entry.reason.len() > 20, "no reason: {entry:?}");
    }
}

#[test]
fn files_that_are_left_out_are_there() {
    for (file, _) in sources::LEFT_OUT {
        let path = root().join(file);
        assert!(path.exists(), "{} is left out, and is not there", path.display());
    }
}

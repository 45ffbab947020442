//! The sources contain the piece of each mutant, and the instrumented text is Rust.

use quell_mutants::{list, tree};
use std::path::Path;

#[test]
fn every_mutant_stands_in_the_source_once() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    match tree::instrumented(root) {
        Ok(files) => {
            for (file, text) in files {
                if let Err(error) = syn::parse_file(&text) {
                    panic!("{}, instrumented, is no Rust: {error}", file.display());
                }
            }
        }
        Err(wrong) => panic!(
            "`stands` in search/mutants/mutants/*.toml and the source differ:\n{}",
            wrong.join("\n")
        ),
    }
}

#[test]
fn names_are_told_apart_and_every_mutant_has_a_comment() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut names: Vec<&str> = list::all().iter().map(|mutant| &*mutant.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for mutant in list::all() {
        let named = mutant.places.iter().any(|place| {
            let text = std::fs::read_to_string(root.join(&place.file)).expect("a source");
            text.contains(&mutant.name)
        });
        assert!(named, "no comment in the source names {}", mutant.name);
    }
}

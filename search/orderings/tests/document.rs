//! `docs/orderings.md` says what the comments at the orderings say, and wrong comments are refused.

use quell_orderings::{Wrong, document, read};
use std::path::Path;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_document_is_up_to_date() {
    let sites = read(&root()).unwrap_or_else(|wrong| panic!("{wrong}"));
    let written = std::fs::read_to_string(root().join("docs/orderings.md")).unwrap();
    assert!(
        written == document(&sites),
        "docs/orderings.md is out of date: cargo xtask orderings > docs/orderings.md"
    );
}

/// What is said of a workspace in which the engine has this source.
fn said_of(source: &str) -> String {
    let root = tempfile::tempdir().unwrap();
    for source in ["engine/quell", "engine/quell-zero", "testbed/vm"] {
        std::fs::create_dir_all(root.path().join(source).join("src")).unwrap();
    }
    std::fs::write(root.path().join("engine/quell/src/word.rs"), source).unwrap();
    let races = root.path().join("search/orderings/tests/orderings");
    std::fs::create_dir_all(&races).unwrap();
    let known = "const RACES: &[Race] = &[race(\"one\", SETUP), free(\"two\", run)];";
    std::fs::write(races.join("races.rs"), known).unwrap();
    match read(root.path()) {
        Ok(sites) => format!("{} sites", sites.len()),
        Err(Wrong::Comments(lines)) => lines.join("\n"),
        Err(wrong) => panic!("{wrong}"),
    }
}

/// A store and a load that pair.
const STORE: &str =
    "// Release pairs with `get`: because. Lost without it: one.\nself.0.store(1, Release);";
const LOAD: &str =
    "// Acquire pairs with `set`:\n// because. Lost without it: two.\nself.0.load(Acquire)";

fn both(store: &str, load: &str) -> String {
    said_of(&format!(
        "fn set(&self) {{\n{store}\n}}\nfn get(&self) -> u64 {{\n{load}\n}}\n"
    ))
}

#[test]
fn a_pair_is_read() {
    assert_eq!(both(STORE, LOAD), "2 sites");
}

#[test]
fn a_mutant_may_lose_it() {
    let store = "// Fence pairs with the walkers: because. Lost without it: `BroadcastSkipsFence`.\nhw.fence();";
    assert_eq!(said_of(&format!("fn set() {{\n{store} }}")), "1 sites");
    let store = store.replace("SkipsFence", "SkipsNothing");
    let said = said_of(&format!("fn set() {{\n{store} }}"));
    assert_eq!(
        said,
        "engine/quell/src/word.rs:3: there is no mutant `BroadcastSkipsNothing`"
    );
}

#[test]
fn an_ordering_without_a_comment_is_refused() {
    let said = both("self.0.store(1, Release);", LOAD);
    assert!(
        said.contains("word.rs:2: Release without a comment; write"),
        "{said}"
    );
    // A comment is for one ordering.
    let said = both(&format!("{STORE}\nself.0.store(2, Release);"), LOAD);
    assert!(
        said.contains("word.rs:4: Release without a comment"),
        "{said}"
    );
    // And for one that is near.
    let far = STORE.replace(
        '\n',
        "\nstep();\nstep();\nstep();\nstep();\nstep();\nstep();\nstep();\n",
    );
    let said = both(&far, LOAD);
    assert!(
        said.contains("word.rs:2: no Release follows this comment"),
        "{said}"
    );
}

#[test]
fn a_comment_about_something_else_is_refused() {
    for (store, wrong) in [
        (
            STORE.replace("Release pairs", "SeqCst pairs"),
            "is about SeqCst, the ordering that follows is Release",
        ),
        (
            STORE.replace("Release pairs", "Release on failure pairs"),
            "is about Release on failure",
        ),
        (
            STORE.replace("store(1, Release)", "store(1, Relaxed)"),
            "is about Release, the ordering that follows is Acquire",
        ),
        (STORE.replace(" Lost", " Gone"), "must have the form"),
        (
            STORE.replace("it: one", "it: three"),
            "there is no race \"three\"",
        ),
        (STORE.replace("`get`", "the load"), "names no partner"),
        (
            STORE.replace("`get`", "`fetch`"),
            "`fetch` holds no ordering above Relaxed",
        ),
        (
            STORE.replace("`get`", "`set`"),
            "nothing that could be the other half of Release",
        ),
    ] {
        let said = both(&store, LOAD);
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
}

#[test]
fn the_other_side_must_name_this_one() {
    let other = LOAD.replace("`set`", "`get`");
    let said = both(STORE, &other);
    assert!(
        said.contains("pairs with `get`, where no comment names `set` in turn"),
        "{said}"
    );
}

#[test]
fn the_other_side_must_be_the_other_half() {
    let load = "// Acquire pairs with `get`: because. Lost without it: one.\nself.0.load(Acquire);";
    let said = both(load, LOAD);
    assert!(
        said.contains("`get` has nothing that could be the other half of Acquire"),
        "{said}"
    );
}

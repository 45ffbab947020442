//! The rules, on this workspace.

use quell_layering::{crates, length, modules, width};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().expect("the workspace")
}

/// Where the crates are.
fn folders() -> [PathBuf; 2] {
    ["crates", "integrations"].map(|name| root().join(name))
}

/// Fails with what was found and is not known, and with what is known and was not found: so a list of
/// what is known can only shrink.
#[track_caller]
fn only_known(rule: &str, found: Vec<String>, known: &[&str]) {
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let known: BTreeSet<&str> = known.iter().copied().collect();
    let new: Vec<_> = found.difference(&known).collect();
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(new.is_empty(), "{rule}:\n{new:#?}");
    assert!(
        gone.is_empty(),
        "take off the list, they are mended:\n{gone:#?}"
    );
}

/// Crates whose modules are still tied in circles. Nothing may be added.
const KNOWN_CIRCLES: &[&str] = &[];

/// Long files that a program writes from sources that are shorter.
const GENERATED: &[&str] = &["crates/quell-c/include/quell.h"];

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let root = root();
    let mut found = Vec::new();
    let mut imports = 0;
    for package in crates::packages(&folders()).expect("manifests") {
        let findings = modules::of_crate(&package.folder).expect("sources");
        assert_eq!(
            findings.strays,
            [] as [PathBuf; 0],
            "files that are no module of {}",
            package.name
        );
        imports += findings.imports.len();
        for circle in findings.circles() {
            println!("{}\n", modules::describe(&circle, &root));
            found.push(package.name.clone());
        }
    }
    assert!(
        imports > 300,
        "{imports} imports: the modules were not read"
    );
    only_known("crates with circles of imports", found, KNOWN_CIRCLES);
}

#[test]
fn crates_use_only_those_before_them_in_the_architecture() {
    let root = root();
    let packages = crates::packages(&folders()).expect("manifests");
    let text = std::fs::read_to_string(root.join("docs/architecture.md")).expect("the document");
    let order = crates::order(&text);
    assert!(order.len() > 10, "{order:?}");
    let wrong = crates::disorder(&packages, &order);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a row of the table in `docs/dependencies.md` says: the crates, and the words that say what uses them.
fn dependencies() -> Vec<(Vec<String>, String)> {
    let text = std::fs::read_to_string(root().join("docs/dependencies.md")).expect("the document");
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let names = cells[1].split(", ");
        let names = names.filter_map(|name| name.split(' ').next());
        (names.map(str::to_owned).collect(), cells[3].to_owned())
    })
    .collect()
}

/// The name by which the table calls one of our crates.
fn called(package: &str) -> &str {
    match package {
        "quell-guest" => "guest",
        "trial" | "unit" => "asterinas",
        name => name.strip_prefix("quell-").unwrap_or(name),
    }
}

#[test]
fn the_table_of_dependencies_names_what_is_used_and_by_which_crates() {
    let packages = crates::packages(&folders()).expect("manifests");
    let table = dependencies();
    let mut wrong = Vec::new();
    let row = |name: &str| {
        let row = table
            .iter()
            .find(|(names, _)| names.iter().any(|known| known == name));
        row.map(|(_, by)| by.as_str())
    };
    let words = |by: &str| -> Vec<String> {
        let words = by.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.map(str::to_owned).collect()
    };
    for package in &packages {
        let own = called(&package.name);
        for name in &package.foreign {
            match row(name) {
                None => wrong.push(format!("{name} has no row")),
                Some(by) if words(by).iter().any(|word| word == own) => {}
                Some(by) => wrong.push(format!("{name} is used by {own}, too, not by {by} alone")),
            }
        }
        for name in &package.in_tests {
            if !row(name).is_some_and(|by| by.contains("tests")) {
                wrong.push(format!(
                    "the row of {name}, which {own}'s tests use, speaks of no tests"
                ));
            }
        }
    }
    for (names, by) in &table {
        for word in words(by) {
            let mut named = packages
                .iter()
                .filter(|package| called(&package.name) == word);
            let known = packages.iter().any(|package| called(&package.name) == word);
            let uses = named.any(|package| {
                let all = package.foreign.iter().chain(&package.in_tests);
                names
                    .iter()
                    .any(|name| all.clone().any(|used| used == name))
            });
            if known && !uses {
                wrong.push(format!("{names:?} is not used by {word}"));
            }
        }
        for name in names {
            let mut all = packages
                .iter()
                .flat_map(|package| package.foreign.iter().chain(&package.in_tests));
            if !all.any(|used| used == name) {
                wrong.push(format!("{name} is used by none"));
            }
        }
    }
    assert!(table.len() > 30, "{table:?}");
    assert!(wrong.is_empty(), "docs/dependencies.md: {wrong:#?}");
}

#[test]
fn long_files_say_why() {
    let root = root();
    let found = length::unexplained(&root).expect("sources");
    let name = |(path, lines): &(PathBuf, usize)| {
        println!("{}: {lines} lines", path.display());
        let path = path.strip_prefix(&root).unwrap_or(path);
        path.display().to_string()
    };
    let found = found.iter().map(name).collect();
    only_known(
        "long files whose first two paragraphs do not say `long because`",
        found,
        GENERATED,
    );
}

#[test]
fn prose_is_narrow_enough_to_be_read() {
    let root = root();
    let found = width::too_wide(&root).expect("sources");
    let found: Vec<_> = found
        .iter()
        .map(|wide| {
            let path = wide.path.strip_prefix(&root).unwrap_or(&wide.path);
            format!("{}:{}: {} columns", path.display(), wide.line, wide.columns)
        })
        .collect();
    assert!(
        found.is_empty(),
        "lines of prose with more than {} columns:\n  {}",
        width::WIDEST,
        found.join("\n  ")
    );
}

/// `cargo run --release` is the first thing that a stranger types. Where exactly one default member names a binary to
/// run, cargo builds that and what it stands on, and nothing else; where none or two do, it builds all default members,
/// and refuses to choose.
#[test]
fn there_is_one_command_to_run() {
    let root = root();
    let read = |folder: &Path| -> toml::Table {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        manifest.parse().expect("a manifest")
    };
    let manifest = read(&root);
    let members = manifest["workspace"]["default-members"].as_array();
    let members = members.expect("a list").iter();
    let named: Vec<_> = members
        .map(|folder| folder.as_str().expect("a folder"))
        .filter_map(|folder| {
            let own = read(&root.join(folder));
            let run = own["package"]
                .get("default-run")?
                .as_str()
                .map(str::to_owned);
            Some((folder, run.expect("a name")))
        })
        .collect();
    assert_eq!(named, [("crates/quell-cli", "quell".to_owned())]);
}

/// A crate that is added must not be left out of `cargo test` unnoticed.
#[test]
fn what_cargo_test_leaves_out_is_a_step_of_xtask() {
    let root = root();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file");
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    let list = |name: &str| -> BTreeSet<String> {
        let list = manifest["workspace"][name].as_array().expect("a list");
        let names = list.iter().map(|name| name.as_str().expect("a folder"));
        names.map(str::to_owned).collect()
    };
    let steps = read("crates/xtask/src/steps.rs");
    // The command itself, what is only built, by `cargo clippy --all-targets` and by `cargo bench`, and what is tested
    // from Python, by the step `python`.
    let known = [
        "crates/xtask",
        "crates/quell-benches",
        "crates/quell-python",
    ];
    for folder in list("members").difference(&list("default-members")) {
        let name = folder.rsplit('/').next().expect("a name");
        assert!(
            known.contains(&folder.as_str()) || steps.contains(&format!("\"{name}\"")),
            "neither `cargo test` nor `cargo xtask ci` tests {folder}"
        );
    }
}

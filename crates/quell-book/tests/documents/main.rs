//! The documents agree with each other and with the source: links, files, names, lists.

mod duties;
mod markdown;
mod readme;
mod recipes;

use markdown::{Document, documents, root};
use quell_adversary::Mistake;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Fails with all of what is wrong.
#[track_caller]
fn none(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect(path)
}

/// The files of the source, target folders aside.
fn files() -> impl Iterator<Item = PathBuf> {
    let all = WalkDir::new(root().join("crates")).into_iter();
    all.filter_entry(|entry| entry.file_name() != "target")
        .map(|entry| entry.expect("a file"))
        .filter(|entry| entry.file_type().is_file())
        .map(walkdir::DirEntry::into_path)
}

#[test]
fn every_document_is_a_chapter_of_the_book() {
    let documents = documents();
    let summary = documents.get(Path::new("docs/SUMMARY.md")).expect("it");
    let mut chapters = BTreeMap::new();
    for link in &summary.links {
        let path = Path::new("docs").join(&link.to);
        *chapters.entry(path).or_insert(0) += 1;
    }
    let mut wrong = Vec::new();
    for (chapter, times) in &chapters {
        if *times > 1 {
            wrong.push(format!("{} stands in it {times} times", chapter.display()));
        }
    }
    for path in documents.keys() {
        let document = path.starts_with("docs") && !path.ends_with("SUMMARY.md");
        if document && !chapters.contains_key(path) {
            wrong.push(format!("{} is missing", path.display()));
        }
    }
    none("docs/SUMMARY.md lists each document of docs/ once", &wrong);
}

#[test]
fn the_readme_names_every_document() {
    let documents = documents();
    let linked: BTreeSet<_> = documents[Path::new("README.md")]
        .links
        .iter()
        .map(|link| link.to.split('#').next().unwrap_or_default().to_owned())
        .collect();
    let wrong: Vec<_> = documents
        .keys()
        .map(|path| path.display().to_string())
        .filter(|path| path.starts_with("docs/") && path != "docs/SUMMARY.md")
        .filter(|path| !linked.contains(path))
        .collect();
    none("README.md has a table of documents; not there", &wrong);
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    let mut wrong = Vec::new();
    let mut followed = 0;
    for (path, document) in &documents {
        let folder = path.parent().unwrap_or(Path::new(""));
        for link in &document.links {
            if link.to.contains("://") {
                continue;
            }
            followed += 1;
            let mut complain = |why: &str| {
                let Document { text, .. } = document;
                let line = 1 + text[..link.at].matches('\n').count();
                wrong.push(format!("{}:{line}: {}: {why}", path.display(), link.to));
            };
            let (file, anchor) = match link.to.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (link.to.as_str(), None),
            };
            let target = match file {
                "" => path.clone(),
                file => markdown::normal(&folder.join(file)),
            };
            if !root().join(&target).exists() {
                complain("there is no such file");
            } else if path.starts_with("docs") && !target.starts_with("docs") {
                complain("leads out of the book: name the file in `code` instead");
            } else if let Some(anchor) = anchor {
                match documents.get(&target) {
                    None => complain("anchors are checked in documents alone"),
                    Some(there) if !there.anchors.contains(anchor) => complain("no such heading"),
                    Some(_) => {}
                }
            }
        }
    }
    none("links that lead nowhere", &wrong);
    assert!(
        followed > 60,
        "{followed} links: the documents were not read"
    );
}

/// Whether a path of a document exists: from the root, or as people shorten it.
fn exists(path: &str) -> bool {
    let places = ["", "crates", "docs"];
    let exists = |place: &&str| root().join(place).join(path).exists();
    places.iter().any(exists)
}

#[test]
fn files_that_are_named_exist() {
    let known = ["crates", "docs", "machines", "scripts"];
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (path, document) in documents() {
        for code in &document.code {
            let word = code.trim_end_matches('/');
            let first = word.split('/').next().unwrap_or_default();
            let ours = known.contains(&first) || first.starts_with("quell-") || first == "quell";
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if !word.contains('/') || !ours || !word.chars().all(plain) {
                continue;
            }
            looked += 1;
            if !exists(word) {
                wrong.push(format!("{}: `{code}`", path.display()));
            }
        }
    }
    none("no such file", &wrong);
    assert!(looked > 60, "{looked} files: the documents were not read");
}

/// Whether a word looks like a type of ours: `FlushInfo`. Capitals alone are an instruction or a feature.
fn camel(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().filter(char::is_ascii_uppercase).count() > 1
        && word.contains(|c: char| c.is_ascii_lowercase())
}

#[test]
fn names_of_the_source_that_are_mentioned_are_there() {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut there = BTreeSet::new();
    for file in files() {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&file).expect("a source file");
            let words = text.split(|c| !letter(c)).filter(|word| !word.is_empty());
            there.extend(words.map(str::to_owned));
        }
    }
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (path, document) in documents() {
        for code in &document.code {
            let name = code.split(['(', '<', '{', ' ']).next().unwrap_or_default();
            let parts: Vec<_> = name.split("::").collect();
            let a_name = parts
                .iter()
                .all(|part| !part.is_empty() && part.chars().all(letter));
            if !a_name || parts.len() == 1 && !camel(name) {
                continue;
            }
            looked += 1;
            if parts.iter().any(|part| !there.contains(*part)) {
                wrong.push(format!("{}: `{code}`", path.display()));
            }
        }
    }
    none("the source has no such name", &wrong);
    assert!(looked > 300, "{looked} names: the documents were not read");
}

#[test]
fn code_of_the_chapters_is_compiled() {
    let list = read("crates/quell-book/src/lib.rs");
    let mut wrong = Vec::new();
    for (path, document) in documents() {
        let Ok(chapter) = path.strip_prefix("docs") else {
            continue;
        };
        let listed = list.contains(&format!("\"{}\"", chapter.display()));
        let compiled = document.blocks.iter().any(|block| block == "rust");
        if compiled != listed {
            wrong.push(format!("{} (has code: {compiled})", path.display()));
        }
        // rustdoc takes a block without a language for Rust.
        if listed && document.blocks.iter().any(String::is_empty) {
            wrong.push(format!("{}: a block without a language", path.display()));
        }
    }
    none(
        "crates/quell-book/src/lib.rs lists the chapters with `rust` blocks, and no other",
        &wrong,
    );
}

#[test]
fn what_is_included_is_there() {
    let mut wrong = Vec::new();
    for (path, document) in documents() {
        let folder = path.parent().unwrap_or(Path::new(""));
        for include in document.text.split("{{#include ").skip(1) {
            let file = include.split("}}").next().unwrap_or_default();
            let (file, anchor) = file.split_once(':').unwrap_or((file, ""));
            let text = std::fs::read_to_string(root().join(folder).join(file));
            let anchor = format!("ANCHOR: {anchor}");
            if !text.is_ok_and(|text| anchor == "ANCHOR: " || text.contains(&anchor)) {
                wrong.push(format!("{}: {file}, {anchor}", path.display()));
            }
        }
    }
    none("no such file or anchor", &wrong);
}

#[test]
fn steps_of_xtask_that_are_mentioned_exist() {
    let steps = read("crates/xtask/src/steps.rs");
    let mut wrong = Vec::new();
    for (path, document) in documents() {
        for step in document.text.split("cargo xtask ci ").skip(1) {
            let letters = |c: char| !c.is_ascii_alphanumeric();
            let step = step.split(letters).next().unwrap_or_default();
            if !step.is_empty() && !steps.contains(&format!("name: \"{step}\"")) {
                wrong.push(format!("{}: {step}", path.display()));
            }
        }
    }
    none("no such step", &wrong);
}

#[test]
fn the_lists_of_mutants_are_complete() {
    the_list_is_complete("docs/mutants.md", "explore --mutants --markdown");
    the_list_is_complete(
        "docs/survival.md",
        "explore --generate --mutants --minutes 10 --markdown",
    );
}

fn the_list_is_complete(document: &str, command: &str) {
    let text = read(document);
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
    let listed: BTreeSet<String> = text.lines().filter_map(cell).collect();
    let missing = Mistake::all()
        .filter(|mistake| !listed.contains(mistake.name()))
        .map(|mistake| format!("{} is missing", mistake.name()));
    let strange = listed
        .iter()
        .filter(|name| camel(name) && Mistake::named(name).is_none())
        .map(|name| format!("{name} is no mutant"));
    let wrong: Vec<_> = missing.chain(strange).collect();
    none(
        &format!("{document} is behind: `quell {command}` prints it"),
        &wrong,
    );
}

#[test]
fn what_a_boot_shows_is_said_of_every_rule_of_the_engine() {
    let text = read("docs/boot.md");
    let wrong: Vec<_> = quell::rules::ALL
        .iter()
        .filter(|rule| !text.contains(&format!("`{}`", rule.name)))
        .map(|rule| rule.name.to_owned())
        .collect();
    none(
        "docs/boot.md says whether a boot without the rule fails, in the table or below it",
        &wrong,
    );
}

#[test]
fn the_guards_name_every_mutant() {
    let documents = documents();
    let guards = &documents[Path::new("docs/guards.md")].text;
    let named: Vec<&str> = guards
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '…'))
        .filter(|word| !word.is_empty())
        .collect();
    let stands_for = |word: &str, name: &str| match word.split_once('…') {
        Some((begin, end)) => begin.len() > 1 && name.starts_with(begin) && name.ends_with(end),
        None => word == name,
    };
    let wrong: Vec<String> = Mistake::all()
        .map(|mistake| mistake.name().to_owned())
        .filter(|name| !named.iter().any(|word| stands_for(word, name)))
        .collect();
    none(
        "docs/guards.md says what each guard costs, or why a mutant is not in its table; not there",
        &wrong,
    );
}

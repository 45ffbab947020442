//! What the contract assumes of the embedder: each duty of the interface stands in the list, and what is said to notice
//! a breach exists.

use crate::recipes::defined;
use crate::{files, none, read};
use quell_adversary::Mistake;

/// A duty, and what notices that it is not done.
struct Row {
    duty: String,
    noticed: String,
}

fn rows() -> Vec<Row> {
    let text = read("docs/duties.md");
    let chapters = text.split("\n## ").skip(1);
    let chapters = chapters.filter_map(|chapter| chapter.split("\n### ").next());
    let items = chapters.flat_map(|chapter| chapter.split("\n* ").skip(1));
    items
        .map(|item| {
            let (duty, noticed) = item.split_once("*Noticed by:*").unwrap_or((item, ""));
            Row {
                duty: duty.trim().to_owned(),
                noticed: noticed.trim().to_owned(),
            }
        })
        .collect()
}

/// What stands in code font.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn what_notices_a_breach_exists() {
    let sources: Vec<String> = files()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !path.ends_with("tests/documents/duties.rs"))
        .map(|path| std::fs::read_to_string(path).expect("a source file"))
        .collect();
    let is_check = |word: &str| {
        sources[..]
            .iter()
            .any(|text| text.contains(&format!(" {word}\"")))
    };
    let mut wrong = Vec::new();
    let mut looked = 0;
    for Row { duty, noticed } in rows() {
        let mut names = 0;
        for name in code(&noticed) {
            names += 1;
            let exists = |part: &str| {
                Mistake::named(part).is_some() || defined(part, &sources) || is_check(part)
            };
            if !name.split("::").all(exists) {
                wrong.push(format!("`{name}` of: {duty}"));
            }
        }
        looked += names;
        let honest = ["the compiler", "harmless", "types"];
        if names == 0 && !honest.iter().any(|word| noticed.contains(word)) {
            wrong.push(format!("it is not said what notices: {duty}"));
        }
    }
    none("docs/duties.md names what is not there", &wrong);
    assert!(looked > 80, "{looked} names: the list was not read");
}

#[test]
fn every_duty_of_the_interface_is_listed() {
    let duties: Vec<Row> = rows();
    let named = |name: &str| {
        duties
            .iter()
            .any(|row| code(&row.duty).any(|code| code == name))
    };
    let interface = read("crates/quell/src/hardware.rs");
    let mut wrong = Vec::new();
    let mut looked = 0;
    for of in ["Hardware", "Broadcast"] {
        let begin = interface.find(&format!("trait {of}"));
        let body = &interface[begin.expect("the trait")..];
        let body = &body[..body.find("\n}").expect("its end")];
        let mut hidden = false;
        for line in body.lines().filter_map(|line| line.strip_prefix("    ")) {
            hidden |= line.contains("#[doc(hidden)]");
            let item = ["unsafe fn ", "fn ", "const ", "type "]
                .iter()
                .find_map(|kind| line.strip_prefix(kind));
            let Some(item) = item else { continue };
            let name = item
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next();
            let name = format!("{of}::{}", name.unwrap_or_default());
            looked += 1;
            if !hidden && !named(&name) {
                wrong.push(name);
            }
            hidden = false;
        }
    }
    // What callers promise.
    for file in files().filter(|path| path.to_string_lossy().contains("crates/quell/src/")) {
        let text = std::fs::read_to_string(&file).expect("a source file");
        for function in text.split("pub unsafe fn ").skip(1) {
            let name = function.split('(').next().unwrap_or_default();
            looked += 1;
            if !named(&format!("Engine::{name}")) {
                wrong.push(format!("Engine::{name}"));
            }
        }
    }
    none(
        "docs/duties.md says of each duty what notices a breach; not of",
        &wrong,
    );
    assert!(looked > 30, "{looked} items: the interface was not read");
}

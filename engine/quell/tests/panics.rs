//! The crate's first page lists every panic: its list and the `# Panics` sections of the calls say the same.
//!
//! In a section each sentence is one panic, "If …" or "In debug builds, if …", up to a colon, behind which a reason may
//! stand. A line of the list is such a sentence and, behind a colon, the calls that have it.

use std::collections::BTreeSet;
use std::path::Path;

/// A call, as in `Engine::retire`, and when it panics.
type Panic = (String, String);

fn source() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the source");
    let paths = entries.map(|entry| entry.expect("a file").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![std::fs::read_to_string(path).expect("a source file")],
        })
        .collect()
}

/// The text without where its links lead: `[`a`](b)` is `a`.
fn plain(text: &str) -> String {
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += part.split_once(')').expect("the end of a link").1;
    }
    plain.replace(['[', ']', '`'], "")
}

/// The name of the type or trait that a block of items belongs to, by its first line.
fn owner(line: &str) -> Option<String> {
    let rest = ["impl", "pub trait ", "pub unsafe trait "]
        .iter()
        .find_map(|start| line.strip_prefix(start))?;
    // Behind the parameters of `impl<…>`.
    let mut depth = 0;
    let begin = rest.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && c != '>'
    })?;
    let name = rest[begin..].trim_start();
    let end = name.find(|c: char| !c.is_alphanumeric())?;
    Some(name[..end].to_owned())
}

/// What the sections of a file say.
fn said(text: &str, panics: &mut BTreeSet<Panic>) {
    let (mut of, mut doc) = (String::new(), Vec::new());
    for line in text.lines() {
        of = owner(line).unwrap_or(of);
        let line = line.trim_start();
        if let Some(said) = line.strip_prefix("///") {
            doc.push(said.trim());
        } else if !line.starts_with("#[") {
            let sections = doc.join(" ");
            let section = sections.split("# Panics ").nth(1);
            let section = section.map(|section| section.split(" # ").next().unwrap_or_default());
            doc.clear();
            let call = line.strip_prefix("pub ").unwrap_or(line);
            let call = call.strip_prefix("unsafe ").unwrap_or(call);
            let (Some(section), Some(call)) = (section, call.strip_prefix("fn ")) else {
                continue;
            };
            let name = call.split(['(', '<']).next().unwrap_or_default();
            for sentence in plain(section).split_terminator('.') {
                let when = sentence.split(": ").next().unwrap_or_default().trim();
                panics.insert((format!("{of}::{name}"), when.to_owned()));
            }
        }
    }
}

/// What the first page says.
fn listed() -> BTreeSet<Panic> {
    let page = std::fs::read_to_string(source().join("lib.rs")).expect("the first page");
    let list = page.split("//! # Panics\n").nth(1).expect("the chapter");
    let list = list.split("Every call of").next().unwrap_or_default();
    let list = list.replace("\n//!  ", " ");
    let lines = list.lines().filter_map(|line| line.strip_prefix("//! * "));
    lines
        .flat_map(|line| {
            let line = plain(&line.split_whitespace().collect::<Vec<_>>().join(" "));
            let (when, calls) = line.split_once(": ").expect("the calls behind a colon");
            let calls = calls.split(", ").map(str::to_owned);
            calls
                .map(|call| (call, when.to_owned()))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_first_page_lists_every_panic_and_every_call_says_its_own() {
    let mut panics = BTreeSet::new();
    for file in files(&source()) {
        said(&file, &mut panics);
    }
    let listed = listed();
    let unlisted: Vec<_> = panics.difference(&listed).collect();
    let unsaid: Vec<_> = listed.difference(&panics).collect();
    assert!(
        unlisted.is_empty() && unsaid.is_empty(),
        "not on the first page: {unlisted:#?}\nnot in the call's section: {unsaid:#?}"
    );
    assert!(panics.len() > 20, "{panics:?}");
}

#[test]
fn sections_are_read_as_they_are_written() {
    let mut panics = BTreeSet::new();
    said(
        "impl<'m, H: Of<'m>> Pot<H> {\n    /// Fills.\n    ///\n    /// # Panics\n    /// If it is full: it runs over. In \
         debug builds, if\n    /// [`Hob`](a::Hob) is hot.\n    #[inline]\n    pub fn fill(&self) {\n    }\n    /// # Panics\n    \
         /// If it is hot.\n    pub(crate) fn take(&self) {\n",
        &mut panics,
    );
    let panics: Vec<_> = panics
        .iter()
        .map(|(call, when)| (&**call, &**when))
        .collect();
    let expected = ["If it is full", "In debug builds, if Hob is hot"];
    assert_eq!(panics, expected.map(|when| ("Pot::fill", when)));
}

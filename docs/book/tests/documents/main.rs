//! Every document is a chapter, and every link leads somewhere.

mod markdown;

use markdown::{Document, documents, root};
use std::collections::BTreeMap;
use std::path::Path;

/// Fails with all of what is wrong.
#[track_caller]
fn none(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
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

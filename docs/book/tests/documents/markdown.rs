//! The documents, as a reader of Markdown sees them: links, headings, words in code font, blocks.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// A link.
pub struct Link {
    /// Where it leads.
    pub to: String,
    /// Where it stands.
    pub at: usize,
}

/// One document.
#[derive(Default)]
pub struct Document {
    /// All of it.
    pub text: String,
    /// Its links.
    pub links: Vec<Link>,
    /// What links may name behind a `#`: the headings, as mdBook and forges write them.
    pub anchors: BTreeSet<String>,
}

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().expect("the workspace")
}

/// The path without `.` and `..`.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// A heading as an anchor.
fn anchor(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    heading.to_lowercase().chars().filter_map(kept).collect()
}

fn parse(text: String) -> Document {
    let mut document = Document::default();
    let mut heading: Option<String> = None;
    for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => document.links.push(Link {
                to: dest_url.into_string(),
                at: range.start,
            }),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let heading = heading.take();
                document.anchors.extend(heading.map(|text| anchor(&text)));
            }
            Event::Text(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            _ => {}
        }
    }
    document.text = text;
    document
}

/// The documents by their paths from the root: those of `docs/`, and those beside the source.
pub fn documents() -> BTreeMap<PathBuf, Document> {
    let root = root();
    let mut paths = vec![
        root.join("README.md"),
        root.join("CHANGELOG.md"),
        root.join("kernels/quell/README.md"),
    ];
    let docs = walkdir::WalkDir::new(root.join("docs")).into_iter();
    paths.extend(docs.map(|entry| entry.expect("a file").into_path()));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut documents = BTreeMap::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a document");
        let name = path.strip_prefix(&root).expect("below the root").to_owned();
        documents.insert(name, parse(text));
    }
    documents
}

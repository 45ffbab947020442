//! `quell` accepts every command in the documents, and the documents' links lead somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::command::{ended, quell};

/// Returns the files with this extension in a folder and below it.
fn files_below(folder: PathBuf, extension: &str) -> Vec<PathBuf> {
    let mut folders = vec![folder];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("a file").path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the documents: the README and everything below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut documents = files_below(root().join("docs"), "md");
    documents.push(root().join("README.md"));
    documents
}

/// A name with four underscores is that of a test, a check, or a function of Linux that we watch.
#[test]
fn tests_that_documents_name_exist() {
    let folders = ["cli", "engine", "model", "profiler", "search", "testbed"];
    let sources = folders.iter().flat_map(|folder| files_below(root().join(folder), "rs"));
    let sources: Vec<_> = sources.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let mut named = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document");
        let is_test = |name: &&str| {
            name.matches('_').count() >= 4
                && !name.starts_with('_')
                && name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
        };
        for name in text.split('`').skip(1).step_by(2).filter(is_test) {
            named += 1;
            let exists = sources.iter().any(|source| source.contains(name));
            assert!(exists, "{}: there is no test {name}", path.display());
        }
    }
    assert!(named > 20, "only {named} tests are named");
}

/// Returns the commands in a document: lines of code blocks, and text in code font.
fn commands(text: &str) -> Vec<String> {
    // A command may go on in the next line.
    let text = text.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ");
    let blocks = text.split("\n```").skip(1).step_by(2).flat_map(str::lines);
    let indented = text.lines().filter(|line| line.starts_with("    "));
    let lines = blocks.chain(indented).map(str::trim);
    let spans = text.split('`').skip(1).step_by(2);
    let arguments = |text: &str| {
        let text = text.split(" #").next()?.split("  ").next()?;
        let rest = text.strip_prefix("quell ").or_else(|| {
            let rest = text.strip_prefix("cargo run ")?;
            let (options, rest) = rest.split_once("-- ")?;
            let of_ours = options == "--release " || options.contains("quell-cli");
            of_ours.then_some(rest)
        })?;
        let rest = rest.split(['>', ';']).next()?;
        // The author left a part out.
        let whole = !rest.contains('…') && !rest.contains("...");
        whole.then(|| rest.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    lines.chain(spans).filter_map(arguments).collect()
}

/// Fails if a part of a document is wrong. `parts` returns the reason or `None` for each. There must be more than
/// `least` parts.
fn check(least: usize, parts: impl Fn(&Path, &str) -> Vec<Option<String>>) {
    let found = documents().into_iter().flat_map(|path| {
        let found = parts(&path, &std::fs::read_to_string(&path).expect("a document"));
        let named = |why: String| format!("{}: {why}", path.display());
        found.into_iter().map(|why| why.map(named)).collect::<Vec<_>>()
    });
    let found: Vec<_> = found.collect();
    let wrong: Vec<_> = found.iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(found.len() > least, "{} parts: the documents were not read", found.len());
}

#[test]
fn commands_in_the_documents_are_taken() {
    check(60, |_, text| {
        let refused = |command: String| {
            // With `--help`, the command parses these words and then prints help. Words after `--` belong to another
            // program.
            let words = command.split(' ').take_while(|word| *word != "--");
            let words = words.map(|word| match word.trim_matches('\'') {
                "N" | "M" => "1",
                "P" => "all",
                "WORKLOAD" => "dontneed",
                "SHELL" => "bash",
                "COMMAND" => "list",
                word => word,
            });
            let help = ended(quell("").args(words).arg("--help"));
            let why = help.stderr.lines().next().unwrap_or_default();
            (help.code != Some(0)).then(|| format!("quell {command}: {why}"))
        };
        commands(text).into_iter().map(refused).collect()
    });
}

#[test]
fn the_readme_names_every_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("README.md")).expect("the README");
    let command = quell_cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let names: Vec<_> = names.filter(|name| *name != "help").collect();
    let missing = names.iter().filter(|name| {
        let ways = [format!("`quell {name}"), format!("`{name}`")];
        !ways.iter().any(|way| text.contains(way.as_str()))
    });
    assert_eq!(missing.collect::<Vec<_>>(), [] as [&&str; 0]);
    assert!(names.len() > 10, "{names:?}");
}

/// Returns the anchors that mdBook and forges make from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.replace(' ', "-");
        kept.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "")
    };
    headings.map(anchor).collect()
}

/// Returns a document's links within the repository: the file, and the heading if the link has one.
fn links(path: &Path, text: &str) -> Vec<(PathBuf, String)> {
    let outside_of_blocks = text.split("\n```").step_by(2).collect::<String>();
    let targets = outside_of_blocks.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let inside = targets.filter(|target| !target.contains("://") && !target.contains('`'));
    let resolve = |target: &str| {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = match file {
            "" => path.to_owned(),
            file => path.parent().expect("a folder").join(file),
        };
        (file, anchor.to_owned())
    };
    inside.map(resolve).collect()
}

#[test]
fn links_lead_somewhere_and_every_document_is_a_chapter() {
    let summary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/SUMMARY.md");
    let text = std::fs::read_to_string(&summary).expect("a document");
    let chapters = links(&summary, &text).into_iter();
    let chapters: BTreeSet<_> = chapters.filter_map(|(file, _)| file.canonicalize().ok()).collect();
    check(60, |path, text| {
        let broken = |(target, anchor): (PathBuf, String)| {
            let Ok(file) = target.canonicalize() else {
                return Some(format!("no {}", target.display()));
            };
            let there = || std::fs::read_to_string(&file).expect("a document");
            (!anchor.is_empty() && !anchors(&there()).contains(&anchor))
                .then(|| format!("no heading {anchor} in {}", target.display()))
        };
        let outside = path.ends_with("README.md") || path.ends_with("SUMMARY.md");
        let is_chapter = chapters.contains(&path.canonicalize().expect("a document"));
        let lost = (!outside && !is_chapter).then(|| "not in docs/SUMMARY.md".to_owned());
        links(path, text).into_iter().map(broken).chain([lost]).collect()
    });
}

/// Returns the files that a document includes, each with the name of the included part, or "" for the whole file.
fn includes(text: &str) -> Vec<(&str, &str)> {
    let included = text.split("{{#include ").skip(1);
    let included = included.filter_map(|rest| rest.split_once("}}"));
    included.map(|(source, _)| source.split_once(':').unwrap_or((source, ""))).collect()
}

#[test]
fn included_parts_of_sources_exist() {
    check(3, |path, text| {
        let lacking = |(file, part): (&str, &str)| {
            let source = path.parent().expect("a folder").join(file);
            let source = std::fs::read_to_string(source).unwrap_or_default();
            let has = |mark: &str| {
                let mark = format!("// {mark}: {part}");
                source.lines().any(|line| line.trim() == mark)
            };
            let exists = match part {
                "" => !source.is_empty(),
                _ => has("ANCHOR") && has("ANCHOR_END"),
            };
            (!exists).then(|| format!("no {file}:{part}"))
        };
        includes(text).into_iter().map(lacking).collect()
    });
}

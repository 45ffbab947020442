//! The commands that the documents tell a reader to type are commands that `quell` takes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The documents: the README, and what is below `docs`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join("docs")];
    let mut found = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("a file").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => found.push(path),
                _ => {}
            }
        }
    }
    found
}

/// The commands of a document: lines of its blocks of code, and what stands in code font.
fn commands(text: &str) -> Vec<String> {
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
        // Left out by the author.
        let whole = !rest.contains('…') && !rest.contains("...");
        whole.then(|| rest.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    lines.chain(spans).filter_map(arguments).collect()
}

#[test]
fn commands_in_the_documents_are_taken() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document");
        for command in commands(&text) {
            // Read up to here, then help is printed instead of doing it. Words behind `--` are another program's.
            let words = command
                .split(' ')
                .take_while(|word| *word != "--")
                .map(|word| match word.trim_matches('\'') {
                    "N" | "M" => "1",
                    "P" => "all",
                    "WORKLOAD" => "dontneed",
                    "SHELL" => "bash",
                    "COMMAND" => "list",
                    word => word,
                });
            let output = Command::new(env!("CARGO_BIN_EXE_quell"))
                .args(words)
                .arg("--help")
                .output()
                .expect("quell starts");
            tried += 1;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let why = said.lines().next().unwrap_or_default();
                wrong.push(format!("{}: quell {command}: {why}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 60, "{tried} commands: the documents were not read");
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

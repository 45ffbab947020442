//! Builds the tests and the trial with all mutants that compile.
//!
//! The compiler decides whether a mutant is well typed: the mutants at an error are removed, and it runs again. They
//! are reported apart from those that were tried.

use crate::points::Piece;
use crate::sources::Source;
use crate::tree::{self, MutantPlaces, Place};
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Creates a cargo command in the copy, with its own build folder. Packages at the same place in two workspaces have
/// the same name, so the mutated engine would otherwise replace the engine.
fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let target = root.join("target/mutants/derived/build");
    command
        .current_dir(tree::derived(root))
        .args(arguments)
        .args(["--locked", "--message-format=json"])
        .env("CARGO_TARGET_DIR", target);
    command
}

/// Writes the mutated files so that they compile. Returns the mutants that were taken out for that, and why.
///
/// # Errors
/// If the engine doesn't compile for another reason than its mutants.
pub fn compile(root: &Path, sources: &[Source]) -> io::Result<BTreeMap<u32, String>> {
    // We keep the compiler's errors for the next run with the same sources.
    let kept = root.join("target/mutants/derived/untyped.json");
    let mut hasher = DefaultHasher::new();
    for source in sources {
        (&source.file, &source.text, source.points.len()).hash(&mut hasher);
    }
    let of = hasher.finish();
    let before: Option<(u64, BTreeMap<u32, String>)> =
        fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let mut errors =
        before.filter(|(same, _)| *same == of).map(|(_, errors)| errors).unwrap_or_default();
    loop {
        let places = tree::mutate(root, sources, &errors.keys().copied().collect())?;
        let mut check = cargo(root, &["check", "--quiet", "--package", "quell-vm", "--lib"]);
        let checked = check.stderr(Stdio::null()).output()?;
        if checked.status.success() {
            fs::write(kept, serde_json::to_vec(&(of, &errors))?)?;
            return Ok(errors);
        }
        let known = errors.len();
        let mut said = Vec::new();
        for message in String::from_utf8_lossy(&checked.stdout).lines() {
            let message: Value = serde_json::from_str(message)?;
            let message = &message["message"];
            if message["level"] == "error" {
                let why = message["message"].as_str().unwrap_or_default();
                said.push(message["rendered"].as_str().unwrap_or(why).to_string());
                for number in blamed(message, &places) {
                    errors.insert(number, why.to_string());
                }
            }
        }
        if errors.len() == known {
            let said = said.join("\n");
            return Err(io::Error::other(format!(
                "the copy with the mutants does not compile:\n{said}"
            )));
        }
    }
}

/// Returns the mutants to blame for a compiler message.
///
/// In this order: those whose inserted text contains the message's place, those of the innermost piece around it, those
/// inserted inside it, and the next ones after it. But if a value was used after it was moved or while it was borrowed,
/// we blame the next mutant that keeps control from leaving. A mutant blamed in error is lost, and the compiler runs
/// again.
fn blamed(message: &Value, places: &MutantPlaces) -> Vec<u32> {
    let mut spans: Vec<(&[Place], Range<usize>)> = Vec::new();
    for span in message["spans"].as_array().into_iter().flatten() {
        let file = span["file_name"].as_str().unwrap_or_default();
        let [start, end] =
            ["byte_start", "byte_end"].map(|name| span[name].as_u64().unwrap_or_default() as usize);
        if let Some(places) = places.get(file) {
            let place = if span["is_primary"] == true { 0 } else { spans.len() };
            spans.insert(place, (places, start..end));
        }
    }
    if GONE.iter().any(|code| message["code"]["code"] == *code) {
        let found = spans.iter().flat_map(|(places, span)| {
            let after = places.iter().filter(|place| {
                place.stays && place.piece.inserted && place.piece.at.start >= span.start
            });
            after.map(move |place| (place.piece.at.start - span.start, &place.numbers))
        });
        if let Some((_, numbers)) = found.min() {
            return numbers.clone();
        }
    }
    type Condition = fn(&Piece, &Range<usize>) -> bool;
    let ways: [Condition; 4] = [
        |piece, span| piece.inserted && piece.at.contains(&span.start),
        |piece, span| !piece.inserted && piece.at.start <= span.start && span.end <= piece.at.end,
        |piece, span| piece.inserted && span.contains(&piece.at.start),
        |piece, span| piece.inserted && span.end <= piece.at.start,
    ];
    for (way, fits) in ways.into_iter().enumerate() {
        for (places, span) in &spans {
            let far = |piece: &Piece| {
                if way == 3 { piece.at.start } else { piece.at.len() }
            };
            let found = places.iter().filter(|place| fits(&place.piece, span));
            if let Some(place) = found.min_by_key(|place| far(&place.piece)) {
                return place.numbers.clone();
            }
        }
    }
    Vec::new()
}

/// The compiler's codes for a value that was moved, or is borrowed.
const GONE: [&str; 5] = ["E0382", "E0499", "E0502", "E0505", "E0506"];

/// A program with tests of a crate.
#[derive(Debug)]
pub struct Tests {
    /// The crate's folder in the copy.
    pub folder: PathBuf,
    /// The program.
    pub program: PathBuf,
}

/// The programs that judge mutants.
#[derive(Debug)]
pub struct JudgePrograms {
    /// The tests of the mutated crates and of the one with the entry formats.
    pub tests: Vec<Tests>,
    /// The program that runs the adversary's cases, if requested.
    pub trial: Option<PathBuf>,
}

/// Builds the judges, including the adversary if `cases` is set.
///
/// # Errors
/// If it does not compile.
pub fn judges(root: &Path, cases: bool) -> io::Result<JudgePrograms> {
    let packages = ["quell", "quell-arch", "quell-zero", "quell-vm"];
    let packages = packages.iter().flat_map(|name| ["--package", name]);
    // `--tests` would leave out the manager's, as `cargo test` does.
    let arguments = ["test", "--lib", "--test", "*", "--no-run"].into_iter().chain(packages);
    let tests = built(root, &arguments.collect::<Vec<_>>())?;
    let tests = tests.into_iter().map(|(_, tests)| tests).collect();
    if !cases {
        return Ok(JudgePrograms { tests, trial: None });
    }
    let trial = built(
        root,
        &["build", "--package", "quell-adversary", "--bin", "quell-judge", "--features", "judge"],
    )?;
    let trial = trial.into_iter().find(|(name, _)| name == "quell-judge");
    let (_, Tests { program: trial, .. }) =
        trial.ok_or_else(|| io::Error::other("cargo has built no quell-judge"))?;
    Ok(JudgePrograms { tests, trial: Some(trial) })
}

/// Returns the programs that a call of cargo builds, with their names.
fn built(root: &Path, arguments: &[&str]) -> io::Result<Vec<(String, Tests)>> {
    let output = cargo(root, arguments).stderr(Stdio::inherit()).output()?;
    let mut programs = Vec::new();
    for message in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(message)?;
        if let Some(rendered) = message["message"]["rendered"].as_str()
            && message["message"]["level"] == "error"
        {
            eprintln!("{rendered}");
        }
        if let (Some(name), Some(program), Some(manifest)) = (
            message["target"]["name"].as_str(),
            message["executable"].as_str(),
            message["manifest_path"].as_str(),
        ) {
            let tests =
                Tests { folder: Path::new(manifest).with_file_name(""), program: program.into() };
            programs.push((name.to_string(), tests));
        }
    }
    if !output.status.success() {
        return Err(io::Error::other("what decides on mutants does not build"));
    }
    Ok(programs)
}

//! Runs the tests and the adversary's cases on one mutant after the other.
//!
//! Each mutant runs in its own processes until one fails. These are some schedules of each of the adversary's cases,
//! more schedules of cases with all mechanisms on, generated programs, and the tests of the mutant's crate. We skip tests
//! and cases in which a mutant makes no difference. A [`Record`] of the unchanged sources lists the tests and cases that
//! reach each mutant (for many mutants, only those in which its value would differ). The others would run as without
//! the mutant, because the machine in software repeats itself exactly.

use crate::build::{JudgePrograms, Tests};
use crate::process::{self, End};
use crate::sources;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The CPU time in seconds that a program's tests, or a round's cases, may take beyond [`TIMES`] their time with the
/// unchanged engine.
const SECONDS: u64 = 20;

/// We assume that a mutant never ends if it takes this multiple of the unchanged engine's time, and [`SECONDS`] more.
const TIMES: u64 = 4;

/// The CPU time in seconds for a test or case with the unchanged engine.
const LONG: u64 = 600;

/// The CPU time in seconds for everything that runs at once with a mutant, if we don't know its time without the mutant.
const UNKNOWN: u64 = 150;

/// Schedules of generated programs in a second of processor time, at least.
const LEAST_RATE: u64 = 1000;

/// A check that can kill a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The adversary's scenarios.
    Scenarios,
    /// Programs that the adversary generates.
    Generator,
    /// The tests of the mutated crates.
    Tests,
}

/// The verdict on a mutant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It fails this check; the text names the test or the violation.
    Killed(Check, String),
    /// With it, this check does not end.
    NeverEnded(Check),
    /// It passes everything that it could make a difference to.
    Survived,
    /// It makes no difference to any test or case.
    Unreached,
}

impl Verdict {
    /// Returns whether the mutant survives.
    pub fn lives(&self) -> bool {
        matches!(self, Verdict::Survived | Verdict::Unreached)
    }
}

/// The effort spent on each mutant.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Schedules of each case in the first rounds.
    pub few: u64,
    /// Schedules of each case with all mechanisms on, afterwards.
    pub more: u64,
    /// Schedules of generated programs, and the seed that draws these.
    pub generated: (u64, u64),
    /// Whether generated programs judge first, then the tests, and scenarios last.
    pub generated_first: bool,
    /// For survivors: schedules of each case in which every required transition must fire.
    pub last: Option<u64>,
}

/// A test, and the mutants that make a difference to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Test {
    folder: PathBuf,
    program: PathBuf,
    name: String,
    millis: u64,
    reached: BTreeSet<u32>,
}

/// A case, and the mutants that make a difference to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Case {
    number: usize,
    /// 1 for a case of the engine's own, more for one over the memory manager.
    cost: u64,
    all: bool,
    name: String,
    /// The time of the recorded schedules in milliseconds.
    millis: u64,
    reached: BTreeSet<u32>,
}

/// The tests and cases that each mutant affects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    of: Vec<String>,
    tests: Vec<Test>,
    cases: Vec<Case>,
}

/// Creates a command in which random tests draw the same values each time and save no failures.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove("QUELL_MUTANT")
        .env("PROPTEST_RNG_SEED", "1")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("RUST_BACKTRACE", "0");
    command
}

/// Runs `task` for each of these on `jobs` threads, shows the progress, and returns the results in order.
fn spread<T: Send, U: Sync>(
    said: &str,
    list: &[U],
    jobs: usize,
    task: impl Fn(&U) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let bar = ProgressBar::new(list.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta}") {
        bar.set_style(style);
    }
    bar.set_message(said.to_string());
    let waiting = Mutex::new(list.iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((index, one)) = next() {
                    let result = task(one);
                    bar.inc(1);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(index, result);
                }
            });
        }
    });
    bar.finish_and_clear();
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Returns the adversary's program, or an empty path if there are no cases.
fn trial_of(judges: &JudgePrograms) -> &Path {
    judges.trial.as_deref().unwrap_or(Path::new(""))
}

/// Returns all tests and cases, without the mutants that reach them.
fn everything(judges: &JudgePrograms) -> io::Result<Record> {
    let mut tests = Vec::new();
    for Tests { folder, program } in &judges.tests {
        let (end, list) =
            process::run(command(program).args(["--list", "--format", "terse"]), "", SECONDS)?;
        if end != End::Passed {
            return Err(io::Error::other(format!("{} does not list its tests", program.display())));
        }
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| {
            let (folder, program) = (folder.clone(), program.clone());
            Test { folder, program, name: name.to_string(), millis: 0, reached: BTreeSet::new() }
        }));
    }
    let list = match &judges.trial {
        Some(trial) => process::run(command(trial).arg("list"), "", SECONDS)?.1,
        None => String::new(),
    };
    let case = |line: &str| {
        let mut words = line.splitn(4, ' ');
        Some(Case {
            number: words.next()?.parse().ok()?,
            cost: words.next()?.parse().ok()?,
            all: words.next()? == "true",
            name: words.next()?.to_string(),
            millis: 0,
            reached: BTreeSet::new(),
        })
    };
    let mut cases: Vec<Case> = list.lines().filter_map(case).collect();
    cases.sort_by_key(|case| (!case.all, case.cost, case.number));
    let mut of = vec![];
    let programs = judges.tests.iter().map(|tests| &tests.program);
    for program in programs.chain(&judges.trial) {
        let file = fs::metadata(program)?;
        of.push(format!("{} {} {:?}", program.display(), file.len(), file.modified()?));
    }
    Ok(Record { of, tests, cases })
}

/// Runs the unchanged engine and records which tests and cases reach which mutant. It reads an earlier record of the
/// same programs instead if there is one.
///
/// # Errors
/// If a program doesn't start, or the unchanged engine fails.
pub fn record(
    root: &Path,
    judges: &JudgePrograms,
    effort: Effort,
    jobs: usize,
) -> io::Result<Record> {
    let kept = root.join("target/mutate/record.json");
    let mut record = everything(judges)?;
    record.of.push(format!("{effort:?}"));
    if let Some(before) =
        fs::read(&kept).ok().and_then(|text| serde_json::from_slice::<Record>(&text).ok())
        && before.of == record.of
    {
        return Ok(before);
    }
    let folder = root.join("target/mutate/reached");
    fs::create_dir_all(&folder)?;
    let reached = |name: String, command: &mut Command, input: &str, what: &str| {
        let file = folder.join(name);
        if file.exists() {
            fs::remove_file(&file)?;
        }
        let begun = Instant::now();
        let (end, said) = process::run(command.env("QUELL_MUTANTS_REACHED", &file), input, LONG)?;
        if end != End::Passed {
            let why = format!("without any mutant {what} fails: {end:?}\n{said}");
            return Err(io::Error::other(why));
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(&file);
        let numbers: BTreeSet<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        Ok((numbers, begun.elapsed().as_millis() as u64))
    };
    let tests: Vec<(usize, &Test)> = record.tests.iter().enumerate().collect();
    let found = spread("tests", &tests, jobs, |(index, test)| {
        let mut command = command(&test.program);
        command.arg(&test.name).args(TEST_OPTIONS);
        reached(format!("test{index}"), &mut command, "", &test.name)
    })?;
    for (test, (reached, millis)) in record.tests.iter_mut().zip(found) {
        (test.reached, test.millis) = (reached, millis);
    }
    record.tests.sort_by_key(|test| test.millis);
    let found = spread("cases", &record.cases, jobs, |case| {
        let most = if case.all { effort.more } else { effort.few };
        let mut command = command(trial_of(judges));
        command.args(["random", &most.to_string()]);
        let number = case.number;
        reached(format!("case{number}"), &mut command, &format!("{number}\n"), &case.name)
    })?;
    for (case, (reached, millis)) in record.cases.iter_mut().zip(found) {
        (case.reached, case.millis) = (reached, millis);
    }
    fs::write(kept, serde_json::to_vec(&record)?)?;
    Ok(record)
}

/// Tries mutants, each by number and file. Returns their verdicts in order, and passes each to `tell` at once. Without a
/// `record`, we run everything for each mutant.
///
/// # Errors
/// If a program doesn't start.
pub fn judge(
    judges: &JudgePrograms,
    record: Option<&Record>,
    mutants: &[(u32, &str)],
    effort: Effort,
    jobs: usize,
    tell: impl Fn(u32, &Verdict) + Sync,
) -> io::Result<Vec<Verdict>> {
    let unknown;
    let (all, filtered) = match record {
        Some(record) => (record, true),
        None => {
            unknown = everything(judges)?;
            (&unknown, false)
        }
    };
    spread("mutants", mutants, jobs, |&(number, file)| {
        let verdict = judge_one(judges, all, filtered, (number, file), effort)?;
        tell(number, &verdict);
        Ok(verdict)
    })
}

/// The options with which a program runs the tests that are named before them.
const TEST_OPTIONS: [&str; 3] = ["--exact", "--include-ignored", "--test-threads=1"];

/// A test that takes as long as all others together. So we run it last, and only for survivors.
const LAST: &str = "arguments::no_call_panics";

fn judge_one(
    judges: &JudgePrograms,
    record: &Record,
    filtered: bool,
    (number, file): (u32, &str),
    effort: Effort,
) -> io::Result<Verdict> {
    let crates = sources::tested_by(file);
    let limit = |millis: u64| match filtered {
        true => SECONDS + TIMES * millis.div_ceil(1000),
        false => UNKNOWN,
    };
    let chosen = |command: &mut Command, input: &str, check: Check, seconds: u64| {
        let number = number.to_string();
        let (end, said) = process::run(command.env("QUELL_MUTANT", number), input, seconds)?;
        let failed =
            |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(String::from);
        let first = || said.lines().next().unwrap_or_default().chars().take(200).collect();
        io::Result::Ok(match end {
            End::Passed => None,
            End::Failed(_) => {
                let by = said.lines().find_map(failed);
                Some(Verdict::Killed(check, by.unwrap_or_else(first)))
            }
            End::Never => Some(Verdict::NeverEnded(check)),
        })
    };
    let affected = |test: &&Test| match filtered {
        true => test.reached.contains(&number),
        false => crates.iter().any(|of| test.folder.ends_with(of)),
    };
    let tests: Vec<&Test> = record.tests.iter().filter(affected).collect();
    let affected = |case: &&Case| match filtered {
        true => case.reached.contains(&number),
        false => case.cost > 1 || !file.starts_with(sources::MANAGER),
    };
    let cases: Vec<&Case> = record.cases.iter().filter(affected).collect();
    let run_tests = |last: bool| -> io::Result<Option<Verdict>> {
        let mut programs: BTreeMap<&Path, Vec<&Test>> = BTreeMap::new();
        for &test in tests.iter().filter(|test| (test.name == LAST) == last) {
            programs.entry(&test.program).or_default().push(test);
        }
        for (program, of) in programs {
            let mut command = command(program);
            command.args(of.iter().map(|test| &test.name)).args(TEST_OPTIONS);
            let seconds = limit(of.iter().map(|test| test.millis).sum());
            if let Some(verdict) = chosen(&mut command, "", Check::Tests, seconds)? {
                return Ok(Some(verdict));
            }
        }
        Ok(None)
    };
    let run_cases =
        |kind: &str, most: u64, fits: &dyn Fn(&Case) -> bool| -> io::Result<Option<Verdict>> {
            let fitting = || cases.iter().filter(|case| fits(case));
            let numbers: Vec<String> = fitting().map(|case| case.number.to_string()).collect();
            let millis: u64 = fitting().map(|case| case.millis).sum();
            if numbers.is_empty() {
                return Ok(None);
            }
            chosen(
                command(trial_of(judges)).args([kind, &most.to_string()]),
                &numbers.join("\n"),
                Check::Scenarios,
                limit(millis * most.div_ceil(effort.few.max(1))),
            )
        };
    type Round<'r> = &'r dyn Fn() -> io::Result<Option<Verdict>>;
    let quick = |case: &Case| case.all && case.cost == 1;
    let (schedules, seed) = effort.generated;
    // Programs over the engine alone never reach the manager.
    let part = if file.starts_with(sources::MANAGER) { "manager" } else { "engine" };
    let generated = || match &judges.trial {
        Some(trial) => chosen(
            command(trial).args(["generate", part, &seed.to_string(), &schedules.to_string()]),
            "",
            Check::Generator,
            UNKNOWN + schedules / LEAST_RATE,
        ),
        None => Ok(None),
    };
    let mut rounds: [Round<'_>; 5] = [
        &|| run_cases("random", effort.few.min(8), &quick),
        &|| run_cases("random", effort.few, &|_| true),
        &|| run_cases("random", effort.more, &|case| case.all),
        &generated,
        &|| run_tests(false),
    ];
    if effort.generated_first {
        rounds.rotate_left(3);
    }
    let last: [Round<'_>; 2] =
        [&|| run_cases("reach", effort.last.unwrap_or_default(), &|case| case.all), &|| {
            run_tests(true)
        }];
    let last = last.iter().filter(|_| effort.last.is_some());
    for round in rounds.iter().chain(last) {
        if let Some(verdict) = round()? {
            return Ok(verdict);
        }
    }
    Ok(match tests.is_empty() && cases.is_empty() {
        true => Verdict::Unreached,
        false => Verdict::Survived,
    })
}

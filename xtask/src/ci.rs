//! Runs steps: two lanes in parallel, then the steps that need the machine alone.

use crate::steps::{STEPS, Step, StepGroup};
use crate::{cargo, root};
use std::fs::{self, File};
use std::io;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The exit code of a step that lacks a tool. It's automake's number; smaller codes are failures of cargo, pytest and
/// `quell`.
const SKIPPED: i32 = 77;

/// The number of lines that we repeat from a failed step's log.
const REPEATED: usize = 40;

/// Returns the steps that the arguments name, or all if they name none.
///
/// # Errors
/// If there is no such step.
pub fn chosen(words: &[&str]) -> Result<Vec<&'static Step>, String> {
    let without_emulators = words.contains(&"--without-emulators");
    let names: Vec<_> = words.iter().filter(|word| **word != "--without-emulators").collect();
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != ***name)) {
        let all: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("no step `{unknown}`; there are {}", all.join(", ")));
    }
    let fits = |step: &&Step| names.is_empty() || names.iter().any(|name| **name == step.name);
    let (left, chosen) =
        STEPS.iter().filter(fits).partition(|step| step.boots && without_emulators);
    let left: Vec<&Step> = left;
    for step in left {
        println!("{:14} SKIPPED because of --without-emulators: {}", step.name, step.shows);
    }
    Ok(chosen)
}

/// Runs these steps, and fails if one of them fails.
pub fn run(steps: &[&'static Step]) -> ExitCode {
    let began = Instant::now();
    let waiting = Mutex::new(steps.to_vec());
    // Takes the next step of a lane, or else a step that can run beside any other.
    let next = |lane| {
        let mut waiting = waiting.lock().ok()?;
        let mut of = [lane, StepGroup::Apart].into_iter();
        let at = of.find_map(|lane| waiting.iter().position(|step| step.lane == lane))?;
        Some(waiting.remove(at))
    };
    let passed = AtomicBool::new(true);
    let run = |lane| {
        while let Some(step) = next(lane) {
            passed.fetch_and(passes(step), Relaxed);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| run(StepGroup::Tests));
        scope.spawn(|| run(StepGroup::Optimised));
    });
    run(StepGroup::Alone);
    println!("{:14}         {:5} s", "all", began.elapsed().as_secs());
    ExitCode::from(u8::from(!passed.into_inner()))
}

/// Runs a step and prints its result. Returns whether it passed or was skipped.
fn passes(step: &Step) -> bool {
    let began = Instant::now();
    let log = root().join("target/ci").join(step.name).with_extension("log");
    let result = execute(step, &log);
    let seconds = began.elapsed().as_secs();
    let text = fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let last = |count: usize| lines[lines.len().saturating_sub(count)..].join("\n   ");
    match result {
        Ok(Some(0)) => println!("{:14} passed  {seconds:5} s", step.name),
        Ok(Some(SKIPPED)) => println!("{:14} SKIPPED {seconds:5} s: {}", step.name, last(1)),
        Ok(_) => println!(
            "{:14} FAILED  {seconds:5} s: {step}\n   {}\n   all of it: {}",
            step.name,
            last(REPEATED),
            log.display()
        ),
        Err(ref error) => println!("{:14} FAILED  {step}: {error}", step.name),
    }
    matches!(result, Ok(Some(0 | SKIPPED)))
}

fn execute(step: &Step, log: &std::path::Path) -> io::Result<Option<i32>> {
    fs::create_dir_all(root().join("target/ci"))?;
    let path = log;
    let log = File::create(path)?;
    let mut command = match step.command.split_first() {
        Some((&"cargo", rest)) => {
            let mut cargo = cargo();
            cargo.args(rest);
            cargo
        }
        Some((program, rest)) => {
            let mut command = Command::new(root().join(program));
            command.args(rest).current_dir(root());
            command
        }
        None => return Err(io::Error::other("a step without a command")),
    };
    command.envs(step.environment.iter().copied());
    let mut child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
    let mut waits = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        thread::sleep(Duration::from_millis(100));
        // Another cargo can keep this one waiting for hours, and the log is not on the screen.
        if !waits && let Some(why) = fs::read_to_string(path).ok().and_then(blocked) {
            println!("{:14} waits: {why}", step.name);
            waits = true;
        }
    }
}

/// Returns cargo's line about the lock that it waits for, if that is the last line of its log.
fn blocked(log: String) -> Option<String> {
    let last = log.lines().last()?.trim();
    last.starts_with("Blocking ").then(|| last.to_owned())
}

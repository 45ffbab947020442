//! Tests of bad input: known cases ([`by_name`]) and command lines drawn at random.
//!
//! The random command lines are some that a person might type, and some that nobody would. Subcommands, options and the
//! kinds of their values come from the command's own description ([`quell_cli::command`]), so a new option is tested
//! without a change here. Values are plausible, extreme or wrong ([`words`]). Files are real ones with changes, or
//! paths where no file should be ([`files`]).
//!
//! Each command line runs in its own process with little memory, CPU time and room for output ([`child`]), and must end
//! well: without a panic, a hang or a false success, and with errors of one line that name the culprit. A script takes
//! the place of the emulators. We leave out valid measurements, because they change the host.
//!
//! `cargo test` tries a few lines with a fixed seed. `QUELL_FUZZ_SEED=N` tries more, with that seed.
//! `QUELL_FUZZ_MINUTES=1` runs for one minute with a fresh seed, which it prints. `QUELL_FUZZ_CASE=N` runs only that
//! case of a seed.

#![cfg(unix)]

mod by_name;
mod child;
mod files;
mod lines;
mod words;

use files::Playground;
use rand_pcg::Pcg64;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The number of cases without `QUELL_FUZZ_MINUTES`: without a given seed, and with one.
const FEW: u64 = 20;
const MORE: u64 = 60;
/// The seed by default.
const SEED: u64 = 1;
/// The number of runs that were cut short and run again, with enough time to print their progress.
const FOLLOWED: usize = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a whole number, not {text:?}")))
}

/// Returns the generator of one case, which depends on no other case.
fn rng(seed: u64, case: u64) -> Pcg64 {
    Pcg64::new(seed.into(), case.into())
}

#[test]
fn every_command_line_ends_well() {
    let minutes = number("QUELL_FUZZ_MINUTES");
    let fresh = || UNIX_EPOCH.elapsed().map_or(SEED, |since| since.as_nanos() as u64);
    let given = number("QUELL_FUZZ_SEED");
    let cases = given.map_or(FEW, |_| MORE);
    let seed = given.unwrap_or_else(|| minutes.map_or(SEED, |_| fresh()));
    let only = number("QUELL_FUZZ_CASE");
    println!("QUELL_FUZZ_SEED={seed}");
    let command = quell_cli::command();
    let known = words::KnownNames::read();
    let folder = Playground::new();
    let began = Instant::now();
    let enough = |case: u64| match (only, minutes) {
        (Some(only), _) => case > only,
        (None, Some(minutes)) => began.elapsed() >= Duration::from_secs(60 * minutes),
        (None, None) => case >= cases,
    };
    let (mut case, mut findings, mut long) = (only.unwrap_or(0), Vec::new(), Vec::new());
    let mut codes = BTreeMap::<Option<i32>, u64>::new();
    let drawn = |case, limits| {
        let mut rng = rng(seed, case);
        let place = folder.place(&mut rng);
        let line = lines::draw(&mut rng, &command, &known).filter(lines::Line::can_be_typed);
        let run = line.map(|line| (child::run(&line, &place, limits), line));
        place.clear();
        run
    };
    let named = |case, line: &lines::Line| {
        format!("QUELL_FUZZ_SEED={seed} QUELL_FUZZ_CASE={case}\n  {}", line.shown())
    };
    while !enough(case) {
        if let Some((ended, line)) = drawn(case, child::BRIEF) {
            *codes.entry(ended.code()).or_default() += 1;
            if let Some(wrong) = child::fault(&line, &ended) {
                let finding = format!("{wrong}\n  {}\n{}", named(case, &line), ended.head());
                // We print a finding at once, because the rest may take long.
                println!("{finding}");
                findings.push(finding);
            }
            if ended.was_cut_short() {
                long.push(case);
            }
        }
        case += 1;
    }
    println!("{case} command lines: {codes:?}");
    if minutes.is_some() {
        // The first few are as good as any others.
        long.truncate(FOLLOWED);
        for case in long {
            if let Some((ended, line)) = drawn(case, child::LONG)
                && ended.was_cut_short()
                && ended.stderr.is_empty()
            {
                findings.push(format!("says nothing of how far it is\n  {}", named(case, &line)));
            }
        }
    }
    assert!(findings.is_empty(), "{} findings\n\n{}", findings.len(), findings.join("\n\n"));
    // If all lines were refused, or the verdict accepted everything, the test would show nothing.
    if only.is_none() {
        for code in [0, 2] {
            assert!(codes.contains_key(&Some(code)), "no run ended with {code}");
        }
    }
}

/// Checks that the verdict finds each end that no command may have.
#[test]
fn ends_that_are_not_well_are_told_apart() {
    let folder = Playground::new();
    let place = folder.place(&mut rng(1, 1));
    let ends = |line: &str, script: &str, limits| {
        let ended = child::shell(script, &place, limits);
        child::fault(&lines::Line::of(line), &ended)
    };
    let culprit = "list --machine x9";
    for (line, script) in [
        ("list", "echo something"),
        ("list", "echo 'error: what `list`' >&2; exit 2"),
        (culprit, "echo 'error: no machine `x9`' >&2; exit 2"),
    ] {
        assert_eq!(ends(line, script, child::BRIEF), None);
    }
    for (line, script, told) in [
        ("list", "true", "said nothing"),
        ("list", "exit 101", "101"),
        ("list", "echo \"thread 'main' panicked at x\" >&2; exit 1", "panic"),
        ("list", "exit 1", "without a word"),
        ("list", "kill -SEGV $$", "signal: 11"),
        ("list", "echo list >&2; exit 2", "begins with"),
        ("list", "echo error: list: >&2; echo b >&2; exit 2", "in one line"),
        ("list", "echo a; echo 'error: list' >&2; exit 2", "refused"),
        (culprit, "echo 'error: it is wrong' >&2; exit 2", "culprit"),
        ("list --json", "echo '{'", "JSON"),
        ("run --trace missing/x", "echo done", "missing/x"),
        ("run --trace /dev/full", "echo done", "/dev/full"),
        ("list", "exec /bin/sleep 1000", "hung"),
    ] {
        let limits = if told == "hung" { child::HUNG_SOON } else { child::BRIEF };
        let found = ends(line, script, limits).unwrap_or_else(|| panic!("{script} passed"));
        assert!(found.contains(told), "{script}: {found}");
    }
    place.clear();
}

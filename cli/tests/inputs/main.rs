//! Tests of bad input: known cases ([`by_name`]) and command lines drawn at random.
//!
//! The random command lines are some that a person might type, and some that nobody would. Subcommands, options and the
//! kinds of their values come from the command's own description ([`quell_cli::command`]), so a new option is tested
//! without a change here. Values are plausible, extreme or wrong ([`words`]). Files are real ones with changes, or
//! paths where no file should be ([`files`]).
//!
//! Each command line runs in its own process with little memory, CPU time and room for output ([`child`]), and must end
//! well ([`verdict`]): without a panic, a hang or a false success, and with errors of one line that name the culprit. A
//! script takes the place of the emulators. We leave out valid measurements, because they change the host.
//!
//! `cargo test` tries a few lines with a fixed seed. `QUELL_FUZZ_SEED=N` tries more, with that seed.
//! `QUELL_FUZZ_MINUTES=1` runs for one minute with a fresh seed, which it prints. `QUELL_FUZZ_CASE=N` runs only that
//! case of a seed.

#![cfg(unix)]

mod by_name;
mod child;
mod files;
mod lines;
mod verdict;
mod words;

use files::Folder;
use rand_pcg::Pcg64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    let fresh = || match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as u64,
        Err(_) => SEED,
    };
    let given = number("QUELL_FUZZ_SEED");
    let cases = given.map_or(FEW, |_| MORE);
    let seed = given.unwrap_or_else(|| minutes.map_or(SEED, |_| fresh()));
    let only = number("QUELL_FUZZ_CASE");
    println!("QUELL_FUZZ_SEED={seed}");
    let command = quell_cli::command();
    let known = words::KnownNames::read();
    let folder = Folder::new();
    let began = Instant::now();
    let enough = |case: u64| match (only, minutes) {
        (Some(only), _) => case > only,
        (None, Some(minutes)) => began.elapsed() >= Duration::from_secs(60 * minutes),
        (None, None) => case >= cases,
    };
    let (mut case, mut findings, mut long) = (only.unwrap_or(0), Vec::new(), Vec::new());
    let mut codes = std::collections::BTreeMap::<String, u64>::new();
    while !enough(case) {
        let mut rng = rng(seed, case);
        let place = folder.place(&mut rng);
        let line = lines::draw(&mut rng, &command, &known, &place);
        if let Some(line) = line.filter(lines::Line::can_be_typed) {
            let ended = child::run(&line, &place, child::BRIEF);
            *codes.entry(ended.shown()).or_default() += 1;
            if let Some(wrong) = verdict::of(&line, &ended) {
                let said = ended.head();
                let finding = format!(
                    "{wrong}\n  QUELL_FUZZ_SEED={seed} QUELL_FUZZ_CASE={case}\n  {}\n{said}",
                    line.shown()
                );
                // We print a finding at once, because the rest may take long.
                println!("{finding}");
                findings.push(finding);
            }
            if ended.was_cut_short() {
                long.push(case);
            }
        }
        place.clear();
        case += 1;
    }
    println!("{case} command lines: {codes:?}");
    if minutes.is_some() {
        // The first few are as good as any others.
        long.truncate(FOLLOWED);
        for case in long {
            let mut rng = rng(seed, case);
            let place = folder.place(&mut rng);
            if let Some(line) = lines::draw(&mut rng, &command, &known, &place) {
                let ended = child::run(&line, &place, child::LONG);
                if ended.was_cut_short() && ended.stderr.is_empty() {
                    findings.push(format!(
                        "says nothing of how far it is\n  QUELL_FUZZ_SEED={seed} QUELL_FUZZ_CASE={case}\n  {}",
                        line.shown()
                    ));
                }
            }
            place.clear();
        }
    }
    assert!(findings.is_empty(), "{} findings\n\n{}", findings.len(), findings.join("\n\n"));
    // If all lines were refused, or the verdict accepted everything, the test would show nothing.
    if only.is_none() {
        for code in ["exit 0", "exit 2"] {
            assert!(codes.contains_key(code), "no run ended with {code}");
        }
    }
}

/// Checks that the verdict finds each end that no command may have.
#[test]
fn ends_that_are_not_well_are_told_apart() {
    let folder = Folder::new();
    let place = folder.place(&mut rng(1, 1));
    let line = |words: &[&str]| lines::Line::of(words);
    let ends = |words: &[&str], script: &str| {
        let ended = child::shell(script, &place, child::BRIEF);
        verdict::of(&line(words), &ended)
    };
    let list = &["list"][..];
    assert_eq!(ends(list, "echo something"), None);
    assert_eq!(ends(list, "echo 'error: what `list`' >&2; exit 2"), None);
    let culprit = &["list", "--machine", "x9"][..];
    assert_eq!(ends(culprit, "echo 'error: no machine `x9`' >&2; exit 2"), None);
    for (words, script, told) in [
        (list, "true", "said nothing"),
        (list, "exit 101", "101"),
        (list, "echo \"thread 'main' panicked at x\" >&2; exit 1", "panic"),
        (list, "exit 1", "without a word"),
        (list, "kill -SEGV $$", "signal 11"),
        (list, "echo list >&2; exit 2", "begins with"),
        (list, "echo error: list: >&2; echo b >&2; exit 2", "in one line"),
        (list, "echo a; echo 'error: list' >&2; exit 2", "refused"),
        (culprit, "echo 'error: it is wrong' >&2; exit 2", "culprit"),
        (&["list", "--json"], "echo '{'", "JSON"),
        (&["run", "--trace", "missing/x"], "echo done", "missing/x"),
        (&["run", "--trace", "/dev/full"], "echo done", "/dev/full"),
    ] {
        let found = ends(words, script).unwrap_or_else(|| panic!("{script} passed"));
        assert!(found.contains(told), "{script}: {found}");
    }
    let asleep = child::shell("exec /bin/sleep 1000", &place, child::ASLEEP_SOON);
    let found = verdict::of(&line(list), &asleep).expect("it waits for ever");
    assert!(found.contains("hung"), "{found}");
    place.clear();
}

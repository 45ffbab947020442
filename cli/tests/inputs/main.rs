//! Bad input: by name ([`by_name`]), and drawn at random.
//!
//! Command lines are drawn at random: such as a person might type, and such as none would.
//!
//! Subcommands, options and the kinds of their values come from the command's own description
//! ([`quell_cli::command`]), so an option that is added is tried without being named here. Values are plausible,
//! extreme or wrong ([`words`]); files are the real ones changed in their structure, and places that no file
//! should be ([`files`]). Each command line runs in a process of its own with little memory, processor time and
//! room for output ([`child`]), and must end well ([`verdict`]): no panic, no wait without end, no success that
//! was none, and a refusal of one line that names what is refused. Left out are measurements that are not
//! refused: they change the host. In the place of emulators is a script.
//!
//! `cargo test` tries a few with a fixed seed. `QUELL_FUZZ_SEED=N` tries more, with that one. `QUELL_FUZZ_MINUTES=1`
//! goes on for so long with a fresh seed, which is printed; with `QUELL_FUZZ_CASE=N` only that case of a seed runs.

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

/// Cases of a run that has no minutes: without a seed, and with one.
const FEW: u64 = 20;
const MORE: u64 = 60;
/// Its seed.
const SEED: u64 = 1;
/// Runs that were cut short and are given time to show how far they are.
const FOLLOWED: usize = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a whole number, not {text:?}")))
}

/// The seed of one case: cases do not depend on one another.
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
    let known = words::Known::read();
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
                // At once: the rest may take long.
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
        // Of those at hand, some: the first ones are as good as any.
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
    assert!(
        findings.is_empty(),
        "{} findings\n\n{}",
        findings.len(),
        findings.join("\n\n")
    );
    // A generator whose lines are all refused, or a verdict that takes everything, shows nothing.
    if only.is_none() {
        for code in ["exit 0", "exit 2"] {
            assert!(codes.contains_key(code), "no run ended with {code}");
        }
    }
}

/// What the verdict is for is found: each of these is an end that no command may have.
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
    assert_eq!(
        ends(culprit, "echo 'error: no machine `x9`' >&2; exit 2"),
        None
    );
    for (words, script, told) in [
        (list, "true", "said nothing"),
        (list, "exit 101", "101"),
        (
            list,
            "echo \"thread 'main' panicked at x\" >&2; exit 1",
            "panic",
        ),
        (list, "exit 1", "without a word"),
        (list, "kill -SEGV $$", "signal 11"),
        (list, "echo list >&2; exit 2", "begins with"),
        (
            list,
            "echo error: list: >&2; echo b >&2; exit 2",
            "in one line",
        ),
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

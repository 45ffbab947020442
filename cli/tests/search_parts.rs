//! Searches in parts. Merged, they are the search of one machine: the same file, byte for byte, and the same output.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A written program that breaks the contract on one machine under one policy.
const BROKEN: &str = include_str!("../../python/tests/broken.toml");

/// The engine's own scenarios, a workload, and that program. The program fails, so every complete search fails.
const SEARCH: &[&str] = &[
    "explore",
    "unmap-access",
    "table-free",
    "dontneed",
    "broken.toml",
    "--param",
    "iterations=1",
    "--schedules",
    "30",
];

fn quell(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.current_dir(folder).args(arguments);
    command.output().expect("quell starts")
}

fn search(folder: &Path, more: &[&str]) -> Output {
    quell(folder, &[SEARCH, more].concat())
}

/// Returns the errors without progress lines, which appear if a busy host makes the search slow.
fn errors(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let errors = text.lines().filter(|line| !line.starts_with("searching: "));
    errors.map(|line| format!("{line}\n")).collect()
}

/// Returns the output without the last line, which names the file.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (said, last) = text.trim_end().rsplit_once('\n').expect("lines");
    assert!(last.starts_with("results: "), "{last}");
    said.to_owned()
}

fn assert_refused(output: &Output, why: &str) {
    let errors = errors(output);
    assert!(
        output.status.code() == Some(2) && errors.contains(why) && errors.lines().count() == 1,
        "{errors}"
    );
}

#[test]
fn parts_that_are_merged_are_the_search_of_one_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    fs::write(at.join("broken.toml"), BROKEN).expect("a file");
    let whole = search(at, &["--results", "whole.jsonl"]);
    let printed = said(&whole);
    assert_eq!(whole.status.code(), Some(1), "{}", errors(&whole));
    assert!(printed.contains("VIOLATED") && printed.contains("; 1 violation"), "{printed}");
    let file = fs::read_to_string(at.join("whole.jsonl")).expect("results");

    for part in ["1/3", "2/3", "3/3"] {
        let name = format!("part-{}.jsonl", &part[..1]);
        let searched = search(at, &["--shard", part, "--results", &name]);
        assert!(errors(&searched).is_empty(), "{}", errors(&searched));
    }
    let merge = |parts: &[&str], more: &[&str]| quell(at, &[&["merge"], parts, more].concat());
    let two = merge(&["part-2.jsonl", "part-1.jsonl"], &["--results", "two.jsonl"]);
    assert!(String::from_utf8_lossy(&two.stdout).contains(" missing"));
    let merged =
        merge(&["part-3.jsonl", "two.jsonl", "part-1.jsonl"], &["--results", "merged.jsonl"]);
    assert_eq!(merged.status.code(), Some(1));
    assert_eq!(said(&merged), printed);
    assert!(fs::read_to_string(at.join("merged.jsonl")).expect("results") == file);

    // The cases are the same without a file, apart from figures that depend on the host.
    let json = search(at, &["--json"]);
    let mut plain: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let rows = plain["scenarios"].as_array_mut().expect("rows");
    for (index, (row, line)) in rows.iter_mut().zip(file.lines().skip(1)).enumerate() {
        let row = row.as_object_mut().expect("a row");
        row.remove("schedules_per_cpu_second");
        row.insert("index".into(), index.into());
        let kept: serde_json::Value = serde_json::from_str(line).expect("a row");
        assert_eq!(kept.as_object(), Some(&*row));
    }
    assert_eq!(rows.len() + 1, file.lines().count());

    // A part doesn't belong to a search with another seed, nor to a sweep.
    search(at, &["--seed", "2", "--results", "other.jsonl"]);
    let other = merge(&["whole.jsonl", "other.jsonl"], &["--results", "x.jsonl"]);
    assert_refused(&other, "other.jsonl is from a search with other cases");
    let plot = merge(&["whole.jsonl"], &["--results", "x.jsonl", "--csv", "x.csv"]);
    assert_refused(&plot, "--csv: only for parts of a sweep");
    let grid = ["sweep", "munmap", "--param", "iterations=1", "--seeds", "1"];
    let sweep = quell(at, &[&grid[..], &["--results", "sweep.jsonl"]].concat());
    assert!(sweep.status.success(), "{}", errors(&sweep));
    for mixed in [["whole.jsonl", "sweep.jsonl"], ["sweep.jsonl", "whole.jsonl"]] {
        let mixed = merge(&mixed, &["--results", "x.jsonl"]);
        assert_refused(&mixed, "no results of a s");
    }
    let (head, rows) = file.split_once('\n').expect("lines");
    let differs = rows.replacen("\"schedules\":30", "\"schedules\":31", 1);
    assert_ne!(differs, rows);
    fs::write(at.join("differs.jsonl"), format!("{head}\n{differs}")).expect("a file");
    let differs = merge(&["whole.jsonl", "differs.jsonl"], &["--results", "x.jsonl"]);
    assert!(errors(&differs).contains("differs from that in another file"));
}

#[test]
fn a_search_goes_on_where_it_was_interrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    fs::write(at.join("broken.toml"), BROKEN).expect("a file");
    let whole = search(at, &["--results", "whole.jsonl"]);
    let file = fs::read_to_string(at.join("whole.jsonl")).expect("results");
    // The file has the last ten cases, backwards, and half of another.
    let lines: Vec<_> = file.lines().collect();
    let some = lines[lines.len() - 10..].iter().rev();
    let mut cut = format!("{}\n", lines[0]);
    cut.extend(some.map(|line| format!("{line}\n")));
    cut += &lines[1][..40];
    fs::write(at.join("cut.jsonl"), cut).expect("a file");
    let again = search(at, &["--results", "cut.jsonl"]);
    let told = errors(&again);
    assert!(told.contains("skipping 10 cases that are already in cut.jsonl"), "{told}");
    assert_eq!(said(&again), said(&whole));
    assert!(fs::read_to_string(at.join("cut.jsonl")).expect("results") == file);

    // A changed program, or minutes in place of schedules, make another search than the file's.
    let changed = BROKEN.replace("policy = \"all\"", "policy = \"S4\"");
    fs::write(at.join("broken.toml"), changed).expect("a file");
    let other = search(at, &["--results", "cut.jsonl"]);
    assert_refused(&other, "a search with other cases");
    let minutes = ["explore", "unmap-access", "--minutes", "1"];
    let timed = quell(at, &[&minutes[..], &["--results", "x.jsonl"]].concat());
    assert_refused(&timed, "--minutes");
    let alone = ["explore", "unmap-access", "--machine", "x86"];
    let alone = [&alone[..], &["--policy", "all", "--shard", "2/2"]].concat();
    assert_refused(&quell(at, &alone), "--shard 2/2");
}

/// Results may only replace regular files. As root, the command could otherwise replace a device by a file.
#[test]
#[cfg(unix)]
fn results_take_the_place_of_files_alone() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let search =
        ["explore", "unmap-access", "--machine", "x86", "--policy", "all", "--schedules", "100"];
    let search = |results| quell(at, &[&search[..], &["--results", results]].concat());
    symlink("/dev/null", at.join("device")).expect("a link");
    symlink("kept.jsonl", at.join("link")).expect("a link");
    assert_refused(&search("device"), "--results device: not a regular file");
    // The file is created where the link points, whether it exists already or not.
    for _ in 0..2 {
        let kept = search("link");
        assert!(kept.status.success(), "{}", errors(&kept));
        let is_link = |name| fs::symlink_metadata(at.join(name)).is_ok_and(|is| is.is_symlink());
        assert!(is_link("link") && is_link("device") && !is_link("kept.jsonl"));
    }
    assert_eq!(
        fs::read(at.join("kept.jsonl")).expect("results").split(|&byte| byte == b'\n').count(),
        3
    );
    assert_refused(
        &quell(at, &["merge", "kept.jsonl", "--results", "device"]),
        "--results device: not a regular file",
    );

    // A part is read once, so it may come from a pipe. We read no further than the longest line of results.
    let merge = |from: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        let command =
            command.current_dir(at).args(["merge", "/dev/stdin", "--results", "merged.jsonl"]);
        command.stdin(from).output().expect("quell starts")
    };
    let mut cat = Command::new("cat");
    let mut cat =
        cat.arg(at.join("kept.jsonl")).stdout(Stdio::piped()).spawn().expect("cat starts");
    let piped = merge(cat.stdout.take().expect("a pipe").into());
    assert!(piped.status.success() && cat.wait().is_ok(), "{}", errors(&piped));
    assert_eq!(fs::read(at.join("merged.jsonl")).ok(), fs::read(at.join("kept.jsonl")).ok());
    let zeros = fs::File::open("/dev/zero").expect("zeros");
    assert_refused(&merge(zeros.into()), "more than 64 megabytes");
}

/// Returns the CPU time of a process in hundredths of a second.
#[cfg(target_os = "linux")]
fn worked(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// An interrupted search ends in the middle of a case, prints its results so far, and keeps the cases that were
/// searched to their end.
#[cfg(target_os = "linux")]
#[test]
fn a_search_that_is_interrupted_says_what_it_has_found() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .current_dir(folder.path())
        .args(["explore", "two-initiators", "--schedules", "1000000000000"])
        .args(["--results", "kept.jsonl"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let search = command.spawn().unwrap();
    // The search handles signals before it creates the file. After a third of a second of CPU time it surely searches.
    while !kept.exists() || worked(search.id()) < 30 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&search);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = search.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(errors(&output).contains("interrupted"), "{output:?}");
    assert!(said(&output).contains("0 cases"), "{output:?}");
    assert_eq!(fs::read_to_string(&kept).unwrap().lines().count(), 1);
}

/// We stop the search while both signals arrive, so that it can't check for the first before the second arrives.
#[cfg(target_os = "linux")]
#[test]
fn a_second_interrupt_ends_a_search_at_once_with_the_code_of_one() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .args(["explore", "two-initiators", "--schedules", "1000000000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let search = command.spawn().unwrap();
    while worked(search.id()) < 30 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = Pid::from_child(&search);
    kill_process(pid, Signal::STOP).unwrap();
    // This returns once all threads have stopped.
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    // We send two different signals: a second one of a kind that is already pending is lost.
    for signal in [Signal::INT, Signal::TERM, Signal::CONT] {
        kill_process(pid, signal).unwrap();
    }
    let output = search.wait_with_output().unwrap();
    // Either of the two may be delivered second.
    assert!([130, 143].map(Some).contains(&output.status.code()), "{output:?}");
    assert!(!errors(&output).contains("interrupted"), "{output:?}");
}

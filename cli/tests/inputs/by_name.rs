//! Refused input: each kind by its name, with its error.

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(args);
    command
}

#[test]
fn what_cannot_be_written_is_an_error_and_said_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for (command, option) in [("reproduce", "--report"), ("scale", "--plot")] {
        let file = missing.join("file");
        let mut all = match command {
            "scale" => quell(&["scale", "dontneed", "--cpus", "2"]),
            _ => quell(&["reproduce", "--only", "dontneed"]),
        };
        all.arg(option)
            .arg(&file)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(file.to_str().unwrap()).and(contains(format!("{option} FILE"))));
        assert!(!missing.exists(), "{command} makes no folders");
    }
    // Only a write shows that a disk is full.
    let brief = ["run", "dontneed", "--param", "iterations=5", "--trace", "/dev/full"];
    quell(&brief).assert().code(1).stderr(contains("--trace /dev/full: No space"));
    let full =
        ["scale", "dontneed", "--cpus", "2", "--param", "iterations=5", "--plot", "/dev/full"];
    quell(&full).assert().code(1).stderr(contains("/dev/full"));
}

#[test]
#[ignore = "works for half a minute before it writes: `cargo xtask ci inputs`"]
fn a_report_that_does_not_fit_on_the_disk_is_an_error() {
    quell(&["reproduce", "--only", "dontneed", "--report", "/dev/full"])
        .assert()
        .code(1)
        .stderr(contains("--report /dev/full: No space"));
}

/// Runs with this standard output, and returns the exit code and the errors.
fn printing_to(place: std::fs::File, args: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(args)
        .stdout(place)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_full_disk_is_an_error_whatever_is_printed() {
    for args in [
        &["list", "machines"][..],
        &["list", "--json"],
        &["--help"],
        &["--version"],
        &["completions", "bash"],
        &["run", "dontneed", "--cpus", "2", "--param", "iterations=5"],
        &["explore", "--list"],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let (code, said) = printing_to(full, args);
        assert_eq!(code, Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output cannot be written: No space"), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn what_has_no_end_or_is_no_number_is_refused() {
    for (args, culprit) in [
        (&["run", "dontneed", "--machine", "/dev/zero"][..], "/dev/zero"),
        (&["run", "dontneed", "--params", "/dev/zero"], "/dev/zero"),
        (&["explore", "--minutes", "inf"], "inf"),
        (&["explore", "--minutes", "nan"], "nan"),
        (&["explore", "--minutes", "-1"], "-1"),
        (&["explore", "--policy", "some"], "`some` is not a mechanism"),
        (&["explore", "--replay", "unmap-access:x86:S9:"], "S9"),
        (
            &["run", "dontneed", "--machine", "kunpeng-920", "--set", "tlb.tags=pcid"],
            "tlb.tags: `pcid` does not exist on aarch64",
        ),
        (
            &[
                "run",
                "dontneed",
                "--machine",
                "kunpeng-920",
                "--set",
                "tlb.tags=asid8",
                "--cpus",
                "255",
            ],
            "255 system-wide tags for 255 CPUs",
        ),
        (&["run", "dontneed", "--trace", "missing/x"], "missing/x"),
        (&["explore", "--trace", "missing/x"], "missing/x"),
        (&["explore", "--generate", "--corpus", "missing/x"], "missing/x"),
        (&["explore", "/dev/zero/x.toml"], "/dev/zero/x.toml"),
        (&["list", "machines", "--machine", "milan"], "--machine milan"),
        (&["run", "dontneed", "--cpus", "1\n2"], "control character"),
        (&["boot", "--option", "tag_bits=0"], "`tag_bits=0`"),
        (&["boot", "--option", "nonsense"], "`nonsense`"),
        (&["boot", "--option", "policy=some"], "`some`"),
        (&["boot", "--option", "break=Unknown"], "`break=Unknown`"),
        (&["boot", "swap", "--option", "parameters=x:1"], "`x`"),
        (&["run", "fileio", "--param", "block=1M", "--param", "size=64K"], "block=1M"),
    ] {
        let refused = quell(args).assert().code(2).stdout("").stderr(contains(culprit));
        let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// A boot that a signal ends must end its emulator, even if only the command receives the signal.
#[cfg(unix)]
#[test]
fn a_boot_that_receives_a_signal_takes_the_emulator_along() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    for file in ["quell-kernel", "quell-user"] {
        std::fs::write(place(file), "an image").unwrap();
    }
    let emulator = place("qemu-system-x86_64");
    let pipe = place("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // The script opens the pipe, which shows that it runs, and keeps the pipe open until it ends.
    let script = format!("#!/bin/sh\nexec 3>'{}'\nexec sleep 100000\n", pipe.display());
    std::fs::write(&emulator, script).unwrap();
    std::fs::set_permissions(&emulator, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let mut boot = std::process::Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["boot", "--arch", "x86_64", "--kernel"])
        .arg(folder.path())
        .env("PATH", path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut pipe = std::fs::File::open(&pipe).unwrap();
    let kill = ["-TERM", &boot.id().to_string()].map(str::to_owned);
    assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
    assert_eq!(boot.wait().unwrap().code(), Some(143), "128 and SIGTERM");
    // Nobody writes to the pipe: reading it ends when the emulator has ended.
    assert_eq!(std::io::Read::read(&mut pipe, &mut [0]).unwrap(), 0);
}

#[test]
fn a_wrong_machine_file_is_refused_with_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, "name = \"mine\"\n\n[cpu]\nfrequency = \"fast\"\n").unwrap();
    quell(&["run", "dontneed", "--machine"])
        .arg(&path)
        .assert()
        .code(2)
        .stderr(contains("mine.toml").and(contains("frequency")).and(contains("4")));
}

#[test]
fn mistakes_name_the_culprit_and_the_way_out() {
    for (args, culprit, way_out) in [
        (&["run", "nonsense"][..], "nonsense", "dontneed"),
        (&["run", "dontneed", "--machine", "abacus"], "abacus", "haswell-server"),
        (&["run", "dontneed", "--policy", "S9"], "S9", "S0"),
        (&["run", "dontneed", "--cpus", "5000"], "5000", "1024"),
        (&["run", "dontneed", "--param", "pages=many"], "many", "a whole number"),
        (&["run", "readers"], "slow memory", "--machine xeon-6430-cxl"),
        (&["reproduce", "--only", "S7"], "S7", "dontneed"),
    ] {
        quell(args).assert().code(2).stdout("").stderr(contains(culprit).and(contains(way_out)));
    }
}

#[test]
fn a_misspelt_name_suggests_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let machine = "name = \"m\"\nbased_on = \"milan\"\n[interrupt]\n";
    let value = |key| format!("send = {{ {key} = 1, unit = \"ns\", source = \"x\" }}\n");
    let machine = file("m.toml", &(machine.to_owned() + &value("vlaue")));
    let workload = include_str!("../../../testbed/workloads/workloads/dontneed.toml");
    let workload = file("w.toml", &workload.replacen("name =", "nmae =", 1));
    for (line, near) in [
        ("rum dontneed", "run"),
        ("run dontned", "dontneed"),
        ("run dontneed --machine miln", "milan"),
        ("predict --machine haswel", "haswell-server"),
        ("run dontneed --policy baselin", "baseline"),
        ("explore unmap-access --policy baselin", "baseline"),
        ("run dontneed --param pgaes=1", "pages"),
        ("run dontneed --set interrupt.sned=1ns", "interrupt.send"),
        ("run dontneed --without SwitchIgnoresGeneraton", "SwitchIgnoresGeneration"),
        (&format!("run dontneed --machine {machine}"), "value"),
        (&format!("run {workload}"), "name"),
        ("sweep dontneed --param pgaes=1", "pages"),
        ("boot selftset", "selftest"),
        ("boot --option polcy=all", "policy"),
        ("boot --option break=SwitchIgnoresGeneraton", "SwitchIgnoresGeneration"),
        ("reproduce --only dontned", "dontneed"),
        ("held-out zeroin", "zeroing"),
        ("explore unmap-acces", "unmap-access"),
        ("explore unmap-access --machine x8", "x86"),
        ("explore --replay unmap-acces:x86:all:", "unmap-access"),
        ("explore --mutants SwitchIgnoresGeneraton", "SwitchIgnoresGeneration"),
        ("measure host --only discrad", "discard"),
        ("scale dontneed --cpus 1 --show discrad", "discard"),
        ("hunt quel", "quell"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let refused = quell(&words).assert().code(2);
        let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        let suggested = [format!("did you mean `{near}`?"), format!("'{near}'")];
        assert!(suggested.iter().any(|near| said.contains(near)), "{line}: {said}");
    }
}

#[test]
fn only_the_refused_option_is_corrected() {
    let line = "boot --option tag_bits=x --option polcy=all";
    let words: Vec<_> = line.split(' ').collect();
    let refused = quell(&words).assert().code(2);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("`tag_bits=x`"), "{said}");
    assert!(!said.contains("did you mean"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_file_of_unknown_keys_is_refused_in_little_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.toml");
    let keys: String = (0..80_000).map(|key| format!("key{key} = 1\n")).collect();
    std::fs::write(&path, format!("name = \"m\"\nbased_on = \"milan\"\n{keys}")).unwrap();
    for option in ["--machine", "--kernel", "--policy"] {
        // Looking for the nearest name of each key took minutes of CPU time.
        let limited = "ulimit -t 20; exec \"$0\" run dontneed \"$1\" \"$2\"";
        let output = std::process::Command::new("sh")
            .args(["-c", limited, env!("CARGO_BIN_EXE_quell"), option])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}: {said}");
        assert!(said.contains("many.toml:3: key0: unknown key"), "{said}");
    }
}

#[cfg(unix)]
#[test]
fn a_title_from_a_file_steers_no_terminal_and_breaks_no_picture() {
    let folder = tempfile::tempdir().unwrap();
    let (machine, plot) = (folder.path().join("m.toml"), folder.path().join("plot.svg"));
    let text = r#"
name = "m"
title = "red \u001b[31m title"
based_on = "milan"
"#;
    std::fs::write(&machine, text).unwrap();
    let machine = machine.to_str().unwrap();
    let brief = ["--cpus", "1", "--param", "iterations=5"];
    for command in [
        &["list", "parameters"][..],
        &["run", "dontneed", brief[0], brief[1], brief[2], brief[3]],
        &[
            "scale",
            "dontneed",
            brief[0],
            brief[1],
            brief[2],
            brief[3],
            "--plot",
            plot.to_str().unwrap(),
        ],
    ] {
        let output = quell(command).args(["--machine", machine]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("\u{fffd}[31m title") && !said.contains('\u{1b}'), "{said}");
    }
    let drawn = std::fs::read_to_string(plot).unwrap();
    assert!(drawn.contains("\u{fffd}[31m title") && !drawn.contains('\u{1b}'));
}

#[test]
fn numbers_that_are_none_are_refused_with_line_key_and_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let (machine, parameters) = (folder.path().join("m.toml"), folder.path().join("p.toml"));
    for number in ["nan", "inf", "-inf", "1e300"] {
        let text = format!(
            "name = \"m\"\nbased_on = \"milan\"\n[interrupt]\nsend = {{ value = {number}, unit = \"ns\", source = \"x\" }}\n"
        );
        std::fs::write(&machine, text).unwrap();
        std::fs::write(&parameters, format!("\npages = {number}\n")).unwrap();
        let refused = |option: &str, value: &str, said: [&str; 3]| {
            let run = quell(&["run", "dontneed", option, value]).assert().code(2);
            let told = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
            for said in said.iter().chain([&number]) {
                assert!(told.contains(said), "{option} {value}: {told}");
            }
            assert!(told.len() < 300, "{told}");
        };
        let machine = machine.to_str().unwrap();
        refused("--machine", machine, ["m.toml:4", "interrupt.send", "0.1 to 100000 ns"]);
        let parameters = parameters.to_str().unwrap();
        refused("--params", parameters, ["p.toml:2", "pages", "a whole number"]);
        refused("--param", &format!("pages={number}"), ["--param", "pages", "a whole number"]);
        let set = format!("interrupt.send={number}ns");
        refused("--set", &set, ["--set", "interrupt.send", "ns"]);
    }
}

#[test]
fn a_reader_that_stops_is_no_failure_to_talk_about() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["run", "dontneed", "--cpus", "2"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // On a busy host the run may take so long that it prints its progress.
    let is_progress = |line: &str| line.starts_with("running dontneed: ");
    assert!(said.lines().all(is_progress), "{said}");
    // A shell reports a closed pipe with this code.
    assert_eq!(output.status.code(), Some(141));
}

//! Refused input: each kind by its name, with its error.

use crate::command::{Folder, ended, quell, run, shell};
use std::fs::File;
use std::process::Stdio;

#[test]
fn what_cannot_be_written_is_an_error_and_said_before_the_work() {
    let folder = Folder::new();
    for (command, option) in
        [("reproduce --only dontneed", "--report"), ("scale dontneed --cpus 2", "--plot")]
    {
        let refused = folder.run(&format!("{command} {option} missing/file")).code(2);
        assert_eq!(refused.stdout, "");
        refused.stderr("missing/file").stderr(&format!("{option} FILE"));
        assert!(!folder.has("missing"), "{command} makes no folders");
    }
    // Only a write shows that a disk is full.
    for (command, option) in [("run", "--trace"), ("scale", "--plot")] {
        let brief = format!("{command} dontneed --cpus 2 --param iterations=5 {option} /dev/full");
        run(&brief).code(1).stderr(&format!("{option} /dev/full: No space"));
    }
}

#[test]
#[ignore = "works for half a minute before it writes: `cargo xtask ci inputs`"]
fn a_report_that_does_not_fit_on_the_disk_is_an_error() {
    let report = run("reproduce --only dontneed --report /dev/full");
    report.code(1).stderr("--report /dev/full: No space");
}

#[test]
fn a_full_disk_is_an_error_whatever_is_printed() {
    for line in [
        "list machines",
        "list --json",
        "--help",
        "--version",
        "completions bash",
        "run dontneed --cpus 2 --param iterations=5",
        "explore --list",
    ] {
        let mut command = quell(line);
        command.stdout(File::create("/dev/full").unwrap()).stderr(Stdio::piped());
        let output = command.spawn().and_then(|child| child.wait_with_output()).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("standard output cannot be written: No space"), "{line}: {said}");
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
    }
}

/// Lines that are refused in one line, before any output, each with parts of the error.
const REFUSED: &[(&str, &[&str])] = &[
    ("run dontneed --machine /dev/zero", &["/dev/zero"]),
    ("run dontneed --params /dev/zero", &["/dev/zero"]),
    ("explore --minutes inf", &["inf"]),
    ("explore --minutes nan", &["nan"]),
    ("explore --minutes -1", &["-1"]),
    ("explore --jobs 0", &["--jobs"]),
    ("explore --policy some", &["`some` is not a mechanism"]),
    ("explore --replay unmap-access:x86:S9:", &["S9"]),
    (
        "run dontneed --machine kunpeng-920 --set tlb.tags=pcid",
        &["tlb.tags: `pcid` does not exist on aarch64"],
    ),
    (
        "run dontneed --machine kunpeng-920 --set tlb.tags=asid8 --cpus 255",
        &["255 system-wide tags for 255 CPUs"],
    ),
    ("run dontneed --trace missing/x", &["missing/x"]),
    ("explore --trace missing/x", &["missing/x"]),
    ("explore --generate --corpus missing/x", &["missing/x"]),
    ("explore --generate unmap-access", &["--mutants"]),
    ("explore --lines 3", &["--replay"]),
    ("explore /dev/zero/x.toml", &["/dev/zero/x.toml"]),
    ("list machines --machine milan", &["--machine milan"]),
    ("boot --option tag_bits=0", &["`tag_bits=0`"]),
    ("boot --option nonsense", &["`nonsense`"]),
    ("boot --option policy=some", &["`some`"]),
    ("boot --option break=Unknown", &["`break=Unknown`"]),
    ("boot swap --option parameters=x:1", &["`x`"]),
    ("boot --cpus 65", &["65", "1..=64"]),
    ("boot self-test", &["'self-test'", "selftest", "dontneed"]),
    ("boot --accel bochs --arch aarch64", &["Bochs"]),
    ("boot --accel bochs --arch riscv64", &["Bochs"]),
    ("boot --accel bochs --icount", &["Bochs"]),
    ("boot --accel bochs --threads", &["Bochs"]),
    ("boot --accel bochs --print-command", &["Bochs"]),
    ("run fileio --param block=1M --param size=64K", &["block=1M"]),
    ("run nonsense", &["nonsense", "dontneed"]),
    ("run dontneed --machine abacus", &["abacus", "haswell-server"]),
    ("run dontneed --policy S9", &["S9", "S0"]),
    ("run dontneed --cpus 5000", &["5000", "1024"]),
    ("run dontneed --param pages=many", &["many", "a whole number"]),
    ("run readers", &["slow memory", "--machine xeon-6430-cxl"]),
    ("reproduce --only S7", &["S7", "dontneed"]),
    (
        "scale dontneed --cpus 1 --show pagein",
        &["dontneed makes no call `pagein`; it makes discard"],
    ),
    ("scale crowd --cpus 2 --bound", &["--bound: the figure of crowd is no time"]),
    ("predict --machine milan --kernel S9", &["as a policy: "]),
    ("measure host --only discard,disgard", &["disgard", "pingpong"]),
    ("measure host --only pingpong --machine-file f.toml", &["--machine-file", "discard"]),
    ("measure host --only discard --machine-file no/f.toml", &["--machine-file", "no/f.toml"]),
];

#[test]
fn mistakes_name_the_culprit_and_the_way_out_in_one_line() {
    let folder = Folder::new();
    let lines = REFUSED.iter().map(|&(line, parts)| (folder.quell(line), parts));
    let mut with_a_new_line = quell("run dontneed --cpus");
    with_a_new_line.arg("1\n2");
    for (mut command, parts) in lines.chain([(with_a_new_line, &["control character"][..])]) {
        let refused = ended(&mut command).code(2);
        assert!(refused.stdout.is_empty() && refused.stderr.lines().count() == 1, "{refused:?}");
        parts.iter().fold(refused, |refused, part| refused.stderr(part));
    }
}

/// A boot that a signal ends must end its emulator, even if only the command receives the signal.
#[test]
fn a_boot_that_receives_a_signal_takes_the_emulator_along() {
    let folder = Folder::new();
    folder.write("quell-kernel", "an image");
    folder.write("quell-user", "an image");
    folder.pipe("pipe");
    // The script opens the pipe, which shows that it runs, and keeps the pipe open until it ends.
    folder.script("qemu-system-x86_64", "#!/bin/sh\nexec 3>pipe\nexec sleep 100000\n");
    let mut boot = folder.quell("boot --arch x86_64 --kernel .");
    boot.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    let mut boot = boot.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = File::open(folder.join("pipe")).unwrap();
    let pid = rustix::process::Pid::from_child(&boot);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(boot.wait().unwrap().code(), Some(143), "128 and SIGTERM");
    // Nobody writes to the pipe: reading it ends when the emulator has ended.
    assert_eq!(std::io::Read::read(&mut pipe, &mut [0]).unwrap(), 0);
}

#[test]
fn a_misspelt_name_suggests_the_nearest() {
    let folder = Folder::new();
    let machine = "name = \"m\"\nbased_on = \"milan\"\n[interrupt]\n";
    let value = "send = { vlaue = 1, unit = \"ns\", source = \"x\" }\n";
    folder.write("machine.toml", machine.to_owned() + value);
    let workload = include_str!("../../../testbed/workloads/workloads/dontneed.toml");
    folder.write("workload.toml", workload.replacen("name =", "nmae =", 1));
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
        ("run dontneed --machine machine.toml", "value"),
        ("run workload.toml", "name"),
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
        let said = folder.run(line).code(2).stderr;
        let suggested = [format!("did you mean `{near}`?"), format!("'{near}'")];
        assert!(suggested.iter().any(|near| said.contains(near)), "{line}: {said}");
    }
}

#[test]
fn only_the_refused_option_is_corrected() {
    let refused = run("boot --option tag_bits=x --option polcy=all").code(2).stderr("`tag_bits=x`");
    assert!(!refused.stderr.contains("did you mean"), "{refused:?}");
}

#[test]
fn a_file_of_unknown_keys_is_refused_in_little_time() {
    let folder = Folder::new();
    let keys: String = (0..80_000).map(|key| format!("key{key} = 1\n")).collect();
    folder.write("many.toml", format!("name = \"m\"\nbased_on = \"milan\"\n{keys}"));
    for option in ["--machine", "--kernel", "--policy"] {
        // Looking for the nearest name of each key took minutes of CPU time.
        let (quell, file) = (env!("CARGO_BIN_EXE_quell"), folder.join("many.toml"));
        let run = format!("'{quell}' run dontneed {option} '{}'", file.display());
        let limited = shell(&format!("ulimit -t 20; exec {run}"));
        limited.code(2).stderr("many.toml:3: key0: unknown key");
    }
}

#[test]
fn a_title_from_a_file_steers_no_terminal_and_breaks_no_picture() {
    let folder = Folder::new();
    let title = r#"title = "red \u001b[31m title""#;
    folder.write("m.toml", format!("name = \"m\"\n{title}\nbased_on = \"milan\"\n"));
    let is_harmless = |text: &str| text.contains("\u{fffd}[31m title") && !text.contains('\u{1b}');
    for line in [
        "list parameters",
        "run dontneed --cpus 1 --param iterations=5",
        "scale dontneed --cpus 1 --param iterations=5 --plot plot.svg",
    ] {
        let shown = folder.run(&format!("{line} --machine m.toml")).stdout;
        assert!(is_harmless(&shown), "{shown}");
    }
    assert!(is_harmless(&folder.read("plot.svg")));
}

#[test]
fn numbers_that_are_none_are_refused_with_line_key_and_what_to_write() {
    let folder = Folder::new();
    for number in ["nan", "inf", "-inf", "1e300"] {
        let machine = "name = \"m\"\nbased_on = \"milan\"\n[interrupt]\n";
        let send = format!("send = {{ value = {number}, unit = \"ns\", source = \"x\" }}\n");
        folder.write("m.toml", machine.to_owned() + &send);
        folder.write("p.toml", format!("\npages = {number}\n"));
        let refused = |option: &str, parts: [&str; 3]| {
            let refused = folder.run(&format!("run dontneed {option}")).code(2).stderr(number);
            assert!(refused.stderr.len() < 300, "{refused:?}");
            parts.iter().fold(refused, |refused, part| refused.stderr(part));
        };
        refused("--machine m.toml", ["m.toml:4", "interrupt.send", "0.1 to 100000 ns"]);
        refused("--params p.toml", ["p.toml:2", "pages", "a whole number"]);
        refused(&format!("--param pages={number}"), ["--param", "pages", "a whole number"]);
        let set = format!("--set interrupt.send={number}ns");
        refused(&set, ["--set", "interrupt.send", "ns"]);
    }
}

#[test]
fn a_reader_that_stops_is_no_failure_to_talk_about() {
    let mut run = quell("run dontneed --cpus 2");
    let mut child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // On a busy host the run may take so long that it prints its progress.
    let is_progress = |line: &str| line.starts_with("running dontneed: ");
    assert!(said.lines().all(is_progress), "{said}");
    // A shell reports a closed pipe with this code.
    assert_eq!(output.status.code(), Some(141));
}

//! `quell record` of programs on this host, as a user runs it.
//!
//! Tests that really record need root (or CAP_PERFMON and a readable tracefs). They print a message if they can't run.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.arg("record").args(args);
    command
}

/// Returns whether the errors report that this host can't record; prints them in that case.
fn cannot(errors: &str) -> bool {
    let cannot = errors.contains("cannot record");
    if cannot {
        eprintln!("NOT RUN: {errors}");
    }
    cannot
}

#[test]
fn what_cannot_be_recorded_is_named_with_the_way_out() {
    quell(&[]).assert().code(2).stderr(contains("-p"));
    quell(&["--cgroup", "/tmp"]).assert().stderr(contains("/tmp"));
    let group = tempfile::tempdir().unwrap();
    std::fs::write(group.path().join("cgroup.procs"), "").unwrap();
    let name = group.path().to_str().unwrap();
    quell(&["--cgroup", name, "--seconds", "1"]).assert().failure().stderr(
        contains(name).and(contains("no process")).or(contains("cannot record: only root")),
    );
    // A thread's number names its process.
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().to_string()).unwrap();
        ended.recv()
    });
    let own = format!("a thread of process {}", std::process::id());
    quell(&["-p", &told.recv().unwrap(), "--seconds", "1"])
        .assert()
        .failure()
        .stderr(contains(own));
    drop(end);
    thread.join().unwrap().unwrap_err();
    quell(&["-a", "--seconds", "0"]).assert().code(2).stderr(contains("above 0"));
    for overhead in ["-1", "nan", "inf", "1e300"] {
        quell(&["-a", &format!("--overhead={overhead}")])
            .assert()
            .code(2)
            .stderr(contains("a percentage from 0 to 100"));
    }
    quell(&["-a", "-p", "1"]).assert().code(2);
    quell(&["-a", "--import", "x"]).assert().code(2);
}

#[test]
fn a_recording_that_was_kept_says_the_same_when_it_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let name = file.to_str().unwrap();
    let output = quell(&["--json", "-o", name, "--", "sh", "-c", "true; true"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    if cannot(&errors) {
        return;
    }
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains(name) && errors.contains("overhead"), "{errors}");
    let live: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["sites", "interrupts", "attributed", "lost"] {
        assert!(live.get(key).is_some(), "{key} is missing");
    }
    let again = quell(&["--json", "--import", name]).output().unwrap();
    assert!(again.status.success());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(live, again);
}

#[test]
fn a_file_that_is_named_twice_is_refused_before_it_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let other = folder.path().join(".").join("recording");
    std::fs::write(&file, "an earlier recording").unwrap();
    let (file, other) = (file.to_str().unwrap(), other.to_str().unwrap());
    for arguments in [
        ["--import", file, "--html", other],
        ["-o", file, "--perfetto", other],
        ["--workload", file, "--html", other],
    ] {
        quell(&arguments)
            .args(["--", "true"].iter().filter(|_| arguments[0] == "-o"))
            .assert()
            .code(2)
            .stderr(contains("names the same file"));
    }
    assert_eq!(std::fs::read(file).unwrap(), b"an earlier recording");
}

#[test]
fn a_recording_that_cannot_begin_leaves_files_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    std::fs::write(&old, "an earlier recording").unwrap();
    for file in [&old, &new] {
        // No process has this number.
        quell(&["-p", "4294967295", "-o", file.to_str().unwrap()])
            .assert()
            .code(2)
            .stderr(contains("4294967295"));
    }
    for (program, why) in [("no-such-program", "could not be started"), ("/etc", "denied")] {
        for file in [&old, &new] {
            let output = quell(&["-o", file.to_str().unwrap(), "--", program]).output().unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert!(errors.contains(why), "{errors}");
            assert_eq!(output.status.code(), Some(1), "{errors}");
        }
    }
    for (file, why) in [("/dev/null", "no regular file"), ("-", "standard output")] {
        let refused = quell(&["-o", file, "--", "true"]).assert().code(2);
        refused.stderr(contains(why));
    }
    assert_eq!(std::fs::read(&old).unwrap(), b"an earlier recording");
    assert!(!new.exists());
    // A recording that begins replaces the old file.
    let longer = vec![b'x'; 10 << 20];
    std::fs::write(&old, &longer).unwrap();
    let output = quell(&["-o", old.to_str().unwrap(), "--", "true"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    if cannot(&errors) {
        assert_eq!(std::fs::read(&old).unwrap(), longer);
    } else {
        assert!(output.status.success(), "{errors}");
        assert!(std::fs::metadata(&old).unwrap().len() < longer.len() as u64);
    }
}

#[test]
fn the_command_is_started_with_its_arguments_and_its_failure_is_told() {
    let output = quell(&["--", "sh", "-c", "echo $0 $1; exit 3", "--json", "-a"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("--json -a"), "{shown}");
    let errors = String::from_utf8(output.stderr).unwrap();
    if cannot(&errors) {
        return;
    }
    assert!(errors.contains('3'), "{errors}");
    assert_eq!(output.status.code(), Some(3));
    // The command's output isn't mixed with ours.
    let killed = ["--json", "--", "sh", "-c", "echo said; kill -9 $$"];
    let output = quell(&killed).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 9));
    let _: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.lines().any(|line| line == "said"), "{errors}");
}

#[test]
fn two_recordings_into_one_file_are_one_too_many() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = file.path().to_str().unwrap();
    let lock = rustix::fs::FlockOperation::LockExclusive;
    rustix::fs::flock(file.as_file(), lock).unwrap();
    std::fs::write(name, "another's").unwrap();
    let refused = quell(&["-o", name, "--", "true"]).assert().code(2);
    refused.stderr(contains(name).and(contains("another recording")));
    assert_eq!(std::fs::read(name).unwrap(), b"another's");
}

#[test]
fn what_does_not_end_is_not_imported() {
    for endless in ["/dev/zero", "/dev/tty0", "/proc/kmsg", "/sys/kernel/tracing/trace_pipe"] {
        if std::path::Path::new(endless).exists() {
            let refused = quell(&["--import", endless]).assert().code(2);
            refused.stderr(contains(endless).and(contains("may never end")));
        }
    }
    for endless in ["yes $(printf %5000s | tr ' ' x)", "cat /dev/zero"] {
        let script = format!("{endless} | '{}' record --import -", env!("CARGO_BIN_EXE_quell"));
        let refused = Command::new("sh").args(["-c", &script]).assert().code(1);
        refused.stderr(contains("standard input").and(contains("16 MB")));
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    quell(&["--import", pipe.to_str().unwrap()]).assert().code(2).stderr(contains("a pipe"));
}

/// Runs `quell try` with a shell that counts to `$N`, or to 200 000.
fn tried(arguments: &[&str], script: &str) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    let output = command.arg("try").args(arguments).args(["--", "sh", "-c", script]).output();
    output.unwrap()
}

const COUNTS: &str = "i=0; while [ $i -lt ${N:-200000} ]; do i=$((i+1)); done; echo $i";

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn a_setting_that_helps_is_told_from_one_that_does_not_and_from_one_that_breaks_the_command() {
    let output = tried(&["--env", "N=20", "--json"], COUNTS);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["schema"], 1, "{told}");
    assert_eq!(told["set"][0], "N=20");
    let cpu = &told["measures"]["cpu_ns"];
    assert_eq!(cpu["finding"], "less", "{told}");
    assert!(cpu["change"]["most"].as_f64().unwrap() < -0.5, "{told}");
    // A setting that makes it worse is reported as such, in words.
    let output = tried(&["--env", "N=1000000"], &COUNTS.replace("200000", "20000"));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.starts_with("N=1000000 makes it worse: CPU time ")
            && shown.contains("It takes longer"),
        "{shown}"
    );
    // A setting that nobody reads doesn't help.
    let output = tried(&["--env", "NOBODY_READS=1", "--seconds", "8", "--json"], COUNTS);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cpu = &told["measures"]["cpu_ns"];
    let is_little = |end: &str| cpu["change"][end].as_f64().unwrap().abs() < 0.03;
    // One more variable moves the stack, which may change the time a little.
    let is_none = ["same", "notless", "unknown"].contains(&cpu["finding"].as_str().unwrap());
    assert!(is_none || is_little("least") && is_little("most"), "{told}");
    // A changed command is compared with the unchanged one.
    let changed = COUNTS.replace("200000", "20");
    let output = tried(&["--with", &changed, "--json"], COUNTS);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["set"][0], changed);
    let cpu = &told["measures"]["cpu_ns"];
    assert_eq!(cpu["finding"], "less", "{told}");
    let output = tried(&["--env", "N=nonsense"], "exit ${N:+7}");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("with N=nonsense ended with exit status: 7"), "{errors}");
}

#[test]
fn what_cannot_be_tried_is_said() {
    let refused = |arguments: &[&str], why: &str| {
        let output = tried(arguments, "true");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(why), "{errors}");
    };
    refused(&[], "--env");
    refused(&["--env", "NAME"], "NAME=VALUE");
    // This recording is of a program without an allocator, so it advises no setting.
    let recording =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../profiler/record/tests/recordings/perf.txt");
    refused(&["--advice", recording], "no setting of a known allocator or runtime helps");
}

/// A server in a folder of its own, ended when dropped.
struct Server(std::process::Child);

impl Server {
    fn start(script: &str, folder: &std::path::Path) -> Self {
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", script]).current_dir(folder);
        Self(shell.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs `quell try` in a folder.
fn tried_in(folder: &std::path::Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    let command = command.arg("try").args(arguments).current_dir(folder);
    command.output().unwrap()
}

/// Writes how much the servers below count for a request.
const SWITCH: &str = "case $1 in on) echo 20;; off) echo 20000;; esac > new; mv new work";

/// Answers each request after counting.
const ANSWERS: &str = "while read -r _ < ask; do n=${N:-$(cat work)}; i=0; while [ $i -lt $n ]; do i=$((i+1)); done; \
                       echo done > answer; done";

/// Makes requests, one after the other.
const LOAD: &str = "for i in 1 2 3 4 5 6 7 8; do echo $i > ask; read -r _ < answer; done";

fn with_pipes() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("work"), "20000\n").unwrap();
    std::fs::write(folder.path().join("switch"), SWITCH).unwrap();
    for pipe in ["ask", "answer"] {
        let (path, mode) = (folder.path().join(pipe), rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
    folder
}

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn a_setting_of_a_running_server_is_switched_by_turns_and_off_in_the_end() {
    let folder = with_pipes();
    let busy = "while :; do n=$(cat work); i=0; while [ $i -lt $n ]; do i=$((i+1)); done; sleep 0.01; done";
    let mut server = Server::start(busy, folder.path());
    let pid = server.0.id().to_string();
    let arguments = ["--pid", &pid, "--switch", SWITCH, "--turn", "0.3", "--json"];
    let output = tried_in(folder.path(), &arguments);
    let told: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!((&told["set"][0], &told["per_second"]), (&SWITCH.into(), &true.into()));
    assert_eq!(told["measures"]["cpu_ns"]["finding"], "less", "{told}");
    // Its children's page faults are its own, and a second is no measure of a second.
    assert!(told["measures"]["faults"]["before"].as_f64().unwrap() > 0.0, "{told}");
    assert!(told["measures"]["wall_ns"].is_null(), "{told}");
    let left = std::fs::read_to_string(folder.path().join("work")).unwrap();
    assert_eq!(left, "20000\n");
    assert!(server.0.try_wait().unwrap().is_none(), "the server still runs");
}

#[test]
fn a_server_is_measured_while_a_load_does_the_same_work_each_time() {
    let folder = with_pipes();
    let compared = |arguments: &[&str]| {
        let output = tried_in(folder.path(), arguments);
        let told: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(told["per_second"], false);
        assert_eq!(told["measures"]["cpu_ns"]["finding"], "less", "{told}");
        // The trial ends once the CPU time is clear. One turn that other programs delay leaves the wall time unclear.
        let wall = |side: &str| told["measures"]["wall_ns"][side].as_f64().unwrap();
        assert!(wall("after") < wall("before"), "{told}");
    };
    // One server for all turns.
    let server = Server::start(ANSWERS, folder.path());
    let pid = server.0.id().to_string();
    compared(&["--pid", &pid, "--switch", "sh switch", "--load", LOAD, "--json"]);
    drop(server);
    // A server for each turn.
    compared(&["--env", "N=20", "--load", LOAD, "--json", "--", "sh", "-c", ANSWERS]);
}

#[test]
fn a_server_that_cannot_be_tried_is_said_with_the_way_out() {
    let folder = with_pipes();
    let refused = |code: i32, arguments: &[&str], why: &str| {
        let output = tried_in(folder.path(), arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(why), "{errors}");
    };
    let server = Server::start("sleep 60", folder.path());
    let pid = server.0.id().to_string();
    refused(2, &["--pid", &pid], "--switch");
    refused(2, &["--pid", "4294967295", "--switch", SWITCH], "there is no such process");
    refused(
        1,
        &["--pid", &pid, "--switch", "exit 3;"],
        "--switch 'exit 3;' off ended with exit status: 3",
    );
    let ends = Server::start("sleep 0.5", folder.path());
    let pid = ends.0.id().to_string();
    refused(
        1,
        &["--pid", &pid, "--switch", SWITCH, "--load", "sleep 1"],
        "ended with the setting off; --load COMMAND -- SERVER starts",
    );
    refused(
        1,
        &["--env", "N=1", "--load", "sleep 0.5", "--", "true"],
        "a server must stay in the foreground",
    );
    refused(
        1,
        &["--env", "N=1", "--load", "exit 4", "--", "sleep", "60"],
        "--load 'exit 4' ended with exit status: 4",
    );
}

#[test]
fn what_cannot_be_written_is_told_before_anything_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, made) = (folder.path().join("pipe"), folder.path().join("made"));
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (pipe, nowhere) = (pipe.to_str().unwrap(), "/nonexistent/page");
    for option in [
        ["-o", pipe],
        ["--html", nowhere],
        ["--perfetto", nowhere],
        ["--workload", nowhere],
        ["--machine", nowhere],
    ] {
        let replay = ["--replay"];
        let replay = replay.iter().filter(|_| option[0] == "--machine");
        let refused = quell(&option).args(replay).args(["--", "touch"]).arg(&made).assert();
        refused.code(2).stderr(contains(option[1]));
        assert!(!made.exists(), "{option:?}");
    }
}

#[test]
fn a_recording_for_which_the_room_runs_out_says_where_its_begin_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let name = file.to_str().unwrap();
    let quell = env!("CARGO_BIN_EXE_quell");
    // Programs that start and end all the time cause a steady stream of events.
    let busy = "for i in $(seq 2000); do /bin/true; done";
    let script =
        format!("trap '' XFSZ; ulimit -f 64; exec '{quell}' record -o '{name}' -- sh -c '{busy}'");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    if cannot(&errors) {
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for said in ["cannot be written", "the command still runs", "record --import"] {
        assert!(errors.contains(said), "{said} is missing: {errors}");
    }
    Command::new(quell).args(["record", "--json", "--import", name]).assert().success();
}

#[test]
fn the_command_is_given_its_arguments_and_limits_as_they_are() {
    let quell = env!("CARGO_BIN_EXE_quell");
    let script =
        format!("ulimit -Sn 300; exec '{quell}' record -- sh -c 'ulimit -Sn\necho two\tlines'");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("300\n"), "{shown}");
    assert!(shown.contains("two lines"), "{shown}");
}

#[test]
fn without_rights_json_is_json_too() {
    use std::os::unix::{fs::MetadataExt, process::CommandExt};
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(["record", "--json", "--", "true"]).current_dir("/");
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        // 65534 is the user `nobody`.
        command.uid(65534).gid(65534);
    }
    let Ok(output) = command.output() else {
        return eprintln!("NOT RUN: nobody else may execute this build");
    };
    if output.status.code() == Some(1) {
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(object["refused"].is_string(), "{object}");
        assert!(object["counted"].is_object(), "{object}");
    }
}

/// Threads that give memory back all the time, so that there are shootdowns to record.
struct ChurningProcess(Option<std::process::Child>);

impl ChurningProcess {
    fn start() -> Self {
        // The process has two threads: one discards, the other runs.
        let program = "import mmap,threading\nm=mmap.mmap(-1,1<<20)\nthreading.Thread(target=lambda:[None for _ in iter(int,1)],daemon=True).start()\n\
                       while True:\n  m[0]=1\n  m.madvise(mmap.MADV_DONTNEED)\n";
        let child = std::process::Command::new("python3").args(["-c", program]).spawn();
        // Without Python there are fewer shootdowns.
        ChurningProcess(child.ok())
    }
}

impl Drop for ChurningProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn each_second_is_a_line_of_json_and_ends_when_it_was_asked_to() {
    let churning = ChurningProcess::start();
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["top", "--seconds", "2", "--json", "--overhead", "100"])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    if cannot(&errors) {
        return;
    }
    assert!(output.status.success(), "{errors}");
    let shown = String::from_utf8(output.stdout).unwrap();
    let seconds: Vec<Value> =
        shown.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    assert!(!seconds.is_empty(), "{shown}{errors}");
    for second in &seconds {
        for key in ["at", "recorded", "lost", "interrupts", "processes"] {
            assert!(second.get(key).is_some(), "{key} is missing in {second}");
        }
        let processes = second["processes"].as_array().unwrap();
        let sent: u64 = processes.iter().filter_map(|row| row["sent"].as_u64()).sum();
        assert_eq!(second["interrupts"].as_u64(), Some(sent));
        // A process has one line, whatever the names of its threads.
        let pids: Vec<_> = processes.iter().map(|row| row["pid"].as_u64()).collect();
        let different: std::collections::HashSet<_> = pids.iter().collect();
        assert_eq!(different.len(), pids.len(), "{second}");
    }
    drop(churning);
}

#[test]
fn top_names_what_it_cannot_do() {
    let top = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command.arg("top").args(args);
        command
    };
    top(&["-p", "4194304999"]).assert().code(2);
    top(&["-p", "4194303", "--seconds", "1"]).assert().code(2).stderr(contains("4194303"));
    top(&["--seconds", "0"]).assert().code(2).stderr(contains("above 0"));
}

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn a_terminal_that_goes_ends_a_recording_well_unless_that_was_to_outlive_it() {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = tempfile::tempdir().unwrap();
    for (ignores, seconds) in [(false, "60"), (true, "3")] {
        let (file, begun) = (folder.path().join("recording"), folder.path().join("begun"));
        let _ = std::fs::remove_file(&begun);
        // The command ignores the signal in both cases, so only the recorder can end because of it.
        let command =
            format!("trap '' HUP; echo $$ >'{}'; exec sleep 60 >/dev/null 2>&1", begun.display());
        let script = format!(
            "{} exec '{}' record -o '{}' --seconds {seconds} -- sh -c \"$0\"",
            if ignores { "trap '' HUP;" } else { "" },
            env!("CARGO_BIN_EXE_quell"),
            file.display(),
        );
        // Under `nohup`, the tests' children ignore the signal, too, unless we restore the default.
        let mut recorder = std::process::Command::new("env")
            .args(["--default-signal=HUP", "sh", "-c", &script, &command])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let since = std::time::Instant::now();
        let sleeper = loop {
            let told = std::fs::read_to_string(&begun).unwrap_or_default();
            if let Ok(pid) = told.trim().parse() {
                break Pid::from_raw(pid);
            }
            if since.elapsed().as_secs() > 20 {
                let _ = recorder.kill();
                let _ = recorder.wait();
                return eprintln!("NOT RUN: nothing can be recorded here");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let recorder_pid = Pid::from_child(&recorder);
        kill_process(recorder_pid, Signal::HUP).unwrap();
        let output = recorder.wait_with_output().unwrap();
        let _ = sleeper.map(|pid| kill_process(pid, Signal::KILL));
        let errors = String::from_utf8_lossy(&output.stderr);
        if cannot(&errors) {
            return;
        }
        assert!(output.status.success(), "{errors}");
        assert!(errors.contains("the command still runs"), "{errors}");
        let length = errors.split_once(" in ").and_then(|(_, rest)| rest.split_once(" s into"));
        let length: f64 = length.unwrap().0.parse().unwrap();
        assert_eq!(length >= 3.0, ignores, "{errors}");
        quell(&["--import", file.to_str().unwrap()]).assert().success();
    }
}

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn what_a_command_leaves_running_is_recorded_for_the_time_that_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let (file, left) = (folder.path().join("recording"), folder.path().join("left"));
    let command = format!("sleep 60 >/dev/null 2>&1 & echo $! >'{}'", left.display());
    for seconds in [Some("2"), None] {
        let named = seconds.map(|seconds| ["--seconds", seconds]);
        let mut recorder = quell(&["-o", file.to_str().unwrap()]);
        recorder.args(named.iter().flatten());
        let output = recorder.args(["--", "sh", "-c", &command]).output().unwrap();
        let pid = std::fs::read_to_string(&left).unwrap_or_default();
        if let Some(pid) = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        if cannot(&errors) {
            return;
        }
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors.contains(" in 2."), seconds.is_some(), "{errors}");
        assert_eq!(errors.contains("its children still run"), seconds.is_none(), "{errors}");
    }
}

//! `quell record`, `quell try` and `quell top` of programs on this host, as a user runs them.
//!
//! Tests that really record need root (or CAP_PERFMON and a readable tracefs). They print a message if they can't run.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::process::{Child, Command};

use crate::command::{Ended, Folder, ended, quell, run, shell, skipped};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns how a recording ended, or `None` if this host can't record; prints the reason in that case.
fn recorded(ended: Ended) -> Option<Ended> {
    if ended.stderr.contains("cannot record") {
        skipped("recording", &ended.stderr);
        return None;
    }
    Some(ended)
}

/// Runs a command line that ends with this script for a shell.
fn run_shell(mut command: Command, script: &str) -> Ended {
    ended(command.args(["--", "sh", "-c", script]))
}

#[test]
fn what_cannot_be_recorded_or_tried_is_named_with_the_way_out() {
    let folder = Folder::new();
    folder.pipe("pipe");
    let advice =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../profiler/record/tests/recordings/perf.txt");
    for (line, part) in [
        ("record", "-p"),
        ("record -a --seconds 0", "above 0"),
        ("record -a --overhead=-1", "a percentage from 0 to 100"),
        ("record -a --overhead=nan", "a percentage from 0 to 100"),
        ("record -a --overhead=1e300", "a percentage from 0 to 100"),
        ("record -a -p 1", "-p"),
        ("record -a --import x", "--import"),
        ("record -p 4294967295", "4294967295"),
        ("record -o /dev/null -- true", "no regular file"),
        ("record -o - -- true", "standard output"),
        ("record --import pipe", "a pipe"),
        // What cannot be written is told before anything is recorded.
        ("record -o pipe -- touch made", "pipe"),
        ("record --html /nonexistent/page -- touch made", "/nonexistent/page"),
        ("record --perfetto /nonexistent/page -- touch made", "/nonexistent/page"),
        ("record --workload /nonexistent/page -- touch made", "/nonexistent/page"),
        ("record --replay --machine /nonexistent/page -- touch made", "/nonexistent/page"),
        ("top -p 4194304999", "4194304999"),
        ("top -p 4194303 --seconds 1", "4194303"),
        ("top --seconds 0", "above 0"),
        ("try -- true", "--env"),
        ("try --env NAME -- true", "NAME=VALUE"),
        ("try --pid 1", "--switch"),
        ("try --pid 4294967295 --switch true", "there is no such process"),
        // This recording is of a program without an allocator, so it advises no setting.
        (
            &format!("try --advice {advice} -- true"),
            "no setting of a known allocator or runtime helps",
        ),
    ] {
        folder.run(line).code(2).stderr(part);
    }
    assert!(!folder.has("made"));
    run("record --cgroup /tmp").stderr("/tmp");
    folder.write("cgroup.procs", "");
    let group = folder.path().display();
    let refused = run(&format!("record --cgroup {group} --seconds 1")).stderr;
    let is_empty = refused.contains(&group.to_string()) && refused.contains("no process");
    assert!(is_empty || refused.contains("cannot record: only root"), "{refused}");
    // A thread's number names its process.
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        ended.recv()
    });
    let refused = run(&format!("record -p {} --seconds 1", told.recv().unwrap()));
    refused.stderr(&format!("a thread of process {}", std::process::id()));
    drop(end);
    thread.join().unwrap().unwrap_err();
}

#[test]
fn a_recording_that_was_kept_says_the_same_when_it_is_read_again() {
    let folder = Folder::new();
    let recording = run_shell(folder.quell("record --json -o recording"), "true; true");
    let Some(recording) = recorded(recording) else { return };
    let live = recording.code(0).stderr("into recording").stderr("overhead").json();
    for key in ["sites", "interrupts", "attributed", "lost"] {
        assert!(live.get(key).is_some(), "{key} is missing");
    }
    assert_eq!(live, folder.document("record --json --import recording"));
}

#[test]
fn files_stay_as_they_were_until_a_recording_begins() {
    let folder = Folder::new();
    let earlier = "an earlier recording ".repeat(1 << 19);
    folder.write("old", &earlier);
    for (line, code, why) in [
        ("--import old --html ./old", 2, "names the same file"),
        ("-o old --perfetto ./old -- true", 2, "names the same file"),
        ("--workload old --html ./old", 2, "names the same file"),
        // No process has this number.
        ("-o old -p 4294967295", 2, "4294967295"),
        ("-o new -p 4294967295", 2, "4294967295"),
        ("-o old -- no-such-program", 1, "could not be started"),
        ("-o new -- no-such-program", 1, "could not be started"),
        ("-o old -- /etc", 1, "denied"),
        ("-o new -- /etc", 1, "denied"),
    ] {
        folder.run(&format!("record {line}")).code(code).stderr(why);
    }
    let file = std::fs::File::open(folder.join("old")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    folder.run("record -o old -- true").code(2).stderr("old").stderr("another recording");
    drop(file);
    assert!(folder.read("old") == earlier && !folder.has("new"));
    // A recording that begins replaces the old file.
    match recorded(folder.run("record -o old -- true")) {
        None => assert!(folder.read("old") == earlier),
        Some(begun) => {
            begun.code(0);
            assert!(std::fs::metadata(folder.join("old")).unwrap().len() < earlier.len() as u64);
        }
    }
}

#[test]
fn the_command_is_started_with_its_arguments_and_its_failure_is_told() {
    let mut echo = quell("record -- sh -c");
    let failed = ended(echo.args(["echo $0 $1; exit 3", "--json", "-a"])).stdout("--json -a");
    let Some(failed) = recorded(failed) else { return };
    failed.code(3).stderr("3");
    // The command's output isn't mixed with ours.
    let killed = run_shell(quell("record --json"), "echo said; kill -9 $$").code(128 + 9);
    killed.json();
    assert!(killed.stderr.lines().any(|line| line == "said"), "{killed:?}");
}

#[test]
fn what_does_not_end_is_not_imported() {
    for endless in ["/dev/zero", "/dev/tty0", "/proc/kmsg", "/sys/kernel/tracing/trace_pipe"] {
        if std::path::Path::new(endless).exists() {
            let refused = run(&format!("record --import {endless}"));
            refused.code(2).stderr(endless).stderr("may never end");
        }
    }
    for endless in ["yes $(printf %5000s | tr ' ' x)", "cat /dev/zero"] {
        let import = format!("{endless} | '{}' record --import -", env!("CARGO_BIN_EXE_quell"));
        shell(&import).code(1).stderr("standard input").stderr("16 MB");
    }
}

/// A shell counts to `$N`, or to 200 000.
const COUNTS: &str = "i=0; while [ $i -lt ${N:-200000} ]; do i=$((i+1)); done; echo $i";

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn a_setting_that_helps_is_told_from_one_that_does_not_and_from_one_that_breaks_the_command() {
    let found = run_shell(quell("try --env N=20 --json"), COUNTS).json();
    assert_eq!((&found["schema"], &found["set"][0]), (&1.into(), &"N=20".into()));
    let cpu = &found["measures"]["cpu_ns"];
    assert_eq!(cpu["finding"], "less", "{found}");
    assert!(cpu["change"]["most"].as_f64().unwrap() < -0.5, "{found}");
    // A setting that makes it worse is reported as such, in words.
    let worse = run_shell(quell("try --env N=1000000"), &COUNTS.replace("200000", "20000"));
    let worse = worse.stdout("It takes longer").stdout;
    assert!(worse.starts_with("N=1000000 makes it worse: CPU time "), "{worse}");
    // A setting that nobody reads doesn't help.
    let nothing = quell("try --env NOBODY_READS=1 --seconds 8 --json");
    let found = run_shell(nothing, COUNTS).json();
    let cpu = &found["measures"]["cpu_ns"];
    let is_little = |end: &str| cpu["change"][end].as_f64().unwrap().abs() < 0.03;
    // One more variable moves the stack, which may change the time a little.
    let is_none = ["same", "notless", "unknown"].contains(&cpu["finding"].as_str().unwrap());
    assert!(is_none || is_little("least") && is_little("most"), "{found}");
    // A changed command is compared with the unchanged one.
    let changed = COUNTS.replace("200000", "20");
    let mut with = quell("try --json");
    with.args(["--with", &changed]);
    let found = run_shell(with, COUNTS).json();
    assert_eq!(found["set"][0], changed);
    assert_eq!(found["measures"]["cpu_ns"]["finding"], "less", "{found}");
    let broken = run_shell(quell("try --env N=nonsense"), "exit ${N:+7}");
    broken.code(1).stderr("with N=nonsense ended with exit status: 7");
}

/// A process that ends with its test.
struct Killed(Child);

impl Killed {
    fn start(script: &str, folder: &Folder) -> Self {
        let mut shell = Command::new("sh");
        Killed(shell.args(["-c", script]).current_dir(folder.path()).spawn().unwrap())
    }

    /// Returns `quell try` of this process.
    fn tried(&self, folder: &Folder, options: &str) -> Command {
        folder.quell(&format!("try --pid {} {options}", self.0.id()))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Writes how much the servers below count for a request.
const SWITCH: &str = "case $1 in on) echo 20;; off) echo 20000;; esac > new; mv new work";

/// Answers each request after counting.
const ANSWERS: &str = "while read -r _ < ask; do n=${N:-$(cat work)}; i=0; while [ $i -lt $n ]; do i=$((i+1)); done; \
                       echo done > answer; done";

/// Makes requests, one after the other.
const LOAD: &str = "for i in 1 2 3 4 5 6 7 8; do echo $i > ask; read -r _ < answer; done";

fn with_pipes() -> Folder {
    let folder = Folder::new();
    folder.write("work", "20000\n");
    folder.script("switch", &format!("#!/bin/sh\n{SWITCH}\n"));
    folder.script("load", &format!("#!/bin/sh\n{LOAD}\n"));
    folder.pipe("ask");
    folder.pipe("answer");
    folder
}

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn a_setting_of_a_running_server_is_switched_by_turns_and_off_in_the_end() {
    let folder = with_pipes();
    let busy = "while :; do n=$(cat work); i=0; while [ $i -lt $n ]; do i=$((i+1)); done; sleep 0.01; done";
    let mut server = Killed::start(busy, &folder);
    let mut command = server.tried(&folder, "--turn 0.3 --json");
    let found = ended(command.args(["--switch", SWITCH])).json();
    assert_eq!((&found["set"][0], &found["per_second"]), (&SWITCH.into(), &true.into()));
    assert_eq!(found["measures"]["cpu_ns"]["finding"], "less", "{found}");
    // Its children's page faults are its own, and a second is no measure of a second.
    assert!(found["measures"]["faults"]["before"].as_f64().unwrap() > 0.0, "{found}");
    assert!(found["measures"]["wall_ns"].is_null(), "{found}");
    assert_eq!(folder.read("work"), "20000\n");
    assert!(server.0.try_wait().unwrap().is_none(), "the server still runs");
}

#[test]
fn a_server_is_measured_while_a_load_does_the_same_work_each_time() {
    let folder = with_pipes();
    let assert_less = |ended: Ended| {
        let found = ended.json();
        assert_eq!(found["per_second"], false);
        assert_eq!(found["measures"]["cpu_ns"]["finding"], "less", "{found}");
        // The trial ends once the CPU time is clear. One turn that other programs delay leaves the wall time unclear.
        let wall = |side: &str| found["measures"]["wall_ns"][side].as_f64().unwrap();
        assert!(wall("after") < wall("before"), "{found}");
    };
    // One server for all turns.
    let server = Killed::start(ANSWERS, &folder);
    assert_less(ended(&mut server.tried(&folder, "--switch ./switch --load ./load --json")));
    drop(server);
    // A server for each turn.
    assert_less(run_shell(folder.quell("try --env N=20 --load ./load --json"), ANSWERS));
}

#[test]
fn a_server_that_cannot_be_tried_is_said_with_the_way_out() {
    let folder = with_pipes();
    folder.script("fail", "#!/bin/sh\nexit 4\n");
    folder.script("wait", "#!/bin/sh\nsleep 1\n");
    let server = Killed::start("sleep 60", &folder);
    let ends = Killed::start("sleep 0.5", &folder);
    for (mut command, why) in [
        (
            server.tried(&folder, "--switch ./fail"),
            "--switch './fail' off ended with exit status: 4",
        ),
        (
            ends.tried(&folder, "--switch ./switch --load ./wait"),
            "ended with the setting off; --load COMMAND -- SERVER starts",
        ),
        (
            folder.quell("try --env N=1 --load ./wait -- true"),
            "a server must stay in the foreground",
        ),
        (
            folder.quell("try --env N=1 --load ./fail -- sleep 60"),
            "--load './fail' ended with exit status: 4",
        ),
    ] {
        ended(&mut command).code(1).stderr(why);
    }
}

#[test]
fn a_recording_for_which_the_room_runs_out_says_where_its_begin_is() {
    let folder = Folder::new();
    let (quell, file) = (env!("CARGO_BIN_EXE_quell"), folder.join("recording"));
    // Programs that start and end all the time cause a steady stream of events.
    let busy = "for i in $(seq 2000); do /bin/true; done";
    let record = format!("exec '{quell}' record -o '{}' -- sh -c '{busy}'", file.display());
    let full = shell(&format!("trap '' XFSZ; ulimit -f 64; {record}"));
    let Some(full) = recorded(full) else { return };
    full.code(1)
        .stderr("cannot be written")
        .stderr("the command still runs")
        .stderr("record --import");
    folder.run("record --json --import recording").code(0);
}

#[test]
fn the_command_is_given_its_arguments_and_limits_as_they_are() {
    let record = format!("exec '{}' record -- sh -c", env!("CARGO_BIN_EXE_quell"));
    let output = shell(&format!("ulimit -Sn 300; {record} 'ulimit -Sn\necho two\tlines'"));
    output.stdout("300\n").stdout("two lines");
}

#[test]
fn without_rights_json_is_json_too() {
    use std::os::unix::process::CommandExt;
    let mut command = quell("record --json -- true");
    command.current_dir("/");
    if rustix::process::getuid().is_root() {
        // 65534 is the user `nobody`.
        command.uid(65534).gid(65534);
    }
    let Ok(output) = command.output() else {
        return skipped("recording without rights", "nobody else may execute this build");
    };
    if output.status.code() == Some(1) {
        let object = Ended::from(output).json();
        assert!(object["refused"].is_string() && object["counted"].is_object(), "{object}");
    }
}

#[test]
fn each_second_is_a_line_of_json_and_ends_when_it_was_asked_to() {
    // Two threads, one that discards and one that runs, cause shootdowns. Without Python there are fewer.
    let program = "import mmap,threading\nm=mmap.mmap(-1,1<<20)\n\
                   threading.Thread(target=lambda:[None for _ in iter(int,1)],daemon=True).start()\n\
                   while True:\n  m[0]=1\n  m.madvise(mmap.MADV_DONTNEED)\n";
    let churning = Command::new("python3").args(["-c", program]).spawn().map(Killed);
    let Some(top) = recorded(run("top --seconds 2 --json --overhead 100")) else { return };
    drop(churning);
    let top = top.code(0);
    let seconds: Vec<Value> =
        top.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    assert!(!seconds.is_empty(), "{top:?}");
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
}

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn a_terminal_that_goes_ends_a_recording_well_unless_that_was_to_outlive_it() {
    let folder = Folder::new();
    for (ignores, seconds) in [(false, "60"), (true, "3")] {
        folder.write("begun", "");
        // The command ignores the signal in both cases, so only the recorder can end because of it.
        let command = "trap '' HUP; echo $$ >begun; exec sleep 60 >/dev/null 2>&1";
        let script = format!(
            "{} exec '{}' record -o recording --seconds {seconds} -- sh -c \"$0\"",
            if ignores { "trap '' HUP;" } else { "" },
            env!("CARGO_BIN_EXE_quell"),
        );
        // Under `nohup`, the tests' children ignore the signal, too, unless we restore the default.
        let mut recorder = Command::new("env")
            .args(["--default-signal=HUP", "sh", "-c", &script, command])
            .current_dir(folder.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let since = std::time::Instant::now();
        let sleeper = loop {
            if let Ok(pid) = folder.read("begun").trim().parse() {
                break Pid::from_raw(pid);
            }
            if since.elapsed().as_secs() > 20 {
                let _ = recorder.kill();
                let _ = recorder.wait();
                return skipped("recording", "nothing can be recorded here");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        kill_process(Pid::from_child(&recorder), Signal::HUP).unwrap();
        let output = recorder.wait_with_output().unwrap();
        let _ = sleeper.map(|pid| kill_process(pid, Signal::KILL));
        let Some(output) = recorded(output.into()) else { return };
        let errors = output.code(0).stderr("the command still runs").stderr;
        let length = errors.split_once(" in ").and_then(|(_, rest)| rest.split_once(" s into"));
        let length: f64 = length.unwrap().0.parse().unwrap();
        assert_eq!(length >= 3.0, ignores, "{errors}");
        folder.document("record --json --import recording");
    }
}

#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn what_a_command_leaves_running_is_recorded_for_the_time_that_was_named() {
    let folder = Folder::new();
    let command = "sleep 60 >/dev/null 2>&1 & echo $! >left";
    for (options, is_named) in [("--seconds 2", true), ("", false)] {
        let line = format!("record -o recording {options}");
        let output = run_shell(folder.quell(&line), command);
        let left = std::fs::read_to_string(folder.join("left")).unwrap_or_default();
        if let Some(pid) = left.trim().parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let Some(output) = recorded(output) else { return };
        let errors = output.code(0).stderr;
        assert_eq!(errors.contains(" in 2."), is_named, "{errors}");
        assert_eq!(errors.contains("its children still run"), !is_named, "{errors}");
    }
}

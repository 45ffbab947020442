//! A system that has no more threads or memory: each command ends soon, with an error and exit code 1.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getuid, setrlimit};

/// A user without other processes, so that the limit counts only those of the command. Only root can become this user.
const NOBODY_ELSE: u32 = 64_917;

/// A short run of every command that does more than print lists.
const COMMANDS: &[&str] = &[
    "reproduce --only dontneed --no-report",
    "held-out latr",
    "run dontneed --cpus 2 --seeds 2",
    "scale dontneed --cpus 1,2 --plot /dev/null",
    "sweep dontneed --param iterations=10 --seeds 2",
    "stress dontneed --cpus 4",
    "explore unmap-access --schedules 20",
    "explore --generate --minutes 0.01",
    "predict --machine milan --kernel baseline",
    "measure engine --rounds 3",
    "measure clear --seconds 1 --max-bytes 64K",
    "measure paths --seconds 1",
    "measure host --only discard --seconds 1 --no-machine-file",
    concat!(
        "record --import ",
        env!("CARGO_MANIFEST_DIR"),
        "/../profiler/record/tests/recordings/perf.txt"
    ),
    "try --env N=1 --seconds 1 -- true",
];

/// Runs the command with a limit. Returns its exit code, its output and its errors.
fn limited(line: &str, of: Resource, most: u64) -> (Option<i32>, String, String) {
    let arguments: Vec<_> = line.split(' ').collect();
    let folder = tempfile::tempdir().expect("a folder");
    let everyone = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everyone).expect("the folder is ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .args(&arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if getuid().is_root() {
        command.uid(NOBODY_ELSE);
    }
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    // SAFETY: one system call, which allocates nothing.
    unsafe { command.pre_exec(move || Ok(setrlimit(of, limit)?)) };
    let child = command.spawn().expect("quell starts");
    let began = Instant::now();
    let output = child.wait_with_output().expect("quell ends");
    assert!(
        began.elapsed() < Duration::from_secs(300),
        "{arguments:?}: it stood still"
    );
    let left = folder.path().read_dir().expect("the folder");
    let left: Vec<_> = left
        .map(|entry| entry.expect("a file").file_name())
        .collect();
    // A sweep keeps its results, however few, so that it can continue.
    let left = left
        .iter()
        .filter(|name| *name != "quell-sweep.jsonl")
        .count();
    assert_eq!(left, 0, "{arguments:?} left something behind");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    (output.status.code(), shown, said)
}

#[test]
#[ignore = "takes as long as many other tests: `cargo xtask ci limits`"]
fn no_command_panics_or_hangs_where_no_thread_can_be_made() {
    for arguments in COMMANDS {
        // Without root, the limit also counts this user's other processes.
        let limits: &[u64] = if getuid().is_root() { &[1, 2, 3] } else { &[1] };
        for &threads in limits {
            let (code, shown, said) = limited(arguments, Resource::Nproc, threads);
            // A measurement of the host lists each failed benchmark among its results.
            let failed = "Resource temporarily unavailable";
            let refused = said.contains("no more threads") || (shown + &said).contains(failed);
            // Some commands start no thread. With two or three threads, other commands have all that they need.
            let whole = threads > 1
                || ["record", "try", "measure clear"]
                    .iter()
                    .any(|of| arguments.starts_with(of));
            let fine = whole && !said.contains("error") && matches!(code, Some(0 | 1));
            let told = code == Some(1) && refused && !said.contains("panicked");
            assert!(
                fine || told,
                "{arguments:?} with {threads}: {code:?}\n{said}"
            );
        }
    }
}

#[test]
#[ignore = "takes as long as many other tests: `cargo xtask ci limits`"]
fn no_command_is_aborted_where_memory_runs_out() {
    let mut refused = 0;
    // A search catches the panics of the programs that it searches, including those for lack of memory.
    let is_search = |line: &&&str| line.starts_with("explore");
    for line in COMMANDS.iter().filter(|line| !is_search(line)) {
        for megabytes in [40, 90, 200] {
            let (code, shown, said) = limited(line, Resource::As, megabytes << 20);
            assert!(
                matches!(code, Some(0 | 1))
                    && !(shown + &said).is_empty()
                    && !said.contains("panicked"),
                "{line} with {megabytes} MB: {code:?}\n{said}"
            );
            refused += u32::from(said.contains("out of memory"));
        }
    }
    assert!(refused > 0, "no limit was small enough");
}

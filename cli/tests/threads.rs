//! A system that makes no more threads: each command ends with an error and 1, and soon.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getuid, setrlimit};

/// A user who runs nothing else, so that the limit counts what the command makes. Only root can become it.
const NOBODY_ELSE: u32 = 64_917;

/// Commands that make threads.
const COMMANDS: &[&[&str]] = &[
    &["reproduce", "--only", "dontneed", "--no-report"],
    &["held-out", "latr"],
    &["run", "dontneed", "--cpus", "2", "--seeds", "2"],
    &["scale", "dontneed", "--cpus", "1,2"],
    &["stress", "dontneed", "--cpus", "4"],
    &["explore", "unmap-access", "--schedules", "20"],
    &["explore", "--generate", "--minutes", "0.01"],
    &["measure", "engine", "--rounds", "3"],
];

/// The command with so many threads at most, the first included; how it ended, and what it wrote to standard error.
fn limited(arguments: &[&str], threads: u64) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let everyone = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everyone).expect("the folder is ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if getuid().is_root() {
        command.uid(NOBODY_ELSE);
    }
    let limit = Rlimit {
        current: Some(threads),
        maximum: Some(threads),
    };
    // SAFETY: one system call, which allocates nothing.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nproc, limit)?)) };
    let child = command.spawn().expect("quell starts");
    let began = Instant::now();
    let output = child.wait_with_output().expect("quell ends");
    assert!(
        began.elapsed() < Duration::from_secs(300),
        "{arguments:?}: it stood still"
    );
    assert_eq!(
        folder.path().read_dir().expect("the folder").count(),
        0,
        "{arguments:?} left something behind"
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn no_command_panics_or_hangs_where_no_thread_can_be_made() {
    for arguments in COMMANDS {
        // Others of this user's processes count, too, unless it is nobody else's.
        let limits: &[u64] = if getuid().is_root() { &[1, 2, 3] } else { &[1] };
        for &threads in limits {
            let (code, said) = limited(arguments, threads);
            let refused = said.contains("no more threads");
            // With two or three a command may have all that it needs, and measure what it will.
            let fine = threads > 1 && said.is_empty() && matches!(code, Some(0 | 1));
            let told = code == Some(1) && refused && !said.contains("panicked");
            assert!(
                fine || told,
                "{arguments:?} with {threads}: {code:?}\n{said}"
            );
        }
    }
}

//! A system that has no more threads or memory: each command ends soon, with an error and exit code 1.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
#[cfg(target_arch = "x86_64")]
use std::path::{Path, PathBuf};
#[cfg(target_arch = "x86_64")]
use std::process::Command;
use std::time::{Duration, Instant};

use crate::command::{Ended, Folder, ended, skipped};
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

/// Runs the command with a limit.
fn limited(line: &str, of: Resource, most: u64) -> Ended {
    let folder = Folder::new();
    let everyone = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everyone).expect("the folder is ours");
    let mut command = folder.quell(line);
    if getuid().is_root() {
        command.uid(NOBODY_ELSE);
    }
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    // SAFETY: one system call, which allocates nothing.
    unsafe { command.pre_exec(move || Ok(setrlimit(of, limit)?)) };
    let began = Instant::now();
    let ended = ended(&mut command);
    assert!(began.elapsed() < Duration::from_secs(300), "{line}: it stood still");
    let left = folder.path().read_dir().expect("the folder");
    let left: Vec<_> = left.map(|entry| entry.expect("a file").file_name()).collect();
    // A sweep keeps its results, however few, so that it can continue.
    let left = left.iter().filter(|name| *name != "quell-sweep.jsonl").count();
    assert_eq!(left, 0, "{line} left something behind");
    ended
}

#[test]
#[ignore = "takes as long as many other tests: `cargo xtask ci limits`"]
fn no_command_panics_or_hangs_where_no_thread_can_be_made() {
    for arguments in COMMANDS {
        // Without root, the limit also counts this user's other processes.
        let limits: &[u64] = if getuid().is_root() { &[1, 2, 3] } else { &[1] };
        for &threads in limits {
            let Ended { code, stdout: shown, stderr: said } =
                limited(arguments, Resource::Nproc, threads);
            // A measurement of the host lists each failed benchmark among its results.
            let failed = "Resource temporarily unavailable";
            let refused = said.contains("no more threads") || (shown + &said).contains(failed);
            // Some commands start no thread. With two or three threads, other commands have all that they need.
            let whole = threads > 1
                || ["record", "try", "measure clear"].iter().any(|of| arguments.starts_with(of));
            let fine = whole && !said.contains("error") && matches!(code, Some(0 | 1));
            let told = code == Some(1) && refused && !said.contains("panicked");
            assert!(fine || told, "{arguments:?} with {threads}: {code:?}\n{said}");
        }
    }
}

/// A control group with a limit on its number of threads, which holds for root, too.
#[cfg(target_arch = "x86_64")]
struct ThreadLimit(PathBuf);

#[cfg(target_arch = "x86_64")]
impl ThreadLimit {
    /// Creates a group. Returns `None` without the right to, or where the kernel has no such groups.
    fn new(most: u32) -> Option<Self> {
        let name = format!("quell-{}-{most}", std::process::id());
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        // The second root has all controllers, if the kernel has this one there.
        let root = roots.into_iter().find(|root| {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+pids");
            let group = root.join(&name);
            std::fs::create_dir(&group).is_ok()
                && (group.join("pids.max").exists() || std::fs::remove_dir(&group).is_err())
        })?;
        let group = ThreadLimit(root.join(name));
        std::fs::write(group.0.join("pids.max"), most.to_string()).ok()?;
        Some(group)
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for ThreadLimit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "takes as long as many other tests: `cargo xtask ci limits`"]
fn a_recording_needs_no_thread_of_its_own() {
    if ThreadLimit::new(1).is_none() {
        return skipped(
            "a limit",
            "this needs root and control groups that limit threads (`pids`)",
        );
    }
    let of_a_process = format!("record --seconds 0.5 -p {} -o recording", std::process::id());
    // The second needs a process for the command.
    for (arguments, least) in
        [(&*of_a_process, 1), ("record -o recording -- true", 2), ("top --seconds 1.2", 1)]
    {
        for most in 1..=4 {
            let group = ThreadLimit::new(most).expect("a group, as before");
            let folder = Folder::new();
            let into = group.0.join("cgroup.procs");
            let (into, quell) = (into.display(), env!("CARGO_BIN_EXE_quell"));
            let enter = format!("echo $$ > {into} && exec '{quell}' {arguments}");
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", &enter]).current_dir(folder.path());
            let Ended { code, stderr: said, .. } = ended(shell);
            let written = folder.has("recording");
            if code == Some(0) {
                assert!(most >= least, "{arguments} with {most}: {said}");
                let refused = said.contains("cannot record");
                assert!(written || refused || arguments.starts_with("top"), "{said}");
            } else {
                let told = said.contains("Resource temporarily unavailable");
                let fine = told && !written && !said.contains("panicked");
                let context = format!("{arguments} with {most}: {code:?} {said}");
                assert!(fine && code == Some(1) && most < least, "{context}");
            }
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
            let Ended { code, stdout: shown, stderr: said } =
                limited(line, Resource::As, megabytes << 20);
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

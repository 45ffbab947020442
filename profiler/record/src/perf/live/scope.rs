//! Resolves the processes that a recording is about.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::options::RecordError;
use crate::perf::sample::Host;

/// The processes that a recording is about.
#[derive(Debug)]
pub enum Scope {
    /// All processes.
    Everything,
    /// These processes, their running descendants, and all that they start during the recording.
    Processes(Vec<u32>),
    /// The processes in this control group or below it, and all that they start. We list them when the recording
    /// begins.
    ///
    /// The group is a directory of cgroup v2, or of a v1 hierarchy.
    Cgroup(PathBuf),
    /// A command to start, and all that it starts. The recording ends with the command, unless
    /// [`outlives`](super::Options::outlives) is set.
    Command(Command),
}

/// Returns the processes of a scope (`None` for all) and the command to start. Describes the scope in `host`.
pub(super) fn resolve(
    scope: Scope,
    host: &mut Host,
) -> Result<(Option<HashSet<u32>>, Option<Command>), RecordError> {
    let (pids, command) = match scope {
        Scope::Everything => {
            "everything".clone_into(&mut host.scope);
            return Ok((None, None));
        }
        Scope::Processes(pids) => {
            for pid in &pids {
                if let Some(why) = no_process(*pid) {
                    return Err(RecordError::Absent(format!("process {pid}: {why}")));
                }
            }
            let named = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            host.scope = format!("process {named}");
            (pids, None)
        }
        Scope::Cgroup(path) => {
            let mut pids = Vec::new();
            gather(&path, &mut pids).map_err(|error| {
                RecordError::Absent(format!(
                    "{} is not a control group, a directory below /sys/fs/cgroup with a file cgroup.procs: {error}",
                    path.display()
                ))
            })?;
            // Processes that join later are not recorded.
            if pids.is_empty() {
                let group = path.display();
                return Err(RecordError::Absent(format!("no process is in {group}")));
            }
            host.scope = format!("control group {}", path.display());
            (pids, None)
        }
        Scope::Command(command) => {
            let program = command.get_program();
            can_run(program).map_err(|error| {
                RecordError::Command(program.to_string_lossy().into_owned(), error)
            })?;
            host.scope = format!("the command {}", command.get_program().to_string_lossy());
            (Vec::new(), Some(command))
        }
    };
    Ok((Some(pids.into_iter().collect()), command))
}

/// Checks that a program exists and may be run, before a recording replaces an older one.
fn can_run(program: &OsStr) -> io::Result<()> {
    if program.as_bytes().contains(&b'/') {
        return Ok(is_executable(Path::new(program))?);
    }
    // Without this variable, the C library looks in directories of its own.
    let Some(path) = std::env::var_os("PATH") else {
        return Ok(());
    };
    let mut found = Err(Errno::NOENT);
    for folder in std::env::split_paths(&path) {
        match is_executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => found = Err(error),
        }
    }
    Ok(found?)
}

/// Checks that a file may be run.
fn is_executable(path: &Path) -> rustix::io::Result<()> {
    access(path, Access::EXEC_OK)?;
    // For a directory, the same right means something else.
    if path.is_dir() {
        return Err(Errno::ACCESS);
    }
    Ok(())
}

/// Returns why this is no process: it doesn't exist, or it's a thread of another.
pub fn no_process(pid: u32) -> Option<String> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Some("there is no such process".to_owned());
    };
    let own = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let own = own.and_then(|own| own.trim().parse::<u32>().ok());
    own.filter(|own| *own != pid)
        .map(|own| format!("this is a thread of process {own}; use that number"))
}

/// Returns whether this process exists.
pub fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Gathers the processes of a control group and of those below it.
fn gather(group: &Path, pids: &mut Vec<u32>) -> io::Result<()> {
    let listed = std::fs::read_to_string(group.join("cgroup.procs"))?;
    pids.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
    for entry in std::fs::read_dir(group)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            gather(&entry.path(), pids)?;
        }
    }
    Ok(())
}

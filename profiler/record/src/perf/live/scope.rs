//! Resolves the processes that a recording is about.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::rights::RecordError;
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
///
/// # Errors
///
/// If a process or a control group doesn't exist.
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
                if !is_running(*pid) {
                    return Err(RecordError::Absent(format!("there is no process {pid}")));
                }
            }
            let named = pids
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            host.scope = format!("process {named}");
            (pids, None)
        }
        Scope::Cgroup(path) => {
            let mut pids = Vec::new();
            gather(&path, &mut pids).map_err(|error| {
                RecordError::Absent(format!(
                    "{} is not a control group: {error}",
                    path.display()
                ))
            })?;
            host.scope = format!("control group {}", path.display());
            (pids, None)
        }
        Scope::Command(command) => {
            host.scope = format!("the command {}", command.get_program().to_string_lossy());
            (Vec::new(), Some(command))
        }
    };
    Ok((Some(pids.into_iter().collect()), command))
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

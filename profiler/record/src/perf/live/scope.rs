//! Which processes a recording is about.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::rights::Refused;
use crate::perf::sample::Host;

/// What a recording is about.
#[derive(Debug)]
pub enum Scope {
    /// All processes.
    Everything,
    /// These, what they have started that still runs, and what they start meanwhile.
    Processes(Vec<u32>),
    /// Those that are in this control group or below it as the recording begins (a directory of cgroup v2, or of a
    /// hierarchy of v1), and what they start.
    Cgroup(PathBuf),
    /// A command that is started for it, and what it starts. The recording ends when the command has ended, unless
    /// [`outlives`](super::Options::outlives) says otherwise.
    Command(Command),
}

/// The processes of a scope (`None` for all) and the command that is to be started; `host` says it in words.
///
/// # Errors
///
/// A process or a control group is not there.
pub(super) fn resolve(
    scope: Scope,
    host: &mut Host,
) -> Result<(Option<HashSet<u32>>, Option<Command>), Refused> {
    let (pids, command) = match scope {
        Scope::Everything => {
            "everything".clone_into(&mut host.scope);
            return Ok((None, None));
        }
        Scope::Processes(pids) => {
            for pid in &pids {
                if !is_running(*pid) {
                    return Err(Refused::Absent(format!("there is no process {pid}")));
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
                Refused::Absent(format!("{} is no control group: {error}", path.display()))
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

/// Whether there is a process of this number now.
pub fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The processes of a control group and of those below it.
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

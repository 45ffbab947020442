//! The introduction that `quell` alone prints on a terminal: this host, and the commands that most people want.

use std::num::NonZero;
use std::thread::available_parallelism;

use crate::output::{paragraph, say, several};

/// Whether `quell record` works on this system.
const RECORDS: bool =
    cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));

/// The facts about this host that decide which commands work.
pub struct Host {
    /// The kernel's release; `None` if the kernel isn't Linux.
    pub linux: Option<String>,
    /// The number of CPUs that this process may use.
    pub cpus: usize,
    /// Whether the user is root.
    pub root: bool,
}

impl Host {
    fn found() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        Host {
            linux: release.ok().map(|release| release.trim().to_owned()),
            cpus: available_parallelism().map_or(1, NonZero::get),
            #[cfg(unix)]
            root: rustix::process::geteuid().is_root(),
            #[cfg(not(unix))]
            root: false,
        }
    }

    /// Describes this host in one line.
    fn words(&self) -> String {
        let kernel = match &self.linux {
            Some(release) => format!("Linux {release}"),
            None => std::env::consts::OS.to_owned(),
        };
        let user = match self.root {
            true => "root",
            false => "not root",
        };
        format!(
            "Here: {kernel} on {}, {}, {user}.",
            std::env::consts::ARCH,
            several(self.cpus, "CPU")
        )
    }

    /// Returns the commands that most people want, each with its purpose. `quell` is the command as the user types it.
    pub fn commands(&self, quell: &str) -> [[String; 2]; 3] {
        let record = match RECORDS && self.linux.is_some() {
            true => {
                let sudo = if self.root { "" } else { "sudo " };
                [
                    format!("{sudo}{quell} record -- ./server"),
                    "find the calls of your program that cause shootdowns, the threads that pay, the changes that help"
                        .into(),
                ]
            }
            false => [
                format!("{quell} record --import FILE"),
                "show a recording from a Linux host; this system cannot record".into(),
            ],
        };
        [
            record,
            [
                format!("{quell} run dontneed --cpus 64 --policy all"),
                "run a workload on a modelled machine of up to 1024 CPUs; `quell list` has others"
                    .into(),
            ],
            [
                format!("{quell} reproduce --details"),
                "show the table below with all figures and sources, misses first".into(),
            ],
        ]
    }
}

/// Prints the introduction.
pub fn say_first(quell: &str) {
    let host = Host::found();
    paragraph(host.words());
    for [command, what] in host.commands(quell) {
        say!("  {command}");
        paragraph(format_args!("      {what}"));
    }
    say!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(linux: bool, root: bool) -> Host {
        Host { linux: linux.then(|| "6.12.1".into()), cpus: 2, root }
    }

    #[test]
    fn what_is_suggested_can_be_done_here() {
        assert!(host(true, false).words().contains("Linux 6.12.1 on "));
        assert!(host(true, false).words().ends_with(", 2 CPUs, not root."));
        assert!(host(false, true).words().ends_with(", 2 CPUs, root."));
        let first = |linux, root| host(linux, root).commands("quell")[0][0].clone();
        if RECORDS {
            assert_eq!(first(true, true), "quell record -- ./server");
            assert_eq!(first(true, false), "sudo quell record -- ./server");
        }
        assert_eq!(first(false, true), "quell record --import FILE");
    }
}

//! Finds the kernel's descriptions of its tracepoints.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::perf::format::Format;
use crate::perf::sample::NameTable;

/// The usual mount points of tracefs.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The tracepoints of the running kernel.
#[derive(Debug)]
pub struct Tracefs {
    root: PathBuf,
    /// A private mount that no path leads to. Dropping this unmounts it.
    _mount: Option<OwnedFd>,
}

impl Tracefs {
    /// Finds tracefs where it's mounted, or mounts it for this process alone.
    ///
    /// # Errors
    ///
    /// If neither is possible. The text names the obstacle and a remedy.
    pub fn find() -> Result<Self, String> {
        let mut refused = None;
        for place in PLACES {
            match std::fs::read_dir(Path::new(place).join("events")) {
                Ok(_) => return Ok(Self { root: place.into(), _mount: None }),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = refused.or(Some(place))
                }
                Err(_) => {}
            }
        }
        Err(match refused {
            Some(place) => format!(
                "only root can read {place}, or CAP_DAC_READ_SEARCH; root can let others: chmod -R a+rX {place}"
            ),
            None => match Self::mount() {
                Ok(mounted) => return Ok(mounted),
                Err(error) => format!(
                    "tracefs is not mounted, and cannot be ({error}); root can: mount -t tracefs nodev /sys/kernel/tracing"
                ),
            },
        })
    }

    /// Mounts tracefs where no path leads to it. This needs CAP_SYS_ADMIN.
    fn mount() -> io::Result<Self> {
        let context = rustix::mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let mount = rustix::mount::fsmount(context, flags, attributes)?;
        Ok(Self {
            root: format!("/proc/self/fd/{}", mount.as_raw_fd()).into(),
            _mount: Some(mount),
        })
    }

    /// Returns the layout of a tracepoint.
    ///
    /// Returns `None` if this kernel has no tracepoint of this name, or describes it in a form that we can't parse.
    ///
    /// # Errors
    ///
    /// If the description exists and can't be read.
    pub fn format(&self, event: &str, names: &mut NameTable) -> io::Result<Option<Format>> {
        let Some((group, name)) = event.split_once(':') else {
            return Ok(None);
        };
        match std::fs::read_to_string(self.root.join(format!("events/{group}/{name}/format"))) {
            Ok(text) => Ok(Format::parse(&text, names)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a private mount has the same events as a public one. Without the right to mount, the test is
    /// skipped.
    #[test]
    fn a_mount_that_no_path_leads_to_has_the_same_events() {
        let mounted = match Tracefs::mount() {
            Ok(mounted) => mounted,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                return eprintln!("NOT RUN: {error}");
            }
        };
        let format = mounted.format("sched:sched_switch", &mut NameTable::default());
        assert!(format.unwrap().is_some());
    }
}

//! Where the kernel describes its tracepoints.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::Format;
use crate::sample::Names;

/// Where tracefs is mounted, as a rule.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The tracepoints of the running kernel.
#[derive(Clone, Debug)]
pub struct Tracefs(PathBuf);

impl Tracefs {
    /// Finds it where it is mounted. Mounts nothing.
    ///
    /// # Errors
    ///
    /// A sentence that says what is missing and what would help.
    pub fn find() -> Result<Self, String> {
        let mut refused = None;
        for place in PLACES {
            match std::fs::read_dir(Path::new(place).join("events")) {
                Ok(_) => return Ok(Self(place.into())),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = refused.or(Some(place))
                }
                Err(_) => {}
            }
        }
        Err(match refused {
            Some(place) => format!("{place} cannot be read without being root"),
            None => "tracefs is not mounted; root can: mount -t tracefs nodev /sys/kernel/tracing"
                .to_owned(),
        })
    }

    /// The layout of a tracepoint; `None` if this kernel has none of this name, or describes it in a way that is not
    /// understood.
    ///
    /// # Errors
    ///
    /// Its description is there and cannot be read.
    pub fn format(&self, event: &str, names: &mut Names) -> io::Result<Option<Format>> {
        let Some((group, name)) = event.split_once(':') else {
            return Ok(None);
        };
        let path = self.0.join("events").join(group).join(name).join("format");
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Format::parse(&text, names)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of a group's tracepoints, sorted; none if there is no such group.
    pub fn group(&self, group: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.0.join("events").join(group)) else {
            return Vec::new();
        };
        let entries = entries.flatten().filter(|entry| entry.path().is_dir());
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.map(|name| format!("{group}:{name}")).collect();
        names.sort();
        names
    }
}

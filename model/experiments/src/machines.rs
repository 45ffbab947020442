//! Finds machines by name or path.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use quell_clock::MachineFile;
use quell_clock::file::{BUILT_IN, built_in};
use quell_workloads::files::hint;

/// The reason why a machine wasn't found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No built-in machine has this name.
    #[error(
        "no machine `{name}`{}; built in are {}; for a file of your own, give its path",
        hint(name, names()), names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// The name that wasn't found.
        name: String,
    },
    /// The file can't be read.
    #[error("machine file {path}: {error}")]
    Unreadable {
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file is invalid. The text lists every mistake with line and key.
    #[error("{0}")]
    Wrong(String),
}

/// Finds a built-in machine, or reads a machine file if the text is a path.
///
/// # Errors
/// If there is no such machine, or if the file can't be read or is invalid. The error lists every mistake with line and
/// key.
pub fn find(text: &str) -> Result<MachineFile, FindError> {
    if let Some(machine) = built_in(text) {
        return Ok(machine);
    }
    let path = Path::new(text);
    if !path.exists() && path.extension().is_none() && path.components().count() == 1 {
        return Err(FindError::Unknown { name: text.into() });
    }
    let content = read(path).map_err(|error| FindError::Unreadable { path: text.into(), error })?;
    parse(path, &content, &mut Vec::new()).map_err(FindError::Wrong)
}

/// Reads a file, after the files on which it is based. Their paths are relative to its folder.
fn parse(path: &Path, content: &str, above: &mut Vec<PathBuf>) -> Result<MachineFile, String> {
    let name = path.display().to_string();
    // The same file may be reached by several paths.
    let same = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    above.push(same(path));
    let base = |wanted: &str| {
        if let Some(machine) = built_in(wanted) {
            return Ok(machine);
        }
        let file = path.parent().unwrap_or(Path::new("")).join(wanted);
        if above.contains(&same(&file)) {
            return Err(format!("{} is based on itself", file.display()));
        }
        let content = read(&file).map_err(|error| {
            format!(
                "no machine `{wanted}`{}; built in are {}; and {}: {error}",
                hint(wanted, names()),
                names().collect::<Vec<_>>().join(", "),
                file.display()
            )
        })?;
        parse(&file, &content, above)
    };
    MachineFile::parse_on(&name, content, base).map_err(|error| error.to_string())
}

/// The most bytes of a file of machines or parameters, which has a few hundred lines.
const LONGEST: u64 = 1 << 20;

/// Reads a user's file or pipe, up to a megabyte.
///
/// # Errors
/// If it can't be read, isn't text, or is longer.
pub fn read(path: &Path) -> io::Result<String> {
    if let Some(why) = waits_for_others(path) {
        return Err(io::Error::other(why));
    }
    let mut text = String::new();
    let read = fs::File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if read as u64 > LONGEST {
        return Err(io::Error::other("longer than a megabyte: no file of this kind"));
    }
    Ok(text)
}

/// Returns a reason if opening this file would block until another process opens it.
///
/// A named pipe blocks, for example. A pipe that the process inherited, for example a shell's `<(command)`, has both
/// ends open and doesn't block.
pub fn waits_for_others(path: &Path) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let is_pipe = fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo());
        // A pipe without a name has no path that leads to it.
        if is_pipe && fs::canonicalize(path).is_ok() {
            return Some(
                "a named pipe, which waits for another process; name a file, or pipe with <(COMMAND) or >(COMMAND)",
            );
        }
    }
    None
}

/// Returns the names of the built-in machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

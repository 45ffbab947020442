//! Machines by name or by path.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use quell_clock::MachineFile;
use quell_clock::file::{BUILT_IN, built_in};

/// Why there is no such machine.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// None of that name is built in.
    #[error(
        "no machine `{name}`: built in are {}; for a file of your own, give its path",
        names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("machine file {path}: {error}")]
    Unreadable {
        /// Its path.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// What the file says is wrong: every mistake with its line and key.
    #[error("{0}")]
    Wrong(String),
}

/// The machine of a built-in name, or of a file if the text looks like a path.
///
/// # Errors
/// If there is none; if the file cannot be read or is wrong, with every mistake, its line and key.
pub fn find(text: &str) -> Result<MachineFile, FindError> {
    if let Some(machine) = built_in(text) {
        return Ok(machine);
    }
    let path = Path::new(text);
    if !path.exists() && path.extension().is_none() && path.components().count() == 1 {
        return Err(FindError::Unknown { name: text.into() });
    }
    let content = read(path).map_err(|error| FindError::Unreadable {
        path: text.into(),
        error,
    })?;
    parse(path, &content, &mut Vec::new()).map_err(FindError::Wrong)
}

/// Reads a file and, in front of it, the files that it is based on, whose paths begin at the folder that it lies in.
fn parse(path: &Path, content: &str, above: &mut Vec<PathBuf>) -> Result<MachineFile, String> {
    let name = path.display().to_string();
    // By whatever path it is reached.
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
                "no machine `{wanted}`: built in are {}; and {}: {error}",
                names().collect::<Vec<_>>().join(", "),
                file.display()
            )
        })?;
        parse(&file, &content, above)
    };
    MachineFile::parse_on(&name, content, base).map_err(|error| error.to_string())
}

/// No file of machines or parameters is longer: a few hundred lines.
const LONGEST: u64 = 1 << 20;

/// Reads a file that a person wrote, or that a pipe brings, if it has an end.
///
/// # Errors
/// If it cannot be read, is no text, or has more than a megabyte.
pub fn read(path: &Path) -> io::Result<String> {
    if let Some(why) = waits_for_others(path) {
        return Err(io::Error::other(why));
    }
    let mut text = String::new();
    let read = fs::File::open(path)?
        .take(LONGEST + 1)
        .read_to_string(&mut text)?;
    if read as u64 > LONGEST {
        return Err(io::Error::other(
            "longer than a megabyte: no file of this kind",
        ));
    }
    Ok(text)
}

/// Why a file that a person named would be opened only when another process opens it too, if it is of that kind. A pipe
/// that the process was given, as a shell's `<(command)` is, has both its ends open.
pub fn waits_for_others(path: &Path) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let is_pipe = fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo());
        // One without a name has no path that leads to it.
        if is_pipe && fs::canonicalize(path).is_ok() {
            return Some(
                "a named pipe, which waits for another process; name a file, or pipe with <(COMMAND) or >(COMMAND)",
            );
        }
    }
    None
}

/// The names of the built-in machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

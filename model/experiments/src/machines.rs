//! Finds machines by name or path, and reads files that users name.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use quell_clock::MachineFile;
use quell_clock::file::{BUILT_IN, FileError, built_in, not_built_in};

/// Finds a built-in machine, or reads a machine file if the text is a path.
///
/// # Errors
/// If there is no such machine, or if the file can't be read or is invalid. The error lists every mistake with line and
/// key.
pub fn find(text: &str) -> Result<MachineFile, String> {
    MACHINES.find(text)
}

/// Returns the names of the built-in machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

const MACHINES: FileKind<MachineFile> = FileKind {
    name: "machine",
    built_in,
    all: BUILT_IN,
    parse: |path, text, base| MachineFile::parse_on(path, text, base),
};

/// Finds the file on which another one is based.
type FindBase<'a, F> = &'a mut dyn FnMut(&str) -> Result<F, String>;

/// A kind of file that is built in or the user's, and may be based on another one.
pub(crate) struct FileKind<F: 'static> {
    pub name: &'static str,
    pub built_in: fn(&str) -> Option<F>,
    /// The names and texts of the built-in files.
    pub all: &'static [(&'static str, &'static str)],
    pub parse: fn(&str, &str, FindBase<'_, F>) -> Result<F, FileError>,
}

impl<F> FileKind<F> {
    /// Finds a built-in file, or reads a file if the text is a path.
    pub fn find(&self, text: &str) -> Result<F, String> {
        if let Some(file) = (self.built_in)(text) {
            return Ok(file);
        }
        let path = Path::new(text);
        let is_word = path.components().count() == 1 && path.extension() != Some("toml".as_ref());
        if is_word && !path.exists() {
            let unknown = not_built_in(self.name, text, self.all);
            return Err(unknown + "; for a file of your own, give its path");
        }
        let content = read(path).map_err(|error| format!("{} file {text}: {error}", self.name))?;
        self.parse(path, &content, &mut Vec::new())
    }

    /// Reads a file, after the files on which it is based. Their paths are relative to its folder.
    fn parse(&self, path: &Path, content: &str, above: &mut Vec<PathBuf>) -> Result<F, String> {
        // The same file may be reached by several paths.
        let same = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        above.push(same(path));
        let mut base = |wanted: &str| {
            if let Some(file) = (self.built_in)(wanted) {
                return Ok(file);
            }
            let file = path.parent().unwrap_or(Path::new("")).join(wanted);
            if above.contains(&same(&file)) {
                return Err(format!("{} is based on itself", file.display()));
            }
            let content = read(&file).map_err(|error| {
                let unknown = not_built_in(self.name, wanted, self.all);
                format!("{unknown}; and {}: {error}", file.display())
            })?;
            self.parse(&file, &content, above)
        };
        (self.parse)(&path.display().to_string(), content, &mut base)
            .map_err(|error| error.to_string())
    }
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

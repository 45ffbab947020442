//! Files of results: [`Results`] on disk.
//!
//! Each result is appended as a line, and a line that an interruption cut is dropped. The file is the only state: an
//! interrupted command continues from it, a part is a file of the same format, and merged parts are identical, byte for
//! byte, to the file that one machine would write.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::machines;
use crate::results::{Header, MergeError, Results, read_line};
use anyhow::{Context, Result};
use tempfile::Builder;

use crate::usage::usage;

/// A file to which we write results, and the results so far.
pub struct ResultsFile<W> {
    place: PathBuf,
    file: File,
    /// The results so far.
    pub results: Results<W>,
}

/// A file of results that we read. We read it once from beginning to end, so it may be a pipe.
pub struct ResultsPart {
    path: PathBuf,
    first: Vec<u8>,
    rest: BufReader<File>,
}

impl ResultsPart {
    /// Opens the file and reads its first line, which describes the work.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |why: &dyn Display| usage(format_args!("{}: {why}", path.display()));
        if let Some(why) = machines::waits_for_others(path) {
            return Err(wrong(&why));
        }
        let mut rest = BufReader::new(File::open(path).map_err(|why| wrong(&why))?);
        let mut first = Vec::new();
        read_line(&mut rest, &mut first)
            .map_err(|why| wrong(&format_args!("no results ({why})")))?;
        Ok(ResultsPart { path: path.to_owned(), first, rest })
    }

    /// Returns the first line.
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// Reads the results; returns `None` if even the first line is incomplete.
    fn read<W: Header>(self) -> Result<Option<Results<W>>> {
        Results::read(self.first.chain(self.rest)).map_err(|wrong| {
            usage(format_args!(
                "{}:{}: {wrong}; name another file with --results",
                self.path.display(),
                wrong.line
            ))
        })
    }
}

/// Returns the path of a results file with links resolved. We replace the file, so it must be a regular one.
fn place_of(place: &Path) -> Result<PathBuf> {
    match fs::metadata(place) {
        Ok(there) if !there.is_file() => Err(usage(format_args!(
            "--results {}: not a regular file, so the results could not be read again; name one",
            place.display()
        ))),
        Ok(_) => Ok(fs::canonicalize(place)?),
        Err(_) => Ok(place.to_owned()),
    }
}

/// Replaces a file and leaves it open. A process that opens it reads either the old content or all of `content`.
fn replace(place: &Path, content: &[u8]) -> Result<File> {
    let folder = match place.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let written = || {
        fs::create_dir_all(folder)?;
        let mut builder = Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The process's mask decides, as for any new file.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut file = builder.prefix("partial-").tempfile_in(folder)?;
        file.write_all(content)?;
        file.persist(place).map_err(|error| error.error)
    };
    written().with_context(|| format!("writing {}", place.display()))
}

/// Locks a file, so that only this command writes it until the file is closed.
///
/// # Errors
/// If another command is writing the file.
fn alone(file: File, place: &Path) -> Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::{FlockOperation, flock};
        // On a file system without locks, the user must not run two commands on one file.
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(rustix::io::Errno::WOULDBLOCK) || !is_at(&file, place) {
            return Err(taken(place));
        }
    }
    Ok(file)
}

/// Returns whether this open file is still the file at `place`.
fn is_at(file: &File, place: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let name = |about: fs::Metadata| (about.dev(), about.ino());
        let (open, there) = (file.metadata().map(name), fs::metadata(place).map(name));
        open.ok() == there.ok()
    }
    #[cfg(not(unix))]
    {
        let _ = (file, place);
        true
    }
}

fn taken(place: &Path) -> anyhow::Error {
    usage(format_args!(
        "--results {}: another command writes to this file; name another one, or wait",
        place.display()
    ))
}

impl<W: Header> ResultsFile<W> {
    /// Opens a file for the results of `head`'s work, and reads those that it contains.
    ///
    /// # Errors
    /// If the file can't be read or written, or contains results of other work.
    pub fn open(place: &Path, head: W) -> Result<Self> {
        let to = place_of(place)?;
        let none = Results::new(head)?;
        // We keep the old file locked until the new one has replaced it and is locked, too.
        let (known, _before) = match to.exists() {
            true => {
                let before = alone(File::open(&to)?, &to)?;
                (ResultsPart::open(place)?.read()?, Some(before))
            }
            false => (None, None),
        };
        let results = match known {
            None => none,
            Some(known) if known.is_of(&none) => known,
            Some(_) => {
                return Err(usage(format_args!(
                    "{} contains results of {} with other {}s; name another file with --results, or remove it",
                    place.display(),
                    W::WHAT,
                    W::EACH,
                )));
            }
        };
        ResultsFile::new(to, results)
    }

    fn new(place: PathBuf, results: Results<W>) -> Result<Self> {
        let file = alone(replace(&place, results.text().as_bytes())?, &place)?;
        Ok(ResultsFile { place, file, results })
    }

    /// Merges the results of several files into another file.
    ///
    /// # Errors
    /// If a file can't be read, files contain results of different work, two files disagree about a result, or the
    /// other file can't be written.
    pub fn merge(first: ResultsPart, others: &[PathBuf], place: &Path) -> Result<Self> {
        let place = place_of(place)?;
        let read = |part: ResultsPart| {
            let none = format!("{}: no results of {}", part.path.display(), W::WHAT);
            part.read()?.ok_or_else(|| usage(none))
        };
        let shown_first = first.path.display().to_string();
        let mut all: Results<W> = read(first)?;
        for path in others {
            let shown = path.display();
            all.merge(read(ResultsPart::open(path)?)?).map_err(|apart| match apart {
                MergeError::OtherWhole => usage(format_args!(
                    "{shown} is from {} with other {}s than {shown_first}",
                    W::WHAT,
                    W::EACH,
                )),
                MergeError::Differ(index) => anyhow::anyhow!(
                    "{shown}: the result of {} {index} differs from that in another file",
                    W::EACH
                ),
            })?;
        }
        ResultsFile::new(place, all)
    }

    /// Adds a result to the file.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn keep(&mut self, row: &W::Row) -> Result<()> {
        let line = self.results.add(row)?;
        let written = self.file.write_all(line.as_bytes());
        written.with_context(|| self.place.display().to_string())
    }

    /// Sorts the file's results by their index.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn finish(&mut self) -> Result<()> {
        // If two commands started before there was a file, one may have replaced the other's file.
        if !is_at(&self.file, &self.place) {
            return Err(taken(&self.place));
        }
        self.file = replace(&self.place, self.results.text().as_bytes())?;
        Ok(())
    }
}

/// Adds the results of several threads to one file, one at a time.
pub struct ResultsWriter<'f, W>(Mutex<(&'f mut ResultsFile<W>, Option<anyhow::Error>)>);

impl<'f, W: Header> ResultsWriter<'f, W> {
    /// Creates a writer without an error.
    pub fn new(file: &'f mut ResultsFile<W>) -> Self {
        ResultsWriter(Mutex::new((file, None)))
    }

    /// Adds a result to the file; `finish` returns the first error.
    pub fn keep(&self, row: &W::Row) {
        // A poisoned lock means that another thread panicked while it added a result. That panic is reported anyway.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.1.is_none() {
            kept.1 = kept.0.keep(row).err();
        }
    }

    /// Sorts the file's results and ends.
    ///
    /// # Errors
    /// If a result couldn't be written.
    pub fn finish(self) -> Result<()> {
        let (file, failed) = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)?;
        file.finish()
    }
}

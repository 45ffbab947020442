//! Files of results: [`Results`] on the disk. A reader always finds them whole.
//!
//! The file is all the state that there is: work that was interrupted goes on where it was, a part is a file of the
//! same kind, and parts that are merged are the file that one machine writes, bit by bit.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use quell_boot::files;
use quell_experiments::machines;
use quell_experiments::results::{Header, MergeError, Results, read_line};

use crate::usage::usage;

/// Results on their way into a file.
pub struct ResultsFile<W> {
    place: PathBuf,
    file: File,
    pub results: Results<W>,
}

/// A file of results on its way in. It is read once, from its beginning to its end, so it may be a pipe.
pub struct Part {
    path: PathBuf,
    first: Vec<u8>,
    rest: BufReader<File>,
}

impl Part {
    /// Opens it, and reads its first line, which says what the results are of.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |why: &dyn Display| usage(format_args!("{}: {why}", path.display()));
        if let Some(why) = machines::waits_for_others(path) {
            return Err(wrong(&why));
        }
        let mut rest = BufReader::new(File::open(path).map_err(|why| wrong(&why))?);
        let mut first = Vec::new();
        read_line(&mut rest, &mut first)
            .map_err(|why| wrong(&format_args!("no results ({why})")))?;
        Ok(Part {
            path: path.to_owned(),
            first,
            rest,
        })
    }

    /// Its first line.
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// The results in it; `None` if there is not even a whole first line.
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

/// Where a file of results is, or will be: where a link leads to it. It is written anew, so it is a file.
fn place_of(place: &Path) -> Result<PathBuf> {
    match fs::metadata(place) {
        Ok(there) if !there.is_file() => Err(usage(format_args!(
            "--results {}: not a file, which results that are read again are kept in; name one",
            place.display()
        ))),
        Ok(_) => Ok(fs::canonicalize(place)?),
        Err(_) => Ok(place.to_owned()),
    }
}

/// A file that this command alone writes, until it is closed.
///
/// # Errors
/// If another command writes it.
fn alone(file: File, place: &Path) -> Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::{FlockOperation, flock};
        // A file system that has no locks leaves it to the person.
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(rustix::io::Errno::WOULDBLOCK) || !is_at(&file, place) {
            return Err(taken(place));
        }
    }
    Ok(file)
}

/// Whether this open file is still the one that is there.
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
        "--results {}: another command writes its results there; name another file, or wait for it",
        place.display()
    ))
}

impl<W: Header> ResultsFile<W> {
    /// The results of a whole that a file has, with room for more.
    ///
    /// # Errors
    /// If the file cannot be read or written, or holds something else.
    pub fn open(place: &Path, head: W) -> Result<Self> {
        let to = place_of(place)?;
        let none = Results::new(head)?;
        // What was there stays this command's alone until the file that takes its place is.
        let (known, _before) = match to.exists() {
            true => {
                let before = alone(File::open(&to)?, &to)?;
                (Part::open(place)?.read()?, Some(before))
            }
            false => (None, None),
        };
        let results = match known {
            None => none,
            Some(known) if known.is_of(&none) => known,
            Some(_) => {
                return Err(usage(format_args!(
                    "{} holds the results of {} of other {}s: name another file with --results, or remove it",
                    place.display(),
                    W::WHAT,
                    W::EACH,
                )));
            }
        };
        ResultsFile::new(to, results)
    }

    fn new(place: PathBuf, results: Results<W>) -> Result<Self> {
        let file = alone(files::replace(&place, results.text().as_bytes())?, &place)?;
        Ok(ResultsFile {
            place,
            file,
            results,
        })
    }

    /// The results of several files together, written to another.
    ///
    /// # Errors
    /// If one cannot be read, they are not of one whole, two differ in what came of a place, or the other file cannot
    /// be written.
    pub fn merge(first: Part, others: &[PathBuf], place: &Path) -> Result<Self> {
        let place = place_of(place)?;
        let read = |part: Part| {
            let none = format!("{}: no results of {}", part.path.display(), W::WHAT);
            part.read()?.ok_or_else(|| usage(none))
        };
        let shown_first = first.path.display().to_string();
        let mut all: Results<W> = read(first)?;
        for path in others {
            let shown = path.display();
            all.merge(read(Part::open(path)?)?)
                .map_err(|apart| match apart {
                    MergeError::OtherWhole => usage(format_args!(
                        "{shown} belongs to {} of other {}s than {shown_first}",
                        W::WHAT,
                        W::EACH,
                    )),
                    MergeError::Differ(index) => anyhow::anyhow!(
                        "{shown}: {} {index} has another result than in another file",
                        W::EACH
                    ),
                })?;
        }
        ResultsFile::new(place, all)
    }

    /// Adds a result to the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&mut self, row: &W::Row) -> Result<()> {
        let line = self.results.add(row)?;
        let written = self.file.write_all(line.as_bytes());
        written.with_context(|| self.place.display().to_string())
    }

    /// Puts the file in the order of its places.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        // Where two commands found no file at the same moment, one has taken the other's place.
        if !is_at(&self.file, &self.place) {
            return Err(taken(&self.place));
        }
        self.file = files::replace(&self.place, self.results.text().as_bytes())?;
        Ok(())
    }
}

/// Keeps what threads come to in a file, one at a time.
pub struct Keeper<'f, W>(Mutex<(&'f mut ResultsFile<W>, Option<anyhow::Error>)>);

impl<'f, W: Header> Keeper<'f, W> {
    pub fn new(file: &'f mut ResultsFile<W>) -> Self {
        Keeper(Mutex::new((file, None)))
    }

    /// Adds a result to the file; an error is kept for the end.
    pub fn keep(&self, row: &W::Row) {
        // A poisoned lock means that another result could not be kept, and that error is told.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.1.is_none() {
            kept.1 = kept.0.keep(row).err();
        }
    }

    /// The end: puts the file in order.
    ///
    /// # Errors
    /// If a result could not be written.
    pub fn finish(self) -> Result<()> {
        let (file, failed) = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)?;
        file.finish()
    }
}

//! Files of results: [`Results`] on the disk. A reader always finds them whole.
//!
//! The file is all the state that there is: work that was interrupted goes on where it was, a part is a file of the
//! same kind, and parts that are merged are the file that one machine writes, bit by bit.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use quell_boot::files;
use quell_experiments::results::{Apart, Results, Whole};

use crate::usage::usage;

/// Results on their way into a file.
pub struct ResultsFile<W> {
    place: PathBuf,
    file: File,
    pub results: Results<W>,
}

/// The text of a file; `None` if there is no such file.
///
/// # Errors
/// If it cannot be read.
pub fn text(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(usage(format_args!("{}: {error}", path.display()))),
    }
}

/// The results in a file; `None` if there is no such file, or not even a whole first line.
fn read<W: Whole>(path: &Path) -> Result<Option<Results<W>>> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    Results::parse(&text).map_err(|wrong| {
        usage(format_args!(
            "{}:{}: {wrong}; name another file with --results",
            path.display(),
            wrong.line
        ))
    })
}

impl<W: Whole> ResultsFile<W> {
    /// The results of a whole that a file has, with room for more.
    ///
    /// # Errors
    /// If the file cannot be read or written, or holds something else.
    pub fn open(place: &Path, head: W) -> Result<Self> {
        let none = Results::new(head)?;
        let results = match read(place)? {
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
        ResultsFile::new(place, results)
    }

    fn new(place: &Path, results: Results<W>) -> Result<Self> {
        let file = files::replace(place, results.text().as_bytes())?;
        Ok(ResultsFile {
            place: place.to_owned(),
            file,
            results,
        })
    }

    /// The results of several files together, written to another.
    ///
    /// # Errors
    /// If one cannot be read, they are not of one whole, two differ in what came of a place, or the other file cannot
    /// be written.
    pub fn merge(parts: &[PathBuf], place: &Path) -> Result<Self> {
        let mut all: Option<Results<W>> = None;
        for path in parts {
            let shown = path.display();
            let part = read(path)?
                .ok_or_else(|| usage(format_args!("{shown}: no results of {}", W::WHAT)))?;
            let Some(known) = &mut all else {
                all = Some(part);
                continue;
            };
            known.merge(part).map_err(|apart| match apart {
                Apart::OtherWhole => usage(format_args!(
                    "{shown} is of {} of other {}s than {}",
                    W::WHAT,
                    W::EACH,
                    parts[0].display()
                )),
                Apart::Differ(index) => anyhow::anyhow!(
                    "{shown}: {} {index} came to something else than in another file",
                    W::EACH
                ),
            })?;
        }
        ResultsFile::new(place, all.context("no files")?)
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
        self.file = files::replace(&self.place, self.results.text().as_bytes())?;
        Ok(())
    }
}

/// Keeps what threads come to in a file, one at a time.
pub struct Keeper<'f, W>(Mutex<(&'f mut ResultsFile<W>, Option<anyhow::Error>)>);

impl<'f, W: Whole> Keeper<'f, W> {
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

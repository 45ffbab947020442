//! The file of a sweep's results: [`Results`] on the disk. A reader always finds it whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quell_boot::files;
use quell_experiments::sweep::Record;
use quell_experiments::sweep::results::{Apart, Head, Results};

use crate::usage::usage;

/// Results on their way into a file.
pub struct ResultsFile {
    place: PathBuf,
    file: File,
    pub results: Results,
}

/// The results in a file; `None` if there is no such file, or not even a whole first line.
fn read(path: &Path) -> Result<Option<Results>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(usage(format_args!("{}: {error}", path.display()))),
    };
    Results::parse(&text).map_err(|wrong| {
        usage(format_args!(
            "{}:{}: {wrong}; name another file with --results",
            path.display(),
            wrong.line
        ))
    })
}

impl ResultsFile {
    /// The results of a grid that a file has, with room for more.
    ///
    /// # Errors
    /// If the file cannot be read or written, or holds something else.
    pub fn open(place: &Path, head: Head) -> Result<ResultsFile> {
        let none = Results::new(head)?;
        let results = match read(place)? {
            None => none,
            Some(known) if known.is_of(&none) => known,
            Some(_) => {
                return Err(usage(format_args!(
                    "{} holds the results of another grid: name another file with --results, or remove it",
                    place.display()
                )));
            }
        };
        ResultsFile::new(place, results)
    }

    fn new(place: &Path, results: Results) -> Result<ResultsFile> {
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
    /// As [`merge`](super::merge).
    pub fn merge(parts: &[PathBuf], place: &Path) -> Result<ResultsFile> {
        let mut all: Option<Results> = None;
        for path in parts {
            let shown = path.display();
            let part =
                read(path)?.ok_or_else(|| usage(format_args!("{shown}: no results of a sweep")))?;
            let Some(known) = &mut all else {
                all = Some(part);
                continue;
            };
            known.merge(part).map_err(|apart| match apart {
                Apart::OtherGrid => usage(format_args!(
                    "{shown} is of another grid than {}",
                    parts[0].display()
                )),
                Apart::Differ(index) => anyhow::anyhow!(
                    "{shown}: run {index} came to something else than in another file"
                ),
            })?;
        }
        ResultsFile::new(place, all.context("no files")?)
    }

    /// Adds a result to the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&mut self, record: &Record) -> Result<()> {
        let line = self.results.add(record)?;
        let written = self.file.write_all(line.as_bytes());
        written.with_context(|| self.place.display().to_string())
    }

    /// Puts the file in the order of the grid.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        self.file = files::replace(&self.place, self.results.text().as_bytes())?;
        Ok(())
    }
}

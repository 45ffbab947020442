//! The file of a sweep's results: what the grid is in the first line, then one line for each run.
//!
//! While the sweep runs, lines are added as runs end, in any order; at the end the file is put in the order of the
//! grid. A line that an interruption cut is dropped. Nothing in a line depends on the host or on the time, so the
//! whole file does not either.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fnv::FnvHasher;
use quell_boot::files;
use quell_experiments::sweep::{Cell, Grid, Record};
use serde::{Deserialize, Serialize};

use crate::usage::usage;

/// What a grid is: the first line of its results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The workload's name.
    pub workload: String,
    /// The text of its file, so that a change of it is noticed.
    pub file: String,
    /// What the figure says.
    pub metric: String,
    /// How many runs there are in all.
    pub runs: usize,
    /// The machines, each with a digest of every figure of its file.
    machines: Vec<String>,
    figures: Vec<(String, Vec<String>)>,
    policies: Vec<String>,
    cpus: Vec<usize>,
    axes: Vec<(String, Vec<String>)>,
    seeds: u64,
}

impl Head {
    pub fn of(grid: &Grid, cells: &[Cell]) -> Head {
        Head {
            workload: grid.workload.name().into(),
            file: grid.workload.text().into(),
            metric: grid.workload.metric().into(),
            runs: cells.len(),
            machines: grid
                .machines
                .iter()
                .map(|machine| {
                    let digest = digest(&format!("{machine:?}"));
                    format!("{} {digest:016x}", machine.name())
                })
                .collect(),
            figures: grid.figures.clone(),
            policies: grid.policies.iter().map(ToString::to_string).collect(),
            cpus: grid.cpus.clone(),
            axes: grid.axes.clone(),
            seeds: grid.seeds,
        }
    }
}

/// A digest that is the same everywhere: it tells files apart that differ by accident.
fn digest(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Results on their way into a file.
pub struct Results {
    place: PathBuf,
    file: File,
    pub head: Head,
    first: String,
    /// What is merged is copied, never written anew.
    lines: Lines,
}

/// Lines by the places of their runs in the grid, as they are written.
type Lines = BTreeMap<usize, String>;

/// The first line of a file, what it says, and the other lines; a last line that was cut is left out. `None` if there
/// is no such file.
fn read(path: &Path) -> Result<Option<(String, Head, Lines)>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(usage(format_args!("{}: {error}", path.display()))),
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let Some(first) = lines.next() else {
        // Nothing, or not even a whole first line.
        return Ok(None);
    };
    let no_results = |line: usize, why: &dyn std::fmt::Display| {
        usage(format_args!(
            "{}:{line}: no results of a sweep ({why}); name another file with --results",
            path.display()
        ))
    };
    let head: Head = serde_json::from_str(first).map_err(|why| no_results(1, &why))?;
    let mut kept = BTreeMap::new();
    for (number, line) in lines.enumerate() {
        let record: Record =
            serde_json::from_str(line).map_err(|why| no_results(number + 2, &why))?;
        if record.index >= head.runs {
            return Err(no_results(number + 2, &"an index beyond the grid"));
        }
        if let Some(other) = kept.insert(record.index, line.to_owned())
            && other != line
        {
            return Err(no_results(
                number + 2,
                &"two results of one run that differ",
            ));
        }
    }
    Ok(Some((first.to_owned(), head, kept)))
}

impl Results {
    /// The results of a grid that a file has, with room for more.
    ///
    /// # Errors
    /// If the file cannot be read or written, or holds something else.
    pub fn open(place: &Path, head: &Head) -> Result<Results> {
        let first = serde_json::to_string(head)?;
        let lines = match read(place)? {
            None => BTreeMap::new(),
            Some((known, _, lines)) if known == first => lines,
            Some(_) => {
                return Err(usage(format_args!(
                    "{} holds the results of another grid: name another file with --results, or remove it",
                    place.display()
                )));
            }
        };
        Results::new(place, head.clone(), first, lines)
    }

    fn new(
        place: &Path,
        head: Head,
        first: String,
        lines: BTreeMap<usize, String>,
    ) -> Result<Results> {
        let file = write(place, &first, &lines)?;
        Ok(Results {
            place: place.to_owned(),
            file,
            head,
            first,
            lines,
        })
    }

    /// The results of several files together, written to another.
    ///
    /// # Errors
    /// As [`merge`](super::merge).
    pub fn merge(parts: &[PathBuf], place: &Path) -> Result<Results> {
        let mut all: Option<(String, Head, BTreeMap<usize, String>)> = None;
        for path in parts {
            let shown = path.display();
            let (first, head, lines) =
                read(path)?.ok_or_else(|| usage(format_args!("{shown}: no results of a sweep")))?;
            let Some((known, _, kept)) = &mut all else {
                all = Some((first, head, lines));
                continue;
            };
            if *known != first {
                return Err(usage(format_args!(
                    "{shown} is of another grid than {}",
                    parts[0].display()
                )));
            }
            for (index, line) in lines {
                match kept.get(&index) {
                    Some(other) if *other != line => {
                        return Err(anyhow::anyhow!(
                            "{shown}: run {index} came to something else than in another file"
                        ));
                    }
                    _ => kept.insert(index, line),
                };
            }
        }
        let (first, head, lines) = all.context("no files")?;
        Results::new(place, head, first, lines)
    }

    pub fn has(&self, index: usize) -> bool {
        self.lines.contains_key(&index)
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// How many runs of the grid have no result.
    pub fn missing(&self) -> usize {
        self.head.runs - self.lines.len()
    }

    /// Adds a result to the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_string(record)?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes());
        written.with_context(|| self.place.display().to_string())?;
        line.pop();
        self.lines.insert(record.index, line);
        Ok(())
    }

    /// Puts the file in the order of the grid.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        self.file = write(&self.place, &self.first, &self.lines)?;
        Ok(())
    }

    /// Every result, in the order of the grid.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        // Each was read or written here.
        self.lines
            .values()
            .filter_map(|line| serde_json::from_str(line).ok())
    }
}

/// Puts a file in its place, so that there is always one that is whole; it is open for more.
fn write(place: &Path, first: &str, lines: &BTreeMap<usize, String>) -> Result<File> {
    let mut text = format!("{first}\n");
    for line in lines.values() {
        text.push_str(line);
        text.push('\n');
    }
    files::replace(place, text.as_bytes())
}

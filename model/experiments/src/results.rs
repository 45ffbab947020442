//! Stores the results of work that is split into parts.
//!
//! A file of results has a header line and one line of JSON for each *place*, for example for each run of a
//! [sweep](crate::sweep). Lines are appended as results arrive, in any order; [`Results::text`] sorts them. A line that
//! an interruption cut off is dropped. The file is the only state: an interrupted command continues from it. Lines
//! depend on neither host nor time. So parts from many hosts merge into the same text that one host would write.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use fnv::FnvHasher;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::Builder;

use crate::machines;
use crate::usage::usage;

/// The header of a file of results: its first line.
pub trait Header: Serialize + DeserializeOwned {
    /// The result of one place. It contains the place's index.
    type Row: Serialize + DeserializeOwned;
    /// The name of the whole work in messages, for example "a sweep".
    const WHAT: &'static str;
    /// The name of one place in messages, for example "run".
    const EACH: &'static str;

    /// Returns the number of places.
    fn size(&self) -> usize;
    /// Returns the index of a result's place, from 0.
    fn place(row: &Self::Row) -> usize;
}

/// Returns a digest of a text that is the same on all hosts.
///
/// It detects accidental differences between files.
pub fn digest(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// The most bytes of a line of results. The longest are first lines, which contain the texts of files.
const LONGEST: u64 = 1 << 26;

/// Reads a line with its newline, which the last line may lack.
///
/// At the end of the input, `line` is empty.
///
/// # Errors
/// If reading fails, or if the line is longer than any line of results. The latter ends endless input.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<()> {
    line.clear();
    let read = from.take(LONGEST).read_until(b'\n', line)?;
    if read as u64 == LONGEST {
        return Err(io::Error::other("a line of more than 64 megabytes"));
    }
    Ok(())
}

/// The results of some work, or of a part of it.
#[derive(Debug)]
pub struct Results<W> {
    /// The header.
    pub head: W,
    first: String,
    /// Lines by place, verbatim: merging copies them.
    lines: BTreeMap<usize, String>,
}

impl<W: Header> Results<W> {
    /// Creates results with this header and without any line.
    ///
    /// # Errors
    /// If the header can't be serialized.
    pub fn new(head: W) -> serde_json::Result<Self> {
        Ok(Results { first: serde_json::to_string(&head)?, head, lines: BTreeMap::new() })
    }

    /// Reads results line by line, and ignores a last line that was cut off.
    ///
    /// Returns `None` if not even the first line is complete.
    ///
    /// # Errors
    /// If the input can't be read, or contains something else. The message begins with the line's number.
    pub fn read(mut from: impl BufRead) -> Result<Option<Self>, String> {
        let mut results: Option<Self> = None;
        let mut line = Vec::new();
        for number in 1.. {
            let wrong = |why: &dyn Display| format!("{number}: no results of {} ({why})", W::WHAT);
            read_line(&mut from, &mut line).map_err(|why| wrong(&why))?;
            let Some(whole) = line.strip_suffix(b"\n") else { break };
            let text = str::from_utf8(whole.strip_suffix(b"\r").unwrap_or(whole));
            let text = text.map_err(|why| wrong(&why))?;
            let Some(Results { head, lines, .. }) = &mut results else {
                let head = serde_json::from_str(text).map_err(|why| wrong(&why))?;
                results = Some(Results { head, first: text.to_owned(), lines: BTreeMap::new() });
                continue;
            };
            let row: W::Row = serde_json::from_str(text).map_err(|why| wrong(&why))?;
            let place = W::place(&row);
            if place >= head.size() {
                return Err(wrong(&"an index beyond the last"));
            }
            match lines.get(&place) {
                Some(other) if other != text => {
                    return Err(wrong(&"two results at one index that differ"));
                }
                _ => lines.insert(place, text.to_owned()),
            };
        }
        Ok(results)
    }

    /// Returns whether both are results of the same work.
    pub fn is_of(&self, other: &Self) -> bool {
        self.first == other.first
    }

    /// Adds the results of another part of the same work.
    ///
    /// # Errors
    /// The place that has another result there.
    fn merge(&mut self, other: Self) -> Result<(), usize> {
        for (index, line) in other.lines {
            match self.lines.get(&index) {
                Some(known) if *known != line => return Err(index),
                _ => self.lines.insert(index, line),
            };
        }
        Ok(())
    }

    /// Adds a result, and returns its line with the newline.
    ///
    /// # Errors
    /// If the result can't be serialized.
    pub fn add(&mut self, row: &W::Row) -> serde_json::Result<String> {
        let line = serde_json::to_string(row)?;
        let written = format!("{line}\n");
        self.lines.insert(W::place(row), line);
        Ok(written)
    }

    /// Returns whether that place has a result.
    pub fn has(&self, index: usize) -> bool {
        self.lines.contains_key(&index)
    }

    /// Returns the number of places with a result.
    pub fn known(&self) -> usize {
        self.lines.len()
    }

    /// Returns the number of places without a result.
    pub fn missing(&self) -> usize {
        self.head.size() - self.lines.len()
    }

    /// Returns the header and all results as text, in the order of places.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.first);
        for line in self.lines.values() {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// Returns every result, in the order of places.
    pub fn rows(&self) -> impl Iterator<Item = W::Row> {
        // Each line was parsed or serialized here before.
        self.lines.values().filter_map(|line| serde_json::from_str(line).ok())
    }
}

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
            usage(format_args!("{}:{wrong}; name another file with --results", self.path.display()))
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
            let other = read(ResultsPart::open(path)?)?;
            if !all.is_of(&other) {
                return Err(usage(format_args!(
                    "{shown} is from {} with other {}s than {shown_first}",
                    W::WHAT,
                    W::EACH,
                )));
            }
            all.merge(other).map_err(|index| {
                anyhow!(
                    "{shown}: the result of {} {index} differs from that in another file",
                    W::EACH
                )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::{Head, Record};

    fn results() -> Results<Head> {
        Results::new(Head::example(3)).unwrap()
    }

    fn record(index: usize, value: f64) -> Record {
        Record { index, value: Some(value), ..Record::default() }
    }

    #[test]
    fn lines_come_in_the_order_of_places_and_one_that_was_cut_is_dropped() {
        let mut all = results();
        let late = all.add(&record(2, 3.0)).unwrap();
        let early = all.add(&record(0, 1.0)).unwrap();
        let text = all.text();
        assert!(text.ends_with(&format!("{early}{late}")));
        let read = Results::<Head>::read(text.as_bytes()).unwrap().unwrap();
        assert_eq!((read.known(), read.missing(), read.text()), (2, 1, text));
        let cut = all.text();
        let cut = Results::<Head>::read(&cut.as_bytes()[..cut.len() - 2]).unwrap().unwrap();
        assert!(cut.has(0) && !cut.has(2));
        assert!(Results::<Head>::read(&b"{\"workload\""[..]).unwrap().is_none());
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_line() {
        let first = results().text();
        let refused =
            |lines: &str| Results::<Head>::read(format!("{first}{lines}").as_bytes()).unwrap_err();
        let line = |index, value| serde_json::to_string(&record(index, value)).unwrap();
        for (lines, at, expected) in [
            ("words\n".to_owned(), "2: ", "expected"),
            (format!("{}\n{}\n", line(0, 1.0), line(3, 1.0)), "3: ", "beyond the last"),
            (format!("{}\n{}\n", line(1, 1.0), line(1, 2.0)), "3: ", "differ"),
        ] {
            let why = refused(&lines);
            assert!(why.starts_with(at) && why.contains(expected), "{why}");
        }
        let endless = io::BufReader::new(first.as_bytes().chain(io::repeat(0)));
        let endless = Results::<Head>::read(endless).unwrap_err();
        assert!(endless.starts_with("2: ") && endless.contains("64 megabytes"), "{endless}");
    }

    #[test]
    fn parts_of_one_whole_become_one_and_others_do_not() {
        let (mut one, mut two) = (results(), results());
        one.add(&record(0, 1.0)).unwrap();
        two.add(&record(0, 1.0)).unwrap();
        two.add(&record(1, 2.0)).unwrap();
        one.merge(two).unwrap();
        assert_eq!((one.known(), one.missing()), (2, 1));
        let mut differs = results();
        differs.add(&record(1, 9.0)).unwrap();
        assert_eq!(one.merge(differs), Err(1));
        assert!(!one.is_of(&Results::new(Head::example(4)).unwrap()));
    }
}

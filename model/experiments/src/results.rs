//! Stores the results of work that is split into parts.
//!
//! A file of results has a header line and one line of JSON for each *place*, for example for each run of a
//! [sweep](crate::sweep). Lines are appended as results arrive, in any order; [`Results::text`] sorts them. A line that
//! an interruption cut off is dropped. Lines depend on neither host nor time. So parts from many hosts merge into the
//! same text that one host would write.

pub mod file;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hasher;
use std::io::{self, BufRead, Read};

use fnv::FnvHasher;
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// The reason why a text isn't a file of results.
#[derive(Debug, thiserror::Error)]
#[error("no results of {what} ({why})")]
pub struct ResultsError {
    /// The line, from 1.
    pub line: usize,
    what: &'static str,
    why: String,
}

/// The reason why two parts can't be merged.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum MergeError {
    /// The parts belong to different work: their headers differ.
    #[error("of another whole")]
    OtherWhole,
    /// The parts have different results for this place.
    #[error("place {0} has another result")]
    Differ(usize),
}

/// The most bytes of a line of results. The longest are first lines, which contain the texts of files.
const LONGEST: u64 = 1 << 26;

/// Reads a line with its newline, which the last line may lack.
///
/// At the end of the input, `line` is empty.
///
/// # Errors
/// If reading fails, or if the line is longer than any line of results. The latter ends endless input.
pub fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<()> {
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
    /// If the input can't be read, or contains something else.
    pub fn read(mut from: impl BufRead) -> Result<Option<Self>, ResultsError> {
        let mut line = Vec::new();
        let mut number = 0;
        let wrong = |line: usize, why: &dyn Display| ResultsError {
            line,
            what: W::WHAT,
            why: why.to_string(),
        };
        let mut next = || {
            number += 1;
            read_line(&mut from, &mut line).map_err(|why| wrong(number, &why))?;
            let Some(whole) = line.strip_suffix(b"\n") else {
                return Ok(None);
            };
            let text = str::from_utf8(whole.strip_suffix(b"\r").unwrap_or(whole));
            let text = text.map_err(|why| wrong(number, &why))?;
            Ok(Some((number, text.to_owned())))
        };
        let Some((_, first)) = next()? else {
            return Ok(None);
        };
        let head: W = serde_json::from_str(&first).map_err(|why| wrong(1, &why))?;
        let mut lines = BTreeMap::new();
        while let Some((line, text)) = next()? {
            let row: W::Row = serde_json::from_str(&text).map_err(|why| wrong(line, &why))?;
            let place = W::place(&row);
            if place >= head.size() {
                return Err(wrong(line, &"an index beyond the last"));
            }
            match lines.get(&place) {
                Some(other) if *other != text => {
                    return Err(wrong(line, &"two results at one index that differ"));
                }
                _ => lines.insert(place, text),
            };
        }
        Ok(Some(Results { head, first, lines }))
    }

    /// Returns whether both are results of the same work.
    pub fn is_of(&self, other: &Self) -> bool {
        self.first == other.first
    }

    /// Adds the results of another part.
    ///
    /// # Errors
    /// If it's a part of other work, or if a place has another result there.
    pub fn merge(&mut self, other: Self) -> Result<(), MergeError> {
        if !self.is_of(&other) {
            return Err(MergeError::OtherWhole);
        }
        for (index, line) in other.lines {
            match self.lines.get(&index) {
                Some(known) if *known != line => return Err(MergeError::Differ(index)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::Record;
    use crate::sweep::results::Head;

    fn results() -> Results<Head> {
        Results::new(Head::example(3)).unwrap()
    }

    fn record(index: usize, value: f64) -> Record {
        Record {
            index,
            workload: "w".into(),
            machine: "m".into(),
            policy: "all".into(),
            cpus: 2,
            seed: index as u64 + 1,
            parameters: BTreeMap::new(),
            value: Some(value),
            window_ns: 1.0,
            violations: 0,
            latencies: Vec::new(),
            engine: BTreeMap::new(),
            machine_counts: BTreeMap::new(),
            error: None,
        }
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
        let refused = |lines: &str| {
            let error = Results::<Head>::read(format!("{first}{lines}").as_bytes()).unwrap_err();
            (error.line, error.to_string())
        };
        let line = |index, value| serde_json::to_string(&record(index, value)).unwrap();
        assert_eq!(refused("words\n").0, 2);
        let (at, why) = refused(&format!("{}\n{}\n", line(0, 1.0), line(3, 1.0)));
        assert!(at == 3 && why.contains("beyond the last"), "{why}");
        let (at, why) = refused(&format!("{}\n{}\n", line(1, 1.0), line(1, 2.0)));
        assert!(at == 3 && why.contains("differ"), "{why}");
        let endless = io::BufReader::new(first.as_bytes().chain(io::repeat(0)));
        let endless = Results::<Head>::read(endless).unwrap_err();
        assert!(endless.line == 2 && endless.to_string().contains("64 megabytes"), "{endless}");
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
        assert_eq!(one.merge(differs), Err(MergeError::Differ(1)));
        let other = Results::new(Head::example(4));
        assert_eq!(one.merge(other.unwrap()), Err(MergeError::OtherWhole));
    }
}

//! A sweep's results as text: what the grid is in the first line, then one line for each run.
//!
//! While a sweep runs, lines are added as runs end, in any order; [`Results::text`] has them in the order of the
//! grid. A line that an interruption cut is dropped. Nothing in a line depends on the host or on the time, so the
//! whole text does not either.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hasher;

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use super::{Cell, Grid, Record};

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
    /// What that grid is.
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

/// Why a text is no results of a sweep.
#[derive(Debug, thiserror::Error)]
#[error("no results of a sweep ({why})")]
pub struct NoResults {
    /// The line, from 1.
    pub line: usize,
    why: String,
}

/// Why the results of several parts are none of one sweep.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum Apart {
    /// They are of different grids.
    #[error("of another grid")]
    OtherGrid,
    /// One run came to different results.
    #[error("run {0} came to something else")]
    Differ(usize),
}

/// The results of a grid, or of a part of it.
#[derive(Debug)]
pub struct Results {
    /// What the grid is.
    pub head: Head,
    first: String,
    /// By the places of their runs in the grid, as they were written: what is merged is copied, never written anew.
    lines: BTreeMap<usize, String>,
}

impl Results {
    /// No results yet of that grid.
    ///
    /// # Errors
    /// If the grid cannot be written down.
    pub fn new(head: Head) -> serde_json::Result<Results> {
        Ok(Results {
            first: serde_json::to_string(&head)?,
            head,
            lines: BTreeMap::new(),
        })
    }

    /// Reads results; a last line that was cut is left out. `None` if not even the first line is whole.
    ///
    /// # Errors
    /// If the text is something else.
    pub fn parse(text: &str) -> Result<Option<Results>, NoResults> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let Some(first) = lines.next() else {
            return Ok(None);
        };
        let wrong = |line: usize, why: &dyn Display| NoResults {
            line,
            why: why.to_string(),
        };
        let head: Head = serde_json::from_str(first).map_err(|why| wrong(1, &why))?;
        let mut kept = BTreeMap::new();
        for (line, text) in (2..).zip(lines) {
            let record: Record = serde_json::from_str(text).map_err(|why| wrong(line, &why))?;
            if record.index >= head.runs {
                return Err(wrong(line, &"an index beyond the grid"));
            }
            if let Some(other) = kept.insert(record.index, text.to_owned())
                && other != text
            {
                return Err(wrong(line, &"two results of one run that differ"));
            }
        }
        Ok(Some(Results {
            first: first.to_owned(),
            head,
            lines: kept,
        }))
    }

    /// Whether these are results of the same grid.
    pub fn is_of(&self, other: &Results) -> bool {
        self.first == other.first
    }

    /// Takes the results of another part in.
    ///
    /// # Errors
    /// If it is a part of another grid, or a run came to something else there.
    pub fn merge(&mut self, other: Results) -> Result<(), Apart> {
        if !self.is_of(&other) {
            return Err(Apart::OtherGrid);
        }
        for (index, line) in other.lines {
            match self.lines.get(&index) {
                Some(known) if *known != line => return Err(Apart::Differ(index)),
                _ => self.lines.insert(index, line),
            };
        }
        Ok(())
    }

    /// Takes the result of a run in; its line, with the end of the line.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn add(&mut self, record: &Record) -> serde_json::Result<String> {
        let line = serde_json::to_string(record)?;
        let written = format!("{line}\n");
        self.lines.insert(record.index, line);
        Ok(written)
    }

    /// Whether the run at that place of the grid has a result.
    pub fn has(&self, index: usize) -> bool {
        self.lines.contains_key(&index)
    }

    /// How many runs have a result.
    pub fn known(&self) -> usize {
        self.lines.len()
    }

    /// How many runs of the grid have no result.
    pub fn missing(&self) -> usize {
        self.head.runs - self.lines.len()
    }

    /// Everything, in the order of the grid.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.first);
        for line in self.lines.values() {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// Every result, in the order of the grid.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        // Each was read or written here.
        self.lines
            .values()
            .filter_map(|line| serde_json::from_str(line).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let head = Head {
            workload: "w".into(),
            file: "text".into(),
            metric: "ns".into(),
            runs: 3,
            machines: vec!["m 0123".into()],
            figures: Vec::new(),
            policies: vec!["all".into()],
            cpus: vec![2],
            axes: Vec::new(),
            seeds: 3,
        };
        Results::new(head).unwrap()
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
            engine: BTreeMap::new(),
            machine_counts: BTreeMap::new(),
            error: None,
        }
    }

    #[test]
    fn lines_come_in_the_order_of_the_grid_and_one_that_was_cut_is_dropped() {
        let mut all = results();
        let late = all.add(&record(2, 3.0)).unwrap();
        let early = all.add(&record(0, 1.0)).unwrap();
        let text = all.text();
        assert!(text.ends_with(&format!("{early}{late}")));
        let read = Results::parse(&text).unwrap().unwrap();
        assert_eq!((read.known(), read.missing(), read.text()), (2, 1, text));
        let cut = all.text();
        let cut = Results::parse(&cut[..cut.len() - 2]).unwrap().unwrap();
        assert!(cut.has(0) && !cut.has(2));
        assert!(Results::parse("{\"workload\"").unwrap().is_none());
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_line() {
        let first = results().text();
        let refused = |lines: &str| {
            let error = Results::parse(&format!("{first}{lines}")).unwrap_err();
            (error.line, error.to_string())
        };
        let line = |index, value| serde_json::to_string(&record(index, value)).unwrap();
        assert_eq!(refused("words\n").0, 2);
        let (at, why) = refused(&format!("{}\n{}\n", line(0, 1.0), line(3, 1.0)));
        assert!(at == 3 && why.contains("beyond the grid"), "{why}");
        let (at, why) = refused(&format!("{}\n{}\n", line(1, 1.0), line(1, 2.0)));
        assert!(at == 3 && why.contains("differ"), "{why}");
    }

    #[test]
    fn parts_of_one_grid_become_one_and_others_do_not() {
        let (mut one, mut two) = (results(), results());
        one.add(&record(0, 1.0)).unwrap();
        two.add(&record(0, 1.0)).unwrap();
        two.add(&record(1, 2.0)).unwrap();
        one.merge(two).unwrap();
        assert_eq!((one.known(), one.missing()), (2, 1));
        let mut differs = results();
        differs.add(&record(1, 9.0)).unwrap();
        assert_eq!(one.merge(differs), Err(Apart::Differ(1)));
        let other = Results::new(Head {
            seeds: 4,
            ..results().head
        });
        assert_eq!(one.merge(other.unwrap()), Err(Apart::OtherGrid));
    }
}

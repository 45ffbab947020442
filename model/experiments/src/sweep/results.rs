//! Defines the header of a grid's [results](crate::results).

use serde::{Deserialize, Serialize};

use super::{Cell, Grid, Record};
use crate::results::{Header, digest};

/// The first line of a grid's results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The workload's name.
    pub workload: String,
    /// The text of the workload's file. It reveals a change of the file.
    pub file: String,
    /// The figure's name.
    pub metric: String,
    /// The number of all runs of the grid.
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
    /// Creates the header of a grid.
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

impl Header for Head {
    type Row = Record;
    const WHAT: &'static str = "a sweep";
    const EACH: &'static str = "run";

    fn size(&self) -> usize {
        self.runs
    }

    fn place(record: &Record) -> usize {
        record.index
    }
}

#[cfg(test)]
impl Head {
    /// Returns a header of a grid with this many seeds.
    pub(crate) fn example(seeds: u64) -> Head {
        Head {
            workload: "w".into(),
            file: "text".into(),
            metric: "ns".into(),
            runs: 3,
            machines: vec!["m 0123".into()],
            figures: Vec::new(),
            policies: vec!["all".into()],
            cpus: vec![2],
            axes: Vec::new(),
            seeds,
        }
    }
}

//! Converts a sweep's results to columns, for CSV and Parquet.
//!
//! Each column has one type. An empty CSV field is null in Parquet. A parameter whose values are all whole numbers,
//! sizes or times becomes a column of numbers, in bytes or nanoseconds if it has a unit. Others stay text
//! (`page=large`, `interrupt.send=2cycles`).

use std::collections::{BTreeMap, BTreeSet};

use quell_workloads::Unit;

use super::Record;
use crate::run::CallLatency;

/// The values of a column, one for each run.
pub enum Cells {
    /// Texts. A run without a value has `None`.
    Text(Vec<Option<String>>),
    /// Whole numbers, and their notation in CSV if it differs.
    Count(Vec<u64>, Option<Vec<String>>),
    /// Real numbers. A run that measured nothing has `None`.
    Real(Vec<Option<f64>>),
}

/// A column.
pub struct Column {
    /// The column's name, the same in every format.
    pub name: String,
    /// The column's values.
    pub cells: Cells,
}

impl Column {
    fn text<'r>(name: &str, cells: impl Iterator<Item = Option<&'r String>>) -> Column {
        Column {
            name: name.into(),
            cells: Cells::Text(cells.map(Option::<&String>::cloned).collect()),
        }
    }

    fn count(name: String, cells: impl Iterator<Item = u64>) -> Column {
        Column { name, cells: Cells::Count(cells.collect(), None) }
    }

    fn parameter(records: &[Record], name: &str) -> Column {
        let texts = || records.iter().map(|record| record.parameters.get(name));
        let amounts = texts().map(|text| text.and_then(|text| amount(text)));
        let cells = match amounts.collect::<Option<Vec<_>>>() {
            Some(amounts) => Cells::Count(amounts, Some(texts().flatten().cloned().collect())),
            None => Cells::Text(texts().map(Option::<&String>::cloned).collect()),
        };
        Column { name: format!("param.{name}"), cells }
    }

    /// Formats a run's value for CSV, before quoting.
    pub fn shown(&self, run: usize) -> String {
        match &self.cells {
            Cells::Text(cells) => cells[run].clone().unwrap_or_default(),
            Cells::Count(_, Some(written)) => written[run].clone(),
            Cells::Count(cells, None) => cells[run].to_string(),
            Cells::Real(cells) => cells[run].map_or(String::new(), |value| value.to_string()),
        }
    }
}

/// Returns the runs as columns, in order. Omits event counts that are zero in every run.
pub fn of(records: &[Record]) -> Vec<Column> {
    let runs = || records.iter();
    let mut columns = vec![
        Column::text("workload", runs().map(|run| Some(&run.workload))),
        Column::text("machine", runs().map(|run| Some(&run.machine))),
        Column::text("policy", runs().map(|run| Some(&run.policy))),
        Column::count("cpus".into(), runs().map(|run| run.cpus as u64)),
        Column::count("seed".into(), runs().map(|run| run.seed)),
    ];
    if let Some(first) = records.first() {
        let names = first.parameters.keys();
        columns.extend(names.map(|name| Column::parameter(records, name)));
    }
    columns.push(Column {
        name: "value".into(),
        cells: Cells::Real(runs().map(|run| run.value).collect()),
    });
    columns.push(Column {
        name: "window_ns".into(),
        cells: Cells::Real(runs().map(|run| Some(run.window_ns)).collect()),
    });
    columns.push(Column::count("violations".into(), runs().map(|run| run.violations)));
    columns.push(Column::text("error", runs().map(|run| run.error.as_ref())));
    columns.extend(latencies(records));
    let mut counts = |kind: &str, of: fn(&Record) -> &BTreeMap<String, u64>| {
        let mut names: Vec<_> = runs().flat_map(|run| of(run).keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let count = |run| of(run).get(name).copied().unwrap_or_default();
            columns.push(Column::count(format!("{kind}.{name}"), runs().map(count)));
        }
    };
    counts("engine", |run| &run.engine);
    counts("machine", |run| &run.machine_counts);
    columns
}

/// Reads a duration of a kind of call.
type Duration = fn(&CallLatency) -> f64;

/// Returns the columns of each kind of call that some run made.
fn latencies(records: &[Record]) -> Vec<Column> {
    let all = records.iter().flat_map(|run| &run.latencies);
    let calls: BTreeSet<_> = all.map(|latency| latency.call.as_str()).collect();
    let mut columns = Vec::new();
    for call in calls {
        let in_each = || {
            let runs = records.iter();
            runs.map(|run| run.latencies.iter().find(|latency| latency.call == call))
        };
        let counts = in_each().map(|latency| latency.map_or(0, |latency| latency.count));
        columns.push(Column::count(format!("latency.{call}.count"), counts));
        let durations: [(_, Duration); 3] = [
            ("median_ns", |latency| latency.median_ns),
            ("p99_ns", |latency| latency.p99_ns),
            ("worst_ns", |latency| latency.worst_ns),
        ];
        columns.extend(durations.map(|(name, duration)| Column {
            name: format!("latency.{call}.{name}"),
            cells: Cells::Real(in_each().map(|latency| latency.map(duration)).collect()),
        }));
    }
    columns
}

/// Returns a parameter's value as a number, in its smallest unit.
pub fn amount(text: &str) -> Option<u64> {
    let units = [Unit::Count, Unit::Bytes, Unit::Time];
    units.iter().find_map(|unit| unit.parse(text))
}

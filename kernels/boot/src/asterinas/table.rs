//! Compares the figures of both kernels.

use super::machine::Measurement;
use serde::Serialize;
use std::fmt::Write;

/// One figure of both kernels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Row {
    /// The operation.
    pub operation: String,
    /// The unit of the figure.
    pub unit: &'static str,
    /// The number of CPUs.
    pub cpus: u16,
    /// The figure with ostd's own flusher.
    pub ostd: u64,
    /// The figure with quell.
    pub quell: u64,
}

impl Row {
    /// Returns whether quell costs no more.
    pub fn holds(&self) -> bool {
        self.quell <= self.ostd
    }
}

/// The rows: the operation, the kernels' name of the unit, and its title.
const SHOWN: [(&str, &str, &str); 9] = [
    ("unmap 1 page", "ns", "instructions"),
    ("unmap 16 pages", "ns", "instructions"),
    ("unmap 512 pages", "ns", "instructions"),
    ("context switch", "ns", "instructions"),
    ("protect 8 scattered pages", "ns", "instructions"),
    ("protect 8 scattered pages", "full", "full flushes"),
    ("protect 8 scattered pages", "pages", "pages invalidated"),
    ("protect 8 scattered pages", "interrupts", "interrupts"),
    ("unmap 512 pages", "interrupts", "interrupts"),
];

/// Returns the rows that both kernels have measured.
pub fn rows(cpus: u16, ostd: &Measurement, quell: &Measurement) -> Vec<Row> {
    let figure = |measured: &Measurement, operation: &str, unit: &str| {
        let key = (operation.to_string(), unit.to_string());
        measured.rows.get(&key).copied()
    };
    let shown = SHOWN.iter().filter_map(|&(operation, key, unit)| {
        Some(Row {
            operation: operation.to_string(),
            unit,
            cpus,
            ostd: figure(ostd, operation, key)?,
            quell: figure(quell, operation, key)?,
        })
    });
    shown.collect()
}

/// The number of rows for each number of CPUs.
pub const ROWS: usize = SHOWN.len();

/// Returns the rows as a table in Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| operation | unit | CPUs | ostd | quell |\n| --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let Row { operation, unit, cpus, ostd, quell } = row;
        let _ = writeln!(text, "| {operation} | {unit} | {cpus} | {ostd} | {quell} |");
    }
    text
}

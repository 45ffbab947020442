//! Prints the comparison as JSON, and as part of a document.

use super::plan::Case;
use quell::Policy;
use quell_conformance::PolicyText;
use quell_workloads::numbers::spread;
use serde::Serialize;

/// The meaning of the rows, and the measures that make them comparable.
const NOTES: [&str; 7] = [
    "Counts are per operation. Instructions are the sum over all CPUs in the measured window. They include waiting, which \
     adds little, because a waiting CPU gives up its turn.",
    "Interrupts are counted when sent: function calls (Linux's row CAL, which includes its own flushes) and, with the \
     engine, those of its vector. On both kernels they include function calls that flush nothing.",
    "Invalidations come from a second, traced run of each workload, because tracing costs instructions. Interrupts and \
     instructions come from the run without tracing.",
    "An invalidation is one page, or one full flush of any size. Linux uses a full flush for many pages: compare \
     whole_flushes, too.",
    "If only one CPU works and Linux lets it sleep, its sleep is not counted as instructions.",
    "The emulated processor has no PCID, so every switch between processes flushes.",
    "quell's own kernel has neither a file system nor a block layer nor accounting, reads page by page and frees \
     memory in other amounts. Its rows show the engine's work there and do not compare with Linux.",
];

/// The outcome of a case on one side: measurements, or why there are none.
pub type Outcome = Result<Side, String>;

/// One side of one row. All counts but `operations` are per operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The number of operations that were measured.
    pub operations: u64,
    /// Sent interrupts: for flushes and other function calls on Linux, only for shootdowns on quell's own kernel.
    pub interrupts: f64,
    /// Invalidated pages and full flushes, on any CPU.
    pub invalidations: f64,
    /// The initiator's invalidations, if known.
    pub local_invalidations: Option<f64>,
    /// The invalidations for other CPUs, if known.
    pub remote_invalidations: Option<f64>,
    /// The number of full flushes among the invalidations.
    pub whole_flushes: f64,
    /// Instructions of all CPUs.
    pub instructions: f64,
    /// The reason to doubt the row, if any.
    pub remark: Option<String>,
    /// The least and the most of each count, if there were several boots. Each count is then a median by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// The least and the most of each count, per operation, in several boots.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The range of interrupts.
    pub interrupts: [f64; 2],
    /// The range of invalidated pages and full flushes.
    pub invalidations: [f64; 2],
    /// The range of instructions.
    pub instructions: [f64; 2],
}

impl Side {
    /// Combines several boots: each count's median and range. Returns `None` without a boot.
    pub fn median(boots: &[Side]) -> Option<Side> {
        let [_, _, ..] = boots else {
            return boots.first().cloned();
        };
        let three = |counts: Vec<f64>| spread(&counts).unwrap_or_default();
        let of = |count: fn(&Side) -> f64| three(boots.iter().map(count).collect());
        let median = |count| of(count)[1];
        let known = |count: fn(&Side) -> Option<f64>| {
            let counts: Option<Vec<f64>> = boots.iter().map(count).collect();
            Some(three(counts?)[1])
        };
        let apart = |count| {
            let [least, _, most] = of(count);
            [least, most]
        };
        Some(Side {
            operations: median(|side| side.operations as f64) as u64,
            interrupts: median(|side| side.interrupts),
            invalidations: median(|side| side.invalidations),
            local_invalidations: known(|side| side.local_invalidations),
            remote_invalidations: known(|side| side.remote_invalidations),
            whole_flushes: median(|side| side.whole_flushes),
            instructions: median(|side| side.instructions),
            remark: boots.iter().find_map(|side| side.remark.clone()),
            spread: Some(Spread {
                interrupts: apart(|side| side.interrupts),
                invalidations: apart(|side| side.invalidations),
                instructions: apart(|side| side.instructions),
            }),
        })
    }
}

/// The names of a row's sides.
const SIDES: [&str; 4] = ["linux", "linux_patched", "linux_on_quell", "quell"];

/// A row.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: &'static str,
    /// Distinguishes this row from others of the workload.
    pub variant: String,
    /// The number of CPUs.
    pub cpus: u16,
    /// The operation to which counts refer.
    pub operation: &'static str,
    /// The workload's parameters.
    pub parameters: Vec<String>,
    /// Linux's side.
    pub linux: Option<Side>,
    /// The side of a patched Linux, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_patched: Option<Side>,
    /// The side of Linux with quell's engine, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_on_quell: Option<Side>,
    /// quell's kernel's side.
    pub quell: Option<Side>,
    /// The reasons for missing sides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A count: its column, its value and its range.
type Count = (&'static str, fn(&Side) -> f64, fn(&Spread) -> [f64; 2]);

const COUNTS: [Count; 3] = [
    ("interrupts", |side| side.interrupts, |spread| spread.interrupts),
    ("invalidations", |side| side.invalidations, |spread| spread.invalidations),
    ("instructions", |side| side.instructions, |spread| spread.instructions),
];

/// The rows that a table shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowFilter {
    /// Only Linux.
    Linux,
    /// Linux without and with patches.
    LinuxPatched,
    /// Linux without and with quell's engine.
    LinuxOnQuell,
    /// quell's own kernel, without a ratio, because it does less than Linux.
    Quell,
}

impl RowFilter {
    /// Returns the names of the columns. Cells of counts can be parsed as numbers.
    pub fn columns(self) -> Vec<String> {
        let sides: &[&str] = match self {
            RowFilter::Linux | RowFilter::Quell => &[""],
            RowFilter::LinuxPatched => &[", Linux", ", patched", ": ratio"],
            RowFilter::LinuxOnQuell => &[", Linux", ", on quell", ": ratio"],
        };
        let counts = COUNTS.iter().flat_map(|(count, ..)| {
            let of = |side: &&str| format!("{count}{side}");
            sides.iter().map(of).collect::<Vec<_>>()
        });
        let first = ["workload", "variant", "CPUs"].map(String::from);
        first.into_iter().chain(counts).collect()
    }
}

impl Row {
    /// Returns the row's cells, in the order of [`RowFilter::columns`].
    pub fn cells(&self, shown: RowFilter) -> Vec<String> {
        let mut cells =
            vec![self.workload.to_string(), self.variant.clone(), self.cpus.to_string()];
        let sides: &[_] = match shown {
            RowFilter::Linux => &[&self.linux],
            RowFilter::LinuxPatched => &[&self.linux, &self.linux_patched],
            RowFilter::LinuxOnQuell => &[&self.linux, &self.linux_on_quell],
            RowFilter::Quell => &[&self.quell],
        };
        for (_, count, spread) in COUNTS {
            let text = |side: &Side| {
                let apart = side.spread.as_ref().map(spread);
                let apart = apart.filter(|[least, most]| least != most);
                let apart = apart.map(|counts| counts.map(number).join(".."));
                let apart = apart.map_or(String::new(), |apart| format!(" ({apart})"));
                number(count(side)) + &apart
            };
            let cell = |side: &&Option<Side>| side.as_ref().map_or("-".to_string(), text);
            cells.extend(sides.iter().map(cell));
            match sides {
                [Some(linux), Some(other)] => cells.push(ratio(count(linux), count(other))),
                [_, _] => cells.push(String::new()),
                _ => {}
            }
        }
        cells
    }
}

/// The whole comparison.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The release of Linux.
    pub linux: String,
    /// The emulator with its version.
    pub emulator: String,
    /// The policy of quell's engine.
    pub policy: String,
    /// The release of the patched Linux, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_patched: Option<String>,
    /// The release of the Linux with the engine and its mechanisms, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_on_quell: Option<String>,
    /// The number of boots of each Linux.
    pub boots: u16,
    /// The rows, in the order in which they were run.
    pub rows: Vec<Row>,
    /// Requested workloads without rows on some number of CPUs, with the reason.
    pub without_rows: Vec<String>,
    /// Limits of the comparison, and the measures that make the rest comparable.
    pub notes: [&'static str; NOTES.len()],
}

impl Report {
    /// Creates a comparison with a release of Linux in an emulator, without rows.
    pub fn new(release: &str, emulator: &str, policy: Policy) -> Self {
        Report {
            linux: release.to_string(),
            emulator: emulator.to_string(),
            policy: PolicyText(policy).to_string(),
            linux_patched: None,
            linux_on_quell: None,
            boots: 1,
            rows: Vec::new(),
            without_rows: Vec::new(),
            notes: NOTES,
        }
    }

    /// Adds a row with the outcomes of [`SIDES`]. Those that nobody requested are `None`.
    pub(super) fn add(&mut self, case: &Case, cpus: u16, outcomes: [Option<Outcome>; 4]) {
        let mut missing = Vec::new();
        let mut names = SIDES.iter();
        let [linux, linux_patched, linux_on_quell, quell] = outcomes.map(|outcome| {
            let name = names.next().unwrap_or(&"");
            outcome?.map_err(|why| missing.push(format!("{name}: {why}"))).ok()
        });
        self.rows.push(Row {
            workload: case.workload.name(),
            variant: case.variant.clone(),
            cpus,
            operation: case.workload.operation(),
            parameters: case.parameters.clone(),
            linux,
            linux_patched,
            linux_on_quell,
            quell,
            missing,
        });
    }

    /// Returns whether no row lacks a side.
    pub fn complete(&self) -> bool {
        self.rows.iter().all(|row| row.missing.is_empty())
    }

    /// Formats the comparison as Markdown; `command` is the command that printed it.
    pub fn markdown(&self, command: &str) -> String {
        let mut lines = vec![
            format!("Printed by `{command}`"),
            format!(
                "(Linux {}, {}, policy `{}`); counts per operation{}.",
                self.linux,
                self.emulator,
                self.policy,
                self.said_of_boots()
            ),
            String::new(),
        ];
        if let Some(which) = &self.linux_on_quell {
            lines.extend([
                format!("`on quell` is Linux with the engine in it ({which})."),
                String::new(),
            ]);
        }
        for shown in self.with_linux() {
            lines.extend(self.table(shown));
        }
        lines.extend([
            "quell's own kernel (it has no file system, so do not compare these rows with Linux):"
                .to_string(),
            String::new(),
        ]);
        lines.extend(self.table(RowFilter::Quell));
        let without = self.without_rows.iter().map(|why| format!("* no row: {why}"));
        lines.extend(without);
        lines.extend(self.remarks().map(|remark| format!("* {remark}")));
        lines.join("\n")
    }

    /// Returns an explanation of Linux's counts if each Linux was booted more than once.
    pub fn said_of_boots(&self) -> String {
        match self.boots {
            1 => String::new(),
            boots => format!(
                "; Linux's are medians of {boots} boots, each started at another point of a timer tick, with minimum and \
                 maximum if they differ"
            ),
        }
    }

    /// Returns the filters of the tables that show Linux.
    pub fn with_linux(&self) -> Vec<RowFilter> {
        let patched = self.linux_patched.as_ref().map(|_| RowFilter::LinuxPatched);
        let on_quell = self.linux_on_quell.as_ref().map(|_| RowFilter::LinuxOnQuell);
        match (patched, on_quell) {
            (None, None) => vec![RowFilter::Linux],
            (patched, on_quell) => patched.into_iter().chain(on_quell).collect(),
        }
    }

    /// Returns whether there is a row of quell's own kernel.
    pub fn has_own(&self) -> bool {
        self.rows.iter().any(|row| row.quell.is_some())
    }

    /// Returns one table and an empty line.
    fn table(&self, shown: RowFilter) -> Vec<String> {
        let columns = shown.columns();
        let mut lines = vec![
            format!("| {} |", columns.join(" | ")),
            format!("| --- | --- |{}", " ---: |".repeat(columns.len() - 2)),
        ];
        for row in &self.rows {
            lines.push(format!("| {} |", row.cells(shown).join(" | ")));
        }
        lines.push(String::new());
        lines
    }

    /// Returns the reasons to doubt rows, one on each line.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        self.rows.iter().flat_map(|row| {
            let sides = [&row.linux, &row.linux_patched, &row.linux_on_quell, &row.quell];
            let remarks = SIDES.iter().zip(sides).filter_map(|(name, side)| {
                Some(format!("{name}: {}", side.as_ref()?.remark.as_ref()?))
            });
            let (workload, variant, cpus) = (row.workload, &row.variant, row.cpus);
            remarks
                .chain(row.missing.iter().cloned())
                .map(move |remark| format!("{workload} ({variant}, {cpus} CPUs): {remark}"))
        })
    }
}

/// Formats a count per operation, exactly if it's small.
fn number(value: f64) -> String {
    if value == 0.0 {
        "0".to_string()
    } else if value < 100.0 {
        format!("{value:.3}")
    } else {
        let digits = format!("{value:.0}");
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                text.push(' ');
            }
            text.push(digit);
        }
        text
    }
}

/// Formats the second count as a ratio to the first.
fn ratio(linux: f64, quell: f64) -> String {
    if linux == 0.0 {
        if quell == 0.0 { "=" } else { "more" }.to_string()
    } else {
        format!("{:.2}", quell / linux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versus::plan;

    fn side(interrupts: f64, instructions: f64) -> Side {
        Side {
            operations: 500,
            interrupts,
            invalidations: 2.0,
            local_invalidations: Some(1.0),
            remote_invalidations: None,
            whole_flushes: 0.0,
            instructions,
            remark: None,
            spread: None,
        }
    }

    fn report(quell: Outcome) -> Report {
        let mut report = Report::new("6.12", "QEMU", Policy::ALL);
        let linux = Ok(side(1.0, 11_877.9));
        report.add(&plan::of("dontneed", 2)[0], 2, [Some(linux), None, None, Some(quell)]);
        report
    }

    fn has(report: &Report, parts: &[&str]) -> String {
        let text = report.markdown("quell versus linux");
        parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
        text
    }

    #[test]
    fn the_keys_of_the_json_stay() {
        let report = report(Ok(side(0.5, 9_000.0)));
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["rows"][0];
        assert_eq!((&row["workload"], &row["cpus"]), (&"dontneed".into(), &2.into()));
        assert!(row["variant"].is_string());
        for name in ["linux", "quell"] {
            for key in ["interrupts", "invalidations", "instructions"] {
                assert!(row[name][key].is_f64(), "{name} {key}");
            }
        }
        for name in ["linux_patched", "linux_on_quell"] {
            assert!(row.get(name).is_none() && json.get(name).is_none(), "{name}");
        }
        assert!(report.complete());
    }

    #[test]
    fn a_missing_side_is_said_and_no_number_is_made_up() {
        let report = report(Err("it panicked".to_string()));
        assert!(serde_json::to_value(&report).unwrap()["rows"][0]["quell"].is_null());
        let text = has(&report, &["| dontneed | others busy | 2 | 1.000 | 2.000 | 11 878 |"]);
        assert!(text.starts_with("Printed by `quell versus linux`"), "{text}");
        assert!(text.ends_with("quell: it panicked"), "{text}");
        assert!(!report.complete());
    }

    #[test]
    fn other_linuxes_stand_beside_linux_if_they_were_asked_for() {
        let mut report = report(Err("not asked".to_string()));
        report.linux_patched = Some("6.12".to_string());
        report.rows[0].linux_patched = Some(side(0.5, 11_877.9));
        let row = "| dontneed | others busy | 2 | 1.000 | 0.500 | 0.50 |";
        has(&report, &["interrupts, patched", row]);
        report.linux_on_quell = Some("6.12, quell=all".to_string());
        report.rows[0].linux_on_quell = Some(side(0.25, 5_938.95));
        let row = "| 2 | 1.000 | 0.250 | 0.25 | 2.000 | 2.000 | 1.00 | 11 878 | 5 939 | 0.50 |";
        has(&report, &["(6.12, quell=all)", row]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["linux_on_quell"]["interrupts"], 0.25);
        assert_eq!(report.with_linux(), [RowFilter::LinuxPatched, RowFilter::LinuxOnQuell]);
    }

    #[test]
    fn several_boots_are_their_median_and_say_how_far_apart_they_are() {
        assert_eq!(Side::median(&[]), None);
        assert_eq!(Side::median(&[side(1.0, 7.0)]), Some(side(1.0, 7.0)));
        let boots = [4.0, 1.0, 2.0].map(|interrupts| side(interrupts, 100.0));
        let median = Side::median(&boots).unwrap();
        assert_eq!((median.interrupts, median.instructions), (2.0, 100.0));
        assert_eq!(median.spread.as_ref().unwrap().interrupts, [1.0, 4.0]);
        assert_eq!(Side::median(&boots[..2]).unwrap().interrupts, 2.5);
        let mut report = report(Ok(side(1.0, 50.0)));
        (report.boots, report.rows[0].linux) = (3, Some(median));
        has(&report, &["| 2.000 (1.000..4.000) | 2.000 | 100 |", "medians of 3 boots"]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["linux"]["spread"]["interrupts"][1], 4.0);
        assert!(json["rows"][0]["quell"].get("spread").is_none());
    }

    /// quell's own kernel isn't a comparison, so no row shows it beside Linux.
    #[test]
    fn the_own_kernel_has_no_ratio() {
        let report = report(Ok(side(0.5, 9_000.0)));
        let text = has(&report, &["| dontneed | others busy | 2 | 0.500 | 2.000 | 9 000 |"]);
        assert!(!text.contains(": ratio"), "{text}");
    }

    #[test]
    fn ratios_of_nothing_are_no_numbers() {
        assert_eq!(ratio(0.0, 0.0), "=");
        assert_eq!(ratio(0.0, 1.0), "more");
        assert_eq!(ratio(4.0, 1.0), "0.25");
    }
}

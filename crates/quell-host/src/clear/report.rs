//! What was measured, as JSON, as tables, and judged against the targets.

use super::fault::DemandFault;
use super::read::ClearThenRead;
use quell_zero::{Plan, Temperature};
use serde::Serialize;
use std::fmt::{self, Write as _};

/// A figure: GB/s (10^9 bytes) of a strategy at a length.
#[derive(Serialize, Clone, Debug)]
pub struct Row {
    /// The length of the extents.
    pub bytes: u64,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The median.
    pub gbps: f64,
    /// Of how many samples.
    pub samples: usize,
}

/// What the plan picks at a length.
#[derive(Serialize, Clone, Debug)]
pub struct Chosen {
    /// The length of the extents.
    pub bytes: u64,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The median measured for it.
    pub gbps: f64,
}

/// The same with every CPU clearing at once; figures are sums over the CPUs.
#[derive(Serialize, Debug)]
pub struct AllCores {
    /// How many CPUs.
    pub cores: usize,
    /// See [`Report::peak_write_gbps`].
    pub peak_write_gbps: f64,
    /// See [`Report::page_by_page_gbps`].
    pub page_by_page_gbps: f64,
    /// See [`Report::rows`].
    pub rows: Vec<Row>,
    /// See [`Report::chosen`].
    pub chosen: Vec<Chosen>,
    /// See [`Report::memset`].
    pub memset: Vec<Row>,
}

/// A row of the plan in words.
#[derive(Serialize, Debug)]
pub struct PlanRow {
    /// The shortest length the row is about.
    bytes: u64,
    hot: &'static str,
    bypassing: &'static str,
    /// What the rule without measurement says.
    by_rule_hot: &'static str,
    by_rule_bypassing: &'static str,
}

/// The plan, calibrated and by rule.
#[derive(Serialize, Debug)]
#[serde(transparent)]
pub struct PlanTable(Vec<PlanRow>);

impl PlanTable {
    /// Writes both plans down, leaving out rows equal to the one before.
    pub fn new(plan: &Plan, by_rule: &Plan) -> Self {
        let name = |plan: &Plan, t, bytes| plan.strategy(t, bytes).name();
        let rows = plan.rows(Temperature::Hot).map(|(bytes, _)| PlanRow {
            bytes,
            hot: name(plan, Temperature::Hot, bytes),
            bypassing: name(plan, Temperature::Bypassing, bytes),
            by_rule_hot: name(by_rule, Temperature::Hot, bytes),
            by_rule_bypassing: name(by_rule, Temperature::Bypassing, bytes),
        });
        let key = |r: &PlanRow| (r.hot, r.bypassing, r.by_rule_hot, r.by_rule_bypassing);
        let mut rows: Vec<PlanRow> = rows.collect();
        rows.dedup_by(|next, kept| key(next) == key(kept));
        PlanTable(rows)
    }
}

/// A target, and whether this machine meets it.
#[derive(Serialize, Debug)]
pub struct Verdict {
    /// What is asked.
    pub target: &'static str,
    /// The bound on the ratio.
    pub bound: f64,
    /// The worst ratio measured.
    pub ratio: f64,
    /// The length at which it was measured.
    pub at_bytes: u64,
    /// Whether the bound holds.
    pub pass: bool,
}

/// Everything that was measured. The names of the fields are stable.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The fastest of all measured ways to write memory in runs of the greatest length, zeros or
    /// not, one core.
    pub peak_write_gbps: f64,
    /// Every strategy at every length, one core.
    pub rows: Vec<Row>,
    /// What the calibrated plan picks for memory that is not read next.
    pub chosen: Vec<Chosen>,
    /// Clearing 4 KB at a time with the string instruction (`dc zva` on Arm): the median over all
    /// lengths.
    pub page_by_page_gbps: f64,
    /// The same at each length.
    pub page_by_page: Vec<Row>,
    /// glibc `memset` at each length.
    pub memset: Vec<Row>,
    /// The same on all CPUs at once, if there is more than one.
    pub all_cores: Option<AllCores>,
    /// Clearing an extent and reading the neighbourhood of the fault.
    pub clear_then_read: Vec<ClearThenRead>,
    /// The running kernel's own demand faults.
    pub demand_fault: Vec<DemandFault>,
    /// The targets.
    pub verdicts: Vec<Verdict>,
    /// The processor's name.
    pub cpu: String,
    /// First-level data, second-level and last-level cache in bytes, as one CPU sees them.
    pub caches: [u64; 3],
    /// How much of the measured memory was mapped with huge pages, 0 to 1.
    pub huge_page_share: f64,
    /// The plan that made the choices.
    pub plan: PlanTable,
    /// How long the calibration took.
    pub calibration_ms: f64,
    /// How long the whole measurement took.
    pub seconds: f64,
}

/// How much slower "no slower" may come out: the noise that the chooser ignores as well.
const NO_SLOWER: f64 = 1.03;

impl Report {
    /// Judges the figures of one core against the targets.
    pub fn judge(&self) -> Vec<Verdict> {
        let at = |rows: &[Row], bytes| {
            let best = rows.iter().filter(|r| r.bytes == bytes);
            best.map(|r| r.gbps).fold(0.0, f64::max)
        };
        let least = |target, bound, from, reference: &dyn Fn(u64) -> f64| {
            let ratios = self.chosen.iter().filter(|c| c.bytes >= from);
            let worst = ratios
                .map(|c| (c.gbps / reference(c.bytes), c.bytes))
                .min_by(|a, b| a.0.total_cmp(&b.0))?;
            Some(Verdict {
                target,
                bound,
                ratio: worst.0,
                at_bytes: worst.1,
                pass: worst.0 >= bound,
            })
        };
        let total = |way, bytes| {
            let mut found = self.clear_then_read.iter();
            found
                .find(|r| r.way == way && r.bytes == bytes)
                .map(|r| r.total_ns)
        };
        let reading = self
            .clear_then_read
            .iter()
            .filter(|r| r.way == "planned")
            .filter_map(|r| Some((r.total_ns / total("stores", r.bytes)?, r.bytes)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(ratio, at_bytes)| Verdict {
                target: "clear, then read the fault's neighbourhood: time against plain stores",
                bound: NO_SLOWER,
                ratio,
                at_bytes,
                pass: ratio <= NO_SLOWER,
            });
        [
            least(
                "chosen against page by page, from 64 KB on",
                2.2,
                64 << 10,
                &|b| at(&self.page_by_page, b),
            ),
            least(
                "chosen against the best strategy, every length",
                0.95,
                0,
                &|b| at(&self.rows, b),
            ),
            least(
                "chosen against peak write bandwidth, from 2 MB on",
                0.9,
                2 << 20,
                &|_| self.peak_write_gbps,
            ),
            reading,
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// A self-contained page: the tables as text and the plot inline.
    pub fn html(&self, svg: &str) -> String {
        let escaped = self.to_string().replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
             <title>Zeroing on this machine</title>\n\
             <style>body{{font-family:sans-serif;max-width:72em;margin:2em auto;padding:0 1em}}\
             pre{{overflow-x:auto;line-height:1.35}}svg{{max-width:100%;height:auto}}</style>\n\
             <h1>Zeroing on this machine</h1>\n{svg}\n<pre>{escaped}</pre>\n</html>\n"
        )
    }
}

/// A length for people.
pub fn bytes_label(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GB", b >> 30),
        b if b >= 1 << 20 => format!("{} MB", b >> 20),
        b => format!("{} KB", b >> 10),
    }
}

/// One table of GB/s: lengths down, strategies across, the choice marked.
fn table(
    f: &mut fmt::Formatter<'_>,
    rows: &[Row],
    beside: &[(&str, &[Row])],
    chosen: &[Chosen],
) -> fmt::Result {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.strategy) {
            names.push(row.strategy);
        }
    }
    let mut line = format!("{:>8}", "extent");
    for name in &names {
        write!(line, " {name:>10}")?;
    }
    for (name, _) in beside {
        write!(line, " {name:>12}")?;
    }
    writeln!(f, "{line}")?;
    for choice in chosen {
        write!(f, "{:>8}", bytes_label(choice.bytes))?;
        let figure = |rows: &[Row], name: &str| {
            let mut found = rows.iter();
            found
                .find(|r| r.bytes == choice.bytes && r.strategy == name)
                .map_or("-".into(), |r| format!("{:.1}", r.gbps))
        };
        for name in &names {
            let mark = if *name == choice.strategy { "*" } else { "" };
            write!(f, " {:>10}", format!("{mark}{}", figure(rows, name)))?;
        }
        for (name, rows) in beside {
            write!(f, " {:>12}", figure(rows, name))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [l1d, l2, last] = self
            .caches
            .map(|b| if b == 0 { "?".into() } else { bytes_label(b) });
        writeln!(f, "{}; caches {l1d}, {l2}, {last}", self.cpu)?;
        writeln!(
            f,
            "memory mapped with huge pages: {:.0} %; GB/s = 10^9 bytes per second of CPU time",
            self.huge_page_share * 100.0
        )?;
        writeln!(f, "\nClearing, one core, GB/s (* = the engine's choice)")?;
        let beside: [(&str, &[Row]); 2] = [
            ("memset", &self.memset),
            ("page-by-page", &self.page_by_page),
        ];
        table(f, &self.rows, &beside, &self.chosen)?;
        writeln!(f, "peak write bandwidth {:.1}", self.peak_write_gbps)?;
        if let Some(all) = &self.all_cores {
            writeln!(f, "\nClearing, {} cores at once, GB/s in all", all.cores)?;
            table(f, &all.rows, &[("memset", &all.memset)], &all.chosen)?;
            writeln!(
                f,
                "peak write bandwidth {:.1}, page by page {:.1}",
                all.peak_write_gbps, all.page_by_page_gbps
            )?;
        }
        writeln!(
            f,
            "\nThe engine's choices (calibrated in {:.0} ms; in brackets, by rule)",
            self.calibration_ms
        )?;
        for row in &self.plan.0 {
            let bracket = |rule: &str| format!("({rule})");
            writeln!(
                f,
                "from {:>6}  read next: {:<10} {:<12}  not read next: {:<10} {}",
                bytes_label(row.bytes),
                row.hot,
                bracket(row.by_rule_hot),
                row.bypassing,
                bracket(row.by_rule_bypassing),
            )?;
        }
        writeln!(
            f,
            "\nClear, then read the faulting page and two pages on either side, microseconds"
        )?;
        writeln!(
            f,
            "{:>8} {:>10} {:>9} {:>9} {:>9}",
            "extent", "way", "clear", "read", "both"
        )?;
        for r in &self.clear_then_read {
            let us = |ns: f64| format!("{:.2}", ns / 1e3);
            writeln!(
                f,
                "{:>8} {:>10} {:>9} {:>9} {:>9}",
                bytes_label(r.bytes),
                r.way,
                us(r.clear_ns),
                us(r.read_ns),
                us(r.total_ns)
            )?;
        }
        writeln!(f, "\nDemand faults of the running kernel, GB/s")?;
        for fault in &self.demand_fault {
            write!(f, "{:>8} {:>10}", bytes_label(fault.page_bytes), fault.way)?;
            match (&fault.gbps, &fault.note) {
                (Some(gbps), _) => writeln!(f, " {gbps:>9.1}")?,
                (None, note) => writeln!(f, "  refused: {}", note.as_deref().unwrap_or("?"))?,
            }
        }
        writeln!(f)?;
        for v in &self.verdicts {
            writeln!(
                f,
                "{}  {}: {:.2} at {} (bound {})",
                if v.pass { "pass" } else { "MISS" },
                v.target,
                v.ratio,
                bytes_label(v.at_bytes),
                v.bound
            )?;
        }
        writeln!(f, "{:.0} s", self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_zero::Strategy;

    fn row(bytes: u64, strategy: &'static str, gbps: f64) -> Row {
        Row {
            bytes,
            strategy,
            gbps,
            samples: 3,
        }
    }

    /// A machine whose figures were made up so that every ratio is known.
    fn made_up() -> Report {
        let sizes = [4 << 10, 64 << 10, 2 << 20];
        let each = |name, gbps: [f64; 3]| -> Vec<Row> {
            let figures = sizes.iter().zip(gbps);
            figures
                .map(|(&bytes, gbps)| row(bytes, name, gbps))
                .collect()
        };
        let read = |way, total_ns| ClearThenRead {
            bytes: 2 << 20,
            way,
            clear_ns: total_ns - 1.0,
            read_ns: 1.0,
            total_ns,
        };
        let rows = [
            each("rep-stosq", [10.0, 12.0, 12.0]),
            each("nt512", [8.0, 30.0, 38.0]),
        ];
        let plan = Plan::uniform(Strategy::NonTemporal512);
        Report {
            peak_write_gbps: 40.0,
            chosen: rows[1]
                .iter()
                .map(|r| Chosen {
                    bytes: r.bytes,
                    strategy: r.strategy,
                    gbps: r.gbps,
                })
                .collect(),
            rows: rows.concat(),
            page_by_page_gbps: 10.0,
            page_by_page: each("page-by-page", [10.0, 10.0, 10.0]),
            memset: each("memset", [10.0, 10.0, 10.0]),
            all_cores: None,
            clear_then_read: vec![read("stores", 100.0), read("planned", 120.0)],
            demand_fault: vec![DemandFault {
                page_bytes: 1 << 30,
                way: "populate",
                gbps: None,
                note: Some("none & <none>".into()),
            }],
            verdicts: Vec::new(),
            cpu: "made up".into(),
            caches: [0, 1 << 20, 32 << 20],
            huge_page_share: 1.0,
            plan: PlanTable::new(&plan, &Plan::default()),
            calibration_ms: 1.0,
            seconds: 2.0,
        }
    }

    #[test]
    fn verdicts_are_the_worst_ratios_in_their_range() {
        let found: Vec<_> = made_up()
            .judge()
            .iter()
            .map(|v| (v.ratio, v.at_bytes, v.pass))
            .collect();
        assert_eq!(
            found,
            [
                (3.0, 64 << 10, true),
                (0.8, 4 << 10, false),
                (0.95, 2 << 20, true),
                (1.2, 2 << 20, false),
            ]
        );
    }

    #[test]
    fn json_has_the_published_shape() {
        let json = serde_json::to_value(made_up()).unwrap();
        assert!(json["peak_write_gbps"].is_f64() && json["page_by_page_gbps"].is_f64());
        for (list, at) in [("rows", 0), ("chosen", 0)] {
            let row = &json[list][at];
            assert!(row["bytes"].is_u64() && row["gbps"].is_f64() && row["strategy"].is_string());
        }
    }

    #[test]
    fn tables_and_pages_show_choices_verdicts_and_refusals() {
        let mut report = made_up();
        report.verdicts = report.judge();
        let text = report.to_string();
        assert!(text.contains("*38.0") && text.contains("MISS") && text.contains("pass"));
        assert!(text.contains("refused: none & <none>"));
        let svg = super::super::plot::svg(&report).unwrap();
        let html = report.html(&svg);
        assert!(html.contains("none &amp; &lt;none>") && html.contains("</svg>"));
    }
}

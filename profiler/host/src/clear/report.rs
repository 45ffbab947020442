//! Formats the measurements as JSON and tables, and judges them against the targets.

use super::fault::DemandFault;
use super::read::ClearReadTimes;
use quell_zero::{Plan, Temperature};
use serde::Serialize;

/// A figure: GB/s (10^9 bytes) of a strategy at a length.
#[derive(Serialize, Clone, Debug)]
pub struct Row {
    /// The length of the extents.
    pub bytes: u64,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The median.
    pub gbps: f64,
    /// The number of samples.
    pub samples: usize,
}

/// The plan's choice for a length.
#[derive(Serialize, Clone, Debug)]
pub struct PlanChoice {
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
    /// The number of CPUs.
    pub cores: usize,
    /// See [`Report::peak_write_gbps`].
    pub peak_write_gbps: f64,
    /// See [`Report::page_by_page_gbps`].
    pub page_by_page_gbps: f64,
    /// See [`Report::rows`].
    pub rows: Vec<Row>,
    /// See [`Report::chosen`].
    pub chosen: Vec<PlanChoice>,
    /// See [`Report::memset`].
    pub memset: Vec<Row>,
}

/// A row of the plan in words.
#[derive(Serialize, Debug)]
pub struct PlanRow {
    /// The shortest length of the row.
    pub bytes: u64,
    /// The strategy for memory that is read next.
    pub hot: &'static str,
    /// The strategy for other memory.
    pub bypassing: &'static str,
    /// The choice without measurement for memory that is read next.
    pub by_rule_hot: &'static str,
    /// The same for other memory.
    pub by_rule_bypassing: &'static str,
}

/// The plan, calibrated and by rule.
#[derive(Serialize, Default, Debug)]
#[serde(transparent)]
pub struct PlanTable(pub Vec<PlanRow>);

impl PlanTable {
    /// Combines both plans, without rows that equal the row before.
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

/// A target, and the result on this machine.
#[derive(Serialize, Debug)]
pub struct Verdict {
    /// The target.
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

/// All results of the measurement. The names of the fields are stable.
#[derive(Serialize, Default, Debug)]
pub struct Report {
    /// The greatest measured speed of writing runs of the greatest length, zeros or not, on one core.
    pub peak_write_gbps: f64,
    /// Every strategy at every length, one core.
    pub rows: Vec<Row>,
    /// The calibrated plan's choices for memory that isn't read next.
    pub chosen: Vec<PlanChoice>,
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
    pub clear_then_read: Vec<ClearReadTimes>,
    /// The running kernel's own demand faults.
    pub demand_fault: Vec<DemandFault>,
    /// The targets.
    pub verdicts: Vec<Verdict>,
    /// The processor's name.
    pub cpu: String,
    /// First-level data, second-level and last-level cache in bytes, as one CPU sees them.
    pub caches: [u64; 3],
    /// The share of the measured memory that was mapped with huge pages, 0 to 1.
    pub huge_page_share: f64,
    /// The plan that made the choices.
    pub plan: PlanTable,
    /// The time of the calibration.
    pub calibration_ms: f64,
    /// The time of the whole measurement.
    pub seconds: f64,
}

/// The largest ratio that still counts as "no slower": the noise that the chooser ignores as well.
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
            found.find(|r| r.way == way && r.bytes == bytes).map(|r| r.total_ns)
        };
        let reading = self
            .clear_then_read
            .iter()
            .filter(|r| r.way == "planned")
            .filter_map(|r| Some((r.total_ns / total("stores", r.bytes)?, r.bytes)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(ratio, at_bytes)| Verdict {
                target: "clear and read around the fault: time, compared with plain stores",
                bound: NO_SLOWER,
                ratio,
                at_bytes,
                pass: ratio <= NO_SLOWER,
            });
        [
            least("chosen strategy compared with page by page, from 64 KB", 2.2, 64 << 10, &|b| {
                at(&self.page_by_page, b)
            }),
            least("chosen strategy compared with the best, every length", 0.95, 0, &|b| {
                at(&self.rows, b)
            }),
            least(
                "chosen strategy compared with peak write bandwidth, from 2 MB",
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
}

/// Formats a length for people.
pub fn bytes_label(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GB", b >> 30),
        b if b >= 1 << 20 => format!("{} MB", b >> 20),
        b => format!("{} KB", b >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_the_worst_ratios_in_their_range() {
        let each = |strategy, gbps: [f64; 3]| {
            let figures = [4 << 10, 64 << 10, 2 << 20].into_iter().zip(gbps);
            figures.map(move |(bytes, gbps)| Row { bytes, strategy, gbps, samples: 3 })
        };
        let fast = || each("nt512", [8.0, 30.0, 38.0]);
        let choice = |Row { bytes, strategy, gbps, .. }| PlanChoice { bytes, strategy, gbps };
        let read = |way, total_ns| ClearReadTimes {
            bytes: 2 << 20,
            way,
            clear_ns: total_ns - 1.0,
            read_ns: 1.0,
            total_ns,
        };
        let report = Report {
            peak_write_gbps: 40.0,
            chosen: fast().map(choice).collect(),
            rows: each("rep-stosq", [10.0, 12.0, 12.0]).chain(fast()).collect(),
            page_by_page: each("page-by-page", [10.0, 10.0, 10.0]).collect(),
            clear_then_read: vec![read("stores", 100.0), read("planned", 120.0)],
            ..Report::default()
        };
        let found = report.judge();
        let found: Vec<_> = found.iter().map(|v| (v.ratio, v.at_bytes, v.pass)).collect();
        let expected = [
            (3.0, 64 << 10, true),
            (0.8, 4 << 10, false),
            (0.95, 2 << 20, true),
            (1.2, 2 << 20, false),
        ];
        assert_eq!(found, expected);
    }
}

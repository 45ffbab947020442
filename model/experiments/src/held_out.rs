//! Compares predictions with published tables that were not used for calibration.
//!
//! A table is a folder without code. Its `published.toml` names the source and the published values. For each *side*
//! (before and after the change), it names machine, workload, policy, CPUs and parameters. Machine and workload files
//! are in the folder or built in. [`Table::read`] reads a table, [`Table::jobs`] returns its runs, and [`Table::rows`]
//! compares the published change with the predicted one.
//!
//! Each row compares the ratio of after to before, so the model's unit may differ from the published one. For example,
//! the model may have `ns per page` where the paper has seconds. A row may compare the difference instead if both have
//! the same unit. Each side is run with [`SEEDS`] seeds, and the median is used. A row is a *hit* if the greater of the
//! predicted and the published value exceeds the smaller by at most 15 % ([`NEAR`]). A miss isn't a failure.
//!
//! Each side runs the kernel that the table names, or [`kernels::LINUX`]. [`Table::calibrated`] fits at most two of
//! that kernel's path costs to the figures from before the change, and to nothing else.
//!
//! # Not guaranteed
//!
//! * The files may disagree with the source, because people wrote them.
//! * A side may represent a kernel that the engine can't be, for example one that flushes needlessly. Then it may
//!   differ from that kernel in other ways too. Its workload file explains the representation.

mod calibrate;

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use include_dir::{Dir, include_dir};
use quell_clock::file::{built_in as built_in_machine, built_in_kernel};
use quell_clock::{KernelFile, Parameter};
use quell_workloads::Workload;
use quell_workloads::files::hint;
use serde::{Deserialize, Serialize};

use self::calibrate::{BeforeRow, BeforeSide};
use crate::jobs::{Job, Results, SEED};
use crate::kernels;
use crate::machines;
use crate::numbers::{Skill, Verdict, median};
use crate::policies;
use crate::trial::Outcome;
use crate::workloads;

pub use self::calibrate::Factor;

/// The tables of this repository, built in so that our command has them everywhere.
static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/held-out");

/// The number of seeds with which each side is run.
pub(crate) const SEEDS: u64 = 3;

/// The tolerance of a prediction: the share by which either value may exceed the other.
pub(crate) const NEAR: f64 = 0.15;

/// The file of a table, in its folder.
const FILE: &str = "published.toml";

/// The figure to read off a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
enum Metric {
    /// The workload's own figure.
    #[default]
    #[serde(rename = "figure")]
    Figure,
    /// One over the workload's own figure: a rate if that is a time.
    #[serde(rename = "1 / figure")]
    Inverse,
    /// Interrupts taken in the measured window.
    #[serde(rename = "interrupts")]
    Interrupts,
    /// Interrupts for each second of it.
    #[serde(rename = "interrupts a second")]
    InterruptRate,
}

impl Metric {
    fn of(self, outcome: &Outcome) -> f64 {
        let interrupts = outcome.machine.interrupts_taken as f64;
        match self {
            Metric::Figure => outcome.measure.value,
            Metric::Inverse => 1.0 / outcome.measure.value,
            Metric::Interrupts => interrupts,
            Metric::InterruptRate => interrupts / (outcome.window_nanoseconds / 1e9),
        }
    }

    /// Returns its unit, if the workload's figure has the given one.
    fn unit(self, figure: &str) -> String {
        match self {
            Metric::Figure => figure.into(),
            // One over a time for each operation has no name.
            Metric::Inverse => String::new(),
            Metric::Interrupts => "1".into(),
            Metric::InterruptRate => "1/s".into(),
        }
    }
}

/// The comparison of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Comparison {
    /// After over before.
    #[default]
    Ratio,
    /// After minus before: both must have the published unit.
    Difference,
}

impl Comparison {
    fn of(self, [before, after]: [f64; 2]) -> f64 {
        match self {
            Comparison::Ratio => after / before,
            Comparison::Difference => after - before,
        }
    }
}

/// A file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableFile {
    name: String,
    title: String,
    source: String,
    seen: String,
    cpu_seconds: Option<u32>,
    workload: String,
    machine: Option<String>,
    /// The kernel of both sides, if it isn't the default.
    kernel: Option<String>,
    /// The path costs to fit, if not all of them together.
    calibrate: Option<Vec<String>>,
    #[serde(default)]
    parameters: Vec<String>,
    before: FileSide,
    after: FileSide,
    figure: Vec<FileFigure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSide {
    label: String,
    policy: String,
    machine: Option<String>,
    cpus: Option<u16>,
    #[serde(default)]
    parameters: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFigure {
    case: String,
    machine: Option<String>,
    after_machine: Option<String>,
    cpus: Option<u16>,
    after_cpus: Option<u16>,
    #[serde(default)]
    reads: Metric,
    #[serde(default)]
    compare: Comparison,
    #[serde(default)]
    parameters: Vec<String>,
    #[serde(default)]
    before_parameters: Vec<String>,
    #[serde(default)]
    after_parameters: Vec<String>,
    published: Option<[f64; 2]>,
    unit: Option<String>,
    change: Option<f64>,
}

/// A published pair of values.
#[derive(Clone, Debug)]
struct PublishedPair {
    /// Before and after, if both were printed, with their unit.
    values: Option<([f64; 2], String)>,
    /// After over before.
    ratio: f64,
}

impl PublishedPair {
    fn compared(&self, compare: Comparison) -> f64 {
        match &self.values {
            Some((values, _)) => compare.of(*values),
            None => self.ratio,
        }
    }
}

#[derive(Clone, Debug)]
struct Figure {
    case: String,
    reads: Metric,
    compare: Comparison,
    published: PublishedPair,
    /// Before and after, one run for each seed.
    sides: [Vec<Job>; 2],
}

/// A published table, ready to be run.
#[derive(Clone, Debug)]
pub struct Table {
    /// One word.
    pub(crate) name: String,
    /// A description of the measurement, in a sentence.
    pub(crate) title: String,
    /// The publication, and the table's place in it.
    pub(crate) source: String,
    /// The processor time of the runs on the author's host, if the file has it.
    cpu_time: Option<Duration>,
    /// The part of the source that was read, and its omissions.
    pub(crate) seen: String,
    /// Short names of the kernels before and after the change.
    pub(crate) labels: [String; 2],
    /// The path costs that are fitted to the figures from before.
    fitted: Vec<Parameter>,
    figures: Vec<Figure>,
}

/// A published figure beside the predicted one.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub(crate) table: String,
    pub(crate) case: String,
    /// The unit of the published values. Absent if only their ratio was published, like the values.
    pub(crate) unit: Option<String>,
    pub(crate) published_before: Option<f64>,
    pub(crate) published_after: Option<f64>,
    model_before: Option<f64>,
    model_after: Option<f64>,
    /// The published change. For example, -0.357 is 35.7 % less.
    pub(crate) change_published: f64,
    change_predicted: Option<f64>,
    off: Option<f64>,
    verdict: Verdict,
    /// The prediction with path costs fitted to the figures from before the change. Absent unless requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calibrated: Option<Prediction>,
    /// The number of violations of the contract in these runs.
    violations: u64,
    /// The error, if a run failed.
    pub(crate) reason: Option<String>,
}

/// A prediction of a figure. Values are absent if a run didn't end.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Prediction {
    /// The model's value before the change, in the model's unit.
    pub model_before: Option<f64>,
    pub model_after: Option<f64>,
    /// The predicted change. Absent also if the value before is 0.
    pub change_predicted: Option<f64>,
    /// The predicted ratio divided by the published one, minus 1. For example, 0.1 means that the model's ratio is a
    /// tenth too large. Differences are compared in the same way.
    pub off: Option<f64>,
    /// Whether the prediction is within the tolerance.
    pub verdict: Verdict,
}

impl Row {
    /// Returns the prediction with the kernel's own path costs.
    pub(crate) fn plain(&self) -> Prediction {
        let &Row { model_before, model_after, change_predicted, off, verdict, .. } = self;
        Prediction { model_before, model_after, change_predicted, off, verdict }
    }

    /// Returns the prediction with fitted path costs, or the plain one without such a prediction.
    pub(crate) fn best(&self) -> Prediction {
        self.calibrated.unwrap_or(self.plain())
    }
}

/// Returns the names of the built-in tables.
pub(crate) fn names() -> Vec<&'static str> {
    let folders = BUILT_IN.dirs();
    folders.filter_map(|folder| folder.path().to_str()).collect()
}

/// Returns the tables of this repository, in the order of their names.
///
/// # Errors
/// If no temporary files can be made.
pub(crate) fn built_in() -> Result<Vec<Table>, String> {
    let unwritable = |error: io::Error| format!("{}: {error}", std::env::temp_dir().display());
    let folder = tempfile::tempdir().map_err(unwritable)?;
    BUILT_IN.extract(folder.path()).map_err(unwritable)?;
    find(folder.path())
}

/// Returns the tables with these names or paths; all built-in tables if there are none.
///
/// # Errors
/// If there is no such table, or its file can't be read or is invalid.
pub fn named(wanted: &[String]) -> Result<Vec<Table>, String> {
    let mut built_in = built_in()?;
    if wanted.is_empty() {
        return Ok(built_in);
    }
    let mut tables = Vec::new();
    for wanted in wanted {
        match built_in.iter().position(|table| table.name == *wanted) {
            Some(index) => tables.push(built_in.remove(index)),
            None if Path::new(wanted).exists() => {
                tables.extend(find(Path::new(wanted))?);
            }
            None => {
                let names = || built_in.iter().map(|table| table.name.as_str());
                return Err(format!(
                    "no table `{wanted}`{}; built in are {}; or give the path of a folder with a published.toml",
                    hint(wanted, names()),
                    names().collect::<Vec<_>>().join(", ")
                ));
            }
        }
    }
    Ok(tables)
}

/// Returns the shortest of these tables that should together take less than `limit`.
pub(crate) fn within(mut tables: Vec<Table>, limit: Duration, threads: u32) -> Vec<Table> {
    tables.retain(|table| table.cpu_time.is_some());
    tables.sort_by_key(|table| table.cpu_time);
    let mut all = Duration::ZERO;
    let fits = |table: &&Table| {
        all += table.cpu_time.unwrap_or_default();
        all <= limit * threads
    };
    let fitting = tables.iter().take_while(fits).count();
    tables.truncate(fitting);
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    tables
}

/// Returns the expected duration of these tables, or `None` if a file lacks it.
pub(crate) fn expected(tables: &[Table], threads: u32) -> Option<Duration> {
    let all: Option<Duration> = tables.iter().map(|table| table.cpu_time).sum();
    Some(all? / threads.max(1))
}

/// Finds tables, sorted by name.
///
/// `path` is a folder with tables below it, or the folder or file of one table.
///
/// # Errors
/// If there is no table, or one is invalid.
pub(crate) fn find(path: &Path) -> Result<Vec<Table>, String> {
    if path.is_file() {
        return Ok(vec![Table::read(path)?]);
    }
    let own = path.join(FILE);
    if own.is_file() {
        return Ok(vec![Table::read(&own)?]);
    }
    let entries = fs::read_dir(path).map_err(|error| {
        format!(
            "{}: {error}; name a folder with {FILE} or with folders of that kind, such as held-out in a checkout",
            path.display()
        )
    })?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path().join(FILE)))
        .filter(|file| file.is_file())
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no folder in it has a {FILE}", path.display()));
    }
    files.iter().map(|file| Table::read(file)).collect()
}

/// Returns a machine or workload that a file names: built in, or a path from the file's folder.
fn beside(file: &Path, name: &str) -> String {
    let folder = file.parent().unwrap_or(Path::new(""));
    folder.join(name).display().to_string()
}

impl Table {
    /// Reads a table and the files that it names.
    ///
    /// # Errors
    /// If a file can't be read or is invalid, a policy or parameter doesn't exist, or a figure has no published value.
    pub(crate) fn read(file: &Path) -> Result<Table, String> {
        let wrong = |what: &dyn Display| format!("{}: {what}", file.display());
        let text = machines::read(file).map_err(|error| wrong(&error))?;
        let written: TableFile = toml::from_str(&text).map_err(|error| {
            let before = &text[..error.span().map_or(0, |span| span.start)];
            let line = 1 + before.matches('\n').count();
            wrong(&format!("line {line}: {}", error.message()))
        })?;
        let workload = match Workload::from_name(&written.workload) {
            Some(workload) => workload,
            None => {
                workloads::find(&beside(file, &written.workload)).map_err(|error| wrong(&error))?
            }
        };
        let figures = written.figure.iter().map(|figure| {
            let of = |what: String| wrong(&format!("{}: {what}", figure.case));
            let published = figure.published().map_err(of)?;
            let side = |after| written.side(file, workload, figure, after).map_err(of);
            Ok(Figure {
                case: figure.case.clone(),
                reads: figure.reads,
                compare: figure.compare,
                published,
                sides: [side(false)?, side(true)?],
            })
        });
        let figures = figures.collect::<Result<Vec<_>, String>>()?;
        let named = written.calibrate.as_deref();
        let mut fitted = Vec::new();
        let default = [Parameter::Scale, Parameter::LockScale].map(Parameter::name);
        for name in named.unwrap_or(&default) {
            match Parameter::from_name(name) {
                Some(parameter) if parameter.of_kernel() => fitted.push(parameter),
                _ => {
                    let names: Vec<_> = KernelFile::parameters().map(|one| one.name()).collect();
                    let near = hint(name, names.iter().map(String::as_str));
                    return Err(wrong(&format_args!("calibrate: no path cost `{name}`{near}")));
                }
            }
        }
        if !(1..=calibrate::MOST).contains(&fitted.len()) {
            let most = calibrate::MOST;
            return Err(wrong(&format_args!("calibrate: name one path cost, or {most}")));
        }
        if figures.is_empty() {
            return Err(wrong(&"no [[figure]]: a table has at least one"));
        }
        Ok(Table {
            fitted,
            figures,
            name: written.name,
            title: written.title,
            source: written.source,
            cpu_time: written.cpu_seconds.map(|seconds| Duration::from_secs(seconds.into())),
            seen: written.seen,
            labels: [written.before.label, written.after.label],
        })
    }

    /// Returns the same table with another kernel on both sides.
    #[must_use]
    pub(crate) fn with_kernel(self, kernel: &KernelFile) -> Table {
        self.with_jobs(|job| Job { machine: job.machine.with_kernel(kernel).into(), ..job.clone() })
    }

    fn with_jobs(mut self, change: impl Fn(&Job) -> Job) -> Table {
        let sides = self.figures.iter_mut().flat_map(|figure| &mut figure.sides);
        for job in sides.flatten() {
            *job = change(job);
        }
        self
    }

    /// Fits the table's path costs to its figures from before the change.
    ///
    /// Returns the table with these costs, and their factors. There are no factors if no figure from before is
    /// published in a unit that can be compared.
    pub fn calibrated(&self, results: &mut Results) -> (Table, Vec<Factor>) {
        let after: HashSet<String> =
            (self.figures.iter()).map(|figure| figure.sides[1][0].key()).collect();
        let row = |figure: &Figure| {
            let ([before, _], unit) = figure.published.values.clone()?;
            let job = figure.sides[0][0].clone();
            // A figure from before that is an after-figure of another row would reveal that one.
            if after.contains(&job.key()) {
                return None;
            }
            Some(BeforeRow { job, reads: figure.reads, published: before, unit })
        };
        let before = BeforeSide(self.figures.iter().filter_map(row).collect());
        let factors = calibrate::fit(&before, &self.fitted, results);
        let table = self.clone().with_jobs(|job| calibrate::changed(job, &factors));
        (table, factors)
    }

    /// Returns the table's runs.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        let sides = self.figures.iter().flat_map(|figure| &figure.sides);
        sides.flatten().cloned()
    }

    /// Compares the table's figures with the results of its runs.
    pub fn rows(&self, results: &Results) -> Vec<Row> {
        let row = |figure: &Figure| figure.row(&self.name, results);
        self.figures.iter().map(row).collect()
    }

    /// Compares the table's figures with the results of its runs and of the calibrated table's.
    pub fn rows_with(&self, calibrated: &Table, results: &Results) -> Vec<Row> {
        let with = |(row, other): (Row, Row)| Row {
            calibrated: Some(other.plain()),
            violations: row.violations + other.violations,
            reason: row.reason.or(other.reason),
            ..row
        };
        let pairs = self.rows(results).into_iter().zip(calibrated.rows(results));
        pairs.map(with).collect()
    }
}

impl TableFile {
    /// Returns the runs of one side of a figure.
    fn side(
        &self,
        file: &Path,
        mut workload: Workload,
        figure: &FileFigure,
        after: bool,
    ) -> Result<Vec<Job>, String> {
        let (side, own_machine, own_cpus, own_parameters) = match after {
            false => (&self.before, &None, None, &figure.before_parameters),
            true => {
                (&self.after, &figure.after_machine, figure.after_cpus, &figure.after_parameters)
            }
        };
        let name = [own_machine, &figure.machine, &side.machine, &self.machine]
            .into_iter()
            .find_map(|machine| machine.as_deref())
            .ok_or("no machine: write `machine` here, in [before] and [after], or for all")?;
        let (machine, variant) = match built_in_machine(name) {
            Some(machine) => (machine, String::new()),
            None => {
                let path = beside(file, name);
                (machines::find(&path)?, path)
            }
        };
        let policy = policies::find(&side.policy)
            .map_err(|wrong| format!("policy {}: {wrong}", side.policy))?;
        let parameters = [&self.parameters, &figure.parameters, &side.parameters, own_parameters];
        for pair in parameters.into_iter().flatten() {
            workload.set(pair).map_err(|wrong| format!("parameter {pair}: {wrong}"))?;
        }
        let cpus = match (own_cpus.or(figure.cpus), side.cpus) {
            (Some(_), Some(_)) => {
                return Err("cpus is set both here and in [before] or [after]".into());
            }
            (Some(cpus), None) | (None, Some(cpus)) => usize::from(cpus),
            (None, None) => workload.cpus(),
        };
        let kernel = self.kernel.as_deref().unwrap_or(kernels::LINUX);
        let kernel = match built_in_kernel(kernel) {
            Some(kernel) => kernel,
            None => kernels::find(&beside(file, kernel))?,
        };
        let machine = Arc::new(machine.with_kernel(&kernel));
        let job = |seed| Job {
            seed,
            variant: variant.clone(),
            ..Job::new(machine.clone(), workload, policy, cpus)
        };
        Ok((SEED..SEED + SEEDS).map(job).collect())
    }
}

impl FileFigure {
    fn published(&self) -> Result<PublishedPair, String> {
        let good = |value: f64| value.is_finite() && value > 0.0;
        match (self.published, &self.unit, self.change) {
            (Some([before, after]), Some(unit), None) if good(before) && good(after) => {
                Ok(PublishedPair {
                    values: Some(([before, after], unit.clone())),
                    ratio: after / before,
                })
            }
            (None, None, Some(change))
                if good(1.0 + change / 100.0) && self.compare == Comparison::Ratio =>
            {
                Ok(PublishedPair {
                    values: None,
                    ratio: 1.0 + change / 100.0,
                })
            }
            _ => Err(
                "expected either `published = [before, after]`, both above 0, with their `unit`, or `change` \
                 in percent, above -100; a difference is compared only with the former"
                    .into(),
            ),
        }
    }
}

impl Figure {
    /// Returns the median over the seeds of a side's figure.
    fn value(&self, side: &[Job], results: &Results) -> Result<f64, String> {
        let one = |job: &Job| Ok(self.reads.of(results.get(job)?));
        let mut values = side.iter().map(one).collect::<Result<Vec<f64>, &str>>()?;
        median(&mut values)
            .filter(|value| value.is_finite())
            .ok_or_else(|| "the figure is not a number".into())
    }

    /// Returns whether a predicted ratio is on the same side of 1 as the published one, or one of them is 1.
    fn same_sign(&self, ratio: f64) -> bool {
        (ratio - 1.0) * (self.published.ratio - 1.0) >= 0.0
    }

    fn row(&self, table: &str, results: &Results) -> Row {
        let [before, after] = (self.sides.each_ref()).map(|side| self.value(side, results));
        let model = match (&before, &after) {
            (Ok(before), Ok(after)) if *before > 0.0 => Some([*before, *after]),
            _ => None,
        };
        let ratio = model.map(|model| Comparison::Ratio.of(model));
        let off =
            model.map(|model| self.compare.of(model) / self.published.compared(self.compare) - 1.0);
        let values = self.published.values.as_ref();
        let nothing = || "nothing was counted before the change".to_owned();
        Row {
            table: table.into(),
            case: self.case.clone(),
            unit: values.map(|(_, unit)| unit.clone()),
            published_before: values.map(|(values, _)| values[0]),
            published_after: values.map(|(values, _)| values[1]),
            model_before: before.as_ref().ok().copied(),
            model_after: after.as_ref().ok().copied(),
            change_published: self.published.ratio - 1.0,
            change_predicted: ratio.map(|ratio| ratio - 1.0),
            off,
            verdict: match (off, ratio) {
                (Some(off), Some(ratio)) if near(off) && self.same_sign(ratio) => Verdict::Hit,
                (Some(_), _) => Verdict::Miss,
                (None, _) => Verdict::Failed,
            },
            calibrated: None,
            violations: results.violations_of(self.sides.iter().flatten()),
            reason: match (off, before.err().or(after.err())) {
                (Some(_), _) => None,
                (None, reason) => Some(reason.unwrap_or_else(nothing)),
            },
        }
    }
}

/// Returns how well the predicted ratios of after to before follow the published ratios.
pub(crate) fn skill<'r>(
    rows: impl IntoIterator<Item = &'r Row>,
    of: fn(&Row) -> Prediction,
) -> Skill {
    let pair = |row: &Row| Some((1.0 + row.change_published, 1.0 + of(row).change_predicted?));
    Skill::of(&rows.into_iter().filter_map(pair).collect::<Vec<_>>())
}

/// Counts the predictions within the tolerance.
pub(crate) fn hits<'r>(
    rows: impl IntoIterator<Item = &'r Row>,
    of: fn(&Row) -> Prediction,
) -> usize {
    rows.into_iter().filter(|row| of(row).verdict == Verdict::Hit).count()
}

/// Returns whether a relative error is small enough. Too small by a factor counts like too large by it.
fn near(off: f64) -> bool {
    let factor = 1.0 + off;
    factor > 0.0 && factor.max(1.0 / factor) <= 1.0 + NEAR
}

#[cfg(test)]
mod tests;

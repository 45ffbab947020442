//! The adversary's search.
//!
//! A case has the same result on every host, so we use it as the unit of work for a core or another machine. A part of
//! the cases is a [`Shard`] of their list, like a part of a sweep's grid.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use quell_adversary::cases::{Choice, Effort, row};
use quell_adversary::{Case, Exploration, Session, explore};
use quell_model::cpu_time;
use quell_model::machines;
use quell_model::sweep::Shard;
use rayon::prelude::*;
use serde_json::json;

use crate::requests::{policy, shard, value_error};
use crate::watched::{Listeners, watched};

/// A search request.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct SearchRequest {
    names: Vec<String>,
    /// The texts of files that aren't on this host, by name.
    files: HashMap<String, String>,
    machines: Vec<String>,
    policies: Vec<String>,
    parameters: Vec<String>,
    cpus: Option<usize>,
}

impl SearchRequest {
    fn cases(&self) -> PyResult<Vec<Case<'static>>> {
        let policies = self.policies.iter().map(|text| policy(text));
        let choice = Choice {
            names: &self.names,
            parameters: &self.parameters,
            cpus: self.cpus,
            machines: &self.machines,
            policies: &policies.collect::<PyResult<Vec<_>>>()?,
        };
        let read = |path: &Path| match path.to_str().and_then(|name| self.files.get(name)) {
            Some(text) => Ok(text.clone()),
            None => machines::read(path),
        };
        let cases = choice.cases(&read).map_err(value_error)?;
        let mistakes = cases.iter().filter_map(|case| case.mistake);
        match { mistakes }.find(|mistake| mistake.is_of_source()) {
            Some(mistake) => Err(value_error(format_args!(
                "mistake {}: only the command `quell explore` can make it, in a copy of the source",
                mistake.name()
            ))),
            None => Ok(cases),
        }
    }
}

/// Returns the number of cases.
#[pyfunction]
pub fn explore_size(asked: SearchRequest) -> PyResult<usize> {
    Ok(asked.cases()?.len())
}

/// The limit of a case's search: a unit (`schedules`, `minutes` or `exhaustive`) and its number.
type SearchLimit = (String, f64);

fn effort((kind, amount): SearchLimit) -> PyResult<Effort> {
    Ok(match kind.as_str() {
        "schedules" => Effort::Schedules(amount as u64),
        "minutes" => Effort::Minutes(amount),
        "exhaustive" => Effort::Exhaustive(amount as u64),
        _ => return Err(value_error(format_args!("{kind}: no effort"))),
    })
}

/// The result of a case: the JSON of its row in `quell explore --json`, the schedules, and the processor time in
/// seconds.
type Row = (String, u64, Option<f64>);

/// Searches a part of the cases. Returns a row for each, in order.
#[pyfunction]
#[pyo3(signature = (asked, searched, seed, depth, part, threads, progress, found))]
#[expect(clippy::too_many_arguments, reason = "python/quell names each of them")]
pub fn explore_json(
    py: Python<'_>,
    asked: SearchRequest,
    searched: SearchLimit,
    seed: u64,
    depth: u32,
    part: &str,
    threads: Option<usize>,
    progress: Option<&Bound<'_, PyAny>>,
    found: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Row>> {
    let cases = asked.cases()?;
    let (effort, part): (Effort, Shard) = (effort(searched)?, shard(part)?);
    let all = cases.len();
    let mine: Vec<_> = part.of(cases).collect();
    let listeners = Listeners { progress, found };
    let rows = watched(py, listeners, threads, mine.len(), |work| {
        let search = |&case: &Case<'static>| {
            if work.stop.load(Relaxed) {
                return None;
            }
            let exploration = Exploration {
                case,
                budget: effort.budget(all, rayon::current_num_threads()),
                seed,
                depth,
            };
            let go_on = |_, _: &_| !work.stop.load(Relaxed);
            let (report, spent) =
                cpu_time::spent_on(|| explore(&mut Session::new(case), &exploration, go_on));
            let mut row = json!(row(&case, &report));
            row["schedules_per_cpu_second"] = cpu_time::rate(report.schedules, spent).into();
            let text = row.to_string();
            work.found(&text);
            Some((text, report.schedules, spent.map(|time| time.as_secs_f64())))
        };
        let rows = mine.par_iter().with_max_len(1).filter_map(search);
        rows.collect()
    })?;
    Ok(rows)
}

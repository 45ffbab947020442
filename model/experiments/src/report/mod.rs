//! Builds the report: one HTML file without scripts or external resources, in a light and a dark theme.

mod tables;
mod timeline;

use std::sync::Arc;

use maud::{Markup, html};
use quell::Mechanism;
use quell_clock::file::Unit;
use quell_clock::{Parameter, built_in};
use quell_conformance::parse_policy;

use crate::charts::{self, Bar, Chart, Group, VerticalScale};
use crate::guards;
use crate::jobs::{Job, Results};
use crate::reproduce::{Experiment, Row, hits, single_policies, skill};
use crate::scale::{Point, lines, relative};
use crate::workloads;
use timeline::Episode;

/// The CPU counts of the plot of cost against CPUs.
const SCALE: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// The policies of the same plot, and of the timelines.
const POLICIES: [&str; 4] = ["baseline", "S4,asynchronous=no,inline=no", "S4", "all"];
/// The number of CPUs in a timeline.
const TIMELINE_CPUS: usize = 4;

/// Returns the runs that the report needs in addition to those of the headlines' table.
pub fn jobs(plans: &[Experiment]) -> Vec<Job> {
    let alone = plans.iter().flat_map(|plan| {
        let single = single_policies().map(|(_, policy)| policy);
        let all = single.chain(["baseline", "all"]);
        all.map(|policy| plan.compared(policy))
    });
    let varied = plans.iter().flat_map(|plan| {
        let guesses = guesses(plan).into_iter();
        let changes = guesses.flat_map(|parameter| FACTORS.map(|by| Some((parameter, by))));
        changes
            .chain([None])
            .flat_map(|change| [plan.before(), plan.after()].map(|job| plan.varied(job, change)))
    });
    let scaling = POLICIES.into_iter().flat_map(|policy| SCALE.map(|cpus| scaling(policy, cpus)));
    let shootdowns = POLICIES.map(shootdown);
    alone.chain(scaling).chain(shootdowns).chain(varied).collect()
}

/// Builds the report from the results of the headlines' runs and of [`jobs`].
pub fn build(
    plans: &[Experiment],
    rows: &[Row],
    guards: &[guards::Row],
    results: &Results,
) -> Markup {
    let hits = hits(&rows.iter().collect::<Vec<_>>());
    let content = html! {
        h1 { "Five ways to keep translations coherent for less" }
        p {
            "When a kernel unmaps a page, every CPU that may have cached its translation must drop it. "
            "Five published kernel changes make this cheaper, or the zeroing of the next page. "
            "Here one engine does all five, on a machine in software. Its costs come from figures published "
            em { "before" } " each change. Every access of every run is checked against the contract."
        }
        div .cards {
            div .card { b { (hits) " of " (rows.len()) } "changes predicted within the tolerance in the table" }
            div .card { b { (results.violations()) } "breaches of the contract, in " (results.outcomes().count()) " runs" }
        }
        p { (skill(rows).words()) }
        (tables::legend())
        (tables::figures(rows))
        (before_after(rows))
        @if !guards.is_empty() { (tables::what_guards_cost(guards)) }
        (scale(results))
        (timelines(results))
        (tables::mechanisms(plans, rows, results))
        (sensitivity(plans, results))
        (limits())
    };
    charts::page("quell: five ways to keep translations coherent for less", &content)
}

/// Returns the guessed parameters of the plan's machine that can be changed by half: costs and rates. Half a TLB or
/// half a cache may have no valid geometry.
fn guesses(plan: &Experiment) -> Vec<Parameter> {
    let machine = plan.before().machine;
    machine
        .assumed()
        .filter(|parameter| {
            matches!(parameter.description().unit, Unit::Time | Unit::Rate | Unit::Factor)
        })
        .collect()
}

/// Factors by which each guess is varied.
const FACTORS: [f64; 2] = [0.5, 1.5];

/// Returns a run of the plot of cost against CPUs.
fn scaling(policy: &str, cpus: usize) -> Job {
    dontneed(policy, cpus, (4096 / cpus).clamp(16, 256), 0)
}

/// Returns the run of a timeline.
fn shootdown(policy: &str) -> Job {
    dontneed(policy, TIMELINE_CPUS, 32, 20_000)
}

fn dontneed(policy: &str, cpus: usize, iterations: usize, trace: usize) -> Job {
    let workload = workloads::known("dontneed", [format!("iterations={iterations}")]);
    let policy = parse_policy(policy).expect("a policy");
    let machine = Arc::new(built_in("haswell-server").expect("a machine"));
    Job { trace, ..Job::new(machine, workload, policy, cpus) }
}

fn before_after(rows: &[Row]) -> Markup {
    let mut mechanisms: Vec<&str> = rows.iter().map(|row| row.mechanism).collect();
    mechanisms.sort_unstable();
    mechanisms.dedup();
    html! {
        h2 { "Before and after" }
        p {
            "All bars of an experiment have the same scale. If the experiment is smaller than the published one, "
            "each side is in percent of its own figure before the change."
        }
        (charts::key([("published", "--before"), ("model", "--after"), ("model, everything on", "--all")]))
        @for mechanism in mechanisms {
            h3 { (mechanism) ": " (title(mechanism)) }
            figure { (charts::bars(&rows.iter().filter(|row| row.mechanism == mechanism).map(group).collect::<Vec<_>>())) }
        }
    }
}

fn title(mechanism: &str) -> &'static str {
    Mechanism::ALL.into_iter().find(|one| one.name() == mechanism).map_or("", Mechanism::title)
}

fn group(row: &Row) -> Group {
    // In percent of the figure before the change, or unchanged.
    let of = |value: f64, before: f64| match row.scaled {
        true => 100.0 * value / before,
        false => value,
    };
    let published = |value| Some(of(value, row.published_before));
    let model = |value: Option<f64>| Some(of(value?, row.model_before?));
    let values = [
        ("published before", "--before", published(row.published_before)),
        ("published after", "--before", published(row.published_after)),
        ("model before", "--after", model(row.model_before)),
        ("model after", "--after", model(row.model_after)),
        ("everything on", "--all", model(row.all_on)),
    ];
    let known = values.iter().filter_map(|(_, _, value)| *value);
    let scale = known.fold(f64::MIN_POSITIVE, f64::max);
    Group {
        title: format!("{}, {}", row.experiment, row.case),
        bars: values
            .into_iter()
            .filter_map(|(label, color, value)| Some(Bar { label, value: value?, color, scale }))
            .collect(),
        note: match row.scaled {
            true => "in % of before".to_owned(),
            false => row.metric.to_owned(),
        },
    }
}

fn scale(results: &Results) -> Markup {
    let value = |policy, cpus| Some(results.get(&scaling(policy, cpus)).ok()?.measure.value);
    let points =
        SCALE.map(|cpus| Point { cpus, values: POLICIES.map(|policy| value(policy, cpus)).into() });
    let points = relative(&points);
    let lines = lines(&POLICIES.map(short), &points);
    let chart = Chart {
        title: "",
        lines: &lines,
        rings: &[],
        right: "CPUs that run the process",
        power: |cpus| format!("{cpus}"),
        up: "time, as a ratio to the baseline",
        upward: VerticalScale::Evenly,
    };
    html! {
        h2 { "Gain by number of CPUs" }
        figure {
            (chart.draw())
            figcaption {
                "The time of one MADV_DONTNEED and touch, as a ratio to that of the baseline: below 1 is faster. One CPU "
                "drops and touches a page. All others spin in the same process, so each must flush. Machine: the Haswell server, "
                "extended to 1024 CPUs with the distances of its machine file."
            }
        }
    }
}

/// Returns a policy's name in a plot.
fn short(policy: &str) -> &str {
    match policy {
        "S4,asynchronous=no,inline=no" => "S4, concurrent only",
        other => other,
    }
}

fn timelines(results: &Results) -> Markup {
    let episode = |policy: &'static str| {
        let outcome = results.get(&shootdown(policy)).ok()?;
        Some((policy, Episode::find(outcome.run.trace.events(), "discard")?))
    };
    let episodes: Vec<(&str, Episode)> = POLICIES.into_iter().filter_map(episode).collect();
    let span = episodes.iter().map(|(_, episode)| episode.end - episode.start).max().unwrap_or(1);
    html! {
        h2 { "One shootdown" }
        p { "One " code { "MADV_DONTNEED" } " on CPU 0 of 4, under each policy, on the same scale. At the dashed line it returns to the program." }
        (charts::key(timeline::KEY))
        @for (policy, episode) in &episodes {
            figure {
                (episode.draw(TIMELINE_CPUS, span))
                figcaption { (short(policy)) ": " ((episode.returned - episode.start) / 1000) " ns" }
            }
        }
    }
}

/// The number of guesses shown for each headline.
const SHOWN: usize = 6;

fn sensitivity(plans: &[Experiment], results: &Results) -> Markup {
    html! {
        h2 { "Sensitivity to guesses" }
        p {
            "Parameters of the machine files without a source are marked as assumed. Here each of them is multiplied by 0.5 "
            "and by 1.5, in a shorter run of the experiment. The bars show by how many percentage points the predicted change "
            "moves, for the parameters that move it most."
        }
        (charts::key([("times 0.5", "--c1"), ("times 1.5", "--c2")]))
        @for plan in plans {
            h3 { (plan.headline.mechanism.name()) " " (plan.headline.experiment) ", " (plan.headline.case)
                span .soft { " on " (plan.headline.machine) ", " (plan.headline.metric) } }
            @let rows = moves(plan, results);
            @if rows.is_empty() {
                p .soft { "No guess of this machine moves the change by 0.1 points." }
            } @else {
                figure { (charts::tornado(&rows)) }
            }
        }
    }
}

/// Returns the points by which the predicted change moves with each guess: name, halved, half more.
fn moves(plan: &Experiment, results: &Results) -> Vec<(String, f64, f64)> {
    let change = |change: Option<(Parameter, f64)>| {
        plan.change(
            results,
            &plan.varied(plan.before(), change),
            &plan.varied(plan.after(), change),
        )
    };
    let Some(reference) = change(None) else {
        return Vec::new();
    };
    let mut rows: Vec<(String, f64, f64)> = guesses(plan)
        .into_iter()
        .filter_map(|parameter| {
            let low = change(Some((parameter, 0.5)))? - reference;
            let high = change(Some((parameter, 1.5))).map_or(0.0, |high| high - reference);
            (low.abs().max(high.abs()) >= 0.1).then(|| (parameter.name(), low, high))
        })
        .collect();
    rows.sort_by(|a, b| b.1.abs().max(b.2.abs()).total_cmp(&a.1.abs().max(a.2.abs())));
    rows.truncate(SHOWN);
    rows
}

fn limits() -> Markup {
    html! {
        h2 { "Not modelled" }
        ul {
            li { "Instructions: the kernel's own computation takes the fixed times of the machine file, calibrated on the figures before each change." }
            li { "Data caches of programs, instruction fetches and speculation; a mechanism's effect on cache contents is modelled only by figures of the machine file." }
            li { "Memory is scaled down where the published runs used tens of gigabytes. CPUs, threads and processes are not." }
        }
        p .soft { "quell list parameters --machine NAME prints every value of a machine with its source." }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that bars of model and published figures have one scale; they once had different ones.
    #[test]
    fn bars_of_an_experiment_have_one_scale() {
        let nothing = Results::default();
        for plan in Experiment::all(None) {
            let row = Row {
                model_before: Some(32.9),
                model_after: Some(25.8),
                all_on: Some(25.8),
                ..plan.row(&nothing)
            };
            let group = group(&row);
            let scale = group.bars[0].scale;
            assert!(group.bars.iter().all(|bar| bar.scale == scale), "{}", group.title);
            assert!(group.bars.iter().all(|bar| bar.value <= scale), "{}", group.title);
            let before = |bar: &&Bar| bar.label.ends_with(" before");
            let befores: Vec<f64> = group.bars.iter().filter(before).map(|bar| bar.value).collect();
            match row.scaled {
                true => assert_eq!(befores, [100.0, 100.0], "{}", group.title),
                false => assert_eq!(befores, [row.published_before, 32.9], "{}", group.title),
            }
        }
    }
}

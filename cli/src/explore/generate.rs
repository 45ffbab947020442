//! `quell explore --generate`: the adversary writes its own programs.
//!
//! [`quell_adversary::generate`] contains the search itself; this module has its budget and its output.

use super::args::ExploreArgs;
use super::output::Outcome;
use super::survival;
use super::work::end_on_signals;
use quell_adversary::Mistake;
use quell_adversary::generate::campaign::KilledMutant;
use quell_adversary::generate::{Campaign, Corpus, shrink};
use quell_boot::files;
use quell_model::output::{say, write};
use quell_model::progress::{self, ProgressLine};
use quell_model::table::{Table, number, words};
use quell_model::usage::usage;
use quell_model::{cpu_time, machines};
use quell_vm::contract::timeline;
use quell_vm::sim::heap::Heap;
use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The length of a search by default, in minutes.
const MINUTES: f64 = 1.0;

/// The number of points that we print of a survival curve, at most, apart from the last one.
const POINTS: usize = 24;

/// The number of lines that we print of a failing run.
const LINES: usize = 60;

pub fn run(args: &ExploreArgs, sought: &[Mistake], jobs: usize) -> anyhow::Result<ExitCode> {
    let opened = args
        .corpus
        .as_deref()
        .map(|folder| Corpus::open(folder, &machines::read))
        .transpose()
        .map_err(|wrong| usage(format_args!("--corpus {wrong}")))?;
    let (mut corpus, programs) = opened.unzip();
    let began = Instant::now();
    let enough = Duration::from_secs_f64(args.minutes.unwrap_or(MINUTES).max(0.0) * 60.0);
    anyhow::ensure!(Heap::new().is_some(), "out of memory: raise the limit (`ulimit -v`)");
    let mut campaign = Campaign::new(args.seed, jobs, programs.unwrap_or_default(), sought);
    end_on_signals(&campaign.stop)?;
    let seeks = args.mutants;
    let share = |campaign: &Campaign| match args.schedules {
        Some(most) => campaign.spent.schedules as f64 / most.max(1) as f64,
        None => began.elapsed().div_duration_f64(enough),
    };
    let far = Mutex::new(ProgressLine::from(0.0));
    let tell = |campaign: &Campaign| {
        let rate = campaign.spent.schedules as f64 / began.elapsed().as_secs_f64();
        let (_, pairs) = campaign.seen();
        let mut said = format!(
            "{} programs, {} schedules, {rate:.0}/s, {pairs} pairs, {} violations",
            campaign.spent.programs,
            campaign.spent.schedules,
            campaign.finds.len(),
        );
        if seeks {
            said += &format!(", {} mutants alive", campaign.alive.len());
        }
        *far.lock().unwrap_or_else(PoisonError::into_inner) =
            ProgressLine { share: share(campaign).min(1.0), said };
    };
    let look = || far.lock().unwrap_or_else(PoisonError::into_inner).clone();
    progress::show("searching", look, || -> anyhow::Result<()> {
        while !campaign.is_over(seeks) && share(&campaign) < 1.0 && !campaign.stop.load(Relaxed) {
            campaign.go_round();
            if let Some(corpus) = &mut corpus {
                corpus.keep(&campaign, |place, text| {
                    files::replace(place, text.as_bytes()).map(drop)
                })?;
            }
            tell(&campaign);
        }
        Ok(())
    })?;
    let rate = campaign.spent.schedules as f64 / began.elapsed().as_secs_f64();
    if args.json {
        print_json(&campaign, seeks, rate);
    } else if args.markdown {
        survival::print(&campaign);
    } else {
        print_people(&campaign, seeks, began.elapsed());
    }
    let violated = !campaign.finds.is_empty();
    let found = match violated || (seeks && !campaign.alive.is_empty()) {
        true => Outcome::Wrong,
        false => Outcome::Holds,
    };
    Ok(super::ended(&campaign.stop, found, violated))
}

fn print_json(campaign: &Campaign, seeks: bool, rate: f64) {
    let violations: Vec<_> = campaign
        .finds
        .iter()
        .map(|find| {
            json!({
                "clause": find.violation.clause.to_string(),
                "program": find.recorded.to_toml(),
                "replay": find.recorded.to_line(),
            })
        })
        .collect();
    let spent = cpu_time::of_process();
    let all = if seeks {
        let killed = campaign.killed.iter().map(|killed| {
            json!({
                "name": killed.mutant.name(),
                "killed": true,
                "programs": killed.programs,
                "schedules": killed.schedules,
            })
        });
        let alive = campaign.alive.iter().map(|mutant| {
            json!({
                "name": mutant.name(),
                "killed": false,
                "programs": campaign.spent.programs,
                "schedules": campaign.spent.schedules,
            })
        });
        json!({ "mutants": killed.chain(alive).collect::<Vec<_>>(), "violations": violations })
    } else {
        let (transitions, pairs) = campaign.seen();
        json!({
            "programs": campaign.spent.programs,
            "schedules": campaign.spent.schedules,
            "schedules_per_second": rate.round(),
            "schedules_per_cpu_second": cpu_time::rate(campaign.spent.schedules, spent),
            "violations": violations,
            "transitions": transitions,
            "pairs": pairs,
        })
    };
    quell_model::output::object(all);
}

fn print_people(campaign: &Campaign, seeks: bool, elapsed: Duration) {
    let spent = campaign.spent;
    let (transitions, pairs) = campaign.seen();
    if seeks {
        let mut rows = Table::new([
            words("mutant"),
            words("clause"),
            words("machine"),
            number("operations"),
            number("programs"),
            number("schedules"),
        ]);
        for killed in &campaign.killed {
            rows.row(row(killed));
        }
        say!("{rows}");
        curve(campaign);
        for mutant in &campaign.alive {
            say!(
                "{} survived, and {} kept programs reach it: {}",
                mutant.name(),
                campaign.reaching(*mutant),
                mutant.account()
            );
        }
        say!(
            "{} of {} mutants killed",
            campaign.killed.len(),
            campaign.killed.len() + campaign.alive.len()
        );
    }
    say!(
        "{} programs, {} schedules in {:.1} s, {:.0} a second; {transitions} transitions, {pairs} pairs; {} \
         violations",
        spent.programs,
        spent.schedules,
        elapsed.as_secs_f64(),
        spent.schedules as f64 / elapsed.as_secs_f64(),
        campaign.finds.len(),
    );
    for find in &campaign.finds {
        let (_, lines) = shrink::replay_lines(&find.recorded);
        say!("\n{}\n", find.violation);
        write(&timeline::columns(&lines, find.recorded.program.cpus(), LINES));
        say!("\n{}", find.recorded.to_toml());
        say!("quell explore --replay '{}'", find.recorded.to_line());
    }
}

fn row(killed: &KilledMutant) -> [String; 6] {
    let name = killed.mutant.name().to_string();
    let found = killed.find.as_ref();
    let of = |what: &dyn Fn(&quell_adversary::generate::Finding) -> String| {
        found.map_or_else(String::new, what)
    };
    [
        name,
        match found {
            Some(find) => find.violation.clause.to_string(),
            None => "promises of zeroing".into(),
        },
        of(&|find| find.recorded.kind.name.to_string()),
        of(&|find| find.recorded.program.operations().to_string()),
        killed.programs.to_string(),
        killed.schedules.to_string(),
    ]
}

fn curve(campaign: &Campaign) {
    let points = campaign.survival();
    let all = campaign.alive.len() + campaign.killed.len();
    let step = points.len().div_ceil(POINTS).max(1);
    say!("schedules    alive");
    let last = points.len().saturating_sub(1);
    let shown =
        points.iter().enumerate().filter(|(number, _)| number % step == 0 || *number == last);
    for (_, (schedules, alive)) in shown {
        let width = 50 * alive / all.max(1);
        say!("{schedules:>9} {alive:>8} {}", "█".repeat(width));
    }
}

//! Decides whether a mutant of the engine is killed by the requested cases of the adversary.
//!
//! `cargo xtask mutate` builds this program once, over the engine that contains all mutants, and runs it once for each
//! mutant. Over the unchanged engine it finds nothing.
//!
//! ```text
//! quell-judge list                 the cases, one a line: a number, how costly it is, whether all mechanisms are on
//! quell-judge random N             N schedules of each case whose number is on the standard input
//! quell-judge reach N              the same, and every transition that the case demands must fire
//! quell-judge exhaustive N         every schedule of these cases, but at most N
//! quell-judge generate PART SEED N at least N schedules of generated programs: over the manager if PART is `manager`,
//!                                  mostly over the engine if it is `engine`
//! quell-judge survive SEED N MOST  how many of N mutants live after 10^5, 10^6 … MOST schedules of generated programs
//! quell-judge kill NAME            whether a scenario kills the mutant of this name
//! ```
//!
//! The last two commands need the mutants that are written by hand, so they run in the copy that contains these (`cargo
//! xtask copy`).
//!
//! At the first case that breaks the contract, it prints the case and ends with exit code 1.

use quell::Policy;
use quell_adversary::explore::{POLICIES, search};
use quell_adversary::generate::{Campaign, WorkDone};
use quell_adversary::mutants;
use quell_adversary::scenario::Script;
use quell_adversary::schedule::Rng;
use quell_adversary::{Budget, Case, Exploration, MachineKind, Mistake, Scenario, Session};
use quell_conformance::PolicyText;
use std::io::{BufRead, stdin};
use std::process::ExitCode;

/// With this allocator, searches can read the state of programs over the memory manager.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

/// Returns all cases with every mechanism on. For other policies, it contains each scenario on each machine under one
/// or two of them.
fn cases() -> Vec<Case<'static>> {
    let mut cases = Vec::new();
    for scenario in Scenario::ALL {
        for (number, kind) in
            MachineKind::ALL.iter().filter(|kind| scenario.runs_on(kind)).enumerate()
        {
            for (other, policy) in POLICIES.into_iter().enumerate() {
                if policy == Policy::ALL || number % 4 == other % 4 {
                    cases.push(Case { scenario, kind: *kind, policy, mistake: None });
                }
            }
        }
    }
    cases
}

fn named(case: &Case<'_>) -> String {
    format!("{} on {} under {}", case.scenario.name, case.kind.name, PolicyText(case.policy))
}

/// Returns whether these cases hold. Prints the first that doesn't.
fn hold(numbers: impl Iterator<Item = usize>, budget: Budget, reach: bool) -> bool {
    let cases = cases();
    for number in numbers {
        let case = cases[number];
        let exploration = Exploration { case, budget, seed: 1, depth: 4 };
        let (report, violation) = search(&mut Session::new(case), &exploration, |_, _| true);
        if let Some(violation) = violation {
            println!("{}: {violation}", named(&case));
            return false;
        }
        if reach && !report.missed.is_empty() {
            println!("{}: never reached {:?}", named(&case), report.missed);
            return false;
        }
    }
    true
}

/// Runs schedules of generated programs, at least this many. Returns whether they hold.
fn generated_hold(over_manager: (u64, u64), seed: u64, schedules: u64) -> bool {
    let mut campaign = Campaign::new(seed, 1, Vec::new(), &[]);
    (campaign.hasty, campaign.over_manager) = (true, over_manager);
    while campaign.spent.schedules < schedules {
        campaign.go_round();
        if let Some(find) = campaign.finds.first() {
            let spent = campaign.spent.schedules;
            println!("a generated program after {spent} schedules: {}", find.violation);
            println!("{}", find.recorded.to_line());
            return false;
        }
    }
    let WorkDone { programs, schedules, moments } = campaign.spent;
    println!("{schedules} schedules of {programs} programs hold, with {moments} moments");
    true
}

/// Draws mutants. Prints how many are alive after certain numbers of schedules of generated programs.
fn survive(seed: u64, count: usize, most: u64) -> bool {
    let mut all: Vec<Mistake> = Mistake::all().filter(|one| one.is_of_source()).collect();
    let mut rng = Rng::new(seed);
    let drawn: Vec<Mistake> = (0..count.min(all.len()))
        .map(|_| all.swap_remove(rng.below(all.len() as u64) as usize))
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut campaign = Campaign::new(seed, threads, Vec::new(), &drawn);
    let mut mark = 100_000;
    while mark <= most && campaign.finds.is_empty() {
        campaign.go_round();
        while mark <= most && campaign.spent.schedules >= mark {
            let alive: Vec<_> = campaign.alive.iter().map(|one| one.name()).collect();
            println!("{mark}: {} of {} live: {}", alive.len(), drawn.len(), alive.join(" "));
            mark *= 10;
        }
    }
    campaign.finds.is_empty()
}

/// Returns whether a scenario kills this mutant. Prints which one.
fn kill(name: &str) -> bool {
    let Some(mistake) = Mistake::named(name) else {
        return false;
    };
    let tested = mutants::test(mistake, 1, |_| true);
    match &tested.killed {
        Some(kill) => println!(
            "{name}: {} on {}, {} schedules, {}",
            kill.scenario(),
            kill.machine().unwrap_or("every machine"),
            tested.schedules,
            kill.broke()
        ),
        None => println!("{name} survives {} schedules", tested.schedules),
    }
    tested.killed.is_some()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let asked = stdin().lock().lines().map_while(Result::ok).filter_map(|line| line.parse().ok());
    let holds = match words[..] {
        ["list"] => {
            for (number, case) in cases().iter().enumerate() {
                let engine = matches!(case.scenario.program, Script::Engine(_));
                let cost = if engine { 1 } else { 4 * case.scenario.one_in };
                println!("{number} {cost} {} {}", case.policy == Policy::ALL, named(case));
            }
            true
        }
        ["kill", name] => kill(name),
        ["generate", part, seed, count] => match (part, seed.parse(), count.parse()) {
            ("manager", Ok(seed), Ok(count)) => generated_hold((1, 1), seed, count),
            // Runs over the manager are longer, and most mistakes of the engine show without it.
            ("engine", Ok(seed), Ok(count)) => generated_hold((1, 16), seed, count),
            _ => return ExitCode::from(2),
        },
        ["survive", seed, count, most] => match (seed.parse(), count.parse(), most.parse()) {
            (Ok(seed), Ok(count), Ok(most)) => survive(seed, count, most),
            _ => return ExitCode::from(2),
        },
        [kind, most] => match (kind, most.parse()) {
            ("random", Ok(most)) => hold(asked, Budget::Schedules(most), false),
            ("reach", Ok(most)) => hold(asked, Budget::Schedules(most), true),
            ("exhaustive", Ok(most)) => hold(asked, Budget::Exhaustive(most), false),
            _ => return ExitCode::from(2),
        },
        _ => return ExitCode::from(2),
    };
    ExitCode::from(u8::from(!holds))
}

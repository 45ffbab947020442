//! `quell explore --generate --mutants --markdown`: prints the results of the adversary's own programs, in the format
//! of `search/adversary/results/survival.txt`.

use quell_adversary::generate::Campaign;
use quell_adversary::generate::campaign::KilledMutant;
use quell_model::output::say;

/// Mistakes that people found by reading the engine and the manager or by writing programs, each with the mutants that
/// repeat it.
const FINDINGS: &[(&str, &[&str])] = &[
    (
        "An initiator waits for a CPU that has left for good, and closed its inbox while another wrote to it (C7)",
        &["WaitsForClosedInbox"],
    ),
    (
        "Making deferred flushes stops at one that is not published yet, and counts those after it as made (C4)",
        &["PaymentStopsAtGap"],
    ),
    (
        "More batches of a space are outstanding than its counter holds (C1, C3)",
        &["BatchesCountedWithoutEnd"],
    ),
    ("Broadcasts without tags flush nothing (C1)", &["UntaggedUnflushed"]),
    (
        "A flush is interrupted by another on the same CPU, between post and interrupt or while its outbox is in use",
        &["PostingPreempted", "OutboxOverwritten", "LoadedSpaceStale"],
    ),
    (
        "Base pages are reported as one large stride, and large ones as base pages",
        &["BasePagesInLargeStrides", "LargePageAsBasePage"],
    ),
    (
        "A fork shares a page that reclaim is taking out, unflushed (C2; found by generated programs)",
        &["VmForksUnflushed"],
    ),
];

/// The first point of the curve, in schedules. Each further point has twice as many.
const FIRST_POINT: u64 = 10_000;

pub fn print(campaign: &Campaign) {
    let killed = campaign.killed.len();
    say!(
        "In {} schedules of {} programs {killed} of {} mutants died; {} violations without a mutant.",
        campaign.spent.schedules,
        campaign.spent.programs,
        killed + campaign.alive.len(),
        campaign.finds.len(),
    );
    broken(campaign);
    curve(campaign);
    findings(campaign);
    mutants(campaign);
}

/// Prints violations without a mutant. They come first, because they are our own mistakes.
fn broken(campaign: &Campaign) {
    if campaign.finds.is_empty() {
        return;
    }
    say!("\n## Broken without a mutant\n");
    for find in &campaign.finds {
        say!("* {}:\n", find.violation);
        say!("      quell explore --replay '{}'", find.recorded.to_line());
    }
}

/// Prints the number of mutants alive after 10 000, 20 000, 40 000 … schedules.
fn curve(campaign: &Campaign) {
    say!("\n## The curve\n");
    say!("| schedules | alive | |");
    say!("| ---: | ---: | --- |");
    let all = campaign.killed.len() + campaign.alive.len();
    let mut at = FIRST_POINT;
    loop {
        at = at.min(campaign.spent.schedules);
        let dead = campaign.killed.iter().filter(|k| k.schedules <= at).count();
        let alive = all - dead;
        say!("| {at} | {alive} | {} |", "█".repeat(50 * alive / all.max(1)));
        if at == campaign.spent.schedules {
            break;
        }
        at *= 2;
    }
}

fn findings(campaign: &Campaign) {
    say!("\n## Mistakes found by people\n");
    say!("| finding | mutant | schedules |");
    say!("| --- | --- | ---: |");
    for (finding, names) in FINDINGS {
        for name in *names {
            let killed = campaign.killed.iter().find(|k| k.mutant.name() == *name);
            let schedules = match killed {
                Some(killed) => killed.schedules.to_string(),
                None => "**alive**".to_string(),
            };
            say!("| {finding} | `{name}` | {schedules} |");
        }
    }
}

fn mutants(campaign: &Campaign) {
    say!("\n## Every mutant\n");
    say!("| mutant | clause | machine | operations | programs | schedules |");
    say!("| --- | --- | --- | ---: | ---: | ---: |");
    for KilledMutant { mutant, find, programs, schedules } in &campaign.killed {
        let name = mutant.name();
        match find {
            Some(find) => say!(
                "| `{name}` | {} | {} | {} | {programs} | {schedules} |",
                find.violation.clause,
                find.recorded.kind.name,
                find.recorded.program.operations(),
            ),
            None => say!("| `{name}` | promises of zeroing | | | {programs} | {schedules} |"),
        }
    }
    for mutant in &campaign.alive {
        let reaching = campaign.reaching(*mutant);
        say!("| `{}` | **alive**; {reaching} kept programs reach it | | | | |", mutant.name());
    }
}

#[cfg(test)]
mod tests {
    use super::FINDINGS;
    use quell_adversary::Mistake;

    #[test]
    fn findings_name_mutants_that_there_are() {
        for name in FINDINGS.iter().flat_map(|(_, names)| *names) {
            assert!(Mistake::named(name).is_some(), "no mutant `{name}`");
        }
    }
}

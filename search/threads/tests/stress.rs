//! Stresses the engine under threads: it must hold, and must break without a mechanism.
//!
//! A run ends after a number of operations, so a busy host changes only the duration. Three environment variables
//! control it: `QUELL_STRESS_OPERATIONS` is the number per run in thousands (50 by default), `QUELL_MUTANT_OPERATIONS`
//! the maximum until a mutant must be found (1 000 000), and `QUELL_STRESS_SEED` the seed (1).

use crate::turn;
use quell::{Counter, Features, Mechanism, Policy, Tagging};
use quell_threads::stress::{StressConfig, run};
use quell_vm::contract::Clause::{self, C1, C2, C3, C4};

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
        Err(_) => default,
    }
}

fn plan() -> StressConfig {
    StressConfig::new(
        from_environment("QUELL_STRESS_SEED", 1),
        1000 * from_environment("QUELL_STRESS_OPERATIONS", 50),
    )
}

fn broadcasting() -> StressConfig {
    StressConfig {
        spaces: 12,
        features: Features { tagging: Tagging::Global { bits: 3 }, broadcast: true, full_above: 3 },
        ..plan()
    }
}

/// Checks that the contract holds.
fn holds(name: &str, plan: &StressConfig) {
    holds_until(name, plan, &[]);
}

/// The number of seeds that we try until every expected event has happened.
const SEEDS: u64 = 20;

/// Checks that the contract holds, and that each of these events has happened in some run. For some events two CPUs
/// must meet, which depends on the host.
fn holds_until(name: &str, plan: &StressConfig, expected: &[Counter]) {
    let mut seen = vec![0; expected.len()];
    for seed in plan.seed..plan.seed + SEEDS {
        let turn = turn();
        let report = run(&StressConfig { seed, ..plan.clone() });
        drop(turn);
        println!(
            "{name}, seed {seed}: {} accesses, {} operations",
            report.accesses, report.operations
        );
        if let Some(violation) = report.violation {
            panic!("{name}, seed {seed}: {violation}");
        }
        assert!(report.accesses > 0, "{name} did nothing");
        for (&counter, seen) in expected.iter().zip(&mut seen) {
            *seen += report.stats.get(counter);
        }
        if !seen.contains(&0) {
            break;
        }
    }
    for (counter, seen) in expected.iter().zip(seen) {
        println!("  {}: {seen}", counter.label());
        assert!(seen > 0, "{} never happened: {name} shows nothing", counter.label());
    }
}

#[test]
fn everything_on_holds_the_contract() {
    use Counter::*;
    holds_until(
        "tags of each CPU, everything on",
        &plan(),
        &[
            Sent,
            Merged,
            SkippedLazy,
            SkippedLeft,
            SkippedNoTarget,
            IgnoredOtherSpace,
            Evicted,
            FlushedRanges,
            FlushedFull,
            EscalatedLength,
            EscalatedGap,
            WaitedReceipt,
            ServedEarly,
            SwitchKept,
            SwitchBehind,
            SwitchTagTaken,
            FlushesDeferred,
            FlushedForReuse,
            FlushedForRefill,
            FlushedPending,
            FlushedBySwitch,
            Reinstated,
        ],
    );
}

#[test]
fn shared_lines_hold_the_contract() {
    for (name, from) in [("one target", 1), ("two targets", 2)] {
        let plan = StressConfig { shares_lines_from: from, ..plan() };
        holds(&format!("lines shared from {name} on"), &plan);
    }
}

#[test]
fn every_policy_holds_the_contract() {
    holds("everything off", &StressConfig { policy: Policy::BASELINE, ..plan() });
    for mechanism in Mechanism::ALL {
        let policy = Policy::only(mechanism);
        holds(&format!("{mechanism:?} alone"), &StressConfig { policy, ..plan() });
    }
    let policy = Policy { inline_requests: false, ..Policy::ALL };
    holds("requests outside the inbox", &StressConfig { policy, ..plan() });
    let features = Features { tagging: Tagging::None, ..plan().features };
    holds("no tags", &StressConfig { features, ..plan() });
    holds("one entry", &StressConfig { ledger: 1, ..plan() });
    holds(
        "one slot",
        &StressConfig {
            features: Features { tagging: Tagging::PerCpu { count: 1 }, ..plan().features },
            ..plan()
        },
    );
}

/// Adds the kernel's half to a plan. Its flushes wait for every CPU, so an eighth of the operations takes as long.
fn in_kernel(plan: StressConfig) -> StressConfig {
    StressConfig { kernel: true, operations: plan.operations / 8, ..plan }
}

#[test]
fn the_kernels_half_holds_the_contract() {
    use Counter::*;
    let seen =
        [FlushesDeferred, FlushedPending, FlushedForReuse, SkippedLazy, FlushedRanges, FlushedFull];
    holds_until("the kernel's half", &in_kernel(plan()), &seen);
    holds("the kernel's half, system-wide tags", &in_kernel(broadcasting()));
    let features = Features { tagging: Tagging::None, ..plan().features };
    let untagged = StressConfig { features, ..plan() };
    holds("the kernel's half, no tags", &in_kernel(untagged));
    let policy = Policy::BASELINE;
    let all_off = StressConfig { policy, ..plan() };
    holds("the kernel's half, everything off", &in_kernel(all_off));
}

#[test]
fn system_wide_tags_hold_the_contract() {
    holds_until(
        "system-wide tags",
        &broadcasting(),
        &[Counter::Broadcasts, Counter::Barriers, Counter::Rollovers],
    );
}

/// Checks that the mutant is found by one of the clauses that it breaks.
fn found(name: &str, base: StressConfig, clauses: &[Clause]) {
    // Mostly we find it within a second. If two windows must meet, on a busy host, that takes luck.
    let plan = StressConfig {
        operations: 1000 * from_environment("QUELL_MUTANT_OPERATIONS", 1_000_000),
        ..base
    };
    let turn = turn();
    let report = run(&plan);
    drop(turn);
    let Some(violation) = report.violation else {
        panic!("{name} was not found in {} operations", report.operations);
    };
    println!("{name}: after {} operations, {violation}", report.operations);
    assert!(clauses.contains(&violation.clause), "{name}: {violation}");
}

#[test]
fn a_barrier_left_out() {
    let plan = StressConfig { skips_barrier: true, ..broadcasting() };
    found("SkipBarrier", plan, &[C1, C2, C3, C4]);
}

/// These run in the copy that contains the mutants: `cargo xtask ci mutants`.
#[cfg(quell_mutants)]
mod mutants {
    use super::*;
    use quell_vm::contract::Clause::{C5, C7};

    macro_rules! mutants {
        ($($(#[$attribute:meta])* $name:ident: $mutant:ident on $plan:expr, breaks $clauses:expr;)*) => {
            $($(#[$attribute])* #[test] fn $name() {
                let plan = StressConfig { mutant: quell_mutants::list::named(stringify!($mutant)), ..$plan };
                found(stringify!($mutant), plan, &$clauses);
            })*
        };
    }

    mutants! {
        a_wait_left_out: SkipWait on plan(), breaks [C1, C2, C3, C4];
        a_local_flush_left_out: SkipLocalFlush on plan(), breaks [C1, C2, C3, C4];
        a_handler_that_does_not_flush: HandlerSkipsFlush on plan(), breaks [C1, C2, C3, C4];
        a_generation_not_bumped: SkipGenerationBump on plan(), breaks [C1, C2, C3, C4];
        // If two spaces have the same tag, one sees the other's entries (C5). If a space has two tags, its flushes miss
        // a CPU that runs it under the other tag, as if they were omitted.
        a_tag_taken_over_unflushed: TagTakenUnflushed on plan(), breaks [C1, C2, C3, C4, C5];
        a_reuse_that_does_not_flush: ReuseSkipsFlush on plan(), breaks [C1, C3, C4];
        a_refill_that_does_not_flush: RefillSkipsFlush on plan(), breaks [C1, C3, C4];
        a_later_observer_that_does_not_flush: FlushPendingSkipped on plan(), breaks [C1, C2, C3, C4];
        a_deferral_not_recorded: PendingNotRecorded on plan(), breaks [C1, C2, C3, C4];
        a_switch_that_ignores_generations: SwitchIgnoresGeneration on plan(), breaks [C1, C2, C3, C4];
        a_switch_that_ignores_deferrals: SwitchIgnoresDeferral on plan(), breaks [C1, C3, C4];
        // Two windows of a few instructions must meet. That takes a million operations, or ten million.
        #[ignore = "takes luck, mostly for half a minute: `cargo xtask ci threads`"]
        a_switch_that_ignores_batches: SwitchIgnoresBatch on plan(), breaks [C1, C2, C3, C4];
        a_resumption_that_looks_at_nothing: LazyResumesUnchecked on plan(), breaks [C1, C2, C3, C4];
        a_gap_not_closed: GapNotEscalated on plan(), breaks [C1, C2, C3, C4];
        a_merge_that_overwrites: MergeOverwrites on plan(), breaks [C1, C2, C3, C4];
        a_request_not_posted: SkipPost on plan(), breaks [C1, C2, C3, C4];
        a_waiter_that_skips_its_inbox: WaiterSkipsInbox on plan(), breaks [C7];
        a_kernel_flush_that_skips_idle_cpus: KernelSkipsIdle on in_kernel(plan()), breaks [C1, C3];
        a_kernel_flush_lost_in_a_merge: KernelLostInMerge on in_kernel(plan()), breaks [C1, C3];
        kernel_entries_kept_under_other_tags: KernelKeptUnderTags on in_kernel(plan()), breaks [C1, C3];
        a_kernel_deferral_paid_by_a_tag: KernelDeferralFlushedByTag on in_kernel(plan()), breaks [C1, C3];
        an_entry_that_does_not_flush: EntrySkipsFlush on in_kernel(plan()), breaks [C1, C3];
        a_rollover_without_flush: RolloverSkipsFlush on broadcasting(), breaks [C1, C2, C3, C4, C5];
        a_rollover_that_forgets_who_runs: RolloverForgetsReserved on broadcasting(), breaks [C1, C2, C3, C4, C5];
    }
}

//! Checks that each row needs runs with and without its guard, and that the stored table has it.

use super::*;

/// Checks that the stored table names every guard, with the mutant that leaves it out, and that each plans a run.
#[test]
fn the_kept_table_names_every_guard() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/results/guards.txt");
    let kept = std::fs::read_to_string(kept).unwrap();
    for (guard, plan) in GUARDS.iter().zip(plans(None)) {
        plan.workload.check(guard.scene.cpus).unwrap();
        assert!(kept.contains(guard.what), "{}", guard.what);
        for name in guard.without {
            assert!(kept.contains(name), "{name}");
            assert!(quell_mutants::list::named(name).is_some(), "{name}");
        }
    }
}

/// Run these in the copy that contains the mutants: `cargo xtask ci mutants`.
#[cfg(quell_mutants)]
mod mutants {
    use super::*;

    fn rows(only: &str) -> Vec<Row> {
        let plans = plans(Some(only));
        let mut results = Results::default();
        let left_out = run(&plans, &mut results);
        let row = |plan: &PlannedGuard| plan.row(&results, &left_out);
        plans.iter().map(row).collect()
    }

    fn row<'r>(rows: &'r [Row], case: &str, mutant: &str) -> &'r Row {
        let found = rows.iter().find(|row| row.case.contains(case) && row.without == [mutant]);
        found.unwrap_or_else(|| panic!("no row of {mutant} on {case}"))
    }

    /// Checks that the guard matters: if the engine had no switch for it, both runs would be equal.
    #[test]
    fn guards_of_a_flush_are_work_that_goes_with_them() {
        let rows = rows("dontneed");
        for (case, mutant, event, least) in [
            ("4 CPUs", "PendingNotRecorded", "shared words", 1.99),
            ("hole", "VmDiscardsUnflushed", "shared words", 0.99),
            ("munmap", "EarlyAckForTables", "shared words", 1.0),
            ("munmap", "VmUnmapsUnflushed", "shared words", 0.99),
            ("munmap", "TakeIgnoresLock", "shared words", 0.99),
            ("asleep", "LazySkippedForTables", "interrupts", 0.99),
        ] {
            let row = row(&rows, case, mutant);
            assert_eq!(row.violations, 0, "{mutant}");
            assert_eq!(row.failed, None, "{mutant}");
            assert!(row.events[event] >= least, "{mutant}: {:?}", row.events);
            assert!(row.cost.unwrap() > 0.0, "{mutant}: {:?}", row.cost);
        }
    }

    #[test]
    fn guards_of_a_batch_are_work_that_goes_with_them() {
        let rows = rows("S0");
        let fence = row(&rows, "Kunpeng", "BroadcastSkipsFence");
        assert!((fence.events["fences"] - 1.0).abs() < 0.01, "{:?}", fence.events);
        assert!(fence.cost.unwrap() > 0.0 && fence.gain.unwrap() > fence.cost.unwrap());
        let deferral = row(&rows, "Kunpeng", "PendingNotRecorded");
        // Two locked operations for each batch of 32.
        assert!((deferral.events["shared words"] - 2.0 / 32.0).abs() < 0.01);
    }

    #[test]
    fn guards_of_a_switch_are_flushes_without_which_the_contract_breaks() {
        let rows = rows("pingpong");
        let load = row(&rows, "1 CPU", "SwitchIgnoresDeferral");
        assert!((load.events["shared words"] - 1.0).abs() < 0.01, "{:?}", load.events);
        let changed = row(&rows, "drops a page", "SwitchIgnoresGeneration");
        assert!(changed.events["tag flushes"] > 0.5, "{:?}", changed.events);
        assert!(changed.cost.unwrap() > 0.01);
        assert!(changed.violations == 0 && changed.violations_left_out > 100);
        assert!(changed.broken.iter().any(|clause| clause == "C3" || clause == "C1"));
        let deferred = row(&rows, "clean page", "SwitchIgnoresDeferral");
        assert!(deferred.events["tag flushes"] > 0.5, "{:?}", deferred.events);
    }

    #[test]
    fn guards_of_a_reuse_are_payments_without_which_the_contract_breaks() {
        let rows = rows("readers");
        let x86 = row(&rows, "Xeon", "ReuseSkipsFlush");
        assert!(x86.events["interrupts"] > 0.01, "{:?}", x86.events);
        let arm = row(&rows, "Kunpeng", "ReuseSkipsFlush");
        // A reuse checks the deferred flush. The cost of that flush, a fence and a broadcast, is hidden here. Faults on
        // that machine flush the pages that a batch holds (break before make), so the number of other broadcasts
        // differs more between the runs.
        assert!(arm.events["shared words"] > 0.5, "{:?} {:?}", arm.cost, arm.events);
        assert!(arm.violations == 0 && arm.violations_left_out > 0);
        assert!(arm.broken.iter().any(|clause| clause == "C1"));
        // These cost little compared with the effect of arrival order. But the run must differ.
        for mutant in ["VmRewritesDeferredEntry", "LazyResumesUnchecked", "ResumeLetsNmisIn"] {
            let row = row(&rows, "Xeon", mutant);
            assert_eq!((row.violations, &row.failed), (0, &None), "{mutant}");
            assert!(row.events.values().any(|&more| more != 0.0), "{mutant}");
        }
    }
}

//! Checks the tables whose cells must fit together or fit a terminal. `quell_model::table` lays any table out well.

use quell::Policy;
use quell_boot::versus::report::{Report, Row, RowFilter, Side, Spread};
use quell_model::command::reproduce;
use quell_model::jobs::Results;
use quell_model::numbers::Verdict;
use quell_model::reproduce::{self as experiments, Experiment};

use crate::versus;

/// Returns the rows of all experiments without running any, filled with the longest figures that occur.
fn rows() -> Vec<experiments::Row> {
    let filled = |plan: &Experiment| experiments::Row {
        model_before: Some(118_961.7),
        model_after: Some(2_766.4),
        before_off: Some(-0.123),
        change_predicted: Some(1.43),
        difference_points: Some(-12.3),
        all_on: Some(2_766.0),
        verdict: Verdict::Miss,
        ..plan.row(&Results::default())
    };
    Experiment::all(None).iter().map(filled).collect()
}

#[test]
fn the_first_command_fits_eighty_columns_with_a_line_for_each_mechanism() {
    let text = reproduce::summary_table(&rows(), Some(-0.919)).render(Some(80), false);
    assert!(!text.contains("Not shown"), "{text}");
    let begin = |name: &&str| text.lines().filter(|line| line.starts_with(*name)).count() == 1;
    let names = ["batching", "zeroing", "tags", "lazy", "async", "  on many"];
    assert!(names.iter().all(begin) && !text.contains("S0"), "{text}");
    // Two lines of headings, the rule, six rows.
    assert!(text.lines().count() <= 9, "{text}");
    let details = reproduce::detail_table(&rows(), false).render(Some(80), false);
    assert!(!details.contains("paper before: "), "no paragraphs");
}

#[test]
fn a_comparison_with_linux_has_a_cell_for_each_column() {
    let side = || Side {
        operations: 500,
        interrupts: 3.0,
        invalidations: 1_024.5,
        local_invalidations: None,
        remote_invalidations: None,
        whole_flushes: 0.0,
        instructions: 1_234_567.8,
        remark: None,
        spread: Some(Spread {
            interrupts: [2.0, 4.0],
            invalidations: [1_020.0, 1_030.5],
            instructions: [1_230_000.1, 1_240_000.9],
        }),
    };
    let mut report = Report::new("6.12.0", "QEMU 7.2", Policy::ALL);
    report.rows.push(Row {
        workload: "dontneed",
        variant: "dirty, others asleep".into(),
        cpus: 64,
        operation: "page",
        parameters: Vec::new(),
        linux: Some(side()),
        linux_patched: Some(side()),
        linux_on_quell: Some(side()),
        quell: Some(side()),
        missing: Vec::new(),
    });
    for shown in [RowFilter::Linux, RowFilter::LinuxOnQuell, RowFilter::Quell] {
        assert!(versus::table(&report, shown).render(None, false).contains("dontneed"));
    }
}

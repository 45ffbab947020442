//! Checks the layout of every table that a command prints, at the widths of terminals.

use std::collections::BTreeMap;

use console::measure_text_width;
use quell::Policy;
use quell_adversary::cases;
use quell_adversary::mutants::MutantResult;
use quell_adversary::{
    Budget, Case, Exploration, MachineKind, Mistake, Scenario, Session, explore,
};
use quell_boot::versus::report::{Report as Comparison, Row as Compared, RowFilter, Side, Spread};
use quell_clock::built_in;
use quell_host::predict::Line;
use quell_model::jobs::{Job, Results};
use quell_model::numbers::Verdict;
use quell_model::reproduce::Experiment;
use quell_model::scale::Point;
use quell_model::{guards, machines};
use quell_threads::cost::{Cost, Row as CostRow};
use quell_threads::vm::ProgramRun;
use quell_workloads::Workload;
use quell_zero::{Plan, Strategy};

use crate::explore::tables;
use crate::{measure, predict, stress, versus};
use quell_model::command::{list, reproduce, run, scale};
use quell_model::table::Table;

trait LayoutCheck {
    fn assert_laid_out(&self, name: &str);
}

impl LayoutCheck for Table {
    /// Fails unless the table is laid out well in terminals of 80, 120 and 200 columns and in a pipe: no line is too
    /// long, no word is split or lost, and every number is whole and beside its unit.
    fn assert_laid_out(&self, name: &str) {
        let page = self.clone().for_page(name.to_owned());
        assert!(!page.rows.is_empty(), "{name} shows nothing");
        let always = self.markdown(false);
        let always = always.lines().next().unwrap_or_default();
        for width in [Some(80), Some(120), Some(200), None] {
            let text = self.render(width, false);
            let context = || format!("{name} at {width:?}:\n{text}");
            let longest = text.lines().map(measure_text_width).max().unwrap_or(0);
            assert!(longest <= width.unwrap_or(usize::MAX), "{}", context());
            let left_out = |heading: &str| {
                text.contains("Not shown") && {
                    let note = &text[text.rfind("Not shown").unwrap_or(0)..];
                    let note: Vec<&str> = note.split_whitespace().collect();
                    !heading.is_empty() && note.join(" ").contains(heading)
                }
            };
            let found: Vec<&str> = text.split_whitespace().collect();
            for (index, (heading, is_number)) in page.columns.iter().enumerate() {
                let is_spare = !always.split('|').any(|kept| kept.trim() == heading);
                if is_spare && left_out(heading) {
                    continue;
                }
                for row in &page.rows {
                    let cell = row[index].trim();
                    for word in cell.split_whitespace() {
                        assert!(found.contains(&word), "`{word}` of {}", context());
                    }
                    if *is_number {
                        assert!(text.contains(cell), "`{cell}` of {}", context());
                    }
                }
            }
        }
        // A pipe gets whole rows, whatever they contain.
        let piped = self.render(None, false);
        assert!(piped.lines().count() >= page.rows.len() + 2, "{name}");
    }
}

#[test]
fn the_lists() {
    for workload in Workload::all() {
        list::workload_table(&workload).assert_laid_out(workload.name());
    }
    list::machine_table().assert_laid_out("machines");
    list::policy_table().assert_laid_out("policies");
    list::parameter_table().assert_laid_out("parameters");
    for machine in machines::names().filter_map(built_in) {
        list::value_table(&machine).assert_laid_out(machine.name());
    }
}

/// Returns the rows of all experiments without running any, filled with the longest figures that occur.
fn experiments() -> Vec<quell_model::reproduce::Row> {
    let nothing = Results::default();
    let plans = Experiment::all(None);
    plans
        .iter()
        .map(|plan| {
            let row = plan.row(&nothing);
            quell_model::reproduce::Row {
                model_before: Some(118_961.7),
                model_after: Some(2_766.4),
                before_off: Some(-0.123),
                change_predicted: Some(1.43),
                difference_points: Some(-12.3),
                all_on: Some(2_766.0),
                verdict: Verdict::Miss,
                ..row
            }
        })
        .collect()
}

#[test]
fn the_first_command_fits_eighty_columns_with_a_line_for_each_mechanism() {
    let summary = reproduce::summary_table(&experiments(), Some(-0.919));
    summary.assert_laid_out("summary");
    let text = summary.render(Some(80), false);
    assert!(!text.contains("Not shown"), "{text}");
    let begin = |name: &&str| text.lines().filter(|line| line.starts_with(*name)).count() == 1;
    let names = ["batching", "zeroing", "tags", "lazy", "async", "  on many"];
    assert!(names.iter().all(begin) && !text.contains("S0"), "{text}");
    // Two lines of headings, the rule, six rows.
    assert!(text.lines().count() <= 9, "{text}");
}

#[test]
fn the_details_of_experiments_and_guards() {
    let details = reproduce::detail_table(&experiments(), false);
    details.assert_laid_out("details");
    assert!(!details.render(Some(80), false).contains("paper before: "), "no paragraphs");
    let nothing = Results::default();
    let guards: Vec<_> = guards::plans(None)
        .iter()
        .map(|plan| guards::Row {
            gain: Some(0.286),
            cost: Some(-0.123),
            cost_range: Some([-0.2, 1.1]),
            seeds: 5,
            failed: None,
            events: BTreeMap::from([
                ("interrupts", 12.5),
                ("waiting turns", 3.25),
                ("shared words", 1.5),
            ]),
            violations_left_out: 14_107,
            broken: vec!["C1".into(), "C3".into()],
            ..plan.row(&nothing, &nothing)
        })
        .collect();
    reproduce::guard_table(&guards).assert_laid_out("guards");
}

#[test]
fn one_run_and_many() {
    let machine = built_in("haswell-server").unwrap();
    let mut workload = Workload::from_name("dontneed").unwrap();
    workload.set("iterations=5").unwrap();
    let job = Job::new(machine.into(), workload, Policy::ALL, 4);
    run::count_table(&job.run().unwrap()).assert_laid_out("counts");
    let on_threads = ProgramRun { workload, policy: Policy::ALL, cpus: 2, seed: 1, without: None };
    stress::count_table(&on_threads.run().unwrap()).assert_laid_out("counts on threads");
    let points: Vec<Point> = (0..=10)
        .map(|power| Point {
            cpus: 1 << power,
            values: vec![Some(1e9 / 3.0), None, Some(0.001), Some(12.5)],
        })
        .collect();
    let policies = ["baseline", "S4,asynchronous=no,inline=no", "all-S1", "all"];
    scale::scale_table(&policies, &points).assert_laid_out("scale");
}

#[test]
fn predictions() {
    let line = Line {
        mechanism: quell::Mechanism::LazyUnmap,
        workload: "readers",
        what: "two threads stream a file larger than memory",
        cpus: 1024,
        metric: Some("s for 10 000 rounds"),
        without_policy: Some("baseline".into()),
        without: Some(123_456.7),
        with_policy: Some("S3".into()),
        with: Some(99_999.9),
        saves_percent: Some(-12.3),
        in_kernel: true,
        interrupts_without: Some(115_662),
        interrupts_with: Some(2_672),
        refused: None,
    };
    let refused = Line {
        metric: None,
        without: None,
        with: None,
        saves_percent: None,
        interrupts_with: None,
        in_kernel: false,
        refused: Some("the machine has one memory node".into()),
        ..line.clone()
    };
    predict::prediction_table(&[line, refused]).assert_laid_out("predictions");
}

#[test]
fn the_comparison_with_linux() {
    let side = |factor: f64| Side {
        operations: 500,
        interrupts: 3.0 * factor,
        invalidations: 1_024.5 * factor,
        local_invalidations: None,
        remote_invalidations: None,
        whole_flushes: 0.0,
        instructions: 1_234_567.8 * factor,
        remark: None,
        spread: Some(Spread {
            interrupts: [2.0, 4.0].map(|count| count * factor),
            invalidations: [1_020.0, 1_030.5].map(|count| count * factor),
            instructions: [1_230_000.1, 1_240_000.9].map(|count| count * factor),
        }),
    };
    let mut report = Comparison::new("6.12.0", "QEMU 7.2", Policy::ALL);
    for variant in ["dirty, others asleep", "clean pages, memory short"] {
        report.rows.push(Compared {
            workload: "dontneed",
            variant: variant.into(),
            cpus: 64,
            operation: "page",
            parameters: Vec::new(),
            linux: Some(side(1.0)),
            linux_patched: Some(side(0.3)),
            linux_on_quell: Some(side(0.2)),
            quell: Some(side(0.1)),
            missing: Vec::new(),
        });
    }
    for shown in [RowFilter::Linux, RowFilter::LinuxOnQuell, RowFilter::Quell] {
        versus::table(&report, shown).assert_laid_out("versus");
    }
}

#[test]
fn searches_and_mutants() {
    tables::scenarios().assert_laid_out("scenarios");
    tables::machines().assert_laid_out("machines of the adversary");
    tables::mistakes().assert_laid_out("mistakes");
    let case = Case {
        scenario: Scenario::named("unmap-access").unwrap(),
        kind: *MachineKind::named("x86").unwrap(),
        policy: Policy::ALL,
        mistake: None,
    };
    let exploration = Exploration { case, budget: Budget::Schedules(2), seed: 1, depth: 1 };
    let report = explore(&mut Session::new(case), &exploration, |_, _| true);
    tables::fired(&report.coverage).assert_laid_out("fired");
    tables::found(&[cases::row(&case, &report)], false).assert_laid_out("found");
    let survived: Vec<_> = Mistake::all()
        .map(|mistake| MutantResult { mistake, killed: None, schedules: 123_456_789 })
        .collect();
    tables::became(&survived).assert_laid_out("mutants");
}

#[test]
fn the_cost_of_the_engine() {
    let cost = Cost { ns: 12_345.6, cycles: 37_000.0 };
    let row = CostRow {
        name: "unmap one page and flush, two CPUs, one busy",
        cost,
        quartiles: (1_000.1, 20_000.2),
        baseline_name: "a mutex and a queue of closures",
        baseline: cost,
        limit_ns: Some(100.0),
    };
    let rows = [row.clone(), CostRow { limit_ns: None, ..row }];
    measure::engine::cost_table(&rows).assert_laid_out("engine");
    measure::engine::guard_table(&rows).assert_laid_out("guards of the engine");
}

#[cfg(target_os = "linux")]
mod live {
    use super::*;
    use quell_host::clear::fault::DemandFault;
    use quell_host::clear::read::ClearReadTimes;
    use quell_host::clear::report::{PlanChoice, PlanTable, Report, Row, Verdict};
    use quell_host::live::report::{Benchmark, Comparison, QuietSamples, Row as HostRow, Spread};

    const WAYS: [&str; 9] =
        ["stores", "rep-stosb", "rep-stosq", "nt64", "nt128", "nt256", "nt512", "clzero", "dc-zva"];

    fn cleared() -> Report {
        let sizes = [4 << 10, 2 << 20, 1 << 30];
        let rows = |ways: &[&'static str]| -> Vec<Row> {
            let of =
                |&strategy| sizes.map(|bytes| Row { bytes, strategy, gbps: 138.25, samples: 3 });
            ways.iter().flat_map(of).collect()
        };
        Report {
            peak_write_gbps: 140.0,
            rows: rows(&WAYS),
            chosen: sizes.map(|bytes| PlanChoice { bytes, strategy: "nt512", gbps: 138.25 }).into(),
            page_by_page_gbps: 10.0,
            page_by_page: rows(&["page-by-page"]),
            memset: rows(&["memset"]),
            all_cores: None,
            clear_then_read: vec![ClearReadTimes {
                bytes: 1 << 30,
                way: "bypassing",
                clear_ns: 123_456_789.0,
                read_ns: 1_234.5,
                total_ns: 123_458_023.5,
            }],
            demand_fault: vec![DemandFault {
                page_bytes: 1 << 30,
                way: "populate",
                gbps: None,
                note: Some(
                    "no free page of 1 GB: as root, write 1 to nr_hugepages & <try again>".into(),
                ),
            }],
            verdicts: vec![Verdict {
                target: "chosen strategy compared with peak write bandwidth, from 2 MB",
                bound: 0.9,
                ratio: 0.985,
                at_bytes: 1 << 30,
                pass: true,
            }],
            cpu: "made up".into(),
            caches: [0, 1 << 20, 32 << 20],
            huge_page_share: 1.0,
            plan: PlanTable::new(&Plan::uniform(Strategy::NonTemporal512), &Plan::default()),
            calibration_ms: 1.0,
            seconds: 2.0,
        }
    }

    #[test]
    fn the_speed_of_zeroing() {
        use measure::clear::print;
        let report = cleared();
        let beside: [(&str, &[Row]); 2] =
            [("memset", &report.memset), ("page-by-page", &report.page_by_page)];
        print::speed_table(&report.rows, &beside, &report.chosen).assert_laid_out("speeds");
        print::choice_table(&report).assert_laid_out("choices");
        print::read_table(&report).assert_laid_out("clear, then read");
        print::fault_table(&report).assert_laid_out("faults");
        print::verdict_table(&report).assert_laid_out("targets");
        let page = print::html(&report);
        assert!(page.contains("1 to nr_hugepages &amp; &lt;try"), "{page}");
        assert!(page.contains("*138.2") && page.contains("</svg>"));
        let tables = page.matches("<table>").count();
        assert!(tables >= 5 && !page.contains("<pre>"), "{tables} tables");
    }

    #[test]
    fn what_the_host_was_measured_at() {
        let spread = Spread::of([9_870_000.0, 10_432_000.0, 123_456_789.0]).unwrap();
        let row = HostRow {
            key: "batched_512_pages_3_threads_spinning".into(),
            instead_of: Some("batched_512_pages_3_threads_spinning".into()),
            targets: 3,
            op: "page",
            ns: spread,
            round_medians: Vec::new(),
            quiet: Some(QuietSamples {
                samples: 3,
                median: 10_432_000.0,
                tlb_interrupts_per_op: None,
                own_core: false,
                pulse: 1.0,
                noise: None,
            }),
            ops: 12,
            tlb_interrupts_per_op: Some(512.123),
            interrupts: BTreeMap::new(),
            vmstat: BTreeMap::new(),
            shootdown_share: Some(0.5),
            spinner_share: None,
            foreign_cpus: None,
            stolen_cpus: None,
            warnings: Vec::new(),
            samples: Vec::new(),
            sharing: None,
            expected_interrupts: None,
            check: |_| None,
        };
        let benchmark = Benchmark {
            name: "discard",
            mechanism: "S4",
            title: "",
            rows: vec![row],
            refused: Vec::new(),
            failed: None,
            warnings: Vec::new(),
            rounds: 3,
            seconds: 1.0,
        };
        measure::host::print::row_table(&benchmark).assert_laid_out("host");
        let beside = [Comparison {
            benchmark: "pageout",
            row: "dirty_1_MiB_a_thread_spinning".into(),
            measured_ns: 1_234_567.0,
            slowdown: None,
            predicted_ns: Some(987_654.0),
            error: Some(-0.2),
            noise: Some(0.123),
            within: Some(true),
            why: None,
        }];
        measure::host::print::beside_table(&beside).assert_laid_out("beside");
    }
}

//! The kernels' output becomes a table.

use quell_boot::asterinas::machine::{Measurement, Report, TestResults};
use quell_boot::asterinas::table;

fn measured(lines: &[&str]) -> Measurement {
    let mut measured = Measurement::default();
    for line in lines {
        measured.take(line).unwrap();
    }
    measured
}

#[test]
fn a_kernel_s_lines_are_its_figures() {
    let ended = measured(&[
        "SeaBIOS",
        "trial: row ns unmap 1 page|7367",
        "trial: stale unmapped 0",
        "trial: stale unflushed 12",
        "trial: end sound",
    ]);
    assert!(ended.sound);
    assert_eq!(ended.stale["unflushed"], 12);
    assert_eq!(ended.rows[&("unmap 1 page".into(), "ns".into())], 7367);
    assert!(!measured(&["trial: end broken"]).sound);
    assert!(Measurement::default().take("trial: panic at the disco").is_err());
    assert!(Measurement::default().take("trial: row ns unmap 1 page").is_err());
    assert!(Measurement::default().take("trial: something else").is_err());
}

#[test]
fn only_what_both_have_measured_is_compared() {
    let ostd = measured(&["trial: row ns unmap 1 page|10", "trial: row ns context switch|5"]);
    let quell = measured(&["trial: row ns unmap 1 page|11"]);
    let rows = table::rows(4, &ostd, &quell);
    assert_eq!(rows.len(), 1);
    assert!(!rows[0].holds());
    assert!(table::markdown(&rows).contains("| unmap 1 page | instructions | 4 | 10 | 11 |"));
}

#[test]
fn what_the_runner_of_ostds_tests_prints_is_counted() {
    let mut tests = TestResults::default();
    let green = "\u{1b}[32mok\u{1b}[39m";
    assert!(!tests.take("running 2 tests in crate \"ostd\"").unwrap());
    assert!(!tests.take(&format!("test ostd::mm::cut ... {green}")).unwrap());
    let red = "test ostd::mm::glue ... \u{1b}[31mFAILED\u{1b}[39m";
    assert!(!tests.take(red).unwrap());
    let end = |passed, failed| {
        format!(
            "test result: \u{1b}[31mFAILED\u{1b}[39m. {passed} passed; {failed} failed; 0 filtered out."
        )
    };
    // A lost line isn't a passed test.
    assert!(tests.clone().take(&end(2, 1)).is_err());
    assert!(tests.take(&end(1, 1)).unwrap());
    assert_eq!(tests.failed, ["ostd::mm::glue"]);
}

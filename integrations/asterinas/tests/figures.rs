//! What kernels print becomes a table.

use quell_asterinas::machine::Measured;
use quell_asterinas::table;

fn measured(lines: &[&str]) -> Measured {
    let mut measured = Measured::default();
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
    assert!(
        Measured::default()
            .take("trial: panic at the disco")
            .is_err()
    );
    assert!(
        Measured::default()
            .take("trial: row ns unmap 1 page")
            .is_err()
    );
    assert!(Measured::default().take("trial: something else").is_err());
}

#[test]
fn only_what_both_have_measured_is_compared() {
    let ostd = measured(&[
        "trial: row ns unmap 1 page|10",
        "trial: row ns context switch|5",
    ]);
    let quell = measured(&["trial: row ns unmap 1 page|11"]);
    let rows = table::rows(4, &ostd, &quell);
    assert_eq!(rows.len(), 1);
    assert!(!rows[0].holds());
    assert!(table::markdown(&rows).contains("| unmap 1 page | instructions | 4 | 10 | 11 |"));
}

//! The programs of the conformance suite on the kernels that were built, and on one whose engine has forgotten a rule.
//!
//! Where a kernel is not there, a test says `SKIPPED` and how it is made, and passes, unless `QUELL_REQUIRE_LINUX_BUILD` is
//! set: then it fails. The kernel `debug` takes long to build and is never required.

use quell_boot::versus::{Checked, Programs};
use quell_linux::make::Flavour;
use std::time::Duration;

/// Runs the programs on two CPUs, with one round of the stress; `None`, said aloud, where there is no such kernel.
fn run(flavour: Flavour, forget: Option<&str>) -> Option<anyhow::Result<Checked>> {
    let kernel = flavour.image();
    if !kernel.is_file() {
        let (image, name) = (kernel.display(), flavour.name());
        let what = format!("there is no {image}: integrations/linux/run build {name} makes it");
        let required = std::env::var_os("QUELL_REQUIRE_LINUX_BUILD").is_some();
        assert!(!required || flavour == Flavour::Debug, "{what}");
        eprintln!("SKIPPED: Linux {name}: {what}");
        return None;
    }
    let forget = forget.map(|rule| format!("quell_forget={rule}"));
    let programs = Programs {
        kernel,
        mechanisms: (flavour != Flavour::Stock).then(|| "all".into()),
        words: forget.into_iter().collect(),
        cpus: vec![2],
        rounds: 1,
        seed: 1,
        limit: Duration::from_secs(1800),
        verbose: false,
    };
    Some(programs.run(|_| {}))
}

fn holds(flavour: Flavour) {
    let Some(checks) = run(flavour, None) else {
        return;
    };
    let Checked {
        checks,
        counted,
        splats,
    } = checks.expect("Linux runs to its end");
    assert!(splats.is_empty(), "{splats:?}");
    assert_eq!(checks.len(), 13, "{checks:?}");
    let failed: Vec<_> = checks.iter().filter(|check| check.failures > 0).collect();
    assert!(failed.is_empty(), "{failed:?}");
    // Only an engine that is on has counters, and they say what Linux's say.
    assert_eq!(counted.is_empty(), flavour == Flavour::Stock);
    for (_, counted) in counted {
        assert!(counted.get("sent") > 0, "{counted}");
        counted
            .agree()
            .unwrap_or_else(|why| panic!("{why}: {counted}"));
    }
}

#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn the_contract_holds_on_stock_linux() {
    holds(Flavour::Stock);
}

#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn the_contract_holds_on_linux_with_the_engine() {
    holds(Flavour::Quell);
}

#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn the_contract_holds_where_linux_checks_itself() {
    holds(Flavour::Debug);
}

/// A rule that is left out shows: in a check, or because Linux does not get to its end.
#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn a_rule_that_the_engine_forgets_shows() {
    for rule in ["SkipPost", "SkipLocalFlush"] {
        let Some(checks) = run(Flavour::Debug, Some(rule)) else {
            return;
        };
        let noticed = checks.map_or(true, |checked| {
            checked.checks.iter().any(|check| check.failures > 0)
        });
        assert!(noticed, "{rule} was not noticed");
    }
}

//! Runs the conformance suite's programs on the built kernels, and on one whose engine lacks a rule.
//!
//! Without a kernel, a test prints `SKIPPED` and explains how to build it. It then passes, unless
//! `QUELL_REQUIRE_LINUX_BUILD` is set. `debug`, `mutants` and `series` are built separately, and never required.

use quell_boot::linux::{CheckOutcomes, Conformance, Flavour, RULES, Soak};

/// Returns whether this kernel was built, and prints a message if not.
fn is_there(flavour: Flavour) -> bool {
    let image = flavour.image();
    if image.is_file() {
        return true;
    }
    let (image, name) = (image.display(), flavour.name());
    let what = format!("there is no {image}: kernels/linux/run build {name} makes it");
    let required = std::env::var_os("QUELL_REQUIRE_LINUX_BUILD").is_some();
    assert!(!required || !matches!(flavour, Flavour::Stock | Flavour::Quell), "{what}");
    eprintln!("SKIPPED: Linux {name}: {what}");
    false
}

/// Runs the programs on two CPUs, with one round of the stress. Returns `None` if this kernel wasn't built.
fn run(flavour: Flavour, forget: Option<&str>) -> Option<anyhow::Result<CheckOutcomes>> {
    if !is_there(flavour) {
        return None;
    }
    let programs = Conformance {
        kernel: flavour,
        cpus: vec![2],
        mechanisms: "all".into(),
        rounds: 1,
        seed: 1,
        forget: forget.map(String::from),
        emulator: None,
        minutes: 30,
        verbose: false,
    };
    Some(programs.checks(|_| {}))
}

fn holds(flavour: Flavour) {
    let Some(checks) = run(flavour, None) else {
        return;
    };
    let checked = checks.unwrap_or_else(|error| panic!("{}: {error:#}", flavour.name()));
    let CheckOutcomes { checks, counted, splats } = checked;
    assert!(splats.is_empty(), "{splats:?}");
    assert_eq!(checks.len(), 13, "{checks:?}");
    let failed: Vec<_> = checks.iter().filter(|check| check.failures > 0).collect();
    assert!(failed.is_empty(), "{failed:?}");
    // Only an engine that is on has counters, and they agree with Linux's.
    assert_eq!(counted.is_empty(), !flavour.has_engine());
    for (_, counted) in counted {
        assert!(counted.get("sent") > 0, "{counted}");
        counted.agree().unwrap_or_else(|why| panic!("{why}: {counted}"));
    }
}

#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn the_contract_holds_on_every_linux() {
    for flavour in [Flavour::Stock, Flavour::Quell, Flavour::Series, Flavour::Debug] {
        holds(flavour);
    }
}

/// If a rule is left out, a check fails or Linux doesn't reach its end.
#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn a_rule_that_the_engine_forgets_shows() {
    for rule in ["SkipPost", "SkipLocalFlush"] {
        let Some(checks) = run(Flavour::Debug, Some(rule)) else {
            return;
        };
        let noticed =
            checks.map_or(true, |checked| checked.checks.iter().any(|check| check.failures > 0));
        assert!(noticed, "{rule} was not noticed");
    }
}

/// Returns the parts of our program that find stale data, with all mechanisms on and perhaps a rule of the glue left
/// out. The emulator counts instructions and runs one CPU at a time, so the host can't delay one between two steps.
fn stale_parts(cpus: u16, program: &str, forget: Option<&str>) -> Vec<String> {
    let soak = Soak {
        kernel: Flavour::Mutants,
        cpus,
        mechanisms: vec!["all".into()],
        seconds: 1,
        only: vec![program.into()],
        forget: forget.map(String::from),
        counted: true,
        emulator: None,
        minutes: 30,
        json: false,
        verbose: false,
    };
    let ran = soak.with_engine().expect("Linux runs to its end");
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert!(ran[0].passed > 0, "{ran:?}");
    ran[0].failed.clone()
}

/// Each rule of the glue is necessary: without it one part of a program finds stale data, and with all of them none
/// does.
#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn a_rule_of_lazy_unmap_that_the_glue_forgets_shows() {
    let (fresh, coalesced, nmi) = ((2, "fresh 4"), (4, "coalesced 500"), (2, "nmi"));
    let f2fs = (2, "fresh on f2fs 2");
    let finds = [
        ("LinuxFillUnflushed", fresh, "write"),
        ("LinuxChangeUnflushed", fresh, "direct write"),
        ("LinuxPendingUnseen", fresh, "write while reclaim goes on"),
        ("LinuxFrameUnclaimed", fresh, "reuse of the frames"),
        ("LinuxNmiUnasked", nmi, "an NMI before the flush"),
        ("LinuxAnyFileSystem", f2fs, "abort an atomic write"),
        // This is a rule of the engine, which shares flushes for the glue.
        ("CoalescedLate", coalesced, "discard beside others"),
    ];
    assert_eq!(finds.map(|(rule, ..)| rule)[..RULES.len()], RULES);
    if !is_there(Flavour::Mutants) {
        return;
    }
    for (cpus, program) in [fresh, coalesced, nmi, f2fs] {
        assert_eq!(stale_parts(cpus, program, None), [""; 0]);
    }
    let unnoticed: Vec<_> = finds
        .map(|(rule, (cpus, program), part)| (rule, part, stale_parts(cpus, program, Some(rule))))
        .into_iter()
        .filter(|(_, part, stale)| !stale.iter().any(|name| name == part))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

//! What is left out on purpose is noticed: each boot makes one mistake, and must not pass.

use crate::boot::{boot, can_boot, last, quell, tests};

/// Boots with something left out; returns what noticed: the names of the checks that failed, `watchdog`,
/// `panic`, or what could not go on. Nothing if the boot passed, and what it printed.
fn attempt(arch: &str, arguments: &[&str], what: &str) -> Result<Vec<String>, String> {
    let option = format!("break={what}");
    let mut all = vec!["boot", "--arch", arch, "--json", "--option", &option];
    all.extend(arguments);
    all.extend(["--option", "watchdog_ms=1500", "--timeout", "60"]);
    let output = quell(&all);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) => return Err(said),
        Some(1) => {}
        // A command line that is refused shows nothing.
        other => panic!("{arch} without {what} did not run: {other:?}\n{said}"),
    }
    let noticed = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|e| match e["event"].as_str()? {
            "test" if e["passed"] != true => Some(e["name"].as_str()?.to_string()),
            "watchdog" => Some("watchdog".to_string()),
            "exit" if e["code"] == 3 => Some("panic".to_string()),
            "failed" => Some(e["what"].as_str()?.to_string()),
            _ => None,
        });
    Ok(noticed.collect())
}

/// As [`attempt`], of a boot that must not pass.
fn broken(arch: &str, arguments: &[&str], what: &str) -> Vec<String> {
    attempt(arch, arguments, what)
        .unwrap_or_else(|said| panic!("{arch} without {what} passed\n{said}"))
}

/// A stress in which the mistake needs luck: a CPU must use a translation that it still holds, before something else
/// ends it. A boot that this check does not fail is followed by one with the next words: it has passed, or the mistake
/// has broken something else so much that it ended before the check. The empty name is in whatever notices.
fn broken_with_luck(arch: &str, arguments: &[&str], tries: &[&[&str]], what: &str, check: &str) {
    let mut noticed = Vec::new();
    for words in tries {
        noticed.push(attempt(arch, &[arguments, words].concat(), what).unwrap_or_default());
        if noticed.iter().flatten().any(|name| name.contains(check)) {
            return;
        }
    }
    panic!("{arch} without {what}, with each of {tries:?}: {noticed:?}, and not {check:?}");
}

/// A stress in which tags run out, longer and longer.
const LONGER: &[&[&str]] = &[&["--rounds", "2"], &["--rounds", "8"], &["--rounds", "24"]];

/// Stresses of different seeds.
const OTHERS: &[&[&str]] = &[
    &["--rounds", "20"],
    &["--rounds", "20", "--seed", "2"],
    &["--rounds", "20", "--seed", "3"],
    &["--rounds", "30", "--seed", "4"],
    &["--rounds", "30", "--seed", "5"],
];

/// A fault in the handler of a non-maskable interrupt must not let in the next: it would be handled
/// on the same stack, and the first could never return.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_fault_in_an_nmi_handler_lets_in_no_other() {
    if can_boot("x86_64") {
        let noticed = broken("x86_64", &["selftest"], "nmi");
        assert!(noticed.iter().any(|name| name == "panic"), "{noticed:?}");
    }
}

/// The emulated RISC-V processor has tags of each CPU's own: they are lent and found again, and lent without
/// the flush that belongs to it they are noticed.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn tags_of_each_cpu_are_flushed_before_they_are_lent() {
    if !can_boot("riscv64") {
        return;
    }
    let words = ["stress", "--rounds", "2"];
    let kept = last(&boot("riscv64", &words), "tags")["kept"].as_u64();
    assert!(kept > Some(0), "{kept:?}");
    let (mutant, check) = ("TagTakenUnflushed", "tags_are_flushed");
    broken_with_luck("riscv64", &["stress"], LONGER, mutant, check);
}

/// Tags that run out all the time do no harm, and do without the flush that belongs to it.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn tags_run_out_and_are_flushed() {
    if !can_boot("aarch64") {
        return;
    }
    let words = ["stress", "--cpus", "8", "--option", "tag_bits=4"];
    let events = boot("aarch64", &[&words[..], &["--rounds", "2"]].concat());
    assert_eq!(tests(&events), (3, 0), "{events:?}");
    assert!(
        last(&events, "tags")["rollovers"].as_u64() > Some(10),
        "{events:?}"
    );
    // On this machine a CPU flushes itself alone when it comes online and after a rollover, so `here` shows
    // only where tags run out.
    for mutant in ["here", "RolloverSkipsFlush", "RolloverForgetsReserved"] {
        broken_with_luck("aarch64", &words, LONGER, mutant, "tags_are_flushed");
    }
}

/// Each mistake that the emulator can show is noticed by the check that is there for it.
/// `docs/boot.md` lists those that it cannot show.
fn mistakes(arch: &str, mistakes: &[(&str, &str)]) {
    if !can_boot(arch) {
        return;
    }
    for (mistake, check) in mistakes {
        let noticed = broken(arch, &["conformance"], mistake);
        assert!(
            noticed.iter().any(|name| name.contains(check)),
            "{arch} with {mistake}: {noticed:?}"
        );
    }
}

/// What all architectures show.
const EVERYWHERE: [(&str, &str); 9] = [
    ("FinishSkipsFlush", "changed_pages_are_read_anew"),
    ("PendingNotRecorded", "second_actors_flush_pending"),
    ("FlushPendingSkipped", "second_actors_flush_pending"),
    ("ReuseSkipsFlush", "deferred_flushes_are_made"),
    ("ZeroSkipsTail", "zeroed_is_zero"),
    ("ZeroSkipsFaultingPage", "zeroed_is_zero"),
    ("VmRefillsDeferredSlot", "written_files_are_read_anew"),
    // Pages, and tables, are made of what is not zero: which check meets one first, or whether the
    // kernel stops before, depends on what the memory held.
    ("VmSkipsZeroing", ""),
    ("VmKeepsZeroFlag", ""),
];

/// What those show that flush other CPUs by interrupts.
const BY_INTERRUPTS: [(&str, &str); 10] = [
    ("request", "frames_come_back_unused"),
    ("here", "changed_pages_are_read_anew"),
    ("SkipLocalFlush", "changed_pages_are_read_anew"),
    ("SkipGenerationBump", "changed_pages_are_read_anew"),
    ("SkipPost", "changed_pages_are_read_anew"),
    (
        "KernelSkipsIdle",
        "the_kernels_own_mappings_change_everywhere",
    ),
    ("SkipInterrupt", "watchdog"),
    ("SkipWait", "frames_come_back_unused"),
    ("HandlerSkipsFlush", "changed_pages_are_read_anew"),
    ("WaiterSkipsInbox", "watchdog"),
];

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn what_is_left_out_is_noticed_on_x86_64() {
    mistakes("x86_64", &EVERYWHERE);
    mistakes("x86_64", &BY_INTERRUPTS);
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn what_is_left_out_is_noticed_on_riscv64() {
    mistakes("riscv64", &EVERYWHERE);
    mistakes("riscv64", &BY_INTERRUPTS);
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn what_is_left_out_is_noticed_on_aarch64() {
    mistakes("aarch64", &EVERYWHERE);
    mistakes(
        "aarch64",
        &[
            ("broadcast", "changed_pages_are_read_anew"),
            // The barrier of the CPU that sent the invalidation, and no other CPU's, completes it.
            ("SkipBarrier", "changed_pages_are_read_anew"),
            ("FlushPendingOnlyWaits", "second_actors_flush_pending"),
        ],
    );
}

/// A stress ends with the first store that is lost.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn stress_notices_what_is_left_out() {
    for (arch, mistakes) in [
        ("x86_64", ["HandlerSkipsFlush", "FinishSkipsFlush"]),
        ("aarch64", ["SkipBarrier", "FinishSkipsFlush"]),
        ("riscv64", ["HandlerSkipsFlush", "FinishSkipsFlush"]),
    ] {
        if can_boot(arch) {
            for mistake in mistakes {
                broken_with_luck(arch, &["stress"], OTHERS, mistake, "");
            }
        }
    }
}

//! Checks that mistakes are noticed: each boot makes one on purpose, and must not pass.

use crate::boot::{boot, can_boot, last, quell, tests};

/// Boots with a mistake and returns the names of everything that noticed it: failed checks, `watchdog`, `panic`, or an
/// operation that couldn't continue. If the boot passed, returns its output as the error.
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
        // If the command line was refused, the test shows nothing.
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

/// Like [`attempt`], for a boot that must not pass.
fn broken(arch: &str, arguments: &[&str], what: &str) -> Vec<String> {
    attempt(arch, arguments, what)
        .unwrap_or_else(|said| panic!("{arch} without {what} passed\n{said}"))
}

/// Repeats a stress until this check notices the mistake, with the next words of `tries` each time.
///
/// The mistake needs luck: a CPU must use a stale translation before something else ends it. A boot may also pass, or
/// the mistake may break so much that the boot ends before the check. An empty `check` matches anything that noticed.
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

/// Stresses in which tags run out, each longer than the one before.
const LONGER: &[&[&str]] = &[&["--rounds", "2"], &["--rounds", "8"], &["--rounds", "24"]];

/// Stresses with different seeds.
const OTHERS: &[&[&str]] = &[
    &["--rounds", "20"],
    &["--rounds", "20", "--seed", "2"],
    &["--rounds", "20", "--seed", "3"],
    &["--rounds", "30", "--seed", "4"],
    &["--rounds", "30", "--seed", "5"],
];

/// A fault in the handler of a non-maskable interrupt must not admit the next such interrupt. The CPU would handle it
/// on the same stack, and the first handler could never return.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_fault_in_an_nmi_handler_lets_in_no_other() {
    if can_boot("x86_64") {
        let noticed = broken("x86_64", &["selftest"], "nmi");
        assert!(noticed.iter().any(|name| name == "panic"), "{noticed:?}");
    }
}

/// The emulated RISC-V processor has tags per CPU. They are assigned and found again, and a tag assigned without its
/// flush is noticed.
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

/// Tags that run out all the time do no harm, unless the flush that belongs to it is missing.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn tags_run_out_and_are_flushed() {
    if !can_boot("aarch64") {
        return;
    }
    let words = ["stress", "--cpus", "8", "--option", "tag_bits=4"];
    let events = boot("aarch64", &[&words[..], &["--rounds", "2"]].concat());
    assert_eq!(tests(&events), (3, 0), "{events:?}");
    assert!(last(&events, "tags")["rollovers"].as_u64() > Some(10), "{events:?}");
    // On this machine a CPU flushes only itself when it comes online and after a rollover. So the mistake `here` is
    // visible only if tags run out.
    for mutant in ["here", "RolloverSkipsFlush", "RolloverForgetsReserved"] {
        broken_with_luck("aarch64", &words, LONGER, mutant, "tags_are_flushed");
    }
}

/// Tests that the right check notices each mistake that the emulator can show. `docs/boot.md` lists the mistakes that
/// it can't show.
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

/// Mistakes that all architectures show.
const EVERYWHERE: [(&str, &str); 9] = [
    ("FinishSkipsFlush", "changed_pages_are_read_anew"),
    ("PendingNotRecorded", "later_observers_flush_pending"),
    ("FlushPendingSkipped", "later_observers_flush_pending"),
    ("ReuseSkipsFlush", "deferred_flushes_are_made"),
    ("ZeroSkipsTail", "zeroed_is_zero"),
    ("ZeroSkipsFaultingPage", "zeroed_is_zero"),
    ("VmRefillsDeferredSlot", "written_files_are_read_anew"),
    // Pages and tables then contain garbage. Which check notices that first, or whether the kernel ends before, depends
    // on the memory's content.
    ("VmSkipsZeroing", ""),
    ("VmKeepsZeroFlag", ""),
];

/// Mistakes that show where other CPUs are flushed by interrupts.
const BY_INTERRUPTS: [(&str, &str); 10] = [
    ("request", "frames_come_back_unused"),
    ("here", "changed_pages_are_read_anew"),
    ("SkipLocalFlush", "changed_pages_are_read_anew"),
    ("SkipGenerationBump", "changed_pages_are_read_anew"),
    ("SkipPost", "changed_pages_are_read_anew"),
    ("KernelSkipsIdle", "the_kernels_own_mappings_change_everywhere"),
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
            // Only a barrier on the CPU that sent the invalidation completes it.
            ("SkipBarrier", "changed_pages_are_read_anew"),
            ("FlushPendingOnlyWaits", "later_observers_flush_pending"),
        ],
    );
}

/// A stress ends at the first lost store.
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

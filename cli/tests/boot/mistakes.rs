//! Checks that mistakes are noticed: each boot makes one on purpose, and must not pass.

use crate::boot::{archs, boot, can_boot, last, tests};
use crate::command::run;
use serde_json::Value;

/// Boots with a mistake and returns the names of everything that noticed it: failed checks, `watchdog`, `panic`, or an
/// operation that couldn't continue. If the boot passed, returns its output as the error.
fn attempt(arch: &str, options: &str, mistake: &str) -> Result<Vec<String>, String> {
    let output = run(&format!(
        "boot --arch {arch} --json {options} --option break={mistake} \
         --option watchdog_ms=1500 --timeout 60"
    ));
    if output.code == Some(0) {
        return Err(output.stdout + &output.stderr);
    }
    // If the command line was refused, the test shows nothing.
    let output = output.code(1);
    let events = output.stdout.lines().filter_map(|line| serde_json::from_str(line).ok());
    let noticed = events.filter_map(|event: Value| match event["event"].as_str()? {
        "test" if event["passed"] != true => Some(event["name"].as_str()?.to_owned()),
        "watchdog" => Some("watchdog".to_owned()),
        "exit" if event["code"] == 3 => Some("panic".to_owned()),
        "failed" => Some(event["what"].as_str()?.to_owned()),
        _ => None,
    });
    Ok(noticed.collect())
}

/// Like [`attempt`], for a boot that must not pass.
fn broken(arch: &str, options: &str, mistake: &str) -> Vec<String> {
    attempt(arch, options, mistake)
        .unwrap_or_else(|said| panic!("{arch} with {mistake} passed\n{said}"))
}

/// Repeats a stress until this check notices the mistake, with the next words of `tries` each time.
///
/// The mistake needs luck: a CPU must use a stale translation before something else ends it. A boot may also pass, or
/// the mistake may break so much that the boot ends before the check. An empty `check` matches anything that noticed.
fn broken_with_luck(arch: &str, options: &str, tries: &[&str], mistake: &str, check: &str) {
    let mut noticed = Vec::new();
    for words in tries {
        let options = format!("{options} {words}");
        noticed.push(attempt(arch, &options, mistake).unwrap_or_default());
        if noticed.iter().flatten().any(|name| name.contains(check)) {
            return;
        }
    }
    panic!("{arch} with {mistake}, with each of {tries:?}: {noticed:?}, and not {check:?}");
}

/// Stresses in which tags run out, each longer than the one before.
const LONGER: &[&str] = &["--rounds 2", "--rounds 8", "--rounds 24"];

/// Stresses with different seeds.
const OTHERS: &[&str] = &[
    "--rounds 20",
    "--rounds 20 --seed 2",
    "--rounds 20 --seed 3",
    "--rounds 30 --seed 4",
    "--rounds 30 --seed 5",
];

/// A fault in the handler of a non-maskable interrupt must not admit the next such interrupt. The CPU would handle it
/// on the same stack, and the first handler could never return.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_fault_in_an_nmi_handler_lets_in_no_other() {
    if can_boot("x86_64") {
        let noticed = broken("x86_64", "selftest", "nmi");
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
    let kept = last(&boot("riscv64", "stress --rounds 2"), "tags")["kept"].as_u64();
    assert!(kept > Some(0), "{kept:?}");
    broken_with_luck("riscv64", "stress", LONGER, "TagTakenUnflushed", "tags_are_flushed");
}

/// Tags that run out all the time do no harm, unless the flush that belongs to it is missing.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn tags_run_out_and_are_flushed() {
    if !can_boot("aarch64") {
        return;
    }
    let stress = "stress --cpus 8 --option tag_bits=4";
    let events = boot("aarch64", &format!("{stress} --rounds 2"));
    assert_eq!(tests(&events), (3, 0), "{events:?}");
    assert!(last(&events, "tags")["rollovers"].as_u64() > Some(10), "{events:?}");
    // On this machine a CPU flushes only itself when it comes online and after a rollover. So the mistake `here` is
    // visible only if tags run out.
    for mutant in ["here", "RolloverSkipsFlush", "RolloverForgetsReserved"] {
        broken_with_luck("aarch64", stress, LONGER, mutant, "tags_are_flushed");
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

/// Mistakes that show where broadcasts flush other CPUs.
const BY_BROADCASTS: [(&str, &str); 3] = [
    ("broadcast", "changed_pages_are_read_anew"),
    // Only a barrier on the CPU that sent the invalidation completes it.
    ("SkipBarrier", "changed_pages_are_read_anew"),
    ("FlushPendingOnlyWaits", "later_observers_flush_pending"),
];

/// Tests that the right check notices each mistake that the emulator can show. `docs/boot.md` lists the mistakes that
/// it can't show.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn what_is_left_out_is_noticed() {
    for arch in archs() {
        let here = if arch == "aarch64" { &BY_BROADCASTS[..] } else { &BY_INTERRUPTS };
        for (mistake, check) in EVERYWHERE.iter().chain(here) {
            let noticed = broken(arch, "conformance", mistake);
            let right = noticed.iter().any(|name| name.contains(check));
            assert!(right, "{arch} with {mistake}: {noticed:?}");
        }
    }
}

/// A stress ends at the first lost store.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn stress_notices_what_is_left_out() {
    for arch in archs() {
        let skips = if arch == "aarch64" { "SkipBarrier" } else { "HandlerSkipsFlush" };
        for mistake in [skips, "FinishSkipsFlush"] {
            broken_with_luck(arch, "stress", OTHERS, mistake, "");
        }
    }
}

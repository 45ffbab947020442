//! `quell record` of programs that aren't quell's.
//!
//! `scripts/real-program` prepares each program, and installs it if it's missing. If a program isn't available, or the
//! host can't record, the test prints `SKIPPED`, past the test harness, and passes. We record with the default options,
//! once with the program's own settings and once with the advised ones. `/proc/interrupts` and the recording include
//! all programs on this host. We distinguish them by their names, so others disturb little but the time.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// We record one program at a time, because a recording would contain the other's load.
static ALONE: Mutex<()> = Mutex::new(());

/// The time for which each program runs, in seconds.
const SECONDS: &str = "5";

/// With fewer interrupts than this, shares mean nothing.
const FEW: f64 = 40.0;

/// With fewer interrupts than this, we can't compare the recordings before and after the advice.
const MANY: f64 = 200.0;

/// A program that is ready to run.
struct Program {
    /// The program's name in the kernel.
    name: String,
    /// The call by which it interrupts other CPUs.
    call: String,
    before: Vec<String>,
    after: Vec<String>,
}

/// The recording of a program.
struct RecordingOutput {
    json: Value,
    /// The output of the recording in a terminal.
    shown: String,
    /// The recorder's messages.
    told: String,
    operations: f64,
}

fn skipped(what: &str, why: &str) {
    // Every run must show this, but the harness captures `eprintln!`.
    let line = format!("SKIPPED: recording {what}: {}\n", why.trim());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prepares a program, or returns the reason why that's impossible.
fn ready(what: &str) -> Result<Program, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let made = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let output = Command::new(root.join("scripts/real-program"))
        .args([what, SECONDS])
        .env("CARGO_TARGET_DIR", made)
        .output()
        .map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        return Err(errors);
    }
    assert!(output.status.success(), "{errors}");
    let told = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    let [name, call, _, before, after] = lines[..] else {
        panic!("{told}");
    };
    let words = |line: &str| line.split('\t').map(str::to_owned).collect();
    Ok(Program {
        name: name.to_owned(),
        call: call.to_owned(),
        before: words(before),
        after: words(after),
    })
}

/// Records the command, or returns the reason why this host can't.
///
/// On a busy host, the recorder may have too little time to see most events that the kernel counts. Then we try a few
/// more times, also without a limit on the cost. If so many events are lost even then that they may be the cause, this
/// host can't show anything. If few are lost, a wrong attribution is a mistake.
fn recorded(command: &[String]) -> Result<RecordingOutput, String> {
    let mut once = recorded_once(command, "1")?;
    for overhead in ["100", "1", "100"] {
        if once.is_laid() {
            break;
        }
        once = recorded_once(command, overhead)?;
    }
    match once.is_laid() || !once.lacks_what_was_lost() {
        true => Ok(once),
        false => Err(format!(
            "{} events were lost, and what is left says too little",
            once.lost()
        )),
    }
}

fn recorded_once(command: &[String], overhead: &str) -> Result<RecordingOutput, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["record", "--json", "--overhead", overhead, "-o"])
        .arg(&file)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("cannot record") {
        return Err(errors);
    }
    assert!(output.status.success(), "{errors}");
    let json = String::from_utf8_lossy(&output.stdout).into_owned();
    // The command's own output comes on standard error, before ours.
    let operations = errors.split_whitespace().next();
    let operations = operations.and_then(|number| number.parse().ok());
    let shown = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["record", "--import"])
        .arg(&file)
        .output()
        .unwrap();
    Ok(RecordingOutput {
        shown: String::from_utf8(shown.stdout).unwrap(),
        json: serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}")),
        operations: operations.unwrap_or_else(|| panic!("{command:?} said: {errors}")),
        told: errors,
    })
}

impl RecordingOutput {
    /// Returns the number of interrupts in `/proc/interrupts`.
    fn counted(&self) -> f64 {
        self.json["interrupts"].as_f64().unwrap()
    }

    /// Returns the number of events that the recorder lost.
    fn lost(&self) -> u64 {
        self.json["lost"].as_u64().unwrap()
    }

    /// Returns the number of interrupts that a program sent by calls that match `of`; `None` means any program.
    fn sent(&self, program: Option<&str>, of: impl Fn(&str) -> bool) -> f64 {
        let is = |site: &&Value| {
            let stack = site["stack"].as_array().unwrap();
            let last = stack.last().unwrap().as_str().unwrap();
            program.is_none_or(|name| last == format!("[{name}]"))
                && of(site["call"].as_str().unwrap())
        };
        let sites = self.json["sites"].as_array().unwrap().iter().filter(is);
        sites.fold(0.0, |sum, site| sum + site["interrupts"].as_f64().unwrap())
    }

    /// Returns the number of events in the recording.
    fn kept(&self) -> u64 {
        let (_, told) = self.told.split_once("recorded ").unwrap();
        told.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Returns the number of counted interrupts that are attributed to calls and reasons.
    fn laid(&self) -> f64 {
        let attributed = self.json["attributed"].as_f64().unwrap();
        attributed - self.sent(None, |call| call == "kernel mappings")
    }

    /// Returns whether lost events may explain the interrupts without a cause. Either as many events as those
    /// interrupts were lost, or more than a twentieth of the recording.
    fn lacks_what_was_lost(&self) -> bool {
        let (lost, missing) = (self.lost(), self.counted() - self.laid());
        lost > 0 && missing > 0.0 && (lost as f64 >= missing || lost * 20 > self.kept())
    }

    /// Returns whether the interrupts are attributed to calls and reasons, or are too few to judge.
    fn is_laid(&self) -> bool {
        let counted = self.counted();
        let share = self.laid() / counted;
        // We read `/proc/interrupts` a little before the first event and a little after the last one.
        let around = FEW / 4.0 / counted.max(1.0);
        counted < FEW || (0.95 - around..1.05 + around).contains(&share)
    }

    /// Checks that most interrupts in `/proc/interrupts` are attributed to a call or a reason, and no more than those.
    ///
    /// This includes all programs on the host. Events may be lost, but the loss must be reported. We don't limit the
    /// loss: it depends on how long a busy host keeps the reader waiting, and these programs fill a buffer in a
    /// fraction of a second. The tests of quell-record check that events that fit into a buffer aren't lost.
    fn all_is_laid_at_a_cause(&self) {
        assert!(self.is_laid(), "{}", self.json);
        let lost = self.lost();
        assert!(
            self.told.contains(&format!("; {lost} lost;")),
            "{lost} of {}",
            self.told
        );
        assert_eq!(
            [" event was lost", " events were lost"]
                .iter()
                .any(|said| self.shown.contains(said)),
            lost > 0,
            "{lost} of {}",
            self.shown
        );
    }
}

#[test]
fn few_lost_events_do_not_excuse_that_interrupts_are_laid_at_nothing() {
    let of = |attributed: u64, lost: u64| RecordingOutput {
        json: serde_json::json!({"sites": [], "interrupts": 1000, "attributed": attributed, "lost": lost}),
        shown: String::new(),
        told: format!("recorded 5000 events in 5.0 s; {lost} lost; overhead 1.00 %"),
        operations: 1.0,
    };
    assert!(of(980, 3).is_laid());
    for (attributed, lost, excused) in [
        (600, 0, false),
        (600, 1, false),
        (600, 250, false),
        (600, 251, true),
        (900, 100, true),
        // Events attributed too often weren't lost.
        (1200, 300, false),
    ] {
        let recorded = of(attributed, lost);
        assert!(!recorded.is_laid(), "{attributed}");
        assert_eq!(
            recorded.lacks_what_was_lost(),
            excused,
            "{attributed} {lost}"
        );
    }
}

/// Checks that a program interrupts mostly by its call, and less often for each operation if the advice is followed.
fn is_laid_at_its_call_and_goes_as_advised(what: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let both = ready(what).and_then(|program| {
        let before = recorded(&program.before)?;
        let after = recorded(&program.after)?;
        Ok((program, before, after))
    });
    let (program, before, after) = match both {
        Ok(both) => both,
        Err(why) => return skipped(what, &why),
    };
    before.all_is_laid_at_a_cause();
    after.all_is_laid_at_a_cause();
    let of = |recorded: &RecordingOutput| {
        recorded.sent(Some(&program.name), |call| call == program.call)
    };
    let all = before.sent(Some(&program.name), |_| true);
    if all < FEW {
        // The program's threads didn't run at the same time.
        return skipped(
            what,
            &format!("it sent {all} interrupts, too few to tell whose they are"),
        );
    }
    assert!(of(&before) * 2.0 > all, "{}", before.json);
    if of(&before) < MANY {
        // With so few, the number for each operation depends on which threads ran at the same time.
        return skipped(
            what,
            &format!(
                "it sent {all} interrupts, as they should be laid, but too few to compare what is advised with"
            ),
        );
    }
    let each = |recorded: &RecordingOutput| of(recorded) / recorded.operations;
    assert!(
        each(&after) < each(&before) / 2.0,
        "{} for each operation were {}: {}",
        each(&after),
        each(&before),
        after.json
    );
}

/// On some kernels these interrupts use the vector of shootdowns. On all kernels they are counted in the same row of
/// `/proc/interrupts` as other function calls.
#[test]
#[ignore = "records a live host for seconds: `cargo xtask ci host`"]
fn what_a_program_sends_by_membarrier_is_told_apart_from_shootdowns() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let what = "a program that calls membarrier";
    if !Path::new("/sys/kernel/tracing/events/csd/csd_queue_cpu").exists() {
        return skipped(
            what,
            "this kernel does not say which functions its interrupts call",
        );
    }
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../profiler/record/programs/barriers.py"
    );
    let works = Command::new("python3").args([program, "0.1"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return skipped(what, "there is no Python with ctypes, or no membarrier");
    }
    let command = ["python3", program, "3"].map(str::to_owned);
    // The program sends hundreds of thousands a second. On a busy host the recorder may not run often enough and lose
    // most.
    let mut tries = 0..3;
    let recorded = loop {
        match recorded_once(&command, "100") {
            Ok(recorded)
                if recorded.json["lost"].as_f64() > Some(MANY) && tries.next().is_some() => {}
            Ok(recorded) => break recorded,
            Err(why) => return skipped(what, &why),
        }
    };
    let most = &recorded.json["others"][0];
    assert_eq!(most["cause"], "membarrier", "{}", recorded.json);
    let sent = most["count"].as_f64().unwrap();
    if sent < MANY {
        return skipped(
            what,
            &format!("it sent {sent} interrupts: its threads did not run side by side"),
        );
    }
    // Some of the time, both threads run on one CPU, or the other thread is preempted.
    assert!(sent <= recorded.operations * 1.05, "{}", recorded.json);
    let shootdowns = recorded.sent(Some("python3"), |_| true);
    assert!(shootdowns * 10.0 < sent, "{}", recorded.json);
    let told = |line: &str| line.starts_with("Not TLB") && line.contains("for membarrier");
    assert!(recorded.shown.lines().any(told), "{}", recorded.shown);
}

macro_rules! programs {
    ($($test:ident: $what:literal,)*) => {
        $(
            #[test]
            #[ignore = "records a live host for seconds: `cargo xtask ci host`"]
            fn $test() {
                is_laid_at_its_call_and_goes_as_advised($what);
            }
        )*
    };
}

programs! {
    what_jemalloc_gives_back_at_once_is_laid_at_its_madvise: "jemalloc",
    what_mimalloc_gives_back_at_once_is_laid_at_its_madvise: "mimalloc",
    what_a_go_program_gives_back_is_laid_at_its_madvise: "go",
    what_wasmtime_decommits_is_laid_at_its_madvise: "wasmtime",
    what_is_reclaimed_of_lmdb_beyond_its_limit_is_laid_at_the_limit: "lmdb",
    what_redis_copies_during_a_snapshot_is_laid_at_the_fork: "redis",
    what_postgres_copies_for_connections_is_laid_at_the_fork: "postgres",
    what_a_search_maps_for_a_moment_is_laid_at_its_munmap: "ag",
}

//! A workload made from a recording makes as many shootdowns as the recording, and any recording gives a valid file.

use std::path::Path;

use assert_cmd::Command;
use predicates::str::contains;
use proptest::prelude::*;
use quell_record::perf::{Frame, Item, Sample, Value};
use quell_record::workload::Calls;
use quell_workloads::Workload;

const PERF: &str = include_str!("../../profiler/record/tests/recordings/perf.txt");
const CALLS: [&str; 3] = ["madvise", "munmap", "mprotect"];

fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(args);
    command
}

fn document(args: &[&str]) -> serde_json::Value {
    let output = quell(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the recording without the lines of system calls that aren't in `wanted`.
fn calls_of(wanted: &[&str]) -> String {
    let mut kept = String::new();
    let mut keeps = true;
    for line in PERF.lines() {
        if !line.starts_with('\t') && !line.is_empty() {
            let call = ["syscalls:sys_enter_", "syscalls:sys_exit_"]
                .iter()
                .find_map(|end| line.split_once(end));
            keeps = call.is_none_or(|(_, call)| wanted.iter().any(|name| call.starts_with(name)));
        }
        if keeps {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Counts in the recording's text how often the working thread made another CPU flush during this call.
fn asked(call: &str) -> u64 {
    let mut within = false;
    let mut count = 0;
    for line in PERF.lines().filter(|line| line.contains("/16075 ")) {
        if line.contains("syscalls:sys_") {
            within = line.contains(&format!("sys_enter_{call}:"));
        }
        let queues = line.contains("csd:csd_queue_cpu:") && line.contains("func=flush_tlb_func");
        count += u64::from(within && queues);
    }
    count
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_workload_asks_as_often_as_the_recording_did_with_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording.txt");
    let workload = folder.path().join("recorded.toml");
    for call in CALLS {
        std::fs::write(&recording, calls_of(&[call])).unwrap();
        let recorded = asked(call);
        let record = [
            "record",
            "--import",
            text(&recording),
            "--program",
            "churn",
            "--workload",
            text(&workload),
        ];
        quell(&record).assert().success();
        assert!(recorded > 0, "{call}");
        for policy in ["baseline", "all-S3"] {
            let run =
                document(&["run", text(&workload), "--policy", policy, "--seeds", "1", "--json"]);
            assert_eq!(run["violations"], 0);
            let made = run["engine"]["shootdowns"].as_u64().unwrap();
            assert!(
                made.abs_diff(recorded) * 10 <= recorded,
                "{call}, {policy}: {made} shootdowns, recorded were {recorded}"
            );
        }
    }
}

#[test]
fn the_whole_recording_runs_under_the_adversary_and_in_a_sweep_too() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording.txt");
    let workload = folder.path().join("recorded.toml");
    std::fs::write(&recording, PERF).unwrap();
    let recorded = ["record", "--import", text(&recording), "--workload", text(&workload)];
    quell(&recorded).assert().success().stdout(contains("Wrote the workload to"));
    let results = folder.path().join("results.jsonl");
    let sweep = ["sweep", text(&workload), "--results", text(&results)];
    quell(&sweep).assert().success();
    let explore = ["explore", text(&workload), "--param", "rounds=1", "--schedules", "5"];
    quell(&explore).assert().success();
}

/// Returns the results of `--replay` for a recording.
fn replay(recording: &str, options: &[&str]) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.txt");
    std::fs::write(&path, recording).unwrap();
    let args = ["record", "--import", text(&path), "--replay", "--json"];
    document(&[&args, options].concat())["replay"].clone()
}

/// Returns the change of this kernel mechanism, or of this number of calls merged into one.
fn change(replay: &serde_json::Value, wanted: &serde_json::Value) -> serde_json::Value {
    let all = replay["changes"].as_array().unwrap();
    let is = |change: &&serde_json::Value| {
        let what = &change["what"];
        &what["mechanism"]["name"] == wanted || &what["merged"]["calls"] == wanted
    };
    all.iter().find(is).unwrap().clone()
}

#[test]
fn a_replay_sends_the_recorded_interrupts_and_fewer_for_larger_calls() {
    let found = replay(PERF, &["--machine", "haswell-server"]);
    let recorded: u64 = CALLS.iter().map(|call| asked(call)).sum();
    assert_eq!(found["recorded"], recorded);
    let made = found["replayed"].as_u64().unwrap();
    assert!(made.abs_diff(recorded) * 10 <= recorded, "{found}");
    assert_eq!(found["violations"], 0);
    let merged = change(&found, &16.into());
    let least = |of: &str| merged[of][0].as_f64().unwrap();
    assert!(merged["matters"].as_bool().unwrap(), "{merged}");
    assert!(least("interrupts") > 0.8 && least("time") > 0.3, "{merged}");
    // One thread discards one page 16 times, so batches of reclaim and lazy unmap can't save anything.
    for mechanism in ["S0", "S3"] {
        assert_eq!(change(&found, &mechanism.into())["matters"], false, "{found}");
    }
}

#[test]
fn a_replay_follows_what_interrupts_cost_in_the_recording() {
    let told = replay(PERF, &[]);
    // Without the ends of flushes and interrupts, a prediction can't use the recorded costs.
    let mut keeps = true;
    let mut untold = String::new();
    for line in PERF.lines() {
        if !line.starts_with('\t') && !line.is_empty() {
            keeps = !line.contains("csd:csd_function") && !line.contains("irq_vectors:");
        }
        if keeps {
            untold.push_str(line);
            untold.push('\n');
        }
    }
    let untold = replay(&untold, &[]);
    assert!(told["price"].is_object() && untold["price"].is_null());
    let saved = |replay| change(replay, &16.into())["time"].clone();
    let width = |range: serde_json::Value| range[1].as_f64().unwrap() - range[0].as_f64().unwrap();
    // The recording is of a virtual machine. The machine file is of real hardware, where an interrupt is cheap.
    assert!(saved(&told)[0].as_f64() > saved(&untold)[1].as_f64(), "{told} {untold}");
    assert!(width(saved(&told)) > 0.0 && width(saved(&untold)) > 0.0);
}

#[test]
fn what_a_replay_finds_is_said_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording.txt");
    std::fs::write(&recording, PERF).unwrap();
    let args = ["record", "--import", text(&recording), "--replay"];
    quell(&args)
        .assert()
        .success()
        .stdout(contains("Predicted effect of changes"))
        .stdout(contains("one call instead of 16"))
        .stdout(contains("next limit"));
    // Without system calls there is nothing to replay.
    std::fs::write(&recording, calls_of(&[])).unwrap();
    quell(&args)
        .assert()
        .success()
        .stdout(contains("Nothing is predicted: the recording has no madvise"));
    quell(&["record", "--import", text(&recording), "--machine", "milan"])
        .assert()
        .code(2)
        .stderr(contains("--replay"));
}

#[test]
fn a_recording_without_calls_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording.txt");
    let workload = folder.path().join("recorded.toml");
    std::fs::write(&recording, calls_of(&[])).unwrap();
    let args = ["record", "--import", text(&recording), "--workload", text(&workload)];
    quell(&args)
        .assert()
        .code(1)
        .stderr(contains("recording.txt"))
        .stderr(contains("syscalls:sys_enter_"));
    assert!(!workload.exists());
}

fn sample() -> impl Strategy<Value = Item> {
    let event = prop_oneof![
        (
            prop::sample::select(vec!["madvise", "munmap", "mprotect", "mremap", "brk"]),
            prop_oneof![any::<u64>(), 0..100_000u64],
            0..22u64
        )
            .prop_map(|(call, bytes, how)| {
                let fields = vec![
                    ("len".into(), Value::Unsigned(bytes)),
                    ("behavior".into(), Value::Unsigned(how)),
                ];
                (format!("syscalls:sys_enter_{call}"), fields)
            }),
        Just(("syscalls:sys_exit_any".to_owned(), Vec::new())),
        prop_oneof![any::<u64>(), 0..64u64].prop_map(|pages| {
            let fields = vec![
                ("reason".into(), Value::Unsigned(4)),
                ("pages".into(), Value::Unsigned(pages)),
            ];
            ("tlb:tlb_flush".to_owned(), fields)
        }),
    ];
    let time = prop_oneof![any::<u64>(), 0..1_000_000u64];
    let within = prop::sample::select(vec!["do_madvise", "wp_page_copy", "do_try_to_free_pages"]);
    let who = (0..3u32, 0..60u32, ".{0,4}");
    (event, who, within, time).prop_map(|((event, fields), (pid, tid, comm), within, at)| {
        Item::Sample(Sample {
            time_ns: at,
            cpu: 0,
            pid,
            tid,
            comm: comm.into(),
            event: event.into(),
            fields,
            stack: [frame(within)].into(),
        })
    })
}

/// Returns a frame of the kernel's stack.
fn frame(symbol: &str) -> Frame {
    Frame { address: 0, kernel: true, symbol: Some(symbol.into()), module: None }
}

/// Returns a recording in which the kernel flushes in this function, and each flush interrupts one CPU. Each process
/// has `count` flushes.
fn flushes(within: &str, processes: u32, count: u64) -> Calls {
    let mut calls = Calls::default();
    let stack: std::sync::Arc<[Frame]> = [frame("flush_tlb_mm_range"), frame(within)].into();
    for at in 0..count {
        for process in 1..=processes {
            let mut sample = Sample {
                time_ns: at * 100_000,
                cpu: process,
                pid: process,
                tid: process,
                comm: "server".into(),
                event: "tlb:tlb_flush".into(),
                fields: vec![
                    ("reason".into(), Value::Unsigned(4)),
                    ("pages".into(), Value::Unsigned(1)),
                ],
                stack: stack.clone(),
            };
            calls.item(&Item::Sample(sample.clone()));
            sample.event = "csd:csd_queue_cpu".into();
            sample.fields = vec![
                ("cpu".into(), Value::Unsigned(9)),
                ("func".into(), Value::Text("flush_tlb_func".into())),
            ];
            calls.item(&Item::Sample(sample));
        }
    }
    calls
}

#[test]
fn what_the_kernel_flushes_in_a_thread_is_done_again_in_each_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recorded.toml");
    for (within, said, pages) in
        [("wp_page_copy", "fork = ", 1), ("try_to_free_mem_cgroup_pages", "page_out = ", 32)]
    {
        for processes in [1, 3] {
            let count = 640;
            let written = flushes(within, processes, count).busiest(None).unwrap().workload();
            let all = u64::from(processes) * count;
            assert_eq!((written.asked, written.interrupts), (all, Some(all)));
            assert!(written.text.contains(said), "{}", written.text);
            std::fs::write(&path, &written.text).unwrap();
            let run = |policy| {
                let args = ["run", text(&path), "--policy", policy, "--seeds", "1", "--json"];
                document(&args)
            };
            let run_as_linux = run("baseline");
            assert_eq!(run_as_linux["violations"], 0);
            let made = run_as_linux["engine"]["shootdowns"].as_u64().unwrap();
            // Without batches (S0) a reclaim flushes each page alone. A fork flushes once for 64 copies.
            let wanted = all * pages;
            assert!(
                made.abs_diff(wanted) * 20 <= wanted,
                "{within}, {processes}: {made} shootdowns, recorded were {wanted}\n{}",
                written.text
            );
            if pages > 1 {
                let made = run("S0")["engine"]["shootdowns"].as_u64().unwrap();
                assert!(made.abs_diff(all) * 20 <= all, "{made} {all}");
            }
        }
    }
    // No call causes the flushes of the kernel's own threads.
    assert!(flushes("balance_pgdat", 1, 5).busiest(None).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any recording gives a file that can be read and run, or an error because it contains no call.
    #[test]
    fn any_recording_gives_a_workload_or_an_error(items in prop::collection::vec(sample(), 1..400)) {
        let mut calls = Calls::default();
        for item in &items {
            calls.item(item);
        }
        match calls.busiest(None) {
            Ok(process) => {
                let text = process.workload().text;
                let read = Workload::parse("recorded.toml", &text);
                let workload = read.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
                prop_assert_eq!(workload.check(workload.cpus()), Ok(()));
                prop_assert!(workload.touched(workload.cpus()).is_ok());
            }
            Err(error) => prop_assert!(error.to_string().contains("has no madvise")),
        }
    }
}

#[test]
fn advice_alone_is_what_the_whole_report_advises() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.txt");
    std::fs::write(&file, PERF).unwrap();
    let name = text(&file);
    let whole = document(&["record", "--json", "--import", name]);
    let alone = document(&["advise", "--json", name]);
    assert!(!whole["advice"].as_array().unwrap().is_empty());
    assert_eq!(alone["advice"], whole["advice"]);
    let output = quell(&["advise", name]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    // The output has the answer, the table before and after each change, and no other table.
    let first = &whole["advice"][0];
    let (_, table) = shown.split_once("before and after each change").unwrap();
    let row = table.lines().find(|line| line.contains(first["kind"].as_str().unwrap()));
    assert!(row.is_some_and(|row| row.contains(&first["interrupts"].to_string())), "{shown}");
    assert!(shown.contains("In code") && !shown.contains("Cost for each program"), "{shown}");
    quell(&["advise"]).assert().code(2).stderr(contains("FILE"));
    quell(&["advise", "/nonexistent"]).assert().failure().stderr(contains("/nonexistent"));
}

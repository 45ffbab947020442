//! A workload made from a recording makes as many calls and shootdowns as the recording. Any recording gives a valid
//! file.

use crate::command::{Folder, PERF, run};
use proptest::prelude::*;
use quell_record::perf::{Frame, Item, Sample, Value};
use quell_record::workload::Calls;
use quell_workloads::Workload;

const CALLS: [&str; 3] = ["madvise", "munmap", "mprotect"];

/// Returns the recording without the events that `wanted` refuses, by their first line.
fn events(wanted: impl Fn(&str) -> bool) -> String {
    let mut keeps = true;
    let kept = PERF.lines().filter(|line| {
        if !line.starts_with('\t') && !line.is_empty() {
            keeps = wanted(line);
        }
        keeps
    });
    kept.map(|line| format!("{line}\n")).collect()
}

/// Returns the recording without the system calls that aren't in `wanted`.
fn calls_of(wanted: &[&str]) -> String {
    let ends = ["syscalls:sys_enter_", "syscalls:sys_exit_"];
    events(|line| {
        let call = ends.iter().find_map(|end| Some(line.split_once(end)?.1));
        call.is_none_or(|call| wanted.iter().any(|name| call.starts_with(name)))
    })
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

/// Runs the workload in `recorded.toml`, and returns its results.
fn rerun(folder: &Folder, policy: &str) -> serde_json::Value {
    let run = format!("run recorded.toml --policy {policy} --seeds 1 --json");
    let found = folder.document(&run);
    assert_eq!(found["violations"], 0);
    found
}

fn shootdowns(found: &serde_json::Value) -> u64 {
    found["engine"]["shootdowns"].as_u64().unwrap()
}

#[test]
fn a_workload_asks_as_often_as_the_recording_did_with_each_call() {
    let folder = Folder::new();
    for call in CALLS {
        folder.write("recording", calls_of(&[call]));
        let recorded = asked(call);
        assert!(recorded > 0, "{call}");
        let record = "record --import recording --program churn --workload recorded.toml";
        folder.run(record).code(0);
        for policy in ["baseline", "all-S3"] {
            let made = shootdowns(&rerun(&folder, policy));
            assert!(
                made.abs_diff(recorded) * 10 <= recorded,
                "{call}, {policy}: {made} shootdowns, recorded were {recorded}"
            );
        }
    }
}

#[test]
fn the_whole_recording_runs_under_the_adversary_and_in_a_sweep_too() {
    let folder = Folder::new();
    folder.write("recording", PERF);
    let record = folder.run("record --import recording --workload recorded.toml");
    record.code(0).stdout("Wrote the workload to");
    folder.run("sweep recorded.toml --results results.jsonl").code(0);
    folder.run("explore recorded.toml --param rounds=1 --schedules 5").code(0);
}

/// Returns the results of `--replay` for a recording.
fn replay(recording: &str, options: &str) -> serde_json::Value {
    let folder = Folder::new();
    folder.write("recording", recording);
    let replay = format!("record --import recording --replay --json {options}");
    folder.document(&replay)["replay"].clone()
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
    let found = replay(PERF, "--machine haswell-server");
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
    let told = replay(PERF, "");
    // Without the ends of flushes and interrupts, a prediction can't use the recorded costs.
    let is_an_end = |line: &str| line.contains("csd:csd_function") || line.contains("irq_vectors:");
    let untold = replay(&events(|line| !is_an_end(line)), "");
    assert!(told["price"].is_object() && untold["price"].is_null());
    let saved = |replay| change(replay, &16.into())["time"].clone();
    let width = |range: serde_json::Value| range[1].as_f64().unwrap() - range[0].as_f64().unwrap();
    // The recording is of a virtual machine. The machine file is of real hardware, where an interrupt is cheap.
    assert!(saved(&told)[0].as_f64() > saved(&untold)[1].as_f64(), "{told} {untold}");
    assert!(width(saved(&told)) > 0.0 && width(saved(&untold)) > 0.0);
}

#[test]
fn what_a_replay_finds_is_said_in_words() {
    let folder = Folder::new();
    folder.write("recording", PERF);
    let replay = "record --import recording --replay";
    folder
        .run(replay)
        .code(0)
        .stdout("Predicted effect of changes")
        .stdout("one call instead of 16")
        .stdout("next limit");
    // Without system calls there is nothing to replay, and no workload.
    folder.write("recording", calls_of(&[]));
    let nothing = folder.run(replay).code(0);
    nothing.stdout("Nothing is predicted: the recording has no madvise");
    let refused = folder.run("record --import recording --workload recorded.toml").code(1);
    refused.stderr("recording").stderr("syscalls:sys_enter_");
    assert!(!folder.has("recorded.toml"));
    folder.run("record --import recording --machine milan").code(2).stderr("--replay");
}

/// Returns an event of the first thread of a process, whose kernel's stack ends in `stack`.
fn event(
    time_ns: u64,
    process: u32,
    event: &str,
    fields: &[(&'static str, Value)],
    stack: &[&str],
) -> Sample {
    let frame = |symbol: &&str| Frame {
        address: 0,
        kernel: true,
        symbol: Some((*symbol).into()),
        module: None,
    };
    Sample {
        time_ns,
        cpu: process,
        pid: process,
        tid: process,
        comm: "server".into(),
        event: event.to_owned().into(),
        fields: fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect(),
        stack: stack.iter().map(frame).collect(),
    }
}

/// Returns the event of a flush that interrupts another CPU.
fn interrupt(time_ns: u64, process: u32, stack: &[&str]) -> Sample {
    let fields = [("cpu", Value::Unsigned(9)), ("func", Value::Text("flush_tlb_func".into()))];
    event(time_ns, process, "csd:csd_queue_cpu", &fields, stack)
}

fn sample() -> impl Strategy<Value = Item> {
    let size = || prop_oneof![any::<u64>(), 0..100_000u64];
    let of = prop_oneof![
        (prop::sample::select(vec!["madvise", "munmap", "mprotect", "mremap", "brk"]), 0..22u64)
            .prop_map(|(call, how)| (format!("syscalls:sys_enter_{call}"), "len", "behavior", how)),
        Just(("syscalls:sys_exit_any".to_owned(), "len", "behavior", 0)),
        Just(("tlb:tlb_flush".to_owned(), "pages", "reason", 4)),
    ];
    let within = prop::sample::select(vec!["do_madvise", "wp_page_copy", "do_try_to_free_pages"]);
    let who = (0..3u32, 0..60u32, ".{0,4}");
    (of, size(), who, within, size()).prop_map(
        |((name, sized, other, how), bytes, (pid, tid, comm), within, at)| {
            let fields = [(sized, Value::Unsigned(bytes)), (other, Value::Unsigned(how))];
            let sample = event(at, pid, &name, &fields, &[within]);
            Item::Sample(Sample { cpu: 0, tid, comm: comm.into(), ..sample })
        },
    )
}

/// Returns a recording in which the kernel flushes in this function, and each flush interrupts one CPU. Each process
/// has `count` flushes.
fn flushes(within: &str, processes: u32, count: u64) -> Calls {
    let mut calls = Calls::default();
    let stack = ["flush_tlb_mm_range", within];
    let fields = [("reason", Value::Unsigned(4)), ("pages", Value::Unsigned(1))];
    for at in (0..count).map(|at| at * 100_000) {
        for process in 1..=processes {
            let flush = event(at, process, "tlb:tlb_flush", &fields, &stack);
            calls.item(&Item::Sample(flush));
            calls.item(&Item::Sample(interrupt(at, process, &stack)));
        }
    }
    calls
}

#[test]
fn what_the_kernel_flushes_in_a_thread_is_done_again_in_each_process() {
    let folder = Folder::new();
    for (within, said, pages) in
        [("wp_page_copy", "fork = ", 1), ("try_to_free_mem_cgroup_pages", "page_out = ", 32)]
    {
        for processes in [1, 3] {
            let count = 640;
            let written = flushes(within, processes, count).busiest(None).unwrap().workload();
            let all = u64::from(processes) * count;
            assert_eq!((written.asked, written.interrupts), (all, Some(all)));
            assert!(written.text.contains(said), "{}", written.text);
            folder.write("recorded.toml", &written.text);
            let made = |policy, wanted: u64| {
                let made = shootdowns(&rerun(&folder, policy));
                assert!(
                    made.abs_diff(wanted) * 20 <= wanted,
                    "{within}, {processes}, {policy}: {made} shootdowns, not {wanted}\n{}",
                    written.text
                );
            };
            // Without batches (S0) a reclaim flushes each page alone. A fork flushes once for 64 copies.
            made("baseline", all * pages);
            if pages > 1 {
                made("S0", all);
            }
        }
    }
    // No call causes the flushes of the kernel's own threads.
    assert!(flushes("balance_pgdat", 1, 5).busiest(None).is_err());
}

#[test]
fn each_call_is_made_as_often_as_it_was_recorded_in_each_process() {
    let turn = [
        ("madvise", 16384, true),
        ("madvise", 16384, true),
        ("munmap", 8192, true),
        ("mprotect", 4096, false),
    ];
    let mut all = turn.repeat(50);
    all.push(("munmap", 1 << 20, true));
    for processes in [1, 3] {
        let mut calls = Calls::default();
        for (at, &(call, bytes, interrupts)) in (0..).zip(&all) {
            let at = at * 10_000;
            for process in 1..=processes {
                let fields = [("len", Value::Unsigned(bytes)), ("behavior", Value::Unsigned(4))];
                let enter = format!("syscalls:sys_enter_{call}");
                calls.item(&Item::Sample(event(at, process, &enter, &fields, &[])));
                if interrupts {
                    calls.item(&Item::Sample(interrupt(at + 500, process, &[])));
                }
                let exit = format!("syscalls:sys_exit_{call}");
                calls.item(&Item::Sample(event(at + 1000, process, &exit, &[], &[])));
            }
        }
        let written = calls.busiest(None).unwrap().workload();
        let processes = u64::from(processes);
        assert_eq!(written.calls, processes * 201);
        let folder = Folder::new();
        folder.write("recorded.toml", &written.text);
        let found = rerun(&folder, "baseline");
        let calls =
            found["latencies"].as_array().unwrap().iter().filter(|of| {
                ["discard", "unmap", "protect"].contains(&of["call"].as_str().unwrap())
            });
        let made: u64 = calls.map(|of| of["count"].as_u64().unwrap()).sum();
        assert_eq!((made, shootdowns(&found)), (processes * 201, processes * 151));
    }
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
    let folder = Folder::new();
    folder.write("recording", PERF);
    let whole = folder.document("record --json --import recording");
    let alone = folder.document("advise --json recording");
    assert!(!whole["advice"].as_array().unwrap().is_empty());
    assert_eq!(alone["advice"], whole["advice"]);
    // The output has the answer, the table before and after each change, and no other table.
    let shown = folder.run("advise recording").code(0).stdout("In code").stdout;
    let first = &whole["advice"][0];
    let (_, table) = shown.split_once("before and after each change").unwrap();
    let row = table.lines().find(|line| line.contains(first["kind"].as_str().unwrap()));
    assert!(row.is_some_and(|row| row.contains(&first["interrupts"].to_string())), "{shown}");
    assert!(!shown.contains("Cost for each program"), "{shown}");
    run("advise").code(2).stderr("FILE");
    run("advise /nonexistent").stderr("/nonexistent");
}

//! A workload made from a recording makes each thread's calls as often as they were recorded.

use assert_cmd::Command;
use quell_record::perf::{Item, Sample, Value};
use quell_record::workload::Calls;

/// Returns a recording of these processes, each with one thread that makes these calls. A call has its name, its number
/// of bytes, and whether it interrupts another CPU.
fn called(processes: u32, all: &[(&str, u64, bool)]) -> Calls {
    let mut calls = Calls::default();
    for (at, &(call, bytes, asks)) in (0..).zip(all) {
        for process in 1..=processes {
            let mut events = vec![(
                format!("syscalls:sys_enter_{call}"),
                vec![
                    ("len".into(), Value::Unsigned(bytes)),
                    ("behavior".into(), Value::Unsigned(4)),
                ],
            )];
            if asks {
                let fields = vec![
                    ("cpu".into(), Value::Unsigned(9)),
                    ("func".into(), Value::Text("flush_tlb_func".into())),
                ];
                events.push(("csd:csd_queue_cpu".into(), fields));
            }
            events.push((format!("syscalls:sys_exit_{call}"), Vec::new()));
            for (later, (event, fields)) in (0..).zip(events) {
                calls.item(&Item::Sample(Sample {
                    time_ns: at * 10_000 + later * 500,
                    cpu: process,
                    pid: process,
                    tid: process,
                    comm: "server".into(),
                    event: event.into(),
                    fields,
                    stack: Vec::new().into(),
                }));
            }
        }
    }
    calls
}

/// Returns the number of calls in a run, and of its shootdowns.
fn made(text: &str, options: &[&str]) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recorded.toml");
    std::fs::write(&path, text).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_quell"));
    run.args(["run", path.to_str().unwrap(), "--policy", "baseline"]);
    run.args(["--seeds", "1", "--json"]).args(options);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["violations"], 0);
    let calls = run["latencies"].as_array().unwrap().iter();
    let calls =
        calls.filter(|of| ["discard", "unmap", "protect"].contains(&of["call"].as_str().unwrap()));
    let count = calls.map(|of| of["count"].as_u64().unwrap()).sum();
    (count, run["engine"]["shootdowns"].as_u64().unwrap())
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
        let written = called(processes, &all).busiest(None).unwrap().workload();
        let processes = u64::from(processes);
        assert_eq!(written.calls, processes * 201);
        let whole = made(&written.text, &[]);
        assert_eq!(whole, (processes * 201, processes * 151));
    }
}

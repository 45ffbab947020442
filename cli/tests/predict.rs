//! `quell predict` as a user runs it.

use assert_cmd::Command;
use predicates::str::contains;
use serde_json::Value;

fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.arg("predict").args(args);
    command
}

fn document(args: &[&str]) -> Value {
    let output = quell(args).arg("--json").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lines<'a>(document: &'a Value, workload: &str) -> Vec<&'a Value> {
    let all = document["predictions"].as_array().unwrap();
    all.iter().filter(|line| line["workload"] == workload).collect()
}

#[test]
fn without_a_machine_file_it_says_who_writes_one() {
    let empty = tempfile::tempdir().unwrap();
    quell(&[]).current_dir(empty.path()).assert().code(2).stderr(contains("quell measure host"));
}

#[test]
fn every_mechanism_is_predicted_or_says_why_not() {
    let found = document(&["--machine", "haswell-server", "--kernel", "baseline"]);
    for mechanism in ["S0", "S1", "S2", "S3", "S4"] {
        let all = found["predictions"].as_array().unwrap();
        let mut of_mechanism = all.iter().filter(|line| line["mechanism"] == mechanism).peekable();
        assert!(of_mechanism.peek().is_some(), "{mechanism} is missing");
        for line in of_mechanism {
            assert!(line["saves_percent"].is_f64() != line["refused"].is_string(), "{line}");
        }
    }
    assert_eq!(found["violations"], 0);
    assert!(!found["assumptions"].as_array().unwrap().is_empty());
    // Batching must save interrupts, whatever the times are, when pages are swapped out beside a spinning thread.
    let swap = lines(&found, "swap")[1];
    let count = |key: &str| swap[key].as_u64().unwrap();
    assert!(count("interrupts_with") < count("interrupts_without") / 4, "{swap}");
}

#[test]
fn what_the_kernel_has_is_shown_as_saved_already() {
    let found = document(&["--machine", "skylake-laptop", "--kernel", "S2"]);
    let pingpong = lines(&found, "pingpong");
    assert!(pingpong.iter().all(|line| line["in_kernel"] == true));
    assert_eq!(pingpong[1]["with_policy"], "S2");
    assert!(pingpong[1]["saves_percent"].as_f64().unwrap() > 0.0);
    // One CPU has no shootdowns, and the prediction must report that.
    assert!(lines(&found, "dontneed")[0]["refused"].is_string());
}

#[test]
fn a_wrong_policy_is_refused() {
    quell(&["--machine", "milan", "--kernel", "S9"])
        .assert()
        .code(2)
        .stderr(contains("as a policy: "));
}

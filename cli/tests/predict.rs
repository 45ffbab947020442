//! `quell predict` as a user runs it.

use crate::command::{Folder, document};
use serde_json::Value;

fn lines<'a>(document: &'a Value, key: &str, value: &str) -> Vec<&'a Value> {
    let all = document["predictions"].as_array().unwrap();
    all.iter().filter(|line| line[key] == value).collect()
}

#[test]
fn without_a_machine_file_it_says_who_writes_one() {
    Folder::new().run("predict").code(2).stderr("quell measure host");
}

#[test]
fn every_mechanism_is_predicted_or_says_why_not() {
    let found = document("predict --machine haswell-server --kernel baseline --json");
    for mechanism in ["S0", "S1", "S2", "S3", "S4"] {
        let lines = lines(&found, "mechanism", mechanism);
        assert!(!lines.is_empty(), "{mechanism} is missing");
        for line in lines {
            assert!(line["saves_percent"].is_f64() != line["refused"].is_string(), "{line}");
        }
    }
    assert_eq!(found["violations"], 0);
    assert!(!found["assumptions"].as_array().unwrap().is_empty());
    // Batching must save interrupts, whatever the times are, when pages are swapped out beside a spinning thread.
    let swap = lines(&found, "workload", "swap")[1];
    let count = |key: &str| swap[key].as_u64().unwrap();
    assert!(count("interrupts_with") < count("interrupts_without") / 4, "{swap}");
}

#[test]
fn what_the_kernel_has_is_shown_as_saved_already() {
    let found = document("predict --machine skylake-laptop --kernel S2 --json");
    let pingpong = lines(&found, "workload", "pingpong");
    assert!(pingpong.iter().all(|line| line["in_kernel"] == true));
    assert_eq!(pingpong[1]["with_policy"], "S2");
    assert!(pingpong[1]["saves_percent"].as_f64().unwrap() > 0.0);
    // One CPU has no shootdowns, and the prediction must report that.
    assert!(lines(&found, "workload", "dontneed")[0]["refused"].is_string());
}

//! Boots quell's own kernel, once for each case of the comparison.

use super::plan::Case;
use super::report::{Outcome, Side};
use crate::arch::Arch;
use crate::follow;
use crate::images::{Images, prepare};
use quell::Policy;
use quell_conformance::PolicyText;
use serde_json::Value;

/// Builds the kernel and its user program, unless they're up to date.
pub fn images() -> anyhow::Result<Images> {
    prepare(Arch::X86_64, None, false)
}

/// Returns the images for a case. They include the file of its workload, if that isn't built in.
pub fn with_file(images: &Images, case: &Case) -> anyhow::Result<Images> {
    match case.workload.is_built_in() {
        true => Ok(images.clone()),
        false => images.with_file(case.workload.name(), case.workload.text()),
    }
}

/// The number of pages that quell moves behind one flush: all of a call. Linux takes 512.
pub const MIGRATE_TOGETHER: u64 = 8192;

/// The time in microseconds between two timer ticks of a CPU that isn't idle. Debian's Linux has 250 ticks a second.
///
/// In the emulator one CPU runs until it waits or a timer fires. Without ticks, no other CPU would run while one moves
/// memory that it uses.
const TICK_US: u64 = 4_000;

/// Returns the kernel's command line for a case.
pub fn words(case: &Case, policy: Policy) -> Vec<String> {
    let parameters: Vec<_> =
        case.parameters.iter().map(|pair| pair.replacen('=', ":", 1)).collect();
    vec![
        format!("run={}", case.workload.name()),
        format!("policy={}", PolicyText(policy)),
        format!("team={}", case.team),
        format!("parameters={}", parameters.join(",")),
        format!("migrate_together={MIGRATE_TOGETHER}"),
        format!("tick_us={TICK_US}"),
        // This is in addition to the published mechanisms.
        "catch_up=yes".to_string(),
    ]
}

/// Returns the outcome of a case.
pub fn outcome(case: &Case, run: &follow::Outcome) -> Outcome {
    let event = |kind: &str| run.events.iter().find(|event| event["event"] == kind);
    if let Some(failed) = event("failed") {
        let text = |name: &str| failed[name].as_str().unwrap_or_default();
        return Err(format!("{}: {}", text("what"), text("why")));
    }
    if let Some(why) = &run.failure {
        return Err(why.clone());
    }
    side(case, event("workload").ok_or("the kernel reported nothing")?)
}

/// Creates a side of a row from the kernel's event.
fn side(case: &Case, event: &Value) -> Outcome {
    let count = |name: &str| {
        event[name].as_u64().ok_or_else(|| format!("the kernel's event has no {name}"))
    };
    let operations = case.workload.operations(count("done")?);
    if operations == 0 {
        return Err("no operation was done".to_string());
    }
    let per = |count: u64| count as f64 / operations as f64;
    // Loading a root without keeping its entries flushes, and so does leaving it for the kernel's.
    let mut whole = 0;
    for name in ["local_tags", "local_all", "loads_flushed", "unloads"] {
        whole += count(name)?;
    }
    let all = count("local_pages")? + whole;
    let remote = event["remote_invalidations"].as_u64();
    Ok(Side {
        operations,
        interrupts: per(count("shootdowns_taken")?),
        invalidations: per(all),
        local_invalidations: remote.map(|remote| per(all.saturating_sub(remote))),
        remote_invalidations: remote.map(per),
        whole_flushes: per(whole),
        instructions: per(count("window_ns")?),
        remark: doubt(case, operations, count("user_faults")?),
        spread: None,
    })
}

/// Returns evidence that the kernel didn't do the row's work.
fn doubt(case: &Case, operations: u64, faults: u64) -> Option<String> {
    (case.workload.faults() && faults < operations - operations / 50).then(|| {
        format!(
            "only {faults} faults in {operations} operations: the program read through stale \
             translations, so it read no page from the device again"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versus::plan;
    use serde_json::json;

    fn run(events: Vec<Value>, failure: Option<&str>) -> Outcome {
        let run = follow::Outcome {
            events,
            code: None,
            failure: failure.map(str::to_string),
            last_lines: Vec::new(),
            seconds: 1.0,
        };
        outcome(&plan::of("dontneed", 2)[0], &run)
    }

    #[test]
    fn counts_become_counts_per_operation() {
        let event = json!({
            "event": "workload", "done": 100, "window_ns": 5_000, "shootdowns_taken": 100,
            "local_pages": 150, "local_tags": 20, "local_all": 10, "loads_flushed": 15,
            "unloads": 5, "remote_invalidations": 100, "user_faults": 7,
        });
        let side = run(vec![event], None).unwrap();
        assert_eq!((side.instructions, side.interrupts), (50.0, 1.0));
        assert_eq!((side.invalidations, side.whole_flushes), (2.0, 0.5));
        assert_eq!(side.local_invalidations, Some(1.0));
        assert!(side.remark.unwrap().starts_with("only 7 faults in 100 operations"));
    }

    #[test]
    fn a_run_without_result_says_why() {
        let failed = json!({"event": "failed", "what": "memory", "why": "too little"});
        assert_eq!(run(vec![failed], Some("code 1")), Err("memory: too little".to_string()));
        assert_eq!(run(vec![], Some("no end")), Err("no end".to_string()));
        assert!(run(vec![], None).is_err());
        assert!(run(vec![json!({"event": "workload", "done": "many"})], None).is_err());
    }
}

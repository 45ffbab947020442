//! The rows of the comparison: workload variants that make both kernels do the same work.
//!
//! Linux defers flushes only while another CPU runs the address space, and flushes dirty pages one by one before it
//! writes them. So we have variants in which the other CPUs are busy in the same process, asleep in it, or absent, and
//! variants with dirty or clean pages.

use super::protocol::{Handover, Job};
use quell_workloads::Workload;

/// The amount of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// A fifth of the usual amount.
    Quick,
    /// This multiple of the usual amount.
    Times(u64),
}

impl Scale {
    fn of(self, usual: u64) -> u64 {
        match self {
            Scale::Quick => usual.div_ceil(5),
            Scale::Times(times) => usual * times,
        }
    }
}

/// One row of the comparison.
#[derive(Clone, Debug)]
pub struct Case {
    /// The workload with its parameters.
    pub workload: Workload,
    /// Distinguishes this row from others of the workload.
    pub variant: String,
    /// The parameters that differ from the defaults, for example `pages=512`.
    pub parameters: Vec<String>,
    /// The number of CPUs that take part. The machine's others are idle.
    pub team: u16,
    /// The way in which Linux's processes pass the CPU on, if they do.
    pub handover: Handover,
}

/// The rows of a machine.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The rows.
    pub cases: Vec<Case>,
    /// Requested workloads without rows on this machine, with the reason.
    pub without: Vec<String>,
}

/// Returns the rows of these workloads on a machine with this number of CPUs. Without workloads, returns those of all
/// built-in ones.
pub fn rows(workloads: &[Workload], cpus: u16, scale: Scale) -> anyhow::Result<Rows> {
    let mut rows = Rows::default();
    let all = Workload::all();
    let workloads = if workloads.is_empty() { &all } else { workloads };
    for workload in workloads {
        add(*workload, cpus, scale, &mut rows)?;
    }
    Ok(rows)
}

fn add(plain: Workload, cpus: u16, scale: Scale, rows: &mut Rows) -> anyhow::Result<()> {
    let Rows { cases, without } = rows;
    let mut case = |variant: &str, team: u16, parameters: &[&str], handover| {
        let mut workload = plain;
        for pair in parameters {
            workload.set(pair)?;
        }
        cases.push(Case {
            workload,
            variant: variant.to_string(),
            parameters: parameters.iter().map(ToString::to_string).collect(),
            team,
            handover,
        });
        anyhow::Ok(())
    };
    let usual = Handover::default();
    // This is the activity of the process's other CPUs.
    let others: &[(&str, &[&str])] = match cpus {
        1 => &[("alone", &[])],
        _ => &[
            ("others busy", &[]),
            // The pause is longer than any window, so no CPU wakes up in it to check whether the work is over.
            ("others asleep", &["idle=yes", "spin=1s"]),
        ],
    };
    // A user's file may have the name of a built-in workload.
    let name = if plain.is_built_in() { plain.name() } else { "" };
    match name {
        "dontneed" => {
            let much = format!("iterations={}", scale.of(5_000));
            for (variant, parameters) in others {
                case(variant, cpus, &[&[much.as_str()], *parameters].concat(), usual)?;
            }
        }
        "swap" => {
            // In the first rounds, the swap device grows.
            let much = format!("rounds={}", scale.of(10));
            for (kind, clean) in [("dirty", "clean=no"), ("clean", "clean=yes")] {
                for (variant, parameters) in others {
                    let variant = format!("{kind}, {variant}");
                    let all = [&[much.as_str(), clean], *parameters].concat();
                    case(&variant, cpus, &all, usual)?;
                }
            }
        }
        "migrate" => {
            let much = format!("rounds={}", scale.of(2).next_multiple_of(2));
            let size = "size=32M";
            if cpus == 1 {
                case("alone", cpus, &[&much, size], usual)?;
            } else {
                case("others busy", cpus, &[&much, size], usual)?;
                case("others read it", cpus, &[&much, size, "readers=yes"], usual)?;
            }
        }
        "demand" => {
            let much = format!("size={}M", scale.of(16).next_multiple_of(2));
            // We use no 2 MB pages, because the emulator counts each byte of `rep stosb`, with which Linux zeroes them.
            case("4 KB pages", cpus, &[&much, "page=4K"], usual)?;
        }
        "pingpong" => {
            let much = format!("switches={}", scale.of(20_000));
            case("sched_yield", 1, &[&much], Handover::Yield)?;
            case("eventfd", 1, &[&much], Handover::Eventfd)?;
        }
        "fileio" => {
            // We limit the number of requests with all their syncs instead of the time, so that windows contain the
            // same work. They contain all CPUs' instructions, so computing would measure the other CPUs.
            let much = format!("limit={}", scale.of(2_000));
            case("random writes", cpus, &[&much, "duration=60s", "compute=0"], usual)?;
        }
        "readers" => {
            // Each published process has many threads.
            let processes = if cpus < 4 { 1 } else { 2 };
            if cpus.is_multiple_of(processes) {
                let processes = u64::from(processes);
                let parameters = [
                    format!("processes={processes}"),
                    format!("threads={}", u64::from(cpus) / processes),
                    format!("size={}M", 84 / processes),
                    // Two thirds of the files, as published, but in one pool. Without a slow node both sides only drop
                    // pages and read them again.
                    "fast=56M".to_string(),
                    "slow=0".to_string(),
                    "ahead=2800".to_string(),
                    // Otherwise one thread may be so far ahead that it finds another thread's pages already read, or
                    // not. That would decide the row.
                    "together=yes".to_string(),
                    format!("passes={}", scale.of(1)),
                    // We count all CPUs' instructions, so computing would only hide the rest.
                    "compute=0".to_string(),
                ];
                let parameters = parameters.each_ref().map(String::as_str);
                case("clean pages, memory short", cpus, &parameters, usual)?;
            } else {
                without.push(format!(
                    "{}: {cpus} CPUs cannot be shared evenly by {processes} processes",
                    plain.name()
                ));
            }
        }
        "promote" => {
            // A reader that meets a page in migration sleeps until the emulator returns to its CPU. The first CPU's
            // pause after each move allows that. Without the pause, the reader might run at the next timer tick, some
            // 200 moves later, and none of these would interrupt anybody.
            let much = format!("moves={}", scale.of(40_000));
            let variant = if cpus == 1 { "alone" } else { "others read them" };
            case(variant, cpus, &[&much, "rest=100ns"], usual)?;
        }
        _ => match plain.check(usize::from(cpus)) {
            Ok(()) => case("as in its file", cpus, &[], usual)?,
            Err(why) => without.push(format!("{}: {why}", plain.name())),
        },
    }
    Ok(())
}

/// Returns the guest's plan: for each case a timed job, then a traced one.
pub fn jobs(cases: &[Case]) -> Vec<Job> {
    let job = |case: &Case, traced| Job {
        workload: case.workload.name().to_string(),
        file: (!case.workload.is_built_in()).then(|| case.workload.text().to_string()),
        parameters: case.parameters.clone(),
        team: usize::from(case.team),
        handover: case.handover,
        traced,
    };
    cases.iter().flat_map(|case| [job(case, false), job(case, true)]).collect()
}

/// Returns the rows of a built-in workload, for tests.
#[cfg(test)]
pub fn of(name: &str, cpus: u16) -> Vec<Case> {
    let workload = Workload::from_name(name).unwrap();
    rows(&[workload], cpus, Scale::Times(1)).unwrap().cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_rows_that_it_accepts_on_every_machine() {
        for cpus in 1..=16 {
            for scale in [Scale::Quick, Scale::Times(1), Scale::Times(7)] {
                let Rows { cases, without } = rows(&[], cpus, scale).unwrap();
                for case in &cases {
                    assert_eq!(case.workload.check(usize::from(case.team)), Ok(()), "{case:?}");
                    assert!(case.team <= cpus, "{case:?}");
                }
                for workload in Workload::all() {
                    // Two processes of readers can't share an odd number of CPUs. The report mentions that.
                    let none = workload.name() == "readers" && cpus > 4 && cpus % 2 == 1;
                    let said = without.iter().any(|why| why.starts_with(workload.name()));
                    assert_eq!(said, none, "{without:?}");
                    let rows = cases.iter().filter(|case| case.workload.name() == workload.name());
                    assert_eq!(rows.count() == 0, none, "{} on {cpus}", workload.name());
                }
            }
        }
    }

    #[test]
    fn rows_are_told_apart() {
        let cases = rows(&[], 4, Scale::Quick).unwrap().cases;
        for (index, case) in cases.iter().enumerate() {
            let same = |other: &&Case| {
                other.workload.name() == case.workload.name() && other.variant == case.variant
            };
            assert_eq!(cases[index + 1..].iter().find(same).map(|case| &case.variant), None);
        }
    }

    #[test]
    fn only_what_was_asked_for() {
        let cases = of("swap", 1);
        assert!(cases.iter().all(|case| case.workload.name() == "swap") && cases.len() == 2);
    }

    #[test]
    fn operations_of_readers_are_pages_of_the_measured_passes() {
        // There are two processes of two threads with one pass, whatever the duration.
        assert_eq!(of("readers", 4)[0].workload.operations(1_000_000), 2 * (42 << 20) / 4096);
    }
}

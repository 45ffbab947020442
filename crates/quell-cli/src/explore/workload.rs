//! Workloads as scenarios.
//!
//! A workload under the adversary is named by all that its runs depend on, `mine.toml,cpus=2,pages=4`: the name stands in
//! replay codes, and is read back from them.

use std::path::Path;

use quell_adversary::Scenario;
use quell_adversary::rehearsal::rehearse;
use quell_adversary::workload::Performance;
use quell_experiments::{machines, workloads};
use quell_workloads::Workload;
use toml::de::DeTable;

use crate::usage::usage;

/// How many CPUs a workload has here unless told otherwise, if it runs on as many.
const CPUS: usize = 2;

/// Whether a name is that of a workload, built in or in a file; a file may also be one of the adversary's programs.
///
/// # Errors
/// If there is such a file, and it cannot be read.
pub fn is_one(name: &str) -> anyhow::Result<bool> {
    if !is_file(name) {
        return Ok(Workload::from_name(name).is_some());
    }
    let text =
        machines::read(Path::new(name)).map_err(|error| usage(format!("{name}: {error}")))?;
    // What is no TOML is told by who reads programs.
    Ok(DeTable::parse(&text).is_ok_and(|table| !table.get_ref().contains_key("program")))
}

/// The name of a workload with its parameters.
pub fn whole_name(name: &str, parameters: &[String], cpus: Option<usize>) -> String {
    let mut whole = name.to_owned();
    if let Some(cpus) = cpus {
        whole += &format!(",cpus={cpus}");
    }
    for pair in parameters {
        whole += &format!(",{pair}");
    }
    whole
}

/// The name of the workload in a replay code, if it is of one.
pub fn of_code(code: &str) -> Option<&str> {
    // The machine, the policy and the choices have no colons.
    let name = code.rsplitn(4, ':').nth(3)?;
    let plain = name.split(',').next()?;
    (is_file(plain) || Workload::from_name(plain).is_some()).then_some(name)
}

/// The scenario of that name, kept until the process ends.
///
/// # Errors
/// If there is no such workload, a parameter is wrong, or it does not run under the adversary.
pub fn named(whole: &str) -> Result<&'static Scenario<'static>, String> {
    let mut parts = whole.split(',');
    let name = parts.next().unwrap_or_default();
    let mut workload = workloads::find(name).map_err(|wrong| wrong.to_string())?;
    let mut cpus = workload.cpus().min(CPUS);
    for pair in parts {
        match pair.split_once('=') {
            Some(("cpus", number)) if workload.get("cpus").is_none() => {
                let wrong = || format!("{whole}: expected a number of CPUs, not {number}");
                cpus = number.parse().map_err(|_| wrong())?;
            }
            _ => workload
                .set(pair)
                .map_err(|wrong| format!("--param {pair}: {wrong}"))?,
        }
    }
    let refused = |why: String| format!("{whole}: {why}");
    let performance: &'static Performance =
        Box::leak(Box::new(Performance::new(workload, cpus).map_err(refused)?));
    let name: &'static str = Box::leak(whole.into());
    let scenario = rehearse(performance, name).map_err(refused)?;
    Ok(Box::leak(Box::new(scenario)))
}

/// Whether a name is that of a file.
pub fn is_file(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_found_again_by_its_whole_name() {
        let whole = whole_name("dontneed", &["iterations=2".into()], Some(3));
        assert_eq!(whole, "dontneed,cpus=3,iterations=2");
        let scenario = named(&whole).expect("it runs");
        assert_eq!((scenario.name, scenario.cpus), (&whole[..], 3));
        let code = format!("{whole}:x86:S0+S4:12.3-4.5");
        assert_eq!(of_code(&code), Some(&whole[..]));
        assert_eq!(
            of_code("c:/mine.toml,a=1:x86:all:"),
            Some("c:/mine.toml,a=1")
        );
        assert_eq!(of_code("unmap-access:x86:all:1.2"), None);
        for wrong in ["dontneed,pages", "dontneed,page=1", "dontneed,cpus=9"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }
}

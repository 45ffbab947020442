//! Boots a kernel and parses its output.

use crate::follow::{self, Line};
use crate::qemu::Machine;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The prefix of the kernel's lines.
const PREFIX: &str = "trial: ";

/// The processor time that a kernel may run without output.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns the first word and the rest of a line that is for us. Fails if the kernel panicked.
fn said(line: &str) -> anyhow::Result<Option<(&str, &str)>> {
    let said = line.trim().strip_prefix(PREFIX);
    match said.map(|said| said.split_once(' ').unwrap_or((said, ""))) {
        Some(("panic", why)) => bail!("the kernel panicked: {why}"),
        said => Ok(said),
    }
}

/// A kernel's measurements.
#[derive(Default)]
pub struct Measurement {
    /// The figures by operation and unit.
    pub rows: BTreeMap<(String, String), u64>,
    /// The number of stale reads, by kind of revocation.
    pub stale: BTreeMap<String, u64>,
    /// Whether the kernel found no error in itself.
    pub sound: bool,
}

impl Report for Measurement {
    fn take(&mut self, line: &str) -> anyhow::Result<bool> {
        let Some((what, rest)) = said(line)? else {
            return Ok(false);
        };
        match what {
            "row" => {
                let (unit, rest) = rest.split_once(' ').context("a row without a unit")?;
                let (operation, value) = rest.split_once('|').context("a row without a value")?;
                let value = value.parse().with_context(|| format!("the value of {operation}"))?;
                self.rows.insert((operation.into(), unit.into()), value);
            }
            "stale" => {
                let (how, count) = rest.split_once(' ').context("no count of stale accesses")?;
                self.stale.insert(how.into(), count.parse().context("a count of stale accesses")?);
            }
            "end" => {
                self.sound = rest == "sound";
                return Ok(true);
            }
            _ => bail!("the kernel printed an unknown line: {line}"),
        }
        Ok(false)
    }
}

/// A kernel's report, read line by line.
pub trait Report: Default {
    /// Parses a line of the kernel. Returns `true` for the last line, and an error if the kernel panicked.
    fn take(&mut self, line: &str) -> anyhow::Result<bool>;
}

/// The results of ostd's own unit tests.
#[derive(Clone, Default, serde::Serialize)]
pub struct TestResults {
    /// The number of tests that passed.
    pub passed: usize,
    /// The names of failed tests.
    pub failed: Vec<String>,
}

impl Report for TestResults {
    fn take(&mut self, line: &str) -> anyhow::Result<bool> {
        let line = without_colours(line);
        let line = line.trim();
        if let Some((name, verdict)) = (line.strip_prefix("test "))
            .filter(|said| !said.starts_with("result:"))
            .and_then(|said| said.split_once(" ..."))
        {
            match verdict.trim() {
                "ok" => self.passed += 1,
                _ => self.failed.push(name.into()),
            }
        }
        if let Some(said) = line.strip_prefix("test result: ") {
            let told = format!("{} passed; {} failed;", self.passed, self.failed.len());
            if !said.contains(&told) {
                bail!("the tests reported {told}, but the kernel reports: {said}");
            }
            return Ok(true);
        }
        Ok(false)
    }
}

/// The results of quell's conformance suite.
#[derive(Default, serde::Serialize)]
pub struct Suite {
    /// The names of the checks that held.
    pub held: Vec<String>,
    /// Failed checks, with a CPU's finding.
    pub failed: Vec<String>,
}

impl Report for Suite {
    fn take(&mut self, line: &str) -> anyhow::Result<bool> {
        match said(line)? {
            None => {}
            Some(("held", name)) => self.held.push(name.into()),
            Some(("failed", name)) => self.failed.push(name.into()),
            Some(("end", _)) => return Ok(true),
            Some(_) => bail!("the kernel printed an unknown line: {line}"),
        }
        Ok(false)
    }
}

/// Removes colour codes from a line.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text));
    core::iter::once(first).chain(rest).collect()
}

/// Boots a kernel on a machine with this many CPUs, in which instructions are counted. Returns the kernel's report.
pub fn run<R: Report>(emulator: &Path, kernel: &Path, cpus: u16) -> anyhow::Result<R> {
    let command = Machine::x86_64(cpus, 4096, true).command(emulator, kernel, None, &[])?;
    let (mut report, mut ended) = (R::default(), Ok(false));
    let outcome = follow::run_until(command, PATIENCE, |line| {
        if let Line::Text(text) = line {
            ended = report.take(text);
        }
        !matches!(ended, Ok(false))
    })?;
    match ended.with_context(|| format!("{} on {cpus} CPUs", kernel.display()))? {
        true => Ok(report),
        false => bail!(
            "{} on {cpus} CPUs: {}; its output:\n{}",
            kernel.display(),
            outcome.failure.unwrap_or_default(),
            outcome.last_lines.join("\n")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_s_lines_are_its_figures() {
        let mut ended = Measurement::default();
        for line in ["SeaBIOS", "trial: row ns unmap 1 page|7367", "trial: stale unflushed 12"] {
            assert!(!ended.take(line).unwrap());
        }
        assert!(ended.take("trial: end sound").unwrap() && ended.sound);
        assert_eq!(ended.stale["unflushed"], 12);
        assert_eq!(ended.rows[&("unmap 1 page".into(), "ns".into())], 7367);
        assert!(ended.take("trial: end broken").unwrap() && !ended.sound);
        for wrong in ["panic at the disco", "row ns unmap 1 page", "something else"] {
            assert!(Measurement::default().take(&format!("trial: {wrong}")).is_err());
        }
    }

    #[test]
    fn what_the_runner_of_ostds_tests_prints_is_counted() {
        let mut tests = TestResults::default();
        for line in [
            "running 2 tests in crate \"ostd\"",
            "test ostd::mm::cut ... \u{1b}[32mok\u{1b}[39m",
            "test ostd::mm::glue ... \u{1b}[31mFAILED\u{1b}[39m",
        ] {
            assert!(!tests.take(line).unwrap());
        }
        let red = "test result: \u{1b}[31mFAILED\u{1b}[39m.";
        // A lost line isn't a passed test.
        assert!(tests.clone().take(&format!("{red} 2 passed; 1 failed;")).is_err());
        assert!(tests.take(&format!("{red} 1 passed; 1 failed; 0 filtered out.")).unwrap());
        assert_eq!(tests.failed, ["ostd::mm::glue"]);
    }
}

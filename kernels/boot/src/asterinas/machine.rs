//! Boots a kernel and parses its output.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The prefix of the kernel's lines.
const PREFIX: &str = "trial: ";

/// The time limit of a boot, long enough for a busy host.
const PATIENCE: Duration = Duration::from_secs(600);

/// A kernel's measurements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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
        let Some(said) = line.trim().strip_prefix(PREFIX) else {
            return Ok(false);
        };
        let (what, rest) = said.split_once(' ').unwrap_or((said, ""));
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
            "panic" => bail!("the kernel panicked: {rest}"),
            _ => bail!("the kernel printed an unknown line: {line}"),
        }
        Ok(false)
    }
}

/// A kernel's report, read line by line.
pub trait Report: Default {
    /// Parses a line of the kernel. Returns `true` for the last line.
    ///
    /// # Errors
    /// If the kernel panicked, or the line is unknown.
    fn take(&mut self, line: &str) -> anyhow::Result<bool>;
}

/// The results of ostd's own unit tests.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
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
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Suite {
    /// The names of the checks that held.
    pub held: Vec<String>,
    /// Failed checks, with a CPU's finding.
    pub failed: Vec<String>,
}

impl Report for Suite {
    fn take(&mut self, line: &str) -> anyhow::Result<bool> {
        let Some(said) = line.trim().strip_prefix(PREFIX) else {
            return Ok(false);
        };
        match said.split_once(' ').unwrap_or((said, "")) {
            ("held", name) => self.held.push(name.into()),
            ("failed", name) => self.failed.push(name.into()),
            ("end", _) => return Ok(true),
            ("panic", why) => bail!("the kernel panicked: {why}"),
            _ => bail!("the kernel printed an unknown line: {line}"),
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
///
/// # Errors
/// If the emulator can't be started, or the kernel doesn't finish.
pub fn run<R: Report>(emulator: &Path, kernel: &Path, cpus: u16) -> anyhow::Result<R> {
    let mut machine = Command::new(emulator)
        .args(["-machine", "q35", "-cpu", "max,-rdrand,-rdseed,-cx16"])
        .args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"])
        .args(["-rtc", "base=2026-01-01,clock=vm", "-m", "4G", "-nodefaults"])
        .args(["-display", "none", "-no-reboot", "-serial", "stdio"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
        .args(["-smp", &cpus.to_string(), "-kernel"])
        .arg(kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("starting {}", emulator.display()))?;
    let output = machine.stdout.take().context("the emulator's output")?;
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    let result = follow(&lines);
    let _ = machine.kill();
    let _ = machine.wait();
    let _ = reader.join();
    result.with_context(|| format!("{} on {cpus} CPUs", kernel.display()))
}

fn follow<R: Report>(lines: &mpsc::Receiver<String>) -> anyhow::Result<R> {
    let mut report = R::default();
    let mut said = Vec::new();
    let end = Instant::now() + PATIENCE;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if report.take(&line)? {
                    return Ok(report);
                }
                said.push(line);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => bail!(
                "the kernel did not end within {} s; its output:\n{}",
                PATIENCE.as_secs(),
                said.join("\n")
            ),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("the emulator ended before the kernel did; its output:\n{}", said.join("\n"))
            }
        }
    }
}

//! The options of one boot, from the kernel's command line: words `name=value`.
//!
//! The command that boots the kernel parses them with this source before it builds and boots anything. So it reports a
//! mistake at once and in the same words. That's why this file needs neither the kernel nor an allocator.

use core::fmt;
use core::str::FromStr;
use quell::Policy;
use quell_conformance::{PolicyError, parse_policy};

/// The options of one boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options<'a> {
    /// The run: `selftest`, `conformance`, `stress`, a workload's name, or `lost_interrupt`, which must fail.
    pub run: &'a str,
    /// The workload's parameters, `name:value,name:value`.
    pub parameters: &'a str,
    /// The engine's policy.
    pub policy: Policy,
    /// The deliberate mistake, for tests of tests.
    pub broken: Option<&'a str>,
    /// The number of CPUs on which a workload runs, or all if not given. The machine's other CPUs are idle.
    pub team: Option<usize>,
    /// The seed of all random choices, which are the same on every host. For example, it determines which operations a
    /// stress chooses, and which pages a workload chooses.
    pub seed: u64,
    /// The length of a stress, in rounds of each CPU.
    pub rounds: u64,
    /// The length of a stress in seconds. If given, it replaces the rounds.
    pub seconds: Option<u64>,
    /// The width of system-wide tags, which is at most the processor's. Few tags run out soon.
    pub tag_bits: Option<u8>,
    /// The number of pages migrated behind one flush, if it isn't the manager's default.
    pub migrate_together: Option<usize>,
    /// Whether CPUs that fault catch up with the flush clock themselves: `yes` or `no`.
    pub catch_up: bool,
    /// The time between two timer interrupts of each CPU of a workload, in microseconds. There are none if not given.
    pub tick_us: Option<u64>,
    /// The time that a CPU may wait for another before the watchdog reports it, in milliseconds.
    pub watchdog_ms: Option<u64>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            run: "selftest",
            parameters: "",
            policy: Policy::ALL,
            broken: None,
            team: None,
            seed: 1,
            rounds: 10,
            seconds: None,
            tag_bits: None,
            migrate_together: None,
            catch_up: false,
            tick_us: None,
            watchdog_ms: None,
        }
    }
}

/// The names of the options.
pub const NAMES: [&str; 13] = [
    "run",
    "parameters",
    "policy",
    "break",
    "team",
    "seed",
    "rounds",
    "seconds",
    "tag_bits",
    "migrate_together",
    "catch_up",
    "tick_us",
    "watchdog_ms",
];

/// A problem with an option.
#[derive(Clone, Copy, Debug)]
enum OptionProblem {
    /// The name is unknown.
    Unknown,
    /// The value isn't a number, or is outside this range.
    Number(u64, u64),
    /// The value is neither yes nor no.
    Switch,
    /// The value isn't a policy.
    Policy(PolicyError),
}

/// The reason for refusing the options. It names the word, and the valid ones.
#[derive(Clone, Copy, Debug)]
pub struct OptionError<'a> {
    word: &'a str,
    wrong: OptionProblem,
}

impl<'a> OptionError<'a> {
    /// Returns the option's name if there is no such option.
    #[allow(dead_code)] // The host suggests a similar name.
    pub fn unknown(&self) -> Option<&'a str> {
        let name = self.word.split('=').next();
        name.filter(|_| matches!(self.wrong, OptionProblem::Unknown))
    }
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "option `{}`: ", self.word)?;
        match self.wrong {
            OptionProblem::Unknown => {
                f.write_str("not known; there are ")?;
                for name in NAMES {
                    write!(f, "{name}, ")?;
                }
                f.write_str("each followed by = and its value")
            }
            OptionProblem::Number(least, u64::MAX) => {
                write!(f, "expected a number, at least {least}")
            }
            OptionProblem::Number(least, most) => {
                write!(f, "expected a number from {least} to {most}")
            }
            OptionProblem::Switch => f.write_str("expected yes or no"),
            OptionProblem::Policy(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for OptionError<'_> {}

impl<'a> Options<'a> {
    /// Parses a command line. Options that depend on the machine or the workload, such as the number of CPUs and
    /// parameters, aren't checked here.
    ///
    /// # Errors
    /// At the first word that isn't an option, or has an invalid value.
    pub fn parse(line: &'a str) -> Result<Self, OptionError<'a>> {
        let mut options = Options::default();
        for word in line.split_ascii_whitespace() {
            options.set(word).map_err(|wrong| OptionError { word, wrong })?;
        }
        Ok(options)
    }

    fn set(&mut self, word: &'a str) -> Result<(), OptionProblem> {
        let (name, value) = word.split_once('=').ok_or(OptionProblem::Unknown)?;
        match name {
            "run" => self.run = value,
            "parameters" => self.parameters = value,
            "policy" => self.policy = parse_policy(value).map_err(OptionProblem::Policy)?,
            "break" => self.broken = Some(value),
            "team" => self.team = Some(number(value, 1, 64)? as usize),
            "seed" => self.seed = number(value, 0, u64::MAX)?,
            "rounds" => self.rounds = number(value, 1, u64::MAX)?,
            "seconds" => self.seconds = Some(number(value, 1, u64::MAX)?),
            // No space uses tag 0, so one bit is one tag.
            "tag_bits" => self.tag_bits = Some(number(value, 1, 16)? as u8),
            "migrate_together" => {
                self.migrate_together = Some(number(value, 1, 1 << 20)? as usize);
            }
            "catch_up" => {
                self.catch_up = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(OptionProblem::Switch),
                }
            }
            "tick_us" => self.tick_us = Some(number(value, 1, 1_000_000)?),
            "watchdog_ms" => self.watchdog_ms = Some(number(value, 1, 3_600_000)?),
            _ => return Err(OptionProblem::Unknown),
        }
        Ok(())
    }
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, OptionProblem> {
    match u64::from_str(text) {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(OptionProblem::Number(least, most)),
    }
}

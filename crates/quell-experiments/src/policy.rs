//! How users write which mechanisms are on.
//!
//! ```text
//! policy  = terms ("," detail)*          S0+S4    all-S3    all,cap=8M    baseline,tags=64
//! terms   = ("baseline" | "all" | mechanism) (("+" | "-") mechanism)*
//! detail  = "tags=" (number | "all" | "off")      address spaces kept tagged on each CPU (S2)
//!         | "cap=" (bytes | "none")               longest extent cleared in one go (S1)
//!         | ("concurrent" | "asynchronous" | "inline") "=" ("yes" | "no")    the parts of S4
//! ```

use std::fmt;
use std::str::FromStr;

use quell::{Mechanism, Policy, TagPolicy};
use quell_workloads::Unit;
use quell_zero::ClearPolicy;

/// What `quell list policies` says about each term.
pub const TERMS: &[(&str, &str)] = &[
    ("baseline", "every mechanism off: what a simple kernel does"),
    ("all", "every mechanism on"),
    (
        "S0",
        "batched, deferred shootdown during reclaim and migration",
    ),
    ("S1", "clearing whole extents instead of pages"),
    ("S2", "tags that keep TLB entries across context switches"),
    (
        "S3",
        "lazy unmap: the flush of clean, read-only frames is owed until they are reused",
    ),
    ("S4", "concurrent, asynchronous and inlined remote flush"),
    (
        "+S3  -S3",
        "adds or removes a mechanism, as in S0+S4 or all-S3",
    ),
    (
        ",tags=N",
        "address spaces kept tagged on each CPU (S2): a number, all or off; 6 by default",
    ),
    (
        ",cap=SIZE",
        "longest extent cleared without a preemption point (S1): bytes or none; 32M by default",
    ),
    (
        ",concurrent=no",
        "S4's first part: flush here while the requests travel; yes or no",
    ),
    (
        ",asynchronous=no",
        "S4's second part: acknowledge on receipt, flush afterwards; yes or no",
    ),
    (
        ",inline=no",
        "S4's third part: the request lies in the line that the target reads; yes or no",
    ),
];

/// A policy with the text it was written as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPolicy {
    /// As written.
    pub text: String,
    /// What the engine is told.
    pub engine: Policy,
    /// The longest extent cleared in one go, in bytes; `None` for no cap.
    pub cap: Option<u64>,
}

/// Why a policy was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("policy `{text}`: {message}")]
pub struct BadPolicy {
    text: String,
    message: String,
}

/// The mechanism of a name like `S3`.
pub fn mechanism(name: &str) -> Option<Mechanism> {
    let digits = name.strip_prefix(['S', 's'])?;
    let index: usize = digits.parse().ok()?;
    (digits.len() == 1).then(|| Mechanism::ALL.get(index).copied())?
}

/// The name of a mechanism.
pub fn seed(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Batch => "S0",
        Mechanism::Extents => "S1",
        Mechanism::Tags => "S2",
        Mechanism::LazyUnmap => "S3",
        Mechanism::RemoteFlush => "S4",
    }
}

fn without(mut policy: Policy, mechanism: Mechanism) -> Policy {
    let off = Policy::BASELINE;
    match mechanism {
        Mechanism::Batch => policy.batch = off.batch,
        Mechanism::Extents => policy.extents = off.extents,
        Mechanism::Tags => policy.tags = off.tags,
        Mechanism::LazyUnmap => policy.lazy_unmap = off.lazy_unmap,
        Mechanism::RemoteFlush => {
            policy.concurrent = off.concurrent;
            policy.asynchronous = off.asynchronous;
            policy.inline_requests = off.inline_requests;
        }
    }
    policy
}

fn terms(text: &str) -> Result<Policy, String> {
    let known = "expected baseline, all or S0 to S4, joined by + or -";
    let mut policy = None;
    let mut rest = text.trim();
    let mut adds = true;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let term = rest[..end].trim();
        policy = Some(match (policy, term, mechanism(term)) {
            (None, "baseline", _) => Policy::BASELINE,
            (None, "all", _) => Policy::ALL,
            (None, _, Some(mechanism)) => Policy::only(mechanism),
            (Some(policy), _, Some(mechanism)) if adds => Policy::with(policy, mechanism),
            (Some(policy), _, Some(mechanism)) => without(policy, mechanism),
            _ if term.is_empty() => return Err(format!("a term is missing; {known}")),
            _ => return Err(format!("`{term}` is not a mechanism; {known}")),
        });
        match rest[end..].chars().next() {
            None => return policy.ok_or_else(|| known.into()),
            Some(sign) => {
                adds = sign == '+';
                rest = &rest[end + 1..];
            }
        }
    }
}

impl NamedPolicy {
    fn detail(&mut self, detail: &str) -> Result<(), String> {
        let (key, value) = detail
            .split_once('=')
            .ok_or_else(|| format!("`{detail}` is not of the form key=value"))?;
        let (key, value) = (key.trim(), value.trim());
        let expected = |what: &str| format!("{key}: expected {what}, found `{value}`");
        let switch = || {
            Unit::Switch
                .parse(value)
                .map(|word| word != 0)
                .ok_or_else(|| expected(Unit::Switch.spelling()))
        };
        match key {
            "tags" => {
                self.engine.tags = match value {
                    "off" => TagPolicy::Off,
                    "all" => TagPolicy::All,
                    _ => match value.parse() {
                        Ok(slots @ 1..) => TagPolicy::Slots(slots),
                        _ => return Err(expected("a number from 1 to 65535, all or off")),
                    },
                }
            }
            "cap" => {
                self.cap = match value {
                    "none" => None,
                    _ => match Unit::Bytes.parse(value) {
                        Some(bytes @ 4096..) => Some(bytes),
                        _ => return Err(expected("at least 4096 bytes, like 8M, or none")),
                    },
                }
            }
            "concurrent" => self.engine.concurrent = switch()?,
            "asynchronous" => self.engine.asynchronous = switch()?,
            "inline" => self.engine.inline_requests = switch()?,
            _ => {
                return Err(format!(
                    "no detail `{key}`; there are tags, cap, concurrent, asynchronous and inline"
                ));
            }
        }
        Ok(())
    }

    /// Adds a mechanism.
    pub fn with(&self, mechanism: Mechanism) -> NamedPolicy {
        NamedPolicy {
            text: format!("{}+{}", self.text, seed(mechanism)),
            engine: self.engine.with(mechanism),
            cap: self.cap,
        }
    }
}

impl FromStr for NamedPolicy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, BadPolicy> {
        let refuse = |message| BadPolicy {
            text: text.into(),
            message,
        };
        let mut parts = text.split(',');
        let engine = terms(parts.next().unwrap_or_default()).map_err(refuse)?;
        let mut policy = NamedPolicy {
            text: text.into(),
            engine,
            cap: Some(ClearPolicy::COOPERATIVE_CAP),
        };
        for detail in parts {
            policy.detail(detail).map_err(refuse)?;
        }
        Ok(policy)
    }
}

impl fmt::Display for NamedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> NamedPolicy {
        text.parse().unwrap()
    }

    #[test]
    fn terms_add_up() {
        assert_eq!(parse("baseline").engine, Policy::BASELINE);
        assert_eq!(parse("all").engine, Policy::ALL);
        assert_eq!(
            parse("S0+s4").engine,
            Policy::only(Mechanism::Batch).with(Mechanism::RemoteFlush)
        );
        assert_eq!(
            parse("all-S0-S1-S2-S3-S4").engine,
            Policy::BASELINE,
            "everything taken away"
        );
        assert_eq!(
            parse("baseline+S0+S1+S2+S3+S4").engine,
            Policy::ALL,
            "everything added"
        );
    }

    #[test]
    fn details_change_one_thing() {
        assert_eq!(parse("S2,tags=64").engine.tags, TagPolicy::Slots(64));
        assert_eq!(
            parse("all,tags=off").engine,
            without(Policy::ALL, Mechanism::Tags)
        );
        assert_eq!(parse("S1,cap=8M").cap, Some(ClearPolicy::S1_CAP));
        assert_eq!(parse("S1, cap=none").cap, None);
        let policy = parse("S4,asynchronous=no").engine;
        assert!(policy.concurrent && policy.inline_requests && !policy.asynchronous);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("", "a term is missing"),
            ("S5", "`S5` is not a mechanism"),
            ("S0+", "a term is missing"),
            ("S0+all", "`all` is not a mechanism"),
            ("S1,cap=1", "cap: expected at least 4096"),
            ("S1,cap", "`cap` is not of the form"),
            ("S2,tags=0", "tags: expected a number"),
            ("S4,async=no", "no detail `async`"),
            ("S4,inline=maybe", "inline: expected yes or no"),
            ("S+", "`S` is not a mechanism"),
            ("é", "`é` is not a mechanism"),
        ] {
            let message = text.parse::<NamedPolicy>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}

//! What happened in one run, for people: a column per CPU, one line per step.

use super::machine::Op;
use super::word::AdversaryWord;
use std::fmt::Write;

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum What {
    Step(Op),
    Read(u64),
    Wrote(u64),
    Visible(*const AdversaryWord, u64),
    Landed(u32, u64),
    Interrupt,
    InterruptDone,
    Nmi,
    NmiDone,
    Preempted,
    PreemptionDone,
    Said(String),
    Broke(String),
}

/// One line of a run's record.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) step: u32,
    pub(crate) cpu: usize,
    pub(crate) what: What,
}

/// A line of a timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The number of the decision.
    pub step: u32,
    /// The CPU.
    pub cpu: usize,
    /// What it did.
    pub text: String,
    /// How deep in handlers it was.
    pub depth: usize,
}

/// Gives words their names.
pub type Names<'n> = dyn Fn(usize) -> Option<String> + 'n;

/// A record in words, one line per step.
pub(crate) fn lines(entries: &[Entry], names: &Names<'_>) -> Vec<Line> {
    let name = |word: *const AdversaryWord| {
        names(word as usize).unwrap_or_else(|| format!("{:#x}", word as usize & 0xf_ffff))
    };
    let mut lines: Vec<Line> = Vec::new();
    let mut depth = [0usize; super::schedule::MAX_CPUS];
    for entry in entries {
        let text = match &entry.what {
            What::Step(op) => match *op {
                Op::Load(word, order) => format!("load {} ({order:?})", name(word)),
                Op::Store(word, order) => format!("store {} ({order:?})", name(word)),
                Op::Modify(word, order) => format!("modify {} ({order:?})", name(word)),
                Op::Touch { place, writes } => {
                    let how = if writes { "change" } else { "look at" };
                    format!("{how} what is shared at {place:#x}")
                }
                Op::Fence => "fence".into(),
                Op::Barrier => "barrier: table writes reach walkers".into(),
                Op::Complete => "barrier: own broadcasts complete".into(),
                Op::Relax => "wait: look again".into(),
                Op::Invalidate => "invalidate".into(),
                Op::Root => "root register".into(),
                Op::Broadcast => "broadcast an invalidation".into(),
                Op::Send(targets) => {
                    let cpus: Vec<_> = (0..8)
                        .filter(|cpu| targets & 1 << cpu != 0)
                        .map(|cpu| format!("cpu {cpu}"))
                        .collect();
                    format!("interrupt {}", cpus.join(", "))
                }
                Op::Content { frame, store } => {
                    format!("{} frame {frame:#x}", if store { "write" } else { "read" })
                }
                Op::Start | Op::Mask | Op::Note | Op::Halt | Op::Park | Op::Access { .. } => {
                    continue;
                }
            },
            What::Read(value) | What::Wrote(value) => {
                let arrow = if matches!(entry.what, What::Read(_)) {
                    "->"
                } else {
                    "="
                };
                if let Some(last) = lines.last_mut()
                    && last.cpu == entry.cpu
                {
                    let _ = write!(last.text, " {arrow} {value:#x}");
                }
                continue;
            }
            What::Visible(word, value) => format!("~ {} = {value:#x} becomes visible", name(*word)),
            What::Landed(frame, value) => format!("~ {value:#x} lands in frame {frame:#x}"),
            What::Interrupt => "[interrupt".into(),
            What::InterruptDone => "interrupt]".into(),
            What::Nmi => "[NMI".into(),
            What::NmiDone => "NMI]".into(),
            What::Preempted => "[preempted".into(),
            What::PreemptionDone => "goes on]".into(),
            What::Said(text) => text.clone(),
            What::Broke(text) => format!("*** {text}"),
        };
        if matches!(
            entry.what,
            What::InterruptDone | What::NmiDone | What::PreemptionDone
        ) {
            depth[entry.cpu] = depth[entry.cpu].saturating_sub(1);
        }
        lines.push(Line {
            step: entry.step,
            cpu: entry.cpu,
            text,
            depth: depth[entry.cpu],
        });
        if matches!(entry.what, What::Interrupt | What::Nmi | What::Preempted) {
            depth[entry.cpu] += 1;
        }
    }
    lines
}

/// The last `count` lines, a column per CPU.
pub fn columns(lines: &[Line], cpus: usize, count: usize) -> String {
    const WIDTH: usize = 44;
    let mut out = String::new();
    let _ = write!(out, "{:>6}", "step");
    for cpu in 0..cpus {
        let _ = write!(out, "  {:<WIDTH$}", format!("cpu {cpu}"));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    let skipped = lines.len().saturating_sub(count);
    if skipped > 0 {
        let _ = writeln!(out, "{:>6}  ({skipped} earlier lines left out)", "...");
    }
    for line in &lines[skipped..] {
        let _ = write!(out, "{:>6}", line.step);
        if line.text.starts_with("***") {
            let _ = writeln!(out, "  {}", line.text);
            continue;
        }
        for _ in 0..line.cpu {
            let _ = write!(out, "  {:WIDTH$}", "");
        }
        let _ = writeln!(
            out,
            "  {:indent$}{}",
            "",
            line.text,
            indent = line.depth * 2
        );
    }
    out
}

/// The record as a trace that Perfetto and Chrome's viewer open: one track per CPU, one step one
/// microsecond.
pub fn chrome_trace(lines: &[Line], title: &str) -> serde_json::Value {
    let mut events = vec![serde_json::json!({
        "ph": "M", "pid": 0, "name": "process_name", "args": { "name": title }
    })];
    for (at, line) in lines.iter().enumerate() {
        let event = match line.text.as_str() {
            "[interrupt" => serde_json::json!({ "ph": "B", "name": "interrupt" }),
            "[NMI" => serde_json::json!({ "ph": "B", "name": "NMI" }),
            "interrupt]" | "NMI]" => serde_json::json!({ "ph": "E" }),
            text if text.starts_with("***") => {
                serde_json::json!({ "ph": "i", "s": "g", "name": text })
            }
            text => serde_json::json!({ "ph": "X", "dur": 1, "name": text }),
        };
        let mut event = event;
        event["pid"] = 0.into();
        event["tid"] = line.cpu.into();
        event["ts"] = at.into();
        events.push(event);
    }
    serde_json::json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

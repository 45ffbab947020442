//! Prints a timeline of each CPU's actions, for people.
//!
//! A machine records its steps in any cheap form, and converts them to [`Line`]s on request. [`columns`] prints lines
//! as text with a column per CPU. [`write_chrome`] writes the format of Perfetto and Chrome's viewer.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use quell::CpuId;
use serde_json::{Value, json};

/// The unit of a timeline's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Decisions of a scheduler, which have an order but no duration. Viewers show each as 1 µs.
    Steps,
    /// Picoseconds of virtual time.
    Picoseconds,
}

impl Unit {
    /// Converts a time to the viewers' microseconds.
    fn microseconds(self, time: u64) -> f64 {
        match self {
            Unit::Steps => time as f64,
            Unit::Picoseconds => time as f64 / 1e6,
        }
    }
}

/// The form of a line: an event, or the beginning or end of a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// An event with this duration, which is 0 for instantaneous events.
    Lasts(u64),
    /// The beginning of a handler, which contains the CPU's later lines until it ends.
    Begins,
    /// The end of the last handler that began on this CPU.
    Ends,
    /// A violation of the contract.
    Breaks,
}

/// A line of a timeline: one event on one CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The CPU on which the event happened.
    pub cpu: CpuId,
    /// The time, in the timeline's unit.
    pub at: u64,
    /// The line's form.
    pub shape: Shape,
    /// A description of the event.
    pub text: String,
}

/// Formats the last `count` lines, with a column per CPU.
///
/// Lines from a handler are indented.
pub fn columns(lines: &[Line], cpus: usize, count: usize) -> String {
    const WIDTH: usize = 44;
    let mut out = format!("{:>6}", "step");
    for cpu in 0..cpus {
        let _ = write!(out, "  {:<WIDTH$}", format!("cpu {cpu}"));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    let skipped = lines.len().saturating_sub(count);
    if skipped > 0 {
        let _ = writeln!(out, "{:>6}  ({skipped} earlier lines left out)", "...");
    }
    let mut depths = alloc::vec![0usize; cpus];
    for (index, line) in lines.iter().enumerate() {
        let column = line.cpu.index();
        let mut spare = 0;
        let depth = depths.get_mut(column).unwrap_or(&mut spare);
        if line.shape == Shape::Ends {
            *depth = depth.saturating_sub(1);
        }
        let indent = *depth * 2;
        if line.shape == Shape::Begins {
            *depth += 1;
        }
        if index < skipped {
            continue;
        }
        let _ = write!(out, "{:>6}", line.at);
        let text = &line.text;
        let _ = match line.shape {
            Shape::Breaks => writeln!(out, "  *** {text}"),
            shape => {
                let (open, close) = match shape {
                    Shape::Begins => ("[", ""),
                    Shape::Ends => ("", "]"),
                    _ => ("", ""),
                };
                let before = column * (WIDTH + 2) + 2 + indent;
                writeln!(out, "{:before$}{open}{text}{close}", "")
            }
        };
    }
    out
}

/// Writes lines as Chrome's JSON trace format, with a track per CPU.
///
/// `title` names the trace.
///
/// # Errors
/// Those of the writer.
pub fn write_chrome(
    title: &str,
    unit: Unit,
    lines: impl IntoIterator<Item = Line>,
    mut to: impl std::io::Write,
) -> std::io::Result<()> {
    writeln!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut named = alloc::vec::Vec::new();
    let process = json!({
        "ph": "M", "pid": 1, "name": "process_name", "args": { "name": title }
    });
    write!(to, "{process}")?;
    for line in lines {
        let cpu = line.cpu.index();
        if named.len() <= cpu {
            named.resize(cpu + 1, false);
        }
        if !std::mem::replace(&mut named[cpu], true) {
            let name = format!("CPU {cpu}");
            let track = json!({
                "ph": "M", "pid": 1, "tid": cpu, "name": "thread_name", "args": { "name": name }
            });
            write!(to, ",\n{track}")?;
        }
        write!(to, ",\n{}", chrome(&line, unit))?;
    }
    writeln!(to, "\n]}}")
}

/// Converts one line to Chrome's format.
fn chrome(line: &Line, unit: Unit) -> Value {
    let mut value = match line.shape {
        Shape::Lasts(0) if unit == Unit::Picoseconds => json!({ "ph": "i", "s": "t" }),
        Shape::Lasts(_) if unit == Unit::Steps => json!({ "ph": "X", "dur": 1 }),
        Shape::Lasts(length) => json!({ "ph": "X", "dur": unit.microseconds(length) }),
        Shape::Begins => json!({ "ph": "B" }),
        Shape::Ends => json!({ "ph": "E" }),
        Shape::Breaks => json!({ "ph": "i", "s": "g" }),
    };
    value["name"] = line.text.as_str().into();
    value["pid"] = 1.into();
    value["tid"] = line.cpu.0.into();
    value["ts"] = unit.microseconds(line.at).into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    fn lines() -> Vec<Line> {
        let line = |cpu, at, shape, text: &str| Line {
            cpu: CpuId(cpu),
            at,
            shape,
            text: text.to_string(),
        };
        alloc::vec![
            line(0, 1, Shape::Lasts(0), "clears \"it\""),
            line(1, 2, Shape::Begins, "interrupt"),
            line(1, 3, Shape::Lasts(5), "flushes"),
            line(1, 8, Shape::Ends, "interrupt"),
            line(1, 9, Shape::Breaks, "C1: late"),
        ]
    }

    #[test]
    fn each_cpu_has_its_column_and_handlers_are_indented() {
        let text = columns(&lines(), 2, 4);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 6);
        assert!(rows[0].starts_with("  step  cpu 0 ") && rows[0].ends_with("cpu 1"));
        assert_eq!(rows[1], "   ...  (1 earlier lines left out)");
        let place = |line: usize, what| rows[line].find(what).expect(what);
        assert_eq!(place(2, "[interrupt"), place(0, "cpu 1"));
        assert_eq!(place(3, "flushes"), place(2, "[interrupt") + 2);
        assert_eq!(place(4, "interrupt]"), place(2, "[interrupt"));
        assert_eq!(rows[5], "     9  *** C1: late");
    }

    #[test]
    fn viewers_get_what_they_can_read() {
        let mut out = Vec::new();
        write_chrome("a \"run\"", Unit::Picoseconds, lines(), &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).expect("JSON");
        let rows = trace["traceEvents"].as_array().expect("lines");
        assert_eq!(rows[0]["args"]["name"], "a \"run\"");
        let phases: Vec<&str> = rows.iter().map(|row| row["ph"].as_str().unwrap()).collect();
        assert_eq!(phases, ["M", "M", "i", "M", "B", "X", "E", "i"]);
        assert_eq!(rows[2]["name"], "clears \"it\"");
        assert_eq!(rows[5]["dur"], 5e-6);
        assert_eq!(rows[5]["ts"], 3e-6);
    }
}

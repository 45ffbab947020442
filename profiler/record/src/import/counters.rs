//! Extracts the kernel's counters from a recorder's text.
//!
//! They come from `/proc/interrupts`, the sum of `/proc/stat`, and the flags of `/proc/cpuinfo`.

use crate::perf::counters::{cpu_ns, interrupt};
use crate::perf::{Interrupts, ReadTime, Statistics};

/// Extracts the lines of counters from a text.
#[derive(Debug, Default)]
pub struct Counters {
    /// The number of CPUs in the current block. `None` outside a block.
    columns: Option<usize>,
    rows: Vec<Interrupts>,
    cpu_ns: Vec<(String, u64)>,
    blocks: usize,
    /// Whether the processor runs below a hypervisor. `None` if the text has no flags.
    pub virtual_machine: Option<bool>,
}

impl Counters {
    /// Reads a line. Returns whether it belongs to a block of counters. With the first line after a block, also returns
    /// that block's counters.
    pub fn line(&mut self, line: &str) -> (bool, Option<Statistics>) {
        if let Some(columns) = self.columns
            && let Some(row) = row(line, columns)
        {
            self.rows.push(row);
            return (true, None);
        }
        let ended = self.end();
        let text = line.trim();
        if let Some(flags) =
            line.strip_prefix("flags").filter(|rest| rest.trim_start().starts_with(':'))
        {
            self.virtual_machine = Some(flags.split_whitespace().any(|flag| flag == "hypervisor"));
        } else if line.starts_with("cpu  ") {
            self.cpu_ns = cpu_ns(line);
        } else if !text.is_empty() && text.split_whitespace().all(is_cpu) {
            self.columns = Some(text.split_whitespace().count());
        } else {
            return (false, ended);
        }
        (true, ended)
    }

    /// Ends the block and returns its counters.
    pub fn end(&mut self) -> Option<Statistics> {
        self.columns.take()?;
        self.blocks += 1;
        Some(Statistics {
            when: if self.blocks == 1 { ReadTime::Before } else { ReadTime::After },
            time_ns: 0,
            interrupts: std::mem::take(&mut self.rows),
            vmstat: Vec::new(),
            cpu_ns: std::mem::take(&mut self.cpu_ns),
        })
    }
}

/// Returns whether a word is the name of a CPU, like `CPU3`.
fn is_cpu(word: &str) -> bool {
    let digits = word.strip_prefix("CPU").unwrap_or("");
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a row, if the line is one. Some rows have one count for all CPUs.
fn row(line: &str, columns: usize) -> Option<Interrupts> {
    let row = interrupt(line, columns)?;
    let is_row = !row.name.is_empty() && !row.name.contains(' ') && !row.counts.is_empty();
    is_row.then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "flags\t\t: fpu hypervisor pcid
cpu  10 0 20 300 0 0 0 7 0 0
            CPU0       CPU1
   0:         22          0   IO-APIC   2-edge      timer
 TLB:        100         50   TLB shootdowns
 ERR:          0
";

    #[test]
    fn a_block_is_read_and_what_follows_is_not_taken() {
        let mut counters = Counters::default();
        for line in BLOCK.lines() {
            assert_eq!(counters.line(line), (true, None), "{line}");
        }
        let (took, found) = counters.line("churn 1 [000] 1.5: a:b: c");
        let found = found.filter(|_| !took).unwrap();
        assert_eq!(found.when, ReadTime::Before);
        assert_eq!(found.interrupts.len(), 3);
        assert_eq!(found.interrupts[1].name, "TLB");
        assert_eq!(found.interrupts[1].counts, [100, 50]);
        assert_eq!(found.cpu_ns[7], ("steal".into(), 70_000_000));
        assert_eq!(counters.virtual_machine, Some(true));
        for line in BLOCK.lines() {
            counters.line(line);
        }
        assert_eq!(counters.end().unwrap().when, ReadTime::After);
        assert!(counters.end().is_none());
    }
}

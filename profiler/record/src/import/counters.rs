//! What the kernel's counters showed, where the text holds it: `/proc/interrupts`, the sum of `/proc/stat`, the flags
//! of `/proc/cpuinfo`.

use crate::perf::{Interrupts, Statistics, When};

/// What `/proc/stat` counts in: a hundredth of a second, on every machine that Linux runs on today.
const TICK_NS: u64 = 10_000_000;

/// Takes the lines of counters out of a text.
#[derive(Debug, Default)]
pub struct Counters {
    /// How many CPUs the block that is being read has; `None` outside one.
    columns: Option<usize>,
    rows: Vec<Interrupts>,
    cpu_ns: Vec<(String, u64)>,
    blocks: usize,
    took: bool,
    /// Whether the processor says that it runs below a hypervisor; `None` if the text has no flags.
    pub virtual_machine: Option<bool>,
}

impl Counters {
    /// Whether the last line was one of counters.
    pub fn took(&self) -> bool {
        self.took
    }

    /// Looks at a line; what a block showed, if this line is the first behind it.
    pub fn line(&mut self, line: &str) -> Option<Statistics> {
        self.took = true;
        if let Some(columns) = self.columns
            && let Some(row) = row(line, columns)
        {
            self.rows.push(row);
            return None;
        }
        let ended = self.end();
        let text = line.trim();
        if let Some(flags) = line
            .strip_prefix("flags")
            .filter(|rest| rest.trim_start().starts_with(':'))
        {
            self.virtual_machine = Some(flags.split_whitespace().any(|flag| flag == "hypervisor"));
        } else if let Some(times) = line.strip_prefix("cpu  ") {
            self.cpu_ns = cpu_times(times);
        } else if !text.is_empty() && text.split_whitespace().all(is_cpu) {
            self.columns = Some(text.split_whitespace().count());
        } else {
            self.took = false;
        }
        ended
    }

    /// What the block showed that has ended here.
    pub fn end(&mut self) -> Option<Statistics> {
        self.columns.take()?;
        self.blocks += 1;
        Some(Statistics {
            when: if self.blocks == 1 {
                When::Before
            } else {
                When::After
            },
            time_ns: 0,
            interrupts: std::mem::take(&mut self.rows),
            vmstat: Vec::new(),
            cpu_ns: std::mem::take(&mut self.cpu_ns),
        })
    }
}

/// `CPU3`.
fn is_cpu(word: &str) -> bool {
    let digits = word.strip_prefix("CPU").unwrap_or("");
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// `TLB:   2272991   5842047   TLB shootdowns`; some rows have one count for all CPUs.
fn row(line: &str, columns: usize) -> Option<Interrupts> {
    let (name, rest) = line.trim().split_once(':')?;
    if name.is_empty() || name.contains(' ') {
        return None;
    }
    let mut words = rest.split_whitespace().peekable();
    let mut counts = Vec::new();
    while counts.len() < columns {
        match words.peek().and_then(|word| word.parse().ok()) {
            Some(count) => counts.push(count),
            None => break,
        }
        words.next();
    }
    (!counts.is_empty()).then(|| Interrupts {
        name: name.into(),
        counts,
        description: words.collect::<Vec<_>>().join(" "),
    })
}

fn cpu_times(text: &str) -> Vec<(String, u64)> {
    let names = [
        "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal",
    ];
    let times = text
        .split_whitespace()
        .map_while(|time| time.parse::<u64>().ok());
    let filled = names.iter().zip(times);
    filled
        .map(|(name, ticks)| ((*name).to_owned(), ticks.saturating_mul(TICK_NS)))
        .collect()
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
            assert!(counters.line(line).is_none());
            assert!(counters.took(), "{line}");
        }
        let found = counters.line("churn 1 [000] 1.5: a:b: c").unwrap();
        assert!(!counters.took());
        assert_eq!(found.when, When::Before);
        assert_eq!(found.interrupts.len(), 3);
        assert_eq!(found.interrupts[1].name, "TLB");
        assert_eq!(found.interrupts[1].counts, [100, 50]);
        assert_eq!(found.cpu_ns[7], ("steal".into(), 70_000_000));
        assert_eq!(counters.virtual_machine, Some(true));
        for line in BLOCK.lines() {
            counters.line(line);
        }
        assert_eq!(counters.end().unwrap().when, When::After);
        assert!(counters.end().is_none());
    }
}

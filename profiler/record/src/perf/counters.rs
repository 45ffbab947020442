//! Reads the kernel's own counters from `/proc`, which needs no rights.
//!
//! A recording contains them twice, from before and after. No text makes the parsers panic. A line that we can't parse
//! is left out.

use std::io;
use std::path::Path;

use crate::perf::sample::{Interrupts, ReadTime, Statistics};

/// Reads the counters now.
///
/// # Errors
///
/// If `/proc/interrupts`, `/proc/vmstat` or `/proc/stat` can't be read. The error names the file.
pub fn read(when: ReadTime, time_ns: u64) -> io::Result<Statistics> {
    let text = |path: &str| {
        std::fs::read_to_string(Path::new(path))
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    };
    Ok(Statistics {
        when,
        time_ns,
        interrupts: interrupts(&text("/proc/interrupts")?),
        vmstat: vmstat(&text("/proc/vmstat")?),
        cpu_ns: cpu_ns(&text("/proc/stat")?),
    })
}

/// Reads only the CPUs' busy time so far (see [`Statistics::busy_ns`]).
///
/// # Errors
///
/// If `/proc/stat` can't be read.
pub fn busy_ns() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    Ok(busy(&cpu_ns(&text)))
}

/// Reads the kernel's count of shootdown interrupts so far. `None` if there is no row `TLB`.
///
/// # Errors
///
/// If `/proc/interrupts` can't be read.
pub fn shootdowns() -> io::Result<Option<u64>> {
    let text = std::fs::read_to_string("/proc/interrupts")?;
    Ok(total(&interrupts(&text), "TLB"))
}

/// Reads the CPU time of all threads of a process, in steps of 10 ms. Returns `None` if it has ended.
pub fn process_ns(pid: u32) -> Option<u64> {
    process(pid).map(|process| process.own.ns())
}

/// CPU time in nanoseconds, and page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) kernel_ns: u64,
    pub(crate) faults: u64,
}

impl Usage {
    /// Returns the sum of user and kernel time.
    pub(crate) fn ns(self) -> u64 {
        self.user_ns.saturating_add(self.kernel_ns)
    }

    fn with(self, other: Usage, each: fn(u64, u64) -> u64) -> Usage {
        Usage {
            user_ns: each(self.user_ns, other.user_ns),
            kernel_ns: each(self.kernel_ns, other.kernel_ns),
            faults: each(self.faults, other.faults),
        }
    }

    /// Adds each value.
    pub(crate) fn plus(self, other: Usage) -> Usage {
        self.with(other, u64::saturating_add)
    }

    /// Subtracts each value, down to zero.
    pub(crate) fn minus(self, other: Usage) -> Usage {
        self.with(other, u64::saturating_sub)
    }

    /// Returns the larger of each value.
    pub(crate) fn most(self, other: Usage) -> Usage {
        self.with(other, u64::max)
    }

    /// Multiplies each value by a factor.
    pub(crate) fn part(self, part: f64) -> Usage {
        Usage {
            user_ns: (self.user_ns as f64 * part) as u64,
            kernel_ns: (self.kernel_ns as f64 * part) as u64,
            faults: (self.faults as f64 * part) as u64,
        }
    }
}

/// Reads the usage of all children that this process has waited for, with their descendants.
pub(crate) fn waited_for() -> Usage {
    process(std::process::id()).map_or(Usage::default(), |own| own.children)
}

/// The kernel's account of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its main thread's name.
    pub(crate) comm: String,
    /// The process that started it, or that adopted it later.
    pub(crate) parent: u32,
    pub(crate) own: Usage,
    /// The usage of ended children that it has waited for, with their descendants.
    pub(crate) children: Usage,
    /// Its resident memory in pages.
    pub(crate) pages: u64,
}

/// Reads the kernel's account of a process. Returns `None` if it has ended.
pub(crate) fn process(pid: u32) -> Option<Process> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    told(&text)
}

/// Parses a `/proc/PID/stat`.
///
/// The second field is the name in brackets, which may contain blanks and brackets itself. The state follows. Counted
/// from the state as 0, the fields are: 1 the parent; 7 to 10 minor and major page faults, each with the children's
/// after it; 11 to 14 user and system time, then the children's; 21 the resident pages.
fn told(stat: &[u8]) -> Option<Process> {
    let begin = stat.iter().position(|&byte| byte == b'(')?;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut numbers = rest.split_whitespace().skip(1);
    let parent = numbers.next()?.parse().ok()?;
    let mut numbers = numbers.skip(5);
    let mut number = || numbers.next()?.parse::<u64>().ok();
    let [minor, childrens_minor, major, childrens_major] =
        [number()?, number()?, number()?, number()?];
    let mut used = |faults| {
        let mut time_ns = || Some(number()?.saturating_mul(TICK_NS));
        Some(Usage { user_ns: time_ns()?, kernel_ns: time_ns()?, faults })
    };
    Some(Process {
        comm: String::from_utf8_lossy(stat.get(begin + 1..end)?).into_owned(),
        parent,
        own: used(minor.saturating_add(major))?,
        children: used(childrens_minor.saturating_add(childrens_major))?,
        pages: numbers.nth(6)?.parse().ok()?,
    })
}

/// The unit of times in `/proc`: 10 ms, whatever the kernel's own clock is.
const TICK_NS: u64 = 10_000_000;

/// Returns the time in which the CPUs ran anything.
fn busy(cpu_ns: &[(String, u64)]) -> u64 {
    let busy = ["user", "nice", "system", "irq", "softirq"];
    let of = cpu_ns.iter().filter(|(name, _)| busy.contains(&name.as_str()));
    of.map(|(_, ns)| ns).sum()
}

/// Parses the lines of `/proc/interrupts`.
pub fn interrupts(text: &str) -> Vec<Interrupts> {
    let mut lines = text.lines();
    let cpus = lines.next().unwrap_or_default().split_whitespace().count();
    lines.filter_map(|line| interrupt(line, cpus)).collect()
}

/// Returns an interrupt's count over all CPUs. `None` if there is no such line.
fn total(rows: &[Interrupts], name: &str) -> Option<u64> {
    let row = rows.iter().find(|row| row.name == name)?;
    Some(row.counts.iter().sum())
}

/// Parses a line of `/proc/interrupts`, for example `TLB:   2272991   5842047   TLB shootdowns`.
///
/// A line may have fewer counts than there are CPUs: `ERR`, for example.
pub(crate) fn interrupt(line: &str, cpus: usize) -> Option<Interrupts> {
    let (name, rest) = line.split_once(':')?;
    let mut words = rest.split_whitespace().peekable();
    let mut counts = Vec::new();
    while counts.len() < cpus
        && let Some(count) = words.peek().and_then(|word| word.parse().ok())
    {
        counts.push(count);
        words.next();
    }
    Some(Interrupts {
        name: name.trim().to_owned(),
        counts,
        description: words.collect::<Vec<_>>().join(" "),
    })
}

/// Parses the lines of `/proc/vmstat`.
pub fn vmstat(text: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Parses the first line of `/proc/stat`. Returns the time of all CPUs by use, in nanoseconds.
pub fn cpu_ns(text: &str) -> Vec<(String, u64)> {
    const NAMES: [&str; 10] = [
        "user",
        "nice",
        "system",
        "idle",
        "iowait",
        "irq",
        "softirq",
        "steal",
        "guest",
        "guest_nice",
    ];
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let numbers =
        line.unwrap_or_default().split_whitespace().map_while(|word| word.parse::<u64>().ok());
    let named = NAMES.iter().zip(numbers);
    named.map(|(name, ticks)| ((*name).to_owned(), ticks.saturating_mul(TICK_NS))).collect()
}

impl Statistics {
    /// Returns an interrupt's count over all CPUs. `None` if there is no such line.
    pub fn interrupt(&self, name: &str) -> Option<u64> {
        total(&self.interrupts, name)
    }

    /// Returns a counter of `/proc/vmstat`.
    pub fn vm(&self, name: &str) -> Option<u64> {
        let found = self.vmstat.iter().find(|(known, _)| known == name)?;
        Some(found.1)
    }

    /// Returns the busy time of all CPUs together, neither idle nor stolen by a hypervisor.
    pub fn busy_ns(&self) -> u64 {
        busy(&self.cpu_ns)
    }

    /// Returns the time of all CPUs together that a hypervisor took away.
    pub fn stolen_ns(&self) -> u64 {
        self.used_ns("steal").unwrap_or(0)
    }

    /// Returns the time of all CPUs together for one use: `system`, for example.
    pub fn used_ns(&self, usage: &str) -> Option<u64> {
        let found = self.cpu_ns.iter().find(|(name, _)| name == usage)?;
        Some(found.1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_keep_their_counts_and_their_words() {
        let text = "           CPU0       CPU1\n  1:  3  4  IO-APIC   1-edge      i8042\nTLB:  17  4   TLB shootdowns\nERR:   2\n";
        let rows = interrupts(text);
        assert_eq!(rows[0].description, "IO-APIC 1-edge i8042");
        assert_eq!((rows[1].name.as_str(), &rows[1].counts[..]), ("TLB", &[17, 4][..]));
        assert_eq!(rows[1].description, "TLB shootdowns");
        assert_eq!(rows[2].counts, [2]);
    }

    #[test]
    fn ticks_are_nanoseconds() {
        let named = cpu_ns("cpu  1 2 3 400 5 6 7 8 9 10\ncpu0 1 2\n");
        assert_eq!(named[0], ("user".to_owned(), 10_000_000));
        assert_eq!(named.len(), 10);
    }

    #[test]
    fn a_process_has_run_for_as_long_as_its_line_says() {
        let line = b"7 (a) b (c) R 1 7 7 0 -1 4194304 8 3 2 1 30 12 5 6 20 0 1 0 100 1000 123 18446744073709551615 \
                     1 1 1 1 1 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let process = told(line).expect("a line of the kernel's");
        let used = |user, kernel, faults| Usage {
            user_ns: user * TICK_NS,
            kernel_ns: kernel * TICK_NS,
            faults,
        };
        assert_eq!(process.own, used(30, 12, 10));
        assert_eq!(process.children, used(5, 6, 4));
        assert_eq!((&*process.comm, process.pages), ("a) b (c", 123));
        assert_eq!(process.parent, 1);
        assert_eq!(told(b"7 (a"), None);
        assert_eq!(told(b"7 (a) S 1"), None);
        assert!(process_ns(std::process::id()).is_some());
    }

    proptest! {
        #[test]
        fn no_text_makes_them_panic(text in "\\PC{0,40}(\n[a-zA-Z0-9: ]{0,30}){0,4}") {
            interrupts(&text);
            vmstat(&text);
            cpu_ns(&text);
            told(text.as_bytes());
        }
    }
}

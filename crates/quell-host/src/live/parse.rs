//! What the kernel prints, as numbers. Pure functions over text: no input makes them panic.

use std::collections::BTreeMap;

/// One reading of `/proc/interrupts`: for each CPU column its number, and the rows that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The CPU number of each column (offline CPUs have no column).
    pub cpus: Vec<usize>,
    /// Row name (`TLB`, `CAL`, `RES`, `IPI0`..) to one count for each column.
    pub rows: BTreeMap<String, Vec<u64>>,
}

impl Interrupts {
    /// Parses the text, keeping the rows whose name `keep` accepts. A row with fewer counts than there are CPUs is
    /// padded with zeros (`ERR` and `MIS` have one count for all).
    pub fn parse(text: &str, keep: impl Fn(&str) -> bool) -> Self {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        let cpus: Vec<usize> = header
            .split_whitespace()
            .filter_map(|w| w.strip_prefix("CPU")?.parse().ok())
            .collect();
        let mut rows = BTreeMap::new();
        for line in lines {
            let Some((name, rest)) = line.split_once(':') else {
                continue;
            };
            let name = name.trim();
            if !keep(name) {
                continue;
            }
            let mut counts: Vec<u64> = rest
                .split_whitespace()
                .map_while(|w| w.parse().ok())
                .take(cpus.len())
                .collect();
            counts.resize(cpus.len(), 0);
            rows.insert(name.to_owned(), counts);
        }
        Self { cpus, rows }
    }
}

/// `/proc/vmstat`: name to value. Lines that are not a name and a number are skipped.
pub fn vmstat(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

/// Clock ticks of all CPUs together, from the first line of `/proc/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// Running a program, the kernel, or an interrupt.
    pub busy: u64,
    /// Wanted to run and the hypervisor ran somebody else.
    pub steal: u64,
}

/// Reads the `cpu ` line of `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice.
pub fn cpu_ticks(text: &str) -> Option<CpuTicks> {
    let line = text.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map_while(|w| w.parse().ok())
        .collect();
    let at = |i: usize| fields.get(i).copied().unwrap_or(0);
    if fields.len() < 4 {
        return None;
    }
    let busy = [0, 1, 2, 5, 6]
        .into_iter()
        .fold(0u64, |sum, i| sum.saturating_add(at(i)));
    Some(CpuTicks { busy, steal: at(7) })
}

/// The numbers behind the names of a tracepoint's symbolic field, from its `format` file: the pairs of the last
/// `__print_symbolic` in `print fmt`. Names are in lower case, because kernels have changed their spelling.
pub fn symbolic_values(format: &str) -> BTreeMap<String, i64> {
    let mut values = BTreeMap::new();
    let Some((_, list)) = format.rsplit_once("__print_symbolic(") else {
        return values;
    };
    for pair in list.split('{').skip(1) {
        let Some((pair, _)) = pair.split_once('}') else {
            continue;
        };
        let Some((number, name)) = pair.split_once(',') else {
            continue;
        };
        if let Ok(number) = number.trim().parse() {
            values.insert(name.trim().trim_matches('"').to_lowercase(), number);
        }
    }
    values
}

/// Where this process stands in the cgroup tree that manages memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryCgroup {
    /// A version 1 hierarchy with the memory controller; the path below its mount point.
    V1(String),
    /// The version 2 hierarchy; the path below its mount point. Whether it has the memory controller is in
    /// `cgroup.controllers`.
    V2(String),
}

/// Reads `/proc/self/cgroup`; version 1 wins where it has the memory controller, as the kernel binds it once.
pub fn memory_cgroup(text: &str) -> Option<MemoryCgroup> {
    let mut unified = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if controllers.split(',').any(|c| c == "memory") {
            return Some(MemoryCgroup::V1(path.to_owned()));
        }
        if id == "0" && controllers.is_empty() {
            unified = Some(MemoryCgroup::V2(path.to_owned()));
        }
    }
    unified
}

/// The mount points of a file-system type in `/proc/self/mounts` whose options contain `option` (all if empty).
pub fn mount_points(text: &str, kind: &str, option: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let (point, fs, options) = (*fields.get(1)?, *fields.get(2)?, *fields.get(3)?);
            let matches =
                fs == kind && (option.is_empty() || options.split(',').any(|o| o == option));
            // The kernel writes a space in a path as \040.
            matches.then(|| point.replace("\\040", " "))
        })
        .collect()
}

/// A list such as `0-3,8` as numbers; at most 4096, parts that are no numbers are skipped.
pub fn number_list(text: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        {
            numbers.extend((first..=last).take(4096 - numbers.len()));
        }
    }
    numbers
}

/// The bracketed choice of a sysfs file such as `always [madvise] never`.
pub fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(choice, _)| choice)
}

/// A `Name:  123 kB` line of `/proc/meminfo`, in bytes.
pub fn meminfo(text: &str, name: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const X86: &str = "           CPU0       CPU1       \n  \
        36:          0     155784 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n\
        RES:      17239      11616   Rescheduling interrupts\n\
        CAL:      68444      36653   Function call interrupts\n\
        TLB:       6032       6576   TLB shootdowns\n\
        ERR:          0\n";
    const ARM: &str = "           CPU0       CPU2\n \
        11:      40210      38777     GICv3  27 Level     arch_timer\n\
        IPI0:       812        640       Rescheduling interrupts\n\
        IPI1:      4107       3990       Function call interrupts\n\
        Err:          0\n";
    const FORMAT: &str = "name: tlb_flush\nID: 188\nformat:\n\
        \tfield:int reason;\toffset:8;\tsize:4;\tsigned:1;\n\n\
        print fmt: \"pages:%ld reason:%s (%d)\", REC->pages, __print_symbolic(REC->reason, \
        { 0, \"flush on task switch\" }, { 1, \"remote shootdown\" }, { 2, \"local shootdown\" }, \
        { 3, \"local MM shootdown\" }, { 4, \"remote IPI send\" }, { 5, \"remote wrong CPU\" }), REC->reason\n";

    #[test]
    fn interrupts_of_x86() {
        let read = Interrupts::parse(X86, |name| matches!(name, "TLB" | "CAL" | "ERR" | "36"));
        assert_eq!(read.cpus, [0, 1]);
        assert_eq!(read.rows["TLB"], [6032, 6576]);
        assert_eq!(read.rows["36"], [0, 155784]);
        assert_eq!(read.rows["ERR"], [0, 0]);
        assert!(!read.rows.contains_key("RES"));
    }

    #[test]
    fn interrupts_of_arm_with_an_offline_cpu() {
        let read = Interrupts::parse(ARM, |name| name.starts_with("IPI"));
        assert_eq!(read.cpus, [0, 2]);
        assert_eq!(read.rows["IPI1"], [4107, 3990]);
        assert_eq!(read.rows.len(), 2);
    }

    #[test]
    fn vmstat_and_stat() {
        let read = vmstat("pswpin 3\npswpout 25600\nbroken\nworse x\n");
        assert_eq!(read.len(), 2);
        assert_eq!(read["pswpout"], 25600);
        let ticks =
            cpu_ticks("cpu  12279 1 4201 226272 2511 2 138 29 0 0\ncpu0 5591 0 1361\nintr 1 2\n");
        assert_eq!(
            ticks,
            Some(CpuTicks {
                busy: 12279 + 1 + 4201 + 2 + 138,
                steal: 29
            })
        );
        assert_eq!(cpu_ticks("cpu  1 2\n"), None);
    }

    #[test]
    fn reasons_of_the_tracepoint() {
        let reasons = symbolic_values(FORMAT);
        assert_eq!(reasons.len(), 6);
        assert_eq!(reasons["remote ipi send"], 4);
        assert_eq!(reasons["flush on task switch"], 0);
        assert!(symbolic_values("print fmt: \"%d\", REC->reason").is_empty());
    }

    #[test]
    fn the_memory_controller_is_found_in_either_version() {
        let hybrid = "9:name=systemd:/\n4:memory:/jobs/8e30:19\n0::/user.slice\n";
        assert_eq!(
            memory_cgroup(hybrid),
            Some(MemoryCgroup::V1("/jobs/8e30:19".into()))
        );
        assert_eq!(
            memory_cgroup("0::/user.slice\n"),
            Some(MemoryCgroup::V2("/user.slice".into()))
        );
        assert_eq!(memory_cgroup("3:cpuset:/\n"), None);
    }

    #[test]
    fn mounts_lists_and_choices() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup /a\\040b cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(mount_points(mounts, "cgroup", "memory"), ["/a b"]);
        assert_eq!(mount_points(mounts, "cgroup2", ""), ["/sys/fs/cgroup"]);
        assert_eq!(number_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(number_list("0-99999999999,1-3").len() <= 4096);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(
            meminfo("MemFree: 1 kB\nMemAvailable:  22999 kB\n", "MemAvailable"),
            Some(22999 * 1024)
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(?s).{0,400}", name in ".{0,8}") {
            let _ = Interrupts::parse(&text, |_| true);
            let _ = vmstat(&text);
            let _ = cpu_ticks(&text);
            let _ = symbolic_values(&text);
            let _ = memory_cgroup(&text);
            let _ = mount_points(&text, &name, &name);
            let _ = number_list(&text);
            let _ = chosen(&text);
            let _ = meminfo(&text, &name);
        }

        #[test]
        fn no_almost_right_text_makes_a_parser_panic(text in "(CPU[0-9]{1,22}|cpu |[0-9]{1,22}|[A-Z]{3}:|__print_symbolic\\(|[{},\\-\\[\\]:\" \n]){0,60}") {
            let read = Interrupts::parse(&text, |_| true);
            for counts in read.rows.values() {
                prop_assert_eq!(counts.len(), read.cpus.len());
            }
            let _ = vmstat(&text);
            let _ = cpu_ticks(&text);
            let _ = symbolic_values(&text);
            let _ = memory_cgroup(&text);
            prop_assert!(number_list(&text).len() <= 4096);
            let _ = chosen(&text);
            let _ = meminfo(&text, "cpu ");
        }
    }
}

//! What the kernel prints and `procfs` does not read, as numbers. Pure functions over text: no input makes them panic.

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
    fn reasons_of_the_tracepoint() {
        let reasons = symbolic_values(FORMAT);
        assert_eq!(reasons.len(), 6);
        assert_eq!(reasons["remote ipi send"], 4);
        assert_eq!(reasons["flush on task switch"], 0);
        assert!(symbolic_values("print fmt: \"%d\", REC->reason").is_empty());
    }

    #[test]
    fn lists_and_choices() {
        assert_eq!(number_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(number_list("").is_empty());
        assert!(number_list("0-99999999999,1-3").len() <= 4096);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(?s).{0,400}") {
            let _ = Interrupts::parse(&text, |_| true);
            let _ = symbolic_values(&text);
            let _ = number_list(&text);
            let _ = chosen(&text);
        }

        #[test]
        fn no_almost_right_text_makes_a_parser_panic(text in "(CPU[0-9]{1,22}|cpu |[0-9]{1,22}|[A-Z]{3}:|__print_symbolic\\(|[{},\\-\\[\\]:\" \n]){0,60}") {
            let read = Interrupts::parse(&text, |_| true);
            for counts in read.rows.values() {
                prop_assert_eq!(counts.len(), read.cpus.len());
            }
            let _ = symbolic_values(&text);
            prop_assert!(number_list(&text).len() <= 4096);
            let _ = chosen(&text);
        }
    }
}

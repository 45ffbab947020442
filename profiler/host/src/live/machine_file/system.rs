//! Reads the system's description of itself.

use std::fs;
use std::path::Path;

use procfs_core::{FromRead, Meminfo};
use quell_clock::Parameter as P;

use crate::live::report::Host;
#[cfg(target_arch = "x86_64")]
use crate::live::tlb::{self, Geometry};
use crate::processor::Processor;

/// One figure of the file.
pub struct Figure {
    /// The parameter.
    pub parameter: P,
    /// Its text in the file, quoted if it is a word.
    pub value: String,
    /// The unit in files; empty for a word.
    pub unit: &'static str,
    /// The source.
    pub source: String,
    /// Whether it is a guess.
    pub assumed: bool,
}

/// Reads a file of the system, if there is one.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Counts the numbers in a list such as `0-3,8`. Skips parts that aren't numbers.
fn numbers(list: &str) -> usize {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').filter_map(part).fold(0, usize::saturating_add)
}

/// Returns the system's description of itself.
pub fn figures(host: &Host, processor: &Processor) -> Vec<Figure> {
    let mut figures = HostFigures(Vec::new());
    figures.processor(host, processor);
    figures.caches(host.cpus[0]);
    figures.memory();
    if host.arch == "x86_64" {
        figures.translation(host);
    }
    figures.0
}

/// The directory that describes caches and topology.
const CPUS: &str = "/sys/devices/system/cpu";

/// The figures so far.
struct HostFigures(Vec<Figure>);

impl HostFigures {
    fn add(&mut self, parameter: P, value: impl ToString, unit: &'static str, source: &str) {
        self.0.push(Figure {
            parameter,
            value: value.to_string(),
            unit,
            source: source.into(),
            assumed: false,
        });
    }

    /// Adds a figure as [`HostFigures::add`] does, but marks it as assumed.
    fn assume(&mut self, parameter: P, value: impl ToString, unit: &'static str, why: &str) {
        self.add(parameter, value, unit, why);
        if let Some(figure) = self.0.last_mut() {
            figure.assumed = true;
        }
    }

    /// Adds the frequency, and the numbers of CPUs that share a core or a socket.
    fn processor(&mut self, host: &Host, processor: &Processor) {
        let plausible = |mhz: &f64| (100.0..=10_000.0).contains(mhz);
        if let Some(mhz) = processor.megahertz.filter(plausible) {
            self.add(P::Frequency, format!("{mhz:.0}"), "MHz", "/proc/cpuinfo");
        }
        let whose = "the CPUs that the measuring process may use";
        self.add(P::Cpus, host.cpus.len(), "CPUs", whose);
        let shared = |list: &str| {
            let list = read(format!("{CPUS}/cpu{}/topology/{list}", host.cpus[0]))?;
            Some(numbers(&list)).filter(|&cpus| cpus > 0)
        };
        if let Some(cpus) = shared("package_cpus_list") {
            let source = format!("{CPUS}: package_cpus_list");
            self.add(P::CpusPerSocket, cpus, "CPUs", &source);
        }
        if let Some(cpus @ 1..=8) = shared("thread_siblings_list") {
            let source = format!("{CPUS}: thread_siblings_list");
            self.add(P::CpusPerCore, cpus, "CPUs", &source);
        }
    }

    /// Adds the sizes of a CPU's caches.
    fn caches(&mut self, cpu: usize) {
        for index in 0..8 {
            let field = |name: &str| read(format!("{CPUS}/cpu{cpu}/cache/index{index}/{name}"));
            let parameter = match (field("level").as_deref(), field("type").as_deref()) {
                (Some("1"), Some("Data")) => P::L1Size,
                (Some("2"), _) => P::CacheL2Size,
                (Some("3"), _) => P::LlcSize,
                _ => continue,
            };
            let size = field("size").and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok());
            if let Some(size @ 1..=4_194_304) = size {
                self.add(parameter, size, "KB", &format!("{CPUS}: cache"));
            }
        }
    }

    /// Adds the nodes of memory.
    fn memory(&mut self) {
        let source = "/sys/devices/system/node/has_memory";
        let nodes = read(source).map_or(1, |list| numbers(&list));
        let nodes = nodes.clamp(1, 7);
        self.add(P::Nodes, nodes, "1", source);
        if let Ok(memory) = Meminfo::from_file("/proc/meminfo") {
            let each = (memory.mem_total / 1024 / nodes as u64).max(1024);
            let source = "/proc/meminfo: MemTotal, shared evenly among the nodes";
            self.add(P::NodeSize, each, "KB", source);
        }
        let why = "slow memory is not distinguished from ordinary memory";
        self.assume(P::SlowNodes, 0, "1", why);
    }

    /// Adds the TLBs of x86-64, and the cost of a walk in a guest.
    fn translation(&mut self, host: &Host) {
        let pcid = host.flags.iter().any(|flag| flag == "pcid");
        let tags = if pcid { "\"pcid\"" } else { "\"none\"" };
        self.add(P::Tags, tags, "", "/proc/cpuinfo: flags");
        #[cfg(target_arch = "x86_64")]
        {
            let Geometry { l1_base, l1_large, l1_huge, l2 } = tlb::of_this_cpu();
            for (found, entries, ways) in [
                (l1_base, P::L1Base, P::L1BaseWays),
                (l1_large, P::L1Large, P::L1LargeWays),
                (l1_huge, P::L1Huge, P::L1HugeWays),
                (l2, P::L2, P::L2Ways),
            ] {
                if let Some(part) = found {
                    self.add(entries, part.entries, "entries", part.source);
                    self.add(ways, part.ways, "ways", part.source);
                }
            }
        }
        if host.guest == Some(true) {
            let why = "a guest: as derived for the Skylake laptop's guest from headline S2";
            self.assume(P::NestedWalk, "1.8", "1", why);
        }
    }
}

#[test]
fn a_list_of_numbers_is_counted() {
    for (list, count) in [("0-3,8\n", 5), ("", 0), ("x,2-1,0-18446744073709551615,7", 1)] {
        assert_eq!(numbers(list), count, "{list}");
    }
}

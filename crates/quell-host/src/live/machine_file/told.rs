//! What the system tells about itself.

use std::fs;
use std::path::Path;

use procfs_core::{FromRead, Meminfo};
use quell_clock::Parameter as P;

use crate::live::parse::number_list;
use crate::live::report::Host;
use crate::live::tlb::{self, Geometry};
use crate::processor::Processor;

/// One figure of the file.
pub struct Figure {
    /// Which.
    pub parameter: P,
    /// As it stands in the file, quoted if it is a word.
    pub value: String,
    /// As files write it; nothing for a word.
    pub unit: &'static str,
    /// Where it is from.
    pub source: String,
    /// Whether it is a guess.
    pub assumed: bool,
}

/// What a file of the system says, if there is one.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// What the system tells about itself.
pub fn told(host: &Host, processor: &Processor) -> Vec<Figure> {
    let mut entries = Vec::new();
    let mut add = |parameter, value: String, unit, source: &str, assumed| {
        entries.push(Figure {
            parameter,
            value,
            unit,
            source: source.into(),
            assumed,
        });
    };
    let plausible = |mhz: &f64| (100.0..=10_000.0).contains(mhz);
    if let Some(mhz) = processor.megahertz.filter(plausible) {
        add(
            P::Frequency,
            format!("{mhz:.0}"),
            "MHz",
            "/proc/cpuinfo",
            false,
        );
    }
    let topology = |name: &str| {
        let path = format!(
            "/sys/devices/system/cpu/cpu{}/topology/{name}",
            host.cpus[0]
        );
        read(path)
            .map(|list| number_list(&list).len())
            .filter(|&n| n > 0)
    };
    add(
        P::Cpus,
        host.cpus.len().to_string(),
        "CPUs",
        "the CPUs that the measuring process may use",
        false,
    );
    if let Some(count) = topology("package_cpus_list") {
        add(
            P::CpusPerSocket,
            count.to_string(),
            "CPUs",
            "/sys/devices/system/cpu: package_cpus_list",
            false,
        );
    }
    if let Some(count @ 1..=8) = topology("thread_siblings_list") {
        add(
            P::CpusPerCore,
            count.to_string(),
            "CPUs",
            "/sys/devices/system/cpu: thread_siblings_list",
            false,
        );
    }
    for index in 0..8 {
        let dir = format!(
            "/sys/devices/system/cpu/cpu{}/cache/index{index}",
            host.cpus[0]
        );
        let field = |name: &str| read(format!("{dir}/{name}"));
        let size = field("size").and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok());
        let parameter = match (field("level").as_deref(), field("type").as_deref()) {
            (Some("1"), Some("Data")) => P::L1Size,
            (Some("2"), _) => P::CacheL2Size,
            (Some("3"), _) => P::LlcSize,
            _ => continue,
        };
        if let Some(size @ 1..=4_194_304) = size {
            add(
                parameter,
                size.to_string(),
                "KB",
                "/sys/devices/system/cpu: cache",
                false,
            );
        }
    }
    let nodes =
        read("/sys/devices/system/node/has_memory").map_or(1, |list| number_list(&list).len());
    let nodes = nodes.clamp(1, 7);
    add(
        P::Nodes,
        nodes.to_string(),
        "1",
        "/sys/devices/system/node/has_memory",
        false,
    );
    if let Ok(memory) = Meminfo::from_file("/proc/meminfo") {
        let each = (memory.mem_total / 1024 / nodes as u64).max(1024);
        add(
            P::NodeSize,
            each.to_string(),
            "KB",
            "/proc/meminfo: MemTotal, shared evenly among the nodes",
            false,
        );
    }
    add(
        P::SlowNodes,
        "0".into(),
        "1",
        "slow memory is not told apart from ordinary memory",
        true,
    );
    if host.arch == "x86_64" {
        let tags = if host.flags.iter().any(|flag| flag == "pcid") {
            "pcid"
        } else {
            "none"
        };
        add(
            P::Tags,
            format!("\"{tags}\""),
            "",
            "/proc/cpuinfo: flags",
            false,
        );
        let geometry = tlb::of_this_cpu();
        add_tlb(&mut add, &geometry);
    }
    if host.guest == Some(true) && host.arch == "x86_64" {
        add(
            P::NestedWalk,
            "1.8".into(),
            "1",
            "a guest: as derived for the Skylake laptop's from S2 before",
            true,
        );
    }
    entries
}

fn add_tlb(add: &mut impl FnMut(P, String, &'static str, &str, bool), geometry: &Geometry) {
    let parts = [
        (geometry.l1_base, P::L1Base, P::L1BaseWays),
        (geometry.l1_large, P::L1Large, P::L1LargeWays),
        (geometry.l1_huge, P::L1Huge, P::L1HugeWays),
        (geometry.l2, P::L2, P::L2Ways),
    ];
    for (found, entries, ways) in parts {
        if let Some(part) = found {
            add(
                entries,
                part.entries.to_string(),
                "entries",
                part.source,
                false,
            );
            add(ways, part.ways.to_string(), "ways", part.source, false);
        }
    }
}

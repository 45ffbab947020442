//! The machine file of this host, for the model.
//!
//! Two figures are measured, and nothing else is fitted: the time of a discard and touch of one page alone,
//! and with one thread spinning. From the first comes what a call costs in this kernel beyond what the base
//! machine's figures explain; from the second, how long an interrupt takes to reach its target. What the
//! system itself tells (CPUs, clock, sizes of caches and TLBs, memory) is taken from there. Everything else is
//! the base machine's, a built-in one of the same architecture and vendor, and marked as assumed.
//!
//! What the base machine does not explain of the first figure has to be split between the fault and the call, and one
//! figure cannot say how. The base figures are orders of magnitude of the kernel's path; that a page fault enters
//! by an exception and leaves by `IRET`, which hardware is slow at, is not in them. So of the unexplained time the fault is given
//! what published measurements of that crossing say (on x86, see [`CROSSING`]), and the call all the rest: kernels
//! and mitigations have made calls slower since the base figures were published. None of this looks at the rows that are
//! predicted. A wrong split shows where many pages share a call, which is why that is among them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use quell_clock::file::built_in;
use quell_clock::{MachineFile, Parameter as P};
use quell_workloads::Workload;

use super::report::{Host, Shootdown};
use super::tlb::{self, Geometry};
use crate::predict::kernel::Kernel;
use quell::Policy;
use quell_experiments::trial::Trial;

/// Rounds of calibration; the model is nearly linear in both figures, so two would do.
const ROUNDS: usize = 4;

/// One figure of the file.
struct Entry {
    parameter: P,
    /// As it stands in the file, quoted if it is a word.
    value: String,
    unit: &'static str,
    source: String,
    assumed: bool,
}

/// A machine file and its text.
#[derive(Debug)]
pub struct HostMachine {
    /// The machine.
    pub machine: MachineFile,
    /// What the file holds.
    pub text: String,
    /// What this kernel does, as a policy.
    pub kernel: Kernel,
    /// Whether the calibration could reach what was measured; if not, why not.
    pub note: Option<String>,
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The numbers in a list of CPUs like `0-3,8`.
fn listed(list: &str) -> usize {
    list.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(to.trim().parse::<usize>().ok()? + 1 - from.trim().parse::<usize>().ok()?)
        })
        .sum()
}

/// The built-in machine that this host is most like, and why.
fn base(arch: &str, cpuinfo: &str) -> anyhow::Result<(&'static str, &'static str)> {
    Ok(match arch {
        "aarch64" => ("kunpeng-920", "the built-in AArch64 server"),
        "x86_64" if cpuinfo.contains("AuthenticAMD") => ("milan", "the built-in AMD server"),
        "x86_64" => ("xeon-6430-cxl", "the newest built-in Intel server"),
        _ => anyhow::bail!(
            "no built-in machine is of the architecture {arch}: nothing to start from"
        ),
    })
}

/// What the system tells about itself.
fn told(host: &Host, cpuinfo: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut add = |parameter, value: String, unit, source: &str, assumed| {
        entries.push(Entry {
            parameter,
            value,
            unit,
            source: source.into(),
            assumed,
        });
    };
    let mhz = cpuinfo.lines().find_map(|line| {
        line.strip_prefix("cpu MHz")?
            .split(':')
            .nth(1)?
            .trim()
            .parse::<f64>()
            .ok()
    });
    if let Some(mhz) = mhz.filter(|mhz| (100.0..=10_000.0).contains(mhz)) {
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
        read(path).map(|list| listed(&list)).filter(|&n| n > 0)
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
    let nodes = read("/sys/devices/system/node/has_memory").map_or(1, |list| listed(&list));
    let nodes = nodes.clamp(1, 7);
    add(
        P::Nodes,
        nodes.to_string(),
        "1",
        "/sys/devices/system/node/has_memory",
        false,
    );
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    if let Some(kilobytes) = total {
        let each = (kilobytes / nodes as u64).max(1024);
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

/// Cycles from the faulting instruction to the kernel's first and from its last to the program's, on x86-64:
/// natively and in a guest. Measured on a Xeon E5 v3 as 440 + 270 and 600 + 370 (Y. Shan, "x86 Ring Switch Overhead",
/// lastweek.io/notes/xperf, 2020); a test program of L. Torvalds found 715 + 330 on a native Haswell, the kernel's first
/// instructions included (2014).
const CROSSING: (f64, f64) = (710.0, 970.0);

/// What a fault costs, in picoseconds, if `unexplained` picoseconds are to be accounted for: up to the crossing.
fn fault(machine: &MachineFile, guest: bool, unexplained: f64) -> f64 {
    let cycles = if guest { CROSSING.1 } else { CROSSING.0 };
    let crossing = cycles / machine.amount(P::Frequency) * 1e3;
    let known = machine.amount(P::Fault);
    known + unexplained.clamp(0.0, (crossing - known).max(0.0))
}

/// A switch with its two calls took this long in the published guest; what the call here costs more is part
/// of it and not counted twice.
fn schedule(system_call: f64) -> Option<Entry> {
    let published = built_in("skylake-laptop")?;
    let total = published.amount(P::SystemCall) + published.amount(P::Schedule);
    Some(Entry {
        parameter: P::Schedule,
        value: format!("{:.1}", (total - system_call).max(0.0) / 1e3),
        unit: "ns",
        source: "as derived for the Skylake laptop's guest from S2 before (with its call 1082 ns), less the call".into(),
        assumed: true,
    })
}

fn text(name: &str, title: &str, base: &str, entries: &[Entry]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# Written by `quell measure host`. What is not here is taken over from `{base}` and assumed."
    );
    let _ = writeln!(
        text,
        "name = {name:?}\ntitle = {title:?}\nbased_on = {base:?}"
    );
    let mut sections: Vec<&str> = Vec::new();
    for entry in entries {
        let section = entry.parameter.description().section;
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for section in sections {
        let _ = writeln!(text, "\n[{section}]");
        for entry in entries {
            let description = entry.parameter.description();
            if description.section != section {
                continue;
            }
            let unit = if entry.unit.is_empty() {
                String::new()
            } else {
                format!("unit = {:?}, ", entry.unit)
            };
            let assumed = if entry.assumed {
                "assumed = true, "
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "{} = {{ value = {}, {unit}{assumed}source = {:?} }}",
                description.key, entry.value, entry.source
            );
        }
    }
    text
}

/// Nanoseconds of a discard and touch of one page in the model.
fn modelled(machine: &MachineFile, policy: Policy, cpus: usize) -> anyhow::Result<f64> {
    let mut workload = Workload::from_name("dontneed").context("no workload dontneed")?;
    workload.set("iterations=500").context("dontneed")?;
    let trial = Trial {
        machine,
        workload,
        policy,
        cpus,
        seed: quell_experiments::jobs::SEED,
        trace: 0,
    };
    Ok(trial.run()?.measure.value)
}

/// The machine of this host, calibrated on the two rows behind `shootdown` alone.
///
/// # Errors
/// If the model cannot run on it.
pub fn make(host: &Host, shootdown: &Shootdown) -> anyhow::Result<HostMachine> {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let (base_name, why) = base(host.arch, &cpuinfo)?;
    let tags = host.arch == "aarch64" || host.flags.iter().any(|flag| flag == "pcid");
    let kernel = Kernel::linux(&host.kernel, host.arch, tags)?;
    let mut entries = told(host, &cpuinfo);
    let title = format!(
        "{}{}, Linux {}; otherwise like {why}",
        host.cpu_model.as_deref().unwrap_or(host.arch),
        if host.guest == Some(true) {
            ", a guest"
        } else {
            ""
        },
        host.kernel,
    );
    let fixed = text("quell-host", &title, base_name, &entries);
    let mut machine = MachineFile::parse("the host's figures", &fixed)?;
    let mut notes = Vec::new();

    let guest = host.guest == Some(true);
    // The fault: what the crossing is known to cost, as far as time is unexplained.
    if host.arch == "x86_64" {
        let unexplained = (shootdown.alone_ns - modelled(&machine, kernel.policy, 1)?) * 1e3;
        let fault = fault(&machine, guest, unexplained);
        if fault > machine.amount(P::Fault) {
            machine = machine.with(P::Fault, fault)?;
            entries.push(Entry {
                parameter: P::Fault,
                value: format!("{:.1}", fault / 1e3),
                unit: "ns",
                source: format!(
                    "exception and IRET as published for a Haswell server{}, at this clock, as far as the time alone leaves room",
                    if guest { "'s guest" } else { "" }
                ),
                assumed: true,
            });
        }
    }

    // The call: what one CPU alone shows and neither the base nor the crossing explains.
    let mut call = machine.amount(P::SystemCall);
    for _ in 0..ROUNDS {
        let here = modelled(&machine, kernel.policy, 1)?;
        call = (call + (shootdown.alone_ns - here) * 1e3).clamp(0.0, 1e9);
        machine = machine.with(P::SystemCall, call)?;
    }
    let alone = modelled(&machine, kernel.policy, 1)?;
    if (alone - shootdown.alone_ns).abs() > shootdown.alone_ns * 0.02 {
        notes.push(format!(
            "the model cannot be made as fast as this host: {alone:.0} ns against {:.0} ns alone",
            shootdown.alone_ns
        ));
    }
    let reliable = if shootdown.reliable {
        ""
    } else {
        "; NOT reliable, see the measurement's note"
    };
    entries.push(Entry {
        parameter: P::SystemCall,
        value: format!("{:.1}", call / 1e3),
        unit: "ns",
        source: format!(
            "calibrated: discard and touch of one page, alone, {:.0} ns{reliable}",
            shootdown.alone_ns
        ),
        assumed: !shootdown.reliable,
    });
    if guest && host.arch == "x86_64" {
        entries.extend(schedule(call));
    }

    // The interrupt: what one spinning thread adds.
    let parameter = if guest {
        P::GuestDelivery
    } else {
        P::InterruptDelivery
    };
    if let Some(target) = shootdown
        .one_target_ns
        .filter(|_| shootdown.ns.is_some() && machine.choice(P::Broadcast) == "no")
    {
        let mut delivery = machine.amount(parameter);
        let least = if guest { 0.0 } else { 1e3 };
        for _ in 0..ROUNDS {
            let here = modelled(&machine, kernel.policy, 2)?;
            delivery = (delivery + (target - here) * 1e3).clamp(least, 1e9);
            machine = machine.with(parameter, delivery)?;
        }
        let here = modelled(&machine, kernel.policy, 2)?;
        if (here - target).abs() > target * 0.02 {
            notes.push(format!(
                "the model cannot be brought to this host's shootdown: {here:.0} ns against {target:.0} ns with one target"
            ));
        }
        entries.push(Entry {
            parameter,
            value: format!("{:.1}", delivery / 1e3),
            unit: "ns",
            source: format!(
                "calibrated: discard and touch of one page, one thread spinning, {target:.0} ns{reliable}"
            ),
            assumed: !shootdown.reliable,
        });
    } else {
        notes.push("no price of a shootdown was measured: interrupts cost what they do on the base machine".into());
    }
    let text = text("quell-host", &title, base_name, &entries);
    let machine = MachineFile::parse("the host's machine file", &text)?;
    ensure!(
        machine.name() == "quell-host",
        "the machine file does not read back"
    );
    Ok(HostMachine {
        machine,
        text,
        kernel,
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(guest: bool) -> Host {
        Host {
            kernel: "6.18.0".into(),
            arch: "x86_64",
            cpu_model: Some("a \"CPU\"".into()),
            guest: Some(guest),
            cpus: vec![0, 1],
            page_bytes: 4096,
            flags: vec!["pcid".into()],
            root: true,
        }
    }

    fn measured(alone_ns: f64, one_target_ns: f64) -> Shootdown {
        Shootdown {
            alone_ns,
            one_target_ns: Some(one_target_ns),
            interrupts_per_op: Some(1.0),
            ns: Some(one_target_ns - alone_ns),
            quiet_samples: 9,
            all_samples: 9,
            reliable: true,
            note: None,
        }
    }

    #[test]
    fn the_file_reproduces_both_figures_and_nothing_else_was_fitted() {
        for (guest, alone, target) in [(true, 2_700.0, 13_000.0), (false, 1_500.0, 3_100.0)] {
            let made = make(&host(guest), &measured(alone, target)).unwrap();
            assert_eq!(made.note, None);
            let again = MachineFile::parse("again", &made.text).unwrap();
            let near = |cpus, wanted: f64| {
                let found = modelled(&again, made.kernel.policy, cpus).unwrap();
                assert!(
                    (found - wanted).abs() < wanted * 0.02,
                    "{found} for {wanted}"
                );
            };
            near(1, alone);
            near(2, target);
            let calibrated = P::ALL
                .iter()
                .filter(|&&p| again.value(p).source.starts_with("calibrated"));
            assert_eq!(calibrated.count(), 2);
            assert!(again.value(P::Fault).assumed);
        }
    }

    #[test]
    fn the_fault_gets_its_crossing_and_the_call_the_rest() {
        for (guest, cycles) in [(true, 970.0), (false, 710.0)] {
            // So fast that the fault stays as it is in the base machine.
            let before = make(&host(guest), &measured(1.0, 5_000.0)).unwrap().machine;
            let known = before.amount(P::Fault);
            let crossing = cycles / before.amount(P::Frequency) * 1e3;
            assert!(crossing > known + 2.0, "or there is nothing to test");
            // Faster than the model, a little slower, and much slower.
            assert_eq!(fault(&before, guest, -5e3), known);
            assert_eq!(fault(&before, guest, 2.0), known + 2.0);
            assert!((fault(&before, guest, 1e9) - crossing).abs() < 1e-3);
            let made = make(&host(guest), &measured(9_000.0, 20_000.0)).unwrap();
            // Written with a tenth of a nanosecond.
            assert!((made.machine.amount(P::Fault) - crossing).abs() < 100.0);
            assert!(
                made.machine.amount(P::SystemCall) > 5e6,
                "most is the call's"
            );
        }
    }

    #[test]
    fn a_host_faster_than_its_base_is_said_so() {
        let made = make(&host(true), &measured(100.0, 5_000.0)).unwrap();
        assert!(made.note.unwrap().contains("as fast as this host"));
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(listed("0-3,8,10-11"), 7);
        assert_eq!(listed("0"), 1);
        assert_eq!(listed(""), 0);
    }
}

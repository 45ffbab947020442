//! Makes the machine file of this host for the model.
//!
//! The measured steps ([`Units`]) are, for example, a discard that finds nothing, a first touch, a page zeroed, and a
//! page compressed. We also measure a discard and touch of one page, alone and with one thread spinning. Each
//! measurement fixes one figure of the file, and we choose the order so that each depends on only one new figure:
//!
//! | measured | fixes |
//! | --- | --- |
//! | a page zeroed, forwards and backwards | the speed of zeroing, and the cost of starting at another place |
//! | a discard that finds nothing | a call, which takes at least as long as one that does nothing |
//! | a first touch | a fault, beyond the page's zeroing |
//! | a page discarded, with many others in a call | the work for each discarded page |
//! | a page discarded and touched, alone | a discard that removes a page, beyond the work for each page |
//! | the same with a thread spinning | the time until an interrupt reaches its target |
//! | a switch between two threads of a process | a switch, beyond its call |
//! | a page written to zram, and read | compressing and decompressing it, beyond the call |
//! | a page of zeros swapped | the other work of swapping a page, which is added to compressing it |
//!
//! So no figure contains time that belongs to another, and the model can predict a row in which many pages share a
//! call. The choice of those rows (`beside.rs`) has no effect here. The system itself describes its CPUs, clock, sizes
//! of caches and TLBs, and memory. We take all other figures from a base machine, a built-in one of the same
//! architecture and vendor, and mark them as assumed.
//!
//! The calibration can't separate the local flush from the rest of a call that removes a page, or from the longer walks
//! after it. We attribute all of it to the call.

mod system;

use std::fmt::Write;

use anyhow::{Context, ensure};
use quell_clock::file::built_in;
use quell_clock::{MachineFile, Parameter as P};
use quell_workloads::Workload;

use self::system::{Figure, figures};
use super::report::{Host, Shootdown, Units};
use crate::predict::kernel::Kernel;
use crate::processor::Processor;
use quell::Policy;
use quell_model::jobs::Job;

/// Rounds of calibration; the model is nearly linear in each figure, so two would do.
const ROUNDS: usize = 4;

/// A machine file and its text.
#[derive(Debug)]
pub struct HostMachine {
    /// The machine.
    pub machine: MachineFile,
    /// The content of the file.
    pub text: String,
    /// This kernel's mechanisms, as a policy.
    pub kernel: Kernel,
    /// The reason why the calibration couldn't reach the measurements, if it couldn't.
    pub note: Option<String>,
}

/// Returns the built-in machine that is most like this host, and the reason.
fn base(arch: &str, vendor: Option<&str>) -> anyhow::Result<(&'static str, &'static str)> {
    Ok(match arch {
        "aarch64" => ("kunpeng-920", "the built-in AArch64 server"),
        "x86_64" if vendor == Some("AuthenticAMD") => ("milan", "the built-in AMD server"),
        "x86_64" => ("xeon-6430-cxl", "the newest built-in Intel server"),
        _ => anyhow::bail!(
            "no built-in machine is of the architecture {arch}: nothing to start from"
        ),
    })
}

/// Returns the built-in machine that is most like this host.
pub fn nearest_built_in() -> anyhow::Result<MachineFile> {
    let vendor = Processor::of_this_host().vendor;
    let (name, _) = base(std::env::consts::ARCH, vendor.as_deref())?;
    built_in(name).context("a built-in machine")
}

/// Returns the time of a switch beyond the published guest's.
///
/// That guest measured a switch with two calls. The extra cost of this host's call is part of it, and we don't count it
/// twice.
fn schedule(system_call: f64) -> Option<Figure> {
    let published = built_in("skylake-laptop")?;
    let total = published.amount(P::SystemCall) + published.amount(P::Schedule);
    Some(Figure {
        parameter: P::Schedule,
        value: format!("{:.1}", (total - system_call).max(0.0) / 1e3),
        unit: "ns",
        source: "as derived for the Skylake laptop's guest from headline S2 (1082 ns with its call), minus \
                 this host's call"
            .into(),
        assumed: true,
    })
}

fn text(name: &str, title: &str, base: &str, entries: &[Figure]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# Written by `quell measure host`. Values that are missing here are taken over from `{base}` and assumed."
    );
    let _ = writeln!(
        text,
        "name = {name:?}\ntitle = {title:?}\nbased_on = {base:?}\nbase_assumed = true"
    );
    // We fit this host's kernel code into the cost of a call.
    let _ = writeln!(text, "runs = \"quell-vm\"");
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
            let assumed = if entry.assumed { "assumed = true, " } else { "" };
            let _ = writeln!(
                text,
                "{} = {{ value = {}, {unit}{assumed}source = {:?} }}",
                description.key, entry.value, entry.source
            );
        }
    }
    text
}

/// Returns the model's figure for a workload with these parameters.
pub fn modelled(
    machine: &MachineFile,
    policy: Policy,
    cpus: usize,
    (workload, parameters): (&str, &[&str]),
) -> anyhow::Result<f64> {
    let mut program =
        Workload::from_name(workload).with_context(|| format!("no workload {workload}"))?;
    for pair in parameters {
        program.set(pair).with_context(|| workload.to_owned())?;
    }
    Ok(Job::new(machine.clone().into(), program, policy, cpus).run()?.measure.value)
}

/// A discard and touch of one page: nanoseconds.
const ONE_PAGE: (&str, &[&str]) = ("dontneed", &["iterations=500"]);
/// A discard that finds nothing: nanoseconds.
const NOTHING: (&str, &[&str]) = ("dontneed", &["iterations=500", "touch=no"]);
/// Many pages discarded by one call, and touched: nanoseconds.
const MANY_PAGES: (&str, &[&str]) = ("dontneed", &["iterations=50", "pages=64"]);
/// The pages of [`MANY_PAGES`].
const MANY: f64 = 64.0;
/// Pages of zeros swapped: seconds for 10 000 rounds of 256 pages.
const SWAPPED_ZEROS: (&str, &[&str]) = ("swap", &["rounds=10", "zeros=yes"]);
/// First touches: gigabytes per second.
const TOUCHES: (&str, &[&str]) = ("demand", &["size=1M", "page=4K"]);
const PAGE: f64 = 4096.0;
/// The factor from seconds for 10 000 rounds of 256 pages to nanoseconds a page.
pub const SWAP_ROUNDS_NS: f64 = 1e9 / 10_000.0 / 256.0;

/// A figure to adjust until the model matches a measurement.
struct Fit {
    parameter: P,
    /// The name of the measurement.
    what: &'static str,
    cpus: usize,
    workload: (&'static str, &'static [&'static str]),
    /// The conversion from the workload's figure to nanoseconds.
    nanoseconds: fn(f64) -> f64,
    /// The least value of the parameter, in picoseconds.
    least: f64,
}

const FIT: Fit = Fit {
    parameter: P::SystemCall,
    what: "discard that finds nothing",
    cpus: 1,
    workload: NOTHING,
    nanoseconds: |value| value,
    least: 0.0,
};

/// A machine file under construction.
struct Draft {
    machine: MachineFile,
    policy: Policy,
    entries: Vec<Figure>,
    notes: Vec<String>,
    /// Whether the figures rest on undisturbed rows.
    reliable: bool,
}

impl Draft {
    /// Sets a figure that follows from a measurement.
    fn set(
        &mut self,
        parameter: P,
        value: f64,
        unit: &'static str,
        source: String,
    ) -> anyhow::Result<()> {
        // Writes picoseconds as nanoseconds with one decimal.
        let written = if unit == "ns" { value / 1e3 } else { value };
        self.machine = self.machine.with(parameter, value)?;
        let doubt = if self.reliable { "" } else { "; NOT reliable, see the measurement's note" };
        self.entries.push(Figure {
            parameter,
            value: format!("{written:.1}"),
            unit,
            source: format!("{source}{doubt}"),
            assumed: !self.reliable,
        });
        Ok(())
    }

    /// Adjusts a figure until the model needs `wanted` nanoseconds.
    fn fit(&mut self, fit: &Fit, wanted: f64) -> anyhow::Result<()> {
        let takes = |machine: &MachineFile| -> anyhow::Result<f64> {
            let value = modelled(machine, self.policy, fit.cpus, fit.workload)?;
            Ok((fit.nanoseconds)(value))
        };
        let mut machine = self.machine.clone();
        let mut value = machine.amount(fit.parameter);
        for _ in 0..ROUNDS {
            value = (value + (wanted - takes(&machine)?) * 1e3).clamp(fit.least, 1e9);
            machine = machine.with(fit.parameter, value)?;
        }
        let here = takes(&machine)?;
        if (here - wanted).abs() > wanted * 0.02 {
            self.notes.push(format!(
                "the model cannot be brought to this host's {}: {here:.0} ns against {wanted:.0} ns",
                fit.what
            ));
        }
        let source = format!("calibrated: {}, {wanted:.0} ns", fit.what);
        self.set(fit.parameter, value, "ns", source)
    }

    /// Calibrates all figures, in an order in which none depends on a later one.
    fn calibrate(
        &mut self,
        host: &Host,
        units: &Units,
        shootdown: &Shootdown,
        dirty: Policy,
    ) -> anyhow::Result<()> {
        self.zeroing(units)?;
        self.calls(units, shootdown.alone_ns)?;
        self.switches(host, units)?;
        self.interrupts(host, shootdown)?;
        self.swapping(units, dirty)
    }

    /// Sets the costs of zeroing a page.
    fn zeroing(&mut self, units: &Units) -> anyhow::Result<()> {
        let (Some(forwards), Some(backwards)) = (units.zero_ns, units.zero_backwards_ns) else {
            return Ok(());
        };
        let start = self.machine.amount(P::ZeroStart) / 1e3;
        let rate = PAGE / (forwards - start).max(1.0);
        let source = format!("calibrated: a page zeroed after the one before it, {forwards:.0} ns");
        self.set(P::StringRate, rate, "GB/s", source)?;
        let jump = (backwards - forwards).max(0.0) * 1e3;
        let source =
            format!("calibrated: a page zeroed before the one behind it, {backwards:.0} ns");
        self.set(P::ZeroJump, jump, "ns", source)
    }

    /// Sets the costs of calls and faults, and the rest of the discard of a page without targets.
    fn calls(&mut self, units: &Units, alone_ns: f64) -> anyhow::Result<()> {
        if let Some(nothing) = units.discard_nothing_ns {
            let call = Fit { least: units.call_ns.unwrap_or(0.0) * 1e3, ..FIT };
            self.fit(&call, nothing)?;
        }
        if let Some(fault) = units.fault_ns {
            let touches = Fit {
                parameter: P::Fault,
                what: "first touch of a page",
                workload: TOUCHES,
                nanoseconds: |gigabytes| PAGE / gigabytes,
                ..FIT
            };
            self.fit(&touches, fault)?;
        }
        if let Some((discard, fault)) = units.discard_ns.zip(units.fault_ns) {
            let many = Fit {
                parameter: P::Free,
                what: "discard and touch of a page, with many others in a call",
                workload: MANY_PAGES,
                nanoseconds: |value| value / MANY,
                ..FIT
            };
            self.fit(&many, discard + fault)?;
        }
        let alone = Fit {
            parameter: P::AdviseCall,
            what: "discard and touch of one page, alone",
            workload: ONE_PAGE,
            ..FIT
        };
        self.fit(&alone, alone_ns)
    }

    /// Sets the cost of a switch between threads.
    fn switches(&mut self, host: &Host, units: &Units) -> anyhow::Result<()> {
        let call = self.machine.amount(P::SystemCall);
        if let Some(switch) = units.switch_ns {
            let source =
                format!("calibrated: a switch between threads, {switch:.0} ns, less a call");
            self.set(P::Schedule, (switch * 1e3 - call).max(0.0), "ns", source)?;
        } else if host.guest == Some(true) && host.arch == "x86_64" {
            self.entries.extend(schedule(call));
        }
        Ok(())
    }

    /// Sets the time until a shootdown's interrupt arrives.
    fn interrupts(&mut self, host: &Host, shootdown: &Shootdown) -> anyhow::Result<()> {
        let target = shootdown
            .one_target_ns
            .filter(|_| shootdown.ns.is_some() && self.machine.choice(P::Broadcast) == "no");
        let Some(target) = target else {
            self.notes.push("no price of a shootdown was measured: interrupts cost as much as on the base machine".into());
            return Ok(());
        };
        let (parameter, least) = match host.guest {
            Some(true) => (P::GuestDelivery, 0.0),
            _ => (P::InterruptDelivery, 1e3),
        };
        let delivery = Fit {
            parameter,
            what: "discard and touch of one page, one thread spinning",
            cpus: 2,
            workload: ONE_PAGE,
            least,
            ..FIT
        };
        self.fit(&delivery, target)
    }

    /// Sets the costs of compressing and decompressing a page.
    ///
    /// Swapping a page of zeros may take longer than in the model, under the kernel's policy for dirty pages. The
    /// difference is added to compressing.
    fn swapping(&mut self, units: &Units, dirty: Policy) -> anyhow::Result<()> {
        let beyond = match units.swap_ns {
            Some(ns) => {
                let seconds = modelled(&self.machine, dirty, 1, SWAPPED_ZEROS)?;
                // The loop also zeroed each page before it wrote it.
                let zeroed = units.zero_ns.unwrap_or(0.0);
                (ns - zeroed - seconds * SWAP_ROUNDS_NS).max(0.0)
            }
            None => 0.0,
        };
        let (written, read) = (units.compress_ns, units.decompress_ns);
        let steps = [
            (P::Compress, P::CompressByte, "written to zram", written, beyond),
            (P::Decompress, P::DecompressByte, "read from zram", read, 0.0),
        ];
        let call = units.call_ns.unwrap_or(0.0);
        for (page, byte, what, ns, beyond) in steps {
            let Some(ns) = ns else { continue };
            let mut source = format!("calibrated: a page {what}, {ns:.0} ns, less a call");
            if beyond > 0.0 {
                let _ = write!(source, ", and the rest of swapping one, {beyond:.0} ns");
            }
            let value = (ns - call).max(0.0) + beyond;
            self.set(page, value * 1e3, "ns", source)?;
            let source = format!("part of the figure of a page {what}");
            self.set(byte, 0.0, "ns", source)?;
        }
        Ok(())
    }
}

/// Makes this host's machine file, calibrated only on the steps and two rows behind `shootdown`.
///
/// # Errors
/// If the model cannot run on it.
pub fn make(host: &Host, units: &Units, shootdown: &Shootdown) -> anyhow::Result<HostMachine> {
    let processor = Processor::of_this_host();
    let (base_name, why) = base(host.arch, processor.vendor.as_deref())?;
    let tags = host.arch == "aarch64" || host.flags.iter().any(|flag| flag == "pcid");
    let kernel = Kernel::linux(&host.kernel, host.arch, tags)?;
    let entries = figures(host, &processor);
    let title = format!(
        "{}{}, Linux {}; otherwise like {why}",
        host.cpu_model.as_deref().unwrap_or(host.arch),
        if host.guest == Some(true) { ", a guest" } else { "" },
        host.kernel,
    );
    let fixed = text("quell-host", &title, base_name, &entries);
    let mut draft = Draft {
        machine: MachineFile::parse("the host's figures", &fixed)?,
        policy: kernel.policy,
        entries,
        notes: Vec::new(),
        reliable: shootdown.reliable,
    };
    draft.calibrate(host, units, shootdown, kernel.dirty)?;
    let text = text("quell-host", &title, base_name, &draft.entries);
    let machine = MachineFile::parse("the host's machine file", &text)?;
    ensure!(machine.name() == "quell-host", "the machine file does not read back");
    Ok(HostMachine {
        machine,
        text,
        kernel,
        note: (!draft.notes.is_empty()).then(|| draft.notes.join("; ")),
    })
}

#[cfg(test)]
mod tests;

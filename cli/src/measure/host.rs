//! `quell measure host`: measures the cost of translation coherence in the running kernel.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quell_host::live::Options;
use quell_host::live::bench::ALL;
use quell_host::live::beside::{NOISY, TOLERANCE};
use quell_host::live::report::{Benchmark, Comparison, Report, Row};
use quell_host::predict::HOST_FILE;
use quell_workloads::files::hint;

use quell_model::output::{self, Destination, INTERRUPTED, paragraph, say};
use quell_model::table::{Cell, Table, number, verdict, words};
use quell_model::usage::usage;

/// The exit code if every chosen benchmark was refused, so that nothing was measured.
const EXIT_NOTHING_MEASURED: u8 = 3;
/// The exit code if a change to the host couldn't be undone.
const EXIT_NOT_RESTORED: u8 = 4;

/// Measure the cost of TLB shootdowns and page clearing in the running kernel.
///
/// Runs without privileges as far as possible, and lists the benchmarks that need root or a setting. Removes its zram
/// swap device at the end, on an error and on Ctrl-C.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Print one JSON object instead of tables (keys: docs/measuring.md)
    #[arg(long)]
    json: bool,
    /// Measure for this long in all; set-up (a zram device) takes extra time
    #[arg(long, value_name = "N", default_value_t = 35, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Run only these benchmarks, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = known_name)]
    only: Vec<String>,
    /// List the benchmarks and exit
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// Write this host's machine file here, for `quell run --machine` and `quell predict` [default: quell-host.toml]
    #[arg(long, value_name = "FILE")]
    machine_file: Option<PathBuf>,
    /// Write no machine file
    #[arg(long, conflicts_with = "machine_file")]
    no_machine_file: bool,
}

fn known_name(name: &str) -> Result<String, String> {
    let names: Vec<_> = ALL.iter().map(|b| b.name).collect();
    if names.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "no such benchmark{}; there are {}",
            hint(name, names.iter().copied()),
            names.join(", ")
        ))
    }
}

impl HostArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.list {
            for bench in &ALL {
                say!("{:10} {}  {}", bench.name, bench.mechanism, bench.title);
            }
            return Ok(ExitCode::SUCCESS);
        }
        let asked = self.machine_file.is_some();
        if let Some(path) = &self.machine_file {
            if !self.only.is_empty() && !self.only.iter().any(|name| name == "discard") {
                return Err(usage(format_args!(
                    "--machine-file {}: needs the benchmark discard, which --only leaves out",
                    path.display()
                )));
            }
            Destination::open("--machine-file", Some(path), "")?;
        }
        let report = Options {
            seconds: self.seconds,
            only: self.only,
            machine_file: self.machine_file.unwrap_or_else(|| HOST_FILE.into()),
            no_machine_file: self.no_machine_file,
        }
        .measure()?;
        if self.json {
            say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print(&report);
        }
        Ok(if !report.not_restored.is_empty() {
            EXIT_NOT_RESTORED.into()
        } else if report.interrupted {
            INTERRUPTED.into()
        } else if report.benchmarks.iter().any(|b| b.failed.is_some())
            || asked && report.machine_file.is_none_or(|file| file.path.is_none())
        {
            ExitCode::FAILURE
        } else if report.benchmarks.iter().all(|b| b.rows.is_empty()) {
            EXIT_NOTHING_MEASURED.into()
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// Formats a duration with three digits and a unit, for example `9.87 ns`.
fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "us"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", digits(value))
}

fn digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

/// Formats a time, with a mark if the core was shared.
fn marked(own_core: bool, ns: f64) -> String {
    let mark = if own_core { "" } else { "~" };
    format!("{mark}{}", time(ns))
}

/// Returns a table of a benchmark's rows. Every time has its unit.
fn row_table(benchmark: &Benchmark) -> Table {
    let mut table = Table::new([
        words("row"),
        number("median"),
        number("quartiles").spare(),
        number("quiet"),
        number("speed-up"),
        number("TLB interrupts"),
        number("shootdowns, %"),
    ]);
    for row in &benchmark.rows {
        table.row([
            row.key.clone(),
            time(row.ns.median),
            format!("{} .. {}", time(row.ns.q1), time(row.ns.q3)),
            or_dash(row.quiet, |quiet| marked(quiet.own_core, quiet.median)),
            against(benchmark, row),
            or_dash(row.tlb_interrupts_per_op, |n| format!("{n:.3}")),
            or_dash(row.shootdown_share, |share| format!("{:.0}", share * 100.0)),
        ]);
    }
    table
}

/// Returns a table of the model's predictions beside the measurements.
fn beside_table(predictions: &[Comparison]) -> Table {
    let mut table = Table::new([
        words("row"),
        number("measured"),
        number("predicted"),
        number("error, %"),
        number("noise, %"),
        words("verdict"),
    ]);
    for one in predictions {
        table.row([
            format!("{} {}", one.benchmark, one.row).into(),
            marked(one.slowdown.is_none(), one.measured_ns).into(),
            or_dash(one.predicted_ns, time).into(),
            or_dash(one.error, |error| format!("{:+.0}", error * 100.0)).into(),
            or_dash(one.noise, |noise| format!("{:.0}", noise * 100.0)).into(),
            one.within.map_or("not judged".into(), |within| {
                verdict(within, if within { "within" } else { "MISS" })
            }),
        ] as [Cell; 6]);
    }
    table
}

/// Compares the batched form with the single one. For example, "14 x" means a fourteenth of the time.
fn against(benchmark: &Benchmark, row: &Row) -> String {
    let single =
        row.instead_of.as_ref().and_then(|key| benchmark.rows.iter().find(|r| r.key == *key));
    or_dash(single, |single| format!("{} x", digits(single.ns.median / row.ns.median)))
}

fn print(report: &Report) {
    let host = &report.host;
    paragraph(format_args!(
        "Linux {} {}, {}, CPUs {:?}, {} KiB pages{}{}",
        host.kernel,
        host.arch,
        host.cpu_model.as_deref().unwrap_or("unnamed CPU"),
        host.cpus,
        host.page_bytes >> 10,
        if host.guest == Some(true) { ", in a virtual machine" } else { "" },
        if host.flags.is_empty() { String::new() } else { format!(" ({})", host.flags.join(", ")) },
    ));
    for benchmark in &report.benchmarks {
        paragraph(format_args!(
            "\n{} ({}): {}",
            benchmark.name, benchmark.mechanism, benchmark.title
        ));
        let mut ops: Vec<_> = benchmark.rows.iter().map(|r| r.op).collect();
        ops.dedup();
        if !benchmark.rows.is_empty() {
            paragraph(format_args!("for each {}, {:.1} s:", ops.join(" / "), benchmark.seconds));
            say!("{}", row_table(benchmark));
        }
        if let Some(failure) = &benchmark.failed {
            paragraph(format_args!("  FAILED: {failure}"));
        }
        for refusal in &benchmark.refused {
            let (row, reason) = (&refusal.row, &refusal.reason);
            paragraph(format_args!("  not measured: {row}: {reason}"));
            if let Some(remedy) = &refusal.remedy {
                paragraph(format_args!("    needs: {remedy}"));
            }
        }
        for row in &benchmark.rows {
            for warning in &row.warnings {
                paragraph(format_args!("  ! {}: {warning}", row.key));
            }
        }
        for warning in &benchmark.warnings {
            paragraph(format_args!("  ! {warning}"));
        }
    }
    shared_core(report);
    price(report);
    beside(report);
    if report.interrupted {
        paragraph(format_args!("\ninterrupted: the results above were measured before the signal"));
    }
    for line in &report.not_restored {
        paragraph(format_args!("\nNOT RESTORED: {line}"));
    }
}

/// Prints how often the measuring core was shared with other work.
fn shared_core(report: &Report) {
    if let Some(shared) = report.shared_core {
        paragraph(format_args!(
            "\nOther work shared the measuring core in {:.0} % of the samples: a loop took longer than on a free core. Column \
             \"quiet\" is the median of the other samples, without those that miss an interrupt. \"~\": the core was hardly ever \
             free, so these are the samples that had most of it. \"-\": too few samples.",
            shared * 100.0
        ));
    }
}

/// Prints the model's predictions for this host, and the path of its machine file.
fn beside(report: &Report) {
    if !report.predictions.is_empty() {
        paragraph(format_args!(
            "\nPredictions of the model for rows that were not used to calibrate it (single steps and one discarded page were). \
             Quiet samples only; the target is an error within {:.0} %. If the core was always shared, the slowdown of the \
             one-page row on an equally shared core is taken out of the measured time. Noise is the difference between rounds \
             of this row or of the one-page row; above {:.0} %, a row is judged only if the verdict is the same for all times \
             within the noise. Noise of this host over all rows: {} %.",
            TOLERANCE * 100.0,
            NOISY * 100.0,
            or_dash(report.noise, |noise| format!("{:.0}", noise * 100.0))
        ));
        output::table(&beside_table(&report.predictions));
        for one in &report.predictions {
            if let Some(why) = &one.why {
                paragraph(format_args!("  ! {} {}: {why}", one.benchmark, one.row));
            }
        }
    }
    if let Some(file) = &report.machine_file {
        match &file.path {
            Some(path) => paragraph(format_args!(
                "\nmachine file: {path}; for the savings of each mechanism on this host, run `quell predict --machine {path}`"
            )),
            None => paragraph(format_args!("\nno machine file was written")),
        }
        if let Some(note) = &file.note {
            paragraph(format_args!("  ! {note}"));
        }
    }
}

fn price(report: &Report) {
    let Some(found) = &report.shootdown else {
        if report.benchmarks.iter().any(|b| !b.rows.is_empty()) {
            paragraph(format_args!(
                "\nThe price of a shootdown and the column \"shootdowns\" need the benchmark discard."
            ));
        }
        return;
    };
    let price = match (found.ns, found.one_target_ns) {
        (Some(ns), Some(with)) => {
            let made_of = format!(
                "{} = ({} with one spinning thread - {} alone)",
                time(ns),
                time(with),
                time(found.alone_ns)
            );
            let interrupts = found.interrupts_per_op.map_or_else(String::new, |interrupts| {
                format!(
                    " / {interrupts:.2} interrupts; {} of {} samples were quiet",
                    found.quiet_samples, found.all_samples
                )
            });
            let doubt = if found.reliable { "" } else { "; NOT RELIABLE" };
            format!("{made_of}{interrupts}{doubt}")
        }
        _ => "unknown".into(),
    };
    paragraph(format_args!("\none shootdown on this host: {price}"));
    if let Some(note) = &found.note {
        paragraph(format_args!("  {note}"));
    }
    if found.ns.is_some() {
        paragraph(format_args!(
            "Column \"shootdowns\": interrupts / targets x this price, as a share of the row's time. It is an estimate, because the \
             price was measured with a target that only spins. Column \"speed-up\": compared with the usual form."
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(time(9.871), "9.87 ns");
        assert_eq!(time(10_432.0), "10.4 us");
        assert_eq!(time(123_456_789.0), "123 ms");
    }
}

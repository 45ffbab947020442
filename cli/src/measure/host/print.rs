//! Prints the report for people.

use quell_host::live::beside::{NOISY, TOLERANCE};
use quell_host::live::report::{Benchmark, Comparison, Report, Row};

use quell_model::output::{self, paragraph, say};
use quell_model::table::{Cell, Table, number, verdict, words};

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
pub fn row_table(benchmark: &Benchmark) -> Table {
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
pub fn beside_table(predictions: &[Comparison]) -> Table {
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

/// Prints the whole report to standard output.
pub fn report(report: &Report) {
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

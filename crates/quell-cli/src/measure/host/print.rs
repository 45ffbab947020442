//! The report for people.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

use quell_host::live::beside::TOLERANCE;
use quell_host::live::report::{Benchmark, FlushEvents, Quiet, Report, Row};

/// A duration with three digits and a unit.
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

/// The events that happened, without those that are neither flushes nor interrupts.
fn flushes(events: FlushEvents) -> String {
    let named = [
        (events.local + events.local_mm, "local"),
        (events.remote_received, "received"),
        (events.switch_flushed, "at switch"),
        (events.full, "of them full"),
        (events.switch_kept, "kept at switch"),
    ];
    let shown: Vec<_> = named
        .iter()
        .filter(|(n, _)| *n >= 0.005)
        .map(|(n, name)| format!("{} {name}", digits(*n)))
        .collect();
    if shown.is_empty() {
        "0".into()
    } else {
        shown.join(", ")
    }
}

fn quiet(quiet: Quiet) -> String {
    let mark = if quiet.own_core { "" } else { "~" };
    format!("{mark}{}", time(quiet.median))
}

/// A line under the header and nothing else.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

fn table(benchmark: &Benchmark) -> Table {
    let mut table = Table::new();
    table
        .load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Disabled);
    let rate = benchmark.rows.iter().any(|r| r.bytes_per_op.is_some());
    let mut header = vec![
        "",
        "median",
        "quartiles",
        "quiet",
        "against",
        "TLB interrupts",
        "shootdowns",
        "flush events",
    ];
    if rate {
        header.insert(4, "GB/s");
    }
    table.set_header(header);
    for row in &benchmark.rows {
        let mut cells = vec![
            row.key.clone(),
            time(row.ns.median),
            format!("{} .. {}", time(row.ns.q1), time(row.ns.q3)),
            or_dash(row.quiet, quiet),
            against(benchmark, row),
            or_dash(row.tlb_interrupts_per_op, |n| format!("{n:.3}")),
            or_dash(row.shootdown_share, |share| {
                format!("{:.0} %", share * 100.0)
            }),
            or_dash(row.flush_events_per_op, flushes),
        ];
        if rate {
            cells.insert(
                4,
                or_dash(row.bytes_per_op, |bytes| {
                    digits(bytes as f64 / row.ns.median)
                }),
            );
        }
        table.add_row(cells);
    }
    let numbers = if rate { 1..8 } else { 1..7 };
    for column in table
        .column_iter_mut()
        .skip(numbers.start)
        .take(numbers.len())
    {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// How the batched form compares with the single one: "14 x" is fourteen times less time.
fn against(benchmark: &Benchmark, row: &Row) -> String {
    let single = row
        .instead_of
        .as_ref()
        .and_then(|key| benchmark.rows.iter().find(|r| r.key == *key));
    or_dash(single, |single| {
        format!("{} x", digits(single.ns.median / row.ns.median))
    })
}

/// Prints everything to standard output.
pub fn report(report: &Report) {
    let host = &report.host;
    println!(
        "Linux {} {}, {}, CPUs {:?}, {} KiB pages{}{}",
        host.kernel,
        host.arch,
        host.cpu_model.as_deref().unwrap_or("unnamed CPU"),
        host.cpus,
        host.page_bytes >> 10,
        if host.guest == Some(true) {
            ", in a virtual machine"
        } else {
            ""
        },
        if host.flags.is_empty() {
            String::new()
        } else {
            format!(" ({})", host.flags.join(", "))
        },
    );
    for capability in &report.capabilities {
        let mark = if capability.available { "+" } else { "-" };
        println!("  {mark} {}: {}", capability.name, capability.detail);
    }
    for benchmark in &report.benchmarks {
        println!(
            "\n{} ({}): {}",
            benchmark.name, benchmark.mechanism, benchmark.title
        );
        let mut ops: Vec<_> = benchmark.rows.iter().map(|r| r.op).collect();
        ops.dedup();
        if !benchmark.rows.is_empty() {
            println!("for each {}, {:.1} s:", ops.join(" / "), benchmark.seconds);
            println!("{}", table(benchmark));
        }
        for row in &benchmark.rows {
            let counted = row
                .hardware_per_op
                .iter()
                .filter_map(|(name, n)| Some(format!("{name} {}", digits((*n)?))));
            let counted: Vec<_> = counted.collect();
            if !counted.is_empty() {
                println!("  {}: {}", row.key, counted.join(", "));
            }
        }
        if let Some(failure) = &benchmark.failed {
            println!("  FAILED: {failure}");
        }
        for refusal in &benchmark.refused {
            let row = refusal
                .row
                .as_ref()
                .map(|row| format!("{row}: "))
                .unwrap_or_default();
            println!("  not measured: {row}{}", refusal.reason);
            if let Some(remedy) = &refusal.remedy {
                println!("    would need: {remedy}");
            }
        }
        for row in &benchmark.rows {
            for warning in &row.warnings {
                println!("  ! {}: {warning}", row.key);
            }
        }
        for warning in &benchmark.warnings {
            println!("  ! {warning}");
        }
    }
    shared_core(report);
    price(report);
    beside(report);
    if report.interrupted {
        println!("\ninterrupted: what is above was measured before the signal");
    }
    for line in &report.not_restored {
        println!("\nNOT RESTORED: {line}");
    }
}

/// How much a neighbour on the core had to do with it all.
fn shared_core(report: &Report) {
    if let Some(shared) = report.shared_core {
        println!(
            "\nthe measuring core was shared in {:.0} % of the samples (a loop that fills it took longer than it can); column\n\
             \"quiet\": the median of those in which it was not and no interrupt was missing; \"~\": of those that had most of\n\
             the core, because it was hardly ever their own; \"-\": too few samples.",
            shared * 100.0
        );
    }
}

/// What the model makes of this host.
fn beside(report: &Report) {
    if !report.predictions.is_empty() {
        println!(
            "\nthe model, calibrated on discard alone and with one spinning thread, beside rows that it was not made from\n\
             (quiet samples of both; the target is {:.0} %):",
            TOLERANCE * 100.0
        );
        let mut table = crate::table::table(&["", "measured", "predicted", "error", ""]);
        table.set_content_arrangement(ContentArrangement::Disabled);
        for one in &report.predictions {
            table.add_row([
                format!("{} {}", one.benchmark, one.row),
                time(one.measured_ns),
                or_dash(one.predicted_ns, time),
                or_dash(one.error, |error| format!("{:+.0} %", error * 100.0)),
                or_dash(one.within, |within| {
                    if within { "within" } else { "MISS" }.into()
                }),
            ]);
        }
        crate::table::align_right(&mut table, 1..4);
        println!("{table}");
        for one in &report.predictions {
            if let Some(why) = &one.why {
                println!("  ! {} {}: {why}", one.benchmark, one.row);
            }
        }
    }
    if let Some(file) = &report.machine_file {
        match &file.path {
            Some(path) => println!(
                "\nmachine file: {path}; `quell predict --machine {path}` says what each mechanism would save here"
            ),
            None => println!("\nno machine file was written"),
        }
        if let Some(note) = &file.note {
            println!("  ! {note}");
        }
    }
}

fn price(report: &Report) {
    let Some(found) = &report.shootdown else {
        if report.benchmarks.iter().any(|b| !b.rows.is_empty()) {
            println!(
                "\nthe price of a shootdown, and with it the column \"shootdowns\", needs the benchmark discard"
            );
        }
        return;
    };
    print!("\none shootdown on this host: ");
    match (found.ns, found.one_target_ns) {
        (Some(ns), Some(with)) => {
            print!(
                "{} = ({} with one spinning thread - {} alone)",
                time(ns),
                time(with),
                time(found.alone_ns)
            );
            if let Some(interrupts) = found.interrupts_per_op {
                print!(
                    " / {interrupts:.2} interrupts; {} of {} samples were quiet",
                    found.quiet_samples, found.all_samples
                );
            }
            println!("{}", if found.reliable { "" } else { "; NOT RELIABLE" });
        }
        _ => println!("unknown"),
    }
    if let Some(note) = &found.note {
        println!("  {note}");
    }
    if found.ns.is_some() {
        println!(
            "column \"shootdowns\": interrupts / targets x this price, as a part of the row's time; an estimate, because the\n\
             price was measured with a target that only spins. \"against\": how many times faster than the usual form."
        );
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

    #[test]
    fn a_kept_tlb_and_a_request_are_not_called_flushes() {
        let events = FlushEvents {
            switch_kept: 2.0,
            remote_requested: 7.0,
            ..FlushEvents::default()
        };
        assert_eq!(flushes(events), "2.00 kept at switch");
    }
}

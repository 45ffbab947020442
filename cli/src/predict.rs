//! `quell predict`: predicts the savings of each mechanism on this host.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;

use quell_clock::MachineFile;
use quell_conformance::parse_policy;
use quell_host::predict::kernel::Kernel;
use quell_host::predict::{HOST_FILE, Line, Predictions, predict};
use quell_model::numbers::digits;
use quell_model::{kernels, machines};

use quell_model::command::reproduce::short;
use quell_model::options::{KERNELS, MACHINES};
use quell_model::output::{self, paragraph, say};
use quell_model::table::{Table, number, words};
use quell_model::usage::usage;

/// Predict what each mechanism would save on this host
///
/// Runs the workloads of the published systems on the machine in software, with the costs of this host's
/// machine file, under what the host's kernel does and with one mechanism more.
#[derive(Args, Debug)]
pub struct PredictArgs {
    /// Use this machine: a file from `quell measure host`, or a built-in name
    #[arg(long, value_name = "FILE", default_value = HOST_FILE, value_parser = MACHINES, hide_possible_values = true)]
    machine: String,
    /// Name the mechanisms that the kernel already has, as a policy (`quell list policies`) [default: those of the
    /// running release]; or use the path costs of a kernel, as a name or file (`quell list kernels`)
    #[arg(long, value_name = "POLICY|NAME|FILE", value_parser = KERNELS, hide_possible_values = true)]
    kernel: Vec<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn machine(text: &str) -> Result<MachineFile> {
    if text == HOST_FILE && !Path::new(text).exists() {
        return Err(usage(format_args!(
            "no {HOST_FILE} here: write it with `quell measure host`, or name a machine with --machine ({})",
            machines::names().collect::<Vec<_>>().join(", ")
        )));
    }
    machines::find(text).map_err(usage)
}

pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    let mut machine = machine(&args.machine)?;
    let mut policy = None;
    for text in &args.kernel {
        match parse_policy(text) {
            Ok(named) => policy = Some(named),
            Err(policy) => {
                let kernel = kernels::find(text);
                // A name without a path may be meant as either.
                let either = |why| usage(format_args!("{why}; as a policy: {policy}"));
                machine = machine.with_kernel(&kernel.map_err(either)?);
            }
        }
    }
    let machine = Arc::new(machine);
    let kernel = match policy {
        Some(policy) => Kernel::of_policy(policy),
        None => Kernel::running().map_err(usage)?,
    };
    let predicted = predict(&machine, &kernel)?;
    if args.json {
        output::document(&predicted)?;
    } else {
        print(&predicted);
    }
    let failed = predicted.violations > 0 || predicted.failed;
    Ok(ExitCode::from(u8::from(failed)))
}

fn print(predicted: &Predictions) {
    let Predictions { machine, title, kernel, lines, .. } = predicted;
    paragraph(format_args!("Savings of each mechanism on {machine} ({title}), kernel {kernel}.\n"));
    say!("{}", prediction_table(lines));
    for line in lines {
        if let Some(why) = &line.refused {
            paragraph(format_args!("  {} ({}): {why}", short(line.mechanism), line.workload));
        }
    }
    if lines.iter().any(|line| line.in_kernel) {
        paragraph(
            "  saved already: this kernel has the mechanism; \"without\" predicts a kernel without it",
        );
    }
    say!("\nAssumptions:");
    for assumption in &predicted.assumptions {
        paragraph(format_args!("  - {assumption}"));
    }
    if predicted.violations > 0 {
        say!(
            "\nThe contract was broken {} times. Do not trust these predictions, and report the error.",
            predicted.violations
        );
    }
}

/// Returns a table of the savings, one row for each workload.
pub fn prediction_table(lines: &[Line]) -> Table {
    let mut table = Table::new([
        words("mechanism"),
        words("workload"),
        number("CPUs"),
        words("figure"),
        number("without"),
        number("with"),
        number("time saved, %"),
        number("interrupts").spare(),
        words("note"),
    ]);
    let shown = |value: Option<f64>| value.map_or("-".into(), digits);
    for line in lines {
        let note = match &line.refused {
            Some(_) => "not predicted",
            None if line.in_kernel => "saved already",
            None => "",
        };
        table.row([
            short(line.mechanism).to_owned(),
            line.what.to_owned(),
            line.cpus.to_string(),
            line.metric.unwrap_or("-").to_owned(),
            shown(line.without),
            shown(line.with),
            line.saves_percent.map_or("-".into(), |percent| format!("{percent:+.1}")),
            match (line.interrupts_without, line.interrupts_with) {
                (Some(before), Some(after)) => format!("{before} -> {after}"),
                _ => "-".into(),
            },
            note.to_owned(),
        ]);
    }
    table
}

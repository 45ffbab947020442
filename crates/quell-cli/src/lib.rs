//! The command `quell`.
//!
//! Each subcommand has a module, which parses, calls and prints; what is called lies in `quell-experiments`,
//! `quell-host` and `quell-boot`. A mistake of the user exits with 2, a failure or a broken contract
//! with 1.
//!
//! It is a library with a `main` so that the compiler can work on it while the machine in software is still
//! being made: the first `cargo run` is half a minute shorter.

mod boot;
mod explore;
mod list;
mod measure;
mod options;
mod predict;
mod reproduce;
mod run;
mod scale;
mod table;
mod usage;
mod versus;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The same run gives the same figures on every thread.
#[global_allocator]
static ALLOCATOR: quell_sim::LineAllocator = quell_sim::LineAllocator;

/// Keeps translation caches coherent: experiments, exploration, boots and measurements.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// What `quell` alone does is `quell reproduce`.
    #[command(flatten)]
    reproduce: reproduce::ReproduceArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put every published headline beside what the model predicts (what `quell` alone does)
    Reproduce(reproduce::ReproduceArgs),
    /// Run one workload on one machine with one policy
    Run(run::RunArgs),
    /// Run one workload on 1 to 1024 CPUs, without and with mechanisms
    Scale(scale::ScaleArgs),
    /// List workloads, machines, policies and what each parameter means
    List(list::ListArgs),
    /// Search for interleavings that break the contract, and hunt known mistakes
    Explore(explore::ExploreArgs),
    /// Boot the engine on a real MMU, x86-64 and AArch64, in an emulator
    Boot(boot::BootArgs),
    /// Measure this machine: zeroing, and what shootdowns cost the running kernel
    Measure(measure::MeasureArgs),
    /// Predict what each mechanism would save on this host, from `measure host`'s machine file
    Predict(predict::PredictArgs),
    /// Run the same workloads on stock Linux in the same emulator, side by side
    Versus(versus::VersusArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        None => reproduce::run(&cli.reproduce),
        Some(Command::Reproduce(args)) => reproduce::run(&args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Scale(args)) => scale::run(&args),
        Some(Command::List(args)) => list::run(args).map(|()| ExitCode::SUCCESS),
        Some(Command::Explore(args)) => explore::run(args),
        Some(Command::Boot(args)) => boot::run(args),
        Some(Command::Measure(args)) => measure::run(args),
        Some(Command::Predict(args)) => predict::run(&args),
        Some(Command::Versus(args)) => versus::run(args),
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "quell", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Who reads what is printed may stop to, as `head` does: then the command unwinds, puts back what it
/// has to, and says nothing about it.
fn end_quietly_without_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>();
        if !message.is_some_and(|text| text.starts_with("failed printing to std")) {
            report(info);
        }
    }));
}

/// Does what the arguments of the process ask for, and says how it ended.
pub fn main() -> ExitCode {
    end_quietly_without_reader();
    execute(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if error.is::<usage::Usage>() {
            ExitCode::from(2)
        } else {
            ExitCode::FAILURE
        }
    })
}

//! What `integrations/linux/run` runs: gets Linux's source, configures and builds it with and without the engine.

use clap::{Parser, Subcommand, ValueEnum};
use quell_linux::make::{self, Flavour};
use quell_linux::tree;
use std::process::ExitCode;

/// Builds Linux 6.12, stock and with quell's engine in it.
#[derive(Parser)]
#[command(name = "integrations/linux/run")]
struct Arguments {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Get Debian's source package and unpack it below target/linux
    Fetch,
    /// Say whether every edit still fits the source
    Check,
    /// Build the engine as an object that Linux links
    Engine,
    /// Make the configuration
    Configure { kernel: Kernel },
    /// All of this, and build the kernel; prints where its image is
    Build { kernel: Kernel },
    /// Build the stock kernel and the one with the engine; where the source or a tool is missing, say so and end well,
    /// unless QUELL_REQUIRE_LINUX_BUILD is set
    Both,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kernel {
    /// As the source is
    Stock,
    /// With the engine in it
    Quell,
    /// With the engine in it, and with Linux's own checks of memory management and locks
    Debug,
}

impl From<Kernel> for Flavour {
    fn from(kernel: Kernel) -> Flavour {
        match kernel {
            Kernel::Stock => Flavour::Stock,
            Kernel::Quell => Flavour::Quell,
            Kernel::Debug => Flavour::Debug,
        }
    }
}

fn run(step: Step) -> anyhow::Result<()> {
    match step {
        Step::Fetch => println!("{}", tree::fetch()?.display()),
        Step::Check => {
            let files = tree::changed(&tree::fetch()?)?;
            println!("every edit fits: {} files", files.len());
        }
        Step::Engine => println!("{}", make::engine()?.display()),
        Step::Configure { kernel } => println!("{}", make::configure(kernel.into())?.1.display()),
        Step::Build { kernel } => println!("{}", make::build(kernel.into())?.display()),
        Step::Both => {
            let required = std::env::var_os("QUELL_REQUIRE_LINUX_BUILD").is_some();
            let source = match tree::fetch() {
                Err(error) if !required => {
                    eprintln!("SKIPPED: Linux's source is not here: {error:#}");
                    return Ok(());
                }
                source => source?,
            };
            // The edits need the source alone.
            println!("every edit fits: {} files", tree::changed(&source)?.len());
            if let Err(error) = make::check_tools() {
                if required {
                    return Err(error);
                }
                eprintln!("SKIPPED: building Linux: {error:#}");
                return Ok(());
            }
            for kernel in [Flavour::Stock, Flavour::Quell] {
                println!("{}", make::build(kernel)?.display());
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(Arguments::parse().step) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

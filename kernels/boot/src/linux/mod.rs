//! Builds Linux 6.12 from Debian's source package, stock and with quell's engine, and runs programs on the kernels.
//!
//! [`tree`] fetches the source, and makes a second tree with our files and the edits of `kernels/linux/edits.toml`.
//! [`make`] configures and compiles. [`conformance`] runs the conformance suite on the kernels. [`programs`] packs
//! third-party programs, and [`soak`] runs them; [`checks`] follows such boots. [`series`] makes patches in C.
//! `kernels/linux/README.md` describes our changes and why they're safe. Nothing of Linux is part of this repository.

mod checks;
mod conformance;
mod make;
mod programs;
mod series;
mod soak;
pub(crate) mod tree;

pub use checks::BootCounters;
pub use conformance::{Check, CheckOutcomes, Conformance};
pub use make::{Flavour, RULES};
pub use soak::{ProgramResult, Soak};

use crate::versus;
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tree::Lock;

/// Builds Linux 6.12, stock and with quell's engine in it.
#[derive(Parser)]
#[command(name = "kernels/linux/run")]
struct Arguments {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Get Debian's source package and unpack it below target/linux
    Fetch,
    /// Check that every edit fits the source
    Check,
    /// Build the engine as an object that Linux links
    Engine,
    /// Make the configuration
    Configure { kernel: Flavour },
    /// All of this, and build the kernel; prints where its image is
    Build { kernel: Flavour },
    /// Build the stock kernel and the one with the engine; if the source or a tool is missing, print so and succeed,
    /// unless QUELL_REQUIRE_LINUX_BUILD is set
    Both,
    /// Make mails of the series of patches in C, and check them with checkpatch.pl; prints where they are
    Series(Series),
    /// Boot a kernel that was built, and run the programs of the conformance suite on it
    Conformance(Conformance),
    /// Run Linux's self-tests of memory management and stress-ng's stressors with the engine on, repeat those that
    /// fail with it off, and print failures and kernel complaints that only the engine causes. Minutes to hours
    Soak(Soak),
    /// Write initial files that run these programs on any Linux, for `quell hunt --initrd`
    Programs(Programs),
}

#[derive(Args)]
struct Programs {
    /// The file to write
    file: PathBuf,
    /// The image of the kernel, whose modules are packed, too [default: Debian's, which is fetched]
    #[arg(long, value_name = "IMAGE")]
    kernel: Option<PathBuf>,
    /// How long each stressor runs, in seconds of the machine
    #[arg(long, value_name = "N", default_value_t = 1)]
    seconds: u64,
    /// Only programs that have one of these texts in their name: `--only cow,--mremap`
    #[arg(long, value_name = "TEXTS", value_delimiter = ',', allow_hyphen_values = true)]
    only: Vec<String>,
}

impl Programs {
    fn run(self) -> anyhow::Result<()> {
        let kernel = versus::linux::find(self.kernel.as_deref(), None, true)?;
        let packed = programs::pack(&self.only, self.seconds)?;
        for what in &packed.skipped {
            eprintln!("SKIPPED: {what}");
        }
        let (guest, list) = (versus::linux::guest()?, &packed.programs);
        let archive = versus::linux::initial_files(&kernel, &guest, &[], list, &packed.files)?;
        std::fs::write(&self.file, archive)
            .with_context(|| format!("writing {}", self.file.display()))?;
        println!("{} programs for {}", list.len(), kernel.image.display());
        Ok(())
    }
}

#[derive(Args)]
struct Series {
    /// The source that the patches are for [default: Debian's 6.12]
    tree: Option<PathBuf>,
    /// Also build each step of the series on Debian's 6.12; the last kernel, with all patches, is `series`
    #[arg(long, conflicts_with = "tree")]
    build: bool,
}

impl Series {
    fn run(self) -> anyhow::Result<()> {
        let lock = Lock::take()?;
        let source = match self.tree {
            Some(tree) => tree.canonicalize().with_context(|| tree.display().to_string())?,
            None => tree::fetch(&lock)?,
        };
        let mails = series::mails(&source)?;
        series::check(&source, &mails)?;
        mails.iter().for_each(|mail| println!("{}", mail.display()));
        let patches = if self.build { mails.len() - 1 } else { 0 };
        for left_out in (0..patches).rev() {
            eprintln!("step {} of {patches}", patches - left_out);
            make::build(&lock, Flavour::SeriesWithout(left_out))?;
        }
        Ok(())
    }
}

/// Runs a step. Returns whether its checks hold.
fn run(step: Step) -> anyhow::Result<bool> {
    match step {
        Step::Fetch => println!("{}", tree::fetch(&Lock::take()?)?.display()),
        Step::Check => {
            let files = tree::changed(&tree::fetch(&Lock::take()?)?)?;
            println!("every edit fits: {} files", files.len());
        }
        Step::Engine => println!("{}", make::engine(&Lock::take()?, Flavour::Quell)?.display()),
        Step::Configure { kernel } => {
            println!("{}", make::configure(&Lock::take()?, kernel)?.1.display())
        }
        Step::Build { kernel } => {
            println!("{}", make::build(&Lock::take()?, kernel)?.display())
        }
        Step::Both => {
            let required = std::env::var_os("QUELL_REQUIRE_LINUX_BUILD").is_some();
            let lock = Lock::take()?;
            let source = match tree::fetch(&lock) {
                Err(error) if !required => {
                    eprintln!("SKIPPED: Linux's source is missing: {error:#}");
                    return Ok(true);
                }
                source => source?,
            };
            // The edits need only the source.
            println!("every edit fits: {} files", tree::changed(&source)?.len());
            if let Err(error) = make::check_tools() {
                if required {
                    return Err(error);
                }
                eprintln!("SKIPPED: building Linux: {error:#}");
                return Ok(true);
            }
            for kernel in [Flavour::Stock, Flavour::Quell] {
                println!("{}", make::build(&lock, kernel)?.display());
            }
        }
        Step::Series(series) => series.run()?,
        Step::Conformance(conformance) => return conformance.run(),
        Step::Soak(soak) => return soak.run(),
        Step::Programs(programs) => programs.run()?,
    }
    Ok(true)
}

/// Runs the command `kernels/linux/run`.
pub fn main() -> ExitCode {
    match run(Arguments::parse().step) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

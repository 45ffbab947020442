//! `kernels/linux/run`: fetches, configures and builds Linux with and without the engine.

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use quell_boot::linux::make::{self, Flavour};
use quell_boot::linux::series;
use quell_boot::linux::soak::{Outcome, Request};
use quell_boot::linux::tree::{self, Lock};
use quell_boot::versus::Programs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

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
    Configure { kernel: Kernel },
    /// All of this, and build the kernel; prints where its image is
    Build { kernel: Kernel },
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
            make::build(&lock, Flavour::Series(left_out))?;
        }
        Ok(())
    }
}

#[derive(Args)]
struct Soak {
    /// Which kernel: one with the engine in it
    #[arg(default_value = "debug")]
    kernel: Kernel,
    /// Number of CPUs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// The engine's mechanisms: all, or some of batch, extents, tags, lazy and remote, separated by commas. If given
    /// several times, each is compared with the engine off: for example, `all` and `batch,extents,tags,remote` differ
    /// by lazy unmap
    #[arg(long, value_name = "LIST", default_value = "all")]
    mechanisms: Vec<String>,
    /// How long each stressor runs, in seconds
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Only programs that have one of these texts in their name: `--only cow,--mremap`
    #[arg(long, value_name = "TEXTS", value_delimiter = ',', allow_hyphen_values = true)]
    only: Vec<String>,
    /// Leave out this rule of the engine, by the name of its mutant; something must fail. Of the kernels `debug` and `mutants`
    #[arg(long, value_name = "RULE")]
    forget: Option<String>,
    /// Count instructions instead of time, and let one CPU run at a time: slower, and a run repeats itself
    #[arg(long)]
    counted: bool,
    /// Boot in this emulator, which counts instructions, and lets one CPU run at a time. For example, in the machine of
    /// `quell hunt`: QUELL_HUNT='1 9 1 1' (seed, how aggressive, findings, lazy unmap) and the path that
    /// `quell hunt --setup` prints
    #[arg(long, value_name = "FILE")]
    emulator: Option<PathBuf>,
    /// How many minutes a machine may be silent before it is ended
    #[arg(long, value_name = "N", default_value_t = 15)]
    minutes: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Show every line of the serial console
    #[arg(long)]
    verbose: bool,
}

impl Soak {
    /// Returns whether nothing is worse with the engine.
    fn run(self) -> anyhow::Result<bool> {
        let flavour = Flavour::from(self.kernel);
        let request = Request {
            flavour,
            cpus: self.cpus,
            mechanisms: self.mechanisms,
            seconds: self.seconds,
            only: self.only,
            words: forget(self.forget.as_deref(), flavour)?.into_iter().collect(),
            counted: self.counted || self.emulator.is_some(),
            emulator: self.emulator,
            limit: Duration::from_secs(60 * self.minutes),
            verbose: self.verbose,
        };
        let outcomes = request.run()?;
        if self.json {
            let json: Vec<_> = outcomes.iter().map(Outcome::json).collect();
            println!("{:#}", serde_json::Value::from(json));
        } else {
            outcomes.iter().for_each(Outcome::print);
        }
        Ok(outcomes.iter().all(Outcome::holds))
    }
}

/// Returns the word for Linux's command line that leaves out a rule of the engine.
fn forget(rule: Option<&str>, flavour: Flavour) -> anyhow::Result<Option<String>> {
    let Some(rule) = rule else {
        return Ok(None);
    };
    if !flavour.forgets() {
        bail!(
            "--forget needs the kernel `debug` or `mutants`: the others have all rules compiled in"
        );
    }
    if quell_mutants::list::named(rule).is_none() && !make::RULES.contains(&rule) {
        bail!(
            "no rule `{rule}`: `quell explore --list` lists the engine's, and the glue's are {}",
            make::RULES.join(", ")
        );
    }
    Ok(Some(format!("quell_forget={rule}")))
}

#[derive(Args)]
struct Conformance {
    /// Which kernel
    kernel: Kernel,
    /// Numbers of CPUs, one boot for each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = value_parser!(u16).range(1..=64))]
    cpus: Vec<u16>,
    /// The engine's mechanisms: all, off, or some of batch, extents, tags, lazy and remote, separated by commas
    #[arg(long, value_name = "LIST", default_value = "all")]
    mechanisms: String,
    /// Rounds of random operations after the checks, of a thousand operations on each CPU
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u64,
    /// The seed of the random operations, the same on every host
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Leave out this rule of the engine, by the name of its mutant; the programs must notice. Of the kernel `debug`
    #[arg(long, value_name = "RULE")]
    forget: Option<String>,
    /// Boot in this emulator, which counts instructions, and lets one CPU run at a time. For example, in the machine of
    /// `quell hunt`: QUELL_HUNT='1 9 1 1' (seed, how aggressive, findings, lazy unmap) and the path that
    /// `quell hunt --setup` prints
    #[arg(long, value_name = "FILE")]
    emulator: Option<PathBuf>,
    /// How many minutes a boot may take
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// Show every line of the serial console
    #[arg(long)]
    verbose: bool,
}

impl Conformance {
    /// Returns whether every check passed.
    fn run(self) -> anyhow::Result<bool> {
        let flavour = Flavour::from(self.kernel);
        let image = flavour.image();
        if !image.is_file() {
            let name = flavour.name();
            bail!("{} is missing: `build {name}` makes it", image.display());
        }
        let forget = forget(self.forget.as_deref(), flavour)?;
        let mechanisms = flavour.has_engine().then_some(self.mechanisms);
        let programs = Programs {
            kernel: image,
            emulator: self.emulator,
            mechanisms,
            words: forget.into_iter().collect(),
            cpus: self.cpus,
            rounds: self.rounds,
            seed: self.seed,
            limit: Duration::from_secs(60 * self.minutes),
            verbose: self.verbose,
        };
        let checked = programs.run(|check| {
            let (cpus, name, saw) = (check.cpus, &check.name, &check.saw);
            match (check.failures, saw.as_str()) {
                (0, "") => println!("{cpus} CPUs  ok      {name}"),
                (0, done) => println!("{cpus} CPUs  ok      {name}: {done}"),
                (failures, saw) => println!("{cpus} CPUs  FAILED  {name}, on {failures}: {saw}"),
            }
        })?;
        let mut failed = checked.checks.iter().filter(|check| check.failures > 0).count();
        println!("{} checks, {failed} failed", checked.checks.len());
        for (cpus, splat) in &checked.splats {
            println!("{cpus} CPUs  FAILED  Linux reported:");
            splat.iter().for_each(|line| println!("    {line}"));
            failed += 1;
        }
        for (cpus, counted) in &checked.counted {
            println!("{cpus} CPUs  {counted}");
            if let Err(why) = counted.agree() {
                println!("{cpus} CPUs  FAILED  {why}");
                failed += 1;
            }
        }
        Ok(failed == 0)
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Kernel {
    /// As the source is
    Stock,
    /// With the engine in it
    Quell,
    /// With the engine in it, and with Linux's own checks of memory management and locks
    Debug,
    /// With the engine, whose rules can be left out
    Mutants,
    /// With the engine in it, and with Linux's check of each access to its own memory (KASAN)
    Kasan,
    /// With the series of patches in C, without the engine
    Series,
}

impl From<Kernel> for Flavour {
    fn from(kernel: Kernel) -> Flavour {
        match kernel {
            Kernel::Stock => Flavour::Stock,
            Kernel::Quell => Flavour::Quell,
            Kernel::Debug => Flavour::Debug,
            Kernel::Mutants => Flavour::Mutants,
            Kernel::Kasan => Flavour::Kasan,
            Kernel::Series => Flavour::Series(0),
        }
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
            println!("{}", make::configure(&Lock::take()?, kernel.into())?.1.display())
        }
        Step::Build { kernel } => {
            println!("{}", make::build(&Lock::take()?, kernel.into())?.display())
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
    }
    Ok(true)
}

fn main() -> ExitCode {
    match run(Arguments::parse().step) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

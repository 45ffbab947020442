//! `quell boot`: boots a kernel that uses the engine, in an emulator.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use quell_boot::qemu::{self, Machine};
use quell_boot::{
    Arch, NAMES, Options, UsageError, bochs, end_requested, follow, prepare, refused, toolchain,
};
use quell_model::workloads;
use quell_workloads::Workload;
use quell_workloads::files::hint;
use serde_json::Value;

use quell_model::options::SuggestedNames;
use quell_model::output::{document_line, note, say};
use quell_model::usage::usage;

fn archs() -> impl TypedValueParser<Value = &'static [Arch]> {
    let names = Arch::ALL.iter().map(|arch| arch.name()).chain(["all"]);
    PossibleValuesParser::new(names).map(|name| {
        match Arch::ALL.iter().position(|arch| arch.name() == name) {
            Some(at) => &Arch::ALL[at..=at],
            None => Arch::ALL,
        }
    })
}

/// The kernel's runs that aren't workloads. The last one tests its watchdog, and we don't suggest it.
const RUNS: [&str; 4] = ["selftest", "conformance", "stress", "lost_interrupt"];

/// Checks the name of a run. The kernel also refuses an unknown name, but only after a build and a boot.
fn run_name(name: &str) -> Result<String, String> {
    if RUNS.contains(&name) || Workload::from_name(name).is_some() || workloads::is_path(name) {
        return Ok(name.to_owned());
    }
    let names = workloads::names();
    Err(format!(
        "no run of that name{}; expected {}, a workload ({}), or the path of a workload file",
        hint(name, RUNS[..3].iter().copied().chain(names.iter().copied())),
        RUNS[..3].join(", "),
        names.join(", ")
    ))
}

/// Returns a parser for the name of a run, which suggests the known names.
fn runs() -> impl TypedValueParser<Value = String> {
    let names = || RUNS[..3].iter().copied().chain(workloads::names()).collect();
    SuggestedNames(names).try_map(|name| run_name(&name))
}

/// The arguments of `quell boot`.
#[derive(Debug, Args)]
pub struct BootArgs {
    /// Run this in the kernel: selftest, conformance, stress, a workload such as dontneed or swap, or the path of a
    /// workload file
    #[arg(default_value = "selftest", value_parser = runs(), hide_possible_values = true)]
    run: String,
    /// Boot this architecture
    #[arg(long, value_parser = archs(), default_value = "all")]
    arch: &'static [Arch],
    /// Use this many CPUs, 1 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// Give the machine this many megabytes of memory
    #[arg(long, default_value_t = 512, value_name = "MB", value_parser = clap::value_parser!(u32).range(128..=2048))]
    memory: u32,
    /// Count instructions: the run repeats byte for byte, and takes several times as long
    #[arg(long)]
    icount: bool,
    /// Execute the guest on this emulator or processor
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accelerator,
    /// Run each emulated CPU on its own thread: other interleavings, slower waits
    #[arg(long, conflicts_with = "icount")]
    threads: bool,
    /// Set the seed of all random choices: the operations of a stress, the pages of a workload
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Stop a stress after this many minutes [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "rounds",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: Option<u64>,
    /// Stop a stress after this many rounds of 1000 operations on each CPU instead
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// Boot this many times in a row, until a boot fails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Add to the kernel's command line: policy=POLICY (`quell list policies`), parameters=NAME:VALUE,… of the
    /// workload, watchdog_ms=N, migrate_together=N, tag_bits=N (few AArch64 tags, so that they run out),
    /// break=request|here|broadcast|nmi, or break= and a mutant's name from `quell explore --mutants` (leaves out a step,
    /// so that the run must fail)
    #[arg(long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// End a silent emulator after this many seconds of its own processor time, and print where its CPUs are
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// Use quell-kernel and quell-user from this directory instead of building them
    #[arg(long, value_name = "DIR")]
    kernel: Option<PathBuf>,
    /// Build, and print QEMU's command line instead of running it
    #[arg(long)]
    print_command: bool,
    /// Only check whether everything needed is installed
    #[arg(long, conflicts_with = "json")]
    check: bool,
    /// Print the kernel's events as lines of JSON
    #[arg(long)]
    json: bool,
    /// Show every line of the serial console
    #[arg(long, short)]
    verbose: bool,
}

/// The emulator or processor that executes the guest's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Accelerator {
    /// QEMU's own translation: works everywhere, and keeps stale translations
    Tcg,
    /// The host's processor: real TLBs
    Kvm,
    /// KVM where it works, else TCG
    Auto,
    /// Bochs instead of QEMU, x86-64 only: PCIDs, INVPCID, x2APIC and global pages, slowly
    Bochs,
}

impl Accelerator {
    fn of_qemu(self) -> qemu::Accelerator {
        match self {
            Accelerator::Tcg | Accelerator::Bochs => qemu::Accelerator::Tcg,
            Accelerator::Kvm => qemu::Accelerator::Kvm,
            Accelerator::Auto => qemu::Accelerator::Auto,
        }
    }
}

/// Turns an error about the user's input into a usage error. Returns any other error unchanged.
pub fn mistaken(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<UsageError>() {
        Ok(mistake) => usage(mistake),
        Err(error) => error,
    }
}

/// Parses the words of our kernel's command line. Errors begin with `option`, and suggest a similar name.
pub fn parsed<'a>(line: &'a str, option: &str) -> anyhow::Result<Options<'a>> {
    Options::parse(line).map_err(|wrong| {
        let near = wrong.unknown().map(|name| hint(name, NAMES));
        usage(format_args!("{option}{wrong}{}", near.unwrap_or_default()))
    })
}

impl BootArgs {
    /// Returns the words of the kernel's command line, checked with the kernel's own parser.
    fn words(&self, workload: Option<Workload>) -> anyhow::Result<Vec<String>> {
        let name = workload.map_or(self.run.as_str(), |workload| workload.name());
        let mut words = vec![format!("run={name}")];
        words.extend(self.seed.map(|seed| format!("seed={seed}")));
        if let Some(rounds) = self.rounds {
            words.push(format!("rounds={rounds}"));
        } else if self.run == "stress" {
            words.push(format!("seconds={}", 60 * self.minutes.unwrap_or(1)));
        }
        if let Some(word) = self.options.iter().find(|word| word.contains(char::is_whitespace)) {
            return Err(usage(format_args!(
                "--option `{word}`: expected one option without blanks; repeat --option for more"
            )));
        }
        words.extend(self.options.iter().cloned());
        let line = words.join(" ");
        let options = parsed(&line, "")?;
        let rules = quell_mutants::list::all().iter().map(|mutant| mutant.name.as_str());
        let rules: Vec<&str> = rules.collect();
        refused::check(&options, self.cpus, workload, &rules).map_err(usage)?;
        Ok(words)
    }

    /// Returns the workload to run, or `None` if the kernel runs one of [`RUNS`].
    fn workload(&self) -> anyhow::Result<Option<Workload>> {
        if RUNS.contains(&self.run.as_str()) {
            return Ok(None);
        }
        workloads::find(&self.run).map(Some).map_err(usage)
    }

    /// Returns whether an option makes the kernel misbehave on purpose.
    fn breaks(&self) -> bool {
        self.options.iter().any(|word| word.starts_with("break="))
    }

    fn archs(&self) -> anyhow::Result<&'static [Arch]> {
        if self.accel != Accelerator::Bochs {
            return Ok(self.arch);
        }
        // Bochs emulates only x86-64, so with Bochs `--arch all` boots only that.
        const HAS: &[Arch] = &[Arch::X86_64];
        if let [other] = self.arch
            && !HAS.contains(other)
        {
            return Err(usage(format_args!(
                "--arch {other}: Bochs emulates only x86-64; use --accel tcg"
            )));
        }
        if self.icount || self.threads {
            return Err(usage(
                "--accel bochs: Bochs always counts instructions on one thread; leave out --icount and --threads",
            ));
        }
        if self.print_command {
            return Err(usage(
                "--accel bochs: Bochs needs files made for the run; use --print-command with QEMU",
            ));
        }
        Ok(HAS)
    }

    fn emulator(&self, arch: Arch) -> anyhow::Result<PathBuf> {
        match self.accel {
            Accelerator::Bochs => bochs::find(),
            Accelerator::Tcg | Accelerator::Kvm | Accelerator::Auto => qemu::find(arch),
        }
    }

    /// Builds the kernel for one architecture and returns the command that boots it.
    fn command(
        &self,
        arch: Arch,
        workload: Option<Workload>,
        words: &[String],
    ) -> anyhow::Result<qemu::Command> {
        let machine = Machine {
            arch,
            cpus: self.cpus,
            memory_mb: self.memory,
            icount: self.icount,
            threads: self.threads,
            accelerator: self.accel.of_qemu(),
        };
        // We look for the emulator first, because the build takes much longer.
        let emulator = self.emulator(arch)?;
        let images = prepare(arch, self.kernel.as_deref(), self.breaks()).map_err(mistaken)?;
        let images = match workload.filter(|workload| !workload.is_built_in()) {
            Some(workload) => images.with_file(workload.name(), workload.text())?,
            None => images,
        };
        match self.accel {
            Accelerator::Bochs => bochs::command(&machine, &emulator, &images, words),
            Accelerator::Tcg | Accelerator::Kvm | Accelerator::Auto => {
                machine.command(&emulator, &images.kernel, Some(&images.program), words)
            }
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If something needed is missing or broken. A run that fails isn't an error: the exit code is 1.
pub fn run(args: BootArgs) -> anyhow::Result<ExitCode> {
    let archs = args.archs()?;
    let workload = args.workload()?;
    let words = args.words(workload)?;
    if args.check {
        for &arch in archs {
            let emulator = args.emulator(arch)?;
            let toolchain = toolchain::find(arch)?;
            say!("{arch}: {} and {toolchain}", emulator.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    // We prepare all architectures before we print or boot anything, so that an error in one of them comes at once.
    let command = |&arch| anyhow::Ok((arch, args.command(arch, workload, &words)?));
    let commands: Vec<_> = archs.iter().map(command).collect::<Result<_, _>>()?;
    let mut passed = true;
    for (arch, command) in commands {
        if args.print_command {
            say!("{}", command.shown());
            continue;
        }
        for boot in 1..=args.repeat {
            if args.repeat > 1 && !args.json {
                say!("boot {boot} of {}", args.repeat);
            }
            let this = follow_boot(&args, arch, command.clone())
                .with_context(|| format!("booting {arch}"))?;
            passed &= this;
            if let Some(signal) = end_requested() {
                // A shell reports a process that a signal ended as 128 plus the signal's number.
                return Ok(ExitCode::from(128u8.saturating_add(signal as u8)));
            }
            if !this {
                break;
            }
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Boots once, prints the kernel's events and returns whether the run passed.
fn follow_boot(args: &BootArgs, arch: Arch, command: qemu::Command) -> anyhow::Result<bool> {
    if !args.json {
        say!("{arch}, {} CPUs", args.cpus);
    }
    let outcome = follow::run(command, Duration::from_secs(args.timeout), |line| match line {
        follow::Line::Event(event) if args.json => {
            let mut event = event.clone();
            event["arch"] = arch.name().into();
            document_line(&event).expect("an event is JSON");
        }
        follow::Line::Event(event) => show(event),
        follow::Line::Text(text) if args.verbose => note!("  | {text}"),
        follow::Line::Text(_) => {}
    })?;
    if let Some(why) = &outcome.failure {
        note!("{arch}: {why}");
        for line in &outcome.last_lines {
            note!("  | {line}");
        }
    }
    let passed = outcome.passed();
    if !args.json {
        say!("  {} in {:.1} s", if passed { "passed" } else { "FAILED" }, outcome.seconds);
    }
    Ok(passed)
}

/// Prints an event of our own kernel.
pub fn show(event: &Value) {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let list = |name: &str| -> String {
        let items = event[name].as_array().into_iter().flatten();
        let names: Vec<_> = items.filter_map(Value::as_str).collect();
        if names.is_empty() { "nothing".into() } else { names.join(" ") }
    };
    match text("event") {
        "boot" => {
            say!("  processor has {}", list("present"));
            say!("  processor lacks {}", list("absent"));
        }
        "test" => {
            let passed = event["passed"].as_bool().unwrap_or(false);
            let mark = if passed { "ok  " } else { "FAIL" };
            let (name, detail) = (text("name"), text("detail"));
            let dash = if detail.is_empty() { "" } else { " - " };
            say!("  {mark} {name}{dash}{detail}");
        }
        "workload" => {
            let count = |name: &str| event[name].as_u64().unwrap_or(0);
            say!(
                "  {} with policy {}: {} {}",
                text("name"),
                text("policy"),
                event["value"],
                text("metric")
            );
            say!(
                "  in {} units of work: {} shootdown interrupts, {} local and {} broadcast invalidations, {} completions",
                count("done"),
                count("shootdowns_sent"),
                count("local_pages") + count("local_tags") + count("local_all"),
                count("broadcasts"),
                count("completions")
            );
        }
        "progress" => say!(
            "  round {}: {} operations in {:.1} s, digest {}, {} frames free",
            event["rounds"],
            event["operations"],
            event["seconds"].as_f64().unwrap_or_default(),
            text("digest"),
            event["free_frames"]
        ),
        "tags" => say!(
            "  tags ran out {} times, {} switches kept their entries",
            event["rollovers"],
            event["kept"]
        ),
        "failed" => say!("  FAIL {}: {}", text("what"), text("why")),
        "watchdog" => {
            say!("  FAIL cpu {} waited {} ms for another CPU", event["cpu"], event["waited_ms"])
        }
        "counters" | "state" => {
            let fields = event.as_object().into_iter().flatten();
            let shown: Vec<_> = fields
                .filter(|(name, value)| {
                    !matches!(name.as_str(), "event" | "cpu") && value.as_u64() != Some(0)
                })
                .map(|(name, value)| match value.as_str() {
                    Some(text) => format!("{name} {text}"),
                    None => format!("{name} {value}"),
                })
                .collect();
            say!("  cpu {}: {}", event["cpu"], shown.join(", "));
        }
        _ => {}
    }
}

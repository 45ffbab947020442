//! The steps of `cargo xtask ci`: name, purpose and command of each.
//!
//! Cargo allows one command at a time per build folder. And a rebuild with other features replaces a program that a
//! running test uses. So each step has a [`StepGroup`].

use std::fmt;

/// The words of a command line.
type Words = &'static [&'static str];

/// The steps that may run at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepGroup {
    /// Builds into `target/debug`: one at a time.
    Tests,
    /// Builds into `target/release`: one at a time.
    Optimised,
    /// Builds into its own folders, except a program of `target/release` that no other step runs.
    Apart,
    /// Measures the host, or is disturbed by other steps: runs alone, at the end.
    Alone,
}

/// One thing to check.
pub struct Step {
    /// The name on the command line.
    pub name: &'static str,
    /// The property that the step checks.
    pub shows: &'static str,
    /// The lane.
    pub lane: StepGroup,
    /// The program and its arguments. A step names the test or the binary that it needs and, where it can, no package.
    /// The packages decide the features with which shared crates are built, and `cargo test` has built all of them.
    pub command: Words,
    /// The variables in its environment.
    pub environment: &'static [(&'static str, &'static str)],
    /// Whether the step boots machines in emulators, which `scripts/setup-boot --bochs --linux` installs.
    pub boots: bool,
}

const fn step(name: &'static str, lane: StepGroup, command: Words, shows: &'static str) -> Step {
    Step { name, shows, lane, command, environment: &[], boots: false }
}

impl Step {
    const fn with(mut self, environment: &'static [(&'static str, &'static str)]) -> Step {
        self.environment = environment;
        self
    }

    const fn boots(mut self) -> Step {
        self.boots = true;
        self
    }
}

use StepGroup::{Alone, Apart, Optimised, Tests};

/// All steps. Those of a lane run in this order.
#[rustfmt::skip]
pub const STEPS: &[Step] = &[
    step("format", Apart, &["cargo", "fmt", "--all", "--check"],
        "the sources are formatted"),
    step("header", Tests, &["cargo", "test", "--package", "xtask"],
        "quell.h matches the sources, and tables of measurements match docs/tables"),
    step("lints", Tests, &["cargo", "xtask", "lints"],
        "clippy reports nothing, including unit tests that `cargo test` leaves out"),
    step("rustdoc", Tests, &["cargo", "doc", "--workspace", "--no-deps"],
        "public items are documented, and links are valid")
        .with(&[("RUSTDOCFLAGS", "-D warnings")]),
    step("api", Apart, &["cargo", "xtask", "api"],
        "the public interfaces are those kept in docs/api"),
    step("package", Apart, &["cargo", "xtask", "package"],
        "every crate builds from its archive"),
    step("msrv", Apart, &["scripts/check-msrv"],
        "published crates build with the oldest supported Rust; skipped if that is not installed"),
    step("units", Tests,
        &["cargo", "test", "--lib", "--test", "manager", "--package", "quell-adversary", "--package", "quell-clock", "--package",
          "quell-record", "--package", "quell-threads", "--package", "quell-vm"],
        "unit tests of the crates for which `cargo test` leaves them out, because it would compile each a second time"),
    step("large", Tests,
        &["cargo", "test", "--package", "quell", "--features", "cpus-8192"],
        "the engine holds with sets of 8192 CPUs"),
    step("orderings", Optimised,
        &["cargo", "test", "--release", "--package", "quell-threads", "--features", "loom", "--test", "orderings", "--", "--nocapture"],
        "each memory ordering is needed, and enough (loom)"),
    // We optimise it, because debug builds leave more on the stacks by which the search distinguishes states: it
    // wouldn't end.
    step("exhaustive", Optimised,
        &["cargo", "test", "--release", "--package", "quell-adversary", "--test", "adversary", "--", "--ignored"],
        "small programs hold in every schedule, and each pair of calls in hundreds"),
    step("schedules", Optimised, &["cargo", "run", "--release", "--bin", "quell", "--", "explore", "--schedules", "2000"],
        "the contract holds in more than ten million schedules"),
    step("inputs", Tests,
        &["cargo", "test", "--features", "quell-cli/parquet", "--test", "cli", "--", "--include-ignored", "inputs::",
          "sweep::"],
        "sixty random command lines end well (QUELL_FUZZ_MINUTES=N draws new ones); Parquet equals CSV")
        .with(&[("QUELL_FUZZ_SEED", "1")]),
    step("limits", Tests, &["cargo", "test", "--test", "cli", "--", "--include-ignored", "threads::"],
        "every command ends well where threads or memory run out"),
    step("live", Tests,
        &["cargo", "test", "--test", "cli", "--", "--include-ignored", "record_live::", "cli::every_measurement"],
        "programs and servers are recorded and tried while they run, and end as they should"),
    step("c", Tests, &["cargo", "test", "--test", "c", "--", "--include-ignored"],
        "the C interface is built for kernels, and programs in C run on it")
        .with(&[("QUELL_REQUIRE_C", "1")]),
    step("pages", Tests,
        &["cargo", "test", "--test", "cli", "--test", "record", "--", "--include-ignored", "report::", "page::"],
        "pages can be used and read in a browser: wide and narrow, light and dark")
        .with(&[("QUELL_REQUIRE_BROWSER", "1")]),
    step("figures", Tests,
        &["cargo", "test", "--test", "cli", "--", "--ignored", "figures::", "worlds::",
          "cli::the_report_needs_nothing_from_elsewhere", "cli::what_guards_cost"],
        "every known mistake is found, workloads hold in some schedules, and documents match the command's output"),
    step("boots", Tests, &["cargo", "test", "--test", "cli", "--", "--ignored", "boot::", "agreement::"],
        "the kernel passes on every architecture, notices mistakes, and agrees with the model's counts")
        .with(&[("QUELL_REQUIRE_BOOT", "1"), ("QUELL_REQUIRE_BOCHS", "1")]).boots(),
    // Some mutants break only code that two threads run at the same moment.
    step("mutants", Alone,
        &["cargo", "xtask", "copy", "test", "--release", "--locked", "--package", "quell-adversary", "--package",
          "quell-conformance", "--package", "quell-model", "--package", "quell-threads", "--lib", "--tests", "--",
          "--include-ignored", "mutants"],
        "every mistake that is made on purpose is found: by the adversary, by threads, by the suite of kernels"),
    step("engine-mutants", Apart, &["cargo", "xtask", "mutate", "--file", "engine/quell/src", "--sample", "6", "--seed", "1"],
        "some mutants of the engine that a program makes are killed; `cargo xtask mutate` tries all"),
    step("kernels", Apart, &["cargo", "run", "--release", "--bin", "quell-linux", "--", "both"],
        "every edit of the integration fits Linux 6.12, and Linux builds with the engine and without").boots(),
    step("asterinas", Apart, &["cargo", "run", "--release", "--bin", "quell-asterinas"],
        "in Asterinas' ostd quell costs no more than the flusher that it replaces, and programs see no stale page").boots(),
    step("hunt", Optimised, &["kernels/boot/hunt/check"],
        "TLBs that do their worst show a flush left out of our kernel, and nothing in the kernel as it is").boots(),
    step("hunt-linux", Optimised, &["kernels/boot/hunt/linux/run"],
        "a hunt in Linux finds each flush that is left out, and nothing else; skipped if nothing can be \
         built"),
    step("stress", Optimised, &["cargo", "run", "--release", "--bin", "quell", "--", "boot", "stress", "--minutes", "1"],
        "every operation on every CPU at random, on every MMU").boots(),
    // A cluster takes minutes to start on a busy host.
    step("python", Alone, &["scripts/test-python"],
        "the Python module equals the command; skipped without Python"),
    step("threads", Alone, &["cargo", "test", "--test", "threads", "--", "--include-ignored", "stress::", "workloads::"],
        "threads on real cores hold the contract for long and in every workload")
        .with(&[("QUELL_STRESS_OPERATIONS", "2000")]),
    step("host", Alone,
        &["cargo", "test", "--test", "cli", "--test", "record", "--", "--ignored", "--test-threads", "1",
          "measure_host::", "record_programs::", "live::"],
        "a live host is measured, recorded and left as it was; nothing else may flush or swap there meanwhile"),
    // This step boots the kernels that the step `kernels` has built.
    step("linux", Alone, &["cargo", "test", "--test", "versus", "--test", "conformance", "--", "--ignored"],
        "Linux and the kernel compare as documented, and Linux keeps the contract; needs a Linux to boot").boots(),
];

/// Formats the command line for a shell.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.environment {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "{}", self.command.join(" "))
    }
}

//! The steps of `cargo xtask ci`: what each is called, shows and runs.
//!
//! Two steps run at a time where they can, and where a step builds says which. Cargo lets one command at a time build
//! into a folder, and a program that is built there with other features takes the place of the one that a test runs:
//! so no two steps build into the same one. What measures the host, or counts what others on it would disturb, runs
//! alone. This file is long because the table is.

use std::fmt;

/// Words of the command line.
pub type Words = &'static [&'static str];

/// Where a step builds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Builds {
    /// Into `target/debug`.
    Tests,
    /// Into `target/release`.
    Optimised,
    /// Into folders of its own, but for a program of `target/release` that no other step runs.
    Apart,
    /// Wherever: it runs alone.
    Alone,
}

/// One thing to check.
pub struct Step {
    /// What it is asked for by.
    pub name: &'static str,
    /// What has been shown when it passes.
    pub shows: &'static str,
    /// Variables of its environment.
    pub environment: &'static [(&'static str, &'static str)],
    /// What `cargo` is told. A step names the test or the binary that it needs and, where it can, no package: what
    /// packages are chosen decides with which features the crates are built that they share, and `cargo test` and
    /// `cargo run --release` have built all of them for those that they choose.
    pub cargo: Words,
    /// Where it builds.
    pub builds: Builds,
    /// Whether it boots machines in emulators, which `scripts/setup-boot --bochs --linux` installs with what else such
    /// steps need.
    pub boots: bool,
}

/// In the order in which they begin where they can: first what is soon known, last what needs a quiet host.
pub const STEPS: &[Step] = &[
    Step {
        name: "xtask",
        shows: "this command tells what breaks others from what does not, and quell.h is what the sources say",
        environment: &[],
        cargo: &["test", "--package", "xtask"],
        // The command itself, which other steps run.
        builds: Builds::Alone,
        boots: false,
    },
    Step {
        name: "format",
        shows: "the sources are formatted",
        environment: &[],
        cargo: &["fmt", "--all", "--check"],
        builds: Builds::Apart,
        boots: false,
    },
    Step {
        name: "lints",
        shows: "clippy has nothing to say, nor of the unit tests that `cargo test` leaves out",
        environment: &[],
        cargo: &["xtask", "lints"],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "rustdoc",
        shows: "what is public is documented, and the documentation's links lead somewhere",
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        cargo: &["doc", "--workspace", "--no-deps", "--quiet"],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "api",
        shows: "what others use changed only as its version says",
        environment: &[],
        cargo: &["xtask", "api"],
        builds: Builds::Apart,
        boots: false,
    },
    Step {
        name: "units",
        shows: "the parts of the adversary, and of what records, do what they say",
        environment: &[],
        cargo: &[
            "test",
            "--package",
            "quell-adversary",
            "--package",
            "quell-perf",
            "--lib",
        ],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "package",
        shows: "what others use builds from what would be published",
        environment: &[],
        cargo: &["xtask", "package"],
        builds: Builds::Apart,
        boots: false,
    },
    Step {
        name: "large",
        shows: "the engine holds with sets of 8192 CPUs, and whatever two calls meet, under every policy of that test",
        environment: &[],
        cargo: &[
            "test",
            "--package",
            "quell",
            "--features",
            "cpus-8192",
            "--",
            "--include-ignored",
        ],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "orderings",
        shows: "each memory ordering is needed, and enough (loom)",
        environment: &[],
        cargo: &[
            "test",
            "--release",
            "--package",
            "quell-orderings",
            "--features",
            "loom",
        ],
        builds: Builds::Optimised,
        boots: false,
    },
    Step {
        name: "exhaustive",
        shows: "small programs hold in every schedule, that search misses nothing, and threads change no campaign",
        environment: &[],
        // Optimised: debug builds leave more behind on the stacks by which the search tells states apart, and it would
        // not end.
        cargo: &[
            "test",
            "--release",
            "--package",
            "quell-adversary",
            "--test",
            "adversary",
            "--",
            "--ignored",
            "--nocapture",
        ],
        builds: Builds::Optimised,
        boots: false,
    },
    Step {
        name: "inputs",
        shows: "sixty command lines that are drawn end well; QUELL_FUZZ_MINUTES=N draws new ones for longer",
        environment: &[("QUELL_FUZZ_SEED", "1")],
        cargo: &[
            "test",
            "--test",
            "cli",
            "inputs::",
            "--",
            "--include-ignored",
            "--nocapture",
        ],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "parquet",
        shows: "what a sweep writes as Parquet is what it writes as CSV",
        environment: &[],
        cargo: &[
            "test",
            "--features",
            "quell-cli/parquet",
            "--test",
            "cli",
            "sweep::",
        ],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "c",
        shows: "the C interface is built for kernels, and programs in C run on it",
        environment: &[("QUELL_REQUIRE_C", "1")],
        cargo: &["test", "--test", "c", "--", "--include-ignored"],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "engine-mutants",
        shows: "some mutants of the engine that a program makes are killed; `cargo xtask mutate` tries all",
        environment: &[],
        cargo: &["xtask", "mutate", "--sample", "6", "--seed", "1"],
        builds: Builds::Apart,
        boots: false,
    },
    Step {
        name: "schedules",
        shows: "the contract holds in more than ten million schedules",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--",
            "explore",
            "--schedules",
            "2000",
        ],
        builds: Builds::Optimised,
        boots: false,
    },
    Step {
        name: "reproduce",
        shows: "the first command that a stranger types works",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--",
            "reproduce",
            "--no-report",
        ],
        builds: Builds::Optimised,
        boots: false,
    },
    Step {
        name: "figures",
        shows: "every known mistake is found, workloads hold in some schedules, and documents show what the command prints",
        environment: &[],
        cargo: &[
            "test",
            "--test",
            "cli",
            "--",
            "--ignored",
            "figures::",
            "worlds::",
            "cli::the_report_needs_nothing_from_elsewhere",
        ],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "book",
        shows: "the documents make a book; it is written to target/book",
        environment: &[],
        cargo: &[
            "run",
            "--quiet",
            "--package",
            "quell-book",
            "--features",
            "html",
        ],
        builds: Builds::Tests,
        boots: false,
    },
    Step {
        name: "boots",
        shows: "the kernel passes on every architecture, notices mistakes, and counts what the model counts",
        environment: &[("QUELL_REQUIRE_BOOT", "1"), ("QUELL_REQUIRE_BOCHS", "1")],
        cargo: &[
            "test",
            "--test",
            "cli",
            "--",
            "--ignored",
            "boot::",
            "agreement::",
        ],
        builds: Builds::Tests,
        boots: true,
    },
    Step {
        name: "kernels",
        shows: "every edit of the integration fits Linux 6.12, and Linux builds with the engine and without",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--bin",
            "quell-linux",
            "--",
            "both",
        ],
        builds: Builds::Apart,
        boots: true,
    },
    Step {
        name: "asterinas",
        shows: "in Asterinas' ostd quell needs no more than what it replaces, and programs see no page that is gone",
        environment: &[],
        cargo: &["run", "--release", "--quiet", "--bin", "quell-asterinas"],
        builds: Builds::Apart,
        boots: true,
    },
    Step {
        name: "python",
        shows: "the Python module gives what the command gives; skipped, and told, where there is no Python",
        environment: &[],
        cargo: &["xtask", "python"],
        // A cluster on a host that other work fills takes minutes to come to rest.
        builds: Builds::Alone,
        boots: false,
    },
    Step {
        name: "threads",
        shows: "threads on real cores hold the contract for long and in every workload; a mutant of luck is found",
        environment: &[("QUELL_STRESS_OPERATIONS", "2000")],
        cargo: &[
            "test",
            "--test",
            "threads",
            "--",
            "--include-ignored",
            "stress::",
            "workloads::",
        ],
        // What the mutants break takes two threads that run at the same moment.
        builds: Builds::Alone,
        boots: false,
    },
    Step {
        name: "host",
        shows: "a live host is measured, recorded and left as it was; nothing else may flush or swap there meanwhile",
        environment: &[],
        cargo: &[
            "test",
            "--test",
            "cli",
            "--test",
            "record",
            "--",
            "--ignored",
            "--test-threads",
            "1",
            "measure_host::",
            "record_programs::",
            "live::",
        ],
        builds: Builds::Alone,
        boots: false,
    },
    Step {
        name: "linux",
        shows: "Linux and the kernel compare as the documents say, and Linux keeps the contract; needs a Linux to boot",
        environment: &[],
        cargo: &[
            "test",
            "--test",
            "versus",
            "--test",
            "conformance",
            "--",
            "--ignored",
        ],
        builds: Builds::Alone,
        boots: true,
    },
    Step {
        name: "stress",
        shows: "every operation on every CPU at random, on every MMU",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--",
            "boot",
            "stress",
            "--minutes",
            "1",
        ],
        builds: Builds::Optimised,
        boots: true,
    },
];

/// As a shell would take it.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.environment {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "cargo {}", self.cargo.join(" "))
    }
}

#![no_std]
#![no_main]
//! A small multi-core kernel that runs the quell engine on a real MMU.
//!
//! It exists to test translation coherence, so it has what that needs and nothing else: up to 64
//! CPUs, threads that stay on their CPU, user mode with address spaces of its own, interrupts
//! between CPUs, non-maskable interrupts, idle CPUs that halt, and a watchdog that turns a lost
//! interrupt into a report. There is no file system, no device but a serial line, and one program
//! in user mode ([`arch::user`]) that performs the memory accesses it is asked for.
//!
//! What depends on the architecture is under [`arch`], in files of the same names and the same
//! functions for each: `boot`, `console`, `cpu`, `interrupts`, `paging`, `traps`, `user`.
//!
//! The kernel talks to the program that started it by lines `quell: {json}` on the serial line;
//! see [`report`].

extern crate alloc;

mod arch;
mod audit;
mod bench;
mod console;
mod cpu;
mod late;
#[allow(dead_code)] // The kernel uses one part, the program another.
mod layout;
mod machine;
mod memory;
mod program;
mod report;
mod sched;
mod selftest;
mod sync;
mod tables;
mod trap;
mod watchdog;
mod workload;

use alloc::vec::Vec;
use report::Event;

/// The options of one boot, from the command line: words `name=value`.
#[derive(Debug, Default)]
pub struct Options {
    /// What to run: `selftest`, `conformance`, `stress`, a workload's name, or `lost_interrupt`, which
    /// must not pass.
    pub run: &'static str,
    /// The workload's parameters, `name:value,name:value`.
    pub parameters: &'static str,
    /// What the engine may do: `all`, `baseline`, or mechanisms joined by `+`.
    pub policy: &'static str,
    /// What to do wrong on purpose, for tests of tests: see [`machine::break_on_purpose`].
    pub broken: Option<&'static str>,
    /// On how many CPUs a workload runs; the others of the machine are idle. All if not given.
    pub team: Option<usize>,
    /// What is random in the run.
    pub seed: u64,
    /// How long a stress lasts: rounds of each CPU.
    pub rounds: u64,
    /// How long a stress lasts instead, in seconds.
    pub seconds: Option<u64>,
    /// How wide tags are to be where they are system-wide, at most what the processor has: few tags
    /// run out soon.
    pub tag_bits: Option<u8>,
    /// How many pages are migrated behind one flush, if not as many as the manager's default.
    pub migrate_together: Option<usize>,
    /// Whether CPUs that fault catch up with the flush clock by themselves: `yes` or `no`.
    pub catch_up: bool,
    /// How often each CPU of a workload is interrupted by its timer, in microseconds; never if not
    /// given.
    pub tick_us: Option<u64>,
    /// How long a CPU may wait for another before the watchdog reports it, in milliseconds.
    pub watchdog_ms: Option<u64>,
}

impl Options {
    fn parse(line: &'static str) -> Result<Self, &'static str> {
        let mut options = Options {
            run: "selftest",
            policy: "all",
            seed: 1,
            rounds: 10,
            ..Options::default()
        };
        for word in line.split_ascii_whitespace() {
            match word.split_once('=') {
                Some(("run", what)) => options.run = what,
                Some(("parameters", text)) => options.parameters = text,
                Some(("policy", name)) => options.policy = name,
                Some(("break", name)) => options.broken = Some(name),
                Some(("team", text)) => options.team = Some(text.parse().map_err(|_| word)?),
                Some(("seed", text)) => options.seed = text.parse().map_err(|_| word)?,
                Some(("rounds", text)) => options.rounds = text.parse().map_err(|_| word)?,
                Some(("seconds", text)) => options.seconds = Some(text.parse().map_err(|_| word)?),
                Some(("tag_bits", text)) => {
                    options.tag_bits = Some(text.parse().map_err(|_| word)?)
                }
                Some(("migrate_together", text)) => {
                    options.migrate_together = Some(text.parse().map_err(|_| word)?)
                }
                Some(("catch_up", "yes")) => options.catch_up = true,
                Some(("catch_up", "no")) => options.catch_up = false,
                Some(("tick_us", text)) => options.tick_us = Some(text.parse().map_err(|_| word)?),
                Some(("watchdog_ms", text)) => {
                    options.watchdog_ms = Some(text.parse().map_err(|_| word)?)
                }
                _ => return Err(word),
            }
        }
        Ok(options)
    }
}

/// The first Rust code of the first CPU: everything but the other CPUs is set up.
fn main(boot: arch::boot::Info) -> ! {
    let options = match Options::parse(boot.command_line) {
        Ok(options) => options,
        Err(word) => {
            report::event(&Event::Failed {
                what: "command line",
                why: word,
            });
            report::exit(2);
        }
    };
    if let Some(limit) = options.watchdog_ms {
        watchdog::set_limit_ms(limit);
    }
    if let Some(name) = options.broken
        && let Err(why) = machine::break_on_purpose(name)
    {
        report::event(&Event::Failed { what: "break", why });
        report::exit(2);
    }
    let features = arch::cpu::features();
    report::event(&Event::Boot {
        arch: arch::NAME,
        memory_mb: memory::total() >> 20,
        present: features
            .iter()
            .filter(|(_, there)| *there)
            .map(|(name, _)| *name)
            .collect::<Vec<_>>(),
        absent: features
            .iter()
            .filter(|(_, there)| !*there)
            .map(|(name, _)| *name)
            .collect::<Vec<_>>(),
    });
    let Some(module) = boot.module.clone() else {
        report::event(&Event::Failed {
            what: "user program",
            why: "the boot loader passed none",
        });
        report::exit(2);
    };
    // SAFETY: the boot loader's file, which `memory::init` was not given.
    if let Err(why) = unsafe { program::load(module) } {
        report::event(&Event::Failed {
            what: "user program",
            why,
        });
        report::exit(2);
    }
    let cpus = arch::boot::start_others(&boot);
    report::event(&Event::Cpus { started: cpus });

    let passed = match options.run {
        "selftest" => selftest::run(),
        "lost_interrupt" => selftest::lose_interrupt(),
        _ => workload::run(&options),
    };
    cpu::report_counters();
    report::exit(if passed { 0 } else { 1 });
}

/// What a CPU other than the first runs for ever: its threads, and halted when there are none.
fn idle() -> ! {
    sched::wait_until(|| false);
    unreachable!("the condition never holds")
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let at = arch::cpu::index();
    report::panic(at, info);
    watchdog::dump_cpus();
    report::exit(3);
}

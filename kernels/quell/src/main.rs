#![no_std]
#![no_main]
//! A small multi-core kernel that runs the quell engine on an MMU, which walks its tables and caches stale entries.
//!
//! It exists to test translation coherence, and has only what that needs. For example, there are up to 64 CPUs, threads
//! that stay on their CPU, user mode with its own address spaces, interrupts between CPUs, non-maskable interrupts,
//! idle CPUs that halt, and a watchdog that turns a lost interrupt into a report. There is no file system, and no
//! device except a serial line. One program in user mode performs memory accesses on request.
//!
//! Architecture-dependent code is under [`arch`], in the same files with the same functions for each architecture:
//! `boot`, `console`, `cpu`, `interrupts`, `paging`, `traps`.
//!
//! The kernel sends lines `quell: {json}` on the serial line to the program that started it. See [`report`].

extern crate alloc;

mod accessors;
mod arch;
#[allow(dead_code)] // The host writes this text, which the kernel reads.
#[path = "../../boot/src/attached.rs"]
mod attached;
mod audit;
mod bench;
mod clock;
mod console;
mod cpu;
#[cfg(not(target_arch = "x86_64"))]
mod device_tree;
mod late;
#[allow(dead_code)] // The kernel uses one part, the program another.
mod layout;
mod machine;
mod memory;
#[cfg(feature = "mutants")]
mod mistaken;
mod mistakes;
#[path = "../../boot/src/options.rs"]
mod options;
mod platform;
mod program;
mod report;
mod sched;
mod selftest;
mod sync;
mod tables;
mod trap;
mod watchdog;
mod workload;

use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;
use options::Options;
use report::Event;

/// The loader's information.
pub struct BootInfo {
    /// The command line.
    pub command_line: &'static str,
    /// The user program's file, as physical addresses.
    pub module: Option<Range<u64>>,
}

/// The first architecture-independent code of the first CPU. Everything except the other CPUs is set up.
fn main(boot: BootInfo) -> ! {
    let options = match Options::parse(boot.command_line) {
        Ok(options) => options,
        Err(error) => {
            report::event(&Event::Failed { what: "command line", why: &error.to_string() });
            report::exit(2);
        }
    };
    if let Some(limit) = options.watchdog_ms {
        watchdog::set_limit_ms(limit);
    }
    if let Some(name) = options.broken
        && let Err(why) = mistakes::make(name)
    {
        report::event(&Event::Failed { what: "break", why });
        report::exit(2);
    }
    let (present, absent): (Vec<_>, Vec<_>) =
        arch::cpu::processor().list().into_iter().partition(|(_, there)| *there);
    let names = |features: Vec<(&'static str, bool)>| features.into_iter().map(|(name, _)| name);
    report::event(&Event::Boot {
        arch: arch::NAME,
        memory_mb: memory::total() >> 20,
        present: names(present).collect(),
        absent: names(absent).collect(),
    });
    let Some(module) = boot.module else {
        report::event(&Event::Failed { what: "user program", why: "the boot loader passed none" });
        report::exit(2);
    };
    // SAFETY: this is the boot loader's file, which we didn't pass to `memory::init`.
    if let Err(why) = unsafe { program::load(module) } {
        report::event(&Event::Failed { what: "user program", why });
        report::exit(2);
    }
    arch::boot::start_others();
    report::event(&Event::Cpus { started: cpu::count() });

    let passed = match options.run {
        "selftest" => selftest::run(),
        "lost_interrupt" => selftest::lose_interrupt(),
        _ => workload::run(&options),
    };
    report::report_counters();
    report::exit(if passed { 0 } else { 1 });
}

/// Runs a CPU's threads for ever, and halts if there are none. The first CPU doesn't call this.
fn idle() -> ! {
    sched::wait_until(|| false);
    unreachable!("the condition never holds")
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let at = arch::cpu::index();
    console::urgent_line(format_args!("panic on cpu {at}: {info}"));
    report::dump_cpus();
    report::exit(3);
}

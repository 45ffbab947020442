#![no_std]
#![no_main]
//! The program that runs in user mode.
//!
//! Each thread starts it with three words: the entry point ([`layout::entry`]), the number of its CPU (or of its slot,
//! for a puppet) and the number of CPUs.

#[allow(dead_code)] // The kernel uses one part, the program another.
#[path = "../layout.rs"]
mod layout;

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod arch;

mod heap;
mod run;
mod shared;

extern crate alloc;

use alloc::string::String;
use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, SeqCst};
use layout::command;
use run::Program;
use shared::{control, system_call};

/// The first Rust code, called by the entry on the CPU's own stack.
#[unsafe(no_mangle)]
extern "C" fn user_main(what: u64, cpu: u64, cpus: u64) -> ! {
    let program = Program { cpu: cpu as usize, cpus: cpus as usize, waits: Cell::new(false) };
    match what {
        layout::entry::PUPPET => puppet(cpu as usize),
        layout::entry::WORKLOAD => report(run::workload(&program)),
        layout::entry::CONFORMANCE => run::conformance(&program),
        layout::entry::STRESS => report(run::stress(&program)),
        _ => panic!("no program {what}"),
    }
    exit()
}

fn exit() -> ! {
    system_call(layout::EXIT, &[]);
    unreachable!("the kernel ended this program")
}

/// Reports a failure to the kernel.
fn report(outcome: Result<(), String>) {
    if let Err(why) = outcome {
        system_call(layout::FAILED, &[why.as_ptr() as u64, why.len() as u64]);
    }
}

/// Performs the kernel's commands, one access after the other.
fn puppet(slot: usize) {
    let (mut value, mut error) = (0, 0);
    loop {
        system_call(layout::NEXT, &[value, error]);
        let command = &control().commands[slot];
        let (address, operand) = (command.address.load(Acquire), command.value.load(Acquire));
        (value, error) = match command.what.load(Acquire) {
            command::LOAD => shared::load(address),
            command::STORE => (0, shared::store(address, operand)),
            command::SPIN => {
                while control().words[address as usize].load(SeqCst) != operand {
                    arch::relax();
                }
                (0, 0)
            }
            _ => return,
        };
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    use core::fmt::Write;
    /// Text cut at its length.
    struct TruncatedText([u8; 256], usize);
    impl Write for TruncatedText {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let bytes = text.as_bytes();
            let room = bytes.len().min(self.0.len() - self.1);
            self.0[self.1..self.1 + room].copy_from_slice(&bytes[..room]);
            self.1 += room;
            Ok(())
        }
    }
    let mut text = TruncatedText([0; 256], 0);
    let _ = write!(text, "{info}");
    system_call(layout::PANIC, &[text.0.as_ptr() as u64, text.1 as u64]);
    loop {
        arch::relax();
    }
}

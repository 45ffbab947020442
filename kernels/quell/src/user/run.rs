//! Runs workloads in user mode with real accesses, real system calls, and the clock that is visible to user mode.

use crate::shared::{self, control};
use crate::{arch, layout};
use alloc::format;
use alloc::string::{String, ToString};
use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use quell_vm::{Call, Error, Fault, Mark, User};
use quell_workloads::conformance::programs::Suite;
use quell_workloads::conformance::stress::{self, Length};
use quell_workloads::{Failure, Workload};

/// One CPU of a workload.
struct Program {
    cpu: usize,
    cpus: usize,
    /// Whether the program has read a control word since the last system call. If it reads another one, it waits.
    waits: Cell<bool>,
}

impl Program {
    fn new(cpu: usize, cpus: usize) -> Self {
        Program { cpu, cpus, waits: Cell::new(false) }
    }
}

/// Returns the fault with this number. The number 0 means that there is none.
fn fault(number: u64) -> Fault {
    match number {
        1 => Fault::NotMapped,
        2 => Fault::Forbidden,
        3 => Fault::BeyondEnd,
        _ => Fault::OutOfMemory,
    }
}

impl User for Program {
    fn cpu(&self) -> usize {
        self.cpu
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        match arch::load(address) {
            (value, 0) => Ok(value),
            (_, number) => Err(fault(number)),
        }
    }

    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        match arch::store(address, value) {
            0 => Ok(()),
            number => Err(fault(number)),
        }
    }

    fn call(&self, call: Call) -> Result<u64, Error> {
        self.waits.set(false);
        match arch::system_call(call.to_words()) {
            (value, 0) => Ok(value),
            (_, number) => Err(Error::from_word(number)),
        }
    }

    fn compute(&self, nanoseconds: u64) {
        if nanoseconds == 0 {
            return;
        }
        let end = self.now() + nanoseconds;
        while self.now() < end {
            arch::relax();
        }
    }

    fn now(&self) -> u64 {
        let control = control();
        let ticks = arch::ticks().wrapping_sub(control.ticks_at_start.load(Relaxed));
        layout::nanoseconds(ticks, control.ticks_per_ms.load(Relaxed))
    }

    fn mark(&self, mark: Mark) {
        let which = match mark {
            Mark::Begin => 0,
            Mark::End => 1,
        };
        arch::system_call([layout::MARK, which, 0, 0, 0, 0, 0]);
    }

    fn shared(&self, index: usize) -> u64 {
        // We don't relax before the first read. If a CPU wakes only for that read, it would lose its turn while it
        // counts as running.
        if self.waits.replace(true) {
            arch::relax();
        }
        control().words[index].load(SeqCst)
    }

    fn set_shared(&self, index: usize, value: u64) {
        control().words[index].store(value, SeqCst);
    }

    fn add_shared(&self, index: usize, value: u64) -> u64 {
        control().words[index].fetch_add(value, SeqCst)
    }
}

/// The workload of a run. The first CPU reads it, and its memory is never freed.
static WORKLOAD: spin::Once<Result<Workload, String>> = spin::Once::new();

/// Parses a workload `name parameter=value ...`, built in or from the program's own file.
///
/// # Errors
/// If the text is invalid.
pub fn parse(text: &str) -> Result<&'static Workload, String> {
    WORKLOAD
        .call_once(|| {
            let mut words = text.split_ascii_whitespace();
            let name = words.next().unwrap_or_default();
            let mut workload = match shared::file() {
                Some(file) => Workload::parse(name, file).map_err(|wrong| wrong.to_string())?,
                None => Workload::from_name(name).ok_or_else(|| format!("no workload {name}"))?,
            };
            for pair in words {
                workload.set(pair).map_err(|error| error.to_string())?;
            }
            Ok(workload)
        })
        .as_ref()
        .map_err(Clone::clone)
}

/// Runs one CPU's part.
///
/// # Errors
/// Returns the operation that failed.
pub fn one(workload: &Workload, cpu: usize, cpus: usize) -> Result<(), Failure> {
    workload.run(&Program::new(cpu, cpus), control().seed.load(Relaxed))
}

/// Runs one CPU's part of the conformance suite.
pub fn conformance(cpu: usize, cpus: usize) {
    Suite::new(&Program::new(cpu, cpus), home()).run(|name, failures, detail| {
        arch::system_call([
            layout::CHECK,
            name.as_ptr() as u64,
            name.len() as u64,
            failures,
            detail.as_ptr() as u64,
            detail.len() as u64,
            0,
        ]);
    });
}

/// Returns the process in which the program began.
fn home() -> u32 {
    control().words[layout::PROCESS_WORD].load(SeqCst) as u32
}

/// Runs one CPU's part of the stress.
///
/// # Errors
/// Returns a violation of the contract.
pub fn stress(cpu: usize, cpus: usize) -> Result<(), String> {
    let length = match control().words[layout::LENGTH_WORD].load(SeqCst) {
        time if time >> 63 != 0 => Length::Nanoseconds(time & !(1 << 63)),
        rounds => Length::Rounds(rounds),
    };
    let disturb = |target: usize| {
        arch::system_call([layout::DISTURB, target as u64, 0, 0, 0, 0, 0]);
    };
    stress::run(
        &Program::new(cpu, cpus),
        control().seed.load(Relaxed),
        home(),
        length,
        &disturb,
        |done| {
            arch::system_call([
                layout::ROUND,
                done.rounds,
                done.operations,
                done.digest,
                done.nanoseconds,
                0,
                0,
            ]);
        },
    )
}

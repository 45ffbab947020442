//! Runs workloads in user mode with real accesses, real system calls, and the clock that is visible to user mode.

use crate::shared::{self, control, system_call};
use crate::{arch, layout};
use alloc::format;
use alloc::string::{String, ToString};
use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use quell_vm::{Call, Error, Fault, Mark, User};
use quell_workloads::Workload;
use quell_workloads::conformance::programs::Suite;
use quell_workloads::conformance::stress::{self, Length};

/// One CPU of a workload.
pub struct Program {
    pub cpu: usize,
    pub cpus: usize,
    /// Whether the program has read a control word since the last system call. If it reads another one, it waits.
    pub waits: Cell<bool>,
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
        match shared::load(address) {
            (value, 0) => Ok(value),
            (_, number) => Err(fault(number)),
        }
    }

    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        match shared::store(address, value) {
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
        system_call(layout::MARK, &[which]);
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

/// Runs one CPU's part of the workload that the kernel chose: `name parameter=value ...`, built in or from the program's
/// own file.
/// Fails if the text is invalid, or an operation failed.
pub fn workload(program: &Program) -> Result<(), String> {
    /// The first CPU reads it, and its memory is never freed.
    static WORKLOAD: spin::Once<Result<Workload, String>> = spin::Once::new();
    let read = || {
        let mut room = [0; layout::TEXT];
        let mut words = control().workload(&mut room).split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let mut workload = match shared::file() {
            Some(file) => Workload::parse(name, file).map_err(|wrong| wrong.to_string())?,
            None => Workload::from_name(name).ok_or_else(|| format!("no workload {name}"))?,
        };
        for pair in words {
            workload.set(pair).map_err(|error| error.to_string())?;
        }
        Ok(workload)
    };
    let workload = WORKLOAD.call_once(read).as_ref().map_err(Clone::clone)?;
    let seed = control().seed.load(Relaxed);
    workload.run(program, seed).map_err(|failure| failure.to_string())
}

/// Runs one CPU's part of the conformance suite.
pub fn conformance(program: &Program) {
    Suite::new(program, home()).run(|name, failures, detail| {
        let text = |text: &str| (text.as_ptr() as u64, text.len() as u64);
        let ((name, name_bytes), (detail, bytes)) = (text(name), text(detail));
        system_call(layout::CHECK, &[name, name_bytes, failures, detail, bytes]);
    });
}

/// Returns the process in which the program began.
fn home() -> u32 {
    control().words[layout::PROCESS_WORD].load(SeqCst) as u32
}

/// Runs one CPU's part of the stress. Returns a violation of the contract as the error.
pub fn stress(program: &Program) -> Result<(), String> {
    let length = match control().words[layout::LENGTH_WORD].load(SeqCst) {
        time if time >> 63 != 0 => Length::Nanoseconds(time & !(1 << 63)),
        rounds => Length::Rounds(rounds),
    };
    let seed = control().seed.load(Relaxed);
    let disturb = |target: usize| {
        system_call(layout::DISTURB, &[target as u64]);
    };
    stress::run(program, seed, home(), length, &disturb, |done| {
        let words = [done.rounds, done.operations, done.digest, done.nanoseconds];
        system_call(layout::ROUND, &words);
    })
}

//! Reports events to the program that started the kernel.
//!
//! Each event is one line on the serial line: `quell: ` and a JSON object whose `event` names its kind. Other lines are
//! for people. The last event is `exit` with the code. If a run has none, it crashed or was killed.

use crate::cpu::{self, Counters};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use serde::Serialize;

/// One line of the protocol.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// The first CPU runs.
    Boot {
        arch: &'a str,
        memory_mb: u64,
        /// Features of the processor that the kernel uses.
        present: Vec<&'static str>,
        /// Features that it would use, but the processor doesn't have.
        absent: Vec<&'static str>,
    },
    /// All CPUs run.
    Cpus { started: usize },
    /// One test has run.
    Test {
        name: &'a str,
        passed: bool,
        /// The finding, for people.
        detail: String,
    },
    /// A workload has run.
    Workload {
        name: &'a str,
        policy: &'a str,
        cpus: usize,
        /// The name of its figure.
        metric: &'a str,
        /// The figure, in this machine's time. It's null if the run didn't get that far.
        value: f64,
        /// The duration of the measured part, in nanoseconds. If we count instructions, this is the number of
        /// instructions that all CPUs executed in it.
        window_ns: u64,
        /// The work done in it, in the workload's unit.
        done: u64,
        /// The counts of all CPUs in it.
        #[serde(flatten)]
        counters: Counters,
        /// The engine's counters in it, by name, without those that are 0.
        engine: BTreeMap<&'static str, u64>,
    },
    /// The counters of one CPU since it started.
    Counters {
        cpu: usize,
        #[serde(flatten)]
        counters: Counters,
    },
    /// A round of a stress has ended.
    Progress {
        rounds: u64,
        operations: u64,
        /// A digest of the operations chosen so far.
        digest: String,
        /// The number of free frames, including those that have a deferred flush.
        free_frames: u64,
        seconds: f64,
    },
    /// The use of tags.
    Tags {
        /// The number of times that system-wide tags ran out.
        rollovers: u64,
        /// The number of context switches that kept a space's entries.
        kept: u64,
    },
    /// Something that the run needed was refused.
    Failed {
        /// The part of the run that failed.
        what: &'a str,
        why: &'a str,
    },
}

/// Writes an event.
pub fn event(event: &Event<'_>) {
    match serde_json::to_string(event) {
        Ok(json) => crate::console::line(format_args!("quell: {json}")),
        Err(error) => crate::console::line(format_args!("event lost: {error}")),
    }
}

/// Reports the state of a CPU without allocating or waiting long. It's for panics, the watchdog and non-maskable
/// interrupts.
fn state(cpu: usize, doing: &str, pc: u64, counters: &Counters) {
    crate::console::urgent_line(format_args!(
        "quell: {{\"event\":\"state\",\"cpu\":{cpu},\"doing\":\"{doing}\",\"pc\":\"{pc:#x}\",{counters}}}"
    ));
}

/// Reports that this CPU waited too long, with all CPUs' states, and ends the run. It allocates nothing.
pub fn waited_in_vain(milliseconds: u64) -> ! {
    let cpu = crate::arch::cpu::index();
    crate::console::urgent_line(format_args!(
        "quell: {{\"event\":\"watchdog\",\"cpu\":{cpu},\"waited_ms\":{milliseconds}}}"
    ));
    dump_cpus();
    exit(4);
}

/// Writes the state of every CPU, as memory contains it. After a wait, a CPU's last interrupt is that of the last
/// round.
pub fn dump_cpus() {
    for index in 0..cpu::count() {
        let cpu = cpu::cpu(index);
        let pc = cpu.last_pc.load(Ordering::Relaxed);
        state(index, cpu.doing().1, pc, &cpu.counters.read());
    }
}

/// Reports the counts of each CPU.
pub fn report_counters() {
    for index in 0..cpu::count() {
        event(&Event::Counters { cpu: index, counters: cpu::cpu(index).counters.read() });
    }
}

/// Ends the run: writes the `exit` event, and then switches off the machine.
///
/// The codes are: 0 if everything passed, 1 if a test failed, 2 for bad options, 3 for a panic, 4 for the watchdog.
pub fn exit(code: u8) -> ! {
    crate::console::urgent_line(format_args!("quell: {{\"event\":\"exit\",\"code\":{code}}}"));
    crate::arch::console::power_off(code)
}

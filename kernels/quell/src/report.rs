//! Reports events to the program that started the kernel.
//!
//! Each event is one line on the serial line, `quell: ` and a JSON object whose `event` names its kind. Other lines
//! are for people. The last event is `exit` with the code; a run without one has crashed or was killed.

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
    /// The first CPU is up.
    Boot {
        /// The architecture.
        arch: &'a str,
        /// Memory in megabytes.
        memory_mb: u64,
        /// Features of the processor that the kernel uses.
        present: Vec<&'static str>,
        /// Features that it would use and that are not there.
        absent: Vec<&'static str>,
    },
    /// All CPUs are up.
    Cpus {
        /// How many.
        started: usize,
    },
    /// One test has run.
    Test {
        /// Its name.
        name: &'a str,
        /// Whether it passed.
        passed: bool,
        /// The finding, for people.
        detail: String,
    },
    /// A workload has run.
    Workload {
        /// Its name.
        name: &'a str,
        /// The policy of the engine.
        policy: &'a str,
        /// On how many CPUs.
        cpus: usize,
        /// The name of its figure.
        metric: &'a str,
        /// The figure, in this machine's time; null if the run did not get that far.
        value: f64,
        /// How long the measured part took, in nanoseconds: with instructions counted, how many
        /// instructions all CPUs executed in it.
        window_ns: u64,
        /// The work done in it, in the workload's unit.
        done: u64,
        /// The counts of all CPUs in it.
        #[serde(flatten)]
        counters: Counters,
        /// The engine's counters in it, by name, without zeros.
        engine: BTreeMap<&'static str, u64>,
    },
    /// The counters of one CPU since it started.
    Counters {
        /// The CPU.
        cpu: usize,
        /// The counts.
        #[serde(flatten)]
        counters: Counters,
    },
    /// A round of a stress has ended.
    Progress {
        /// Rounds so far.
        rounds: u64,
        /// Operations of all CPUs so far.
        operations: u64,
        /// Digest of the operations chosen so far.
        digest: String,
        /// Frames that are free, those included that have a deferred flush.
        free_frames: u64,
        /// Seconds since it began.
        seconds: f64,
    },
    /// How tags were used.
    Tags {
        /// How often system-wide tags ran out.
        rollovers: u64,
        /// Context switches that kept a space's entries.
        kept: u64,
    },
    /// Something the run needed was refused.
    Failed {
        /// The reason.
        what: &'a str,
        /// The reason.
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

/// Reports the state of a CPU without allocating or waiting long: for panics, the watchdog and
/// non-maskable interrupts.
fn state(cpu: usize, doing: &str, pc: u64, counters: &Counters) {
    crate::console::urgent_line(format_args!(
        "quell: {{\"event\":\"state\",\"cpu\":{cpu},\"doing\":\"{doing}\",\"pc\":\"{pc:#x}\",{counters}}}"
    ));
}

/// Reports that this CPU has waited for too long, with the state of all, and ends the run; allocates
/// nothing.
pub fn waited_in_vain(milliseconds: u64) -> ! {
    let cpu = crate::arch::cpu::index();
    crate::console::urgent_line(format_args!(
        "quell: {{\"event\":\"watchdog\",\"cpu\":{cpu},\"waited_ms\":{milliseconds}}}"
    ));
    dump_cpus();
    exit(4);
}

/// Writes the state of every CPU, from memory: after a wait, its last interrupt is that of the last round.
pub fn dump_cpus() {
    for index in 0..cpu::count() {
        let cpu = cpu::cpu(index);
        let pc = cpu.last_pc.load(Ordering::Relaxed);
        state(index, cpu.doing_name(), pc, &cpu.counters.read());
    }
}

/// Reports the counts of each CPU.
pub fn report_counters() {
    for index in 0..cpu::count() {
        event(&Event::Counters {
            cpu: index,
            counters: cpu::cpu(index).counters.read(),
        });
    }
}

/// Reports a panic; allocates nothing.
pub fn panic(cpu: usize, info: &core::panic::PanicInfo<'_>) {
    crate::console::urgent_line(format_args!("panic on cpu {cpu}: {info}"));
}

/// Ends the run: the `exit` event, then the machine is switched off.
///
/// Codes: 0 all passed, 1 a test failed, 2 bad options, 3 a panic, 4 the watchdog.
pub fn exit(code: u8) -> ! {
    crate::console::urgent_line(format_args!(
        "quell: {{\"event\":\"exit\",\"code\":{code}}}"
    ));
    crate::arch::console::power_off(code)
}

//! The first process of a Linux that `quell versus linux` boots.
//!
//! It performs the workloads of `quell-workloads` from the source that quell's own kernel runs: [`linux`] implements
//! [`User`](quell_vm::User) by system calls, with one thread for each CPU. Only switching between processes has no
//! equivalent for a thread of Linux, so we wrote it separately ([`pingpong`]). [`setup`] creates the swap device and
//! the file system, [`counters`] reads the kernel's counters, and [`team`] starts the threads.
//!
//! It also runs third-party programs packed with it ([`programs`]), and the conformance suite and the stress
//! ([`conform`]), which visit other processes ([`visitor`]) and need the reason of a fault ([`faults`]).
//!
//! Jobs run one after the other, each in its own processes, so none inherits an address space. The clock is the
//! time-stamp counter. If the emulator counts instructions, a tick is one instruction executed by any of the CPUs.

mod conform;
mod control;
mod counters;
mod faults;
mod linux;
mod pingpong;
mod programs;
#[path = "../../src/versus/protocol.rs"]
mod protocol;
mod setup;
mod team;
mod visitor;

use anyhow::Context;
use protocol::{CONFORMANCE, Event, Job, PREFIX, STRESS};
use std::fs::File;
use std::io::Write;

fn main() {
    setup::file_systems();
    let mut serial = File::options().write(true).open("/dev/ttyS0").expect("a serial console");
    let code = match run(&mut serial) {
        Ok(()) => 0,
        Err(error) => {
            let what = "following the plan".into();
            let why = format!("{error:#}");
            say(&mut serial, &Event::Lacking { what, why });
            1
        }
    };
    say(&mut serial, &Event::Exit { code });
    setup::power_off();
}

fn run(serial: &mut File) -> anyhow::Result<()> {
    say(serial, &Event::Linux { release: setup::release()?, cpus: setup::cpus()? });
    for (what, result) in setup::devices() {
        if let Err(error) = result {
            let (what, why) = (what.into(), format!("{error:#}"));
            say(serial, &Event::Lacking { what, why });
        }
    }
    setup::wait_if_late()?;
    let plan =
        std::fs::read_to_string(format!("/{}", protocol::PLAN)).context("reading the plan")?;
    for (number, line) in plan.lines().enumerate() {
        let job: Job = serde_json::from_str(line).with_context(|| format!("job {number}"))?;
        if matches!(job.workload.as_str(), CONFORMANCE | STRESS) {
            let events = conform::perform(number, &job).unwrap_or_else(|error| {
                let why = format!("{error:#}");
                vec![Event::Failed { job: number, why }]
            });
            events.iter().for_each(|event| say(serial, event));
            continue;
        }
        let event = match team::perform(&job) {
            Ok(window) => Event::Done { job: number, window },
            Err(error) => Event::Failed { job: number, why: format!("{error:#}") },
        };
        say(serial, &event);
    }
    programs::perform(|event| say(serial, event))?;
    if let Some(event) = counters::engine() {
        say(serial, &event);
    }
    Ok(())
}

/// Writes an event as one line and waits until it's sent. Otherwise the interrupts of a line in transit would fall into
/// the next job's window.
fn say(serial: &mut File, event: &Event) {
    let json = serde_json::to_string(event).expect("events hold only text and numbers");
    // Without a console we can't report anything.
    let _ = serial.write_all(format!("{PREFIX}{json}\n").as_bytes());
    let _ = rustix::termios::tcdrain(serial);
}

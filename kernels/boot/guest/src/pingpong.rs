//! Processes that alternate on one CPU: the one workload that needs its own code on Linux.
//!
//! The processes form a ring on CPU 0. In its turn, each reads its pages and passes the CPU to the next, in one of two
//! ways ([`Handover`]). Every turn is checked to be in order.

use crate::control::{Control, pin};
use crate::linux::{Linux, ticks};
use crate::protocol::{Handover, Window};
use anyhow::{Context, bail};
use quell::PageSize;
use quell_vm::{Backing, Call, Mark, Protection, User};
use quell_workloads::Workload;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Rounds before the measured ones, as many as the workload has.
const WARM_UP: u64 = 2;

/// The way in which the processes of a ring pass the CPU on. Created before the processes.
pub enum Ring {
    /// By `sched_yield`.
    Yield,
    /// By these eventfds, one for each process.
    Eventfds(Vec<File>),
}

impl Ring {
    /// Creates a ring for this many processes.
    pub fn new(handover: Handover, processes: usize) -> anyhow::Result<Self> {
        let one = |_| eventfd(0, EventfdFlags::CLOEXEC).map(File::from);
        Ok(match handover {
            Handover::Yield => Ring::Yield,
            Handover::Eventfd => {
                let all: Result<_, _> = (0..processes).map(one).collect();
                Ring::Eventfds(all.context("an eventfd")?)
            }
        })
    }

    /// Takes a place in the ring once all processes are ready, and returns it.
    ///
    /// Processes of equal real-time priority run in the order in which they became runnable. So their places have the
    /// order in which they notice that all are ready.
    fn join(&self, control: &Control, process: usize, all: u64) -> anyhow::Result<u64> {
        if let Ring::Eventfds(_) = self {
            return Ok(process as u64);
        }
        // SAFETY: the parameter outlives the call, which rustix doesn't have.
        let result = unsafe {
            let priority = libc::sched_param { sched_priority: 1 };
            libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority)
        };
        if result != 0 {
            bail!("real-time priority: {}", std::io::Error::last_os_error());
        }
        // Sleep until all processes have the priority, then stay runnable until all are.
        control.ready.fetch_add(1, SeqCst);
        while control.ready.load(SeqCst) < all {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.awake.fetch_add(1, SeqCst);
        while control.awake.load(SeqCst) < all {
            std::thread::yield_now();
        }
        Ok(control.places.fetch_add(1, SeqCst))
    }

    /// Passes the CPU to the next process.
    fn give(&self, place: u64) -> std::io::Result<()> {
        match self {
            Ring::Yield => {
                std::thread::yield_now();
                Ok(())
            }
            Ring::Eventfds(files) => {
                (&files[(place as usize + 1) % files.len()]).write_all(&1u64.to_ne_bytes())
            }
        }
    }

    /// Waits for this process's turn.
    fn wait(&self, place: u64) -> std::io::Result<()> {
        match self {
            // A process waits as long as it doesn't run.
            Ring::Yield => Ok(()),
            Ring::Eventfds(files) => (&files[place as usize]).read_exact(&mut [0; 8]),
        }
    }
}

/// Runs a process in its place of the ring.
pub fn run(
    workload: &Workload,
    traced: bool,
    ring: &Ring,
    control: &'static Control,
    process: usize,
) -> anyhow::Result<Option<Window>> {
    pin(0)?;
    let parameter = |name: &str| {
        workload.get(name).with_context(|| format!("{} has no parameter {name}", workload.name()))
    };
    let (all, count) = (parameter("processes")?, parameter("pages")?);
    let user = Linux::new(control, 0, 1, process, traced);
    let pages = map(&user, count)?;
    // We round up, so that all processes have the same number of turns.
    let rounds = parameter("switches")?.div_ceil(all);
    let place = ring.join(control, process, all)?;
    let mut begin = 0;
    for round in 0..WARM_UP + rounds {
        if (place, round) != (0, 0) {
            ring.wait(place)?;
        }
        if place == 0 && round == WARM_UP {
            user.mark(Mark::Begin);
            begin = ticks();
        }
        if control.turns.fetch_add(1, SeqCst) % all != place {
            control.out_of_turn.fetch_add(1, SeqCst);
        }
        for page in 0..count {
            user.read(pages + (page << 12));
        }
        ring.give(place)?;
    }
    // The first process closes the window in its next turn, before it passes the CPU on. Otherwise the scheduler would
    // decide whether we measure the end of a process.
    ring.wait(place)?;
    let end = ticks();
    if place != 0 {
        ring.give(place)?;
        return Ok(None);
    }
    user.mark(Mark::End);
    ring.give(place)?;
    match control.out_of_turn.load(SeqCst) {
        0 => user.recorder.into_inner().window(rounds * all, end - begin).map(Some),
        count => bail!("{count} turns were out of order"),
    }
}

/// Maps this process's pages and touches them. All processes have them at the same address.
fn map(user: &Linux<'_>, pages: u64) -> anyhow::Result<u64> {
    if pages == 0 {
        return Ok(0);
    }
    let address = user
        .call(Call::Map {
            address: None,
            bytes: pages << 12,
            protection: Protection::READ_WRITE,
            backing: Backing::Anonymous { page: PageSize::Base },
        })
        .context("mapping memory")?;
    for page in 0..pages {
        user.write(address + (page << 12), page);
    }
    Ok(address)
}

//! Processes that alternate on one CPU: the one workload that needs its own code on Linux.
//!
//! The processes form a ring on CPU 0. In its turn, each reads its pages and passes the CPU to the next, in one of two
//! ways ([`Handover`]). Every turn is checked to be in order.

use crate::control::{Control, Window, pin};
use crate::counters::Recorder;
use crate::linux::{Linux, ticks};
use crate::protocol::Handover;
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

/// How the processes of a ring hand the CPU over. Made before the processes are.
pub enum Ring {
    /// By `sched_yield`.
    Yield,
    /// By these eventfds, one each.
    Eventfds(Vec<File>),
}

impl Ring {
    /// A ring of that many processes.
    ///
    /// # Errors
    /// If the kernel refuses an eventfd.
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

    /// Takes a place in the ring once all processes are there; returns which.
    ///
    /// Processes of equal real-time priority run in the order in which they became runnable, so
    /// their places are those in which they find that all are.
    fn join(&self, control: &Control, process: usize, all: u64) -> anyhow::Result<u64> {
        if let Ring::Eventfds(_) = self {
            return Ok(process as u64);
        }
        // SAFETY: the parameter outlives the call, which rustix does not have.
        let result = unsafe {
            let priority = libc::sched_param { sched_priority: 1 };
            libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority)
        };
        if result != 0 {
            bail!("real-time priority: {}", std::io::Error::last_os_error());
        }
        // Asleep until all processes have the priority, then runnable until all are.
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

    /// Hands the CPU to the next.
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

    /// Waits for the turn.
    fn wait(&self, place: u64) -> std::io::Result<()> {
        match self {
            // A process that does not run waits.
            Ring::Yield => Ok(()),
            Ring::Eventfds(files) => (&files[place as usize]).read_exact(&mut [0; 8]),
        }
    }
}

/// Runs a process in its place of the ring.
///
/// # Errors
/// The operation that failed, or that turns were out of order.
pub fn run(
    workload: &Workload,
    traced: bool,
    ring: &Ring,
    control: &'static Control,
    process: usize,
) -> anyhow::Result<Option<Window>> {
    pin(0)?;
    let parameter = |name: &str| {
        workload
            .get(name)
            .with_context(|| format!("{} has no parameter {name}", workload.name()))
    };
    let (all, count) = (parameter("processes")?, parameter("pages")?);
    let user = Linux {
        control,
        cpu: 0,
        cpus: 1,
        process,
        recorder: Recorder::new(traced).into(),
    };
    let pages = map(&user, count)?;
    // Rounded up, so that all have as many turns.
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
    // The first process closes the window in its next turn before it passes the CPU on. Otherwise the scheduler would
    // decide whether the end of a process is measured.
    ring.wait(place)?;
    let end = ticks();
    if place != 0 {
        ring.give(place)?;
        return Ok(None);
    }
    user.mark(Mark::End);
    ring.give(place)?;
    match control.out_of_turn.load(SeqCst) {
        0 => Window::new(rounds * all, end - begin, user.recorder.into_inner()).map(Some),
        count => bail!("{count} turns were out of order"),
    }
}

/// Maps this process's pages and touches them; all processes have them at the same place.
fn map(user: &Linux<'_>, pages: u64) -> anyhow::Result<u64> {
    if pages == 0 {
        return Ok(0);
    }
    let address = user
        .call(Call::Map {
            address: None,
            bytes: pages << 12,
            protection: Protection::READ_WRITE,
            backing: Backing::Anonymous {
                page: PageSize::Base,
            },
        })
        .context("mapping memory")?;
    for page in 0..pages {
        user.write(address + (page << 12), page);
    }
    Ok(address)
}

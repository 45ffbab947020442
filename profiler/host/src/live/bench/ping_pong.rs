//! Plays ping-pong with eventfds between two forked processes on one CPU (S2).
//!
//! They touch 0 or 512 pages each turn.
//!
//! Each wake-up is a context switch to another address space. Without tags every switch flushes, and the 512 pages miss
//! again each turn; with tags they stay.
//!
//! A second form has no switch of address space: two threads of one process.
//!
//! Not shown: the cost with nopcid, which needs a reboot.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_threads::cores;
use rustix::event::{EventfdFlags, eventfd};

use super::super::lab::{Halt, Lab, RowSpec};
use crate::memory::{Mapping, page_size};
use crate::process::Child;

/// A counter that blocks its reader while it's zero.
struct EventFd(OwnedFd);

impl EventFd {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Adds one; wakes the reader.
    fn signal(&self) -> io::Result<()> {
        rustix::io::write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Waits until the counter isn't zero, and clears it.
    fn wait(&self) -> io::Result<()> {
        rustix::io::read(&self.0, &mut [0; 8])?;
        Ok(())
    }
}

/// A small number, so that a sample ends before the load of the host changes.
const ROUNDS: u64 = 50;

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    lab.split(4);
    let page = page_size();
    let op = "round trip";
    for pages in [0usize, 512] {
        // The memory is private: after the fork both processes have 512 pages of their own.
        let map = Mapping::base_pages(pages.max(1))?;
        map.touch(page, 1);
        let touch = move |map: &Mapping| {
            if pages > 0 {
                map.touch(page, 2);
            }
        };
        let single = format!("processes/{pages}pages");
        {
            let (ping, pong) = (EventFd::new()?, EventFd::new()?);
            // SAFETY: no other thread of this process exists between benchmarks, and the child only makes system calls
            // and touches memory.
            let child = unsafe {
                Child::fork(|| {
                    while ping.wait().is_ok() {
                        touch(&map);
                        if pong.signal().is_err() {
                            break;
                        }
                    }
                })
            }?;
            let plan = RowSpec::single(&single, op).beside(&child);
            let gone = || child.has_ended();
            lab.row(plan, || round_trips(&ping, &pong, || touch(&map), gone))?;
        }
        let (ping, pong) = (EventFd::new()?, EventFd::new()?);
        let (done, cpu) = (AtomicBool::new(false), lab.cpus[0]);
        std::thread::scope(|scope| {
            let partner = scope.spawn(|| {
                let _ = cores::pin(&[cpu]);
                while ping.wait().is_ok() && !done.load(Ordering::Acquire) {
                    touch(&map);
                    if pong.signal().is_err() {
                        break;
                    }
                }
            });
            let plan = RowSpec::batched(format!("threads/{pages}pages"), &single, op);
            let gone = || partner.is_finished();
            let result = lab.row(plan, || round_trips(&ping, &pong, || touch(&map), gone));
            done.store(true, Ordering::Release);
            ping.signal()?;
            result
        })?;
    }
    Ok(())
}

fn round_trips(
    ping: &EventFd,
    pong: &EventFd,
    touch: impl Fn(),
    gone: impl Fn() -> bool,
) -> io::Result<u64> {
    if gone() {
        return Err(io::Error::other("the partner has ended"));
    }
    for _ in 0..ROUNDS {
        ping.signal()?;
        touch();
        pong.wait()?;
    }
    Ok(ROUNDS)
}

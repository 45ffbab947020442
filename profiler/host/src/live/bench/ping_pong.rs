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
use std::sync::atomic::{AtomicBool, Ordering};

use quell_threads::cores;
use rustix::mm::Advice;

use super::super::lab::{Halt, Lab, RowSpec};
use super::super::sys::EventFd;
use crate::memory::{Mapping, page_size};
use crate::process::Child;

/// A small number, so that a sample ends before the load of the host changes.
const ROUNDS: u64 = 50;

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    lab.split(4);
    let page = page_size();
    let op = "round trip";
    for pages in [0usize, 512] {
        // The memory is private: after the fork both processes have 512 pages of their own.
        let map = Mapping::anonymous(pages.max(1) * page)?;
        let _ = map.advise(0, map.len(), Advice::LinuxNoHugepage);
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
            let plan =
                RowSpec { children: std::slice::from_ref(&child), ..RowSpec::single(&single, op) };
            lab.row(
                plan,
                || Ok(()),
                || round_trips(&ping, &pong, || touch(&map), || child.has_ended()),
            )?;
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
            let result = lab.row(
                plan,
                || Ok(()),
                || round_trips(&ping, &pong, || touch(&map), || partner.is_finished()),
            );
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

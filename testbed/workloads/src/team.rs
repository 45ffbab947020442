//! Coordinates the CPUs of a workload: barriers, a measured window, failure.
//!
//! For all coordination we use the control words of [`User::shared`]. So it works on the machine in software and in a
//! kernel's user mode, and it touches no measured memory.
//!
//! A CPU that fails sets a word; the others then leave their barriers and loops, and end too.
//!
//! A barrier that some CPUs can't reach, or a window that no CPU can close, is a failure. If the machine keeps a
//! [tally](User::tally), a waiting CPU detects at once that all others wait or have ended. We read the tally first and
//! then the CPU's word. CPUs that had ended, or stood by in an open window, still do, and those at this barrier can't
//! have left it. So a CPU that could still arrive is never counted as waiting.

use crate::script::StatementError;
use core::cell::Cell;
use quell_vm::{Call, Error, Fault, Mark, User};

/// The number of control words.
pub const WORDS: usize = 64;

/// The purpose of each control word.
pub(crate) mod word {
    /// Arrivals at barriers over the whole run.
    pub const ARRIVALS: usize = 0;
    /// Not zero: the measurement is over, or a CPU failed.
    pub const STOP: usize = 1;
    /// Not zero: a CPU failed.
    pub const FAILED: usize = 2;
    /// The start of the measured window, in nanoseconds.
    pub const BEGIN: usize = 3;
    /// The end of the measured window.
    pub const END: usize = 4;
    /// The work done in it, in the workload's unit.
    pub const DONE: usize = 5;
    /// The first word that a workload may use freely.
    pub const FREE: usize = 8;
}

/// The CPUs counted by [`User::tally`]: ended programs in the upper half, standby in the lower.
mod tally {
    pub const ENDED: u64 = 1 << 32;
    pub const STANDS_BY: u64 = 1;

    /// Returns the numbers of CPUs that have ended and that stand by.
    pub fn of(count: u64) -> [u64; 2] {
        [count >> 32, count & (ENDED - 1)]
    }
}

/// The reason why a workload failed on a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// A system call was refused.
    #[error("line {line}: {what}: {error}")]
    Call {
        /// The line of the workload's file.
        line: u32,
        /// The first word of the statement.
        what: &'static str,
        /// The reason.
        error: Error,
    },
    /// An access failed.
    #[error("line {line}: {what}, address {address:#x}: {fault}")]
    Access {
        /// The line of the workload's file.
        line: u32,
        /// The first word of the statement.
        what: &'static str,
        /// The address.
        address: u64,
        /// The reason.
        fault: Fault,
    },
    /// A statement couldn't be performed.
    #[error("line {line}: {what}: {why}")]
    Value {
        /// The line of the workload's file.
        line: u32,
        /// The first word of the statement.
        what: &'static str,
        /// The reason.
        why: StatementError,
    },
    /// Another CPU failed and reports the reason.
    #[error("another CPU failed")]
    Elsewhere,
}

/// The reason why a statement failed, before its line is known.
pub(crate) enum StopReason {
    Invalid(StatementError),
    Refused(Error),
    Faulted(u64, Fault),
    Elsewhere,
}

impl<T: Into<StatementError>> From<T> for StopReason {
    fn from(wrong: T) -> Self {
        StopReason::Invalid(wrong.into())
    }
}

/// One CPU's part in the team.
pub(crate) struct Team<'u, U: ?Sized> {
    pub user: &'u U,
    /// The number of CPUs that meet at a barrier.
    members: Cell<u64>,
    /// The arrivals at all barriers crossed so far.
    crossed: Cell<u64>,
    /// Whether this CPU has reached the start and the end of the window.
    window: Cell<[bool; 2]>,
}

impl<'u, U: User + ?Sized> Team<'u, U> {
    pub fn new(user: &'u U) -> Self {
        Team {
            user,
            members: Cell::new(user.cpus() as u64),
            crossed: Cell::new(0),
            window: Cell::new([false; 2]),
        }
    }

    /// Returns whether this CPU performs the work of one CPU.
    pub fn leads(&self) -> bool {
        self.user.cpu() == 0
    }

    /// Removes this many CPUs from the next barrier on. All others must call this between the same two barriers.
    /// Returns `false`, without effect, if this CPU would be among the removed.
    pub fn without(&self, others: u64) -> bool {
        let left = self.members.get().checked_sub(others);
        let left = left.filter(|&left| left > 0);
        left.inspect(|&left| self.members.set(left)).is_some()
    }

    /// Records that this CPU reached the window's start or end. Returns whether it did so once and in order.
    pub fn turn(&self, ends: bool) -> bool {
        let [opened, ended] = self.window.get();
        self.window.set([true, ended || ends]);
        opened == ends && !ended
    }

    /// Waits until every CPU has reached this point.
    pub fn barrier(&self) -> Result<(), StopReason> {
        let crossed = self.crossed.get();
        let target = crossed + self.members.get();
        self.crossed.set(target);
        self.user.add_shared(word::ARRIVALS, 1);
        let mut pause = 100;
        loop {
            let [ended, stand_by] = tally::of(self.user.tally(0));
            let arrived = self.user.shared(word::ARRIVALS);
            if arrived >= target {
                return Ok(());
            }
            if self.failed() {
                return Err(StopReason::Elsewhere);
            }
            let others = self.user.cpus() as u64 - (arrived - crossed);
            if others == ended || (others == ended + stand_by && !self.stopped()) {
                return Err(StatementError::Barrier.into());
            }
            self.user.wait(pause);
            pause = (2 * pause).min(10_000);
        }
    }

    /// Waits for the first CPU and its team, then opens the measured window.
    pub fn begin(&self) -> Result<(), StopReason> {
        self.barrier()?;
        if self.leads() {
            self.open();
        }
        self.barrier()
    }

    /// Opens the measured window, whatever the others do. Only the first CPU calls this.
    pub fn open(&self) {
        self.user.mark(Mark::Begin);
        self.user.set_shared(word::BEGIN, self.user.now());
    }

    /// Closes the measured window once every CPU has reached this point.
    pub fn end(&self) -> Result<(), StopReason> {
        self.barrier()?;
        if self.leads() {
            self.close();
        }
        Ok(())
    }

    /// Closes the measured window now. Only the first CPU calls this.
    pub fn close(&self) {
        self.user.set_shared(word::END, self.user.now());
        self.user.mark(Mark::End);
        self.user.set_shared(word::STOP, 1);
    }

    /// Keeps a CPU in the process without work. It computes or sleeps, and checks every `nanoseconds` whether the
    /// measurement is over.
    pub fn bystand(&self, nanoseconds: u64, asleep: bool) -> Result<(), StopReason> {
        self.user.tally(tally::STANDS_BY);
        let result = self.stand_by(nanoseconds, asleep);
        self.user.tally(tally::STANDS_BY.wrapping_neg());
        result
    }

    fn stand_by(&self, nanoseconds: u64, asleep: bool) -> Result<(), StopReason> {
        loop {
            let [ended, stand_by] = tally::of(self.user.tally(0));
            if self.stopped() {
                return Ok(());
            }
            if ended + stand_by == self.user.cpus() as u64 {
                return Err(StatementError::Unclosed.into());
            }
            if asleep {
                let until = self.user.now() + nanoseconds;
                let sleep = self.user.call(Call::Idle { until });
                sleep.map_err(StopReason::Refused)?;
            } else {
                self.user.wait(nanoseconds);
            }
        }
    }

    /// Records that this CPU's program has ended.
    pub fn ends(&self) {
        self.user.tally(tally::ENDED);
    }

    /// Records that this CPU has failed.
    pub fn fail(&self) {
        self.user.set_shared(word::FAILED, 1);
        self.user.set_shared(word::STOP, 1);
    }

    fn failed(&self) -> bool {
        self.user.shared(word::FAILED) != 0
    }

    /// Returns whether the measurement is over.
    pub fn stopped(&self) -> bool {
        self.user.shared(word::STOP) != 0
    }
}

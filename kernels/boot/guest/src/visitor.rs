//! Implements [`User`] for programs that fork or visit other processes: those of the conformance suite.
//!
//! A thread of Linux can't move to another process. Instead, each process that a program visits is a child on the same
//! CPU, which performs accesses and calls on request. We pass requests in shared memory. Each visit consists of two
//! real switches between address spaces.

use crate::control::shared;
use crate::faults;
use crate::linux::{self, Linux};
use crate::setup;
use quell_vm::{Call, Error, Fault, Mark, User};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use rustix::thread::futex;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

/// The most processes that can be visited at the same time.
const MOST: usize = 64;

/// A request to a visited process.
#[derive(Clone, Copy)]
enum VisitRequest {
    Read(u64),
    Write(u64, u64),
    Call(Call),
    End,
}

/// The reply to a request.
#[derive(Clone, Copy)]
enum VisitReply {
    Access(Result<u64, Fault>),
    Call(Result<u64, Error>),
}

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

/// Passes requests to a process. `turn` defines the owner of all other fields: the CPU while it's [`IDLE`] or
/// [`ANSWERED`], and the process while it's [`ASKED`].
struct Mailbox {
    turn: AtomicU32,
    /// The process that has this mailbox; 0 if none has, -1 if one is being created.
    process: AtomicI32,
    ask: UnsafeCell<VisitRequest>,
    answer: UnsafeCell<VisitReply>,
}

/// The processes of a job, in memory that they all share.
pub struct JobProcesses {
    boxes: [Mailbox; MOST],
}

// SAFETY: [`Mailbox`] defines the thread that owns a cell's content.
unsafe impl Sync for JobProcesses {}

impl JobProcesses {
    /// Creates mailboxes for processes, shared with every process created from now on.
    pub fn new() -> anyhow::Result<&'static JobProcesses> {
        let boxes = std::array::from_fn(|_| Mailbox {
            turn: AtomicU32::new(IDLE),
            process: AtomicI32::new(0),
            ask: UnsafeCell::new(VisitRequest::End),
            answer: UnsafeCell::new(VisitReply::Access(Ok(0))),
        });
        shared(JobProcesses { boxes })
    }
}

/// Sleeps while the word has this value. May also wake up for no reason.
fn sleep_while(word: &AtomicU32, value: u32) {
    // A process that wakes up checks the word again.
    let _ = futex::wait(word, futex::Flags::empty(), value, None);
}

fn pass_on(word: &AtomicU32, value: u32) {
    word.store(value, SeqCst);
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

impl Mailbox {
    /// Sends a request to the process, and waits for the reply.
    fn ask(&self, ask: VisitRequest) -> VisitReply {
        // SAFETY: it's this CPU's turn.
        unsafe { *self.ask.get() = ask };
        pass_on(&self.turn, ASKED);
        while self.turn.load(SeqCst) == ASKED {
            sleep_while(&self.turn, ASKED);
        }
        // SAFETY: the turn isn't `ASKED` any more, so this CPU owns the reply.
        unsafe { *self.answer.get() }
    }

    /// Makes the process access its memory.
    fn access(&self, ask: VisitRequest) -> Result<u64, Fault> {
        match self.ask(ask) {
            VisitReply::Access(result) => result,
            VisitReply::Call(_) => unreachable!("an access was requested"),
        }
    }
}

/// One CPU of a job whose programs visit other processes.
pub struct Visitor<'c> {
    home: Linux<'c>,
    others: &'static JobProcesses,
    /// The process that this CPU is in: 0 at home, otherwise a mailbox's number plus 1.
    at: Cell<u32>,
}

impl<'c> Visitor<'c> {
    /// Creates a CPU that is at home.
    pub fn new(home: Linux<'c>, others: &'static JobProcesses) -> Self {
        Visitor { home, others, at: Cell::new(0) }
    }

    /// Returns the mailbox of a process.
    fn other(&self, process: u32) -> Result<&'static Mailbox, Error> {
        let place = (process as usize).checked_sub(1).ok_or(Error::NoProcess)?;
        let mailbox = self.others.boxes.get(place).ok_or(Error::NoProcess)?;
        match mailbox.process.load(SeqCst) {
            ..=0 => Err(Error::NoProcess),
            _ => Ok(mailbox),
        }
    }

    /// Returns the mailbox of the visited process, or `None` at home.
    fn visited(&self) -> Option<&'static Mailbox> {
        match self.at.get() {
            0 => None,
            process => Some(self.other(process).expect("no thread ends a process that is visited")),
        }
    }

    /// Creates a process: a copy of this one, or one without the workload's memory.
    fn start(&self, copy: bool) -> Result<u64, Error> {
        let free = |mailbox: &Mailbox| {
            let taken = mailbox.process.compare_exchange(0, -1, SeqCst, SeqCst);
            taken.is_ok()
        };
        let place = self.others.boxes.iter().position(free);
        let place = place.ok_or(Error::OutOfMemory)?;
        let mailbox = &self.others.boxes[place];
        mailbox.turn.store(IDLE, SeqCst);
        // SAFETY: the child makes system calls, and touches only memory that is its own or shared with processes that
        // don't write it.
        match unsafe { libc::fork() } {
            -1 => {
                mailbox.process.store(0, SeqCst);
                Err(Error::OutOfMemory)
            }
            0 => {
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                if !copy {
                    linux::forget_all();
                }
                self.serve(mailbox)
            }
            process => {
                mailbox.process.store(process, SeqCst);
                Ok(place as u64 + 1)
            }
        }
    }

    /// Serves the requests of its CPU until this process ends.
    fn serve(&self, mailbox: &Mailbox) -> ! {
        loop {
            loop {
                match mailbox.turn.load(SeqCst) {
                    ASKED => break,
                    turn => sleep_while(&mailbox.turn, turn),
                }
            }
            // SAFETY: it's this process's turn.
            let ask = unsafe { *mailbox.ask.get() };
            let answer = match ask {
                VisitRequest::Read(address) => VisitReply::Access(faults::load(address)),
                VisitRequest::Write(address, value) => {
                    VisitReply::Access(faults::store(address, value).map(|()| 0))
                }
                VisitRequest::Call(call) => VisitReply::Call(self.home.call(call)),
                VisitRequest::End => VisitReply::Call(Ok(0)),
            };
            // SAFETY: it's this process's turn until it passes the turn on.
            unsafe { *mailbox.answer.get() = answer };
            pass_on(&mailbox.turn, ANSWERED);
            if matches!(ask, VisitRequest::End) {
                // SAFETY: ends this copy without running exit handlers of the original.
                unsafe { libc::_exit(0) };
            }
        }
    }

    fn end(&self, process: u32) -> Result<u64, Error> {
        let mailbox = self.other(process)?;
        mailbox.ask(VisitRequest::End);
        let _ = waitpid(Pid::from_raw(mailbox.process.load(SeqCst)), WaitOptions::empty());
        mailbox.process.store(0, SeqCst);
        Ok(0)
    }
}

impl User for Visitor<'_> {
    fn cpu(&self) -> usize {
        self.home.cpu()
    }
    fn cpus(&self) -> usize {
        self.home.cpus()
    }
    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        match self.visited() {
            None => faults::load(address),
            Some(other) => other.access(VisitRequest::Read(address)),
        }
    }
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        match self.visited() {
            None => faults::store(address, value),
            Some(other) => other.access(VisitRequest::Write(address, value)).map(|_| ()),
        }
    }
    fn call(&self, call: Call) -> Result<u64, Error> {
        match (call, self.visited()) {
            (Call::Enter { process: 0 }, _) => {
                self.at.set(0);
                Ok(0)
            }
            (Call::Enter { process }, _) => {
                self.other(process)?;
                self.at.set(process);
                Ok(0)
            }
            (Call::Fork, None) => self.start(true),
            (Call::Spawn, None) => self.start(false),
            (Call::Exit { process }, None) => self.end(process),
            (Call::Fork | Call::Spawn | Call::Exit { .. }, Some(_)) => Err(Error::BadCall),
            (Call::Reclaim { pages }, _) => Ok(setup::reclaim(4096 * pages)),
            // Only Linux knows the pages that weren't used lately. It demotes by itself, or it doesn't.
            (Call::Demote { .. }, _) => Ok(0),
            (call, None) => self.home.call(call),
            (call, Some(other)) => match other.ask(VisitRequest::Call(call)) {
                VisitReply::Call(result) => result,
                VisitReply::Access(_) => unreachable!("a call was requested"),
            },
        }
    }
    fn compute(&self, nanoseconds: u64) {
        self.home.compute(nanoseconds);
    }
    fn now(&self) -> u64 {
        self.home.now()
    }
    fn mark(&self, mark: Mark) {
        self.home.mark(mark);
    }
    fn shared(&self, index: usize) -> u64 {
        self.home.shared(index)
    }
    fn set_shared(&self, index: usize, value: u64) {
        self.home.set_shared(index, value);
    }
    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.home.add_shared(index, value)
    }
}

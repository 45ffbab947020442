//! Judges whether a call succeeds, or is refused, for a reason.
//!
//! An error needs a reason that held at some moment of the call. A call succeeds only if no reason to refuse it held
//! during the whole call.

use super::{AbstractMachine, CpuAction, Moment, OPEN, Operation, Verdict, expect, pages};
use crate::contract::Clause;
use crate::machine::USER_END;
use crate::page_cache::MAX_PAGES;
use crate::syscall::{Backing, Call, Error, FileId, ProcessId};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use quell::{PAGE_BYTES, PageSize};

/// The moments at which the calls that made and ended a process returned.
#[derive(Clone, Copy, Debug)]
struct Life {
    made: Moment,
    ended: Moment,
}

/// The processes and files that calls have made, and the process that each CPU runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    processes: BTreeMap<ProcessId, Life>,
    files: BTreeMap<FileId, Moment>,
    /// `None` if unknown.
    running: Vec<Option<ProcessId>>,
    /// Whether pages larger than a base page may exist. To split one takes memory.
    large: bool,
}

impl Known {
    pub(super) fn reset(&mut self, cpus: usize, first: ProcessId) {
        *self = Known::default();
        let life = Life { made: 0, ended: OPEN };
        self.processes.insert(first, life);
        self.running.resize(cpus, None);
    }

    /// Records that a call in a process has returned.
    pub(super) fn returns(
        &mut self,
        cpu: usize,
        process: ProcessId,
        (call, result): (Call, Result<u64, Error>),
        now: Moment,
    ) {
        let life = Life { made: now, ended: OPEN };
        match (call, result) {
            (Call::Enter { process: entered }, Ok(_)) => self.running[cpu] = Some(entered),
            (Call::Enter { .. }, Err(_)) => self.running[cpu] = Some(process),
            (Call::Spawn | Call::Fork, Ok(id)) => {
                // Another call may have ended it before this one returned.
                self.processes.entry(id as ProcessId).or_insert(life);
            }
            (Call::Exit { process }, Ok(_)) => {
                self.processes.entry(process).or_insert(life).ended = now;
            }
            (Call::Create { .. }, Ok(file)) => {
                self.files.insert(file as FileId, now);
            }
            _ => {}
        }
    }
}

/// Returns the range of addresses that a call changes or reads.
fn range(call: Call) -> Option<(u64, u64)> {
    match call {
        Call::Map { address, bytes, .. } => Some((address.unwrap_or(0), bytes)),
        Call::Unmap { address, bytes }
        | Call::Protect { address, bytes, .. }
        | Call::Discard { address, bytes }
        | Call::PageOut { address, bytes }
        | Call::Remap { address, bytes, .. }
        | Call::Migrate { address, bytes, .. } => Some((address, bytes)),
        _ => None,
    }
}

/// Returns the file that a call needs, and an offset in it that must be a multiple of the second number.
fn file(call: Call) -> Option<(FileId, u64, u64)> {
    match call {
        Call::Map { backing, .. } => match backing {
            Backing::Shared { file, offset } | Backing::Private { file, offset } => {
                Some((file, offset, PAGE_BYTES))
            }
            Backing::Anonymous { .. } => None,
        },
        Call::Write { file, offset, .. } | Call::Read { file, offset } => Some((file, offset, 8)),
        Call::Truncate { file, .. } | Call::Sync { file } => Some((file, 0, 8)),
        _ => None,
    }
}

/// Returns the process that a call enters or ends.
fn wanted(call: Call) -> Option<ProcessId> {
    match call {
        Call::Enter { process } | Call::Exit { process } => Some(process),
        _ => None,
    }
}

/// Returns whether a range of addresses and bytes is empty, or no program may map it.
fn is_outside((address, bytes): (u64, u64)) -> bool {
    let end = address.checked_add(bytes);
    bytes == 0 || end.is_none_or(|end| end > USER_END.address())
}

/// Returns whether the arguments alone are a reason for an error.
fn is_malformed(call: Call, error: Error) -> bool {
    let target = match call {
        Call::Remap { bytes, to, .. } => to.map(|to| (to, bytes)),
        _ => None,
    };
    let mut ranges = range(call).into_iter().chain(target);
    match error {
        Error::Unaligned => {
            ranges.any(|(address, _)| !address.is_multiple_of(PAGE_BYTES))
                || file(call).is_some_and(|(_, offset, unit)| !offset.is_multiple_of(unit))
        }
        Error::BadRange => match call {
            Call::Collapse { address } => address >= USER_END.address(),
            Call::Create { bytes } | Call::Truncate { bytes, .. } => bytes > MAX_PAGES * PAGE_BYTES,
            Call::Write { offset, .. } | Call::Read { offset, .. } => {
                offset >= MAX_PAGES * PAGE_BYTES
            }
            _ => ranges.any(is_outside),
        },
        Error::Overlap => match (range(call), target) {
            (Some(from), Some(to)) if !is_outside(from) && !is_outside(to) => {
                let (from, to, bytes) = (from.0, to.0, from.1);
                let bytes = bytes.next_multiple_of(PAGE_BYTES);
                from < to + bytes && to < from + bytes
            }
            _ => false,
        },
        _ => false,
    }
}

/// Returns the first page and the page behind the last one that must be mapped for the call to succeed.
fn required(call: Call) -> Option<core::ops::Range<u64>> {
    match call {
        Call::Map { .. } | Call::Unmap { .. } => None,
        Call::Collapse { address } => {
            let first = (address / PAGE_BYTES) & !(PageSize::Large.pages() - 1);
            Some(first..first + 1)
        }
        _ => range(call).map(|(address, bytes)| pages(address, bytes)),
    }
}

impl AbstractMachine {
    /// Judges whether a CPU's call has a reason to succeed, or to fail with this error.
    pub(super) fn judge_refusal(
        &self,
        cpu: usize,
        call: Call,
        result: Result<u64, Error>,
    ) -> Verdict {
        let Some(by) = self.operations[cpu].as_ref().filter(|_| !self.lost) else { return Ok(()) };
        match result {
            Err(error) => {
                let account = || format!("{call:x?} is refused without a reason: {error}");
                expect(self.may_refuse(cpu, by, call, error), Clause::Misuse, account)
            }
            Ok(value) => {
                for error in Error::ALL {
                    let account = || format!("{call:x?} succeeds although: {error}");
                    expect(!self.must_refuse(cpu, by, call, error), Clause::Misuse, account)?;
                }
                let account = || format!("{call:x?} returns {value:#x}");
                expect(self.may_return(by, call, value), Clause::Misuse, account)
            }
        }
    }

    fn may_refuse(&self, cpu: usize, by: &Operation, call: Call, error: Error) -> bool {
        let may_lack = |page| self.areas(by.process, page, by.begun).contains(&None);
        match error {
            Error::Unaligned | Error::BadRange | Error::Overlap => is_malformed(call, error),
            Error::NotMapped => required(call).is_some_and(|mut pages| pages.any(may_lack)),
            Error::OutOfMemory => match call {
                // To split a page takes memory.
                Call::Map { .. }
                | Call::Unmap { .. }
                | Call::Protect { .. }
                | Call::Discard { .. }
                | Call::PageOut { .. } => self.known.large,
                Call::Truncate { bytes, .. } => !bytes.is_multiple_of(PAGE_BYTES),
                Call::Remap { .. }
                | Call::Collapse { .. }
                | Call::Spawn
                | Call::Fork
                | Call::Write { .. }
                | Call::Read { .. } => true,
                _ => false,
            },
            Error::NoSpace => match call {
                Call::Map { address: to, .. } | Call::Remap { to, .. } => to.is_none(),
                Call::Create { .. } => true,
                _ => false,
            },
            Error::NoProcess => wanted(call).is_some_and(|wanted| {
                let ends = |operation: &Operation| operation.ends() == Some(wanted);
                let life = self.known.processes.get(&wanted);
                life.is_none_or(|life| life.made >= by.begun || life.ended != OPEN)
                    || self.others(cpu).any(ends)
            }),
            Error::Busy => by.ends().is_some() && by.may_be_busy,
            Error::NoFile => file(call).is_some_and(|(file, ..)| {
                let made = self.known.files.get(&file);
                made.is_none_or(|&made| made >= by.begun)
            }),
            // Judged with the length of the file.
            Error::BeyondEnd => matches!(call, Call::Read { .. }),
            // There is at least one node.
            Error::NoNode => matches!(call, Call::Migrate { node: 1.., .. }),
            Error::BadCall => false,
        }
    }

    /// Returns whether a reason for an error held during the whole call.
    fn must_refuse(&self, cpu: usize, by: &Operation, call: Call, error: Error) -> bool {
        let lacks = |page| self.areas(by.process, page, by.begun).iter().all(Option::is_none);
        let makes = |fits: fn(Call) -> bool| {
            let fits =
                move |by: &Operation| matches!(by.action, CpuAction::Call(call) if fits(call));
            self.others(cpu).any(fits)
        };
        match error {
            Error::Unaligned | Error::BadRange | Error::Overlap => is_malformed(call, error),
            Error::NotMapped => required(call).is_some_and(|mut pages| pages.any(lacks)),
            Error::NoProcess => {
                wanted(call).is_some_and(|wanted| match (self.known.processes.get(&wanted), call) {
                    (Some(life), Call::Enter { .. }) => life.ended < by.begun,
                    (Some(life), _) => life.ended != OPEN,
                    (None, _) => !makes(|call| matches!(call, Call::Spawn | Call::Fork)),
                })
            }
            Error::Busy => match call {
                Call::Exit { process } => self.known.running.contains(&Some(process)),
                _ => false,
            },
            Error::NoFile => file(call).is_some_and(|(file, ..)| {
                !self.known.files.contains_key(&file)
                    && !makes(|call| matches!(call, Call::Create { .. }))
            }),
            Error::OutOfMemory
            | Error::NoSpace
            | Error::BeyondEnd
            | Error::NoNode
            | Error::BadCall => false,
        }
    }

    /// Returns whether a call that succeeds may return a value.
    fn may_return(&self, by: &Operation, call: Call, value: u64) -> bool {
        let may_lack = |page| self.areas(by.process, page, by.begun).contains(&None);
        let id = value as u32;
        match call {
            Call::Map { address: Some(to), .. } | Call::Remap { to: Some(to), .. } => value == to,
            Call::Map { bytes, .. } | Call::Remap { bytes, .. } => {
                !is_outside((value, bytes))
                    && value.is_multiple_of(PAGE_BYTES)
                    && pages(value, bytes).all(may_lack)
            }
            Call::Spawn | Call::Fork => {
                let life = self.known.processes.get(&id);
                life.is_none_or(|life| life.made > by.begun && life.ended != OPEN)
            }
            Call::Create { .. } => !self.known.files.contains_key(&id),
            Call::PageOut { bytes, .. } => value <= bytes.div_ceil(PAGE_BYTES),
            Call::Migrate { bytes, .. } => self.known.large || value <= bytes.div_ceil(PAGE_BYTES),
            Call::Demote { pages } => self.known.large || value <= pages,
            Call::Reclaim { pages } => value <= pages,
            Call::Collapse { .. } => value <= 1,
            // Judged with the content of the file.
            Call::Read { .. } | Call::Sync { .. } => true,
            Call::Unmap { .. }
            | Call::Protect { .. }
            | Call::Discard { .. }
            | Call::Enter { .. }
            | Call::Exit { .. }
            | Call::Write { .. }
            | Call::Truncate { .. }
            | Call::Idle { .. }
            | Call::Nothing => value == 0,
        }
    }

    /// Returns the operations under way on other CPUs.
    fn others(&self, cpu: usize) -> impl Iterator<Item = &Operation> {
        let operations = self.operations.iter().enumerate();
        operations.filter_map(move |(other, by)| by.as_ref().filter(|_| other != cpu))
    }

    /// Records that a CPU acts in a process.
    pub(super) fn acts(&mut self, cpu: usize, process: ProcessId, action: CpuAction) {
        let call = match action {
            CpuAction::Call(call) => call,
            CpuAction::Access(..) => Call::Nothing,
        };
        let (runs, entered) = match call {
            // Until the call returns, the CPU may run either process.
            Call::Enter { process: entered } => (None, entered),
            _ => (Some(process), process),
        };
        self.known.running[cpu] = runs;
        self.known.large |= match call {
            Call::Map { backing: Backing::Anonymous { page }, .. } => page != PageSize::Base,
            Call::Collapse { .. } => true,
            _ => false,
        };
        self.keep_busy(|ending| ending == process || ending == entered);
        if let Call::Exit { process } = call
            && let Some(operation) = &mut self.operations[cpu]
        {
            let mut running = self.known.running.iter();
            operation.may_be_busy = running.any(|runs| runs.is_none_or(|it| it == process));
        }
    }

    /// Records that a CPU stops running its process.
    pub fn leave(&mut self, cpu: usize) {
        self.known.running[cpu] = None;
        self.keep_busy(|_| true);
    }

    /// Records that a CPU may run a process while another CPU ends it.
    fn keep_busy(&mut self, runs: impl Fn(ProcessId) -> bool) {
        for operation in self.operations.iter_mut().flatten() {
            operation.may_be_busy |= operation.ends().is_some_and(&runs);
        }
    }
}

impl Operation {
    /// Returns the process that the operation ends.
    fn ends(&self) -> Option<ProcessId> {
        match self.action {
            CpuAction::Call(Call::Exit { process }) => Some(process),
            _ => None,
        }
    }
}

//! What the kernel's records say, as items of a recording.

use std::sync::Arc;

use perf_event::data::{self, Record};

use super::processes::Processes;
use super::unwind::Unwinder;
use crate::file::Place;
use crate::format::Format;
use crate::sample::{Change, Count, Names, Sample};
use crate::symbols::Symbols;

/// An event that is open.
pub(super) struct Opened {
    pub(super) name: Arc<str>,
    pub(super) everywhere: bool,
    pub(super) format: Format,
    pub(super) seen: u64,
    pub(super) kept: u64,
}

impl Opened {
    /// Its counts, with the kernel's.
    pub(super) fn count(&self, exact: u64) -> Count {
        Count {
            event: self.name.to_string(),
            exact,
            seen: self.seen,
            kept: self.kept,
        }
    }
}

/// The sample in a record, if it is to be kept; its stack goes to `places`.
pub(super) fn keep(
    event: &mut Opened,
    record: &data::Sample<'_>,
    processes: &Processes,
    names: &mut Names,
    symbols: &mut Symbols,
    unwinder: &mut Unwinder,
    places: &mut Vec<Place>,
) -> Option<Sample> {
    let (pid, tid) = (record.pid()?, record.tid()?);
    if !event.everywhere && !processes.is_wanted(pid) {
        return None;
    }
    let raw = record.raw()?;
    let fields = event
        .format
        .decode(raw, names, |address| symbols.kernel(address));
    places.clear();
    // Of a program that the recording is not about, it matters which it is, and which call it makes: its files are not
    // read for more.
    let registers = record.regs_user().map(|registers| &registers.regs[..]);
    let registers = registers.filter(|_| processes.is_wanted(pid));
    let user = registers
        .and_then(|values| unwinder.frames(pid, tid, values, record.stack_user(), processes));
    processes.places(pid, record.callchain().unwrap_or_default(), user, places);
    event.kept += 1;
    Some(Sample {
        time_ns: record.time()?,
        cpu: record.cpu()?,
        pid,
        tid,
        comm: processes.comm(tid, names),
        event: event.name.clone(),
        fields,
        stack: Arc::new([]),
    })
}

/// The change of a process in a record.
pub(super) fn change(
    record: &Record<'_>,
    exec: bool,
    time_ns: u64,
    names: &mut Names,
) -> Option<Change> {
    let mut text = |bytes: &[u8]| {
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(&bytes[..end]);
        names.get(text.strip_suffix(" (deleted)").unwrap_or(&text))
    };
    Some(match record {
        Record::Comm(comm) => Change::Named {
            time_ns,
            pid: comm.pid,
            tid: comm.tid,
            comm: text(&comm.comm),
            exec,
        },
        Record::Fork(fork) => Change::Forked {
            time_ns,
            pid: fork.pid,
            tid: fork.tid,
            parent: fork.ppid,
            parent_tid: fork.ptid,
        },
        Record::Exit(exit) => Change::Exited {
            time_ns,
            pid: exit.pid,
            tid: exit.tid,
        },
        Record::Mmap2(map) => Change::Mapped {
            time_ns,
            pid: map.pid,
            start: map.addr,
            bytes: map.len,
            offset: map.pgoff,
            module: text(&map.filename),
        },
        _ => return None,
    })
}

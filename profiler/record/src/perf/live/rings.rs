//! Opens, switches and counts the events of one CPU, and reads their records.
//!
//! Each CPU has one buffer. A dummy event owns it and reports changes of processes. The wanted events write into it,
//! too. They form a group with a second dummy event as its leader, so one system call for each CPU starts or stops
//! recording. Counted events have a second descriptor, which only counts and always runs. The kernel frees everything
//! when the descriptors are closed, however this process ends.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use perf_event::data;
use perf_event::data::endian::Native;
use perf_event::data::parse::{Parse, ParseConfig, Parser};
use perf_event::events::{Event, Software, Tracepoint};
use perf_event::{Builder, Clock, Counter, Group, ReadFormat, SampleFlag, Sampler};

use rustc_hash::FxHashMap;

use super::budget::Phase;
use super::host::LEAST_BUFFER;
use super::options::Stack;
use super::records::{kinds, long, short};
use crate::perf::sample::FAULTS;

/// The offsets of process and time in records of events.
const SAMPLE_PROCESS: usize = 8;
const SAMPLE_TIME: usize = 16;

/// The distance of the time from the end of other records. The time, the CPU and the event's number come last.
const OTHER_TIME: usize = 24;

/// The kernel wakes us to read a buffer once 1 / `AWAKE` is full.
const AWAKE: usize = 8;

/// The kernel's request that lets an event write into another's buffer (`PERF_EVENT_IOC_SET_OUTPUT`).
///
/// Neither rustix nor perf-event2 offers it.
const SET_OUTPUT: libc::c_ulong = 0x2405;

/// The events of a tracepoint's records, by the caller's index.
pub(super) enum PointEvents {
    /// The same event for all records.
    Event(usize),
    /// An event for each system call's number, at the tracepoint that all calls share.
    Calls(Vec<(u64, usize)>),
}

/// The offset of the call's number in a record of the shared tracepoint.
///
/// From there on, the layout is that of the tracepoints of single calls.
const CALL: usize = 8;

impl PointEvents {
    /// Returns the event of this record. `None` for a call that isn't wanted.
    pub(super) fn event(&self, record: &[u8]) -> Option<usize> {
        match self {
            PointEvents::Event(event) => Some(*event),
            PointEvents::Calls(calls) => {
                let number = long(record, CALL)?;
                let found = calls.iter().find(|(of, _)| *of == number);
                found.map(|&(_, event)| event)
            }
        }
    }
}

/// A tracepoint on a CPU.
pub(super) struct Point {
    pub(super) of: PointEvents,
    /// The tracepoint's number.
    pub(super) id: u64,
    pub(super) stack: Stack,
    pub(super) counted: bool,
    pub(super) filter: Option<CString>,
    /// Whether it is kept in all processes.
    pub(super) everywhere: bool,
    /// Whether it's so frequent that it slows programs down even without being recorded.
    pub(super) frequent: bool,
}

/// Returns whether an event is so frequent that an open one slows programs down.
///
/// For example, tracing one system call slows all of them down. And each call that changes memory passes several of the
/// other tracepoints.
pub(super) fn is_frequent(event: &str) -> bool {
    ["syscalls:", "mmap_lock:", "tlb:"].iter().any(|group| event.starts_with(group))
        || event == FAULTS
}

/// The kernel's request to record only some events of a tracepoint (`PERF_EVENT_IOC_SET_FILTER`), with eight-byte
/// pointers.
const SET_FILTER: libc::c_ulong = 0x4008_2406;

/// A record that was read.
pub(super) enum Entry<'r> {
    /// An event, read only up to its process.
    Sample(RawEvent<'r>),
    /// The buffer had no room for this many records.
    Lost(u64),
    /// A record of another kind, with the bits of its header.
    Other(u32, u16, &'r [u8]),
}

/// An event's record that is parsed on demand. Parsing all of it takes longer than the kernel took to write it.
pub(super) struct RawEvent<'r> {
    bytes: &'r [u8],
    point: &'r Point,
    layout: &'r ParseConfig<Native>,
}

impl<'r> RawEvent<'r> {
    /// Returns the process that was running. 0 if the record is too short.
    pub(super) fn process(&self) -> u32 {
        short(self.bytes, SAMPLE_PROCESS).unwrap_or(0)
    }

    /// Returns whether it's kept in all processes, or may contain a stack.
    pub(super) fn matters_everywhere(&self) -> bool {
        self.point.everywhere || self.point.stack != Stack::Absent
    }

    /// Returns the index of its event. `None` at the shared tracepoints of system calls.
    pub(super) fn event(&self) -> Option<usize> {
        match self.point.of {
            PointEvents::Event(event) => Some(event),
            PointEvents::Calls(_) => None,
        }
    }

    /// Parses all of it. Also returns the index of its event. `None` if it can't be parsed or isn't wanted.
    pub(super) fn read(&self) -> Option<(usize, data::Sample<'r>)> {
        let mut parser = Parser::new(self.bytes, self.layout.clone());
        let sample = data::Sample::parse(&mut parser).ok()?;
        let event = self.point.of.event(sample.raw().unwrap_or_default())?;
        Some((event, sample))
    }
}

/// The events of one CPU.
pub(super) struct Ring {
    pub(super) cpu: u32,
    /// Owns the buffer.
    sampler: Sampler,
    /// Reports mappings. It slows every `mmap` and `mprotect` of every program down, so we close it with the frequent
    /// events.
    maps: Option<Counter>,
    /// Starts and stops the recording of events.
    windows: Counter,
    /// The events by the index of their points. Frequent ones may be closed for a while.
    recorded: Vec<Option<Counter>>,
    /// The layouts of their records, open or not.
    layouts: Vec<ParseConfig<Native>>,
    closed: EventCounts,
    /// Counts each event. We read all counts together, because each read interrupts the CPU.
    counting: Group,
    /// The counted events, each with the caller's index.
    counted: Vec<(usize, Counter)>,
    /// The index in `recorded`, by the number in a record.
    numbers: FxHashMap<u64, usize>,
    /// The number of event records that were read.
    seen: u64,
    /// The number of records that the kernel has reported as lost.
    lost: u64,
}

/// Counts of events while they were recorded, and of their lost records.
#[derive(Clone, Copy, Debug, Default)]
struct EventCounts {
    count: u64,
    lost: Option<u64>,
}

impl EventCounts {
    fn add(&mut self, event: &mut Counter) -> io::Result<()> {
        let read = event.read_full()?;
        self.count += read.count();
        if let Some(of) = read.lost() {
            *self.lost.get_or_insert(0) += of;
        }
        Ok(())
    }
}

/// Computes the events without a record, except for losses that the kernel has reported.
///
/// The arguments are the events that happened, the records that were read, the lost records by the kernel's count, and
/// the losses that it has reported. Kernels before 6.0 don't count lost records (`None`).
///
/// Returns the losses because the buffer was full, which the kernel reports with the next record that finds room; at
/// the end no record follows. Then the events that were counted, but neither read nor lost.
fn missing(happened: u64, seen: u64, lost: Option<u64>, told: u64) -> (u64, u64) {
    let full = lost.map_or(0, |lost| lost.saturating_sub(told));
    (full, happened.saturating_sub(seen + told + full))
}

impl Ring {
    /// Opens tracepoints on these CPUs. If the kernel refuses buffers of `bytes`, they become smaller.
    pub(super) fn open_all(
        cpus: &[u32],
        mut bytes: usize,
        points: &[Point],
    ) -> io::Result<Vec<Self>> {
        let counts_lost = counts_lost();
        loop {
            let open = |cpu: &u32| Ring::open(*cpu, bytes, points, counts_lost);
            let rings = cpus.iter().map(open);
            let rings = rings.collect::<io::Result<Vec<_>>>();
            // Without CAP_IPC_LOCK, kernel.perf_event_mlock_kb limits the buffers.
            let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EPERM);
            if bytes <= LEAST_BUFFER || !rings.as_ref().is_err_and(refused) {
                return rings;
            }
            bytes /= 2;
        }
    }

    /// Opens tracepoints on a CPU. They're neither recorded nor counted yet.
    fn open(cpu: u32, bytes: usize, points: &[Point], counts_lost: bool) -> io::Result<Self> {
        let mut news = on_cpu(Software::DUMMY, cpu);
        news.comm(true).comm_exec(true).task(true).wakeup_watermark(bytes / AWAKE);
        let mut sampler = news.build()?.sampled(bytes)?;
        let mut windows = on_cpu(Software::DUMMY, cpu).build()?;
        let mut counting = Group::builder().any_pid().one_cpu(cpu as usize).build_group()?;
        let (mut recorded, mut layouts, mut counted) = (Vec::new(), Vec::new(), Vec::new());
        let mut numbers = FxHashMap::default();
        for (index, point) in points.iter().enumerate() {
            let event = recording(cpu, point, &mut windows, &sampler, counts_lost)?;
            numbers.insert(event.id(), index);
            layouts.push(event.config().clone());
            recorded.push(Some(event));
            if let (true, &PointEvents::Event(event)) = (point.counted, &point.of) {
                let mut count = Builder::new(Tracepoint::with_id(point.id));
                count.any_pid().one_cpu(cpu as usize).include_kernel().include_hv().enabled(true);
                let count = counting.add(&count)?;
                if let Some(filter) = &point.filter {
                    restrict(&count, filter)?;
                }
                counted.push((event, count));
            }
        }
        // We enable this before reading the processes from `/proc`, so that we miss no change in between.
        sampler.as_counter_mut().enable()?;
        let maps = Some(maps(cpu, &sampler)?);
        Ok(Self {
            cpu,
            sampler,
            maps,
            windows,
            recorded,
            layouts,
            closed: EventCounts::default(),
            counting,
            counted,
            numbers,
            seen: 0,
            lost: 0,
        })
    }

    pub(super) fn count(&mut self) -> io::Result<()> {
        self.counting.enable()
    }

    /// Takes the frequent events out. The caller drops them in another thread, because the kernel closes them slowly.
    pub(super) fn take_frequent(&mut self, points: &[Point]) -> io::Result<Vec<Counter>> {
        // These reports cost most of all that is open, and the kernel closes them at once.
        self.maps = None;
        let mut taken = Vec::new();
        for (event, point) in self.recorded.iter_mut().zip(points) {
            if let Some(mut event) = event.take_if(|_| point.frequent) {
                self.closed.add(&mut event)?;
                taken.push(event);
            }
        }
        Ok(taken)
    }

    /// Opens the frequent events that are closed. No window may be open.
    pub(super) fn open_frequent(&mut self, points: &[Point], counts_lost: bool) -> io::Result<()> {
        if self.maps.is_none() {
            self.maps = Some(maps(self.cpu, &self.sampler)?);
        }
        for (index, point) in points.iter().enumerate() {
            if self.recorded[index].is_none() {
                let (leader, into) = (&mut self.windows, &self.sampler);
                let event = recording(self.cpu, point, leader, into, counts_lost)?;
                self.numbers.insert(event.id(), index);
                self.recorded[index] = Some(event);
            }
        }
        Ok(())
    }

    /// Switches from one phase to another. Each switch interrupts the CPU.
    pub(super) fn turn(&mut self, from: Phase, to: Phase) -> io::Result<()> {
        match from {
            Phase::Off => self.counting.enable()?,
            Phase::Window => self.windows.disable()?,
            Phase::Counting => {}
        }
        match to {
            Phase::Off => self.counting.disable(),
            Phase::Window => self.windows.enable(),
            Phase::Counting => Ok(()),
        }
    }

    /// Stops counting, and stops the reports of processes.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.counting.disable()?;
        self.sampler.as_counter_mut().disable()
    }

    /// Reads the count of each counted event, with the event's index.
    pub(super) fn counts(&mut self) -> io::Result<Vec<(usize, u64)>> {
        let read = self.counting.read()?;
        let each = self.counted.iter().map(|(event, count)| {
            let count = read.get(count).map_or(0, |entry| entry.value());
            (*event, count)
        });
        Ok(each.collect())
    }

    /// Returns the events that happened while they were recorded and left no record. See [`missing`].
    pub(super) fn missing(&mut self) -> io::Result<(u64, u64)> {
        let mut all = self.closed;
        self.recorded.iter_mut().flatten().try_for_each(|event| all.add(event))?;
        Ok(missing(all.count, self.seen, all.lost, self.lost))
    }

    /// Returns the time of the next record. `None` if there is none yet.
    pub(super) fn next_time(&mut self) -> Option<u64> {
        let record = self.sampler.next_record()?;
        let time = record_time(&record);
        // Dropping the record would remove it from the buffer.
        std::mem::forget(record);
        Some(time)
    }

    /// Passes the next record to `take`. Returns `false` if there is none. Skips a record that can't be parsed.
    pub(super) fn next(&mut self, points: &[Point], mut take: impl FnMut(Entry<'_>)) -> bool {
        let Some(record) = self.sampler.next_record() else {
            return false;
        };
        let bytes = record.to_contiguous();
        match record.ty() {
            kinds::SAMPLE => {}
            kinds::LOST => {
                // The event's number comes first.
                let count = long(&bytes, 8).unwrap_or(0);
                self.lost += count;
                take(Entry::Lost(count));
                return true;
            }
            kind => {
                take(Entry::Other(kind, record.misc(), &bytes));
                return true;
            }
        }
        let index = long(&bytes, 0).and_then(|id| self.numbers.get(&id)).copied();
        self.seen += 1;
        if let Some(index) = index
            && let Some(point) = points.get(index)
        {
            take(Entry::Sample(RawEvent { bytes: &bytes, point, layout: &self.layouts[index] }));
        }
        true
    }
}

/// Opens a tracepoint on a CPU, in the group of `leader`. Its records are written to the buffer of `into`.
fn recording(
    cpu: u32,
    point: &Point,
    leader: &mut Counter,
    into: &Sampler,
    counts_lost: bool,
) -> io::Result<Counter> {
    let mut event = on_cpu(Tracepoint::with_id(point.id), cpu);
    sampled(&mut event, point.stack);
    if counts_lost {
        event.read_format(ReadFormat::LOST);
    }
    let event = event.build_with_group(leader)?;
    redirect(&event, into)?;
    if let Some(filter) = &point.filter {
        restrict(&event, filter)?;
    }
    Ok(event)
}

/// Waits until part of a CPU's buffer is full, at most for this long.
pub(super) fn wait(rings: &[Ring], most: Duration) {
    wait_for(rings.iter().map(|ring| ring.sampler.as_raw_fd()), most);
}

/// Waits until a descriptor is readable, at most for this long.
///
/// A descriptor with any other result would end every wait at once: that of a CPU that went offline, for example. So we
/// continue without it.
fn wait_for(descriptors: impl Iterator<Item = RawFd>, most: Duration) {
    let begun = Instant::now();
    let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut buffers: Vec<_> = descriptors.map(of).collect();
    loop {
        let rest = most.saturating_sub(begun.elapsed());
        // SAFETY: the kernel writes only to these entries, whose number is passed. A descriptor that is not open is
        // reported in its entry.
        let answered = unsafe {
            libc::poll(
                buffers.as_mut_ptr(),
                buffers.len() as libc::nfds_t,
                rest.as_micros().div_ceil(1000) as libc::c_int,
            )
        };
        if answered <= 0 || buffers.iter().any(|of| of.revents & libc::POLLIN != 0) {
            return;
        }
        // The kernel skips negative descriptors.
        for of in buffers.iter_mut().filter(|of| of.revents != 0) {
            of.fd = -1;
        }
    }
}

/// Returns whether the kernel counts the lost records of each event. Linux does since 6.0.
pub(super) fn counts_lost() -> bool {
    Builder::new(Software::DUMMY).read_format(ReadFormat::LOST).build().is_ok()
}

pub(super) fn accepts(id: u64, filter: &CStr) -> io::Result<bool> {
    let event = Builder::new(Tracepoint::with_id(id)).include_kernel().build()?;
    Ok(restrict(&event, filter).is_ok())
}

fn on_cpu<E: Event>(event: E, cpu: u32) -> Builder<'static> {
    let mut builder = Builder::new(event);
    builder
        .any_pid()
        .one_cpu(cpu as usize)
        .include_kernel()
        .include_hv()
        .clockid(Clock::MONOTONIC)
        .sample_id_all(true)
        .read_format(ReadFormat::empty())
        .sample(SampleFlag::IDENTIFIER)
        .sample(SampleFlag::TID)
        .sample(SampleFlag::TIME)
        .sample(SampleFlag::CPU)
        .sample(SampleFlag::CALLCHAIN)
        .sample(SampleFlag::RAW);
    builder
}

/// Records each occurrence of an event with this stack, once its group is enabled.
fn sampled(builder: &mut Builder<'static>, stack: Stack) {
    let whole = matches!(stack, Stack::Whole | Stack::Unwound);
    builder.sample_period(1).enabled(true);
    builder.exclude_callchain_kernel(stack == Stack::Absent).exclude_callchain_user(!whole);
    if whole {
        builder.sample(SampleFlag::REGS_USER).sample_regs_user(super::unwind::MASK);
    }
    if stack == Stack::Unwound {
        builder.sample(SampleFlag::STACK_USER).sample_stack_user(super::unwind::COPIED);
    }
}

pub(super) fn restrict(event: &Counter, filter: &CStr) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel copies the zero-terminated text during the call.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), SET_FILTER as _, filter.as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens the event that reports mappings of code into this buffer.
fn maps(cpu: u32, into: &Sampler) -> io::Result<Counter> {
    let mut maps = on_cpu(Software::DUMMY, cpu);
    let mut maps = maps.mmap(true).mmap2(true).build()?;
    redirect(&maps, into)?;
    maps.enable()?;
    Ok(maps)
}

/// Lets an event write into the buffer of another.
fn redirect(event: &Counter, into: &Sampler) -> io::Result<()> {
    // SAFETY: both descriptors are open, and this request reads and writes no memory of ours.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT as _, into.as_raw_fd()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn record_time(record: &perf_event::Record<'_>) -> u64 {
    let bytes = record.to_contiguous();
    let at = match record.ty() {
        kinds::SAMPLE => SAMPLE_TIME,
        _ => bytes.len().saturating_sub(OTHER_TIME),
    };
    long(&bytes, at).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_found_no_room_is_told_apart_from_what_nobody_says_anything_of() {
        assert_eq!(missing(100, 100, Some(0), 0), (0, 0));
        // The kernel has reported 10 losses already, and couldn't report 5.
        assert_eq!(missing(100, 83, Some(15), 10), (5, 2));
        // Reported losses may be changes of processes, which no event counts.
        assert_eq!(missing(100, 95, Some(5), 9), (0, 0));
        assert_eq!(missing(100, 83, None, 10), (0, 7));
    }

    #[test]
    fn a_descriptor_that_has_nothing_more_to_read_is_no_reason_to_wake() {
        let pause = Duration::from_millis(20);
        let (gone, _) = io::pipe().unwrap();
        let (full, mut writer) = io::pipe().unwrap();
        let wait = |pause| {
            let begun = Instant::now();
            wait_for([gone.as_raw_fd(), full.as_raw_fd()].into_iter(), pause);
            begun.elapsed()
        };
        assert!(wait(pause) >= pause);
        // Readable data ends the wait.
        io::Write::write_all(&mut writer, &[1]).unwrap();
        assert!(wait(Duration::from_secs(3600)) < Duration::from_secs(3600));
    }
}

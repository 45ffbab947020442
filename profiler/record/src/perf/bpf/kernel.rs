//! Calls `bpf`: creates maps, loads programs, and attaches them to tracepoints.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

mod command {
    pub const MAP_CREATE: i32 = 0;
    pub const MAP_LOOKUP: i32 = 1;
    pub const PROGRAM_LOAD: i32 = 5;
    #[cfg(test)]
    pub const PROGRAM_RUN: i32 = 10;
    pub const RAW_TRACEPOINT_OPEN: i32 = 17;
    pub const MAP_TAKE_BATCH: i32 = 25;
    pub const ENABLE_STATISTICS: i32 = 32;
}

#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Kind {
    /// Values by key, shared by all CPUs.
    Hash = 1,
    /// Values by index, shared by all CPUs.
    Array = 2,
    /// Values by key, one for each CPU, so that additions needn't be atomic.
    EachCpuHash = 5,
}

/// The kind of program that raw tracepoints run.
const RAW_TRACEPOINT: u32 = 17;

#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
    /// The number of values for each key.
    copies: usize,
}

#[repr(C)]
#[derive(Default)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct Element {
    map: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Batch {
    /// The position to continue from. The kernel writes the next one to `next`.
    begin: u64,
    next: u64,
    keys: u64,
    values: u64,
    /// The room for keys. The kernel replaces it by the number of keys that it returned.
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

#[repr(C)]
struct TracepointAttributes {
    name: u64,
    program: u32,
    unused: u32,
}

fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i64> {
    // SAFETY: `attributes` is one of the structures above, laid out as the kernel reads it for this command, and its
    // size is passed. The memory behind its addresses lives in the caller until the call returns.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn owned(result: i64) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor for this process, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

impl Map {
    /// Creates a map whose keys and values have these many bytes.
    pub(super) fn new(
        kind: Kind,
        key_bytes: usize,
        value_bytes: usize,
        entries: usize,
        cpus: usize,
    ) -> io::Result<Self> {
        let mut create = MapAttributes {
            kind: kind as u32,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            entries: entries as u32,
            flags: 0,
        };
        let fd = owned(bpf(command::MAP_CREATE, &mut create)?);
        let copies = match kind {
            Kind::EachCpuHash => cpus,
            Kind::Hash | Kind::Array => 1,
        };
        Ok(Self { fd, key_bytes, value_bytes, copies })
    }

    /// Returns the descriptor, by which programs name the map.
    pub(super) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Returns the values of a key as words, one CPU after the other.
    pub(super) fn get(&self, key: &[u8]) -> io::Result<Vec<u64>> {
        assert_eq!(key.len(), self.key_bytes);
        let mut values = vec![0u64; self.value_bytes / 8 * self.copies];
        let mut element = Element {
            map: self.fd.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value: values.as_mut_ptr() as u64,
            flags: 0,
        };
        bpf(command::MAP_LOOKUP, &mut element)?;
        Ok(values)
    }

    /// Takes all keys with their values out of the map, in the form of [`get`](Self::get).
    ///
    /// Several times a second, the kernel writes them to the same `buffer`. Allocating it each time would cost more.
    pub(super) fn take(
        &self,
        buffer: &mut Buffer,
        mut each: impl FnMut(&[u8], &[u64]),
    ) -> io::Result<()> {
        /// The kernel returns whole buckets of its table. This is more than one bucket contains.
        const ROOM: usize = 1 << 10;
        let words = self.value_bytes / 8 * self.copies;
        let Buffer { keys, values } = buffer;
        keys.resize(keys.len().max(self.key_bytes * ROOM), 0);
        values.resize(values.len().max(words * ROOM), 0);
        // The kernel's cursor is as large as a key, and at least four bytes. This has room for either.
        let (mut place, mut next) = ([0u8; 64], [0u8; 64]);
        let mut first = true;
        loop {
            let mut batch = Batch {
                begin: if first { 0 } else { place.as_ptr() as u64 },
                next: next.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: ROOM as u32,
                map: self.fd.as_raw_fd() as u32,
                element_flags: 0,
                flags: 0,
            };
            let is_last = match bpf(command::MAP_TAKE_BATCH, &mut batch) {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(error),
            };
            let read = keys.chunks_exact(self.key_bytes).zip(values.chunks_exact(words));
            let read = read.take(batch.count as usize);
            read.for_each(|(key, values)| each(key, values));
            if is_last {
                return Ok(());
            }
            std::mem::swap(&mut place, &mut next);
            first = false;
        }
    }
}

/// Memory for the content of maps.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    keys: Vec<u8>,
    values: Vec<u64>,
}

/// Makes the kernel time every run of each BPF program. Dropping the returned descriptor ends this.
pub(super) fn time_programs() -> io::Result<OwnedFd> {
    // Times of runs, the only kind of statistics.
    let mut kind = 0_u32;
    bpf(command::ENABLE_STATISTICS, &mut kind).map(owned)
}

/// A program that the kernel has checked and accepted.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    /// Loads a program for raw tracepoints.
    ///
    /// If the kernel refuses it, the error has the last lines of the verifier.
    pub(super) fn load(code: &[u64]) -> io::Result<Self> {
        // Two of the called functions are only allowed under this licence.
        let license = c"Dual MIT/GPL";
        let mut load = ProgramAttributes {
            kind: RAW_TRACEPOINT,
            count: code.len() as u32,
            instructions: code.as_ptr() as u64,
            license: license.as_ptr() as u64,
            ..ProgramAttributes::default()
        };
        match bpf(command::PROGRAM_LOAD, &mut load) {
            Ok(program) => Ok(Self(owned(program))),
            Err(refused) => {
                let mut log = vec![0u8; 64 << 10];
                load.log_level = 1;
                load.log_bytes = log.len() as u32;
                load.log = log.as_mut_ptr() as u64;
                let _ = bpf(command::PROGRAM_LOAD, &mut load);
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                let text = String::from_utf8_lossy(&log[..end]);
                let lines: Vec<&str> = text.lines().rev().take(4).collect();
                let why = lines.into_iter().rev().collect::<Vec<_>>().join("; ");
                Err(io::Error::new(refused.kind(), format!("{refused}: {why}")))
            }
        }
    }

    /// Runs the program at each event of a raw tracepoint. Dropping the returned descriptor ends this.
    pub(super) fn attach(&self, tracepoint: &CStr) -> io::Result<OwnedFd> {
        let mut open = TracepointAttributes {
            name: tracepoint.as_ptr() as u64,
            program: self.0.as_raw_fd() as u32,
            unused: 0,
        };
        bpf(command::RAW_TRACEPOINT_OPEN, &mut open).map(owned)
    }

    pub(super) fn timed_ns(&self) -> io::Result<u64> {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        let line = about.lines().find_map(|line| line.strip_prefix("run_time_ns:"));
        let time = line.and_then(|time| time.trim().parse().ok());
        time.ok_or_else(|| io::Error::other("the kernel does not time BPF programs"))
    }

    /// Runs the program once, here and now, as at an event with these arguments.
    #[cfg(test)]
    pub(super) fn run(&self, arguments: &[u64]) -> io::Result<()> {
        /// The kernel's structure. All that we don't use is 0.
        #[repr(C)]
        #[derive(Default)]
        struct Run {
            program: u32,
            result: u32,
            data: [u64; 4],
            context_bytes: u32,
            context_room: u32,
            context: u64,
            out: u64,
            rest: [u32; 4],
        }
        let mut run = Run {
            program: self.0.as_raw_fd() as u32,
            context_bytes: size_of_val(arguments) as u32,
            context: arguments.as_ptr() as u64,
            ..Run::default()
        };
        bpf(command::PROGRAM_RUN, &mut run).map(|_| ())
    }
}

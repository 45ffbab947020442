//! Parses the kernel's records into items of a recording.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::perf::format::Format;
use crate::perf::sample::{Change, Count, NameTable, Value};

pub(super) struct OpenEvent {
    pub(super) name: Arc<str>,
    pub(super) everywhere: bool,
    pub(super) format: Format,
    pub(super) seen: u64,
    pub(super) kept: u64,
}

impl OpenEvent {
    /// Returns its counts. `exact` is the kernel's.
    pub(super) fn count(&self, exact: u64) -> Count {
        Count { event: self.name.to_string(), exact, seen: self.seen, kept: self.kept }
    }
}

/// The vectors of running calls of `process_madvise`, by thread: address and number of ranges.
#[derive(Default)]
pub(super) struct Vectors(FxHashMap<u32, (u64, u64)>);

/// The largest number of ranges to read: as many as allocators pass to one call.
const MOST_RANGES: usize = 128;
/// The largest number of threads to remember. Calls that don't flush aren't forgotten otherwise.
const MOST_THREADS: usize = 1 << 12;

impl Vectors {
    /// Remembers a call's vector, and reads it with the first event of the call that has a copy of the stack.
    ///
    /// Returns the ranges as `start+bytes` in decimal, separated by commas. Nothing shows a vector elsewhere.
    pub(super) fn ranges(
        &mut self,
        event: &str,
        fields: &[(Arc<str>, Value)],
        tid: u32,
        copy: Option<(u64, &[u8])>,
    ) -> Option<String> {
        if event == "syscalls:sys_enter_process_madvise" {
            let field = |name: &str| fields.iter().find(|(of, _)| &**of == name)?.1.bits();
            if self.0.len() >= MOST_THREADS {
                self.0.clear();
            }
            self.0.insert(tid, (field("vec")?, field("vlen")?));
            return None;
        }
        let (sp, stack) = copy?;
        let (vector, length) = self.0.remove(&tid)?;
        let at = usize::try_from(vector.checked_sub(sp)?).ok()?;
        let words = stack.get(at..)?.chunks_exact(8);
        let words: Vec<u64> = words
            .filter_map(|word| Some(u64::from_ne_bytes(*word.first_chunk()?)))
            .take(2 * MOST_RANGES.min(length as usize))
            .collect();
        let ranges = words.chunks_exact(2).map(|of| format!("{}+{}", of[0], of[1]));
        Some(ranges.collect::<Vec<_>>().join(","))
    }
}

/// The kernel's numbers of records. `COMM_EXEC` marks a name set by `execve`.
pub(super) mod kinds {
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const COMM_EXEC: u16 = 1 << 13;
}

/// Reads a number of 32 bits.
pub(super) fn short(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads a number of 64 bits.
pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Parses the record of a process's or thread's change. `bits` are those of its header.
///
/// Returns `None` if it's of another kind or too short. The library that reads events could parse it, too, but it
/// allocates for each record. A program that starts thousands of processes a second causes ten such records for each.
pub(super) fn change(
    kind: u32,
    bits: u16,
    time_ns: u64,
    bytes: &[u8],
    names: &mut NameTable,
) -> Option<Change> {
    let short = |at| short(bytes, at);
    let long = |at| long(bytes, at);
    // Zeros follow the text.
    let mut name = |at: usize| {
        let bytes = bytes.get(at..)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
        Some(names.get(text.strip_suffix(" (deleted)").unwrap_or(&text)))
    };
    Some(match kind {
        kinds::COMM => Change::Named {
            time_ns,
            pid: short(0)?,
            tid: short(4)?,
            comm: name(8)?,
            exec: bits & kinds::COMM_EXEC != 0,
        },
        kinds::EXIT => Change::Exited { time_ns, pid: short(0)?, tid: short(8)? },
        kinds::FORK => Change::Forked {
            time_ns,
            pid: short(0)?,
            parent: short(4)?,
            tid: short(8)?,
            parent_tid: short(12)?,
        },
        // In between are the file's device and inode, and the rights.
        kinds::MMAP2 => Change::Mapped {
            time_ns,
            pid: short(0)?,
            start: long(8)?,
            bytes: long(16)?,
            offset: long(24)?,
            module: name(64)?,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a record with these numbers and this text, followed by zeros.
    fn record(shorts: &[u32], longs: &[u64], text: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = shorts.iter().flat_map(|of| of.to_ne_bytes()).collect();
        bytes.extend(longs.iter().flat_map(|of| of.to_ne_bytes()));
        bytes.extend(text);
        bytes.extend([0; 40]);
        bytes
    }

    #[test]
    fn records_of_processes_are_read_as_the_kernel_lays_them_out() {
        let mut names = NameTable::default();
        let mut read = |kind, bits, bytes: &[u8]| change(kind, bits, 9, bytes, &mut names);
        let comm = record(&[1, 2], &[], b"make");
        let make = |exec| Change::Named { time_ns: 9, pid: 1, tid: 2, comm: "make".into(), exec };
        assert_eq!(read(3, 1 << 13, &comm), Some(make(true)));
        assert_eq!(read(3, 0, &comm), Some(make(false)));
        let forked = Change::Forked { time_ns: 9, pid: 1, tid: 3, parent: 2, parent_tid: 4 };
        let ids = record(&[1, 2, 3, 4], &[5], b"");
        assert_eq!(read(7, 0, &ids), Some(forked));
        let exited = Change::Exited { time_ns: 9, pid: 1, tid: 3 };
        assert_eq!(read(4, 0, &ids), Some(exited));
        let mut map = record(&[1, 2], &[0x1000, 0x2000, 0x3000, 6, 7, 8, 9], b"");
        map.truncate(64);
        map.extend(b"/lib/x.so (deleted)\0\0\0");
        let mapped = Change::Mapped {
            time_ns: 9,
            pid: 1,
            start: 0x1000,
            bytes: 0x2000,
            offset: 0x3000,
            module: "/lib/x.so".into(),
        };
        assert_eq!(read(10, 0, &map), Some(mapped));
        assert_eq!(read(11, 0, &comm), None);
    }

    #[test]
    fn the_ranges_of_a_call_are_read_from_the_copy_of_its_stack() {
        let mut vectors = Vectors::default();
        let enter = "syscalls:sys_enter_process_madvise";
        let fields = [("vec", 0x7010), ("vlen", 2)]
            .map(|(name, value)| (Arc::from(name), Value::Unsigned(value)));
        let stack: Vec<u8> = [1u64, 2, 0x1000, 4096, 0x5000, 8192, 7]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let mut read =
            |event: &str, tid, sp| vectors.ranges(event, &fields, tid, Some((sp, &stack)));
        assert_eq!(read("tlb:tlb_flush", 1, 0x7000), None);
        assert_eq!(read(enter, 1, 0x7000), None);
        assert_eq!(read("tlb:tlb_flush", 2, 0x7000), None);
        let ranges = read("tlb:tlb_flush", 1, 0x7000);
        assert_eq!(ranges.as_deref(), Some("4096+4096,20480+8192"));
        assert_eq!(read("tlb:tlb_flush", 1, 0x7000), None, "once for each call");
        // The vector lies below the stack, and beyond its copy.
        for sp in [0x7018, 0x1000] {
            read(enter, 1, sp);
            assert_eq!(read("tlb:tlb_flush", 1, sp), None);
        }
        // The copy ends within it.
        read(enter, 1, 0x7000 - 16);
        let ranges = read("tlb:tlb_flush", 1, 0x7000 - 16);
        assert_eq!(ranges.as_deref(), Some("20480+8192"));
    }

    proptest! {
        #[test]
        fn whatever_a_record_holds_it_is_read_or_passed_over(
            kind in 0u32..16, bits: u16, bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            change(kind, bits, 0, &bytes, &mut NameTable::default());
        }
    }
}

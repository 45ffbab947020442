//! Finds the memory that a system call gave back.
//!
//! Most calls contain it in their arguments. For `brk` we need the previous break, and for hole punching the file's
//! mappings. We know both only from calls that were recorded before.

use rustc_hash::FxHashMap;

use super::{Attribution, Call};
use crate::event::ReleasedRange;

/// The largest number of mappings to remember for one file.
const MAPPED: usize = 64;

/// Facts from earlier calls, by process.
#[derive(Debug, Default)]
pub(super) struct History {
    breaks: FxHashMap<u32, u64>,
    /// Mappings by process and file descriptor.
    files: FxHashMap<(u32, u64), Vec<Mapping>>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: u64,
    bytes: u64,
    /// The mapping's start in the file.
    offset: u64,
}

impl Mapping {
    /// Returns the part of the mapping that shows these bytes of the file. It has a start and a length.
    fn shows(self, offset: u64, bytes: u64) -> Option<(u64, u64)> {
        let first = offset.max(self.offset);
        let end = offset.saturating_add(bytes).min(self.offset.saturating_add(self.bytes));
        let length = end.checked_sub(first).filter(|&length| length > 0)?;
        Some((self.start + (first - self.offset), length))
    }
}

/// Memory that was given back.
#[derive(Default)]
pub(super) struct ReturnedMemory {
    /// The ranges: start and bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// The number of bytes in all, including those whose address we don't know.
    pub(super) bytes: u64,
}

/// Returns whether a call with this result failed.
fn is_error(result: u64) -> bool {
    (-4095..0).contains(&result.cast_signed())
}

impl Attribution {
    /// Returns the memory that this call gave back. Also remembers its mapping or break for later calls.
    pub(super) fn gave_back(
        &mut self,
        pid: u32,
        owner: u64,
        call: &Call,
        result: Option<u64>,
        site: Option<usize>,
    ) -> ReturnedMemory {
        if result.is_some_and(is_error) {
            return ReturnedMemory::default();
        }
        if let (Some((file, offset)), Some(start)) = (call.arguments.maps, result) {
            let mapped = self.known.files.entry((pid, file)).or_default();
            mapped.retain(|old| old.start != start);
            if mapped.len() < MAPPED {
                let bytes = call.arguments.bytes;
                mapped.push(Mapping { start, bytes, offset });
            }
        }
        let range = match call.arguments.gives {
            ReleasedRange::Nothing => None,
            ReleasedRange::Range(start, bytes) => Some((start, bytes)),
            // If another site gave this memory back and no access touched it since, the call only makes it usable
            // again.
            ReleasedRange::Over(start, bytes) => {
                let known = self.discards.find(owner, start);
                let is_given = known.is_some_and(|of| !of.followed && Some(of.site) != site);
                (!is_given).then_some((start, bytes))
            }
            ReleasedRange::Break => result.and_then(|now| {
                let before = self.known.breaks.insert(pid, now).unwrap_or(now);
                (before > now).then(|| (now, before - now))
            }),
            ReleasedRange::Vector => {
                let (ranges, bytes) = (call.ranges.clone(), result.unwrap_or(0));
                return ReturnedMemory { ranges, bytes };
            }
            ReleasedRange::File { file, offset, bytes } => {
                let mapped = self.known.files.get(&(pid, file)).into_iter().flatten();
                let ranges: Vec<_> = mapped.filter_map(|m| m.shows(offset, bytes)).collect();
                // Mappings from before the window are unknown, and so is the end of a truncated file.
                let known = ranges.iter().map(|range| range.1).sum();
                let is_hole = ranges.is_empty() && bytes < u64::MAX;
                return ReturnedMemory { bytes: if is_hole { bytes } else { known }, ranges };
            }
        };
        let bytes = range.map_or(0, |(_, bytes)| bytes);
        ReturnedMemory { ranges: range.into_iter().collect(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_in_a_file_is_a_hole_in_what_shows_it() {
        let mapping = Mapping { start: 0x10_0000, bytes: 0x4000, offset: 0x2000 };
        assert_eq!(mapping.shows(0x3000, 0x1000), Some((0x10_1000, 0x1000)));
        assert_eq!(mapping.shows(0, 0x3000), Some((0x10_0000, 0x1000)));
        assert_eq!(mapping.shows(0x5000, u64::MAX), Some((0x10_3000, 0x1000)));
        assert_eq!(mapping.shows(0, 0x2000), None);
        assert_eq!(mapping.shows(0x6000, 0x1000), None);
    }
}

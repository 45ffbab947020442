//! Unwinds the program's part of a stack if its code was compiled without frame pointers.
//!
//! The kernel copies the registers and the top of the stack. The unwind tables of the mapped files (`.eh_frame`) give
//! the layout of each function's frame. A system call doesn't change the program's stack, so one event of a call
//! contains the copy, and the others contain only registers.
//!
//! We can't unwind frames beyond the copy, or code whose tables are missing or wrong. There we follow frame pointers
//! instead. We don't trust the tables: unwinding ends whatever they contain.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, UnwindRegsNative,
    Unwinder as _, UnwinderNative,
};
use object::read::ReadCache;
use object::{Object, ObjectSection};
use rustc_hash::FxHashMap;

use super::processes::{Mapping, Processes, Removal};
use super::records::Vectors;
use crate::perf::symbols;

/// The number of bytes of a stack to copy.
pub(super) const COPIED: u32 = 4096;

/// The largest number of frames to follow.
const DEEPEST: usize = 128;

/// The largest size of a table to read, in bytes.
const MOST_TABLE: u64 = 256 << 20;

/// The copied registers as the kernel's bit mask, and their conversion for the unwinder. Values are in the order of
/// bits.
#[cfg(target_arch = "x86_64")]
mod registers {
    /// `rbp`, `rsp`, `rip`.
    pub const MASK: u64 = 0b1_1100_0000;

    pub fn of(values: &[u64]) -> Option<(u64, u64, framehop::UnwindRegsNative)> {
        let &[bp, sp, ip] = values else {
            return None;
        };
        Some((ip, sp, framehop::UnwindRegsNative::new(ip, sp, bp)))
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    /// `x29`, `lr`, `sp`, `pc`.
    pub const MASK: u64 = 0b1111 << 29;

    pub fn of(values: &[u64]) -> Option<(u64, u64, framehop::UnwindRegsNative)> {
        let &[fp, lr, sp, pc] = values else {
            return None;
        };
        Some((pc, sp, framehop::UnwindRegsNative::new(lr, sp, fp)))
    }
}

pub(super) use registers::MASK;

pub(super) fn stack_pointer(values: &[u64]) -> Option<u64> {
    registers::of(values).map(|(_, sp, _)| sp)
}

type Tables = Arc<[u8]>;

struct UnwindTables {
    segments: symbols::Segments,
    index: Option<(Range<u64>, Tables)>,
    frames: (Range<u64>, Tables),
}

#[derive(Default)]
struct StackCopy {
    ip: u64,
    sp: u64,
    generation: u64,
    stack: Vec<u8>,
    frames: Vec<(u64, bool)>,
}

/// Unwinds stacks.
#[derive(Default)]
pub(super) struct Unwinder {
    files: HashMap<Arc<str>, Option<UnwindTables>>,
    processes: FxHashMap<u32, (u64, UnwinderNative<Tables, MayAllocateDuringUnwind>)>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    last: FxHashMap<u32, StackCopy>,
    pub(super) vectors: Vectors,
}

impl Unwinder {
    /// Returns the frames of a program's stack, innermost first. Each has a flag for a return address.
    ///
    /// Returns `None` if the kernel's stack by frame pointers is at least as good.
    pub(super) fn frames(
        &mut self,
        pid: u32,
        tid: u32,
        values: &[u64],
        stack: Option<&[u8]>,
        processes: &Processes,
    ) -> Option<&[(u64, bool)]> {
        let (ip, sp, registers) = registers::of(values)?;
        let generation = processes.generation(pid);
        if let Some(stack) = stack.filter(|stack| !stack.is_empty()) {
            // A loop comes to the same place with the same stack again and again. Then we reuse the result.
            let same = self.last.get(&tid).is_some_and(|last| {
                (last.ip, last.sp, last.generation) == (ip, sp, generation) && last.stack == stack
            });
            if !same {
                let frames = self.follow(pid, ip, sp, registers, stack, processes);
                let last = self.last.entry(tid).or_default();
                (last.ip, last.sp, last.generation, last.frames) = (ip, sp, generation, frames);
                last.stack.clear();
                last.stack.extend_from_slice(stack);
            }
        }
        let last = self.last.get(&tid)?;
        // A single frame is no better than the stack by frame pointers.
        let same = (last.ip, last.sp) == (ip, sp) && last.frames.len() > 1;
        same.then_some(&last.frames[..])
    }

    /// Forgets a thread or a process after its last record.
    pub(super) fn forget(&mut self, forgotten: &Removal) {
        match forgotten {
            Removal::Thread(tid) => _ = self.last.remove(tid),
            Removal::Process(pid) => _ = self.processes.remove(pid),
        }
    }

    /// Unwinds a copied stack.
    fn follow(
        &mut self,
        pid: u32,
        ip: u64,
        sp: u64,
        registers: UnwindRegsNative,
        stack: &[u8],
        processes: &Processes,
    ) -> Vec<(u64, bool)> {
        let generation = processes.generation(pid);
        if self.processes.get(&pid).is_none_or(|(known, _)| *known != generation) {
            let unwinder = self.unwinder(pid, processes);
            self.processes.insert(pid, (generation, unwinder));
        }
        let unwinder = &self.processes[&pid].1;
        let mut read = |address: u64| {
            let at = usize::try_from(address.checked_sub(sp).ok_or(())?).map_err(|_| ())?;
            let word = stack.get(at..at.checked_add(8).ok_or(())?).ok_or(())?;
            Ok(u64::from_ne_bytes(word.try_into().map_err(|_| ())?))
        };
        let mut frames = Vec::new();
        let mut steps = unwinder.iter_frames(ip, registers, &mut self.cache, &mut read);
        while frames.len() < DEEPEST
            && let Ok(Some(frame)) = steps.next()
        {
            frames.push((frame.address(), frame.is_return_address()));
        }
        frames
    }

    /// Creates an unwinder with all files that a process has mapped.
    fn unwinder(
        &mut self,
        pid: u32,
        processes: &Processes,
    ) -> UnwinderNative<Tables, MayAllocateDuringUnwind> {
        let mut unwinder = UnwinderNative::new();
        for (start, mapping) in processes.mappings(pid) {
            if !symbols::is_file(&mapping.module) {
                continue;
            }
            let path = &mapping.module;
            if !self.files.contains_key(path) {
                self.files.insert(path.clone(), read(path, pid));
            }
            if let Some(file) = &self.files[path]
                && let Some(module) = file.module(start, mapping)
            {
                unwinder.add_module(module);
            }
        }
        unwinder
    }
}

impl UnwindTables {
    fn module(&self, start: u64, mapping: &Mapping) -> Option<Module<Tables>> {
        // A segment is mapped from the start of its first page. The segment before may end in the same page.
        let largest_page = mapping.offset..mapping.offset.saturating_add(1 << 16);
        let mut segments = self.segments.iter();
        let begins = segments.clone().find(|(part, _)| largest_page.contains(&part.start));
        let found = begins.or_else(|| segments.find(|(part, _)| part.contains(&mapping.offset)));
        let (part, address) = found?;
        let mapped = address.wrapping_add(mapping.offset).wrapping_sub(part.start);
        let base = start.wrapping_sub(mapped);
        let (index_range, index) = self.index.clone().unzip();
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: Some(self.frames.0.clone()),
            eh_frame: Some(self.frames.1.clone()),
            eh_frame_hdr_svma: index_range,
            eh_frame_hdr: index,
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Module::new(mapping.module.to_string(), start..mapping.end, base, sections))
    }
}

/// Reads a file's tables. Returns `None` if it has none.
fn read(path: &str, pid: u32) -> Option<UnwindTables> {
    let file = File::open(symbols::seen(path, pid)).ok()?;
    file.metadata().is_ok_and(|data| data.is_file()).then_some(())?;
    let cache = ReadCache::new(file);
    let file = object::File::parse(&cache).ok()?;
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let range = section.address()..section.address().checked_add(section.size())?;
        (section.size() <= MOST_TABLE).then_some(())?;
        Some((range, Tables::from(section.data().ok()?)))
    };
    let (index, frames) = (section(".eh_frame_hdr"), section(".eh_frame")?);
    Some(UnwindTables { segments: symbols::segments(&file), index, frames })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::perf::sample::{Host, NameTable};

    /// Unwinds any stack with this program's own tables, damaged. This must end without a panic.
    fn damaged(changes: &[(prop::sample::Index, u8)], stack: &[u8], at: u64, bp: u64) {
        let own = std::env::current_exe().unwrap();
        let path: Arc<str> = own.to_str().unwrap().into();
        let (processes, _) =
            Processes::running(None, &mut NameTable::default(), &mut Host::default());
        let pid = std::process::id();
        let mut unwinding = read(&path, pid).unwrap();
        let mut tables = unwinding.frames.1.to_vec();
        for (index, byte) in changes {
            let index = index.index(tables.len());
            tables[index] = *byte;
        }
        unwinding.frames.1 = tables.into();
        let mut unwinder = Unwinder::default();
        unwinder.files.insert(path, Some(unwinding));
        let ip = damaged as *const () as u64 + at;
        #[cfg(target_arch = "x86_64")]
        let values = [bp, 0x1000, ip];
        #[cfg(target_arch = "aarch64")]
        let values = [bp, ip, 0x1000, ip];
        unwinder.frames(pid, pid, &values, Some(stack), &processes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_table_and_no_stack_makes_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..200),
            stack in prop::collection::vec(any::<u8>(), 0..512),
            at in 0u64..10_000,
            bp in 0u64..0x1400,
        ) {
            damaged(&changes, &stack, at, bp);
        }
    }
}

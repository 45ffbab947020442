//! The boot loader's information, in the format of PVH (QEMU) or multiboot2 (GRUB).

use crate::{BootInfo, memory};
use core::ops::Range;
use multiboot2::{BootInformation, BootInformationHeader, MemoryAreaType};

/// The number of memory ranges that we read. A firmware's map has about ten.
const RANGES: usize = 32;

/// The loader's information.
pub struct LoaderInfo {
    /// The information for the rest of the kernel.
    pub boot: BootInfo,
    /// The physical address of the firmware's ACPI root pointer, or of a copy.
    pub rsdp: u64,
    /// Usable memory.
    usable: [Range<u64>; RANGES],
    /// The parts of it that contain this information, apart from the module.
    taken: [Range<u64>; 4],
}

/// `struct hvm_start_info` of the PVH boot protocol.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

/// `struct hvm_modlist_entry`.
#[repr(C)]
struct Module {
    start: u64,
    bytes: u64,
    command_line: u64,
    reserved: u64,
}

/// `struct hvm_memmap_table_entry`.
#[repr(C)]
struct MemoryRange {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

const PVH_MAGIC: u32 = 0x336e_c578;
const USABLE: u32 = 1;

impl LoaderInfo {
    /// Reads the information at a physical address: multiboot2 if `magic` matches, otherwise PVH.
    ///
    /// # Safety
    /// The information is there, in mapped memory, which is never used for anything else.
    ///
    /// # Panics
    /// If it has neither format, or contains invalid text.
    pub unsafe fn read(info: u64, magic: u32) -> Self {
        // SAFETY: as the caller promises.
        unsafe { if magic == multiboot2::MAGIC { Self::multiboot(info) } else { Self::pvh(info) } }
    }

    /// # Safety
    /// As for [`LoaderInfo::read`].
    unsafe fn pvh(info: u64) -> Self {
        // SAFETY: as the caller promises.
        let start = unsafe { &*memory::pointer::<StartInfo>(info) };
        assert!(
            start.magic == PVH_MAGIC && start.version >= 1,
            "not started by PVH with a memory map"
        );
        // SAFETY: the start info contains the address and the length of the memory map.
        let map = unsafe {
            core::slice::from_raw_parts(
                memory::pointer::<MemoryRange>(start.memory_map),
                start.memory_map_entries as usize,
            )
        };
        // SAFETY: the start info contains the number of its modules.
        let module = (start.modules > 0).then(|| unsafe {
            let module = &*memory::pointer::<Module>(start.module_list);
            module.start..module.start + module.bytes
        });
        let command_line = match start.command_line {
            0 => "",
            // SAFETY: this is a C string.
            address => unsafe { core::ffi::CStr::from_ptr(memory::pointer(address)) }
                .to_str()
                .expect("the command line is text"),
        };
        let ranges = map.iter().filter(|range| range.kind == USABLE);
        LoaderInfo {
            boot: BootInfo { command_line, module },
            rsdp: start.rsdp,
            usable: collected(ranges.map(|range| range.start..range.start + range.bytes)),
            taken: [
                of(info, size_of::<StartInfo>()),
                of(start.module_list, size_of::<Module>()),
                of(start.command_line, command_line.len() + 1),
                of(start.memory_map, size_of_val(map)),
            ],
        }
    }

    /// # Safety
    /// As for [`LoaderInfo::read`].
    unsafe fn multiboot(info: u64) -> Self {
        let pointer = memory::pointer::<BootInformationHeader>(info);
        // SAFETY: as the caller promises.
        let all = unsafe { BootInformation::load(pointer.cast_const()) }
            .expect("multiboot2 information that can be read");
        let command_line = all.command_line_tag().map_or("", |tag| {
            // SAFETY: the text is part of the information, which the caller keeps for ever.
            let tag: &'static multiboot2::CommandLineTag = unsafe { &*core::ptr::from_ref(tag) };
            tag.cmdline().expect("the command line is text")
        });
        let rsdp = match (all.rsdp_v2_tag(), all.rsdp_v1_tag()) {
            (Some(tag), _) => core::ptr::from_ref(tag).cast::<u8>(),
            (None, Some(tag)) => core::ptr::from_ref(tag).cast::<u8>(),
            (None, None) => panic!("the loader found no ACPI tables"),
        };
        // The copy of the root pointer begins behind the type and the size of the tag.
        let rsdp = memory::physical(rsdp) + 8;
        let map = all.memory_map_tag().expect("the loader passes a memory map");
        let usable = map
            .memory_areas()
            .iter()
            .filter(|area| area.typ() == MemoryAreaType::Available)
            .map(|area| area.start_address()..area.end_address());
        let module = all.module_tags().next();
        let module = module.map(|tag| tag.start_address().into()..tag.end_address().into());
        LoaderInfo {
            boot: BootInfo { command_line, module },
            rsdp,
            usable: collected(usable),
            taken: [of(info, all.total_size()), 0..0, 0..0, 0..0],
        }
    }

    /// Returns the end of usable memory.
    pub fn memory_end(&self) -> u64 {
        self.usable.iter().map(|range| range.end).max().unwrap_or(0)
    }

    /// Returns the largest range of usable memory without the kernel's image and the loader's information. The range
    /// begins in the first GB. The boot tables don't map more, and the other CPUs start on them.
    pub fn free_range(&self, image: Range<u64>) -> Range<u64> {
        let taken = || {
            let passed = self.taken.iter().chain(&self.boot.module);
            passed.chain([&image]).filter(|range| !range.is_empty())
        };
        let mut best = 0..0;
        for range in &self.usable {
            for start in [range.start].into_iter().chain(taken().map(|taken| taken.end)) {
                let inside = range.contains(&start) && start < 1 << 30;
                if !inside || taken().any(|taken| taken.contains(&start)) {
                    continue;
                }
                let next = taken().map(|taken| taken.start).filter(|&at| at >= start);
                let end = next.fold(range.end, u64::min);
                if end - start > best.end - best.start {
                    best = start..end;
                }
            }
        }
        best
    }
}

/// Returns the range of `bytes` bytes from an address, or an empty range if `bytes` is 0.
fn of(address: u64, bytes: usize) -> Range<u64> {
    match address {
        0 => 0..0,
        _ => address..address + bytes as u64,
    }
}

/// The first ranges of a map.
fn collected(ranges: impl Iterator<Item = Range<u64>>) -> [Range<u64>; RANGES] {
    let mut all = [const { 0..0 }; RANGES];
    all.iter_mut().zip(ranges).for_each(|(slot, range)| *slot = range);
    all
}

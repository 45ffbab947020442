//! Reads the loader's device tree.

use crate::{BootInfo, memory};
use core::ops::Range;
use hermit_dtb::Dtb;

unsafe extern "C" {
    static kernel_end: u8;
}

/// The maximum size of a device tree.
const TREE: u64 = 1 << 20;

/// The kernel's requirements from a device tree.
pub struct DeviceTree {
    /// The information for the rest of the kernel.
    pub boot: BootInfo,
    /// The end of memory.
    pub end: u64,
    /// Memory that is still empty.
    pub free: Range<u64>,
}

/// Returns a big-endian number of four or eight bytes.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Returns a text that ends with a zero.
pub fn text(bytes: &'static [u8]) -> Option<&'static str> {
    core::ffi::CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()
}

impl DeviceTree {
    /// Reads the tree at a physical address. The node with the name `memory` describes the memory.
    ///
    /// # Panics
    /// If the tree lacks a requirement.
    pub fn read(dtb: &Dtb<'static>, tree: u64, memory: &str) -> Self {
        let chosen = |name| dtb.get_property("chosen", name);
        let module = match (chosen("linux,initrd-start"), chosen("linux,initrd-end")) {
            (Some(start), Some(end)) => Some(number(start)..number(end)),
            _ => None,
        };
        let command_line =
            chosen("bootargs").map_or("", |line| text(line).expect("the command line is text"));
        let reg = dtb.get_property(memory, "reg").expect("the tree describes the memory");
        let (start, bytes) = (number(&reg[..8]), number(&reg[8..16]));
        // SAFETY: we only take the address of the linker's symbol.
        let mut free = memory::physical(&raw const kernel_end)..start + bytes;
        // The loader puts the file and the tree behind the image. We take the larger part, before or after.
        for taken in [Some(tree..tree + TREE), module.clone()].into_iter().flatten() {
            if taken.start >= free.start && taken.start < free.end {
                let (before, after) = (free.start..taken.start, taken.end.min(free.end)..free.end);
                free = if before.end - before.start >= after.end - after.start {
                    before
                } else {
                    after
                };
            }
        }
        let boot = BootInfo { command_line, module };
        DeviceTree { boot, end: start + bytes, free }
    }
}

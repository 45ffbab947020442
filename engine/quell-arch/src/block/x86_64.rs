//! Probes on x86-64: a probe loads all registers from [`STATE`], runs a block, and stores all registers there.
//!
//! After the block we can't rely on the content of any register. So we store everything to fixed addresses relative to
//! the instruction pointer; the probe's own stack pointer is saved there, too. We test vector registers of the width
//! that the processor and the operating system support.

use core::mem::offset_of;
use std::string::String;
use std::vec::Vec;

/// The number of 64-bit words of a vector register.
const LANES: usize = 8;

/// The registers that user mode can access on a processor.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Registers {
    /// x87, MXCSR and the lower halves of the first vector registers, as FXSAVE stores them.
    legacy: [u8; 512],
    vectors: [[u64; LANES]; 32],
    masks: [u64; 8],
    /// The general registers, in the order of their numbers.
    general: [u64; 16],
    flags: u64,
    /// The width of vectors: 0 for 128 bits, 1 for 256 bits, 2 for 512 bits and mask registers.
    width: u64,
}

/// The state of a probe. Only the holder of the lock around `run` uses it.
#[repr(C, align(64))]
pub(crate) struct State {
    pub(crate) before: Registers,
    pub(crate) after: Registers,
    host_legacy: [u8; 512],
    host_stack: u64,
}

/// The state of the running probe.
pub(crate) static mut STATE: State =
    State { before: Registers::ZERO, after: Registers::ZERO, host_legacy: [0; 512], host_stack: 0 };

impl State {
    pub(crate) const BEFORE: usize = offset_of!(State, before);
    pub(crate) const AFTER: usize = offset_of!(State, after);
    pub(crate) const HOST_LEGACY: usize = offset_of!(State, host_legacy);
    pub(crate) const HOST_STACK: usize = offset_of!(State, host_stack);
    pub(crate) const WIDTH: usize = offset_of!(State, before.width);
}

impl Registers {
    pub(crate) const ZERO: Self = Registers {
        legacy: [0; 512],
        vectors: [[0; LANES]; 32],
        masks: [0; 8],
        general: [0; 16],
        flags: 0,
        width: 0,
    };
}

/// The names of each general register, in the order of [`Registers::general`]: 64 and 32 bits.
const GENERAL: [[&str; 2]; 16] = [
    ["rax", "eax"],
    ["rcx", "ecx"],
    ["rdx", "edx"],
    ["rbx", "ebx"],
    ["rsp", "esp"],
    ["rbp", "ebp"],
    ["rsi", "esi"],
    ["rdi", "edi"],
    ["r8", "r8d"],
    ["r9", "r9d"],
    ["r10", "r10d"],
    ["r11", "r11d"],
    ["r12", "r12d"],
    ["r13", "r13d"],
    ["r14", "r14d"],
    ["r15", "r15d"],
];
const RSP: usize = 4;

/// The flags that arithmetic changes: CF, PF, AF, ZF, SF and OF.
const STATUS: u64 = 0x8d5;
/// The other bits that `popfq` loads: the bit that is always 1, and IF, which user mode can't change.
const FIXED_FLAGS: u64 = 0x202;

/// Defines a function that runs `text` between [`State::before`] and [`State::after`].
macro_rules! probe {
    ($($text:literal),+) => {{
        #[unsafe(naked)]
        unsafe extern "C" fn probe() {
            core::arch::naked_asm!(
                "push rbx",
                "push rbp",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "mov [rip + {state} + {host_stack}], rsp",
                // FXRSTOR loads x87, MXCSR and 128-bit vectors; wider ones and masks follow.
                "lea rax, [rip + {state}]",
                "fxsave64 [rax + {host_legacy}]",
                "fxrstor64 [rax + {before}]",
                "cmp qword ptr [rax + {width}], 1",
                "jb 203f",
                "ja 202f",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vmovdqu ymm\\i, [rax + {before} + {vectors} + 64 * \\i]",
                ".endr",
                "jmp 203f",
                "202:",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vmovdqu64 zmm\\i, [rax + {before} + {vectors} + 64 * \\i]",
                ".endr",
                ".irp i, 0,1,2,3,4,5,6,7",
                "kmovq k\\i, [rax + {before} + {masks} + 8 * \\i]",
                ".endr",
                "203:",
                "push qword ptr [rax + {before} + {flags}]",
                "popfq",
                "mov rax, [rip + {state} + {before} + {general} + 0]",
                "mov rcx, [rip + {state} + {before} + {general} + 8]",
                "mov rdx, [rip + {state} + {before} + {general} + 16]",
                "mov rbx, [rip + {state} + {before} + {general} + 24]",
                "mov rsp, [rip + {state} + {before} + {general} + 32]",
                "mov rbp, [rip + {state} + {before} + {general} + 40]",
                "mov rsi, [rip + {state} + {before} + {general} + 48]",
                "mov rdi, [rip + {state} + {before} + {general} + 56]",
                ".irp i, 8,9,10,11,12,13,14,15",
                "mov r\\i, [rip + {state} + {before} + {general} + 8 * \\i]",
                ".endr",
                $($text,)+
                "mov [rip + {state} + {after} + {general} + 0], rax",
                "mov [rip + {state} + {after} + {general} + 8], rcx",
                "mov [rip + {state} + {after} + {general} + 16], rdx",
                "mov [rip + {state} + {after} + {general} + 24], rbx",
                "mov [rip + {state} + {after} + {general} + 32], rsp",
                "mov [rip + {state} + {after} + {general} + 40], rbp",
                "mov [rip + {state} + {after} + {general} + 48], rsi",
                "mov [rip + {state} + {after} + {general} + 56], rdi",
                ".irp i, 8,9,10,11,12,13,14,15",
                "mov [rip + {state} + {after} + {general} + 8 * \\i], r\\i",
                ".endr",
                "mov rsp, [rip + {state} + {host_stack}]",
                "pushfq",
                "pop qword ptr [rip + {state} + {after} + {flags}]",
                "cld",
                "lea rax, [rip + {state}]",
                "fxsave64 [rax + {after}]",
                "cmp qword ptr [rax + {width}], 1",
                "jb 203f",
                "ja 202f",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vmovdqu [rax + {after} + {vectors} + 64 * \\i], ymm\\i",
                ".endr",
                "vzeroupper",
                "jmp 203f",
                "202:",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vmovdqu64 [rax + {after} + {vectors} + 64 * \\i], zmm\\i",
                ".endr",
                ".irp i, 0,1,2,3,4,5,6,7",
                "kmovq [rax + {after} + {masks} + 8 * \\i], k\\i",
                ".endr",
                "vzeroupper",
                "203:",
                "fxrstor64 [rax + {host_legacy}]",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbp",
                "pop rbx",
                "ret",
                state = sym crate::block::native::STATE,
                before = const crate::block::native::State::BEFORE,
                after = const crate::block::native::State::AFTER,
                host_legacy = const crate::block::native::State::HOST_LEGACY,
                host_stack = const crate::block::native::State::HOST_STACK,
                width = const crate::block::native::State::WIDTH,
                vectors = const crate::block::native::Registers::VECTORS,
                masks = const crate::block::native::Registers::MASKS,
                general = const crate::block::native::Registers::GENERAL,
                flags = const crate::block::native::Registers::FLAGS,
            )
        }
        probe
    }};
}

impl Registers {
    pub(crate) const VECTORS: usize = offset_of!(Registers, vectors);
    pub(crate) const MASKS: usize = offset_of!(Registers, masks);
    pub(crate) const GENERAL: usize = offset_of!(Registers, general);
    pub(crate) const FLAGS: usize = offset_of!(Registers, flags);

    /// Offsets in an FXSAVE area: control and status word, tags, MXCSR, registers.
    const CONTROL: usize = 0;
    const X87_STATUS: usize = 2;
    const X87_TAGS: usize = 4;
    const MXCSR: usize = 24;
    const X87_REGISTERS: usize = 32;
    const XMM: usize = 160;

    /// Fills all registers except `inputs` with pseudo-random bits, or with their complement.
    pub(crate) fn filled(inputs: &[(&str, u64)], stack: u64, complement: bool) -> Self {
        let flip = if complement { !0u64 } else { 0 };
        let mut next = super::stream(flip);
        let mut registers = Registers { width: width(), ..Registers::ZERO };
        for vector in &mut registers.vectors {
            vector.fill_with(&mut next);
        }
        registers.masks.fill_with(&mut next);
        registers.general.fill_with(&mut next);
        registers.general[RSP] = stack;
        for (name, value) in inputs {
            registers.general[Self::number(name)] = *value;
        }
        registers.flags = FIXED_FLAGS | STATUS & flip;
        let legacy = &mut registers.legacy;
        // Both fillings mask all exceptions. Rounding, precision and the status bits differ.
        let put16 = |area: &mut [u8; 512], at: usize, value: u16| {
            area[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        put16(legacy, Self::CONTROL, if complement { 0x0c7f } else { 0x037f });
        put16(legacy, Self::X87_STATUS, if complement { 0x4500 } else { 0x3a00 });
        legacy[Self::X87_TAGS] = if complement { 0x55 } else { 0xaa };
        let mxcsr: u32 = if complement { 0xff80 } else { 0x1fbf };
        legacy[Self::MXCSR..Self::MXCSR + 4].copy_from_slice(&mxcsr.to_le_bytes());
        for register in 0..8 {
            let at = Self::X87_REGISTERS + 16 * register;
            legacy[at..at + 8].copy_from_slice(&next().to_le_bytes());
            legacy[at + 8..at + 10].copy_from_slice(&next().to_le_bytes()[..2]);
        }
        for register in 0..16 {
            for lane in 0..2 {
                let at = Self::XMM + 16 * register + 8 * lane;
                let value = registers.vectors[register][lane].to_le_bytes();
                legacy[at..at + 8].copy_from_slice(&value);
            }
        }
        registers
    }

    fn number(name: &str) -> usize {
        GENERAL
            .iter()
            .position(|names| names.contains(&name))
            .unwrap_or_else(|| panic!("{name} is no general register"))
    }

    /// Returns the names of differing registers.
    pub(crate) fn changes(&self, after: &Self) -> Vec<String> {
        let width = self.width;
        let mut changed = Vec::new();
        let mut note = |name: String, differs: bool| {
            if differs {
                changed.push(name);
            }
        };
        for (number, names) in GENERAL.iter().enumerate() {
            note(names[0].into(), self.general[number] != after.general[number]);
        }
        let (count, lanes) = match width {
            0 => (16, 2),
            1 => (16, 4),
            _ => (32, LANES),
        };
        for number in 0..count {
            let differs = if width == 0 {
                let at = Self::XMM + 16 * number;
                self.legacy[at..at + 16] != after.legacy[at..at + 16]
            } else {
                self.vectors[number][..lanes] != after.vectors[number][..lanes]
            };
            note(std::format!("xmm{number}"), differs);
        }
        if width == 2 {
            for number in 0..8 {
                note(std::format!("k{number}"), self.masks[number] != after.masks[number]);
            }
        }
        let part =
            |at: usize, bytes: usize| self.legacy[at..at + bytes] != after.legacy[at..at + bytes];
        note("mxcsr".into(), part(Self::MXCSR, 4));
        // We compare control, status and tags. The rest of the header is the address of the last x87 instruction.
        note("x87".into(), part(0, 5) || (0..8).any(|n| part(Self::X87_REGISTERS + 16 * n, 10)));
        note("flags".into(), (self.flags ^ after.flags) & STATUS != 0);
        note("flags other than the status flags".into(), (self.flags ^ after.flags) & !STATUS != 0);
        changed
    }
}

/// The bytes above the stack pointer that a probe itself writes: none.
pub(crate) const SCRATCH: [usize; 2] = [0, 0];

/// Translates a declaration into the names of [`Registers::changes`].
pub(crate) fn canonical(declared: &str) -> String {
    GENERAL.iter().find(|names| names.contains(&declared)).map_or(declared, |names| names[0]).into()
}

/// Returns the width of this processor's vectors, for [`Registers::width`].
fn width() -> u64 {
    if std::is_x86_feature_detected!("avx512bw") {
        2
    } else if std::is_x86_feature_detected!("avx") {
        1
    } else {
        0
    }
}

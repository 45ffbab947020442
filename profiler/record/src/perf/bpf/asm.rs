//! A small assembler for BPF, sufficient for the short, loop-free programs in [`programs`](super::programs).
//!
//! Instructions are appended in order. A [`Label`] is a position that we set later, so jumps only lead forward. The
//! kernel's verifier checks the result, and refuses a wrong program when we load it.

/// A register.
///
/// `R0` holds results, and `R1` to `R5` arguments, which calls destroy. `R6` to `R9` survive calls. `R10` is the
/// frame's end.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R6 = 6,
    R7,
    R8,
    R9,
    R10,
}

/// The size of a load or a store.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Size {
    U8 = 0x10,
    U32 = 0x00,
    U64 = 0x18,
}

/// A condition of a jump, on unsigned numbers.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Condition {
    Equal = 0x10,
    Above = 0x20,
    Different = 0x50,
    Below = 0xa0,
}

/// Functions of the kernel that programs may call, with their numbers.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    KtimeGetNs = 5,
    GetSmpProcessorId = 8,
    GetCurrentPidTgid = 14,
    ProbeReadUser = 112,
    GetCurrentTaskBtf = 158,
    TaskPtRegs = 175,
}

/// A position in a program to jump to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<u64>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, op: u8, to: Reg, from: Reg, offset: i16, value: i32) {
        let registers = (to as u8) | (from as u8) << 4;
        let code = u64::from(op)
            | u64::from(registers) << 8
            | u64::from(offset.cast_unsigned()) << 16
            | u64::from(value.cast_unsigned()) << 32;
        self.code.push(code);
    }

    pub(super) fn copy(&mut self, to: Reg, from: Reg) {
        self.push(0xbf, to, from, 0, 0);
    }

    pub(super) fn set(&mut self, to: Reg, value: i32) {
        self.push(0xb7, to, Reg::R0, 0, value);
    }

    pub(super) fn set_wide(&mut self, to: Reg, value: u64) {
        self.push(0x18, to, Reg::R0, 0, (value as u32).cast_signed());
        self.code.push(value >> 32 << 32);
    }

    pub(super) fn set_map(&mut self, to: Reg, map: i32) {
        // `R1` in the source field marks the value as a map's descriptor.
        self.push(0x18, to, Reg::R1, 0, map);
        self.code.push(0);
    }

    pub(super) fn add(&mut self, to: Reg, value: i32) {
        self.push(0x07, to, Reg::R0, 0, value);
    }

    pub(super) fn add_register(&mut self, to: Reg, from: Reg) {
        self.push(0x0f, to, from, 0, 0);
    }

    pub(super) fn subtract(&mut self, to: Reg, from: Reg) {
        self.push(0x1f, to, from, 0, 0);
    }

    /// Clears the bits of a register that aren't set in the number.
    pub(super) fn mask(&mut self, to: Reg, value: i32) {
        self.push(0x57, to, Reg::R0, 0, value);
    }

    pub(super) fn shift_right(&mut self, to: Reg, bits: i32) {
        self.push(0x77, to, Reg::R0, 0, bits);
    }

    /// Loads `to` from the memory at `base` and an offset.
    pub(super) fn load(&mut self, size: Size, to: Reg, base: Reg, offset: i16) {
        self.push(0x61 | size as u8, to, base, offset, 0);
    }

    /// Stores `from` in the memory at `base` and an offset.
    pub(super) fn store(&mut self, size: Size, base: Reg, offset: i16, from: Reg) {
        self.push(0x63 | size as u8, base, from, offset, 0);
    }

    /// Stores a number in 64 bits.
    pub(super) fn store_value(&mut self, base: Reg, offset: i16, value: i32) {
        self.push(0x7a, base, Reg::R0, offset, value);
    }

    /// Adds `from` to the 64 bits at `base` and an offset, atomically.
    pub(super) fn add_to_memory(&mut self, base: Reg, offset: i16, from: Reg) {
        self.push(0xdb, base, from, offset, 0);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.push(0x85, Reg::R0, Reg::R0, 0, helper as i32);
    }

    /// Creates a label, to be set later by [`here`](Self::here).
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub(super) fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, Reg::R0, Reg::R0, 0, 0);
    }

    /// Jumps to the label if the condition holds for a register and a number.
    pub(super) fn jump_if(&mut self, register: Reg, is: Condition, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05 | is as u8, register, Reg::R0, 0, value);
    }

    /// Jumps to the label if the condition holds for two registers.
    pub(super) fn jump_if_register(&mut self, register: Reg, is: Condition, other: Reg, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x0d | is as u8, register, other, 0, 0);
    }

    /// Ends the program, and returns its instructions. The kernel ignores its result.
    pub(super) fn finish(&mut self) -> Vec<u64> {
        self.set(Reg::R0, 0);
        self.push(0x95, Reg::R0, Reg::R0, 0, 0);
        for &(at, label) in &self.jumps {
            let place = self.labels[label.0].expect("each label that is jumped to is set");
            let offset = i16::try_from(place - at - 1).expect("programs are short");
            self.code[at] |= u64::from(offset.cast_unsigned()) << 16;
        }
        std::mem::take(&mut self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        let mut asm = Assembler::default();
        let end = asm.label();
        asm.load(Size::U64, Reg::R6, Reg::R1, 8);
        asm.jump_if(Reg::R6, Condition::Below, 2, end);
        asm.store(Size::U32, Reg::R10, -4, Reg::R6);
        asm.set_wide(Reg::R7, 0x1234_5678_9abc_def0);
        asm.here(end);
        let expected = [
            0x0000_0000_0008_1679,
            0x0000_0002_0003_06a5,
            0x0000_0000_fffc_6a63,
            0x9abc_def0_0000_0718,
            0x1234_5678_0000_0000,
            0x0000_0000_0000_00b7,
            0x0000_0000_0000_0095,
        ];
        assert_eq!(asm.finish(), expected);
    }
}

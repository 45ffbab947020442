//! Probes on AArch64: a probe loads all registers from [`STATE`], runs a block, and stores all registers there.
//!
//! Every address needs a register. So we save the first register above the block's stack pointer, where no block may
//! write, until the others are stored.

use core::mem::offset_of;
use std::string::String;
use std::vec::Vec;

/// The registers that user mode can access on a processor without SVE.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Registers {
    /// x0 to x30, then the stack pointer.
    general: [u64; 32],
    vectors: [[u64; 2]; 32],
    /// NZCV, FPSR and FPCR.
    flags: [u64; 3],
}

/// The state of a probe. Only the holder of the lock around `run` uses it.
#[repr(C, align(16))]
pub(crate) struct State {
    pub(crate) before: Registers,
    pub(crate) after: Registers,
    host_stack: u64,
    /// FPSR and FPCR.
    host_flags: [u64; 2],
}

/// The state of the running probe.
pub(crate) static mut STATE: State =
    State { before: Registers::ZERO, after: Registers::ZERO, host_stack: 0, host_flags: [0; 2] };

impl State {
    pub(crate) const AFTER: usize = offset_of!(State, after);
    pub(crate) const HOST_STACK: usize = offset_of!(State, host_stack);
    pub(crate) const HOST_FLAGS: usize = offset_of!(State, host_flags);
}

const SP: usize = 31;
/// N, Z, C and V.
const STATUS: u64 = 0xf000_0000;
/// The saturation flag and the cumulative exceptions.
const FLOATING_STATUS: u64 = 0x0800_001f;
/// Rounding towards zero, default NaN.
const FLOATING_CONTROL: u64 = 0x02c0_0000;

/// Defines a function that runs `text` between [`State::before`] and [`State::after`].
macro_rules! probe {
    ($($text:literal),+) => {{
        #[unsafe(naked)]
        unsafe extern "C" fn probe() {
            core::arch::naked_asm!(
                "sub sp, sp, #160",
                "stp x19, x20, [sp]",
                "stp x21, x22, [sp, #16]",
                "stp x23, x24, [sp, #32]",
                "stp x25, x26, [sp, #48]",
                "stp x27, x28, [sp, #64]",
                "stp x29, x30, [sp, #80]",
                "stp d8, d9, [sp, #96]",
                "stp d10, d11, [sp, #112]",
                "stp d12, d13, [sp, #128]",
                "stp d14, d15, [sp, #144]",
                "adrp x0, {state}",
                "add x0, x0, :lo12:{state}",
                "mov x1, sp",
                "str x1, [x0, #{host_stack}]",
                "mrs x1, fpsr",
                "mrs x2, fpcr",
                "str x1, [x0, #{host_flags}]",
                "str x2, [x0, #{host_flags} + 8]",
                "ldr x1, [x0, #{flags}]",
                "msr nzcv, x1",
                "ldr x1, [x0, #{flags} + 8]",
                "msr fpsr, x1",
                "ldr x1, [x0, #{flags} + 16]",
                "msr fpcr, x1",
                "add x1, x0, #{vectors}",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "ldr q\\i, [x1, #16 * \\i]",
                ".endr",
                "ldr x1, [x0, #248]",
                "mov sp, x1",
                ".irp i, 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
                "ldr x\\i, [x0, #8 * \\i]",
                ".endr",
                "ldp x0, x1, [x0]",
                $($text,)+
                "str x0, [sp, #256]",
                "adrp x0, {state}",
                "add x0, x0, :lo12:{state}",
                "add x0, x0, #{after}",
                ".irp i, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
                "str x\\i, [x0, #8 * \\i]",
                ".endr",
                "mov x1, sp",
                "str x1, [x0, #248]",
                "ldr x1, [sp, #256]",
                "str x1, [x0]",
                "mrs x1, nzcv",
                "str x1, [x0, #{flags}]",
                "mrs x1, fpsr",
                "str x1, [x0, #{flags} + 8]",
                "mrs x1, fpcr",
                "str x1, [x0, #{flags} + 16]",
                "add x1, x0, #{vectors}",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "str q\\i, [x1, #16 * \\i]",
                ".endr",
                "sub x0, x0, #{after}",
                "ldr x1, [x0, #{host_flags}]",
                "msr fpsr, x1",
                "ldr x1, [x0, #{host_flags} + 8]",
                "msr fpcr, x1",
                "ldr x1, [x0, #{host_stack}]",
                "mov sp, x1",
                "ldp x19, x20, [sp]",
                "ldp x21, x22, [sp, #16]",
                "ldp x23, x24, [sp, #32]",
                "ldp x25, x26, [sp, #48]",
                "ldp x27, x28, [sp, #64]",
                "ldp x29, x30, [sp, #80]",
                "ldp d8, d9, [sp, #96]",
                "ldp d10, d11, [sp, #112]",
                "ldp d12, d13, [sp, #128]",
                "ldp d14, d15, [sp, #144]",
                "add sp, sp, #160",
                "ret",
                state = sym crate::block::native::STATE,
                after = const crate::block::native::State::AFTER,
                host_stack = const crate::block::native::State::HOST_STACK,
                host_flags = const crate::block::native::State::HOST_FLAGS,
                vectors = const crate::block::native::Registers::VECTORS,
                flags = const crate::block::native::Registers::FLAGS,
            )
        }
        probe
    }};
}

/// The bytes above the stack pointer that a probe itself writes: their start and end.
pub(crate) const SCRATCH: [usize; 2] = [256, 264];

impl Registers {
    pub(crate) const VECTORS: usize = offset_of!(Registers, vectors);
    pub(crate) const FLAGS: usize = offset_of!(Registers, flags);

    pub(crate) const ZERO: Self =
        Registers { general: [0; 32], vectors: [[0; 2]; 32], flags: [0; 3] };

    /// Fills all registers except `inputs` with pseudo-random bits, or with their complement.
    pub(crate) fn filled(inputs: &[(&str, u64)], stack: u64, complement: bool) -> Self {
        let flip = if complement { !0u64 } else { 0 };
        let mut next = super::stream(flip);
        let mut registers = Registers::ZERO;
        registers.general.fill_with(&mut next);
        for vector in &mut registers.vectors {
            vector.fill_with(&mut next);
        }
        registers.general[SP] = stack;
        for (name, value) in inputs {
            let number: usize = name
                .strip_prefix('x')
                .and_then(|number| number.parse().ok())
                .unwrap_or_else(|| panic!("{name} is no general register"));
            registers.general[number] = *value;
        }
        registers.flags = [STATUS, FLOATING_STATUS, FLOATING_CONTROL].map(|bits| bits & flip);
        registers
    }

    /// Returns the names of differing registers.
    pub(crate) fn changes(&self, after: &Self) -> Vec<String> {
        let mut changed = Vec::new();
        for (number, value) in self.general.iter().enumerate() {
            if *value != after.general[number] {
                changed.push(match number {
                    SP => "sp".into(),
                    _ => std::format!("x{number}"),
                });
            }
        }
        for (number, value) in self.vectors.iter().enumerate() {
            if *value != after.vectors[number] {
                changed.push(std::format!("v{number}"));
            }
        }
        for (index, name) in ["flags", "fpsr", "fpcr"].into_iter().enumerate() {
            if self.flags[index] != after.flags[index] {
                changed.push(name.into());
            }
        }
        changed
    }
}

/// Translates a declaration into the names of [`Registers::changes`].
pub(crate) fn canonical(declared: &str) -> String {
    declared.into()
}

//! Probes on RISC-V: a probe loads all registers from [`STATE`], runs a block, and stores all registers there.
//!
//! Every address needs a register. So we save the first register above the block's stack pointer, where no block may
//! write, until the others are stored. We leave the thread pointer as it is: the C library and signal handlers need it.

use core::mem::offset_of;
use std::string::String;
use std::vec::Vec;

/// The registers that user mode can access on a processor without the vector extension.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Registers {
    /// x0 to x31. The first is always 0, and we don't use that of the thread pointer.
    general: [u64; 32],
    floating: [u64; 32],
    /// The rounding mode and the accrued exceptions of floating-point operations.
    fcsr: u64,
}

/// The state of a probe. Only the holder of the lock around `run` uses it.
#[repr(C, align(16))]
pub(crate) struct State {
    pub(crate) before: Registers,
    pub(crate) after: Registers,
    host_stack: u64,
    host_global: u64,
    host_fcsr: u64,
}

/// The state of the running probe.
pub(crate) static mut STATE: State = State {
    before: Registers::ZERO,
    after: Registers::ZERO,
    host_stack: 0,
    host_global: 0,
    host_fcsr: 0,
};

impl State {
    pub(crate) const AFTER: usize = offset_of!(State, after);
    pub(crate) const HOST_STACK: usize = offset_of!(State, host_stack);
    pub(crate) const HOST_GLOBAL: usize = offset_of!(State, host_global);
    pub(crate) const HOST_FCSR: usize = offset_of!(State, host_fcsr);
}

const SP: usize = 2;
const TP: usize = 4;
/// The rounding mode "to the largest magnitude" and all five exceptions.
const FLOATING: u64 = 0x9f;

/// The names of the general registers in operands.
const NAMES: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4",
    "a5", "a6", "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4",
    "t5", "t6",
];

/// Defines a function that runs `text` between [`State::before`] and [`State::after`].
macro_rules! probe {
    ($($text:literal),+) => {{
        #[unsafe(naked)]
        unsafe extern "C" fn probe() {
            core::arch::naked_asm!(
                // A naked function doesn't get the target's extensions, so we name them.
                ".option push",
                ".option arch, +d, +zifencei",
                "addi sp, sp, -208",
                "sd ra, 0(sp)",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11",
                "sd s\\i, 8 + 8 * \\i(sp)",
                "fsd fs\\i, 104 + 8 * \\i(sp)",
                ".endr",
                "lla x31, {state}",
                "li x30, {host}",
                "add x30, x30, x31",
                "sd sp, {host_stack} - {host}(x30)",
                "sd gp, {host_global} - {host}(x30)",
                "frcsr x29",
                "sd x29, {host_fcsr} - {host}(x30)",
                "ld x29, {fcsr}(x31)",
                "fscsr x29",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "fld f\\i, {floating} + 8 * \\i(x31)",
                ".endr",
                ".irp i, 1,2,3,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
                "ld x\\i, 8 * \\i(x31)",
                ".endr",
                "ld x31, 8 * 31(x31)",
                $($text,)+
                "sd x31, 256(sp)",
                "lla x31, {state}",
                "addi x31, x31, {after}",
                ".irp i, 1,2,3,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
                "sd x\\i, 8 * \\i(x31)",
                ".endr",
                "ld x30, 256(sp)",
                "sd x30, 8 * 31(x31)",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "fsd f\\i, {floating} + 8 * \\i(x31)",
                ".endr",
                "frcsr x29",
                "sd x29, {fcsr}(x31)",
                "lla x31, {state}",
                "li x30, {host}",
                "add x30, x30, x31",
                "ld x29, {host_fcsr} - {host}(x30)",
                "fscsr x29",
                "ld gp, {host_global} - {host}(x30)",
                "ld sp, {host_stack} - {host}(x30)",
                "ld ra, 0(sp)",
                ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11",
                "ld s\\i, 8 + 8 * \\i(sp)",
                "fld fs\\i, 104 + 8 * \\i(sp)",
                ".endr",
                "addi sp, sp, 208",
                "ret",
                ".option pop",
                state = sym crate::block::native::STATE,
                after = const crate::block::native::State::AFTER,
                host = const crate::block::native::State::HOST_STACK,
                host_stack = const crate::block::native::State::HOST_STACK,
                host_global = const crate::block::native::State::HOST_GLOBAL,
                host_fcsr = const crate::block::native::State::HOST_FCSR,
                floating = const crate::block::native::Registers::FLOATING,
                fcsr = const crate::block::native::Registers::FCSR,
            )
        }
        probe
    }};
}

/// The bytes above the stack pointer that a probe itself writes: their start and end.
pub(crate) const SCRATCH: [usize; 2] = [256, 264];

impl Registers {
    pub(crate) const FLOATING: usize = offset_of!(Registers, floating);
    pub(crate) const FCSR: usize = offset_of!(Registers, fcsr);

    pub(crate) const ZERO: Self = Registers { general: [0; 32], floating: [0; 32], fcsr: 0 };

    /// Fills all registers except `inputs` with pseudo-random bits, or with their complement.
    pub(crate) fn filled(inputs: &[(&str, u64)], stack: u64, complement: bool) -> Self {
        let flip = if complement { !0u64 } else { 0 };
        let mut next = super::stream(flip);
        let mut registers = Registers::ZERO;
        registers.general.fill_with(&mut next);
        registers.floating.fill_with(&mut next);
        for unused in [0, TP] {
            registers.general[unused] = 0;
        }
        registers.general[SP] = stack;
        for (name, value) in inputs {
            let number = NAMES
                .iter()
                .position(|known| known == name)
                .unwrap_or_else(|| panic!("{name} is no general register"));
            registers.general[number] = *value;
        }
        // We don't set all bits: that rounding mode doesn't exist.
        registers.fcsr = FLOATING & flip;
        registers
    }

    /// Returns the names of differing registers.
    pub(crate) fn changes(&self, after: &Self) -> Vec<String> {
        let mut changed = Vec::new();
        for (number, value) in self.general.iter().enumerate() {
            if *value != after.general[number] {
                changed.push(NAMES[number].into());
            }
        }
        for (number, value) in self.floating.iter().enumerate() {
            if *value != after.floating[number] {
                changed.push(std::format!("f{number}"));
            }
        }
        if self.fcsr != after.fcsr {
            // On this architecture `preserves_flags` concerns the accrued exceptions. The rounding mode must never
            // change.
            let name = match (self.fcsr ^ after.fcsr) & !0x1f {
                0 => "flags",
                _ => "frm",
            };
            changed.push(name.into());
        }
        changed
    }
}

/// Translates a declaration into the names of [`Registers::changes`].
pub(crate) fn canonical(declared: &str) -> String {
    declared.into()
}

//! Registers of one CPU: its number, interrupt mask, clock, and the switch between stacks.

use aarch64_cpu::registers::{
    CNTFRQ_EL0, CNTKCTL_EL1, CNTVCT_EL0, DAIF, Readable, TPIDR_EL1, Writeable,
};
use core::arch::{asm, naked_asm};
use quell_arch::aarch64::features::Features;

/// Gives the CPU its number, and lets user mode read the clock.
///
/// # Safety
/// No other CPU has the number, and this one hasn't used its number yet.
pub unsafe fn init(index: usize) {
    TPIDR_EL1.set(index as u64);
    CNTKCTL_EL1.write(CNTKCTL_EL1::EL0VCTEN::SET);
}

/// Copies bytes in ascending order. For the compiler, this is an access by code other than Rust, so others may access
/// the same bytes meanwhile.
///
/// # Safety
/// `bytes` bytes can be read at `from` and written at `to`. There is no reference to an object at either, except one
/// at `to` that the caller alone uses.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "2: cmp {left}, #16",
            "b.lo 3f",
            "ldp {a}, {b}, [{from}], #16",
            "stp {a}, {b}, [{to}], #16",
            "sub {left}, {left}, #16",
            "b 2b",
            "3: cbz {left}, 4f",
            "ldrb {a:w}, [{from}], #1",
            "strb {a:w}, [{to}], #1",
            "sub {left}, {left}, #1",
            "b 3b",
            "4:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) bytes => _,
            a = out(reg) _,
            b = out(reg) _,
            options(nostack),
        );
    }
}

/// Returns the number of the CPU that executes this.
#[inline(always)]
pub fn index() -> usize {
    TPIDR_EL1.get() as usize
}

/// Masks interrupts, and returns whether they were on.
#[inline]
pub fn mask_interrupts() -> bool {
    let were_on = !DAIF.is_set(DAIF::I);
    // SAFETY: masks interrupts; acts as a compiler barrier, so that the guarded code stays inside.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) };
    were_on
}

/// Turns interrupts on if `were_on`.
#[inline]
pub fn restore_interrupts(were_on: bool) {
    if were_on {
        // SAFETY: the caller allows interrupts.
        unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
    }
}

/// Allows non-maskable interrupts.
pub fn allow_nmis() {
    // SAFETY: this CPU has a stack and its vectors.
    unsafe { asm!("msr daifclr, #1", options(nostack, preserves_flags)) };
}

/// One turn of a waiting loop.
pub use quell_arch::relax;

/// Halts until an interrupt was served. Called with interrupts masked, returns with them masked.
pub fn halt() {
    // A pending interrupt ends the wait even if it's masked. The CPU serves it afterwards.
    aarch64_cpu::asm::wfi();
    restore_interrupts(true);
    aarch64_cpu::asm::barrier::isb(aarch64_cpu::asm::barrier::SY);
    mask_interrupts();
}

/// Returns the virtual counter.
#[inline]
pub fn ticks() -> u64 {
    CNTVCT_EL0.get()
}

/// Returns the number of [`ticks`] in a millisecond.
pub fn ticks_per_ms() -> u64 {
    (CNTFRQ_EL0.get() / 1000).max(1)
}

/// Returns the features of the processor.
pub fn processor() -> Features {
    static PROCESSOR: spin::Once<Features> = spin::Once::new();
    // SAFETY: the kernel runs at level 1.
    *PROCESSOR.call_once(|| unsafe { Features::detect() })
}

/// Writes the first frame on an empty stack, so that [`switch`] to it calls `entry`.
///
/// # Safety
/// `top` is the end of a stack that nothing uses, aligned to 16 bytes.
pub unsafe fn first_frame(top: u64, entry: extern "C" fn() -> !) -> u64 {
    // The frame has twelve registers, of which the last is the link register.
    let frame = (top - 12 * 8) as *mut [u64; 12];
    let mut words = [0; 12];
    words[11] = entry as usize as u64;
    // SAFETY: the caller's stack ends at `top` and is unused.
    unsafe { frame.write(words) };
    frame as u64
}

/// Tells the machine of `quell hunt` that no CPU may use older translations of the frames from this address on. Does
/// nothing on other machines.
#[inline]
pub fn tell_reusable(first: u64, frames: u64) {
    // SAFETY: does nothing.
    unsafe {
        asm!("hint #113", in("x0") first, in("x1") frames, options(nomem, nostack, preserves_flags));
    }
}

/// Saves the callee-saved registers and stack pointer at `save`, and continues on the stack `to`.
///
/// # Safety
/// `to` was saved by this function or made by [`first_frame`], and interrupts are masked.
#[unsafe(naked)]
pub unsafe extern "C" fn switch(save: *mut u64, to: u64) {
    naked_asm!(
        "sub sp, sp, #96",
        "stp x19, x20, [sp, #0]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp, #0]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "add sp, sp, #96",
        "ret",
    )
}

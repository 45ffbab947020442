//! Registers of one CPU: its number, interrupt mask, clock, and the switch between stacks.
//!
//! The register `tp`, which compilers don't use, contains the CPU's number. User mode may change it, so we load it
//! again on every return to the kernel (`traps.s`).

use super::software;
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell_arch::riscv64::features::Features;
use quell_arch::riscv64::tlb;
use riscv::register::{scounteren, sie, sstatus};

/// Gives the CPU its number. Allows the kernel user memory, and user mode the clock.
///
/// # Safety
/// No other CPU has the number, and this one hasn't used its number yet.
pub unsafe fn init(index: usize) {
    // SAFETY: as the caller promises. Interrupts stay masked.
    unsafe {
        asm!("mv tp, {}", in(reg) index, options(nomem, nostack, preserves_flags));
        asm!("csrw sscratch, zero", options(nomem, nostack, preserves_flags));
        sstatus::clear_sie();
        sstatus::set_sum();
        sie::set_ssoft();
        scounteren::set_tm();
    }
}

/// Copies bytes in ascending order. For the compiler, this is an access by code other than Rust, so others may access
/// the same bytes meanwhile.
///
/// # Safety
/// `bytes` bytes can be read at `from` and written at `to`. There is no reference to an object at either, except one
/// at `to` that the caller alone uses.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // We copy words only if both ends are aligned to them, because firmware may emulate other accesses slowly.
    let words = match (from.addr() | to.addr()) % 8 {
        0 => bytes / 8,
        _ => 0,
    };
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "2: beqz {words}, 3f",
            "ld {value}, 0({from})",
            "sd {value}, 0({to})",
            "addi {from}, {from}, 8",
            "addi {to}, {to}, 8",
            "addi {words}, {words}, -1",
            "j 2b",
            "3: beqz {rest}, 4f",
            "lbu {value}, 0({from})",
            "sb {value}, 0({to})",
            "addi {from}, {from}, 1",
            "addi {to}, {to}, 1",
            "addi {rest}, {rest}, -1",
            "j 3b",
            "4:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            words = inout(reg) words => _,
            rest = inout(reg) bytes - 8 * words => _,
            value = out(reg) _,
            options(nostack),
        );
    }
}

/// Returns the number of the CPU that executes this.
#[inline(always)]
pub fn index() -> usize {
    let index;
    // SAFETY: reading a register.
    unsafe { asm!("mv {}, tp", out(reg) index, options(nomem, nostack, preserves_flags)) };
    index
}

/// Masks interrupts, and returns whether they were on.
#[inline]
pub fn mask_interrupts() -> bool {
    const ON: usize = 1 << 1;
    let before: usize;
    // SAFETY: masks interrupts; acts as a compiler barrier, so that the guarded code stays inside.
    unsafe { asm!("csrrci {}, sstatus, 2", out(reg) before, options(nostack, preserves_flags)) };
    before & ON != 0
}

/// Turns interrupts on if `were_on`.
#[inline]
pub fn restore_interrupts(were_on: bool) {
    if were_on {
        // SAFETY: the caller allows interrupts.
        unsafe { sstatus::set_sie() };
    }
}

/// Performs one turn of a waiting loop. An emulator that runs all CPUs on one thread then switches to the next CPU.
///
/// `pause` doesn't make such an emulator switch, but a halted CPU does. So we halt with the CPU's own interrupt
/// pending, which ends the halt at once.
pub fn relax() {
    let were_on = mask_interrupts();
    software::pend();
    riscv::asm::wfi();
    software::unpend(index());
    restore_interrupts(were_on);
}

/// Halts until an interrupt was served. Called with interrupts masked, returns with them masked.
pub fn halt() {
    // A pending interrupt ends the wait even if it's masked. The CPU serves it once interrupts are on.
    riscv::asm::wfi();
    restore_interrupts(true);
    mask_interrupts();
}

/// Returns the machine's clock.
#[inline]
pub fn ticks() -> u64 {
    riscv::register::time::read64()
}

static TICKS_PER_MS: AtomicU64 = AtomicU64::new(1);

/// Sets the frequency of [`ticks`] in ticks per second, from the device tree.
pub fn set_frequency(hertz: u64) {
    TICKS_PER_MS.store((hertz / 1000).max(1), Relaxed);
}

/// Returns the number of [`ticks`] in a millisecond.
pub fn ticks_per_ms() -> u64 {
    TICKS_PER_MS.load(Relaxed)
}

static PROCESSOR: spin::Once<Features> = spin::Once::new();

/// Detects the processor's features; `isa` is the device tree's description.
///
/// # Safety
/// The first CPU, with interrupts masked, on tables that map the kernel globally.
pub unsafe fn detect(isa: &str) {
    // SAFETY: as the caller promises.
    PROCESSOR.call_once(|| Features::decode(isa, unsafe { tlb::writable_asid() }));
}

/// Returns the features of the processor.
///
/// # Panics
/// Before [`detect`].
pub fn processor() -> Features {
    *PROCESSOR.get().expect("detected when the first CPU started")
}

/// Writes the first frame on an empty stack, so that [`switch`] to it calls `entry`.
///
/// # Safety
/// `top` is the end of a stack that nothing uses, aligned to 16 bytes.
pub unsafe fn first_frame(top: u64, entry: extern "C" fn() -> !) -> u64 {
    // The frame has the return address, twelve registers, and padding that aligns the stack.
    let frame = (top - 14 * 8) as *mut [u64; 14];
    let mut words = [0; 14];
    words[0] = entry as usize as u64;
    // SAFETY: the caller's stack ends at `top` and is unused.
    unsafe { frame.write(words) };
    frame as u64
}

/// Tells nothing: no machine of `quell hunt` has this architecture.
#[inline]
pub fn tell_reusable(_first: u64, _frames: u64) {}

/// Saves the callee-saved registers and stack pointer at `save`, and continues on the stack `to`.
///
/// # Safety
/// `to` was saved by this function or made by [`first_frame`], and interrupts are masked.
#[unsafe(naked)]
pub unsafe extern "C" fn switch(save: *mut u64, to: u64) {
    naked_asm!(
        "addi sp, sp, -112",
        "sd ra, 0(sp)",
        "sd s0, 8(sp)",
        "sd s1, 16(sp)",
        "sd s2, 24(sp)",
        "sd s3, 32(sp)",
        "sd s4, 40(sp)",
        "sd s5, 48(sp)",
        "sd s6, 56(sp)",
        "sd s7, 64(sp)",
        "sd s8, 72(sp)",
        "sd s9, 80(sp)",
        "sd s10, 88(sp)",
        "sd s11, 96(sp)",
        "sd sp, 0(a0)",
        "mv sp, a1",
        "ld ra, 0(sp)",
        "ld s0, 8(sp)",
        "ld s1, 16(sp)",
        "ld s2, 24(sp)",
        "ld s3, 32(sp)",
        "ld s4, 40(sp)",
        "ld s5, 48(sp)",
        "ld s6, 56(sp)",
        "ld s7, 64(sp)",
        "ld s8, 72(sp)",
        "ld s9, 80(sp)",
        "ld s10, 88(sp)",
        "ld s11, 96(sp)",
        "addi sp, sp, 112",
        "ret",
    )
}

//! Entry, system calls and accesses on AArch64.

use core::arch::{asm, naked_asm};

/// The entry, which receives three words in registers and an aligned stack.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.start")]
extern "C" fn user_start() -> ! {
    naked_asm!("mov x29, xzr", "b user_main")
}

/// Makes a system call with its number and six operands. Returns the value and the error number.
#[inline]
pub fn system_call(words: [u64; 7]) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel preserves every register except the two results, and the caller is responsible for the call's
    // effect on memory.
    unsafe {
        asm!("svc #0", inlateout("x0") words[0] => value, inlateout("x1") words[1] => error,
             in("x2") words[2], in("x3") words[3], in("x4") words[4], in("x5") words[5],
             in("x6") words[6], options(nostack));
    }
    (value, error)
}

/// Loads a word, for [`crate::shared::load`].
#[inline]
pub fn load(address: u64) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel skips an access that isn't allowed, and then sets x3.
    unsafe {
        asm!("mov x3, xzr", "ldr x1, [x0]", in("x0") address, out("x1") value, out("x3") error,
             options(nostack, readonly));
    }
    (value, error)
}

/// Stores a word, for [`crate::shared::store`].
///
/// # Safety
/// The program has no Rust object at the address.
#[inline]
pub unsafe fn store(address: u64, value: u64) -> u64 {
    let error;
    // SAFETY: as for `load`, and as the caller promises.
    unsafe {
        asm!("mov x3, xzr", "str x1, [x0]", in("x0") address, in("x1") value, out("x3") error,
             options(nostack));
    }
    error
}

/// One turn of a waiting loop.
pub use quell_arch::relax;

/// Reads the clock that is visible to user mode.
#[inline]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: this only reads a counter.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

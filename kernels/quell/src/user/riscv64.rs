//! Entry, system calls and accesses on RISC-V.

use core::arch::{asm, naked_asm};

/// The entry, which receives three words in registers and an aligned stack.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.start")]
extern "C" fn user_start() -> ! {
    naked_asm!("mv s0, zero", "mv ra, zero", "tail user_main")
}

/// Makes a system call with its number and six operands. Returns the value and the error number.
#[inline]
pub fn system_call(words: [u64; 7]) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel preserves every register except the two results, and the caller is responsible for the call's
    // effect on memory.
    unsafe {
        asm!("ecall", inlateout("a0") words[0] => value, inlateout("a1") words[1] => error,
             in("a2") words[2], in("a3") words[3], in("a4") words[4], in("a5") words[5],
             in("a6") words[6], options(nostack));
    }
    (value, error)
}

/// Loads a word, for [`crate::shared::load`].
#[inline]
pub fn load(address: u64) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel skips an access that isn't allowed, assuming that it has four bytes, and sets a3.
    unsafe {
        asm!("li a3, 0", ".option push", ".option norvc", "ld a1, 0(a0)", ".option pop",
             in("a0") address, out("a1") value, out("a3") error, options(nostack, readonly));
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
        asm!("li a3, 0", ".option push", ".option norvc", "sd a1, 0(a0)", ".option pop",
             in("a0") address, in("a1") value, out("a3") error, options(nostack));
    }
    error
}

/// Performs one turn of a waiting loop. The kernel lets another CPU of an emulator run, because user mode has no
/// instruction for that.
#[inline]
pub fn relax() {
    system_call([crate::layout::RELAX, 0, 0, 0, 0, 0, 0]);
}

/// Reads the clock that is visible to user mode.
#[inline]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: this only reads a counter.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

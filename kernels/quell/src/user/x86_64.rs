//! Entry, system calls and accesses on x86-64.

use core::arch::{asm, naked_asm};

/// The entry: three words in registers, an aligned stack as after a call.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.start")]
extern "C" fn user_start() -> ! {
    naked_asm!("xor ebp, ebp", "jmp user_main")
}

/// A system call: number and six operands; returns value and error number.
#[inline]
pub fn system_call(words: [u64; 7]) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel preserves every register but the two results; the caller is responsible for the call's effect
    // on memory.
    unsafe {
        asm!("int 0x80", inlateout("rax") words[0] => value, in("rdi") words[1],
             in("rsi") words[2], inlateout("rdx") words[3] => error, in("r10") words[4],
             in("r8") words[5], in("r9") words[6], options(nostack));
    }
    (value, error)
}

/// Loads a word; the error number is 0 unless the kernel refused the access.
///
/// # Panics
/// If the address is in the program itself.
#[inline]
pub fn load(address: u64) -> (u64, u64) {
    crate::shared::assert_no_object(address);
    let (value, error);
    // SAFETY: an access that is not allowed is skipped by the kernel, which then sets rcx; it
    // recognises the instruction by its encoding, `mov rax, [rdi]`.
    unsafe {
        asm!("xor ecx, ecx", ".byte 0x48, 0x8b, 0x07", in("rdi") address,
             out("rax") value, out("rcx") error, options(nostack, readonly));
    }
    (value, error)
}

/// Stores a word; returns the error number, 0 unless the kernel refused the access.
///
/// # Panics
/// If the address is in the program itself.
#[inline]
pub fn store(address: u64, value: u64) -> u64 {
    crate::shared::assert_no_object(address);
    let error;
    // SAFETY: as for `load`; the encoding is `mov [rdi], rsi`. The program owns no Rust object at
    // the address, as asserted.
    unsafe {
        asm!("xor ecx, ecx", ".byte 0x48, 0x89, 0x37", in("rdi") address, in("rsi") value,
             out("rcx") error, options(nostack));
    }
    error
}

/// One turn of a waiting loop.
pub use quell_arch::relax;

/// The clock that user mode can read.
#[inline]
#[allow(dead_code)]
pub fn ticks() -> u64 {
    // SAFETY: reading a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

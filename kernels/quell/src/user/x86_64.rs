//! Entry, system calls and accesses on x86-64.

use core::arch::{asm, naked_asm};

/// The entry, which receives three words in registers and a stack with the alignment after a call.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.start")]
extern "C" fn user_start() -> ! {
    naked_asm!("xor ebp, ebp", "jmp user_main")
}

/// Makes a system call with its number and six operands. Returns the value and the error number.
#[inline]
pub fn system_call(words: [u64; 7]) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel preserves every register except the two results, and the caller is responsible for the call's
    // effect on memory.
    unsafe {
        asm!("int 0x80", inlateout("rax") words[0] => value, in("rdi") words[1],
             in("rsi") words[2], inlateout("rdx") words[3] => error, in("r10") words[4],
             in("r8") words[5], in("r9") words[6], options(nostack));
    }
    (value, error)
}

/// Loads a word, for [`crate::shared::load`].
#[inline]
pub fn load(address: u64) -> (u64, u64) {
    let (value, error);
    // SAFETY: the kernel skips an access that isn't allowed, and then sets rcx. It recognises the instruction by its
    // encoding, `mov rax, [rdi]`.
    unsafe {
        asm!("xor ecx, ecx", ".byte 0x48, 0x8b, 0x07", in("rdi") address,
             out("rax") value, out("rcx") error, options(nostack, readonly));
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
    // SAFETY: as for `load`, and as the caller promises. The encoding is `mov [rdi], rsi`.
    unsafe {
        asm!("xor ecx, ecx", ".byte 0x48, 0x89, 0x37", in("rdi") address, in("rsi") value,
             out("rcx") error, options(nostack));
    }
    error
}

/// One turn of a waiting loop.
pub use quell_arch::relax;

/// Reads the clock that is visible to user mode.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: this only reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

//! The program: reads a number of pages over and over, and calls the kernel when it reads [`TAKEN`].

use core::arch::global_asm;
use core::slice;

/// The content of a frame after its unmapping.
pub const TAKEN: u64 = 0x7461_6b65_6e21_7461;

// rbx walks, r12 is the first address, r13 is TAKEN, r14 how many pages. The load is LOAD_LENGTH bytes long.
global_asm!(
    ".section .rodata",
    ".global trial_program_start",
    ".global trial_program_end",
    "trial_program_start:",
    "2: mov rbx, r12",
    "   mov rcx, r14",
    "3: mov rax, [rbx]",
    "   cmp rax, r13",
    "   je 4f",
    "   add rbx, 4096",
    "   pause",
    "   dec rcx",
    "   jnz 3b",
    "   jmp 2b",
    "4: syscall",
    "   jmp 2b",
    "trial_program_end:",
    ".text",
);

/// The length of the load, to skip it after a fault.
pub const LOAD_LENGTH: usize = 3;

/// Its instructions.
pub fn text() -> &'static [u8] {
    unsafe extern "C" {
        static trial_program_start: u8;
        static trial_program_end: u8;
    }
    let (start, end) = (&raw const trial_program_start, &raw const trial_program_end);
    // SAFETY: both are in the read-only data above, in this order.
    unsafe { slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

//! Exceptions and interrupts: the vector, and the code that handles those from kernel mode.

use super::{interrupts, paging};
use crate::cause::Fault;
use crate::{accessors, trap};
use quell::Page;
use riscv::register::stvec::{self, Stvec, TrapMode};

core::arch::global_asm!(include_str!("traps.s"));

unsafe extern "C" {
    static trap_vector: u8;
    static probe_start: u8;
    static probe_end: u8;
    static probe_failed: u8;
}

/// The registers at a trap, as `traps.s` saves them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrapFrame {
    /// The registers x1 to x31.
    pub(super) x: [u64; 31],
    pub(super) pc: u64,
    pub(super) status: u64,
    pub(super) cause: u64,
    pub(super) value: u64,
    pub(super) unused: u64,
}

/// A bit of the status: the trap came from kernel mode.
pub const FROM_KERNEL: u64 = 1 << 8;
/// A bit of the status: interrupts were on.
pub const INTERRUPTS_WERE_ON: u64 = 1 << 5;

/// The exception of a system call.
const SYSTEM_CALL: u64 = 8;
const FETCH_FAULT: u64 = 12;
const LOAD_FAULT: u64 = 13;
const STORE_FAULT: u64 = 15;

/// The cause of a trap.
pub enum Cause {
    /// An interrupt with this number.
    Interrupt(u64),
    /// A page fault.
    Fault(Fault),
    /// A page fault for which the tables contain no reason any more. This CPU has dropped its cached entry, so the
    /// access may be retried.
    Spurious,
    /// A system call.
    Call,
    /// Anything else.
    Other,
}

/// Sets this CPU's vector.
pub fn init_cpu() {
    let vector = &raw const trap_vector as usize;
    // SAFETY: this is the vector, which is aligned to four bytes.
    unsafe { stvec::write(Stvec::new(vector, TrapMode::Direct)) };
}

/// Returns the cause of a trap.
///
/// The hardware doesn't report whether there was a translation without the right. We decide that by the present tables.
pub fn cause(frame: &TrapFrame) -> Cause {
    const INTERRUPT: u64 = 1 << 63;
    if frame.cause & INTERRUPT != 0 {
        return Cause::Interrupt(frame.cause & !INTERRUPT);
    }
    let (write, fetch) = match frame.cause {
        SYSTEM_CALL => return Cause::Call,
        FETCH_FAULT => (false, true),
        LOAD_FAULT => (false, false),
        STORE_FAULT => (true, false),
        _ => return Cause::Other,
    };
    let translation = paging::translation(frame.value);
    let fault = Fault {
        address: frame.value,
        present: translation.is_some(),
        write,
        user: frame.status & FROM_KERNEL == 0,
        fetch,
    };
    let allowed = translation.is_some_and(|entry| {
        let right = match (write, fetch) {
            (true, _) => entry.writable && entry.dirty,
            (_, true) => entry.executable,
            _ => true,
        };
        // The kernel may access user pages, but not execute them.
        let mode = entry.user == fault.user || !fault.user && !fetch;
        right && mode && entry.accessed
    });
    if allowed {
        // A TLB may cache an absent or refused entry until it's invalidated.
        paging::invalidate_global(Page::containing(fault.address));
        return Cause::Spurious;
    }
    Cause::Fault(fault)
}

/// Handles a trap from kernel mode.
#[unsafe(no_mangle)]
extern "C" fn trap_kernel(frame: &mut TrapFrame) {
    match cause(frame) {
        Cause::Interrupt(number) => {
            if let Some(interrupt) = interrupts::acknowledge(number) {
                trap::interrupt(interrupt, frame.pc);
            }
        }
        Cause::Fault(fault) => page_fault(frame, fault),
        Cause::Spurious => {}
        Cause::Call | Cause::Other => panic!("exception in the kernel: {frame:#x?}"),
    }
}

/// Handles a page fault of the kernel. Only its accessors to user memory may fault.
fn page_fault(frame: &mut TrapFrame, fault: Fault) {
    let (start, end) = (&raw const probe_start as u64, &raw const probe_end as u64);
    if !(start..end).contains(&frame.pc) || !accessors::may_fault(fault.address) {
        panic!("page fault in the kernel: {fault:x?} {frame:#x?}");
    }
    trap::note_fault(&fault);
    frame.pc = &raw const probe_failed as u64;
}

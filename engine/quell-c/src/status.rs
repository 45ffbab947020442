//! What a function answers: a code, and a text for each.

use crate::capacity::CHECKED;
use core::ffi::c_char;

/// What came of a call. Everything but `QUELL_STATUS_OK` is a refusal: nothing was done.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_status {
    /// Done.
    Ok,
    /// A pointer that must not be NULL is NULL.
    Null,
    /// Memory is not aligned as its type demands.
    Misaligned,
    /// The header is not the library's: `quell_setup.interface` is not QUELL_INTERFACE.
    Interface,
    /// The text is no policy.
    Policy,
    /// The engine does not run on such a machine, or not with so many CPUs.
    Unsupported,
    /// There is no engine in this memory: quell_engine_new has not succeeded.
    NoEngine,
    /// There is no space in this memory: it was not made, or it was retired.
    NoSpace,
    /// There is no batch in this memory: it was not begun.
    NoBatch,
    /// There is no plan for zeroing in this memory: it was not made.
    NoPlan,
    /// quell_hw_this_cpu gave a number that the engine has no CPU for.
    Cpu,
    /// This CPU is not online.
    Offline,
    /// This CPU is online already; for quell_engine_new, one of the engine's is.
    Online,
    /// This CPU runs the space.
    Running,
    /// A batch that was told of the space is not finished.
    InBatch,
    /// The batch has room for no more frames: finish it, then report again.
    Full,
    /// The range is empty, is no whole number of strides, or ends beyond the address space.
    Range,
    /// A number that the header has no name for, where it names an enumeration.
    Value,
    /// The flush of the batch was started: quell_batch_finish ends it.
    InFlight,
}

impl quell_status {
    /// What it means, in a line.
    const fn text(self) -> &'static core::ffi::CStr {
        match self {
            quell_status::Ok => c"done",
            quell_status::Null => c"a pointer that must not be NULL is NULL",
            quell_status::Misaligned => c"memory is not aligned as its type demands",
            quell_status::Interface => {
                c"the header is not the library's: set quell_setup.interface to QUELL_INTERFACE, and compile with the library's quell.h"
            }
            quell_status::Policy => c"the text is no policy: see quell_setup.message",
            quell_status::Unsupported => {
                c"the engine does not run on such a machine: see quell_setup.message"
            }
            quell_status::NoEngine => c"no engine was made in this memory: quell_engine_new does",
            quell_status::NoSpace => {
                c"no space was made in this memory, or it was retired: quell_space_new makes one"
            }
            quell_status::NoBatch => {
                c"no batch was begun in this memory: quell_batch_begin does"
            }
            quell_status::NoPlan => c"no plan was made in this memory: quell_zero_plan_new does",
            quell_status::Cpu => {
                c"quell_hw_this_cpu gave a number that the engine has no CPU for, or that is not the CPU of `here`"
            }
            quell_status::Offline => c"this CPU is not online: quell_cpu_online comes first",
            quell_status::Online => c"a CPU is online already: quell_cpu_offline comes first",
            quell_status::Running => {
                c"this CPU runs the space: switch to another first, or enter lazy mode"
            }
            quell_status::InBatch => c"a batch that was told of the space is not finished",
            quell_status::Full => {
                c"the batch has room for no more frames: finish it, then report again"
            }
            quell_status::Range => {
                c"the range is empty, is no whole number of strides, or ends beyond the address space"
            }
            quell_status::Value => {
                c"a number that the header has no name for, where it names an enumeration"
            }
            quell_status::InFlight => {
                c"the flush of the batch was started: quell_batch_finish ends it"
            }
        }
    }

    /// All of them, in order of their numbers.
    const ALL: [quell_status; 19] = [
        quell_status::Ok,
        quell_status::Null,
        quell_status::Misaligned,
        quell_status::Interface,
        quell_status::Policy,
        quell_status::Unsupported,
        quell_status::NoEngine,
        quell_status::NoSpace,
        quell_status::NoBatch,
        quell_status::NoPlan,
        quell_status::Cpu,
        quell_status::Offline,
        quell_status::Online,
        quell_status::Running,
        quell_status::InBatch,
        quell_status::Full,
        quell_status::Range,
        quell_status::Value,
        quell_status::InFlight,
    ];
}

/// The meaning of a status: one line, without a newline, ended with a zero byte, which stays valid for ever. A number
/// that is no status has a text that says so.
///
/// Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn quell_status_text(status: u32) -> *const c_char {
    match quell_status::ALL.get(status as usize) {
        Some(status) => status.text().as_ptr(),
        None => c"not a status of quell's".as_ptr(),
    }
}

/// Refuses misuse, in a library that looks for it.
///
/// # Errors
/// `why`, if there is `misuse`.
#[inline]
pub(crate) fn refuse(misuse: bool, why: quell_status) -> Result<(), quell_status> {
    if CHECKED && misuse { Err(why) } else { Ok(()) }
}

/// The status of what was tried.
pub(crate) fn answer(attempt: impl FnOnce() -> Result<(), quell_status>) -> quell_status {
    match attempt() {
        Ok(()) => quell_status::Ok,
        Err(why) => why,
    }
}

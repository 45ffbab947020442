//! The status codes that functions return, and a text for each.

use crate::capacity::CHECKED;
use crate::values::enum_quell_status;
use core::ffi::{CStr, c_char};

/// The result of a call. Everything but `QUELL_STATUS_OK` is a refusal: the call did nothing.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_status {
    /// Done.
    Ok,
    /// A pointer that must not be NULL is NULL.
    Null,
    /// Memory isn't aligned as its type demands.
    Misaligned,
    /// The header and the library have different versions: `quell_setup.interface` isn't QUELL_INTERFACE.
    Interface,
    /// The text isn't a policy.
    Policy,
    /// The engine doesn't support this machine, this number of CPUs, or a feature that the library was built without.
    Unsupported,
    /// There is no engine in this memory: quell_engine_new hasn't succeeded.
    NoEngine,
    /// There is no space in this memory: it wasn't made, or it was retired.
    NoSpace,
    /// There is no batch in this memory: it wasn't begun.
    NoBatch,
    /// There is no plan for zeroing in this memory: it wasn't made.
    NoPlan,
    /// The engine doesn't have the CPU that quell_hw_this_cpu returns, or `here` is another CPU's state.
    Cpu,
    /// This CPU isn't online.
    Offline,
    /// This CPU is online already. From quell_engine_new: the memory holds an engine with a CPU online.
    Online,
    /// This CPU runs the space.
    Running,
    /// An unfinished batch has changes of the space.
    InBatch,
    /// The batch can't take another frame: finish it, then report again.
    Full,
    /// The range is empty, isn't a whole number of strides, or ends beyond the address space.
    Range,
    /// A number isn't in the enumeration that the header names.
    Value,
    /// The batch's flush was started: call quell_batch_finish.
    InFlight,
}

/// Each status, in the order of the numbers, and its meaning in one line.
const TEXTS: [(quell_status, &CStr); 19] = [
    (quell_status::Ok, c"done"),
    (quell_status::Null, c"a pointer is NULL: pass memory, unless quell.h says that NULL is allowed"),
    (quell_status::Misaligned, c"memory is not aligned: declare it with its type, or align it to QUELL_LINE_ALIGN; for quell_zero, to a page"),
    (quell_status::Interface, c"the header is not the library's: set quell_setup.interface to QUELL_INTERFACE, compile with the library's quell.h, and define QUELL_BATCH_SPACES and QUELL_CPUS_8192 as the library has them"),
    (quell_status::Policy, c"the text is no policy: see quell_setup.message"),
    (quell_status::Unsupported, c"the machine or the library cannot do this: see quell_setup.message, or the function in quell.h"),
    (quell_status::NoEngine, c"there is no engine in this memory, or no suite: call quell_engine_new or quell_conformance_new first"),
    (quell_status::NoSpace, c"there is no space in this memory, or it was retired: call quell_space_new first"),
    (quell_status::NoBatch, c"there is no batch in this memory: call quell_batch_begin first"),
    (quell_status::NoPlan, c"there is no plan in this memory: call quell_zero_plan_new first"),
    (quell_status::Cpu, c"quell_hw_this_cpu returns no number below quell_setup.cpu_count, or `here` is another CPU's state"),
    (quell_status::Offline, c"this CPU is not online: call quell_cpu_online first"),
    (quell_status::Online, c"a CPU is online already: call quell_cpu_offline first"),
    (quell_status::Running, c"this CPU runs the space: call quell_switch_to with another, or quell_enter_lazy, first; or it is the kernel's space, which is never loaded or retired"),
    (quell_status::InBatch, c"an unfinished batch has changes of the space: call quell_batch_finish first"),
    (quell_status::Full, c"the batch can take no more frames: call quell_batch_finish, then report again"),
    (quell_status::Range, c"the range is empty, is no whole number of strides or pages, is outside the address space, or is too small: see the function in quell.h; a quell_range counts pages of 4096 bytes (quell_range_of)"),
    (quell_status::Value, c"a number is not in its enumeration: pass an enumerator of the type that quell.h names"),
    (quell_status::InFlight, c"the batch's flush was started: call quell_batch_finish, with a callback after that was called"),
];

const _: () = {
    let mut number = 0;
    while number < TEXTS.len() {
        assert!(TEXTS[number].0 as usize == number);
        number += 1;
    }
};

impl quell_status {
    /// Returns the meaning in one line.
    #[cfg(feature = "text")]
    pub(crate) const fn text(self) -> &'static CStr {
        TEXTS[self as usize].1
    }
}

impl From<Result<(), quell_status>> for quell_status {
    #[inline]
    fn from(result: Result<(), quell_status>) -> Self {
        match result {
            Ok(()) => quell_status::Ok,
            Err(why) => why,
        }
    }
}

/// Returns a status in words: one line without a newline, ended by a zero byte.
///
/// The text is valid for ever. For a number that isn't a status, the text explains that.
///
/// Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn quell_status_text(status: enum_quell_status) -> *const c_char {
    let text = TEXTS.get(status as usize).map_or(c"not a status of quell's", |(_, text)| text);
    text.as_ptr()
}

/// Refuses misuse, in a library that checks for it.
///
/// # Errors
/// `why` if `misuse` is set.
#[inline]
pub(crate) fn refuse(misuse: bool, why: quell_status) -> Result<(), quell_status> {
    if CHECKED && misuse { Err(why) } else { Ok(()) }
}

/// Turns a result into a status.
pub(crate) fn answer(attempt: impl FnOnce() -> Result<(), quell_status>) -> quell_status {
    attempt().into()
}

//! The way out for a panic, where there is no operating system below.
//!
//! A panic means a broken promise of the embedder's: a CPU that, in the middle of a batch, has a number that there is
//! none of, a wait where `quell_hw_may_wait` says no, memory that was overwritten. Nothing is undone and no lock of
//! quell's is left held, but the translations of this machine are in an unknown state: the kernel stops.

use core::ffi::c_char;

unsafe extern "C" {
    /// Called when quell finds a promise broken: `message` has `length` bytes in UTF-8 and a zero byte behind them, and
    /// names the place in quell's source. Must not return; if it does, this CPU spins for ever. It may be called on
    /// several CPUs at once, with interrupts on or off. A library that was built for an operating system does not call
    /// it: there a panic is printed and the process aborts.
    pub fn quell_panic(message: *const c_char, length: usize);
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panicked(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut room = [0; 256];
    // SAFETY: the array is there for as long as the line.
    let mut line = unsafe { crate::text::Line::new(room.as_mut_ptr(), room.len()) };
    match info.location() {
        Some(at) => line.set(format_args!(
            "{} ({}:{})",
            info.message(),
            at.file(),
            at.line()
        )),
        None => line.set(format_args!("{}", info.message())),
    }
    let length = line.as_bytes().len();
    // SAFETY: the text is there until the call returns.
    unsafe { quell_panic(room.as_ptr(), length) };
    loop {
        core::hint::spin_loop();
    }
}

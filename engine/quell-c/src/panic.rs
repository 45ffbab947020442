//! Handles panics in a library for a kernel.
//!
//! A panic means that the kernel broke a promise. For example, `quell_hw_this_cpu` returned a wrong number in the
//! middle of a batch, a call waited although `quell_hw_may_wait` returned false, or memory was overwritten. Nothing is
//! undone. quell holds no lock afterwards, but the TLBs are in an unknown state, so the kernel must stop.

use core::ffi::c_char;

unsafe extern "C" {
    /// Handles a panic: quell calls it when it detects a broken promise. It must not return.
    ///
    /// `message` has `length` bytes of UTF-8, followed by a zero byte, and contains the place in quell's source. If the
    /// function returns, this CPU spins for ever. Several CPUs may call it at once, with interrupts on or off. A
    /// library that was built for an operating system doesn't call it: it prints the panic and aborts the process.
    pub fn quell_panic(message: *const c_char, length: usize);
}

/// Reports the panic to C, and stops this CPU.
#[cfg(target_os = "none")]
#[panic_handler]
fn panicked(info: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(feature = "text")]
    {
        let mut room = [0; 256];
        // SAFETY: the array exists for as long as the line.
        let line = unsafe { crate::text::Line::new(room.as_mut_ptr(), room.len()) };
        let length = match info.location() {
            Some(at) => {
                line.set_formatted(format_args!("{} ({}:{})", info.message(), at.file(), at.line()))
            }
            None => line.set_formatted(format_args!("{}", info.message())),
        };
        // SAFETY: the text exists until the call returns.
        unsafe { quell_panic(room.as_ptr(), length) };
    }
    #[cfg(not(feature = "text"))]
    {
        // We don't format a message: that code would be a large part of a small library.
        let _ = info;
        let text =
            c"quell was used against its rules; a library with the feature \"text\" says where";
        // SAFETY: the text exists for ever.
        unsafe { quell_panic(text.as_ptr(), text.count_bytes()) };
    }
    loop {
        core::hint::spin_loop();
    }
}

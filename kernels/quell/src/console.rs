//! Writes lines on the serial line, one at a time.

use crate::arch::console::Serial;
use crate::sync::Lock;
use core::fmt::{Arguments, Write};

static SERIAL: Lock<Option<Serial>> = Lock::new(None);

/// Sets the serial line. Earlier output is lost.
pub fn init(serial: Serial) {
    *SERIAL.lock() = Some(serial);
}

/// Writes one line. Lines of different CPUs don't mix.
pub fn line(text: Arguments<'_>) {
    if let Some(serial) = SERIAL.lock().as_mut() {
        // The serial line can't fail.
        let _ = serial.write_fmt(format_args!("{text}\r\n"));
    }
}

/// Writes a line without the lock, because its holder may have been interrupted. Waits a little, and then writes even
/// without the lock.
pub fn urgent_line(text: Arguments<'_>) {
    for _ in 0..100_000 {
        if let Some(mut serial) = SERIAL.try_lock() {
            if let Some(serial) = serial.as_mut() {
                let _ = serial.write_fmt(format_args!("{text}\r\n"));
            }
            return;
        }
        crate::arch::cpu::relax();
    }
    let _ = Serial::steal().write_fmt(format_args!("\r\n{text}\r\n"));
}

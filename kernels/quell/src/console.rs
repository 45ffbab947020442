//! Writes lines on the serial line, one at a time.

use crate::arch;
use crate::sync::Lock;
use core::fmt::{self, Arguments, Write};

/// The right to write a line.
static TURN: Lock<()> = Lock::new(());

/// The serial line.
struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        arch::console::write(text);
        Ok(())
    }
}

/// Writes one line. Lines of different CPUs don't mix.
pub fn line(text: Arguments<'_>) {
    let _turn = TURN.lock();
    // The serial line can't fail.
    let _ = write!(Serial, "{text}\r\n");
}

/// Writes a line even if the holder of the lock was interrupted: waits a little for the lock, then writes without it.
pub fn urgent_line(text: Arguments<'_>) {
    for _ in 0..100_000 {
        if let Some(_turn) = TURN.try_lock() {
            let _ = write!(Serial, "{text}\r\n");
            return;
        }
        arch::cpu::relax();
    }
    let _ = write!(Serial, "\r\n{text}\r\n");
}

//! A replacement for hosts without signals, where only the code that follows emulators ends them.

use std::io;
use std::process::{Child, Command};

/// Registers a running emulator until it is dropped.
pub struct EmulatorRecord;

/// Returns the signal that ends this process: none on such hosts.
pub fn end_requested() -> Option<i32> {
    None
}

/// Starts an emulator.
///
/// # Errors
/// If the emulator can't be started.
pub fn spawn(command: &mut Command) -> io::Result<(Child, EmulatorRecord)> {
    Ok((command.spawn()?, EmulatorRecord))
}

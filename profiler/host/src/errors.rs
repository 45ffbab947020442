//! Errors of system calls that are made through `libc`.

use std::io;

/// Turns a system call's -1 into the error in `errno`.
pub fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

//! Makes system calls of the benchmarks besides memory and processes.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;

use crate::errors::check;

/// An eventfd: a counter that blocks its reader while it's zero.
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates a counter at zero.
    pub fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Adds one; wakes the reader.
    pub fn signal(&self) -> io::Result<()> {
        rustix::io::write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Waits until the counter isn't zero, and clears it.
    pub fn wait(&self) -> io::Result<()> {
        rustix::io::read(&self.0, &mut [0; 8])?;
        Ok(())
    }
}

/// Returns whether this process is privileged enough for set-ups: effective user 0. A container may still refuse.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the kernel's release.
pub fn release() -> String {
    let name = rustix::system::uname();
    name.release().to_string_lossy().into_owned()
}

/// Writes `file`'s data out and drops its clean pages from the page cache.
pub fn drop_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Starts swapping to `device` before every other swap area.
pub fn swap_on(device: &CStr) -> io::Result<()> {
    const SWAP_FLAG_PREFER_HIGHEST: i32 = 0x8000 | 0x7fff;
    // libc, because rustix has no swapon.
    // SAFETY: a terminated path and flags.
    check(unsafe { libc::swapon(device.as_ptr(), SWAP_FLAG_PREFER_HIGHEST) }.into()).map(drop)
}

/// Reads everything back from `device` and stops swapping to it.
pub fn swap_off(device: &CStr) -> io::Result<()> {
    // libc, because rustix has no swapoff.
    // SAFETY: a terminated path.
    check(unsafe { libc::swapoff(device.as_ptr()) }.into()).map(drop)
}

//! Sets up the host for the measurement, and undoes each set-up by a destructor.
//!
//! Destructors run on success, on an error, on a panic and after `SIGINT`, `SIGTERM` or `SIGHUP` (which only request
//! that the benchmarks stop). They don't run after `SIGKILL` or a crash of the machine. Forked children, spinning
//! threads disappear even then; a zram device doesn't.
//!
//! A destructor that fails can't return an error, so it leaves a line for [`not_restored`].

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::memory::page_size;
use crate::process::check;

static NOT_RESTORED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the set-ups that couldn't be undone so far.
pub fn not_restored() -> Vec<String> {
    NOT_RESTORED.lock().map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
}

fn restored(what: &str, result: io::Result<()>) {
    if let (Err(error), Ok(mut list)) = (result, NOT_RESTORED.lock()) {
        list.push(format!("{what}: {error}"));
    }
}

fn named(what: impl Into<String>) -> impl FnOnce(io::Error) -> io::Error {
    let what = what.into();
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|mut f| f.write_all(value.as_bytes()))
        .map_err(named(format!("writing {value:?} to {}", path.display())))
}

fn busy(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BUSY | Errno::AGAIN))
}

/// Retries while a resource is busy, for at least a minute.
fn insist(mut action: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..6000 {
        match action() {
            Err(error) if busy(&error) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
    action()
}

/// A new zram device, used for swap before every other area. We don't touch existing devices.
pub struct ZramSwap {
    name: CString,
    zram: Zram,
}

/// A zram device, removed on drop.
pub struct Zram {
    number: u32,
    path: String,
}

const ZRAM_CONTROL: &str = "/sys/class/zram-control";

impl Zram {
    /// Adds a device of `bytes`.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let hot_add = Path::new(ZRAM_CONTROL).join("hot_add");
        let number = fs::read_to_string(&hot_add)
            .map_err(named(format!("adding a zram device ({})", hot_add.display())))?;
        let number = number
            .trim()
            .parse()
            .map_err(|_| io::Error::other(format!("hot_add answered {number:?}")))?;
        let path = format!("/dev/zram{number}");
        // From here on the destructor removes the device whatever happens.
        let zram = Self { number, path };
        write(&zram.sysfs("disksize"), &bytes.to_string())?;
        let is_block = |p: &str| fs::metadata(p).is_ok_and(|m| m.file_type().is_block_device());
        for _ in 0..100 {
            if is_block(&zram.path) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if !is_block(&zram.path) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} does not appear; is devtmpfs mounted?", zram.path),
            ));
        }
        Ok(zram)
    }

    fn sysfs(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{file}", self.number))
    }

    /// Opens it for reading and writing past the page cache. The file must be closed before the device is removed.
    pub fn open_direct(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let direct = OFlags::DIRECT.bits() as i32;
        options.read(true).write(true).custom_flags(direct);
        let file = options.open(&self.path);
        file.map_err(named(format!("opening {}", self.path)))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        restored("reset of the zram device", insist(|| write(&self.sysfs("reset"), "1")));
        let remove =
            || write(&Path::new(ZRAM_CONTROL).join("hot_remove"), &self.number.to_string());
        restored("removal of the zram device", insist(remove));
    }
}

impl ZramSwap {
    /// Adds a device of `bytes`, formats it and starts swapping to it.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let zram = Zram::create(bytes)?;
        let path = &zram.path;
        let device =
            OpenOptions::new().write(true).open(path).map_err(named(format!("opening {path}")))?;
        device.write_all_at(&swap_header(bytes, page_size()), 0)?;
        device.sync_all()?;
        drop(device);
        let name = CString::new(path.as_str())?;
        swap_on(&name).map_err(named(format!("swapon {path}")))?;
        Ok(Self { name, zram })
    }

    /// Returns the compressor in use.
    pub fn algorithm(&self) -> Option<String> {
        // The chosen one is in brackets.
        let all = fs::read_to_string(self.zram.sysfs("comp_algorithm")).ok()?;
        Some(all.split_once('[')?.1.split_once(']')?.0.to_owned())
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        // The device's own destructor removes it afterwards.
        restored("swapoff of the zram device", swap_off(&self.name));
    }
}

/// Starts swapping to `device` before every other swap area.
fn swap_on(device: &CStr) -> io::Result<()> {
    const SWAP_FLAG_PREFER_HIGHEST: i32 = 0x8000 | 0x7fff;
    // libc, because rustix has no swapon.
    // SAFETY: a terminated path and flags.
    check(unsafe { libc::swapon(device.as_ptr(), SWAP_FLAG_PREFER_HIGHEST) }.into()).map(drop)
}

/// Reads everything back from `device` and stops swapping to it.
fn swap_off(device: &CStr) -> io::Result<()> {
    // libc, because rustix has no swapoff.
    // SAFETY: a terminated path.
    check(unsafe { libc::swapoff(device.as_ptr()) }.into()).map(drop)
}

/// Builds the first page of a swap area of version 1: the part of the format that the kernel reads.
fn swap_header(bytes: u64, page: usize) -> Vec<u8> {
    let mut header = vec![0; page];
    let last_page = (bytes / page as u64 - 1) as u32;
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    header[page - 10..].copy_from_slice(b"SWAPSPACE2");
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_swap_header_is_the_one_the_kernel_reads() {
        let header = swap_header(64 << 20, 4096);
        assert_eq!(header.len(), 4096);
        assert_eq!(&header[4086..], b"SWAPSPACE2");
        assert_eq!(
            u32::from_ne_bytes(header[1028..1032].try_into().unwrap()),
            (64 << 20) / 4096 - 1
        );
    }

    /// This test needs root and zram, and prints a message otherwise.
    #[test]
    fn a_zram_device_goes_away_also_by_panic() {
        let list = || {
            let mut names: Vec<_> =
                fs::read_dir("/sys/block").unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            (names, fs::read_to_string("/proc/swaps").unwrap())
        };
        let before = list();
        let result = std::panic::catch_unwind(|| match ZramSwap::create(16 << 20) {
            Ok(_zram) => {
                assert_ne!(list(), before, "the device and the swap area are there meanwhile");
                panic!("as intended");
            }
            Err(error) => eprintln!("skipped: {error}"),
        });
        if result.is_err() {
            assert_eq!(list(), before);
        }
    }
}

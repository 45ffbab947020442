//! Sets up the host for the measurement, and undoes each set-up by a destructor.
//!
//! Destructors run on success, on an error, on a panic and after `SIGINT`, `SIGTERM` or `SIGHUP` (which only request
//! that the benchmarks stop). They don't run after `SIGKILL` or a crash of the machine. Forked children, spinning
//! threads, unlinked files and counters disappear even then; a zram device, a cgroup and a raised hugetlb pool don't.
//!
//! A destructor that fails can't return an error, so it leaves a line for [`not_restored`].

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use procfs_core::{FromRead, MountEntry, ProcessCGroups};
use rand::Rng;
use rand_pcg::Pcg64;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::parse;
use super::sys;
use crate::memory::page_size;

static NOT_RESTORED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the set-ups that couldn't be undone so far.
pub fn not_restored() -> Vec<String> {
    NOT_RESTORED
        .lock()
        .map(|mut list| std::mem::take(&mut *list))
        .unwrap_or_default()
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
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BUSY | Errno::AGAIN)
    )
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
        let number = fs::read_to_string(&hot_add).map_err(named(format!(
            "adding a zram device ({})",
            hot_add.display()
        )))?;
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
        restored(
            "reset of the zram device",
            insist(|| write(&self.sysfs("reset"), "1")),
        );
        let remove = || {
            write(
                &Path::new(ZRAM_CONTROL).join("hot_remove"),
                &self.number.to_string(),
            )
        };
        restored("removal of the zram device", insist(remove));
    }
}

impl ZramSwap {
    /// Adds a device of `bytes`, formats it and starts swapping to it.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let zram = Zram::create(bytes)?;
        let path = &zram.path;
        let device = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(named(format!("opening {path}")))?;
        device.write_all_at(&swap_header(bytes, page_size()), 0)?;
        device.sync_all()?;
        drop(device);
        let name = CString::new(path.as_str())?;
        sys::swap_on(&name).map_err(named(format!("swapon {path}")))?;
        Ok(Self { name, zram })
    }

    /// Returns the compressor in use.
    pub fn algorithm(&self) -> Option<String> {
        parse::chosen(&fs::read_to_string(self.zram.sysfs("comp_algorithm")).ok()?)
            .map(str::to_owned)
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        // The device's own destructor removes it afterwards.
        restored("swapoff of the zram device", sys::swap_off(&self.name));
    }
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

/// A memory cgroup with a limit, below or beside this process's own.
pub struct LimitedCgroup {
    dir: PathBuf,
    /// A `cgroup.subtree_control` that was extended for it.
    extended: Option<PathBuf>,
}

impl LimitedCgroup {
    /// Creates the group and sets its limit, in bytes.
    pub fn create(limit: u64) -> io::Result<Self> {
        let unsupported = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
        let mounts = Vec::<MountEntry>::from_file("/proc/self/mounts").map_err(io::Error::other)?;
        let own = ProcessCGroups::from_file("/proc/self/cgroup").map_err(io::Error::other)?;
        let own = memory_cgroup(own)
            .ok_or_else(|| unsupported("no cgroup hierarchy with the memory controller"))?;
        let name = format!("quell-{}", std::process::id());
        match own {
            MemoryCgroup::V1(path) => {
                let mount = mount_point(&mounts, "cgroup", Some("memory"))
                    .ok_or_else(|| unsupported("the version 1 memory hierarchy is not mounted"))?;
                // A container may see its own group as the root of the mount.
                let parent = existing(&mount, &path);
                let group = Self::make(parent.join(name), None)?;
                write(&group.dir.join("memory.limit_in_bytes"), &limit.to_string())?;
                Ok(group)
            }
            MemoryCgroup::V2(path) => {
                let mount = mount_point(&mounts, "cgroup2", None)
                    .ok_or_else(|| unsupported("the version 2 hierarchy is not mounted"))?;
                let own = existing(&mount, &path);
                // Only the root may both have processes and delegate controllers. Otherwise we make the group beside
                // this process's own, not below it.
                let parent = if own == Path::new(&mount) {
                    own.clone()
                } else {
                    own.parent().unwrap_or(&own).to_owned()
                };
                let has = |file: &str| {
                    fs::read_to_string(parent.join(file))
                        .is_ok_and(|t| t.split_whitespace().any(|c| c == "memory"))
                };
                if !has("cgroup.controllers") {
                    return Err(unsupported(
                        "the version 2 hierarchy has no memory controller here",
                    ));
                }
                let control = parent.join("cgroup.subtree_control");
                let extended = if has("cgroup.subtree_control") {
                    None
                } else {
                    write(&control, "+memory")?;
                    Some(control)
                };
                let group = Self::make(parent.join(name), extended)?;
                write(&group.dir.join("memory.max"), &limit.to_string())?;
                Ok(group)
            }
        }
    }

    fn make(dir: PathBuf, extended: Option<PathBuf>) -> io::Result<Self> {
        if let Err(error) = fs::create_dir(&dir) {
            if let Some(control) = extended {
                restored("cgroup.subtree_control", write(&control, "-memory"));
            }
            return Err(named(format!("creating {}", dir.display()))(error));
        }
        Ok(Self { dir, extended })
    }

    /// Moves a process into the group.
    pub fn admit(&self, pid: i32) -> io::Result<()> {
        write(&self.dir.join("cgroup.procs"), &pid.to_string())
    }
}

/// The place of this process in the cgroup tree that manages memory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MemoryCgroup {
    /// A version 1 hierarchy with the memory controller; the path below its mount point.
    V1(String),
    /// The version 2 hierarchy; the path below its mount point. Whether it has the memory controller is in
    /// `cgroup.controllers`.
    V2(String),
}

/// Finds this process's memory cgroup. Version 1 has priority if it has the memory controller, because a controller
/// belongs to only one hierarchy.
fn memory_cgroup(own: ProcessCGroups) -> Option<MemoryCgroup> {
    let mut unified = None;
    for group in own {
        if group.controllers.iter().any(|name| name == "memory") {
            return Some(MemoryCgroup::V1(group.pathname));
        }
        if group.hierarchy == 0 && group.controllers.is_empty() {
            unified = Some(MemoryCgroup::V2(group.pathname));
        }
    }
    unified
}

/// Finds the first mount point of a type of file system, with an option if one is named.
fn mount_point(mounts: &[MountEntry], kind: &str, option: Option<&str>) -> Option<String> {
    let mount = mounts.iter().find(|mount| {
        mount.fs_vfstype == kind && option.is_none_or(|option| mount.fs_mntops.contains_key(option))
    })?;
    // procfs leaves spaces as the kernel writes them.
    Some(mount.fs_file.replace("\\040", " "))
}

fn existing(mount: &str, path: &str) -> PathBuf {
    let inside = Path::new(mount).join(path.trim_start_matches('/'));
    if inside.is_dir() {
        inside
    } else {
        PathBuf::from(mount)
    }
}

impl Drop for LimitedCgroup {
    fn drop(&mut self) {
        restored(
            &format!("removal of {}", self.dir.display()),
            insist(|| fs::remove_dir(&self.dir)),
        );
        if let Some(control) = &self.extended {
            restored("cgroup.subtree_control", write(control, "-memory"));
        }
    }
}

/// One more page in the hugetlb pool of a size.
pub struct HugePool {
    knob: PathBuf,
    before: u64,
}

impl HugePool {
    /// Ensures that a free page of `1 << shift` bytes is in the pool. Raises the pool if none is free. Returns `None`
    /// if one was free already.
    pub fn with_one_free(shift: u32) -> io::Result<Option<Self>> {
        let dir = PathBuf::from(format!(
            "/sys/kernel/mm/hugepages/hugepages-{}kB",
            (1u64 << shift) >> 10
        ));
        let read = |file: &str| -> io::Result<u64> {
            let path = dir.join(file);
            let text = fs::read_to_string(&path).map_err(named(path.display().to_string()))?;
            text.trim()
                .parse()
                .map_err(|_| io::Error::other(format!("{} is no number", path.display())))
        };
        if read("free_hugepages")?.saturating_sub(read("resv_hugepages")?) > 0 {
            return Ok(None);
        }
        let (knob, before) = (dir.join("nr_hugepages"), read("nr_hugepages")?);
        write(&knob, &(before + 1).to_string())?;
        let pool = Self { knob, before };
        if read("nr_hugepages")? > pool.before {
            Ok(Some(pool))
        } else {
            Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "memory has no contiguous extent of that size left",
            ))
        }
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        restored(
            &self.knob.display().to_string(),
            write(&self.knob, &self.before.to_string()),
        );
    }
}

/// Creates an unlinked file of `bytes` in `dir`, written to the device. Closing removes it.
pub fn unlinked_file(dir: &Path, bytes: u64) -> io::Result<File> {
    let path = dir.join(format!(".quell-{}", std::process::id()));
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(named(format!(
            "creating a temporary file in {}",
            dir.display()
        )))?;
    fs::remove_file(&path)?;
    // We write distinct content that looks incompressible: some file systems and devices drop zeros.
    let mut random = Pcg64::new(1, 0);
    let mut block = vec![0u8; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        random.fill_bytes(&mut block);
        let now = left.min(block.len() as u64);
        file.write_all(&block[..now as usize])?;
        left -= now;
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_either_version() {
        let found = |text: &str| memory_cgroup(ProcessCGroups::from_read(text.as_bytes()).unwrap());
        let hybrid = "9:name=systemd:/\n4:memory:/jobs/8e30:19\n0::/user.slice\n";
        assert_eq!(
            found(hybrid),
            Some(MemoryCgroup::V1("/jobs/8e30:19".into()))
        );
        assert_eq!(
            found("0::/user.slice\n"),
            Some(MemoryCgroup::V2("/user.slice".into()))
        );
        assert_eq!(found("3:cpuset:/\n"), None);
    }

    #[test]
    fn mounts_are_found_by_type_and_option() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup /a\\040b cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let mounts = Vec::<MountEntry>::from_read(mounts.as_bytes()).unwrap();
        let point = |kind, option| mount_point(&mounts, kind, option);
        assert_eq!(point("cgroup", Some("memory")).as_deref(), Some("/a b"));
        assert_eq!(point("cgroup2", None).as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(point("tmpfs", None), None);
    }

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

    #[test]
    fn a_temporary_file_has_no_path_and_its_full_size() {
        let dir = std::env::temp_dir();
        let file = unlinked_file(&dir, 3 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3 << 20);
        assert!(!dir.join(format!(".quell-{}", std::process::id())).exists());
    }

    /// This test needs root and zram, and prints a message otherwise.
    #[test]
    fn a_zram_device_goes_away_also_by_panic() {
        let list = || {
            let mut names: Vec<_> = fs::read_dir("/sys/block")
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            (names, fs::read_to_string("/proc/swaps").unwrap())
        };
        let before = list();
        let result = std::panic::catch_unwind(|| match ZramSwap::create(16 << 20) {
            Ok(_zram) => {
                assert_ne!(
                    list(),
                    before,
                    "the device and the swap area are there meanwhile"
                );
                panic!("as intended");
            }
            Err(error) => eprintln!("skipped: {error}"),
        });
        if result.is_err() {
            assert_eq!(list(), before);
        }
    }

    /// This test needs root and a memory controller, and prints a message otherwise.
    #[test]
    fn a_cgroup_goes_away() {
        match LimitedCgroup::create(64 << 20) {
            Ok(group) => {
                let dir = group.dir.clone();
                assert!(dir.is_dir());
                drop(group);
                assert!(!dir.exists());
            }
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}

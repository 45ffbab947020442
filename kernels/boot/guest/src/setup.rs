//! Prepares a bare kernel: file systems, modules, a compressed swap device, a directory for files.

use crate::linux::{FILES, ticks};
use crate::protocol::LATE;
use anyhow::{Context, bail};
use rustix::mount::MountFlags;
use rustix::system::{RebootCommand, finit_module, reboot};
use std::ffi::CString;
use std::fs::{self, File, read_to_string, write};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// The control group whose memory a job may limit.
const GROUP: &str = "/sys/fs/cgroup/job";

/// The nominal size of the compressed swap device.
const SWAP_BYTES: u64 = 256 << 20;

fn text(text: &str) -> anyhow::Result<CString> {
    CString::new(text).context("a zero byte in a name")
}

fn mount(source: &str, target: &str, kind: &str) -> anyhow::Result<()> {
    let work = || -> std::io::Result<()> {
        fs::create_dir_all(target)?;
        Ok(rustix::mount::mount(source, target, kind, MountFlags::empty(), None)?)
    };
    work().with_context(|| format!("mounting {kind} on {target}"))
}

/// Mounts the file systems that every job needs. A job that misses one reports that later.
pub fn file_systems() {
    for (kind, target) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tracefs", "/sys/kernel/tracing"),
        ("debugfs", "/sys/kernel/debug"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        if let Err(error) = mount(kind, target, kind) {
            eprintln!("{error:#}");
        }
    }
}

/// Returns the kernel's release.
pub fn release() -> anyhow::Result<String> {
    let release = read_to_string("/proc/sys/kernel/osrelease").context("the kernel's release")?;
    Ok(release.trim().to_string())
}

/// Waits busily for the time in [`LATE`], so that jobs come later between timer ticks.
pub fn wait_if_late() -> anyhow::Result<()> {
    let Ok(text) = std::env::var(LATE) else {
        return Ok(());
    };
    let microseconds: u64 = text.parse().with_context(|| format!("{LATE}={text}"))?;
    let end = ticks() + 1000 * microseconds;
    while ticks() < end {}
    Ok(())
}

/// Returns the number of CPUs that are online.
pub fn cpus() -> anyhow::Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// Prepares requirements of some jobs. Returns each one's name and result.
pub fn devices() -> [(&'static str, anyhow::Result<()>); 5] {
    [
        ("quiet memory management", quiet()),
        ("modules", modules()),
        ("compressed swap", swap()),
        ("a file system", files()),
        ("a limit on memory", group()),
    ]
}

/// Disables features that change mappings on their own.
fn quiet() -> anyhow::Result<()> {
    // We want large pages only if a workload requests them.
    for name in ["enabled", "defrag"] {
        let file = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        write(&file, "madvise").with_context(|| file)?;
    }
    // This file exists only on machines with more than one node.
    let balancing = "/proc/sys/kernel/numa_balancing";
    if Path::new(balancing).exists() {
        write(balancing, "0").context(balancing)?;
    }
    Ok(())
}

/// Loads the modules that the host put into the initial file system, in its order. Each line of the list contains a
/// file's name and the module's options.
fn modules() -> anyhow::Result<()> {
    /// The kernel decompresses the file itself.
    const COMPRESSED: i32 = 4;
    for line in read_to_string("/modules/list").context("the list")?.lines() {
        let (name, options) = line.split_once(' ').unwrap_or((line, ""));
        let file = File::open(format!("/modules/{name}")).with_context(|| name.to_string())?;
        let flags = if name.ends_with(".ko") { 0 } else { COMPRESSED };
        finit_module(&file, &text(options)?, flags).with_context(|| name.to_string())?;
    }
    Ok(())
}

fn swap() -> anyhow::Result<()> {
    const DEVICE: &str = "/dev/zram0";
    write("/sys/block/zram0/disksize", SWAP_BYTES.to_string()).context("the size of zram0")?;
    // The header of a swap area contains version 1, the last page, and the signature at the end of the page.
    let mut header = vec![0; 4096];
    header[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    header[1028..1032].copy_from_slice(&((SWAP_BYTES / 4096 - 1) as u32).to_le_bytes());
    header[4086..].copy_from_slice(b"SWAPSPACE2");
    let mut device = File::options().write(true).open(DEVICE).context(DEVICE)?;
    device.write_all(&header)?;
    device.sync_all()?;
    let path = text(DEVICE)?;
    // SAFETY: the string ends in zero and outlives the call, which rustix doesn't have.
    if unsafe { libc::swapon(path.as_ptr(), 0) } != 0 {
        bail!("swapon: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

fn files() -> anyhow::Result<()> {
    const DEVICE: &str = "/dev/ram0";
    let mut device = File::options().read(true).write(true).open(DEVICE).context(DEVICE)?;
    let bytes = device.seek(SeekFrom::End(0))?;
    device.rewind()?;
    let options = fatfs::FormatVolumeOptions::new()
        .bytes_per_cluster(4096)
        .total_sectors(u32::try_from(bytes / 512).context("the device is too large")?);
    fatfs::format_volume(&mut device, options).context("formatting")?;
    device.sync_all()?;
    mount(DEVICE, FILES, "vfat")
}

fn group() -> anyhow::Result<()> {
    let control = "/sys/fs/cgroup/cgroup.subtree_control";
    write(control, "+memory").context(control)?;
    fs::create_dir_all(GROUP).context(GROUP)?;
    write(format!("{GROUP}/memory.max"), "max").context("memory.max")
}

/// Mounts the additional file systems that third-party programs expect, if this kernel has them.
pub fn for_programs() -> anyhow::Result<()> {
    let known = read_to_string("/proc/filesystems").context("the kernel's file systems")?;
    for (kind, target) in [
        ("tmpfs", "/tmp"),
        ("tmpfs", "/dev/shm"),
        ("devpts", "/dev/pts"),
        ("mqueue", "/dev/mqueue"),
        ("hugetlbfs", "/dev/hugepages"),
    ] {
        if known.lines().any(|line| line.ends_with(&format!("\t{kind}"))) {
            mount(kind, target, kind)?;
        }
    }
    for (name, target) in [
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("fd", "/proc/self/fd"),
    ] {
        // The kernel may have created them already.
        let _ = std::os::unix::fs::symlink(target, format!("/dev/{name}"));
    }
    Ok(())
}

/// Limits the memory of the processes in the group.
pub fn limit(bytes: u64) -> anyhow::Result<()> {
    write(format!("{GROUP}/memory.max"), bytes.to_string()).context("limiting memory")
}

/// Moves this process and its future children into the memory-limited group.
pub fn join_group() -> anyhow::Result<()> {
    write(format!("{GROUP}/cgroup.procs"), "0").context("limiting this process's memory")
}

/// Makes the kernel reclaim as much of the group's memory as it can. Returns 0, because Linux doesn't report the
/// amount.
pub fn reclaim(bytes: u64) -> u64 {
    // The kernel returns an error if it could reclaim less.
    let _ = write(format!("{GROUP}/memory.reclaim"), bytes.to_string());
    0
}

/// Removes a job's leftovers, and waits until the kernel has finished with it.
pub fn clean() -> anyhow::Result<()> {
    for entry in fs::read_dir(FILES).into_iter().flatten() {
        fs::remove_file(entry?.path()).context("removing a file")?;
    }
    let limit = format!("{GROUP}/memory.max");
    if Path::new(&limit).exists() {
        write(&limit, "max").context(limit)?;
    }
    rustix::fs::sync();
    std::thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// Switches the machine off. Returns only if the kernel refuses.
pub fn power_off() {
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        eprintln!("switching the machine off: {error}");
    }
}

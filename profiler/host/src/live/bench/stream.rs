//! Reads a file that is larger than its memory cgroup (S3).
//!
//! Clean file pages are mapped, read once and reclaimed. Two threads (one on each of two CPUs) read one word of each
//! page of a 128 MiB file, inside a cgroup limited to 64 MiB. In `mapped`, reclaim unmaps the pages, which needs
//! shootdowns. A program can choose the other forms today. `mapped_drop_behind` discards each MiB with one
//! `MADV_DONTNEED` after it was read, so that reclaim finds pages without mappings. `read` copies through a buffer and
//! maps nothing.
//!
//! Not shown: shootdowns of many CPUs. With two CPUs a shootdown has one target; in the published experiment it had up
//! to 63. The times include the device's speed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_threads::cores;
use rustix::mm::Advice;

use super::super::guards::{LimitedCgroup, unlinked_file};
use super::super::lab::{Halt, Lab, RowSpec, refuse};
use super::super::report::Row;
use super::super::sys;
use crate::memory::{Mapping, page_size};
use crate::process::Child;

const FILE_BYTES: usize = 128 << 20;
const LIMIT: u64 = 64 << 20;
const WINDOW: usize = 1 << 20;
const SAMPLE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq)]
enum How {
    Mapped,
    MappedDropBehind,
    Read,
}

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    lab.require_disk("its pages are never dropped and read again")?;
    lab.split(3);
    let group = LimitedCgroup::create(LIMIT).map_err(|error| {
        let remedy = if sys::is_root() {
            "a kernel and container that let a memory cgroup (version 1, or version 2 with the controller passed down) be made"
        } else {
            "run as root, or in a systemd scope with Delegate=yes"
        };
        refuse(format!("no limited memory cgroup can be made: {error}"), Some(remedy))
    })?;
    let file = unlinked_file(&lab.dir, FILE_BYTES as u64)?;
    let cpus: Vec<usize> = lab.cpus.iter().copied().take(2).collect();
    let page = page_size();
    for (key, how) in [
        ("mapped", How::Mapped),
        ("mapped_drop_behind", How::MappedDropBehind),
        ("read", How::Read),
    ] {
        // Cached pages are charged to their first reader, never to the group.
        sys::drop_cache(&file)?;
        // The flag that starts the readers, then a counter of pages for each reader, 64 bytes apart.
        let board = Mapping::shared(page)?;
        // SAFETY: no other thread of this process exists between benchmarks.
        let child = unsafe { Child::fork(|| readers(&file, &board, &cpus, how)) }?;
        group.admit(child.id())?;
        board.word(0).store(1, Ordering::Release);
        let pages = || {
            (1..=cpus.len())
                .map(|i| board.word(64 * i).load(Ordering::Relaxed))
                .sum::<u64>()
        };
        let op = "page read";
        let plan = if how == How::Mapped {
            RowSpec::single(key, op)
        } else {
            RowSpec::batched(key, "mapped", op)
        };
        let plan = RowSpec {
            threads: cpus.len(),
            targets: cpus.len() - 1,
            children: std::slice::from_ref(&child),
            bytes_per_op: Some(page as u64),
            check: limit_did_not_bite,
            ..plan
        };
        lab.row(
            plan,
            || Ok(()),
            || {
                let (begin, start) = (pages(), Instant::now());
                while start.elapsed() < SAMPLE
                    || (pages() == begin && start.elapsed() < 20 * SAMPLE)
                {
                    if child.has_ended() {
                        return Err(io::Error::other(
                            "the readers have ended (out of memory in the group?)",
                        ));
                    }
                    std::thread::sleep(SAMPLE / 10);
                }
                Ok(pages() - begin)
            },
        )?;
    }
    lab.warn("the device is in the times: compare interrupts, events and shares");
    Ok(())
}

fn limit_did_not_bite(row: &Row) -> Option<String> {
    let stolen = row.vmstat.iter();
    let taken: u64 = stolen
        .filter(|(name, _)| name.starts_with("pgsteal_file"))
        .map(|(_, n)| n)
        .sum();
    (taken < row.ops / 4).then(|| {
        format!(
            "reclaim took only {taken} pages while {} were read: the limit had no effect",
            row.ops
        )
    })
}

/// Runs the child until it is killed: one thread for each CPU, each at its own place in the file.
fn readers(file: &File, board: &Mapping, cpus: &[usize], how: How) {
    while board.word(0).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    // We map after the move into the group, so that page tables are charged there.
    let Ok(map) = Mapping::file(file, FILE_BYTES, false) else {
        return;
    };
    std::thread::scope(|scope| {
        for (i, &cpu) in cpus.iter().enumerate() {
            let (map, count) = (&map, board.word(64 * (i + 1)));
            let start = i * (FILE_BYTES / cpus.len()) / WINDOW;
            scope.spawn(move || {
                let _ = cores::pin(&[cpu]);
                let mut buffer = vec![0; WINDOW];
                for window in start.. {
                    let offset = window % (FILE_BYTES / WINDOW) * WINDOW;
                    if read_window(file, map, offset, how, &mut buffer, count).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

fn read_window(
    file: &File,
    map: &Mapping,
    offset: usize,
    how: How,
    buffer: &mut [u8],
    count: &AtomicU64,
) -> io::Result<()> {
    let page = page_size();
    if how == How::Read {
        file.read_exact_at(buffer, offset as u64)?;
        count.fetch_add((WINDOW / page) as u64, Ordering::Relaxed);
        return Ok(());
    }
    for offset in (offset..offset + WINDOW).step_by(page) {
        std::hint::black_box(map.word(offset).load(Ordering::Relaxed));
        count.fetch_add(1, Ordering::Relaxed);
    }
    if how == How::MappedDropBehind {
        map.advise(offset, WINDOW, Advice::LinuxDontNeed)?;
    }
    Ok(())
}

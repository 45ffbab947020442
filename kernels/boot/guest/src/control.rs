//! State that a job's processes and threads share, and their results.

use anyhow::Context;
use quell_workloads::WORDS;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::AtomicU64;

/// State that the processes of a job share.
#[repr(C)]
pub struct Control {
    /// The control words of the workload.
    pub words: [AtomicU64; WORDS],
    /// The number of files that the workload has created.
    pub files: AtomicU64,
    /// The number of processes requested so far.
    pub spawned: AtomicU64,
    /// How often a process had the CPU although it was another process's turn.
    pub out_of_turn: AtomicU64,
    /// The number of turns so far.
    pub turns: AtomicU64,
    /// The number of processes about to take turns.
    pub ready: AtomicU64,
    /// The number of these processes that wait runnable.
    pub awake: AtomicU64,
    /// The number of processes that have a place.
    pub places: AtomicU64,
}

impl Control {
    /// Returns zeroed state, shared with every process created from now on, for the whole run.
    pub fn new() -> anyhow::Result<&'static Control> {
        let [files, spawned, out_of_turn, turns, ready, awake, places] = Default::default();
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        shared(Control { words, files, spawned, out_of_turn, turns, ready, awake, places })
    }
}

/// Moves a value into memory that every process created later shares, for the whole run.
pub fn shared<T: Sync>(value: T) -> anyhow::Result<&'static T> {
    const { assert!(align_of::<T>() <= 4096, "mappings are aligned to a page") };
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            size_of::<T>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
        )
    };
    let place = memory.context("shared memory")?.cast::<T>();
    // SAFETY: the mapping is aligned and large enough, so far only this process has it, and it's never unmapped.
    unsafe {
        place.write(value);
        Ok(&*place)
    }
}

/// Keeps this thread on one CPU.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("using CPU {cpu}"))
}

//! Tests the workloads on a stand-in that grants every call: threads as CPUs, no translation.
//!
//! We test the programs themselves: all CPUs end, the figure is computed, and one CPU's failure ends the others.

extern crate std;

mod files;

use super::*;
use alloc::format;
use quell_vm::{Backing, Call, Error, Fault, Mark};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

struct Machine {
    /// Nanoseconds, counted by reads of the clock, so that a run's progress in its time doesn't depend on the host.
    clock: AtomicU64,
    words: [AtomicU64; WORDS],
    next: AtomicU64,
    calls: Mutex<Vec<Call>>,
    accesses: AtomicU64,
    highest_written: AtomicU64,
    marks: AtomicU64,
    refuse: fn(&Call) -> bool,
}

struct Cpu {
    machine: Arc<Machine>,
    cpu: usize,
    cpus: usize,
}

impl User for Cpu {
    fn cpu(&self) -> usize {
        self.cpu
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn try_read(&self, _address: u64) -> Result<u64, Fault> {
        self.machine.accesses.fetch_add(1, SeqCst);
        Ok(0)
    }
    fn try_write(&self, address: u64, _value: u64) -> Result<(), Fault> {
        self.machine.accesses.fetch_add(1, SeqCst);
        self.machine.highest_written.fetch_max(address, SeqCst);
        Ok(())
    }
    fn call(&self, call: Call) -> Result<u64, Error> {
        if (self.machine.refuse)(&call) {
            return Err(Error::OutOfMemory);
        }
        self.machine.calls.lock().unwrap().push(call);
        Ok(match call {
            Call::Map { address, bytes, .. } => {
                address.unwrap_or_else(|| self.machine.next.fetch_add(bytes, SeqCst))
            }
            Call::Spawn | Call::Create { .. } => self.machine.next.fetch_add(4096, SeqCst),
            Call::Migrate { bytes, .. } => bytes >> 12,
            _ => 0,
        })
    }
    fn compute(&self, _nanoseconds: u64) {
        std::thread::yield_now();
    }
    fn now(&self) -> u64 {
        self.machine.clock.fetch_add(10_000, SeqCst)
    }
    fn mark(&self, mark: Mark) {
        let before = self.machine.marks.fetch_add(1, SeqCst);
        assert_eq!(before == 0, mark == Mark::Begin);
    }
    fn shared(&self, index: usize) -> u64 {
        self.machine.words[index].load(SeqCst)
    }
    fn set_shared(&self, index: usize, value: u64) {
        self.machine.words[index].store(value, SeqCst);
    }
    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.machine.words[index].fetch_add(value, SeqCst)
    }
}

struct Run {
    results: Vec<Result<(), Failure>>,
    measure: Measure,
    calls: Vec<Call>,
    accesses: u64,
    highest_written: u64,
    marks: u64,
}

fn run(workload: Workload, cpus: usize, refuse: fn(&Call) -> bool) -> Run {
    let machine = Arc::new(Machine {
        clock: AtomicU64::new(0),
        words: [const { AtomicU64::new(0) }; WORDS],
        next: AtomicU64::new(0x10_0000),
        calls: Mutex::new(Vec::new()),
        accesses: AtomicU64::new(0),
        highest_written: AtomicU64::new(0),
        marks: AtomicU64::new(0),
        refuse,
    });
    let threads: Vec<_> = (0..cpus)
        .map(|cpu| {
            let machine = machine.clone();
            std::thread::spawn(move || workload.run(&Cpu { machine, cpu, cpus }, 1))
        })
        .collect();
    let results = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let words = core::array::from_fn(|index| machine.words[index].load(SeqCst));
    let calls = machine.calls.lock().unwrap().clone();
    Run {
        results,
        measure: workload.measure(&words, cpus),
        calls,
        accesses: machine.accesses.load(SeqCst),
        highest_written: machine.highest_written.load(SeqCst),
        marks: machine.marks.load(SeqCst),
    }
}

fn small(name: &str, pairs: &[&str]) -> Workload {
    let mut workload = Workload::from_name(name).unwrap();
    for pair in pairs {
        workload.set(pair).unwrap();
    }
    workload
}

/// Returns each workload, made small enough for this stand-in, with a number of CPUs.
fn all_small() -> Vec<(Workload, usize)> {
    alloc::vec![
        (small("dontneed", &["iterations=20"]), 3),
        (small("fileio", &["duration=5ms", "files=2", "size=64K"]), 3),
        (small("swap", &["rounds=2", "size=64K"]), 1),
        (small("migrate", &["rounds=2", "size=64K", "readers=yes"]), 2),
        (small("demand", &["size=8M"]), 2),
        (small("pingpong", &["switches=10", "pages=4", "processes=3"]), 1),
        (small("readers", &["processes=2", "threads=2", "size=1M", "passes=1"]), 4),
        (small("crowd", &["iterations=5"]), 3),
        (small("crowd", &["iterations=5", "apart=yes"]), 3),
        (small("protect", &["iterations=5"]), 2),
        (small("munmap", &["iterations=5"]), 2),
        (small("scattered", &["iterations=3"]), 2),
        (small("collector", &["cycles=2"]), 2),
        (small("promote", &["moves=5"]), 2),
    ]
}

#[test]
fn every_workload_is_covered_here_and_ends_with_a_figure() {
    let small = all_small();
    for workload in Workload::all() {
        let name = workload.name();
        let covered = small.iter().any(|(small, _)| small.name() == name);
        assert!(covered, "{name} needs a line in `all_small`");
    }
    for (workload, cpus) in small {
        workload.check(cpus).unwrap();
        let run = run(workload, cpus, |_| false);
        let name = workload.name();
        assert!(run.results.iter().all(Result::is_ok), "{name}: {:?}", run.results);
        assert!(run.measure.value.is_finite() && run.measure.value > 0.0, "{name}");
        assert!(run.accesses > 0 || name == "swap", "{name} touched nothing");
        assert_eq!(run.marks, 2, "{name}: one window");
        assert!(!run.calls.is_empty(), "{name}");
    }
}

#[test]
fn every_built_in_file_can_be_read_and_has_its_name() {
    for file in &builtin::FILES {
        match Workload::parse(file.name, file.text) {
            Ok(workload) => assert_eq!(workload.name(), file.name),
            Err(mistakes) => panic!("{mistakes}"),
        }
        assert_eq!(
            Workload::from_name(file.name),
            file.script().map(Workload::of),
            "read once, and equal"
        );
    }
}

#[test]
fn a_refused_call_ends_every_cpu_and_leaves_no_figure() {
    for (workload, cpus) in all_small() {
        let refused = run(workload, cpus, |call| matches!(call, Call::Map { .. }));
        let name = workload.name();
        assert!(
            refused.results.iter().any(|result| matches!(
                result,
                Err(Failure::Call { error: Error::OutOfMemory, what: "map", line: 10.. })
            )),
            "{name}: {:?}",
            refused.results
        );
        assert!(refused.measure.value.is_nan(), "{name}");
    }
}

#[test]
fn dontneed_drops_as_often_as_told() {
    let count = |pairs: &[&str]| {
        let run = run(small("dontneed", pairs), 1, |_| false);
        run.calls.iter().filter(|call| matches!(call, Call::Discard { .. })).count()
    };
    assert_eq!(count(&["iterations=30"]) - count(&["iterations=10"]), 20);
}

#[test]
fn dontneed_spans_the_holes_and_does_not_touch_them() {
    for (stride, span) in [("stride=1", 32), ("stride=2", 63)] {
        let run = run(small("dontneed", &["iterations=1", "pages=32", stride]), 1, |_| false);
        let discarded = run.calls.iter().find_map(|call| match *call {
            Call::Discard { address, bytes } => Some((address, bytes >> 12)),
            _ => None,
        });
        let (address, pages) = discarded.unwrap();
        assert_eq!(pages, span);
        assert_eq!(run.highest_written, address + ((span - 1) << 12));
        // Once in the measured window and in each round of the warm-up.
        assert_eq!(run.accesses % 32, 0);
        assert_eq!(run.accesses / 32, run.calls.len() as u64 - 1, "each discard follows 32 stores");
    }
}

#[test]
fn dontneed_unmaps_and_maps_again_where_it_was() {
    let run = run(small("dontneed", &["iterations=5", "unmap=yes"]), 1, |_| false);
    let mut expected = None;
    let (first, rounds) = run.calls.split_first().unwrap();
    assert!(matches!(first, Call::Map { address: None, .. }));
    for pair in rounds.chunks(2) {
        let [Call::Unmap { address, bytes: 4096 }, Call::Map { address: Some(again), .. }] = pair
        else {
            panic!("{pair:?}");
        };
        assert_eq!(address, again);
        assert_eq!(expected.get_or_insert(*address), address);
    }
}

#[test]
fn pingpong_drops_on_one_cpu_what_others_keep_tagged() {
    let pairs = ["switches=6", "pages=2", "own=0", "drops=1"];
    let dropped = |run: &Run| -> Vec<_> {
        let drops = |call: &&Call| matches!(call, Call::Discard { .. } | Call::PageOut { .. });
        run.calls.iter().filter(drops).cloned().collect()
    };
    let written = run(small("pingpong", &pairs), 3, |_| false);
    assert!(written.results.iter().all(Result::is_ok));
    assert!(written.measure.value > 0.0);
    // Two turns of each process before the measured ones, and none by the other CPUs.
    let calls = dropped(&written);
    assert_eq!(calls.len(), 2 * 2 + 6);
    let discard = |call: &Call| matches!(call, Call::Discard { bytes: 4096, .. });
    assert!(calls.iter().all(discard), "{calls:?}");
    let clean = run(small("pingpong", &[&pairs[..], &["clean=yes"]].concat()), 3, |_| false);
    let page_out = |call: &Call| matches!(call, Call::PageOut { bytes: 4096, .. });
    assert!(dropped(&clean).iter().all(page_out));
    assert_eq!(clean.highest_written, 0, "only read");
    assert!(small("pingpong", &["drops=99"]).check(1).is_err());
}

#[test]
fn fileio_syncs_every_file_in_turn() {
    let run =
        run(small("fileio", &["duration=5ms", "files=3", "size=64K", "sync_every=1"]), 1, |_| {
            false
        });
    let synced: Vec<_> = run
        .calls
        .iter()
        .filter_map(|call| match call {
            Call::Sync { file } => Some(*file),
            _ => None,
        })
        .collect();
    assert!(synced.len() >= 3);
    assert!(synced[0] != synced[1] && synced[1] != synced[2]);
}

#[test]
fn fileio_stops_after_so_many_requests_with_the_syncs_that_they_ask_for() {
    let syncs = |limit: &str| {
        let parameters = ["duration=5ms", "files=2", "size=64K", "sync_every=5", limit];
        let run = run(small("fileio", &parameters), 1, |_| false);
        let syncs = run.calls.iter().filter(|call| matches!(call, Call::Sync { .. }));
        syncs.count()
    };
    // All files are synced after each five of the requests.
    assert_eq!(syncs("limit=20"), 8);
    assert!(syncs("limit=0") > 8, "the time ends it later");
}

#[test]
fn readers_map_one_file_in_each_process_read_only() {
    let workload = small("readers", &["processes=2", "threads=2", "size=1M", "passes=1"]);
    let cpus = 4;
    let run = run(workload, cpus, |_| false);
    let files: Vec<_> = run
        .calls
        .iter()
        .filter_map(|call| match call {
            Call::Map { protection, backing: Backing::Shared { file, .. }, .. } => {
                assert!(!protection.write);
                Some(*file)
            }
            _ => None,
        })
        .collect();
    assert_eq!(files.len(), 2);
    assert_ne!(files[0], files[1]);
}

#[test]
fn every_default_is_in_range_and_can_be_written_and_read() {
    for mut workload in Workload::all() {
        let before = workload;
        for parameter in workload.parameters() {
            assert!((parameter.least..=parameter.most).contains(&parameter.default));
            let shown = parameter.unit.show(parameter.default);
            workload.set(&alloc::format!("{}={shown}", parameter.name)).unwrap();
            assert!(!parameter.meaning.is_empty());
        }
        assert_eq!(workload, before);
        workload.check(workload.cpus()).unwrap();
    }
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let mut workload = Workload::from_name("dontneed").unwrap();
    let before = workload;
    for (pair, expected) in [
        ("iterations", "`iterations` is not of the form name=value"),
        (
            "rounds=1",
            "dontneed has no parameter `rounds`; it has iterations, pages, stride, touch, spin, idle, unmap",
        ),
        ("pages=many", "pages: expected a whole number, found `many`"),
        ("pages=0", "pages: 0 is out of range, expected 1 to 65536"),
        ("spin=2s", "spin: 2s is out of range, expected 100ns to 1s"),
    ] {
        assert_eq!(workload.set(pair).unwrap_err().to_string(), expected);
    }
    assert_eq!(workload, before);
    assert!(Workload::from_name("nothing").is_none());
}

//! Checks that workload files count the same events as the Rust programs that they replaced.
//!
//! We compare calls, faults, interrupts and all of the engine's counters. They depend on the order in which CPUs
//! arrive, so a change of a machine file or of the engine may move some; then update them from `quell run --json`.

use quell_clock::built_in;
use quell_conformance::parse_policy;
use quell_model::trial::Trial;
use quell_workloads::Workload;

#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

/// Workload, parameters, machine, policy, CPUs, seed; calls, faults, interrupts taken, the engine's counters.
type Row = (&'static str, &'static str, &'static str, &'static str, usize, u64, [u64; 4]);

#[rustfmt::skip]
const COUNTED: &[Row] = &[
    ("dontneed", "iterations=300", "haswell-server", "all", 2, 1, [300, 300, 300, 2100]),
    ("dontneed", "iterations=300 pages=40 stride=2", "haswell-server", "all", 4, 1, [300, 12000, 900, 4500]),
    ("dontneed", "iterations=200 unmap=yes", "haswell-server", "baseline", 3, 1, [400, 200, 400, 2000]),
    ("dontneed", "iterations=200 idle=yes touch=no", "haswell-server", "S0+S4", 3, 1, [202, 0, 0, 0]),
    ("fileio", "duration=4ms", "haswell-server", "all", 4, 1, [48, 1372, 162, 811]),
    ("fileio", "duration=3ms files=3 size=100K block=1000", "haswell-server", "baseline", 6, 7, [21, 395, 1970, 7092]),
    ("swap", "rounds=3", "haswell-server", "all", 3, 1, [3, 768, 48, 264]),
    ("swap", "rounds=3 clean=yes", "haswell-server", "all", 3, 1, [3, 0, 0, 0]),
    ("swap", "rounds=2 zeros=yes size=3M", "haswell-server", "baseline", 1, 1, [2, 1536, 0, 4608]),
    ("migrate", "rounds=2 size=2M", "kunpeng-920", "all", 1, 1, [2, 0, 0, 2050]),
    ("migrate", "rounds=3 size=2M readers=yes", "kunpeng-920", "baseline", 4, 1, [3, 4606, 0, 4608]),
    ("demand", "size=300M", "haswell-server", "all", 2, 1, [0, 300, 0, 0]),
    ("demand", "size=3M page=4K", "haswell-server", "baseline", 3, 1, [0, 2304, 0, 0]),
    ("demand", "size=2G page=1G", "haswell-server", "all", 1, 1, [0, 2, 0, 0]),
    ("pingpong", "switches=500", "haswell-server", "all", 1, 1, [500, 0, 0, 1000]),
    ("pingpong", "switches=300 pages=20 drops=3 processes=5", "haswell-server", "all", 3, 1, [1283, 998, 100, 2955]),
    ("pingpong", "switches=300 pages=20 drops=3 clean=yes", "haswell-server", "baseline", 2, 1, [935, 1331, 465, 4575]),
    ("readers", "threads=3 size=6M fast=4M slow=8M ahead=128", "xeon-6430-cxl", "all", 9, 1, [0, 4608, 294, 10755]),
    ("readers", "threads=2 size=4M fast=3M slow=0 ahead=64 reclaimers=2 own=0", "haswell-server", "all-S3", 8, 3, [3719, 3072, 560, 2898]),
];

#[test]
fn files_count_what_the_programs_in_rust_counted() {
    for &(name, parameters, machine, policy, cpus, seed, counted) in COUNTED {
        let machine = built_in(machine).unwrap();
        let mut workload = Workload::from_name(name).unwrap();
        for pair in parameters.split(' ') {
            workload.set(pair).unwrap();
        }
        let trial = Trial {
            machine: &machine,
            workload,
            policy: parse_policy(policy).unwrap(),
            cpus,
            seed,
            trace: 0,
        };
        let outcome = trial.run().unwrap();
        let counts = outcome.machine;
        let engine = outcome.engine.iter().map(|(_, count)| count).sum();
        let now = [counts.calls, counts.faults, counts.interrupts_taken, engine];
        assert_eq!(now, counted, "{name} {parameters} on {cpus} CPUs");
    }
}

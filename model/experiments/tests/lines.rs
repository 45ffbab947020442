//! The profile of lines agrees with the machine's counts, changes nothing, and names what moved.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell::Policy;
use quell_clock::built_in;
use quell_clock::file::built_in_kernel;
use quell_model::jobs::Job;
use quell_model::lines::{LineMover, LineProfile};
use quell_model::run::outcomes;
use quell_model::trial::Outcome;
use quell_workloads::Workload;

#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

fn run(workload: &str, parameter: &str, cpus: usize, lines: bool) -> (Workload, Outcome) {
    // A Linux, whose locks the profile names too.
    let linux = built_in_kernel("linux-6.18").unwrap();
    let machine = built_in("haswell-server").unwrap().with_kernel(&linux);
    let mut workload = Workload::from_name(workload).unwrap();
    workload.set(parameter).unwrap();
    let job = Job { lines, ..Job::new(Arc::new(machine), workload, Policy::ALL, cpus) };
    let mut outcomes = outcomes(&job, 1, &AtomicBool::new(false), || ()).unwrap();
    (workload, outcomes.remove(0).unwrap())
}

fn profile((workload, outcome): &(Workload, Outcome)) -> LineProfile {
    LineProfile::of(workload.operation(), outcome).unwrap()
}

#[test]
fn a_profile_adds_up_to_the_machines_own_count_and_changes_nothing() {
    for (workload, parameter) in [("crowd", "iterations=40"), ("fileio", "duration=1ms")] {
        let run = |lines| run(workload, parameter, 8, lines);
        let (without, with) = (run(false), run(true));
        assert_eq!(without.1.machine, with.1.machine, "{workload}");
        assert!(LineProfile::of("", &without.1).is_none());
        let profile = profile(&with);
        assert!(profile.transfers > 0, "{workload}");
        assert_eq!(profile.transfers, with.1.machine.transfers, "{workload}");
        for group in &profile.groups {
            let sum: u64 = group.movers.iter().map(|mover| mover.transfers).sum();
            assert_eq!(group.transfers, sum);
            for mover in &group.movers {
                assert!(!mover.name.is_empty(), "{workload}: {}", mover.place);
            }
        }
        let names = |name: &str| {
            let mut movers = profile.groups.iter().flat_map(|group| &group.movers);
            movers.any(|mover| mover.name.starts_with(name))
        };
        assert_eq!(names("lock of the lists of pages of node 0"), workload == "crowd");
        assert!(names("walker of page tables"), "{workload}");
    }
}

/// If the engine changes this, change `model/README.md` too.
#[test]
fn a_profile_names_what_moves_most_in_a_crowd() {
    for (cpus, busiest) in [(8, "Inbox::"), (72, "FrameInfo::lock_table, discard")] {
        let profile = profile(&run("crowd", "iterations=10", cpus, true));
        assert_eq!(profile.operations, 10 * cpus as u64);
        let hands = profile.groups[0].hands();
        assert!(hands[0].0.starts_with(busiest), "{cpus} CPUs: {hands:?}");
        // Only a CPU itself serves its inbox.
        let serves = |mover: &&LineMover| mover.name == "Inbox::serve";
        let movers = profile.groups.iter().flat_map(|group| &group.movers);
        let by: Vec<_> = movers.filter(serves).collect();
        assert!(!by.is_empty() && by.iter().all(|mover| mover.cpus == 1));
    }
}

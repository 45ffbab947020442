//! Workload files under the adversary: they keep the contract, and a mistake is found in one.

use quell::Policy;
use quell_adversary::workload::{WorkloadRun, rehearse};
use quell_adversary::{Budget, Case, Mistake};
use quell_workloads::Workload;

/// One CPU drops a page that the other reads.
const FILE: &str = r#"
    name = "race"
    title = "one drops what the other reads"
    mechanism = "S4"
    cpus = 2
    [shared]
    at = 1
    [memory]
    touched = "4K"
    [figure]
    says = "ns"
    value = "nanoseconds"
    [operation]
    is = "page dropped"
    [[threads]]
    when = "cpu == 0"
    program = [
        { map = "at", bytes = "4K" },
        { begin = true },
        { repeat = 2, do = [
            { write = "at" },
            { discard = "at", bytes = "4K" },
        ] },
        { close = true },
    ]
    [[threads]]
    program = [
        { begin = true },
        { repeat = 4, do = [{ read = "at" }] },
    ]
"#;

#[test]
fn a_workload_keeps_the_contract_and_a_mistake_is_found_in_it() {
    let workload = Workload::parse("race.toml", FILE).expect("a workload file");
    let performance = WorkloadRun::new(workload, 2).expect("it runs here");
    let scenario = rehearse(&performance, "race.toml").expect("it runs");
    let search = |mistake| {
        let case = Case { policy: Policy::BASELINE, mistake, ..Case::on(&scenario, "x86") };
        crate::search(case, Budget::Schedules(60))
    };
    let kept = search(None);
    assert!(kept.failure.is_none(), "{:?}", kept.failure);
    assert_eq!(kept.schedules, 60);
    let mistake = Mistake::named("SkipPost").expect("a mistake");
    assert!(!quell_mutants::list::IN_COPY || search(Some(mistake)).failure.is_some());
}

#[test]
fn what_cannot_be_done_here_is_told() {
    let mut workload = Workload::from_name("dontneed").expect("built in");
    assert!(WorkloadRun::new(workload, 9).unwrap_err().contains("1 to 4"));
    workload.set("iterations=1000000").expect("a parameter");
    let long = WorkloadRun::new(workload, 2).expect("memory enough");
    assert!(rehearse(&long, "long").unwrap_err().contains("use smaller parameters"));
    let large = Workload::from_name("demand").expect("built in");
    assert!(WorkloadRun::new(large, 1).unwrap_err().contains("pages of memory"));
}

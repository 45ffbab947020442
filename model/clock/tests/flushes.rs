//! Runs the protocols of policy files on the manager. The oracle must find what each keeps and gives up.

use crate::support::haswell;
use quell::{PageSize, Policy};
use quell_clock::file::{POLICIES, built_in_policy};
use quell_clock::{MachineFile, ModelUser, Outcome, Run, Setup, built_in};
use quell_vm::contract::Clause;
use quell_vm::{Backing, Call, Mark, Protection, User};

const BASE: u64 = 1 << 32;
const PAGE: u64 = 4096;
const ROUNDS: u64 = 20;

fn map(user: &ModelUser<'_>, address: u64, pages: u64) {
    let call = Call::Map {
        address: Some(address),
        bytes: pages * PAGE,
        protection: Protection::READ_WRITE,
        backing: Backing::Anonymous { page: PageSize::Base },
    };
    user.call(call).expect("is mapped");
}

/// Waits for all CPUs.
fn meet(user: &ModelUser<'_>, times: &mut u64) {
    *times += 1;
    user.add_shared(0, 1);
    while user.shared(0) < *times * user.cpus() as u64 {
        user.compute(100);
    }
}

/// CPU 0 unmaps a page that all use, again and again. If `after`, the others use it once more.
fn unmap(user: &ModelUser<'_>, after: bool) {
    let mut times = 0;
    if user.cpu() == 0 {
        map(user, BASE, 1);
        user.write(BASE, 1);
        user.mark(Mark::Begin);
    }
    for round in 0..ROUNDS {
        let address = BASE + (1 + round) * PAGE;
        if user.cpu() == 0 {
            map(user, address, 1);
        }
        meet(user, &mut times);
        user.write(address, 1);
        meet(user, &mut times);
        if user.cpu() == 0 {
            let bytes = PAGE;
            user.call(Call::Unmap { address, bytes }).expect("unmaps");
        }
        meet(user, &mut times);
        if after {
            assert!(user.try_read(address).is_err() || user.cpu() != 0);
        }
    }
    if user.cpu() == 0 {
        user.mark(Mark::End);
    }
}

/// CPU 0 drops a page that all use, and touches a new one, which gets a free frame. The others use the dropped page again.
fn reuse(user: &ModelUser<'_>) {
    let mut times = 0;
    if user.cpu() == 0 {
        map(user, BASE, 2 * ROUNDS);
    }
    meet(user, &mut times);
    for round in 0..ROUNDS {
        let address = BASE + round * PAGE;
        user.write(address, round);
        meet(user, &mut times);
        if user.cpu() == 0 {
            let bytes = PAGE;
            user.call(Call::Discard { address, bytes }).expect("drops");
            user.write(address + ROUNDS * PAGE, round);
        }
        meet(user, &mut times);
        user.read(address);
        meet(user, &mut times);
    }
}

fn under(machine: &MachineFile, name: &str, cpus: usize, body: &dyn Fn(&ModelUser<'_>)) -> Outcome {
    let policy = built_in_policy(name).expect("is built in");
    let machine = machine.with_policy(&policy);
    let setup = Setup { cpus: Some(cpus), ..Setup::new(&machine) };
    let mechanisms = Policy::only(quell::Mechanism::Tags);
    Run::new(setup, mechanisms).execute(body).expect("runs")
}

fn broadcasting() -> MachineFile {
    let set = ["broadcast.hardware=yes", "tlb.tags=none"];
    haswell().with_text("--set", &set).expect("fits")
}

fn clauses(outcome: &Outcome) -> Vec<Clause> {
    let found = outcome.run.violations.iter();
    found.map(|violation| violation.clause).collect()
}

/// Returns the interrupts that were sent while measured.
fn sent(outcome: &Outcome) -> u64 {
    outcome.run.window.map_or(0, |(_, counts)| counts.interrupts_sent)
}

#[test]
fn calls_and_requests_interrupt_each_cpu_once_and_keep_the_contract() {
    for name in ["linux", "linux-4.10", "rar", "abis"] {
        let outcome = under(&haswell(), name, 6, &|user| unmap(user, true));
        assert_eq!(clauses(&outcome), [], "{name}");
        assert_eq!(outcome.run.expected_violations, 0, "{name}");
        assert_eq!(sent(&outcome), 5 * ROUNDS, "{name}");
        let reused = under(&haswell(), name, 3, &reuse);
        assert_eq!(clauses(&reused), [], "{name}");
    }
}

/// Each CPU drops pages that only it used.
fn drop_own(user: &ModelUser<'_>) {
    let mut times = 0;
    if user.cpu() == 0 {
        map(user, BASE, user.cpus() as u64);
        user.write(BASE, 1);
    }
    meet(user, &mut times);
    let address = BASE + user.cpu() as u64 * PAGE;
    user.mark(Mark::Begin);
    for round in 0..ROUNDS {
        user.write(address, round);
        let bytes = PAGE;
        user.call(Call::Discard { address, bytes }).expect("drops");
        assert_eq!(user.read(address), 0);
    }
    user.mark(Mark::End);
}

#[test]
fn access_bits_spare_other_cpus_the_flushes_of_private_pages() {
    let private = under(&haswell(), "abis", 6, &drop_own);
    assert_eq!(clauses(&private), []);
    assert_eq!(sent(&private), 0);
    assert!(sent(&under(&haswell(), "linux", 6, &drop_own)) > 0);
}

#[test]
fn a_lazy_protocol_interrupts_nobody_and_leaves_stale_entries_until_the_next_tick() {
    let outcome = under(&haswell(), "latr", 6, &|user| unmap(user, true));
    assert_eq!(clauses(&outcome), []);
    assert_eq!(sent(&outcome), 0);
    assert!(outcome.run.expected_violations > 0, "C3 is given up");
    let reused = under(&haswell(), "latr", 3, &reuse);
    assert_eq!(clauses(&reused), [], "frames wait for all CPUs");
}

/// CPU 0 unmaps pages that all use, and then touches as many in the same process or in another one.
fn pass_on(user: &ModelUser<'_>, other: bool) {
    let mut times = 0;
    let address = BASE + PAGE;
    if user.cpu() == 0 {
        map(user, BASE, 1 + ROUNDS);
        user.write(BASE, 1);
    }
    meet(user, &mut times);
    (0..ROUNDS).for_each(|page| user.write(address + page * PAGE, page));
    meet(user, &mut times);
    if user.cpu() == 0 {
        let second = user.call(Call::Spawn).expect("spawns") as u32;
        user.mark(Mark::Begin);
        user.call(Call::Unmap { address, bytes: ROUNDS * PAGE }).expect("unmaps");
        if other {
            user.call(Call::Enter { process: second }).expect("enters");
        }
        let next = address + ROUNDS * PAGE;
        map(user, next, ROUNDS);
        (0..ROUNDS).for_each(|page| assert_eq!(user.read(next + page * PAGE), 0));
        user.mark(Mark::End);
    }
    meet(user, &mut times);
}

/// CPU 0 evicts pages of a file that all use, and has written them if they are `dirty`.
fn evict(user: &ModelUser<'_>, dirty: bool) {
    let (mut times, bytes) = (0, ROUNDS * PAGE);
    if user.cpu() == 0 {
        let file = user.call(Call::Create { bytes }).expect("creates") as u32;
        let backing = Backing::Shared { file, offset: 0 };
        let protection = Protection::READ_WRITE;
        let address = Some(BASE);
        user.call(Call::Map { address, bytes, protection, backing }).expect("is mapped");
        if dirty {
            (0..ROUNDS).for_each(|page| user.write(BASE + page * PAGE, page));
        }
    }
    meet(user, &mut times);
    (0..ROUNDS).for_each(|page| _ = user.read(BASE + page * PAGE));
    meet(user, &mut times);
    if user.cpu() == 0 {
        user.mark(Mark::Begin);
        assert_eq!(user.call(Call::PageOut { address: BASE, bytes }), Ok(ROUNDS));
        user.mark(Mark::End);
    }
    meet(user, &mut times);
}

#[test]
fn recycled_pages_are_flushed_once_another_process_gets_one() {
    let outcome = under(&haswell(), "fpr", 6, &|user| unmap(user, true));
    assert_eq!(clauses(&outcome), []);
    assert_eq!(sent(&outcome), 0);
    assert!(outcome.run.expected_violations > 0, "C3 is given up");
    // Dropped pages keep their address, so they are flushed.
    assert_eq!(clauses(&under(&haswell(), "fpr", 3, &reuse)), []);
    assert!(sent(&under(&haswell(), "fpr", 6, &drop_own)) > 0);
    assert_eq!(sent(&under(&haswell(), "fpr", 6, &|user| pass_on(user, false))), 0);
    // Only clean pages are evicted without a flush.
    assert_eq!(sent(&under(&haswell(), "fpr", 6, &|user| evict(user, false))), 0);
    assert!(sent(&under(&haswell(), "fpr", 6, &|user| evict(user, true))) > 0);
    // One flush of the whole process covers all pages that it had.
    assert_eq!(sent(&under(&haswell(), "fpr", 6, &|user| pass_on(user, true))), 5);
}

#[test]
fn a_loss_that_no_file_declares_is_a_violation() {
    let set = ["policy.flush=latr"];
    let machine = haswell().with_text("--set", &set).expect("fits");
    let outcome = under(&machine, "quell", 2, &|user| unmap(user, true));
    assert!(clauses(&outcome).contains(&Clause::C3));
}

#[test]
fn a_mixed_protocol_broadcasts_for_spaces_on_many_cpus() {
    for (cpus, interrupts) in [(3, 2 * ROUNDS), (4, 0)] {
        let outcome = under(&broadcasting(), "linux-invlpgb", cpus, &|user| unmap(user, true));
        assert_eq!(clauses(&outcome), [], "{cpus}");
        assert_eq!(sent(&outcome), interrupts, "{cpus}");
        assert_eq!(outcome.run.counts().broadcasts > 0, cpus > 3);
    }
}

#[test]
fn local_invalidations_suffice_for_a_space_on_one_cpu() {
    let machine = built_in("kunpeng-920").expect("is built in");
    for (name, cpus, broadcasts) in
        [("linux-tlbi", 1, true), ("linux-local-tlbi", 1, false), ("linux-local-tlbi", 2, true)]
    {
        let outcome = under(&machine, name, cpus, &|user| unmap(user, true));
        assert_eq!(clauses(&outcome), [], "{name}");
        assert_eq!(outcome.run.counts().broadcasts > 0, broadcasts, "{name} on {cpus}");
    }
}

#[test]
fn every_built_in_policy_can_be_read_and_a_mistake_is_refused() {
    for (name, text) in POLICIES {
        let policy = built_in_policy(name).unwrap_or_else(|| panic!("{name} is wrong"));
        assert_eq!(policy.name(), *name);
        assert!(text.contains("source"));
    }
    let text = "name = \"mine\"\nbased_on = \"linux\"\n[cpu]\n[policy]\nflush = { value = \"smoke\", source = \"-\" }";
    let error = quell_clock::PolicyFile::parse("mine.toml", text).unwrap_err().to_string();
    assert!(
        error.contains("cpu")
            && error.contains("`smoke` is not one of engine, calls, latr, rar, abis, fpr"),
        "{error}"
    );
    let lost = built_in_policy("latr").unwrap();
    let lost: Vec<_> = lost.exceptions().filter(|(_, state, _)| *state == "lost").collect();
    assert!(matches!(lost[..], [(Clause::C3, ..), (Clause::C4, ..)]));
}

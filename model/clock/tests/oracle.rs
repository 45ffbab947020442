//! Breaks each clause by hand, which must be reported, and checks that correct code isn't.

use crate::support::{Hooks, Toy, haswell, run};
use quell::{
    Broadcast, CpuId, CpuSet, Frame, Hardware, Invalidation, Page, PageRange, PageSize, Scope, Tag,
};
use quell_clock::{ModelUser, RunResult, Setup};
use quell_vm::Call;
use quell_vm::contract::Clause;
use quell_vm::{Event, Level, Machine, User};
use quell_zero::{PhysicalMemory, Strategy};
use std::cell::Cell;

const ADDRESS: u64 = 0x20_0000;
const PAGE: Page = Page(ADDRESS / 4096);

/// Runs two CPUs on a toy kernel that has [`PAGE`] mapped, writable.
fn two_cpus(hooks: &Hooks<'_>, program: &dyn Fn(&Toy<'_>, &ModelUser<'_>)) -> RunResult {
    let file = haswell();
    let setup = Setup { cpus: Some(2), ..Setup::new(&file) };
    run(&setup, hooks, &|toy| toy.populate(PAGE, 2), program).expect("runs")
}

fn clauses(result: &RunResult) -> Vec<Clause> {
    result.violations.iter().map(|found| found.clause).collect()
}

fn wait(user: &ModelUser<'_>, stage: u64) {
    while user.shared(0) < stage {
        user.compute(50);
    }
}

/// Invalidates the page on both CPUs, as the engine would.
fn flush(toy: &Toy<'_>) {
    toy.model.invalidate(Invalidation::Range {
        tag: Tag(1),
        range: PageRange::base(PAGE, 1),
        scope: Scope::Leaf,
    });
}

fn mapped_frame(toy: &Toy<'_>) -> Frame {
    let (table, index) = toy.entry(toy.root, PAGE, PageSize::Base);
    let word =
        quell::Word::load(&toy.model.table(table)[index], std::sync::atomic::Ordering::SeqCst);
    toy.model.decode(word, Level::LEAF).frame
}

/// Lets CPU 1 use the page; CPU 0 then clears its entry, flushes CPU 1 or not, and does `then`; CPU 1 accesses it
/// again.
fn stale(
    flushes: bool,
    peek: &dyn Fn(&Toy<'_>, u64) -> Option<u64>,
    then: &dyn Fn(&Toy<'_>, Frame),
    access: &dyn Fn(&ModelUser<'_>),
) -> RunResult {
    let hooks = Hooks { interrupt: &flush, peek, ..Hooks::default() };
    two_cpus(&hooks, &|toy, user| {
        if user.cpu() == 1 {
            user.write(ADDRESS, 7);
            user.set_shared(0, 1);
            wait(user, 2);
            access(user);
        } else {
            wait(user, 1);
            let frame = mapped_frame(toy);
            toy.clear(toy.root, PAGE, PageSize::Base);
            if flushes {
                toy.model.interrupt(&CpuSet::from_iter([CpuId(1)]));
                user.compute(5_000);
            }
            then(toy, frame);
            user.set_shared(0, 2);
        }
    })
}

fn load(user: &ModelUser<'_>) {
    user.read(ADDRESS);
}

fn store(user: &ModelUser<'_>) {
    user.write(ADDRESS, 8);
}

fn reuse(toy: &Toy<'_>, frame: Frame) {
    toy.model.note(Event::FrameFreed { frame, frames: 1 });
    toy.model.note(Event::FrameAllocated { frame, frames: 1 });
}

#[test]
fn what_the_machine_does_not_allow_is_named() {
    let what = |misuse: &dyn Fn(&Toy<'_>)| {
        let result = two_cpus(&Hooks::default(), &|toy, user| {
            if user.cpu() == 0 {
                misuse(toy);
            }
        });
        let found = result.violations.iter();
        found.map(|found| (found.clause, found.account.clone())).collect::<Vec<_>>()
    };
    let misuse = |what: &str| [(Clause::Misuse, what.to_string())];
    assert_eq!(
        what(&|toy| toy.model.broadcasts().expect("the interface").start(Invalidation::All)),
        misuse("broadcast on a machine without broadcasts")
    );
    assert_eq!(
        what(&|toy| toy.model.interrupt(&CpuSet::from_iter([CpuId(7)]))),
        misuse("interrupt sent to CPU 7")
    );
    let range = |start: u64, pages: u64| Invalidation::Range {
        tag: Tag(1),
        range: PageRange { start: Page(start), pages, stride: PageSize::Large },
        scope: Scope::Leaf,
    };
    assert_eq!(
        what(&|toy| toy.model.invalidate(range(512, 7))),
        misuse("7 pages from 0x200 invalidated in strides of 512")
    );
    assert_eq!(what(&|toy| toy.model.invalidate(range(512, 1024))), []);
}

#[test]
fn c1_a_frame_with_a_new_owner_is_used() {
    for access in [load, store] {
        let result = stale(false, &|_, _| None, &reuse, &access);
        assert_eq!(clauses(&result), [Clause::C1]);
        let found = &result.violations[0];
        assert_eq!((found.cpu, found.other), (Some(CpuId(1)), Some(CpuId(0))));
        assert_eq!(found.address, Some(ADDRESS));
        assert!(found.other_at < found.at, "{found}");
        assert_eq!(clauses(&stale(true, &|_, _| None, &reuse, &access)), []);
    }
}

#[test]
fn c1_a_frame_without_owner_is_stored_to_but_may_be_read() {
    let free = |toy: &Toy<'_>, frame| toy.model.note(Event::FrameFreed { frame, frames: 1 });
    assert_eq!(clauses(&stale(false, &|_, _| None, &free, &store)), [Clause::C1]);
    assert_eq!(clauses(&stale(false, &|_, _| None, &free, &load)), []);
}

#[test]
fn c2_a_captured_frame_is_stored_to() {
    let capture = |toy: &Toy<'_>, frame| toy.model.note(Event::Captured { frame, frames: 1 });
    assert_eq!(clauses(&stale(false, &|_, _| None, &capture, &store)), [Clause::C2]);
    assert_eq!(clauses(&stale(true, &|_, _| None, &capture, &store)), []);
    // Reading a page that is being written out is harmless.
    assert_eq!(clauses(&stale(false, &|_, _| Some(7), &capture, &load)), []);
}

/// Does [`stale`] with the change in a system call that reports its return.
fn in_a_call(flushes: bool, event: fn(Frame) -> Event, protect: bool) -> RunResult {
    let hooks = Hooks {
        interrupt: &flush,
        call: &|toy, _| {
            let frame = mapped_frame(toy);
            if protect {
                toy.set(toy.root, PAGE, PageSize::Base, frame, false);
            } else {
                toy.clear(toy.root, PAGE, PageSize::Base);
            }
            if flushes {
                toy.model.interrupt(&CpuSet::from_iter([CpuId(1)]));
                toy.model.halt(toy.model.now() + 5_000);
            }
            toy.model.note(event(toy.root));
            Ok(0)
        },
        ..Hooks::default()
    };
    two_cpus(&hooks, &|_, user| {
        if user.cpu() == 1 {
            user.write(ADDRESS, 7);
            user.set_shared(0, 1);
            wait(user, 2);
            let _ = user.read(ADDRESS);
            if !flushes {
                user.write(ADDRESS, 8);
            }
        } else {
            wait(user, 1);
            user.call(Call::Nothing).expect("the hook's answer");
            user.set_shared(0, 2);
        }
    })
}

#[test]
fn c3_the_old_translation_is_used_after_the_call_returned() {
    let unmap = |root| Event::ReturnedUnmap { root, range: PageRange::base(PAGE, 1) };
    let far = |root| Event::ReturnedUnmap { root, range: PageRange::base(Page(0), 1000) };
    for event in [unmap as fn(Frame) -> Event, far] {
        let result = in_a_call(false, event, false);
        assert_eq!(clauses(&result), [Clause::C3, Clause::C3]);
        assert_eq!(result.violations[0].other, Some(CpuId(0)));
        assert_eq!(clauses(&in_a_call(true, event, false)), []);
    }
    let protect = |root| Event::ReturnedProtect {
        root,
        range: PageRange::base(PAGE, 1),
        readable: true,
        writable: false,
        executable: false,
    };
    // The load is still allowed, the store isn't.
    assert_eq!(clauses(&in_a_call(false, protect, true)), [Clause::C3]);
}

#[test]
fn c3_another_range_takes_nothing_away() {
    let elsewhere = |root| Event::ReturnedUnmap { root, range: PageRange::base(PAGE.plus(1), 1) };
    assert_eq!(clauses(&in_a_call(false, elsewhere, false)), []);
}

#[test]
fn c4_a_translation_left_behind_reads_other_bytes() {
    let nothing = |_: &Toy<'_>, _| {};
    let other = stale(false, &|_, _| Some(9), &nothing, &load);
    assert_eq!(clauses(&other), [Clause::C4]);
    let found = other.violations[0].to_string();
    assert!(found.contains("0x7 instead of 0x9"), "{found}");
    assert_eq!(clauses(&stale(false, &|_, _| Some(7), &nothing, &load)), []);
    assert_eq!(clauses(&stale(false, &|_, _| None, &nothing, &load)), []);
}

#[test]
fn c5_another_spaces_translation_is_used() {
    for keep in [true, false] {
        let result = two_cpus(&Hooks::default(), &|toy, user| {
            if user.cpu() == 0 {
                user.read(ADDRESS);
                let root = toy.new_root();
                let frame = toy.allocate(PageSize::Base);
                toy.set(root, PAGE, PageSize::Base, frame, true);
                // SAFETY: in this machine in software a root is a number, and every number is valid.
                unsafe { toy.model.load_root(root, Tag(1), keep) };
                user.read(ADDRESS);
            }
        });
        let expected: &[Clause] = if keep { &[Clause::C5] } else { &[] };
        assert_eq!(clauses(&result), expected);
    }
}

#[test]
fn c6_a_freed_table_is_walked() {
    for forgets in [false, true] {
        let result = two_cpus(&Hooks::default(), &|toy, user| {
            if user.cpu() == 0 {
                user.read(ADDRESS);
                let (table, _) = toy.entry(toy.root, PAGE, PageSize::Base);
                toy.clear(toy.root, PAGE, PageSize::Large);
                toy.model.note(Event::TableFreed { frame: table });
                if forgets {
                    toy.model.invalidate(Invalidation::Tag(Tag(1)));
                }
                // The neighbour isn't in the TLB, but the walker knows the table.
                user.read(ADDRESS + 4096);
            }
        });
        let expected: &[Clause] = if forgets { &[] } else { &[Clause::C6] };
        assert_eq!(clauses(&result), expected);
    }
}

#[test]
fn c8_memory_handed_out_as_zeroed_is_not() {
    let found = Cell::new(Frame(0));
    let result = two_cpus(&Hooks::default(), &|toy, user| {
        if user.cpu() == 0 {
            user.write(ADDRESS + 8 * 100, 1);
            let frame = mapped_frame(toy);
            found.set(frame);
            let first = Frame(frame.0 - 1);
            toy.model.note(Event::FrameZeroed { frame: first, frames: 3 });
            let extent = quell::Extent { first, frames: 3 };
            // SAFETY: nothing that is borrowed is behind a frame of the model.
            unsafe { toy.model.zero(extent, Strategy::Stores) };
            toy.model.note(Event::FrameZeroed { frame: first, frames: 3 });
        }
    });
    assert_eq!(clauses(&result), [Clause::C8]);
    assert_eq!(result.violations[0].frame, Some(found.get()));
}

#[test]
fn c8_a_freed_table_is_handed_out_as_it_was() {
    let result = two_cpus(&Hooks::default(), &|toy, user| {
        if user.cpu() == 0 {
            let (frame, _) = toy.entry(toy.root, PAGE, PageSize::Base);
            toy.model.note(Event::TableFreed { frame });
            toy.model.note(Event::FrameZeroed { frame, frames: 1 });
            toy.model.note(Event::TableAllocated { frame, level: Level::LEAF });
        }
    });
    assert_eq!(clauses(&result), [Clause::C8, Clause::C8]);
}

#[test]
fn all_violations_are_counted_and_the_first_are_kept() {
    let result = stale(false, &|_, _| None, &reuse, &|user| {
        for _ in 0..200 {
            user.read(ADDRESS);
        }
    });
    assert_eq!(result.violation_count, 200);
    assert_eq!(result.violations.len(), 64);
}

//! The machine reports requests that it doesn't allow, whatever the contract requires.

use quell::{
    AddressSpace, Broadcast, CpuId, CpuSet, Frame, Hardware, Invalidation, Page, PageRange,
    PageSize, Purpose, Scope, Tag,
};
use quell_adversary::bare_kernel::{BareKernel, BareProgram, frame};
use quell_adversary::scenario::{Scenario, Script};
use quell_adversary::schedule::Strategy;
use quell_adversary::{Case, End, Session};
use quell_vm::contract::Clause;
use quell_vm::machine::Machine;
use std::cell::Cell;
use std::ops::Deref;

const fn scenario(program: BareProgram) -> Scenario<'static> {
    Scenario { cpus: 2, ..Scenario::of("misuse", 1, Script::Engine(program)) }
}

/// What CPU 0 does on a machine, and the machine's account of it. `None` means that it's allowed.
type Row = (&'static str, fn(&BareKernel<'_>), Option<&'static str>);

/// Checks the machine's account of each row, while CPU 1 does what `other` says.
fn check(rows: &[Row], other: fn(&BareKernel<'_>)) {
    for &(machine, body, expected) in rows {
        let mut cpus = BareProgram::NONE.cpus;
        (cpus[0], cpus[1]) = (body, other);
        let scenario = scenario(BareProgram { cpus, ..BareProgram::NONE });
        let mut session = Session::new(Case::on(&scenario, machine));
        let account = match session.run(Strategy::script(Vec::new())).0.end {
            End::Violated(violation) => {
                assert_eq!(violation.clause, Clause::Misuse, "{violation}");
                Some(violation.account)
            }
            End::Finished | End::Pruned => None,
        };
        assert_eq!(account.as_deref(), expected, "on {machine}");
    }
}

/// Loads a root without the engine's knowledge.
fn load_root(k: &BareKernel<'_>, tag: u16) {
    // SAFETY: in this machine in software a root is just a number, and every number is valid.
    unsafe { k.hw.load_root(Frame(1), Tag(tag), false) }
}

fn invalidate(k: &BareKernel<'_>, start: u64, pages: u64, stride: PageSize) {
    let range = PageRange { start: Page(start), pages, stride };
    k.hw.invalidate(Invalidation::Range { tag: Tag(1), range, scope: Scope::Leaf });
}

fn broadcast(k: &BareKernel<'_>) {
    k.hw.broadcasts().expect("the interface").start(Invalidation::All);
}

fn interrupt(k: &BareKernel<'_>, cpu: u16) {
    k.hw.interrupt(&CpuSet::from_iter([CpuId(cpu)]));
}

/// Masks interrupts.
fn masked<'k, 'm>(k: &'k BareKernel<'m>) -> &'k BareKernel<'m> {
    k.hw.mask_interrupts();
    k
}

#[test]
fn what_the_machine_does_not_allow_is_named() {
    let broadcasts = Some("broadcasts an invalidation on a machine without broadcasts");
    let complete = |k: &BareKernel<'_>| k.hw.broadcasts().expect("the interface").complete();
    let two_tags = |k: &BareKernel<'_>| {
        load_root(k, 1);
        k.hw.invalidate(Invalidation::Tag(Tag(1)));
        k.hw.invalidate(Invalidation::Tag(Tag(2)));
    };
    let unloaded = |k: &BareKernel<'_>| {
        load_root(k, 1);
        k.hw.unload_root();
        invalidate(k, 0, 1, PageSize::Base);
    };
    let rows: &[Row] = &[
        ("x86-pcid", broadcast, broadcasts),
        ("riscv", complete, broadcasts),
        ("arm-asid8", broadcast, None),
        (
            "x86-pcid",
            |k| k.hw.invalidate(Invalidation::Tag(Tag(3))),
            Some("invalidates tag 3, which does not exist"),
        ),
        ("x86-pcid", two_tags, Some("invalidates tag 2 while tag 1 is loaded")),
        ("riscv", unloaded, Some("invalidates tag 1 while tag 0 is loaded")),
        ("x86-pcid", |k| load_root(k, 9), Some("loads a root under tag 9, which does not exist")),
        (
            "x86",
            |k| invalidate(k, 0, 0, PageSize::Base),
            Some("invalidates 0 pages from 0x0 in strides of 1"),
        ),
        (
            "x86",
            |k| invalidate(k, 512, 10, PageSize::Large),
            Some("invalidates 10 pages from 0x200 in strides of 512"),
        ),
        (
            "x86",
            |k| invalidate(k, 5, 512, PageSize::Large),
            Some("invalidates 512 pages from 0x5 in strides of 512"),
        ),
        ("x86", |k| invalidate(k, 512, 512, PageSize::Large), None),
        ("x86", |k| interrupt(k, 0), Some("interrupts itself")),
        ("x86", |k| interrupt(k, 9), Some("interrupts CPU 9, which does not exist")),
        ("x86", |k| _ = masked(k).read(0), Some("a program runs with interrupts off")),
        ("x86", |k| _ = masked(k), Some("the program has ended with interrupts off")),
        ("x86", |k| masked(k).hw.halt(0), Some("sleeps with interrupts off")),
        (
            "x86",
            |k| _ = k.offline().read(0),
            Some("user memory is accessed while the CPU is offline"),
        ),
        ("x86", |k| load_root(k.offline(), 1), Some("loads a root while it is offline")),
        ("x86", |k| _ = k.online(), Some("comes online twice")),
        ("x86", |k| _ = k.offline(), None),
    ];
    check(rows, |_| {});
}

/// The account of a page that is mapped before another one is unmapped.
const OTHER: Option<&str> = Some(
    "break before make: entry 0 of table 0xa maps a page in frame 0x21 \
     where a TLB may still hold a page in frame 0x20",
);

/// Maps a page and clears its entry, without a flush.
fn away<'k, 'm>(k: &'k BareKernel<'m>) -> &'k BareKernel<'m> {
    k.map(0, 0, frame(0), true).clear(0, 0);
    k
}

/// Checks that an entry is reported that replaces another one too early. Arm requires that the old entry is absent and
/// its flush complete before a new one takes its place.
#[test]
fn an_entry_that_is_made_before_the_old_one_is_broken_is_named() {
    // The entry was never absent; or absent and not flushed; or flushed, but the flush isn't complete.
    let overwritten =
        |k: &BareKernel<'_>| _ = k.map(0, 0, frame(0), true).map(0, 0, frame(1), true);
    let incomplete = |k: &BareKernel<'_>| {
        broadcast(away(k));
        k.map(0, 0, frame(1), true).hw.fence();
    };
    let rows: &[Row] = &[
        ("arm-asid8", overwritten, OTHER),
        ("arm-reordering", overwritten, OTHER),
        ("x86-pcid", overwritten, None),
        ("riscv", overwritten, None),
        ("arm-asid8", |k| _ = away(k).map(0, 0, frame(1), true), OTHER),
        ("arm-asid8", incomplete, OTHER),
        // These are allowed: the engine's break before make, the same frame again, and an added right.
        (
            "arm-asid8",
            |k| {
                k.map(0, 0, frame(0), true).unmap(0, 0).map(0, 0, frame(1), true).hw.fence();
            },
            None,
        ),
        ("arm-asid8", |k| away(k).map(0, 0, frame(0), true).hw.fence(), None),
        ("arm-asid8", |k| k.map(0, 0, frame(0), false).map(0, 0, frame(0), true).hw.fence(), None),
    ];
    check(rows, |_| {});
}

/// Checks that a read-only translation may be replaced by one with the same bytes.
#[test]
fn an_entry_of_the_same_bytes_needs_no_break() {
    fn exchange(k: &BareKernel<'_>, writable: bool) {
        k.map(0, 0, frame(0), false).map(0, 0, frame(1), writable).hw.fence();
    }
    let other_bytes = |k: &BareKernel<'_>| {
        k.fill(frame(1), 5).hw.fence();
        exchange(k, false);
    };
    let rows: &[Row] = &[
        ("arm-asid8", |k| exchange(k, false), None),
        ("arm-asid8", |k| exchange(k, true), OTHER),
        ("arm-asid8", other_bytes, OTHER),
    ];
    check(rows, |_| {});
}

/// Checks that a large page is flushed before base pages or a table take its place, and vice versa.
#[test]
fn a_page_of_another_size_breaks_first() {
    const LARGE: u64 = 512;
    fn large<'k, 'm>(k: &'k BareKernel<'m>) -> &'k BareKernel<'m> {
        k.map_large(0, LARGE, frame(0), true).clear_large(0, LARGE);
        k
    }
    let link_first = |k: &BareKernel<'_>| {
        k.map(0, LARGE, frame(0), true).link(0, LARGE).map_large(0, LARGE, frame(0), true);
    };
    let rows: &[Row] = &[
        (
            "arm-asid8",
            |k| _ = large(k).link(0, LARGE),
            Some(
                "break before make: entry 1 of table 0x1 maps a table in frame 0x12 \
                 where a TLB may still hold a large page in frame 0x20",
            ),
        ),
        (
            "arm-asid8",
            link_first,
            Some(
                "break before make: entry 1 of table 0x1 maps a large page in frame 0x20 \
                 where a TLB may still hold a table in frame 0x12",
            ),
        ),
        ("arm-asid8", |k| large(k).flush_all(0).link(0, LARGE).hw.fence(), None),
    ];
    check(rows, |_| {});
}

/// Checks that the TLB entries of a space that a CPU doesn't run meet nothing until the CPU returns to it.
#[test]
fn an_entry_that_is_not_loaded_meets_nothing_until_it_is() {
    fn exchange<'k, 'm>(k: &'k BareKernel<'m>) -> &'k BareKernel<'m> {
        k.map(0, 0, frame(0), true).hw.fence();
        // Both CPUs now run another space.
        k.switch(1).wait_for(0).clear(0, 0);
        k.map(0, 0, frame(1), true).hw.fence();
        k
    }
    let rows: &[Row] = &[
        ("arm-asid16", |k| _ = exchange(k), None),
        ("arm-asid16", |k| _ = exchange(k).switch(0), OTHER),
    ];
    check(rows, |k| _ = k.switch(1).tell(0));
}

#[test]
fn a_panic_before_the_run_is_a_violation() {
    let before = scenario(BareProgram {
        each: |_, cpu| assert!(cpu == 0, "nothing begins here"),
        ..BareProgram::NONE
    });
    let mut session = Session::new(Case::on(&before, "x86"));
    // Afterwards the session works as before.
    for _ in 0..2 {
        let End::Violated(violation) = session.run(Strategy::script(Vec::new())).0.end else {
            panic!("the run ends as if nothing had happened");
        };
        assert_eq!(violation.cpu, Some(CpuId(1)));
        assert!(violation.account.contains("nothing begins here"));
    }
}

/// A space that a kernel has freed too early. The engine panics when it reads it during a flush.
struct FreedSpace<'s, H: Hardware> {
    space: &'s AddressSpace<H>,
    gone: &'s Cell<bool>,
}

impl<H: Hardware> Deref for FreedSpace<'_, H> {
    type Target = AddressSpace<H>;
    fn deref(&self) -> &AddressSpace<H> {
        assert!(!self.gone.get(), "the space has gone");
        self.space
    }
}

/// Checks a panic whose batch is dropped. The flush in its destructor would panic again.
#[test]
fn a_panic_in_the_flush_of_a_batch_is_a_violation() {
    fn flush(k: &BareKernel<'_>) {
        let gone = Cell::new(false);
        let space = || FreedSpace { space: k.space(0), gone: &gone };
        let mut batch = k.engine.batch::<_, Frame>(Purpose::Call);
        batch.changed(space(), PageRange::base(Page(0), 1), Scope::Leaf);
        gone.set(true);
        drop(batch.finish());
    }
    let in_the_run = BareProgram {
        all: |k, cpu| {
            if cpu == 1 {
                flush(k);
            }
        },
        ..BareProgram::NONE
    };
    let before = BareProgram { second: |k| flush(k), ..BareProgram::NONE };
    for scenario in [in_the_run, before].map(scenario) {
        for machine in ["x86", "arm-asid8"] {
            let mut session = Session::new(Case::on(&scenario, machine));
            // Afterwards the session works as before.
            for seed in 0..20 {
                let End::Violated(violation) = session.run(Strategy::random(seed)).0.end else {
                    panic!("the run ends as if nothing had happened");
                };
                assert_eq!(violation.cpu, Some(CpuId(1)));
                assert!(violation.account.contains("the space has gone"));
            }
        }
    }
}

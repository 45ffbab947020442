//! The machine reports requests that it doesn't allow, whatever the contract requires.

use quell::{
    AddressSpace, Broadcast, CpuId, CpuSet, Frame, Hardware, Invalidation, Page, PageRange,
    PageSize, Purpose, Scope, Tag,
};
use quell_adversary::bare_kernel::{BareKernel, BareProgram, frame};
use quell_adversary::machine::End;
use quell_adversary::scenario::{Scenario, Script};
use quell_adversary::schedule::Strategy;
use quell_adversary::{Case, Session};
use quell_vm::contract::Clause;
use quell_vm::machine::Machine;
use std::cell::Cell;
use std::ops::Deref;

const fn scenario(body: fn(&BareKernel<'_>, usize)) -> Scenario<'static> {
    let program = Script::Engine(BareProgram { all: body, ..BareProgram::NONE });
    Scenario { cpus: 2, ..Scenario::of("misuse", 1, program) }
}

/// Loads a root without the engine's knowledge.
fn load_root(k: &BareKernel<'_>, tag: Tag) {
    // SAFETY: in this machine in software a root is just a number, and every number is valid.
    unsafe { k.hw.load_root(Frame(1), tag, false) }
}

/// Returns the machine's account of a mistake that CPU 0 makes.
fn account(machine: &str, scenario: &'static Scenario) -> Option<String> {
    let mut session = Session::new(Case::on(scenario, machine));
    match session.run(Strategy::script(Vec::new())).0.end {
        End::Violated(violation) => {
            assert_eq!(violation.clause, Clause::Misuse, "{violation}");
            Some(violation.account)
        }
        _ => None,
    }
}

macro_rules! says {
    ($machine:literal, $body:expr, $account:expr) => {{
        const SCENARIO: Scenario = scenario(|k, cpu| {
            if cpu == 0 {
                let body: fn(&BareKernel<'_>) = $body;
                body(k);
            }
        });
        static STATIC: Scenario = SCENARIO;
        let expected: Option<&str> = $account;
        assert_eq!(account($machine, &STATIC).as_deref(), expected);
    }};
}

#[test]
fn what_the_machine_does_not_allow_is_named() {
    fn range(start: u64, pages: u64, stride: PageSize) -> Invalidation {
        let range = PageRange { start: Page(start), pages, stride };
        Invalidation::Range { tag: Tag(1), range, scope: Scope::Leaf }
    }
    fn start(k: &BareKernel<'_>) {
        let broadcasts = k.hw.broadcasts();
        broadcasts.expect("the interface").start(Invalidation::All);
    }
    fn complete(k: &BareKernel<'_>) {
        k.hw.broadcasts().expect("the interface").complete();
    }
    let broadcasts = Some("broadcasts an invalidation on a machine without broadcasts");
    says!("x86-pcid", |k| start(k), broadcasts);
    says!("riscv", |k| complete(k), broadcasts);
    says!("arm-asid8", |k| start(k), None);
    says!(
        "x86-pcid",
        |k| k.hw.invalidate(Invalidation::Tag(Tag(3))),
        Some("invalidates tag 3, which does not exist")
    );
    says!(
        "x86-pcid",
        |k| {
            load_root(k, Tag(1));
            k.hw.invalidate(Invalidation::Tag(Tag(1)));
            k.hw.invalidate(Invalidation::Tag(Tag(2)));
        },
        Some("invalidates tag 2 while tag 1 is loaded")
    );
    says!(
        "riscv",
        |k| {
            load_root(k, Tag(1));
            k.hw.unload_root();
            k.hw.invalidate(range(0, 1, PageSize::Base));
        },
        Some("invalidates tag 1 while tag 0 is loaded")
    );
    says!(
        "x86-pcid",
        |k| load_root(k, Tag(9)),
        Some("loads a root under tag 9, which does not exist")
    );
    says!(
        "x86",
        |k| k.hw.invalidate(range(0, 0, PageSize::Base)),
        Some("invalidates 0 pages from 0x0 in strides of 1")
    );
    says!(
        "x86",
        |k| k.hw.invalidate(range(512, 10, PageSize::Large)),
        Some("invalidates 10 pages from 0x200 in strides of 512")
    );
    says!(
        "x86",
        |k| k.hw.invalidate(range(5, 512, PageSize::Large)),
        Some("invalidates 512 pages from 0x5 in strides of 512")
    );
    says!("x86", |k| k.hw.invalidate(range(512, 512, PageSize::Large)), None);
    says!(
        "x86",
        |k| {
            k.hw.interrupt(&CpuSet::from_iter([CpuId(0)]));
        },
        Some("interrupts itself")
    );
    says!(
        "x86",
        |k| {
            k.hw.interrupt(&CpuSet::from_iter([CpuId(9)]));
        },
        Some("interrupts CPU 9, which does not exist")
    );
    says!(
        "x86",
        |k| {
            k.hw.mask_interrupts();
            k.read(0);
        },
        Some("a program runs with interrupts off")
    );
    says!(
        "x86",
        |k| {
            k.hw.mask_interrupts();
        },
        Some("the program has ended with interrupts off")
    );
    says!(
        "x86",
        |k| {
            k.hw.mask_interrupts();
            k.hw.halt(0);
        },
        Some("sleeps with interrupts off")
    );
    says!(
        "x86",
        |k| {
            k.offline();
            k.read(0);
        },
        Some("user memory is accessed while the CPU is offline")
    );
    says!(
        "x86",
        |k| {
            k.offline();
            load_root(k, Tag(1));
        },
        Some("loads a root while it is offline")
    );
    says!("x86", |k| k.online(), Some("comes online twice"));
    says!("x86", |k| k.offline(), None);
}

/// The account of a page that is mapped before another one is unmapped.
const OTHER: Option<&str> = Some(
    "break before make: entry 0 of table 0xa maps a page in frame 0x21 \
     where a TLB may still hold a page in frame 0x20",
);

/// Checks that an entry is reported that replaces another one too early. Arm requires that the old entry is absent and
/// its flush complete before a new one takes its place.
#[test]
fn an_entry_that_is_made_before_the_old_one_is_broken_is_named() {
    fn away(k: &BareKernel<'_>) {
        k.map(0, 0, frame(0), true);
        k.clear(0, 0);
    }
    // The entry was never absent; or absent and not flushed; or flushed, but the flush isn't complete.
    fn overwritten(k: &BareKernel<'_>) {
        k.map(0, 0, frame(0), true);
        k.map(0, 0, frame(1), true);
    }
    says!("arm-asid8", overwritten, OTHER);
    says!("arm-reordering", overwritten, OTHER);
    says!("x86-pcid", overwritten, None);
    says!("riscv", overwritten, None);
    says!(
        "arm-asid8",
        |k| {
            away(k);
            k.map(0, 0, frame(1), true);
        },
        OTHER
    );
    says!(
        "arm-asid8",
        |k| {
            away(k);
            k.hw.broadcasts().expect("the interface").start(Invalidation::All);
            k.map(0, 0, frame(1), true);
            k.hw.fence();
        },
        OTHER
    );
    // These are allowed: the engine's break before make, the same frame again, and an added right.
    says!(
        "arm-asid8",
        |k| {
            k.map(0, 0, frame(0), true);
            k.unmap(0, 0);
            k.map(0, 0, frame(1), true);
            k.hw.fence();
        },
        None
    );
    says!(
        "arm-asid8",
        |k| {
            away(k);
            k.map(0, 0, frame(0), true);
            k.hw.fence();
        },
        None
    );
    says!(
        "arm-asid8",
        |k| {
            k.map(0, 0, frame(0), false);
            k.map(0, 0, frame(0), true);
            k.hw.fence();
        },
        None
    );
}

/// Checks that a read-only translation may be replaced by one with the same bytes.
#[test]
fn an_entry_of_the_same_bytes_needs_no_break() {
    fn exchange(k: &BareKernel<'_>, writable: bool) {
        k.map(0, 0, frame(0), false);
        k.map(0, 0, frame(1), writable);
        k.hw.fence();
    }
    says!("arm-asid8", |k| exchange(k, false), None);
    says!("arm-asid8", |k| exchange(k, true), OTHER);
    says!(
        "arm-asid8",
        |k| {
            k.fill(frame(1), 5);
            k.hw.fence();
            exchange(k, false);
        },
        OTHER
    );
}

/// Checks that a large page is flushed before base pages or a table take its place, and vice versa.
#[test]
fn a_page_of_another_size_breaks_first() {
    const LARGE: u64 = 512;
    fn large(k: &BareKernel<'_>) {
        k.map_large(0, LARGE, frame(0), true);
        k.clear_large(0, LARGE);
    }
    says!(
        "arm-asid8",
        |k| {
            large(k);
            k.link(0, LARGE);
        },
        Some(
            "break before make: entry 1 of table 0x1 maps a table in frame 0x12 \
             where a TLB may still hold a large page in frame 0x20"
        )
    );
    says!(
        "arm-asid8",
        |k| {
            k.map(0, LARGE, frame(0), true);
            k.link(0, LARGE);
            k.map_large(0, LARGE, frame(0), true);
        },
        Some(
            "break before make: entry 1 of table 0x1 maps a large page in frame 0x20 \
             where a TLB may still hold a table in frame 0x12"
        )
    );
    says!(
        "arm-asid8",
        |k| {
            large(k);
            k.flush_all(0);
            k.link(0, LARGE);
            k.hw.fence();
        },
        None
    );
}

/// Checks that the TLB entries of a space that a CPU doesn't run meet nothing until the CPU returns to it.
#[test]
fn an_entry_that_is_not_loaded_meets_nothing_until_it_is() {
    fn exchange(k: &BareKernel<'_>, comes_back: bool) {
        k.map(0, 0, frame(0), true);
        k.hw.fence();
        // Both CPUs now run another space.
        k.switch(1);
        k.wait_for(0);
        k.clear(0, 0);
        k.map(0, 0, frame(1), true);
        k.hw.fence();
        if comes_back {
            k.switch(0);
        }
    }
    fn other(k: &BareKernel<'_>) {
        k.switch(1);
        k.tell(0);
    }
    for (comes_back, expected) in [(false, None), (true, OTHER)] {
        static STAYS: Scenario = scenario(|k, cpu| match cpu {
            0 => exchange(k, false),
            _ => other(k),
        });
        static COMES_BACK: Scenario = scenario(|k, cpu| match cpu {
            0 => exchange(k, true),
            _ => other(k),
        });
        let scenario = if comes_back { &COMES_BACK } else { &STAYS };
        assert_eq!(account("arm-asid16", scenario).as_deref(), expected);
    }
}

#[test]
fn a_panic_before_the_run_is_a_violation() {
    static BEFORE: Scenario = Scenario {
        program: Script::Engine(BareProgram {
            each: |_, cpu| assert!(cpu == 0, "nothing begins here"),
            ..BareProgram::NONE
        }),
        ..scenario(|_, _| {})
    };
    let mut session = Session::new(Case::on(&BEFORE, "x86"));
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
    static IN_THE_RUN: Scenario = scenario(|k, cpu| {
        if cpu == 1 {
            flush(k);
        }
    });
    static BEFORE: Scenario = Scenario {
        program: Script::Engine(BareProgram { second: |k| flush(k), ..BareProgram::NONE }),
        ..scenario(|_, _| {})
    };
    for scenario in [&IN_THE_RUN, &BEFORE] {
        for machine in ["x86", "arm-asid8"] {
            let mut session = Session::new(Case::on(scenario, machine));
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

//! What the machine does not allow is named, whatever the contract says.

use quell::{
    AddressSpace, Broadcast, CpuId, CpuSet, Frame, Hardware, Invalidate, Page, PageRange, PageSize,
    Purpose, Scope, Tag,
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
    let program = Script::Engine(BareProgram {
        all: body,
        ..BareProgram::NONE
    });
    Scenario {
        cpus: 2,
        ..Scenario::of("misuse", 1, program)
    }
}

/// Loads a root behind the engine's back.
fn load_root(k: &BareKernel<'_>, tag: Tag) {
    // SAFETY: in this machine in software a root is a number, and every number will do.
    unsafe { k.hw.load_root(Frame(1), tag, false) }
}

/// What the machine says when CPU 0 makes a mistake.
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
    fn range(start: u64, pages: u64, stride: PageSize) -> Invalidate {
        let range = PageRange {
            start: Page(start),
            pages,
            stride,
        };
        Invalidate::Range {
            tag: Tag(1),
            range,
            scope: Scope::Leaf,
        }
    }
    fn start(k: &BareKernel<'_>) {
        let broadcasts = k.hw.broadcasts();
        broadcasts.expect("the interface").start(Invalidate::All);
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
        |k| k.hw.invalidate(Invalidate::Tag(Tag(3))),
        Some("invalidates tag 3, which does not exist")
    );
    says!(
        "x86-pcid",
        |k| {
            load_root(k, Tag(1));
            k.hw.invalidate(Invalidate::Tag(Tag(1)));
            k.hw.invalidate(Invalidate::Tag(Tag(2)));
        },
        Some("invalidates tag 2 while 1 is loaded")
    );
    says!(
        "riscv",
        |k| {
            load_root(k, Tag(1));
            k.hw.unload_root();
            k.hw.invalidate(range(0, 1, PageSize::Base));
        },
        Some("invalidates tag 1 while 0 is loaded")
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
    says!(
        "x86",
        |k| k.hw.invalidate(range(512, 512, PageSize::Large)),
        None
    );
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

/// What is said of a page that comes before another has gone.
const OTHER: Option<&str> = Some(
    "break before make: entry 0 of table 0xa maps a page in frame 0x21 \
     where a TLB may still hold a page in frame 0x20",
);

/// Arm asks that an entry be absent, and its flush complete, before another one takes its place.
#[test]
fn an_entry_that_is_made_before_the_old_one_is_broken_is_named() {
    fn away(k: &BareKernel<'_>) {
        k.map(0, 0, frame(0), true);
        k.clear(0, 0);
    }
    // Never absent; absent and not flushed; flushed, but not to the end.
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
            k.hw.broadcasts()
                .expect("the interface")
                .start(Invalidate::All);
            k.map(0, 0, frame(1), true);
            k.hw.fence();
        },
        OTHER
    );
    // Broken as the engine does it; the same frame again; a right more.
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

/// A translation that may only be read may give way to one of the same bytes.
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

/// A large page does not meet base pages of the same addresses, nor a table to them.
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

/// What a CPU that runs another space still holds meets nothing before it comes back to the space.
#[test]
fn an_entry_that_is_not_loaded_meets_nothing_until_it_is() {
    fn exchange(k: &BareKernel<'_>, comes_back: bool) {
        k.map(0, 0, frame(0), true);
        k.hw.fence();
        // Both CPUs are on another space.
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
    // The session is as good as before afterwards.
    for _ in 0..2 {
        let End::Violated(violation) = session.run(Strategy::script(Vec::new())).0.end else {
            panic!("the run ends as if nothing had happened");
        };
        assert_eq!(violation.cpu, Some(CpuId(1)));
        assert!(violation.account.contains("nothing begins here"));
    }
}

/// A space that a kernel has freed too early: the engine, which looks at it when it flushes, panics.
struct Freed<'s, H: Hardware> {
    space: &'s AddressSpace<H>,
    gone: &'s Cell<bool>,
}

impl<H: Hardware> Deref for Freed<'_, H> {
    type Target = AddressSpace<H>;
    fn deref(&self) -> &AddressSpace<H> {
        assert!(!self.gone.get(), "the space has gone");
        self.space
    }
}

/// The batch is dropped because of the panic, and its flush would panic again.
#[test]
fn a_panic_in_the_flush_of_a_batch_is_a_violation() {
    fn flush(k: &BareKernel<'_>) {
        let gone = Cell::new(false);
        let space = || Freed {
            space: k.space(0),
            gone: &gone,
        };
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
        program: Script::Engine(BareProgram {
            second: |k| flush(k),
            ..BareProgram::NONE
        }),
        ..scenario(|_, _| {})
    };
    for scenario in [&IN_THE_RUN, &BEFORE] {
        for machine in ["x86", "arm-asid8"] {
            let mut session = Session::new(Case::on(scenario, machine));
            // The session is as good as before afterwards.
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

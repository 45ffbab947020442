//! A flush without a batch equals one change in a batch: the same invalidations, interrupts, broadcasts and counts, on
//! every machine, under every policy and for every request. It takes fewer steps, so it has its own code.

use crate::support::{E, Machine, S, leak, space, world};
use quell::{
    AddressSpace, Batch, Counter, CpuId, Frame, Invalidate, KernelEntries, Page, PageRange,
    PageSize, Policy, Purpose, Scope,
};

/// The longest range, in entries, that the engine keeps as a range.
const MAX_PACKED: u64 = (1 << 16) - 1;

const POLICIES: [Policy; 5] = [
    Policy::ALL,
    Policy::BASELINE,
    Policy {
        inline_requests: false,
        ..Policy::ALL
    },
    Policy {
        concurrent: false,
        ..Policy::ALL
    },
    Policy {
        inline_requests: false,
        concurrent: false,
        ..Policy::ALL
    },
];

/// The CPUs that have the space loaded when it changes.
#[derive(Clone, Copy, Debug)]
enum Loaded {
    Nowhere,
    Here,
    HereAndThere,
    /// Both CPUs have it loaded, and this CPU is idle.
    HereIdle,
    There,
    /// As `HereAndThere`, and the other CPU hasn't served an earlier request yet.
    Asked,
    Kernel,
}

const LOADED: [Loaded; 7] = [
    Loaded::Nowhere,
    Loaded::Here,
    Loaded::HereAndThere,
    Loaded::HereIdle,
    Loaded::There,
    Loaded::Asked,
    Loaded::Kernel,
];

fn machines() -> [Machine; 3] {
    [
        Machine::default(),
        Machine {
            untagged: true,
            ..Machine::default()
        },
        Machine {
            global: true,
            ..Machine::default()
        },
    ]
}

/// The effects of a flush.
#[derive(PartialEq, Debug)]
struct Effects {
    invalidated: Vec<(u16, Invalidate)>,
    interrupts: usize,
    broadcasts: Vec<Option<Invalidate>>,
    devices: Vec<Option<u64>>,
    may_wait: bool,
    counts: Vec<String>,
    runs: bool,
    defers: bool,
}

/// Returns the effects of a flush on this machine, under this policy, of a space loaded like this.
fn came_of(machine: Machine, policy: Policy, loaded: Loaded, flush: impl Fn(E, S)) -> Effects {
    let (machine, engine) = world(machine, policy);
    let kernel: S = // SAFETY: no memory is behind any frame.
        leak(unsafe { engine.new_kernel_space(Frame(9), KernelEntries::Global) });
    let user = space(engine, 1);
    let on = |cpu: u16| {
        machine.me.set(cpu);
        engine.this_cpu().mask_interrupts().switch(None, user);
    };
    match loaded {
        Loaded::Nowhere | Loaded::Kernel => {}
        Loaded::Here => on(0),
        Loaded::There => on(1),
        Loaded::HereAndThere | Loaded::HereIdle | Loaded::Asked => {
            [1, 0].map(on).into_iter().collect()
        }
    }
    machine.me.set(0);
    if let Loaded::HereIdle = loaded {
        engine.this_cpu().enter_lazy();
    }
    let mut asked = matches!(loaded, Loaded::Asked).then(|| {
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.changed(user, PageRange::base(Page(99), 1), Scope::Leaf);
        batch
    });
    let flight = asked.as_mut().map(|batch| batch.start());
    let before = [0, 1].map(|cpu| engine.cpu_stats(CpuId(cpu)));
    machine.invalidated.take();
    let told_before = machine.secondary.borrow().len();
    machine.broadcast.0.take();
    machine.interrupts.take();
    machine.asked.take();
    let changed = match loaded {
        Loaded::Kernel => kernel,
        _ => user,
    };
    flush(engine, changed);
    assert!(!machine.masked.get(), "interrupts stay masked");
    let counts = [0, 1].map(|cpu| {
        let since = engine
            .cpu_stats(CpuId(cpu))
            .since(&before[usize::from(cpu)]);
        let counted = since.iter().filter(|(counter, count)| {
            // If no CPU has the space loaded, a batch checks neither its range nor this CPU.
            let looked = [Counter::EscalatedLength, Counter::IgnoredOtherSpace].contains(counter);
            let nobody = matches!(loaded, Loaded::Nowhere) && looked;
            *count > 0 && !nobody
        });
        counted
            .map(|(counter, count)| format!("CPU {cpu}: {counter:?} {count}"))
            .collect::<Vec<_>>()
    });
    let came = Effects {
        invalidated: machine.invalidated.take(),
        interrupts: machine.interrupts.take(),
        broadcasts: machine.broadcast.0.take(),
        devices: machine.secondary.borrow()[told_before..].to_vec(),
        may_wait: machine.asked.take() > 0,
        counts: counts.concat(),
        runs: engine.this_cpu().runs(user),
        defers: user.is_in_batch() || engine.has_deferred(),
    };
    drop(flight);
    came
}

#[test]
fn a_flush_at_once_does_what_one_change_in_a_batch_does() {
    let pages = |count| Some(PageRange::base(Page(5), count));
    let large = PageRange {
        stride: PageSize::Large,
        ..PageRange::base(Page(512), 1024)
    };
    let ranges = [
        None,
        pages(1),
        pages(2),
        pages(32),
        pages(33),
        pages(34),
        pages(4000),
        pages(MAX_PACKED),
        pages(MAX_PACKED + 1),
        Some(large),
    ];
    for (which, _) in machines().iter().enumerate() {
        for policy in POLICIES {
            for loaded in LOADED {
                for full_above in [1, 33, 1 << 20] {
                    for range in ranges {
                        for scope in [Scope::Leaf, Scope::Tables] {
                            let machine = || {
                                let mut machine = machines().into_iter().nth(which).expect("one");
                                machine.full_above = full_above;
                                machine
                            };
                            let at_once = came_of(machine(), policy, loaded, |engine, space| {
                                engine.this_cpu().flush(space, range, scope);
                            });
                            let batched = came_of(machine(), policy, loaded, |engine, space| {
                                let mut batch: Batch<'_, &AddressSpace<_>> =
                                    engine.batch(Purpose::Call);
                                match range {
                                    Some(range) => batch.changed(space, range, scope),
                                    None => batch.changed_all(space, scope),
                                }
                                assert_eq!(batch.finish().count(), 0);
                            });
                            if range.is_none() && scope == Scope::Tables {
                                let coalesced =
                                    came_of(machine(), policy, loaded, |engine, space| {
                                        engine.this_cpu().flush_coalesced(space);
                                    });
                                assert_eq!(
                                    coalesced, at_once,
                                    "machine {which}, {policy:?}, {loaded:?}, alone"
                                );
                            }
                            assert_eq!(
                                at_once, batched,
                                "machine {which}, {policy:?}, {loaded:?}, {range:?}, {scope:?}, full above {full_above}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_range_of_no_pages_is_no_change() {
    for (which, _) in machines().iter().enumerate() {
        for policy in POLICIES {
            for loaded in LOADED {
                let machine = machines().into_iter().nth(which).expect("one");
                let came = came_of(machine, policy, loaded, |engine, space| {
                    engine
                        .this_cpu()
                        .flush(space, Some(PageRange::base(Page(5), 0)), Scope::Leaf);
                });
                assert!(
                    came.invalidated.is_empty() && came.interrupts == 0,
                    "{came:?}"
                );
                assert!(
                    came.broadcasts.is_empty() && came.devices.is_empty(),
                    "{came:?}"
                );
                assert!(came.counts.is_empty(), "{came:?}");
            }
        }
    }
}

//! A flush without a batch equals one change in a batch: the same invalidations, interrupts, broadcasts and counts, on
//! every machine, under every policy and for every request. It takes fewer steps, so it has its own code.

use crate::support::{E, Machine, S, kernel_space, one, space, switch, unmapping, world};
use quell::{
    Batch, Counter, CpuId, Invalidation, KernelEntries, Page, PageRange, PageSize, Policy, Purpose,
    Scope,
};

/// The longest range, in entries, that the engine keeps as a range.
const MAX_PACKED: u64 = (1 << 16) - 1;

/// The CPUs that have the space loaded when it changes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum LoadedCpus {
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

/// Runs the check on each machine, under each policy, with each set of CPUs.
fn everywhere(check: impl Fn(fn() -> Machine, Policy, LoadedCpus)) {
    let machines: [fn() -> Machine; 3] = [
        Machine::default,
        || Machine { untagged: true, ..Machine::default() },
        || Machine::new(true),
    ];
    let variants = [(true, true), (false, true), (true, false), (false, false)]
        .map(|(inline_requests, concurrent)| Policy { inline_requests, concurrent, ..Policy::ALL });
    for machine in machines {
        for policy in variants.into_iter().chain([Policy::BASELINE]) {
            use LoadedCpus::*;
            for loaded in [Nowhere, Here, HereAndThere, HereIdle, There, Asked, Kernel] {
                check(machine, policy, loaded);
            }
        }
    }
}

/// The effects of a flush.
#[derive(PartialEq, Debug)]
struct Effects {
    invalidated: Vec<(u16, Invalidation)>,
    interrupts: usize,
    broadcasts: Vec<Option<Invalidation>>,
    devices: Vec<Option<u64>>,
    may_wait: bool,
    counts: Vec<String>,
    runs: bool,
    defers: bool,
}

/// Returns the effects of a flush on this machine, under this policy, of a space loaded like this.
fn came_of(machine: Machine, policy: Policy, loaded: LoadedCpus, flush: impl Fn(E, S)) -> Effects {
    let (machine, engine) = world(machine, policy);
    let kernel = kernel_space(engine, KernelEntries::Global);
    let user = space(engine, 1);
    let cpus: &[u16] = match loaded {
        LoadedCpus::Nowhere | LoadedCpus::Kernel => &[],
        LoadedCpus::Here => &[0],
        LoadedCpus::There => &[1],
        LoadedCpus::HereAndThere | LoadedCpus::HereIdle | LoadedCpus::Asked => &[1, 0],
    };
    for &cpu in cpus {
        machine.on(cpu, || switch(engine, None, user));
    }
    if loaded == LoadedCpus::HereIdle {
        engine.this_cpu().enter_lazy();
    }
    let mut asked =
        (loaded == LoadedCpus::Asked).then(|| unmapping(engine, Purpose::Call, user, 99));
    let flight = asked.as_mut().map(Batch::start);
    let before = [0, 1].map(|cpu| engine.cpu_stats(CpuId(cpu)));
    machine.invalidated.take();
    let told_before = machine.secondary.borrow().len();
    machine.broadcast.0.take();
    machine.interrupts.take();
    machine.asked.take();
    let of_kernel = loaded == LoadedCpus::Kernel;
    flush(engine, if of_kernel { kernel } else { user });
    assert!(!machine.masked.get(), "interrupts stay masked");
    let counts = [0, 1].map(|cpu: u16| {
        let now = engine.cpu_stats(CpuId(cpu));
        let since = now.since(&before[usize::from(cpu)]);
        let counted = since.iter().filter(|(counter, count)| {
            // If no CPU has the space loaded, a batch checks neither its range nor this CPU.
            let looked = [Counter::EscalatedLength, Counter::IgnoredOtherSpace].contains(counter);
            *count > 0 && !(loaded == LoadedCpus::Nowhere && looked)
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
    let lengths = [1, 2, 32, 33, 34, 4000, MAX_PACKED, MAX_PACKED + 1];
    let base = lengths.map(|pages| Some(PageRange::base(Page(5), pages)));
    let large = PageRange { stride: PageSize::Large, ..PageRange::base(Page(512), 1024) };
    let ranges = [&base[..], &[None, Some(large)]].concat();
    let check = |machine: &dyn Fn() -> Machine, policy, loaded, range, scope| {
        let at_once = came_of(machine(), policy, loaded, |engine, space| {
            engine.this_cpu().flush(space, range, scope);
        });
        let batched = came_of(machine(), policy, loaded, |engine, space| {
            let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
            match range {
                Some(range) => batch.changed(space, range, scope),
                None => batch.changed_all(space, scope),
            }
            assert_eq!(batch.finish().count(), 0);
        });
        assert!(at_once.devices.iter().any(Option::is_some), "{range:?}");
        assert_eq!(at_once, batched, "{policy:?}, {loaded:?}, {range:?}, {scope:?}");
        if range.is_none() && scope == Scope::Tables {
            let coalesced = came_of(machine(), policy, loaded, |engine, space| {
                engine.this_cpu().flush_coalesced(space);
            });
            assert_eq!(coalesced, at_once, "{policy:?}, {loaded:?}, alone");
        }
    };
    everywhere(|machine, policy, loaded| {
        for full_above in [1, 33, 1 << 20] {
            let machine = || Machine { full_above, ..machine() };
            for &range in &ranges {
                check(&machine, policy, loaded, range, Scope::Leaf);
                check(&machine, policy, loaded, range, Scope::Tables);
            }
        }
    });
}

#[test]
fn a_range_of_no_pages_is_no_change() {
    everywhere(|machine, policy, loaded| {
        let came = came_of(machine(), policy, loaded, |engine, space| {
            let range = PageRange { pages: 0, ..one(5) };
            engine.this_cpu().flush(space, Some(range), Scope::Leaf);
        });
        let told = came.interrupts + came.broadcasts.len() + came.devices.len();
        assert!(came.invalidated.is_empty() && told == 0, "{came:?}");
        assert!(came.counts.is_empty(), "{came:?}");
    });
}

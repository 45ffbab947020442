//! Runs workloads on the memory manager. The manager, the engine and the programs are the same as on the machine in
//! software, but user mode, page tables and interrupts are real.

use crate::cpu::{self, Counters};
use crate::machine;
use crate::options::Options;
use crate::platform::{PLATFORM, Platform};
use crate::report::{self, Event};
use crate::sync::Lock;
use crate::trap::Exit;
use crate::{accessors, arch, audit, bench, late, layout, memory, program, sched, selftest, trap};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::iter;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use quell::{Counter, Engine, LedgerEntry, PerCpuData, Policy, Stats};
use quell_vm::machine::USER_END;
use quell_vm::{Access, Call, Error, Fault, MemoryMap, Node, Vm, VmConfig};
use quell_workloads::conformance::stress;
use quell_workloads::{WORDS, Workload};

/// The manager of a run. It lives until the machine is switched off.
pub type Manager = Vm<'static, Platform>;

static MANAGER: spin::Once<&'static Manager> = spin::Once::new();

/// What was refused, and why, so that a workload didn't start or finish.
type Refusal = (&'static str, String);

/// The nanoseconds between two timer ticks of a CPU that takes part, or 0 if there are none.
static TICK: AtomicU64 = AtomicU64::new(0);
/// The counters of all CPUs when the measurement began and when it ended.
static WINDOW: Lock<[Option<(Counters, Stats)>; 2]> = Lock::new([None, None]);
/// The first failure that a CPU reported.
static FAILURE: Lock<Option<String>> = Lock::new(None);

/// Runs the workload that the options name. Returns whether it succeeded.
pub fn run(options: &Options<'static>) -> bool {
    match try_run(options) {
        Ok(()) => true,
        Err((what, why)) => {
            report::event(&Event::Failed { what, why: &why });
            false
        }
    }
}

fn try_run(options: &Options<'static>) -> Result<(), Refusal> {
    let cpus = cpu::count();
    let policy = options.policy;
    if let Some(bits) = options.tag_bits {
        machine::set_tag_bits(bits).map_err(|why| refuse("tag_bits", &why))?;
        if (1u64 << bits) - 1 <= cpus as u64 {
            let why = alloc::format!("{} tags for {cpus} CPUs", (1u64 << bits) - 1);
            return Err(refuse("tag_bits", &why));
        }
    }
    let mut workload = match (program::file(), options.run) {
        (Some(text), name) => {
            Workload::parse(name, text).map_err(|wrong| refuse("file", &wrong))?
        }
        (None, "conformance") => return conformance(policy, options.seed, cpus),
        (None, "stress") => return stress(policy, options, cpus),
        (None, name) => Workload::from_name(name).ok_or_else(|| refuse("run", &name))?,
    };
    let mut text = String::from(options.run);
    for pair in options.parameters.split(',').filter(|pair| !pair.is_empty()) {
        let pair = pair.replacen(':', "=", 1);
        workload.set(&pair).map_err(|error| refuse("parameters", &error))?;
        text.push(' ');
        text.push_str(&pair);
    }
    let cpus = options.team.unwrap_or(cpus);
    if !(1..=cpu::count()).contains(&cpus) {
        let why = alloc::format!("{cpus} of {} CPUs", cpu::count());
        return Err(refuse("team", &why));
    }
    workload.check(cpus).map_err(|why| refuse("cpus", &why))?;
    let wanted = workload.memory(cpus);
    let fast = iter::repeat_n((wanted.node, false), wanted.nodes as usize);
    let map = take_nodes(fast.chain(wanted.slow.map(|bytes| (bytes, true))))?;
    let manager = manager(policy, map, |config| {
        config.demotion = wanted.demotion;
        config.reclaim_ahead = wanted.ahead.unwrap_or(config.reclaim_ahead);
        config.reclaim_idle = wanted.idle_reclaims;
        config.catch_up = options.catch_up;
        config.migrate_together = options.migrate_together.unwrap_or(config.migrate_together);
    });
    let shared = program::control();
    shared.set_workload(&text);
    let tick = options.tick_us.unwrap_or(0).saturating_mul(1_000);
    TICK.store(tick, Relaxed);
    execute(manager, layout::entry::WORKLOAD, options.seed, cpus)?;
    let words: [u64; WORDS] = core::array::from_fn(|index| shared.words[index].load(SeqCst));
    let measure = workload.measure(&words, cpus);
    let [begin, end] = *WINDOW.lock();
    let (counters, stats) = match (begin, end) {
        (Some(begin), Some(end)) => (end.0.since(&begin.0), end.1.since(&begin.1)),
        _ => (cpu::sum(), manager.engine().stats()),
    };
    report::event(&Event::Workload {
        name: options.run,
        policy: &quell_conformance::PolicyText(policy).to_string(),
        cpus,
        metric: measure.metric,
        value: measure.value,
        window_ns: words[4].wrapping_sub(words[3]),
        done: words[5],
        counters,
        engine: stats
            .iter()
            .filter(|&(_, count)| count != 0)
            .map(|(counter, count)| (counter.label(), count))
            .collect(),
    });
    Ok(())
}

fn conformance(policy: Policy, seed: u64, cpus: usize) -> Result<(), Refusal> {
    audit::start();
    late::start();
    bench::run(engine(policy), |check| {
        let detail = match check.kept {
            Some(cpus) => alloc::format!("on {cpus} of {} CPUs", cpu::count()),
            None => detail(check.failures, check.saw),
        };
        judge(check.name, check.failures == 0, detail);
    });
    let map = take_nodes(iter::repeat_n((32 << 20, false), 2))?;
    let manager = manager(policy, map, |config| config.demotion = false);
    execute(manager, layout::entry::CONFORMANCE, seed, cpus)?;
    check(manager);
    match FAILED_CHECKS.load(SeqCst) {
        0 => Ok(()),
        count => Err(refuse("conformance", &alloc::format!("{count} checks failed"))),
    }
}

/// Runs the stress, which does everything at random, with less memory than it uses.
fn stress(policy: Policy, options: &Options<'static>, cpus: usize) -> Result<(), Refusal> {
    let fast = (2 + cpus as u64 / 4) << 20;
    let sizes = iter::repeat_n((fast, false), 2).chain([(2 << 20, true)]);
    let map = take_nodes(sizes)?;
    audit::start();
    late::start();
    let manager = manager(policy, map, |config| {
        config.demotion = true;
        config.catch_up = true;
    });
    let length = match options.seconds {
        Some(seconds) => 1 << 63 | seconds.saturating_mul(1_000_000_000),
        None => options.rounds,
    };
    program::control().words[layout::LENGTH_WORD].store(length, SeqCst);
    trap::on_nmi(probe);
    // We run the checks even if a program has already noticed the error, because they describe it better.
    let ran = execute(manager, layout::entry::STRESS, options.seed, cpus);
    let wrong = PROBES_WRONG.load(SeqCst);
    let probed = PROBES.load(SeqCst);
    let mut detail = match arch::interrupts::SEND_NMI {
        Some(_) => {
            alloc::format!("{wrong} of {probed} reads by non-maskable interrupts were wrong")
        }
        None => String::from(selftest::NO_NMI),
    };
    if wrong > 0 {
        let [address, held] = WRONG.each_ref().map(|word| word.load(SeqCst));
        detail += &alloc::format!(", at last {address:#x} held {held:#x}");
    }
    judge("C1 probes_read_what_was_stored", wrong == 0, detail);
    check(manager);
    ran?;
    match FAILED_CHECKS.load(SeqCst) {
        0 => Ok(()),
        _ => Err(refuse("stress", &"the contract was broken")),
    }
}

/// Reports whether a tag carried entries from one address space to another, the number of rollovers, and whether every
/// frame has an owner. No CPU is in the manager now.
fn check(manager: &Manager) {
    let (violations, cpu, tag) = audit::violations();
    let detail = match violations {
        0 => String::new(),
        _ => alloc::format!("{violations} times, at last tag {tag} on cpu {cpu}"),
    };
    judge("C5 tags_are_flushed_before_they_are_lent", violations == 0, detail);
    let stats = manager.engine().stats();
    report::event(&Event::Tags {
        rollovers: stats.get(Counter::Rollovers),
        kept: stats.get(Counter::SwitchKept),
    });
    let frames = manager.check();
    let owned = frames.is_ok();
    let detail = match frames {
        Ok(totals) => {
            alloc::format!("{} frames free, {} defer a flush", totals.free, totals.stale)
        }
        Err(wrong) => wrong,
    };
    judge("C4 every_frame_has_an_owner", owned, detail);
}

static PROBES: AtomicU64 = AtomicU64::new(0);
static PROBES_WRONG: AtomicU64 = AtomicU64::new(0);
/// The address of the last wrong probe, and the value that it read.
static WRONG: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Reads a word of the program from a non-maskable interrupt during a stress, if the engine allows it.
fn probe() {
    let Some(manager) = MANAGER.get() else { return };
    if !manager.engine().this_cpu().user_access_allowed() {
        return;
    }
    let (address, right) = stress::probe(arch::cpu::ticks(), cpu::count());
    if let Some(held) = accessors::load_user(address) {
        PROBES.fetch_add(1, Relaxed);
        if !right(held) {
            WRONG[0].store(address, Relaxed);
            WRONG[1].store(held, Relaxed);
            PROBES_WRONG.fetch_add(1, Relaxed);
        }
    }
}

/// Runs a part of the program on the first `cpus` CPUs, all in one new process.
fn execute(manager: &'static Manager, what: u64, seed: u64, cpus: usize) -> Result<(), Refusal> {
    let process = manager.spawn().map_err(|error| refuse("process", &error))?;
    let shared = program::control();
    shared.seed.store(seed, Relaxed);
    shared.words[layout::PROCESS_WORD].store(process.into(), SeqCst);
    sched::on_every_cpu(move |index| {
        if index >= cpus {
            return;
        }
        // If this is refused, the program fails visibly, because it then runs in no process.
        if let Err(error) = manager.enter(process) {
            fail(error.to_string());
            return;
        }
        trap::set_tick(TICK.load(Relaxed));
        let mut context = program::start(what, index, cpus);
        let ended = program::run(&mut context, |context, exit| {
            match exit {
                Exit::Call(words) => {
                    let result = match own_call(manager, &words) {
                        true => Ok(0),
                        false => Call::from_words(words).and_then(|call| manager.call(call)),
                    };
                    match result {
                        Ok(value) => context.answer(value, 0),
                        Err(error) => context.answer(0, Error::to_word(error)),
                    }
                }
                Exit::Fault(fault) if fault.fetch || fault.address >= USER_END.address() => {
                    let pc = context.frame.pc;
                    fail(alloc::format!("the program is broken: {fault:x?} at {pc:#x}"));
                    return false;
                }
                Exit::Fault(fault) => {
                    cpu::this().counters.user_faults.add(1);
                    let access = if fault.write { Access::Write } else { Access::Read };
                    if let Err(fault) = manager.fault(fault.address, access) {
                        context.refuse_access(number(fault));
                    }
                }
                Exit::Interrupt => {}
            }
            true
        });
        if let Err(why) = ended {
            fail(why);
        }
        manager.leave();
    });
    trap::set_tick(0);
    match FAILURE.lock().take() {
        Some(why) => Err(refuse("program", &why)),
        None => Ok(()),
    }
}

/// Serves a call of the program that isn't the manager's. Returns whether it was one.
fn own_call(manager: &'static Manager, words: &[u64; 7]) -> bool {
    match *words {
        [layout::MARK, which, ..] => {
            WINDOW.lock()[(which & 1) as usize] = Some((cpu::sum(), manager.engine().stats()));
        }
        [layout::CHECK, name, bytes, failures, detail, detail_bytes, ..] => {
            let detail = self::detail(failures, &program::text(detail, detail_bytes));
            judge(&program::text(name, bytes), failures == 0, detail);
        }
        [layout::ROUND, rounds, operations, digest, nanoseconds, ..] => {
            report::event(&Event::Progress {
                rounds,
                operations,
                digest: alloc::format!("{digest:016x}"),
                free_frames: manager.free_frames(),
                seconds: nanoseconds as f64 / 1e9,
            });
        }
        [layout::DISTURB, target, ..] => {
            if let Some(send) = arch::interrupts::SEND_NMI
                && (target as usize) < cpu::count()
            {
                send(target as usize);
            }
        }
        [layout::FAILED, address, bytes, ..] => fail(program::text(address, bytes)),
        _ => return false,
    }
    true
}

/// The number of checks of the conformance suite that failed.
static FAILED_CHECKS: AtomicU64 = AtomicU64::new(0);

/// Describes the number of CPUs on which a check failed, with the finding of the first one.
fn detail(failures: u64, saw: &str) -> String {
    match failures {
        0 => String::new(),
        cpus if saw.is_empty() => alloc::format!("on {cpus} CPUs, not on cpu 0"),
        cpus => alloc::format!("on {cpus} CPUs; cpu 0: {saw}"),
    }
}

/// Reports a check of all CPUs.
fn judge(name: &str, passed: bool, detail: String) {
    if !passed {
        FAILED_CHECKS.fetch_add(1, SeqCst);
    }
    report::event(&Event::Test { name, passed, detail });
}

fn refuse(what: &'static str, why: &dyn core::fmt::Display) -> Refusal {
    (what, why.to_string())
}

/// Records the first failure.
fn fail(why: String) {
    FAILURE.lock().get_or_insert(why);
}

/// Returns the number by which the program identifies a fault.
fn number(fault: Fault) -> u64 {
    match fault {
        Fault::NotMapped => 1,
        Fault::Forbidden => 2,
        Fault::BeyondEnd => 3,
        Fault::OutOfMemory => 4,
    }
}

/// Takes nodes of these sizes, slow or not.
fn take_nodes(sizes: impl Iterator<Item = (u64, bool)> + Clone) -> Result<MemoryMap, Refusal> {
    let all: u64 = sizes.clone().map(|(bytes, _)| bytes).sum();
    let mut nodes = Vec::new();
    for (bytes, slow) in sizes {
        let Some(extent) = memory::take_extent(bytes) else {
            let why = alloc::format!(
                "the run wants {} MB, {} MB are left of {}: give the machine more memory",
                all.div_ceil(1 << 20),
                memory::left() >> 20,
                memory::total() >> 20
            );
            return Err(("memory", why));
        };
        nodes.push(Node { extent, slow });
    }
    Ok(MemoryMap::new(&nodes))
}

/// The number of flushes that can be deferred at once. It's enough for two rounds of reclaim, each of thousands of
/// pages.
const LEDGER_ENTRIES: usize = 256;

/// Makes an engine for all CPUs.
pub fn engine(policy: Policy) -> Engine<'static, Platform> {
    let cpus: &'static [PerCpuData<'static, Platform>] =
        (0..cpu::count()).map(|_| PerCpuData::new()).collect::<Vec<_>>().leak();
    let ledger: &'static [LedgerEntry<Platform>] =
        (0..LEDGER_ENTRIES).map(|_| LedgerEntry::new()).collect::<Vec<_>>().leak();
    Engine::new(&PLATFORM, cpus, ledger, policy).unwrap_or_else(|why| panic!("{why}"))
}

/// Makes the engine and the manager, changed by `configure`, and directs shootdown interrupts to them.
pub fn manager(
    policy: Policy,
    map: MemoryMap,
    configure: impl FnOnce(&mut VmConfig),
) -> &'static Manager {
    machine::set_memory(map);
    let engine = engine(policy);
    let mut config = VmConfig::for_memory(&map, cpu::count());
    config.clear.cap_bytes = policy.cap_bytes;
    configure(&mut config);
    let manager: &'static Manager = Box::leak(Box::new(Vm::new(engine, config)));
    MANAGER.call_once(|| manager);
    trap::set_on_shootdown(|| {
        if let Some(manager) = MANAGER.get() {
            manager.engine().this_cpu().mask_interrupts().on_interrupt();
        }
    });
    sched::on_every_cpu(|_| manager.online());
    manager
}

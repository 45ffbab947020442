//! Workloads on the memory manager: the same manager, engine and programs as on the machine in
//! software, here with user mode, page tables and interrupts that are real.

use crate::arch::user::Exit;
use crate::cpu::{self, Counters};
use crate::machine::{self, Kernel};
use crate::report::{self, Event};
use crate::sync::Lock;
use crate::{Options, layout, memory, program, selftest};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use quell::{Engine, Epoch, Mechanism, PerCpu, Policy};
use quell_vm::machine::USER_END;
use quell_vm::{Access, Call, Error, Fault, MemoryMap, Node, Vm, VmConfig};
use quell_workloads::{WORDS, Workload};

/// The manager of a run; it lives until the machine is switched off.
pub type Manager = Vm<'static, Kernel>;

static MANAGER: spin::Once<&'static Manager> = spin::Once::new();

/// Why a workload did not start or finish.
struct Refusal {
    what: &'static str,
    why: String,
}

/// Counters of all CPUs when the measurement began and when it ended.
static WINDOW: Lock<[Option<Counters>; 2]> = Lock::new([None, None]);
/// The first failure that a CPU reported.
static FAILURE: Lock<Option<String>> = Lock::new(None);

/// Runs the workload that the options name; whether it went well.
pub fn run(options: &Options) -> bool {
    match try_run(options) {
        Ok(()) => true,
        Err(Refusal { what, why }) => {
            report::event(&Event::Failed { what, why: &why });
            false
        }
    }
}

/// The policy of a name.
pub fn policy(name: &str) -> Option<Policy> {
    let mechanism = |name| {
        Some(match name {
            "batch" => Mechanism::Batch,
            "extents" => Mechanism::Extents,
            "tags" => Mechanism::Tags,
            "lazy" => Mechanism::LazyUnmap,
            "remote" => Mechanism::RemoteFlush,
            _ => return None,
        })
    };
    match name {
        "all" => Some(Policy::ALL),
        "baseline" => Some(Policy::BASELINE),
        _ => name.split('+').try_fold(Policy::BASELINE, |policy, one| {
            Some(policy.with(mechanism(one)?))
        }),
    }
}

fn try_run(options: &Options) -> Result<(), Refusal> {
    let refuse = |what| {
        move |why: &dyn core::fmt::Display| Refusal {
            what,
            why: why.to_string(),
        }
    };
    let mut workload =
        Workload::from_name(options.run).ok_or_else(|| refuse("run")(&options.run))?;
    let mut text = String::from(options.run);
    for pair in options
        .parameters
        .split(',')
        .filter(|pair| !pair.is_empty())
    {
        let pair = pair.replacen(':', "=", 1);
        workload
            .set(&pair)
            .map_err(|error| refuse("parameters")(&error))?;
        text.push(' ');
        text.push_str(&pair);
    }
    let cpus = cpu::count();
    workload.check(cpus).map_err(|why| refuse("cpus")(&why))?;
    let policy = policy(options.policy).ok_or_else(|| refuse("policy")(&options.policy))?;
    let manager = manager(
        policy,
        nodes(&workload, cpus)?,
        workload.memory(cpus).demotion,
    );

    let shared = program::control();
    shared.set_workload(&text);
    shared.seed.store(options.seed, Relaxed);
    let process = manager.spawn().map_err(|error| refuse("process")(&error))?;
    selftest::on_every_cpu(move |index| {
        // A refusal shows as a failure of the program, which then runs in no process.
        if let Err(error) = manager.enter(process) {
            fail(error.to_string());
            return;
        }
        let mut context = program::start(layout::entry::WORKLOAD, index);
        let ended = program::run(&mut context, |context, exit| {
            match exit {
                Exit::Call([layout::MARK, which, ..]) => {
                    WINDOW.lock()[(which & 1) as usize] = Some(cpu::sum());
                    context.answer(0, 0);
                }
                Exit::Call([layout::FAILED, address, bytes, ..]) => {
                    fail(program::text(address, bytes));
                    context.answer(0, 0);
                }
                Exit::Call(words) => match Call::from_words(words).and_then(|c| manager.call(c)) {
                    Ok(value) => context.answer(value, 0),
                    Err(error) => context.answer(0, Error::to_word(error)),
                },
                Exit::Fault(fault) if fault.fetch || fault.address >= USER_END.address() => {
                    fail(alloc::format!(
                        "the program is broken: {fault:x?} at {:#x}",
                        context.pc()
                    ));
                    return false;
                }
                Exit::Fault(fault) => {
                    let counters = &cpu::this().counters;
                    counters.user_faults.add(1);
                    let access = if fault.write {
                        Access::Write
                    } else {
                        Access::Read
                    };
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
    if let Some(why) = FAILURE.lock().take() {
        return Err(Refusal {
            what: "workload",
            why,
        });
    }
    let words: [u64; WORDS] = core::array::from_fn(|index| shared.words[index].load(SeqCst));
    let measure = workload.measure(&words);
    let [begin, end] = *WINDOW.lock();
    let counters = match (begin, end) {
        (Some(begin), Some(end)) => end.since(&begin),
        _ => cpu::sum(),
    };
    report::event(&Event::Workload {
        name: options.run,
        policy: options.policy,
        cpus,
        metric: measure.metric,
        value: measure.value,
        window_ns: words[4].wrapping_sub(words[3]),
        done: words[5],
        counters,
    });
    Ok(())
}

/// Notes the first failure.
fn fail(why: String) {
    FAILURE.lock().get_or_insert(why);
}

/// The number that the program knows a fault by.
fn number(fault: Fault) -> u64 {
    match fault {
        Fault::NotMapped => 1,
        Fault::Forbidden => 2,
        Fault::BeyondEnd => 3,
        Fault::OutOfMemory => 4,
    }
}

/// The memory that the workload wants, taken from what is left.
fn nodes(workload: &Workload, cpus: usize) -> Result<MemoryMap, Refusal> {
    let wanted = workload.memory(cpus);
    let sizes = core::iter::repeat_n((wanted.node, false), wanted.nodes as usize)
        .chain(wanted.slow.map(|bytes| (bytes, true)));
    let mut nodes = Vec::new();
    for (bytes, slow) in sizes {
        let Some(extent) = memory::take_extent(bytes) else {
            let all = wanted.node * wanted.nodes + wanted.slow.unwrap_or(0);
            let why = alloc::format!(
                "the workload wants {} MB, {} MB are left of {}: give the machine more memory",
                bytes_to_mb(all),
                memory::left() >> 20,
                memory::total() >> 20
            );
            return Err(Refusal {
                what: "memory",
                why,
            });
        };
        nodes.push(Node { extent, slow });
    }
    Ok(MemoryMap::new(&nodes))
}

const fn bytes_to_mb(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Makes the engine and the manager, and sends shootdown interrupts to them.
pub fn manager(policy: Policy, map: MemoryMap, demotion: bool) -> &'static Manager {
    machine::set_memory(map);
    let cpus: &'static [PerCpu<'static, Kernel>] = (0..cpu::count())
        .map(|_| PerCpu::new())
        .collect::<Vec<_>>()
        .leak();
    let epochs: &'static [Epoch<Kernel>] = (0..64).map(|_| Epoch::new()).collect::<Vec<_>>().leak();
    let engine = Engine::new(&Kernel, cpus, epochs, policy);
    let config = VmConfig {
        demotion,
        ..VmConfig::for_memory(&map, cpu::count())
    };
    let manager: &'static Manager = Box::leak(Box::new(Vm::new(engine, config)));
    MANAGER.call_once(|| manager);
    machine::set_on_shootdown(|| {
        if let Some(manager) = MANAGER.get() {
            manager.engine().on_interrupt();
        }
    });
    manager
}

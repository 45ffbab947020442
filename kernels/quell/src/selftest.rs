//! Tests the kernel itself. For example, the tests send interrupts between CPUs, cause faults in user mode, and check
//! that stale translations are visible until we flush them.
//!
//! The last is a precondition of the conformance suite. If an emulator kept no stale translations, or flushed too much,
//! every coherence test would pass without meaning.

mod stale;

use crate::machine::{self, Kernel};
use crate::program::Puppet;
use crate::report::{self, Event};
use crate::sched::on_every_cpu;
use crate::sync::Masked;
use crate::{accessors, arch, clock, cpu, memory, sched, tables, trap, watchdog};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use quell::{CpuId, CpuSet, Entry, Frame, Hardware, Invalidation, Page, Tag};
use stale::{flush_works, global_pages, stale_shows, whole_ranges};

/// The address at which the tests map their page. We avoid those at which the kernel's own pages would replace it in a
/// direct-mapped TLB of an emulator.
const ADDRESS: u64 = 0x10_0012_3000;

/// The finding of a test, or the reason why it failed.
type Outcome = Result<String, String>;

fn check(condition: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what()) }
}

/// The root of an address space without a manager, with one page at [`ADDRESS`]. It's never freed.
#[derive(Clone, Copy)]
struct Space(Frame);

impl Space {
    fn new(leaf: Entry) -> Self {
        let space = Space(machine::new_root());
        space.set(Page::containing(ADDRESS), leaf);
        space
    }

    /// Maps a page, without a flush.
    fn set(self, page: Page, leaf: Entry) {
        tables::set(self.0, page, Some(leaf));
        Kernel.fence();
    }

    /// Runs `body` on this thread in the space.
    fn run<T>(self, tag: u16, body: impl FnOnce() -> T) -> T {
        // SAFETY: `machine::new_root` made the root, and we never free it.
        unsafe { sched::set_space(Some((self.0, Tag(tag)))) };
        let result = body();
        // SAFETY: this loads no root of ours.
        unsafe { sched::set_space(None) };
        result
    }
}

/// Returns a frame whose first word is `value`.
fn marked(value: u64) -> Frame {
    let frame = memory::take_frame();
    memory::words(frame)[0].store(value, SeqCst);
    frame
}

/// Creates an address space whose page has a first word of `value`, read-only or writable.
fn space(value: u64, writable: bool) -> Space {
    Space::new(tables::leaf(marked(value), writable))
}

/// Sends a shootdown interrupt to a CPU.
fn interrupt(cpu: usize) {
    Kernel.interrupt(&CpuSet::from_iter([CpuId(cpu as u16)]));
}

/// Waits for a CPU that has interrupts masked for ever, and serves others meanwhile. The watchdog must end the run.
pub fn lose_interrupt() -> bool {
    static SERVED: AtomicU64 = AtomicU64::new(0);
    static MASKED: AtomicU64 = AtomicU64::new(0);
    let target = cpu::count() - 1;
    sched::spawn(target, || {
        arch::cpu::mask_interrupts();
        MASKED.store(1, SeqCst);
        loop {
            arch::cpu::relax();
        }
    });
    trap::set_on_shootdown(|| {
        Kernel.invalidate(Invalidation::All);
        if arch::cpu::index() == cpu::count() - 1 {
            SERVED.fetch_add(1, SeqCst);
        }
    });
    if target > 1 {
        sched::spawn(1, || {
            loop {
                interrupt(0);
                clock::wait_for(1_000_000, || false);
            }
        });
    }
    // The thread must have masked interrupts before the interrupt that we want to lose arrives.
    sched::wait_spinning(|| MASKED.load(SeqCst) == 1);
    interrupt(target);
    while SERVED.load(SeqCst) == 0 {
        Kernel.relax();
    }
    false
}

/// Runs all tests. Returns whether all passed.
pub fn run() -> bool {
    type Test = (&'static str, fn() -> Outcome);
    let tests: [Test; 12] = [
        ("interrupts_reach_every_cpu", interrupts),
        ("idle_cpus_halt_and_wake", idle),
        ("timer_interrupts_user_mode", timer),
        ("nmi_reaches_masked_cpu", nmi),
        ("nmis_do_not_nest", nmi_that_faults),
        ("faults_name_address_and_cause", faults),
        ("kernel_accessors_recover", accessors),
        ("threads_keep_their_spaces", threads),
        ("stale_translations_show", stale_shows),
        ("flushes_end_staleness", flush_works),
        ("flushes_end_global_pages", global_pages),
        ("flushes_reach_whole_ranges", whole_ranges),
    ];
    let mut passed = true;
    for (name, test) in tests {
        let outcome = test();
        let held = outcome.is_ok();
        passed &= held;
        let detail = outcome.unwrap_or_else(|why| why);
        report::event(&Event::Test { name, passed: held, detail });
    }
    passed
}

static TAKEN: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];

fn note_taken() {
    TAKEN[arch::cpu::index()].fetch_add(1, SeqCst);
}

fn interrupts() -> Outcome {
    trap::set_on_shootdown(note_taken);
    let count = cpu::count();
    // We send them one after the other, so that no two interrupts to one CPU merge.
    for from in 0..count {
        let sender = sched::spawn(from, move || {
            for to in (0..count).filter(|&to| to != from) {
                let before = TAKEN[to].load(SeqCst);
                interrupt(to);
                while TAKEN[to].load(SeqCst) == before {
                    Kernel.relax();
                }
            }
        });
        sched::join(&sender);
    }
    let taken: Vec<u64> = (0..count).map(|index| TAKEN[index].load(SeqCst)).collect();
    check(taken.iter().all(|&taken| taken == count as u64 - 1), || format!("taken: {taken:?}"))?;
    Ok(format!("{} interrupts from each of {count} CPUs to each other", count * (count - 1)))
}

fn idle() -> Outcome {
    if cpu::count() == 1 {
        return Ok(String::from("one CPU: nothing to see"));
    }
    // This thread keeps its CPU busy until the others have halted. If they don't, the watchdog ends the wait.
    sched::wait_spinning(|| {
        (1..cpu::count()).all(|index| cpu::cpu(index).doing().0 == cpu::CpuActivity::Halted)
    });
    let woken = on_every_cpu(|index| index);
    check(woken.len() == cpu::count(), || format!("woken: {woken:?}"))?;
    Ok(format!("{} CPUs", cpu::count() - 1))
}

/// A puppet stays in user mode until a word changes. Only a timer interrupt, which lets the other thread run, can
/// change it.
fn timer() -> Outcome {
    const WORD: usize = 63;
    let word = &crate::program::control().words[WORD];
    word.store(0, SeqCst);
    let space = space(1, true);
    let spin = || {
        let mut puppet = Puppet::new(0);
        // We use several ticks, because on a busy host the first may arrive before the puppet enters user mode.
        trap::set_tick(1_000_000);
        puppet.spin(WORD, 1);
        trap::set_tick(0);
    };
    let spinner = sched::spawn(cpu::count() - 1, move || space.run(1, spin));
    let changer = sched::spawn(cpu::count() - 1, move || {
        crate::program::control().words[WORD].store(1, SeqCst);
    });
    sched::join(&changer);
    sched::join(&spinner);
    Ok(format!("cpu {}", cpu::count() - 1))
}

/// The result of both tests of non-maskable interrupts, if there are no such interrupts.
pub const NO_NMI: &str = "no non-maskable interrupts on this architecture: nothing to see";

fn nmi() -> Outcome {
    let Some(send) = arch::interrupts::SEND_NMI else {
        return Ok(String::from(NO_NMI));
    };
    let Some(target) = (1..cpu::count()).next_back() else {
        return Ok(String::from("one CPU: no other to send it"));
    };
    /// The number of turns that the target makes before we count a missing interrupt as lost.
    const TURNS: u64 = 1 << 20;
    static MASKED: AtomicU64 = AtomicU64::new(0);
    static TURNED: AtomicU64 = AtomicU64::new(0);
    MASKED.store(0, SeqCst);
    let before = cpu::cpu(target).counters.nmis.get();
    let thread = sched::spawn(target, || {
        let _masked = Masked::new();
        MASKED.store(1, SeqCst);
        while MASKED.load(SeqCst) == 1 {
            TURNED.fetch_add(1, SeqCst);
            arch::cpu::relax();
        }
    });
    sched::wait_spinning(|| MASKED.load(SeqCst) == 1);
    send(target);
    let (taken, begun) = (|| cpu::cpu(target).counters.nmis.get() > before, TURNED.load(SeqCst));
    while !taken() && TURNED.load(SeqCst) - begun < TURNS {
        arch::cpu::relax();
    }
    let taken = taken();
    MASKED.store(2, SeqCst);
    sched::join(&thread);
    check(taken, || format!("cpu {target} took none"))?;
    Ok(format!("cpu {target}"))
}

/// Every CPU takes a non-maskable interrupt whose handler sends itself the next one and then faults. The next one must
/// wait until the first ends (otherwise the handler's entry panics).
fn nmi_that_faults() -> Outcome {
    let Some(send) = arch::interrupts::SEND_NMI else {
        return Ok(String::from(NO_NMI));
    };
    static LEFT: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];
    static RECOVERED: AtomicU64 = AtomicU64::new(0);
    trap::on_nmi(|| {
        let me = arch::cpu::index();
        if LEFT[me].load(SeqCst) > 0 {
            LEFT[me].fetch_sub(1, SeqCst);
            if let Some(send) = arch::interrupts::SEND_NMI {
                send(me);
            }
            if accessors::load_user(ADDRESS).is_none() {
                RECOVERED.fetch_add(1, SeqCst);
            }
        }
    });
    const NMIS: u64 = 3;
    on_every_cpu(move |me| {
        LEFT[me].store(NMIS, SeqCst);
        send(me);
        while LEFT[me].load(SeqCst) > 0 {
            watchdog::relax();
        }
    });
    let (recovered, expected) = (RECOVERED.load(SeqCst), NMIS * cpu::count() as u64);
    check(recovered == expected, || format!("{recovered} of {expected} handlers recovered"))?;
    Ok(format!("{expected} handlers faulted"))
}

fn faults() -> Outcome {
    let read_only = space(7, false);
    let access = |index| {
        let mut puppet = Puppet::new(index);
        let loaded = puppet.load(ADDRESS);
        let stored = puppet.store(ADDRESS + 8, 9);
        let missing = puppet.load(ADDRESS + 0x5008);
        let kernel = puppet.load(arch::DIRECT_MAP + 0x20_0000);
        (loaded, stored, missing, kernel)
    };
    let results = on_every_cpu(move |index| read_only.run(1, || access(index)));
    for (index, (loaded, stored, missing, kernel)) in results.into_iter().enumerate() {
        check(loaded == Ok(7), || format!("cpu {index} loaded {loaded:x?}"))?;
        let fault = stored.err().ok_or("a store to a read-only page went through")?;
        let good = fault.address == ADDRESS + 8 && fault.write && fault.user && fault.present;
        check(good && !fault.fetch, || format!("cpu {index}, read-only: {fault:x?}"))?;
        let fault = missing.err().ok_or("a load from nowhere went through")?;
        let good = fault.address == ADDRESS + 0x5008 && !fault.write && fault.user;
        check(good && !fault.present, || format!("cpu {index}, nothing mapped: {fault:x?}"))?;
        check(kernel.is_err(), || format!("cpu {index} read kernel memory in user mode"))?;
    }
    Ok(format!("3 faults on each of {} CPUs", cpu::count()))
}

fn accessors() -> Outcome {
    let (load, store, missing) = space(7, true).run(1, || {
        let load = accessors::load_user(ADDRESS);
        let store = accessors::store_user(ADDRESS, 8);
        (load, store, accessors::load_user(ADDRESS + 0x5000))
    });
    check(load == Some(7) && store, || format!("loaded {load:?}, stored {store}"))?;
    check(missing.is_none(), || format!("loaded {missing:?} from nowhere"))?;
    Ok(String::new())
}

/// Runs two threads on each CPU, each with its own address space in which the same address contains another value. They
/// alternate after every access.
fn threads() -> Outcome {
    const PER_CPU: usize = 2;
    const TURNS: usize = 50;
    let mut handles = Vec::new();
    static WRONG: AtomicU64 = AtomicU64::new(0);
    WRONG.store(0, SeqCst);
    for index in 0..cpu::count() {
        for which in 0..PER_CPU {
            let slot = index * PER_CPU + which;
            let space = space(slot as u64, true);
            let take_turns = move || {
                let mut puppet = Puppet::new(slot);
                let value = |turn| (turn * crate::layout::SLOTS + slot) as u64;
                for turn in 0..TURNS {
                    let wrong = puppet.load(ADDRESS) != Ok(value(turn));
                    if wrong || puppet.store(ADDRESS, value(turn + 1)).is_err() {
                        WRONG.fetch_add(1, SeqCst);
                    }
                    sched::yield_now();
                }
            };
            let run = move || space.run(1 + slot as u16, take_turns);
            handles.push(sched::spawn(index, run));
        }
    }
    handles.iter().for_each(|thread| sched::join(thread));
    let wrong = WRONG.load(SeqCst);
    check(wrong == 0, || format!("{wrong} accesses met another thread's memory"))?;
    Ok(format!("{} threads of {TURNS} turns", handles.len()))
}

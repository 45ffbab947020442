//! The kernel's state of each CPU.
//!
//! Only its own CPU (with its non-maskable interrupts) writes a [`Cpu`], and others read it only for reports. So we
//! update its counters with a plain load and store instead of a locked instruction.

use crate::{arch, clock, report, sched};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use serde::Serialize;

/// The maximum number of CPUs that the kernel starts.
pub const MAX: usize = 64;

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)*) => {
        /// The counts of one CPU.
        #[derive(Clone, Copy, Default, Serialize, Debug)]
        pub struct Counters { $($(#[$doc])+ pub $name: u64,)* }

        /// The counters of a running CPU.
        #[derive(Default)]
        pub struct LiveCounters { $($(#[$doc])+ pub $name: Counter,)* }

        impl LiveCounters {
            const fn new() -> Self { LiveCounters { $($name: Counter::new(),)* } }
            /// Returns the current values. They aren't from one moment if the CPU runs.
            pub fn read(&self) -> Counters { Counters { $($name: self.$name.get(),)* } }
        }

        impl Counters {
            /// Returns the difference from an earlier reading.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
            /// Adds the counts of another CPU.
            pub fn add(&mut self, other: &Counters) { $(self.$name += other.$name;)* }
        }

        /// Writes the counts as the inside of a JSON object.
        impl fmt::Display for Counters {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut first = true;
                $(
                    if !core::mem::replace(&mut first, false) { f.write_str(",")?; }
                    write!(f, concat!("\"", stringify!($name), "\":{}"), self.$name)?;
                )*
                Ok(())
            }
        }
    };
}

counters! {
    /// Shootdown interrupts sent, one per target.
    shootdowns_sent,
    /// Shootdown interrupts taken.
    shootdowns_taken,
    /// Entries (or strides) invalidated one by one on only this CPU.
    local_pages,
    /// Whole tags invalidated on only this CPU.
    local_tags,
    /// Invalidations of everything on only this CPU.
    local_all,
    /// Local invalidations made for another CPU, in a shootdown interrupt.
    remote_invalidations,
    /// Broadcast invalidations sent, one per instruction.
    broadcasts,
    /// Waits for the completion of broadcasts.
    completions,
    /// Root loads that kept the TLB entries of the tag.
    loads_kept,
    /// Root loads that dropped the TLB entries of the tag.
    loads_flushed,
    /// User roots unloaded in favour of the kernel's own root.
    unloads,
    /// Page faults taken from user mode.
    user_faults,
    /// Page faults taken by the kernel's accesses to user memory.
    kernel_faults,
    /// System calls.
    syscalls,
    /// Other interrupts: wake-ups and timer ticks.
    interrupts,
    /// Non-maskable interrupts.
    nmis,
    /// Switches between threads.
    switches,
    /// Times the CPU halted because it had nothing to do.
    halts,
}

impl LiveCounters {
    /// Returns the number of invalidations on only this CPU, of any size.
    pub fn invalidations(&self) -> u64 {
        self.local_pages.get() + self.local_tags.get() + self.local_all.get()
    }
}

/// A counter that one CPU writes.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Counter(AtomicU64::new(0))
    }
    /// Adds `n`. Only the CPU that owns the counter may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// Returns the value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A CPU's activity, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CpuActivity {
    /// The CPU hasn't started.
    Off,
    /// It runs kernel code.
    Kernel,
    /// It runs user mode.
    User,
    /// It waits for another CPU.
    Waiting,
    /// It's halted.
    Halted,
}

impl CpuActivity {
    /// Each with its name, in the order of their numbers.
    const ALL: [(CpuActivity, &'static str); 5] = [
        (CpuActivity::Off, "off"),
        (CpuActivity::Kernel, "kernel"),
        (CpuActivity::User, "user"),
        (CpuActivity::Waiting, "waiting"),
        (CpuActivity::Halted, "halted"),
    ];
}

/// The state of a CPU's wait for others (see [`crate::watchdog`]).
pub struct WaitState {
    /// Turns of the waiting loop.
    pub turns: AtomicU32,
    /// The round of the wait, from 1. It's 0 if nothing has checked the wait yet.
    pub round: AtomicU32,
    /// The time at which the wait began, in nanoseconds.
    pub since: AtomicU64,
    /// The time at which its round began.
    pub round_begun: AtomicU64,
    /// Whether the other CPUs got an interrupt in this round.
    pub asked: AtomicBool,
    /// The number of non-maskable interrupts that each CPU had taken before that.
    pub nmis: [AtomicU64; MAX],
}

impl WaitState {
    const fn new() -> Self {
        WaitState {
            turns: AtomicU32::new(0),
            round: AtomicU32::new(0),
            since: AtomicU64::new(0),
            round_begun: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            nmis: [const { AtomicU64::new(0) }; MAX],
        }
    }
}

/// The state of one CPU. The architecture finds it through a register ([`crate::arch::cpu::index`]).
#[repr(C, align(128))]
pub struct Cpu {
    /// The counters.
    pub counters: LiveCounters,
    /// The hardware's name of the CPU: the local APIC's id, or the affinity fields of MPIDR.
    pub hardware_id: AtomicU64,
    /// The address and tag of the loaded user root: `root address | tag`. It's 0 if none is loaded.
    pub loaded: AtomicU64,
    /// The address of the code that the last interrupt interrupted.
    pub last_pc: AtomicU64,
    /// The wait that the CPU is in, if there is one.
    pub waiting: WaitState,
    /// Whether the CPU is serving a shootdown interrupt.
    pub serving: AtomicBool,
    /// Whether the handler of a non-maskable interrupt runs.
    pub in_nmi: AtomicBool,
    doing: AtomicU8,
}

impl Cpu {
    const fn new() -> Self {
        Cpu {
            counters: LiveCounters::new(),
            hardware_id: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            last_pc: AtomicU64::new(0),
            waiting: WaitState::new(),
            serving: AtomicBool::new(false),
            in_nmi: AtomicBool::new(false),
            doing: AtomicU8::new(CpuActivity::Off as u8),
        }
    }

    /// Records the CPU's activity. Returns the previous one.
    #[inline]
    pub fn set_doing(&self, doing: CpuActivity) -> CpuActivity {
        let (before, _) = self.doing();
        self.doing.store(doing as u8, Relaxed);
        before
    }

    /// Returns the CPU's activity, with its name.
    pub fn doing(&self) -> (CpuActivity, &'static str) {
        CpuActivity::ALL[self.doing.load(Relaxed) as usize]
    }
}

static CPUS: [Cpu; MAX] = [const { Cpu::new() }; MAX];
static STARTED: AtomicU32 = AtomicU32::new(0);

/// Returns the CPU with this number.
#[inline]
pub fn cpu(index: usize) -> &'static Cpu {
    &CPUS[index]
}

/// Returns the CPU that executes this.
#[inline]
pub fn this() -> &'static Cpu {
    cpu(arch::cpu::index())
}

/// Returns the number of CPUs that run. They are numbered from 0 without gaps.
#[inline]
pub fn count() -> usize {
    STARTED.load(core::sync::atomic::Ordering::Acquire) as usize
}

/// Completes the set-up of CPU `index`, the next one, which runs this: from here on, it can run threads.
pub fn set_started(index: usize) {
    sched::init_cpu();
    cpu(index).set_doing(CpuActivity::Kernel);
    STARTED.store(index as u32 + 1, core::sync::atomic::Ordering::Release);
    arch::cpu::restore_interrupts(true);
}

/// Starts one more CPU by `start`, which receives the end of the CPU's stack. Returns whether the CPU runs. Reports a
/// failure, but not if `start` returns `None` because there is no such CPU.
pub fn start_next(start: impl FnOnce(u64) -> Result<(), Option<&'static str>>) -> bool {
    /// The nanoseconds in which a CPU must start. This is a last resort, because the host decides when the CPU runs,
    /// and before that it can't answer us.
    const LIMIT: u64 = 120_000_000_000;
    let index = count();
    if index == MAX {
        return false;
    }
    let stack = alloc::vec![0u128; sched::STACK / 16].leak();
    let why = match start(stack.as_ptr_range().end as u64) {
        Ok(()) if clock::wait_for(LIMIT, || count() > index) => return true,
        Ok(()) => Some("no answer within two minutes, the last resort"),
        Err(why) => why,
    };
    if let Some(why) = why {
        report::event(&report::Event::Failed { what: "cpu start", why });
    }
    false
}

/// Halts this CPU until an interrupt was served. Call this with interrupts masked. It turns them on and halts in one
/// step, so an interrupt that arrives meanwhile ends the halt, and masks them again.
pub fn halt() {
    let this = this();
    this.counters.halts.add(1);
    let before = this.set_doing(CpuActivity::Halted);
    arch::cpu::halt();
    this.set_doing(before);
}

/// Returns the counters of all CPUs together.
pub fn sum() -> Counters {
    let mut sum = Counters::default();
    for index in 0..count() {
        sum.add(&cpu(index).counters.read());
    }
    sum
}

//! The kernel's state of each CPU.
//!
//! Only its own CPU (with its non-maskable interrupts) writes a [`Cpu`], and others read it only for reports. So its
//! counters are updated with a plain load and store instead of a locked instruction.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use serde::Serialize;

/// The most CPUs the kernel starts.
pub const MAX: usize = 64;

/// Nanoseconds in which a CPU must start: a last resort. It cannot be asked for a sign of life before it runs, and the
/// host decides when it does.
pub const START_LIMIT: u64 = 120_000_000_000;

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
            /// The values now; not one moment's for a CPU that runs.
            pub fn read(&self) -> Counters { Counters { $($name: self.$name.get(),)* } }
        }

        impl Counters {
            /// The difference to an earlier reading.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
            /// Adds another CPU's.
            pub fn add(&mut self, other: &Counters) { $(self.$name += other.$name;)* }
        }

        /// As the inside of a JSON object.
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
    /// Entries (or strides) invalidated one by one on this CPU alone.
    local_pages,
    /// Whole tags invalidated on this CPU alone.
    local_tags,
    /// Everything invalidated on this CPU alone.
    local_all,
    /// Of these three, those done in a shootdown interrupt, for another CPU.
    remote_invalidations,
    /// Broadcast invalidations sent, one per instruction.
    broadcasts,
    /// Waits for the completion of broadcasts.
    completions,
    /// Roots loaded with the entries of their tag kept.
    loads_kept,
    /// Roots loaded with the entries of their tag dropped.
    loads_flushed,
    /// User roots left for the kernel's own.
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
    /// Invalidations on this CPU alone, of any size.
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
    /// The value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A CPU's activity, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CpuActivity {
    /// Not started.
    Off,
    /// Kernel code.
    Kernel,
    /// User mode.
    User,
    /// Waiting for another CPU.
    Waiting,
    /// Halted.
    Halted,
}

impl CpuActivity {
    const ALL: [(CpuActivity, &'static str); 5] = [
        (CpuActivity::Off, "off"),
        (CpuActivity::Kernel, "kernel"),
        (CpuActivity::User, "user"),
        (CpuActivity::Waiting, "waiting"),
        (CpuActivity::Halted, "halted"),
    ];
}

/// How a CPU waits for others: see [`crate::watchdog`].
pub struct WaitState {
    /// Turns of the waiting loop.
    pub turns: AtomicU32,
    /// The round that the wait is in, from 1; 0 if it has not been looked at yet.
    pub round: AtomicU32,
    /// When the wait began, in nanoseconds.
    pub since: AtomicU64,
    /// When its round began.
    pub round_begun: AtomicU64,
    /// Whether the other CPUs got an interrupt in this round.
    pub asked: AtomicBool,
    /// How many non-maskable interrupts each had taken before that.
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

/// One CPU. The architecture finds it through a register ([`crate::arch::cpu::index`]).
#[repr(C, align(128))]
pub struct Cpu {
    /// The counters.
    pub counters: LiveCounters,
    /// The hardware's name of the CPU: the local APIC's id, or the affinity fields of MPIDR.
    pub hardware_id: AtomicU64,
    /// The address and tag of the loaded user root, 0 for none: `root address | tag`.
    pub loaded: AtomicU64,
    /// Where the last interrupt came from.
    pub last_pc: AtomicU64,
    /// The wait that it is in, if it is in one.
    pub waiting: WaitState,
    /// Whether a shootdown interrupt is being served.
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
        let before = self.doing();
        self.doing.store(doing as u8, Relaxed);
        before
    }

    /// Returns the CPU's activity.
    pub fn doing(&self) -> CpuActivity {
        CpuActivity::ALL[self.doing.load(Relaxed) as usize].0
    }

    /// Returns the CPU's activity in a word.
    pub fn doing_name(&self) -> &'static str {
        CpuActivity::ALL[self.doing.load(Relaxed) as usize].1
    }
}

static CPUS: [Cpu; MAX] = [const { Cpu::new() }; MAX];
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The CPU with this number.
#[inline]
pub fn cpu(index: usize) -> &'static Cpu {
    &CPUS[index]
}

/// The CPU that executes this.
#[inline]
pub fn this() -> &'static Cpu {
    cpu(crate::arch::cpu::index())
}

/// How many CPUs run; they are numbered from 0 without gaps.
#[inline]
pub fn count() -> usize {
    STARTED.load(core::sync::atomic::Ordering::Acquire) as usize
}

/// Records that CPU `index`, the next one, runs.
pub fn set_started(index: usize) {
    cpu(index).set_doing(CpuActivity::Kernel);
    STARTED.store(index as u32 + 1, core::sync::atomic::Ordering::Release);
}

/// The counters of all CPUs together.
pub fn sum() -> Counters {
    let mut sum = Counters::default();
    for index in 0..count() {
        sum.add(&cpu(index).counters.read());
    }
    sum
}

//! The machines, and the behaviour that their translation hardware and memory ordering allow.

use quell::{Break, Features, Tagging};
use quell_workloads::files::hint;

/// When stores become visible to other CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stores {
    /// In program order, but late (x86 total store order).
    Ordered,
    /// In any order that release stores and fences allow (Arm, RISC-V), even before an invalidation that the CPU issued
    /// earlier has taken effect.
    Unordered,
}

/// A machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MachineKind {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    tags: Tags,
    /// When stores become visible.
    pub stores: Stores,
    /// Whether loads overtake each other and stores wait until something orders them, as Arm and RISC-V allow
    /// ([`machine`](crate::machine)).
    pub reorders: bool,
    /// Whether table writes reach walkers only after a barrier of the writer.
    pub lagging_walkers: bool,
    /// The changes of an entry that need an absent entry and a complete flush in between. `flush_needed` knows them,
    /// and the machine reports a kernel that ignores them as [misuse](quell_vm::contract::Clause::Misuse). We make one
    /// exception: on an Arm machine that [broadcasts nothing](MachineKind::breaks_by_interrupt) we don't judge policies
    /// with asynchronous flushes.
    pub break_before_make: Break,
    /// Whether walkers set accessed and dirty bits.
    pub hardware_dirty: bool,
    /// Whether an invalidation of leaf entries names their size and leaves entries of other sizes alone (Arm's level
    /// hint).
    pub level_hints: bool,
    /// Whether an entry may be marked as part of a block, which lets a TLB fill every page of the block from it (Arm's
    /// contiguous bit, RISC-V's Svnapot).
    pub blocks: bool,
    /// Whether user mode has its own tag (page-table isolation). Then the engine flushes the kernel's half of a space,
    /// and the user's half is flushed on return to user mode ([`isolation`](crate::isolation)). Only scenarios marked
    /// for isolation run there.
    pub isolated: bool,
    /// Whether a range is invalidated piece by piece and is complete only at the end.
    pub pieces: bool,
    /// The number of targets from which a flush uses shared inboxes
    /// ([`shares_lines_from`](quell::Hardware::shares_lines_from)).
    pub shares_lines_from: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Tags {
    None,
    /// No tags, but broadcast invalidations.
    NoneBroadcast,
    PerCpu(u16),
    /// This many bits more than the CPUs need. Few bits make rollovers frequent.
    Global(u8),
}

impl MachineKind {
    /// Every machine.
    pub const ALL: &'static [MachineKind] = &[
        MachineKind {
            name: "x86",
            about: "x86-64 without PCIDs: a root switch drops everything",
            tags: Tags::None,
            ..X86
        },
        X86,
        MachineKind {
            name: "x86-broadcast",
            about: "x86-64 with INVLPGB, TLBSYNC and system-wide PCIDs",
            tags: Tags::Global(0),
            ..X86
        },
        MachineKind {
            name: "x86-broadcast-untagged",
            about: "x86-64 with INVLPGB and TLBSYNC, and without PCIDs",
            tags: Tags::NoneBroadcast,
            ..X86
        },
        ARM,
        MachineKind {
            name: "arm-asid16",
            about: "AArch64 with the wider ASIDs of two: rollovers are rarer",
            tags: Tags::Global(1),
            ..ARM
        },
        MachineKind {
            name: "arm-reordering",
            about: "AArch64 whose loads overtake each other and whose stores wait without bound",
            reorders: true,
            ..ARM
        },
        RISCV,
        MachineKind {
            name: "riscv-svinval",
            about: "RISC-V with Svinval: a range is invalidated in pieces, complete at its end",
            pieces: true,
            ..RISCV
        },
        MachineKind {
            name: "riscv-reordering",
            about: "RISC-V whose loads overtake each other and whose stores wait without bound",
            reorders: true,
            ..RISCV
        },
        MachineKind {
            name: "x86-isolation",
            about: "x86-64 with two PCIDs per CPU, and two more for user mode (page-table isolation)",
            isolated: true,
            ..X86
        },
        MachineKind {
            name: "x86-many",
            about: "x86-64 with two PCIDs per CPU, whose CPUs share lines as those of large machines do",
            shares_lines_from: 1,
            ..X86
        },
        MachineKind {
            name: "riscv-many",
            about: "RISC-V like riscv-reordering, whose harts share lines as those of large machines do",
            reorders: true,
            shares_lines_from: 1,
            ..RISCV
        },
    ];

    /// Future machines, which we leave out of all tables. They have their own test (`tests/to_come.rs`), and a search
    /// that names one runs on it.
    pub const TO_COME: &'static [MachineKind] = &[MachineKind {
        name: "arm-local",
        about: "AArch64 that broadcasts nothing, with ASIDs of each CPU's own",
        tags: Tags::PerCpu(2),
        ..ARM
    }];

    /// Returns the machine of this name.
    pub fn named(name: &str) -> Option<&'static MachineKind> {
        let mut every = Self::ALL.iter().chain(Self::TO_COME);
        every.find(|kind| kind.name == name)
    }

    /// Finds a machine by name.
    ///
    /// # Errors
    /// Returns a sentence with the nearest name if there is no such machine.
    pub fn find(name: &str) -> Result<&'static MachineKind, String> {
        Self::named(name).ok_or_else(|| {
            let near = hint(name, Self::ALL.iter().map(|kind| kind.name));
            format!("no machine `{name}`{near}; `quell explore --list` lists them")
        })
    }

    /// Returns the features that the engine gets.
    pub fn features(&self, cpus: usize) -> Features {
        let tagging = match self.tags {
            Tags::None | Tags::NoneBroadcast => Tagging::None,
            Tags::PerCpu(count) => Tagging::PerCpu { count },
            Tags::Global(more) => {
                // The engine needs more tags than CPUs, and tag 0 is the kernel's.
                let enough = (2..).find(|bits| (1 << bits) - 1 > cpus).unwrap_or(2);
                Tagging::Global {
                    bits: enough + more,
                }
            }
        };
        Features {
            tagging,
            broadcast: self.broadcasts(),
            full_above: 3,
        }
    }

    /// Returns whether invalidations are broadcast.
    pub fn broadcasts(&self) -> bool {
        matches!(self.tags, Tags::NoneBroadcast | Tags::Global(_))
    }

    /// Returns whether break before make relies on interrupts alone. On such a machine a kernel waits until its targets
    /// have flushed, keeps no root loaded lazily, and has no undisturbed CPUs: each of these would leave the old entry
    /// beside the new one.
    pub fn breaks_by_interrupt(&self) -> bool {
        self.break_before_make == Break::Translation && !self.broadcasts()
    }

    /// Returns whether there are hardly more tags than CPUs.
    pub fn scarce_tags(&self) -> bool {
        self.tags == Tags::Global(0)
    }

    /// Returns whether TLB entries carry tags.
    pub fn tagged(&self) -> bool {
        !matches!(self.tags, Tags::None | Tags::NoneBroadcast)
    }
}

const X86: MachineKind = MachineKind {
    name: "x86-pcid",
    about: "x86-64 with two PCIDs per CPU",
    tags: Tags::PerCpu(2),
    stores: Stores::Ordered,
    reorders: false,
    lagging_walkers: false,
    break_before_make: Break::Size,
    hardware_dirty: true,
    level_hints: false,
    blocks: false,
    isolated: false,
    pieces: false,
    shares_lines_from: usize::MAX,
};

const ARM: MachineKind = MachineKind {
    name: "arm-asid8",
    about: "AArch64 with so few ASIDs that they run out all the time",
    tags: Tags::Global(0),
    stores: Stores::Unordered,
    reorders: false,
    lagging_walkers: true,
    break_before_make: Break::Translation,
    hardware_dirty: false,
    level_hints: true,
    blocks: true,
    isolated: false,
    pieces: false,
    shares_lines_from: usize::MAX,
};

const RISCV: MachineKind = MachineKind {
    isolated: false,
    name: "riscv",
    about: "RISC-V with ASIDs of each hart's own and weakly ordered stores",
    tags: Tags::PerCpu(2),
    stores: Stores::Unordered,
    reorders: false,
    lagging_walkers: false,
    break_before_make: Break::Never,
    hardware_dirty: false,
    level_hints: false,
    blocks: true,
    pieces: false,
    shares_lines_from: usize::MAX,
};

//! Describes the machines: the behaviour that their translation hardware and memory ordering allow.

use quell::{Break, Features, Tagging};
use quell_workloads::files::hint;

/// The moment at which stores become visible to other CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stores {
    /// Stores become visible in program order, but late (x86 total store order).
    Ordered,
    /// Stores become visible in any order that release stores and fences allow (Arm, RISC-V).
    ///
    /// A store may even become visible before an invalidation that the CPU issued earlier has taken effect.
    Unordered,
}

/// A kind of machine: the behaviour that the adversary may show.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MachineKind {
    /// The machine's name on the command line.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    tags: Tags,
    /// The moment at which stores become visible.
    pub stores: Stores,
    /// Whether loads overtake each other and stores wait until something orders them, as Arm and RISC-V allow.
    ///
    /// See [`machine`](crate::machine).
    pub reorders: bool,
    /// Whether table writes reach walkers only after a barrier of the writer.
    pub lagging_walkers: bool,
    /// The changes of an entry that require break before make: an absent entry and a complete flush in between.
    ///
    /// `flush_needed` reports these changes. If a kernel makes them without the flush, the machine reports
    /// [misuse](quell_vm::contract::Clause::Misuse). There is one exception: on an Arm machine that [broadcasts
    /// nothing](MachineKind::breaks_by_interrupt), policies with asynchronous flushes aren't judged.
    pub break_before_make: Break,
    /// Whether walkers set accessed and dirty bits themselves.
    pub hardware_dirty: bool,
    /// Whether an invalidation of leaf entries names their size and keeps entries of other sizes (Arm's level hint).
    pub level_hints: bool,
    /// Whether an entry may be marked as part of a block (Arm's contiguous bit, RISC-V's Svnapot).
    ///
    /// A TLB may fill every page of a block from any of its entries.
    pub blocks: bool,
    /// Whether user mode has its own tag (page-table isolation).
    ///
    /// Then the engine flushes the kernel's half of a space, and the return to user mode flushes the user's half
    /// ([`user_half`](crate::machine::user_half)). Only scenarios marked for isolation run there.
    pub isolated: bool,
    /// Whether a range is invalidated piece by piece. The pieces are complete only together, at the end.
    pub pieces: bool,
    /// The number of targets from which a flush uses inboxes that targets share
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
            about: "AArch64 with wider ASIDs than arm-asid8: rollovers are rarer",
            tags: Tags::Global(1),
            ..ARM
        },
        MachineKind {
            name: "arm-reordering",
            about: "AArch64 whose loads overtake each other and whose stores may wait without limit",
            reorders: true,
            ..ARM
        },
        RISCV,
        MachineKind {
            name: "riscv-svinval",
            about: "RISC-V with Svinval: a range is invalidated in pieces, which are complete only at the end",
            pieces: true,
            ..RISCV
        },
        MachineKind {
            name: "riscv-reordering",
            about: "RISC-V whose loads overtake each other and whose stores may wait without limit",
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
            about: "x86-64 with two PCIDs per CPU, and inboxes that targets share, as on large machines",
            shares_lines_from: 1,
            ..X86
        },
        MachineKind {
            name: "riscv-many",
            about: "RISC-V like riscv-reordering, with inboxes that targets share, as on large machines",
            reorders: true,
            shares_lines_from: 1,
            ..RISCV
        },
    ];

    /// Machines that are expected in the future. They aren't in [`MachineKind::ALL`].
    ///
    /// They have their own test (`tests/to_come.rs`), and a search that names one runs on it.
    pub const TO_COME: &'static [MachineKind] = &[MachineKind {
        name: "arm-local",
        about: "AArch64 that broadcasts nothing, with per-CPU ASIDs",
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

    /// Returns the features that the machine reports to the engine.
    pub fn features(&self, cpus: usize) -> Features {
        let tagging = match self.tags {
            Tags::None | Tags::NoneBroadcast => Tagging::None,
            Tags::PerCpu(count) => Tagging::PerCpu { count },
            Tags::Global(more) => {
                // The engine needs more tags than CPUs, and tag 0 is the kernel's.
                let enough = (2..).find(|bits| (1 << bits) - 1 > cpus).unwrap_or(2);
                Tagging::Global { bits: enough + more }
            }
        };
        Features { tagging, broadcast: self.broadcasts(), full_above: 3 }
    }

    /// Returns whether the machine broadcasts invalidations.
    pub fn broadcasts(&self) -> bool {
        matches!(self.tags, Tags::NoneBroadcast | Tags::Global(_))
    }

    /// Returns whether break before make relies on interrupts alone.
    ///
    /// On such a machine a kernel waits until its targets have flushed, and keeps no root loaded lazily. It also lets
    /// no CPU in user mode defer flushes of kernel mappings ([`Cpu::enter_user`](quell::Cpu::enter_user)). Each of
    /// these would leave the old entry beside the new one.
    pub fn breaks_by_interrupt(&self) -> bool {
        self.break_before_make == Break::Translation && !self.broadcasts()
    }

    /// Returns whether there are hardly more tags than CPUs, so that tags often run out.
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
    lagging_walkers: true,
    break_before_make: Break::Translation,
    hardware_dirty: false,
    level_hints: true,
    blocks: true,
    ..X86
};

const RISCV: MachineKind = MachineKind {
    name: "riscv",
    about: "RISC-V with per-hart ASIDs and weakly ordered stores",
    stores: Stores::Unordered,
    break_before_make: Break::Never,
    hardware_dirty: false,
    blocks: true,
    ..X86
};

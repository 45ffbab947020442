//! Programs as data: what can be generated, changed, shrunk, written down and read again.
//!
//! A program has a *shape* (the sizes of the machine under it), and for each CPU the operations that it does before the
//! run, while no other CPU runs, and those of the run. There are two grammars: [`EngineOp`] for programs over the
//! engine alone, and [`CallOp`] for programs over the memory manager. The file is long because it names every operation
//! of both grammars.
//!
//! Every list of operations is a program: an operation that makes no sense where it stands (unmap a
//! page of a space that has died, finish a batch that is not open) does nothing. So lists can be
//! cut and mixed at will, and nothing that is generated can break the rules of the interface.
//!
//! A program is written down with what its runs depend on ([`Written`]).
//!
//! A crate of its own, because reading and writing is a third of the adversary's code and needs no optimisation.

// An operation that is added must not silently do nothing.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod written;

pub use written::Written;

use serde::{Deserialize, Serialize};

/// The most CPUs of a program.
pub const MAX_CPUS: usize = 4;
/// The most address spaces of a program.
pub const SPACES: usize = 10;
/// How many of them a batch has room for: so few that programs come by what is done about one more.
pub const PLACES: usize = 2;
/// The greatest number that the first CPU of a program may have.
pub const FIRST_CPU: usize = 128;
/// The most flushes that can be deferred at once.
pub const LEDGER_ENTRIES: usize = 8;
/// How many batches can be open at once, wherever they were opened.
pub const BATCHES: usize = 3;
/// How many files (pages that several spaces map) there are.
pub const FILES: usize = 3;
/// How many flags CPUs can tell each other something by.
pub const FLAGS: usize = 6;

/// Pages that one leaf table spans.
pub const WINDOW: u64 = 512;
/// The page that the one huge mapping of a space begins with.
pub const HUGE: u64 = 1 << 18;
/// The pages that programs over the engine use: the beginning of a leaf table, the end of it, which is
/// the beginning of the next, and the huge mapping.
pub const PAGES: [u64; 11] = [0, 1, 2, 3, 510, 511, 512, 513, 514, HUGE, HUGE + 1];
/// How many pages of its own half the kernel maps, and takes away: half of them with global entries.
pub const OWN_PAGES: usize = 4;
/// The page that each file is mapped at, in every space that maps it.
pub const FILE_PAGES: [u64; FILES] = [3, 510, 514];

/// What a batch is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum For {
    /// A call of the program.
    Call,
    /// Reclaim.
    Reclaim,
    /// Migration.
    Migration,
}

/// How a range is reported to a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reported {
    /// Page by page.
    Each,
    /// As one range.
    Range,
    /// As the whole space.
    All,
}

/// A right to a page, besides that to load from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// To store.
    #[default]
    Write,
    /// To fetch instructions.
    Execute,
}

/// One thing that a CPU does with the engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "what an operation does names its operands")]
pub enum EngineOp {
    /// Runs user code of a space.
    Switch { space: u8 },
    /// Goes idle; the space stays loaded.
    Lazy,
    /// Goes idle for long, without a root.
    Leave,
    /// Goes on in the space that it has kept since it went idle, if it still has that loaded.
    Resume,
    /// Goes on in its program, which is not to be disturbed from here until it calls the kernel.
    Undisturbed,
    /// Loads from a page, as a program.
    Read { page: u64 },
    /// Stores to a page, as a program.
    Write { page: u64 },
    /// Fetches an instruction from a page, as a program.
    Fetch { page: u64 },
    /// Maps fresh memory at a page, if nothing is there.
    Map { space: u8, page: u64, write: bool },
    /// Maps a file's page, if nothing is there.
    MapFile { space: u8, file: u8, write: bool },
    /// Maps the block that a page is in (contiguous entries) to fresh memory, if nothing is there and the machine knows
    /// blocks.
    MapBlock { space: u8, page: u64 },
    /// Maps a large page where a leaf table could be, if there is none.
    MapLarge { space: u8, window: u8 },
    /// Maps a huge page.
    MapHuge { space: u8 },
    /// Opens a batch.
    Open { batch: u8, purpose: For },
    /// Unmaps what is mapped in a range; the flush and the frames are the batch's.
    Unmap {
        batch: u8,
        space: u8,
        page: u64,
        pages: u64,
        report: Reported,
    },
    /// Unmaps a page in every space, as reclaim does.
    Sweep { batch: u8, page: u64 },
    /// Takes a right away; if that is the one to write, captures what the page holds after the flush.
    Protect {
        batch: u8,
        space: u8,
        page: u64,
        pages: u64,
        capture: bool,
        #[serde(default)]
        right: Right,
    },
    /// Unmaps all that a leaf table maps, and the table.
    Unlink { batch: u8, space: u8, window: u8 },
    /// Unmaps a page and flushes at once, that page or the whole space, without a batch.
    UnmapAtOnce { space: u8, page: u64, whole: bool },
    /// Unmaps a page; the flush of everything that comes after is one that tasks share.
    UnmapCoalesced { space: u8, page: u64 },
    /// Unmaps a leaf table that maps nothing, and flushes at once.
    UnlinkAtOnce { space: u8, window: u8, whole: bool },
    /// Flushes a batch: its frames are free, the calls that it was for return.
    Finish { batch: u8 },
    /// The same, begun and not waited for: the CPU looks when it hears that another has answered.
    Start { batch: u8 },
    /// Forgets a batch, which flushes.
    Forget { batch: u8 },
    /// A call that finds pages unmapped by another CPU relies on that and returns.
    Confirm { space: u8, page: u64, pages: u64 },
    /// Gives a right back, and refreshes.
    Unprotect {
        space: u8,
        page: u64,
        #[serde(default)]
        right: Right,
    },
    /// Moves a page elsewhere in its space.
    Move { space: u8, page: u64, to: u64 },
    /// Moves a page to another frame.
    Migrate { space: u8, page: u64 },
    /// Unmaps a page whose frame is to bear no load that no instruction asks for: when every CPU has flushed, it goes.
    Withdraw { space: u8, page: u64 },
    /// Puts small pages in a large page's place.
    Split { space: u8, window: u8 },
    /// Puts a large page in small pages' place.
    Collapse { space: u8, window: u8 },
    /// Takes a file's page out of memory, wherever it is mapped.
    Reclaim { file: u8 },
    /// The same for several files, the flush deferred until reuse: file `n` if bit `n` is set.
    ReclaimLazily { files: u8 },
    /// Gives the frame that was taken from a file last to a new owner.
    Reuse { file: u8 },
    /// Takes it back.
    Reinstate { file: u8 },
    /// Writes a file's page, reading it in first if need be.
    WriteFile { file: u8 },
    /// Makes all deferred flushes.
    Pay,
    /// Catches up with the flush clock.
    CatchUp,
    /// Leaves the machine, until [`EngineOp::Online`].
    Offline,
    /// Comes back.
    Online,
    /// Ends a space that no CPU runs.
    Retire { space: u8 },
    /// Makes a new space with the root of one that has ended.
    Revive { space: u8 },
    /// Maps fresh memory at a page of the kernel's own half, if nothing is there.
    MapOwn { own: u8 },
    /// Loads from such a page, as the kernel.
    ReadOwn { own: u8 },
    /// Executes an instruction there.
    RunOwn { own: u8 },
    /// Unmaps it; the frame is free after the flush.
    UnmapOwn { own: u8, purpose: For },
    /// Unmaps all of the kernel's own half, and the table.
    UnlinkOwn,
    /// Unmaps it when no code is to use it any more, the flush deferred until the address or the frame is used again.
    UnmapOwnLazily { own: u8 },
    /// Reclaims pages of files and unmaps a page of the kernel's own half with one batch, whose flush is deferred where
    /// engine and policy allow it.
    ReclaimWithOwn { files: u8, own: u8 },
    /// Gives the frame that was taken so to a new owner.
    ReuseOwn { own: u8 },
    /// Writes the kernel's text there, and tells every CPU.
    Patch { own: u8 },
    /// Masks interrupts, or turns them on again.
    Mask { on: bool },
    /// Tells the others that something has happened.
    Tell { flag: u8 },
    /// Waits until another CPU has told, if one ever will.
    Wait { flag: u8 },
}

/// One thing that a CPU does as a program over the memory manager. Pages and lengths are in base
/// pages, files are numbered in the order of their making, processes from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "what an operation does names its operands")]
pub enum CallOp {
    /// Loads from a page.
    Read { page: u64 },
    /// Stores to a page.
    Write { page: u64 },
    /// Fetches an instruction from a page.
    Fetch {
        /// The page.
        page: u64,
    },
    /// Stores to each page of a range.
    Fill { page: u64, pages: u64 },
    /// Maps zeroed memory, in large pages if so wished.
    Map { page: u64, pages: u64, large: bool },
    /// Maps a file from one of its pages on.
    MapFile {
        page: u64,
        pages: u64,
        file: u32,
        from: u64,
        shared: bool,
        write: bool,
    },
    /// Unmaps a range.
    Unmap { page: u64, pages: u64 },
    /// Drops what a range holds.
    Discard { page: u64, pages: u64 },
    /// Changes the rights to a range: 0 none, 1 read, 2 write, 3 execute, 4 write and execute.
    Protect { page: u64, pages: u64, rights: u8 },
    /// Takes the pages of a range out of memory.
    PageOut { page: u64, pages: u64 },
    /// Moves a range elsewhere.
    Remap { page: u64, pages: u64, to: u64 },
    /// Moves 512 pages into a large one.
    Collapse { page: u64 },
    /// Makes a process without any mapping.
    Spawn,
    /// Copies this process.
    Fork,
    /// Goes on in another process.
    Enter { process: u32 },
    /// Ends a process.
    Exit { process: u32 },
    /// Makes a file.
    Create { pages: u64 },
    /// Writes a page of a file.
    WriteFile {
        file: u32,
        page: u64,
        /// Which of the page's words.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Reads a page of a file.
    ReadFile {
        file: u32,
        page: u64,
        /// Which of the page's words.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Cuts or extends a file.
    Truncate {
        file: u32,
        pages: u64,
        /// How many words more.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Writes a file's dirty pages to its device.
    Sync { file: u32 },
    /// Moves a range to a memory node.
    Migrate { page: u64, pages: u64, node: u32 },
    /// Moves pages that were not used lately to slow memory.
    Demote { pages: u64 },
    /// Frees pages that were not used lately.
    Reclaim { pages: u64 },
    /// Sleeps.
    Idle,
    /// Enters and leaves the kernel.
    Nothing,
    /// Leaves the machine, until [`CallOp::Online`].
    Offline,
    /// Comes back.
    Online,
    /// Tells the others that something has happened.
    Tell { flag: u8 },
    /// Waits until another CPU has told, if one ever will.
    Wait { flag: u8 },
}

fn is_first(word: &u8) -> bool {
    *word == 0
}

/// What a CPU does.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane<O> {
    /// Before the run, while no other CPU runs.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<O>,
    /// In the run.
    #[serde(default = "Vec::new")]
    pub run: Vec<O>,
    /// In the middle of what it does in the run, if [`Shape::preemptions`] allows it.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub preempts: Vec<O>,
}

impl<O> Lane<O> {
    /// All of it, in the order of its parts.
    #[inline]
    pub fn all(&self) -> impl Iterator<Item = &O> {
        self.start.iter().chain(&self.run).chain(&self.preempts)
    }
}

impl<O> Default for Lane<O> {
    fn default() -> Self {
        Lane {
            start: Vec::new(),
            run: Vec::new(),
            preempts: Vec::new(),
        }
    }
}

/// The sizes of the machine under a program over the engine. A size that hides mistakes when it is large is
/// small here, or at its limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// The number of the first CPU that does something: CPUs below it exist and stay offline.
    pub first_cpu: u16,
    /// How many spaces there are.
    pub spaces: u8,
    /// Which spaces may map which file: bit `s` of `files[f]`.
    pub files: [u16; FILES],
    /// How many flushes can be deferred at once.
    pub ledger: u8,
    /// How many tags a CPU has, where it has its own.
    pub tags: u8,
    /// How many spare bits system-wide tags have.
    pub spare_bits: u8,
    /// Longer ranges are flushed whole.
    pub full_above: u8,
    /// How many NMIs may come, and which page their handler reads.
    pub nmis: u8,
    /// See [`Shape::nmis`].
    pub nmi_page: u64,
    /// How many spurious interrupts may come.
    pub spurious: u8,
    /// How often a CPU may be preempted.
    pub preemptions: u8,
    /// A thread that has preempted a CPU leaves the space loaded that it ran: a kernel that loads spaces on the way to
    /// user code goes on so.
    pub leaves_space: bool,
    /// So many batches are open on space 0 all the time, as if their threads were preempted.
    pub open_batches: u8,
    /// A bit for each CPU that a hypervisor does not run whenever an initiator asks, and flushes before it runs it
    /// again.
    pub unscheduled: u8,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            first_cpu: 0,
            spaces: 2,
            files: [0b11; FILES],
            ledger: 2,
            tags: 2,
            spare_bits: 0,
            full_above: 3,
            nmis: 0,
            nmi_page: 0,
            spurious: 0,
            preemptions: 0,
            leaves_space: false,
            open_batches: 0,
            unscheduled: 0,
        }
    }
}

impl Shape {
    /// Whether a space may map a file.
    #[inline]
    pub fn maps(&self, space: usize, file: usize) -> bool {
        self.files[file] >> space & 1 != 0
    }
}

/// The sizes of the machine under a program over the manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Frames of fast memory.
    pub fast: u64,
    /// Frames of slow memory.
    pub slow: u64,
    /// How many flushes can be deferred at once.
    pub ledger: u8,
    /// How many NMIs may come.
    pub nmis: u8,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            fast: 32,
            slow: 0,
            ledger: 4,
            nmis: 0,
        }
    }
}

/// A program.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Program {
    /// Over the engine.
    Engine {
        /// The machine's sizes.
        #[serde(default)]
        shape: Shape,
        /// The CPUs.
        cpu: Vec<Lane<EngineOp>>,
    },
    /// Over the memory manager.
    Calls {
        /// The machine's sizes.
        #[serde(default)]
        memory: Memory,
        /// The CPUs.
        cpu: Vec<Lane<CallOp>>,
    },
}

impl Program {
    /// How many CPUs do something.
    #[inline]
    pub fn cpus(&self) -> usize {
        match self {
            Program::Engine { cpu, .. } => cpu.len(),
            Program::Calls { cpu, .. } => cpu.len(),
        }
    }

    /// Whether it is one over the manager.
    #[inline]
    pub fn uses_vm(&self) -> bool {
        matches!(self, Program::Calls { .. })
    }

    /// Whether it has the memory for large pages: its runs take long.
    #[inline]
    pub fn has_large_pages(&self) -> bool {
        matches!(self, Program::Calls { memory, .. } if memory.fast > WINDOW)
    }

    /// How many operations it has, those before the run included.
    pub fn operations(&self) -> usize {
        fn count<O>(lanes: &[Lane<O>]) -> usize {
            lanes.iter().map(|lane| lane.all().count()).sum()
        }
        match self {
            Program::Engine { cpu, .. } => count(cpu),
            Program::Calls { cpu, .. } => count(cpu),
        }
    }

    /// Whether it can be run, and if not, why.
    ///
    /// # Errors
    /// Names what is out of bounds.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(format!("{what} is {value}; it must be {low} to {high}"))
        };
        within("the number of CPUs", self.cpus() as u64, 1, MAX_CPUS as u64)?;
        match self {
            Program::Engine { shape, cpu } => {
                within("first_cpu", shape.first_cpu.into(), 0, FIRST_CPU as u64)?;
                within("spaces", shape.spaces.into(), 1, SPACES as u64)?;
                within("ledger", shape.ledger.into(), 0, LEDGER_ENTRIES as u64)?;
                within("tags", shape.tags.into(), 1, 8)?;
                within("spare_bits", shape.spare_bits.into(), 0, 4)?;
                within("full_above", shape.full_above.into(), 0, 64)?;
                within("nmis", shape.nmis.into(), 0, 4)?;
                within("spurious", shape.spurious.into(), 0, 4)?;
                within("preemptions", shape.preemptions.into(), 0, 2)?;
                within("open_batches", shape.open_batches.into(), 0, 16)?;
                within("unscheduled", shape.unscheduled.into(), 0, 15)?;
                within("operations", self.operations() as u64, 0, 400)?;
                let ops = cpu.iter().flat_map(Lane::all);
                for op in ops {
                    op.check(within)?;
                }
            }
            Program::Calls { memory, cpu } => {
                within("fast", memory.fast, 4, 4096)?;
                within("slow", memory.slow, 0, 4096)?;
                within("ledger", memory.ledger.into(), 0, 4)?;
                within("nmis", memory.nmis.into(), 0, 4)?;
                within("operations", self.operations() as u64, 0, 400)?;
                let ops = cpu.iter().flat_map(Lane::all);
                for op in ops {
                    op.check(within)?;
                }
            }
        }
        Ok(())
    }

    /// The flags that a CPU may wait for: each is told by one CPU, and flags come in ascending order
    /// on every CPU, so no CPU waits for ever. Bit `flag` of the number for each CPU says that its
    /// operations on the flag count.
    #[inline]
    pub fn flags(&self) -> Flags {
        match self {
            Program::Engine { cpu, .. } => Flags::of(cpu, |op| {
                if let EngineOp::Tell { flag } = *op {
                    return Some((flag, true));
                }
                let EngineOp::Wait { flag } = *op else {
                    return None;
                };
                Some((flag, false))
            }),
            Program::Calls { cpu, .. } => Flags::of(cpu, |op| {
                if let CallOp::Tell { flag } = *op {
                    return Some((flag, true));
                }
                let CallOp::Wait { flag } = *op else {
                    return None;
                };
                Some((flag, false))
            }),
        }
    }
}

type Bounds<'b> = &'b dyn Fn(&str, u64, u64, u64) -> Result<(), String>;

impl EngineOp {
    /// Whether a thread that has preempted another may do it: it takes no lock, or does without.
    #[inline]
    pub fn may_preempt(self) -> bool {
        use EngineOp::*;
        matches!(
            self,
            Switch { .. }
                | Lazy
                | Leave
                | UnmapAtOnce { .. }
                | UnlinkAtOnce { .. }
                | Read { .. }
                | Write { .. }
                | Fetch { .. }
                | Open { .. }
                | Unmap { .. }
                | Sweep { .. }
                | Protect { .. }
                | Finish { .. }
                | Forget { .. }
                | ReadOwn { .. }
                | RunOwn { .. }
                | Confirm { .. }
                | Move { .. }
                | Migrate { .. }
                | Map { .. }
                | Pay
                | CatchUp
        )
    }

    /// Whether a program does it where it is, or is about to be: what is not, the kernel does.
    #[inline]
    pub fn is_the_programs(self) -> bool {
        use EngineOp::*;
        matches!(
            self,
            Undisturbed | Read { .. } | Write { .. } | Fetch { .. } | Tell { .. } | Wait { .. }
        )
    }

    /// Whether it is about the kernel's own half.
    #[inline]
    pub fn is_of_own_half(self) -> bool {
        use EngineOp::*;
        matches!(
            self,
            MapOwn { .. }
                | ReadOwn { .. }
                | RunOwn { .. }
                | UnmapOwn { .. }
                | UnlinkOwn
                | UnmapOwnLazily { .. }
                | ReclaimWithOwn { .. }
                | ReuseOwn { .. }
                | Patch { .. }
        )
    }

    fn check(
        &self,
        within: impl Fn(&str, u64, u64, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let within: Bounds<'_> = &within;
        let page = |page: u64| within("a page", page, 0, HUGE + WINDOW - 1);
        let file = |file: u8| within("a file", file.into(), 0, FILES as u64 - 1);
        let space = |space: u8| within("a space", space.into(), 0, SPACES as u64 - 1);
        let window = |window: u8| within("a window", window.into(), 0, 1);
        let batch = |batch: u8| within("a batch", batch.into(), 0, BATCHES as u64 - 1);
        let own = |own: u8| {
            let last = OWN_PAGES as u64 - 1;
            within("a page of the kernel's own", own.into(), 0, last)
        };
        use EngineOp::*;
        match *self {
            Switch { space: s }
            | MapHuge { space: s }
            | Retire { space: s }
            | Revive { space: s } => space(s),
            Read { page: p } | Write { page: p } | Fetch { page: p } => page(p),
            Map {
                space: s, page: p, ..
            }
            | Unprotect {
                space: s, page: p, ..
            }
            | MapBlock { space: s, page: p }
            | Withdraw { space: s, page: p }
            | UnmapCoalesced { space: s, page: p }
            | UnmapAtOnce {
                space: s, page: p, ..
            }
            | Migrate { space: s, page: p } => space(s).and(page(p)),
            MapFile {
                space: s, file: f, ..
            } => space(s).and(file(f)),
            MapLarge {
                space: s,
                window: w,
            }
            | UnlinkAtOnce {
                space: s,
                window: w,
                ..
            }
            | Split {
                space: s,
                window: w,
            }
            | Collapse {
                space: s,
                window: w,
            } => space(s).and(window(w)),
            Open { batch: b, .. }
            | Finish { batch: b }
            | Start { batch: b }
            | Forget { batch: b } => batch(b),
            MapOwn { own: o }
            | ReadOwn { own: o }
            | RunOwn { own: o }
            | UnmapOwn { own: o, .. }
            | UnmapOwnLazily { own: o }
            | ReuseOwn { own: o }
            | Patch { own: o } => own(o),
            Unmap {
                batch: b,
                space: s,
                page: p,
                pages,
                ..
            }
            | Protect {
                batch: b,
                space: s,
                page: p,
                pages,
                ..
            } => batch(b)
                .and(space(s))
                .and(page(p))
                .and(within("pages", pages, 1, 2 * HUGE)),
            Sweep { batch: b, page: p } => batch(b).and(page(p)),
            Unlink {
                batch: b,
                space: s,
                window: w,
            } => batch(b).and(space(s)).and(window(w)),
            Confirm {
                space: s,
                page: p,
                pages,
            } => space(s)
                .and(page(p))
                .and(within("pages", pages, 1, 2 * HUGE)),
            Move {
                space: s,
                page: p,
                to,
            } => space(s).and(page(p)).and(page(to)),
            Reclaim { file: f }
            | Reuse { file: f }
            | Reinstate { file: f }
            | WriteFile { file: f } => file(f),
            ReclaimLazily { files } => within("files", files.into(), 0, (1 << FILES) - 1),
            ReclaimWithOwn { files, own: o } => {
                within("files", files.into(), 0, (1 << FILES) - 1).and(own(o))
            }
            Tell { flag } | Wait { flag } => within("a flag", flag.into(), 0, FLAGS as u64 - 1),
            Lazy
            | Leave
            | Resume
            | Undisturbed
            | UnlinkOwn
            | Pay
            | CatchUp
            | Offline
            | Online
            | Mask { .. } => Ok(()),
        }
    }
}

impl CallOp {
    fn check(
        &self,
        within: impl Fn(&str, u64, u64, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let within: Bounds<'_> = &within;
        let place = |page: u64, pages: u64| {
            within("a page", page, 0, 1 << 30).and(within("pages", pages, 1, 2048))
        };
        use CallOp::*;
        match *self {
            Read { page } | Write { page } | Fetch { page } | Collapse { page } => place(page, 1),
            Fill { page, pages } | Map { page, pages, .. } | Unmap { page, pages } => {
                place(page, pages)
            }
            MapFile {
                page, pages, from, ..
            } => place(page, pages).and(within("from", from, 0, 64)),
            Discard { page, pages } | PageOut { page, pages } | Migrate { page, pages, .. } => {
                place(page, pages)
            }
            Protect {
                page,
                pages,
                rights,
            } => place(page, pages).and(within("rights", rights.into(), 0, 4)),
            Remap { page, pages, to } => place(page, pages).and(place(to, 1)),
            Create { pages } => within("pages", pages, 0, 64),
            WriteFile { page, word, .. }
            | ReadFile { page, word, .. }
            | Truncate {
                pages: page, word, ..
            } => within("a page", page, 0, 64).and(within("a word", word.into(), 0, 1)),
            Demote { pages } | Reclaim { pages } => within("pages", pages, 0, 2048),
            Tell { flag } | Wait { flag } => within("a flag", flag.into(), 0, FLAGS as u64 - 1),
            Spawn
            | Fork
            | Enter { .. }
            | Exit { .. }
            | Sync { .. }
            | Idle
            | Nothing
            | Offline
            | Online => Ok(()),
        }
    }
}

/// Which tellings and waits count: [`Program::flags`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Flags {
    /// The CPU that tells each flag.
    teller: [Option<u8>; FLAGS],
}

impl Flags {
    #[inline]
    fn of<O>(lanes: &[Lane<O>], flag: impl Fn(&O) -> Option<(u8, bool)>) -> Self {
        let mut flags = Flags::default();
        for (cpu, lane) in lanes.iter().enumerate() {
            let mut least = 0;
            for (number, tells) in lane.run.iter().filter_map(&flag) {
                if number < least || usize::from(number) >= FLAGS {
                    continue;
                }
                least = number;
                let teller = &mut flags.teller[usize::from(number)];
                if tells && teller.is_none() {
                    *teller = Some(cpu as u8);
                }
            }
        }
        flags
    }

    /// Whether a wait of `cpu` for the flag is one that ends, given the flags it has come by.
    #[inline]
    pub fn counts(&self, cpu: usize, flag: u8, least: u8) -> bool {
        let teller = self.teller.get(usize::from(flag)).copied().flatten();
        flag >= least && teller.is_some_and(|teller| usize::from(teller) != cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(lanes: [&[EngineOp]; 2]) -> Program {
        Program::Engine {
            shape: Shape::default(),
            cpu: lanes
                .map(|run| Lane {
                    run: run.to_vec(),
                    ..Lane::default()
                })
                .to_vec(),
        }
    }

    #[test]
    fn only_waits_that_end_count() {
        use EngineOp::{Tell, Wait};
        let circle = program([
            &[Wait { flag: 1 }, Tell { flag: 0 }],
            &[Wait { flag: 0 }, Tell { flag: 1 }],
        ]);
        let flags = circle.flags();
        assert!(
            !flags.counts(1, 0, 0),
            "flag 0 is told after flag 1: out of order"
        );
        assert!(flags.counts(0, 1, 0));
        let chain = program([
            &[Tell { flag: 0 }, Wait { flag: 1 }],
            &[Wait { flag: 0 }, Tell { flag: 1 }],
        ]);
        let flags = chain.flags();
        assert!(flags.counts(1, 0, 0) && flags.counts(0, 1, 0));
        assert!(!flags.counts(0, 2, 0), "no CPU tells it");
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let wrong = program([&[EngineOp::Read { page: u64::MAX }], &[]]);
        assert!(wrong.check().is_err_and(|error| error.contains("a page")));
        assert_eq!(program([&[], &[]]).check(), Ok(()));
    }
}

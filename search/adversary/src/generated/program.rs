//! Programs as data that we can generate, change, shrink, write to a file and read again.
//!
//! A program has a *shape* (the sizes of the machine under it). For each CPU it has operations before the run, while no
//! other CPU runs, and operations of the run. There are two grammars: [`EngineOp`] for programs over the engine alone,
//! and [`CallOp`] for programs over the memory manager. The file is long because it names every operation of both
//! grammars.
//!
//! Every list of operations is a program. An operation that makes no sense does nothing, for example unmapping a page
//! of a retired space, or finishing a batch that isn't open. So we can cut and mix lists at will, and no generated
//! program can break the rules of the interface.

// We mustn't ignore a new operation silently.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

use serde::{Deserialize, Serialize};

/// The maximum number of CPUs of a program.
pub const MAX_CPUS: usize = 4;
/// The maximum number of address spaces of a program.
pub const SPACES: usize = 10;
/// The number of spaces for which a batch has room. We keep it small, so that programs reach the code for one more.
pub const PLACES: usize = 2;
/// The greatest number that the first CPU of a program may have.
pub const FIRST_CPU: usize = 128;
/// The most flushes that can be deferred at the same time.
pub const LEDGER_ENTRIES: usize = 8;
/// The most batches that can be open at the same time, wherever they were opened.
pub const BATCHES: usize = 3;
/// The number of files (pages that several spaces map).
pub const FILES: usize = 3;
/// The number of flags by which CPUs signal each other.
pub const FLAGS: usize = 6;

/// The number of pages that one leaf table maps.
pub const WINDOW: u64 = 512;
/// The first page of the one huge mapping of a space.
pub const HUGE: u64 = 1 << 18;
/// The pages of programs over the engine. They are at the beginning and the end of a leaf table, at the beginning of
/// the next one, and in the huge mapping.
pub const PAGES: [u64; 11] = [0, 1, 2, 3, 510, 511, 512, 513, 514, HUGE, HUGE + 1];
/// The number of pages of its own half that the kernel maps and unmaps. Half of them have global entries.
pub const OWN_PAGES: usize = 4;
/// The page at which each space maps each file.
pub const FILE_PAGES: [u64; FILES] = [3, 510, 514];

/// The purpose of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchPurpose {
    /// A call of the program.
    Call,
    /// Reclaim.
    Reclaim,
    /// Migration.
    Migration,
}

/// The form in which a range is reported to a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportMode {
    /// Page by page.
    Each,
    /// As one range.
    Range,
    /// As the whole space.
    All,
}

/// A right to a page besides loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// Stores.
    #[default]
    Write,
    /// Instruction fetches.
    Execute,
}

/// An operation of a CPU on the engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "what an operation does names its operands")]
pub enum EngineOp {
    /// Switches to the user code of a space.
    Switch { space: u8 },
    /// Becomes idle, with its space still loaded.
    Lazy,
    /// Becomes idle for a long time, without a root.
    Leave,
    /// Continues in the space that it kept when it became idle, if that is still loaded.
    Resume,
    /// Continues in its program, undisturbed until it calls the kernel.
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
    /// Maps the block of contiguous entries around a page to fresh memory, if the block is empty and the machine has
    /// blocks.
    MapBlock { space: u8, page: u64 },
    /// Maps a large page in place of a leaf table, if there is none.
    MapLarge { space: u8, window: u8 },
    /// Maps a huge page.
    MapHuge { space: u8 },
    /// Opens a batch.
    Open { batch: u8, purpose: BatchPurpose },
    /// Unmaps a range. The batch makes the flush and gets the frames.
    Unmap { batch: u8, space: u8, page: u64, pages: u64, report: ReportMode },
    /// Unmaps a page in every space, like reclaim.
    Sweep { batch: u8, page: u64 },
    /// Removes a right. If `capture` is set and it's the right to store, reads the content after the flush.
    Protect {
        batch: u8,
        space: u8,
        page: u64,
        pages: u64,
        capture: bool,
        #[serde(default)]
        right: Right,
    },
    /// Unmaps everything that a leaf table maps, and the table itself.
    Unlink { batch: u8, space: u8, window: u8 },
    /// Unmaps a page without a batch, and flushes that page or the whole space at once.
    UnmapAtOnce { space: u8, page: u64, whole: bool },
    /// Unmaps a page, and flushes it with a full flush that several tasks share.
    UnmapCoalesced { space: u8, page: u64 },
    /// Unmaps a leaf table that maps nothing, and flushes at once.
    UnlinkAtOnce { space: u8, window: u8, whole: bool },
    /// Flushes a batch. Its frames are then free, and the calls that it was for return.
    Finish { batch: u8 },
    /// Starts a batch's flush without waiting. The CPU checks for its end each time that another CPU answers.
    Start { batch: u8 },
    /// Drops a batch, which flushes.
    Forget { batch: u8 },
    /// Makes a call that finds pages already unmapped by another CPU, and returns.
    Confirm { space: u8, page: u64, pages: u64 },
    /// Restores a right, and refreshes the translation.
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
    /// Unmaps a page, and frees its frame only when no CPU can speculatively load from it any more.
    Withdraw { space: u8, page: u64 },
    /// Replaces a large page by small ones.
    Split { space: u8, window: u8 },
    /// Replaces small pages by a large one.
    Collapse { space: u8, window: u8 },
    /// Takes a file's page out of memory, in every space that maps it.
    Reclaim { file: u8 },
    /// Takes the pages of several files out of memory, with deferred flushes. Bit `n` is file `n`.
    ReclaimLazily { files: u8 },
    /// Gives the frame last taken from a file to a new owner.
    Reuse { file: u8 },
    /// Reinstates the frame last taken from a file.
    Reinstate { file: u8 },
    /// Writes a file's page, after reading it in if necessary.
    WriteFile { file: u8 },
    /// Makes all deferred flushes.
    Pay,
    /// Catches up with the flush clock.
    CatchUp,
    /// Takes the CPU offline, until [`EngineOp::Online`].
    Offline,
    /// Takes the CPU online again.
    Online,
    /// Retires a space that no CPU runs.
    Retire { space: u8 },
    /// Creates a new space with the root of a retired one.
    Revive { space: u8 },
    /// Maps fresh memory at a page of the kernel's own half, if the page is unmapped.
    MapOwn { own: u8 },
    /// Loads from a page of the kernel's own half, as the kernel.
    ReadOwn { own: u8 },
    /// Executes an instruction on a page of the kernel's own half.
    RunOwn { own: u8 },
    /// Unmaps a page of the kernel's own half. Its frame is free after the flush.
    UnmapOwn { own: u8, purpose: BatchPurpose },
    /// Unmaps all of the kernel's own half, and its table.
    UnlinkOwn,
    /// Unmaps a page of the kernel's own half that no code uses any more. The flush is deferred until the address or
    /// frame is reused.
    UnmapOwnLazily { own: u8 },
    /// Reclaims pages of files and unmaps a page of the kernel's own half with one batch. Its flush is deferred if
    /// engine and policy allow it.
    ReclaimWithOwn { files: u8, own: u8 },
    /// Gives the frame of a lazily unmapped page of the kernel's own half to a new owner.
    ReuseOwn { own: u8 },
    /// Writes the text on a page of the kernel's own half, and makes every CPU fetch it again.
    Patch { own: u8 },
    /// Masks interrupts, or turns them on again.
    Mask { on: bool },
    /// Sets a flag for the other CPUs.
    Tell { flag: u8 },
    /// Waits until another CPU sets a flag, if one ever does.
    Wait { flag: u8 },
}

/// An operation of a CPU as a program over the memory manager. Pages and lengths are in base pages. Files are numbered
/// from 0 in the order of their creation, processes from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "what an operation does names its operands")]
pub enum CallOp {
    /// Loads from a page.
    Read {
        page: u64,
        /// The index of the word in the page.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Stores to a page.
    Write {
        page: u64,
        /// The index of the word in the page.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Fetches an instruction from a page.
    Fetch {
        /// The page.
        page: u64,
    },
    /// Stores to each page of a range.
    Fill { page: u64, pages: u64 },
    /// Maps zeroed memory, in large pages if `large` is set.
    Map { page: u64, pages: u64, large: bool },
    /// Maps a file, beginning with its page `from`.
    MapFile { page: u64, pages: u64, file: u32, from: u64, shared: bool, write: bool },
    /// Unmaps a range.
    Unmap { page: u64, pages: u64 },
    /// Drops the content of a range.
    Discard { page: u64, pages: u64 },
    /// Changes the rights to a range: 0 none, 1 read, 2 write, 3 execute, 4 write and execute.
    Protect { page: u64, pages: u64, rights: u8 },
    /// Takes the pages of a range out of memory.
    PageOut { page: u64, pages: u64 },
    /// Moves a range elsewhere.
    Remap { page: u64, pages: u64, to: u64 },
    /// Moves 512 pages into a large one.
    Collapse { page: u64 },
    /// Creates a process without mappings.
    Spawn,
    /// Copies this process.
    Fork,
    /// Continues in another process.
    Enter { process: u32 },
    /// Ends a process.
    Exit { process: u32 },
    /// Creates a file.
    Create { pages: u64 },
    /// Writes a page of a file.
    WriteFile {
        file: u32,
        page: u64,
        /// The index of the word in the page.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Reads a page of a file.
    ReadFile {
        file: u32,
        page: u64,
        /// The index of the word in the page.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Cuts or extends a file.
    Truncate {
        file: u32,
        pages: u64,
        /// The number of words beyond the last page.
        #[serde(default, skip_serializing_if = "is_first")]
        word: u8,
    },
    /// Writes a file's dirty pages to its device.
    Sync { file: u32 },
    /// Moves a range to a memory node.
    Migrate { page: u64, pages: u64, node: u32 },
    /// Moves pages that weren't used lately to slow memory.
    Demote { pages: u64 },
    /// Frees pages that weren't used lately.
    Reclaim { pages: u64 },
    /// Sleeps.
    Idle,
    /// Enters and leaves the kernel.
    Nothing,
    /// Maps zeroed memory at an address that the manager chooses, and stores there. Only before the run.
    MapAnywhere { pages: u64, large: bool },
    /// Moves a range to an address that the manager chooses, and loads from there. Only before the run.
    RemapAnywhere { page: u64, pages: u64 },
    /// Makes a call with arguments that the manager must refuse or round, by its number in the list of these calls.
    Odd { call: u8, page: u64 },
    /// Takes the CPU offline, until [`CallOp::Online`].
    Offline,
    /// Takes the CPU online again.
    Online,
    /// Sets a flag for the other CPUs.
    Tell { flag: u8 },
    /// Waits until another CPU sets a flag, if one ever does.
    Wait { flag: u8 },
}

fn is_first(word: &u8) -> bool {
    *word == 0
}

/// The operations of a CPU.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuProgram<O> {
    /// Operations before the run, while no other CPU runs.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<O>,
    /// Operations of the run.
    #[serde(default = "Vec::new")]
    pub run: Vec<O>,
    /// Operations of a thread that preempts the run, if [`Shape::preemptions`] allows it.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub preempts: Vec<O>,
}

impl<O> CpuProgram<O> {
    /// Returns all operations, in the order of the three parts.
    #[inline]
    pub fn all(&self) -> impl Iterator<Item = &O> {
        self.start.iter().chain(&self.run).chain(&self.preempts)
    }
}

impl<O> Default for CpuProgram<O> {
    fn default() -> Self {
        CpuProgram { start: Vec::new(), run: Vec::new(), preempts: Vec::new() }
    }
}

/// The sizes of the machine under a program over the engine. We keep them small, or at their limit, if a large size
/// would hide mistakes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// The number of the first CPU with operations. CPUs below it exist and stay offline.
    pub first_cpu: u16,
    /// The number of spaces.
    pub spaces: u8,
    /// The spaces that may map each file: bit `s` of `files[f]` is space `s`.
    pub files: [u16; FILES],
    /// The most flushes that can be deferred at the same time.
    pub ledger: u8,
    /// The number of tags of a CPU, if each CPU has its own.
    pub tags: u8,
    /// The number of spare bits of system-wide tags.
    pub spare_bits: u8,
    /// Flushes of more pages than this flush the whole tag.
    pub full_above: u8,
    /// The most NMIs that may arrive. Their handler reads [`Shape::nmi_page`].
    pub nmis: u8,
    /// The page that the handler of NMIs reads.
    pub nmi_page: u64,
    /// The most spurious interrupts that may arrive.
    pub spurious: u8,
    /// The most preemptions of a CPU.
    pub preemptions: u8,
    /// Whether a thread that preempted a CPU leaves its own space loaded, as in a kernel that loads spaces only on its
    /// way to user code.
    pub leaves_space: bool,
    /// The number of batches that are open on space 0 all the time, as if their threads were preempted.
    pub open_batches: u8,
    /// A bit for each CPU that a hypervisor doesn't run whenever an initiator checks. The hypervisor flushes such a CPU
    /// before it runs again.
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
    /// Returns whether a space may map a file.
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
    /// The most flushes that can be deferred at the same time.
    pub ledger: u8,
    /// The most NMIs that may arrive.
    pub nmis: u8,
    /// The most pages in swap.
    pub swap: u8,
    /// The most pages that a call removes, or twice as many as it moves, before it flushes.
    pub together: u8,
    /// The frames that a CPU's cache of free frames exchanges with a node at a time.
    pub cache: u8,
    /// The frames that each node keeps free.
    pub ahead: u8,
    /// The frames that an idle CPU zeroes in advance.
    pub zeroed: u8,
    /// Whether cold pages move to slow memory when fast memory is exhausted.
    pub demotes: bool,
    /// Whether idle CPUs keep frames free. Otherwise allocating CPUs do.
    pub reclaims_idle: bool,
    /// Whether a faulting CPU flushes if many flushes were deferred since its last flush.
    pub catches_up: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            fast: 32,
            slow: 0,
            ledger: 4,
            nmis: 0,
            swap: 64,
            together: 64,
            cache: 1,
            ahead: 1,
            zeroed: 1,
            demotes: false,
            reclaims_idle: false,
            catches_up: true,
        }
    }
}

/// A program.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Program {
    /// A program over the engine.
    Engine {
        /// The machine's sizes.
        #[serde(default)]
        shape: Shape,
        /// The operations of each CPU.
        cpu: Vec<CpuProgram<EngineOp>>,
    },
    /// A program over the memory manager.
    Calls {
        /// The machine's sizes.
        #[serde(default)]
        memory: Memory,
        /// The operations of each CPU.
        cpu: Vec<CpuProgram<CallOp>>,
    },
}

impl Program {
    /// Returns the number of CPUs with operations.
    #[inline]
    pub fn cpus(&self) -> usize {
        match self {
            Program::Engine { cpu, .. } => cpu.len(),
            Program::Calls { cpu, .. } => cpu.len(),
        }
    }

    /// Returns whether the program uses the memory manager.
    #[inline]
    pub fn uses_vm(&self) -> bool {
        matches!(self, Program::Calls { .. })
    }

    /// Returns whether there is memory for large pages, which makes runs long.
    #[inline]
    pub fn has_large_pages(&self) -> bool {
        matches!(self, Program::Calls { memory, .. } if memory.fast > WINDOW)
    }

    /// Returns the number of operations, including those before the run.
    pub fn operations(&self) -> usize {
        fn count<O>(lanes: &[CpuProgram<O>]) -> usize {
            lanes.iter().map(|lane| lane.all().count()).sum()
        }
        match self {
            Program::Engine { cpu, .. } => count(cpu),
            Program::Calls { cpu, .. } => count(cpu),
        }
    }

    /// Checks that the program can be run.
    ///
    /// # Errors
    /// A message that names the value out of bounds.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(format!("{what} is {value}; it must be {low} to {high}"))
        };
        within("the number of CPUs", self.cpus() as u64, 1, MAX_CPUS as u64)?;
        within("operations", self.operations() as u64, 0, 400)?;
        match self {
            Program::Engine { shape, cpu } => {
                within("first_cpu", shape.first_cpu.into(), 0, FIRST_CPU as u64)?;
                for (what, value, low, high) in [
                    ("spaces", shape.spaces, 1, SPACES as u64),
                    ("ledger", shape.ledger, 0, LEDGER_ENTRIES as u64),
                    ("tags", shape.tags, 1, 8),
                    ("spare_bits", shape.spare_bits, 0, 4),
                    ("full_above", shape.full_above, 0, 64),
                    ("nmis", shape.nmis, 0, 4),
                    ("spurious", shape.spurious, 0, 4),
                    ("preemptions", shape.preemptions, 0, 2),
                    ("open_batches", shape.open_batches, 0, 16),
                    ("unscheduled", shape.unscheduled, 0, 15),
                ] {
                    within(what, value.into(), low, high)?;
                }
                cpu.iter().flat_map(CpuProgram::all).try_for_each(|op| op.check(&within))
            }
            Program::Calls { memory, cpu } => {
                within("fast", memory.fast, 4, 4096)?;
                within("slow", memory.slow, 0, 4096)?;
                within("ledger", memory.ledger.into(), 0, 4)?;
                within("nmis", memory.nmis.into(), 0, 4)?;
                within("swap", memory.swap.into(), 0, 64)?;
                within("together", memory.together.into(), 1, 64)?;
                within("cache", memory.cache.into(), 0, 64)?;
                within("ahead", memory.ahead.into(), 0, 64)?;
                within("zeroed", memory.zeroed.into(), 0, 64)?;
                cpu.iter().flat_map(CpuProgram::all).try_for_each(|op| op.check(&within))
            }
        }
    }

    /// Returns the flags for which a CPU may wait.
    ///
    /// One CPU sets each flag, and every CPU uses flags in ascending order, so no CPU waits for ever.
    #[inline]
    pub fn flags(&self) -> Flags {
        match self {
            Program::Engine { cpu, .. } => Flags::of(cpu, |op| {
                let tells = matches!(op, EngineOp::Tell { .. });
                let (EngineOp::Tell { flag } | EngineOp::Wait { flag }) = *op else { return None };
                Some((flag, tells))
            }),
            Program::Calls { cpu, .. } => Flags::of(cpu, |op| {
                let tells = matches!(op, CallOp::Tell { .. });
                let (CallOp::Tell { flag } | CallOp::Wait { flag }) = *op else { return None };
                Some((flag, tells))
            }),
        }
    }
}

type Bounds<'b> = &'b dyn Fn(&str, u64, u64, u64) -> Result<(), String>;

impl EngineOp {
    /// Returns whether a thread that preempted another may do this. It may if this takes no lock that the other may
    /// hold.
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

    /// Returns whether user code does this, instead of the kernel.
    #[inline]
    pub fn is_the_programs(self) -> bool {
        use EngineOp::*;
        matches!(
            self,
            Undisturbed | Read { .. } | Write { .. } | Fetch { .. } | Tell { .. } | Wait { .. }
        )
    }

    /// Returns whether this concerns the kernel's own half.
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

    fn check(&self, within: Bounds<'_>) -> Result<(), String> {
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
            Map { space: s, page: p, .. }
            | Unprotect { space: s, page: p, .. }
            | MapBlock { space: s, page: p }
            | Withdraw { space: s, page: p }
            | UnmapCoalesced { space: s, page: p }
            | UnmapAtOnce { space: s, page: p, .. }
            | Migrate { space: s, page: p } => space(s).and(page(p)),
            MapFile { space: s, file: f, .. } => space(s).and(file(f)),
            MapLarge { space: s, window: w }
            | UnlinkAtOnce { space: s, window: w, .. }
            | Split { space: s, window: w }
            | Collapse { space: s, window: w } => space(s).and(window(w)),
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
            Unmap { batch: b, space: s, page: p, pages, .. }
            | Protect { batch: b, space: s, page: p, pages, .. } => {
                batch(b).and(space(s)).and(page(p)).and(within("pages", pages, 1, 2 * HUGE))
            }
            Sweep { batch: b, page: p } => batch(b).and(page(p)),
            Unlink { batch: b, space: s, window: w } => batch(b).and(space(s)).and(window(w)),
            Confirm { space: s, page: p, pages } => {
                space(s).and(page(p)).and(within("pages", pages, 1, 2 * HUGE))
            }
            Move { space: s, page: p, to } => space(s).and(page(p)).and(page(to)),
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
    fn check(&self, within: Bounds<'_>) -> Result<(), String> {
        let place = |page: u64, pages: u64| {
            within("a page", page, 0, 1 << 30).and(within("pages", pages, 1, 2048))
        };
        use CallOp::*;
        match *self {
            Read { page, word } | Write { page, word } => {
                place(page, 1).and(within("a word", word.into(), 0, 1))
            }
            Fetch { page } | Collapse { page } => place(page, 1),
            Fill { page, pages }
            | Map { page, pages, .. }
            | Unmap { page, pages }
            | Discard { page, pages }
            | PageOut { page, pages }
            | RemapAnywhere { page, pages }
            | Migrate { page, pages, .. } => place(page, pages),
            MapAnywhere { pages, .. } => place(0, pages),
            Odd { page, .. } => place(page, 1),
            MapFile { page, pages, from, .. } => {
                place(page, pages).and(within("from", from, 0, 64))
            }
            Protect { page, pages, rights } => {
                place(page, pages).and(within("rights", rights.into(), 0, 4))
            }
            Remap { page, pages, to } => place(page, pages).and(place(to, 1)),
            Create { pages } => within("pages", pages, 0, 64),
            WriteFile { page, word, .. }
            | ReadFile { page, word, .. }
            | Truncate { pages: page, word, .. } => {
                within("a page", page, 0, 64).and(within("a word", word.into(), 0, 1))
            }
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

/// The settings of flags and the waits that count: [`Program::flags`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Flags {
    /// The CPU that sets each flag.
    teller: [Option<u8>; FLAGS],
}

impl Flags {
    #[inline]
    fn of<O>(lanes: &[CpuProgram<O>], flag: impl Fn(&O) -> Option<(u8, bool)>) -> Self {
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

    /// Returns whether a wait of `cpu` for the flag ends. `least` is the highest flag that the CPU has used so far.
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
                .map(|run| CpuProgram { run: run.to_vec(), ..CpuProgram::default() })
                .to_vec(),
        }
    }

    #[test]
    fn only_waits_that_end_count() {
        use EngineOp::{Tell, Wait};
        let circle =
            program([&[Wait { flag: 1 }, Tell { flag: 0 }], &[Wait { flag: 0 }, Tell { flag: 1 }]]);
        let flags = circle.flags();
        assert!(!flags.counts(1, 0, 0), "flag 0 is told after flag 1: out of order");
        assert!(flags.counts(0, 1, 0));
        let chain =
            program([&[Tell { flag: 0 }, Wait { flag: 1 }], &[Wait { flag: 0 }, Tell { flag: 1 }]]);
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

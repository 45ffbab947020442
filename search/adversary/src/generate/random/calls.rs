//! The operations available to programs over the memory manager, the phrases that consist of them, and whole programs.
//!
//! Every program begins with mapped memory and files, which are mostly used, because nothing can fail without them.

use super::engine::few_of;
use super::whole::{repeat, take_turns};
use crate::action::MAX_CPUS;
use crate::generated::program::{CallOp, CpuProgram, FLAGS, Memory, Program, WINDOW};
use crate::schedule::Rng;

/// The operations that a program over the manager may use.
#[derive(Clone)]
pub(super) struct CallSwarm {
    pub(super) kinds: Vec<CallKind>,
    pub(super) pages: Vec<u64>,
    /// The number of files at the beginning of the run, and their length in pages.
    pub(super) files: u32,
    pub(super) length: u64,
    pub(super) large: bool,
    /// Whether base pages are collapsed into a large one. Otherwise a large page is split.
    pub(super) collapses: bool,
    /// The range to which most operations apply.
    pub(super) focus: (u64, u64),
    pub(super) theme: Option<&'static [CallKind]>,
    /// The kind of one side of a duel, if it is fixed.
    pub(super) centre: Option<CallKind>,
}

/// Kinds of phrases over the manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum CallKind {
    Read,
    Write,
    Map,
    MapFile,
    Unmap,
    Discard,
    Protect,
    PageOut,
    Remap,
    /// Collapses base pages into a large one. In programs without large pages, writes a file back.
    Collapse,
    Fork,
    /// Continues in another process.
    Enter,
    Exit,
    WriteFile,
    ReadFile,
    Truncate,
    Sync,
    Migrate,
    Demote,
    Reclaim,
    /// Becomes idle, or is taken offline and returns.
    Presence,
    /// Makes code executable, runs it, and removes the right.
    Code,
    Signal,
    /// Lets frames be freed and used again.
    Turnover,
    /// Maps or moves memory to an address that the manager chooses.
    Anywhere,
    /// Makes a process without mappings, and continues there.
    Spawn,
    /// Makes a call with wrong arguments.
    Odd,
}

use CallKind::{
    Anywhere, Code, Collapse, Demote, Discard, Enter, Exit, Fork, Map, MapFile, Migrate, Odd,
    PageOut, Presence, Protect, Read, ReadFile, Reclaim, Remap, Signal, Spawn, Sync, Truncate,
    Turnover, Unmap, Write, WriteFile,
};

/// Every kind, repeated by how often it is drawn.
const KINDS: [CallKind; 29] = [
    Read, Write, Map, MapFile, Unmap, Discard, Protect, PageOut, PageOut, Remap, Collapse, Fork,
    Enter, Exit, WriteFile, ReadFile, Truncate, Sync, Migrate, Migrate, Demote, Reclaim, Presence,
    Code, Signal, Turnover, Anywhere, Spawn, Odd,
];

/// Kinds that only use memory. They come first in the list of all kinds.
pub(super) const USES: [CallKind; 2] = [Read, Write];

/// Kinds with a common subject, as in programs over the engine.
const THEMES: [&[CallKind]; 5] = [
    // Memory is short.
    &[PageOut, Discard, Migrate, Demote, Reclaim, Turnover],
    // Frames are freed and used again.
    &[PageOut, Discard, Turnover],
    // Files.
    &[MapFile, PageOut, Discard, WriteFile, ReadFile, Truncate, Sync, Migrate],
    // Processes that share memory.
    &[Fork, Fork, Enter, Exit, Unmap, Protect, PageOut, Reclaim],
    // Changes of mappings and rights.
    &[Map, Unmap, Discard, Remap, Protect, Code],
];

/// The same for programs with large pages.
const LARGE_THEMES: [&[CallKind]; 2] = [
    // One CPU splits a large page while another takes hold of it.
    &[Unmap, Discard, Protect, PageOut, Migrate, Migrate, Reclaim],
    // Processes that share a large page.
    &[Fork, Enter, Discard, Protect, Write],
];

/// The page and the number of pages of an area for memory that is only allocated and freed. Where memory is short, it
/// takes all that is free.
pub(super) const ELSEWHERE: (u64, u64) = (100, 4);

/// Kinds that use files.
const OF_FILES: [CallKind; 5] = [MapFile, WriteFile, ReadFile, Truncate, Sync];

/// Kinds that split a large page if they apply to a part of it.
pub(super) const SPLITS: [CallKind; 7] = [Unmap, Discard, Protect, PageOut, Fork, Migrate, Reclaim];

/// Kinds that remove entries or rights. Most duties of other calls concern them.
pub(super) const CLEARS: [CallKind; 10] =
    [Unmap, Discard, Protect, PageOut, Remap, Fork, Truncate, Migrate, Demote, Reclaim];

/// The frequency of large pages in programs over the manager. Such programs have long runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargePages {
    /// One in sixteen programs.
    Seldom,
    /// One in three programs.
    Often,
    /// Every program.
    Always,
    /// No program.
    Never,
}

impl CallSwarm {
    /// Restricts it to pages that a program already uses.
    pub(super) fn about(mut self, pages: &[u64], rng: &mut Rng) -> Self {
        if !pages.is_empty() {
            self.pages = pages.to_vec();
            self.focus.0 = rng.pick(pages);
        }
        self
    }

    /// Restricts it to one CPU's part in a duel: the given kind, or accesses alone.
    pub(super) fn part(&self, kind: Option<CallKind>) -> Self {
        CallSwarm { kinds: kind.map_or(USES.to_vec(), |kind| vec![kind]), ..self.clone() }
    }

    pub(super) fn draw(rng: &mut Rng, large: LargePages) -> Self {
        let large = match large {
            LargePages::Seldom => rng.one_in(16),
            LargePages::Often => rng.one_in(3),
            LargePages::Always => true,
            LargePages::Never => false,
        };
        let collapses = large && rng.one_in(3);
        let mut kinds = USES.to_vec();
        if large {
            kinds.extend(
                [match collapses {
                    true => Collapse,
                    false => rng.pick(&SPLITS),
                }; 3],
            );
        }
        let themes: &[&'static [CallKind]] = if large { &LARGE_THEMES } else { &THEMES };
        let theme = rng.one_in(2).then(|| rng.pick(themes));
        for _ in 0..1 + rng.few(4) {
            // Each is as likely as one of the two that are always there.
            let kind = match theme {
                Some(theme) => rng.pick(theme),
                None => rng.pick(&KINDS),
            };
            kinds.extend([kind; 2]);
        }
        let far = if large { WINDOW } else { 4 };
        // Sometimes ranges extend into another leaf table.
        let from = if !large && rng.one_in(8) { WINDOW - 2 } else { 0 };
        let count = rng.weigh(&[(6, 1), (3, 2), (1, 3)]);
        let pages: Vec<u64> = (0..count)
            .map(|_| match rng.below(4) {
                0 => from + rng.below(far),
                _ => from + rng.below(3),
            })
            .collect();
        let focus = (pages[0], rng.few(3));
        CallSwarm {
            kinds,
            pages,
            files: rng.weigh(&[(2, 0), (4, 1), (2, 2)]),
            length: rng.few(3),
            large,
            collapses,
            focus,
            theme,
            centre: None,
        }
    }

    /// Restricts it to one of these kinds and related ones.
    pub(super) fn about_kinds(mut self, kinds: &[CallKind], rng: &mut Rng) -> Self {
        if kinds.is_empty() {
            return self;
        }
        let one = rng.pick(kinds);
        let themes: &[&'static [CallKind]] = if self.large { &LARGE_THEMES } else { &THEMES };
        let fitting: Vec<_> =
            { themes.iter().copied() }.filter(|theme| theme.contains(&one)).collect();
        self.theme = (!fitting.is_empty()).then(|| rng.pick(&fitting));
        let other = self.any_kind(rng);
        self.kinds.truncate(2);
        self.kinds.extend([one, one, rng.pick(kinds), other]);
        self.centre = Some(one);
        if OF_FILES.contains(&one) {
            self.files = self.files.max(1);
        }
        self
    }

    fn page(&self, rng: &mut Rng) -> u64 {
        rng.pick(&self.pages)
    }

    /// Draws a page to access: one of the program's, or another that may belong to the same large page or range.
    fn used(&self, rng: &mut Rng) -> u64 {
        let page = self.page(rng);
        match rng.below(if self.large { 4 } else { 16 }) {
            0 => page ^ 1,
            1 if self.large => rng.below(WINDOW),
            _ => page,
        }
    }

    pub(super) fn access(&self, rng: &mut Rng) -> CallOp {
        let (page, word) = (self.used(rng), self.word(rng));
        if rng.one_in(2) { CallOp::Read { page, word } } else { CallOp::Write { page, word } }
    }

    /// Draws a word of a page. In a file's last page, the second may lie beyond the end.
    fn word(&self, rng: &mut Rng) -> u8 {
        rng.one_in(if self.files > 0 { 4 } else { 16 }).into()
    }

    /// Draws a kind for one side of a duel: a kind of the theme, a kind of the swarm that does more than use memory, or
    /// any.
    pub(super) fn any_kind(&self, rng: &mut Rng) -> CallKind {
        if let Some(theme) = self.theme {
            return rng.pick(theme);
        }
        match rng.pick(&self.kinds) {
            Read | Write if rng.one_in(2) => rng.pick(&CLEARS),
            Read | Write => rng.pick(&KINDS[USES.len()..]),
            kind => kind,
        }
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let page = self.page(rng);
        match rng.below(16) {
            0..6 => (page, 1),
            12 if self.large => (0, WINDOW),
            12.. => self.focus,
            6..8 => (self.focus.0, 1),
            8..10 => (page, rng.few(4)),
            10 => (page & !3, 4 + page % 4),
            _ if self.large => (0, WINDOW),
            _ => (page.saturating_sub(1), 2),
        }
    }

    pub(super) fn map_file(&self, rng: &mut Rng, page: u64) -> CallOp {
        let shared = rng.below(3) > 0;
        CallOp::MapFile {
            page,
            pages: rng.few(self.length.max(1)),
            file: rng.below(self.files.max(1).into()) as u32,
            from: if rng.one_in(6) { rng.below(self.length.max(1)) } else { 0 },
            shared,
            write: rng.one_in(2),
        }
    }

    pub(super) fn phrase(&self, rng: &mut Rng, into: &mut Vec<CallOp>) {
        let (page, pages) = self.range(rng);
        let file = rng.below(self.files.max(1).into()) as u32;
        // Sometimes the page is beyond the end of the file.
        let beyond = rng.below(3) / 2;
        let at = match beyond {
            0 => rng.below(self.length.max(1)),
            _ => self.length,
        };
        let process = rng.weigh(&[(1, 1), (3, 2), (1, 3)]);
        let word = u8::from(rng.one_in(3));
        let op = match rng.pick(&self.kinds) {
            Read => CallOp::Read { page: self.used(rng), word: self.word(rng) },
            Write => CallOp::Write { page: self.used(rng), word: self.word(rng) },
            Map => CallOp::Map { page, pages, large: self.large && rng.one_in(2) },
            MapFile => self.map_file(rng, page),
            Unmap => CallOp::Unmap { page, pages },
            Discard => CallOp::Discard { page, pages },
            Protect => CallOp::Protect {
                page,
                pages,
                rights: rng.weigh(&[(1, 0), (4, 1), (2, 2), (1, 3), (1, 4)]),
            },
            PageOut => {
                if rng.one_in(4) {
                    into.push(write(page));
                }
                CallOp::PageOut { page, pages }
            }
            Remap => remap(rng, page, pages, into),
            Collapse if self.large => CallOp::Collapse { page },
            Collapse | Sync => CallOp::Sync { file },
            Fork => fork(rng, page, process, into),
            Enter => {
                into.push(CallOp::Enter { process });
                match rng.one_in(2) {
                    true => read(page),
                    false => write(page),
                }
            }
            Exit => {
                if rng.one_in(2) {
                    into.push(CallOp::Enter { process: 1 });
                }
                CallOp::Exit { process }
            }
            WriteFile => CallOp::WriteFile { file, page: at, word },
            ReadFile => CallOp::ReadFile { file, page: at, word },
            Truncate => CallOp::Truncate {
                file,
                pages: rng.weigh(&[(3, 0), (2, at), (1, self.length), (1, self.length + 1)]),
                word,
            },
            Migrate => CallOp::Migrate { page, pages, node: rng.weigh(&[(1, 0), (3, 1)]) },
            Demote => CallOp::Demote { pages: rng.few(4) },
            Reclaim => CallOp::Reclaim { pages: rng.few(4) },
            Presence => match rng.below(6) {
                0 => CallOp::Offline,
                1 => CallOp::Online,
                2 => CallOp::Nothing,
                _ => CallOp::Idle,
            },
            Code => {
                let rights = rng.pick(&[1, 3, 4]);
                into.push(CallOp::Protect { page, pages, rights });
                CallOp::Fetch { page }
            }
            Turnover => self.turn_over(rng, page, pages, into),
            Anywhere => match rng.one_in(2) {
                true => {
                    let large = self.large && rng.one_in(2);
                    let pages = if large { WINDOW } else { pages };
                    CallOp::MapAnywhere { pages, large }
                }
                false => CallOp::RemapAnywhere { page, pages },
            },
            Spawn => {
                into.extend([CallOp::Spawn, CallOp::Enter { process }]);
                into.push(CallOp::Map { page, pages, large: false });
                write(page)
            }
            Odd => CallOp::Odd { call: rng.below(256) as u8, page },
            Signal => {
                let flag = rng.below(FLAGS as u64) as u8;
                match rng.one_in(2) {
                    true => CallOp::Tell { flag },
                    false => CallOp::Wait { flag },
                }
            }
        };
        into.push(op);
    }

    /// Pages out a page, uses its frame elsewhere, frees the frame, and accesses the page again.
    fn turn_over(&self, rng: &mut Rng, page: u64, pages: u64, into: &mut Vec<CallOp>) -> CallOp {
        if rng.below(3) > 0 {
            into.push(CallOp::PageOut { page, pages });
        }
        let (elsewhere, most) = ELSEWHERE;
        into.push(CallOp::Fill { page: elsewhere, pages: 1 + rng.below(most) });
        into.push(CallOp::Discard { page: elsewhere, pages: most });
        self.access(rng)
    }
}

/// Loads the first word of a page.
pub(super) const fn read(page: u64) -> CallOp {
    CallOp::Read { page, word: 0 }
}

/// Stores to the first word of a page.
pub(super) const fn write(page: u64) -> CallOp {
    CallOp::Write { page, word: 0 }
}

/// Moves pages. Then accesses their old or new place.
fn remap(rng: &mut Rng, page: u64, pages: u64, into: &mut Vec<CallOp>) -> CallOp {
    let to = rng.pick(&[8, 9, 64, WINDOW, 2 * WINDOW]) + rng.below(2);
    into.push(CallOp::Remap { page, pages, to });
    match rng.below(4) {
        0 => write(page),
        1 => read(to),
        _ => write(to),
    }
}

/// Forks, and continues as the same process or as another, mostly with a write.
fn fork(rng: &mut Rng, page: u64, process: u32, into: &mut Vec<CallOp>) -> CallOp {
    into.push(CallOp::Fork);
    match rng.below(4) {
        0 => CallOp::Enter { process },
        1 | 2 => {
            into.push(CallOp::Enter { process });
            write(page)
        }
        _ => write(page),
    }
}

/// Returns the first few pages that programs map and use.
pub(super) fn pages_of(cpu: &[CpuProgram<CallOp>]) -> Vec<u64> {
    few_of(cpu, |op| match *op {
        CallOp::Read { page, .. } | CallOp::Write { page, .. } | CallOp::MapFile { page, .. } => {
            Some(page)
        }
        _ => None,
    })
}

/// Returns the kinds of calls that a program makes in its run, without accesses.
pub(super) fn kinds_of(cpu: &[CpuProgram<CallOp>]) -> Vec<CallKind> {
    let kind = |op: &CallOp| match *op {
        CallOp::Fill { page, .. } if page == ELSEWHERE.0 => Some(Turnover),
        CallOp::Map { .. } => Some(Map),
        CallOp::MapFile { .. } => Some(MapFile),
        CallOp::Unmap { .. } => Some(Unmap),
        CallOp::Discard { page, .. } if page != ELSEWHERE.0 => Some(Discard),
        CallOp::Protect { .. } => Some(Protect),
        CallOp::PageOut { .. } => Some(PageOut),
        CallOp::Remap { .. } => Some(Remap),
        CallOp::Collapse { .. } => Some(Collapse),
        CallOp::Fork => Some(Fork),
        CallOp::Enter { .. } => Some(Enter),
        CallOp::Exit { .. } => Some(Exit),
        CallOp::WriteFile { .. } => Some(WriteFile),
        CallOp::ReadFile { .. } => Some(ReadFile),
        CallOp::Truncate { .. } => Some(Truncate),
        CallOp::Sync { .. } => Some(Sync),
        CallOp::Migrate { .. } => Some(Migrate),
        CallOp::Demote { .. } => Some(Demote),
        CallOp::Reclaim { .. } => Some(Reclaim),
        CallOp::Fetch { .. } => Some(Code),
        CallOp::MapAnywhere { .. } | CallOp::RemapAnywhere { .. } => Some(Anywhere),
        CallOp::Spawn => Some(Spawn),
        CallOp::Odd { .. } => Some(Odd),
        _ => None,
    };
    let mut kinds: Vec<CallKind> =
        { cpu.iter() }.flat_map(|lane| lane.run.iter().filter_map(kind)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Draws a program over the memory manager.
pub fn calls_program(rng: &mut Rng, large: LargePages) -> Program {
    calls_program_like(rng, large, None)
}

/// Draws a program over the memory manager with the subject of another one.
pub(in crate::generate) fn calls_program_like(
    rng: &mut Rng,
    large: LargePages,
    like: Option<&Program>,
) -> Program {
    let mut swarm = CallSwarm::draw(rng, large);
    if let Some(Program::Calls { cpu, .. }) = like {
        swarm = swarm.about_kinds(&kinds_of(cpu), rng);
    }
    // A fault may map a large page, too.
    let untouched = swarm.large && !swarm.collapses && rng.one_in(3);
    let duel = rng.one_in(2).then(|| duel(rng, &swarm, untouched));
    let cpus = rng.weigh(&[(5, 2), (3, 3), (1, MAX_CPUS)]);
    let mut cpu = vec![CpuProgram::default(); cpus];
    let first = &mut cpu[0].start;
    create_files(rng, &swarm, first);
    if swarm.large {
        map_large(rng, &swarm, untouched, first);
    }
    map_pages(rng, &swarm, untouched, first);
    if duel.is_some() && rng.one_in(2) {
        // The duel is then about a single page.
        let one = rng.pick(&swarm.pages);
        swarm.pages = vec![one];
        swarm.focus.0 = one;
    }
    let forked = forks(rng, &swarm);
    if forked {
        first.push(CallOp::Fork);
    }
    // After the fork, some CPUs run the parent and others the child. Either we draw a process for each CPU, or one CPU
    // runs one of the two processes alone, and all others run the other.
    let alone = rng.one_in(2).then(|| rng.below(2) as usize);
    // A page beside them keeps their table.
    if !swarm.large && (swarm.kinds.contains(&CallKind::Turnover) || rng.below(3) > 0) {
        let (page, pages) = ELSEWHERE;
        first.push(CallOp::Map { page, pages, large: false });
        first.push(write(page));
    }
    let turns_over = match duel {
        Some(kinds) => kinds.contains(&CallKind::Turnover),
        None => swarm.kinds.contains(&CallKind::Turnover),
    };
    let told = (rng.below(2) as usize, rng.below(FLAGS as u64) as u8);
    let waits = duel.is_some() && rng.one_in(2);
    for (number, lane) in cpu.iter_mut().enumerate() {
        let part = match duel {
            Some(kinds) => {
                // Sometimes there are two CPUs on a side.
                let side = if rng.one_in(3) { number % 2 } else { number };
                swarm.part(kinds.get(side).copied())
            }
            None => swarm.clone(),
        };
        let child = match alone {
            Some(alone) => number != alone,
            None => rng.one_in(2),
        };
        if forked && child {
            lane.start.push(CallOp::Enter { process: 2 });
        }
        let side = duel.map(|_| number);
        draw_lane(rng, &swarm, &part, side, lane);
        if waits && number == told.0 {
            lane.run.push(CallOp::Tell { flag: told.1 });
        } else if waits {
            lane.run.push(CallOp::Wait { flag: told.1 });
            lane.run.push(swarm.access(rng));
        }
    }
    if !swarm.large && rng.one_in(6) {
        repeat(rng, &mut cpu);
    }
    if rng.one_in(5) {
        let tells = [0, 1].map(|flag| CallOp::Tell { flag });
        let waits = [0, 1].map(|flag| CallOp::Wait { flag });
        take_turns(rng, &mut cpu, tells, waits);
    }
    let memory = memory(rng, &swarm, turns_over);
    Program::Calls { memory, cpu }
}

/// Draws the two kinds of a duel.
///
/// Every other program is a duel: one CPU makes one kind of call, and another CPU makes another kind or only uses
/// memory. The remaining CPUs use the memory concerned, perhaps only after one of the two has signalled that it is
/// done.
fn duel(rng: &mut Rng, swarm: &CallSwarm, untouched: bool) -> [CallKind; 2] {
    let second = match rng.one_in(if untouched { 2 } else { 4 }) {
        true => rng.pick(&USES),
        false => swarm.any_kind(rng),
    };
    let first = if (swarm.theme.is_none() || swarm.centre.is_some()) && rng.one_in(2) {
        rng.pick(if swarm.large { &SPLITS } else { &CLEARS })
    } else {
        swarm.any_kind(rng)
    };
    match swarm.centre {
        Some(centre) if rng.one_in(2) => [centre, second],
        Some(centre) => [first, centre],
        None => [first, second],
    }
}

/// Creates the files of a program. Mostly they are written, and mostly also on their device.
fn create_files(rng: &mut Rng, swarm: &CallSwarm, first: &mut Vec<CallOp>) {
    for file in 0..swarm.files {
        first.push(CallOp::Create { pages: swarm.length });
        if rng.below(4) > 0 {
            for word in 0..1 + u8::from(rng.one_in(3)) {
                first.push(CallOp::WriteFile { file, page: 0, word });
            }
            if rng.below(3) > 0 {
                first.push(CallOp::Sync { file });
            }
        }
    }
}

/// Maps memory for a large page: either a large page, or base pages to collapse.
fn map_large(rng: &mut Rng, swarm: &CallSwarm, untouched: bool, first: &mut Vec<CallOp>) {
    let large = !swarm.collapses;
    first.push(CallOp::Map { page: 0, pages: WINDOW, large });
    if large && !untouched {
        first.push(write(0));
    } else if !large {
        first.push(CallOp::Fill { page: 0, pages: if rng.one_in(3) { 4 } else { WINDOW } });
    }
}

/// Maps the pages that a program uses, of files or anonymous. Mostly they are accessed, and sometimes paged out.
fn map_pages(rng: &mut Rng, swarm: &CallSwarm, untouched: bool, first: &mut Vec<CallOp>) {
    let mut mapped = None;
    for &page in &swarm.pages {
        // A file would cut the range of a large page.
        if swarm.files > 0 && rng.below(5) < if swarm.large { 1 } else { 3 } {
            let map = swarm.map_file(rng, page);
            // Sometimes we map the same part of the file again, private instead of shared or vice versa.
            let again = mapped.filter(|_| rng.one_in(2));
            let map = again.map_or(map, |before| mapped_again(before, page));
            mapped = Some(map);
            first.push(map);
            if rng.one_in(4) {
                map_beside(rng, map, page ^ 4, first);
            }
        } else if !swarm.large {
            let pages = rng.few(3);
            first.push(CallOp::Map { page, pages, large: false });
        }
        if !untouched && rng.below(4) > 0 {
            first.push(match rng.one_in(2) {
                true => write(page),
                false => read(page),
            });
            if rng.one_in(8) {
                first.push(CallOp::PageOut { page, pages: 1 });
            }
        }
    }
}

/// Maps the same part of a file once more, private instead of shared or vice versa. That mapping is used, and perhaps
/// paged out.
fn map_beside(rng: &mut Rng, map: CallOp, page: u64, first: &mut Vec<CallOp>) {
    first.push(mapped_again(map, page));
    first.push(read(page));
    if rng.one_in(3) {
        first.push(CallOp::PageOut { page, pages: 1 });
    }
}

/// Draws whether there are a parent and a child at the beginning of the run.
fn forks(rng: &mut Rng, swarm: &CallSwarm) -> bool {
    let about_processes =
        swarm.kinds.contains(&CallKind::Fork) || swarm.kinds.contains(&CallKind::Enter);
    rng.one_in(match () {
        () if about_processes => 2,
        () if swarm.large => 4,
        () => 12,
    })
}

/// Draws the work of one CPU. `in_duel` is the CPU's number if the program is a duel.
fn draw_lane(
    rng: &mut Rng,
    swarm: &CallSwarm,
    part: &CallSwarm,
    in_duel: Option<usize>,
    lane: &mut CpuProgram<CallOp>,
) {
    // The CPUs beside a duel have used its pages, so their TLBs may hold stale translations.
    if in_duel.is_some_and(|number| number > 1) && rng.one_in(2) {
        lane.start.push(swarm.access(rng));
    }
    // Before the run, pages may have been paged out, moved, or shared with a child.
    if rng.one_in(3) {
        swarm.phrase(rng, &mut lane.start);
    }
    for _ in 0..rng.few(if in_duel.is_some() { 2 } else { 4 }) {
        part.phrase(rng, &mut lane.run);
    }
    // A CPU that has changed memory then uses it.
    if in_duel.is_some() && rng.one_in(2) {
        lane.run.push(swarm.access(rng));
    }
}

/// Draws the sizes of the machine under a program. With `turns_over`, the program needs frames to be reused.
pub(super) fn memory(rng: &mut Rng, swarm: &CallSwarm, turns_over: bool) -> Memory {
    let fast = if swarm.collapses {
        2072
    } else if swarm.large {
        rng.pick(&[1040, 1110])
    } else if turns_over && rng.one_in(2) {
        // With few frames, each is soon used again.
        rng.weigh(&[(3, 6), (2, 7), (1, 8)])
    } else {
        rng.weigh(&[(1, 6), (1, 7), (2, 8), (2, 10), (2, 12), (6, 32)])
    };
    Memory {
        fast,
        slow: match swarm.large {
            // There may be room for a large page, too.
            true => rng.weigh(&[(4, 0), (2, 4), (1, 8), (3, 560)]),
            false => rng.weigh(&[(3, 0), (3, 4), (1, 8)]),
        },
        ledger: rng.weigh(&[(1, 1), (2, 2), (4, 4)]),
        nmis: rng.weigh(&[(12, 0), (1, 1)]),
        swap: rng.weigh(&[(8, 64), (1, 0), (1, 2)]),
        together: rng.weigh(&[(8, 64), (1, 1), (1, 2)]),
        cache: rng.weigh(&[(5, 1), (1, 0), (2, 2), (1, 5)]),
        ahead: rng.weigh(&[(5, 1), (1, 0), (2, 4), (1, 9)]),
        zeroed: rng.weigh(&[(5, 1), (1, 0), (2, 3)]),
        // An allocation looks at all of memory for cold pages. The parts of a large page are 512 allocations.
        demotes: !swarm.large && rng.one_in(3),
        reclaims_idle: rng.one_in(6),
        catches_up: rng.below(4) > 0,
    }
}

/// Returns a mapping of the same part of a file at another page: private if it was shared, shared if it was private.
fn mapped_again(before: CallOp, at: u64) -> CallOp {
    match before {
        CallOp::MapFile { pages, file, from, shared, .. } => {
            CallOp::MapFile { page: at, pages, file, from, shared: !shared, write: true }
        }
        other => other,
    }
}

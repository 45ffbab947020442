//! The operations available to programs over the engine. [`phrases`](super::phrases) draws from it, and
//! [`whole`](super::whole) builds programs.

use crate::generated::program::{
    BATCHES, CpuProgram, EngineOp, FILE_PAGES, FILES, HUGE, OWN_PAGES, PAGES, PLACES, ReportMode,
    Right, WINDOW,
};
use crate::schedule::Rng;

/// The operations that a program may use.
#[derive(Clone)]
pub(super) struct Swarm {
    pub(super) kinds: Vec<(u64, Kind)>,
    pub(super) pages: Vec<u64>,
    pub(super) files: Vec<u8>,
    pub(super) spaces: u64,
    /// The space to which most operations apply.
    pub(super) home: u8,
    pub(super) batches: std::ops::Range<u64>,
    /// The pages of the kernel's own half that it uses.
    pub(super) own: Vec<u8>,
    /// Whether flushes interrupt each other.
    pub(super) nests: bool,
    /// Whether it has more spaces than a batch has room for.
    pub(super) crowded: bool,
    /// Whether tags run out.
    pub(super) goes_round: bool,
    /// Whether most operations are of the last kind.
    pub(super) centre: bool,
}

impl Swarm {
    pub(super) fn draw(rng: &mut Rng, spaces: u64) -> Self {
        let wanted = 2 + rng.few(6);
        let mut kinds = vec![(8, Kind::Read)];
        let crowded = spaces > PLACES as u64 && rng.one_in(4);
        if crowded {
            // A batch has no room for all spaces. So we draw operations on all of them at once, and later observers
            // that find the entries cleared.
            kinds.extend([(8, Kind::Sweep), (6, Kind::Confirm)]);
        }
        let theme = rng.one_in(3).then(|| rng.pick(&THEMES));
        // Kinds of a theme are equally likely, and nearly as likely as accesses. So kinds that are rare in other
        // programs meet here.
        let likely = |(weight, kind): (u64, Kind)| match theme {
            Some(theme) => 4 * u64::from(theme.contains(&kind)),
            None => weight,
        };
        let all = KINDS.map(|one| (likely(one), one));
        for _ in 0..wanted {
            let kind = rng.weigh(&all);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        // An undisturbed CPU differs from others only in its use of the kernel's own half.
        let about = |wanted: fn(Kind) -> bool, kinds: &[(u64, Kind)]| {
            kinds.iter().any(|&(_, kind)| wanted(kind))
        };
        if about(|kind| kind == Kind::Undisturbed, &kinds) && !about(Kind::changes_own, &kinds) {
            let takes = [Kind::UnmapOwn, Kind::OwnLazily, Kind::UnlinkOwn, Kind::Lazily];
            kinds.push((4, rng.pick(&takes)));
        }
        let small = &PAGES[..9];
        let one = if crowded { 2 } else { 6 };
        let count = rng.weigh(&[(one, 1), (3, 2), (1, 3)]);
        let pages = (0..count).map(|_| match rng.below(24) {
            0 => rng.pick(&[HUGE, HUGE + 1]),
            1..12 => rng.below(3),
            _ => rng.pick(small),
        });
        let pages: Vec<u64> = pages.collect();
        let files = (0..rng.few(2)).map(|_| rng.below(FILES as u64) as u8).collect();
        let batches = 0..rng.few(BATCHES as u64);
        let own = (0..rng.few(2)).map(|_| rng.below(OWN_PAGES as u64) as u8).collect();
        Swarm {
            kinds,
            pages,
            files,
            spaces,
            home: 0,
            batches,
            own,
            nests: theme == Some(NESTED),
            crowded,
            goes_round: theme == Some(ROUND),
            centre: false,
        }
    }

    /// Restricts it to pages that a program already uses.
    pub(super) fn about(mut self, pages: &[u64]) -> Self {
        if !pages.is_empty() {
            self.pages = pages.to_vec();
        }
        self
    }

    /// Restricts it mostly to one of these kinds.
    pub(super) fn about_kinds(mut self, kinds: &[Kind], rng: &mut Rng) -> Self {
        if kinds.is_empty() {
            return self;
        }
        for _ in 0..2 {
            let kind = rng.pick(kinds);
            self.kinds.retain(|(_, other)| *other != kind);
            self.kinds.push((8, kind));
        }
        self.centre = true;
        self
    }

    /// Draws one CPU's part: its kind in a duel, accesses alone, or anything. Mostly the CPU has its own batch.
    pub(super) fn part(&self, cpu: usize, duel: Option<[(u64, Kind); 2]>, rng: &mut Rng) -> Self {
        let mut part = self.clone();
        if let Some(kinds) = duel {
            // Sometimes there are two CPUs on a side.
            let side = if rng.one_in(3) { cpu % 2 } else { cpu };
            part.kinds = match kinds.get(side) {
                Some(&kind) => vec![kind],
                None if self.uses_own_half() => {
                    vec![(4, Kind::Own), (1, Kind::Read), (2, Kind::Tour)]
                }
                None => vec![(4, Kind::Read), (1, Kind::Write), (1, Kind::Tour)],
            };
        }
        if rng.below(4) > 0 {
            let own = (cpu % BATCHES) as u64;
            part.batches = own..own + 1;
        }
        part
    }

    /// Draws a kind for one side of a duel: a kind of the swarm that does more than use memory, or any.
    pub(super) fn any_kind(&self, rng: &mut Rng) -> (u64, Kind) {
        if self.centre && rng.one_in(2) {
            return self.kinds[self.kinds.len() - 1];
        }
        let (weight, kind) = rng.pick(&self.kinds);
        match kind {
            Kind::Read | Kind::Write if rng.one_in(2) => rng.pick(&KINDS[2..]),
            // Mostly the last kind is another one.
            Kind::Read | Kind::Write => self.kinds[self.kinds.len() - 1],
            kind => (weight, kind),
        }
    }

    /// Returns whether programs have phrases of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.kinds.iter().any(|(_, other)| *other == kind)
    }

    /// Returns whether a program uses files.
    fn files(&self) -> bool {
        use Kind::{FileReclaim, Lazily, MapFile, Reinstate, Reuse, WriteFile};
        [MapFile, FileReclaim, Lazily, Reuse, Reinstate, WriteFile]
            .map(|kind| self.has(kind))
            .contains(&true)
    }

    pub(super) fn page(&self, rng: &mut Rng) -> u64 {
        if rng.below(8) < if self.files() { 5 } else { 1 } {
            return FILE_PAGES[usize::from(rng.pick(&self.files))];
        }
        rng.pick(&self.pages)
    }

    pub(super) fn space(&self, rng: &mut Rng) -> u8 {
        if rng.below(3) > 0 {
            return self.home;
        }
        rng.below(self.spaces) as u8
    }

    pub(super) fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let page = self.page(rng);
        match rng.below(10) {
            0..6 => (page, 1),
            6 => (page.saturating_sub(1), 2),
            7 => (page, 1 + rng.below(4)),
            8 => (page.saturating_sub(rng.below(WINDOW)), WINDOW),
            _ => (0, 2 * WINDOW),
        }
    }

    pub(super) fn change(&self, rng: &mut Rng, batch: u8, protects: bool) -> EngineOp {
        let (page, pages) = self.range(rng);
        let space = self.space(rng);
        if protects {
            let capture = rng.one_in(2);
            return EngineOp::Protect { batch, space, page, pages, capture, right: Right::Write };
        }
        let report =
            rng.pick(&[ReportMode::Each, ReportMode::Each, ReportMode::Range, ReportMode::All]);
        EngineOp::Unmap { batch, space, page, pages, report }
    }

    /// Draws an access to the pages of the program.
    pub(super) fn look(&self, rng: &mut Rng) -> EngineOp {
        if self.uses_own_half() && rng.below(3) > 0 {
            return self.use_own(rng);
        }
        let page = self.page(rng);
        EngineOp::Read { page }
    }
}

/// Makes a page executable.
pub(super) fn allow(space: u8, page: u64) -> EngineOp {
    EngineOp::Unprotect { space, page, right: Right::Execute }
}

/// Returns the first few pages that programs map and use.
pub(super) fn pages_of(cpu: &[CpuProgram<EngineOp>]) -> Vec<u64> {
    few_of(cpu, |op| match *op {
        EngineOp::Read { page } | EngineOp::Write { page } | EngineOp::Map { page, .. } => {
            Some(page)
        }
        _ => None,
    })
}

/// Returns the kinds of a program's operations in its run, except accesses.
pub(super) fn kinds_of(cpu: &[CpuProgram<EngineOp>]) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in cpu.iter().flat_map(|lane| &lane.run).filter_map(Kind::of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// The maximum number of a program's pages to which we apply changes.
const PAGES_USED: usize = 3;

/// Returns the first few pages in operations of a program, each once.
pub(super) fn few_of<O>(cpu: &[CpuProgram<O>], page: impl Fn(&O) -> Option<u64>) -> Vec<u64> {
    let mut pages = Vec::new();
    for page in cpu.iter().flat_map(CpuProgram::all).filter_map(page) {
        if pages.len() < PAGES_USED && !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages
}

/// A kind of phrase of a program over the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    Map,
    MapFile,
    MapLarge,
    /// Maps blocks of contiguous entries, and unmaps them or one of their pages.
    Block,
    Unmap,
    Protect,
    Reclaim,
    Sweep,
    Unlink,
    Mixed,
    Confirm,
    Unprotect,
    Code,
    Move,
    Migrate,
    Withdraw,
    Split,
    Collapse,
    Switch,
    Idle,
    FileReclaim,
    Lazily,
    Reuse,
    Reinstate,
    WriteFile,
    Pay,
    CatchUp,
    Hotplug,
    Retire,
    Mask,
    Signal,
    Tour,
    /// Uses the kernel's own half.
    Own,
    /// Unmaps pages of it.
    UnmapOwn,
    /// Unmaps pages of it lazily.
    OwnLazily,
    /// Unmaps all of it, with its table.
    UnlinkOwn,
    /// Writes its text.
    Patch,
    /// Runs an undisturbed program.
    Undisturbed,
    /// Flushes without waiting for the flush.
    Start,
    /// Fills a batch that another CPU ends.
    Share,
    /// Flushes without a batch.
    AtOnce,
}

impl Kind {
    /// Returns the kind of phrases to which an operation belongs, unless it is just an access.
    pub(super) fn of(op: &EngineOp) -> Option<Self> {
        Some(match *op {
            EngineOp::Switch { .. } => Kind::Tour,
            EngineOp::Lazy | EngineOp::Leave | EngineOp::Resume => Kind::Idle,
            EngineOp::Undisturbed => Kind::Undisturbed,
            EngineOp::Map { .. } => Kind::Map,
            EngineOp::MapFile { .. } => Kind::MapFile,
            EngineOp::MapLarge { .. } | EngineOp::MapHuge { .. } => Kind::MapLarge,
            EngineOp::MapBlock { .. } => Kind::Block,
            EngineOp::Unmap { .. } => Kind::Unmap,
            EngineOp::Sweep { .. } => Kind::Sweep,
            EngineOp::Protect { right, .. } => match right {
                Right::Write => Kind::Protect,
                Right::Execute => Kind::Code,
            },
            EngineOp::Unlink { .. } => Kind::Unlink,
            EngineOp::UnmapAtOnce { .. }
            | EngineOp::UnlinkAtOnce { .. }
            | EngineOp::UnmapCoalesced { .. } => Kind::AtOnce,
            EngineOp::Start { .. } => Kind::Start,
            EngineOp::Confirm { .. } => Kind::Confirm,
            EngineOp::Unprotect { .. } => Kind::Unprotect,
            EngineOp::Move { .. } => Kind::Move,
            EngineOp::Migrate { .. } => Kind::Migrate,
            EngineOp::Withdraw { .. } => Kind::Withdraw,
            EngineOp::Split { .. } => Kind::Split,
            EngineOp::Collapse { .. } => Kind::Collapse,
            EngineOp::Reclaim { .. } => Kind::FileReclaim,
            EngineOp::ReclaimLazily { .. } | EngineOp::ReclaimWithOwn { .. } => Kind::Lazily,
            EngineOp::Reuse { .. } => Kind::Reuse,
            EngineOp::Reinstate { .. } => Kind::Reinstate,
            EngineOp::WriteFile { .. } => Kind::WriteFile,
            EngineOp::Pay => Kind::Pay,
            EngineOp::CatchUp => Kind::CatchUp,
            EngineOp::Offline | EngineOp::Online => Kind::Hotplug,
            EngineOp::Retire { .. } | EngineOp::Revive { .. } => Kind::Retire,
            EngineOp::MapOwn { .. } | EngineOp::ReadOwn { .. } | EngineOp::RunOwn { .. } => {
                Kind::Own
            }
            EngineOp::UnmapOwn { .. } => Kind::UnmapOwn,
            EngineOp::UnlinkOwn => Kind::UnlinkOwn,
            EngineOp::UnmapOwnLazily { .. } | EngineOp::ReuseOwn { .. } => Kind::OwnLazily,
            EngineOp::Patch { .. } => Kind::Patch,
            EngineOp::Mask { .. } => Kind::Mask,
            EngineOp::Read { .. }
            | EngineOp::Write { .. }
            | EngineOp::Fetch { .. }
            | EngineOp::Open { .. }
            | EngineOp::Finish { .. }
            | EngineOp::Forget { .. }
            | EngineOp::Tell { .. }
            | EngineOp::Wait { .. } => return None,
        })
    }

    /// Returns whether it removes pages of the kernel's own half, or writes there.
    pub(super) fn changes_own(self) -> bool {
        use Kind::{OwnLazily, Patch, UnlinkOwn, UnmapOwn};
        matches!(self, UnmapOwn | OwnLazily | UnlinkOwn | Patch)
    }
}

/// Every kind with its weight.
pub(super) const KINDS: [(u64, Kind); 43] = [
    (8, Kind::Read),
    (5, Kind::Write),
    (4, Kind::Map),
    (2, Kind::MapFile),
    (1, Kind::MapLarge),
    (1, Kind::Block),
    (8, Kind::Unmap),
    (4, Kind::Protect),
    (3, Kind::Reclaim),
    (1, Kind::Sweep),
    (3, Kind::Unlink),
    (2, Kind::Mixed),
    (3, Kind::Confirm),
    (2, Kind::Unprotect),
    (3, Kind::Code),
    (2, Kind::Move),
    (2, Kind::Migrate),
    (1, Kind::Withdraw),
    (1, Kind::Split),
    (1, Kind::Collapse),
    (5, Kind::Switch),
    (4, Kind::Idle),
    (3, Kind::FileReclaim),
    (6, Kind::Lazily),
    (4, Kind::Reuse),
    (3, Kind::Reinstate),
    (3, Kind::WriteFile),
    (2, Kind::Pay),
    (1, Kind::CatchUp),
    (2, Kind::Hotplug),
    (2, Kind::Retire),
    (2, Kind::Mask),
    (2, Kind::Signal),
    (5, Kind::Tour),
    (2, Kind::Own),
    (3, Kind::UnmapOwn),
    (2, Kind::OwnLazily),
    (1, Kind::UnlinkOwn),
    (1, Kind::Patch),
    (3, Kind::Undisturbed),
    (2, Kind::Start),
    (2, Kind::Share),
    (2, Kind::AtOnce),
];

/// Kinds with a common subject. Some mistakes show only if several of them meet.
pub(super) const THEMES: [&[Kind]; 7] = [
    // CPUs and spaces that appear and disappear.
    &[Kind::Switch, Kind::Tour, Kind::Idle, Kind::Hotplug, Kind::Retire, Kind::Unmap, Kind::Unlink],
    // Spaces that end, CPUs that go offline, and lazy CPUs.
    &[Kind::Retire, Kind::Hotplug, Kind::Idle, Kind::Unlink],
    // Deferred flushes.
    &[
        Kind::FileReclaim,
        Kind::Lazily,
        Kind::Reuse,
        Kind::Reinstate,
        Kind::WriteFile,
        Kind::Pay,
        Kind::CatchUp,
        Kind::OwnLazily,
        Kind::Undisturbed,
    ],
    // Flushes of both halves that are deferred together, and CPUs that run undisturbed during one of them.
    &[Kind::Lazily, Kind::Reuse, Kind::OwnLazily, Kind::Undisturbed],
    // The kernel's own half and its users.
    &[
        Kind::Own,
        Kind::UnmapOwn,
        Kind::OwnLazily,
        Kind::UnlinkOwn,
        Kind::Patch,
        Kind::Undisturbed,
        Kind::Idle,
        Kind::Hotplug,
    ],
    NESTED,
    ROUND,
];

/// Tags that run out while CPUs switch between spaces.
pub(super) const ROUND: &[Kind] =
    &[Kind::Tour, Kind::Switch, Kind::Unlink, Kind::Unmap, Kind::Hotplug];

/// Flushes that interrupt each other, for example by threads that preempt others.
pub(super) const NESTED: &[Kind] = &[
    Kind::Unmap,
    Kind::Reclaim,
    Kind::Protect,
    Kind::Start,
    Kind::Share,
    Kind::Mask,
    Kind::Switch,
    Kind::Tour,
    Kind::Idle,
];

//! Programs that do everything at random.
//!
//! Each CPU draws from its own seeded generator: it accesses memory, changes tables of its own space and
//! of others', switches, goes lazy or offline, reclaims with and without a flush, claims, rescues,
//! writes the file. Every access is judged by [`world`](crate::world). What a CPU tries is fixed by the
//! seed; how CPUs interleave is not.

use crate::machine::{PAGES, Table};
use crate::world::{
    Content, Entry, FILE_PAGES, FIRST_FILE_PAGE, Free, Ground, Layout, Machine, Slot, Space, World,
    lock,
};
use quell::Rule;
use quell::{
    AddressSpace, Batch, CpuId, Engine, Features, Frame, Hardware, Outcome, Policy, Purpose, Scope,
    Stats, Tagging,
};
use quell_contract::{Clause, Violation};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

/// What to stress, and how much.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads; more than there are cores means that CPUs are preempted at any point.
    pub cpus: usize,
    /// Address spaces.
    pub spaces: usize,
    /// Frames; few make reclaim and claims frequent.
    pub frames: usize,
    /// Room of the flush clock.
    pub epochs: usize,
    /// What the machine can do.
    pub features: Features,
    /// Which mechanisms are on.
    pub policy: Policy,
    /// A rule that the engine does not keep.
    pub forgotten: Option<&'static Rule>,
    /// Whether the machine does not wait for its broadcasts.
    pub skips_barrier: bool,
    /// What the programs try.
    pub seed: u64,
    /// How many operations all CPUs together make if nothing breaks; a few more, because each counts
    /// its own 64 at a time.
    pub operations: u64,
}

impl Plan {
    /// Four CPUs with few tags of their own, everything on.
    pub fn new(seed: u64, operations: u64) -> Self {
        Plan {
            cpus: 4,
            spaces: 6,
            frames: 96,
            epochs: 4,
            features: Features {
                tagging: Tagging::PerCpu { count: 3 },
                broadcast: false,
                full_above: 3,
            },
            policy: Policy::ALL,
            forgotten: None,
            skips_barrier: false,
            seed,
            operations,
        }
    }
}

/// Operations that a CPU makes before it adds them to everybody's.
const AT_ONCE: u64 = 64;

/// How a run ended.
#[derive(Debug)]
pub struct Report {
    /// The clause that broke, if one did.
    pub violation: Option<Violation>,
    /// Accesses that were judged.
    pub accesses: u64,
    /// Other operations.
    pub operations: u64,
    /// What the engine counted.
    pub stats: Stats,
}

/// Runs a plan to its end or to the first violation.
pub fn run(plan: &Plan) -> Report {
    let hw = Machine::new(plan.cpus, plan.spaces, plan.features)
        .forgetting(plan.forgotten)
        .skipping_barrier(plan.skips_barrier);
    let ground = Ground::new(plan.cpus, plan.epochs);
    let engine = ground.engine(&hw, plan.policy);
    let world = World::new(&engine, plan.spaces, plan.frames);
    let (accesses, operations) = (AtomicU64::new(0), AtomicU64::new(0));
    let results = hw.run(|me| {
        let mut program = Program {
            world: &world,
            engine: &engine,
            hw: &hw,
            me,
            dice: plan
                .seed
                .wrapping_add(u64::from(me.0) + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15),
            current: None,
            lazy: false,
            accesses: 0,
        };
        let mut steps = 0;
        engine.cpu_online();
        while !world.is_stopped() && !hw.is_hung() {
            hw.progress();
            program.step();
            steps += 1;
            if steps == AT_ONCE {
                steps = 0;
                let before = operations.fetch_add(AT_ONCE, Ordering::Relaxed);
                if before + AT_ONCE >= plan.operations {
                    world.stop();
                }
            }
        }
        // Others may still be waiting for this CPU: it leaves in good order.
        engine.cpu_offline(program.space());
        accesses.fetch_add(program.accesses, Ordering::Relaxed);
        operations.fetch_add(steps, Ordering::Relaxed);
    });
    if let Some(panic) = results.into_iter().find_map(Result::err) {
        std::panic::resume_unwind(panic);
    }
    if hw.is_hung() {
        world.report(Violation::new(Clause::C7, "a CPU waits for ever"));
    }
    Report {
        violation: world.verdict(),
        accesses: accesses.into_inner(),
        operations: operations.into_inner(),
        stats: engine.stats(),
    }
}

struct Program<'a> {
    world: &'a World,
    engine: &'a Engine<'a, Machine, &'a Machine>,
    hw: &'a Machine,
    me: CpuId,
    dice: u64,
    current: Option<usize>,
    lazy: bool,
    accesses: u64,
}

type Gather<'a> = Batch<'a, 'a, Machine, &'a AddressSpace<Machine>, usize, &'a Machine>;

impl<'a> Program<'a> {
    fn roll(&mut self, below: usize) -> usize {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 33) as usize % below
    }

    fn space(&self) -> Option<&'a AddressSpace<Machine>> {
        self.current.map(|index| &self.world.spaces[index].engine)
    }

    fn poll(&self) {
        if self.hw.interrupt_pending() {
            self.engine.on_interrupt();
        }
    }

    fn lock_space(&self, space: &'a Space) -> MutexGuard<'a, Layout> {
        lock(&space.layout, || {
            self.poll();
            self.hw.relax();
        })
    }

    fn lock_slot(&self, page: usize) -> MutexGuard<'a, Slot> {
        lock(&self.world.slots[page], || {
            self.poll();
            self.hw.relax();
        })
    }

    fn table(&self, space: &Space) -> &'a Table {
        self.hw.table(space.table)
    }

    fn gather(&self, purpose: Purpose) -> Gather<'a> {
        self.engine.batch(purpose)
    }

    fn step(&mut self) {
        self.poll();
        let choice = self.roll(100);
        let world: &'a World = self.world;
        let space = &world.spaces[self.roll(world.spaces.len())];
        let page = self.roll(FIRST_FILE_PAGE);
        let file_page = self.roll(FILE_PAGES);
        match choice {
            0..50 => self.access_some(),
            50..58 => self.map(space, page),
            58..63 => self.unmap(space, page),
            63..67 => self.protect(space, page),
            67..69 => self.unprotect(space, page),
            69..71 => self.capture(space, page),
            71..75 => self.reclaim(space),
            75..80 => self.reclaim_file(file_page),
            80..82 => self.write_file(file_page),
            82..84 => self.remap(space, file_page),
            84..86 => {
                if let Some(frame) = self.allocate() {
                    self.free(frame);
                }
            }
            86 => self.engine.settle(&space.engine),
            87 if self.roll(8) == 0 => self.engine.pay_all(),
            87 => self.switch(),
            88..96 => self.switch(),
            96..99 => self.go_lazy(),
            _ => self.go_offline(),
        }
    }

    fn switch(&mut self) {
        let to = self.roll(self.world.spaces.len());
        self.engine
            .switch_to(self.space(), &self.world.spaces[to].engine);
        self.current = Some(to);
        self.lazy = false;
    }

    fn go_lazy(&mut self) {
        if self.current.is_some() {
            self.engine.enter_lazy();
            self.lazy = true;
        }
    }

    fn go_offline(&mut self) {
        self.engine.cpu_offline(self.space());
        self.current = None;
        for _ in 0..self.roll(50) {
            self.hw.relax();
        }
        self.engine.cpu_online();
    }

    /// A few accesses in the current space, as a program makes them.
    fn access_some(&mut self) {
        let Some(index) = self.current else {
            return self.switch();
        };
        let space = &self.world.spaces[index];
        if self.lazy {
            self.engine.switch_to(Some(&space.engine), &space.engine);
            self.lazy = false;
        }
        for _ in 0..8 {
            let page = self.roll(PAGES);
            let write = page < FIRST_FILE_PAGE && self.roll(2) == 0;
            if !self.access(space, page, write) && page >= FIRST_FILE_PAGE {
                self.fault_file(space, page - FIRST_FILE_PAGE);
            }
        }
    }

    /// One access, judged; whether there was a translation.
    fn access(&mut self, space: &'a Space, page: usize, write: bool) -> bool {
        // Interrupts may be late: one that always came before the next access would hide an
        // initiator that does not wait.
        if self.roll(4) == 0 {
            self.poll();
        }
        self.accesses += 1;
        let world = self.world;
        let me = self.me;
        // Acquire: the kernel changes a file page in place, without a flush to order it.
        let written: [u64; FILE_PAGES] =
            std::array::from_fn(|page| world.written[page].load(Ordering::Acquire));
        let completed = space.completed[page].load(Ordering::Relaxed);
        let judged = self.hw.access(page as u16, |cached| {
            let entry = Entry(cached.entry);
            let frame = entry.frame();
            let content = world.content(frame);
            let breaks = |clause, account: String| {
                let account = format!("{account} (space {}, page {page})", space.table);
                let violation = Violation::new(clause, account).by(me);
                world.report(violation.in_frame(Frame(frame as u64)));
            };
            if usize::from(cached.root) != space.table {
                breaks(Clause::C5, format!("walked from root {}", cached.root));
            } else if content.owner() != entry.owner() {
                let (is, was) = (content.owner(), entry.owner());
                breaks(
                    Clause::C1,
                    format!("mapped for owner {was}, belongs to {is}"),
                );
            } else if entry.version() < completed {
                let version = entry.version();
                breaks(Clause::C3, format!("version {version} after {completed}"));
            } else if let Some(file_page) = content.file_page()
                && content.value() < written[file_page]
            {
                let (old, new) = (content.value(), written[file_page]);
                breaks(Clause::C4, format!("reads {old} after {new} was written"));
            }
            if write && entry.writable() {
                let value = content.value().wrapping_add(1);
                let new = Content::new(entry.owner(), FILE_PAGES, value);
                world.frames[frame].content.store(new.0, Ordering::Relaxed);
            }
        });
        judged.is_some()
    }

    /// Takes a frame out of the free list; paid for if it was owed.
    fn allocate(&self) -> Option<usize> {
        loop {
            let first = lock(&self.world.free, || self.hw.relax()).pop_front()?;
            match first {
                Free::Clear(frame) => return Some(frame),
                Free::Owed(frame, file_page) => {
                    let mut slot = self.lock_slot(file_page);
                    // Otherwise the page has it back, or it was claimed as the slot was refilled.
                    if *slot == Slot::Emptied(frame)
                        && self
                            .engine
                            .claim(&self.world.frames[frame].residue)
                            .is_some()
                    {
                        *slot = Slot::Empty;
                        return Some(frame);
                    }
                }
            }
        }
    }

    fn free(&self, frame: usize) {
        lock(&self.world.free, || self.hw.relax()).push_back(Free::Clear(frame));
    }

    /// Gives a frame its next owner, who puts `value` into it. Returns the owner.
    fn own(&self, frame: usize, file_page: usize, value: u64) -> u64 {
        let owner = self.world.content(frame).owner() + 1;
        let content = Content::new(owner, file_page, value);
        self.world.frames[frame]
            .content
            .store(content.0, Ordering::Relaxed);
        owner
    }

    fn write_entry(&self, space: &'a Space, page: usize, entry: Entry) {
        self.table(space)[page].store(entry.0, Ordering::Release);
    }

    fn entry(&self, space: &'a Space, page: usize) -> Entry {
        Entry(self.table(space)[page].load(Ordering::Relaxed))
    }

    /// The changes have returned to the program.
    fn complete(space: &Space, changes: &[(usize, u64)]) {
        for &(page, version) in changes {
            space.completed[page].fetch_max(version, Ordering::Release);
        }
    }

    fn map(&mut self, space: &'a Space, page: usize) {
        let Some(frame) = self.allocate() else {
            return;
        };
        let mut layout = self.lock_space(space);
        if self.entry(space, page).present() {
            drop(layout);
            return self.free(frame);
        }
        self.engine.settle(&space.engine);
        layout.versions[page] += 1;
        let owner = self.own(frame, FILE_PAGES, 0);
        let version = layout.versions[page];
        self.write_entry(space, page, Entry::new(frame, owner, version, true));
    }

    /// Ends a gather and frees its frames.
    fn finish(&self, mut gather: Gather<'a>) {
        for frame in gather.finish() {
            self.free(frame);
        }
    }

    fn unmap(&mut self, space: &'a Space, first: usize) {
        let mut layout = self.lock_space(space);
        let mut gather = self.gather(Purpose::Call);
        let mut changes = Vec::new();
        let mut met_cleared = false;
        let pages = 1 + self.roll(5);
        let tables = self.roll(8) == 0;
        for page in first..(first + pages).min(FIRST_FILE_PAGE) {
            let entry = self.entry(space, page);
            layout.versions[page] += 1;
            changes.push((page, layout.versions[page]));
            if entry.present() {
                self.write_entry(space, page, Entry(0));
                gather.unmapped(&space.engine, World::range(page), entry.frame());
                if tables {
                    gather.changed(&space.engine, World::range(page), Scope::Tables);
                }
            } else {
                met_cleared = true;
            }
        }
        let held = (self.roll(2) == 0).then_some(layout);
        if met_cleared {
            self.engine.settle(&space.engine);
        }
        self.finish(gather);
        drop(held);
        Self::complete(space, &changes);
    }

    fn protect(&mut self, space: &'a Space, first: usize) {
        let mut layout = self.lock_space(space);
        let mut gather = self.gather(Purpose::Call);
        let mut changes = Vec::new();
        let pages = 1 + self.roll(3);
        for page in first..(first + pages).min(FIRST_FILE_PAGE) {
            let entry = self.entry(space, page);
            if entry.present() && entry.writable() {
                layout.versions[page] += 1;
                let version = layout.versions[page];
                changes.push((page, version));
                let narrow = Entry::new(entry.frame(), entry.owner(), version, false);
                self.write_entry(space, page, narrow);
                gather.changed(&space.engine, World::range(page), Scope::Leaf);
            }
        }
        drop(layout);
        self.finish(gather);
        Self::complete(space, &changes);
    }

    fn unprotect(&mut self, space: &'a Space, page: usize) {
        let mut layout = self.lock_space(space);
        let entry = self.entry(space, page);
        if entry.present() && !entry.writable() {
            layout.versions[page] += 1;
            let wide = Entry::new(entry.frame(), entry.owner(), layout.versions[page], true);
            self.write_entry(space, page, wide);
        }
    }

    /// Write-protects a page, flushes, and captures its content, as a writeback would.
    fn capture(&mut self, space: &'a Space, page: usize) {
        let mut layout = self.lock_space(space);
        let entry = self.entry(space, page);
        if !entry.present() {
            return;
        }
        layout.versions[page] += 1;
        let narrow = Entry::new(entry.frame(), entry.owner(), layout.versions[page], false);
        self.write_entry(space, page, narrow);
        let mut gather = self.gather(Purpose::Call);
        gather.changed(&space.engine, World::range(page), Scope::Leaf);
        self.finish(gather);
        let captured = self.world.content(entry.frame());
        for _ in 0..self.roll(200) {
            self.poll();
            self.hw.relax();
        }
        let now = self.world.content(entry.frame());
        if captured != now {
            let account = format!(
                "{now:?} after {captured:?} was captured (space {}, page {page})",
                space.table
            );
            let violation = Violation::new(Clause::C2, account).by(self.me);
            self.world
                .report(violation.in_frame(Frame(entry.frame() as u64)));
        }
    }

    /// Takes a few pages away from up to two spaces; the flush comes after the locks.
    fn reclaim(&mut self, space: &'a Space) {
        let purpose = [Purpose::Reclaim, Purpose::Migration][self.roll(2)];
        let mut gather = self.gather(purpose);
        let world: &'a World = self.world;
        let other = &world.spaces[self.roll(world.spaces.len())];
        for space in [space, other] {
            let mut layout = self.lock_space(space);
            for _ in 0..2 {
                let page = self.roll(FIRST_FILE_PAGE);
                let entry = self.entry(space, page);
                if entry.present() {
                    layout.versions[page] += 1;
                    self.write_entry(space, page, Entry(0));
                    gather.unmapped(&space.engine, World::range(page), entry.frame());
                }
            }
        }
        for _ in 0..self.roll(100) {
            self.poll();
            self.hw.relax();
        }
        self.finish(gather);
    }

    /// Takes a page of the file away from every space that maps it, and owes the flush.
    fn reclaim_file(&mut self, file_page: usize) {
        let mut slot = self.lock_slot(file_page);
        let Slot::Filled(frame) = *slot else {
            return;
        };
        let world: &'a World = self.world;
        let residue = &world.frames[frame].residue;
        residue.begin();
        let mut gather = self.gather(Purpose::Lazy);
        let mut locks = Vec::new();
        for space in &world.spaces {
            let mut layout = self.lock_space(space);
            for page in FIRST_FILE_PAGE..PAGES {
                let entry = self.entry(space, page);
                if entry.present() && entry.frame() == frame {
                    layout.versions[page] += 1;
                    self.write_entry(space, page, Entry::marker(frame));
                    gather.changed(&space.engine, World::range(page), Scope::Leaf);
                }
            }
            locks.push(layout);
        }
        gather.hold(frame);
        match gather.finish_owed() {
            Outcome::Flushed(frames) => {
                residue.settle_flushed();
                *slot = Slot::Empty;
                drop(locks);
                frames.for_each(|frame| self.free(frame));
            }
            Outcome::Owed(owed) => {
                residue.owe(owed.stamp());
                *slot = Slot::Emptied(frame);
                drop(locks);
                let mut free = lock(&world.free, || self.hw.relax());
                free.extend(owed.map(|frame| Free::Owed(frame, file_page)));
            }
        }
    }

    /// A read of a page of the file that is not mapped.
    fn fault_file(&mut self, space: &'a Space, index: usize) {
        let mut spare = self.allocate();
        let page = FIRST_FILE_PAGE + index;
        let file_page = self.lock_space(space).maps[index];
        let mut slot = self.lock_slot(file_page);
        if let Slot::Emptied(frame) = *slot {
            if self.rescue(frame) {
                *slot = Slot::Filled(frame);
            } else {
                // Claimed by somebody who has not told the slot yet; then it was paid.
                self.settle_frame(frame, space);
                *slot = Slot::Empty;
            }
        }
        if *slot == Slot::Empty
            && let Some(frame) = spare.take()
        {
            let written = self.world.written[file_page].load(Ordering::Relaxed);
            self.own(frame, file_page, written);
            *slot = Slot::Filled(frame);
        }
        let mut layout = self.lock_space(space);
        let held = self.entry(space, page);
        if let Slot::Filled(frame) = *slot
            && !held.present()
            && layout.maps[index] == file_page
        {
            if held.is_marker() {
                self.settle_frame(held.frame(), space);
            }
            layout.versions[page] += 1;
            let owner = self.world.content(frame).owner();
            let entry = Entry::new(frame, owner, layout.versions[page], false);
            self.write_entry(space, page, entry);
        }
        drop(layout);
        drop(slot);
        if let Some(frame) = spare {
            self.free(frame);
        }
    }

    /// Takes an owed frame back, and maps it again wherever a marker names it: a marker left behind
    /// would name a frame that owes nothing, over a translation that nobody has flushed.
    fn rescue(&self, frame: usize) -> bool {
        let world: &'a World = self.world;
        let mut locks: Vec<_> = world
            .spaces
            .iter()
            .map(|space| self.lock_space(space))
            .collect();
        if !world.frames[frame].residue.rescue(self.engine) {
            return false;
        }
        let owner = world.content(frame).owner();
        for (space, layout) in world.spaces.iter().zip(&mut locks) {
            for page in FIRST_FILE_PAGE..PAGES {
                if self.entry(space, page) == Entry::marker(frame) {
                    layout.versions[page] += 1;
                    let entry = Entry::new(frame, owner, layout.versions[page], false);
                    self.write_entry(space, page, entry);
                }
            }
        }
        true
    }

    fn settle_frame(&self, frame: usize, space: &Space) {
        let residue = &self.world.frames[frame].residue;
        self.engine.settle_residue(residue, &space.engine);
    }

    /// Writes a page of the file: in place if it is there, into a new frame if it is not.
    fn write_file(&mut self, file_page: usize) {
        let spare = self.allocate();
        let mut unused = spare;
        let mut slot = self.lock_slot(file_page);
        let written = &self.world.written[file_page];
        let value = written.load(Ordering::Relaxed) + 1;
        match *slot {
            Slot::Filled(frame) => {
                let owner = self.world.content(frame).owner();
                let content = Content::new(owner, file_page, value);
                self.world.frames[frame]
                    .content
                    .store(content.0, Ordering::Relaxed);
                written.store(value, Ordering::Release);
            }
            before => {
                if let Some(frame) = unused.take() {
                    if let Slot::Emptied(old) = before {
                        self.settle_frame(old, &self.world.spaces[0]);
                    }
                    self.own(frame, file_page, value);
                    *slot = Slot::Filled(frame);
                    written.store(value, Ordering::Release);
                    for _ in 0..self.roll(50) {
                        self.poll();
                        self.hw.relax();
                    }
                    if let Slot::Emptied(old) = before
                        && self.engine.claim(&self.world.frames[old].residue).is_some()
                    {
                        self.free(old);
                    }
                }
            }
        }
        drop(slot);
        if let Some(frame) = unused {
            self.free(frame);
        }
    }

    /// Maps another page of the file over one that is mapped, as a fixed mapping does.
    fn remap(&mut self, space: &'a Space, index: usize) {
        let page = FIRST_FILE_PAGE + index;
        let mut layout = self.lock_space(space);
        let entry = self.entry(space, page);
        layout.maps[index] = self.roll(FILE_PAGES);
        layout.versions[page] += 1;
        let version = layout.versions[page];
        self.write_entry(space, page, Entry(0));
        if entry.present() {
            let mut gather = self.gather(Purpose::Call);
            gather.changed(&space.engine, World::range(page), Scope::Leaf);
            self.finish(gather);
        } else if entry.is_marker() {
            self.settle_frame(entry.frame(), space);
        }
        drop(layout);
        Self::complete(space, &[(page, version)]);
    }
}

//! The machine's state, and what each action does to it.
//!
//! A CPU's code runs until it *arrives* at an operation on something shared; there the machine asks
//! the scheduler what happens next, and the operation takes place when its CPU's step is picked.
//! Between two such points a CPU touches nothing that others could see. Stores go into a buffer
//! first and become visible by an action of their own; a CPU whose operation needs an empty
//! buffer (a fence, an atomic exchange, an invalidation) waits until its stores have drained.
//!
//! A CPU that waits in a loop ([`quell::Hardware::relax`]) is not picked again before something
//! that it read since its last turn has changed: going round once more would read the same. So
//! loops end, and if nobody can do anything while somebody waits, that is a deadlock (C7).

use super::context;
use super::kind::{MachineKind, Stores};
use super::mmu::{self, Arena, Leaf, Mmu};
use super::oracle::{Clause, Moment, Oracle, Used, Violation};
use super::schedule::{Action, Actions, BUFFER, DATA, Deviation, Kind, MAX_CPUS, NMIS, Strategy};
use super::schedule::{default_action, fair_action};
use super::timeline::{Entry, What};
use super::word::AdversaryWord;
use quell::{CpuId, Frame, Invalidate, Page};
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Words of content that a frame has here; the rest of a frame is zero.
pub(crate) const FRAME_WORDS: usize = 2;

/// What a CPU is about to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Op {
    /// Begin its program.
    Start,
    /// Load a word.
    Load(*const AdversaryWord, Ordering),
    /// Store to a word.
    Store(*const AdversaryWord, Ordering),
    /// Modify a word atomically.
    Modify(*const AdversaryWord, Ordering),
    /// A full barrier of memory.
    Fence,
    /// A full barrier that also makes table writes visible to walkers.
    Barrier,
    /// The same, and the own broadcasts complete.
    Complete,
    /// A turn of a waiting loop.
    Relax,
    /// Sleep until an interrupt or the clock.
    Halt,
    /// The program is over: take interrupts.
    Park,
    /// Mask interrupts: one that is pending may still be taken before.
    Mask,
    /// Invalidate own translations.
    Invalidate,
    /// Load or leave a root.
    Root,
    /// Send an invalidation to everybody.
    Broadcast,
    /// Tell the oracle.
    Note,
    /// Send interrupts to a set of CPUs.
    Send(u8),
    /// Access user memory.
    Access {
        /// Whether it is a store.
        store: bool,
    },
    /// Access the content of a frame through the kernel's own mapping.
    Content {
        /// The frame.
        frame: u32,
        /// Whether it is changed.
        store: bool,
    },
}

/// What an action touches: two actions that touch different things commute.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    cpu: u8,
    /// A store that drains commutes with what its CPU does meanwhile, unless they touch the same.
    drain: bool,
    address: usize,
    writes: bool,
    /// 0: does not touch the translation hardware, 1: reads it, 2: changes it.
    translation: u8,
    /// Interrupt lines.
    lines: u8,
}

impl Footprint {
    /// Whether the order of the two does not matter.
    pub fn independent(&self, other: &Footprint) -> bool {
        if self.cpu == other.cpu && (self.drain == other.drain) {
            return false;
        }
        let same_word = self.address != 0 && self.address == other.address;
        let translation = self.translation.min(other.translation) > 0
            && self.translation.max(other.translation) == 2;
        !(same_word && (self.writes || other.writes))
            && !translation
            && self.lines & other.lines == 0
    }
}

/// What the CPU that arrived does now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Go,
    Suspend,
    Interrupt,
    Nmi,
}

#[derive(Clone, Copy)]
enum Target {
    Word(*const AdversaryWord),
    Content {
        used: Used,
        word: usize,
    },
    /// An invalidation that this CPU has issued: it holds for all that this CPU does later, and a
    /// store reaches others after it only if something orders the store.
    Invalidation {
        what: Invalidate,
        sent: Moment,
    },
}

#[derive(Clone, Copy)]
struct Buffered {
    target: Target,
    value: u64,
    /// Stores of a lower epoch go first.
    epoch: u32,
    release: bool,
    sequential: bool,
    order: u32,
}

/// A word that a CPU has read.
#[derive(Clone, Copy)]
struct Watched {
    word: *const AdversaryWord,
    seen: u64,
    /// How many turns of loops it has caused. A change concerns the innermost loop that reads the
    /// word, which may be an outer one: so it is good for a few turns, not for one alone.
    turns: u8,
}

/// How many words are remembered; more have been read only by code that is not in a loop.
const WATCH: usize = 24;

/// See [`Watched::turns`].
const TURNS: u8 = 2;

/// How often everybody looks again before a deadlock is called one.
const SECOND_LOOKS: u8 = 4;

impl Watched {
    fn changed(&self) -> bool {
        // SAFETY: words take themselves off the list when they are dropped.
        let now = unsafe { (*self.word).peek() };
        now != self.seen
    }
}

struct Cpu {
    pending: Op,
    buffer: [Option<Buffered>; BUFFER],
    buffered: usize,
    epoch: u32,
    next_order: u32,
    interrupts_on: bool,
    interrupt: bool,
    in_nmi: bool,
    /// What the CPU has read, and would find changed if it looked again.
    watch: Vec<Watched>,
    woken: bool,
    broadcasts: Vec<(Invalidate, Moment)>,
    /// When the program made the call that it is in; [`Moment::MAX`] if nobody said so.
    call_began: Moment,
}

impl Cpu {
    fn new() -> Self {
        Cpu {
            pending: Op::Start,
            buffer: [None; BUFFER],
            buffered: 0,
            epoch: 0,
            next_order: 0,
            interrupts_on: true,
            interrupt: false,
            in_nmi: false,
            watch: Vec::with_capacity(WATCH),
            woken: false,
            broadcasts: Vec::with_capacity(8),
            call_began: Moment::MAX,
        }
    }

    fn reset(&mut self) {
        self.pending = Op::Start;
        self.buffer = [None; BUFFER];
        self.buffered = 0;
        self.epoch = 0;
        self.interrupts_on = true;
        self.interrupt = false;
        self.in_nmi = false;
        self.watch.clear();
        self.woken = false;
        self.broadcasts.clear();
        self.call_began = Moment::MAX;
    }

    fn invalidates(&self) -> bool {
        self.buffered > 0
            && self
                .buffer
                .iter()
                .flatten()
                .any(|entry| matches!(entry.target, Target::Invalidation { .. }))
    }

    fn holds(&self, word: *const AdversaryWord) -> bool {
        self.buffered > 0
            && self.buffer.iter().flatten().any(
                |entry| matches!(entry.target, Target::Word(other) if std::ptr::eq(other, word)),
            )
    }
}

/// Why a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// All programs came to their end.
    Finished,
    /// The search knows an equivalent schedule.
    Pruned,
    /// The contract broke.
    Violated(Box<Violation>),
}

/// The machine.
pub(crate) struct Core {
    pub(crate) kind: MachineKind,
    pub(crate) count: usize,
    cpus: [Cpu; MAX_CPUS],
    pub(crate) mmu: Mmu,
    pub(crate) oracle: Oracle,
    content: Box<[[u64; FRAME_WORDS]]>,
    touched: Vec<u32>,
    arena: Rc<Arena>,
    pub(crate) strategy: Strategy,
    pub(crate) decisions: u32,
    pub(crate) limit: u32,
    /// The decision after which everybody who can do something does it before long.
    pub(crate) fair_after: u32,
    pub(crate) now: Moment,
    current: usize,
    granted: Action,
    /// How often those who wait have looked again in vain.
    second_looks: u8,
    pub(crate) nmis: u8,
    pub(crate) spurious: u8,
    pub(crate) end: Option<End>,
    pub(crate) trail: Vec<Deviation>,
    pub(crate) timeline: Option<Vec<Entry>>,
    /// Stale translations that were used lawfully.
    pub(crate) stale_uses: u64,
    pub(crate) nmis_taken: u64,
    pub(crate) nmi_accesses: u64,
    pub(crate) events: [u64; super::coverage::Happening::COUNT],
}

/// What an access to user memory came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accessed {
    /// It went through.
    Value {
        /// The value loaded, or that was there.
        held: u64,
        /// The frame that it went to, if the tables lead elsewhere by now and this CPU has no
        /// store of its own on the way there.
        stale: Option<u32>,
    },
    /// A page fault.
    Fault,
}

impl Core {
    pub(crate) fn new(
        kind: MachineKind,
        count: usize,
        arena: Rc<Arena>,
        frames: usize,
        tables: usize,
    ) -> Self {
        Core {
            kind,
            count,
            cpus: std::array::from_fn(|_| Cpu::new()),
            mmu: Mmu::new(count, tables),
            oracle: Oracle::new(frames),
            content: vec![[0; FRAME_WORDS]; frames].into(),
            touched: Vec::with_capacity(64),
            arena,
            strategy: Strategy::script(Vec::new()),
            decisions: 0,
            limit: u32::MAX,
            fair_after: u32::MAX,
            now: 1,
            current: 0,
            granted: Action::step(0),
            second_looks: 0,
            nmis: 0,
            spurious: 0,
            end: None,
            trail: Vec::with_capacity(1024),
            timeline: None,
            stale_uses: 0,
            nmis_taken: 0,
            nmi_accesses: 0,
            events: [0; super::coverage::Happening::COUNT],
        }
    }

    /// Makes ready for another run.
    pub(crate) fn reset(&mut self, levels: u8) {
        for cpu in &mut self.cpus {
            cpu.reset();
        }
        self.mmu
            .reset(&self.arena, levels, self.kind.lagging_walkers);
        self.oracle.reset();
        for frame in self.touched.drain(..) {
            self.content[frame as usize] = [0; FRAME_WORDS];
        }
        self.decisions = 0;
        self.now = 1;
        self.current = 0;
        self.second_looks = 0;
        self.end = None;
        self.trail.clear();
        self.events = [0; super::coverage::Happening::COUNT];
        if let Some(timeline) = &mut self.timeline {
            timeline.clear();
        }
    }

    pub(crate) fn tracing(&self) -> bool {
        self.timeline.is_some()
    }

    fn record(&mut self, cpu: usize, what: What) {
        let step = self.decisions;
        if let Some(timeline) = &mut self.timeline {
            timeline.push(Entry { step, cpu, what });
        }
    }

    /// Writes a note into the timeline.
    pub(crate) fn say(&mut self, cpu: usize, text: impl FnOnce() -> String) {
        if self.tracing() {
            let text = text();
            self.record(cpu, What::Said(text));
        }
    }

    pub(crate) fn happen(&mut self, happening: super::coverage::Happening) {
        self.events[happening as usize] += 1;
    }

    /// The contract is broken: the run ends.
    pub(crate) fn fail(&mut self, violation: Violation) {
        if matches!(self.end, None | Some(End::Finished)) {
            let text = violation.to_string();
            self.record(violation.cpu.index(), What::Broke(text));
            self.end = Some(End::Violated(Box::new(violation)));
        }
    }

    // Choosing.

    /// CPU `me` is about to do `op`.
    #[inline]
    pub(crate) fn arrive(&mut self, me: usize, op: Op) -> Verdict {
        self.cpus[me].pending = op;
        self.current = me;
        self.choose(Some(me))
    }

    /// The first choice of a run; the CPU whose turn it is.
    pub(crate) fn begin(&mut self) -> Option<usize> {
        self.choose(None);
        self.turn()
    }

    /// The CPU that goes on, if the run does.
    pub(crate) fn turn(&self) -> Option<usize> {
        self.end.is_none().then_some(self.current)
    }

    /// What the CPU that was resumed does.
    pub(crate) fn resumed(&mut self, me: usize) -> Verdict {
        self.perform(me, self.granted)
    }

    fn choose(&mut self, me: Option<usize>) -> Verdict {
        loop {
            if self.end.is_some() {
                return Verdict::Suspend;
            }
            let Some(action) = self.pick() else {
                return Verdict::Suspend;
            };
            let cpu = action.cpu();
            if let Kind::Drain(place) = action.kind() {
                self.drain(cpu, place);
                continue;
            }
            self.current = cpu;
            if me == Some(cpu) {
                return self.perform(cpu, action);
            }
            self.granted = action;
            return Verdict::Suspend;
        }
    }

    fn perform(&mut self, me: usize, action: Action) -> Verdict {
        self.now += 1;
        match action.kind() {
            Kind::Interrupt => Verdict::Interrupt,
            Kind::Nmi => Verdict::Nmi,
            Kind::Step | Kind::Drain(_) => {
                if self.timeline.is_some() {
                    let op = self.cpus[me].pending;
                    self.record(me, What::Step(op));
                }
                match self.cpus[me].pending {
                    Op::Relax => {
                        self.cpus[me].watch.retain_mut(|known| {
                            known.turns += u8::from(known.changed());
                            known.turns < TURNS
                        });
                        self.cpus[me].woken = false;
                    }
                    Op::Barrier | Op::Complete => self.mmu.barrier(self.now),
                    _ => {}
                }
                Verdict::Go
            }
        }
    }

    fn pick(&mut self) -> Option<Action> {
        self.decisions += 1;
        if self.decisions > self.limit {
            self.fail(Violation {
                clause: Clause::C7,
                cpu: CpuId(self.current as u16),
                other: None,
                frame: None,
                page: None,
                account: format!(
                    "no end after {} steps, the last of them fair to all",
                    self.limit
                ),
            });
            return None;
        }
        let (decision, current) = (self.decisions, self.current);
        let fair = decision > self.fair_after;
        if !fair && self.strategy.goes_on(decision) && self.may_step(&self.cpus[current]) {
            return Some(Action::step(current));
        }
        let mut enabled = self.enabled();
        if enabled & !NMIS == 0 {
            if !self.look_again() {
                self.finish();
                return None;
            }
            enabled = self.enabled();
        }
        if fair {
            return fair_action(enabled, decision);
        }
        let searches = matches!(self.strategy, Strategy::Exhaustive(_));
        let picked = if enabled.is_power_of_two() && !searches {
            Some(Action(enabled.trailing_zeros() as u8))
        } else {
            let mut strategy = std::mem::take(&mut self.strategy);
            let picked = strategy.pick(decision, enabled, current, |action| self.footprint(action));
            self.strategy = strategy;
            picked
        };
        let Some(action) = picked else {
            self.end = Some(End::Pruned);
            return None;
        };
        // A step of the current CPU is the default whenever it is possible.
        if action != Action::step(current) && Some(action) != default_action(enabled, current) {
            self.trail.push((decision, action.0));
        }
        Some(action)
    }

    /// Chooses one of `count` alternatives.
    pub(crate) fn pick_data(&mut self, count: usize) -> usize {
        if count < 2 {
            return 0;
        }
        self.decisions += 1;
        let choice = self.strategy.pick_data(self.decisions, count);
        if choice != 0 {
            self.trail.push((self.decisions, DATA | choice as u8));
        }
        choice
    }

    /// Before somebody is said to wait for ever, everybody who waits looks a few times more: what an
    /// outer loop waits for may have changed while an inner one looked.
    fn look_again(&mut self) -> bool {
        let waits = |cpu: &&mut Cpu| cpu.pending == Op::Relax;
        if self.second_looks == SECOND_LOOKS {
            return false;
        }
        self.second_looks += 1;
        let mut any = false;
        for cpu in self.cpus[..self.count].iter_mut().filter(waits) {
            cpu.woken = true;
            any = true;
        }
        any
    }

    /// Nobody can do anything: all programs are over, or somebody waits for ever.
    fn finish(&mut self) {
        let waiting = (0..self.count).find(|&cpu| self.cpus[cpu].pending != Op::Park);
        let Some(cpu) = waiting else {
            self.end = Some(End::Finished);
            return;
        };
        let other = (0..self.count).find(|&other| {
            other != cpu && self.cpus[other].interrupt && !self.cpus[other].interrupts_on
        });
        self.fail(Violation {
            clause: Clause::C7,
            cpu: CpuId(cpu as u16),
            other: other.map(|other| CpuId(other as u16)),
            frame: None,
            page: None,
            account: "waits for ever: nobody can do anything".into(),
        });
    }

    fn enabled(&self) -> Actions {
        let mut enabled = 0;
        for (index, cpu) in self.cpus[..self.count].iter().enumerate() {
            if self.may_step(cpu) {
                enabled |= Action::step(index).bit();
            }
            if cpu.interrupts_on
                && !cpu.in_nmi
                && cpu.pending != Op::Start
                && (cpu.interrupt || (self.spurious > 0 && cpu.pending != Op::Park))
            {
                enabled |= Action::interrupt(index).bit();
            }
            if self.nmis > 0 && !cpu.in_nmi && cpu.pending != Op::Start {
                enabled |= Action::nmi(index).bit();
            }
            if cpu.buffered > 0 {
                enabled |= self.drains(index, cpu);
            }
        }
        enabled
    }

    fn may_step(&self, cpu: &Cpu) -> bool {
        let ordered = self.kind.stores == Stores::Ordered;
        let empty = cpu.buffered == 0;
        match cpu.pending {
            // A halted CPU may be woken by its clock at any time.
            Op::Start | Op::Mask | Op::Halt => true,
            Op::Access { store: false } => !cpu.invalidates(),
            Op::Load(_, order) => {
                ordered
                    || order != Ordering::SeqCst
                    || !cpu.buffer.iter().flatten().any(|entry| entry.sequential)
            }
            Op::Store(_, order) => match order {
                Ordering::SeqCst if ordered => empty,
                _ => cpu.buffered < BUFFER,
            },
            Op::Access { store: true } => cpu.buffered < BUFFER && !cpu.invalidates(),
            Op::Modify(word, order) => {
                empty
                    || (!ordered
                        && matches!(order, Ordering::Relaxed | Ordering::Acquire)
                        && !cpu.holds(word))
            }
            // Roots are loaded by a serialising instruction on x86 alone; invalidations and what
            // sends interrupts order stores everywhere, by the interface's own promise.
            Op::Root => empty || (!ordered && !cpu.invalidates()),
            Op::Fence | Op::Barrier | Op::Invalidate | Op::Send(_) => empty,
            Op::Content { store, .. } => empty || !store,
            // The completion of an invalidation waits for the stores through what it covers.
            Op::Complete => empty && !self.stores_under_way(),
            Op::Broadcast | Op::Note => true,
            Op::Relax => {
                cpu.woken
                    || cpu
                        .watch
                        .iter()
                        .any(|known| known.changed() && !cpu.holds(known.word))
            }
            Op::Park => false,
        }
    }

    /// Whether a program's store still lies in a buffer.
    fn stores_under_way(&self) -> bool {
        self.cpus[..self.count].iter().any(|cpu| {
            cpu.buffered > 0
                && cpu
                    .buffer
                    .iter()
                    .flatten()
                    .any(|entry| matches!(entry.target, Target::Content { .. }))
        })
    }

    /// Which of a CPU's buffered stores may become visible next.
    fn drains(&self, index: usize, cpu: &Cpu) -> Actions {
        let entries = || {
            let places = cpu.buffer.iter().enumerate();
            places.filter_map(|(place, entry)| Some((place, entry.as_ref()?)))
        };
        if self.kind.stores == Stores::Ordered {
            let oldest = entries().min_by_key(|(_, entry)| entry.order);
            return oldest.map_or(0, |(place, _)| Action::drain(index, place).bit());
        }
        let free = |entry: &Buffered| {
            entries()
                .filter(|(_, other)| other.order < entry.order)
                .all(|(_, other)| {
                    !entry.release
                        && other.epoch == entry.epoch
                        && !same_target(&other.target, &entry.target)
                })
        };
        entries()
            .filter(|(_, entry)| free(entry))
            .fold(0, |set, (place, _)| set | Action::drain(index, place).bit())
    }

    pub(crate) fn footprint(&self, action: Action) -> Footprint {
        let index = action.cpu();
        let cpu = &self.cpus[index];
        let mut print = Footprint {
            cpu: index as u8,
            drain: false,
            address: 0,
            writes: false,
            translation: 0,
            lines: 0,
        };
        match action.kind() {
            Kind::Interrupt => print.lines = 1 << index,
            Kind::Nmi => {}
            Kind::Drain(place) => {
                print.drain = true;
                print.writes = true;
                if let Some(entry) = &cpu.buffer[place] {
                    match entry.target {
                        Target::Word(word) => {
                            print.address = word as usize;
                            print.translation = 2 * u8::from(self.arena.place(word).is_some());
                        }
                        Target::Content { used, .. } => {
                            print.address = used.frame as usize + 1;
                            print.translation = 1;
                        }
                        Target::Invalidation { .. } => print.translation = 1,
                    }
                }
            }
            Kind::Step => match cpu.pending {
                Op::Start | Op::Mask | Op::Fence | Op::Relax | Op::Halt | Op::Park => {}
                Op::Load(word, _) => print.address = word as usize,
                Op::Store(word, order) => {
                    if order == Ordering::SeqCst && self.kind.stores == Stores::Ordered {
                        print.address = word as usize;
                        print.writes = true;
                        print.translation = 2 * u8::from(self.arena.place(word).is_some());
                    }
                }
                Op::Modify(word, _) => {
                    print.address = word as usize;
                    print.writes = true;
                    print.translation = 2 * u8::from(self.arena.place(word).is_some());
                }
                Op::Barrier | Op::Complete => {
                    let waits = self.mmu.lags() || !cpu.broadcasts.is_empty();
                    print.translation = 2 * u8::from(waits);
                }
                Op::Invalidate | Op::Root | Op::Broadcast => print.translation = 1,
                Op::Note => print.translation = 2,
                Op::Send(lines) => print.lines = lines,
                // A walker may set bits in a table, and a load reads some frame.
                Op::Access { .. } => print.translation = 2,
                Op::Content { frame, store } => {
                    print.address = frame as usize + 1;
                    print.writes = store;
                    print.translation = 1;
                }
            },
        }
        print
    }

    // Memory.

    /// The CPU has read `value` from a word: a loop need not go round before that changes.
    #[inline]
    pub(crate) fn watch(&mut self, word: &AdversaryWord, value: u64) {
        let watch = &mut self.cpus[self.current].watch;
        let fresh = Watched {
            word,
            seen: value,
            turns: 0,
        };
        if let Some(known) = watch
            .iter_mut()
            .find(|known| std::ptr::eq(known.word, word))
        {
            *known = fresh;
        } else if watch.len() < WATCH {
            watch.push(fresh);
        } else {
            watch[self.now as usize % WATCH] = fresh;
        }
    }

    #[inline]
    pub(crate) fn load(&mut self, word: &AdversaryWord) -> u64 {
        let cpu = &self.cpus[self.current];
        let mut value = word.peek();
        if cpu.buffered > 0 {
            let mine = cpu.buffer.iter().flatten().filter(
                |entry| matches!(entry.target, Target::Word(other) if std::ptr::eq(other, word)),
            );
            if let Some(newest) = mine.max_by_key(|entry| entry.order) {
                value = newest.value;
            }
        }
        self.watch(word, value);
        if self.tracing() {
            self.record(self.current, What::Read(value));
        }
        value
    }

    #[inline]
    pub(crate) fn store(&mut self, word: &AdversaryWord, value: u64, order: Ordering) {
        if self.tracing() {
            self.record(self.current, What::Wrote(value));
        }
        // What the CPU itself changes is no news to it.
        let mut watch = self.cpus[self.current].watch.iter_mut();
        if let Some(known) = watch.find(|known| std::ptr::eq(known.word, word)) {
            known.seen = value;
        }
        if order == Ordering::SeqCst && self.kind.stores == Stores::Ordered {
            self.write_visible(word, value);
            return;
        }
        self.buffer(Target::Word(word), value, order);
    }

    fn buffer(&mut self, target: Target, value: u64, order: Ordering) {
        let cpu = &mut self.cpus[self.current];
        let place = cpu.buffer.iter().position(Option::is_none);
        let place = place.expect("a store waits for room");
        cpu.next_order = if cpu.buffered == 0 {
            0
        } else {
            cpu.next_order + 1
        };
        cpu.buffer[place] = Some(Buffered {
            target,
            value,
            epoch: cpu.epoch,
            release: matches!(order, Ordering::Release | Ordering::SeqCst),
            sequential: order == Ordering::SeqCst,
            order: cpu.next_order,
        });
        cpu.buffered += 1;
    }

    /// Stores after this one do not overtake those before.
    pub(crate) fn order_stores(&mut self, me: usize) {
        self.cpus[me].epoch += 1;
    }

    /// A store of the current CPU that everybody sees at once.
    pub(crate) fn write_visible(&mut self, word: &AdversaryWord, value: u64) {
        self.write(word, value);
    }

    fn write(&mut self, word: &AdversaryWord, value: u64) {
        let old = word.peek();
        if old == value {
            return;
        }
        self.second_looks = 0;
        word.poke(value);
        if let Some(place) = self.arena.place(word) {
            let arena = Rc::clone(&self.arena);
            self.mmu.written(&arena, self.now, place, (old, value));
            self.check_tables();
        }
    }

    /// Makes the stores of a CPU visible: before the run nothing is late.
    pub(crate) fn drain_all(&mut self, cpu: usize) {
        for place in 0..BUFFER {
            self.drain(cpu, place);
        }
    }

    fn drain(&mut self, cpu: usize, place: usize) {
        self.now += 1;
        let Some(entry) = self.cpus[cpu].buffer[place].take() else {
            return;
        };
        self.cpus[cpu].buffered -= 1;
        if self.tracing() {
            let what = match entry.target {
                Target::Word(word) => What::Visible(word, entry.value),
                Target::Content { used, .. } => What::Landed(used.frame, entry.value),
                Target::Invalidation { what, .. } => What::Said(format!("~ {what:?} takes effect")),
            };
            self.record(cpu, what);
        }
        match entry.target {
            Target::Word(word) => {
                // SAFETY: words take themselves out of the buffers when they are dropped.
                let word = unsafe { &*word };
                self.write(word, entry.value);
            }
            Target::Invalidation { what, sent } => self.mmu.invalidate(cpu, what, sent),
            Target::Content { used, word } => {
                let history = *self.oracle.frame(used.frame);
                let broken = if history.allocated > used.written {
                    Some((Clause::C1, history.allocated_by, "that has a new owner"))
                } else if history.captured > used.written {
                    let account = "whose content has been captured";
                    Some((Clause::C2, history.captured_by, account))
                } else {
                    None
                };
                if let Some((clause, other, account)) = broken {
                    self.fail(Violation {
                        clause,
                        cpu: CpuId(cpu as u16),
                        other: Some(CpuId(other.into())),
                        frame: Some(Frame(used.frame.into())),
                        page: Some(Page(used.page)),
                        account: format!("a store arrived late in a frame {account}"),
                    });
                }
                self.set_content(used.frame, word, entry.value);
            }
        }
    }

    /// A word goes.
    pub(crate) fn forget(&mut self, word: &AdversaryWord) {
        for cpu in &mut self.cpus {
            cpu.watch.retain(|known| !std::ptr::eq(known.word, word));
            if cpu.buffered > 0 {
                for place in &mut cpu.buffer {
                    if let Some(entry) = place
                        && matches!(entry.target, Target::Word(other) if std::ptr::eq(other, word))
                    {
                        *place = None;
                        cpu.buffered -= 1;
                    }
                }
            }
        }
    }

    /// The content of a frame.
    pub(crate) fn content(&self, frame: u32, word: usize) -> u64 {
        self.content[frame as usize][word]
    }

    /// Changes the content of a frame.
    pub(crate) fn set_content(&mut self, frame: u32, word: usize, value: u64) {
        if value != self.content[frame as usize][word] {
            self.touched.push(frame);
            self.content[frame as usize][word] = value;
        }
    }

    /// The program of a CPU makes a call.
    pub(crate) fn begin_call(&mut self, me: usize) {
        self.cpus[me].call_began = self.now;
    }

    /// When the program of a CPU made its call.
    pub(crate) fn call_began(&self, me: usize) -> Moment {
        self.cpus[me].call_began
    }

    /// Zeroes a frame, the words of the table that it may become included.
    pub(crate) fn clear_frame(&mut self, frame: u32) {
        for word in 0..FRAME_WORDS {
            self.set_content(frame, word, 0);
        }
        let arena = Rc::clone(&self.arena);
        for index in self.mmu.written_words(frame) {
            self.write(&arena.table(frame)[index], 0);
        }
    }

    // Interrupts.

    pub(crate) fn begin_interrupt(&mut self, me: usize) -> bool {
        self.record(me, What::Interrupt);
        let cpu = &mut self.cpus[me];
        let spurious = !std::mem::replace(&mut cpu.interrupt, false);
        let were_on = std::mem::replace(&mut cpu.interrupts_on, false);
        if spurious {
            self.spurious -= 1;
            self.happen(super::coverage::Happening::Spurious);
        }
        were_on
    }

    pub(crate) fn end_interrupt(&mut self, me: usize, were_on: bool) {
        self.cpus[me].interrupts_on = were_on;
        self.cpus[me].woken = true;
        self.record(me, What::InterruptDone);
    }

    pub(crate) fn begin_nmi(&mut self, me: usize) {
        self.record(me, What::Nmi);
        self.cpus[me].in_nmi = true;
        self.nmis -= 1;
        self.nmis_taken += 1;
    }

    pub(crate) fn end_nmi(&mut self, me: usize) {
        self.cpus[me].in_nmi = false;
        self.cpus[me].woken = true;
        self.record(me, What::NmiDone);
    }

    /// Whether an interrupt could be taken now.
    pub(crate) fn interruptible(&self, me: usize) -> bool {
        let cpu = &self.cpus[me];
        cpu.interrupts_on && !cpu.in_nmi
    }

    /// What was pending is lost: the CPU goes offline.
    pub(crate) fn lose_interrupt(&mut self, me: usize) {
        self.cpus[me].interrupt = false;
    }

    pub(crate) fn mask(&mut self, me: usize) -> bool {
        std::mem::replace(&mut self.cpus[me].interrupts_on, false)
    }

    pub(crate) fn unmask(&mut self, me: usize, on: bool) {
        self.cpus[me].interrupts_on |= on;
    }

    /// Interrupts become pending.
    pub(crate) fn send(&mut self, targets: u8) {
        for (index, cpu) in self.cpus[..self.count].iter_mut().enumerate() {
            cpu.interrupt |= targets & 1 << index != 0;
        }
    }

    /// Whether the CPU is in an NMI.
    pub(crate) fn in_nmi(&self, me: usize) -> bool {
        self.cpus[me].in_nmi
    }

    // Translations.

    pub(crate) fn invalidate(&mut self, me: usize, what: Invalidate, at_once: bool) {
        let sent = self.now;
        if at_once || self.kind.stores == Stores::Ordered {
            self.mmu.invalidate(me, what, sent);
        } else {
            self.current = me;
            self.buffer(Target::Invalidation { what, sent }, 0, Ordering::Relaxed);
        }
    }

    pub(crate) fn broadcast(&mut self, me: usize, what: Invalidate) {
        let now = self.now;
        self.cpus[me].broadcasts.push((what, now));
    }

    pub(crate) fn complete_broadcasts(&mut self, me: usize) {
        self.mmu.barrier(self.now);
        let mut sent = std::mem::take(&mut self.cpus[me].broadcasts);
        for (what, at) in sent.drain(..) {
            for cpu in 0..self.count {
                self.mmu.invalidate(cpu, what, at);
            }
        }
        self.cpus[me].broadcasts = sent;
    }

    pub(crate) fn load_root(&mut self, me: usize, root: u32, tag: u16, keep: bool) {
        let arena = Rc::clone(&self.arena);
        let keep = keep && self.kind.tagged();
        self.mmu.load_root(&arena, me, self.now, root, tag, keep);
        self.check_tables();
    }

    /// No walker may be able to read a freed table (C6).
    pub(crate) fn check_tables(&mut self) {
        for cpu in 0..self.count {
            let dead = |frame: u32| self.oracle.frame(frame).dead_table;
            let Some((table, base)) = self.mmu.dead_table(cpu, dead) else {
                continue;
            };
            let freed_by = self.oracle.frame(table).freed_by;
            self.fail(Violation {
                clause: Clause::C6,
                cpu: CpuId(cpu as u16),
                other: Some(CpuId(freed_by.into())),
                frame: Some(Frame(table.into())),
                page: Some(Page(base)),
                account: "the walker can read a page-table page after it was freed".into(),
            });
        }
    }

    /// A program's access through the translation hardware.
    pub(crate) fn access(
        &mut self,
        me: usize,
        page: u64,
        word: usize,
        store: Option<u64>,
    ) -> Accessed {
        let Some(root) = self.mmu.root(me) else {
            if self.tracing() {
                self.say(me, || format!("page {page:#x}: no root is loaded"));
            }
            return Accessed::Fault;
        };
        let needed = if store.is_some() {
            mmu::PRESENT | mmu::USER | mmu::WRITABLE
        } else {
            mmu::PRESENT | mmu::USER
        };
        let arena = Rc::clone(&self.arena);
        let live = self.mmu.walk(&arena, me, page);
        let allowed = |leaf: &Leaf| leaf.word & needed == needed;
        // Everything that the hardware may use for this access, the walk first.
        let mut options: [Option<Leaf>; 8] = [None; 8];
        let mut count = 0;
        let mut fault = true;
        let mut broken = None;
        if let Some(leaf) = live
            && allowed(&leaf)
        {
            broken = self
                .oracle
                .judge(me as u8, root, &leaf.used(page), store.is_some());
            options[0] = Some(leaf);
            count = 1;
            fault = false;
        }
        for leaf in self.mmu.cached(me, page) {
            if !allowed(leaf) || broken.is_some() {
                continue;
            }
            let used = leaf.used(page);
            let fresh = live.is_some_and(|live| {
                let live_used = live.used(page);
                live_used.frame == used.frame
                    && used.root == root
                    && leaf.word & !live.word & (mmu::WRITABLE | mmu::USER | mmu::DIRTY) == 0
            });
            if fresh {
                continue;
            }
            // A store through an entry that is not dirty makes the walker look again.
            if store.is_some()
                && self.kind.hardware_dirty
                && leaf.word & mmu::DIRTY == 0
                && leaf.until != Moment::MAX
            {
                continue;
            }
            broken = self.oracle.judge(me as u8, root, &used, store.is_some());
            let known = options[..count]
                .iter()
                .flatten()
                .any(|other| other.used(page).frame == used.frame);
            if !known && count < options.len() {
                options[count] = Some(*leaf);
                count += 1;
            }
        }
        if let Some(violation) = broken {
            self.fail(violation);
            return Accessed::Fault;
        }
        let alternatives = count + usize::from(fault);
        let choice = self.pick_data(alternatives);
        // A fault comes first where the walk finds nothing.
        let chosen = if fault {
            choice.checked_sub(1)
        } else {
            Some(choice)
        };
        let Some(leaf) = chosen.and_then(|at| options[at]) else {
            if self.tracing() {
                self.say(me, || format!("page {page:#x}: fault"));
            }
            self.happen(super::coverage::Happening::Fault);
            return Accessed::Fault;
        };
        let used = leaf.used(page);
        let stale = live.is_none_or(|live| live.used(page).frame != used.frame);
        if stale {
            self.stale_uses += 1;
            self.happen(super::coverage::Happening::StaleUse);
        }
        if self.in_nmi(me) {
            self.nmi_accesses += 1;
            self.happen(super::coverage::Happening::NmiAccess);
        }
        if self.kind.hardware_dirty && leaf.until == Moment::MAX {
            self.set_bits(&leaf, page, store.is_some());
        }
        let held = self.content_seen(me, used.frame, word);
        if self.tracing() {
            let frame = used.frame;
            let how = if stale {
                " through a stale translation"
            } else {
                ""
            };
            self.say(me, || match store {
                Some(value) => {
                    format!("page {page:#x}: stores {value:#x} to frame {frame:#x}{how}")
                }
                None => format!("page {page:#x}: loads {held:#x} from frame {frame:#x}{how}"),
            });
        }
        match store {
            Some(value) => {
                if self.cpus[me].buffered < BUFFER {
                    self.current = me;
                    self.buffer(Target::Content { used, word }, value, Ordering::Relaxed);
                }
            }
            None => self.check_fresh(me, root, &used, word, held),
        }
        let stale = (stale && !self.stores_to(me, used.frame)).then_some(used.frame);
        Accessed::Value { held, stale }
    }

    /// Whether a store of the CPU to this frame still lies in its buffer.
    fn stores_to(&self, me: usize, frame: u32) -> bool {
        self.cpus[me].buffered > 0
            && self.cpus[me].buffer.iter().flatten().any(
                |entry| matches!(entry.target, Target::Content { used, .. } if used.frame == frame),
            )
    }

    /// What the CPU reads of a frame: its own buffered stores first.
    fn content_seen(&self, me: usize, frame: u32, word: usize) -> u64 {
        let mine = self.cpus[me].buffer.iter().flatten().filter(|entry| {
            matches!(entry.target, Target::Content { used, word: w } if used.frame == frame && w == word)
        });
        mine.max_by_key(|entry| entry.order)
            .map_or_else(|| self.content(frame, word), |entry| entry.value)
    }

    /// The walker sets accessed and dirty.
    fn set_bits(&mut self, leaf: &Leaf, page: u64, store: bool) {
        let (table, index) = leaf.place(page);
        let arena = Rc::clone(&self.arena);
        let word = &arena.table(table)[index];
        let held = word.peek();
        let bits = mmu::ACCESSED | if store { mmu::DIRTY } else { 0 };
        if held & mmu::PRESENT != 0 && held & bits != bits {
            self.write(word, held | bits);
        }
    }

    fn check_fresh(&mut self, me: usize, root: u32, used: &Used, word: usize, value: u64) {
        let Some(promised) = self.oracle.promised(root, used.page) else {
            return;
        };
        if word == 0 && promised != value {
            self.fail(Violation {
                clause: Clause::C4,
                cpu: CpuId(me as u16),
                other: None,
                frame: Some(Frame(used.frame.into())),
                page: Some(Page(used.page)),
                account: format!("a load returned {value:#x}, the mapping says {promised:#x}"),
            });
        }
    }
}

fn same_target(one: &Target, other: &Target) -> bool {
    match (one, other) {
        (Target::Word(one), Target::Word(other)) => std::ptr::eq(*one, *other),
        (
            Target::Content { used: one, word: a },
            Target::Content {
                used: other,
                word: b,
            },
        ) => one.frame == other.frame && a == b,
        _ => false,
    }
}

/// Runs `body` on the machine, for operations that need no reference to it.
pub(crate) fn on_machine<R>(body: impl FnOnce(&mut Core, usize) -> R) -> R {
    let me = context::this_cpu();
    context::with(|core| body(core, me))
}

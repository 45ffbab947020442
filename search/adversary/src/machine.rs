//! The machine's state, and what each action does to it.
//!
//! A CPU's code runs until it *arrives* at an operation on shared state. There the machine asks the scheduler what
//! happens next, and the operation takes place when the CPU's step is picked. Between two such points a CPU touches
//! nothing that others could see.
//!
//! Stores first go into a buffer, and become visible by a separate action. A CPU whose operation needs an empty buffer
//! (a fence, an atomic exchange, an invalidation) waits until its stores have drained. Stores of the kernel to frames
//! work the same way ([`Fill`]): on machines whose stores overtake each other, an entry may be seen before the bytes of
//! the page that it maps. The file is long because it holds the whole state, the start of a run, and the interrupts of
//! a CPU's code.
//!
//! On machines that reorder ([`MachineKind::reorders`]), a load may return an earlier value of its word: it was
//! satisfied before operations that come earlier in its program, as far as acquire loads, fences and earlier reads
//! allow ([`past`]). Stores wait without bound. On other machines loads are satisfied at their step, and a buffer holds
//! eight stores.
//!
//! A CPU that waits in a loop ([`quell::Hardware::relax`]) is picked again only after a word that it read since its
//! last turn has changed; another turn would read the same. So loops end. If one CPU waits and no CPU can do anything,
//! that is a deadlock (C7).
//!
//! | module | what happens there |
//! | --- | --- |
//! | here | the state, and interrupts |
//! | [`choose`] | what may happen next |
//! | [`touched`] | what that touches |
//! | [`memory`] | words, frames, store buffers |
//! | [`access`] | translations, and accesses through them |
//! | [`bystanders`] | what programs could do at a moment, without doing it |
//! | [`note`] | what the kernel tells the judge |
//! | [`misuse`] | what the machine does not allow |
//! | [`buffer`] | what a CPU has stored and others do not see yet |
//! | [`past`] | what words held before, and how far back each CPU may look |
//! | [`watch`] | what a CPU has read, and waits for |
//! | [`saved`] | a machine that further runs begin with |
//! | [`state`] | what all of it is at a moment, as a number |

mod access;
pub(crate) mod buffer;
mod bystanders;
mod choose;
mod memory;
mod misuse;
mod note;
mod past;
mod saved;
mod state;
mod touched;
mod user_half;
mod watch;

use crate::action::{Action, Actions, Deviation, MAX_CPUS};
use crate::cell::{AdversaryWord, FRAME_WORDS};
use crate::coverage::Happening;
use crate::digest::{Digest, Locals, Sums};
use crate::footprint::Footprints;
use crate::isolation::Halves;
use crate::kind::MachineKind;
use crate::mmu::Mmu;
use crate::op::Op;
use crate::oracle::{Moment, Oracle};
use crate::schedule::Strategy;
use crate::tables::Arena;
use crate::timeline::{Entry, What};
use crate::vm_kernel::FIRST_PROCESS;
pub(crate) use saved::Saved;

use buffer::{Buffered, Fill, StoreBuffer, Target};
use past::Past;
use quell::{CpuId, Features, Invalidate};
use quell_vm::contract::{AbstractMachine, Clause, Violation};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use watch::Watch;

/// What the CPU that arrived does now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Go,
    Suspend,
    Interrupt,
    Nmi,
    Preempt,
}

/// How often every CPU looks again before a deadlock is called one.
const SECOND_LOOKS: u8 = 4;

struct Cpu {
    pending: Op,
    buffer: StoreBuffer,
    epoch: u32,
    online: bool,
    interrupts_on: bool,
    interrupt: bool,
    in_nmi: bool,
    /// What the CPU has read, and would find changed if it looked again.
    watch: Watch,
    woken: bool,
    broadcasts: Vec<(Invalidate, Moment)>,
    /// When the program made the call that it is in; [`Moment::MAX`] if it did not say.
    call_began: Moment,
}

impl Cpu {
    fn new() -> Self {
        Cpu {
            pending: Op::Start,
            buffer: StoreBuffer::new(),
            epoch: 0,
            online: false,
            interrupts_on: true,
            interrupt: false,
            in_nmi: false,
            watch: Watch::new(),
            woken: false,
            broadcasts: Vec::with_capacity(8),
            call_began: Moment::MAX,
        }
    }

    fn reset(&mut self) {
        self.pending = Op::Start;
        self.buffer.clear();
        self.epoch = 0;
        self.online = false;
        self.interrupts_on = true;
        self.interrupt = false;
        self.in_nmi = false;
        self.watch.forget_all();
        self.woken = false;
        self.broadcasts.clear();
        self.call_began = Moment::MAX;
    }

    /// Whether an invalidation of this CPU has not taken effect.
    fn invalidates(&self) -> bool {
        let invalidates = |entry: &Buffered| matches!(entry.target, Target::Invalidation { .. });
        self.buffer.others().any(invalidates)
    }

    /// Whether a store of this CPU to a word is not visible yet.
    fn holds(&self, word: *const AdversaryWord) -> bool {
        self.buffer.holds(word)
    }

    /// Whether a word that the CPU has read has changed, and not by a store of its own that is on its way.
    #[inline]
    fn sees_change(&self) -> bool {
        self.watch.changed().any(|word| !self.holds(word))
    }

    /// The buffered stores that fill frames.
    fn fills(&self) -> impl Iterator<Item = (&Buffered, &Fill)> {
        self.buffer
            .others()
            .filter_map(|entry| match &entry.target {
                Target::Fill(fill) => Some((entry, fill)),
                _ => None,
            })
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

/// A change of the kernel's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    page: u64,
    changed: Moment,
    /// The call that tells every CPU has returned.
    done: bool,
}

/// The machine.
pub(crate) struct Core {
    /// The last change of the kernel's text.
    text: Option<Text>,
    /// What each CPU's user mode is, on machines where it has tags of its own.
    pub(crate) halves: [Halves; MAX_CPUS],
    /// When each CPU dropped last what it had fetched.
    synchronized: [Moment; MAX_CPUS],
    pub(crate) kind: MachineKind,
    pub(crate) features: Features,
    pub(crate) count: usize,
    cpus: [Cpu; MAX_CPUS],
    /// What each CPU may do next, as far as that is known.
    enabled: [Actions; MAX_CPUS],
    /// Of which CPUs it is not, as bits. What a CPU may do changes with its own operations, which is seen when it
    /// arrives at them, and else only where this says so.
    outdated: u8,
    /// Which CPUs have arrived at a turn of a waiting loop and not had it, as bits: a word that changes may be what one
    /// of them waits for.
    waiting: u8,
    /// Whether a CPU that goes on needs nothing else at an operation: the run is under way, is none of a search of
    /// every schedule, and nobody takes notes of it; nor does the CPU leave a user half.
    brisk: bool,
    /// What was picked last of all that may happen.
    picked: Action,
    pub(crate) mmu: Mmu,
    pub(crate) oracle: Oracle,
    /// What programs over the manager have in memory.
    pub(crate) abstract_machine: AbstractMachine,
    content: Box<[[u64; FRAME_WORDS]]>,
    touched: Vec<u32>,
    past: Past,
    pub(crate) arena: Rc<Arena>,
    pub(crate) strategy: Strategy,
    pub(crate) decisions: u32,
    /// The decision after which the run is called endless, unless a program comes further before it.
    pub(crate) limit: u32,
    /// How many decisions, all of them fair, one operation of a program takes at most.
    pub(crate) patience: u32,
    /// The decision after which every CPU that can do something does it before long.
    pub(crate) fair_after: u32,
    pub(crate) now: Moment,
    current: usize,
    granted: Action,
    /// How often the CPUs that wait have looked again in vain.
    second_looks: u8,
    pub(crate) nmis: u8,
    /// How many more times a CPU may be preempted.
    pub(crate) preemptions: u8,
    pub(crate) spurious: u8,
    pub(crate) end: Option<End>,
    pub(crate) trail: Vec<Deviation>,
    /// Which CPUs have used a word, in all runs of a search.
    users: FxHashMap<usize, u8>,
    /// Which CPUs were interrupted, in all runs of a search.
    interrupted: u8,
    surprised: bool,
    pub(crate) timeline: Option<Vec<Entry>>,
    /// What the CPUs do to each other's words, if that was asked for.
    pub(crate) footprints: Option<Box<Footprints>>,
    /// What words and contents are, as a sum that each change adds its part to.
    sums: Sums,
    locals: Locals,
    /// What the heap of a search holds.
    heap: u128,
    digest: RefCell<Digest>,
    /// Whether the run is one of a search: then nothing is chosen while code of a CPU runs.
    pub(crate) searches: bool,
    /// A CPU has arrived and the next action is not chosen yet.
    open: bool,
    /// Which CPUs are in the code of a program, as bits ([`bystanders`]).
    programs: u8,
    /// Stale translations that were used lawfully.
    pub(crate) stale_uses: u64,
    pub(crate) nmis_taken: u64,
    pub(crate) nmi_accesses: u64,
    pub(crate) events: [u64; Happening::COUNT],
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
            text: None,
            halves: [Halves::new(); MAX_CPUS],
            synchronized: [0; MAX_CPUS],
            kind,
            features: kind.features(count),
            count,
            cpus: std::array::from_fn(|_| Cpu::new()),
            enabled: [0; MAX_CPUS],
            outdated: 0,
            waiting: 0,
            brisk: false,
            picked: Action::step(0),
            mmu: Mmu::new(count, frames, tables),
            oracle: Oracle::new(frames),
            abstract_machine: AbstractMachine::default(),
            content: vec![[0; FRAME_WORDS]; frames].into(),
            touched: Vec::with_capacity(64),
            past: Past::default(),
            arena,
            strategy: Strategy::script(Vec::new()),
            decisions: 0,
            limit: u32::MAX,
            patience: 0,
            fair_after: u32::MAX,
            now: 1,
            current: 0,
            granted: Action::step(0),
            second_looks: 0,
            nmis: 0,
            preemptions: 0,
            spurious: 0,
            end: None,
            trail: Vec::with_capacity(1024),
            users: FxHashMap::default(),
            interrupted: 0,
            surprised: false,
            timeline: None,
            footprints: None,
            sums: Sums::default(),
            locals: Locals::default(),
            heap: 0,
            digest: RefCell::default(),
            searches: false,
            open: false,
            programs: 0,
            stale_uses: 0,
            nmis_taken: 0,
            nmi_accesses: 0,
            events: [0; Happening::COUNT],
        }
    }

    /// Makes ready for another run of programs that allocate there, on an engine that may be content with `receipts`.
    pub(crate) fn reset(&mut self, levels: u8, receipts: bool, heap: Range<usize>) {
        let origin = self.arena.start();
        for cpu in &mut self.cpus {
            cpu.reset();
            cpu.watch.clear(origin, heap.clone());
        }
        self.outdate_all();
        self.waiting = 0;
        self.brisk = false;
        self.past.clear();
        self.mmu.reset(&self.arena, levels, &self.kind, receipts);
        self.oracle.reset();
        self.abstract_machine.reset(self.count, FIRST_PROCESS);
        self.text = None;
        self.halves = [Halves::new(); MAX_CPUS];
        self.synchronized = [0; MAX_CPUS];
        for frame in self.touched.drain(..) {
            self.content[frame as usize] = [0; FRAME_WORDS];
        }
        self.decisions = 0;
        self.now = 1;
        self.current = 0;
        self.second_looks = 0;
        self.end = None;
        self.trail.clear();
        self.events = [0; Happening::COUNT];
        self.sums = Sums::default();
        self.locals = Locals::default();
        self.open = false;
        self.programs = 0;
        if let Some(timeline) = &mut self.timeline {
            timeline.clear();
        }
        if let Some(footprints) = &mut self.footprints {
            footprints.begin();
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

    /// A program has come to the end of one of its operations, of which it has a limited number: the next may
    /// take its time.
    pub(crate) fn come_further(&mut self, me: usize) {
        if let Some(footprints) = &mut self.footprints {
            footprints.come_further(me);
        }
        self.limit = self.limit.max(self.decisions.saturating_add(self.patience));
    }

    /// The next actions of this CPU have to be found out anew.
    #[inline]
    fn outdate(&mut self, cpu: usize) {
        self.outdated |= 1 << cpu;
    }

    /// These CPUs may do something else next, though they have done no step.
    #[inline]
    fn outdate_those(&mut self, which: impl Fn(&Cpu) -> bool) {
        for (index, cpu) in self.cpus[..self.count].iter().enumerate() {
            self.outdated |= u8::from(which(cpu)) << index;
        }
    }

    /// The same of all.
    fn outdate_all(&mut self) {
        self.outdated = (1 << self.count) - 1;
    }

    pub(crate) fn happen(&mut self, happening: Happening) {
        self.events[happening as usize] += 1;
    }

    /// The contract is broken: the run ends.
    pub(crate) fn fail(&mut self, violation: Violation) {
        if matches!(self.end, None | Some(End::Finished)) {
            let text = violation.to_string();
            let cpu = violation.cpu.map_or(self.current, CpuId::index);
            self.record(cpu, What::Broke(text));
            self.stop(End::Violated(Box::new(violation)));
        }
    }

    /// The run ends.
    fn stop(&mut self, end: End) {
        self.end = Some(end);
        self.brisk = false;
    }

    /// The code of a CPU panicked: a CPU that stops itself completes nothing.
    pub(crate) fn fail_panic(&mut self, me: usize, account: String) {
        self.fail(Violation::new(Clause::C7, account).by(CpuId(me as u16)));
    }

    pub(crate) fn begin_interrupt(&mut self, me: usize) -> bool {
        self.nest(me, true);
        self.record(me, What::Interrupt);
        self.past.hear(me);
        self.outdate(me);
        let cpu = &mut self.cpus[me];
        let spurious = !std::mem::replace(&mut cpu.interrupt, false);
        let were_on = std::mem::replace(&mut cpu.interrupts_on, false);
        if spurious {
            self.spurious -= 1;
            self.outdate_all();
            self.happen(Happening::Spurious);
        }
        were_on
    }

    pub(crate) fn end_interrupt(&mut self, me: usize, were_on: bool) {
        self.nest(me, false);
        self.check_handler(me);
        self.outdate(me);
        self.cpus[me].interrupts_on = were_on;
        self.cpus[me].woken = true;
        self.record(me, What::InterruptDone);
    }

    pub(crate) fn begin_nmi(&mut self, me: usize) {
        self.nest(me, true);
        self.record(me, What::Nmi);
        self.cpus[me].in_nmi = true;
        self.nmis -= 1;
        self.outdate_all();
        self.nmis_taken += 1;
    }

    pub(crate) fn end_nmi(&mut self, me: usize) {
        self.nest(me, false);
        self.outdate(me);
        self.cpus[me].in_nmi = false;
        self.cpus[me].woken = true;
        self.record(me, What::NmiDone);
    }

    pub(crate) fn begin_preemption(&mut self, me: usize) {
        self.nest(me, true);
        self.record(me, What::Preempted);
        self.preemptions -= 1;
        self.outdate_all();
        self.happen(Happening::Preempted);
    }

    pub(crate) fn end_preemption(&mut self, me: usize) {
        self.nest(me, false);
        self.cpus[me].woken = true;
        self.record(me, What::PreemptionDone);
    }

    /// Something begins to interrupt what the CPU does, or is over.
    fn nest(&mut self, me: usize, begins: bool) {
        if begins {
            self.leave_user_half(me);
        }
        if let Some(footprints) = &mut self.footprints {
            footprints.nest(me, begins);
        }
    }

    /// Whether an interrupt could be taken now.
    pub(crate) fn interruptible(&self, me: usize) -> bool {
        let cpu = &self.cpus[me];
        cpu.interrupts_on && !cpu.in_nmi
    }

    /// The CPU comes online.
    pub(crate) fn online(&mut self, me: usize) {
        self.check_presence(me, true);
        self.cpus[me].online = true;
    }

    /// The CPU goes offline: what was pending is lost.
    pub(crate) fn offline(&mut self, me: usize) {
        self.check_presence(me, false);
        self.cpus[me].online = false;
        self.cpus[me].interrupt = false;
        self.outdate(me);
    }

    pub(crate) fn mask(&mut self, me: usize) -> bool {
        let were_on = std::mem::replace(&mut self.cpus[me].interrupts_on, false);
        if were_on {
            self.outdate(me);
        }
        were_on
    }

    pub(crate) fn unmask(&mut self, me: usize, on: bool) {
        if on {
            self.outdate(me);
        }
        self.cpus[me].interrupts_on |= on;
    }

    /// Interrupts become pending.
    pub(crate) fn send(&mut self, me: usize, targets: u8) {
        for (index, cpu) in self.cpus[..self.count].iter_mut().enumerate() {
            if targets & 1 << index != 0 {
                cpu.interrupt = true;
                self.outdated |= 1 << index;
                self.past.tell(me, index);
            }
        }
    }

    /// Whether the CPU is in an NMI.
    pub(crate) fn in_nmi(&self, me: usize) -> bool {
        self.cpus[me].in_nmi
    }
}

//! Holds the machine's state, and performs each action on it.
//!
//! A CPU's code runs until it *arrives* at an operation on shared state. There the machine requests the next action
//! from the scheduler, and performs the operation when the CPU's step is picked. Between two such points, a CPU touches
//! nothing that others could see.
//!
//! Stores first enter a buffer, and become visible by a separate action. Some operations need an empty buffer: a fence,
//! an atomic exchange, an invalidation. There the CPU waits until its stores have drained. The kernel's stores to
//! frames work the same way ([`Fill`]). So on machines whose stores overtake each other, a CPU may see an entry before
//! the bytes of the page that it maps.
//!
//! On machines that reorder ([`MachineKind::reorders`]), a load may return an earlier value of its word. Such a load
//! was satisfied before operations that come earlier in its program, as far as acquire loads, fences and earlier reads
//! allow ([`past`]). A store may wait without limit. On other machines, loads are satisfied at their step, and a buffer
//! holds eight stores.
//!
//! A CPU that waits in a loop ([`quell::Hardware::relax`]) is picked again only after a word has changed that it read
//! since its last iteration. Otherwise it would read the same again. So loops end. If one CPU waits and no CPU can do
//! anything, the machine reports a deadlock (C7).

mod access;
pub(crate) mod buffer;
mod bystanders;
mod choose;
mod memory;
mod note;
mod past;
mod saved;
mod state;
pub(crate) mod user_half;
mod watch;

use crate::action::Op;
use crate::action::{Action, Actions, Deviation, MAX_CPUS};
use crate::coverage::MachineEvent;
use crate::digest::{Digest, Locals, Sums};
use crate::footprint::Footprints;
use crate::kind::MachineKind;
use crate::mmu::Mmu;
use crate::oracle::{Moment, Oracle};
use crate::schedule::Strategy;
use crate::tables::Arena;
use crate::timeline::{Entry, RunEvent};
use crate::vm_kernel::FIRST_PROCESS;
use crate::word::{AdversaryWord, FRAME_WORDS};
pub(crate) use saved::SavedMachine;

use buffer::{BufferedOp, Fill, StoreBuffer, Target};
use past::Past;
use quell::{CpuId, Features, Frame, Invalidation};
use quell_vm::contract::{AbstractMachine, Clause, Violation};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use user_half::UserHalfState;
use watch::Watch;

/// How a CPU that has arrived at an operation continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Go,
    Suspend,
    Interrupted(Interruption),
}

/// What interrupts a CPU's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interruption {
    Interrupt,
    Nmi,
    Preemption,
}

/// How many more times each waiting CPU checks its condition before we report a deadlock.
const SECOND_LOOKS: u8 = 4;

struct Cpu {
    pending: Op,
    buffer: StoreBuffer,
    epoch: u32,
    online: bool,
    interrupts_on: bool,
    interrupt: bool,
    in_nmi: bool,
    /// The words that the CPU has read, to notice when one changes.
    watch: Watch,
    woken: bool,
    broadcasts: Vec<(Invalidation, Moment)>,
    /// When the program began its present call; [`Moment::MAX`] if it didn't report that.
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

    /// Returns whether an invalidation of this CPU hasn't taken effect yet.
    fn invalidates(&self) -> bool {
        let invalidates = |entry: &BufferedOp| matches!(entry.target, Target::Invalidation { .. });
        self.buffer.others().any(invalidates)
    }

    /// Returns whether a store of this CPU to a word isn't visible yet.
    fn holds(&self, word: *const AdversaryWord) -> bool {
        self.buffer.holds(word)
    }

    /// Returns whether a word that the CPU has read has changed. Words to which it has a buffered store don't count.
    #[inline]
    fn sees_change(&self) -> bool {
        self.watch.changed().any(|word| !self.holds(word))
    }

    /// Returns the buffered stores that fill frames.
    fn fills(&self) -> impl Iterator<Item = (&BufferedOp, &Fill)> {
        self.buffer.others().filter_map(|entry| match &entry.target {
            Target::Fill(fill) => Some((entry, fill)),
            _ => None,
        })
    }
}

/// The reason why a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// All programs have ended.
    Finished,
    /// The run was cut short, because the search has already run an equivalent schedule.
    Pruned,
    /// The contract was broken.
    Violated(Box<Violation>),
}

/// A change of the kernel's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    page: u64,
    changed: Moment,
    /// Whether the call that synchronizes every CPU has returned.
    done: bool,
}

pub(crate) struct Core {
    /// The last change of the kernel's text.
    text: Option<Text>,
    /// The user half of each CPU, on machines with page-table isolation.
    pub(crate) halves: [UserHalfState; MAX_CPUS],
    /// When each CPU last dropped the text that it had fetched.
    synchronized: [Moment; MAX_CPUS],
    pub(crate) kind: MachineKind,
    pub(crate) features: Features,
    pub(crate) count: usize,
    cpus: [Cpu; MAX_CPUS],
    /// The possible next actions of each CPU, except for those in `outdated`.
    enabled: [Actions; MAX_CPUS],
    /// The CPUs whose possible actions must be computed again, as bits. Arriving at an operation updates a CPU's own
    /// actions; every other change must set a bit here.
    outdated: u8,
    /// The CPUs that have arrived at an iteration of a waiting loop, as bits. A word that changes may be the one for
    /// which such a CPU waits.
    waiting: u8,
    /// Whether a CPU that continues can perform an operation without further work. It can once the run has begun,
    /// unless the run is recorded or part of an exhaustive search, or CPUs have user halves to leave.
    brisk: bool,
    /// The action that was picked last.
    picked: Action,
    pub(crate) mmu: Mmu,
    pub(crate) oracle: Oracle,
    /// The abstract machine, a model of the memory that programs over the manager have.
    pub(crate) abstract_machine: AbstractMachine,
    content: Box<[[u64; FRAME_WORDS]]>,
    touched: Vec<u32>,
    past: Past,
    pub(crate) arena: Rc<Arena>,
    pub(crate) strategy: Strategy,
    pub(crate) decisions: u32,
    /// The decision after which a run counts as endless. It moves on whenever a program finishes an operation.
    pub(crate) limit: u32,
    /// The most decisions that one operation of a program may take, all of them fair.
    pub(crate) patience: u32,
    /// The decision after which choices are fair: every CPU that can act soon does.
    pub(crate) fair_after: u32,
    pub(crate) now: Moment,
    current: usize,
    granted: Action,
    /// How many times the waiting CPUs have checked their conditions again in vain.
    second_looks: u8,
    pub(crate) nmis: u8,
    /// How many more times a CPU may be preempted.
    pub(crate) preemptions: u8,
    pub(crate) spurious: u8,
    pub(crate) end: Option<End>,
    pub(crate) trail: Vec<Deviation>,
    /// The CPUs that have used a word, in all runs of a search.
    users: FxHashMap<usize, u8>,
    /// The CPUs that were interrupted, in all runs of a search.
    interrupted: u8,
    surprised: bool,
    pub(crate) timeline: Option<Vec<Entry>>,
    /// The effects of the CPUs on each other's words, if they are recorded.
    pub(crate) footprints: Option<Box<Footprints>>,
    /// A number that identifies words and contents. Each change updates it.
    sums: Sums,
    locals: Locals,
    /// The digest of a search's heap.
    heap: u128,
    digest: RefCell<Digest>,
    /// Whether the run is part of an exhaustive search. Then the next action is chosen only while no CPU's code runs.
    pub(crate) searches: bool,
    /// Whether a CPU has arrived and the next action isn't chosen yet.
    open: bool,
    /// The CPUs that are in the code of a program, as bits ([`bystanders`]).
    programs: u8,
    pub(crate) events: [u64; MachineEvent::COUNT],
}

/// The result of an access to user memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessOutcome {
    /// The access succeeded.
    Value {
        /// The value loaded, or the value before the store.
        held: u64,
        /// The accessed frame, if the tables lead elsewhere by now and this CPU has no buffered store to the frame.
        stale: Option<u32>,
    },
    Fault,
}

/// Returns a violation by a CPU in a frame.
fn breach(clause: Clause, account: impl Into<String>, cpu: usize, frame: u32) -> Violation {
    Violation::new(clause, account).by(CpuId(cpu as u16)).in_frame(Frame(frame.into()))
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
            halves: [UserHalfState::new(); MAX_CPUS],
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
            mmu: Mmu::new(kind, Rc::clone(&arena), count, frames, tables),
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
            events: [0; MachineEvent::COUNT],
        }
    }

    /// Prepares for another run, whose programs allocate in `heap`. With `receipts`, the engine may continue before
    /// targets have flushed.
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
        self.mmu.reset(levels, receipts);
        self.oracle.reset();
        self.abstract_machine.reset(self.count, FIRST_PROCESS);
        self.text = None;
        self.halves = [UserHalfState::new(); MAX_CPUS];
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
        self.events = [0; MachineEvent::COUNT];
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

    fn record(&mut self, cpu: usize, what: RunEvent) {
        let step = self.decisions;
        if let Some(timeline) = &mut self.timeline {
            timeline.push(Entry { step, cpu, what });
        }
    }

    /// Writes a note into the timeline.
    pub(crate) fn say(&mut self, cpu: usize, text: impl FnOnce() -> String) {
        if self.tracing() {
            let text = text();
            self.record(cpu, RunEvent::Said(text));
        }
    }

    /// Records that a program has finished one of its operations, so that the next one gets the full time. The run
    /// still ends, because programs have finitely many operations.
    pub(crate) fn come_further(&mut self, me: usize) {
        if let Some(footprints) = &mut self.footprints {
            footprints.come_further(me);
        }
        self.limit = self.limit.max(self.decisions.saturating_add(self.patience));
    }

    /// Marks this CPU's possible actions as out of date.
    #[inline]
    fn outdate(&mut self, cpu: usize) {
        self.outdated |= 1 << cpu;
    }

    /// Marks the possible actions of some CPUs as out of date, although these CPUs performed no step.
    #[inline]
    fn outdate_those(&mut self, which: impl Fn(&Cpu) -> bool) {
        for (index, cpu) in self.cpus[..self.count].iter().enumerate() {
            self.outdated |= u8::from(which(cpu)) << index;
        }
    }

    /// Marks the possible actions of all CPUs as out of date.
    fn outdate_all(&mut self) {
        self.outdated = (1 << self.count) - 1;
    }

    pub(crate) fn happen(&mut self, happening: MachineEvent) {
        self.events[happening as usize] += 1;
    }

    /// Ends the run with a breach of the contract.
    pub(crate) fn fail(&mut self, violation: Violation) {
        if matches!(self.end, None | Some(End::Finished)) {
            let text = violation.to_string();
            let cpu = violation.cpu.map_or(self.current, CpuId::index);
            self.record(cpu, RunEvent::Broke(text));
            self.stop(End::Violated(Box::new(violation)));
        }
    }

    /// Ends the run.
    fn stop(&mut self, end: End) {
        self.end = Some(end);
        self.brisk = false;
    }

    /// Ends the run because a CPU's code panicked. This breaks C7: a CPU that stops completes nothing.
    pub(crate) fn fail_panic(&mut self, me: usize, account: String) {
        self.fail(Violation::new(Clause::C7, account).by(CpuId(me as u16)));
    }

    /// Begins an interruption of the CPU's code. Returns whether interrupts were on.
    pub(crate) fn interrupt(&mut self, me: usize, by: Interruption) -> bool {
        self.leave_user_half(me);
        self.nest(me, true);
        self.record(me, RunEvent::Interrupted(by));
        let cpu = &mut self.cpus[me];
        let were_on = cpu.interrupts_on;
        match by {
            Interruption::Interrupt => {
                cpu.interrupts_on = false;
                let sent = std::mem::replace(&mut cpu.interrupt, false);
                self.past.hear(me);
                if sent {
                    self.outdate(me);
                    return were_on;
                }
                self.spurious -= 1;
                self.happen(MachineEvent::Spurious);
            }
            Interruption::Nmi => {
                cpu.in_nmi = true;
                self.nmis -= 1;
            }
            Interruption::Preemption => {
                self.preemptions -= 1;
                self.happen(MachineEvent::Preempted);
            }
        }
        // This was one of the few that a run may have, on any CPU.
        self.outdate_all();
        were_on
    }

    /// Ends an interruption.
    pub(crate) fn resume(&mut self, me: usize, by: Interruption, were_on: bool) {
        self.nest(me, false);
        match by {
            Interruption::Interrupt => {
                self.check_handler(me);
                self.cpus[me].interrupts_on = were_on;
            }
            Interruption::Nmi => self.cpus[me].in_nmi = false,
            Interruption::Preemption => {}
        }
        self.outdate(me);
        self.cpus[me].woken = true;
        self.record(me, RunEvent::Resumed(by));
    }

    fn nest(&mut self, me: usize, begins: bool) {
        if let Some(footprints) = &mut self.footprints {
            footprints.nest(me, begins);
        }
    }

    /// Returns whether the CPU could take an interrupt now.
    pub(crate) fn interruptible(&self, me: usize) -> bool {
        let cpu = &self.cpus[me];
        cpu.interrupts_on && !cpu.in_nmi
    }

    /// Brings the CPU online.
    pub(crate) fn online(&mut self, me: usize) {
        self.check_presence(me, true);
        self.cpus[me].online = true;
    }

    /// Takes the CPU offline; its pending interrupt is lost.
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

    /// Makes interrupts pending on the targets.
    pub(crate) fn send(&mut self, me: usize, targets: u8) {
        for (index, cpu) in self.cpus[..self.count].iter_mut().enumerate() {
            if targets & 1 << index != 0 {
                cpu.interrupt = true;
                self.outdated |= 1 << index;
                self.past.tell(me, index);
            }
        }
    }

    /// Returns whether the CPU is in an NMI handler.
    pub(crate) fn in_nmi(&self, me: usize) -> bool {
        self.cpus[me].in_nmi
    }
}

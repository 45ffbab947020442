//! Implements the adversary's machine for the engine and the memory manager.

use crate::action::Op;
use crate::broken::Boundary;
use crate::context::{self, on_machine, point};
use crate::coverage::MachineEvent;
use crate::kind::MachineKind;
use crate::machine::buffer::Fill;
use crate::tables;
use crate::word::{AdversaryWord, FRAME_WORDS};
use quell::{
    Break, Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, Tag,
    TlbRules, Word,
};
use quell_vm::contract::{Clause, Violation};
use quell_vm::machine::{Entry, Event, Level, Machine, MemoryMap, TABLE_WORDS};
use quell_zero::{PhysicalMemory, Strategy};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The bytes of the kernel's half in a root table.
const KERNEL_HALF: u64 = 0x6ba1f;

/// The adversary's machine, as the code that runs on it sees it.
///
/// Its state belongs to the thread's current run.
#[derive(Debug)]
pub struct Adversary {
    features: Features,
    kind: MachineKind,
    /// The number of the first active CPU.
    first: u16,
    cpus: usize,
    /// The active CPUs, as bits, that a hypervisor has descheduled whenever an initiator needs them. It flushes them
    /// before they run again.
    unscheduled: u8,
    memory: MemoryMap,
    /// The mistake that the machine makes, if any.
    mistake: Option<Boundary>,
    /// Whether the mistake is suspended ([`Adversary::faultlessly`]).
    spared: AtomicBool,
}

impl Adversary {
    pub fn new(kind: MachineKind, cpus: usize, memory: MemoryMap) -> Self {
        Self::with(kind, kind.features(cpus), 0, cpus, memory)
    }

    /// Creates a machine of this kind with these features.
    ///
    /// CPUs below `first` stay offline; `cpus` active ones follow.
    pub fn with(
        kind: MachineKind,
        features: Features,
        first: u16,
        cpus: usize,
        memory: MemoryMap,
    ) -> Self {
        Adversary {
            features,
            kind,
            first,
            cpus,
            unscheduled: 0,
            memory,
            mistake: None,
            spared: AtomicBool::new(false),
        }
    }

    /// Sets the mistake that the machine makes.
    pub(crate) fn with_mistake(self, mistake: Option<Boundary>) -> Self {
        Adversary { mistake, ..self }
    }

    /// Runs `body` without the mistake.
    pub(crate) fn faultlessly<R>(&self, body: impl FnOnce() -> R) -> R {
        self.spared.store(true, Relaxed);
        let result = body();
        self.spared.store(false, Relaxed);
        result
    }

    /// Returns the mistake, unless it is suspended.
    #[inline]
    pub(crate) fn mistake(&self) -> Option<Boundary> {
        self.mistake.filter(|_| !self.spared.load(Relaxed))
    }

    /// Makes the machine a guest's, whose hypervisor deschedules some CPUs.
    ///
    /// Whenever an initiator needs a CPU in `unscheduled` (bit `n` for active CPU `n`), the hypervisor has descheduled
    /// it. It flushes the CPU before it runs it again.
    pub fn with_unscheduled(self, unscheduled: u8) -> Self {
        Adversary { unscheduled, ..self }
    }

    pub fn kind(&self) -> &MachineKind {
        &self.kind
    }

    /// Writes a note into the timeline, if the run has one.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if context::tracing() {
            on_machine(|core, me| core.say(me, text));
        }
    }

    /// Brings this CPU online, so that it may run programs.
    pub fn online(&self) {
        on_machine(|core, me| core.online(me));
    }

    /// Takes this CPU offline. Its pending interrupt is lost.
    pub fn offline(&self) {
        on_machine(|core, me| core.offline(me));
    }

    /// Returns a word that changes when a CPU has answered a flush for which no CPU waits. No walker finds an entry in
    /// it.
    pub(crate) fn bell(&self) -> &AdversaryWord {
        &self.table(Frame(0))[TABLE_WORDS - 1]
    }

    /// Counts an event of the machine.
    pub fn happen(&self, happening: MachineEvent) {
        on_machine(|core, _| core.happen(happening));
    }

    /// Reports a violation of the contract that only the program can notice.
    pub fn fail(&self, clause: Clause, frame: Option<Frame>, account: String) {
        on_machine(|core, me| {
            let mut violation = Violation::new(clause, account).by(CpuId(me as u16));
            violation.frame = frame;
            core.fail(violation);
        });
    }
}

// SAFETY: the machine is in software: translations are numbers, and reach no memory.
unsafe impl Hardware for Adversary {
    const RANGES: usize = 3;

    type Word = AdversaryWord;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }

    #[inline]
    fn this_cpu(&self) -> CpuId {
        CpuId(self.first + context::own_number() as u16)
    }

    fn features(&self) -> Features {
        self.features
    }

    fn shares_lines_from(&self) -> usize {
        self.kind.shares_lines_from
    }

    fn fence(&self) {
        if self.has(Boundary::FenceLeftOut) {
            return;
        }
        if !point(Op::Barrier) {
            on_machine(|core, _| core.mmu.barrier(core.now));
        }
    }

    fn invalidate(&self, what: Invalidation) {
        let Some(what) = self.passed_on(what) else { return };
        if let (true, Invalidation::Range { tag, range, scope }) = (self.kind.pieces, what) {
            // The pieces are queued one by one and complete together, so the machine promises nothing before the last
            // one.
            for stride in 0..range.strides() {
                let _ = (tag, stride, scope);
                point(Op::Invalidate);
            }
        }
        let at_once = !point(Op::Invalidate);
        on_machine(|core, me| {
            core.say(me, || format!("{what:?}"));
            core.invalidate(me, what, at_once);
        });
        if self.kind.isolated {
            // [mutants UserHalfKept, WrongHalfNoted]
            on_machine(|core, me| core.halves[me].invalidated(what));
        }
    }

    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let keep = keep || self.has(Boundary::RootKeepsEntries);
        point(Op::Root);
        on_machine(|core, me| {
            core.say(me, || {
                let how = if keep { "kept" } else { "flushed" };
                format!("loads root {:#x} under tag {}, {how}", root.0, tag.0)
            });
            core.load_root(me, root.0 as u32, tag.0, keep);
        });
        if self.kind.isolated {
            // [mutant UserHalfOutlivesTag]
            on_machine(|core, me| core.halves[me].loaded(tag.0, keep));
        }
    }

    fn unload_root(&self) {
        if self.has(Boundary::RootStaysLoaded) {
            return;
        }
        point(Op::Root);
        on_machine(|core, me| {
            core.say(me, || "leaves its root".into());
            core.unload_root(me);
        });
    }

    fn synchronize_text(&self) {
        if self.has(Boundary::FetchedTextStays) {
            return;
        }
        point(Op::Invalidate);
        on_machine(|core, me| {
            core.say(me, || "drops fetched instructions".into());
            core.synchronize_text(me);
        });
    }

    fn flush_answered(&self) {
        if !self.has(Boundary::AnswerUnheard) {
            self.bell().fetch_add(BELL_STEP, Release);
        }
    }

    fn flush_on_reentry(&self, target: CpuId) -> bool {
        if self.has(Boundary::ReentryUnflushed) {
            return true;
        }
        let cpu = usize::from(target.0.wrapping_sub(self.first));
        if cpu >= self.cpus || self.unscheduled >> cpu & 1 == 0 {
            return false;
        }
        point(Op::Barrier);
        on_machine(|core, me| {
            core.say(me, || format!("leaves the flush of CPU {cpu} to the hypervisor"));
            core.flush_on_reentry(cpu);
        });
        true
    }

    fn interrupt(&self, targets: &CpuSet) {
        if self.has(Boundary::SkipInterrupt) {
            return;
        }
        let set = on_machine(|core, me| core.check_targets(me, self.first, targets));
        if point(Op::Send(set)) {
            on_machine(|core, me| core.send(me, set));
        } else {
            context::interrupt_at_once(set);
        }
    }

    fn mask_interrupts(&self) -> bool {
        if on_machine(|core, me| core.interruptible(me)) {
            point(Op::Mask);
        }
        on_machine(|core, me| core.mask(me))
    }

    fn restore_interrupts(&self, were_on: bool) {
        if !self.has(Boundary::InterruptsStayOff) {
            on_machine(|core, me| core.unmask(me, were_on));
        }
    }

    fn relax(&self) {
        point(Op::Relax);
    }
}

impl PhysicalMemory for Adversary {
    unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
        let at_once = !point(Op::Content { frame: extent.first.0 as u32, store: true });
        on_machine(|core, me| {
            core.say(me, || format!("zeroes {} frames from {:#x}", extent.frames, extent.first.0));
            let fill = Fill {
                first: extent.first.0 as u32,
                frames: extent.frames as u32,
                words: [Some(0); FRAME_WORDS],
                zeroes: true,
            };
            core.fill(me, fill, at_once);
        });
    }
}

impl Broadcast for Adversary {
    fn start(&self, what: Invalidation) {
        let Some(what) = self.passed_on(what) else { return };
        if self.has(Boundary::WholeTagStaysLocal) && matches!(what, Invalidation::Tag(_)) {
            return self.invalidate(what);
        }
        point(Op::Broadcast);
        on_machine(|core, me| {
            core.say(me, || format!("{what:?}"));
            core.broadcast(me, what);
        });
    }

    fn complete(&self) {
        if !self.has(Boundary::SkipBarrier) {
            point(Op::Complete);
            on_machine(|core, me| core.complete_broadcasts(me));
        }
    }
}

/// Returns the words of a frame's content in a range of bytes.
fn words(offset: usize, bytes: usize) -> impl Iterator<Item = usize> {
    (0..FRAME_WORDS).filter(move |word| word * 8 >= offset && word * 8 + 8 <= offset + bytes)
}

// SAFETY: frames are numbers; their words and bytes are in a table of the machine.
unsafe impl Machine for Adversary {
    fn memory(&self) -> MemoryMap {
        self.memory
    }

    fn cpu_count(&self) -> usize {
        self.cpus
    }

    fn table(&self, frame: Frame) -> &[AdversaryWord; TABLE_WORDS] {
        // SAFETY: the session owns the pages. It outlives every machine that runs in it, and never moves or frees them
        // before.
        unsafe { (*context::arena()).table(frame.0 as u32) }
    }

    // The words of tables are stored apart from the content of frames. There the kernel's half is what the next owner
    // of the frame finds.
    fn prepare_root(&self, root: Frame) {
        self.write_frame(root, 0, &KERNEL_HALF.to_le_bytes());
    }

    fn words_in_use(&self, frame: Frame) -> impl Iterator<Item = usize> {
        context::with(|core| core.mmu.written_words(frame.0 as u32))
    }

    fn encode(&self, entry: Entry, _level: Level) -> u64 {
        let mut entry = entry;
        if !self.kind.hardware_dirty && !entry.table && entry.writable && !entry.dirty {
            // The hardware must refuse the first store, so that the kernel can mark the entry dirty. `decode` reads the
            // software bit.
            entry.writable = false;
            return tables::encode(entry) | SOFTWARE_WRITABLE;
        }
        tables::encode(entry)
    }

    fn decode(&self, word: u64, _level: Level) -> Entry {
        let mut entry = tables::decode(word & !SOFTWARE_WRITABLE);
        entry.writable |= word & 1 != 0 && word & SOFTWARE_WRITABLE != 0;
        entry
    }

    fn tlb_rules(&self) -> TlbRules {
        TlbRules {
            // A walk that ends in a fault leaves nothing in our TLBs.
            keeps_refused: false,
            keeps_absent: false,
            user_excludes_kernel: true,
            break_before_make: match self.has(Boundary::RulesOfAnother) {
                true => Break::Never,
                false => self.kind.break_before_make,
            },
        }
    }

    fn hardware_dirty(&self) -> bool {
        self.kind.hardware_dirty
    }

    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        point(Op::Content { frame: frame.0 as u32, store: false });
        on_machine(|core, me| {
            into.fill(0);
            for word in words(offset, into.len()) {
                let at = word * 8 - offset;
                let value = core.content_seen(me, frame.0 as u32, word);
                into[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        });
    }

    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        let at_once = !point(Op::Content { frame: frame.0 as u32, store: true });
        on_machine(|core, me| {
            core.say(me, || format!("writes frame {:#x}", frame.0));
            let mut content = [None; FRAME_WORDS];
            for word in words(offset, from.len()) {
                let at = word * 8 - offset;
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&from[at..at + 8]);
                content[word] = Some(u64::from_le_bytes(bytes));
            }
            core.fill(me, Fill::of(frame, content), at_once);
        });
    }

    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        for frame in 0..frames {
            point(Op::Content { frame: (from.0 + frame) as u32, store: false });
            let words: [Option<u64>; FRAME_WORDS] = on_machine(|core, me| {
                let seen = |word| core.content_seen(me, (from.0 + frame) as u32, word);
                std::array::from_fn(|word| Some(seen(word)))
            });
            let to = to.plus(frame);
            let at_once = !point(Op::Content { frame: to.0 as u32, store: true });
            on_machine(|core, me| {
                core.say(me, || format!("copies frame {:#x} to {:#x}", from.0 + frame, to.0));
                core.fill(me, Fill::of(to, words), at_once);
            });
        }
    }

    fn now(&self) -> u64 {
        on_machine(|core, _| u64::from(core.now))
    }

    fn halt(&self, _until: u64) {
        on_machine(|core, me| core.check_sleep(me));
        // The scheduler chooses when the clock wakes the CPU.
        point(Op::Halt);
    }

    fn note(&self, event: Event) {
        point(Op::Note);
        on_machine(|core, me| {
            core.say(me, || format!("{event:x?}"));
            core.note(me, event);
        });
    }
}

/// The step of the bell's counter. It leaves the bit alone that makes a word a present entry.
const BELL_STEP: u64 = 2;

/// Marks an entry as writable for the program but still clean, on machines whose walkers set no dirty bits.
const SOFTWARE_WRITABLE: u64 = 1 << 8;

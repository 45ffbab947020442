//! Sketches of a `Hardware` for machines that nobody has ported the engine to: their features and their operations. The
//! file is long because all of them are kinds of one machine.
//!
//! * Arm without broadcasts: invalidations reach only their own CPU (`DSB ISH`, for the stores of others; `TLBI`
//!   without `IS`, `DSB NSH`). Some systems prefer that, because broadcasts disturb too many CPUs. An ASID then needs a
//!   meaning only on its own CPU, so ASIDs are per-CPU tags. A range is one operation (`TLBI RVAE1`).
//! * RISC-V with system-wide ASIDs and no broadcast: each hart assigns them for itself, as per-CPU tags.
//! * Intel's remote action requests: the sender writes an invalidation into the table of each target, whose hardware
//!   carries it out without an interrupt, and waits until the targets have marked it done. To the engine that's a
//!   broadcast, with system-wide PCIDs.
//! * A second stage: spaces of guest-physical addresses, whose entries are tagged by their root (Intel's EPT), and are
//!   dropped all at once (`INVEPT`). An interrupt makes a CPU leave the guest.
//! * A second stage whose guests have system-wide tags (Arm's VMIDs): invalidations by guest-physical page are
//!   broadcast (`TLBI IPAS2E1IS`). A TLB may also combine both stages into one entry, which such an invalidation can't
//!   find. So a second one, for all first-stage entries of the guest (`TLBI VMALLE1IS`), follows before the first
//!   counts as complete.
//! * Contiguous entries: a TLB may keep a block of pages as one entry, or as many, so the code that splits a block
//!   reports all of its pages. A range is one operation.
//! * Broadcasts that name an address and no tag (INVLPGB without its PCID and ASID), with per-CPU tags: they reach the
//!   address under every tag of every CPU, so every entry that a CPU has kept is valid. To the engine there are no
//!   tags; the machine assigns its own by the root that it loads, and keeps entries under them.
//! * A guest whose hypervisor flushes on a hypercall: the call contains addresses, and reaches every virtual CPU, even
//!   one that isn't running. To the engine that's such a broadcast; `complete` makes the call.
//! * A device that walks the tables of programs (an IOMMU with shared virtual addresses) and has a TLB of its own:
//!   invalidations enter its queue, in order, and a position in the queue covers everything before it.
//! * A kernel that has room for one mechanism.
//! * Two ways to flush on one machine (Linux's use of INVLPGB): a process on few CPUs has per-CPU tags, and its flushes
//!   interrupt; a process on many CPUs has a system-wide tag, and its flushes are broadcast. Two engines over the
//!   machine divide its tags between them, and a process has a space in each. It changes over while it runs: from then
//!   on CPUs load its second space, and every change is reported to both engines. Once the first space is loaded
//!   nowhere, it's retired and gets no more reports. A CPU that leaves one engine's space for one of the other engine
//!   calls [`Cpu::leave`](quell::Cpu::leave) of the first and then `switch` of the second, with interrupts masked from
//!   before until after. The interrupt handler calls both engines.
//!
//! [`Features::check`] refuses broadcasts that *name* a per-CPU tag: on each CPU they'd reach another space.

use crate::support::{leak, space, switch};
use quell::{
    AddressSpace, Broadcast, CpuId, CpuSet, Engine, EngineError, Features, Frame, Hardware,
    Invalidation, LedgerEntry, Mechanism, Outcome, Page, PageRange, PerCpuData, Policy, Purpose,
    Scope, Tag, Tagging,
};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};

const CPUS: usize = 2;

/// The properties of a kind of machine. They're data, because the engine is compiled anew for each type of machine.
#[derive(Clone, Copy)]
struct Kind {
    features: Features,
    /// Set if entries belong to their root, whatever tag that has.
    tagged_by_root: bool,
    /// Set if invalidations name no tag, and reach every one. Switches of the root then keep all entries.
    reaches_every_tag: bool,
    /// Set if a TLB combines two stages into one entry, which an invalidation of a page doesn't find. Then an initiator
    /// that invalidates a page also drops all entries of the tag.
    combines: bool,
    /// The number of pages that may be one entry, found only by its first page.
    block: u64,
    /// The machine's tag for the engine's tag 0, which is another engine's highest tag.
    tag_0: u16,
    /// Returns the number of operations for an invalidation.
    operations: fn(Invalidation) -> u64,
}

const ARM_LOCAL: Kind = Kind {
    features: Features {
        tagging: Tagging::PerCpu { count: 255 },
        broadcast: false,
        full_above: 512,
    },
    tagged_by_root: false,
    reaches_every_tag: false,
    combines: false,
    block: 1,
    tag_0: 0,
    // A range is one operation, too.
    operations: |_| 1,
};

const RISCV_EVERYWHERE: Kind = Kind {
    features: Features {
        tagging: Tagging::PerCpu { count: 4095 },
        broadcast: false,
        full_above: 64,
    },
    operations: |what| match what {
        Invalidation::Range { range, .. } | Invalidation::Kernel { range, .. } => range.strides(),
        _ => 1,
    },
    ..ARM_LOCAL
};

/// A single payload contains a range.
const REMOTE_ACTIONS: Kind = Kind {
    features: Features { tagging: Tagging::Global { bits: 12 }, broadcast: true, full_above: 64 },
    ..ARM_LOCAL
};

/// Each CPU has two PCIDs, which the engine doesn't know. An operation covers a range.
const BROADCAST_BY_ADDRESS: Kind = Kind {
    features: Features { tagging: Tagging::None, broadcast: true, full_above: 64 },
    // The machine has one tag for each root, which is enough here.
    tagged_by_root: true,
    reaches_every_tag: true,
    ..ARM_LOCAL
};

/// A hypervisor's tables for a guest. `INVEPT` takes a root and drops all its entries, or drops everything.
const SECOND_STAGE: Kind = Kind {
    features: Features {
        // A CPU may remember any number of roots.
        tagging: Tagging::PerCpu { count: 8 },
        broadcast: false,
        full_above: 0,
    },
    tagged_by_root: true,
    operations: |what| {
        assert!(
            !matches!(what, Invalidation::Range { .. } | Invalidation::Kernel { .. }),
            "there is no operation for {what:?}"
        );
        1
    },
    ..ARM_LOCAL
};

/// A hypervisor's tables for a guest, under its VMID.
const SECOND_STAGE_BY_VMID: Kind = Kind {
    features: Features { tagging: Tagging::Global { bits: 8 }, broadcast: true, full_above: 512 },
    combines: true,
    operations: |what| match what {
        Invalidation::Range { range, .. } => range.strides() + 1,
        _ => 1,
    },
    ..ARM_LOCAL
};

/// A machine that may keep sixteen pages as one entry.
const CONTIGUOUS: Kind = Kind { block: 16, ..ARM_LOCAL };

/// Six tags of each CPU's own.
const SIX_TAGS: Kind = Kind {
    features: Features { tagging: Tagging::PerCpu { count: 6 }, ..ARM_LOCAL.features },
    ..ARM_LOCAL
};

/// System-wide tags on the same machine, behind those six.
const BEHIND_SIX_TAGS: Kind = Kind {
    features: Features { tagging: Tagging::Global { bits: 11 }, ..REMOTE_ACTIONS.features },
    tag_0: 6,
    ..REMOTE_ACTIONS
};

/// A machine as an engine sees it. One thread runs each CPU in turn: a target takes its interrupt, or its hardware reads
/// its table, while the initiator waits.
///
/// `DEVICE`: a device also walks the tables, and caches entries. `BATCHES`: the kernel has room only for batches.
struct Machine<const DEVICE: bool = false, const BATCHES: bool = false> {
    kind: Kind,
    shared: &'static SharedHardware<DEVICE, BATCHES>,
}

/// The machine below all engines.
#[derive(Default)]
struct SharedHardware<const DEVICE: bool, const BATCHES: bool> {
    me: Cell<usize>,
    /// The tag of the loaded root.
    root: [Cell<Option<Tag>>; CPUS],
    tlb: [RefCell<HashSet<(Tag, Page)>>; CPUS],
    /// The tags under which a CPU has combined entries of two stages.
    combined: [RefCell<HashSet<Tag>>; CPUS],
    pending: [Cell<bool>; CPUS],
    /// The actions that each CPU's hardware has yet to carry out.
    actions: [RefCell<Vec<Invalidation>>; CPUS],
    operations: Cell<u64>,
    interrupts: Cell<u64>,
    /// The number of calls of `may_wait`.
    asked: Cell<u32>,
    /// The pages that the device may hold, by root.
    device: RefCell<HashSet<(Frame, Page)>>,
    /// The invalidations in the device's queue. `carried_out` counts those that it has made.
    queue: RefCell<Vec<(Frame, Option<PageRange>)>>,
    carried_out: Cell<usize>,
    engines: RefCell<Vec<&'static Engine<'static, Machine<DEVICE, BATCHES>>>>,
}

impl<const DEVICE: bool, const BATCHES: bool> Deref for Machine<DEVICE, BATCHES> {
    type Target = SharedHardware<DEVICE, BATCHES>;

    fn deref(&self) -> &Self::Target {
        self.shared
    }
}

// SAFETY: each test has one thread, and a machine of its own.
unsafe impl<const DEVICE: bool, const BATCHES: bool> Sync for Machine<DEVICE, BATCHES> {}
// SAFETY: each test has one thread, and a machine of its own.
unsafe impl<const DEVICE: bool, const BATCHES: bool> Send for Machine<DEVICE, BATCHES> {}

impl<const DEVICE: bool, const BATCHES: bool> Machine<DEVICE, BATCHES> {
    const MAY: Policy = match BATCHES {
        true => Policy::only(Mechanism::Batch),
        false => Policy::ALL,
    };

    fn drop_from(&self, cpu: usize, what: Invalidation) {
        self.operations.set(self.operations.get() + (self.kind.operations)(what));
        self.tlb[cpu].borrow_mut().retain(|&(of, page)| match what {
            Invalidation::Range { tag, range, .. } => {
                !self.kind.reaches_every_tag && of != self.name(cpu, tag) || !range.contains(page)
            }
            Invalidation::Tag(tag) => !self.kind.reaches_every_tag && of != self.name(cpu, tag),
            Invalidation::Kernel { .. } => true,
            Invalidation::All | Invalidation::Everything => false,
        });
        if self.kind.combines {
            let tag = match what {
                Invalidation::Range { tag, .. } | Invalidation::Tag(tag) => Some(tag),
                _ => None,
            };
            self.combined[cpu].borrow_mut().retain(|&of| tag.is_some_and(|tag| of != tag));
        }
    }

    /// Returns the machine's tag for an engine's tag.
    fn name(&self, cpu: usize, tag: Tag) -> Tag {
        match self.root[cpu].get() {
            Some(loaded) if self.kind.tagged_by_root => loaded,
            _ => Tag(tag.0 + self.kind.tag_0),
        }
    }

    fn on<R>(&self, cpu: usize, action: impl FnOnce() -> R) -> R {
        let before = self.me.replace(cpu);
        let result = action();
        self.me.set(before);
        result
    }

    /// Uses a page, as a program on this CPU.
    fn touch(&self, page: Page) {
        let me = self.me.get();
        let tag = self.root[me].get().expect("a root");
        let first = Page(page.0 / self.kind.block * self.kind.block);
        self.tlb[me].borrow_mut().insert((tag, first));
        self.combined[me].borrow_mut().insert(tag);
    }

    fn holds(&self, cpu: usize, page: Page) -> bool {
        let first = Page(page.0 / self.kind.block * self.kind.block);
        self.tlb[cpu].borrow().iter().any(|held| held.1 == first)
    }
}

impl<const DEVICE: bool, const BATCHES: bool> Broadcast for Machine<DEVICE, BATCHES> {
    fn start(&self, what: Invalidation) {
        for actions in &self.actions {
            actions.borrow_mut().push(what);
        }
    }
    fn complete(&self) {
        for cpu in 0..CPUS {
            for what in self.actions[cpu].take() {
                self.drop_from(cpu, what);
            }
        }
    }
}

// SAFETY: the TLBs are sets of numbers, which reach no memory, and every invalidation drops its entries.
unsafe impl<const DEVICE: bool, const BATCHES: bool> Hardware for Machine<DEVICE, BATCHES> {
    const MECHANISMS: Policy = Self::MAY;
    const POLICY_IS_FIXED: bool = BATCHES;
    const HAS_SECONDARY: bool = DEVICE;

    type Word = AtomicU64;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        self.kind.features.broadcast.then_some(self)
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get() as u16)
    }
    fn features(&self) -> Features {
        self.kind.features
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidation) {
        self.drop_from(self.me.get(), what);
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let by_root = self.kind.tagged_by_root.then_some(Tag(root.0 as u16));
        let tag_here = by_root.unwrap_or(Tag(tag.0 + self.kind.tag_0));
        self.root[self.me.get()].set(Some(tag_here));
        if !keep && !self.kind.reaches_every_tag {
            self.drop_from(self.me.get(), Invalidation::Tag(tag));
        }
    }
    fn unload_root(&self) {
        self.root[self.me.get()].set(None);
    }
    fn start_secondary(&self, root: Frame, range: Option<PageRange>, _scope: Scope) {
        self.queue.borrow_mut().push((root, range));
    }
    fn mark_secondary(&self) -> u64 {
        self.queue.borrow().len() as u64
    }
    fn secondary_is_done(&self, mark: u64) -> bool {
        // The device carries out one command each time that it's polled.
        let at = self.carried_out.get();
        if let Some(&(root, range)) = self.queue.borrow().get(at) {
            let stays = |&(of, page): &(Frame, Page)| {
                of != root || range.is_some_and(|range| !range.contains(page))
            };
            self.device.borrow_mut().retain(stays);
            self.carried_out.set(at + 1);
        }
        self.carried_out.get() as u64 >= mark
    }
    fn interrupt(&self, targets: &CpuSet) {
        for target in targets.iter() {
            self.interrupts.set(self.interrupts.get() + 1);
            self.pending[target.index()].set(true);
        }
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn may_wait(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        true
    }
    fn relax(&self) {
        for cpu in (0..CPUS).filter(|&cpu| self.pending[cpu].take()) {
            self.on(cpu, || {
                for engine in self.engines.borrow().iter() {
                    engine.this_cpu().mask_interrupts().on_interrupt();
                }
            });
        }
    }
}

fn machine<const DEVICE: bool, const BATCHES: bool>(
    kind: Kind,
) -> &'static Machine<DEVICE, BATCHES> {
    let shared = leak(SharedHardware::default());
    leak(Machine { kind, shared })
}

fn engine<const DEVICE: bool, const BATCHES: bool>(
    machine: &'static Machine<DEVICE, BATCHES>,
    policy: Policy,
) -> Result<&'static Engine<'static, Machine<DEVICE, BATCHES>>, EngineError> {
    let cpus = leak([(); CPUS].map(|()| PerCpuData::new()));
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let engine = leak(Engine::new(machine, cpus, ledger, policy)?);
    machine.engines.borrow_mut().push(engine);
    Ok(engine)
}

/// Flushes a range in a batch.
fn flush<H: Hardware>(engine: &Engine<'_, H>, space: &AddressSpace<H>, range: PageRange) {
    let mut batch = engine.batch(Purpose::Call);
    batch.hold(Frame(7));
    batch.changed(space, range, Scope::Leaf);
    assert!(batch.finish().eq([Frame(7)]));
}

/// Unmaps `pages` pages, and returns the number of operations for them.
///
/// One CPU runs their space, and another keeps it under a tag that isn't loaded.
fn unmaps<const DEVICE: bool, const BATCHES: bool>(
    machine: &'static Machine<DEVICE, BATCHES>,
    pages: u64,
) -> u64 {
    let engine = engine(machine, Machine::<DEVICE, BATCHES>::MAY).expect("an engine");
    let [one, other] = [1, 2].map(|root| space(engine, root));
    for cpu in [1, 0] {
        machine.on(cpu, || {
            engine.cpu_online();
            switch(engine, None, one);
            (0..=pages).for_each(|page| machine.touch(Page(page)));
        });
    }
    machine.on(1, || switch(engine, Some(one), other));
    let before = machine.operations.get();
    flush(engine, one, PageRange::base(Page(0), pages));
    let operations = machine.operations.get() - before;
    // A machine with only whole flushes also loses the page after the range.
    let whole = machine.kind.features.full_above == 0;
    assert!(!machine.holds(0, Page(0)) && machine.holds(0, Page(pages)) != whole);
    assert!(!machine.kind.combines || machine.combined.iter().all(|tags| tags.borrow().is_empty()));
    machine.on(1, || switch(engine, Some(other), one));
    assert!(!machine.holds(1, Page(0)), "loaded with what it had");
    // Then unmap a block while both run the space.
    machine.on(1, || machine.touch(Page(pages)));
    let block = PageRange::base(Page(pages), machine.kind.block);
    flush(engine, one, block);
    assert!((0..CPUS).all(|cpu| !machine.holds(cpu, Page(pages))));
    operations
}

/// Each machine, a number of pages, and the operations that unmapping them takes. Broadcasts count on each CPU.
#[test]
fn machines_to_come_flush_what_they_must() {
    const EACH: u64 = CPUS as u64;
    for (name, kind, pages, operations) in [
        ("Arm without broadcasts", ARM_LOCAL, 8, 1),
        ("RISC-V without broadcasts", RISCV_EVERYWHERE, 8, 8),
        ("remote actions", REMOTE_ACTIONS, 8, EACH),
        ("broadcasts by address", BROADCAST_BY_ADDRESS, 8, EACH),
        ("a second stage", SECOND_STAGE, 8, 1),
        // The pages, and then what was combined.
        ("a second stage by VMID", SECOND_STAGE_BY_VMID, 8, EACH * 9),
        // A block that is taken apart is reported whole.
        ("contiguous entries", CONTIGUOUS, 16, 1),
    ] {
        assert_eq!(unmaps(machine::<false, false>(kind), pages), operations, "{name}");
    }
}

#[test]
fn broadcasts_by_address_reach_what_is_kept_under_tags_of_each_cpus_own() {
    let machine = machine::<false, false>(BROADCAST_BY_ADDRESS);
    let engine = engine(machine, Policy::ALL).expect("an engine");
    let [one, other] = [1, 2].map(|root| space(engine, root));
    engine.cpu_online();
    switch(engine, None, one);
    machine.touch(Page(0));
    machine.touch(Page(1));
    switch(engine, Some(one), other);
    // No CPU has the space loaded, and none compares generations later, so only the broadcast reaches its entries.
    flush(engine, one, PageRange::base(Page(0), 1));
    switch(engine, Some(other), one);
    let finds = |page| machine.tlb[0].borrow().contains(&(Tag(1), page));
    assert!(!finds(Page(0)) && finds(Page(1)), "kept but for what went");
    // Another space may use the root next, so no entry of a retired one may stay.
    switch(engine, Some(one), other);
    engine.retire(one);
    assert!(!finds(Page(1)));
}

#[test]
fn a_device_that_shares_tables_has_forgotten_a_page_when_its_frame_comes_out() {
    assert_eq!(unmaps(machine::<true, false>(ARM_LOCAL), 8), 1);

    let machine = machine::<true, false>(ARM_LOCAL);
    let engine = engine(machine, Policy::ALL).expect("an engine");
    let [one, other] = [1, 2].map(|root| space(engine, root));
    engine.cpu_online();
    switch(engine, None, one);
    let pages = || (0..9).flat_map(|page| [(Frame(1), Page(page)), (Frame(2), Page(page))]);
    machine.device.borrow_mut().extend(pages());
    let unmap = |space, page, purpose| {
        let mut batch = engine.batch(purpose);
        batch.unmapped(space, PageRange::base(Page(page), 1), Frame(7));
        batch
    };
    // The same holds for a space that no CPU has loaded.
    for (space, root) in [(one, 1), (other, 2)] {
        let before = machine.device.borrow().len();
        assert_eq!(unmap(space, 3, Purpose::Call).finish().count(), 1);
        let device = machine.device.borrow();
        assert!(!device.contains(&(Frame(root), Page(3))) && device.len() == before - 1);
    }
    // Only the CPUs' part of a flush is deferred, not the device's.
    assert!(matches!(unmap(one, 4, Purpose::Lazy).finish_deferred(), Outcome::Deferred(_)));
    assert!(!machine.device.borrow().contains(&(Frame(1), Page(4))));
    // A started flush is over when the device is done, too.
    let mut batch = unmap(one, 5, Purpose::Call);
    batch.changed(other, PageRange::base(Page(5), 1), Scope::Leaf);
    let mut flight = batch.start();
    assert!(!flight.is_done(), "of two commands one was carried out");
    assert!(flight.is_done());
    assert_eq!(flight.finish().count(), 1);
    assert!(!machine.device.borrow().iter().any(|held| held.1 == Page(5)));
}

/// batch.rs: if there are devices, `finish_deferred` may wait for them.
#[test]
#[cfg(debug_assertions)]
fn what_is_deferred_waits_for_devices_alone() {
    fn asked<const DEVICE: bool>() -> u32 {
        let machine = machine::<DEVICE, false>(ARM_LOCAL);
        let engine = engine(machine, Policy::ALL).expect("an engine");
        let space = space(engine, 1);
        engine.cpu_online();
        switch(engine, None, space);
        let mut batch = engine.batch(Purpose::Lazy);
        batch.unmapped(space, PageRange::base(Page(4), 1), Frame(7));
        machine.asked.set(0);
        assert!(matches!(batch.finish_deferred(), Outcome::Deferred(_)));
        machine.asked.get()
    }
    assert_eq!((asked::<false>(), asked::<true>()), (0, 1));
}

#[test]
fn a_kernel_has_what_it_has_room_for() {
    assert_eq!(unmaps(machine::<false, true>(RISCV_EVERYWHERE), 8), 8);
    let refused = engine(machine::<false, true>(RISCV_EVERYWHERE), Policy::ALL).err();
    let mechanism = Mechanism::Extents;
    assert_eq!(refused, Some(EngineError::LeftOut { mechanism }));
    let why = refused.map(|why| why.to_string()).unwrap_or_default();
    assert!(why.contains("S1") && why.contains("MECHANISMS"), "{why}");
    // It has no code for fewer mechanisms either.
    let refused = engine(machine::<false, true>(RISCV_EVERYWHERE), Policy::BASELINE).err();
    assert_eq!(refused, Some(EngineError::OtherPolicy));

    // Without S3 no flush is deferred.
    let machine = machine::<false, true>(RISCV_EVERYWHERE);
    let engine = engine(machine, Machine::<false, true>::MAY).expect("an engine");
    let space = space(engine, 1);
    engine.cpu_online();
    switch(engine, None, space);
    machine.touch(Page(0));
    let mut batch = engine.batch::<_, Frame>(Purpose::Lazy);
    batch.changed(space, PageRange::base(Page(0), 1), Scope::Leaf);
    assert!(matches!(batch.finish_deferred(), Outcome::Flushed(_)));
    assert!(!machine.holds(0, Page(0)) && !engine.has_deferred());
}

#[test]
fn a_process_changes_over_to_broadcasts_while_it_runs() {
    let below = machine::<false, false>(SIX_TAGS);
    let shared = below.shared;
    let kind = BEHIND_SIX_TAGS;
    let engines = [below, leak(Machine { kind, shared })]
        .map(|machine| engine(machine, Policy::ALL).expect("an engine"));
    for cpu in 0..CPUS {
        below.on(cpu, || engines.map(|engine| engine.cpu_online()));
    }
    // Each process has a space in each engine.
    let [process, other] = [1, 2].map(|root| engines.map(|engine| space(engine, root)));
    let loaded = [const { Cell::new(None) }; CPUS];
    // Loads one of a process's two spaces.
    let load = |cpu: usize, of: usize, process: [&'static AddressSpace<_>; 2]| {
        let to = process[of];
        below.on(cpu, || match loaded[cpu].replace(Some((of, to))) {
            Some((from_engine, from)) if from_engine != of => {
                engines[from_engine].this_cpu().leave(from);
                switch(engines[of], None, to);
            }
            from => switch(engines[of], from.map(|(_, from)| from), to),
        });
    };
    let touch = |cpu: usize, pages: Range<u64>| {
        below.on(cpu, || pages.for_each(|page| below.touch(Page(page))));
    };
    // Returns the number of CPUs whose program finds a translation of the page.
    let found = |page: u64| {
        let finds = |&cpu: &usize| {
            let tag = below.root[cpu].get().expect("a root");
            below.tlb[cpu].borrow().contains(&(tag, Page(page)))
        };
        (0..CPUS).filter(finds).count()
    };
    let report = |of: usize, page| flush(engines[of], process[of], PageRange::base(Page(page), 1));
    let counts = || (below.interrupts.get(), below.operations.take());

    // With per-CPU tags, the other CPU is interrupted.
    for cpu in 0..CPUS {
        load(cpu, 0, process);
        touch(cpu, 0..6);
    }
    counts();
    report(0, 0);
    assert_eq!((found(0), found(1)), (0, 2));
    assert_eq!(counts(), (1, 2));

    // The process changes over. CPU 0 has switched, and CPU 1 hasn't: a broadcast alone doesn't reach its entries.
    load(0, 1, process);
    touch(0, 1..6);
    report(1, 5);
    assert_eq!(found(5), 1);
    report(1, 1);
    report(0, 1);
    assert_eq!((found(1), found(2)), (0, 2));
    assert_eq!(below.interrupts.get(), 2);

    // Every CPU has switched: the first space is loaded nowhere, and no CPU is interrupted.
    load(1, 1, process);
    touch(1, 2..6);
    engines[0].retire(process[0]);
    report(1, 2);
    assert_eq!((found(2), found(3)), (0, 2));

    // The tag keeps its entries through a switch, except those that were flushed meanwhile.
    load(1, 1, other);
    report(1, 3);
    load(1, 1, process);
    assert_eq!((found(3), found(4)), (0, 2));
    assert_eq!(below.interrupts.get(), 2);
}

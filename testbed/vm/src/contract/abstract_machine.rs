//! Models memory as programs see it: the results that calls and accesses may have.
//!
//! The abstract machine has processes with areas, the objects behind them, files with a length, and a device behind
//! each file. It has no frames, tables, TLBs, caches or flushes. A memory manager is right (it *refines* this machine)
//! if the abstract machine allows each of its results. These are the results of accesses and calls, and the accesses
//! that a TLB or a table would allow now. `docs/contract.md` lists the consequences for each clause.
//!
//! # Places
//!
//! A *place* holds a value: a page's area, a word of an object or of a file, or the length of a file. An operation (a
//! load, a store, a call) begins, changes each of its places at some moment, and ends.
//!
//! Operations that don't overlap in time take effect in order. An observer, for example a load, may find any value that
//! isn't certainly replaced: a *candidate*. A value is certainly replaced if another operation on the place began after
//! the value's operation ended, and ended before the observer began.
//!
//! Two things delay the end of an operation:
//!
//! * Stores wait in a store buffer. For other CPUs they end when the buffer is empty.
//! * While a call drops pages, some CPUs may still use old pages and others new ones. Stores that overlap such a call
//!   end no earlier than the call.
//!
//! For example, CPU 0 stores 1 and then 2 to a word. CPU 1 loads it before CPU 0's buffer is empty. The load may return
//! the word's first value, 1 or 2.
//!
//! # Rules
//!
//! * An access succeeds only if a candidate of the page's area allows it. A load returns a candidate of the word.
//! * An access is refused only for a reason: no area, too few rights, beyond the end of the file, no memory.
//! * A call is refused only for a reason, and succeeds only if it had none throughout.
//! * A call reads a file only before its end.
//! * A shared page has the file's content. A private page has it too, until it is stored to.
//! * A child process has the areas and private words that its parent had at some moment of the fork.
//! * A truncation zeroes every word from its byte on.
//! * After a write-back, the file's device holds a candidate of each word.
//!
//! [`Vm::check`](crate::Vm::check) compares the manager's tables and page cache with these rules. An entry must map a
//! page of its area. An entry that allows stores to a file must belong to a dirty page. An entry that allows stores to
//! anonymous memory must be its frame's only entry. A clean page must equal the device's content.

mod returns;

use super::{Clause, Violation};
use crate::program::{Access, Fault};
use crate::syscall::{Backing, Call, Error, FileId, ProcessId, Protection};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use quell::PAGE_BYTES;
use quell::{Frame, Page};
use smallvec::{SmallVec, smallvec};

/// The number of words that are modelled in each page, from its start.
pub const WORDS: usize = 2;

/// From this number of places on, the program uses large pages.
const MANY: usize = 300;

type Moment = u32;
/// The moment of the end of an operation that is under way.
const OPEN: Moment = Moment::MAX;
/// An observer that isn't a CPU.
const NOBODY: usize = usize::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Area(ProcessId, u64),
    /// A word of a page of a process's object.
    Own(u32, u64, usize),
    /// A word of a file, by its byte.
    Word(FileId, u64),
    Length(FileId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    /// No area; for a word of an object, the value behind it.
    Nothing,
    Area(Area),
    Number(u64),
}

type Values = SmallVec<[Value; 1]>;

/// A process's rights to a page, and the memory behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Area {
    rights: Protection,
    source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// A page of a private object, backed by a page of a file or by zeros.
    Own(u32, u64, Option<(FileId, u64)>),
    Shared(FileId, u64),
}

impl Source {
    /// Returns whether this is the given page of an object.
    fn is_own(self, of: u32, at: u64) -> bool {
        matches!(self, Source::Own(object, page, _) if (object, page) == (of, at))
    }
}

impl Area {
    /// Returns whether the area allows loads and everything that `rights` does.
    fn grants(&self, rights: Protection) -> bool {
        let needs = |asked: bool, access| !asked || self.allows(access);
        self.allows(Access::Read)
            && needs(rights.write, Access::Write)
            && needs(rights.execute, Access::Execute)
    }

    fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => self.rights.readable(),
            Access::Write => self.rights.write,
            Access::Execute => self.rights.execute,
        }
    }
}

/// The values that an operation leaves in a place.
#[derive(Clone, Debug)]
struct Change {
    by: usize,
    begun: Moment,
    /// The end of the operation, for its own CPU and for others.
    ended: [Moment; 2],
    /// The operation may not have changed the place.
    unsure: bool,
    drops_pages: bool,
    /// A store copied the file's page: the place holds these values until others see the store.
    is_copy: bool,
    values: Values,
}

/// What a refused operation leaves in a place.
enum Left {
    /// The value from before.
    Before,
    /// The value from before, or what the operation would have left there.
    Perhaps,
    /// The area from before, or none.
    PerhapsNothing,
}

impl Change {
    /// Creates a change that no CPU made and that ended at a moment.
    fn past(at: Moment, values: Values) -> Change {
        Change {
            by: NOBODY,
            begun: at,
            ended: [at; 2],
            unsure: false,
            drops_pages: false,
            is_copy: false,
            values,
        }
    }

    /// Returns whether the CPU's current operation makes this change.
    fn is_open_by(&self, cpu: usize) -> bool {
        self.by == cpu && self.ended[0] == OPEN
    }

    fn add(&mut self, values: Values) {
        for value in values {
            if !self.values.contains(&value) {
                self.values.push(value);
            }
        }
    }

    fn ended_for(&self, cpu: usize) -> Moment {
        self.ended[usize::from(cpu != self.by)]
    }
}

/// The changes of a place that some observer may still find.
type History = SmallVec<[Change; 1]>;

/// Returns when a change, and all overlapping calls that drop pages, have ended for a CPU.
fn last_end(history: &History, change: &Change, cpu: usize) -> Moment {
    let calls = history.iter().filter(|call| call.drops_pages);
    let overlapping =
        calls.filter(|call| call.begun < change.ended_for(cpu) && change.begun < call.ended[0]);
    overlapping.fold(change.ended_for(cpu), |ended, call| ended.max(call.ended[0]))
}

/// Returns whether a CPU that observes since a moment can no longer find this change.
fn is_replaced(history: &History, change: &Change, cpu: usize, since: Moment) -> bool {
    let ends_before = |later: &Change| {
        let is_its_store = change.is_copy && !later.is_copy && later.begun == change.begun;
        is_its_store || later.begun > last_end(history, change, later.by)
    };
    let mut later = history.iter().filter(|later| !later.unsure && ends_before(later));
    later.any(|later| last_end(history, later, cpu) < since)
}

/// An operation that a CPU performs.
#[derive(Clone, Copy, Debug)]
enum CpuAction {
    Call(Call),
    /// An access to a word of a page, with the value that it stores.
    Access(Access, u64, usize, u64),
}

/// The operation that a CPU performs now.
#[derive(Clone, Debug)]
struct Operation {
    begun: Moment,
    process: ProcessId,
    action: CpuAction,
    /// The object behind the memory that the call maps.
    object: u32,
    changed: SmallVec<[Place; 2]>,
    /// The call ends a process that some CPU may have run meanwhile.
    may_be_busy: bool,
}

/// An access that a TLB or a table would allow now.
#[derive(Clone, Copy, Debug)]
pub struct PossibleAccess {
    /// The virtual page.
    pub page: u64,
    /// The frame that the access would reach.
    pub frame: Frame,
    /// The rights of the translation.
    pub rights: Protection,
    /// The values that loads of the page's first words would return.
    pub held: [u64; WORDS],
    /// Whether the translation is stale: the tables no longer lead to this frame.
    pub stale: bool,
}

/// Memory as the calls of programs define it. See [the module](self).
#[derive(Clone, Debug, Default)]
pub struct AbstractMachine {
    now: Moment,
    processes: BTreeSet<ProcessId>,
    known: returns::Known,
    places: BTreeMap<Place, History>,
    objects: u32,
    operations: Vec<Option<Operation>>,
    /// Changes of each CPU that others may not see yet.
    unseen: Vec<Vec<Place>>,
    /// A process acted before the fork that made it returned. Nothing is known after that.
    lost: bool,
}

type Verdict = Result<(), Violation>;

fn expect(right: bool, clause: Clause, otherwise: impl FnOnce() -> String) -> Verdict {
    if right { Ok(()) } else { Err(Violation::new(clause, otherwise())) }
}

/// Returns the pages of a range.
fn pages(address: u64, bytes: u64) -> core::ops::Range<u64> {
    address / PAGE_BYTES..address / PAGE_BYTES + bytes.div_ceil(PAGE_BYTES)
}

impl AbstractMachine {
    /// Resets the machine to one process without areas, no files, and this number of CPUs.
    pub fn reset(&mut self, cpus: usize, first: ProcessId) {
        self.now = 0;
        self.lost = false;
        self.objects = 0;
        self.processes.clear();
        self.processes.insert(first);
        self.known.reset(cpus, first);
        self.places.clear();
        self.operations.clear();
        self.operations.resize(cpus, None);
        self.unseen.resize(cpus, Vec::new());
        self.unseen.iter_mut().for_each(Vec::clear);
    }

    /// Returns the values that a CPU may find in a place if it observes since a moment.
    fn found(&self, place: Place, cpu: usize, since: Moment) -> impl Iterator<Item = Value> {
        let history = self.places.get(&place);
        let first = match place {
            Place::Area(..) | Place::Own(..) => Value::Nothing,
            Place::Word(..) | Place::Length(_) => Value::Number(0),
        };
        let changes = history.into_iter().flat_map(move |history| {
            let is_found = move |change: &&Change| {
                history.len() == 1 || !is_replaced(history, change, cpu, since)
            };
            history.iter().filter(is_found)
        });
        let unchanged = history.is_none().then_some(first);
        changes.flat_map(|change| change.values.iter().copied()).chain(unchanged)
    }

    fn candidates(&self, place: Place, cpu: usize, since: Moment) -> Values {
        self.found(place, cpu, since).collect()
    }

    fn numbers(&self, place: Place, cpu: usize, since: Moment) -> SmallVec<[u64; 2]> {
        let number = |value| if let Value::Number(number) = value { Some(number) } else { None };
        self.found(place, cpu, since).filter_map(number).collect()
    }

    fn areas(&self, process: ProcessId, page: u64, since: Moment) -> SmallVec<[Option<Area>; 1]> {
        let area = |value| if let Value::Area(area) = value { Some(area) } else { None };
        self.found(Place::Area(process, page), NOBODY, since).map(area).collect()
    }

    /// Returns the values that a load of a word behind an area may return.
    fn words(&self, area: &Area, word: usize, cpu: usize, since: Moment) -> SmallVec<[u64; 2]> {
        let of_file = |(file, page)| self.numbers(Place::Word(file, byte(page, word)), cpu, since);
        let (object, page, behind) = match area.source {
            Source::Shared(file, page) => return of_file((file, page)),
            Source::Own(object, page, behind) => (object, page, behind),
        };
        let own = Place::Own(object, page, word);
        let mut words = SmallVec::new();
        for value in self.found(own, cpu, since) {
            match (value, behind) {
                (Value::Number(number), _) => words.push(number),
                (_, Some(behind)) => words.extend(of_file(behind)),
                (_, None) => words.push(0),
            }
        }
        if let Some(behind) = behind {
            words.extend(self.copies_under_way(own, behind, word));
        }
        words
    }

    /// Returns the values that stores under way may have copied from a file's page since they began.
    fn copies_under_way(
        &self,
        own: Place,
        (file, page): (FileId, u64),
        word: usize,
    ) -> impl Iterator<Item = u64> {
        let operations = self.operations.iter().enumerate();
        operations.flat_map(move |(cpu, by)| {
            let copies = move |by: &&Operation| {
                matches!(by.action, CpuAction::Access(..)) && by.changed.contains(&own)
            };
            let copied = Place::Word(file, byte(page, word));
            by.iter().filter(copies).flat_map(move |by| self.numbers(copied, cpu, by.begun))
        })
    }

    /// Returns whether an area's page may be there, and whether it may be beyond the end of its file.
    fn presence(&self, area: &Area, since: Moment) -> [bool; 2] {
        let (file, page) = match area.source {
            Source::Own(_, _, None) => return [true, false],
            Source::Own(object, page, Some(behind)) => {
                let copies = self.candidates(Place::Own(object, page, 0), NOBODY, since);
                if copies.iter().all(|value| *value != Value::Nothing) {
                    return [true, false];
                }
                if copies.iter().any(|value| *value != Value::Nothing) {
                    return [true, true];
                }
                behind
            }
            Source::Shared(file, page) => (file, page),
        };
        let lengths = self.numbers(Place::Length(file), NOBODY, since);
        let within = |length: &u64| page < length.div_ceil(PAGE_BYTES);
        [lengths.iter().any(within), !lengths.iter().all(within)]
    }

    /// Returns the places behind this area that a store to a word changes.
    fn stored_to(area: &Area, word: usize) -> SmallVec<[Place; WORDS]> {
        match area.source {
            Source::Shared(file, page) => smallvec![Place::Word(file, byte(page, word))],
            // The rest of the page no longer follows the file.
            Source::Own(object, page, Some(_)) => {
                (0..WORDS).map(|word| Place::Own(object, page, word)).collect()
            }
            Source::Own(object, page, None) => smallvec![Place::Own(object, page, word)],
        }
    }

    /// Returns the values that an operation may leave in a place.
    fn effect(&self, cpu: usize, place: Place) -> Values {
        let Some(operation) = &self.operations[cpu] else {
            return Values::new();
        };
        let since = operation.begun;
        let mapped = |page| self.areas(operation.process, page, since).into_iter().flatten();
        let call = match operation.action {
            CpuAction::Call(call) => call,
            CpuAction::Access(_, page, word, value) => match place {
                Place::Own(object, at, other) if other != word => {
                    let areas = mapped(page).filter(|area| area.source.is_own(object, at));
                    let words = areas.flat_map(|area| self.words(&area, other, cpu, since));
                    return words.map(Value::Number).collect();
                }
                Place::Area(..) | Place::Own(..) | Place::Word(..) | Place::Length(_) => {
                    return smallvec![Value::Number(value)];
                }
            },
        };
        match (call, place) {
            (Call::Map { address, protection, backing, .. }, Place::Area(_, page)) => {
                let from = page - address.unwrap_or(0) / PAGE_BYTES;
                let object = operation.object;
                let source = match backing {
                    Backing::Anonymous { .. } => Source::Own(object, from, None),
                    Backing::Shared { file, offset } => {
                        Source::Shared(file, offset / PAGE_BYTES + from)
                    }
                    Backing::Private { file, offset } => {
                        Source::Own(object, from, Some((file, offset / PAGE_BYTES + from)))
                    }
                };
                smallvec![Value::Area(Area { rights: protection, source })]
            }
            (Call::Protect { protection, .. }, Place::Area(_, page)) => {
                mapped(page).map(|area| Value::Area(Area { rights: protection, ..area })).collect()
            }
            (Call::Remap { address, bytes, to }, Place::Area(_, page)) => {
                let to = pages(to.unwrap_or(0), bytes);
                if !to.contains(&page) {
                    return smallvec![Value::Nothing];
                }
                mapped(page - to.start + address / PAGE_BYTES).map(Value::Area).collect()
            }
            (Call::Write { offset, .. }, Place::Length(_)) => {
                let lengths = self.numbers(place, cpu, since).into_iter();
                lengths.map(|length| Value::Number(length.max(offset + 8))).collect()
            }
            (Call::Write { value, .. }, _) => smallvec![Value::Number(value)],
            (Call::Create { bytes } | Call::Truncate { bytes, .. }, Place::Length(_)) => {
                smallvec![Value::Number(bytes)]
            }
            (Call::Truncate { .. }, _) => smallvec![Value::Number(0)],
            _ => smallvec![Value::Nothing],
        }
    }

    /// Records that the CPU's operation begins to change a place.
    fn change(&mut self, cpu: usize, place: Place) {
        let Some(operation) = &self.operations[cpu] else {
            return;
        };
        let begun = operation.begun;
        let mut known = self.places.get(&place).into_iter().flatten();
        if known.any(|change| change.is_open_by(cpu)) {
            return;
        }
        let drops_pages = matches!(
            operation.action,
            CpuAction::Call(Call::Discard { .. } | Call::Truncate { .. })
        );
        let values = self.effect(cpu, place);
        let oldest = self.operations.iter().flatten().map(|operation| operation.begun).min();
        let initial = self.candidates(place, NOBODY, begun);
        let is_new = !self.places.contains_key(&place);
        let history =
            self.places.entry(place).or_insert_with(|| smallvec![Change::past(0, initial)]);
        if history.len() > 1 {
            let since = oldest.unwrap_or(begun);
            let kept = history.iter().filter(|change| !is_replaced(history, change, NOBODY, since));
            *history = kept.cloned().collect();
        }
        let unsure = Change { by: cpu, begun, unsure: true, ..Change::past(OPEN, values) };
        history.push(Change { drops_pages, ..unsure });
        if let Some(operation) = &mut self.operations[cpu] {
            operation.changed.push(place);
        }
        self.meet(cpu, place, is_new);
    }

    /// Lets calls under way see the change that another operation makes in a place.
    fn meet(&mut self, cpu: usize, place: Place, is_new: bool) {
        let by = self.operations[cpu].as_ref().map(|by| (by.process, by.action));
        for other in 0..self.operations.len() {
            let Some(Operation { begun, process, action: CpuAction::Call(call), .. }) =
                self.operations[other]
            else {
                continue;
            };
            match (call, place, by) {
                (Call::Truncate { file, bytes }, Place::Word(of, at), _)
                    if is_new && file == of && bytes <= at =>
                {
                    self.change(other, place);
                }
                // The store may be to another address, from which the page is being moved.
                (
                    Call::Discard { address, bytes },
                    Place::Own(object, at, _),
                    Some((of, CpuAction::Access(..))),
                ) if is_new && process == of => {
                    let shows = |page| {
                        let mut areas = self.areas(process, page, begun).into_iter().flatten();
                        areas.any(|area| area.source.is_own(object, at))
                    };
                    if pages(address, bytes).any(shows) {
                        self.change(other, place);
                    }
                }
                (Call::Discard { address, bytes }, Place::Area(of, page), _)
                    if process == of && pages(address, bytes).contains(&page) =>
                {
                    self.discard(other, page);
                }
                (Call::Protect { .. }, Place::Area(..), _)
                | (Call::Write { .. }, Place::Length(_), _) => self.extend(other, place),
                (Call::Remap { address, bytes, to: Some(to) }, Place::Area(of, page), _)
                    if process == of && pages(address, bytes).contains(&page) =>
                {
                    let to = to / PAGE_BYTES + page - address / PAGE_BYTES;
                    self.extend(other, Place::Area(of, to));
                }
                _ => {}
            }
        }
    }

    /// Adds the values that the CPU's operation may leave in a place by now.
    fn extend(&mut self, cpu: usize, place: Place) {
        let values = self.effect(cpu, place);
        let mut changes = self.places.get_mut(&place).into_iter().flatten();
        let Some(change) = changes.find(|change| change.is_open_by(cpu)) else {
            return;
        };
        let known = change.values.len();
        change.add(values);
        if change.values.len() > known {
            self.meet(cpu, place, false);
        }
    }

    /// Drops the values that were stored to a page.
    fn discard(&mut self, cpu: usize, page: u64) {
        let Some(Operation { begun, process, .. }) = self.operations[cpu] else {
            return;
        };
        for area in self.areas(process, page, begun).into_iter().flatten() {
            if let Source::Own(object, page, _) = area.source {
                for word in (0..WORDS).map(|word| Place::Own(object, page, word)) {
                    if self.places.contains_key(&word) {
                        self.change(cpu, word);
                    }
                }
            }
        }
    }

    fn begin(&mut self, cpu: usize, process: ProcessId, action: CpuAction) -> bool {
        self.lost |= !self.processes.contains(&process);
        if self.lost {
            return false;
        }
        self.now += 1;
        self.objects += 1;
        let (begun, object) = (self.now, self.objects);
        self.operations[cpu] = Some(Operation {
            begun,
            process,
            action,
            object,
            changed: SmallVec::new(),
            may_be_busy: false,
        });
        self.acts(cpu, process, action);
        true
    }

    /// Records that a CPU begins a call of the manager.
    pub fn begin_call(&mut self, cpu: usize, process: ProcessId, call: Call) {
        if !self.begin(cpu, process, CpuAction::Call(call)) {
            return;
        }
        match call {
            Call::Map { address: Some(address), bytes, .. }
            | Call::Unmap { address, bytes }
            | Call::Protect { address, bytes, .. } => {
                pages(address, bytes).for_each(|page| self.change(cpu, Place::Area(process, page)));
            }
            Call::Remap { address, bytes, to } => {
                let to = to.into_iter().flat_map(|to| pages(to, bytes));
                let both = to.chain(pages(address, bytes));
                both.for_each(|page| self.change(cpu, Place::Area(process, page)));
            }
            Call::Discard { address, bytes } => {
                pages(address, bytes).for_each(|page| self.discard(cpu, page))
            }
            Call::Write { file, offset, .. } => {
                self.change(cpu, Place::Length(file));
                self.change(cpu, Place::Word(file, offset));
            }
            Call::Truncate { file, bytes } => {
                self.change(cpu, Place::Length(file));
                let cut = Place::Word(file, bytes)..=Place::Word(file, u64::MAX);
                let cut: Vec<Place> = self.places.range(cut).map(|(place, _)| *place).collect();
                cut.into_iter().for_each(|place| self.change(cpu, place));
                // The zeros may wait in a store buffer when the call has returned. Until they leave it, another CPU may
                // store to a word of that page for the first time.
                if !bytes.is_multiple_of(PAGE_BYTES) {
                    let rest = (0..WORDS).map(|word| byte(bytes / PAGE_BYTES, word));
                    rest.filter(|&at| bytes <= at)
                        .for_each(|at| self.change(cpu, Place::Word(file, at)));
                }
            }
            _ => {}
        }
    }

    /// Records that a CPU begins an access to a word of a page. A store stores `value`.
    pub fn begin_access(
        &mut self,
        cpu: usize,
        process: ProcessId,
        access: Access,
        page: u64,
        word: usize,
        value: u64,
    ) {
        if self.begin(cpu, process, CpuAction::Access(access, page, word, value))
            && access == Access::Write
        {
            self.store(cpu);
        }
    }

    /// Changes the word behind each area that the store under way may find.
    fn store(&mut self, cpu: usize) {
        let Some(Operation { begun, process, action: CpuAction::Access(_, page, word, _), .. }) =
            self.operations[cpu]
        else {
            return;
        };
        let areas = self.areas(process, page, begun).into_iter().flatten();
        for area in areas.filter(|area| area.allows(Access::Write)) {
            for place in Self::stored_to(&area, word) {
                self.change(cpu, place);
            }
        }
    }

    /// Returns whether the operation certainly changed a place, because it can have found no other area.
    fn is_certain(&self, operation: &Operation, place: Place) -> bool {
        let source = |page, access: Option<Access>| {
            let areas = self.areas(operation.process, page, operation.begun).into_iter().flatten();
            let allows = |area: &Area| access.is_none_or(|access| area.allows(access));
            let mut areas = areas.filter(allows);
            let first = areas.next()?;
            areas.all(|area| area.source == first.source).then_some(first)
        };
        match operation.action {
            CpuAction::Access(access, page, word, _) => source(page, Some(access))
                .is_some_and(|area| Self::stored_to(&area, word).contains(&place)),
            CpuAction::Call(Call::Discard { address, bytes }) => {
                pages(address, bytes).any(|page| match (source(page, None), place) {
                    (Some(area), Place::Own(object, at, _)) => area.source.is_own(object, at),
                    _ => false,
                })
            }
            CpuAction::Call(_) => true,
        }
    }

    /// Ends the CPU's operation. If it is not `done`, `left` returns what it has left in a place.
    fn end(&mut self, cpu: usize, done: bool, left: impl Fn(Place) -> Left) {
        let Some(operation) = &self.operations[cpu] else {
            return;
        };
        let effect = |&place| {
            let certain = done && self.is_certain(operation, place);
            (place, self.effect(cpu, place), certain)
        };
        let changed: SmallVec<[(Place, Values, bool); 2]> =
            operation.changed.iter().map(effect).collect();
        self.now += 1;
        for (place, values, certain) in changed {
            let Some(history) = self.places.get_mut(&place) else {
                continue;
            };
            let left = if done { Left::Perhaps } else { left(place) };
            if matches!(left, Left::Before) {
                history.retain(|change| !change.is_open_by(cpu));
                continue;
            }
            if let Some(change) = history.iter_mut().find(|change| change.is_open_by(cpu)) {
                change.ended[0] = self.now;
                change.unsure = !certain;
                match left {
                    Left::PerhapsNothing => change.values = smallvec![Value::Nothing],
                    // The operation may also have found the values that others changed in the meantime.
                    Left::Before | Left::Perhaps => change.add(values),
                }
            }
            self.unseen[cpu].push(place);
        }
        self.operations[cpu] = None;
    }

    /// Records that a CPU's store buffer is empty. Other CPUs now see all of its stores.
    pub fn drained(&mut self, cpu: usize) {
        self.now += 1;
        for place in self.unseen[cpu].drain(..) {
            let changes = self.places.get_mut(&place).into_iter().flatten();
            for change in changes.filter(|change| change.by == cpu && change.ended[0] != OPEN) {
                change.ended[1] = change.ended[1].min(self.now);
            }
        }
    }

    /// Records the end of a CPU's access, and judges its result.
    ///
    /// The result is the word's value, or the fault with which the access was refused. `stale` is set if the access
    /// used a stale translation.
    ///
    /// # Errors
    /// Returns the violation if the abstract machine doesn't allow the result.
    pub fn end_access(&mut self, cpu: usize, result: Result<u64, Fault>, stale: bool) -> Verdict {
        let Some(Operation {
            begun,
            process,
            action: CpuAction::Access(access, page, word, _),
            ..
        }) = self.operations[cpu]
        else {
            return Ok(());
        };
        let areas = self.areas(process, page, begun);
        let verdict = self.judge_access((cpu, begun), (access, page, word), &areas, result, stale);
        if access == Access::Write {
            self.store(cpu);
        }
        let copied = match access {
            Access::Write => self.copied(cpu, begun, &areas, word),
            Access::Read | Access::Execute => Vec::new(),
        };
        // If the access was refused after the page was copied, the copy has frozen the page's content.
        self.end(cpu, result.is_ok(), |place| match place {
            Place::Own(..) => Left::Perhaps,
            Place::Area(..) | Place::Word(..) | Place::Length(_) => Left::Before,
        });
        for (place, values) in copied {
            if let Some(history) = self.places.get_mut(&place) {
                let unsure =
                    Change { by: cpu, begun, unsure: true, ..Change::past(self.now, values) };
                history.push(Change { is_copy: true, ..unsure });
            }
        }
        verdict
    }

    fn judge_access(
        &self,
        (cpu, since): (usize, Moment),
        (access, page, word): (Access, u64, usize),
        areas: &[Option<Area>],
        result: Result<u64, Fault>,
        stale: bool,
    ) -> Verdict {
        let held = match result {
            Ok(held) => held,
            Err(fault) => {
                let is_reason = |area: &Option<Area>| match (fault, area) {
                    (Fault::OutOfMemory, _) | (Fault::NotMapped, None) => true,
                    (Fault::Forbidden, Some(area)) => !area.allows(access),
                    (Fault::BeyondEnd, Some(area)) => self.presence(area, since)[1],
                    _ => false,
                };
                let account =
                    || format!("an access to page {page:#x} is refused without a reason: {fault}");
                return expect(areas.iter().any(is_reason), Clause::Misuse, account);
            }
        };
        let mut fitting = areas.iter().flatten().filter(|area| area.allows(access)).peekable();
        let account = || format!("page {page:#x} allows no access of the kind {access:?}");
        expect(fitting.peek().is_some(), Clause::C3, account)?;
        let finds = |area: &Area| {
            access != Access::Read || self.words(area, word, cpu, since).contains(&held)
        };
        let account =
            || format!("a load of page {page:#x} finds {held:#x}, which nobody has left there");
        expect(fitting.any(finds), if stale { Clause::C4 } else { Clause::C2 }, account)
    }

    /// Returns the values that others find in a word of each page that a store may have copied, until they see the
    /// store.
    fn copied(
        &self,
        cpu: usize,
        since: Moment,
        areas: &[Option<Area>],
        word: usize,
    ) -> Vec<(Place, Values)> {
        let copied = |area: &Area| match area.source {
            Source::Own(object, page, Some(_)) => {
                let words = self.words(area, word, cpu, since);
                let values = words.into_iter().map(Value::Number).collect();
                Some((Place::Own(object, page, word), values))
            }
            _ => None,
        };
        let areas = areas.iter().flatten();
        areas.filter(|area| area.allows(Access::Write)).filter_map(copied).collect()
    }

    /// Records the end of a CPU's call, and judges its result.
    ///
    /// `device` returns the word at a byte of a file's device.
    ///
    /// # Errors
    /// Returns the violation if the abstract machine doesn't allow the result.
    pub fn end_call(
        &mut self,
        cpu: usize,
        result: Result<u64, Error>,
        device: impl Fn(FileId, u64) -> Option<u64>,
    ) -> Verdict {
        let Some(Operation { begun, process, action: CpuAction::Call(call), .. }) =
            self.operations[cpu]
        else {
            return Ok(());
        };
        let verdict = self.judge_content(cpu, begun, call, result, device);
        let verdict = verdict.and_then(|()| self.judge_refusal(cpu, call, result));
        let call = match result {
            Ok(chosen) => self.with_address(cpu, process, call, chosen),
            Err(_) => call,
        };
        match (call, result) {
            (Call::Create { .. }, Ok(file)) => self.change(cpu, Place::Length(file as FileId)),
            (Call::Fork, Ok(child)) => self.fork(cpu, process, child as ProcessId, begun),
            (Call::Spawn, Ok(process)) => drop(self.processes.insert(process as ProcessId)),
            (Call::Exit { process }, Ok(_)) => {
                self.processes.remove(&process);
                self.places
                    .retain(|place, _| !matches!(place, Place::Area(of, _) if *of == process));
            }
            _ => {}
        }
        let now = self.now + 1;
        self.known.returns(cpu, process, (call, result), now);
        // When memory runs out, part of a range may be gone, and what was mapped where a range would have moved.
        let left = |place| match (call, place) {
            (Call::Discard { .. }, _) => Left::Perhaps,
            (Call::Remap { bytes, to: Some(to), .. }, Place::Area(_, page))
                if pages(to, bytes).contains(&page) =>
            {
                Left::PerhapsNothing
            }
            _ => Left::Before,
        };
        self.end(cpu, result.is_ok(), |place| match result {
            Err(Error::OutOfMemory) => left(place),
            Ok(_) | Err(_) => Left::Before,
        });
        verdict
    }

    /// Returns the call with the address that the manager chose, if the call left that to it.
    fn with_address(&mut self, cpu: usize, process: ProcessId, call: Call, chosen: u64) -> Call {
        let mut call = call;
        let bytes = match &mut call {
            Call::Map { address: place @ None, bytes, .. }
            | Call::Remap { to: place @ None, bytes, .. } => {
                *place = Some(chosen);
                *bytes
            }
            _ => return call,
        };
        if let Some(operation) = &mut self.operations[cpu] {
            operation.action = CpuAction::Call(call);
        }
        pages(chosen, bytes).for_each(|page| self.change(cpu, Place::Area(process, page)));
        call
    }

    fn judge_content(
        &self,
        cpu: usize,
        since: Moment,
        call: Call,
        result: Result<u64, Error>,
        device: impl Fn(FileId, u64) -> Option<u64>,
    ) -> Verdict {
        let ends = |file, fits: &dyn Fn(u64) -> bool| {
            self.numbers(Place::Length(file), cpu, since).into_iter().any(fits)
        };
        match (call, result) {
            (Call::Read { file, offset }, Ok(held)) => {
                let account = || format!("file {file} is read at {offset:#x}, behind its end");
                let is_within = ends(file, &|length| offset + 8 <= length);
                expect(is_within, Clause::Misuse, account)?;
                let account = || {
                    format!(
                        "file {file} holds {held:#x} at {offset:#x}, which nobody has left there"
                    )
                };
                let words = self.numbers(Place::Word(file, offset), cpu, since);
                expect(words.contains(&held), Clause::C2, account)
            }
            (Call::Read { file, offset }, Err(Error::BeyondEnd)) => {
                let account = || format!("file {file} does not end before {offset:#x}");
                expect(ends(file, &|length| offset + 8 > length), Clause::Misuse, account)
            }
            (Call::Sync { file }, Ok(_)) => {
                let all = Place::Word(file, 0)..=Place::Word(file, u64::MAX);
                for (&place, _) in self.places.range(all) {
                    let Place::Word(_, at) = place else { continue };
                    let Some(held) = device(file, at) else { continue };
                    let right = ends(file, &|length| at >= length)
                        || self.numbers(place, cpu, since).contains(&held);
                    let account = || {
                        format!(
                            "file {file} was written back, but its device holds {held:#x} at {at:#x}"
                        )
                    };
                    expect(right, Clause::C2, account)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Gives the child everything that its parent had at some moment of the fork.
    fn fork(&mut self, cpu: usize, parent: ProcessId, child: ProcessId, since: Moment) {
        self.processes.insert(child);
        let copied = |values| Change::past(self.now, values);
        let mut copies: BTreeMap<u32, u32> = BTreeMap::new();
        let mut made = Vec::new();
        for (place, _) in self.places.range(Place::Area(parent, 0)..=Place::Area(parent, u64::MAX))
        {
            let Place::Area(_, page) = *place else {
                continue;
            };
            let mut values = self.candidates(*place, cpu, since);
            for value in &mut values {
                if let Value::Area(Area { source: Source::Own(object, at, behind), .. }) = value {
                    let next = self.objects + 1 + copies.len() as u32;
                    let copy = *copies.entry(*object).or_insert(next);
                    for word in 0..WORDS {
                        let own = Place::Own(*object, *at, word);
                        if self.places.contains_key(&own) {
                            let mut values = self.candidates(own, cpu, since);
                            if let Some(behind) = *behind {
                                let numbers = self.copies_under_way(own, behind, word);
                                values.extend(numbers.map(Value::Number));
                            }
                            made.push((Place::Own(copy, *at, word), copied(values)));
                        }
                    }
                    *object = copy;
                }
            }
            made.push((Place::Area(child, page), copied(values)));
        }
        self.objects += copies.len() as u32;
        self.places.extend(made.into_iter().map(|(place, change)| (place, smallvec![change])));
    }

    /// Judges an access that a CPU's program could make now.
    ///
    /// # Errors
    /// Returns the violation if the abstract machine doesn't allow the access.
    pub fn judge_reach(&self, cpu: usize, process: ProcessId, reach: &PossibleAccess) -> Verdict {
        if self.lost || !self.processes.contains(&process) {
            return Ok(());
        }
        let since = self.now + 1;
        let PossibleAccess { page, frame, rights, held, stale } = *reach;
        let areas = self.areas(process, page, since);
        let fits = |area: &&Area| area.grants(rights) && self.presence(area, since)[0];
        let mut fitting = areas.iter().flatten().filter(fits).peekable();
        let verdict = if fitting.peek().is_none() {
            let account = || "a program could do what its area does not allow".into();
            expect(false, Clause::C3, account)
        } else {
            let finds = |area: &Area| {
                (0..WORDS).all(|word| self.words(area, word, cpu, since).contains(&held[word]))
            };
            let account = || format!("a program could load {held:x?}, which nobody left there");
            expect(fitting.any(finds), if stale { Clause::C4 } else { Clause::C2 }, account)
        };
        verdict.map_err(|violation| violation.in_frame(frame).through(Page(page).address()))
    }

    fn is_stored_to(&self, process: ProcessId, page: u64) -> bool {
        let mut areas = self.areas(process, page, self.now + 1).into_iter().flatten();
        areas.any(|area| match area.source {
            Source::Own(object, page, _) => self.places.contains_key(&Place::Own(object, page, 0)),
            Source::Shared(..) => true,
        })
    }

    /// Returns whether a CPU has changes that other CPUs may not see yet.
    pub fn has_unseen(&self, cpu: usize) -> bool {
        !self.unseen[cpu].is_empty()
    }

    /// Judges the final content of memory and files.
    ///
    /// `page` returns a word of a process's page, and `file` the word at a byte of a file.
    ///
    /// # Errors
    /// Returns the violation if the abstract machine doesn't allow the content.
    pub fn judge_rest(
        &self,
        page: impl Fn(ProcessId, u64, usize) -> Option<u64>,
        file: impl Fn(FileId, u64) -> Option<u64>,
    ) -> Verdict {
        let since = self.now + 1;
        for &place in self.places.keys().filter(|_| !self.lost) {
            match place {
                // Of large pages, only check those that were stored to: the rest is zero.
                Place::Area(process, at)
                    if self.places.len() < MANY || self.is_stored_to(process, at) =>
                {
                    let areas = self.areas(process, at, since);
                    for word in 0..WORDS {
                        let Some(held) = page(process, at, word) else { continue };
                        let finds =
                            |area: &Area| self.words(area, word, NOBODY, since).contains(&held);
                        let account =
                            || format!("page {at:#x} of process {process} is left with {held:#x}");
                        expect(areas.iter().flatten().any(finds), Clause::C2, account)?;
                    }
                }
                Place::Word(id, at) => {
                    let Some(held) = file(id, at) else { continue };
                    let words = self.numbers(place, NOBODY, since);
                    let account = || format!("file {id} is left with {held:#x} at {at:#x}");
                    expect(words.contains(&held), Clause::C2, account)?;
                }
                Place::Area(..) | Place::Own(..) | Place::Length(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns the byte of a word of a file's page.
fn byte(page: u64, word: usize) -> u64 {
    page * PAGE_BYTES + word as u64 * 8
}

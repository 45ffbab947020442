//! Tracks which CPUs hold each shared cache line, and the cost of the next access.
//!
//! As in every invalidation-based protocol, either one core may change a line, or several may read it. So the holders
//! determine the cost of an access:
//!
//! * a hit, if this core holds the line;
//! * a transfer by distance, if another core changed it;
//! * a transfer by the farthest distance, if others must give it up;
//! * the shared cache or memory, if no CPU has it.
//!
//! Transfers of one line queue behind each other. For example, a word to which a thousand CPUs add is slow here too. A
//! transfer has three hops: to the line's home, to its holder, and to the core that asked (Sorin, Hill and Wood, A
//! Primer on Memory Consistency and Cache Coherence, chapter 8). The home forwards the next request once the line has
//! arrived. So each core keeps the line for the first two hops of the next transfer, and a failed exchange that is
//! repeated at once mostly succeeds.
//!
//! Capacity is modelled by direct-mapped sets of line numbers, with the sizes of a core's two private caches and its
//! socket's cache. So page tables larger than a cache are read from the next one.
//!
//! A line's identity is the host address of the word divided by 64. Lines get numbers in the order of first use. So
//! costs don't depend on the host's allocator, except if it decides which words share a line;
//! [`LineAllocator`](quell_vm::sim::LineAllocator) prevents that too. Dropping a word removes its line.
//!
//! Not modelled: associativity, prefetch, bandwidth of the interconnect, choice of home agent. Stores and walkers do
//! not wait for their place in the queue; others see such a store at once.

use crate::costs::{Costs, Topology};
use crate::file::{Parameter as P, Time};
use rustc_hash::FxHashMap;

/// A kind of access to a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineUse {
    /// The line is read.
    Load,
    /// The line is written.
    Store,
    /// The line is read and written in one step.
    Modify,
}

const NO_CORE: u16 = u16::MAX;

/// Slots of the table of recently used numbers.
const LATELY: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Line {
    /// The first 64 of the cores that may read it; [`Lines::more`] has the others.
    holders: u64,
    /// Whether a CPU sleeps until it is written.
    watched: bool,
    /// The core that may write without a transfer.
    owner: u16,
    /// The last CPU that wrote, which distinguishes hardware threads of a core.
    writer: u16,
    /// The end of the last transfer in the line's queue.
    busy: Time,
    /// The core that has the line then.
    last: u16,
}

impl Line {
    /// A line that no CPU has.
    const FRESH: Line =
        Line { holders: 0, watched: false, owner: NO_CORE, writer: NO_CORE, busy: 0, last: 0 };
}

/// The numbered lines that a cache holds. It is direct-mapped, so one comparison suffices.
#[derive(Clone, Debug)]
struct CacheSets {
    held: Vec<u32>,
    lines: usize,
    /// `lines - 1` if that is a mask, else 0.
    mask: usize,
}

impl CacheSets {
    fn new(lines: usize) -> Self {
        CacheSets {
            held: Vec::new(),
            lines,
            mask: if lines.is_power_of_two() { lines - 1 } else { 0 },
        }
    }

    /// Allocates the host's memory, on first use.
    #[cold]
    fn allocate(&mut self) {
        self.held = vec![0; self.lines];
    }

    /// Returns whether the line was there, and puts it there.
    #[inline(always)]
    fn take(&mut self, line: u32) -> bool {
        // Sizes are almost always powers of two, so we use a mask; a division would dominate.
        let place = match self.mask {
            0 => line as usize % self.lines,
            mask => line as usize & mask,
        };
        if self.held.get(place).is_none() {
            self.allocate();
        }
        let slot = &mut self.held[place];
        let hit = *slot == line + 1;
        *slot = line + 1;
        hit
    }
}

/// The result of an access to a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineAccess {
    /// The completion of the access, at the earliest `now`.
    pub ready: Time,
    /// Whether it came from another core.
    pub transferred: bool,
    /// Whether this core held it already.
    pub held: bool,
}

/// A place in the queue for a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    /// The line.
    pub line: u32,
    /// The time of the request.
    pub since: Time,
    /// The time at which the line leaves the core before.
    pub leaves: Time,
    /// The time at which it arrives.
    pub ready: Time,
}

/// All shared lines of a machine.
#[derive(Debug)]
pub struct Lines {
    numbers: FxHashMap<usize, u32>,
    lines: Vec<Line>,
    /// `words` words of bits for each line: the cores from number 64 on that may read it.
    more: Vec<u64>,
    words: usize,
    free: Vec<u32>,
    /// The CPUs that sleep until a line is written.
    watchers: FxHashMap<u32, Vec<u16>>,
    topology: Topology,
    /// The core and the socket of each CPU.
    places: Vec<(u16, u16)>,
    /// Recently used numbers, by the low bits of their key.
    lately: Box<[(usize, u32); LATELY]>,
    first: Vec<CacheSets>,
    second: Vec<CacheSets>,
    last: Vec<CacheSets>,
}

impl Lines {
    /// Creates an empty set of lines, for a machine of `cpus` CPUs.
    pub fn new(costs: &Costs, cpus: usize) -> Self {
        let cores = cpus.div_ceil(costs.topology.per_core);
        let sockets = cpus.div_ceil(costs.topology.per_socket);
        Lines {
            numbers: FxHashMap::default(),
            lines: Vec::new(),
            more: Vec::new(),
            words: cores.div_ceil(64) - 1,
            free: Vec::new(),
            watchers: FxHashMap::default(),
            topology: costs.topology,
            places: (0..cpus)
                .map(|cpu| {
                    let topology = costs.topology;
                    (topology.core(cpu) as u16, topology.socket(cpu) as u16)
                })
                .collect(),
            lately: Box::new([(usize::MAX, 0); LATELY]),
            first: vec![CacheSets::new(costs.l1_lines); cores],
            second: vec![CacheSets::new(costs.l2_lines); cores],
            last: vec![CacheSets::new(costs.llc_lines); sockets],
        }
    }

    /// Returns the number of a word's line, which stays until the line is forgotten.
    pub fn number(&mut self, address: usize) -> u32 {
        let key = address >> 6;
        let (known, number) = self.lately[key % LATELY];
        if known == key {
            return number;
        }
        let number = self.look_up(key);
        self.lately[key % LATELY] = (key, number);
        number
    }

    /// Gives `count` adjacent lines adjacent new numbers, and returns the first. They must not be watched or forgotten.
    pub fn number_page(&mut self, address: usize, count: usize) -> u32 {
        let first = self.lines.len() as u32;
        for number in first..first + count as u32 {
            let key = (address >> 6) + (number - first) as usize;
            match self.numbers.insert(key, number) {
                None => {
                    self.lines.push(Line::FRESH);
                    self.more.resize(self.lines.len() * self.words, 0);
                }
                Some(old) => {
                    self.lines.push(self.lines[old as usize]);
                    let from = old as usize * self.words;
                    self.more.extend_from_within(from..from + self.words);
                    self.free.push(old);
                    self.lately[key % LATELY] = (usize::MAX, 0);
                }
            }
        }
        first
    }

    fn look_up(&mut self, key: usize) -> u32 {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.lines[number as usize] = Line::FRESH;
                self.more_mut(number).fill(0);
                number
            }
            None => {
                self.lines.push(Line::FRESH);
                self.more.resize(self.lines.len() * self.words, 0);
                self.lines.len() as u32 - 1
            }
        };
        self.numbers.insert(key, number);
        number
    }

    /// Forgets the line of a dropped word.
    pub fn forget(&mut self, address: usize) {
        let key = address >> 6;
        if let Some(number) = self.numbers.remove(&key) {
            self.free.push(number);
            self.lately[key % LATELY] = (usize::MAX, 0);
        }
    }

    #[inline]
    fn more_mut(&mut self, number: u32) -> &mut [u64] {
        let first = number as usize * self.words;
        &mut self.more[first..first + self.words]
    }

    /// Returns the word of the holders that contains a core.
    #[inline]
    fn holders(&mut self, number: u32, core: usize) -> &mut u64 {
        match core / 64 {
            0 => &mut self.lines[number as usize].holders,
            word => &mut self.more_mut(number)[word - 1],
        }
    }

    /// Returns whether a core may read the line.
    #[inline]
    fn holds(&self, number: u32, core: usize) -> bool {
        let word = match core / 64 {
            0 => self.lines[number as usize].holders,
            word => self.more[number as usize * self.words + word - 1],
        };
        word & 1 << (core % 64) != 0
    }

    /// Records that a CPU sleeps until the line is written.
    pub fn watch(&mut self, number: u32, cpu: usize) {
        self.lines[number as usize].watched = true;
        self.watchers.entry(number).or_default().push(cpu as u16);
    }

    /// Records that a CPU doesn't sleep any more.
    pub fn unwatch(&mut self, number: u32, cpu: usize) {
        if let Some(watchers) = self.watchers.get_mut(&number) {
            watchers.retain(|&watcher| watcher != cpu as u16);
            if watchers.is_empty() {
                self.watchers.remove(&number);
                self.lines[number as usize].watched = false;
            }
        }
    }

    /// Returns the CPUs that sleep until the line is written; usually none.
    #[inline]
    pub fn watchers(&self, number: u32) -> &[u16] {
        if !self.lines[number as usize].watched {
            return &[];
        }
        self.watchers.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a CPU can read the line without a transfer from another core.
    #[inline]
    pub fn is_at_hand(&self, cpu: usize, number: u32) -> bool {
        let owner = self.lines[number as usize].owner;
        owner == NO_CORE || owner == self.places[cpu].0
    }

    /// Returns whether no other CPU has written the line since `cpu` read it.
    ///
    /// May return `false` for a line that another CPU of the same core wrote before that.
    #[inline]
    pub fn is_unchanged(&self, cpu: usize, number: u32) -> bool {
        let core = self.places[cpu].0;
        let line = &self.lines[number as usize];
        self.holds(number, core as usize) && (line.owner != core || line.writer == cpu as u16)
    }

    /// Queues a request for a line that is under way to another core. Returns `None` if it needs no place.
    #[inline]
    pub fn queue(
        &mut self,
        costs: &Costs,
        cpu: usize,
        number: u32,
        kind: LineUse,
        now: Time,
    ) -> Option<Queued> {
        let core = self.places[cpu].0;
        let line = &self.lines[number as usize];
        if line.busy <= now || line.owner == core || kind == LineUse::Load && line.owner == NO_CORE
        {
            return None;
        }
        let cost = self.distance(costs, cpu, line.last as usize);
        let line = &mut self.lines[number as usize];
        line.busy += cost;
        line.last = core;
        let ready = line.busy;
        Some(Queued { line: number, since: now, leaves: ready - cost / 3, ready })
    }

    /// Returns the time that a line takes from another core to a CPU.
    fn distance(&self, costs: &Costs, cpu: usize, other: usize) -> Time {
        let cores_per_socket = self.topology.per_socket / self.topology.per_core;
        if other / cores_per_socket == self.places[cpu].1 as usize {
            costs.time(P::TransferSocket)
        } else {
            costs.time(P::TransferRemote)
        }
    }

    /// Accounts for one access of `cpu` at time `now` to a line. `queued` is its place in the line's queue, if it had
    /// to wait for one.
    #[inline]
    pub fn access(
        &mut self,
        costs: &Costs,
        cpu: usize,
        number: u32,
        kind: LineUse,
        now: Time,
        queued: Option<Queued>,
    ) -> LineAccess {
        let core = self.places[cpu].0 as usize;
        let line = self.lines[number as usize];
        let mine = line.owner == core as u16 || kind == LineUse::Load && self.holds(number, core);
        let held = self.fetch(costs, cpu, core, number);
        if mine {
            let line = &mut self.lines[number as usize];
            let sibling = kind == LineUse::Load && line.owner == core as u16;
            let sibling = sibling && line.writer != cpu as u16 && line.writer != NO_CORE;
            if kind != LineUse::Load {
                line.writer = cpu as u16;
            }
            let cost = if sibling { costs.time(P::TransferCore) } else { held };
            return LineAccess { ready: now + cost, transferred: false, held: true };
        }
        self.take(costs, cpu, core, number, kind, (now, queued), held)
    }

    /// Returns the cost of the line from capacity alone, and puts it into the caches.
    #[inline(always)]
    fn fetch(&mut self, costs: &Costs, cpu: usize, core: usize, number: u32) -> Time {
        if self.first[core].take(number) {
            return costs.time(P::L1Hit);
        }
        if self.second[core].take(number) {
            return costs.time(P::CacheL2Hit);
        }
        if self.last[self.places[cpu].1 as usize].take(number) {
            costs.time(P::LlcHit)
        } else {
            costs.time(P::MemoryLatency)
        }
    }

    /// Takes a line that this core may not use as it is.
    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        costs: &Costs,
        cpu: usize,
        core: usize,
        number: u32,
        kind: LineUse,
        (now, queued): (Time, Option<Queued>),
        held: Time,
    ) -> LineAccess {
        let line = self.lines[number as usize];
        // These must respond: the owner, or on a write every reader except this core.
        let mut cost = 0;
        if line.owner != NO_CORE {
            cost = self.distance(costs, cpu, line.owner as usize);
        } else if kind != LineUse::Load {
            for word in 0..=self.words {
                let mut bits = *self.holders(number, word * 64);
                if word == core / 64 {
                    bits &= !(1 << (core % 64));
                }
                if bits != 0 {
                    let (low, high) = (bits.trailing_zeros(), 63 - bits.leading_zeros());
                    for bit in [low, high] {
                        cost = cost.max(self.distance(costs, cpu, word * 64 + bit as usize));
                    }
                }
            }
        }
        let transferred = cost != 0;
        if kind == LineUse::Load {
            if line.owner != NO_CORE {
                let owner = line.owner as usize;
                *self.holders(number, owner) |= 1 << (owner % 64);
            }
        } else {
            self.lines[number as usize].holders = 0;
            self.more_mut(number).fill(0);
        }
        *self.holders(number, core) |= 1 << (core % 64);
        let line = &mut self.lines[number as usize];
        line.owner = if kind == LineUse::Load { NO_CORE } else { core as u16 };
        if kind != LineUse::Load {
            line.writer = cpu as u16;
        }
        if let Some(Queued { ready, .. }) = queued {
            LineAccess { ready: ready.max(now), transferred: true, held: false }
        } else if transferred {
            let ready = now.max(line.busy) + cost;
            line.busy = ready;
            line.last = core as u16;
            LineAccess { ready, transferred, held: false }
        } else {
            // The line is clean and elsewhere, or nowhere: the shared cache or memory responds, to all at once.
            let cost = held.max(costs.time(P::LlcHit));
            LineAccess { ready: now.max(line.busy) + cost, transferred, held: false }
        }
    }
}

#[cfg(test)]
mod tests;

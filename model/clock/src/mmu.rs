//! Performs a program's access: through the TLBs or by a walk, to the bytes of a frame.
//!
//! A TLB hit is private: no other CPU sees it. A walk is private too if it succeeds by reading lines that no other CPU
//! has changed. Such a walk may be early by the [lookahead](crate::clock), like real walkers that fill on speculation.
//! Every other walk happens in the order of virtual time.
//!
//! As on real processors, the tables are walked again before an access faults because the cached translation lacks a
//! right. A store through a clean entry also walks again, to set the dirty bit in the table by a locked operation.

use crate::clock::Point;
use crate::context;
use crate::core::Core;
use crate::file::{Parameter as P, Time};
use crate::lines::LineUse;
use crate::tlb::{Place, Rights, Translation};
use quell::{Frame, Page, PageSize};
use quell_vm::contract::Violation;
use quell_vm::{Access, Level};

/// The result of an attempt.
pub(crate) enum AccessResult {
    /// Success, with the loaded value.
    Done(u64),
    /// The CPU must first wait for its turn or take an interrupt.
    Attend(Point),
    /// The tables don't allow it.
    Fault,
    /// It was done, but is wrong if the program should have read something else.
    Compare(u64, Box<Violation>),
}

impl Core {
    /// Tries a load (`store` is `None`) or a store of eight bytes.
    #[inline]
    pub fn user_access(&mut self, address: u64, store: Option<u64>) -> AccessResult {
        if !self.may_run() {
            return AccessResult::Attend(Point::Local);
        }
        let page = Page::containing(address);
        let cpu = &mut self.cpus[self.current];
        let tag = cpu.tag;
        let place = match cpu.tlb.lookup_first(page, tag) {
            Some(place) => place,
            None => match cpu.tlb.lookup_second(page, tag) {
                Some(place) => {
                    cpu.counts.tlb_first_misses += 1;
                    cpu.now += self.costs.time(P::L2Hit);
                    place
                }
                None => {
                    cpu.counts.tlb_first_misses += 1;
                    cpu.counts.tlb_misses += 1;
                    cpu.counts.tlb_store_misses += u64::from(store.is_some());
                    return self.walk_and_access(address, store);
                }
            },
        };
        let entry = self.cpus[self.current].tlb.at(place);
        let enough = entry.rights.user && (store.is_none() || entry.rights.write && entry.dirty);
        if enough {
            self.finish_access(place, address, store)
        } else {
            self.walk_and_access(address, store)
        }
    }

    /// Walks, then performs the access. A caller that must wait first retries this function, not [`Core::user_access`]:
    /// only this CPU fills its caches.
    pub fn walk_and_access(&mut self, address: u64, store: Option<u64>) -> AccessResult {
        match self.walk(Page::containing(address), address, store.is_some()) {
            // We don't judge a translation that was just read from the tables.
            Ok(frame) => AccessResult::Done(self.touch(frame, address, store)),
            Err(attempt) => attempt,
        }
    }

    /// Performs an access through a translation that allows it, and lets the oracle check it.
    #[inline]
    fn finish_access(&mut self, place: Place, address: u64, store: Option<u64>) -> AccessResult {
        let entry = self.cpus[self.current].tlb.at(place);
        let page = Page::containing(address);
        let frame = entry.frame.plus(page.0 & (entry.size.pages() - 1));
        if !self.unquestionable(entry, frame) {
            let mut entry = *entry;
            let doubt = self.judge(&mut entry, frame, address, store.is_some());
            *self.cpu().tlb.at_mut(place) = entry;
            if let Some(violation) = doubt {
                return AccessResult::Compare(self.touch(frame, address, store), violation);
            }
        }
        AccessResult::Done(self.touch(frame, address, store))
    }

    /// Loads or stores. Returns the loaded value.
    #[inline]
    fn touch(&mut self, frame: Frame, address: u64, store: Option<u64>) -> u64 {
        let access = self.costs.time(P::UserAccess);
        let cpu = &mut self.cpus[self.current];
        cpu.counts.accesses += 1;
        cpu.now += access;
        let offset = (address & 4095) as usize & !7;
        match store {
            None => self.memory.load(frame, offset),
            Some(value) => {
                self.memory.store(frame, offset, value);
                value
            }
        }
    }

    /// Streams the lines of a page from `address` on. It takes the memory's rate and one translation. Returns `false`
    /// if that translation isn't cached any more.
    ///
    /// `address` itself was just accessed.
    pub fn stream_page(&mut self, address: u64, bytes: u64, store: Option<u64>) -> bool {
        let page = Page::containing(address);
        let cpu = &mut self.cpus[self.current];
        let tag = cpu.tag;
        let Some(place) = cpu.tlb.lookup_first(page, tag) else {
            return false;
        };
        let entry = cpu.tlb.at(place);
        let frame = entry.frame.plus(page.0 & (entry.size.pages() - 1));
        cpu.counts.accesses += (bytes - 1) / 64;
        if let Some(value) = store {
            for line in (address..address + bytes).step_by(64).skip(1) {
                self.memory.store(frame, (line & 4095) as usize & !7, value);
            }
        }
        let time = stream(self, frame, bytes);
        self.spend(time);
        true
    }

    /// Walks the tables and fills the translation if they allow the access. Returns the frame.
    ///
    /// Before this CPU's turn, a walk may read only lines at hand and change nothing in the tables. Otherwise it is
    /// abandoned and restarted in its turn.
    fn walk(&mut self, page: Page, address: u64, write: bool) -> Result<Frame, AccessResult> {
        let early = !self.may_share();
        let cpu = self.cpu();
        let tag = cpu.tag;
        let Some(root) = cpu.root else {
            return Err(AccessResult::Fault);
        };
        let begun = (cpu.now, cpu.counts.walks, cpu.counts.walk_reads);
        let (mut level, mut table, mut cached) = match cpu.tlb.walk_start(page, tag) {
            Some((level, entry)) => (level, entry.table, Some(entry.filled)),
            None => (Level::ROOT.0, root, None),
        };
        cpu.counts.walks += 1;
        self.spend(self.costs.walk);
        loop {
            self.judge_table(table, cached.take(), address);
            let index = Level(level).index(page);
            let (raw, line) = self.table_word(table, index);
            if early && !self.is_at_hand(line) {
                return Err(self.give_up(begun));
            }
            self.walker_access(line, LineUse::Load);
            if level > 0
                && let Some(next) = self.costs.architecture.table(raw, Level(level))
                && self.memory.contains(next)
            {
                table = next;
                level -= 1;
                let filled = self.oracle.events;
                self.cpu().tlb.walk_seen(page, tag, level, table, filled);
                continue;
            }
            // We make two calls, so that the compiler specializes the lowest level.
            let entry = match level {
                0 => self.costs.architecture.decode(raw, Level::LEAF),
                _ => self.costs.architecture.decode(raw, Level(level)),
            };
            let leaf = entry.present && !entry.table;
            let known =
                self.costs.yes(P::HardwareDirty) || entry.accessed && (!write || entry.dirty);
            let allowed = leaf && entry.user && (!write || entry.writable) && known;
            let used = self.costs.architecture.used(raw, write);
            if early && (!allowed || used != raw) {
                return Err(self.give_up(begun));
            }
            if !allowed {
                if leaf {
                    // We drop an insufficient translation on a fault, as real processors do.
                    self.cpu().tlb.drop_page(page, tag);
                }
                return Err(AccessResult::Fault);
            }
            if used != raw {
                self.walker_access(line, LineUse::Modify);
                self.tables.page(table).words[index].poke(used);
                self.cpu().counts.walk_updates += 1;
            }
            let size = match level {
                0 => PageSize::Base,
                1 => PageSize::Large,
                _ => PageSize::Huge,
            };
            let filled = self.oracle.events;
            let cpu = self.cpu();
            let translation = Translation {
                frame: entry.frame,
                raw: used,
                table,
                index: index as u16,
                size,
                rights: Rights { write: entry.writable, user: entry.user },
                dirty: entry.dirty || write,
                space: cpu.space,
                filled,
                checked: filled,
            };
            cpu.tlb.fill(page, tag, &translation);
            self.note_user(root, Page(page.0 & !(size.pages() - 1)));
            return Ok(entry.frame.plus(page.0 & (size.pages() - 1)));
        }
    }

    /// Undoes the time of an early walk. Lines that it has fetched into caches stay there.
    #[cold]
    fn give_up(&mut self, (now, walks, walk_reads): (Time, u64, u64)) -> AccessResult {
        let cpu = self.cpu();
        cpu.now = now;
        cpu.counts.walks = walks;
        cpu.counts.walk_reads = walk_reads;
        AccessResult::Attend(Point::Shared)
    }
}

/// Performs one access of a program on the running CPU; `Err` is a fault to handle.
#[inline]
pub(crate) fn access(address: u64, store: Option<u64>) -> Result<u64, Access> {
    let mut attempt = context::with(|core| core.user_access(address, store));
    loop {
        match attempt {
            AccessResult::Done(value) => return Ok(value),
            AccessResult::Attend(point) => {
                context::attend(point);
                attempt = context::with(|core| match point {
                    Point::Local => core.user_access(address, store),
                    Point::Shared => core.walk_and_access(address, store),
                });
            }
            AccessResult::Fault => {
                return Err(match store {
                    None => Access::Read,
                    Some(_) => Access::Write,
                });
            }
            AccessResult::Compare(value, violation) => {
                compare(address, value, *violation);
                return Ok(value);
            }
        }
    }
}

/// Reports a load that returned other bytes than the program should read.
#[cold]
fn compare(address: u64, value: u64, mut violation: Violation) {
    let truth = context::quietly(|kernel| kernel.peek(address)).flatten();
    if let Some(truth) = truth
        && truth != value
    {
        let account = &mut violation.account;
        *account = format!("{account}: {value:#x} instead of {truth:#x}");
        context::with(|core| core.report(violation));
    }
}

/// Returns the time that one core needs to stream `bytes` bytes from or to a frame's node, and books the node's
/// bandwidth.
pub(crate) fn stream(core: &mut Core, frame: Frame, bytes: u64) -> Time {
    let cpu = core.current;
    let now = core.cpus[cpu].now;
    let Some(node) = core.map.node_of(frame) else {
        return 0;
    };
    let slow = core.map.nodes()[node].slow;
    let costs = &core.costs;
    let (mine, shared) = if slow {
        (costs.rate(P::SlowRate), costs.rate(P::SlowNodeRate))
    } else {
        let far = core.home_node(cpu) != node;
        let factor = if far {
            costs.time(P::RemoteLatency) as f64 / costs.time(P::MemoryLatency) as f64
        } else {
            1.0
        };
        (costs.rate(P::StreamRate) * factor, costs.rate(P::NodeRate))
    };
    book(core, node, now, bytes, mine, shared)
}

/// Books `bytes` of a node's bandwidth, and returns the duration. `mine` and `shared` are picoseconds a byte, for this
/// core and for the node.
pub(crate) fn book(
    core: &mut Core,
    node: usize,
    now: Time,
    bytes: u64,
    mine: f64,
    shared: f64,
) -> Time {
    let busy = core.node_busy[node].max(now) + (bytes as f64 * shared) as Time;
    core.node_busy[node] = busy;
    let alone = now + (bytes as f64 * mine) as Time;
    alone.max(busy) - now
}

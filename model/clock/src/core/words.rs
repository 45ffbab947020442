//! Operations on shared words: the cost of the line, and the CPUs that a store wakes.

use super::Core;
use crate::cpu::Activity;
use crate::file::{Parameter as P, Time};
use crate::lines::LineUse;
use crate::moves::MovedLine;
use quell_vm::machine::TABLE_WORDS;
use std::panic::Location;
use std::sync::atomic::Ordering;

impl Core {
    /// Accounts for an operation on a word if it is this CPU's turn. Returns whether it was.
    #[inline]
    pub fn word(
        &mut self,
        address: usize,
        kind: LineUse,
        order: Ordering,
        code: &'static Location<'static>,
    ) -> bool {
        let cpu = &mut self.cpus[self.current];
        if cpu.now >= self.shared_until {
            return false;
        }
        let line = self.lines.number(address);
        // An access that needs its result happens when the line leaves the core before.
        let queued = cpu.queued.take().filter(|queued| queued.line == line);
        if queued.is_none() && kind != LineUse::Store {
            let queued = self.lines.queue(&self.costs, self.current, line, kind, cpu.now);
            if let Some(place) = queued {
                (cpu.now, cpu.queued) = (place.leaves, queued);
                return false;
            }
        }
        let start = queued.map_or(cpu.now, |queued| queued.since);
        let access = self.lines.access(&self.costs, self.current, line, kind, cpu.now, queued);
        cpu.counts.words += 1;
        cpu.counts.transfers += u64::from(access.transferred);
        match kind {
            // A store enters the store buffer; an operation that needs it visible waits for it.
            LineUse::Store => {
                cpu.stores_done = cpu.stores_done.max(access.ready);
                cpu.now += self.costs.time(P::L1Hit);
                if order == Ordering::SeqCst {
                    cpu.now = cpu.now.max(cpu.stores_done) + self.costs.time(P::Atomic);
                }
            }
            LineUse::Load => {
                cpu.now = access.ready;
                cpu.poll.load(line, start, access.ready - start, access.held);
            }
            LineUse::Modify => {
                let ready = match self.costs.architecture.drains_stores(order) {
                    true => access.ready.max(cpu.stores_done),
                    false => access.ready,
                };
                cpu.now = ready + self.costs.time(P::Atomic);
            }
        }
        if access.transferred {
            let time = access.ready - start;
            self.moved(MovedLine::Words(line), Some(code), 1, time);
        }
        if kind != LineUse::Load {
            self.cpus[self.current].poll.interfere();
            self.wake_watchers(line, start);
        }
        true
    }

    /// Wakes CPUs that sleep in a loop which loads this line, because it was written.
    #[inline]
    fn wake_watchers(&mut self, line: u32, at: Time) {
        for &watcher in self.lines.watchers(line) {
            let watcher = watcher as usize;
            let wake = self.cpus[watcher].poll.turn_that_sees(line, at);
            self.scheduler.wake(watcher, wake);
        }
        self.refresh();
    }

    /// Performs one turn of a waiting loop. Returns whether the CPU now sleeps until it is woken.
    pub fn relax(&mut self) -> bool {
        let pause = self.costs.time(P::Pause);
        let current = self.current;
        let cpu = &mut self.cpus[current];
        cpu.counts.relaxes += 1;
        cpu.now += pause;
        if !cpu.poll.turn(cpu.now, pause) {
            return false;
        }
        let poll = self.cpus[current].poll;
        // Another CPU may have written a line after this turn read it. The next turn notices.
        if !poll.lines().all(|line| self.lines.is_unchanged(current, line)) {
            return false;
        }
        for line in poll.lines() {
            self.lines.watch(line, current);
        }
        self.cpus[current].activity = Activity::Polling;
        self.scheduler.wait(&self.cpus, current, poll.latest());
        true
    }

    /// Resumes a CPU that slept in a waiting loop.
    pub fn end_relax(&mut self) {
        let current = self.current;
        let poll = self.cpus[current].poll;
        for line in poll.lines() {
            self.lines.unwatch(line, current);
        }
        let cpu = &mut self.cpus[current];
        let (turns, loads) = cpu.poll.wake(cpu.now);
        cpu.counts.relaxes += turns;
        cpu.counts.words += loads;
    }

    pub fn forget_word(&mut self, address: usize) {
        self.lines.forget(address);
    }

    /// Returns a word of a page-table page and the number of its line.
    #[inline]
    pub fn table_word(&mut self, table: quell::Frame, index: usize) -> (u64, u32) {
        let page = self.tables.page(table);
        let first = match page.first_line.load(Ordering::Relaxed) {
            0 => {
                let first = self.lines.number_page(page.words[0].address(), TABLE_WORDS / 8);
                page.first_line.store(first + 1, Ordering::Relaxed);
                first
            }
            known => known - 1,
        };
        (page.words[index].peek(), first + (index / 8) as u32)
    }

    /// Returns whether the running CPU's walker can read a line without another core's transfer.
    #[inline]
    pub fn is_at_hand(&self, line: u32) -> bool {
        self.lines.is_at_hand(self.current, line)
    }

    /// Accounts for the walker's access to a table's line: a load or a locked operation.
    #[inline]
    pub fn walker_access(&mut self, line: u32, kind: LineUse) {
        let cpu = &mut self.cpus[self.current];
        let access = self.lines.access(&self.costs, self.current, line, kind, cpu.now, None);
        cpu.counts.walk_reads += u64::from(kind == LineUse::Load);
        cpu.counts.transfers += u64::from(access.transferred);
        let time = access.ready - cpu.now;
        if access.transferred {
            self.moved(MovedLine::Words(line), None, 1, time);
        }
        let cpu = &mut self.cpus[self.current];
        cpu.now += if self.costs.amount(P::NestedWalk) == 1.0 {
            time
        } else {
            nested(time, self.costs.amount(P::NestedWalk))
        };
        if kind == LineUse::Modify {
            let start = cpu.now;
            cpu.now += self.costs.time(P::Atomic);
            self.wake_watchers(line, start);
        }
    }

    pub fn fence(&mut self) {
        let fence = self.costs.time(P::Fence);
        let cpu = self.cpu();
        cpu.counts.fences += 1;
        cpu.now = cpu.now.max(cpu.stores_done) + fence;
    }
}

/// Returns the time of a walker's access if a hypervisor's tables are walked too. It is out of line because every
/// access would otherwise make the conversions.
#[cold]
fn nested(time: Time, factor: f64) -> Time {
    (time as f64 * factor) as Time
}

//! Effects and costs of invalidations, broadcasts and root loads.

use super::Core;
use crate::file::Parameter as P;
use crate::trace::Mark;
use quell::{Invalidation, Scope, Tag};

impl Core {
    /// Drops the translations that `what` covers from a CPU's caches.
    fn apply(&mut self, cpu: usize, what: Invalidation) {
        let architecture = self.costs.architecture;
        let tlb = &mut self.cpus[cpu].tlb;
        match what {
            Invalidation::Range { tag, range, scope } => {
                // The level hint selects the leaf entries to drop.
                let hint = architecture.hints_level() && scope == Scope::Leaf;
                tlb.drop_range(tag, range, scope, hint);
                if architecture.page_drops_walkers() {
                    tlb.drop_walker(tag);
                }
            }
            Invalidation::Tag(tag) => tlb.drop_tag(tag),
            Invalidation::All | Invalidation::Everything => tlb.drop_all(),
            // We don't model the kernel's own entries.
            Invalidation::Kernel { .. } => {}
        }
    }

    pub fn invalidate(&mut self, what: Invalidation) {
        self.check_range(what);
        let start = self.cpu().now;
        let (cost, mark) = match what {
            Invalidation::Range { range, scope, .. } | Invalidation::Kernel { range, scope } => {
                let pages = range.strides();
                self.cpu().counts.invalidated_pages += pages;
                let tables = scope == Scope::Tables;
                (pages * self.costs.time(P::InvalidatePage), Mark::Pages(pages, tables))
            }
            Invalidation::Tag(tag) => {
                self.cpu().counts.invalidated_tags += 1;
                (self.costs.time(P::InvalidateTag), Mark::Tag(tag.0))
            }
            Invalidation::All | Invalidation::Everything => {
                self.cpu().counts.invalidated_all += 1;
                (self.costs.time(P::InvalidateAll), Mark::All)
            }
        };
        self.apply(self.current, what);
        // It's a serialising instruction, so we wait for the stores before it.
        let cpu = self.cpu();
        cpu.now = cpu.now.max(cpu.stores_done) + cost;
        self.trace_since(start, mark);
    }

    /// Checks that the machine has broadcasts.
    fn check_broadcast(&mut self) {
        if !self.costs.features().broadcast {
            self.misuse("broadcast on a machine without broadcasts".into());
        }
    }

    /// Checks that a range has whole strides, at least one, and begins at a multiple of its stride.
    fn check_range(&mut self, what: Invalidation) {
        let (Invalidation::Range { range, .. } | Invalidation::Kernel { range, .. }) = what else {
            return;
        };
        let (start, pages, stride) = (range.start.0, range.pages, range.stride.pages());
        if pages == 0 || !pages.is_multiple_of(stride) || !start.is_multiple_of(stride) {
            self.misuse(format!(
                "{pages} pages from {start:#x} invalidated in strides of {stride}"
            ));
        }
    }

    pub fn broadcast(&mut self, what: Invalidation) {
        self.check_broadcast();
        self.check_range(what);
        let operations = match what {
            Invalidation::Range { range, .. } | Invalidation::Kernel { range, .. } => {
                range.strides()
            }
            _ => 1,
        };
        let others = self.cpus.len() as u64 - 1;
        self.broadcasts += operations;
        let cpu = &mut self.cpus[self.current];
        // We count them as taken: the CPU's own broadcasts don't disturb it.
        cpu.disturbed_by += operations;
        cpu.counts.broadcasts += operations;
        cpu.broadcasts.push(what);
        let start = cpu.now;
        cpu.now += operations * self.costs.time(P::BroadcastIssue);
        let occupied = operations * self.costs.time(P::BroadcastOccupancy) * others;
        self.broadcast_busy = self.broadcast_busy.max(start) + occupied;
        let done = self.broadcast_busy.max(cpu.now) + self.costs.time(P::BroadcastLatency);
        cpu.broadcasts_done = cpu.broadcasts_done.max(done);
        self.trace_since(start, Mark::Broadcast(operations));
    }

    pub fn complete_broadcasts(&mut self) {
        self.check_broadcast();
        let fence = self.costs.time(P::Fence);
        let drain = self.costs.time(P::BroadcastDrain);
        let sent = std::mem::take(&mut self.cpu().broadcasts);
        for &what in &sent {
            for cpu in 0..self.cpus.len() {
                self.apply(cpu, what);
            }
        }
        let cpu = self.cpu();
        let start = cpu.now;
        cpu.counts.broadcast_waits += 1;
        cpu.now = cpu.now.max(cpu.stores_done).max(cpu.broadcasts_done) + fence;
        if std::mem::take(&mut cpu.filled_page) {
            cpu.now += drain;
        }
        cpu.counts.waiting_for_broadcasts += cpu.now - start;
        self.trace_since(start, Mark::Completion(sent.len() as u64));
    }

    pub fn load_root(&mut self, root: Option<quell::Frame>, tag: Tag, keep: bool) {
        let tagged = !matches!(self.costs.tagging, quell::Tagging::None);
        let keep = keep && tagged;
        let space = root.map(|root| self.oracle.space_of(root));
        let cost = if keep || root.is_none() && tagged {
            self.costs.time(P::RootKeep)
        } else {
            self.costs.time(P::RootFlush)
        };
        let cpu = self.cpu();
        let start = cpu.now;
        cpu.counts.root_loads += 1;
        cpu.root = root;
        cpu.tag = tag;
        cpu.space = space.unwrap_or(0);
        if !tagged {
            cpu.tlb.drop_all();
            cpu.counts.invalidated_all += 1;
        } else if !keep && root.is_some() {
            cpu.tlb.drop_tag(tag);
            cpu.counts.invalidated_tags += 1;
        }
        cpu.now = cpu.now.max(cpu.stores_done) + cost;
        self.trace_since(start, Mark::Root(tag.0, keep));
    }
}

//! Interrupts: sending, delivery, masking, handlers.

use super::Core;
use crate::file::{Parameter as P, Time};
use crate::flushes::Protocol;
use crate::trace::Mark;
use quell::CpuSet;

impl Core {
    /// Turns interrupts off or on. Returns whether they were on.
    pub fn set_masked(&mut self, masked: bool) -> bool {
        let mask = self.costs.time(P::Mask);
        let cpu = self.cpu();
        cpu.now += mask;
        let were_on = !cpu.masked;
        cpu.masked = masked;
        self.refresh();
        were_on
    }

    pub fn interrupt(&mut self, targets: &CpuSet) {
        let from = self.current;
        let start = self.cpus[from].now;
        // We wait for earlier stores, which must be visible to the handler.
        self.cpus[from].now = start.max(self.cpus[from].stores_done);
        let mut cluster = usize::MAX;
        let mut sent = 0;
        for target in targets.iter() {
            let target = target.index();
            if target == from || target >= self.cpus.len() {
                self.oracle.misuse(from, start, format!("interrupt sent to CPU {target}"));
                continue;
            }
            if target / self.costs.count(P::InterruptCluster) != cluster {
                cluster = target / self.costs.count(P::InterruptCluster);
                self.cpus[from].now += self.costs.interrupt_send;
            }
            let at = self.crossed(from, target) + self.costs.interrupt_delivery;
            let arrivals = &mut self.cpus[target].arrivals;
            let place = arrivals.partition_point(|&earlier| earlier <= at);
            arrivals.insert(place, at);
            self.scheduler.arrival(&self.cpus, target, at);
            self.trace.mark(target, at, Mark::Arrives(from));
            sent += 1;
        }
        self.cpus[from].counts.interrupts_sent += sent;
        self.trace_since(start, Mark::Send(sent));
        self.refresh();
    }

    /// Returns the time at which an interrupt that is sent now reaches the target's socket.
    fn crossed(&mut self, from: usize, target: usize) -> Time {
        let now = self.cpus[from].now;
        let socket = self.costs.topology.socket(target);
        if self.costs.topology.socket(from) == socket {
            return now;
        }
        let through = now.max(self.link_busy[socket]) + self.costs.time(P::InterruptLink);
        self.link_busy[socket] = through;
        through + self.costs.time(P::InterruptRemote)
    }

    /// Sends a non-maskable interrupt.
    pub fn send_nmi(&mut self, target: usize) {
        let at = self.cpus[self.current].now + self.costs.interrupt_delivery;
        self.cpus[target].nmi.get_or_insert(at);
        if target != self.current {
            self.scheduler.arrival(&self.cpus, target, at);
        }
        self.refresh();
    }

    pub fn begin_interrupt(&mut self) {
        let entry = self.costs.interrupt_entry;
        let cpu = self.cpu();
        cpu.handler_since = cpu.now;
        let now = cpu.now;
        let taken = cpu.arrivals.partition_point(|&at| at <= now);
        cpu.arrivals.drain(..taken);
        cpu.was_masked = std::mem::replace(&mut cpu.masked, true);
        cpu.in_interrupt = true;
        cpu.now += entry;
        cpu.counts.interrupts_taken += 1;
        self.refresh();
    }

    pub fn end_interrupt(&mut self) {
        let exit = self.costs.interrupt_exit;
        let cpu = self.cpu();
        cpu.masked = cpu.was_masked;
        cpu.in_interrupt = false;
        cpu.now += exit;
        let since = cpu.handler_since;
        cpu.counts.handling += cpu.now - since;
        self.trace_since(since, Mark::Handler);
        self.refresh();
    }

    /// Arms the running CPU's timer for its next tick, if a protocol uses ticks. A tick arrives even if interrupts are
    /// off.
    pub fn arm_timer(&mut self) {
        if self.costs.protocol != Protocol::Latr {
            return;
        }
        let tick = self.costs.time(P::Tick);
        // CPUs tick at different times.
        let phase = tick * self.current as Time / self.cpus.len() as Time;
        let cpu = self.cpu();
        let ticks = (cpu.now + tick - phase) / tick;
        cpu.nmi = Some(ticks * tick + phase);
        self.refresh();
    }

    pub fn begin_nmi(&mut self) {
        let entry = self.costs.interrupt_entry;
        let cpu = self.cpu();
        cpu.nmi = None;
        cpu.now += entry;
        cpu.counts.nmis += 1;
        self.refresh();
    }

    pub fn end_nmi(&mut self) {
        let exit = self.costs.interrupt_exit;
        self.spend(exit);
        self.refresh();
    }
}

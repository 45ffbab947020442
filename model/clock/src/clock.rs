//! Runs the CPU that is furthest behind in virtual time.
//!
//! # Exactness
//!
//! Some operations of a CPU are visible to others. They're operations on shared words, interrupts, invalidations, and
//! walks that fault, set a bit, or need a line from another core. Such an operation happens in exact order of virtual
//! time: a CPU performs it only while no other CPU is behind. If two CPUs have the same time, the lower number is
//! first.
//!
//! TLB hits and computation are private. And no CPU can affect another sooner than the shortest interrupt latency. So
//! each CPU may run ahead by that latency in private operations ([`Clock::lookahead`]) without changing the result.
//! This is conservative parallel simulation, on one thread.
//!
//! Two results stay inexact on purpose, by up to one such latency, but repeat exactly in every run:
//!
//! * A walk that only reads runs ahead too. It may read an entry early, as if the walker had filled on speculation, and
//!   the shared cache sees reads of several CPUs in another order.
//! * Programs may communicate through the measured memory instead of the words of
//!   [`User::shared`](quell_vm::User::shared). Then they may see each other's stores early or late.
//!
//! For example, with a latency of 1 µs, CPU 0 at 10.0 µs may compute alone until 11.0 µs while CPU 1 is still at 10.0
//! µs. It may store to a shared word only when CPU 1 has reached its time.
//!
//! A CPU that waits for its next interrupt costs one agenda entry, however long it waits.

use crate::cpu::{Activity, Cpu};
use crate::file::Time;

/// The kind of operation that a CPU is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// Other CPUs can see it.
    Shared,
    /// No other CPU can see it.
    Local,
}

/// The scheduler's decision at a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Performs the operation.
    Go,
    /// Waits until it's this CPU's turn.
    Suspend,
    /// Takes an interrupt first.
    Interrupt,
    /// Takes a non-maskable interrupt first.
    Nmi,
}

/// The clocks up to which the running CPU need not consult the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// For operations that others can see. They need a clock below this.
    pub shared: Time,
    /// For private ones.
    pub local: Time,
}

/// The low bits of a key, which name the CPU.
const CPU_BITS: u32 = quell::MAX_CPUS.next_power_of_two().trailing_zeros();

/// Returns a key of the agenda: time and CPU, ordered by both.
#[inline]
fn key(at: Time, cpu: usize) -> u64 {
    debug_assert!(at < 1 << (64 - CPU_BITS));
    at << CPU_BITS | cpu as u64
}

/// A tournament: the root has the least key of all CPUs, and a change updates one path.
#[derive(Clone, Debug)]
struct Agenda {
    /// Node 1 is the root; the leaves begin at `leaves`.
    nodes: Vec<u64>,
    leaves: usize,
}

const NEVER: u64 = u64::MAX;

impl Agenda {
    fn new(cpus: usize) -> Self {
        let leaves = cpus.next_power_of_two();
        Agenda { nodes: vec![NEVER; 2 * leaves], leaves }
    }

    #[inline]
    fn set(&mut self, cpu: usize, key: u64) {
        let mut node = self.leaves + cpu;
        self.nodes[node] = key;
        while node > 1 {
            node /= 2;
            let least = self.nodes[2 * node].min(self.nodes[2 * node + 1]);
            if self.nodes[node] == least {
                break;
            }
            self.nodes[node] = least;
        }
    }

    /// Returns the least key of all CPUs except one.
    #[inline]
    fn least_but(&self, cpu: usize) -> u64 {
        let mut node = self.leaves + cpu;
        let mut least = NEVER;
        while node > 1 {
            least = least.min(self.nodes[node ^ 1]);
            node /= 2;
        }
        least
    }

    #[inline]
    fn get(&self, cpu: usize) -> u64 {
        self.nodes[self.leaves + cpu]
    }

    #[inline]
    fn least(&self) -> u64 {
        self.nodes[1]
    }
}

/// The longest turn: a millisecond. Between turns, our main loop checks whether to stop the run.
const TURN: Time = 1_000_000_000;

/// The scheduler: chooses the CPU that is furthest behind, and the time of each operation. The machine calls it at every
/// point that matters, and keeps the clocks itself.
#[derive(Clone, Debug)]
pub struct Clock {
    agenda: Agenda,
    lookahead: Time,
    idle_wake: Time,
    running: usize,
    /// The end of the running CPU's turn, whatever the others do.
    turn_ends: Time,
    /// The limits of the running CPU.
    pub limits: Limits,
}

impl Clock {
    /// Creates a clock for CPUs that are all ready at their own time.
    ///
    /// `lookahead` must not exceed the shortest time in which one CPU can affect another; 0 is exact for walks too, but
    /// slower.
    pub fn new(cpus: &[Cpu], lookahead: Time, idle_wake: Time) -> Self {
        let mut agenda = Agenda::new(cpus.len());
        for (number, cpu) in cpus.iter().enumerate() {
            agenda.set(number, key(cpu.now, number));
        }
        Clock {
            agenda,
            lookahead,
            idle_wake,
            running: 0,
            turn_ends: TURN,
            limits: Limits { shared: 0, local: 0 },
        }
    }

    /// Returns the limits of the running CPU. Its own entry in the agenda is outdated and doesn't count.
    #[inline]
    fn limit(&self) -> Limits {
        let least = self.agenda.least_but(self.running);
        // A CPU whose turn ends before any other's begins would be chosen again, so nothing else changes.
        if least == NEVER || least >> CPU_BITS > self.turn_ends {
            return Limits { shared: self.turn_ends, local: self.turn_ends };
        }
        let (at, other) = (least >> CPU_BITS, least as usize & ((1 << CPU_BITS) - 1));
        let shared = at + Time::from(self.running < other);
        Limits { shared, local: shared.max(at + self.lookahead) }
    }

    fn wake_at(&self, cpu: &Cpu, arrival: Time) -> Time {
        match cpu.activity {
            Activity::Halted => arrival + self.idle_wake,
            Activity::Polling => cpu.poll.turn_at(arrival),
            Activity::Running | Activity::Computing => arrival,
        }
    }

    /// Chooses the CPU that continues, with its clock set; `None` if none can ever continue.
    pub fn choose(&mut self, cpus: &mut [Cpu]) -> Option<usize> {
        let least = self.agenda.least();
        if least == NEVER {
            return None;
        }
        let (at, chosen) = (least >> CPU_BITS, least as usize & ((1 << CPU_BITS) - 1));
        self.running = chosen;
        self.turn_ends = at.saturating_add(TURN);
        cpus[chosen].now = at;
        self.limits = self.limit();
        Some(chosen)
    }

    /// Decides the next step of CPU `current` at a point beyond its limits.
    pub fn step(&mut self, cpus: &[Cpu], current: usize, point: Point) -> Step {
        let cpu = &cpus[current];
        // We take an interrupt together with all others that have arrived by then, and so not before we know that no
        // more will arrive.
        if cpu.due() <= cpu.now && cpu.now < self.limits.local {
            return match cpu.nmi {
                Some(at) if at <= cpu.now => Step::Nmi,
                _ => Step::Interrupt,
            };
        }
        let until = match point {
            Point::Shared => self.limits.shared,
            Point::Local => self.limits.local,
        };
        if cpu.now < until {
            return Step::Go;
        }
        self.agenda.set(current, key(cpu.now, current));
        Step::Suspend
    }

    /// Suspends CPU `current` until its clock reaches `until` or an interrupt arrives.
    pub fn wait(&mut self, cpus: &[Cpu], current: usize, until: Time) {
        let cpu = &cpus[current];
        let due = cpu.due();
        let until = match due {
            Time::MAX => until,
            due => until.min(self.wake_at(cpu, due)),
        };
        let key = match until {
            Time::MAX => NEVER,
            until => key(until.max(cpu.now), current),
        };
        self.agenda.set(current, key);
    }

    /// Records that an interrupt or invalidation arrives at CPU `target` at a time, sent by the running CPU.
    pub fn arrival(&mut self, cpus: &[Cpu], target: usize, at: Time) {
        let cpu = &cpus[target];
        if cpu.activity != Activity::Running && cpu.due() <= at {
            let wake = self.wake_at(cpu, at).max(cpu.now);
            self.wake(target, wake);
        }
    }

    /// Lets waiting CPU `target` continue at a time.
    pub fn wake(&mut self, target: usize, at: Time) {
        let wake = key(at, target);
        if wake < self.agenda.get(target) {
            self.agenda.set(target, wake);
            self.limits = self.limit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use rand_pcg::Pcg64;

    #[test]
    fn agenda_finds_the_least_after_any_change() {
        let mut agenda = Agenda::new(37);
        let mut truth = [NEVER; 37];
        let mut random = Pcg64::new(1, 0);
        for _ in 0..5000 {
            let cpu = random.random_range(0..37);
            let key = if random.random_ratio(1, 16) {
                NEVER
            } else {
                key(random.random_range(0..1 << 20), cpu)
            };
            agenda.set(cpu, key);
            truth[cpu] = key;
            let least = |but| {
                let others = truth.iter().enumerate().filter(|&(cpu, _)| Some(cpu) != but);
                others.map(|(_, &key)| key).min().unwrap_or(NEVER)
            };
            assert_eq!(agenda.least(), least(None));
            assert_eq!(agenda.least_but(cpu), least(Some(cpu)));
        }
    }
}

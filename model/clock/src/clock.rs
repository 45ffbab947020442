//! Scheduler 1, the clock: the CPU that is furthest behind in virtual time runs next.
//!
//! # Exactness
//!
//! Operations that other CPUs can see (shared words, interrupts, invalidations, walks that fault or
//! set a bit or need a line from another core) are done in exact order of virtual time: a CPU may
//! do one only while no other CPU is behind it, ties going to the lower number. Accesses that hit a
//! TLB and computation are seen by no other CPU, and the earliest that another CPU can affect this one is
//! the shortest interrupt latency after the moment where that CPU is now. So a CPU runs ahead by
//! that much in private ([`Clock::lookahead`]) without any effect on the result: conservative
//! parallel simulation, on one thread.
//!
//! What this leaves inexact, on purpose: a walk that only reads runs ahead too, so a CPU may read an
//! entry as it was one such latency ago, as if its walker had filled on speculation, and the shared
//! cache sees the reads of several CPUs in another order. Programs that communicate through the memory under
//! measurement, without the words of [`User::shared`](quell_vm::User::shared), may see each
//! other's stores up to one such latency early or late; still the same in every run.
//!
//! CPUs that wait for the next interrupt are one entry in the agenda however long they wait.

use crate::cpu::{Activity, Cpu};
use crate::file::Time;

/// The kind of operation that a CPU is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// Others can see it.
    Shared,
    /// No CPU can.
    Local,
}

/// What a CPU does at a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The operation.
    Go,
    /// Nothing, until it is its turn.
    Suspend,
    /// Takes an interrupt first.
    Interrupt,
    /// Takes a non-maskable interrupt first.
    Nmi,
}

/// Up to when the CPU that runs may go on without looking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// For operations that others can see: only while its clock is below this.
    pub shared: Time,
    /// For private ones.
    pub local: Time,
}

/// Which CPU runs next, and what each may do when.
///
/// The machine asks at every point where it matters; it keeps the clocks itself.
pub trait Scheduler {
    /// Chooses the CPU that goes on, with its clock set; `None` if none ever will.
    fn choose(&mut self, cpus: &mut [Cpu]) -> Option<(usize, Limits)>;

    /// What CPU `current` does at a point that its limits did not let it pass.
    fn step(&mut self, cpus: &mut [Cpu], current: usize, point: Point) -> Step;

    /// CPU `current` waits until its clock would be at `until`, or an interrupt comes.
    fn wait(&mut self, cpus: &mut [Cpu], current: usize, until: Time);

    /// Something arrives at CPU `target` at a time, sent by the CPU that runs. Returns the limits of
    /// the latter.
    fn arrival(&mut self, cpus: &mut [Cpu], target: usize, at: Time) -> Limits;

    /// CPU `target`, which waits, goes on at a time. Returns the limits of the CPU that runs.
    fn wake(&mut self, target: usize, at: Time) -> Limits;
}

/// How many low bits of a key name the CPU.
const CPU_BITS: u32 = quell::cpu_set::MAX_CPUS
    .next_power_of_two()
    .trailing_zeros();

/// A key of the agenda: time and CPU, ordered by both.
#[inline]
fn key(at: Time, cpu: usize) -> u64 {
    debug_assert!(at < 1 << (64 - CPU_BITS));
    at << CPU_BITS | cpu as u64
}

/// A tournament: the least key of all CPUs is at the root, a change costs one path.
#[derive(Clone, Debug)]
struct Agenda {
    /// Node 1 is the root, the leaves begin at `leaves`.
    nodes: Vec<u64>,
    leaves: usize,
}

const NEVER: u64 = u64::MAX;

impl Agenda {
    fn new(cpus: usize) -> Self {
        let leaves = cpus.next_power_of_two();
        Agenda {
            nodes: vec![NEVER; 2 * leaves],
            leaves,
        }
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

    /// The least key of all CPUs but one.
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

/// After so long a CPU is chosen again, a millisecond, even if no other is behind it: the loop that lets CPUs run
/// looks in between whether the run is to end.
const TURN: Time = 1_000_000_000;

/// The clock.
#[derive(Clone, Debug)]
pub struct Clock {
    agenda: Agenda,
    lookahead: Time,
    idle_wake: Time,
    running: usize,
    /// When the turn of the running CPU is over, whatever the others do.
    turn_ends: Time,
    limits: Limits,
}

impl Clock {
    /// A clock for CPUs that all are ready at their own time.
    ///
    /// `lookahead` must not exceed the shortest time in which one CPU can affect another; 0 is exact
    /// for walks too, and slower.
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
            limits: Limits {
                shared: 0,
                local: 0,
            },
        }
    }

    /// The limits of the running CPU. The agenda's own entry for it is old and does not count.
    #[inline]
    fn limit(&self) -> Limits {
        let least = self.agenda.least_but(self.running);
        // A CPU whose turn ends before any other's begins is the next one again, so nothing else changes.
        if least == NEVER || least >> CPU_BITS > self.turn_ends {
            return Limits {
                shared: self.turn_ends,
                local: self.turn_ends,
            };
        }
        let (at, other) = (least >> CPU_BITS, least as usize & ((1 << CPU_BITS) - 1));
        let shared = at + Time::from(self.running < other);
        Limits {
            shared,
            local: shared.max(at + self.lookahead),
        }
    }

    fn wake_at(&self, cpu: &Cpu, arrival: Time) -> Time {
        match cpu.activity {
            Activity::Halted => arrival + self.idle_wake,
            Activity::Polling => cpu.poll.turn_at(arrival),
            _ => arrival,
        }
    }
}

impl Scheduler for Clock {
    fn choose(&mut self, cpus: &mut [Cpu]) -> Option<(usize, Limits)> {
        let least = self.agenda.least();
        if least == NEVER {
            return None;
        }
        let (at, chosen) = (least >> CPU_BITS, least as usize & ((1 << CPU_BITS) - 1));
        self.running = chosen;
        self.turn_ends = at.saturating_add(TURN);
        cpus[chosen].now = at;
        self.limits = self.limit();
        Some((chosen, self.limits))
    }

    fn step(&mut self, cpus: &mut [Cpu], current: usize, point: Point) -> Step {
        let cpu = &cpus[current];
        // An interrupt is taken with all others that have arrived by then: not before it is known
        // that no more will.
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

    fn wait(&mut self, cpus: &mut [Cpu], current: usize, until: Time) {
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

    fn arrival(&mut self, cpus: &mut [Cpu], target: usize, at: Time) -> Limits {
        let cpu = &cpus[target];
        if cpu.activity != Activity::Running && cpu.due() <= at {
            let wake = self.wake_at(cpu, at).max(cpu.now);
            return self.wake(target, wake);
        }
        self.limits
    }

    fn wake(&mut self, target: usize, at: Time) -> Limits {
        let wake = key(at, target);
        if wake < self.agenda.get(target) {
            self.agenda.set(target, wake);
            self.limits = self.limit();
        }
        self.limits
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
                let others = truth
                    .iter()
                    .enumerate()
                    .filter(|&(cpu, _)| Some(cpu) != but);
                others.map(|(_, &key)| key).min().unwrap_or(NEVER)
            };
            assert_eq!(agenda.least(), least(None));
            assert_eq!(agenda.least_but(cpu), least(Some(cpu)));
        }
    }
}

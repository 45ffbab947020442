//! One process of a recording: as it was, with its calls merged, or in a part of the time; and as a workload file.

use std::cmp::Reverse;

use super::call::{Alike, LARGEST, Made, PAGE};
use super::file::{Loop, Lost, file};
use super::thread::Thread;

/// How many threads make calls in the file; the busiest ones do.
const THREADS: usize = 32;

/// What one process did, thread by thread.
#[derive(Clone, Debug)]
pub struct Process {
    pub(super) name: String,
    pub(super) threads: Vec<Thread>,
    /// Whether it was recorded which CPUs were interrupted.
    pub(super) queued: bool,
    /// Calls of other processes.
    pub(super) elsewhere: u64,
    /// Events that the recorder lost.
    pub(super) lost: u64,
}

/// A workload file, and what of the recording it stands for.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file.
    pub text: String,
    /// The program.
    pub program: String,
    /// Calls that are in the file.
    pub calls: u64,
    /// Those that asked other CPUs to flush.
    pub asked: u64,
    /// Interrupts that they sent; `None` if the recording does not tell.
    pub interrupts: Option<u64>,
}

impl Process {
    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many calls it made that a statement stands for.
    pub fn count(&self) -> u64 {
        self.threads.iter().map(Thread::count).sum()
    }

    /// What it did, had every thread made one call wherever it made `by` of one kind, over as much memory as all of these had.
    #[must_use]
    pub fn merged(self, by: u64) -> Process {
        self.each(|alike, made| {
            let by = by.min(made.count);
            let bytes = alike.bytes.saturating_mul(by).min(LARGEST);
            let merged = Made {
                count: made.count.div_ceil(by),
                pages: made.pages.saturating_mul(by).min(bytes / PAGE),
                interrupts: made.interrupts.div_ceil(by),
            };
            (Alike { bytes, ..alike }, merged)
        })
    }

    /// What it did, in a `by`th of the time: one of so many calls of each kind.
    #[must_use]
    pub fn thinned(self, by: u64) -> Process {
        let mut thinned = self.each(|alike, made| {
            let fewer = Made {
                count: made.count.div_ceil(by),
                interrupts: made.interrupts / by,
                ..made
            };
            (alike, fewer)
        });
        for thread in &mut thinned.threads {
            thread.between_ns /= by;
            thread.within_ns /= by;
        }
        thinned
    }

    /// What it did, had everything come `pace` times faster; and all that its calls took beside `waited_ns` for each that asked
    /// others is computing, because a replay has the time of these waits alone from elsewhere.
    #[must_use]
    pub fn timed(mut self, pace: f64, waited_ns: f64) -> Process {
        for thread in &mut self.threads {
            let all = thread.between_ns.saturating_add(thread.within_ns);
            let of_asked = thread.calls.iter().filter(|(alike, _)| alike.asked);
            let asked: u64 = of_asked.map(|(_, made)| made.count).sum();
            thread.between_ns = (all as f64 / pace - asked as f64 * waited_ns).max(0.0) as u64;
            thread.within_ns = 0;
        }
        self
    }

    /// How many CPUs one of its calls that asked others interrupted, on average; `None` if the recording does not tell.
    pub fn targets(&self) -> Option<f64> {
        let all = self.threads.iter().flat_map(|thread| &thread.calls);
        let of = |(asked, interrupts), (alike, made): (&Alike, &Made)| match alike.asked {
            true => (asked + made.count, interrupts + made.interrupts),
            false => (asked, interrupts),
        };
        let (asked, interrupts) = all.fold((0, 0), of);
        (self.queued && asked > 0).then(|| interrupts as f64 / asked as f64)
    }

    /// What it did, as so many CPUs do it: threads beyond that take turns, and compute at the same time.
    #[must_use]
    pub fn on_cpus(mut self, cpus: usize) -> Process {
        self.threads.sort_by_key(|thread| Reverse(thread.count()));
        let beyond = self.threads.split_off(cpus.clamp(1, self.threads.len()));
        let cpus = self.threads.len();
        for (at, thread) in beyond.into_iter().enumerate() {
            self.threads[at % cpus].join(thread);
        }
        self
    }

    /// With every kind of call of every thread changed.
    pub(super) fn each(mut self, change: impl Fn(Alike, Made) -> (Alike, Made)) -> Process {
        for thread in &mut self.threads {
            let calls = std::mem::take(&mut thread.calls);
            for (alike, made) in calls {
                let (alike, made) = change(alike, made);
                thread.calls.entry(alike).or_default().add(made);
            }
        }
        self
    }

    /// The workload file. It is one that `quell-workloads` reads, and says in its head what of this recording is not in it.
    pub fn workload(&self) -> Written {
        let mut threads: Vec<&Thread> = self.threads.iter().collect();
        threads.sort_by_key(|thread| Reverse(thread.count()));
        let callers = threads.iter().filter(|thread| thread.count() > 0).count();
        let loops: Vec<Loop<'_>> = threads
            .iter()
            .take(callers.min(THREADS))
            .map(|thread| Loop::new(thread))
            .collect();
        let made = || loops.iter().flat_map(|thread| &thread.calls);
        let of_asked = made().filter(|(alike, _)| alike.asked);
        let asked = of_asked.map(|(_, made)| made.count).sum();
        // A thread that was asked ran in the process, even if no event of its own was recorded.
        let cpus = threads
            .len()
            .min(THREADS)
            .max(loops.len() + usize::from(asked > 0 && loops.len() == 1));
        let calls = loops.iter().map(Loop::count).sum();
        let lost = Lost {
            processes: self.elsewhere,
            kinds: self.count() - calls,
            calls: threads.iter().map(|thread| thread.others).sum(),
            events: self.lost,
        };
        let interrupts = || made().map(|(_, made)| made.interrupts).sum();
        Written {
            text: file(&self.name, &loops, cpus, (calls, asked), &lost),
            program: self.name.clone(),
            calls,
            asked,
            interrupts: self.queued.then(interrupts),
        }
    }
}

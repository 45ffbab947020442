//! What a program of a recording did: as it was, with its calls merged, or in a part of the time; and as a workload
//! file.

use std::cmp::Reverse;

use super::file::{Loop, Lost, file};
use super::statement::{Alike, LARGEST, Made, PAGE};
use super::thread::Thread;

/// How many threads make calls in the file; the busiest ones do.
const THREADS: usize = 32;

/// What the processes of a program did, thread by thread.
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

    /// What it did, had every thread made one call wherever it made `by` of one kind, over as much memory as all of
    /// these had.
    #[must_use]
    pub fn merged(self, by: u64) -> Process {
        self.unordered().each(|alike, made| {
            if !alike.kind.is_call() {
                return (alike, made);
            }
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
        let mut thinned = self.unordered().each(|alike, made| {
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

    /// What it did, had everything come `pace` times faster; and all that its calls took beside `waited_ns` for each
    /// flush that asked others, and `filled_ns` for each page that was filled for it, is computing, because a replay
    /// has the time of these alone from elsewhere.
    #[must_use]
    pub fn timed(self, pace: f64, waited_ns: f64, filled_ns: f64) -> Process {
        let mut timed = self.unordered();
        for thread in &mut timed.threads {
            let all = thread.between_ns.saturating_add(thread.within_ns);
            let elsewhere: f64 = thread
                .calls
                .iter()
                .filter(|(alike, _)| alike.asked)
                .map(|(alike, made)| {
                    let pages = made.count as f64 * made.pages as f64;
                    made.flushes(alike) as f64 * waited_ns + pages * filled_ns
                })
                .sum();
            thread.between_ns = (all as f64 / pace - elsewhere).max(0.0) as u64;
            thread.within_ns = 0;
        }
        timed
    }

    /// What it did, in no order: what changes calls, or how long it was between them, is said of all that are alike.
    fn unordered(mut self) -> Process {
        for thread in &mut self.threads {
            thread.order.lose();
        }
        self
    }

    /// How many CPUs one of its flushes that asked others interrupted, on average; `None` if the recording does not
    /// tell.
    pub fn targets(&self) -> Option<f64> {
        let all = self.threads.iter().flat_map(|thread| &thread.calls);
        let of = |(asked, interrupts), (alike, made): (&Alike, &Made)| match alike.asked {
            true => (asked + made.flushes(alike), interrupts + made.interrupts),
            false => (asked, interrupts),
        };
        let (asked, interrupts) = all.fold((0, 0), of);
        (self.queued && asked > 0).then(|| interrupts as f64 / asked as f64)
    }

    /// What it did, as so many CPUs do it for each process: threads beyond that take turns, and compute at the same
    /// time.
    #[must_use]
    pub fn on_cpus(mut self, cpus: usize) -> Process {
        self.threads
            .sort_by_key(|thread| (thread.process, Reverse(thread.count())));
        let mut placed: Vec<Thread> = Vec::new();
        for thread in std::mem::take(&mut self.threads) {
            let process = thread.process;
            let first = placed.iter().position(|other| other.process == process);
            let first = first.unwrap_or(placed.len());
            match placed.len() - first {
                there if there < cpus.max(1) => placed.push(thread),
                there => {
                    // The one with least to do until now.
                    let least = (first..first + there).min_by_key(|&at| placed[at].count());
                    placed[least.unwrap_or(first)].join(thread);
                }
            }
        }
        self.threads = placed;
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

    /// The workload file, with the order of calls that were not changed. It is one that `quell-workloads` reads, and
    /// says in its head what of this recording is not in it.
    pub fn workload(&self) -> Written {
        let mut threads: Vec<&Thread> = self.threads.iter().collect();
        threads.sort_by_key(|thread| Reverse(thread.count()));
        let callers = threads.iter().filter(|thread| thread.count() > 0).count();
        let written = callers.min(THREADS);
        let mut loops: Vec<Loop> = threads
            .iter()
            .take(written)
            .map(|thread| Loop::new(thread, written))
            .collect();
        loops.sort_by_key(|thread| thread.process);
        let made = || loops.iter().flat_map(|thread| &thread.calls);
        let of_asked = made().filter(|(alike, _)| alike.asked);
        let asked = of_asked.map(|(alike, made)| made.flushes(alike)).sum();
        let calls = loops.iter().map(Loop::count).sum();
        let lost = Lost {
            processes: self.elsewhere,
            kinds: self.count().saturating_sub(calls),
            calls: threads.iter().map(|thread| thread.others).sum(),
            events: self.lost,
        };
        let interrupts = || made().map(|(_, made)| made.interrupts).sum();
        // A thread that was asked ran in the process, even if no event of its own was recorded.
        let processes = threads.iter().map(|thread| thread.process).max();
        let mut bystanders = Vec::new();
        for process in 0..=processes.unwrap_or(0) {
            let loops = loops.iter().filter(|thread| thread.process == process);
            let threads = threads.iter().filter(|thread| thread.process == process);
            let (loops, threads) = (loops.collect::<Vec<_>>(), threads.count());
            let asked = loops.iter().any(|thread| thread.asks());
            let alone = usize::from(asked && loops.len() == 1);
            let others = threads.saturating_sub(loops.len()).max(alone);
            bystanders.extend(std::iter::repeat_n(process, others));
        }
        bystanders.truncate(THREADS.saturating_sub(loops.len()).max(1));
        Written {
            text: file(&self.name, &loops, &bystanders, (calls, asked), &lost),
            program: self.name.clone(),
            calls,
            asked,
            interrupts: self.queued.then(interrupts),
        }
    }
}

//! The calls of a program in a recording, and their conversion to a workload file.
//!
//! The calls can be changed first: merged, thinned out, or made faster.

use std::cmp::Reverse;

use super::file::{Loop, file};
use super::statement::{CallKey, CallTotals, LARGEST, PAGE};
use super::thread::Thread;

/// The largest number of threads that make calls in the file. We choose the busiest ones.
const THREADS: usize = 32;

/// The calls of a program's processes, thread by thread.
#[derive(Clone, Debug)]
pub struct Process {
    pub(super) name: String,
    pub(super) threads: Vec<Thread>,
    /// Whether the recording contains the interrupts.
    pub(super) queued: bool,
    /// Calls of other processes.
    pub(super) elsewhere: u64,
    /// Events that the recorder lost.
    pub(super) lost: u64,
}

/// A workload file, and the part of the recording that it represents.
#[derive(Clone, Debug)]
pub struct WorkloadFile {
    /// The file.
    pub text: String,
    /// The program.
    pub program: String,
    /// The number of calls in the file.
    pub calls: u64,
    /// The calls that requested flushes of other CPUs.
    pub asked: u64,
    /// The interrupts that they sent. `None` if the recording doesn't contain them.
    pub interrupts: Option<u64>,
}

impl Process {
    /// Returns the program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of calls that become statements.
    pub fn count(&self) -> u64 {
        self.threads.iter().map(Thread::count).sum()
    }

    /// Merges every `by` calls of one kind into one, over all their memory.
    #[must_use]
    pub fn merged(self, by: u64) -> Process {
        self.each(|alike, made| {
            if !alike.kind.is_call() {
                return (alike, made);
            }
            let by = by.min(made.count);
            let bytes = alike.bytes.saturating_mul(by).min(LARGEST);
            let merged = CallTotals {
                count: made.count.div_ceil(by),
                pages: made.pages.saturating_mul(by).min(bytes / PAGE),
                interrupts: made.interrupts.div_ceil(by),
            };
            (CallKey { bytes, ..alike }, merged)
        })
    }

    /// Keeps one of `by` calls of each kind, and shortens all times by that factor.
    #[must_use]
    pub fn thinned(self, by: u64) -> Process {
        let mut thinned = self.each(|alike, made| {
            let fewer = CallTotals {
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

    /// Makes everything `pace` times faster, and converts time in calls to computing.
    ///
    /// A replay adds `waited_ns` for each remote flush and `filled_ns` for each page filled for it. So we subtract
    /// these from all the time. The rest becomes computing.
    #[must_use]
    pub fn timed(mut self, pace: f64, waited_ns: f64, filled_ns: f64) -> Process {
        for thread in &mut self.threads {
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
        self
    }

    /// Returns the mean number of CPUs that one remote flush interrupted. `None` if the recording doesn't contain
    /// interrupts.
    pub fn targets(&self) -> Option<f64> {
        let all = self.threads.iter().flat_map(|thread| &thread.calls);
        let of = |(asked, interrupts), (alike, made): (&CallKey, &CallTotals)| match alike.asked {
            true => (asked + made.flushes(alike), interrupts + made.interrupts),
            false => (asked, interrupts),
        };
        let (asked, interrupts) = all.fold((0, 0), of);
        (self.queued && asked > 0).then(|| interrupts as f64 / asked as f64)
    }

    /// Limits each process to `cpus` threads. Further threads take turns with these, and compute at the same time.
    #[must_use]
    pub fn on_cpus(mut self, cpus: usize) -> Process {
        self.threads.sort_by_key(|thread| (thread.process, Reverse(thread.count())));
        let mut placed: Vec<Thread> = Vec::new();
        for thread in std::mem::take(&mut self.threads) {
            let process = thread.process;
            let first = placed.iter().position(|other| other.process == process);
            let first = first.unwrap_or(placed.len());
            match placed.len() - first {
                there if there < cpus.max(1) => placed.push(thread),
                there => {
                    // Choose the thread with the fewest calls until now.
                    let least = (first..first + there).min_by_key(|&at| placed[at].count());
                    placed[least.unwrap_or(first)].join(thread);
                }
            }
        }
        self.threads = placed;
        self
    }

    /// Changes every kind of call of every thread.
    pub(super) fn each(
        mut self,
        change: impl Fn(CallKey, CallTotals) -> (CallKey, CallTotals),
    ) -> Process {
        for thread in &mut self.threads {
            let calls = std::mem::take(&mut thread.calls);
            for (alike, made) in calls {
                let (alike, made) = change(alike, made);
                thread.calls.entry(alike).or_default().add(made);
            }
        }
        self
    }

    /// Returns the workload file.
    ///
    /// `quell-workloads` reads the file. Its header lists what isn't contained of this recording.
    pub fn workload(&self) -> WorkloadFile {
        let mut threads: Vec<&Thread> = self.threads.iter().collect();
        threads.sort_by_key(|thread| Reverse(thread.count()));
        let callers = threads.iter().filter(|thread| thread.count() > 0).count();
        let written = callers.min(THREADS);
        let mut loops: Vec<Loop> =
            threads.iter().take(written).map(|thread| Loop::new(thread)).collect();
        loops.sort_by_key(|thread| thread.process);
        let made = || loops.iter().flat_map(|thread| &thread.calls);
        let of_asked = made().filter(|(alike, _)| alike.asked);
        let asked = of_asked.map(|(alike, made)| made.flushes(alike)).sum();
        let calls = loops.iter().map(Loop::count).sum();
        let interrupts = || made().map(|(_, made)| made.interrupts).sum();
        // A thread that was interrupted ran in the process, even if no event of its own was recorded.
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
        WorkloadFile {
            text: file(self, &loops, &bystanders, (calls, asked)),
            program: self.name.clone(),
            calls,
            asked,
            interrupts: self.queued.then(interrupts),
        }
    }
}

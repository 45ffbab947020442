//! Threads that stay on their CPU.
//!
//! Each CPU has its own list of ready threads, without the running one. A thread yields the CPU by calling
//! [`yield_now`] or [`wait_until`]. A timer tick also leaves user mode if other threads are ready. Kernel code is never
//! preempted, so we guard its per-CPU work only against interrupts.
//!
//! There is no idle thread. If a waiting thread finds nothing else to run, it halts the CPU. The thread that a CPU
//! started with waits for ever.

use crate::machine::Kernel;
use crate::sync::{Lock, Masked};
use crate::{arch, cpu, watchdog};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quell::{Frame, Hardware, Tag};

/// Bytes of a kernel stack.
pub const STACK: usize = 64 << 10;

/// A thread's code.
type Body = Box<dyn FnOnce() + Send>;

/// A thread.
pub struct Thread {
    /// The stack pointer while the thread doesn't run.
    saved: UnsafeCell<u64>,
    body: UnsafeCell<Option<Body>>,
    _stack: Option<Box<[u128]>>,
    waiting: AtomicBool,
    done: AtomicBool,
    /// The thread's user address space, as root address and tag, or 0 if there is none.
    space: AtomicU64,
}

impl Thread {
    fn new(saved: u64, body: Option<Body>, stack: Option<Box<[u128]>>) -> Arc<Self> {
        Arc::new(Thread {
            saved: UnsafeCell::new(saved),
            body: UnsafeCell::new(body),
            _stack: stack,
            waiting: AtomicBool::new(false),
            done: AtomicBool::new(false),
            space: AtomicU64::new(0),
        })
    }
}

// SAFETY: only the thread's own CPU accesses `saved` and `body`, while it switches (with interrupts masked) or when the
// thread starts. Everything else is atomic.
unsafe impl Sync for Thread {}
// SAFETY: the body is `Send`, and everything else is either atomic or accessed by only the thread's own CPU.
unsafe impl Send for Thread {}

/// The threads of one CPU.
struct Queue {
    current: Arc<Thread>,
    others: VecDeque<Arc<Thread>>,
    /// The thread that has just left its stack. We keep it until the switch to the next thread is over.
    finished: Option<Arc<Thread>>,
}

static QUEUES: [Lock<Option<Queue>>; cpu::MAX] = [const { Lock::new(None) }; cpu::MAX];

/// Makes the running code this CPU's first thread.
pub fn init_cpu() {
    let current = Thread::new(0, None, None);
    *QUEUES[arch::cpu::index()].lock() =
        Some(Queue { current, others: VecDeque::new(), finished: None });
}

/// Loads an address space in which the current thread continues, also after switches, or leaves it (`None`). Every load
/// drops its entries. This is for tests of the kernel itself; a manager loads its roots through the engine.
///
/// # Safety
/// The root comes from `machine::new_root`, and stays a root until the thread has left the space and no CPU runs it
/// with this root.
pub unsafe fn set_space(space: Option<(Frame, Tag)>) {
    let space = space.map_or(0, |(root, tag)| root.address() | u64::from(tag.0));
    let _masked = Masked::new();
    current().space.store(space, Ordering::Relaxed);
    load_space(space);
}

/// Loads the address space of [`set_space`].
fn load_space(space: u64) {
    if space == 0 {
        Kernel.unload_root();
    } else {
        let tag = Tag((space & 0xfff) as u16);
        // SAFETY: the caller of `set_space` made the promise, and the thread hasn't left the space.
        unsafe { Kernel.load_root(Frame::containing(space), tag, false) };
    }
}

/// Starts a thread on a CPU.
pub fn spawn(on: usize, body: impl FnOnce() + Send + 'static) -> Arc<Thread> {
    let mut stack = alloc::vec![0u128; STACK / 16].into_boxed_slice();
    let top = stack.as_mut_ptr_range().end as u64;
    // SAFETY: this is the end of the stack. The thread keeps the stack, and nothing else uses it.
    let saved = unsafe { arch::cpu::first_frame(top, start) };
    let thread = Thread::new(saved, Some(Box::new(body)), Some(stack));
    QUEUES[on].lock().as_mut().expect("the CPU runs").others.push_back(thread.clone());
    kick(on);
    thread
}

/// The first code of a thread, on its own stack, with interrupts masked.
extern "C" fn start() -> ! {
    after_switch();
    arch::cpu::restore_interrupts(true);
    let thread = current();
    // SAFETY: only the thread itself takes its body, and only here.
    let body = unsafe { (*thread.body.get()).take() }.expect("started once");
    body();
    thread.done.store(true, Ordering::Release);
    // The thread that joins may be on any CPU, and checks again when it's interrupted.
    for index in 0..cpu::count() {
        kick(index);
    }
    drop(thread);
    arch::cpu::mask_interrupts();
    switch(true);
    unreachable!("a finished thread is not run again")
}

/// Returns the thread that runs on this CPU.
pub fn current() -> Arc<Thread> {
    QUEUES[arch::cpu::index()].lock().as_ref().expect("threads are set up").current.clone()
}

/// Interrupts a CPU if it's halted, so that it checks its threads again.
pub fn kick(index: usize) {
    for thread in QUEUES[index].lock().iter_mut().flat_map(|q| q.others.iter().chain([&q.current]))
    {
        thread.waiting.store(false, Ordering::Release);
    }
    if index != arch::cpu::index() {
        arch::interrupts::wake(index);
    }
}

/// Waits until the thread is done.
pub fn join(thread: &Thread) {
    wait_until(|| thread.done.load(Ordering::Acquire));
}

/// Runs `body` on a thread of every CPU and waits for all. Returns their results, by CPU.
pub fn on_every_cpu<T: Send + 'static>(
    body: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let results: Arc<Vec<Lock<Option<T>>>> =
        Arc::new((0..cpu::count()).map(|_| Lock::new(None)).collect());
    let threads: Vec<_> = (0..cpu::count())
        .map(|index| {
            let (body, results) = (body.clone(), results.clone());
            spawn(index, move || {
                let result = body(index);
                *results[index].lock() = Some(result);
            })
        })
        .collect();
    threads.iter().for_each(|thread| join(thread));
    results.iter().map(|result| result.lock().take().expect("the thread is done")).collect()
}

/// Lets another ready thread of this CPU run, if there is one.
pub fn yield_now() {
    let _masked = Masked::new();
    switch(false);
}

/// Returns whether another thread of this CPU is ready.
pub fn others_ready() -> bool {
    QUEUES[arch::cpu::index()]
        .lock()
        .as_ref()
        .is_some_and(|q| q.others.iter().any(|t| !t.waiting.load(Ordering::Relaxed)))
}

/// Waits until the condition holds. Meanwhile, the CPU runs other threads or halts.
///
/// The CPU that makes the condition true must [`kick`] this one afterwards.
pub fn wait_until(condition: impl Fn() -> bool) {
    let thread = current();
    loop {
        let _masked = Masked::new();
        // We set this before we read the condition, because a kick after the change clears it.
        thread.waiting.swap(true, Ordering::AcqRel);
        if condition() {
            thread.waiting.store(false, Ordering::Relaxed);
            return;
        }
        if !switch(false) && thread.waiting.load(Ordering::Acquire) {
            cpu::halt();
        }
        watchdog::progress();
    }
}

/// Waits until the condition holds. Meanwhile, the CPU may run other threads but never halts. It's for conditions for
/// which no other CPU kicks this one.
pub fn wait_spinning(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
        watchdog::relax();
    }
    watchdog::progress();
}

/// Switches to the next ready thread. Returns `false` if there is none. Interrupts must be masked.
fn switch(finish: bool) -> bool {
    let (from, to, space) = {
        let mut guard = QUEUES[arch::cpu::index()].lock();
        let queue = guard.as_mut().expect("threads are set up");
        let ready = queue.others.iter().position(|t| !t.waiting.load(Ordering::Relaxed));
        // If a thread ends while no other is ready, it switches to any waiting one.
        let next = match ready {
            Some(next) => next,
            None if finish => 0,
            None => return false,
        };
        let next = queue.others.remove(next).expect("position is in the queue");
        let from = core::mem::replace(&mut queue.current, next);
        let saved = from.saved.get();
        let target = &queue.current;
        // SAFETY: the next thread doesn't run, so its stack pointer is saved.
        let to = unsafe { *target.saved.get() };
        let space = target.space.load(Ordering::Relaxed);
        let changed = space != from.space.load(Ordering::Relaxed);
        if finish {
            queue.finished = Some(from);
        } else {
            queue.others.push_back(from);
        }
        (saved, to, changed.then_some(space))
    };
    cpu::this().counters.switches.add(1);
    watchdog::progress();
    if let Some(space) = space {
        load_space(space);
    }
    // SAFETY: this function saved `to`, or `first_frame` made it. The queue keeps the thread behind `from` alive.
    unsafe { arch::cpu::switch(from, to) };
    after_switch();
    true
}

/// Runs first on the new thread. From here on, a thread that ended may lose its stack.
fn after_switch() {
    let finished =
        QUEUES[arch::cpu::index()].lock().as_mut().and_then(|queue| queue.finished.take());
    drop(finished);
}

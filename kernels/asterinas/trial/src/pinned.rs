//! Tasks pinned to a CPU, each with its address space.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ostd::cpu::{CpuId, PinCurrentCpu};
use ostd::mm::VmSpace;
use ostd::sync::{LocalIrqDisabled, SpinLock};
use ostd::task::scheduler::{
    EnqueueFlags, LocalRunQueue, Scheduler, UpdateFlags, inject_scheduler,
};
use ostd::task::{Task, TaskOptions, disable_preempt, halt_cpu, inject_post_schedule_handler};
use ostd::util::id_set::Id;

/// The inputs for making a task.
struct Place {
    cpu: usize,
    space: Option<Arc<VmSpace>>,
}

#[derive(Default)]
struct Queue {
    current: Option<Arc<Task>>,
    waiting: VecDeque<Arc<Task>>,
}

struct Queues(Vec<SpinLock<Queue, LocalIrqDisabled>>);

impl Queues {
    fn own(&self) -> &SpinLock<Queue, LocalIrqDisabled> {
        &self.0[disable_preempt().current_cpu().as_usize()]
    }
}

impl Scheduler for Queues {
    fn enqueue(&self, task: Arc<Task>, _: EnqueueFlags) -> Option<CpuId> {
        let place = task.data().downcast_ref::<Place>().expect("a task has a place");
        let cpu = place.cpu;
        self.0[cpu].lock().waiting.push_back(task);
        None
    }
    fn local_rq_with(&self, look: &mut dyn FnMut(&dyn LocalRunQueue)) {
        look(&*self.own().lock());
    }
    fn mut_local_rq_with(&self, change: &mut dyn FnMut(&mut dyn LocalRunQueue)) {
        change(&mut *self.own().lock());
    }
}

impl LocalRunQueue for Queue {
    fn current(&self) -> Option<&Arc<Task>> {
        self.current.as_ref()
    }
    fn update_current(&mut self, flags: UpdateFlags) -> bool {
        flags != UpdateFlags::Tick && !self.waiting.is_empty()
    }
    fn try_pick_next(&mut self) -> Option<&Arc<Task>> {
        let next = self.waiting.pop_front()?;
        if let Some(before) = self.current.replace(next) {
            self.waiting.push_back(before);
        }
        self.current.as_ref()
    }
    fn dequeue_current(&mut self) -> Option<Arc<Task>> {
        self.current.take()
    }
}

/// Starts a task on `cpu`, in `space` if it has programs to run.
pub fn spawn(cpu: usize, space: Option<Arc<VmSpace>>, work: impl FnOnce() + Send + 'static) {
    let task = TaskOptions::new(work).data(Place { cpu, space });
    Arc::new(task.build().expect("memory for a task")).run();
}

fn load_space() {
    let task = Task::current().expect("a task runs");
    if let Some(Place { space: Some(space), .. }) = task.data().downcast_ref::<Place>() {
        space.activate();
    }
}

/// Starts all CPUs: they idle, and the first does `work`.
pub fn start(work: impl FnOnce() + Send + 'static) {
    let queues = (0..ostd::cpu::num_cpus()).map(|_| SpinLock::new(Queue::default()));
    inject_scheduler(Box::leak(Box::new(Queues(queues.collect()))));
    inject_post_schedule_handler(load_space);
    for cpu in 1..ostd::cpu::num_cpus() {
        spawn(cpu, None, || {
            loop {
                halt_cpu();
                Task::yield_now();
            }
        });
    }
    ostd::boot::smp::register_ap_entry(|| {});
    spawn(0, None, work);
}

//! Tests, through the C interface, the parts that the suite doesn't use: started flushes, and an engine's optional
//! functions.
//!
//! CPU 1 has its interrupts masked until the test lets it answer. CPU 0 changes a page meanwhile.

use crate::bench::{Bench, Rights};
use crate::interface::{AddressSpace, CMemory, Engine, done};
use crate::kernel::{Kernel, Mistake};
use crate::machine::{CPUS, Toy};
use crate::{ASID, PCID};
use engine::{Hardware, Page, Tagging};
use quell_c::batch::*;
use quell_c::cpu;
use quell_c::machine::quell_hooks;
use quell_c::place::{quell_batch, quell_stamp};
use quell_c::status::quell_status;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: Page = Page(512 * 3 + 5);

/// The counters of the optional functions' calls. These functions have no other state, so tests that use it take turns.
static CALLED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
const ANSWERED: usize = 0;
const LONG: usize = 1;
const FETCHED: usize = 2;

fn called(which: usize) -> u64 {
    CALLED[which].load(SeqCst)
}

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    CALLED.iter().for_each(|count| count.store(0, SeqCst));
    turn
}

/// Counts its calls. By then its batch must be over.
extern "C" fn answered(batch: *mut c_void) {
    // SAFETY: each flush passes its batch.
    assert!(unsafe { quell_batch_poll(batch.cast()) });
    CALLED[ANSWERED].fetch_add(1, SeqCst);
}

extern "C" fn long(target: u32, turns: u64) {
    assert_eq!(target, 1);
    CALLED[LONG].fetch_max(turns, SeqCst);
}

extern "C" fn does_not_run(target: u32) -> bool {
    target == 1
}

extern "C" fn fetches_anew() {
    CALLED[FETCHED].fetch_add(1, SeqCst);
}

/// The steps of CPU 1, in this order.
const MASKED: u64 = 1;
const ANSWERS: u64 = 2;
const ENDS: u64 = 3;

/// Ends CPU 1 when it's dropped, even by a panic.
struct EndGuard<'s>(&'s AtomicU64);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(ENDS, SeqCst);
    }
}

/// Runs `initiates` on CPU 0 after CPU 1 has read the page and masked its interrupts. `initiates` gets the word that
/// holds the step of CPU 1.
fn under_a_cpu(
    tagging: Tagging,
    hooks: quell_hooks,
    initiates: impl FnOnce(&Toy, &Engine<'static, Toy>, &AddressSpace<Toy>, &AtomicU64),
) {
    let kernel = Kernel::new(tagging, Mistake::Nothing);
    let _here = kernel.enter(0);
    let (engine, machine) = (Engine::with(kernel, "all", &hooks), &kernel.machine);
    // SAFETY: a root of this machine.
    let space = unsafe { engine.new_space(machine.new_root()) };
    let frame = machine.take_frames(1).first;
    machine.set_word(frame, 0, 7);
    machine.set(space.root(), PAGE, Some((frame, Rights::Read)));
    let (step, engine, space) = (&AtomicU64::new(0), &engine, &space);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _here = kernel.enter(1);
            engine.cpu_online();
            engine.switch(None, space);
            assert_eq!(machine.try_read(PAGE.address()), Some(7));
            machine.masks(true);
            step.store(MASKED, SeqCst);
            while step.load(SeqCst) < ANSWERS {
                std::thread::yield_now();
            }
            machine.masks(false);
            while step.load(SeqCst) < ENDS {
                machine.relax();
            }
            engine.cpu_offline(Some(space));
        });
        engine.cpu_online();
        engine.switch(None, space);
        while step.load(SeqCst) < MASKED {
            machine.relax();
        }
        // CPU 1 ends even if `initiates` panics.
        let ends = EndGuard(step);
        initiates(machine, engine, space, step);
        drop(ends);
        engine.cpu_offline(Some(space));
    });
}

/// A batch that unmapped the page, and the array for its frames.
struct UnmappingBatch(CMemory<quell_batch>, CMemory<[*mut c_void; 2]>);

impl UnmappingBatch {
    fn new(machine: &Toy, engine: &Engine<'static, Toy>, space: &AddressSpace<Toy>) -> Self {
        let (batch, frames) = (CMemory::<quell_batch>::new(), CMemory::<[*mut c_void; 2]>::new());
        machine.set(space.root(), PAGE, None);
        let frame = std::ptr::without_provenance_mut(9);
        let at = AddressSpace::at(Some(space));
        // SAFETY: the memory for the batch and its frames outlives both, and so does the space.
        unsafe {
            done(quell_batch_begin(engine.at(), batch.at(), 0, frames.at().cast(), 2));
            assert!(quell_batch_is_empty(batch.at()));
            done(quell_batch_report_unmapped(batch.at(), at, PAGE.0, 1, 0, frame));
            assert!(!quell_batch_is_empty(batch.at()));
        }
        UnmappingBatch(batch, frames)
    }

    fn start(&self, callback: Option<extern "C" fn(*mut c_void)>) {
        // SAFETY: a batch, which one CPU uses.
        done(unsafe { quell_batch_start(self.0.at(), callback, self.argument()) });
    }

    fn argument(&self) -> *mut c_void {
        self.0.at().cast()
    }

    fn is_over(&self) -> bool {
        // SAFETY: a batch, which any CPU may poll while it's in flight.
        unsafe { quell_batch_poll(self.0.at()) }
    }

    /// Finishes the batch, and checks the frames that it returns.
    fn finish(&self) {
        let mut count = 0;
        // SAFETY: a batch, which one CPU uses; it has written its array.
        unsafe {
            done(quell_batch_finish(self.0.at(), &raw mut count));
            assert_eq!((count, (*self.1.at())[0].addr()), (1, 9));
            assert!(quell_batch_is_empty(self.0.at()));
        }
    }
}

#[test]
fn a_flush_that_was_started_is_over_when_its_target_has_answered() {
    let _turn = turn();
    under_a_cpu(PCID, quell_hooks::default(), |machine, engine, space, step| {
        let batch = UnmappingBatch::new(machine, engine, space);
        batch.start(Some(answered));
        // SAFETY: a batch in flight, which is refused until the callback was called.
        let early = unsafe { quell_batch_finish(batch.0.at(), std::ptr::null_mut()) };
        assert_eq!(early, quell_status::InFlight);
        // Polling doesn't wait: CPU 1 hasn't answered, and can't.
        assert!((0..3).all(|_| !batch.is_over()));
        assert_eq!(called(ANSWERED), 0);
        let (of, at) = (AddressSpace::at(Some(space)), batch.0.at());
        let mut stamp = std::mem::MaybeUninit::<quell_stamp>::zeroed();
        // SAFETY: as for any batch; each call is refused.
        unsafe {
            let null = std::ptr::null_mut();
            assert_eq!(quell_batch_start(at, None, null), quell_status::InFlight);
            assert_eq!(quell_batch_changed_all(at, of, 0), quell_status::InFlight);
            let deferred = quell_batch_finish_deferred(at, null.cast(), stamp.as_mut_ptr());
            assert_eq!(deferred, quell_status::InFlight);
            assert!(quell_batch_is_full(at) && !quell_batch_is_empty(at));
            assert!(quell_c::space::quell_space_is_in_batch(of));
        }
        step.store(ANSWERS, SeqCst);
        while called(ANSWERED) == 0 {
            machine.relax();
        }
        while !batch.is_over() {
            machine.relax();
        }
        batch.finish();
        // The second flush ends in `finish`, which waits.
        let again = UnmappingBatch::new(machine, engine, space);
        again.start(None);
        again.finish();
    });
}

extern "C" fn ends(ended: *mut c_void) {
    // SAFETY: each flush passes a count that lives until its callback was called.
    let ended = unsafe { &*ended.cast::<AtomicU64>() };
    ended.fetch_add(1, SeqCst);
}

/// The last CPU to answer calls back, even if two CPUs answer at the same moment and a third CPU starts a flush.
#[test]
fn flushes_of_all_cpus_at_once_call_back_once_each() {
    const ROUNDS: u64 = 500;
    let kernel = Kernel::new(PCID, Mistake::Nothing);
    let _here = kernel.enter(0);
    let (engine, machine) = (Engine::new(kernel, "all"), &kernel.machine);
    // SAFETY: a root of this machine.
    let space = unsafe { engine.new_space(machine.new_root()) };
    let (engine, space, done_on) = (&engine, &space, &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            scope.spawn(move || {
                let _here = kernel.enter(cpu);
                engine.cpu_online();
                engine.switch(None, space);
                let ended = AtomicU64::new(0);
                let argument = std::ptr::from_ref(&ended).cast_mut().cast();
                let (batch, of) = (CMemory::new(), AddressSpace::at(Some(space)));
                let null = std::ptr::null_mut();
                // SAFETY: memory for a batch without frames, an engine and a space that outlive it.
                done(unsafe { quell_batch_begin(engine.at(), batch.at(), 0, null, 0) });
                for round in 1..=ROUNDS {
                    // SAFETY: a batch, which one CPU uses. The count outlives the flush.
                    unsafe {
                        done(quell_batch_report(batch.at(), of, PAGE.0, 1, 0, 0));
                        done(quell_batch_start(batch.at(), Some(ends), argument));
                    }
                    while ended.load(SeqCst) < round {
                        machine.relax();
                    }
                    // SAFETY: as above; the flush is over.
                    done(unsafe { quell_batch_finish(batch.at(), std::ptr::null_mut()) });
                    assert_eq!(ended.load(SeqCst), round);
                }
                done_on.fetch_add(1, SeqCst);
                while done_on.load(SeqCst) < CPUS as u64 {
                    machine.relax();
                }
                engine.cpu_offline(Some(space));
            });
        }
    });
}

#[test]
fn a_flush_that_was_broadcast_needs_a_barrier() {
    let _turn = turn();
    under_a_cpu(ASID, quell_hooks::default(), |machine, engine, space, step| {
        let mut batch = UnmappingBatch::new(machine, engine, space);
        batch.start(None);
        assert!(batch.is_over(), "CPU 1 need not answer");
        batch.finish();
        batch = UnmappingBatch::new(machine, engine, space);
        batch.start(Some(answered));
        assert_eq!(called(ANSWERED), 1, "the start executes the barrier");
        batch.finish();
        step.store(ANSWERS, SeqCst);
    });
}

#[test]
fn a_virtual_cpu_that_does_not_run_is_not_waited_for() {
    let _turn = turn();
    let hooks = quell_hooks { flush_on_reentry: Some(does_not_run), ..quell_hooks::default() };
    under_a_cpu(PCID, hooks, |machine, engine, space, step| {
        // CPU 1 has its interrupts masked: if quell waited for it, this call wouldn't return.
        UnmappingBatch::new(machine, engine, space).finish();
        step.store(ANSWERS, SeqCst);
    });
}

#[test]
fn a_long_wait_is_told() {
    let _turn = turn();
    let hooks = quell_hooks { waits_long: Some(long), ..quell_hooks::default() };
    under_a_cpu(PCID, hooks, |machine, engine, space, step| {
        let batch = UnmappingBatch::new(machine, engine, space);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while called(LONG) < 1 << 16 {
                    std::thread::yield_now();
                }
                step.store(ANSWERS, SeqCst);
            });
            batch.finish();
        });
        assert!(called(LONG).is_power_of_two(), "{}", called(LONG));
    });
}

#[test]
fn text_is_synchronized_on_every_cpu() {
    let _turn = turn();
    let hooks = quell_hooks { synchronize_text: Some(fetches_anew), ..quell_hooks::default() };
    under_a_cpu(PCID, hooks, |_, engine, space, step| {
        step.store(ANSWERS, SeqCst);
        let at = AddressSpace::at(Some(space));
        // SAFETY: an engine with a CPU online, and a space of its own.
        unsafe {
            done(cpu::quell_synchronize_text(engine.at()));
            assert!(cpu::quell_is_online(engine.at()) && cpu::quell_runs(engine.at(), at));
            done(cpu::quell_enter_lazy(engine.at(), Kernel::here()));
            assert!(!cpu::quell_runs(engine.at(), at));
            assert!(cpu::quell_resume(engine.at(), at) && cpu::quell_runs(engine.at(), at));
            done(cpu::quell_leave(engine.at(), at));
            assert!(!cpu::quell_resume(engine.at(), at));
        }
        assert_eq!(called(FETCHED), 2);
    });
    under_a_cpu(PCID, quell_hooks::default(), |_, engine, _, step| {
        // SAFETY: an engine with a CPU online.
        let refused = unsafe { cpu::quell_synchronize_text(engine.at()) };
        assert_eq!(refused, quell_status::Unsupported);
        step.store(ANSWERS, SeqCst);
    });
}

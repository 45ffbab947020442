//! The clock: order, determinism, look-ahead, interrupts.

use crate::support::{Hooks, Toy, haswell, run, run_on};
use quell::{CpuId, CpuSet, Hardware, Page, Word};
use quell_clock::{Counts, MachineFile, ModelUser, ModelWord, Progress, RunError, Setup};
use quell_vm::{LockUse, Machine, User, Work};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Runs a CPU's part of eight CPUs that walk, hit, compute, share words and interrupt each other.
fn busy(toy: &Toy<'_>, user: &ModelUser<'_>) {
    let me = user.cpu() as u64;
    let mut random = Pcg64::new(1, me.into());
    for step in 0..300u64 {
        let page = random.random_range(0..3000);
        user.write((me * 4096 + page) * 4096, step);
        for _ in 0..20 {
            user.read((me * 4096 + page) * 4096);
        }
        user.compute(random.random_range(0..256));
        user.add_shared(random.random_range(0..4), 1);
        if step % 7 == me % 7 {
            let targets: CpuSet = (0..user.cpus() as u16)
                .filter(|&cpu| cpu != user.cpu() as u16)
                .map(CpuId)
                .collect();
            toy.model.interrupt(&targets);
        }
    }
    // We wait until all interrupts are taken; otherwise the count would depend on those under way at the end.
    user.compute(1_000_000);
}

/// Whether the pages are mapped before the CPUs start; otherwise by faults.
#[derive(Clone, Copy)]
enum Premapping {
    Before,
    OnDemand,
}

fn result_of(mapped: Premapping, lookahead: Option<u64>, seed: u64) -> (Vec<u64>, Vec<Counts>) {
    let file = haswell();
    let setup = Setup { cpus: Some(8), lookahead, seed, ..Setup::new(&file) };
    let prepare = |toy: &Toy<'_>| {
        if let Premapping::Before = mapped {
            (0..8).for_each(|cpu| toy.populate(Page(cpu * 4096), 3000));
        }
    };
    let program = |toy: &Toy<'_>, user: &ModelUser<'_>| {
        // The first reader of a table's line brings it into the shared cache. We make the first CPU that reader.
        match (mapped, user.cpu()) {
            (Premapping::Before, 0) => {
                (0..8 * 4096).step_by(8).filter(|page| page % 4096 < 3000).for_each(|page| {
                    user.read(page * 4096);
                })
            }
            (Premapping::Before, _) => user.compute(10_000_000),
            (Premapping::OnDemand, _) => {}
        }
        busy(toy, user);
    };
    let result = run(&setup, &Hooks::default(), &prepare, &program).expect("runs");
    assert_eq!(result.violations, []);
    (result.times, result.cpus)
}

#[test]
fn looking_ahead_changes_nothing() {
    let exact = result_of(Premapping::Before, Some(0), 7);
    assert_eq!(exact, result_of(Premapping::Before, None, 7));
    assert_eq!(exact, result_of(Premapping::Before, Some(10_000), 7));
}

#[test]
fn looking_ahead_walks_early_where_tables_change_and_does_no_other_work() {
    let (exact_times, exact) = result_of(Premapping::OnDemand, Some(0), 7);
    let (times, ahead) = result_of(Premapping::OnDemand, None, 7);
    assert_ne!(times, exact_times, "no walk was early");
    for (ahead, exact) in ahead.iter().zip(&exact) {
        assert_eq!(ahead.accesses, exact.accesses);
        assert_eq!(ahead.faults, exact.faults);
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    assert_eq!(result_of(Premapping::OnDemand, None, 1), result_of(Premapping::OnDemand, None, 1));
    assert_ne!(
        result_of(Premapping::OnDemand, None, 1).0,
        result_of(Premapping::OnDemand, None, 2).0
    );
}

#[test]
fn shared_words_are_seen_in_the_order_of_time() {
    let log = std::cell::RefCell::new(Vec::new());
    run_on(&haswell(), 4, &Hooks::default(), &|_, user| {
        for step in 0..50 {
            user.compute(100 + 37 * user.cpu() as u64 + step);
            let now = user.now();
            user.add_shared(0, 1);
            log.borrow_mut().push(now);
        }
    })
    .expect("runs");
    let log = log.into_inner();
    assert_eq!(log.len(), 200);
    // Entries are pushed after the operation, so a later one may be logged first only within its own cost.
    assert!(log.windows(2).all(|pair| pair[0] <= pair[1] + 1), "{log:?}");
}

/// Checks that a CPU keeps a line long enough to repeat a failed exchange. Otherwise only one of all waiting CPUs
/// succeeds in each turn.
#[test]
fn a_failed_exchange_that_is_repeated_at_once_mostly_succeeds() {
    const CPUS: u64 = 16;
    let (word, failed) = (ModelWord::new(0), std::cell::Cell::new(0));
    run_on(&haswell(), CPUS as usize, &Hooks::default(), &|_, _| {
        for _ in 0..50 {
            let mut held = word.load(Relaxed);
            while let Err(now) = word.compare_exchange(held, held + 1, SeqCst, Relaxed) {
                held = now;
                failed.set(failed.get() + 1);
            }
        }
    })
    .expect("runs");
    let done = word.load(Relaxed);
    assert_eq!(done, 50 * CPUS);
    assert!(failed.get() < 2 * done, "{} failed", failed.get());
}

#[test]
fn interrupts_are_taken_once_each_in_order_and_not_while_masked() {
    let taken = std::cell::RefCell::new(Vec::new());
    let hooks =
        Hooks { interrupt: &|toy| taken.borrow_mut().push(toy.model.now()), ..Hooks::default() };
    let sent = std::cell::RefCell::new(Vec::new());
    let (masked, unmasked) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let result = run_on(&haswell(), 2, &hooks, &|toy, user| {
        if user.cpu() == 0 {
            for _ in 0..10 {
                user.compute(5_000);
                sent.borrow_mut().push(user.now());
                toy.model.interrupt(&CpuSet::from_iter([CpuId(1)]));
            }
        } else {
            user.compute(40_000);
            let were_on = toy.model.mask_interrupts();
            masked.set(toy.model.now());
            for _ in 0..1500 {
                toy.model.relax();
                user.read(4096);
            }
            unmasked.set(toy.model.now());
            toy.model.restore_interrupts(were_on);
            user.compute(60_000);
        }
    })
    .expect("runs");
    let (sent, taken) = (sent.into_inner(), taken.into_inner());
    // Interrupts that arrived while masked were taken as one after unmasking.
    let late: Vec<_> =
        sent.iter().filter(|&&at| (masked.get()..unmasked.get()).contains(&at)).collect();
    assert!(!late.is_empty());
    assert_eq!(taken.len(), sent.len() - late.len() + 1);
    assert!(taken.is_sorted());
    assert!(taken.iter().all(|at| !(masked.get()..unmasked.get()).contains(at)));
    assert_eq!(result.counts().interrupts_sent, 10);
    assert_eq!(result.counts().interrupts_taken, taken.len() as u64);
}

/// Returns the Haswell server with parameters set.
fn haswell_with(texts: &[&str]) -> MachineFile {
    haswell().with_text("a test", texts).expect("fits")
}

/// Returns the time at which each target of one interrupt from CPU 0 entered its handler, on sockets of three CPUs.
fn served(link: &str) -> [u64; 6] {
    let file = haswell_with(&["cpu.cpus_per_socket=3", link]);
    let served = std::cell::RefCell::new([0; 6]);
    let hooks = Hooks {
        interrupt: &|toy| {
            let cpu = toy.model.this_cpu().index();
            served.borrow_mut()[cpu] = toy.model.now();
        },
        ..Hooks::default()
    };
    run_on(&file, 6, &hooks, &|toy, user| {
        if user.cpu() == 0 {
            toy.model.interrupt(&(1..6).map(CpuId).collect());
        }
        user.compute(20_000);
    })
    .expect("runs");
    served.into_inner()
}

#[test]
fn interrupts_to_another_socket_queue_behind_each_other_on_the_way() {
    let [_, near, also_near, first, second, third] = served("interrupt.link=500ns");
    assert_eq!(near, also_near);
    assert_eq!([second - first, third - second], [500, 500]);
    let [.., without, last] = served("interrupt.link=0ns");
    assert_eq!(without, last, "without the queue all arrive at once");
    assert_eq!(first - last, 500, "each occupies the way itself, too");
}

/// Returns the time from a lock's first release to its second. The second CPU requests the lock `later` ns after the
/// first.
fn second_holder(later: u64) -> u64 {
    let file = haswell_with(&["lock.lists_hold=1us", "lock.lists_lines=1"]);
    let (released, took) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    run_on(&file, 2, &Hooks::default(), &|toy, user| {
        user.compute(user.cpu() as u64 * later);
        let start = user.now().max(released.get());
        toy.model.charge(Work::Locked(LockUse::ListRemove(0)));
        released.set(user.now());
        took.set(user.now() - start);
    })
    .expect("runs");
    took.get()
}

#[test]
fn a_lock_moves_its_line_three_times_to_a_cpu_that_waits() {
    // The lock is held for 1 us, and a move within the socket takes 33.5 ns.
    assert_eq!(second_holder(5000), 1033, "nobody holds it");
    assert_eq!(second_holder(500), 1101, "the other CPU holds it");
}

#[test]
fn an_interrupted_program_fetches_the_lines_again_that_were_displaced() {
    let handling = |displaced: &str| {
        let result = run_on(&haswell_with(&[displaced]), 2, &Hooks::default(), &|toy, user| {
            if user.cpu() == 0 {
                toy.model.interrupt(&CpuSet::from_iter([CpuId(1)]));
            }
            user.compute(20_000);
        });
        result.expect("runs").counts().handling
    };
    // 100 lines of 12 cycles instead of 4, at 2.5 GHz, in picoseconds.
    let more = handling("interrupt.displaced=100") - handling("interrupt.displaced=0");
    assert_eq!(more, 320_000);
}

#[test]
fn a_halted_cpu_wakes_by_interrupt_or_deadline() {
    let woke = std::cell::RefCell::new([0; 3]);
    run_on(&haswell(), 3, &Hooks::default(), &|toy, user| {
        match user.cpu() {
            0 => {
                user.compute(10_000);
                toy.model.interrupt(&CpuSet::from_iter([CpuId(1)]));
            }
            1 => toy.model.halt(u64::MAX),
            _ => toy.model.halt(50_000),
        }
        woke.borrow_mut()[user.cpu()] = user.now();
    })
    .expect("runs");
    let woke = woke.into_inner();
    assert!((12_000..14_000).contains(&woke[1]), "{woke:?}");
    assert!((50_000..50_010).contains(&woke[2]), "{woke:?}");
}

#[test]
fn cpus_that_wait_for_ever_are_named() {
    let file = haswell();
    let mut setup = Setup::new(&file);
    setup.cpus = Some(2);
    let stuck = run(&setup, &Hooks::default(), &|_| {}, &|toy, user| {
        if user.cpu() == 1 {
            toy.model.halt(u64::MAX);
        }
    });
    match stuck {
        Err(RunError::Stuck(what)) => assert!(what.contains("CPU 1 halted"), "{what}"),
        other => panic!("{other:?}"),
    }
    setup.limit = 1_000_000_000;
    let endless = run(&setup, &Hooks::default(), &|_| {}, &|toy, user| {
        while user.shared(0) == 0 {
            toy.model.relax();
        }
    });
    assert!(matches!(endless, Err(RunError::Endless { .. })), "{endless:?}");
    // Nor does a CPU continue for which no other waits, or not for a long time.
    for sleeps in [0, 3_600_000_000_000] {
        let alone = run(&setup, &Hooks::default(), &|_| {}, &|toy, user| {
            if user.cpu() == 1 {
                toy.model.halt(sleeps);
            }
            while user.cpu() == 0 {
                user.compute(100);
            }
        });
        assert!(matches!(alone, Err(RunError::Endless { .. })), "{alone:?}");
    }
    // However long it takes, a program that makes steps isn't endless, and others see its progress.
    let far = Progress::new();
    setup.progress = &far;
    let long = run(&setup, &Hooks::default(), &|_| {}, &|_, user| {
        for step in 0..=5 {
            user.compute(900_000);
            if user.cpu() == 0 {
                user.step(step, 10);
            }
        }
    });
    assert!(long.expect("it gets on").elapsed > 5 * setup.limit);
    assert_eq!(far.share(), 0.5);
}

#[test]
fn a_waiting_cpu_notices_a_write_between_two_reads_of_its_loop() {
    // The loop reads word 0, which ends it, then these words. A loop may read a line twice.
    for (others, offset) in
        [[1, 2], [1, 0]].into_iter().flat_map(|o| (0..200).map(move |at| (o, at)))
    {
        let (written, noticed) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        run_on(&haswell(), 2, &Hooks::default(), &|toy, user| {
            if user.cpu() == 1 {
                user.compute(5000);
                user.set_shared(1, 1);
                user.compute(offset);
                user.set_shared(0, 1);
                written.set(toy.model.now());
                return;
            }
            // The first write wakes this CPU. The second comes while the loop reads the other words again: only the
            // next turn notices.
            while user.shared(0) == 0 {
                for word in others {
                    user.shared(word);
                }
                toy.model.relax();
            }
            noticed.set(toy.model.now());
        })
        .expect("runs");
        let late = noticed.get().saturating_sub(written.get());
        assert!(late < 1000, "{late} ns after a write that came {offset} ns after another");
    }
}

#[test]
fn a_panic_is_an_error_and_the_thread_can_run_again() {
    let broken = run_on(&haswell(), 2, &Hooks::default(), &|_, user| {
        user.compute(1000);
        assert!(user.cpu() == 0, "CPU 1 says no");
        user.compute(1_000_000);
    });
    match broken {
        Err(RunError::Panic { cpu: 1, message }) => assert!(message.contains("says no")),
        other => panic!("{other:?}"),
    }
    run_on(&haswell(), 2, &Hooks::default(), &|_, user| user.compute(1)).expect("runs");
}

#[test]
fn non_maskable_interrupts_come_while_interrupts_are_off() {
    let came = std::cell::Cell::new(0);
    let hooks = Hooks {
        nmi: &|toy| {
            assert_eq!(toy.model.this_cpu(), CpuId(1));
            came.set(came.get() + 1);
        },
        ..Hooks::default()
    };
    let result = run_on(&haswell(), 2, &hooks, &|toy, user| {
        if user.cpu() == 0 {
            user.compute(1000);
            toy.model.send_nmi(CpuId(1));
        } else {
            let were_on = toy.model.mask_interrupts();
            for page in 0..100 {
                user.write(page * 4096, 1);
            }
            assert_eq!(came.get(), 1);
            toy.model.restore_interrupts(were_on);
        }
    });
    assert_eq!(result.expect("runs").counts().nmis, 1);
}

//! Checks that endless waits are detected, and long ones aren't reported.

use super::*;
use crate::life::{PATIENCE, TURNS_A_SIGN};

fn machine() -> Threads<true> {
    let features = Features { tagging: Tagging::None, broadcast: false, full_above: 1 };
    Threads::new(2, 1, features)
}

/// One CPU waits for twice the limit while the other CPU's thread doesn't run.
#[test]
fn a_cpu_that_gets_no_time_is_no_livelock() {
    let hw = machine();
    let (turned, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let results = hw.run(|me| {
        if me.0 == 0 {
            while !done.load(Ordering::Acquire) {
                hw.relax();
                turned.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            while turned.load(Ordering::Relaxed) < 2 * PATIENCE * TURNS_A_SIGN {
                std::thread::yield_now();
            }
            done.store(true, Ordering::Release);
        }
        hw.is_hung()
    });
    for hung in results {
        assert!(!hung.expect("no panic"), "a CPU that waits is not for ever");
    }
}

#[test]
fn cpus_that_wait_for_each_other_hang() {
    let hw = machine();
    let results = hw.run(|_| {
        while !hw.is_hung() {
            hw.relax();
        }
    });
    assert!(results.iter().all(Result::is_ok));
}

/// A CPU that waits for ever is detected, whether the other keeps making steps or has ended.
#[test]
fn a_cpu_that_waits_while_others_go_on_hangs() {
    for goes_on in [true, false] {
        let hw = machine();
        let results = hw.run(|me| {
            while !hw.is_hung() {
                match me.0 {
                    0 => hw.relax(),
                    _ if goes_on => hw.progress(),
                    _ => break,
                }
            }
        });
        assert!(results.iter().all(Result::is_ok));
    }
}

/// One CPU waits long while the other doesn't run, then the reverse. The first has hardly checked since.
#[test]
fn cpus_that_run_by_turns_do_not_hang() {
    let hw = machine();
    let (waited, went_on) = (AtomicBool::new(false), AtomicBool::new(false));
    let until = |flag: &AtomicBool| {
        while !flag.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    };
    let results = hw.run(|me| {
        if me.0 == 0 {
            (0..2 * PATIENCE * TURNS_A_SIGN).for_each(|_| hw.relax());
            waited.store(true, Ordering::Release);
            until(&went_on);
            (0..PATIENCE).for_each(|_| hw.relax());
        } else {
            until(&waited);
            (0..2 * PATIENCE).for_each(|_| hw.progress());
            went_on.store(true, Ordering::Release);
        }
        hw.is_hung()
    });
    for hung in results {
        assert!(!hung.expect("no panic"), "it has not looked since the other went on");
    }
}

//! Runs quell's conformance suite on every CPU.

use crate::pinned;
use ostd::cpu::num_cpus;
use ostd::mm::conformance::{Check, run as run_here};
use ostd::prelude::*;

/// Runs it and prints the result of each check.
pub fn run() {
    ostd::arch::trap::inject_user_page_fault_handler(|_| Err(()));
    for cpu in 1..num_cpus() {
        pinned::spawn(cpu, None, || run_here(|_: Check| {}));
    }
    run_here(|check| {
        // The first check tests whether stale translations can be observed at all.
        let blind = check.kept == Some(0);
        if check.failures == 0 && !blind {
            println!("trial: held {}", check.name);
        } else {
            println!("trial: failed {} on {} CPUs: {}", check.name, check.failures, check.saw);
        }
    });
    println!("trial: end");
}

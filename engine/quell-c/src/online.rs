//! Detects an engine that is made in the memory of another one's online CPUs, in libraries with debug assertions.

use crate::machine::Machine;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use quell::PerCpuData;

const DETECTS: bool = cfg!(debug_assertions);

/// The addresses of the states of online CPUs. We don't note more than 64.
static ONLINE: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Replaces the address of a CPU's state, if `from` is in the list.
fn replace(from: usize, to: usize) {
    if DETECTS {
        let _ = ONLINE.iter().any(|at| at.compare_exchange(from, to, Relaxed, Relaxed).is_ok());
    }
}

pub(crate) fn came(state: &PerCpuData<'_, Machine>) {
    replace(0, core::ptr::from_ref(state).addr());
}

pub(crate) fn went(state: &PerCpuData<'_, Machine>) {
    replace(core::ptr::from_ref(state).addr(), 0);
}

/// Returns whether an online CPU's state is in the memory of `count` states.
pub(crate) fn any_in(first: *const crate::place::quell_cpu, count: usize) -> bool {
    let inside = first.addr()..first.wrapping_add(count).addr();
    DETECTS && ONLINE.iter().any(|at| inside.contains(&at.load(Relaxed)))
}

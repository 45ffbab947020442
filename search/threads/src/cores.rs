//! Lists the cores that threads may use, pins threads to them, and yields them.
//!
//! A waiting CPU may occupy the core that its target needs, so waiting loops release the core at times. They sleep for
//! a moment instead of yielding, because a fair scheduler charges for yielding. On a shared host, a machine that yields
//! 64 times per wait gets hardly any time.

use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::time::Duration;

/// The length of a nap, which suffices for the host to switch to another thread.
const NAP: Duration = Duration::from_micros(20);

/// Releases the core to other threads for a moment.
pub fn nap() {
    std::thread::sleep(NAP);
}

/// Lets the calling thread nap for exactly as long as it requests, without timer slack.
///
/// By default, the slack more than doubles a nap on Linux. If this call fails, only the speed suffers.
pub fn nap_as_told() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Returns the cores that the calling thread may use, in order.
///
/// # Errors
/// If the system call fails.
#[cfg(target_os = "linux")]
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Ok(all.filter(|&core| set.is_set(core)).collect())
}

/// Restricts the calling thread to these cores.
///
/// # Errors
/// If the thread can't run on any of them. Where threads can't be pinned, this succeeds and does nothing.
#[cfg(target_os = "linux")]
pub fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    let known = |core: &&usize| **core < rustix::thread::CpuSet::MAX_CPU;
    cores.iter().filter(known).for_each(|&core| set.set(core));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Returns the cores that the system reports, numbered from 0.
///
/// # Errors
/// If the system call fails.
#[cfg(not(target_os = "linux"))]
pub fn allowed() -> io::Result<Vec<usize>> {
    Ok((0..std::thread::available_parallelism()?.get()).collect())
}

/// Does nothing here.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn pin(_cores: &[usize]) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn pinning_takes_effect() {
        let all = allowed().unwrap();
        let thread = std::thread::spawn(move || {
            pin(&all[..1]).unwrap();
            assert_eq!(allowed().unwrap(), all[..1]);
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(pin(&[usize::MAX]).is_err());
    }
}

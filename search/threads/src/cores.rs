//! The cores that threads may run on, pinning threads to them, and leaving them to others.
//!
//! The CPU that is waited for may need the core that the waiting one burns, so a waiting loop gives it up
//! now and then. It sleeps for a moment instead of yielding: to a fair scheduler, yielding is to give one's
//! turn away, and on a host that runs other programs too a machine that yields 64 times a wait gets
//! hardly any time at all.

use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::time::Duration;

/// How long a nap is: so long that the host does switch to another thread before it is over.
const NAP: Duration = Duration::from_micros(20);

/// Leaves the core to other threads for a moment.
pub fn nap() {
    std::thread::sleep(NAP);
}

/// Lets the calling thread's naps take no longer than they say; by default Linux adds more than twice as much. A
/// refusal changes speed, not meaning.
pub fn nap_as_told() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The cores that the calling thread may run on, in order.
///
/// # Errors
/// Where the system does not say.
#[cfg(target_os = "linux")]
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Ok(all.filter(|&core| set.is_set(core)).collect())
}

/// Restricts the calling thread to these cores.
///
/// # Errors
/// If it may not run on any of them. Where threads cannot be pinned it succeeds and does nothing.
#[cfg(target_os = "linux")]
pub fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    let known = |core: &&usize| **core < rustix::thread::CpuSet::MAX_CPU;
    cores.iter().filter(known).for_each(|&core| set.set(core));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// As many cores as the system says there are, numbered from 0.
///
/// # Errors
/// Where the system does not say.
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

//! The cores that threads may run on, and pinning threads to them.

use std::io;

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

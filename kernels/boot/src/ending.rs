//! Ends emulators when a signal ends this process.
//!
//! A shell's Ctrl-C also reaches the emulator. But `kill` and a supervisor's SIGTERM reach only this process, and the
//! emulator would continue without a reader. So a thread waits for these signals, ends the running emulators, and
//! records the signal. The code that follows the emulators notices their end and cleans up. Without an emulator, the
//! signal has its usual effect.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The process numbers of the running emulators.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// The signal that arrived; 0 if none did.
static TOLD: AtomicI32 = AtomicI32::new(0);

fn running() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the signal that arrived while an emulator ran and that ends this process.
pub fn end_requested() -> Option<i32> {
    Some(TOLD.load(Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// A running emulator. It ends when this is dropped, or with this process.
pub struct Emulator(pub Child);

impl Emulator {
    /// Starts an emulator. Fails if it can't be started, or we can't wait for the signals.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        watch()?;
        // We hold the lock while the process starts, so a signal finds either no process or a registered one.
        let mut running = running();
        let child = command.spawn()?;
        running.push(child.id());
        Ok(Emulator(child))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        running().retain(|&id| id != self.0.id());
    }
}

/// Starts the thread that waits for signals, once.
fn watch() -> io::Result<()> {
    static STARTED: Once = Once::new();
    let mut failed = Ok(());
    STARTED.call_once(|| match Signals::new([SIGTERM, SIGHUP, SIGINT]) {
        Ok(mut signals) => {
            std::thread::spawn(move || {
                for signal in signals.forever() {
                    end_all(signal);
                }
            });
        }
        Err(error) => failed = Err(error),
    });
    failed
}

fn end_all(signal: i32) {
    let running = running();
    if running.is_empty() {
        let _ = low_level::emulate_default_handler(signal);
        return;
    }
    TOLD.store(signal, Ordering::SeqCst);
    for &id in &*running {
        let process = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(process) = process {
            // The emulator may have ended by itself.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_what_was_started_and_is_remembered() {
        let mut emulator = Emulator::start(Command::new("sleep").arg("1000")).unwrap();
        low_level::raise(SIGTERM).unwrap();
        // Without the signal, this would wait for a quarter of an hour.
        assert!(!emulator.0.wait().unwrap().success());
        assert_eq!(end_requested(), Some(SIGTERM));
        drop(emulator);
        assert!(running().is_empty());
    }
}

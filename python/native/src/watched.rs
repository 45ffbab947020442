//! Runs work on other threads while Python's thread checks for signals and reports progress.
//!
//! We do the work in pieces. Python's thread wakes every 50 ms, so a signal handler runs soon, and no other thread
//! calls into Python. A handler (for example `KeyboardInterrupt` after Ctrl-C) or a progress callback may raise an
//! exception. Then no further piece begins, and we raise the exception when the pieces under way have ended.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The interval between checks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// The callbacks, which run on Python's thread.
#[derive(Clone, Copy, Default)]
pub struct Listeners<'a, 'py> {
    /// Gets the number of finished pieces, and of all pieces.
    pub progress: Option<&'a Bound<'py, PyAny>>,
    /// Gets each piece's result as soon as it's finished.
    pub found: Option<&'a Bound<'py, PyAny>>,
}

/// The state of work under way.
#[derive(Default)]
pub struct Work {
    /// Set if no further piece may begin.
    pub stop: AtomicBool,
    done: AtomicUsize,
    found: Mutex<Vec<String>>,
}

impl Work {
    /// Counts a finished piece.
    pub fn done(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    /// Adds the result of a finished piece.
    pub fn found(&self, text: &str) {
        self.list().push(text.to_owned());
        self.done();
    }

    /// Locks the results. A panic can't interrupt a push, so the list is intact even if another piece panicked.
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the callbacks for new results and progress.
    fn tell(&self, listeners: Listeners<'_, '_>, pieces: usize, last: &mut usize) -> PyResult<()> {
        let now = self.done.load(Relaxed);
        let found = std::mem::take(&mut *self.list());
        if let Some(hears) = listeners.found {
            for text in found {
                hears.call1((text,))?;
            }
        }
        if let Some(progress) = listeners.progress
            && now != *last
        {
            *last = now;
            progress.call1((now, pieces))?;
        }
        Ok(())
    }
}

/// Runs `work`, which has `pieces` pieces, on `threads` threads, or on all cores by default.
///
/// # Errors
/// Returns the exception of a signal handler or a callback, after the work has stopped.
pub fn watched<T: Send>(
    py: Python<'_>,
    listeners: Listeners<'_, '_>,
    threads: Option<usize>,
    pieces: usize,
    work: impl FnOnce(&Work) -> T + Send,
) -> PyResult<T> {
    let wrong = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
    // Without `threads`, the work uses the pool that all calls share.
    let pool = threads
        .map(|threads| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .map_err(|error| wrong(&error))
        })
        .transpose()?;
    let state = Work::default();
    thread::scope(|scope| {
        let caller = thread::current();
        let (state, pool) = (&state, &pool);
        let worker = scope.spawn(move || {
            let result = match pool {
                Some(pool) => pool.install(|| work(state)),
                None => work(state),
            };
            caller.unpark();
            result
        });
        let mut last = 0;
        let mut raised = Ok(());
        while raised.is_ok() && !worker.is_finished() {
            py.detach(|| thread::park_timeout(LOOK));
            raised = py.check_signals().and_then(|()| state.tell(listeners, pieces, &mut last));
        }
        state.stop.store(raised.is_err(), Relaxed);
        let result = py.detach(|| worker.join());
        raised?;
        state.tell(listeners, pieces, &mut last)?;
        result.map_err(|panic| wrong(&said(&*panic)))
    })
}

/// Returns the message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the machine in software has failed: {}", text.unwrap_or("without a message"))
}

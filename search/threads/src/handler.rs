//! Serves a CPU's interrupts wherever the CPU waits.
//!
//! The stress test's programs check for interrupts themselves. A memory manager, however, waits in places of its own
//! with interrupts on. There the machine calls the handler that the CPU's thread has set here. The machine itself can't
//! hold the handler, because the handler borrows the engine, which borrows the machine.

use std::cell::Cell;

thread_local! {
    /// The handler. It is set only while its target is borrowed.
    static HANDLER: Cell<Option<*const dyn Fn()>> = const { Cell::new(None) };
}

/// Runs `body` on this thread, with `handler` serving its interrupts.
pub fn with<R>(handler: &dyn Fn(), body: impl FnOnce() -> R) -> R {
    struct HandlerGuard(Option<*const dyn Fn()>);
    impl Drop for HandlerGuard {
        fn drop(&mut self) {
            HANDLER.set(self.0);
        }
    }
    // SAFETY: only the lifetime changes. Only `call` follows the pointer, on this thread, before `_back` removes it,
    // and `handler` is borrowed during that time.
    let handler: &'static dyn Fn() = unsafe { std::mem::transmute(handler) };
    let _back = HandlerGuard(HANDLER.replace(Some(handler)));
    body()
}

/// Returns whether this thread has a handler.
#[inline]
pub fn is_set() -> bool {
    HANDLER.get().is_some()
}

/// Calls the handler of this thread, which serves one interrupt.
pub fn call() {
    if let Some(handler) = HANDLER.get() {
        // SAFETY: `with` sets it only while its target is borrowed.
        unsafe { (*handler)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_gone_with_what_it_was_set_for() {
        let served = Cell::new(0);
        with(&|| served.set(served.get() + 1), || {
            assert!(is_set());
            call();
            let inner = std::panic::catch_unwind(|| with(&|| (), || panic!("on purpose")));
            assert!(inner.is_err());
            call();
        });
        assert!(!is_set());
        call();
        assert_eq!(served.get(), 2);
    }
}

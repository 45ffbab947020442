//! The engine as one CPU sees it: its switches, its interrupt and its flushes.
//!
//! A [`Cpu`] is a handle of two references. It identifies the CPU that runs the code, so its methods needn't look up the
//! CPU's number. A [`MaskedCpu`] is such a handle for a CPU that takes no interrupts. Steps that an interrupt must not
//! split require a [`MaskedCpu`].

use crate::cpu_set::CpuId;
use crate::engine::Engine;
use crate::hardware::Hardware;
use crate::per_cpu::PerCpuData;
use crate::stats::Counter;
use core::marker::PhantomData;
use core::ops::Deref;

/// Represents the CPU on which the code runs. Made by [`Engine::this_cpu`].
///
/// The handle dereferences to its [`Engine`], whose page explains when a call may wait. Making a handle costs a call of
/// [`Hardware::this_cpu`]. A kernel that already has its CPU's state uses [`Engine::on_cpu`] instead.
///
/// Never use a handle on another CPU. A thread that may migrate makes a new handle for each call. Debug builds check
/// this where a call waits, and in [`Cpu::assume_masked`].
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// let cpu = engine.this_cpu();
/// cpu.enter_lazy(); // idle: flushes of the space leave this CPU alone
/// assert!(!cpu.runs(&space));
/// if !cpu.resume(&space) {
///     // A flush made this CPU leave the root.
///     cpu.mask_interrupts().switch(Some(&space), &space);
/// }
/// assert!(cpu.runs(&space));
/// ```
pub struct Cpu<'e, H: Hardware> {
    pub(crate) engine: &'e Engine<'e, H>,
    pub(crate) here: &'e PerCpuData<'e, H>,
    /// Ties the handle to one thread.
    of_thread: PhantomData<*const ()>,
}

impl<H: Hardware> Clone for Cpu<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Hardware> Copy for Cpu<'_, H> {}

impl<'e, H: Hardware> Deref for Cpu<'e, H> {
    type Target = Engine<'e, H>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.engine
    }
}

impl<H: Hardware> Engine<'_, H> {
    /// Returns a handle for the CPU on which the caller runs. Never waits.
    ///
    /// # Panics
    /// If the engine was made for fewer CPUs than this CPU's number requires.
    #[inline]
    pub fn this_cpu(&self) -> Cpu<'_, H> {
        match self.known_cpu(self.hw.this_cpu()) {
            Some(here) => self.handle_of(here),
            None => no_such_cpu(),
        }
    }

    /// Returns a handle for the CPU with this state, without calling [`Hardware::this_cpu`]. Never waits.
    ///
    /// # Safety
    /// `state` is this engine's state of the CPU on which the caller runs. The thread stays on that CPU as long as it
    /// uses the handle.
    ///
    /// # Panics
    /// In debug builds, if `state` belongs to another CPU.
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    #[inline]
    #[track_caller]
    pub unsafe fn on_cpu<'e>(&'e self, state: &'e PerCpuData<'e, H>) -> Cpu<'e, H> {
        let cpu = self.handle_of(state);
        cpu.assert_here();
        cpu
    }

    #[inline(always)]
    fn handle_of<'e>(&'e self, here: &'e PerCpuData<'e, H>) -> Cpu<'e, H> {
        Cpu { engine: self, here, of_thread: PhantomData }
    }
}

#[cold]
fn no_such_cpu() -> ! {
    panic!("the engine was made for fewer CPUs")
}

impl<'e, H: Hardware> Cpu<'e, H> {
    /// Returns the number of this CPU. Never waits.
    #[inline]
    pub fn id(self) -> CpuId {
        self.here.id()
    }

    /// Returns the engine's state of this CPU, for [`Engine::on_cpu`]. Never waits.
    #[inline]
    pub fn state(self) -> &'e PerCpuData<'e, H> {
        self.here
    }

    /// Masks interrupts on this CPU until the returned handle is dropped. Never waits.
    #[inline]
    pub fn mask_interrupts(self) -> MaskedCpu<'e, H> {
        let were_on = self.hw.mask_interrupts();
        MaskedCpu { cpu: self, restore: Some(were_on) }
    }

    /// Returns a handle for this CPU, whose interrupts you have already masked. Never waits.
    ///
    /// # Safety
    /// Interrupts stay masked on this CPU until the handle is dropped. Otherwise a shootdown interrupt could come in
    /// the middle of a switch or of another shootdown interrupt. This CPU could then acknowledge a flush that it hasn't
    /// made.
    ///
    /// # Panics
    /// In debug builds, if interrupts aren't masked, or if the handle belongs to another CPU.
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    #[inline]
    #[track_caller]
    pub unsafe fn assume_masked(self) -> MaskedCpu<'e, H> {
        self.assert_masked();
        self.assert_here();
        MaskedCpu { cpu: self, restore: None }
    }

    #[inline]
    pub(crate) fn count(self, counter: Counter, amount: u64) {
        if amount != 0 && !H::IS_SMALL {
            self.here.stats.add(counter, amount);
        }
    }

    /// Panics, in debug builds, if the calling thread has left this CPU.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_still_here(self) {
        debug_assert!(
            self.hw.this_cpu() == self.id(),
            "a thread has moved to another CPU inside the engine"
        );
    }

    /// Panics, in debug builds, if another CPU executes the call.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_here(self) {
        debug_assert!(
            core::ptr::eq(self.engine.this_cpu().here, self.here),
            "a CPU is in the engine with the state of another"
        );
    }
}

/// Keeps interrupts masked on this [`Cpu`], and restores them when dropped.
///
/// Made by [`Cpu::mask_interrupts`]. A handle from [`Cpu::assume_masked`] restores nothing.
///
/// # Examples
///
/// For example, the handler of the shootdown interrupt in a kernel whose handlers run with interrupts masked:
///
/// ```
/// # use quell::{Engine, Hardware};
/// fn handle<H: Hardware>(engine: &Engine<'_, H>) {
///     // SAFETY: the hardware has masked interrupts.
///     let masked = unsafe { engine.this_cpu().assume_masked() };
///     masked.on_interrupt();
/// }
/// ```
#[must_use = "interrupts are masked as long as it lives"]
pub struct MaskedCpu<'e, H: Hardware> {
    cpu: Cpu<'e, H>,
    /// Whether interrupts were on before; `None` if the drop leaves them masked.
    restore: Option<bool>,
}

impl<'e, H: Hardware> Deref for MaskedCpu<'e, H> {
    type Target = Cpu<'e, H>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.cpu
    }
}

impl<H: Hardware> Drop for MaskedCpu<'_, H> {
    #[inline]
    fn drop(&mut self) {
        if let Some(were_on) = self.restore {
            self.cpu.hw.restore_interrupts(were_on);
        }
    }
}

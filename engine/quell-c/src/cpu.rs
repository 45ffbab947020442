//! What a CPU does for itself: coming and going, its interrupt, and what an NMI asks.

use crate::capacity::CHECKED;
use crate::machine::Machine;
use crate::place::{
    Made, engine_here, made, made_here, quell_cpu, quell_engine, quell_space, space, space_if_any,
};
use crate::status::{answer, quell_status, refuse};
use quell::AddressSpace;

/// Takes this CPU into the protocol, before it loads its first space and before it uses a mapping of the kernel that
/// may change. Of the kernel's text it drops nothing: if that has changed, the CPU then drops what it has fetched, by
/// itself.
///
/// Refuses a CPU that the engine has no number for, and one that is online.
///
/// Context: on the CPU itself, interrupts masked or nothing to interrupt.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_cpu_online(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { made(engine) }?.go_online()
    })
}

/// Takes this CPU out of the protocol: the CPU leaves its space, answers the requests that it has, and gets no more.
/// Until quell_cpu_online it touches no user memory, and no mapping of the kernel that is ever reported to a batch;
/// tables of the kernel's half are freed only where its walker cannot reach them. `from` is as for quell_switch_to: the
/// space that this CPU loaded last, even if it keeps that lazily or the engine made it leave the root; NULL only if
/// there was none or it was retired. If another space is passed, or NULL, the space that was loaded goes on naming this
/// CPU: until it is retired, its flushes interrupt this CPU in vain.
///
/// Refuses a CPU that is not online.
///
/// Context: on the CPU itself.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_cpu_offline(
    engine: *mut quell_engine,
    from: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, from) = unsafe { (made(engine)?, space_if_any(from)?) };
        made.go_offline(from)
    })
}

/// The handler of the shootdown interrupt: takes and flushes every request for this CPU. A spurious call costs a few
/// loads. Before the engine is made there is nothing to do, and QUELL_STATUS_NO_ENGINE says so.
///
/// Refuses a CPU that the engine has no number for.
///
/// Context: any that is not an NMI and not inside quell with interrupts masked. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_on_interrupt(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { engine_here(engine) }?.on_interrupt();
        Ok(())
    })
}

/// quell_on_interrupt for a kernel that knows where the engine's state of each CPU is: `here` is that of this CPU, one
/// of `quell_setup.cpus` or `cpu_places`.
///
/// Refuses what quell_on_interrupt refuses, and the state of another CPU.
///
/// Context: as quell_on_interrupt, with interrupts masked.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_on_interrupt_masked(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, here) = unsafe { made_here(engine, here) }?;
        // SAFETY: looked for above, or C vouches for it; that interrupts are masked it always does.
        unsafe { made.engine().on_interrupt_masked(here) };
        Ok(())
    })
}

/// For a loop that spins, with interrupts off, for a lock whose holder may be waiting in quell: takes and flushes the
/// requests for this CPU. A few loads if there are none.
///
/// Refuses a CPU that the engine has no number for.
///
/// Context: as quell_on_interrupt.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_poll(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { engine_here(engine) }?.poll();
        Ok(())
    })
}

/// Whether an NMI handler or a probe may access user memory right now. If not, it gives up, as for an access that
/// faults. False for memory without an engine, and on a CPU that the engine has no number for. Other code need not ask.
///
/// Context: any, an NMI too, on an online CPU.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_user_access_allowed(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.is_ok_and(|engine| engine.user_access_allowed())
}

/// Whether this CPU has no user root loaded. False for memory without an engine, and on a CPU that the engine has no
/// number for.
///
/// Context: on an online CPU, where it cannot switch meanwhile.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_detached(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.is_ok_and(|engine| engine.is_detached())
}

/// Context switch to a user thread of `to`; also the way back from lazy mode. `from` is the space that this CPU had
/// loaded last, lazily or not and even if it was made to leave it; NULL only if there was none or it was retired. It
/// may be `to`.
///
/// On return user accesses of this CPU go through the current tables of `to`, and every flush of `to` that was complete
/// when the call began has taken effect here.
///
/// Refuses a CPU that is not online, a space that was not made or was retired, and a kernel space as `to`: every CPU
/// has that loaded already. A kernel space as `from` counts as NULL.
///
/// Context: the scheduler's switch, where this CPU cannot be in two at once. Does not wait for other CPUs' answers;
/// with system-wide tags it spins while another CPU takes one.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_switch_to(
    engine: *mut quell_engine,
    from: *mut quell_space,
    to: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, from, to) = unsafe { (made(engine)?, space_if_any(from)?, space(to)?) };
        if made.engine().try_switch_to(from, to) {
            return Ok(());
        }
        made.on_online_cpu()?;
        Err(quell_status::Running)
    })
}

/// quell_switch_to for the scheduler of a kernel that knows where the engine's state of each CPU is: `here` is that of
/// this CPU, one of `quell_setup.cpus` or `cpu_places`. It calls nothing of the machine but quell_hw_load_root, and
/// that, where the machine has no tags and nothing may be deferred, after some 20 instructions.
///
/// Refuses what quell_switch_to refuses, a kernel space as `from`, and the state of another CPU.
///
/// Context: as quell_switch_to, with interrupts masked.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_switch_masked(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
    from: *mut quell_space,
    to: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let ((made, here), from, to) =
            unsafe { (made_here(engine, here)?, space_if_any(from)?, space(to)?) };
        if CHECKED {
            made.on_online_cpu()?;
            let is_kernel = |space: &AddressSpace<Machine>| space.id().kernel().is_some();
            let kernel = is_kernel(to) || from.is_some_and(is_kernel);
            refuse(kernel, quell_status::Running)?;
        }
        // SAFETY: looked for above, or C vouches for it; that interrupts are masked it always does.
        unsafe { made.engine().switch_masked(here, from, to) };
        Ok(())
    })
}

/// This CPU goes idle or runs a kernel thread: the root stays loaded, lazily, and its user half is not used. Of that
/// space only freed page-table pages, and the end of the space, still interrupt the CPU. quell_switch_to or
/// quell_resume ends it.
///
/// Refuses a CPU that is not online.
///
/// Context: as quell_switch_to.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_enter_lazy(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { made(engine) }?.on_online_cpu()?.enter_lazy();
        Ok(())
    })
}

/// quell_enter_lazy for the scheduler of a kernel that knows where the engine's state of each CPU is: `here` is that of
/// this CPU, one of `quell_setup.cpus` or `cpu_places`.
///
/// Refuses what quell_enter_lazy refuses, and the state of another CPU.
///
/// Context: as quell_switch_to.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_enter_lazy_here(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, here) = unsafe { made_here(engine, here) }?;
        // SAFETY: looked for above, or C vouches for it.
        unsafe { made.on_online_cpu()?.enter_lazy_here(here) };
        Ok(())
    })
}

/// The way back from lazy mode to `space`, if this CPU has kept its root: for a kernel thread before it accesses the
/// user memory of `space`, and for the end of an idle period. False, and nothing was done, if the CPU has left that
/// root meanwhile (call quell_switch_to then), if it is not online, or if a pointer is refused.
///
/// Context: as quell_switch_to.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_resume(engine: *mut quell_engine, space: *mut quell_space) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe {
        (
            made(engine).and_then(Made::on_online_cpu),
            self::space(space),
        )
    } {
        (Ok(engine), Ok(space)) => engine.resume(space),
        _ => false,
    }
}

/// This CPU returns to its program; until quell_enter_kernel, changes of the kernel's mappings do not interrupt it (for
/// a `nohz_full` CPU). It flushes them in quell_enter_kernel. Without effect on a CPU that runs no user space.
///
/// Until quell_enter_kernel this CPU uses no mapping that is ever reported to a batch of a kernel space: the text and
/// the stack on its way out of the kernel and in again, quell and its memory are never unmapped or moved. Of quell it
/// calls nothing but quell_on_interrupt.
///
/// Refuses a CPU that is not online.
///
/// Context: on the CPU itself, interrupts masked. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_enter_user(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and for what this CPU uses.
        unsafe { made(engine)?.on_online_cpu()?.enter_user() };
        Ok(())
    })
}

/// This CPU has entered the kernel from a program: flushes the kernel's mappings if an initiator has left that to it.
/// Every interrupt, exception, system call and NMI that may come from a program calls it first. On a CPU that has not
/// called quell_enter_user since it costs a few loads.
///
/// Refuses a CPU that is not online.
///
/// Context: interrupts masked, or an NMI, before a mapping of the kernel is used that may change. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_enter_kernel(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { made(engine) }?.on_online_cpu()?.enter_kernel();
        Ok(())
    })
}

/// On return every CPU that is online has flushed what it had been asked to flush before the call, where an initiator
/// may have been content with the receipt. Interrupts no CPU. For frames that bear no speculative load: those whose
/// memory type or encryption is to change, that a guest is to have for itself alone, or that leave the machine. Called
/// after they have come out of a batch, or were reused. It says nothing of CPUs that were not asked: one that has the
/// space loaded lazily, unless the change was reported with QUELL_SCOPE_TABLES; and, of the kernel's mappings, one
/// between quell_enter_user and quell_enter_kernel.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_quiesce(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { made(engine) }?.on_online_cpu()?.quiesce();
        Ok(())
    })
}

/// On return no CPU that is online executes an instruction that it fetched before the call. Called after the text of
/// the kernel was written, mapped or unmapped, and after the batch that was told of it has finished. If the machine's
/// instruction caches need maintenance, the kernel does that before. A CPU that is offline is not told, now or later.
///
/// Refuses an engine without `quell_hooks.synchronize_text`, and a CPU that the engine has no number for.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_synchronize_text(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let engine = unsafe { engine_here(engine) }?;
        if !engine.hw().synchronizes_text() {
            return Err(quell_status::Unsupported);
        }
        engine.synchronize_text();
        Ok(())
    })
}

/// Whether this CPU takes part in the protocol. False for memory without an engine, and on a CPU that the engine has no
/// number for.
///
/// Context: any but an NMI, where the caller stays on this CPU.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_online(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { made(engine) }.is_ok_and(Made::is_on_online_cpu)
}

/// Whether this CPU runs `space`: has it loaded and is not lazy. False where a pointer is refused.
///
/// Context: on a CPU that is online, where it cannot switch meanwhile.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_runs(
    engine: *const quell_engine,
    space: *const quell_space,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe {
        (
            made(engine).and_then(Made::on_online_cpu),
            self::space(space),
        )
    } {
        (Ok(engine), Ok(space)) => engine.runs(space),
        _ => false,
    }
}

/// This CPU leaves `space`, if it has that loaded, lazily or not, and goes on without any user root until
/// quell_switch_to: no flush of the space interrupts it then. If the engine made it leave the root before, and it has
/// no other loaded, the space no longer names it either.
///
/// Refuses a CPU that is not online, and a space that was not made or was retired.
///
/// Context: as quell_switch_to.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_leave(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, space) = unsafe { (made(engine)?, self::space(space)?) };
        made.on_online_cpu()?.leave(space);
        Ok(())
    })
}

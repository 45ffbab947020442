//! Functions that a CPU calls for itself: online and offline, context switches, its interrupt, and checks in an NMI.

use crate::capacity::CHECKED;
use crate::machine::Machine;
use crate::place::{
    EngineCell, engine_here, made, made_here, quell_cpu, quell_engine, quell_space, space,
    space_if_any,
};
use crate::status::{answer, quell_status, refuse};
use quell::AddressSpace;

/// Brings this CPU online: from now on it receives flush requests.
///
/// Call it before the CPU loads its first space and before it uses a kernel mapping that may change. It doesn't
/// synchronize instruction fetches. If the kernel's text changed while the CPU was offline, the kernel must synchronize
/// them afterwards.
///
/// Refuses a CPU that the engine doesn't have, and a CPU that is online.
///
/// Context: on the CPU itself, interrupts masked or nothing to interrupt.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_cpu_online(engine: *mut quell_engine) -> quell_status {
    // SAFETY: C vouches for its memory.
    unsafe { made(engine) }.and_then(EngineCell::go_online).into()
}

/// Takes this CPU offline: from now on it receives no flush requests.
///
/// The CPU leaves its space and answers its pending requests. Until quell_cpu_online, it must not use user memory, or
/// any kernel mapping whose changes are ever reported to a batch. Before then, free a table of the kernel's half only
/// if this CPU's walker can't reach it.
///
/// `from` is the space that this CPU loaded last, even if the CPU has it loaded lazily, or if the engine made the CPU
/// leave its root. Pass NULL only if there was no such space or it was retired. If you pass a wrong `from`, the loaded
/// space still lists this CPU. Its flushes then interrupt the CPU needlessly until the space is retired.
///
/// Refuses a CPU that isn't online.
///
/// Context: on the CPU itself.
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

/// Handles the shootdown interrupt: takes this CPU's pending flush requests, and flushes.
///
/// A spurious call costs a few loads. Before the engine is made, the call does nothing and returns
/// QUELL_STATUS_NO_ENGINE. `here` is this CPU's state, one of `quell_setup.cpus` or `cpu_places`.
///
/// Refuses a CPU that the engine doesn't have, and another CPU's state.
///
/// Context: interrupts masked; any but an NMI, and not inside quell with interrupts masked. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_on_interrupt(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, here) = unsafe { made_here(engine, here) }?;
        // SAFETY: checked above, or C vouches for it. C always vouches that interrupts are masked.
        unsafe { made.engine().on_cpu(here).assume_masked() }.on_interrupt();
        Ok(())
    })
}

/// Takes this CPU's pending flush requests without an interrupt, and flushes.
///
/// Call it in a loop that spins, with interrupts off, for a lock whose holder may be waiting in quell. If there is no
/// request, it costs a few loads.
///
/// Refuses a CPU that the engine doesn't have.
///
/// Context: any but an NMI, and not inside quell with interrupts masked. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_poll(engine: *mut quell_engine) -> quell_status {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.map(|engine| engine.this_cpu().poll()).into()
}

/// Returns whether an NMI handler or a probe may access user memory now.
///
/// If not, the caller gives up, as after an access that faults. Other code needn't check. Returns false for memory
/// without an engine, and on a CPU that the engine doesn't have.
///
/// Context: any, an NMI too, on an online CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_user_access_allowed(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.is_ok_and(|engine| engine.this_cpu().user_access_allowed())
}

/// Returns whether this CPU has no user root loaded.
///
/// Returns false for memory without an engine, and on a CPU that the engine doesn't have.
///
/// Context: on an online CPU, where it can't switch meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_detached(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.is_ok_and(|engine| engine.this_cpu().is_detached())
}

/// Switches this CPU to the space `to`, and ends lazy mode.
///
/// `from` is the space that this CPU loaded last, even if the CPU has it loaded lazily, or if the engine made the CPU
/// leave its root. Pass NULL only if there was no such space or it was retired. `from` and `to` may be the same space.
///
/// On return, user accesses of this CPU use the current tables of `to`. Every flush of `to` that was complete when the
/// call began has taken effect on this CPU.
///
/// `here` is this CPU's state, one of `quell_setup.cpus` or `cpu_places`. Suppose that the machine has neither tags nor
/// broadcasts, no flush can be deferred, and the library was built with QUELL_UNCHECKED=1. Then a switch to another
/// space calls only one function of the machine, quell_hw_load_root, after about 20 instructions.
///
/// Refuses a CPU that isn't online, another CPU's state, and a space that wasn't made or was retired. Also refuses a
/// kernel space, which every CPU always has loaded.
///
/// Context: interrupts masked, in the scheduler's switch; calls must not nest on one CPU. Does not wait for other CPUs'
/// answers. With system-wide tags it spins while another CPU takes a tag.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_switch_to(
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
        // SAFETY: checked above, or C vouches for it. C always vouches that interrupts are masked.
        unsafe { made.engine().on_cpu(here).assume_masked() }.switch(from, to);
        Ok(())
    })
}

/// Enters lazy mode, for a CPU that becomes idle or runs a kernel thread.
///
/// The root stays loaded, but the CPU doesn't use its user half. Most flushes of this space no longer interrupt the
/// CPU. The exceptions are flushes for freed page-table pages, and the end of the space. quell_switch_to or
/// quell_resume ends lazy mode.
///
/// `here` is this CPU's state. Refuses a CPU that isn't online, and another CPU's state.
///
/// Context: the scheduler's switch; calls must not nest on one CPU. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_enter_lazy(
    engine: *mut quell_engine,
    here: *mut quell_cpu,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, here) = unsafe { made_here(engine, here) }?;
        // SAFETY: checked above, or C vouches for it.
        unsafe { made.on_online_cpu()?.on_cpu(here) }.enter_lazy();
        Ok(())
    })
}

/// Ends lazy mode if this CPU still has the root of `space` loaded.
///
/// A kernel thread calls it before it accesses user memory of `space`. An idle CPU calls it at the end of the idle
/// period. Returns false and does nothing if the CPU has left that root meanwhile: then call quell_switch_to. Also
/// returns false if the CPU isn't online, or if a pointer is refused.
///
/// Context: as quell_enter_lazy.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_resume(engine: *mut quell_engine, space: *mut quell_space) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (made(engine).and_then(EngineCell::on_online_cpu), self::space(space)) } {
        (Ok(engine), Ok(space)) => engine.this_cpu().resume(space),
        _ => false,
    }
}

/// Notes that this CPU returns to its program (for a `nohz_full` CPU).
///
/// Until quell_enter_kernel, changes of kernel mappings don't interrupt this CPU, unless they were reported with
/// QUELL_SCOPE_TABLES; quell_enter_kernel flushes them. The call has no effect on a CPU that runs no user space.
///
/// Until quell_enter_kernel, this CPU must not use a mapping whose changes are ever reported for a kernel space. So the
/// kernel never unmaps or moves quell, quell's memory, or the text and stack of its exit and entry paths. In that time,
/// the CPU calls no function of quell except quell_on_interrupt.
///
/// Refuses a CPU that isn't online.
///
/// Context: on the CPU itself, interrupts masked. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_enter_user(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and for the mappings that this CPU uses.
        unsafe { made(engine)?.on_online_cpu()?.this_cpu().enter_user() };
        Ok(())
    })
}

/// Notes that this CPU entered the kernel. Flushes kernel mappings that changed while it ran the program.
///
/// Every interrupt, exception, system call and NMI that may interrupt a program calls it first. If the CPU hasn't
/// called quell_enter_user since the last call, the call costs a few loads.
///
/// Refuses a CPU that isn't online.
///
/// Context: interrupts masked, or an NMI, before the CPU uses a kernel mapping that may change. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_enter_kernel(engine: *mut quell_engine) -> quell_status {
    // SAFETY: C vouches for its memory.
    let engine = unsafe { made(engine) }.and_then(EngineCell::on_online_cpu);
    engine.map(|engine| engine.this_cpu().enter_kernel()).into()
}

/// Waits until every online CPU has made the flushes that it has acknowledged.
///
/// With remote flush, an initiator may have waited only for receipts: a target has taken the request but may not
/// have flushed yet. The call interrupts no CPU.
///
/// Call it for frames that even a speculative load must not reach, after a batch has returned them or they were reused.
/// For example, their memory type or encryption is about to change, a guest gets exclusive use of them, or they leave
/// the machine.
///
/// It doesn't cover CPUs that received no request. For user mappings, those are CPUs that have the space loaded lazily.
/// For kernel mappings, they're CPUs between quell_enter_user and quell_enter_kernel. A change that is reported with
/// QUELL_SCOPE_TABLES reaches these CPUs, too.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_quiesce(engine: *mut quell_engine) -> quell_status {
    // SAFETY: C vouches for its memory.
    let engine = unsafe { made(engine) }.and_then(EngineCell::on_online_cpu);
    engine.map(|engine| engine.this_cpu().quiesce()).into()
}

/// Makes every online CPU drop the instructions that it fetched before the call.
///
/// Call it after the kernel's text was written, mapped or unmapped, and after you finished the batch to which the
/// change was reported. If the machine's instruction caches need maintenance, the kernel does that first. The call has
/// no effect on CPUs that are offline, not even when they come online.
///
/// Refuses an engine without `quell_hooks.synchronize_text`, and a CPU that the engine doesn't have.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_synchronize_text(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let engine = unsafe { engine_here(engine) }?;
        if !engine.hw().synchronizes_text() {
            return Err(quell_status::Unsupported);
        }
        engine.this_cpu().synchronize_text();
        Ok(())
    })
}

/// Returns whether this CPU is online, between quell_cpu_online and quell_cpu_offline.
///
/// Returns false for memory without an engine, and on a CPU that the engine doesn't have.
///
/// Context: any but an NMI, where the caller stays on this CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_online(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { made(engine) }.is_ok_and(EngineCell::is_on_online_cpu)
}

/// Returns whether this CPU runs `space`: it has the space loaded and isn't lazy.
///
/// Returns false if a pointer is refused.
///
/// Context: on an online CPU, where it can't switch meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_runs(
    engine: *const quell_engine,
    space: *const quell_space,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (made(engine).and_then(EngineCell::on_online_cpu), self::space(space)) } {
        (Ok(engine), Ok(space)) => engine.this_cpu().runs(space),
        _ => false,
    }
}

/// Makes this CPU leave `space` if it has the space loaded, lazily or not.
///
/// The CPU then has no user root until quell_switch_to, and no flush of the space interrupts it. If the engine made the
/// CPU leave the root earlier, and no other root is loaded, the space also stops listing this CPU.
///
/// Refuses a CPU that isn't online, and a space that wasn't made or was retired.
///
/// Context: as quell_enter_lazy.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_leave(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (made, space) = unsafe { (made(engine)?, self::space(space)?) };
        made.on_online_cpu()?.this_cpu().leave(space);
        Ok(())
    })
}

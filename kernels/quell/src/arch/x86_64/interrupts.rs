//! The local APIC: interrupts between CPUs, non-maskable ones, the timer.

use crate::cause::Interrupt;
use crate::clock;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell::{CpuId, CpuSet};
use x2apic::lapic::{LocalApic, LocalApicBuilder, TimerMode};
use x86_64::instructions::port::Port;

/// Vector of the timer.
const TIMER: u8 = 0xe0;
/// Vector of a wake-up.
const WAKE: u8 = 0xe1;
/// Vector of a shootdown; higher vectors are served first.
const SHOOTDOWN: u8 = 0xf0;
const ERROR: u8 = 0xfe;
const SPURIOUS: u8 = 0xff;

/// A CPU's own local APIC, used by that CPU alone with interrupts masked.
struct PerCpu(UnsafeCell<Option<LocalApic>>);
// SAFETY: each CPU uses its own element, with interrupts masked (`apic`).
unsafe impl Sync for PerCpu {}

static APICS: [PerCpu; crate::cpu::MAX] =
    [const { PerCpu(UnsafeCell::new(None)) }; crate::cpu::MAX];

/// Runs `f` with this CPU's local APIC, interrupts masked.
fn apic<R>(f: impl FnOnce(&mut LocalApic) -> R) -> R {
    let were_on = super::cpu::mask_interrupts();
    // SAFETY: the element of this CPU, and nothing can interrupt `f` but a non-maskable interrupt,
    // which does not come here.
    let result = f(unsafe { (*APICS[super::cpu::index()].0.get()).as_mut() }.expect("initialised"));
    super::cpu::restore_interrupts(were_on);
    result
}

/// The destination field for a CPU's APIC id, which [`LocalApic`] takes as the mode has it.
fn destination(id: u32) -> u32 {
    if super::processor::features().x2apic {
        id
    } else {
        id << 24
    }
}

/// Sets this CPU's local APIC up.
///
/// # Safety
/// Interrupts are masked, and this CPU has not called it before.
pub unsafe fn init_cpu() {
    // SAFETY: masks all inputs of the two legacy interrupt controllers.
    unsafe {
        Port::new(0x21).write(0xffu8);
        Port::new(0xa1).write(0xffu8);
    }
    // SAFETY: reads the base register; the direct map covers the registers, uncached.
    let base = crate::direct_map::pointer::<u8>(unsafe { x2apic::lapic::xapic_base() }) as u64;
    REGISTERS.store(base, Relaxed);
    let mut apic = LocalApicBuilder::new()
        .timer_vector(TIMER.into())
        .error_vector(ERROR.into())
        .spurious_vector(SPURIOUS.into())
        .timer_mode(TimerMode::OneShot)
        .set_xapic_base(base)
        .build()
        .expect("all fields are set");
    // SAFETY: the vectors have handlers.
    let id = unsafe {
        apic.enable();
        apic.disable_timer();
        apic.id()
    };
    let id = if super::processor::features().x2apic {
        id
    } else {
        id >> 24
    };
    crate::cpu::this().hardware_id.store(id.into(), Relaxed);
    if !super::processor::features().x2apic && super::cpu::index() < FLAT {
        // SAFETY: the flat model, and this CPU's bit in it.
        unsafe {
            ((base + 0xe0) as *mut u32).write_volatile(u32::MAX);
            ((base + 0xd0) as *mut u32).write_volatile(1 << (24 + super::cpu::index()));
        }
    }
    // SAFETY: this CPU's element, before its first use.
    unsafe { *APICS[super::cpu::index()].0.get() = Some(apic) };
    // SAFETY: routes the local interrupt pin 1 as a non-maskable interrupt, which is how the
    // emulator's monitor injects one.
    unsafe {
        const NMI: u32 = 4 << 8;
        if super::processor::features().x2apic {
            x86_64::registers::model_specific::Msr::new(0x836).write(NMI.into());
        } else {
            ((base + 0x360) as *mut u32).write_volatile(NMI);
        }
    }
}

/// Sends an interrupt by writing the command register itself: [`LocalApic`] composes the command
/// field by field with reads in between, which takes longer than the interrupt.
fn send(to: usize, vector: u8) {
    let id = crate::cpu::cpu(to).hardware_id.load(Relaxed);
    if super::processor::features().x2apic {
        send_x2apic(id, vector.into());
        return;
    }
    command((id as u32) << 24, vector.into());
}

/// Sends a command to this CPU's local APIC in x2APIC mode.
///
/// A write to the register waits for no earlier store. `mfence` makes those visible, and `lfence` delays the write
/// until then (Intel SDM volume 3, on accesses to x2APIC registers).
fn send_x2apic(destination: u64, what: u32) {
    const COMMAND: u32 = 0x830;
    quell_arch::x86_64::tlb::fence();
    // SAFETY: it does nothing but wait.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY: every CPU has a handler for the vector.
    unsafe {
        x86_64::registers::model_specific::Msr::new(COMMAND)
            .write(destination << 32 | u64::from(what))
    };
}

/// Gives this CPU's local APIC a command, in xAPIC mode. Writes to its registers are ordered after
/// earlier stores.
fn command(destination: u32, what: u32) {
    let registers = REGISTERS.load(Relaxed);
    let were_on = super::cpu::mask_interrupts();
    // SAFETY: the registers of this CPU; nothing comes between the two halves of the command, and
    // the vectors that are sent have handlers on every CPU.
    unsafe {
        ((registers + 0x310) as *mut u32).write_volatile(destination);
        ((registers + 0x300) as *mut u32).write_volatile(what);
    }
    super::cpu::restore_interrupts(were_on);
}

/// The address of the local APIC's registers in xAPIC mode, the same on every CPU.
static REGISTERS: AtomicU64 = AtomicU64::new(0);

/// How many CPUs have a bit of their own in the logical address of xAPIC mode's flat model.
const FLAT: usize = 8;

/// Interrupts CPUs to serve the engine's requests. One command interrupts all that xAPIC mode can name together.
pub fn shoot(targets: &CpuSet) {
    let mut together = 0u32;
    for target in targets.iter().map(CpuId::index) {
        if target < FLAT && !super::processor::features().x2apic {
            together |= 1 << target;
        } else {
            send(target, SHOOTDOWN);
        }
    }
    if together != 0 {
        const LOGICAL: u32 = 1 << 11;
        command(together << 24, u32::from(SHOOTDOWN) | LOGICAL);
    }
}

/// Interrupts a CPU so that it leaves a halt.
pub fn wake(to: usize) {
    send(to, WAKE);
}

/// Sends a CPU a non-maskable interrupt.
pub const SEND_NMI: Option<fn(usize)> = Some(nmi);

/// Sends a non-maskable interrupt to a CPU. May be called in the handler of one, which may have come
/// between the two halves of another command: so the first half is left as it was found.
fn nmi(to: usize) {
    const DELIVER_NMI: u32 = 4 << 8;
    const ASSERT: u32 = 1 << 14;
    let id = crate::cpu::cpu(to).hardware_id.load(Relaxed);
    if super::processor::features().x2apic {
        send_x2apic(id, DELIVER_NMI | ASSERT);
        return;
    }
    let destination = (REGISTERS.load(Relaxed) + 0x310) as *mut u32;
    // SAFETY: a register of this CPU's; reading it changes nothing.
    let found = unsafe { destination.read_volatile() };
    command((id as u32) << 24, DELIVER_NMI | ASSERT);
    // SAFETY: a register of this CPU's; writing this half sends nothing.
    unsafe { destination.write_volatile(found) };
}

/// Starts the CPU with this APIC id at a page below 1 MB in real mode.
///
/// # Safety
/// The page holds code that a CPU can start with, and the CPU does not run.
pub unsafe fn start(id: u32, page: u64) {
    // SAFETY: the CPU does not run.
    apic(|apic| unsafe { apic.send_init_ipi(destination(id)) });
    clock::wait_for(10_000_000, || false);
    for _ in 0..2 {
        // SAFETY: the caller's claim; a CPU that already runs ignores the second one.
        apic(|apic| unsafe { apic.send_sipi((page >> 12) as u8, destination(id)) });
        clock::wait_for(200_000, || false);
    }
}

/// Ticks of every CPU's APIC timer in a millisecond, measured by [`calibrate`].
static TIMER_TICKS_PER_MS: AtomicU64 = AtomicU64::new(0);

/// Measures the first CPU's APIC timer against the time-stamp counter, which is calibrated. Called
/// before there are other CPUs: where an emulator runs all of them on one thread, they could come
/// between the two readings.
pub fn calibrate() {
    use super::cpu::{ticks, ticks_per_ms};
    // SAFETY: the timer is masked while it counts.
    let (counted, passed) = apic(|apic| unsafe {
        apic.disable_timer();
        let begin = ticks();
        apic.set_timer_initial(u32::MAX);
        clock::wait_for(1_000_000, || false);
        (u32::MAX - apic.timer_current(), ticks() - begin)
    });
    let per_ms = u64::from(counted) * ticks_per_ms() / passed.max(1);
    TIMER_TICKS_PER_MS.store(per_ms.max(1), Relaxed);
}

/// Requests one timer interrupt on this CPU after about this time.
pub fn set_timer(nanoseconds: u64) {
    let ticks = TIMER_TICKS_PER_MS.load(Relaxed).saturating_mul(nanoseconds) / 1_000_000;
    // SAFETY: the timer's vector has a handler.
    apic(|apic| unsafe {
        // A timer that runs out while it is masked is forgotten.
        apic.enable_timer();
        apic.set_timer_initial(ticks.clamp(1, u32::MAX.into()) as u32);
    });
}

/// Acknowledges an interrupt and returns its purpose; `None` if it is spurious.
pub fn acknowledge(vector: u64) -> Option<Interrupt> {
    let interrupt = match vector as u8 {
        TIMER => Interrupt::Timer,
        WAKE => Interrupt::Wake,
        SHOOTDOWN => Interrupt::Shootdown,
        // A spurious interrupt must not be acknowledged.
        SPURIOUS => return None,
        _ => panic!("unexpected interrupt {vector:#x}"),
    };
    // SAFETY: interrupts are masked, and one is in service.
    apic(|apic| unsafe { apic.end_of_interrupt() });
    Some(interrupt)
}

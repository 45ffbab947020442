//! The local APIC: interrupts between CPUs, non-maskable interrupts, and the timer.

use crate::clock;
use crate::sync::Masked;
use crate::trap::Interrupt;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell::{CpuId, CpuSet};
use x2apic::lapic::{LocalApic, LocalApicBuilder, TimerMode};
use x86_64::instructions::port::Port;

/// The vector of the timer.
const TIMER: u8 = 0xe0;
/// The vector of a wake-up.
const WAKE: u8 = 0xe1;
/// The vector of a shootdown. Higher vectors are served first.
const SHOOTDOWN: u8 = 0xf0;
const ERROR: u8 = 0xfe;
const SPURIOUS: u8 = 0xff;

/// A CPU's own local APIC. Only that CPU uses it, with interrupts masked.
struct ApicCell(UnsafeCell<Option<LocalApic>>);
// SAFETY: each CPU uses its own element, with interrupts masked (`apic`).
unsafe impl Sync for ApicCell {}

static APICS: [ApicCell; crate::cpu::MAX] =
    [const { ApicCell(UnsafeCell::new(None)) }; crate::cpu::MAX];

/// Runs `f` with this CPU's local APIC, interrupts masked.
fn apic<R>(f: impl FnOnce(&mut LocalApic) -> R) -> R {
    let _masked = Masked::new();
    // SAFETY: this is the element of this CPU. Only a non-maskable interrupt can interrupt `f`, and its handler doesn't
    // call this.
    f(unsafe { (*APICS[super::cpu::index()].0.get()).as_mut() }.expect("initialised"))
}

/// Returns the destination field for a CPU's APIC id, in the format that [`LocalApic`] requires in the present mode.
fn destination(id: u32) -> u32 {
    if super::cpu::processor().x2apic { id } else { id << 24 }
}

/// Sets up this CPU's local APIC.
///
/// # Safety
/// Interrupts are masked, and this CPU hasn't called it before.
pub unsafe fn init_cpu() {
    // SAFETY: this masks all inputs of the two legacy interrupt controllers.
    unsafe {
        Port::new(0x21).write(0xffu8);
        Port::new(0xa1).write(0xffu8);
    }
    // SAFETY: this reads the base register. The direct map covers the registers, uncached.
    let base = crate::memory::pointer::<u8>(unsafe { x2apic::lapic::xapic_base() }) as u64;
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
    let id = if super::cpu::processor().x2apic { id } else { id >> 24 };
    crate::cpu::this().hardware_id.store(id.into(), Relaxed);
    if !super::cpu::processor().x2apic && super::cpu::index() < FLAT {
        // SAFETY: these registers select the flat model, and this CPU's bit in it.
        unsafe {
            ((base + 0xe0) as *mut u32).write_volatile(u32::MAX);
            ((base + 0xd0) as *mut u32).write_volatile(1 << (24 + super::cpu::index()));
        }
    }
    // SAFETY: this is this CPU's element, before its first use.
    unsafe { *APICS[super::cpu::index()].0.get() = Some(apic) };
    // SAFETY: this routes the local interrupt pin 1 as a non-maskable interrupt, because the emulator's monitor injects
    // one there.
    unsafe {
        const NMI: u32 = 4 << 8;
        if super::cpu::processor().x2apic {
            x86_64::registers::model_specific::Msr::new(0x836).write(NMI.into());
        } else {
            ((base + 0x360) as *mut u32).write_volatile(NMI);
        }
    }
}

/// Sends an interrupt by writing the command register itself. [`LocalApic`] composes the command field by field with
/// reads in between, and that takes longer than the interrupt.
fn send(to: usize, vector: u8) {
    let id = crate::cpu::cpu(to).hardware_id.load(Relaxed);
    if super::cpu::processor().x2apic {
        send_x2apic(id, vector.into());
        return;
    }
    command((id as u32) << 24, vector.into());
}

/// Sends a command to this CPU's local APIC in x2APIC mode.
///
/// A write to the register doesn't wait for earlier stores. `mfence` makes those visible, and `lfence` delays the write
/// until then (Intel SDM volume 3, on accesses to x2APIC registers).
fn send_x2apic(destination: u64, what: u32) {
    const COMMAND: u32 = 0x830;
    quell_arch::x86_64::tlb::fence();
    // SAFETY: this only waits.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY: every CPU has a handler for the vector.
    unsafe {
        x86_64::registers::model_specific::Msr::new(COMMAND)
            .write(destination << 32 | u64::from(what))
    };
}

/// Gives this CPU's local APIC a command, in xAPIC mode. The processor orders writes to its registers after earlier
/// stores.
fn command(destination: u32, what: u32) {
    let registers = REGISTERS.load(Relaxed);
    let _masked = Masked::new();
    // SAFETY: these are the registers of this CPU. Nothing comes between the two halves of the command, and the vectors
    // that we send have handlers on every CPU.
    unsafe {
        ((registers + 0x310) as *mut u32).write_volatile(destination);
        ((registers + 0x300) as *mut u32).write_volatile(what);
    }
}

/// The address of the local APIC's registers in xAPIC mode, the same on every CPU.
static REGISTERS: AtomicU64 = AtomicU64::new(0);

/// The number of CPUs that have their own bit in the logical address of xAPIC mode's flat model.
const FLAT: usize = 8;

/// Interrupts CPUs to serve the engine's requests. One command interrupts all those that xAPIC mode can name together.
pub fn shoot(targets: &CpuSet) {
    let mut together = 0u32;
    for target in targets.iter().map(CpuId::index) {
        if target < FLAT && !super::cpu::processor().x2apic {
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

/// Sends a non-maskable interrupt to a CPU. The handler of one may call this, too. That interrupt may have arrived
/// between the two halves of another command, so we restore the first half.
fn nmi(to: usize) {
    const DELIVER_NMI: u32 = 4 << 8;
    const ASSERT: u32 = 1 << 14;
    let id = crate::cpu::cpu(to).hardware_id.load(Relaxed);
    if super::cpu::processor().x2apic {
        send_x2apic(id, DELIVER_NMI | ASSERT);
        return;
    }
    let destination = (REGISTERS.load(Relaxed) + 0x310) as *mut u32;
    // SAFETY: this is a register of this CPU, and reading it changes nothing.
    let found = unsafe { destination.read_volatile() };
    command((id as u32) << 24, DELIVER_NMI | ASSERT);
    // SAFETY: this is a register of this CPU, and writing this half sends nothing.
    unsafe { destination.write_volatile(found) };
}

/// Starts the CPU with this APIC id in real mode, below 1 MB.
///
/// # Safety
/// The page contains code that a CPU can start with, and the CPU doesn't run.
pub unsafe fn start(id: u32, page: u64) {
    // SAFETY: as the caller promises, the CPU doesn't run.
    apic(|apic| unsafe { apic.send_init_ipi(destination(id)) });
    clock::wait_for(10_000_000, || false);
    for _ in 0..2 {
        // SAFETY: as the caller promises. A CPU that already runs ignores the second one.
        apic(|apic| unsafe { apic.send_sipi((page >> 12) as u8, destination(id)) });
        clock::wait_for(200_000, || false);
    }
}

/// The number of ticks of every CPU's APIC timer in a millisecond, measured by [`calibrate`].
static TIMER_TICKS_PER_MS: AtomicU64 = AtomicU64::new(0);

/// Measures the first CPU's APIC timer against the time-stamp counter, which is already calibrated. Call this before
/// there are other CPUs. If an emulator runs all of them on one thread, they could run between the two readings.
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
        // If a timer runs out while it's masked, its interrupt is lost.
        apic.enable_timer();
        apic.set_timer_initial(ticks.clamp(1, u32::MAX.into()) as u32);
    });
}

/// Acknowledges an interrupt and returns its purpose, or `None` if it's spurious.
pub fn acknowledge(vector: u64) -> Option<Interrupt> {
    let interrupt = match vector as u8 {
        TIMER => Interrupt::Timer,
        WAKE => Interrupt::Wake,
        SHOOTDOWN => Interrupt::Shootdown,
        // We must not acknowledge a spurious interrupt.
        SPURIOUS => return None,
        _ => panic!("unexpected interrupt {vector:#x}"),
    };
    // SAFETY: interrupts are masked, and one is in service.
    apic(|apic| unsafe { apic.end_of_interrupt() });
    Some(interrupt)
}

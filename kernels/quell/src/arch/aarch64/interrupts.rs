//! The GICv3. Software-generated interrupts between CPUs and the virtual timer are in group 1 and arrive as IRQs.
//! Non-maskable interrupts are in group 0 and arrive as FIQs, masked only while one is handled (`traps.s`).

use crate::memory;
use crate::trap::Interrupt;
use aarch64_cpu::registers::{CNTV_CTL_EL0, CNTV_TVAL_EL0, MPIDR_EL1, Readable, Writeable};
use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3, Group, SecureIntGroup, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup, UniqueMmioPointer};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use quell::CpuSet;

/// The addresses of the distributor and the first redistributor in QEMU's machine `virt`.
const DISTRIBUTOR: u64 = 0x0800_0000;
const REDISTRIBUTORS: u64 = 0x080a_0000;

const SHOOTDOWN: IntId = IntId::sgi(1);
const WAKE: IntId = IntId::sgi(2);
const NMI: IntId = IntId::sgi(3);
/// The virtual timer's private interrupt.
const TIMER: IntId = IntId::ppi(11);

/// Priorities. Lower numbers are served first.
const PRIORITY_NMI: u8 = 0x20;
const PRIORITY_SHOOTDOWN: u8 = 0x40;
const PRIORITY_OTHER: u8 = 0x80;

/// Protects the controller's shared registers.
static SETUP: spin::mutex::SpinMutex<()> = spin::mutex::SpinMutex::new(());

/// Sets up the controller for this CPU, and as a whole on the first CPU.
///
/// # Safety
/// `index` is this CPU's number, interrupts are masked, and it hasn't called this before.
pub unsafe fn init_cpu(index: usize) {
    let _setup = SETUP.lock();
    let distributor = NonNull::new(memory::pointer::<Gicd>(DISTRIBUTOR)).expect("mapped");
    let redistributors = NonNull::new(memory::pointer::<GicrSgi>(REDISTRIBUTORS)).expect("mapped");
    // SAFETY: the direct map covers the registers as device memory, and the lock makes this the
    // only driver that uses them.
    let mut gic =
        unsafe { GicV3::new(UniqueMmioPointer::new(distributor), redistributors, index + 1) }
            .expect("a GICv3");
    if index == 0 {
        gic.setup(0);
    } else {
        gic.init_cpu(index);
        gic.redistributor(index).expect("in range").configure_default_settings();
        GicCpuInterface::enable_group1(true);
    }
    for (interrupt, priority) in [
        (NMI, PRIORITY_NMI),
        (SHOOTDOWN, PRIORITY_SHOOTDOWN),
        (WAKE, PRIORITY_OTHER),
        (TIMER, PRIORITY_OTHER),
    ] {
        gic.set_interrupt_priority(interrupt, Some(index), priority).expect("a private interrupt");
        gic.enable_interrupt(interrupt, Some(index), true).expect("a private interrupt");
    }
    gic.redistributor(index)
        .expect("in range")
        .set_group(NMI, Group::Secure(SecureIntGroup::Group0))
        .expect("a private interrupt");
    gic.distributor().enable_group0(true);
    GicCpuInterface::enable_group0(true);
    GicCpuInterface::set_priority_mask(0xff);
    super::cpu::allow_nmis();
    crate::cpu::cpu(index).hardware_id.store(MPIDR_EL1.get() & 0xff_00ff_ffff, Relaxed);
}

fn send(to: usize, interrupt: IntId, group: SgiTargetGroup) {
    let id = crate::cpu::cpu(to).hardware_id.load(Relaxed);
    // Earlier stores must be visible to the target before the interrupt arrives.
    quell_arch::aarch64::tlb::fence();
    let target = SgiTarget::List {
        affinity3: (id >> 32) as u8,
        affinity2: (id >> 16) as u8,
        affinity1: (id >> 8) as u8,
        target_list: 1 << (id & 0xf),
    };
    GicCpuInterface::send_sgi(interrupt, target, group).expect("a software-generated interrupt");
}

/// Interrupts CPUs to serve the engine's requests.
pub fn shoot(targets: &CpuSet) {
    for target in targets.iter() {
        send(target.index(), SHOOTDOWN, SgiTargetGroup::CurrentGroup1);
    }
}

/// Interrupts a CPU so that it leaves a halt.
pub fn wake(to: usize) {
    send(to, WAKE, SgiTargetGroup::CurrentGroup1);
}

/// Sends a CPU a non-maskable interrupt.
pub const SEND_NMI: Option<fn(usize)> = Some(nmi);

/// Sends a non-maskable interrupt to a CPU.
fn nmi(to: usize) {
    send(to, NMI, SgiTargetGroup::Group0);
}

/// Acknowledges a non-maskable interrupt. Returns whether there was one.
pub fn acknowledge_nmi() -> bool {
    let id = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group0);
    if let Some(id) = id {
        GicCpuInterface::end_interrupt(id, InterruptGroup::Group0);
    }
    id.is_some()
}

/// Requests one timer interrupt on this CPU after about this time.
pub fn set_timer(nanoseconds: u64) {
    CNTV_TVAL_EL0.set(super::cpu::ticks_per_ms() * nanoseconds / 1_000_000);
    CNTV_CTL_EL0.write(CNTV_CTL_EL0::ENABLE::SET);
}

/// Acknowledges the pending interrupt and returns its purpose, or `None` if it's spurious.
pub fn acknowledge() -> Option<Interrupt> {
    let id = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1)?;
    let interrupt = match id {
        SHOOTDOWN => Interrupt::Shootdown,
        WAKE => Interrupt::Wake,
        TIMER => {
            // The timer's line stays active until the timer is off.
            CNTV_CTL_EL0.write(CNTV_CTL_EL0::ENABLE::CLEAR);
            Interrupt::Timer
        }
        other => panic!("unexpected interrupt {other:?}"),
    };
    GicCpuInterface::end_interrupt(id, InterruptGroup::Group1);
    Some(interrupt)
}

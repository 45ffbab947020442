//! Registers of one CPU: its number, interrupt flag, clock, and the switch between stacks.
//!
//! GS contains the address of a [`CpuLocal`] in kernel mode *and* in user mode. Our one user program can't change it
//! (CR4.FSGSBASE is off, and we build it without segment loads), and its target isn't mapped for user mode. So no entry
//! needs SWAPGS.

use alloc::boxed::Box;
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU64, Ordering};
use quell_arch::x86_64::features::Features;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::Msr;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

/// The hardware's structures for each CPU. Assembly reads the first word.
#[repr(C)]
pub struct CpuLocal {
    index: u64,
    /// The task state, which defines the stacks of interrupts.
    pub tss: TaskStateSegment,
    gdt: GlobalDescriptorTable,
}

/// The selector of kernel code. Kernel data is the next; user data and user code follow.
pub const KERNEL_CODE: u16 = 0x08;
/// Selector of user data.
pub const USER_DATA: u16 = 0x18 | 3;
/// Selector of user code.
pub const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;

/// Index of the non-maskable interrupt's stack in the task state, counted from 0.
pub const NMI_STACK: u16 = 0;
/// Index of the double fault's stack.
pub const DOUBLE_FAULT_STACK: u16 = 1;

const GS_BASE: Msr = Msr::new(0xc000_0101);

/// Makes [`index`] return 0 on the first CPU until [`init`], for early panics.
pub fn init_early() {
    static ZERO: AtomicU64 = AtomicU64::new(0);
    let mut gs = GS_BASE;
    // SAFETY: only `index` uses this segment, and its base is a word that is never freed.
    unsafe { gs.write(&raw const ZERO as u64) };
}

/// Gives the CPU its number, segments and stacks.
///
/// # Safety
/// No other CPU has the number, and this one hasn't used its number yet, except after [`init_early`] on the first
/// CPU.
pub unsafe fn init(index: usize) {
    let local = Box::leak(Box::new(CpuLocal {
        index: index as u64,
        tss: TaskStateSegment::new(),
        gdt: GlobalDescriptorTable::new(),
    }));
    for which in [NMI_STACK, DOUBLE_FAULT_STACK] {
        let stack = alloc::vec![0u128; 1024].leak();
        local.tss.interrupt_stack_table[usize::from(which)] =
            VirtAddr::from_ptr(stack.as_ptr_range().end);
    }
    let task = &raw const local.tss;
    local.gdt.append(Descriptor::kernel_code_segment());
    local.gdt.append(Descriptor::kernel_data_segment());
    local.gdt.append(Descriptor::user_data_segment());
    local.gdt.append(Descriptor::user_code_segment());
    // SAFETY: the task state is never freed. Its privilege stack changes while it's loaded. But the hardware reads that
    // only on entry from user mode, when no code changes it.
    local.gdt.append(unsafe { Descriptor::tss_segment_unchecked(task) });
    let (gdt, base) = (&raw const local.gdt, &raw mut *local as u64);
    // SAFETY: the table is never freed, and its selectors are those of the constants above.
    unsafe {
        (*gdt).load_unsafe();
        use x86_64::instructions::{segmentation::*, tables::load_tss};
        use x86_64::structures::gdt::SegmentSelector;
        CS::set_reg(SegmentSelector(KERNEL_CODE));
        SS::set_reg(SegmentSelector(KERNEL_CODE + 8));
        load_tss(SegmentSelector(TASK));
        let mut gs = GS_BASE;
        gs.write(base);
    }
}

/// Copies bytes in ascending order. For the compiler, this is an access by code other than Rust, so others may access
/// the same bytes meanwhile.
///
/// # Safety
/// `bytes` bytes can be read at `from` and written at `to`. There is no reference to an object at either, except one
/// at `to` that the caller alone uses.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises; the direction flag is clear in Rust code.
    unsafe {
        asm!("rep movsq", "mov ecx, {rest:e}", "rep movsb", rest = in(reg) bytes % 8,
             inout("rcx") bytes / 8 => _, inout("rsi") from => _, inout("rdi") to => _,
             options(nostack, preserves_flags));
    }
}

/// Returns the number of the CPU that executes this.
#[inline(always)]
pub fn index() -> usize {
    let index: u64;
    // SAFETY: from `init` on, GS points to this CPU's `CpuLocal`. Before, the first CPU has a 0 there.
    unsafe { asm!("mov {}, gs:[0]", out(reg) index, options(nostack, preserves_flags, readonly)) };
    index as usize
}

/// Returns this CPU's `CpuLocal`.
pub fn local() -> *mut CpuLocal {
    // SAFETY: reading a register.
    unsafe { GS_BASE.read() as *mut CpuLocal }
}

/// Masks interrupts, and returns whether they were on.
#[inline]
pub fn mask_interrupts() -> bool {
    let were_on = x86_64::instructions::interrupts::are_enabled();
    if were_on {
        x86_64::instructions::interrupts::disable();
    }
    were_on
}

/// Turns interrupts on if `were_on`.
#[inline]
pub fn restore_interrupts(were_on: bool) {
    if were_on {
        x86_64::instructions::interrupts::enable();
    }
}

/// One turn of a waiting loop.
pub use quell_arch::relax;

/// Halts until an interrupt was served. Called with interrupts masked, returns with them masked.
pub fn halt() {
    unsafe extern "C" {
        fn halt_masked();
    }
    // SAFETY: this enables interrupts, halts, and disables them again. It clobbers the registers that C calls may.
    unsafe { halt_masked() };
}

/// Returns where a CPU continues after a non-maskable interrupt between enabling interrupts and halting. Otherwise the
/// interrupt that should wake the CPU could arrive before the halt.
pub fn after_halt(rip: u64) -> Option<u64> {
    unsafe extern "C" {
        static halt_here: u8;
        static halt_over: u8;
    }
    (rip == &raw const halt_here as u64).then_some(&raw const halt_over as u64)
}

/// Measured by [`calibrate`], and a guess until then.
static TICKS_PER_MS: AtomicU64 = AtomicU64::new(1_000_000);

/// Returns the time-stamp counter.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: reading a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the number of [`ticks`] in a millisecond.
pub fn ticks_per_ms() -> u64 {
    TICKS_PER_MS.load(Ordering::Relaxed)
}

/// Measures the time-stamp counter against the power-management timer.
pub fn calibrate(timer_port: u16) {
    const HZ: u64 = 3_579_545;
    const MILLISECONDS: u64 = 2;
    if timer_port == 0 {
        return;
    }
    let mut port = x86_64::instructions::port::PortReadOnly::<u32>::new(timer_port);
    // SAFETY: this is the port of the timer, and reading doesn't change it.
    let mut timer = || u64::from(unsafe { port.read() } & 0xff_ffff);
    let (start, begin) = (timer(), ticks());
    while (timer().wrapping_sub(start) & 0xff_ffff) < HZ * MILLISECONDS / 1000 {
        relax();
    }
    TICKS_PER_MS.store(((ticks() - begin) / MILLISECONDS).max(1), Ordering::Relaxed);
}

/// Returns the features of the processor.
pub fn processor() -> Features {
    static PROCESSOR: spin::Once<Features> = spin::Once::new();
    *PROCESSOR.call_once(Features::detect)
}

/// Writes the first frame on an empty stack, so that [`switch`] to it calls `entry`.
///
/// # Safety
/// `top` is the end of a stack that nothing uses, aligned to 16 bytes.
pub unsafe fn first_frame(top: u64, entry: extern "C" fn() -> !) -> u64 {
    // The frame has six registers and the return address. `entry` starts as if called, 8 bytes off the alignment.
    let frame = (top - 8 - 7 * 8) as *mut [u64; 7];
    // SAFETY: the caller's stack ends at `top` and is unused.
    unsafe { frame.write([0, 0, 0, 0, 0, 0, entry as usize as u64]) };
    frame as u64
}

/// Tells the machine of `quell hunt` that no CPU may use older translations of the frames from this address on. Does
/// nothing on other machines.
#[inline]
pub fn tell_reusable(first: u64, frames: u64) {
    // SAFETY: does nothing. The displacement spells "quel".
    unsafe {
        asm!("nop dword ptr [rax + 0x6c657571]", in("rdi") first, in("rsi") frames,
            options(nomem, nostack, preserves_flags));
    }
}

/// Saves the callee-saved registers and stack pointer at `save`, and continues on the stack `to`.
///
/// # Safety
/// `to` was saved by this function or made by [`first_frame`], and interrupts are masked.
#[unsafe(naked)]
pub unsafe extern "C" fn switch(save: *mut u64, to: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

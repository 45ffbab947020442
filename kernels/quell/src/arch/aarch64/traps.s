// The exception vectors.
//
// From kernel mode, we save the registers on the current stack. In user mode, the stack pointer is the
// start of a user Context (traps.rs). So we save the registers directly there, and the kernel
// continues after its call to enter user mode.
//
// Group 0 interrupts arrive as FIQs, which aren't masked with interrupts (PSTATE.I), so they are this
// kernel's non-maskable interrupts. Every exception masks them, too (PSTATE.F). We unmask them once the
// registers are saved, unless the exception interrupted the handler of one.

.set FRAME_BYTES, 36*8
.set EXCEPTION, 0
.set INTERRUPT, 1
.set UNEXPECTED, 2
.set NMI, 3

.macro save_registers       // all but x0 and x1, already saved; keeps x1, changes x0
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    mrs x0, sp_el0
    stp x30, x0, [sp, #240]
    mrs x0, elr_el1
    mrs x2, spsr_el1
    stp x0, x2, [sp, #256]
    mrs x0, esr_el1
    mrs x2, far_el1
    stp x0, x2, [sp, #272]
.endm

.macro restore_registers
    ldp x1, x2, [sp, #256]
    msr elr_el1, x1
    msr spsr_el1, x2
    ldp x30, x1, [sp, #240]
    msr sp_el0, x1
    ldp x28, x29, [sp, #224]
    ldp x26, x27, [sp, #208]
    ldp x24, x25, [sp, #192]
    ldp x22, x23, [sp, #176]
    ldp x20, x21, [sp, #160]
    ldp x18, x19, [sp, #144]
    ldp x16, x17, [sp, #128]
    ldp x14, x15, [sp, #112]
    ldp x12, x13, [sp, #96]
    ldp x10, x11, [sp, #80]
    ldp x8, x9, [sp, #64]
    ldp x6, x7, [sp, #48]
    ldp x4, x5, [sp, #32]
    ldp x2, x3, [sp, #16]
    ldp x0, x1, [sp, #0]
.endm

.macro from_kernel kind
    .align 7
    sub sp, sp, #FRAME_BYTES
    stp x0, x1, [sp, #0]
    mov x1, #\kind
    b trap_from_kernel
.endm

.macro from_user kind
    .align 7
    stp x0, x1, [sp, #0]
    mov x1, #\kind
    b trap_from_user
.endm

.section .text
.align 11
.global trap_vectors
trap_vectors:
    from_kernel UNEXPECTED      // with the user stack pointer: never used
    from_kernel UNEXPECTED
    from_kernel UNEXPECTED
    from_kernel UNEXPECTED
    from_kernel EXCEPTION       // kernel mode
    from_kernel INTERRUPT
    from_kernel NMI
    from_kernel UNEXPECTED
    from_user EXCEPTION         // user mode
    from_user INTERRUPT
    from_user NMI
    from_user UNEXPECTED
    from_kernel UNEXPECTED      // 32-bit user mode: never used
    from_kernel UNEXPECTED
    from_kernel UNEXPECTED
    from_kernel UNEXPECTED

// x0 and x1 are saved, and x1 contains the kind.
trap_from_kernel:
    save_registers
    cmp x1, #NMI
    b.eq 1f
    ldr x2, [sp, #264]
    tbnz x2, #6, 1f             // bit F of the interrupted status
    msr daifclr, #1
1:  mov x0, sp
    bl trap_kernel
    msr daifset, #3
    restore_registers
    add sp, sp, #FRAME_BYTES
    eret

trap_from_user:
    str x1, [sp, #FRAME_BYTES + 8]
    save_registers
    ldr x9, [sp, #FRAME_BYTES]
    mov sp, x9
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    add sp, sp, #96
    cmp x1, #NMI                // the handler unmasks them itself
    b.eq 1f
    msr daifclr, #1
1:  ret

// extern "C" fn user_enter(context: *mut Context)
.global user_enter
user_enter:
    sub sp, sp, #96
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    mov x9, sp
    str x9, [x0, #FRAME_BYTES]
    msr daifset, #3             // until user mode runs, because there is no stack
    mov sp, x0
    restore_registers
    eret

// extern "C" fn probe_load(address: u64, value: *mut u64) -> u64
// extern "C" fn probe_store(address: u64, value: u64) -> u64
// Return 0, or 1 if the access faulted and we couldn't handle the fault (see trap_kernel).
.global probe_load, probe_store, probe_failed, probe_start, probe_end
probe_start:
probe_load:
    ldr x2, [x0]
    str x2, [x1]
    mov x0, #0
    ret
probe_store:
    str x1, [x0]
    mov x0, #0
    ret
probe_end:
probe_failed:
    mov x0, #1
    ret

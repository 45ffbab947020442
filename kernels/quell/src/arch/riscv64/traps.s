// The trap vector.
//
// In kernel mode sscratch is 0, and we save the registers on the current stack. In user mode it contains the address of
// a user Context (traps.rs). So we save the registers directly there, and the kernel continues after its call to
// enter user mode.
//
// On each return we execute a store-conditional to the frame. It ends any reservation of the interrupted code, because
// the processor might not notice the handler's stores in between.

.option push
.option arch, +a                // the assembler doesn't know the target's extensions here

.set FRAME_BYTES, 36*8
.set PC, 31*8
.set STATUS, 32*8
.set CAUSE, 33*8
.set VALUE, 34*8
.set KERNEL_STACK, FRAME_BYTES
.set CPU, FRAME_BYTES + 8

.macro save_registers       // all but x2, with the frame's address in sp
    sd x1, 0*8(sp)
    sd x3, 2*8(sp)
    sd x4, 3*8(sp)
    sd x5, 4*8(sp)
    sd x6, 5*8(sp)
    sd x7, 6*8(sp)
    sd x8, 7*8(sp)
    sd x9, 8*8(sp)
    sd x10, 9*8(sp)
    sd x11, 10*8(sp)
    sd x12, 11*8(sp)
    sd x13, 12*8(sp)
    sd x14, 13*8(sp)
    sd x15, 14*8(sp)
    sd x16, 15*8(sp)
    sd x17, 16*8(sp)
    sd x18, 17*8(sp)
    sd x19, 18*8(sp)
    sd x20, 19*8(sp)
    sd x21, 20*8(sp)
    sd x22, 21*8(sp)
    sd x23, 22*8(sp)
    sd x24, 23*8(sp)
    sd x25, 24*8(sp)
    sd x26, 25*8(sp)
    sd x27, 26*8(sp)
    sd x28, 27*8(sp)
    sd x29, 28*8(sp)
    sd x30, 29*8(sp)
    sd x31, 30*8(sp)
    csrr t0, sepc
    csrr t1, sstatus
    csrr t2, scause
    csrr t3, stval
    sd t0, PC(sp)
    sd t1, STATUS(sp)
    sd t2, CAUSE(sp)
    sd t3, VALUE(sp)
.endm

.macro restore_registers    // all but x2, with the frame's address in sp
    ld t0, PC(sp)
    ld t1, STATUS(sp)
    addi t2, sp, PC
    sc.d zero, t0, (t2)
    csrw sepc, t0
    csrw sstatus, t1
    ld x1, 0*8(sp)
    ld x3, 2*8(sp)
    ld x4, 3*8(sp)
    ld x5, 4*8(sp)
    ld x6, 5*8(sp)
    ld x7, 6*8(sp)
    ld x8, 7*8(sp)
    ld x9, 8*8(sp)
    ld x10, 9*8(sp)
    ld x11, 10*8(sp)
    ld x12, 11*8(sp)
    ld x13, 12*8(sp)
    ld x14, 13*8(sp)
    ld x15, 14*8(sp)
    ld x16, 15*8(sp)
    ld x17, 16*8(sp)
    ld x18, 17*8(sp)
    ld x19, 18*8(sp)
    ld x20, 19*8(sp)
    ld x21, 20*8(sp)
    ld x22, 21*8(sp)
    ld x23, 22*8(sp)
    ld x24, 23*8(sp)
    ld x25, 24*8(sp)
    ld x26, 25*8(sp)
    ld x27, 26*8(sp)
    ld x28, 27*8(sp)
    ld x29, 28*8(sp)
    ld x30, 29*8(sp)
    ld x31, 30*8(sp)
.endm

.macro save_callee
    addi sp, sp, -112
    sd ra, 0(sp)
    sd s0, 8(sp)
    sd s1, 16(sp)
    sd s2, 24(sp)
    sd s3, 32(sp)
    sd s4, 40(sp)
    sd s5, 48(sp)
    sd s6, 56(sp)
    sd s7, 64(sp)
    sd s8, 72(sp)
    sd s9, 80(sp)
    sd s10, 88(sp)
    sd s11, 96(sp)
.endm

.macro restore_callee
    ld ra, 0(sp)
    ld s0, 8(sp)
    ld s1, 16(sp)
    ld s2, 24(sp)
    ld s3, 32(sp)
    ld s4, 40(sp)
    ld s5, 48(sp)
    ld s6, 56(sp)
    ld s7, 64(sp)
    ld s8, 72(sp)
    ld s9, 80(sp)
    ld s10, 88(sp)
    ld s11, 96(sp)
    addi sp, sp, 112
.endm

.section .text
.align 2
.global trap_vector
trap_vector:
    csrrw sp, sscratch, sp
    bnez sp, trap_from_user
    csrrw sp, sscratch, sp
    addi sp, sp, -FRAME_BYTES
    save_registers
    addi t0, sp, FRAME_BYTES
    sd t0, 1*8(sp)
    mv a0, sp
    call trap_kernel
    restore_registers
    addi sp, sp, FRAME_BYTES
    sret

trap_from_user:
    save_registers
    csrrw t0, sscratch, zero
    sd t0, 1*8(sp)
    ld tp, CPU(sp)
    ld sp, KERNEL_STACK(sp)
    restore_callee
    ret

// extern "C" fn user_enter(context: *mut Context)
// Call this with interrupts masked: after the write of sscratch, we'd mistake a trap for one from user mode.
.global user_enter
user_enter:
    save_callee
    sd sp, KERNEL_STACK(a0)
    sd tp, CPU(a0)
    csrw sscratch, a0
    mv sp, a0
    restore_registers
    ld x2, 1*8(sp)
    sret

// extern "C" fn probe_load(address: u64, value: *mut u64) -> u64
// extern "C" fn probe_store(address: u64, value: u64) -> u64
// Return 0, or 1 if the access faulted and we couldn't handle the fault (see trap_kernel).
.global probe_load, probe_store, probe_failed, probe_start, probe_end
probe_start:
probe_load:
    ld a2, 0(a0)
    sd a2, 0(a1)
    li a0, 0
    ret
probe_store:
    sd a1, 0(a0)
    li a0, 0
    ret
probe_end:
probe_failed:
    li a0, 1
    ret

.option pop

# Entries of exceptions and interrupts. AT&T syntax.
#
# Every vector has a stub of 16 bytes that makes the frames equal (it pushes a 0 if the processor pushes
# no error code) and pushes the vector. From kernel mode, we save the registers on the current stack.
# In user mode, the task state's stack pointer is the end of the frame in a user Context (traps.rs).
# So we save the registers directly there, and the kernel continues after its call to enter it.

.section .text
.align 16
.global trap_stubs
trap_stubs:
.set vector, 0
.rept 256
    .align 16
    .if (vector == 8) | ((vector >= 10) & (vector <= 14)) | (vector == 17) | (vector == 21) | (vector == 29) | (vector == 30)
    .else
    pushq $0
    .endif
    pushq $vector
    .if (vector == 2) | (vector == 8)
    jmp trap_from_kernel
    .else
    jmp trap
    .endif
    .set vector, vector + 1
.endr

.macro push_registers
    pushq %rax
    pushq %rbx
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %rbp
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
.endm

.macro pop_registers
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rbp
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rbx
    popq %rax
.endm

.set FRAME_BYTES, 22*8

trap:
    testb $3, 24(%rsp)          # code selector: vector, error, rip, cs
    jnz trap_from_user
# The code below also serves the vectors with their own stack, in kernel mode and in user mode.
trap_from_kernel:
    push_registers
    movq %rsp, %rdi
    call trap_kernel
    testb %al, %al
    jnz return_to_kernel
    pop_registers
    addq $16, %rsp
    iretq

# Returns to kernel mode without `iretq`, because that allows non-maskable interrupts. In a handler of
# one, the next would begin at the end of the same stack, and overwrite the frame that the first needs
# for its return. We push the address and the flags on the interrupted stack, where they overwrite only
# the stack pointer and segment of the frame. The error code's place contains the new stack pointer.
return_to_kernel:
    movq 20*8(%rsp), %rax       # rsp
    movq 17*8(%rsp), %rcx       # rip
    movq 19*8(%rsp), %rdx       # rflags
    subq $16, %rax
    movq %rcx, 8(%rax)
    movq %rdx, (%rax)
    movq %rax, 16*8(%rsp)       # error
    pop_registers
    movq 8(%rsp), %rsp
    popfq
    ret

trap_from_user:
    push_registers
    movq FRAME_BYTES(%rsp), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret

# extern "C" fn user_enter(context: *mut Context)
.global user_enter
user_enter:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, FRAME_BYTES(%rdi)
    movq %rdi, %rsp
    pop_registers
    addq $16, %rsp
    iretq

# extern "C" fn halt_masked()
# Halts until an interrupt arrives, and serves it. A non-maskable interrupt may arrive after `sti` (see
# after_halt).
.global halt_masked, halt_here, halt_over
halt_masked:
    sti
halt_here:
    hlt
halt_over:
    cli
    ret

# extern "C" fn probe_load(address: u64, value: *mut u64) -> u64
# extern "C" fn probe_store(address: u64, value: u64) -> u64
# Return 0, or 1 if the access faulted and we couldn't handle the fault (see trap_kernel).
.global probe_load, probe_store, probe_failed, probe_start, probe_end
probe_start:
probe_load:
    movq (%rdi), %rax
    movq %rax, (%rsi)
    xorl %eax, %eax
    ret
probe_store:
    movq %rsi, (%rdi)
    xorl %eax, %eax
    ret
probe_end:
probe_failed:
    movl $1, %eax
    ret

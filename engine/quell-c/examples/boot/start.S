/*
 * Brings each CPU from its reset to C, in 64-bit mode, with the first 4 GB mapped to themselves. QEMU enters the first
 * CPU at `start` (PVH). The second CPU begins in real mode at `other`, in a copy at TRAMPOLINE. The interrupt stubs are
 * below.
 */
#define TRAMPOLINE 0x8000
#define COPIED(label) (TRAMPOLINE + (label) - other)

    .section .note, "a", @note
    .long 4, 4, 18              /* XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long start

    .text
    .globl start
    .code32
start:
    cli
    movl $tables, %esi
    call long_mode
    lgdt descriptor
    ljmp $8, $first

long_mode:                      /* enters 64-bit mode with the tables at %esi */
    movl $0x20, %eax            /* PAE */
    movl %eax, %cr4
    movl %esi, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax            /* LME */
    wrmsr
    movl %cr0, %eax
    orl $0x80010001, %eax       /* PG, WP, PE */
    movl %eax, %cr0
    ret

    .code64
first:
    movq $stacks + 0x4000, %rsp
    xorl %edi, %edi
    call main
1:  hlt
    jmp 1b

second:
    movq $stacks + 0x8000, %rsp
    movl $1, %edi
    call main
1:  hlt
    jmp 1b

    .code16
    .globl other, other_end
other:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl COPIED(copied_descriptor)
    movl $1, %eax
    movl %eax, %cr0
    ljmpl $24, $COPIED(protected)
    .code32
protected:
    movl $tables, %esi
    movl $long_mode, %eax
    call *%eax
    ljmp $8, $second
copied_descriptor:
    .word gdt_end - gdt - 1
    .long gdt
other_end:

    .p2align 3
gdt:
    .quad 0, 0x00209a0000000000, 0x0000920000000000, 0x00cf9a000000ffff
gdt_end:
descriptor:
    .word gdt_end - gdt - 1
    .long gdt

    /* The shootdown interrupt: saves the registers that C may change. C uses no vector registers here. */
    .code64
    .globl on_shootdown, on_fault, load_probe, store_probe, faulted
on_shootdown:
    .irp reg, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11
    pushq %\reg
    .endr
    call shootdown
    .irp reg, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax
    popq %\reg
    .endr
    iretq

    /* A page fault: if a probe caused it, the probe returns false; any other fault ends the machine. */
on_fault:
    addq $8, %rsp
    cmpq $load_probe, (%rsp)
    je 1f
    cmpq $store_probe, (%rsp)
    je 1f
    movq (%rsp), %rdi
    call broken
1:  movq $faulted, (%rsp)
    iretq

    .globl quell_bench_try_read, quell_bench_try_write
quell_bench_try_read:
load_probe:
    movq (%rdi), %rax
    movq %rax, (%rsi)
    movl $1, %eax
    ret
quell_bench_try_write:
store_probe:
    movq %rsi, (%rdi)
    movl $1, %eax
    ret
faulted:
    xorl %eax, %eax
    ret

    .data
    .p2align 12
    .globl tables
tables:                         /* 4 GB in pages of 1 GB, for the kernel; a space has the rest for itself */
    .quad below + 3
    .fill 511, 8, 0
below:
    .quad 0x00000083, 0x40000083, 0x80000083, 0xc0000093
    .fill 508, 8, 0

    .bss
    .p2align 12
stacks:
    .skip 0x8000

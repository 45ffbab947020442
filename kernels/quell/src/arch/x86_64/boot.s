# The code from the machine's first instruction to Rust, on the first CPU and on the others.
# AT&T syntax. Symbols are linked in the direct map: "sym - BASE" is the physical address.

.set BASE, 0xffff800000000000

.section .note.Xen, "a", @note
.align 4
    .long 4, 4, 18              # name size, value size, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long boot_pvh - BASE

# For multiboot2, the loader searches the file's first 32 KB for this.
.section .multiboot, "a"
.align 8
multiboot:
    .long 0xe85250d6, 0, multiboot_end - multiboot, -(0xe85250d6 + (multiboot_end - multiboot))
    .short 3, 0                 # entry address
    .long 12, boot_multiboot - BASE, 0
    .short 0, 0                 # end
    .long 8
multiboot_end:

.section .text.boot, "ax"

# The state is the same for PVH and multiboot2: 32-bit protected mode, flat segments, paging off, and
# ebx = the address of the loader's information. With multiboot2, eax contains a magic number; with
# PVH, it's undefined.
.code32
.global boot_pvh
boot_pvh:
    xorl %eax, %eax
boot_multiboot:
    cld
    movl %ebx, %edi
    movl %eax, %esi
    # The root has entry 0 (the identity, until the CPU is in long mode) and entry 256 (the direct map).
    movl $(boot_directory - BASE + 3), %eax
    movl %eax, boot_pointers - BASE
    movl $(boot_pointers - BASE + 3), %eax
    movl %eax, boot_root - BASE
    movl %eax, boot_root - BASE + 256*8
    # One directory of 2 MB pages maps the first GB.
    movl $0x83, %eax
    xorl %ecx, %ecx
1:  movl %eax, (boot_directory - BASE)(,%ecx,8)
    addl $0x200000, %eax
    incl %ecx
    cmpl $512, %ecx
    jne 1b

# 32-bit. edi = the address of the loader's information and esi = the magic number, or edi = 0 on a CPU
# that isn't the first.
enter_long_mode:
    movl %cr4, %eax
    orl $0xa0, %eax             # PAE, PGE
    movl %eax, %cr4
    movl $(boot_root - BASE), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      # EFER: LME, NXE
    rdmsr
    orl $0x900, %eax
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax      # caches on
    orl $0x80010001, %eax       # PG, WP, PE
    movl %eax, %cr0
    lgdt boot_gdt_pointer - BASE
    ljmpl $8, $(1f - BASE)
.code64
1:  movabsq $2f, %rax
    jmp *%rax
2:  xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %eax, %fs
    movl %eax, %gs
    movl %edi, %edi
    testq %rdi, %rdi
    jz 3f
    leaq boot_stack_end(%rip), %rsp
    xorl %ebp, %ebp
    call boot_first
3:  movq boot_other_stack(%rip), %rsp
    xorl %ebp, %ebp
    call boot_other
    ud2

# We copy this to TRAMPOLINE, where a CPU begins in real mode after a start-up interrupt.
.set TRAMPOLINE, 0x8000
.code16
.global boot_trampoline, boot_trampoline_end
boot_trampoline:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl TRAMPOLINE + (trampoline_gdt_pointer - boot_trampoline)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x18, $(TRAMPOLINE + (trampoline_32 - boot_trampoline))
.code32
trampoline_32:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %edi, %edi
    movl $(enter_long_mode - BASE), %eax
    jmp *%eax
.align 8
trampoline_gdt_pointer:
    .word 31
    .long boot_gdt - BASE
boot_trampoline_end:

.align 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 08: 64-bit code
    .quad 0x00cf93000000ffff    # 10: data
    .quad 0x00cf9b000000ffff    # 18: 32-bit code
boot_gdt_pointer:
    .word 31
    .long boot_gdt - BASE
    .long 0

.section .data
.align 8
.global boot_other_stack
boot_other_stack: .quad 0

.section .bss
.align 4096
boot_root: .skip 4096
boot_pointers: .skip 4096
boot_directory: .skip 4096
boot_stack: .skip 65536
boot_stack_end:

# The rest of the module is 64-bit code again.
.section .text
.code64

// The code from the firmware to Rust, on the first CPU and on the others.
// Symbols are linked in the direct map. The code runs at physical addresses until paging is on, so it
// addresses symbols relative to the program counter, which works in both.

.set BASE, 0xffff800000000000
.set SV48, 9 << 60

// The bits of entries are valid, accessed, dirty, global, readable and writable. Memory is also executable.
.set TABLE, 0x01
.set DEVICES, 0xe7
.set MEMORY, 0xef

.section .text.boot, "ax"
// The firmware enters here in supervisor mode, without translation, with the CPU's number in a0 and the device
// tree's address in a1.
.global boot_image
boot_image:
    mv s0, a0
    mv s1, a1
    // There are two roots. Both map the upper half through a table of 1 GB pages. The boot root also maps
    // the lower half, where each CPU runs until it has left it.
    lla t0, boot_root
    lla t1, boot_kernel_root
    lla t2, boot_blocks
    srli t3, t2, 12
    slli t3, t3, 10
    ori t3, t3, TABLE
    sd t3, 0(t0)
    li t4, 256 * 8
    add t0, t0, t4
    add t1, t1, t4
    sd t3, 0(t0)
    sd t3, 0(t1)
    // The first GB contains devices, and memory begins in the third.
    li t3, DEVICES
    sd t3, 0(t2)
    li t3, (0x80000000 >> 12 << 10) | MEMORY
    sd t3, 16(t2)
    call enable_paging
    lla sp, boot_stack_end
    add sp, sp, t1
    lla t0, boot_first
    add t0, t0, t1
    mv a0, s0
    mv a1, s1
    mv s0, zero
    mv ra, zero
    jr t0

// Other CPUs enter here, with their number in a0 and the end of their stack in a1.
.global boot_other_entry
boot_other_entry:
    mv s0, a0
    mv s1, a1
    call enable_paging
    mv sp, s1
    lla t0, boot_other
    add t0, t0, t1
    mv a0, s0
    mv s0, zero
    mv ra, zero
    jr t0

// Turns translation on, and returns BASE in t1.
enable_paging:
    lla t0, boot_root
    srli t0, t0, 12
    li t1, SV48
    or t0, t0, t1
    sfence.vma
    csrw satp, t0
    sfence.vma
    // A processor without this mode ignores the write.
    csrr t2, satp
    bne t0, t2, no_sv48
    li t1, BASE
    ret

// Prints an error with the firmware's legacy calls, and switches the machine off.
no_sv48:
    lla s0, no_sv48_text
1:  lbu a0, 0(s0)
    beqz a0, 2f
    li a7, 1                    // console_putchar
    ecall
    addi s0, s0, 1
    j 1b
2:  li a7, 8                    // shutdown
    ecall
3:  wfi
    j 3b
no_sv48_text:
    .asciz "quell needs a processor with Sv48, and this one has none\r\n"

.section .bss
.align 12
boot_root: .skip 4096
// The next two must be adjacent.
.global boot_kernel_root
boot_kernel_root: .skip 4096
boot_blocks: .skip 4096
boot_stack: .skip 65536
boot_stack_end:

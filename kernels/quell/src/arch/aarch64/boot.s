// The code from the machine's first instruction to Rust, on the first CPU and on the others.
// Symbols are linked in the direct map. The code runs at physical addresses until paging is on, so it
// addresses symbols relative to the program counter, which works in both.

.set BASE, 0xffff000000000000

.section .text.boot, "ax"
// The header of a Linux boot image. The loader puts the image at the offset below from the start of
// memory, enters it at exception level 1 with the device tree's address in x0, and leaves translation off.
.global boot_image
boot_image:
    b boot_start
    .long 0
    .quad 0x200000              // offset from the start of memory
    .quad image_size
    .quad 0xa                   // little endian, 4 KB pages, anywhere in memory
    .quad 0, 0, 0
    .ascii "ARM\x64"
    .long 0

boot_start:
    mov x20, x0
    // We use one table for both halves. Its first entry refers to a table of 1 GB blocks.
    adrp x1, boot_root
    adrp x2, boot_blocks
    orr x3, x2, #3
    str x3, [x1]
    // The first GB contains devices: execute never, inner shareable, accessed, memory type 1.
    ldr x3, =0x60000000000705
    str x3, [x2]
    // Memory begins in the second GB.
    ldr x3, =0x40000000 + 0x40000000000701
    str x3, [x2, #8]
    dsb ish
    bl enable_paging
    adrp x1, boot_stack_end
    ldr x2, =BASE
    add x1, x1, x2
    mov sp, x1
    ldr x3, =boot_first
    mov x0, x20
    mov x29, xzr
    br x3

// Other CPUs enter here, with the end of their stack in x0.
.global boot_other_entry
boot_other_entry:
    mov x20, x0
    bl enable_paging
    mov sp, x20
    ldr x3, =boot_other
    mov x29, xzr
    br x3

enable_paging:
    adrp x1, boot_root
    msr ttbr0_el1, x1
    msr ttbr1_el1, x1
    mov x3, #0x04ff             // type 0 write-back memory, type 1 device nGnRE
    msr mair_el1, x3
    // 48-bit addresses in both halves, 4 KB pages, write-back inner-shareable walks. Physical
    // addresses have the processor's width.
    ldr x3, =0xb5103510
    mrs x4, id_aa64mmfr0_el1
    and x4, x4, #7
    bfi x3, x4, #32, #3
    msr tcr_el1, x3
    tlbi vmalle1
    dsb nsh
    isb
    ldr x3, =0x30d01805         // reserved ones, instruction and data caches, translation
    msr sctlr_el1, x3
    isb
    ret

.ltorg

.section .bss
.align 12
boot_root: .skip 4096
boot_blocks: .skip 4096
boot_stack: .skip 65536
boot_stack_end:

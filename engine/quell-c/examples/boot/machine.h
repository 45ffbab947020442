/*
 * The machine: instructions, the serial port, the APIC, and the functions that quell calls (quell_hw_*).
 */
#include "quell.h"

#define CPUS 2
#define SHOOTDOWN 0x40

static void out8(unsigned short port, unsigned char value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static quell_u64 read_cr3(void) { quell_u64 value; __asm__ volatile("mov %%cr3, %0" : "=r"(value)); return value; }
static void write_cr3(quell_u64 value) { __asm__ volatile("mov %0, %%cr3" ::"r"(value) : "memory"); }

static void print(const char *text, quell_size length)
{
    while (length--)
        out8(0x3f8, (unsigned char)*text++);
}
#define SAY(text) print(text, sizeof text - 1)

static void print_number(quell_u64 number)
{
    char digits[20];
    quell_size at = sizeof digits;
    do
        digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    print(digits + at, sizeof digits - at);
}

/* Ends QEMU with the exit status 2 * code + 1. */
static void end(unsigned char code)
{
    for (;;)
        out8(0xf4, code);
}
void broken(quell_u64 where) { SAY("unexpected fault at "), print_number(where), SAY("\n"), end(3); }
void quell_panic(const char *message, quell_size length) { print(message, length), SAY("\n"), end(2); }

static void check(enum quell_status status)
{
    if (status != QUELL_STATUS_OK) {
        const char *text = quell_status_text(status);
        quell_panic(text, __builtin_strlen(text));
    }
}

static volatile quell_u32 *const apic = (volatile quell_u32 *)0xfee00000;
static void send(quell_u32 cpu, quell_u32 command)
{
    apic[0x310 / 4] = cpu << 24;
    apic[0x300 / 4] = command;
    while (apic[0x300 / 4] & 1 << 12)
        ;
}

/* ---- Functions that quell calls ---- */

quell_u32 quell_hw_this_cpu(void) { return apic[0x20 / 4] >> 24; }
void quell_hw_fence(void) { __asm__ volatile("mfence" ::: "memory"); }
void quell_hw_relax(void) { __asm__ volatile("pause"); }

void quell_hw_invalidate(const struct quell_invalidation *what)
{
    /* We have no global entries, so a load of CR3 drops everything. */
    if (what->kind != QUELL_INVALIDATION_KIND_RANGE && what->kind != QUELL_INVALIDATION_KIND_KERNEL)
        return write_cr3(read_cr3());
#if defined(WITHOUT_INVALIDATE)
    return;
#endif
    quell_u64 stride = (quell_u64)1 << 9 * what->range.stride;
    for (quell_u64 page = what->range.start; page < what->range.start + what->range.pages; page += stride)
        __asm__ volatile("invlpg (%0)" ::"r"(page << 12) : "memory");
}

extern quell_u64 tables[1024];
void quell_hw_load_root(quell_u64 root, quell_u16 tag, quell_bool keep) { (void)tag, (void)keep, write_cr3(root << 12); }
void quell_hw_unload_root(void) { write_cr3((quell_u64)tables); }

void quell_hw_interrupt(const struct quell_cpu_set *targets)
{
    for (quell_u32 cpu = 0; cpu < CPUS; cpu++)
        if (targets->bits[0] >> cpu & 1)
            send(cpu, 1 << 14 | SHOOTDOWN);
}
quell_bool quell_hw_mask_interrupts(void)
{
    quell_u64 flags;
    __asm__ volatile("pushfq; popq %0; cli" : "=r"(flags)::"memory");
    return flags >> 9 & 1;
}
void quell_hw_restore_interrupts(quell_bool were_on)
{
    if (were_on)
        __asm__ volatile("sti" ::: "memory");
}
quell_bool quell_hw_may_wait(void) { return 1; }

/* The interrupt table. Each entry is for 64-bit code in ring 0. */
static struct { quell_u16 low, selector, kind, middle; quell_u32 high, none; } gates[256];
static void gate(unsigned vector, void (*handler)(void))
{
    quell_u64 at = (quell_u64)handler;
    gates[vector].low = (quell_u16)at, gates[vector].middle = (quell_u16)(at >> 16), gates[vector].high = at >> 32;
    gates[vector].selector = 8, gates[vector].kind = 0x8e00;
}

/* Prepares a CPU for interrupts of the APIC alone. There is no timer. */
static void interrupts_of_this_cpu(void)
{
    extern void on_shootdown(void), on_fault(void);
    struct __attribute__((packed)) { quell_u16 limit; void *base; } table = {sizeof gates - 1, gates};
    gate(14, on_fault), gate(SHOOTDOWN, on_shootdown);
    __asm__ volatile("lidt %0" ::"m"(table));
    out8(0x21, 0xff), out8(0xa1, 0xff);
    apic[0xf0 / 4] = 0x1ff;
}

/* Starts CPU 1, which begins at `other` in start.S. */
static void start_cpu_1(void)
{
    extern char other[], other_end[];
    __builtin_memcpy((void *)0x8000, other, (quell_size)(other_end - other));
    send(1, 0x4500);
    for (int turns = 0; turns < 1000000; turns++)
        quell_hw_relax();
    send(1, 0x4608);
}

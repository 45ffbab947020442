/*
 * A kernel that boots on two CPUs, and unmaps a page that the other CPU is reading.
 *
 * CPU 1 reads a page as fast as it can. CPU 0 unmaps the page and writes another value to the frame, which a CPU with
 * the old translation would read. We do this with quell first, and then without, to show that a CPU would read it. If
 * CONFORMANCE is defined, the conformance suite then runs on both CPUs. With UNIKERNEL, programs and kernel share one
 * root.
 *
 *     scripts/build-c --debug --features batch,extents,tags,lazy,remote,kernel,start,text,conformance --prefix DIR
 *     gcc -O2 -ffreestanding -fno-pic -no-pie -mgeneral-regs-only -mno-red-zone -nostdlib -static -DCONFORMANCE \
 *         $(pkg-config --cflags quell) -T boot.ld start.S boot.c $(pkg-config --libs quell) -o kernel
 *     qemu-system-x86_64 -cpu max -smp 2 -display none -serial stdio -device isa-debug-exit,iobase=0xf4 -kernel kernel
 */
#include "quell.h"

#define CPUS 2
#define SHOOTDOWN 0x40
#define PAGE ((quell_u64)0x8000000000 / 4096)
#define ROUNDS 200

/* ---- Instructions and devices ---- */

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

/* ---- The machine below quell ---- */

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

/* ---- The kernel ---- */

static struct quell_engine engine;
static struct quell_cpu cpus[CPUS];
static struct quell_space space;

void shootdown(void)
{
    quell_on_interrupt(&engine, &cpus[quell_hw_this_cpu()]);
    apic[0xb0 / 4] = 0;
}

/* A lock that is taken with interrupts off. Its holder may wait in quell, so a CPU that spins for it must serve
   requests. */
static quell_u32 lock;
static quell_bool take(void)
{
    quell_bool were_on = quell_hw_mask_interrupts();
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
        quell_poll(&engine);
        quell_hw_relax();
    }
    return were_on;
}
static void drop(quell_bool were_on)
{
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    quell_hw_restore_interrupts(were_on);
}
quell_bool quell_hw_may_wait(void) { return 1; }

/* A frame is a page's number. We allocate from 16 MB on and never free. */
static quell_u64 next_frame = 4096;
quell_u64 quell_bench_take_frames(quell_u64 frames)
{
    quell_u64 first = __atomic_fetch_add(&next_frame, frames, __ATOMIC_RELAXED);
    __builtin_memset((void *)(first << 12), 0, frames << 12);
    return first;
}
/* Each root maps the kernel in its first 4 GB. The rest of that table belongs to the space. */
quell_u64 quell_bench_new_root(void)
{
    quell_u64 root = quell_bench_take_frames(2), below = (root + 1) << 12;
    __builtin_memcpy((void *)below, tables + 512, 32);
    *(quell_u64 *)(root << 12) = below | 3;
    return root;
}

/* Returns the entry that maps a page at this level, and makes missing tables above it. */
static quell_u64 *entry_of(quell_u64 root, quell_u64 page, int level)
{
    quell_u64 *table = (quell_u64 *)(root << 12);
    for (int above = 3; above > level; above--) {
        quell_u64 *word = &table[page >> 9 * above & 511];
        quell_u64 none = 0;
        if (!__atomic_load_n(word, __ATOMIC_ACQUIRE)) {
            quell_u64 made = quell_bench_take_frames(1) << 12 | 7;
            /* If the other CPU was faster, we lose this table. */
            __atomic_compare_exchange_n(word, &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        }
        table = (quell_u64 *)(*word & ~(quell_u64)4095);
    }
    return &table[page >> 9 * level & 511];
}

void quell_bench_set(quell_u64 root, quell_u64 page, quell_u64 frame, enum quell_rights rights)
{
    quell_u64 bits = rights == QUELL_RIGHTS_WRITE ? 3 : 1;
    __atomic_store_n(entry_of(root, page, 0), rights == QUELL_RIGHTS_NONE ? 0 : frame << 12 | bits, __ATOMIC_RELEASE);
}
quell_u64 quell_bench_unlink_table(quell_u64 root, quell_u64 page)
{
    return __atomic_exchange_n(entry_of(root, page, 1), 0, __ATOMIC_ACQ_REL) >> 12;
}
quell_u32 quell_bench_cpus(void) { return CPUS; }
quell_u64 quell_bench_word(quell_u64 frame, quell_u32 index) { return ((volatile quell_u64 *)(frame << 12))[index]; }
void quell_bench_set_word(quell_u64 frame, quell_u32 index, quell_u64 value)
{
    ((volatile quell_u64 *)(frame << 12))[index] = value;
}

/* ---- The demonstration ---- */

enum { MAPPED = 7, TAKEN = 8 };
static quell_u64 step, reads, stale;

static void read_on(void)
{
    while (!__atomic_load_n(&step, __ATOMIC_ACQUIRE)) {
        quell_u64 value;
        if (quell_bench_try_read(PAGE << 12, &value)) {
            __atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED);
            if (value == TAKEN)
                __atomic_fetch_add(&stale, 1, __ATOMIC_RELAXED);
            /* CPU 0 holds the lock while it waits for this CPU, so we exercise quell_poll here. */
            if (reads % 16 == 0)
                drop(take());
        }
    }
}

static void pass(quell_u64 turns)
{
    while (turns--)
        quell_hw_relax();
}

/* Maps the page, unmaps it, and gives the frame new content. Returns the number of reads of the new content by the
   other CPU. */
static quell_u64 rounds(quell_bool flushes)
{
    quell_u64 before = stale, frame = quell_bench_take_frames(1);
    void *frames[1];
    for (int round = 0; round < ROUNDS; round++) {
        struct quell_batch batch;
        quell_u64 seen = __atomic_load_n(&reads, __ATOMIC_RELAXED);
        quell_bench_set_word(frame, 0, MAPPED);
        quell_bench_set(quell_space_root(&space), PAGE, frame, QUELL_RIGHTS_READ);
        while (__atomic_load_n(&reads, __ATOMIC_RELAXED) == seen)
            quell_hw_relax();
        quell_bool were_on = take();
        quell_bench_set(quell_space_root(&space), PAGE, 0, QUELL_RIGHTS_NONE);
        if (flushes) {
            check(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, frames, 1));
            check(quell_batch_unmapped(&batch, &space, quell_range_of(PAGE << 12, 4096, QUELL_STRIDE_BASE), (void *)frame));
            check(quell_batch_finish(&batch, 0));
        }
        drop(were_on);
        quell_bench_set_word(frame, 0, TAKEN);
        pass(2000);
        quell_bench_set_word(frame, 0, MAPPED);
        if (!flushes)
            check(quell_flush(&engine, &cpus[quell_hw_this_cpu()], &space, 0, QUELL_SCOPE_LEAF));
    }
    return stale - before;
}

#if defined(CONFORMANCE)
static unsigned failed;
void quell_bench_report(const struct quell_check *result)
{
    failed += result->failures != 0;
    result->failures ? SAY("FAILED ") : SAY("kept ");
    print(result->name, result->name_length), SAY(" "), print(result->saw, result->saw_length), SAY("\n");
}
static _Alignas(QUELL_LINE_ALIGN) char suite[QUELL_CONFORMANCE_SIZE + 32 * CPUS];
#endif

/* The interrupt table. Each entry is for 64-bit code in ring 0. */
static struct { quell_u16 low, selector, kind, middle; quell_u32 high, none; } gates[256];
static void gate(unsigned vector, void (*handler)(void))
{
    quell_u64 at = (quell_u64)handler;
    gates[vector].low = (quell_u16)at, gates[vector].middle = (quell_u16)(at >> 16), gates[vector].high = at >> 32;
    gates[vector].selector = 8, gates[vector].kind = 0x8e00;
}

static void cpu_begins(void)
{
    struct __attribute__((packed)) { quell_u16 limit; void *base; } table = {sizeof gates - 1, gates};
    __asm__ volatile("lidt %0" ::"m"(table));
    /* We mask the old interrupt controller, so that only the APIC interrupts, and use no timer. */
    out8(0x21, 0xff), out8(0xa1, 0xff);
    apic[0xf0 / 4] = 0x1ff;
    check(quell_cpu_online(&engine));
    check(quell_switch_to(&engine, &cpus[quell_hw_this_cpu()], 0, &space));
    __asm__ volatile("sti");
}

void main(quell_u32 cpu)
{
    extern char other[], other_end[];
    extern void on_shootdown(void), on_fault(void);
    static quell_u64 arrived;
    if (cpu == 0) {
        static char why[160];
        struct quell_setup setup = {
            .interface = QUELL_INTERFACE,
            .features = {.tagging = QUELL_TAGGING_NONE, .full_above = 33},
            .cpus = cpus,
            .cpu_count = CPUS,
            .message = why,
            .message_size = sizeof why,
        };
        enum quell_status made = quell_engine_new(&engine, &setup);
        if (why[0])
            quell_panic(why, __builtin_strlen(why));
        check(made);
#if defined(UNIKERNEL)
        check(quell_space_new(&engine, &space, (quell_u64)tables >> 12));
#else
        check(quell_space_new(&engine, &space, quell_bench_new_root()));
#endif
        gate(14, on_fault), gate(SHOOTDOWN, on_shootdown);
        cpu_begins();
        __builtin_memcpy((void *)0x8000, other, (quell_size)(other_end - other));
        send(1, 0x4500);
        pass(1000000);
        send(1, 0x4608);
        while (!__atomic_load_n(&arrived, __ATOMIC_ACQUIRE))
            quell_hw_relax();
        SAY("stale with quell: "), print_number(rounds(1));
        SAY("\nstale without a flush: "), print_number(rounds(0)), SAY("\n");
        __atomic_store_n(&step, 1, __ATOMIC_RELEASE);
    } else {
        cpu_begins();
        __atomic_store_n(&arrived, 1, __ATOMIC_RELEASE);
        read_on();
    }
#if defined(CONFORMANCE)
    static quell_u64 made;
    if (cpu == 0) {
        check(quell_conformance_new(&engine, suite, sizeof suite));
        __atomic_store_n(&made, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&made, __ATOMIC_ACQUIRE))
        quell_hw_relax();
    check(quell_conformance_run(&space));
    if (cpu == 0)
        end(failed != 0);
#endif
    if (cpu == 0)
        end(0);
}

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
#include "machine.h"
#include "tables.h"

#define PAGE ((quell_u64)0x8000000000 / 4096)
#define ROUNDS 200

static struct quell_engine engine;
static struct quell_cpu cpus[CPUS];
static struct quell_space space;

/* The handler of the shootdown interrupt. start.S calls it. */
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

/* Unmaps the page, and waits until no CPU uses it. */
static void unmap(quell_u64 frame, quell_bool flushes)
{
    void *frames[1];
    struct quell_batch batch;
    quell_bool were_on = take();
    quell_bench_set(quell_space_root(&space), PAGE, 0, QUELL_RIGHTS_NONE);
    if (flushes) {
        check(quell_batch_begin(&engine, &batch, QUELL_PURPOSE_CALL, frames, 1));
        check(quell_batch_unmapped(&batch, &space, quell_range_of(PAGE << 12, 4096, QUELL_STRIDE_BASE), (void *)frame));
        check(quell_batch_finish(&batch, 0));
    }
    drop(were_on);
}

static void make_engine(void)
{
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
}

static void cpu_begins(void)
{
    interrupts_of_this_cpu();
    check(quell_cpu_online(&engine));
    check(quell_switch_to(&engine, &cpus[quell_hw_this_cpu()], 0, &space));
    __asm__ volatile("sti");
}

/* ---- The demonstration ---- */

enum { MAPPED = 7, TAKEN = 8 };
static quell_u64 arrived, step, reads, stale;

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

/* Maps the page, unmaps it, and gives the frame new content. Returns the number of reads of the new content by the
   other CPU. */
static quell_u64 rounds(quell_bool flushes)
{
    quell_u64 before = stale, frame = quell_bench_take_frames(1);
    for (int round = 0; round < ROUNDS; round++) {
        quell_u64 seen = __atomic_load_n(&reads, __ATOMIC_RELAXED);
        quell_bench_set_word(frame, 0, MAPPED);
        quell_bench_set(quell_space_root(&space), PAGE, frame, QUELL_RIGHTS_READ);
        while (__atomic_load_n(&reads, __ATOMIC_RELAXED) == seen)
            quell_hw_relax();
        unmap(frame, flushes);
        quell_bench_set_word(frame, 0, TAKEN);
        for (int turns = 0; turns < 2000; turns++)
            quell_hw_relax();
        quell_bench_set_word(frame, 0, MAPPED);
        if (!flushes)
            check(quell_flush(&engine, &cpus[quell_hw_this_cpu()], &space, 0, QUELL_SCOPE_LEAF));
    }
    return stale - before;
}

void main(quell_u32 cpu)
{
    if (cpu == 0) {
        make_engine();
        cpu_begins();
        start_cpu_1();
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
    conformance(cpu, &engine, &space);
#endif
    if (cpu == 0)
        end(0);
}

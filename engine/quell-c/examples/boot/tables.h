/*
 * Frames and page tables, with the names that the conformance suite calls, and the suite itself.
 */
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

#if defined(CONFORMANCE)
static unsigned failed;
void quell_bench_report(const struct quell_check *result)
{
    failed += result->failures != 0;
    result->failures ? SAY("FAILED ") : SAY("kept ");
    print(result->name, result->name_length), SAY(" "), print(result->saw, result->saw_length), SAY("\n");
}
static _Alignas(QUELL_LINE_ALIGN) char suite[QUELL_CONFORMANCE_SIZE + 32 * CPUS];

/* Runs the suite on both CPUs, which run `loaded`. CPU 0 ends QEMU. */
static void conformance(quell_u32 cpu, struct quell_engine *engine, struct quell_space *loaded)
{
    static quell_u64 made;
    if (cpu == 0) {
        check(quell_conformance_new(engine, suite, sizeof suite));
        __atomic_store_n(&made, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&made, __ATOMIC_ACQUIRE))
        quell_hw_relax();
    check(quell_conformance_run(loaded));
    if (cpu == 0)
        end(failed != 0);
}
#endif

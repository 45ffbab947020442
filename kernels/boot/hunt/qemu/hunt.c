/*
 * quell's hunt: TLBs that do the worst that the manual allows, and a judge of each access through them. This is the part
 * of all architectures; hunt-x86.c.inc and hunt-arm.c.inc have entries, walks, registers and instructions.
 *
 * Each CPU has a hoard: every translation that it made, or could have made, until an instruction drops it. Translations
 * that are not global have a tag, the PCID or ASID that was loaded when they were made, and are used while it is loaded. A
 * miss of TCG's own TLB asks the hoard before the tables, so a translation that the kernel forgot to flush is still used.
 * The hoard also has a paging-structure cache: the entries through which walks reached a table. Page-table pages are
 * watched: before a store changes a present entry, each CPU whose tables reach that entry takes the old translation into
 * its hoard, as a speculative fill may at any time.
 *
 * The judge knows nothing of the kernel. A change of an entry belongs to the kernel stack on which it was made. When a
 * CPU returns to user mode and the frame of that return lies on that stack, the call that made the change has ended.
 * From then on, no access may complete that the old translation allows and the tables forbid: clause C3 of the contract.
 * Nor may a CPU that runs in user mode still hold that translation, because its next instruction could use it.
 * No CPU, in any mode, may hold an entry that led to a table and leads there no more, because it walks speculatively: C6.
 * Nor may a CPU use a translation of another address space whose tag it has loaded: C5, which needs no call to end.
 * If the judge knows where the kernel frees page frames or hands them out, no CPU may then use a translation of such a
 * frame, whether a call has ended or not: C1, or C6 for a table.
 * A change by a thread that never enters user mode (kswapd) has ended after THREAD_MOST instructions. With `entries`, a
 * change belongs to the entry from user mode that its CPU is in, instead of a stack: for kernels that keep the user's
 * registers elsewhere. The call has ended when a CPU returns to where this entry left user mode. A kernel with
 * lazy unmap leaves translations of clean pages behind on purpose (C4): then reads through read-only ones are not judged.
 *
 * One host thread runs all CPUs in turn (QEMU's -icount), so nothing here needs a lock.
 */
#include "qemu/osdep.h"
#include "cpu.h"
#include "exec/exec-all.h"
#include "exec/address-spaces.h"
#include "exec/memory.h"
#include "exec/ram_addr.h"
#include "sysemu/cpus.h"
#include "sysemu/cpu-timers.h"
#include "exec/helper-proto.h"
#include "tcg/tcg.h"
#include "hunt.h"
#include "qemu/main-loop.h"
#include "qemu/seqlock.h"
#include "qemu/timer.h"
#include "../../softmmu/timers-state.h"

#define LEVELS 5
/* Leaves have these levels. */
#define LEAF_LEVELS 3
#define STACK_WORDS 96
/* How far above the stored-from stack pointer the frame of a return to user mode is looked for. */
#define STACK_REACH (32 * 1024)
/* Within so many instructions, a thread of the kernel flushes the translations that it takes away. */
#define THREAD_MOST 100000000
/* Functions to leave out, functions that hand out frames, and their calls on a CPU that have not returned. */
#define SKIPS_MOST 8
#define SOURCES_MOST 8
#define CALLS_MOST 16
/* Changes of stacks that have not returned yet; older ones are forgotten. */
#define PENDING_MOST 8192
/* A CPU may be held when a turn begins after so many instructions. Turns of a CPU that waits for others are short. */
#define HOLD_AFTER 8192
/* The exit code after a finding. */
#define FOUND 57

/* The kernel frees or hands out a frame that a CPU still has a translation of. */
typedef struct Reuse {
    int refs, cpu;
    uint64_t pc, at;
    uint64_t stack[STACK_WORDS];
    int words;
} Reuse;

/* An entry from user mode: where that goes on, its stack pointer, and its address space. */
typedef struct Entry {
    uint64_t pc, rsp, root;
    /* The kernel has not returned from it yet. */
    bool open;
} Entry;

/* A change of a table entry that takes rights away, from the first store to the judge's last use. */
typedef struct Change {
    int refs;
    ram_addr_t slot;
    int level;
    vaddr va;
    uint64_t old;
    int cpu;
    uint64_t pc, rsp, at, returned;
    /* The address space of the call. */
    uint64_t root;
    /* No user mode was entered from this stack: nothing returns there. */
    bool by_thread;
    /* With `entries`, unless by a thread. */
    Entry entry;
    /* On AArch64, the stack pointer with which user mode was left. */
    uint64_t base;
    uint64_t stack[STACK_WORDS];
    int words;
} Change;

/*
 * A function that returns at once, if a return address in [caller, caller_end) is on the stack; or an instruction that
 * flushes nothing there.
 */
typedef struct Skip {
    uint64_t function, caller, caller_end;
    /* The function returns this. */
    uint64_t value;
} Skip;

/*
 * A function that hands out frames. A register has `base` plus `bytes` for each frame of memory; another one, at the
 * function's first instruction, how many there are, in `unit`. 0 is no frame.
 */
typedef struct Source {
    uint64_t function, base, bytes;
    unsigned frame, number;
    bool returns;
    enum { UNIT_FRAMES, UNIT_LOGARITHM, UNIT_BYTES, UNITS } unit;
} Source;

/* A call of such a function, which has not returned. */
typedef struct Call {
    const Source *source;
    uint64_t rsp, number;
} Call;

/* A kept translation, or the result of a walk. Levels count from 1, the leaf's table. */
typedef struct Kept {
    vaddr va;
    hwaddr pa;
    /* The level of the last entry. With `to_table`, this entry leads to a table. */
    int leaf;
    bool to_table;
    /* The address space in which it was made. */
    uint64_t root;
    unsigned tag;
    bool user, write, nx, dirty, global, accessed, speculative;
    /* On AArch64, the kernel's rights, and whether branches must land on marked instructions. */
    bool kernel_nx, guarded;
    /* On x86-64, the protection key. */
    uint8_t key;
    ram_addr_t slot[LEVELS + 1];
    uint64_t value[LEVELS + 1];
    uint64_t made;
    Change *change;
    Reuse *reuse;
    /* Its entry leads elsewhere already: it was not broken before it was made. */
    bool unbroken;
} Kept;

typedef struct Table {
    int level;
    vaddr va;
    unsigned unused;
} Table;

/* What a CPU keeps under one tag: by page and level, see `key_of`. */
typedef struct Tag {
    GHashTable *pages, *to_tables;
    unsigned number;
    /* This tag was loaded without a flush, and no user mode was entered since. */
    bool reloaded;
} Tag;

typedef struct Hoard {
    /* By number; and all. */
    GHashTable *tag;
    GPtrArray *tags;
    GHashTable *global;
    /* The next load of CR3 keeps the translations of the tag that it loads. */
    bool keeps;
    /* A translation was marked since user mode was entered: the CPU must drop it before. */
    bool marked;
    /* The last entry from user mode. */
    Entry entry;
    Call calls[CALLS_MOST];
    unsigned next_call;
} Hoard;

static struct {
    int on; /* 0 before the first look at the environment, then -1 or 1 */
    unsigned aggressive, most, lazy_unmap, hold_least, hold, nmi, entries, boot;
    /* User mode has run. */
    bool booted;
    /* The turns that each CPU still misses, and the instructions that it ran since it was last held or could have been. */
    unsigned held[256];
    uint64_t ran[256];
    /* The CPU whose turn it is, and when that began. */
    int turn_of;
    uint64_t turn_at;
    uint64_t random;
    Hoard *hoard;
    GHashTable *tables;
    /* An entry above the leaves' tables was set since the last look at which tables are reachable. */
    bool grown;
    GPtrArray *pending;
    GHashTable *newest; /* slot -> the newest pending change of it */
    unsigned found, skips, sources;
    Skip skip[SKIPS_MOST];
    Source source[SOURCES_MOST];
    GHashTable *returns; /* where calls of sources return to */
    GHashTable *frames; /* frame and level, see `key_of` -> how many kept translations lead there */
    uint64_t skipped, handed, reused;
    uint64_t walks, hits, guesses, stale, spurious, changes, returned, reloads, holds, nmis, dma;
} hunt;

static uint64_t draw(void)
{
    hunt.random ^= hunt.random << 13;
    hunt.random ^= hunt.random >> 7;
    hunt.random ^= hunt.random << 17;
    return hunt.random;
}

/* Returns true more often the more aggressive the hunt is: never at 0, always at 9. */
static bool dared(void)
{
    return draw() % 9 < hunt.aggressive;
}

static bool enabled(void);

/* Instructions of all CPUs. QEMU's own function may not be called in the middle of a block. */
static uint64_t now(void)
{
    CPUState *cs = current_cpu;
    int64_t executed = cs ? cs->icount_budget - (cpu_neg(cs)->icount_decr.u16.low + cs->icount_extra) : 0;

    return qatomic_read_i64(&timers_state.qemu_icount) + executed;
}

int64_t hunt_clock(void)
{
    return enabled() ? now() : g_get_real_time() * 1000;
}

static void change_unref(Change *change)
{
    if (change && --change->refs == 0) {
        g_free(change);
    }
}

static int shift_of(int level)
{
    return 12 + 9 * (level - 1);
}

static void *key_of(vaddr va, int level)
{
    return (void *)(uintptr_t)((va >> shift_of(level)) << 3 | level);
}

/* The part of an architecture, which uses these functions of the rest. */
static void *ram_at(hwaddr pa, ram_addr_t *ram);
static Tag *tag_in(Hoard *hoard, unsigned number);
static Tag *loaded(CPUState *cs);
static Kept *find(CPUState *cs, vaddr va);
static void drop(CPUState *cs, vaddr va);
static void drop_in(GHashTable *table, vaddr va, int levels);
static void drop_tag(Tag *tag);
static void drop_local(Hoard *hoard);
static bool leaves_out(CPUState *cs, unsigned instruction, uintptr_t ra);
static uint64_t peek(CPUArchState *env, vaddr va);
static bool any_word(CPUArchState *env, vaddr from, bool (*each)(CPUArchState *, vaddr, uint64_t, const void *),
                     const void *with);
static void may_hold(CPUState *cs, unsigned rarity);
static void watch_below(hwaddr at, int level, vaddr va, unsigned entries);
static void watch_reachable(CPUState *cs);
static Kept *keep(CPUState *cs, const Kept *made);
static uint64_t guest_pc(CPUState *cs, uintptr_t ra);
static vaddr address_of(const Table *table, ram_addr_t slot);
static int copy_stack(CPUArchState *env, uint64_t *to);
static void through(Hoard *hoard, ram_addr_t slot, int level, vaddr va, void (*each)(Kept *, void *), void *with);
static void report(CPUState *cs, const char *access, const char *mode, vaddr addr, uint64_t pc, const Kept *kept);

#ifdef TARGET_X86_64
#include "hunt-x86.c.inc"
#else
#include "hunt-arm.c.inc"
#endif

/* Returns the address of the instruction that runs. */
static uint64_t guest_pc(CPUState *cs, uintptr_t ra)
{
    uint64_t pc = pc_of(cs->env_ptr), data[TARGET_INSN_START_WORDS] = { pc };

    if (ra && cpu_unwind_state_data(cs, ra, data) && TARGET_TB_PCREL) {
        return (pc & TARGET_PAGE_MASK) | data[0];
    }
    return data[0];
}

/* Returns the frame, or the first of the frames, to which a translation leads, and sets the level of its size. */
static hwaddr frame_of(const Kept *kept, int *level)
{
    *level = kept->to_table ? 1 : kept->leaf;
    return kept->to_table ? address_in(kept->value[kept->leaf]) : kept->pa;
}

/*
 * Returns whether the reuse of its frame concerns a translation: one that user mode may use, or an entry that leads to a
 * table of user mode. The kernel's own mapping of memory leads to each frame at all times.
 */
static bool is_of_user(const Kept *kept)
{
    return kept->to_table ? kept->va >> 63 == 0 : kept->user;
}

/* Counts a translation among those of its frame, or no more. */
static void count_frame(const Kept *kept, int by)
{
    if (is_of_user(kept)) {
        int level;
        hwaddr frame = frame_of(kept, &level);
        void *key = key_of(frame, level);
        intptr_t count = (intptr_t)g_hash_table_lookup(hunt.frames, key) + by;

        if (count == 0) {
            g_hash_table_remove(hunt.frames, key);
        } else {
            g_hash_table_replace(hunt.frames, key, (void *)count);
        }
    }
}

static void reuse_unref(Reuse *reuse)
{
    if (--reuse->refs == 0) {
        g_free(reuse);
    }
}

static void kept_free(void *of)
{
    Kept *kept = of;

    change_unref(kept->change);
    if (kept->reuse) {
        reuse_unref(kept->reuse);
    } else {
        count_frame(kept, -1);
    }
    g_free(kept);
}

static void print_end(void)
{
    fprintf(stderr,
            "quell: {\"event\":\"hunted\",\"walks\":%" PRIu64 ",\"hits\":%" PRIu64 ",\"guesses\":%" PRIu64
            ",\"stale\":%" PRIu64 ",\"changes\":%" PRIu64 ",\"returned\":%" PRIu64 ",\"tables\":%u,\"found\":%u"
            ",\"spurious\":%" PRIu64 ",\"reloads\":%" PRIu64 ",\"skipped\":%" PRIu64 ",\"holds\":%" PRIu64 ",\"nmis\":%" PRIu64
            ",\"handed\":%" PRIu64 ",\"reused\":%" PRIu64 ",\"dma\":%" PRIu64 "}\n",
            hunt.walks, hunt.hits, hunt.guesses, hunt.stale, hunt.changes, hunt.returned,
            g_hash_table_size(hunt.tables), hunt.found, hunt.spurious, hunt.reloads, hunt.skipped, hunt.holds, hunt.nmis,
            hunt.handed, hunt.reused, hunt.dma);
}

/* Reads QUELL_SKIP: "function caller caller_end value", four hexadecimal numbers each, separated by commas. */
static void read_skips(void)
{
    const char *text = getenv("QUELL_SKIP");
    Skip *skip = hunt.skip;

    for (; text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL, skip++) {
        if (hunt.skips++ == SKIPS_MOST
            || sscanf(text, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64, &skip->function, &skip->caller,
                      &skip->caller_end, &skip->value) != 4) {
            fprintf(stderr, "quell-hunt: QUELL_SKIP: expected four numbers each, of at most %d functions\n", SKIPS_MOST);
            exit(2);
        }
    }
}

/*
 * Reads QUELL_FRAMES: "function base bytes frame number returns unit", three hexadecimal numbers, two registers, 0 or 1,
 * and 0 to 2 for each function, separated by commas.
 */
static void read_sources(void)
{
    const char *text = getenv("QUELL_FRAMES");
    Source *source = hunt.source;

    for (; text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL, source++) {
        unsigned returns, unit;

        if (hunt.sources++ == SOURCES_MOST
            || sscanf(text, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %u %u %u %u", &source->function, &source->base,
                      &source->bytes, &source->frame, &source->number, &returns, &unit) != 7
            || unit >= UNITS || source->bytes == 0 || source->frame >= REGISTERS || source->number >= REGISTERS) {
            fprintf(stderr, "quell-hunt: QUELL_FRAMES: expected seven numbers each, of at most %d functions\n", SOURCES_MOST);
            exit(2);
        }
        source->returns = returns;
        source->unit = unit;
    }
    hunt.returns = g_hash_table_new(NULL, NULL);
    hunt.frames = g_hash_table_new(NULL, NULL);
}

/* Reads QUELL_HUNT: "seed aggressive findings lazy_unmap least-hold nmi entries boot". */
static bool enabled(void)
{
    const char *text;
    unsigned long long seed;

    if (likely(hunt.on)) {
        return hunt.on > 0;
    }
    text = getenv("QUELL_HUNT");
    hunt.on = -1;
    if (!text) {
        return false;
    }
    if (sscanf(text, "%llu %u %u %u %u-%u %u %u %u", &seed, &hunt.aggressive, &hunt.most, &hunt.lazy_unmap,
               &hunt.hold_least, &hunt.hold, &hunt.nmi, &hunt.entries, &hunt.boot) != 9
        || hunt.aggressive > 9 || hunt.hold_least > hunt.hold) {
        fprintf(stderr, "quell-hunt: QUELL_HUNT=\"%s\": expected seed, 0 to 9, findings, 0 or 1, least-most turns,"
                " instructions, 0 or 1, 0 or 1\n", text);
        exit(2);
    }
    if (!icount_enabled()) {
        fprintf(stderr, "quell-hunt: needs -icount\n");
        exit(2);
    }
    hunt.random = seed * 0x9e3779b97f4a7c15ull | 1;
    for (int i = 0; i < 8; i++) {
        draw();
    }
    read_skips();
    read_sources();
    hunt.tables = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    hunt.newest = g_hash_table_new(NULL, NULL);
    hunt.pending = g_ptr_array_new();
    hunt.hoard = g_new0(Hoard, 256);
    for (int i = 0; i < 256; i++) {
        hunt.hoard[i].tag = g_hash_table_new(NULL, NULL);
        hunt.hoard[i].tags = g_ptr_array_new();
        hunt.hoard[i].global = g_hash_table_new_full(NULL, NULL, NULL, kept_free);
    }
    atexit(print_end);
    hunt.on = 1;
    return true;
}

/* Returns the host's address of guest RAM, and its offset in RAM; NULL for devices. */
static void *ram_at(hwaddr pa, ram_addr_t *ram)
{
    hwaddr offset, length = 8;
    MemoryRegion *region;

    RCU_READ_LOCK_GUARD();
    region = address_space_translate(&address_space_memory, pa, &offset, &length, false, MEMTXATTRS_UNSPECIFIED);
    if (!memory_region_is_ram(region)) {
        return NULL;
    }
    *ram = memory_region_get_ram_addr(region) + offset;
    return (uint8_t *)memory_region_get_ram_ptr(region) + offset;
}

static Tag *tag_in(Hoard *hoard, unsigned number)
{
    Tag *tag = g_hash_table_lookup(hoard->tag, (void *)(uintptr_t)number);

    if (!tag) {
        tag = g_new0(Tag, 1);
        g_hash_table_insert(hoard->tag, (void *)(uintptr_t)number, tag);
        tag->number = number;
        tag->pages = g_hash_table_new_full(NULL, NULL, NULL, kept_free);
        tag->to_tables = g_hash_table_new_full(NULL, NULL, NULL, kept_free);
        g_ptr_array_add(hoard->tags, tag);
    }
    return tag;
}

/* The translations of the tag that the CPU has loaded. */
static Tag *loaded(CPUState *cs)
{
    return tag_in(&hunt.hoard[cs->cpu_index], tag_of(cs->env_ptr));
}

static Kept *find_in(GHashTable *table, vaddr va)
{
    for (int level = 1; level <= LEAF_LEVELS; level++) {
        Kept *kept = g_hash_table_lookup(table, key_of(va, level));
        if (kept) {
            return kept;
        }
    }
    return NULL;
}

static Kept *find(CPUState *cs, vaddr va)
{
    Kept *kept = find_in(loaded(cs)->pages, va);
    return kept ? kept : find_in(hunt.hoard[cs->cpu_index].global, va);
}

static void drop_in(GHashTable *table, vaddr va, int levels)
{
    for (int level = 1; level <= levels; level++) {
        g_hash_table_remove(table, key_of(va, level));
    }
}

static void drop(CPUState *cs, vaddr va)
{
    drop_in(loaded(cs)->pages, va, LEAF_LEVELS);
    drop_in(hunt.hoard[cs->cpu_index].global, va, LEAF_LEVELS);
}

static void drop_tag(Tag *tag)
{
    g_hash_table_remove_all(tag->pages);
    g_hash_table_remove_all(tag->to_tables);
}

static Kept *copy_of(const Kept *made)
{
    Kept *kept = g_new(Kept, 1);

    *kept = *made;
    kept->made = now();
    return kept;
}

static Kept *keep(CPUState *cs, const Kept *made)
{
    Kept *kept = copy_of(made);

    drop(cs, made->va);
    count_frame(kept, 1);
    g_hash_table_replace(made->global ? hunt.hoard[cs->cpu_index].global : loaded(cs)->pages,
                         key_of(made->va, made->leaf), kept);
    return kept;
}

/* Keeps the entry of one level, through which a walk reached a table, unless one is kept already. */
static void keep_to_table(CPUState *cs, const Kept *made, int level)
{
    GHashTable *to_tables = loaded(cs)->to_tables;
    void *key = key_of(made->va, level);
    Kept *kept;

    if (g_hash_table_contains(to_tables, key)) {
        return;
    }
    kept = copy_of(made);
    kept->va &= ~MAKE_64BIT_MASK(0, shift_of(level));
    kept->leaf = level;
    kept->to_table = true;
    /* These have a PCID, even above a global page. */
    kept->global = false;
    count_frame(kept, 1);
    g_hash_table_insert(to_tables, key, kept);
}

/* Watches the page of a table, whose first entry translates `va`. */
static void watch_page(ram_addr_t page, int level, vaddr va)
{
    Table *table = g_hash_table_lookup(hunt.tables, (void *)(uintptr_t)page);

    if (!table) {
        CPUState *cs;
        uintptr_t host = (uintptr_t)qemu_map_ram_ptr(NULL, page);

        table = g_new0(Table, 1);
        g_hash_table_insert(hunt.tables, (void *)(uintptr_t)page, table);
        CPU_FOREACH(cs) {
            tlb_reset_dirty(cs, host, TARGET_PAGE_SIZE);
        }
    }
    table->level = level;
    table->va = va;
    table->unused = 0;
}

/* Watches the table pages through which a walk went. */
static void watch(const Kept *made)
{
    for (int level = made->leaf; level <= LEVELS && made->value[level]; level++) {
        watch_page(made->slot[level] & TARGET_PAGE_MASK, level, made->va & ~MAKE_64BIT_MASK(0, shift_of(level + 1)));
    }
}

/* Watches a table and all below it, of which the first `entries` entries are looked at. */
static void watch_below(hwaddr at, int level, vaddr va, unsigned entries)
{
    ram_addr_t ram;
    const uint8_t *table = ram_at(at, &ram);

    if (!table) {
        return;
    }
    watch_page(ram & TARGET_PAGE_MASK, level, va);
    for (unsigned i = 0; level > 1 && i < entries; i++) {
        uint64_t entry = ldq_le_p(table + 8 * i);

        if (leads_to_table(level, entry)) {
            watch_below(address_in(entry), level - 1, va | (vaddr)i << shift_of(level), 512);
        }
    }
}

/* Watches the tables of user mode that are reachable: a CPU may fill its TLB from any of them. */
static void watch_reachable(CPUState *cs)
{
    if (covered(cs->env_ptr)) {
        watch_user(cs->env_ptr);
    }
}

bool hunt_watches(ram_addr_t ram)
{
    return enabled() && g_hash_table_contains(hunt.tables, (void *)(uintptr_t)(ram & TARGET_PAGE_MASK));
}

/* Reads a word of the guest's memory, by its address there; 0 where there is none. */
static uint64_t peek(CPUArchState *env, vaddr va)
{
    Kept at;
    ram_addr_t ram;
    void *host = walk(env, va, &at) ? ram_at(at.pa + (va & MAKE_64BIT_MASK(0, shift_of(at.leaf))), &ram) : NULL;
    return host ? ldq_le_p(host) : 0;
}

/*
 * Calls `each` for the words of a stack from an address on, until it returns true or the stack ends. Returns whether
 * it did.
 */
static bool any_word(CPUArchState *env, vaddr from, bool (*each)(CPUArchState *, vaddr, uint64_t, const void *),
                     const void *with)
{
    for (vaddr at = from & ~7ull; at < from + STACK_REACH; ) {
        Kept page;
        ram_addr_t ram;
        vaddr end = (at | ~TARGET_PAGE_MASK) + 1;
        uint8_t *host = NULL;

        if (walk(env, at, &page)) {
            host = ram_at(page.pa + (at & MAKE_64BIT_MASK(0, shift_of(page.leaf))), &ram);
        }
        if (!host) {
            return false;
        }
        for (vaddr word = at; word < end; word += 8) {
            if (each(env, word, ldq_le_p(host + (word - at)), with)) {
                return true;
            }
        }
        at = end;
    }
    return false;
}

static bool is_caller(CPUArchState *env, vaddr at, uint64_t word, const void *with)
{
    const Skip *skip = with;

    return word >= skip->caller && word < skip->caller_end;
}

/* Returns whether a function that was called, and has not returned yet, is the caller. */
static bool is_called_by(CPUArchState *env, const Skip *skip)
{
    return is_caller(env, 0, return_address(env), skip) || any_word(env, stack_of(env), is_caller, skip);
}

/* Returns whether the flush of an instruction is to be left out here. */
static bool leaves_out(CPUState *cs, unsigned instruction, uintptr_t ra)
{
    CPUArchState *env = cs->env_ptr;

    for (unsigned i = 0; i < hunt.skips; i++) {
        const Skip *skip = &hunt.skip[i];

        if (skip->function == instruction
            && (is_caller(env, 0, guest_pc(cs, ra), skip) || is_called_by(env, skip))) {
            hunt.skipped++;
            return true;
        }
    }
    return false;
}

static int copy_stack(CPUArchState *env, uint64_t *to)
{
    vaddr rsp = stack_of(env) & ~7ull;

    for (int i = 0; i < STACK_WORDS; i++) {
        to[i] = peek(env, rsp + 8 * i);
    }
    return STACK_WORDS;
}

/* Calls `each` for the translations in a table of a hoard that came through an entry of a page table. */
static void through_in(GHashTable *table, ram_addr_t slot, int level, vaddr va, void (*each)(Kept *, void *), void *with)
{
    GHashTableIter iter;
    void *of = g_hash_table_lookup(table, key_of(va, level));

    if (of && ((Kept *)of)->slot[level] == slot) {
        each(of, with);
    }
    if (level == 1) {
        return;
    }
    g_hash_table_iter_init(&iter, table);
    while (g_hash_table_iter_next(&iter, NULL, &of)) {
        if (((Kept *)of)->leaf < level && ((Kept *)of)->slot[level] == slot) {
            each(of, with);
        }
    }
}

static void through(Hoard *hoard, ram_addr_t slot, int level, vaddr va, void (*each)(Kept *, void *), void *with)
{
    through_in(hoard->global, slot, level, va, each, with);
    for (unsigned i = 0; i < hoard->tags->len; i++) {
        Tag *tag = hoard->tags->pdata[i];

        through_in(tag->pages, slot, level, va, each, with);
        if (level > 1) {
            through_in(tag->to_tables, slot, level, va, each, with);
        }
    }
}

/* Returns the first address that an entry of a table translates. */
static vaddr address_of(const Table *table, ram_addr_t slot)
{
    return table->va | (((slot & ~TARGET_PAGE_MASK) >> 3) << shift_of(table->level));
}

static void count_one(Kept *kept, void *with)
{
    ++*(unsigned *)with;
}

/* Returns whether the CPU is in a call that entered from the present address space. */
static bool is_entered(CPUState *cs)
{
    const Entry *entry = &hunt.hoard[cs->cpu_index].entry;

    return entry->open && entry->root == root_of(cs->env_ptr, 0);
}

static bool is_same_entry(const Entry *a, const Entry *b)
{
    return a->pc == b->pc && a->rsp == b->rsp && a->root == b->root;
}

/* Returns whether the CPU is still in the call that made a change. */
static bool is_same_call(CPUState *cs, const Change *change)
{
    if (hunt.entries) {
        if (is_entered(cs) == change->by_thread) {
            return false;
        }
        if (!change->by_thread) {
            return is_same_entry(&hunt.hoard[cs->cpu_index].entry, &change->entry);
        }
    }
    return llabs((long long)(change->rsp - stack_of(cs->env_ptr))) < STACK_REACH;
}

/* User mode was entered: no CPU is in that call any more. */
static void end_entry(CPUState *cs)
{
    const Entry left = { pc_of(cs->env_ptr), stack_of(cs->env_ptr), root_of(cs->env_ptr, 0) };
    CPUState *other;

    CPU_FOREACH(other) {
        Entry *entry = &hunt.hoard[other->cpu_index].entry;

        if (other == cs || is_same_entry(entry, &left)) {
            entry->open = false;
        }
    }
}

static void begin_change(CPUState *by, ram_addr_t slot, uint64_t old, const Table *table, uintptr_t ra)
{
    CPUArchState *env = by->env_ptr;
    vaddr va = address_of(table, slot);
    unsigned count = 0;
    Change *change = g_hash_table_lookup(hunt.newest, (void *)(uintptr_t)slot);
    CPUState *cs;

    /* Only a walker changes tables in user mode: it sets the accessed or the dirty bit. */
    if (in_user(env)) {
        return;
    }
    if (change && is_same_call(by, change)) {
        return;
    }
    CPU_FOREACH(cs) {
        Kept made;

        /* A speculative fill, at the last moment. */
        if (covered(cs->env_ptr) && dared()) {
            bool found = walk(cs->env_ptr, va, &made);

            made.speculative = true;
            if (found && made.leaf == table->level && made.slot[made.leaf] == slot && !find(cs, va)
                && set_accessed(&made)) {
                keep(cs, &made);
                hunt.guesses++;
            } else if (table->level > 1 && made.slot[table->level] == slot && leads_to_table(table->level, old)) {
                set_accessed(&made);
                keep_to_table(cs, &made, table->level);
            }
        }
        through(&hunt.hoard[cs->cpu_index], slot, table->level, va, count_one, &count);
    }
    if (count == 0) {
        return;
    }
    if (hunt.pending->len >= PENDING_MOST) {
        Change *oldest = g_ptr_array_remove_index(hunt.pending, 0);
        if (g_hash_table_lookup(hunt.newest, (void *)(uintptr_t)oldest->slot) == oldest) {
            g_hash_table_remove(hunt.newest, (void *)(uintptr_t)oldest->slot);
        }
        change_unref(oldest);
    }
    change = g_new0(Change, 1);
    change->refs = 1;
    change->slot = slot;
    change->level = table->level;
    change->va = va;
    change->old = ldq_le_p(qemu_map_ram_ptr(NULL, slot));
    change->cpu = by->cpu_index;
    change->pc = guest_pc(by, ra);
    change->rsp = stack_of(env);
    change->root = root_of(env, 0);
    change->at = now();
    if (hunt.entries) {
        change->by_thread = !is_entered(by);
        change->entry = hunt.hoard[by->cpu_index].entry;
    } else {
        note_stack(env, change);
    }
    change->words = copy_stack(env, change->stack);
    g_ptr_array_add(hunt.pending, change);
    g_hash_table_replace(hunt.newest, (void *)(uintptr_t)slot, change);
    hunt.changes++;
}

void hunt_store(CPUState *cs, ram_addr_t ram, unsigned size, uintptr_t ra)
{
    ram_addr_t page = ram & TARGET_PAGE_MASK;
    Table *table;
    uint8_t *host;

    if (!enabled() || !(table = g_hash_table_lookup(hunt.tables, (void *)(uintptr_t)page))) {
        return;
    }
    settle();
    /* No walk came here for long: the page is no table any more. */
    if (++table->unused > 4096) {
        g_hash_table_remove(hunt.tables, (void *)(uintptr_t)page);
        return;
    }
    host = qemu_map_ram_ptr(NULL, page);
    for (ram_addr_t slot = ram & ~7ull; slot < ram + size && slot < page + TARGET_PAGE_SIZE; slot += 8) {
        uint64_t old = ldq_le_p(host + (slot - page));

        note_store(cs, slot, table, ra);
        if (is_present(old)) {
            begin_change(cs, slot, old, table, ra);
        } else if (table->level > 1) {
            hunt.grown = true;
        }
    }
}

static void print_words(const char *name, const uint64_t *words, int count)
{
    fprintf(stderr, ",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        fprintf(stderr, "%s%" PRIu64, i ? "," : "", words[i]);
    }
    fputc(']', stderr);
}

static void print_reuse(const Reuse *reuse)
{
    fprintf(stderr, ",\"reused\":{\"cpu\":%d,\"pc\":%" PRIu64 ",\"at\":%" PRIu64, reuse->cpu, reuse->pc, reuse->at);
    print_words("stack", reuse->stack, reuse->words);
    fputc('}', stderr);
}

static void end_report(void)
{
    fputs("}\n", stderr);
    if (++hunt.found >= hunt.most) {
        print_end();
        fflush(NULL);
        _exit(FOUND);
    }
}

/* Reports a finding. Without a change or a reuse, the translation is that of another address space. */
static void report(CPUState *cs, const char *access, const char *mode, vaddr addr, uint64_t pc, const Kept *kept)
{
    CPUArchState *env = cs->env_ptr;
    const Change *change = kept->change;
    uint64_t stack[STACK_WORDS];
    Kept tables;
    bool translated = walk(env, addr, &tables);

    fprintf(stderr,
            "quell: {\"event\":\"finding\",\"clause\":\"%s\",\"access\":\"%s\",\"mode\":\"%s\",\"cpu\":%d,"
            "\"address\":%" PRIu64 ",\"pc\":%" PRIu64 ",\"then\":%" PRIu64 ",\"now\":%" PRIu64 ",\"level\":%d,"
            "\"tag\":%u,\"made\":%" PRIu64 ",\"global\":%s,\"speculative\":%s,\"nmi\":%s,\"at\":%" PRIu64,
            kept->unbroken ? "break-before-make" : kept->to_table ? "C6" : kept->reuse ? "C1" : change ? "C3" : "C5",
            access, mode, cs->cpu_index, (uint64_t)addr, pc,
            kept->value[kept->leaf], tables.value[translated && !kept->to_table ? tables.leaf : kept->leaf], kept->leaf,
            kept->tag, kept->made, kept->global ? "true" : "false", kept->speculative ? "true" : "false",
            in_nmi(env) ? "true" : "false", now());
    if (change) {
        fprintf(stderr,
                ",\"changed\":{\"cpu\":%d,\"level\":%d,\"then\":%" PRIu64 ",\"pc\":%" PRIu64 ",\"at\":%" PRIu64
                ",\"returned\":%" PRIu64,
                change->cpu, change->level, change->old, change->pc, change->at, change->returned);
        print_words("stack", change->stack, change->words);
        fputc('}', stderr);
    }
    if (kept->reuse) {
        print_reuse(kept->reuse);
    }
    print_words("stack", stack, copy_stack(env, stack));
    end_report();
}

typedef struct Marking {
    Change *change;
    uint64_t new;
    CPUState *cs;
} Marking;

/*
 * Returns whether the tables forbid something that a translation allows, in user mode, and the first address where. The
 * tables may have smaller pages there now.
 */
static bool is_contradicted(CPUArchState *env, const Kept *kept, vaddr *at)
{
    vaddr end = kept->va + (1ull << shift_of(kept->leaf));
    Kept tables;

    for (*at = kept->va; *at < end; *at += 1ull << shift_of(tables.leaf)) {
        if (!walk(env, *at, &tables)
            || tables.pa + (*at & MAKE_64BIT_MASK(0, shift_of(tables.leaf))) != kept->pa + (*at - kept->va)
            || !tables.user || (kept->write && !tables.write) || (!kept->nx && tables.nx)) {
            return true;
        }
    }
    return false;
}

/* Returns whether a kernel with lazy unmap leaves this translation behind on purpose. */
static bool is_lawful(const Kept *kept, bool stores)
{
    return hunt.lazy_unmap && !kept->write && !stores && !kept->reuse;
}

/* Reports a translation whose removal is over, if the CPU could use it without another instruction of the kernel. */
static void judge_held(CPUState *cs, const Kept *kept)
{
    CPUArchState *env = cs->env_ptr;
    bool user = in_user(env);
    vaddr at;

    if (!kept->global && kept->tag != tag_of(env)) {
        return;
    }
    if (kept->to_table) {
        int level = kept->change ? kept->change->level : kept->leaf;

        if (leads_elsewhere(kept->value[level], ldq_le_p(qemu_map_ram_ptr(NULL, kept->slot[level])))) {
            report(cs, "any", user ? "user" : "kernel", kept->va, pc_of(env), kept);
        }
    } else if (user && kept->user && !is_lawful(kept, false) && is_contradicted(env, kept, &at)) {
        report(cs, "any", "user", at, pc_of(env), kept);
    }
}

/* The next access through a translation must come to the judge. */
static void forget_in_tcg(CPUState *cs, const Kept *kept)
{
    if (kept->leaf == 1) {
        tlb_flush_page(cs, kept->va);
    } else {
        tlb_flush(cs);
    }
}

static void mark(Kept *kept, void *with)
{
    Marking *marking = with;
    Change *change = marking->change;
    uint64_t then = kept->value[change->level];

    /* A translation that was made after this change belongs to a later one. */
    if (kept->change || kept->made > change->at
        || !(kept->to_table ? leads_elsewhere(then, marking->new) : loses(then, marking->new))) {
        return;
    }
    kept->change = change;
    change->refs++;
    hunt.hoard[marking->cs->cpu_index].marked = true;
    judge_held(marking->cs, kept);
    forget_in_tcg(marking->cs, kept);
}

/* Judges the translations of a tag that was loaded without a flush, and marked ones, when user mode is entered. */
static void judge_loaded(CPUState *cs)
{
    Tag *tag = loaded(cs);
    GHashTable *const tables[] = { tag->pages, tag->to_tables };
    bool *marked = &hunt.hoard[cs->cpu_index].marked;

    if (!tag->reloaded && !*marked) {
        return;
    }
    tag->reloaded = *marked = false;
    for (int i = 0; i < 2; i++) {
        GHashTableIter iter;
        vaddr at;
        void *of;

        g_hash_table_iter_init(&iter, tables[i]);
        while (g_hash_table_iter_next(&iter, NULL, &of)) {
            Kept *kept = of;

            if (kept->change || kept->reuse) {
                judge_held(cs, kept);
            } else if (kept->root != root_of(cs->env_ptr, kept->va) && kept->user && !kept->to_table
                       && is_contradicted(cs->env_ptr, kept, &at)) {
                report(cs, "any", "user", at, pc_of(cs->env_ptr), kept);
            }
        }
    }
}

void hunt_user(CPUState *cs)
{
    CPUArchState *env = cs->env_ptr;
    /* Stack pointers of calls that have ended now, and that have not: a call makes many changes at one. */
    uint64_t yes = 0, no = 0, root;
    unsigned left = 0;

    if (!enabled() || !in_user(env) || !covered(env)) {
        return;
    }
    settle();
    hunt.booted = true;
    judge_loaded(cs);
    if (hunt.entries) {
        end_entry(cs);
    }
    if (hunt.grown) {
        CPUState *each;

        hunt.grown = false;
        CPU_FOREACH(each) {
            watch_reachable(each);
        }
    }
    root = root_of(env, 0);
    for (unsigned i = 0; i < hunt.pending->len; i++) {
        Change *change = hunt.pending->pdata[i];
        CPUState *other;
        Marking marking = { .change = change };
        Change *newest = g_hash_table_lookup(hunt.newest, (void *)(uintptr_t)change->slot);
        bool ended;

        if (change->returned) {
            ended = true;
        } else if (change->by_thread) {
            ended = now() - change->at > THREAD_MOST;
        } else if (change->root != root) {
            /* Forked processes have the same addresses on their stacks. */
            ended = false;
        } else if (hunt.entries) {
            ended = is_left(cs, change);
        } else if (change->rsp == yes || change->rsp == no) {
            ended = change->rsp == yes;
        } else {
            ended = is_left(cs, change);
            *(ended ? &yes : &no) = change->rsp;
        }
        if (ended && !change->returned) {
            change->returned = now();
            hunt.returned++;
        }
        /* A later call that has not ended may have taken away more, and not flushed yet. */
        if (!ended || (newest && newest != change)) {
            hunt.pending->pdata[left++] = change;
            continue;
        }
        if (newest) {
            g_hash_table_remove(hunt.newest, (void *)(uintptr_t)change->slot);
        }
        marking.new = ldq_le_p(qemu_map_ram_ptr(NULL, change->slot));
        if (loses(change->old, marking.new)) {
            CPU_FOREACH(other) {
                marking.cs = other;
                through(&hunt.hoard[other->cpu_index], change->slot, change->level, change->va, mark, &marking);
            }
        }
        change_unref(change);
    }
    g_ptr_array_set_size(hunt.pending, left);
}

bool hunt_hit(CPUState *cs, vaddr addr, MMUAccessType access, int mmu_idx, bool probe, uintptr_t ra, HuntFill *fill)
{
    static const char *const names[] = {
        [MMU_DATA_LOAD] = "load", [MMU_DATA_STORE] = "store", [MMU_INST_FETCH] = "fetch" };
    CPUArchState *env = cs->env_ptr;
    Kept *kept, tables;
    hwaddr page;
    bool translated;

    if (!enabled() || !covers(env, mmu_idx)) {
        return false;
    }
    addr = translated_address(env, addr, mmu_idx);
    kept = find(cs, addr);
    if (!kept) {
        return false;
    }
    page = MAKE_64BIT_MASK(0, shift_of(kept->leaf));
    fill->paddr = kept->pa | (addr & page);
    fill->prot = rights(env, kept, mmu_idx, false);
    fill->size = page + 1;
    fill->guarded = kept->guarded;
    if (!(fill->prot >> access & 1)) {
        return false;
    }
    /* A TLB may lose an entry at any time. A stale one is kept if the hunt is to be aggressive. */
    if (!dared()) {
        drop(cs, addr);
        return false;
    }
    hunt.hits++;
    translated = walk(env, addr, &tables);
    if (!translated || tables.pa + (addr & MAKE_64BIT_MASK(0, shift_of(tables.leaf))) != (kept->pa | (addr & page))
        || !(rights(env, &tables, mmu_idx, true) >> access & 1)) {
        hunt.stale++;
        if (!probe && (kept->change || kept->reuse ? !is_lawful(kept, access == MMU_DATA_STORE)
                                                   : !kept->global && kept->root != root_of(env, addr))) {
            report(cs, names[access], is_user_index(mmu_idx) ? "user" : "kernel", addr,
                   access == MMU_INST_FETCH ? addr : guest_pc(cs, ra), kept);
            change_unref(kept->change);
            kept->change = NULL;
            if (kept->reuse) {
                reuse_unref(kept->reuse);
                kept->reuse = NULL;
                count_frame(kept, 1);
            }
            kept->root = root_of(env, addr);
        }
    }
    return true;
}

void hunt_walked(CPUState *cs, vaddr addr, int mmu_idx, bool found)
{
    CPUArchState *env = cs->env_ptr;
    Kept made;

    if (!enabled() || !covers(env, mmu_idx)) {
        return;
    }
    addr = translated_address(env, addr, mmu_idx);
    hunt.walks++;
    if (walk(env, addr, &made) && found) {
        keep(cs, &made);
        watch(&made);
        keep_neighbours(cs, &made);
    } else {
        faulted(cs, addr);
        return;
    }
    for (int level = made.leaf + 1; level <= LEVELS && made.value[level]; level++) {
        keep_to_table(cs, &made, level);
    }
}

/*
 * May stop the CPU before its next instruction, while the others go on: one time in `rarity` if the hunt is the most
 * aggressive. So does a hypervisor that runs other virtual CPUs.
 */
static void may_hold(CPUState *cs, unsigned rarity)
{
    if (hunt.hold && covered(cs->env_ptr) && draw() % (9 * rarity) < hunt.aggressive) {
        hunt.held[cs->cpu_index] = hunt.hold_least + draw() % (hunt.hold - hunt.hold_least + 1);
        hunt.holds++;
        cpu_exit(cs);
    }
}

static void drop_local(Hoard *hoard)
{
    for (unsigned i = 0; i < hoard->tags->len; i++) {
        drop_tag(hoard->tags->pdata[i]);
    }
}

void hunt_drop_all(CPUState *cs)
{
    if (enabled()) {
        drop_local(&hunt.hoard[cs->cpu_index]);
        g_hash_table_remove_all(hunt.hoard[cs->cpu_index].global);
    }
}

void hunt_may_hold(CPUState *cs)
{
    if (enabled()) {
        may_hold(cs, 16);
        nmi_ready(cs);
    }
}

void hunt_halts(CPUState *cs)
{
    if (enabled()) {
        may_hold(cs, 16);
        nmi_halts(cs);
    }
}

bool hunt_holds(CPUState *cs)
{
    if (!enabled() || hunt.held[cs->cpu_index] == 0) {
        return false;
    }
    hunt.held[cs->cpu_index]--;
    return true;
}

int64_t hunt_turn(CPUState *cs, int64_t most)
{
    uint64_t executed = qatomic_read_i64(&timers_state.qemu_icount), *ran = &hunt.ran[cs->cpu_index];
    unsigned bits;

    hunt.ran[hunt.turn_of] += executed - hunt.turn_at;
    hunt.turn_of = cs->cpu_index;
    hunt.turn_at = executed;
    /* How often there is nearly no time left before a timer depends on the host's clock. */
    if (!enabled() || most < 2) {
        return most;
    }
    if (!cs->halted && *ran >= HOLD_AFTER) {
        *ran = 0;
        may_hold(cs, 64);
    }
    most = nmi_limit(cs, most);
    bits = 6 + draw() % 12;
    return MIN(most, 1 + draw() % (1ull << bits));
}

/* Returns the change of a translation's entry whose call has not ended. */
static Change *pending_of(const Kept *kept)
{
    for (int level = kept->leaf; level <= LEVELS && kept->value[level]; level++) {
        Change *change = g_hash_table_lookup(hunt.newest, (void *)(uintptr_t)kept->slot[level]);

        if (change) {
            change->refs++;
            return change;
        }
    }
    return NULL;
}

/* Marks the translations in a table of a CPU's hoard that lead to frames, and judges them. */
static void reuse_in(CPUState *cs, GHashTable *table, hwaddr from, hwaddr to, Reuse *reuse)
{
    GHashTableIter iter;
    void *of;

    g_hash_table_iter_init(&iter, table);
    while (g_hash_table_iter_next(&iter, NULL, &of)) {
        Kept *kept = of;
        int level;
        hwaddr begin = frame_of(kept, &level), end = begin + (1ull << shift_of(level));

        if (kept->reuse || !is_of_user(kept) || end <= from || begin >= to) {
            continue;
        }
        count_frame(kept, -1);
        kept->reuse = reuse;
        reuse->refs++;
        hunt.reused++;
        if (!kept->change) {
            kept->change = pending_of(kept);
        }
        hunt.hoard[cs->cpu_index].marked = true;
        judge_held(cs, kept);
        forget_in_tcg(cs, kept);
    }
}

/* Returns whether a kept translation, counted in a table by frame and level, leads to one of these frames. */
static bool leads_to_any(GHashTable *frames, hwaddr from, hwaddr to)
{
    for (hwaddr frame = from; frame < to; frame += TARGET_PAGE_SIZE) {
        for (int level = 1; level <= LEAF_LEVELS; level++) {
            if (g_hash_table_contains(frames, key_of(frame, level))) {
                return true;
            }
        }
    }
    return false;
}

#ifdef TARGET_X86_64
#include "hunt-dma.c.inc"
#else
static bool kept_by_devices(hwaddr from, hwaddr to)
{
    return false;
}

static void reuse_by_devices(hwaddr from, hwaddr to, const Reuse *reuse)
{
}
#endif

/* The kernel frees or hands out so many frames, by the function or instruction at `pc`. */
static void hand_out(CPUState *cs, uint64_t pc, hwaddr from, uint64_t number)
{
    CPUArchState *env = cs->env_ptr;
    hwaddr to = from + MIN(number, 1 << 18) * TARGET_PAGE_SIZE;
    bool by_devices = kept_by_devices(from, to);
    CPUState *other;
    Reuse *reuse;

    hunt.handed++;
    if (!by_devices && !leads_to_any(hunt.frames, from, to)) {
        return;
    }
    reuse = g_new0(Reuse, 1);
    reuse->refs = 1;
    reuse->cpu = cs->cpu_index;
    reuse->pc = pc;
    reuse->at = now();
    reuse->words = copy_stack(env, reuse->stack);
    if (by_devices) {
        reuse_by_devices(from, to, reuse);
    }
    CPU_FOREACH(other) {
        Hoard *hoard = &hunt.hoard[other->cpu_index];

        reuse_in(other, hoard->global, from, to, reuse);
        for (unsigned i = 0; i < hoard->tags->len; i++) {
            Tag *tag = hoard->tags->pdata[i];

            reuse_in(other, tag->pages, from, to, reuse);
            reuse_in(other, tag->to_tables, from, to, reuse);
        }
    }
    reuse_unref(reuse);
}

/* A function frees or has handed out the frames that these values of its registers name. */
static void hand_out_by(CPUState *cs, const Source *source, uint64_t value, uint64_t number)
{
    if (!value || value < source->base) {
        return;
    }
    if (source->unit == UNIT_LOGARITHM) {
        number = 1ull << MIN(number, 18);
    } else if (source->unit == UNIT_BYTES) {
        number = (number >> TARGET_PAGE_BITS) + !!(number & ~TARGET_PAGE_MASK);
    }
    hand_out(cs, source->function, (value - source->base) / source->bytes << TARGET_PAGE_BITS, number);
}

/* The kernel says by an instruction that these frames may be reused: the first one's address, and how many. */
void helper_hunt_reusable(CPUArchState *env, uint64_t first, uint64_t number)
{
    CPUState *cs = env_cpu(env);

    if (enabled() && !in_user(env)) {
        hand_out(cs, guest_pc(cs, GETPC()), first & TARGET_PAGE_MASK, number);
    }
}

bool hunt_notes(vaddr pc)
{
    if (!enabled()) {
        return false;
    }
    for (unsigned i = 0; i < hunt.skips; i++) {
        if (hunt.skip[i].function == pc) {
            return true;
        }
    }
    for (unsigned i = 0; i < hunt.sources; i++) {
        if (hunt.source[i].function == pc) {
            return true;
        }
    }
    return g_hash_table_contains(hunt.returns, (void *)(uintptr_t)pc);
}

/* A function that hands out frames was called. */
static void begin_call(CPUState *cs, const Source *source)
{
    CPUArchState *env = cs->env_ptr;
    Hoard *hoard = &hunt.hoard[cs->cpu_index];
    uint64_t number = register_of(env, source->number), back;

    if (!source->returns) {
        hand_out_by(cs, source, register_of(env, source->frame), number);
        return;
    }
    hoard->calls[hoard->next_call++ % CALLS_MOST] = (Call){ source, stack_of(env), number };
    back = return_address(env);
    if (g_hash_table_add(hunt.returns, (void *)(uintptr_t)back)) {
        /* This block was translated when nothing was to be noted at its begin. */
        tb_flush(cs);
    }
}

/* A call may have returned here. */
static void end_call(CPUState *cs)
{
    CPUArchState *env = cs->env_ptr;
    Hoard *hoard = &hunt.hoard[cs->cpu_index];

    for (int i = 0; i < CALLS_MOST; i++) {
        Call *call = &hoard->calls[i];

        if (call->source && call->rsp + POPPED == stack_of(env)) {
            hand_out_by(cs, call->source, register_of(env, call->source->frame), call->number);
            call->source = NULL;
        }
    }
}

/* At the first instruction of a function, or where one returns to. Leaves the function if this call is to be left out. */
void helper_hunt_note(CPUArchState *env)
{
    CPUState *cs = env_cpu(env);
    uint64_t pc = guest_pc(cs, GETPC());

    if (g_hash_table_contains(hunt.returns, (void *)(uintptr_t)pc)) {
        end_call(cs);
    }
    for (unsigned i = 0; i < hunt.sources; i++) {
        if (hunt.source[i].function == pc) {
            begin_call(cs, &hunt.source[i]);
        }
    }
    for (unsigned i = 0; i < hunt.skips; i++) {
        const Skip *skip = &hunt.skip[i];

        if (skip->function == pc && is_called_by(env, skip)) {
            /* Only this gives back the instructions of the block, which have been counted. */
            cpu_restore_state(cs, GETPC());
            leave_function(env, skip->value);
            hunt.skipped++;
            cpu_loop_exit_noexc(cs);
        }
    }
}

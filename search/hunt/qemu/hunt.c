/*
 * quell's hunt: TLBs that do the worst that the x86 manual allows, and a judge of each access through them.
 *
 * Each CPU has a hoard: every translation that it made, or could have made, until an instruction drops it (INVLPG, a
 * load of CR3, a change of CR4 ...). A miss of TCG's own TLB asks the hoard before the tables, so a translation that
 * the kernel forgot to flush is still used. Page-table pages are watched: before a store changes a present entry,
 * each CPU whose tables reach that entry takes the old translation into its hoard, as a speculative fill may at any time.
 *
 * The judge knows nothing of the kernel. A change of an entry belongs to the kernel stack on which it was made. When a
 * CPU returns to user mode and the frame of that return lies on that stack, the call that made the change has ended.
 * From then on, no access may complete that the old translation allows and the tables forbid: clause C3 of the contract.
 * Nor may a CPU that runs in user mode still hold that translation, because its next instruction could use it.
 * A change by a thread that never enters user mode (kswapd) has ended after THREAD_MOST instructions. A kernel with
 * lazy unmap leaves translations of clean pages behind on purpose (C4): then reads through read-only ones are not judged.
 *
 * One host thread runs all CPUs in turn (QEMU's -icount), so nothing here needs a lock. Four- and five-level tables
 * only; there are no tags, because this QEMU has none.
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
#include "qemu/seqlock.h"
#include "qemu/timer.h"
#include "../../../../softmmu/timers-state.h"

#define LEVELS 5
#define STACK_WORDS 96
/* How far above the stored-from stack pointer the frame of a return to user mode is looked for. */
#define STACK_REACH (32 * 1024)
/* Within so many instructions, a thread of the kernel flushes the translations that it takes away. */
#define THREAD_MOST 100000000
/* Functions to leave out. */
#define SKIPS_MOST 8
/* Changes of stacks that have not returned yet; older ones are forgotten. */
#define PENDING_MOST 8192
/* The exit code after a finding. */
#define FOUND 57

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
    uint64_t stack[STACK_WORDS];
    int words;
} Change;

/* A function that returns at once, if a return address in [caller, caller_end) is on the stack. */
typedef struct Skip {
    uint64_t function, caller, caller_end;
} Skip;

/* A kept translation, or the result of a walk. Levels count from 1, the leaf's table. */
typedef struct Kept {
    vaddr va;
    hwaddr pa;
    int leaf;
    bool user, write, nx, dirty, global, accessed, speculative;
    uint8_t key;
    ram_addr_t slot[LEVELS + 1];
    uint64_t value[LEVELS + 1];
    uint64_t made;
    Change *change;
} Kept;

typedef struct Table {
    int level;
    vaddr va;
    unsigned unused;
} Table;

typedef struct Hoard {
    /* By page and level, see `key_of`. */
    GHashTable *local, *global;
    unsigned held;
} Hoard;

static struct {
    int on; /* 0 before the first look at the environment, then -1 or 1 */
    unsigned aggressive, most, lazy_unmap;
    /* Turns have a stream of their own: how often TCG's TLB misses depends on the host's clock. */
    uint64_t random, turns;
    Hoard *hoard;
    GHashTable *tables;
    GPtrArray *pending;
    GHashTable *newest; /* slot -> the newest pending change of it */
    unsigned found, skips;
    Skip skip[SKIPS_MOST];
    uint64_t skipped;
    uint64_t walks, hits, guesses, stale, changes, returned;
} hunt;

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* Returns true more often the more aggressive the hunt is: never at 0, always at 9. */
static bool dared(void)
{
    return draw(&hunt.random) % 9 < hunt.aggressive;
}

/* Instructions of all CPUs. QEMU's own function may not be called in the middle of a block. */
static uint64_t now(void)
{
    CPUState *cs = current_cpu;
    int64_t executed = cs ? cs->icount_budget - (cpu_neg(cs)->icount_decr.u16.low + cs->icount_extra) : 0;

    return qatomic_read_i64(&timers_state.qemu_icount) + executed;
}

static void change_unref(Change *change)
{
    if (change && --change->refs == 0) {
        g_free(change);
    }
}

static void kept_free(void *of)
{
    change_unref(((Kept *)of)->change);
    g_free(of);
}

static void print_end(void)
{
    fprintf(stderr,
            "quell: {\"event\":\"hunted\",\"walks\":%" PRIu64 ",\"hits\":%" PRIu64 ",\"guesses\":%" PRIu64
            ",\"stale\":%" PRIu64 ",\"changes\":%" PRIu64 ",\"returned\":%" PRIu64 ",\"tables\":%u,\"found\":%u"
            ",\"skipped\":%" PRIu64 "}\n",
            hunt.walks, hunt.hits, hunt.guesses, hunt.stale, hunt.changes, hunt.returned,
            g_hash_table_size(hunt.tables), hunt.found, hunt.skipped);
}

/* Reads QUELL_SKIP: "function caller caller_end", three hexadecimal addresses each, separated by commas. */
static void read_skips(void)
{
    const char *text = getenv("QUELL_SKIP");
    Skip *skip = hunt.skip;

    for (; text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL, skip++) {
        if (hunt.skips++ == SKIPS_MOST
            || sscanf(text, "%" SCNx64 " %" SCNx64 " %" SCNx64, &skip->function, &skip->caller, &skip->caller_end) != 3) {
            fprintf(stderr, "quell-hunt: QUELL_SKIP: expected three addresses each, of at most %d functions\n", SKIPS_MOST);
            exit(2);
        }
    }
}

/* Reads QUELL_HUNT: "seed aggressive findings lazy_unmap", four numbers. */
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
    if (sscanf(text, "%llu %u %u %u", &seed, &hunt.aggressive, &hunt.most, &hunt.lazy_unmap) != 4
        || hunt.aggressive > 9) {
        fprintf(stderr, "quell-hunt: QUELL_HUNT=\"%s\": expected four numbers: seed, 0 to 9, findings, 0 or 1\n", text);
        exit(2);
    }
    if (!icount_enabled()) {
        fprintf(stderr, "quell-hunt: needs -icount\n");
        exit(2);
    }
    hunt.random = seed * 0x9e3779b97f4a7c15ull | 1;
    for (int i = 0; i < 8; i++) {
        draw(&hunt.random);
    }
    hunt.turns = draw(&hunt.random);
    read_skips();
    hunt.tables = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    hunt.newest = g_hash_table_new(NULL, NULL);
    hunt.pending = g_ptr_array_new();
    hunt.hoard = g_new0(Hoard, 256);
    for (int i = 0; i < 256; i++) {
        hunt.hoard[i].local = g_hash_table_new_full(NULL, NULL, NULL, kept_free);
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

static bool covered(CPUX86State *env)
{
    return (env->cr[0] & CR0_PG_MASK) && (env->hflags & HF_LMA_MASK) && !(env->hflags & HF_GUEST_MASK);
}

static int shift_of(int level)
{
    return 12 + 9 * (level - 1);
}

static void *key_of(vaddr va, int level)
{
    return (void *)(uintptr_t)((va >> shift_of(level)) << 3 | level);
}

/* Walks the tables as they are now, without setting any bit. Returns whether they translate `va`. */
static bool walk(CPUX86State *env, vaddr va, Kept *out)
{
    uint64_t at = env->cr[3] & PG_ADDRESS_MASK;

    memset(out, 0, sizeof(*out));
    out->user = out->write = out->accessed = true;
    for (int level = env->cr[4] & CR4_LA57_MASK ? 5 : 4; level >= 1; level--) {
        hwaddr page = MAKE_64BIT_MASK(0, shift_of(level));
        uint64_t *entry = ram_at(at + (((va >> shift_of(level)) & 511) << 3), &out->slot[level]);
        uint64_t value = entry ? ldq_le_p(entry) : 0;

        if (!(value & PG_PRESENT_MASK)) {
            return false;
        }
        out->value[level] = value;
        out->user &= !!(value & PG_USER_MASK);
        out->write &= !!(value & PG_RW_MASK);
        out->nx |= !!(value & PG_NX_MASK);
        out->accessed &= !!(value & PG_ACCESSED_MASK);
        if (level == 1 || (level <= 3 && (value & PG_PSE_MASK))) {
            out->leaf = level;
            out->va = va & ~page;
            out->pa = value & PG_ADDRESS_MASK & ~page;
            out->dirty = value & PG_DIRTY_MASK;
            out->global = (value & PG_GLOBAL_MASK) && (env->cr[4] & CR4_PGE_MASK);
            out->key = (value & PG_PKRU_MASK) >> PG_PKRU_BIT;
            return true;
        }
        at = value & PG_ADDRESS_MASK;
    }
    return false;
}

/* The rights that a translation gives in a mode. A clean page gives no right to store: the walk must set its bit. */
static int rights(CPUX86State *env, const Kept *kept, int mmu_idx, bool clean_too)
{
    bool is_user = is_mmu_index_user(mmu_idx);
    bool protects = is_user || (env->cr[0] & CR0_WP_MASK);
    uint32_t keys = 0;
    int prot = 0;

    if (is_user && !kept->user) {
        return 0;
    }
    if (!(kept->user && is_mmu_index_smap(mmu_idx))) {
        prot |= PAGE_READ;
        if ((kept->write || !protects) && (kept->dirty || clean_too)) {
            prot |= PAGE_WRITE;
        }
    }
    if (!kept->nx && (is_user || !kept->user || !(env->cr[4] & CR4_SMEP_MASK))) {
        prot |= PAGE_EXEC;
    }
    if (kept->user && (env->cr[4] & CR4_PKE_MASK)) {
        keys = env->pkru;
    } else if (!kept->user && (env->cr[4] & CR4_PKS_MASK)) {
        keys = env->pkrs;
    }
    keys = keys >> (kept->key * 2) & 3;
    if (keys & 1) {
        prot &= ~(PAGE_READ | PAGE_WRITE);
    } else if ((keys & 2) && protects) {
        prot &= ~PAGE_WRITE;
    }
    return prot;
}

static Kept *find_in(GHashTable *table, vaddr va)
{
    for (int level = 1; level <= 3; level++) {
        Kept *kept = g_hash_table_lookup(table, key_of(va, level));
        if (kept) {
            return kept;
        }
    }
    return NULL;
}

static Kept *find(Hoard *hoard, vaddr va)
{
    Kept *kept = find_in(hoard->local, va);
    return kept ? kept : find_in(hoard->global, va);
}

static void drop(Hoard *hoard, vaddr va)
{
    for (int level = 1; level <= 3; level++) {
        g_hash_table_remove(hoard->local, key_of(va, level));
        g_hash_table_remove(hoard->global, key_of(va, level));
    }
}

static void keep(Hoard *hoard, const Kept *made)
{
    Kept *kept = g_new(Kept, 1);

    *kept = *made;
    kept->made = now();
    drop(hoard, made->va);
    g_hash_table_replace(made->global ? hoard->global : hoard->local, key_of(made->va, made->leaf), kept);
}

/* Watches the table pages through which a walk went. */
static void watch(const Kept *made)
{
    for (int level = made->leaf; level <= LEVELS && made->value[level]; level++) {
        ram_addr_t page = made->slot[level] & TARGET_PAGE_MASK;
        vaddr va = made->va & ~MAKE_64BIT_MASK(0, shift_of(level + 1));
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
}

bool hunt_watches(ram_addr_t ram)
{
    return enabled() && g_hash_table_contains(hunt.tables, (void *)(uintptr_t)(ram & TARGET_PAGE_MASK));
}

/* Returns whether the change of an entry may take a right away. */
static bool loses(uint64_t old, uint64_t new)
{
    return !(new & PG_PRESENT_MASK) || ((old ^ new) & (PG_ADDRESS_MASK | PG_PSE_MASK))
        || (old & ~new & (PG_RW_MASK | PG_USER_MASK)) || (new & ~old & PG_NX_MASK);
}

static uint64_t guest_pc(CPUState *cs, uintptr_t ra)
{
    CPUX86State *env = cs->env_ptr;
    uint64_t data[TARGET_INSN_START_WORDS] = { env->eip };

    if (ra && cpu_unwind_state_data(cs, ra, data) && TARGET_TB_PCREL) {
        return (env->eip & TARGET_PAGE_MASK) | data[0];
    }
    return data[0];
}

/* Reads a word of the guest's memory, by its address there; 0 where there is none. */
static uint64_t peek(CPUX86State *env, vaddr va)
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
static bool any_word(CPUX86State *env, vaddr from, bool (*each)(CPUX86State *, vaddr, uint64_t, const void *),
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

/* Returns whether the frame of an entry from user mode may continue here: cs, rflags, rsp, ss, after rip. */
static bool is_user_cs(CPUX86State *env, vaddr at, uint64_t cs, const void *with)
{
    uint64_t ss;

    if ((cs & 3) != 3 || cs > 0xffff) {
        return false;
    }
    ss = peek(env, at + 24);
    return (ss & 3) == 3 && ss <= 0xffff && peek(env, at - 8) != 0;
}

static bool is_caller(CPUX86State *env, vaddr at, uint64_t word, const void *with)
{
    const Skip *skip = with;

    return word >= skip->caller && word < skip->caller_end;
}

static int copy_stack(CPUX86State *env, uint64_t *to)
{
    vaddr rsp = env->regs[R_ESP] & ~7ull;

    for (int i = 0; i < STACK_WORDS; i++) {
        to[i] = peek(env, rsp + 8 * i);
    }
    return STACK_WORDS;
}

/* Calls `each` for the translations in a hoard that came through an entry of a table. */
static void through(Hoard *hoard, ram_addr_t slot, int level, vaddr va, void (*each)(Kept *, void *), void *with)
{
    GHashTable *tables[] = { hoard->local, hoard->global };

    for (int i = 0; i < 2; i++) {
        GHashTableIter iter;
        void *of;

        of = g_hash_table_lookup(tables[i], key_of(va, level));
        if (of && ((Kept *)of)->slot[level] == slot) {
            each(of, with);
        }
        if (level == 1) {
            continue;
        }
        g_hash_table_iter_init(&iter, tables[i]);
        while (g_hash_table_iter_next(&iter, NULL, &of)) {
            if (((Kept *)of)->leaf < level && ((Kept *)of)->slot[level] == slot) {
                each(of, with);
            }
        }
    }
}

/* Returns the address space's root. With page-table isolation, that of user mode follows that of the kernel. */
static uint64_t root_of(CPUX86State *env)
{
    return env->cr[3] & PG_ADDRESS_MASK & ~(uint64_t)TARGET_PAGE_SIZE;
}

static void count_one(Kept *kept, void *with)
{
    ++*(unsigned *)with;
}

static void begin_change(CPUState *by, ram_addr_t slot, uint64_t old, const Table *table, uintptr_t ra)
{
    CPUX86State *env = by->env_ptr;
    vaddr va = table->va | (((slot & ~TARGET_PAGE_MASK) >> 3) << shift_of(table->level));
    unsigned count = 0;
    Change *change = g_hash_table_lookup(hunt.newest, (void *)(uintptr_t)slot);
    CPUState *cs;

    /* Only a walker changes tables in user mode: it sets the accessed or the dirty bit. */
    if ((env->hflags & HF_CPL_MASK) == 3) {
        return;
    }
    if (change && llabs((long long)(change->rsp - env->regs[R_ESP])) < STACK_REACH) {
        return;
    }
    CPU_FOREACH(cs) {
        Hoard *hoard = &hunt.hoard[cs->cpu_index];
        Kept made;

        /* A speculative fill, at the last moment. Bits that the walk would set must be set already. */
        if (covered(cs->env_ptr) && dared() && walk(cs->env_ptr, va, &made) && made.accessed
            && made.leaf == table->level && made.slot[made.leaf] == slot && !find(hoard, va)) {
            made.speculative = true;
            keep(hoard, &made);
            hunt.guesses++;
        }
        through(hoard, slot, table->level, va, count_one, &count);
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
    change->old = old;
    change->cpu = by->cpu_index;
    change->pc = guest_pc(by, ra);
    change->rsp = env->regs[R_ESP];
    change->root = root_of(env);
    change->at = now();
    change->by_thread = !any_word(env, change->rsp, is_user_cs, NULL);
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
    /* No walk came here for long: the page is no table any more. */
    if (++table->unused > 4096) {
        g_hash_table_remove(hunt.tables, (void *)(uintptr_t)page);
        return;
    }
    host = qemu_map_ram_ptr(NULL, page);
    for (ram_addr_t slot = ram & ~7ull; slot < ram + size && slot < page + TARGET_PAGE_SIZE; slot += 8) {
        uint64_t old = ldq_le_p(host + (slot - page));
        if (old & PG_PRESENT_MASK) {
            begin_change(cs, slot, old, table, ra);
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

static void report(CPUState *cs, const char *access, const char *mode, vaddr addr, uint64_t pc, const Kept *kept)
{
    CPUX86State *env = cs->env_ptr;
    const Change *change = kept->change;
    uint64_t stack[STACK_WORDS];
    Kept tables;
    bool translated = walk(env, addr, &tables);

    fprintf(stderr,
            "quell: {\"event\":\"finding\",\"clause\":\"C3\",\"access\":\"%s\",\"mode\":\"%s\",\"cpu\":%d,"
            "\"address\":%" PRIu64 ",\"pc\":%" PRIu64 ",\"then\":%" PRIu64 ",\"now\":%" PRIu64 ",\"level\":%d,"
            "\"global\":%s,\"speculative\":%s,\"at\":%" PRIu64 ",\"changed\":{\"cpu\":%d,\"level\":%d,\"then\":%" PRIu64
            ",\"pc\":%" PRIu64 ",\"at\":%" PRIu64 ",\"returned\":%" PRIu64,
            access, mode, cs->cpu_index, (uint64_t)addr, pc, kept->value[kept->leaf],
            tables.value[translated ? tables.leaf : kept->leaf], kept->leaf,
            kept->global ? "true" : "false", kept->speculative ? "true" : "false", now(), change->cpu, change->level,
            change->old, change->pc, change->at, change->returned);
    print_words("stack", change->stack, change->words);
    fputc('}', stderr);
    print_words("stack", stack, copy_stack(env, stack));
    fputs("}\n", stderr);
    if (++hunt.found >= hunt.most) {
        print_end();
        fflush(NULL);
        _exit(FOUND);
    }
}

typedef struct Marking {
    Change *change;
    uint64_t new;
    CPUState *cs;
} Marking;

static void mark(Kept *kept, void *with)
{
    Marking *marking = with;
    Change *change = marking->change;
    CPUX86State *env = marking->cs->env_ptr;
    Kept tables;

    /* A translation that was made after this change belongs to a later one. */
    if (kept->change || kept->made > change->at || !loses(kept->value[change->level], marking->new)) {
        return;
    }
    kept->change = change;
    change->refs++;
    /* In user mode, nothing stands between this translation and an access. */
    if (kept->user && (env->hflags & HF_CPL_MASK) == 3 && !(hunt.lazy_unmap && !kept->write)
        && (!walk(env, kept->va, &tables) || tables.pa + (kept->va & MAKE_64BIT_MASK(0, shift_of(tables.leaf))) != kept->pa
            || !tables.user || (kept->write && !tables.write) || (!kept->nx && tables.nx))) {
        report(marking->cs, "any", "user", kept->va, env->eip, kept);
    }
    /* The next access must come to the judge. */
    if (kept->leaf == 1) {
        tlb_flush_page(marking->cs, kept->va);
    } else {
        tlb_flush(marking->cs);
    }
}

static bool is_this_return(CPUX86State *env, vaddr at, uint64_t rip, const void *with)
{
    return rip == env->eip && peek(env, at + 24) == env->regs[R_ESP];
}

/* Returns whether a CPU other than this one runs in the kernel on the stack of a change. */
static bool is_under_way(CPUState *cs, const Change *change)
{
    CPUState *other;

    CPU_FOREACH(other) {
        CPUX86State *env = other->env_ptr;

        if (other != cs && (env->hflags & HF_CPL_MASK) != 3
            && llabs((long long)(env->regs[R_ESP] - change->rsp)) < STACK_REACH / 2) {
            return true;
        }
    }
    return false;
}

/* Returns whether user mode returns by the frame on the stack of a change. */
static bool is_left(CPUState *cs, const Change *change)
{
    /* Beyond this stack may be that of another thread. */
    return any_word(cs->env_ptr, change->rsp, is_this_return, NULL) && !is_under_way(cs, change);
}

void hunt_user(CPUState *cs)
{
    CPUX86State *env = cs->env_ptr;
    /* Stack pointers of calls that have ended now, and that have not: a call makes many changes at one. */
    uint64_t yes = 0, no = 0, root;
    unsigned left = 0;

    if (!enabled() || hunt.pending->len == 0 || (env->hflags & HF_CPL_MASK) != 3 || !covered(env)) {
        return;
    }
    root = root_of(env);
    for (unsigned i = 0; i < hunt.pending->len; i++) {
        Change *change = hunt.pending->pdata[i];
        CPUState *other;
        Marking marking = { .change = change };
        bool ended;

        if (change->by_thread) {
            ended = now() - change->at > THREAD_MOST;
        } else if (change->root != root) {
            /* Forked processes have the same addresses on their stacks. */
            ended = false;
        } else if (change->rsp == yes || change->rsp == no) {
            ended = change->rsp == yes;
        } else {
            ended = is_left(cs, change);
            *(ended ? &yes : &no) = change->rsp;
        }
        if (!ended) {
            hunt.pending->pdata[left++] = change;
            continue;
        }
        if (g_hash_table_lookup(hunt.newest, (void *)(uintptr_t)change->slot) == change) {
            g_hash_table_remove(hunt.newest, (void *)(uintptr_t)change->slot);
        }
        marking.new = ldq_le_p(qemu_map_ram_ptr(NULL, change->slot));
        change->returned = now();
        hunt.returned++;
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
    CPUX86State *env = cs->env_ptr;
    Hoard *hoard;
    Kept *kept, tables;
    hwaddr page;
    bool translated;

    if (!enabled() || mmu_idx >= MMU_PHYS_IDX || !covered(env)) {
        return false;
    }
    if (is_mmu_index_32(mmu_idx)) {
        addr = (uint32_t)addr;
    }
    hoard = &hunt.hoard[cs->cpu_index];
    kept = find(hoard, addr);
    if (!kept) {
        return false;
    }
    page = MAKE_64BIT_MASK(0, shift_of(kept->leaf));
    fill->paddr = (kept->pa | (addr & page)) & x86_get_a20_mask(env);
    fill->prot = rights(env, kept, mmu_idx, false);
    fill->size = page + 1;
    if (!(fill->prot >> access & 1)) {
        return false;
    }
    /* A TLB may lose an entry at any time. A stale one is kept if the hunt is to be aggressive. */
    if (!dared()) {
        drop(hoard, addr);
        return false;
    }
    hunt.hits++;
    translated = walk(env, addr, &tables);
    if (!translated || tables.pa + (addr & MAKE_64BIT_MASK(0, shift_of(tables.leaf))) != (kept->pa | (addr & page))
        || !(rights(env, &tables, mmu_idx, true) >> access & 1)) {
        hunt.stale++;
        if (kept->change && !probe && !(hunt.lazy_unmap && !kept->write && access != MMU_DATA_STORE)) {
            report(cs, names[access], is_mmu_index_user(mmu_idx) ? "user" : "kernel", addr,
                   access == MMU_INST_FETCH ? addr : guest_pc(cs, ra), kept);
            change_unref(kept->change);
            kept->change = NULL;
        }
    }
    return true;
}

void hunt_walked(CPUState *cs, vaddr addr, int mmu_idx, bool found)
{
    CPUX86State *env = cs->env_ptr;
    Kept made;

    if (!enabled() || mmu_idx >= MMU_PHYS_IDX || !covered(env)) {
        return;
    }
    if (is_mmu_index_32(mmu_idx)) {
        addr = (uint32_t)addr;
    }
    hunt.walks++;
    if (found && walk(env, addr, &made)) {
        keep(&hunt.hoard[cs->cpu_index], &made);
        watch(&made);
    } else {
        drop(&hunt.hoard[cs->cpu_index], addr);
    }
}

void hunt_drop_page(CPUState *cs, vaddr addr)
{
    if (enabled()) {
        drop(&hunt.hoard[cs->cpu_index], addr);
    }
}

void hunt_drop_local(CPUState *cs)
{
    if (enabled()) {
        g_hash_table_remove_all(hunt.hoard[cs->cpu_index].local);
    }
}

void hunt_drop_all(CPUState *cs)
{
    if (enabled()) {
        g_hash_table_remove_all(hunt.hoard[cs->cpu_index].local);
        g_hash_table_remove_all(hunt.hoard[cs->cpu_index].global);
    }
}

int64_t hunt_turn(CPUState *cs, int64_t most)
{
    if (!enabled()) {
        return most;
    }
    return most < 2 ? most : MIN(most, 1 + draw(&hunt.turns) % (1ull << (6 + draw(&hunt.turns) % 12)));
}

bool hunt_skips(vaddr pc)
{
    bool skips = false;

    if (enabled()) {
        for (unsigned i = 0; i < hunt.skips; i++) {
            skips |= hunt.skip[i].function == pc;
        }
    }
    return skips;
}

/* At the first instruction of a function: returns to its caller, if this call is to be left out. */
void helper_hunt_skip(CPUX86State *env)
{
    CPUState *cs = env_cpu(env);
    uint64_t pc = guest_pc(cs, GETPC());

    for (unsigned i = 0; i < hunt.skips; i++) {
        const Skip *skip = &hunt.skip[i];

        if (skip->function == pc && any_word(env, env->regs[R_ESP], is_caller, skip)) {
            /* Only this gives back the instructions of the block, which have been counted. */
            cpu_restore_state(cs, GETPC());
            env->eip = peek(env, env->regs[R_ESP]);
            env->regs[R_ESP] += 8;
            hunt.skipped++;
            cpu_loop_exit_noexc(cs);
        }
    }
}

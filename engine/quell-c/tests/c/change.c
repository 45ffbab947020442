/* Checks the flushes that changes of entries need: for words of each architecture, for entries of another format, and
   for arguments that are refused. */
#include "checks.h"
#include "machine.h"

static struct quell_tlb_rules rules;
static struct quell_entry old, new;
static struct quell_need need;

/* Computes the flush that a change of one word of a table at this level needs. */
static void change(uint32_t architecture, uint32_t level, uint64_t before, uint64_t after)
{
    DONE(quell_tlb_rules_of(architecture, &rules));
    DONE(quell_entry_of(architecture, level, before, 0, &old));
    DONE(quell_entry_of(architecture, level, after, 0, &new));
    DONE(quell_flush_needed(&rules, &old, &new, &need));
}

static void needs(enum quell_need_kind kind, enum quell_scope scope, bool every_tag, bool break_first)
{
    IS(need.kind, kind);
    IS(need.scope, scope);
    IS(need.every_tag, every_tag);
    IS(need.break_first, break_first);
}

int main(void)
{
    const uint32_t x86 = QUELL_ARCHITECTURE_X86_64, arm = QUELL_ARCHITECTURE_AARCH64,
                   riscv = QUELL_ARCHITECTURE_RISCV64;

    /* x86-64: present 1, writable 2, user 4, accessed 0x20, dirty 0x40, large 0x80, global 0x100. */
    change(x86, 0, 0x5067, 0);
    IS(old.frame, 5);
    IS(old.flags, QUELL_ENTRY_FLAG_PRESENT | QUELL_ENTRY_FLAG_WRITABLE | QUELL_ENTRY_FLAG_USER |
                      QUELL_ENTRY_FLAG_EXECUTABLE | QUELL_ENTRY_FLAG_ACCESSED | QUELL_ENTRY_FLAG_DIRTY);
    IS(new.flags, 0);
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_LEAF, false, false);
    change(x86, 0, 0x5067, 0x5065);
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_LEAF, false, false);
    change(x86, 0, 0x5065, 0x5067);
    needs(QUELL_NEED_KIND_NOTHING, QUELL_SCOPE_LEAF, false, false);
    change(x86, 0, 0, 0x5067);
    needs(QUELL_NEED_KIND_NOTHING, QUELL_SCOPE_LEAF, false, false);
    change(x86, 0, 0x5163, 0);
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_LEAF, true, false);
    change(x86, 1, 0x5067, 0);
    IS(old.flags & QUELL_ENTRY_FLAG_TABLE, QUELL_ENTRY_FLAG_TABLE);
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_TABLES, false, false);
    change(x86, 1, 0x5067, 0x2000e7);
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_TABLES, false, true);

    /* The C-bit isn't part of the frame. */
    DONE(quell_entry_of(x86, 0, 1ull << 51 | 0x5067, 51, &new));
    IS(new.frame, 5);
    IS(new.flags & QUELL_ENTRY_FLAG_ENCRYPTED, QUELL_ENTRY_FLAG_ENCRYPTED);

    /* AArch64: a change to another frame must go through an absent entry. A gained right concerns only the CPU that was
       refused, if the kernel couldn't execute the page before either. */
    change(arm, 0, 0x5443, 0x6443);
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_TABLES, true, true);
    change(arm, 0, 1ull << 53 | 0x5cc3, 1ull << 53 | 0x5c43);
    needs(QUELL_NEED_KIND_LOCAL, QUELL_SCOPE_LEAF, false, false);

    /* RISC-V's TLBs may remember that an entry was absent, unless the kernel knows better. */
    change(riscv, 0, 0, 0x14df);
    needs(QUELL_NEED_KIND_LOCAL, QUELL_SCOPE_LEAF, false, false);
    rules.keeps_absent = 0;
    DONE(quell_flush_needed(&rules, &old, &new, &need));
    needs(QUELL_NEED_KIND_NOTHING, QUELL_SCOPE_LEAF, false, false);

    /* Every field of a word and of an entry reaches the comparison. */
    DONE(quell_entry_of(x86, 0, 0x50ff | 9ull << 59, 0, &old));
    IS(old.memory, 7);
    IS(old.key, 9);
    DONE(quell_entry_of(arm, 0, 1ull << 52 | 0x5443, 0, &old));
    IS(old.flags & QUELL_ENTRY_FLAG_CONTIGUOUS, QUELL_ENTRY_FLAG_CONTIGUOUS);
    DONE(quell_entry_of(arm, 0, 1ull << 50 | 0x5747, 0, &old));
    IS(old.memory, 1);
    IS(old.special != 0, 1);
    DONE(quell_entry_of(riscv, 0, 2ull << 61 | 0x14df, 0, &old));
    IS(old.memory, 2);
    const struct quell_entry plain = {.frame = 7, .flags = QUELL_ENTRY_FLAG_PRESENT};
    for (uint32_t flag = QUELL_ENTRY_FLAG_TABLE; flag <= QUELL_ENTRY_FLAG_ENCRYPTED; flag *= 2) {
        old = plain, new = plain;
        old.flags |= flag;
        DONE(quell_flush_needed(&rules, &old, &new, &need));
        needs(flag == QUELL_ENTRY_FLAG_ACCESSED ? QUELL_NEED_KIND_NOTHING : QUELL_NEED_KIND_FLUSH,
              flag == QUELL_ENTRY_FLAG_TABLE || flag == QUELL_ENTRY_FLAG_ENCRYPTED ? QUELL_SCOPE_TABLES : QUELL_SCOPE_LEAF,
              flag == QUELL_ENTRY_FLAG_GLOBAL, false);
    }
    for (unsigned field = 0; field < 4; field++) {
        old = plain, new = plain;
        new.frame += field == 0, new.memory = field == 1, new.key = field == 2, new.special = field == 3;
        DONE(quell_flush_needed(&rules, &old, &new, &need));
        needs(QUELL_NEED_KIND_FLUSH, new.memory ? QUELL_SCOPE_TABLES : QUELL_SCOPE_LEAF, false, false);
    }
    /* The kernel loses a page that user mode gains, if `user_excludes_kernel` is set. */
    for (rules.user_excludes_kernel = 0; rules.user_excludes_kernel < 2; rules.user_excludes_kernel++) {
        old = plain, new = plain;
        new.flags |= QUELL_ENTRY_FLAG_USER;
        DONE(quell_flush_needed(&rules, &old, &new, &need));
        needs(rules.user_excludes_kernel ? QUELL_NEED_KIND_FLUSH : QUELL_NEED_KIND_LOCAL, QUELL_SCOPE_LEAF, false, false);
    }
    rules.user_excludes_kernel = 1;

    /* An entry in a format of the kernel's own. */
    struct quell_entry page = {.frame = 7, .flags = QUELL_ENTRY_FLAG_PRESENT, .key = 3};
    struct quell_entry other = page;
    other.key = 4;
    DONE(quell_flush_needed(&rules, &page, &other, &need));
    needs(QUELL_NEED_KIND_FLUSH, QUELL_SCOPE_LEAF, false, false);
    DONE(quell_flush_needed(&rules, &page, &page, &need));
    needs(QUELL_NEED_KIND_NOTHING, QUELL_SCOPE_LEAF, false, false);

    REFUSED(quell_tlb_rules_of(UINT32_MAX, &rules), VALUE);
    REFUSED(quell_tlb_rules_of(x86, NULL), NULL);
    REFUSED(quell_entry_of(UINT32_MAX, 0, 1, 0, &old), VALUE);
    REFUSED(quell_entry_of(x86, 5, 1, 0, &old), VALUE);
    REFUSED(quell_entry_of(x86, 0, 1, 52, &old), VALUE);
    REFUSED(quell_entry_of(arm, 0, 1, 51, &old), VALUE);
    REFUSED(quell_entry_of(x86, 0, 1, 0, NULL), NULL);
    REFUSED(quell_flush_needed(NULL, &page, &page, &need), NULL);
    REFUSED(quell_flush_needed(&rules, NULL, &page, &need), NULL);
    REFUSED(quell_flush_needed(&rules, &page, &page, NULL), NULL);
    REFUSED(quell_flush_needed((const void *)((const char *)&rules + 1), &page, &page, &need), MISALIGNED);
    other.flags = 1024;
    REFUSED(quell_flush_needed(&rules, &page, &other, &need), VALUE);
    rules.keeps_refused = 2;
    REFUSED(quell_flush_needed(&rules, &page, &page, &need), VALUE);
    rules.keeps_refused = 0;
    rules.break_before_make = 3;
    REFUSED(quell_flush_needed(&rules, &page, &page, &need), VALUE);
    printf("%u answers were right\n", asked);
    return 0;
}

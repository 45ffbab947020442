/*
 * quell: keeps translation caches (TLBs) coherent on many CPUs. Freestanding C11, or C++17.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Written by cbindgen from the documentation in engine/quell-c/src: change it there.
 *
 * An embedder defines the functions quell_hw_* and quell_panic, which the linker resolves; makes one engine with
 * quell_engine_new; reports every change of a present page-table entry to a batch; and gives frames a new owner when
 * they come out of it. examples/embed.c is a complete program.
 *
 * WHAT THE EMBEDDER PROMISES, to every function:
 *   - A pointer is NULL, which is refused, or points to memory of its type. Memory that is passed as an engine, space,
 *     batch or plan was initialised, if only with zeroes; zeroed memory holds none, and is refused. A library that was built
 *     with QUELL_UNCHECKED=1 in the environment promises none of this: what a function refuses by this header must not
 *     happen then, nor what it has an answer of its own for (false, true, 0 or QUELL_STATUS_NO_ENGINE) because a pointer is
 *     NULL, memory holds nothing of its kind, or this CPU has no number or is not online. Refused are still all
 *     that quell_engine_new refuses, a CPU that comes online twice, a space that ends while it is used, and a frame for a
 *     batch that is full; and quell_is_online says false on a CPU that is not online.
 *   - Engines, spaces, deferred_flushes and coalesced flushes stay where they are, and so does a batch whose flush was started.
 *     A space outlives the batches that were told of it, and is passed to no function during quell_space_retire or after
 *     it. Objects of two engines are never mixed.
 *   - One CPU at a time uses a batch, or initialises an object. Everything else may be called on any CPU at any time.
 *   - The caller stays on its CPU until the call returns.
 *
 * CONTEXT, as each function names it:
 *   - Interrupts may be on or off unless the function says otherwise; quell masks them where it must. An NMI handler
 *     calls only quell_user_access_allowed and quell_enter_kernel, and quell_enter_user where it returns to a program. A
 *     quell_hw_* function calls nothing of quell, but quell_hw_relax and quell_hw_restore_interrupts may let an interrupt
 *     in whose handler calls quell_on_interrupt.
 *   - "May wait": the function waits for other CPUs to take their shootdown interrupt, and serves its own CPU's requests
 *     meanwhile, also with interrupts off. The caller holds no lock for which another CPU spins with interrupts off,
 *     unless that CPU calls quell_poll in its loop. There is no time-out.
 *
 * THE MACHINE. The functions quell_hw_* are called on any CPU, with interrupts on or off unless they say otherwise. None
 * of them waits for other CPUs.
 *
 * ERRORS. A function that can refuse returns an enum quell_status; if that is not QUELL_STATUS_OK, the function has done
 * nothing. quell_status_text explains it. A function that returns bool or a number says what it returns then.
 *
 * ORDERING. Other CPUs that act on a call see what the caller stored before the call. What a function promises "on
 * return" has happened before whatever the caller does next.
 */

#ifndef QUELL_H
#define QUELL_H

#if defined(__linux__) && defined(__KERNEL__)
#include <linux/types.h>  // Linux itself has these types, and not the headers of C.
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

// For so many spaces, 1 to 8, a batch has places. A library that was built with QUELL_BATCH_SPACES in its environment
// wants the same number defined wherever this header is included; quell_engine_new compares them.
#if !defined(QUELL_BATCH_SPACES)
#define QUELL_BATCH_SPACES 8
#endif

#if defined(__GNUC__)
#define QUELL_MUST_USE __attribute__((warn_unused_result))
#else
#define QUELL_MUST_USE
#endif

#if defined(__cplusplus)
#define QUELL_ALIGNED(n) alignas(n)
#elif defined(_MSC_VER)
#define QUELL_ALIGNED(n) __declspec(align(n))
#else
#define QUELL_ALIGNED(n) __attribute__((aligned(n)))
#endif


// Bytes of a `struct quell_engine`.
#define QUELL_ENGINE_SIZE 512

// Bytes of a `struct quell_cpu`.
#define QUELL_CPU_SIZE 1408

// Bytes of a `struct quell_slot`.
#define QUELL_SLOT_SIZE 64

#if !defined(QUELL_CPUS_8192)
// Bytes of a `struct quell_ledger_entry`.
#define QUELL_LEDGER_ENTRY_SIZE 192
#endif

#if defined(QUELL_CPUS_8192)
// Bytes of a `struct quell_ledger_entry`.
#define QUELL_LEDGER_ENTRY_SIZE 1088
#endif

#if !defined(QUELL_CPUS_8192)
// Bytes of a `struct quell_space`.
#define QUELL_SPACE_SIZE 192
#endif

#if defined(QUELL_CPUS_8192)
// Bytes of a `struct quell_space`.
#define QUELL_SPACE_SIZE 1088
#endif

// Bytes of a `struct quell_batch` for each space that it has a place for.
#define QUELL_BATCH_SPACE_SIZE 128

#if !defined(QUELL_CPUS_8192)
// Bytes of a `struct quell_batch`.
#define QUELL_BATCH_SIZE (280 + (QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE))
#endif

#if defined(QUELL_CPUS_8192)
// Bytes of a `struct quell_batch`.
#define QUELL_BATCH_SIZE (1176 + (QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE))
#endif

// Bytes of a `struct quell_deferred_flush`.
#define QUELL_DEFERRED_FLUSH_SIZE 8

// Bytes of a `struct quell_coalesced`.
#define QUELL_COALESCED_SIZE 16

// Bytes of a `struct quell_stamp`.
#define QUELL_STAMP_SIZE 8

// The alignment of what CPUs share, a cache line: engine, CPU, slot, ledger entry and space.
#define QUELL_LINE_ALIGN 64

// The alignment of batch, deferred flush, joined flushes, stamp and plan.
#define QUELL_WORD_ALIGN 8

#if !defined(QUELL_CPUS_8192)
// The most CPUs that an engine handles. A library that was built with the feature "cpus-8192" handles more, and wants
// QUELL_CPUS_8192 to be defined wherever this header is included.
#define QUELL_MAX_CPUS 1024
#endif

#if defined(QUELL_CPUS_8192)
// The most CPUs that an engine handles.
#define QUELL_MAX_CPUS 8192
#endif

#if !defined(QUELL_CPUS_8192)
// The words of a `struct quell_cpu_set`.
#define QUELL_CPU_SET_WORDS 16
#endif

#if defined(QUELL_CPUS_8192)
// The words of a `struct quell_cpu_set`.
#define QUELL_CPU_SET_WORDS 128
#endif

#if !defined(QUELL_CPUS_8192)
// The version of this interface. A header of one version does not work with a library of another, and quell_engine_new
// refuses it. So it does where one of the two is for more CPUs than the other, or for batches of more spaces.
#define QUELL_INTERFACE (2051 - (256 * (uint32_t)QUELL_BATCH_SPACES))
#endif

#if defined(QUELL_CPUS_8192)
// The version of this interface, for 8192 CPUs.
#define QUELL_INTERFACE (536872963 - (256 * (uint32_t)QUELL_BATCH_SPACES))
#endif

// The longest text of a policy that is read, in bytes.
#define QUELL_POLICY_LENGTH 255

// How many counters there are.
#define QUELL_COUNTERS 40

// Bytes of a `struct quell_zero_plan`.
#define QUELL_ZERO_PLAN_SIZE 72

// How much an invalidation takes away.
enum quell_invalidate_kind {
    // The entries of `range` under `tag`, in `scope`. Without tags the tag is ignored.
    QUELL_INVALIDATE_KIND_RANGE,
    // All entries under `tag`, walker caches included; `range` and `scope` say nothing.
    QUELL_INVALIDATE_KIND_TAG,
    // All entries under all tags, walker caches included; global kernel entries may stay.
    QUELL_INVALIDATE_KIND_ALL,
    // The entries of `range`, in `scope`, in the kernel's half: global ones and those under the tag that is loaded, as
    // `invlpg` and `tlbi vaae1` drop them. Where tags mean the same everywhere, those under all tags. Only changes of
    // a space that quell_kernel_space_new made ask for it.
    QUELL_INVALIDATE_KIND_KERNEL,
    // All entries under all tags, global ones and walker caches included, after a full barrier as quell_hw_fence.
    // `tag`, `range` and `scope` say nothing. quell_cpu_online asks for it, too: in a kernel that makes no kernel
    // space it may be treated as `All`.
    QUELL_INVALIDATE_KIND_EVERYTHING,
};

// What an invalidation reaches besides leaf entries.
enum quell_scope {
    // Only leaf entries changed: the walker caches may keep upper levels.
    QUELL_SCOPE_LEAF,
    // Page-table pages were unlinked too: the walker caches drop what they know of them, and CPUs that hold the
    // space lazily leave it.
    QUELL_SCOPE_TABLES,
};

// What came of a call. Everything but `QUELL_STATUS_OK` is a refusal: nothing was done.
enum quell_status {
    // Done.
    QUELL_STATUS_OK,
    // A pointer that must not be NULL is NULL.
    QUELL_STATUS_NULL,
    // Memory is not aligned as its type demands.
    QUELL_STATUS_MISALIGNED,
    // The header is not the library's: `quell_setup.interface` is not QUELL_INTERFACE.
    QUELL_STATUS_INTERFACE,
    // The text is no policy.
    QUELL_STATUS_POLICY,
    // The engine does not run on such a machine, or not with so many CPUs.
    QUELL_STATUS_UNSUPPORTED,
    // There is no engine in this memory: quell_engine_new has not succeeded.
    QUELL_STATUS_NO_ENGINE,
    // There is no space in this memory: it was not made, or it was retired.
    QUELL_STATUS_NO_SPACE,
    // There is no batch in this memory: it was not begun.
    QUELL_STATUS_NO_BATCH,
    // There is no plan for zeroing in this memory: it was not made.
    QUELL_STATUS_NO_PLAN,
    // quell_hw_this_cpu gave a number that the engine has no CPU for.
    QUELL_STATUS_CPU,
    // This CPU is not online.
    QUELL_STATUS_OFFLINE,
    // This CPU is online already; for quell_engine_new, one of the engine's is.
    QUELL_STATUS_ONLINE,
    // This CPU runs the space.
    QUELL_STATUS_RUNNING,
    // A batch that was told of the space is not finished.
    QUELL_STATUS_IN_BATCH,
    // The batch has room for no more frames: finish it, then report again.
    QUELL_STATUS_FULL,
    // The range is empty, is no whole number of strides, or ends beyond the address space.
    QUELL_STATUS_RANGE,
    // A number that the header has no name for, where it names an enumeration.
    QUELL_STATUS_VALUE,
    // The flush of the batch was started: quell_batch_finish ends it.
    QUELL_STATUS_IN_FLIGHT,
};

// Whom a change concerns.
enum quell_need_kind {
    // No CPU.
    QUELL_NEED_KIND_NOTHING,
    // A CPU that was refused an access through the entry: it forgets it before it tries again (quell_refresh). No
    // other is told.
    QUELL_NEED_KIND_LOCAL,
    // Every CPU that may hold the entry: report it to a batch.
    QUELL_NEED_KIND_FLUSH,
};

// The size of the entries that map a range.
enum quell_stride {
    // 4 KB: entries of the lowest level.
    QUELL_STRIDE_BASE,
    // 2 MB: entries one level up, 512 pages each.
    QUELL_STRIDE_LARGE,
    // 1 GB: entries two levels up, 262144 pages each.
    QUELL_STRIDE_HUGE,
};

// What a batch is for.
enum quell_purpose {
    // The changes of one call of the program: unmap, protect, fork, a fault.
    QUELL_PURPOSE_CALL,
    // Pages taken away by reclaim.
    QUELL_PURPOSE_RECLAIM,
    // Pages about to move to other frames.
    QUELL_PURPOSE_MIGRATION,
    // Clean pages that were mapped read-only everywhere, taken away by reclaim or demotion: the batch may end with
    // quell_batch_finish_deferred, so nothing is sent before.
    QUELL_PURPOSE_LAZY,
};

// How the machine tags TLB entries with the address space that they belong to.
enum quell_tagging {
    // No tags: a root switch drops every entry that is not global.
    QUELL_TAGGING_NONE,
    // Each CPU gives tags their meaning (x86 PCIDs, ASIDs of a RISC-V hart's own): tags 1 to `tags` may be used.
    QUELL_TAGGING_PER_CPU,
    // A tag means the same on every CPU (Arm ASIDs): tags of `tags` bits may be used, 8 or 16. Needs `broadcast`.
    QUELL_TAGGING_GLOBAL,
};

// What is counted, each on its own CPU: a sum of CPUs is not one moment in time.
enum quell_counter {
    // Flushes that a change of an entry asked for.
    QUELL_COUNTER_REQUESTED,
    // Shootdowns that interrupted at least one CPU.
    QUELL_COUNTER_SHOOTDOWNS,
    // Interrupts sent.
    QUELL_COUNTER_SENT,
    // Requests posted to a CPU for which an interrupt was already under way.
    QUELL_COUNTER_MERGED,
    // Targets left out because they keep the space lazily, or flush as they enter the kernel.
    QUELL_COUNTER_SKIPPED_LAZY,
    // Targets left out because they have left the space.
    QUELL_COUNTER_SKIPPED_LEFT,
    // Targets left out because they are offline.
    QUELL_COUNTER_SKIPPED_OFFLINE,
    // Flushes that no other CPU had to hear of.
    QUELL_COUNTER_SKIPPED_NO_TARGET,
    // Requests taken for a space that the CPU no longer runs.
    QUELL_COUNTER_IGNORED_OTHER_SPACE,
    // Requests taken that an earlier flush had already covered.
    QUELL_COUNTER_IGNORED_GENERATION,
    // Lazy CPUs that left their space because of a request.
    QUELL_COUNTER_EVICTED,
    // Requests flushed by their ranges, stride by stride.
    QUELL_COUNTER_FLUSHED_RANGES,
    // Flushes of a whole tag.
    QUELL_COUNTER_FLUSHED_FULL,
    // Requests that became a whole tag because their ranges had too many strides.
    QUELL_COUNTER_ESCALATED_LENGTH,
    // Requests that became a whole tag because two initiators met at a target.
    QUELL_COUNTER_ESCALATED_CONTENTION,
    // Requests that became a whole tag because the target had missed one.
    QUELL_COUNTER_ESCALATED_GAP,
    // Changes that no batch counts: a space too many in one batch, or a batch too many of one space.
    QUELL_COUNTER_ESCALATED_BATCH,
    // Waits for a target's acknowledgement.
    QUELL_COUNTER_WAITED,
    // Of these, waits that were content with the receipt.
    QUELL_COUNTER_WAITED_RECEIPT,
    // Own requests served before their interrupt came: in a wait, or as the handler looked again.
    QUELL_COUNTER_SERVED_EARLY,
    // Broadcast invalidations sent.
    QUELL_COUNTER_BROADCASTS,
    // Waits for the completion of broadcasts.
    QUELL_COUNTER_BARRIERS,
    // Context switches.
    QUELL_COUNTER_SWITCHES,
    // Switches that kept the space's entries.
    QUELL_COUNTER_SWITCH_KEPT,
    // Switches that had to flush because the space changed meanwhile.
    QUELL_COUNTER_SWITCH_BEHIND,
    // Switches that took a tag over from another space.
    QUELL_COUNTER_SWITCH_TAG_TAKEN,
    // System-wide tag rollovers.
    QUELL_COUNTER_ROLLOVERS,
    // Batches whose flush is deferred until reuse.
    QUELL_COUNTER_FLUSHES_DEFERRED,
    // Batches that could not defer because the ledger was full.
    QUELL_COUNTER_DEFERRALS_REFUSED,
    // Frames reused whose deferred flush had been paid by other flushes.
    QUELL_COUNTER_REUSED_FREE,
    // Payments made for a reuse.
    QUELL_COUNTER_FLUSHED_FOR_REUSE,
    // Payments made because an entry or a slot was about to be filled again.
    QUELL_COUNTER_FLUSHED_FOR_REFILL,
    // Payments made by a later observer that met a cleared entry.
    QUELL_COUNTER_FLUSHED_PENDING,
    // Payments made by a switch to an with a deferred flush space.
    QUELL_COUNTER_FLUSHED_BY_SWITCH,
    // Payments made in the background.
    QUELL_COUNTER_FLUSHED_IN_BACKGROUND,
    // CPUs that a payment found flushed already.
    QUELL_COUNTER_FOUND_FLUSHED,
    // Flushes by which a CPU caught up with the flush clock before an initiator asked it to.
    QUELL_COUNTER_CAUGHT_UP,
    // Frames taken back by the page they belonged to.
    QUELL_COUNTER_REINSTATED,
    // Targets left out because they are virtual CPUs that do not run.
    QUELL_COUNTER_SKIPPED_NOT_RUNNING,
    // Flushes of everything that another task has made for this one.
    QUELL_COUNTER_COALESCED,
};

// What TLBs keep of the entries of a kernel space.
enum quell_kernel_entries {
    // Global entries, one for all tags.
    QUELL_KERNEL_ENTRIES_GLOBAL,
    // Entries that are not global, or entries of both kinds. TLBs keep the former under each tag that was loaded as
    // they were used, so on CPUs with tags of their own a flush costs the entries of all other spaces.
    QUELL_KERNEL_ENTRIES_TAGGED,
};

// Whose page tables.
enum quell_architecture {
    // x86-64.
    QUELL_ARCHITECTURE_X86_64,
    // AArch64, 4 KB granule, stage 1.
    QUELL_ARCHITECTURE_AARCH64,
    // RISC-V, Sv39 and up.
    QUELL_ARCHITECTURE_RISCV64,
};

// What an entry says that is yes or no: bits of `quell_entry.flags`.
enum quell_entry_flag {
    // Walkers may use the entry. If not, no other field means anything.
    QUELL_ENTRY_FLAG_PRESENT = 1,
    // It points to a table of the next level rather than mapping a page.
    QUELL_ENTRY_FLAG_TABLE = 2,
    // May be stored to. For a table, as the next two: the pages below may, if their own entries say so, too.
    QUELL_ENTRY_FLAG_WRITABLE = 4,
    // User mode may use it.
    QUELL_ENTRY_FLAG_USER = 8,
    // Instructions may be fetched: by user mode if it may use it, else by the kernel.
    QUELL_ENTRY_FLAG_EXECUTABLE = 16,
    // An access was recorded.
    QUELL_ENTRY_FLAG_ACCESSED = 32,
    // A store was recorded. Not for tables.
    QUELL_ENTRY_FLAG_DIRTY = 64,
    // The translation belongs to every address space.
    QUELL_ENTRY_FLAG_GLOBAL = 128,
    // It is one of sixteen in an aligned row that map sixteen adjacent frames in the same way.
    QUELL_ENTRY_FLAG_CONTIGUOUS = 256,
    // The memory is encrypted with the machine's key (AMD's C-bit).
    QUELL_ENTRY_FLAG_ENCRYPTED = 512,
};

// Which changes of a present entry must go through an absent one, with a flush in between.
enum quell_break {
    // None (RISC-V).
    QUELL_BREAK_NEVER,
    // Those that may change the size of a translation (x86-64).
    QUELL_BREAK_SIZE,
    // Those, and any other that makes two translations of one address contradict each other (AArch64).
    QUELL_BREAK_TRANSLATION,
};

// A run of virtual pages that are or were mapped with entries of one size. Pages are counted in 4096 bytes, whatever
// the stride.
struct quell_range {
    // The first page: its address divided by 4096. A multiple of the stride.
    uint64_t start;
    // How many pages of 4096 bytes, at least one: a multiple of the stride.
    uint64_t pages;
    // An `enum quell_stride`: one invalidation per stride covers the range, and drops what translates the first page
    // of that stride. Base pages must not be reported in larger strides.
    uint32_t stride;
};

// What to invalidate.
struct quell_invalidate {
    // How much.
    enum quell_invalidate_kind kind;
    // Leaf entries alone, or the walker caches on the path as well.
    enum quell_scope scope;
    // The range, one invalidation per stride.
    struct quell_range range;
    // The hardware's tag: PCID or ASID. Tag 0 is the kernel's.
    uint16_t tag;
};

// A set of CPUs: CPU n is a member if bit n % 64 of `bits[n / 64]` is set.
struct quell_cpu_set {
    // The members.
    uint64_t bits[QUELL_CPU_SET_WORDS];
};

// The engine of a machine. Place it zeroed; quell_engine_new makes it. It stays where it is.
struct QUELL_ALIGNED(64) quell_engine {
    uint8_t opaque[QUELL_ENGINE_SIZE];
};

// What the machine can do.
struct quell_features {
    // An `enum quell_tagging`.
    uint32_t tagging;
    // The highest tag (per-CPU tags), or the bits of a tag (global ones).
    uint32_t tags;
    // A request with more strides than this, in all of its ranges together, is flushed as a whole tag; 0 makes every
    // flush one. Linux has 33 on x86 and 512 on arm64.
    uint64_t full_above;
    // Whether quell_hw_broadcast_start reaches all CPUs without an interrupt: 0 or 1.
    uint32_t broadcast;
};

// The engine's state for one CPU. An array of them goes to quell_engine_new, which initialises it.
struct QUELL_ALIGNED(64) quell_cpu {
    uint8_t opaque[QUELL_CPU_SIZE];
};

// The engine's memory for one tag of one CPU, where more than eight are wanted. An array of them goes to
// quell_engine_new, which initialises it.
struct QUELL_ALIGNED(64) quell_slot {
    uint8_t opaque[QUELL_SLOT_SIZE];
};

// The memory of one batch that defers its flush (S3). An array of them goes to quell_engine_new, which initialises it.
struct QUELL_ALIGNED(64) quell_ledger_entry {
    uint8_t opaque[QUELL_LEDGER_ENTRY_SIZE];
};

// Optional functions of the embedder. Set the struct to zero first: a function that is NULL is not called. Like the
// functions quell_hw_*, none of them calls quell or waits for other CPUs.
struct quell_hooks {
    // This CPU executes no instruction that it fetched before the call: `isb` on Arm, on x86 an instruction that
    // serializes. quell_synchronize_text refuses to work without it.
    void (*synchronize_text)(void);
    // In a guest: asks the hypervisor to flush the virtual CPU `target` if that does not run. True if it did not run,
    // and will have lost every translation, global ones and walker caches included, before it executes or walks again:
    // then quell does not interrupt it. Called for each target, after the tables were changed. The function is one
    // atomic operation, a full barrier, on memory that the hypervisor shares with the guest.
    bool (*flush_on_reentry)(uint32_t target);
    // Starts to invalidate the translations that other walkers of a space's tables hold (an IOMMU, a hypervisor's
    // second stage): `range` has changed, or everything if it is NULL, in the space whose root is in frame `root`;
    // `scope` is an `enum quell_scope`. Called after the tables were changed, on the CPU that flushes or defers the
    // flush, for every change that needs a flush, also under the lock of a table, so it waits for nothing. If the
    // flush is deferred until reuse, this is called at the unmap. If the library was built without the feature
    // "secondary", quell_engine_new refuses it.
    void (*start_secondary)(uint64_t root,
                            const struct quell_range *range,
                            uint32_t scope);
    // A number that stands for all that was started with `start_secondary` before this call, by this CPU and by others
    // of which it has heard: the number of a command behind them in the device's queue, for instance. Waits for
    // nothing.
    uint64_t (*mark_secondary)(void);
    // Whether all that `mark` stands for is complete: devices use and fill none of what was invalidated. Asked, on any
    // CPU, until it says yes, before a flush is over. It does not wait: quell serves requests for its CPU between two
    // questions, and quell_batch_poll asks once. NULL: it is complete when `start_secondary` has returned.
    bool (*secondary_is_done)(uint64_t mark);
    // This CPU has answered requests while a flush is in flight (quell_batch_start): the kernel may wake, or queue,
    // the code that calls quell_batch_poll. It may be called without need, but never too early. Interrupts are masked.
    void (*flush_answered)(void);
    // This CPU has waited for CPU `target` for `turns` turns of quell_hw_relax: a kernel may report a hang. Called
    // after 65536 turns, and each time that their number has doubled. `target` does not answer, or it goes on running
    // a space that ends (quell_space_retire). The wait goes on when it returns.
    void (*waits_long)(uint32_t target,
                       uint64_t turns);
};

// The parts of an engine. Set the struct to zero first; each field says what zero means.
struct quell_setup {
    // QUELL_INTERFACE.
    uint32_t interface;
    // What the machine can do.
    struct quell_features features;
    // Which mechanisms are on, as text: "all", "baseline", "S0+S4", "all-S3,tags=64,cap=8M". NULL is "all", which a
    // library that was built without a mechanism refuses. Read once, at most QUELL_POLICY_LENGTH bytes.
    const char *policy;
    // Memory for the CPUs 0 to `cpu_count` - 1, which the engine keeps. NULL if `cpu_places` is not.
    struct quell_cpu *cpus;
    // Where the memory of each CPU is, if it is not one array: in the kernel's per-CPU areas, for instance. An array
    // of `cpu_count` pointers to places that are each another CPU's alone; the engine keeps the array as well. NULL if
    // `cpus` is not.
    struct quell_cpu *const *cpu_places;
    // How many CPUs there are, online or not: 1 to QUELL_MAX_CPUS.
    size_t cpu_count;
    // Memory for `cpu_count` times `slots_per_cpu` tags, which the engine keeps: where each CPU is to keep more than
    // eight spaces tagged. NULL if `slots_per_cpu` is 0.
    struct quell_slot *slots;
    // How many slots each CPU gets from `slots`; with 0 it has eight of its own.
    size_t slots_per_cpu;
    // Memory of the flush clock (S3), which the engine keeps. NULL if `ledger_entries` is 0.
    struct quell_ledger_entry *ledger;
    // How many ledger entries there are: so many batches can defer their flush at once. 64 is plenty, 0 switches S3
    // off.
    size_t ledger_entries;
    // The optional functions; read once. NULL: there are none.
    const struct quell_hooks *hooks;
    // If quell_engine_new refuses, it writes the reason here, one line, cut off if it is too long and ended with a
    // zero byte. NULL: it writes none.
    char *message;
    // The bytes of `message`; 160 are enough.
    size_t message_size;
};

// An address space. quell_space_new makes it. It stays where it is until it is retired; then its memory is zero.
struct QUELL_ALIGNED(64) quell_space {
    uint8_t opaque[QUELL_SPACE_SIZE];
};

// A batch: entries that changed and the frames behind them. Best on the stack; quell_batch_begin makes it.
struct QUELL_ALIGNED(8) quell_batch {
    uint8_t opaque[QUELL_BATCH_SIZE];
};

// When the flush of a batch began to be deferred: a number of 64 bits in the machine's order of bytes, larger for each
// later deferred flush of an engine. Zero is no such moment.
struct QUELL_ALIGNED(8) quell_stamp {
    uint8_t opaque[QUELL_STAMP_SIZE];
};

// The flushes of one space that tasks share, beside that space and for it alone. Zeroed memory is one that nobody has
// asked yet.
struct QUELL_ALIGNED(8) quell_coalesced {
    uint8_t opaque[QUELL_COALESCED_SIZE];
};

// What the TLBs of a machine may keep, and what it forbids. Each but the last is 0 or 1.
struct quell_tlb_rules {
    // An entry that has refused an access may stay.
    uint32_t keeps_refused;
    // It may be kept that an entry was absent.
    uint32_t keeps_absent;
    // The kernel may not use what user mode may: a page that user mode gains is one that the kernel loses.
    uint32_t user_excludes_kernel;
    // An `enum quell_break`.
    uint32_t break_before_make;
};

// What a page-table entry says.
struct quell_entry {
    // The frame of the table, or the first of the page.
    uint64_t frame;
    // Bits of an `enum quell_entry_flag`.
    uint32_t flags;
    // How the memory is cached: a number that the architecture explains (PAT index, MAIR index, PBMT); 0 is ordinary
    // memory.
    uint8_t memory;
    // The protection key, or 0.
    uint8_t key;
    // What only the architecture has a name for; 0 for ordinary pages and tables.
    uint8_t special;
};

// The least flush that a change needs.
struct quell_need {
    // Whom it concerns.
    enum quell_need_kind kind;
    // Leaf entries alone, or the walker caches and all that lies below the entry. Never leaf entries alone where
    // `break_first` is set or the memory type or the encryption changes: such a flush is waited for to the end, also
    // under a policy with asynchronous flushes.
    enum quell_scope scope;
    // For a flush: under every tag. The entry was global, or is to become so.
    bool every_tag;
    // For a flush: between clearing the entry and writing the new one; otherwise after writing it.
    bool break_first;
};

// What a frame defers: one word in the embedder's frame table. Zeroed memory is a deferred flush that has no deferred
// flush, and a deferred flush has no deferred flush exactly while it is zero.
struct QUELL_ALIGNED(8) quell_deferred_flush {
    uint8_t opaque[QUELL_DEFERRED_FLUSH_SIZE];
};

// How memory is zeroed on this processor. quell_zero_plan_new makes it.
struct QUELL_ALIGNED(8) quell_zero_plan {
    uint8_t opaque[QUELL_ZERO_PLAN_SIZE];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The meaning of a status: one line, without a newline, ended with a zero byte, which stays valid for ever. A number
// that is no status has a text that says so.
//
// Context: any.
const char *quell_status_text(uint32_t status);

// The number of the CPU that executes the call, from 0, and of no other CPU at the same time.
extern uint32_t quell_hw_this_cpu(void);

// A full barrier that also makes table stores visible to the walkers of all CPUs: its own stores, and those of
// other CPUs that it has observed, for instance by taking the lock under which they were made. `mfence` on x86,
// `dsb ish` on Arm.
extern void quell_hw_fence(void);

// Invalidates translations of this CPU alone. In effect when it returns: no later access of this CPU uses an entry
// that is covered, unless it was filled again from the tables after the call began. Fills after the call see the
// table stores before it, and those of other CPUs that this one has observed (on Arm that takes `dsb ishst` first,
// and `dsb ish` where nothing is broadcast). quell_hw_load_root without `keep` does as much. A store with release
// after the call is seen by other CPUs only after the invalidation has taken effect. A tag that is named is the
// one that is loaded.
extern void quell_hw_invalidate(const struct quell_invalidate *what);

// Starts to invalidate translations on every CPU (`TLBI ... IS`, INVLPGB). Table stores before the call are seen
// by fills after the completion. Not called unless `quell_features.broadcast` is set; then it may be a trap. A
// library without the feature "broadcast" refers neither to it nor to quell_hw_broadcast_complete.
extern void quell_hw_broadcast_start(const struct quell_invalidate *what);

// Waits until every broadcast that *this* CPU has sent is complete on every CPU (`dsb ish`, `tlbsync`). Not
// called unless `quell_features.broadcast` is set.
extern void quell_hw_broadcast_complete(void);

// Loads the root table in frame `root` under `tag`. With `keep`, entries under the tag survive; without, all of
// them are gone on return. Without tags, nothing survives. Interrupts are masked.
extern void quell_hw_load_root(uint64_t root,
                               uint16_t tag,
                               bool keep);

// Leaves every user root: until the next quell_hw_load_root this CPU uses and fills no user translation (the
// kernel's own root on x86, a reserved table on Arm). Entries under the tag that this loads are dropped, global
// ones excepted. Interrupts are masked.
extern void quell_hw_unload_root(void);

// Interrupts each CPU of `targets`; the caller is never one of them. Each target sooner or later calls
// quell_on_interrupt, and sees there what was stored before this call. `targets` is valid until this function
// returns. The words behind those that have CPUs of the engine are not written: do not read or copy them.
// Interrupts are masked, so it must not wait for other CPUs.
extern void quell_hw_interrupt(const struct quell_cpu_set *targets);

// Masks interrupts on this CPU; returns whether they were on.
extern bool quell_hw_mask_interrupts(void);

// Undoes quell_hw_mask_interrupts: turns interrupts on again if `were_on`.
extern void quell_hw_restore_interrupts(bool were_on);

// One turn of a waiting loop (`pause`, `yield`); other CPUs must make progress meanwhile.
extern void quell_hw_relax(void);

#if defined(QUELL_DEBUG_ASSERTIONS)
// Whether this CPU may wait for others now: a lock checker of the kernel answers here. Only a library with debug
// assertions asks, and only for that is the function needed; `false` makes it panic.
extern bool quell_hw_may_wait(void);
#endif

// Called when quell finds a promise broken: `message` has `length` bytes in UTF-8 and a zero byte behind them, and
// names the place in quell's source. Must not return; if it does, this CPU spins for ever. It may be called on
// several CPUs at once, with interrupts on or off. A library that was built for an operating system does not call
// it: there a panic is printed and the process aborts.
extern void quell_panic(const char *message,
                        size_t length);

// Makes an engine. `engine` is zeroed memory, or holds an engine whose CPUs are all offline. The memory that `setup`
// names is the engine's from now on; `setup` itself, the policy's text and the message are not kept. No function
// unmakes an engine: when all of its CPUs are offline, its memory may be used for something else.
//
// Refuses: a NULL `engine` or `setup`; both or none of `cpus` and `cpu_places`, or a NULL in the latter; memory that
// is not aligned; a wrong `interface`; a text that is no policy, or asks for a mechanism that the library was built
// without; features that contradict each other; numbers of CPUs that are not supported; memory of an engine that has a
// CPU online; `start_secondary` in a library without it.
//
// Context: once, before any CPU is online.
QUELL_MUST_USE
enum quell_status quell_engine_new(struct quell_engine *engine,
                                   const struct quell_setup *setup);

// Writes the policy of an engine to `text`, as quell_setup takes it, ended with a zero byte and cut off if `size`
// bytes do not hold it; 64 do.
//
// Context: any.
enum quell_status quell_policy_text(const struct quell_engine *engine,
                                    char *text,
                                    size_t size);

// Whether an engine's policy has a mechanism on, `mechanism` being 0 to 4 for S0 to S4: false if there is none of that
// number, and for memory without an engine.
//
// Context: any.
bool quell_policy_has(const struct quell_engine *engine,
                      uint32_t mechanism);

// The longest run of zeroing without a preemption point that the policy allows, in bytes; UINT64_MAX is no limit. 0
// for memory without an engine.
//
// Context: any.
uint64_t quell_policy_cap(const struct quell_engine *engine);

// Takes this CPU into the protocol, before it loads its first space and before it uses a mapping of the kernel that
// may change. Of the kernel's text it drops nothing: if that has changed, the CPU then drops what it has fetched, by
// itself.
//
// Refuses a CPU that the engine has no number for, and one that is online.
//
// Context: on the CPU itself, interrupts masked or nothing to interrupt.
QUELL_MUST_USE
enum quell_status quell_cpu_online(struct quell_engine *engine);

// Takes this CPU out of the protocol: the CPU leaves its space, answers the requests that it has, and gets no more.
// Until quell_cpu_online it touches no user memory, and no mapping of the kernel that is ever reported to a batch;
// tables of the kernel's half are freed only where its walker cannot reach them. `from` is as for quell_switch_to: the
// space that this CPU loaded last, even if it keeps that lazily or the engine made it leave the root; NULL only if
// there was none or it was retired. If another space is passed, or NULL, the space that was loaded goes on naming this
// CPU: until it is retired, its flushes interrupt this CPU in vain.
//
// Refuses a CPU that is not online.
//
// Context: on the CPU itself.
QUELL_MUST_USE
enum quell_status quell_cpu_offline(struct quell_engine *engine,
                                    struct quell_space *from);

// The handler of the shootdown interrupt: takes and flushes every request for this CPU. A spurious call costs a few
// loads. Before the engine is made there is nothing to do, and QUELL_STATUS_NO_ENGINE says so.
//
// Refuses a CPU that the engine has no number for.
//
// Context: any that is not an NMI and not inside quell with interrupts masked. Does not wait.
enum quell_status quell_on_interrupt(struct quell_engine *engine);

// quell_on_interrupt for a kernel that knows where the engine's state of each CPU is: `here` is that of this CPU, one
// of `quell_setup.cpus` or `cpu_places`.
//
// Refuses what quell_on_interrupt refuses, and the state of another CPU.
//
// Context: as quell_on_interrupt, with interrupts masked.
enum quell_status quell_on_interrupt_masked(struct quell_engine *engine,
                                            struct quell_cpu *here);

// For a loop that spins, with interrupts off, for a lock whose holder may be waiting in quell: takes and flushes the
// requests for this CPU. A few loads if there are none.
//
// Refuses a CPU that the engine has no number for.
//
// Context: as quell_on_interrupt.
enum quell_status quell_poll(struct quell_engine *engine);

// Whether an NMI handler or a probe may access user memory right now. If not, it gives up, as for an access that
// faults. False for memory without an engine, and on a CPU that the engine has no number for. Other code need not ask.
//
// Context: any, an NMI too, on an online CPU.
bool quell_user_access_allowed(const struct quell_engine *engine);

// Whether this CPU has no user root loaded. False for memory without an engine, and on a CPU that the engine has no
// number for.
//
// Context: on an online CPU, where it cannot switch meanwhile.
bool quell_is_detached(const struct quell_engine *engine);

// Context switch to a user thread of `to`; also the way back from lazy mode. `from` is the space that this CPU had
// loaded last, lazily or not and even if it was made to leave it; NULL only if there was none or it was retired. It
// may be `to`.
//
// On return user accesses of this CPU go through the current tables of `to`, and every flush of `to` that was complete
// when the call began has taken effect here.
//
// Refuses a CPU that is not online, a space that was not made or was retired, and a kernel space as `to`: every CPU
// has that loaded already. A kernel space as `from` counts as NULL.
//
// Context: the scheduler's switch, where this CPU cannot be in two at once. Does not wait for other CPUs' answers;
// with system-wide tags it spins while another CPU takes one.
QUELL_MUST_USE
enum quell_status quell_switch_to(struct quell_engine *engine,
                                  struct quell_space *from,
                                  struct quell_space *to);

// quell_switch_to for the scheduler of a kernel that knows where the engine's state of each CPU is: `here` is that of
// this CPU, one of `quell_setup.cpus` or `cpu_places`. It calls nothing of the machine but quell_hw_load_root, and
// that, where the machine has no tags and nothing may be deferred, after some 20 instructions.
//
// Refuses what quell_switch_to refuses, a kernel space as `from`, and the state of another CPU.
//
// Context: as quell_switch_to, with interrupts masked.
QUELL_MUST_USE
enum quell_status quell_switch_masked(struct quell_engine *engine,
                                      struct quell_cpu *here,
                                      struct quell_space *from,
                                      struct quell_space *to);

// This CPU goes idle or runs a kernel thread: the root stays loaded, lazily, and its user half is not used. Of that
// space only freed page-table pages, and the end of the space, still interrupt the CPU. quell_switch_to or
// quell_resume ends it.
//
// Refuses a CPU that is not online.
//
// Context: as quell_switch_to.
QUELL_MUST_USE
enum quell_status quell_enter_lazy(struct quell_engine *engine);

// quell_enter_lazy for the scheduler of a kernel that knows where the engine's state of each CPU is: `here` is that of
// this CPU, one of `quell_setup.cpus` or `cpu_places`.
//
// Refuses what quell_enter_lazy refuses, and the state of another CPU.
//
// Context: as quell_switch_to.
QUELL_MUST_USE
enum quell_status quell_enter_lazy_here(struct quell_engine *engine,
                                        struct quell_cpu *here);

// The way back from lazy mode to `space`, if this CPU has kept its root: for a kernel thread before it accesses the
// user memory of `space`, and for the end of an idle period. False, and nothing was done, if the CPU has left that
// root meanwhile (call quell_switch_to then), if it is not online, or if a pointer is refused.
//
// Context: as quell_switch_to.
QUELL_MUST_USE
bool quell_resume(struct quell_engine *engine,
                  struct quell_space *space);

// This CPU returns to its program; until quell_enter_kernel, changes of the kernel's mappings do not interrupt it (for
// a `nohz_full` CPU). It flushes them in quell_enter_kernel. Without effect on a CPU that runs no user space.
//
// Until quell_enter_kernel this CPU uses no mapping that is ever reported to a batch of a kernel space: the text and
// the stack on its way out of the kernel and in again, quell and its memory are never unmapped or moved. Of quell it
// calls nothing but quell_on_interrupt.
//
// Refuses a CPU that is not online.
//
// Context: on the CPU itself, interrupts masked. Does not wait.
enum quell_status quell_enter_user(struct quell_engine *engine);

// This CPU has entered the kernel from a program: flushes the kernel's mappings if an initiator has left that to it.
// Every interrupt, exception, system call and NMI that may come from a program calls it first. On a CPU that has not
// called quell_enter_user since it costs a few loads.
//
// Refuses a CPU that is not online.
//
// Context: interrupts masked, or an NMI, before a mapping of the kernel is used that may change. Does not wait.
enum quell_status quell_enter_kernel(struct quell_engine *engine);

// On return every CPU that is online has flushed what it had been asked to flush before the call, where an initiator
// may have been content with the receipt. Interrupts no CPU. For frames that bear no speculative load: those whose
// memory type or encryption is to change, that a guest is to have for itself alone, or that leave the machine. Called
// after they have come out of a batch, or were reused. It says nothing of CPUs that were not asked: one that has the
// space loaded lazily, unless the change was reported with QUELL_SCOPE_TABLES; and, of the kernel's mappings, one
// between quell_enter_user and quell_enter_kernel.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_quiesce(struct quell_engine *engine);

// On return no CPU that is online executes an instruction that it fetched before the call. Called after the text of
// the kernel was written, mapped or unmapped, and after the batch that was told of it has finished. If the machine's
// instruction caches need maintenance, the kernel does that before. A CPU that is offline is not told, now or later.
//
// Refuses an engine without `quell_hooks.synchronize_text`, and a CPU that the engine has no number for.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_synchronize_text(struct quell_engine *engine);

// Whether this CPU takes part in the protocol. False for memory without an engine, and on a CPU that the engine has no
// number for.
//
// Context: any but an NMI, where the caller stays on this CPU.
bool quell_is_online(const struct quell_engine *engine);

// Whether this CPU runs `space`: has it loaded and is not lazy. False where a pointer is refused.
//
// Context: on a CPU that is online, where it cannot switch meanwhile.
bool quell_runs(const struct quell_engine *engine,
                const struct quell_space *space);

// This CPU leaves `space`, if it has that loaded, lazily or not, and goes on without any user root until
// quell_switch_to: no flush of the space interrupts it then. If the engine made it leave the root before, and it has
// no other loaded, the space no longer names it either.
//
// Refuses a CPU that is not online, and a space that was not made or was retired.
//
// Context: as quell_switch_to.
QUELL_MUST_USE
enum quell_status quell_leave(struct quell_engine *engine,
                              struct quell_space *space);

// Makes an address space whose root table is in frame `root` (its physical address divided by 4096), loaded on no CPU.
// `space` is memory of any content that stays where it is until the space has been retired.
//
// The root is a table of the machine's format that maps the kernel as every root does, until quell_space_retire has
// returned. No other space has this root.
//
// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_space_new(struct quell_engine *engine,
                                  struct quell_space *space,
                                  uint64_t root);

// Makes a space of the kernel's own mappings, which every CPU has loaded from the start and for ever: stacks, memory
// of `vmalloc`, windows onto I/O memory, the text of modules. Their changes are reported to batches as those of any
// other space. The initiator of a flush asks every CPU that is online, but for those between quell_enter_user and
// quell_enter_kernel, and waits until each has flushed. `entries` is an `enum quell_kernel_entries`: what TLBs keep of
// these mappings. A kernel may have several such spaces. `space` is memory of any content that stays where it is for
// ever: a kernel space is not retired.
//
// The root in frame `root` maps the kernel. With QUELL_KERNEL_ENTRIES_GLOBAL all entries that are reported with this
// space are global; with QUELL_KERNEL_ENTRIES_TAGGED they may be or not. quell_hw_invalidate handles
// QUELL_INVALIDATE_KIND_KERNEL and QUELL_INVALIDATE_KIND_EVERYTHING.
//
// The kernel may unmap a range that it uses no more with quell_batch_finish_deferred, whatever its rights were: it
// gives the addresses out again after quell_flush_until, the frames after quell_flush_before_reuse.
//
// Refuses an `entries` that is none of the enumeration.
//
// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_kernel_space_new(struct quell_engine *engine,
                                         struct quell_space *space,
                                         uint64_t root,
                                         uint32_t entries);

// Ends a space in which no user thread will ever run again: makes every CPU leave its root. On return no walker reads
// its tables, and they, the root included, may be freed; the memory of the space is zero, and its owner's again.
//
// It does not wait for a CPU that the engine made leave the space before. So when it returns, no CPU may be in
// quell_switch_to or quell_cpu_offline with this space as `from`, and none may make such a call later: it
// writes to the memory of the space. A kernel that counts the CPUs that loaded the space last calls this
// when the count is zero.
//
// Refuses a space that this CPU runs (switch away, or enter lazy mode first), one that an unfinished batch was told
// of, and one of the kernel's, which has no end.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_space_retire(struct quell_engine *engine,
                                     struct quell_space *space);

// The name of a space, which no other space of the engine ever has; 0 for memory without a space.
//
// Context: any.
uint64_t quell_space_id(const struct quell_space *space);

// Whether an unfinished batch was told of a space; then quell_space_retire refuses it. False for memory without a
// space.
//
// Context: any.
bool quell_space_is_in_batch(const struct quell_space *space);

// The frame of a space's root table; 0 for memory without a space.
//
// Context: any.
uint64_t quell_space_root(const struct quell_space *space);

// Makes this CPU, if it has `space` loaded, forget the translations of a range that has *gained* rights: after a
// fault, on machines whose TLBs keep an entry that refused an access. Other CPUs notice by faults of their own. Not
// for changes that need a flush.
//
// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_refresh(struct quell_engine *engine,
                                struct quell_space *space,
                                struct quell_range range);

// Begins a batch for a purpose (`enum quell_purpose`), in memory of any content. `frames` is an array for the names of
// `room` frames, which belongs to the batch until that is finished; NULL if `room` is 0. A full batch must be
// finished, which costs a shootdown: the longer the array, the better. Of spaces the batch has places for
// QUELL_BATCH_SPACES; of one more it keeps nothing, and its end flushes all of that space, on all CPUs that may have
// it loaded and some others.
//
// Every batch to which something was reported must be finished: otherwise its entries stay unflushed, and its spaces
// are in deferred flush for ever.
//
// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_batch_begin(struct quell_engine *engine,
                                    struct quell_batch *batch,
                                    uint32_t purpose,
                                    void **frames,
                                    size_t room);

// Whether there is room for no more frames: finish it. True for memory without a batch.
//
// Context: any but an NMI.
bool quell_batch_is_full(struct quell_batch *batch);

// Whether nothing was reported to the batch since it was begun or finished, so that finishing it does nothing. True
// for memory without a batch, false for one whose flush was started.
//
// Context: any but an NMI.
bool quell_batch_is_empty(struct quell_batch *batch);

// Whether everything of `space` is flushed as the batch is finished, and at least as far as `scope` says (an
// `enum quell_scope`). Then there is nothing to be added until it is finished, and further reports of the space may be
// left out. Never true where invalidations are broadcast, nor of a space that the batch has no place for; false for
// memory without a batch or a space, and for a batch whose flush was started.
//
// Context: as quell_batch_changed.
bool quell_batch_covers(struct quell_batch *batch,
                        struct quell_space *space,
                        uint32_t scope);

// Entries of `space` were cleared or lost rights, and no frame goes with them. `scope` is an `enum quell_scope`.
//
// Context: after the tables were written, under their lock. Does not wait for other CPUs. Where invalidations are
// broadcast and S0 is off it executes the barrier of its own CPU.
QUELL_MUST_USE
enum quell_status quell_batch_changed(struct quell_batch *batch,
                                      struct quell_space *space,
                                      struct quell_range range,
                                      uint32_t scope);

// As quell_batch_changed, for all of the space.
//
// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_changed_all(struct quell_batch *batch,
                                          struct quell_space *space,
                                          uint32_t scope);

// Entries of `space` were cleared, and `frame` was behind them: any name of the embedder's, which quell puts into the
// batch's array and never looks at.
//
// Refuses a batch that is full; nothing was reported then.
//
// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_unmapped(struct quell_batch *batch,
                                       struct quell_space *space,
                                       struct quell_range range,
                                       void *frame);

// A page-table page that spanned `range` was unlinked from `space`; `frame` is the embedder's name of it. The flush
// reaches walkers and CPUs that hold the space lazily, and its initiator waits until every target has flushed. If the
// table still mapped pages, the flush drops only those that the range's strides name: the first of each stride.
//
// Refuses a batch that is full; nothing was reported then.
//
// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_table_unlinked(struct quell_batch *batch,
                                             struct quell_space *space,
                                             struct quell_range range,
                                             void *frame);

// Takes charge of a frame whose entries were all reported with quell_batch_changed (one that several spaces mapped),
// or that nothing maps any more.
//
// Refuses a batch that is full.
//
// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_hold(struct quell_batch *batch,
                                   void *frame);

// The lock is dropped under which changes were reported: with S0 off, and a purpose other than a call's, flushes them;
// the frames stay in the batch's array. With S0 on it does nothing, and so it does where the flush may be deferred.
// If it is called each time, there is a flush for each change with S0 off; if not, the batch flushes at its end.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_batch_unlocked(struct quell_batch *batch);

// Flushes. On return no CPU uses a translation that was reported, in any later user access. The array of the batch
// has `*count` frames, in the order in which they were reported; they are the caller's. The batch is empty and may be
// filled and finished again. `count` may be NULL.
//
// Context: interrupts on or off. May wait; after quell_batch_poll has said that the flush is over it does not.
QUELL_MUST_USE
enum quell_status quell_batch_finish(struct quell_batch *batch,
                                     size_t *count);

// Begins to flush, and waits for no CPU: what quell_batch_finish does without the wait. The flush goes on by itself;
// quell_batch_poll says when it is over; quell_batch_finish ends it and yields the frames. Until then the
// batch takes nothing more, and its array and spaces stay.
//
// Refuses a batch whose flush was started already.
//
// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_batch_start(struct quell_batch *batch);

// Whether the flush that quell_batch_start began is over, so that quell_batch_finish would not wait. May be called on
// any CPU and any number of times; each call looks at the CPUs that have answered since the last one, and at the first
// that has not. When quell calls `quell_hooks.flush_answered`, it is time to ask again. True for a batch whose flush
// was not started, and for memory without a batch.
//
// On a machine with broadcasts the call itself executes the barrier that completes the flush, and says true.
//
// Context: any but an NMI. Does not wait for other CPUs.
bool quell_batch_poll(struct quell_batch *batch);

// Owes the flush until the frames are reused (S3), if policy and ledger allow it, and flushes otherwise. A batch is
// flushed, too, if it has an unlinked table, mappings of the kernel and of a user space, or more spaces than it has
// places for, or if more batches of a space are outstanding than are counted. `*stamp` says which: zero is "flushed".
// As with quell_batch_finish, the array has `*count` frames. If the flush is deferred, the caller puts each behind its
// deferred flush (quell_deferred_flush_defer with this stamp) before it drops the lock under which it began that
// (quell_deferred_flush_begin). It may drop the locks of the tables before this call: later observers find the batch
// outstanding, then the deferred flush.
//
// The caller vouches that every mapping of every frame was read-only and clean, or one of the kernel's that no CPU
// uses any more; quell checks none of that.
//
// Context: under those locks. May wait for other CPUs if nothing can be deferred, and for devices if there are any.
QUELL_MUST_USE
enum quell_status quell_batch_finish_deferred(struct quell_batch *batch,
                                              size_t *count,
                                              struct quell_stamp *stamp);

// Entries of `space` in `*range` changed, or anywhere if that is NULL: flushes at once, without a batch. On return no
// CPU uses a translation that the change took away, in any later user access. `scope` is an `enum quell_scope`.
//
// It does in fewer steps what a batch of this one change does; but quell_flush_pending does not know of it before it
// is flushed. So it is called under the lock of the table, or where a later observer that meets the entry hears of the
// flush in another way (Linux's mm_tlb_flush_pending), or relies on nothing.
//
// Context: after the tables were written, interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush(struct quell_engine *engine,
                              struct quell_space *space,
                              const struct quell_range *range,
                              uint32_t scope);

// quell_flush for a kernel that knows where the engine's state of each CPU is: `here` is that of this CPU, one of
// `quell_setup.cpus` or `cpu_places`.
//
// Refuses the state of another CPU.
//
// Context: as quell_flush.
QUELL_MUST_USE
enum quell_status quell_flush_here(struct quell_engine *engine,
                                   struct quell_cpu *here,
                                   struct quell_space *space,
                                   const struct quell_range *range,
                                   uint32_t scope);

// Entries of `space` changed anywhere, page tables may be free: flushes everything, as quell_flush with
// QUELL_SCOPE_TABLES, or lets a flush of another task do that begins after this call has. Worth it where several
// threads change one space at the same time and more than two CPUs have it loaded. `coalesced` is that space's, in
// all such calls.
//
// Context: as quell_flush, but not from an interrupt handler, and the kernel does not preempt the task meanwhile by
// one that shares a flush of the same space: it would wait for what it has interrupted. May wait, for that task too.
QUELL_MUST_USE
enum quell_status quell_flush_coalesced(struct quell_engine *engine,
                                        struct quell_space *space,
                                        struct quell_coalesced *coalesced);

// quell_flush_coalesced for a kernel that knows where the engine's state of each CPU is: `here` is that of this CPU,
// one of `quell_setup.cpus` or `cpu_places`.
//
// Refuses the state of another CPU.
//
// Context: as quell_flush_coalesced.
QUELL_MUST_USE
enum quell_status quell_flush_coalesced_here(struct quell_engine *engine,
                                             struct quell_cpu *here,
                                             struct quell_space *space,
                                             struct quell_coalesced *coalesced);

// What the TLBs of an architecture (an `enum quell_architecture`) may keep, of the least that it promises: a kernel
// that knows more of its machine (RISC-V's Svvptc, Arm's FEAT_BBML1), or never touches user memory in place, changes
// `*rules`.
//
// Context: any.
QUELL_MUST_USE
enum quell_status quell_tlb_rules_of(uint32_t architecture,
                                     struct quell_tlb_rules *rules);

// What a word of a table says: `architecture` is an `enum quell_architecture`, `level` counts from 0, the leaf tables,
// and `c_bit` is the number of the bit that says that memory is encrypted (AMD's C-bit, 12 to 51), or 0. A word that
// is not present is an entry without flags.
//
// Context: any.
QUELL_MUST_USE
enum quell_status quell_entry_of(uint32_t architecture,
                                 uint32_t level,
                                 uint64_t word,
                                 uint32_t c_bit,
                                 struct quell_entry *entry);

// The least flush that replacing `old` by `new`, in the same word of a table, needs. `old` is what the change took out
// (by an exchange, where hardware sets bits), not what was read some time before. Says nothing of accessed bits that a
// caller wants to be exact, and looks at one entry: whether leaves below a table are global is for the caller to know.
//
// Context: any.
QUELL_MUST_USE
enum quell_status quell_flush_needed(const struct quell_tlb_rules *rules,
                                     const struct quell_entry *old,
                                     const struct quell_entry *new_,
                                     struct quell_need *need);

// Makes a deferred flush that has no deferred flush. Memory that is zero is one already.
//
// Context: any.
enum quell_status quell_deferred_flush_init(struct quell_deferred_flush *deferred_flush);

// Whether the frame has no deferred flush: one load, with acquire. True for NULL.
//
// Context: any.
bool quell_deferred_flush_is_clear(const struct quell_deferred_flush *deferred_flush);

// The frame's entries are about to be cleared without a flush.
//
// Context: under the lock of the page-cache slot, before the first entry is cleared.
enum quell_status quell_deferred_flush_begin(struct quell_deferred_flush *deferred_flush);

// The frame's flush is deferred as of `*stamp`, which quell_batch_finish_deferred gave. With a stamp of zero it was
// flushed, as quell_deferred_flush_flushed says.
//
// Context: under the lock of quell_deferred_flush_begin.
enum quell_status quell_deferred_flush_defer(struct quell_deferred_flush *deferred_flush,
                                             const struct quell_stamp *stamp);

// The frame was flushed after all, or its entries were not cleared.
//
// Context: under the lock of quell_deferred_flush_begin.
enum quell_status quell_deferred_flush_flushed(struct quell_deferred_flush *deferred_flush);

// Takes the frame back for the page that it belonged to, to be mapped as it was: read-only, at the same places. No
// flush is needed. False if it was reused first, where a pointer is refused, and on a CPU that the engine has no
// number for: then it is not the page's.
//
// The deferred flush is clear afterwards, and says nothing any more of the places at which the frame is not mapped
// again, where stale entries may be in use: map it at every place that it was taken away from before the lock is
// dropped, or treat each entry that still names it as a mapping of it, and report that to the batch when the mapping
// goes.
//
// Context: under the lock of the page-cache slot. Does not wait.
QUELL_MUST_USE
bool quell_reinstate(struct quell_engine *engine,
                     struct quell_deferred_flush *deferred_flush);

// Reuses a frame for a new owner, and makes its deferred flush first if that is not paid yet. True: the frame is the
// caller's. False: it is not, because it was reinstated or never deferred, a pointer is refused, or the engine has no
// number for this CPU.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
bool quell_flush_before_reuse(struct quell_engine *engine,
                              struct quell_deferred_flush *deferred_flush);

// Whether a reuse of this frame would interrupt no CPU: two loads when no flush is deferred. False if a pointer is
// refused.
//
// Context: any but an NMI. Does not wait.
bool quell_is_flushed(const struct quell_engine *engine,
                      const struct quell_deferred_flush *deferred_flush);

// Pays the frame's deferred flush. Called before an entry of `space` is rewritten whose marker names the frame (what
// the embedder left in an entry that it emptied lazily), and before a page-cache slot that held the frame is filled
// again. One load when no flush is deferred. A deferred flush that quell_reinstate has cleared says nothing of other
// markers that name the frame.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_before_refill(struct quell_engine *engine,
                                            struct quell_deferred_flush *deferred_flush,
                                            struct quell_space *space);

// For code that finds an entry of `space` already cleared, by another CPU, and relies on that: on return no CPU uses a
// translation of the space that was cleared before the call. Three loads when no flush is deferred.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_pending(struct quell_engine *engine,
                                      struct quell_space *space);

// As quell_flush_pending, but leaves flushes alone that are deferred until reuse: for code that handles markers one
// by one and has found an entry cleared without a marker. Two loads when no batch is outstanding.
//
// Context: as quell_flush_pending.
QUELL_MUST_USE
enum quell_status quell_flush_pending_batches(struct quell_engine *engine,
                                              struct quell_space *space);

// As quell_flush_pending_batches, but waits until every CPU has flushed, where that waits for receipts; idle CPUs
// flush, too. For code that is about to write an entry of another page size where it finds none. Whoever cleared the
// entry reported it with QUELL_SCOPE_TABLES. Two loads when no batch is outstanding.
//
// Context: as quell_flush_pending.
QUELL_MUST_USE
enum quell_status quell_flush_pending_tables(struct quell_engine *engine,
                                             struct quell_space *space);

// Makes all deferred flushes up to `*stamp`: on return no CPU uses a translation whose flush a batch deferred that
// ended, with this stamp or an earlier one, before the call. Called before the bytes of a page change whose former
// frame, unmapped as of `*stamp`, CPUs may still read; and before addresses of the kernel's half are given out again.
// One load when no flush is deferred.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_until(struct quell_engine *engine,
                                    const struct quell_stamp *stamp);

// Whether any flush may be deferred until reuse: false is certain, true may be left over from a stamp that came to
// nothing. False for memory without an engine.
//
// Context: any.
bool quell_has_deferred(const struct quell_engine *engine);

// Makes every deferred flush there is: for a background thread, so that reuses need not wait. It may miss a batch
// whose quell_batch_finish_deferred has not returned.
//
// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_deferred(struct quell_engine *engine);

// For a CPU that is in the kernel anyway, at a fault: flushes its tag if the flush clock has run a sixteenth of the
// ledger ahead of it, so that a later payment need not interrupt it. Two loads if not.
//
// Context: any but an NMI, on an online CPU. Does not wait.
enum quell_status quell_catch_up(struct quell_engine *engine);

// The name of a counter (`enum quell_counter`) in reports, ended with a zero byte; NULL if there is none.
//
// Context: any.
const char *quell_counter_label(uint32_t counter);

// What a counter counts, in a sentence, ended with a zero byte; NULL if there is none.
//
// Context: any.
const char *quell_counter_meaning(uint32_t counter);

// Writes the counters of all CPUs together to `counts`, which has room for QUELL_COUNTERS numbers and is indexed by
// `enum quell_counter`. They only grow, and wrap around.
//
// Context: any.
enum quell_status quell_stats(const struct quell_engine *engine,
                              uint64_t *counts);

// As quell_stats, for one CPU, online or not.
//
// Refuses a CPU that the engine has no number for.
//
// Context: any.
enum quell_status quell_cpu_stats(const struct quell_engine *engine,
                                  uint32_t cpu,
                                  uint64_t *counts);

// Plans how memory is zeroed, from the processor's instructions and caches. The policy of `engine` says whether whole
// extents are zeroed or single pages, and the longest run; with a NULL `engine` that is whole extents, and 32 MB.
// `plan` is memory of any content.
//
// With `vectors`, zeroing may overwrite vector registers: false in a kernel that does not save them.
//
// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_zero_plan_new(struct quell_zero_plan *plan,
                                      const struct quell_engine *engine,
                                      bool vectors);

// Zeroes `bytes` bytes from `start`, ordinary memory of the caller that no other code accesses meanwhile. The page at
// `fault`, with its neighbours, is zeroed last and is in the caches afterwards; if `fault` is NULL or outside, all
// pages are zeroed around the caches. `preempt`, if not NULL, is called between two runs, and may sleep and return on
// another CPU of the same kind. A CPU that acquires what the caller releases afterwards sees the zeroes.
//
// Refuses a `start` that is not a multiple of 4096, and `bytes` that are none or not a multiple of 4096.
//
// Context: any but an NMI, and one in which `preempt` may be called. Does not wait.
QUELL_MUST_USE
enum quell_status quell_zero(const struct quell_zero_plan *plan,
                             void *start,
                             size_t bytes,
                             const void *fault,
                             void (*preempt)(void));

// From now on the engine makes this mistake, by the name of its mutant (`quell explore --list` has the names): a test
// can show so that it notices. QUELL_STATUS_UNSUPPORTED in a library that was not built in the copy that holds the
// mutants, QUELL_STATUS_VALUE if there is no such mutant.
//
// Context: any, before the first engine is made.
enum quell_status quell_leave_out(const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUELL_H */

// The library was built for enums that are as large as an int: a header that is read with -fshort-enums lays
// structures out otherwise.
#if defined(__cplusplus)
static_assert(sizeof(enum quell_status) == sizeof(int), "quell.h is read without -fshort-enums");
#else
_Static_assert(sizeof(enum quell_status) == sizeof(int), "quell.h is read without -fshort-enums");
#endif

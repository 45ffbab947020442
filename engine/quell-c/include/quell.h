/**
 * @file
 * quell: keeps translation caches (TLBs) coherent on many CPUs. Freestanding C11, or C++17.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Written by cbindgen from the documentation in engine/quell-c/src: change it there.
 *
 * An embedder defines the functions quell_hw_* and quell_panic, which the linker resolves. It makes one engine with
 * quell_engine_new, reports every change of a present page-table entry to a batch, and gives frames a new owner only
 * after the batch has returned them. examples/embed.c is a complete program.
 *
 * WHAT THE EMBEDDER PROMISES, to every function:
 *   - A pointer is NULL, which is refused, or points to memory of its type. Memory that is passed as an engine,
 *     space, batch or plan was initialised, if only with zeroes. Zeroed memory holds no object, and is refused.
 *   - In a library that was built with QUELL_UNCHECKED=1 in the environment, nothing that this header says is refused
 *     may happen. The same applies to the special results (false, true, 0 or QUELL_STATUS_NO_ENGINE) for a NULL
 *     pointer, for memory without an object, and for a CPU that the engine does not have or that is not online. Such
 *     a library still refuses everything that quell_engine_new refuses, a CPU that comes online twice, retiring a
 *     space that is in use, and a frame for a full batch; and quell_is_online still returns false on a CPU that is
 *     not online.
 *   - Engines, spaces and deferred flushes do not move. Neither does a batch with changes or held frames. A space outlives the batches that have its changes, and is passed to no function during
 *     quell_space_retire or after it. Objects of two engines are never mixed.
 *   - One CPU at a time uses a batch, or initialises an object. Everything else may be called on any CPU at any time.
 *   - The caller stays on its CPU until the call returns.
 *
 * CONTEXT, as each function names it:
 *   - Interrupts may be on or off unless the function says otherwise; quell masks them where it must. An NMI handler
 *     calls only quell_user_access_allowed and quell_enter_kernel, and quell_enter_user if it returns to a program. A
 *     quell_hw_* function calls no function of quell. But quell_hw_relax and quell_hw_restore_interrupts may take an
 *     interrupt whose handler calls quell_on_interrupt.
 *   - "May wait": the function waits for other CPUs to take their shootdown interrupt, and serves its own CPU's
 *     requests meanwhile, even with interrupts off. The caller holds no lock for which another CPU spins with
 *     interrupts off, unless that CPU calls quell_poll in its loop. There is no time-out.
 *
 * UNIKERNELS, with one root for the kernel and its program, make one space with that root. Each CPU switches to it once,
 * after quell_cpu_online, and stays: it never calls quell_enter_lazy, quell_enter_user or quell_leave, and the space is
 * never retired. Every change is reported with this space, also one of what other kernels call their own half; its
 * entries are not global. quell_hw_unload_root is called only by quell_cpu_offline, and may load the same root again.
 *
 * THE MACHINE. The functions quell_hw_* are called on any CPU, with interrupts on or off unless they say otherwise.
 * None of them waits for other CPUs.
 *
 * ERRORS. A function that can refuse returns an enum quell_status. If that is not QUELL_STATUS_OK, the function has
 * done nothing. quell_status_text explains it. A function that returns bool or a number says what it returns then.
 *
 * ORDERING. Other CPUs that act on a call see what the caller stored before the call. Whatever a function promises
 * "on return" has happened before anything that the caller does next.
 */

#ifndef QUELL_H
#define QUELL_H

/// The version of quell that the header came with.
#define QUELL_VERSION "0.8.0"
/// The first part of the version.
#define QUELL_VERSION_MAJOR 0
/// The second part of the version.
#define QUELL_VERSION_MINOR 8
/// The third part of the version.
#define QUELL_VERSION_PATCH 0

/*
 * The types quell_u8 to quell_u64, quell_size and quell_bool. A kernel whose own types differ defines
 * QUELL_TYPES_HEADER as the name of a header, quotes included, that declares these six: unsigned types of 8 to 64 bits,
 * one as large as a pointer, and _Bool. With GCC and Clang no header of C is included otherwise.
 */
/** @cond */
#if defined(QUELL_TYPES_HEADER)
#include QUELL_TYPES_HEADER
#else
#if defined(__linux__) && defined(__KERNEL__)
#include <linux/types.h>
typedef uint8_t quell_u8;
typedef uint16_t quell_u16;
typedef uint32_t quell_u32;
typedef uint64_t quell_u64;
typedef size_t quell_size;
#elif defined(__UINT64_TYPE__) && defined(__SIZE_TYPE__)
typedef __UINT8_TYPE__ quell_u8;
typedef __UINT16_TYPE__ quell_u16;
typedef __UINT32_TYPE__ quell_u32;
typedef __UINT64_TYPE__ quell_u64;
typedef __SIZE_TYPE__ quell_size;
#else
#include <stddef.h>
#include <stdint.h>
typedef uint8_t quell_u8;
typedef uint16_t quell_u16;
typedef uint32_t quell_u32;
typedef uint64_t quell_u64;
typedef size_t quell_size;
#endif
#if defined(__cplusplus)
typedef bool quell_bool;
#else
typedef _Bool quell_bool;
#endif
#endif
/** @endcond */

#if !defined(QUELL_BATCH_SPACES)
/// The number of spaces that a batch has places for, 1 to 8. If the library was built with QUELL_BATCH_SPACES in its
/// environment, define the same number wherever this header is included; quell_engine_new compares them.
#define QUELL_BATCH_SPACES 8
#elif QUELL_BATCH_SPACES < 1 || QUELL_BATCH_SPACES > 8
#error "QUELL_BATCH_SPACES is a number from 1 to 8"
#endif

/** @cond */
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
/** @endcond */


/// Bytes of a `struct quell_engine`.
#define QUELL_ENGINE_SIZE 576

/// Bytes of a `struct quell_cpu`.
#define QUELL_CPU_SIZE 1536

/// Bytes of a `struct quell_slot`.
#define QUELL_SLOT_SIZE 64

#if !defined(QUELL_CPUS_8192)
/// Bytes of a `struct quell_ledger_entry`.
#define QUELL_LEDGER_ENTRY_SIZE 192
#endif

#if defined(QUELL_CPUS_8192)
/// Bytes of a `struct quell_ledger_entry`.
#define QUELL_LEDGER_ENTRY_SIZE 1088
#endif

#if !defined(QUELL_CPUS_8192)
/// Bytes of a `struct quell_space`.
#define QUELL_SPACE_SIZE 256
#endif

#if defined(QUELL_CPUS_8192)
/// Bytes of a `struct quell_space`.
#define QUELL_SPACE_SIZE 1152
#endif

/// Bytes of a `struct quell_batch` for each of its QUELL_BATCH_SPACES spaces.
#define QUELL_BATCH_SPACE_SIZE 128

#if !defined(QUELL_CPUS_8192)
/// Bytes of a `struct quell_batch`.
#define QUELL_BATCH_SIZE (328 + (QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE))
#endif

#if defined(QUELL_CPUS_8192)
/// Bytes of a `struct quell_batch`.
#define QUELL_BATCH_SIZE (1224 + (QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE))
#endif

/// Bytes of a `struct quell_batch` after its `run` and `frames`.
#define QUELL_BATCH_REST (QUELL_BATCH_SIZE - 32)

/// Bytes of a `struct quell_deferred_flush`.
#define QUELL_DEFERRED_FLUSH_SIZE 8

/// Bytes of a `struct quell_stamp`.
#define QUELL_STAMP_SIZE 8

/// The alignment of shared types, a cache line: engine, CPU, slot, ledger entry and space.
#define QUELL_LINE_ALIGN 64

/// The alignment of the other types: batch, deferred flush, stamp and plan.
#define QUELL_WORD_ALIGN 8

#if !defined(QUELL_CPUS_8192)
/// The most CPUs that an engine handles.
///
/// It's 8192 if the library was built with the feature "cpus-8192". Then define QUELL_CPUS_8192 wherever you include
/// this header.
#define QUELL_MAX_CPUS 1024
#endif

#if defined(QUELL_CPUS_8192)
/// The most CPUs that an engine handles.
#define QUELL_MAX_CPUS 8192
#endif

#if !defined(QUELL_CPUS_8192)
/// The number of words in a `struct quell_cpu_set`.
#define QUELL_CPU_SET_WORDS 16
#endif

#if defined(QUELL_CPUS_8192)
/// The number of words in a `struct quell_cpu_set`.
#define QUELL_CPU_SET_WORDS 128
#endif

#if !defined(QUELL_CPUS_8192)
/// The version of this interface.
///
/// quell_engine_new refuses a header whose version differs from the library's. The number also depends on
/// QUELL_CPUS_8192 and QUELL_BATCH_SPACES, so a header and a library that disagree on these are refused too.
#define QUELL_INTERFACE (2053 - (256 * (quell_u32)QUELL_BATCH_SPACES))
#endif

#if defined(QUELL_CPUS_8192)
/// The version of this interface, for 8192 CPUs.
#define QUELL_INTERFACE (536872965 - (256 * (quell_u32)QUELL_BATCH_SPACES))
#endif

/// The longest policy text in bytes.
#define QUELL_POLICY_LENGTH 255

/// The number of counters.
#define QUELL_COUNTERS 40

/// Bytes of a `struct quell_zero_plan`.
#define QUELL_ZERO_PLAN_SIZE 72

/// The bytes of memory that quell_conformance_new needs, without the 32 bytes for each CPU.
#define QUELL_CONFORMANCE_SIZE 16384

/// The kind of an invalidation: the translations that it drops.
enum quell_invalidation_kind {
    /// The entries of `range` under `tag`, in `scope`. On a machine without tags, ignore the tag.
    QUELL_INVALIDATION_KIND_RANGE,
    /// All entries under `tag`, walker caches included. Ignore `range` and `scope`.
    QUELL_INVALIDATION_KIND_TAG,
    /// All entries under all tags, walker caches included. Global kernel entries may stay.
    QUELL_INVALIDATION_KIND_ALL,
    /// The entries of `range` in the kernel's half, in `scope`: global ones, and those under the loaded tag.
    ///
    /// `invlpg` and `tlbi vaae1` do that. With global tags, drop those under all tags. quell uses this kind only for
    /// spaces that quell_kernel_space_new made.
    QUELL_INVALIDATION_KIND_KERNEL,
    /// All entries under all tags, global ones and walker caches included, after a full barrier like quell_hw_fence.
    ///
    /// Ignore `tag`, `range` and `scope`. quell_cpu_online uses it, too. A kernel that makes no kernel space may treat
    /// it as `All`.
    QUELL_INVALIDATION_KIND_EVERYTHING,
};

/// The entries that an invalidation reaches: leaf entries alone, or walker caches too.
enum quell_scope {
    /// Leaf entries alone: the walker caches may keep upper levels.
    QUELL_SCOPE_LEAF,
    /// Also walker caches, because page-table pages were unlinked. CPUs that have the space loaded lazily leave it.
    QUELL_SCOPE_TABLES,
};

/// The result of a call. Everything but `QUELL_STATUS_OK` is a refusal: the call did nothing.
enum quell_status {
    /// Done.
    QUELL_STATUS_OK,
    /// A pointer that must not be NULL is NULL.
    QUELL_STATUS_NULL,
    /// Memory isn't aligned as its type demands.
    QUELL_STATUS_MISALIGNED,
    /// The header and the library have different versions: `quell_setup.interface` isn't QUELL_INTERFACE.
    QUELL_STATUS_INTERFACE,
    /// The text isn't a policy.
    QUELL_STATUS_POLICY,
    /// The engine doesn't support this machine, this number of CPUs, or a feature that the library was built without.
    QUELL_STATUS_UNSUPPORTED,
    /// There is no engine in this memory: quell_engine_new hasn't succeeded.
    QUELL_STATUS_NO_ENGINE,
    /// There is no space in this memory: it wasn't made, or it was retired.
    QUELL_STATUS_NO_SPACE,
    /// There is no batch in this memory: it wasn't begun.
    QUELL_STATUS_NO_BATCH,
    /// There is no plan for zeroing in this memory: it wasn't made.
    QUELL_STATUS_NO_PLAN,
    /// The engine doesn't have the CPU that quell_hw_this_cpu returns, or `here` is another CPU's state.
    QUELL_STATUS_CPU,
    /// This CPU isn't online.
    QUELL_STATUS_OFFLINE,
    /// This CPU is online already. From quell_engine_new: the memory holds an engine with a CPU online.
    QUELL_STATUS_ONLINE,
    /// This CPU runs the space.
    QUELL_STATUS_RUNNING,
    /// An unfinished batch has changes of the space.
    QUELL_STATUS_IN_BATCH,
    /// The batch can't take another frame: finish it, then report again.
    QUELL_STATUS_FULL,
    /// The range is empty, isn't a whole number of strides, or ends beyond the address space.
    QUELL_STATUS_RANGE,
    /// A number isn't in the enumeration that the header names.
    QUELL_STATUS_VALUE,
    /// The batch's flush was started: call quell_batch_finish.
    QUELL_STATUS_IN_FLIGHT,
};

/// The CPUs that a change affects.
enum quell_need_kind {
    /// No CPU.
    QUELL_NEED_KIND_NOTHING,
    /// A CPU on which the entry caused a fault. It drops the entry (quell_refresh) before it retries. No other CPU is
    /// interrupted.
    QUELL_NEED_KIND_LOCAL,
    /// Every CPU that may hold the entry. Report the change to a batch.
    QUELL_NEED_KIND_FLUSH,
};

/// The page size of the entries that map a range.
enum quell_stride {
    /// 4 KB: entries of the lowest level.
    QUELL_STRIDE_BASE,
    /// 2 MB: entries one level up, 512 pages each.
    QUELL_STRIDE_LARGE,
    /// 1 GB: entries two levels up, 262144 pages each.
    QUELL_STRIDE_HUGE,
};

/// The purpose of a batch.
enum quell_purpose {
    /// The changes of one call or fault of the program: unmap, protect or fork, for example.
    QUELL_PURPOSE_CALL,
    /// Pages taken away by reclaim.
    QUELL_PURPOSE_RECLAIM,
    /// Pages about to move to other frames.
    QUELL_PURPOSE_MIGRATION,
    /// Clean pages that were mapped read-only everywhere, taken away by reclaim or demotion.
    ///
    /// The batch may end with quell_batch_finish_deferred, so it starts no flush before that.
    QUELL_PURPOSE_LAZY,
};

/// A machine's way to tag TLB entries with the address space that they belong to.
enum quell_tagging {
    /// The TLB has no tags: a root switch drops every entry that isn't global.
    QUELL_TAGGING_NONE,
    /// Each CPU assigns its tags by itself (x86 PCIDs, per-hart RISC-V ASIDs). The engine may use tags 1 to `tags`.
    QUELL_TAGGING_PER_CPU,
    /// A tag means the same on every CPU (Arm ASIDs). Tags have `tags` bits, at most 16. Needs `broadcast`.
    QUELL_TAGGING_GLOBAL,
};

/// The engine's counters.
///
/// Each CPU counts for itself, so a sum over CPUs isn't a snapshot of one moment.
enum quell_counter {
    /// Flushes requested because entries changed.
    QUELL_COUNTER_REQUESTED,
    /// Shootdowns that interrupted at least one CPU.
    QUELL_COUNTER_SHOOTDOWNS,
    /// Interrupts sent.
    QUELL_COUNTER_SENT,
    /// Requests posted to a CPU for which an interrupt was already under way.
    QUELL_COUNTER_MERGED,
    /// Targets skipped because they are lazy, or will flush when they enter the kernel.
    QUELL_COUNTER_SKIPPED_LAZY,
    /// Targets skipped because they have left the space.
    QUELL_COUNTER_SKIPPED_LEFT,
    /// Targets skipped because they are offline.
    QUELL_COUNTER_SKIPPED_OFFLINE,
    /// Flushes that had no target besides the initiator.
    QUELL_COUNTER_SKIPPED_NO_TARGET,
    /// Requests taken for a space that the CPU no longer runs.
    QUELL_COUNTER_IGNORED_OTHER_SPACE,
    /// Requests taken although an earlier flush had already covered them.
    QUELL_COUNTER_IGNORED_GENERATION,
    /// Lazy CPUs that left their space because of a request.
    QUELL_COUNTER_EVICTED,
    /// Requests whose ranges were invalidated stride by stride.
    QUELL_COUNTER_FLUSHED_RANGES,
    /// Flushes of a whole tag.
    QUELL_COUNTER_FLUSHED_FULL,
    /// Requests that became a flush of a whole tag because their ranges had too many strides.
    QUELL_COUNTER_ESCALATED_LENGTH,
    /// Requests that became a flush of a whole tag because two initiators met at a target.
    QUELL_COUNTER_ESCALATED_CONTENTION,
    /// Requests that became a flush of a whole tag because the target had missed an earlier request.
    QUELL_COUNTER_ESCALATED_GAP,
    /// Changes that didn't fit into a batch: too many spaces in one batch, or too many batches of one space.
    QUELL_COUNTER_ESCALATED_BATCH,
    /// Waits for a target's acknowledgement.
    QUELL_COUNTER_WAITED,
    /// Waits for a receipt only. They are also counted as QUELL_COUNTER_WAITED.
    QUELL_COUNTER_WAITED_RECEIPT,
    /// Requests that a CPU served before their interrupt arrived, while it waited or in the handler of an earlier
    /// interrupt.
    QUELL_COUNTER_SERVED_EARLY,
    /// Broadcast invalidations sent.
    QUELL_COUNTER_BROADCASTS,
    /// Waits for the completion of broadcasts.
    QUELL_COUNTER_BARRIERS,
    /// Context switches.
    QUELL_COUNTER_SWITCHES,
    /// Switches that kept the space's TLB entries.
    QUELL_COUNTER_SWITCH_KEPT,
    /// Switches and returns from lazy mode that had to flush because the space had changed.
    QUELL_COUNTER_SWITCH_BEHIND,
    /// Switches that took a tag over from another space.
    QUELL_COUNTER_SWITCH_TAG_TAKEN,
    /// System-wide tag rollovers.
    QUELL_COUNTER_ROLLOVERS,
    /// Batches whose flush was deferred until reuse.
    QUELL_COUNTER_FLUSHES_DEFERRED,
    /// Batches whose flush couldn't be deferred because the ledger was full.
    QUELL_COUNTER_DEFERRALS_REFUSED,
    /// Reused frames whose deferred flush had already been made by other flushes.
    QUELL_COUNTER_REUSED_FREE,
    /// Deferred flushes made before a frame was reused.
    QUELL_COUNTER_FLUSHED_FOR_REUSE,
    /// Deferred flushes made before an entry or a slot was filled again.
    QUELL_COUNTER_FLUSHED_FOR_REFILL,
    /// Flushes made for a later observer that found a cleared entry.
    QUELL_COUNTER_FLUSHED_PENDING,
    /// Deferred flushes made by a CPU that switched to the space or left lazy mode.
    QUELL_COUNTER_FLUSHED_BY_SWITCH,
    /// Deferred flushes made in the background.
    QUELL_COUNTER_FLUSHED_IN_BACKGROUND,
    /// CPUs that had already flushed when a deferred flush was made.
    QUELL_COUNTER_FOUND_FLUSHED,
    /// Flushes by which a CPU caught up with the flush clock before an initiator sent it a request.
    QUELL_COUNTER_CAUGHT_UP,
    /// Frames reinstated for the page that they belonged to.
    QUELL_COUNTER_REINSTATED,
    /// Targets skipped because they are virtual CPUs that aren't running.
    QUELL_COUNTER_SKIPPED_NOT_RUNNING,
    /// Full flushes that a task shared instead of making its own.
    QUELL_COUNTER_COALESCED,
};

/// Whether a kernel space's entries are global.
enum quell_kernel_entries {
    /// Global entries, one for all tags.
    QUELL_KERNEL_ENTRIES_GLOBAL,
    /// Some or all entries aren't global.
    ///
    /// TLBs keep an entry that isn't global under each tag that was loaded when the entry was used. So a flush on a CPU
    /// with per-CPU tags drops the entries of all other spaces too.
    QUELL_KERNEL_ENTRIES_TAGGED,
};

/// The rights with which a page is mapped for the suite.
enum quell_rights {
    /// No access: the entry isn't present.
    QUELL_RIGHTS_NONE,
    /// Loads.
    QUELL_RIGHTS_READ,
    /// Loads and stores.
    QUELL_RIGHTS_WRITE,
};

/// An architecture, which decides the format of page-table entries.
enum quell_architecture {
    /// x86-64.
    QUELL_ARCHITECTURE_X86_64,
    /// AArch64, 4 KB granule, stage 1.
    QUELL_ARCHITECTURE_AARCH64,
    /// RISC-V, Sv39 and up.
    QUELL_ARCHITECTURE_RISCV64,
};

/// The bits of `quell_entry.flags`.
enum quell_entry_flag {
    /// Walkers may use the entry. Without this flag, all other fields are ignored.
    QUELL_ENTRY_FLAG_PRESENT = 1,
    /// The entry points to a table of the next level. Without this flag, it maps a page.
    QUELL_ENTRY_FLAG_TABLE = 2,
    /// Stores are allowed. In a table entry, this flag and the next two limit the pages below, which also need the flag
    /// in their own entries.
    QUELL_ENTRY_FLAG_WRITABLE = 4,
    /// User mode may use the entry.
    QUELL_ENTRY_FLAG_USER = 8,
    /// Instruction fetches are allowed: from user mode if `User` is set, otherwise from the kernel.
    QUELL_ENTRY_FLAG_EXECUTABLE = 16,
    /// An access was recorded.
    QUELL_ENTRY_FLAG_ACCESSED = 32,
    /// A store was recorded. Unused in table entries.
    QUELL_ENTRY_FLAG_DIRTY = 64,
    /// The translation belongs to every address space.
    QUELL_ENTRY_FLAG_GLOBAL = 128,
    /// The entry is one of sixteen, aligned and adjacent, that map sixteen adjacent frames with the same rights.
    QUELL_ENTRY_FLAG_CONTIGUOUS = 256,
    /// The memory is encrypted with the machine's key (AMD's C-bit).
    QUELL_ENTRY_FLAG_ENCRYPTED = 512,
};

/// The changes that need break-before-make: clear the entry, flush, then write the new entry.
enum quell_break {
    /// None (RISC-V).
    QUELL_BREAK_NEVER,
    /// Changes of the size of a translation (x86-64).
    QUELL_BREAK_SIZE,
    /// Changes of the size, and any other change after which two translations of one address could contradict each
    /// other (AArch64).
    QUELL_BREAK_TRANSLATION,
};

/// A run of virtual pages that are or were mapped with entries of one size.
///
/// Pages have 4096 bytes, whatever the stride.
struct quell_range {
    /// The first page: its address divided by 4096. It must be a multiple of the stride.
    quell_u64 start;
    /// The number of pages of 4096 bytes: at least one stride, and a multiple of the stride.
    quell_u64 pages;
    /// The size of the entries.
    ///
    /// There is one invalidation per stride, and it drops the entry that translates the first page of the stride. So
    /// don't report base pages in larger strides.
    enum quell_stride stride;
};

/// The arguments of one invalidation.
struct quell_invalidation {
    /// The kind of translations to drop.
    enum quell_invalidation_kind kind;
    /// The entries to drop: leaf entries alone, or also the walker caches on the path.
    enum quell_scope scope;
    /// The pages to invalidate, with one invalidation per stride.
    struct quell_range range;
    /// The hardware's tag, a PCID or ASID. Tag 0 is the kernel's.
    quell_u16 tag;
};

/// A set of CPUs. CPU n is a member if bit n % 64 of `bits[n / 64]` is set.
struct quell_cpu_set {
    /// The members, one bit each.
    quell_u64 bits[QUELL_CPU_SET_WORDS];
};

/// The engine of a machine. Start with zeroed memory, which must not move; quell_engine_new makes the engine.
struct QUELL_ALIGNED(64) quell_engine {
    quell_u8 opaque[QUELL_ENGINE_SIZE];
};

/// The capabilities of the machine.
struct quell_features {
    /// How TLB entries are tagged.
    enum quell_tagging tagging;
    /// The highest tag if CPUs assign tags by themselves, or the number of a tag's bits if tags are system-wide.
    quell_u32 tags;
    /// The most strides that a request flushes one by one, over all of its ranges.
    ///
    /// A longer request flushes a whole tag; with 0 every request does. Linux uses 33 on x86 and 512 on arm64.
    quell_u64 full_above;
    /// Whether quell_hw_broadcast_start reaches all CPUs without an interrupt: 0 or 1.
    quell_u32 broadcast;
    /// The number of target CPUs from which a flush shares cache lines among targets.
    ///
    /// Such a flush writes and reads one line for every 32 targets, instead of one for each. That costs some time if
    /// there are few targets. 0 means never; 8 suits most machines. The small library ignores the field.
    ///
    /// If it isn't 0, batches of one space that finish at the same time make full flushes, provided that more than two
    /// CPUs have the space loaded. With 8, they share these flushes from 7 CPUs on.
    quell_u32 shares_lines_from;
};

/// The engine's state for one CPU.
///
/// Pass an array of them to quell_engine_new, which initialises it.
struct QUELL_ALIGNED(64) quell_cpu {
    quell_u8 opaque[QUELL_CPU_SIZE];
};

/// The engine's memory for one tag of one CPU.
///
/// It's needed if each CPU is to have more than eight tags. Pass an array of them to quell_engine_new, which
/// initialises it.
struct QUELL_ALIGNED(64) quell_slot {
    quell_u8 opaque[QUELL_SLOT_SIZE];
};

/// The engine's memory for one batch's deferred flush.
///
/// Pass an array of them to quell_engine_new, which initialises it.
struct QUELL_ALIGNED(64) quell_ledger_entry {
    quell_u8 opaque[QUELL_LEDGER_ENTRY_SIZE];
};

/// Optional functions of the kernel. quell doesn't call a function that is NULL.
///
/// Set the struct to zero first. As with quell_hw_*, none of these functions may call quell or wait for other CPUs.
struct quell_hooks {
    /// Makes this CPU drop the instructions that it fetched before the call.
    ///
    /// It's `isb` on Arm, and a serializing instruction on x86. quell_synchronize_text refuses to work without it.
    void (*synchronize_text)(void);
    /// In a guest: requests that the hypervisor flush the virtual CPU `target` if it isn't running.
    ///
    /// Returns true if `target` wasn't running and will lose every translation before it executes or walks again,
    /// global ones and walker caches included. Then quell doesn't interrupt it. quell calls this function for each
    /// target of a flush, after the tables were changed, but not for quell_space_retire and quell_synchronize_text.
    ///
    /// The function is one atomic operation on memory that the hypervisor shares with the guest, and a full barrier.
    quell_bool (*flush_on_reentry)(quell_u32 target);
    /// Starts to invalidate the translations of devices that walk a space's tables: an IOMMU, or a hypervisor's second
    /// stage.
    ///
    /// The entries in `range` have changed, or all entries if it's NULL, in the space whose root is in frame `root`.
    /// quell calls this function for every change that needs a flush, after the tables were changed, on the CPU that
    /// flushes or defers the flush. If the flush is deferred until reuse, quell calls it at the unmap. Table locks may
    /// be held, so it must not wait.
    ///
    /// quell_engine_new refuses this function if the library was built without the feature "secondary".
    void (*start_secondary)(quell_u64 root,
                            const struct quell_range *range,
                            enum quell_scope scope);
    /// Returns a number that identifies everything that was started with `start_secondary` before this call.
    ///
    /// That includes calls by other CPUs that this CPU has observed. The number may be that of a later command in the
    /// device's queue, for example. Must not wait.
    quell_u64 (*mark_secondary)(void);
    /// Returns whether everything that `mark` covers is complete: devices use and fill no invalidated translation.
    ///
    /// quell calls it on any CPU until it returns true; only then is a flush over. It must not wait: between two calls
    /// quell serves requests for its CPU, and quell_batch_poll calls it once. NULL means that invalidations are
    /// complete when `start_secondary` returns.
    quell_bool (*secondary_is_done)(quell_u64 mark);
    /// Reports that this CPU has waited for CPU `target` for `turns` turns of quell_hw_relax.
    ///
    /// With it a kernel can report a hang. quell calls it after 65536 turns, and again whenever the number has doubled.
    /// Either `target` doesn't answer, or it still runs a space that is being retired (quell_space_retire). The wait
    /// continues when the function returns.
    void (*waits_long)(quell_u32 target,
                       quell_u64 turns);
};

/// The arguments of quell_engine_new.
///
/// Set the struct to zero first; each field documents the meaning of zero.
struct quell_setup {
    /// The header's version: QUELL_INTERFACE.
    quell_u32 interface;
    /// The capabilities of the machine.
    struct quell_features features;
    /// The mechanisms that are on, as text. For example: "all", "baseline", "S0+S4", "all-S3,tags=64,cap=8M".
    ///
    /// NULL means all mechanisms that the library was built with. quell reads the text once, at most
    /// QUELL_POLICY_LENGTH bytes. A library without the feature "text" refuses anything but NULL.
    const char *policy;
    /// Memory for the CPUs 0 to `cpu_count` - 1, which the engine keeps. NULL if `cpu_places` is set.
    struct quell_cpu *cpus;
    /// An array of `cpu_count` pointers, one to the memory of each CPU, which the engine keeps.
    ///
    /// Use it if the CPUs' memory isn't one array, but lies in the kernel's per-CPU areas, for example. NULL if `cpus`
    /// is set.
    struct quell_cpu *const *cpu_places;
    /// The number of CPUs, online or not: 1 to QUELL_MAX_CPUS.
    quell_size cpu_count;
    /// Memory for `cpu_count` times `slots_per_cpu` slots, which the engine keeps.
    ///
    /// A slot is a CPU's record of a space that has a tag there. Provide slots if each CPU is to keep more than eight
    /// spaces tagged. NULL if `slots_per_cpu` is 0.
    struct quell_slot *slots;
    /// The number of slots that each CPU gets from `slots`. If 0, each CPU has eight built in.
    quell_size slots_per_cpu;
    /// Memory for the ledger of deferred flushes, which the engine keeps. NULL if `ledger_entries` is 0.
    struct quell_ledger_entry *ledger;
    /// The number of ledger entries. It limits the number of batches whose flushes are deferred at once.
    ///
    /// 64 are plenty; 0 switches lazy unmap off.
    quell_size ledger_entries;
    /// The kernel's optional functions, which quell copies. NULL means none.
    const struct quell_hooks *hooks;
    /// A buffer for the reason, if quell_engine_new refuses with another status than QUELL_STATUS_INTERFACE.
    ///
    /// quell writes one line that ends with a zero byte, and cuts it off if it's too long. It writes nothing if the
    /// field is NULL, or in a library without the feature "text".
    char *message;
    /// The size of `message` in bytes; 160 are enough.
    quell_size message_size;
};

/// An address space. quell_space_new makes it.
///
/// It must not move until it's retired. After that, its memory is zero.
struct QUELL_ALIGNED(64) quell_space {
    quell_u8 opaque[QUELL_SPACE_SIZE];
};

/// The adjacent pages that quell_batch_changed and quell_batch_unmapped have merged into one range. Only quell reads or
/// writes it.
struct quell_run {
    /// The address of the space, plus the scope, plus 2. It's 1 if there is no range to extend.
    quell_size of;
    /// The page after the last one of the range.
    quell_u64 next;
};

/// The free places in a batch's array of frames. Only quell reads or writes it.
struct quell_frames {
    /// The place of the next frame.
    void **next;
    /// The end of the array.
    void **end;
};

/// A batch: changed entries and the frames behind them.
///
/// quell_batch_begin makes it. Keep it on the stack, for example.
struct QUELL_ALIGNED(8) quell_batch {
    /// The range that was reported last.
    struct quell_run run;
    /// The room for further frames.
    struct quell_frames frames;
    quell_u8 opaque[QUELL_BATCH_REST];
};

/// The time at which a batch's flush was deferred.
///
/// It's a 64-bit number in native byte order that grows with each deferred flush of an engine. Zero isn't a valid time.
struct QUELL_ALIGNED(8) quell_stamp {
    quell_u8 opaque[QUELL_STAMP_SIZE];
};

/// A machine's TLB rules: the entries that it may keep, and the forbidden changes.
///
/// Every field except the last is 0 or 1.
struct quell_tlb_rules {
    /// TLBs may keep an entry that refused an access.
    quell_u32 keeps_refused;
    /// TLBs may remember that an entry was absent.
    quell_u32 keeps_absent;
    /// The kernel may not access user pages. So it loses access to a page when user mode gains it.
    quell_u32 user_excludes_kernel;
    /// The changes that need break-before-make.
    enum quell_break break_before_make;
};

/// A decoded page-table entry.
struct quell_entry {
    /// The frame of the table, or the first frame of the page.
    quell_u64 frame;
    /// Bits of an `enum quell_entry_flag`.
    quell_u32 flags;
    /// The memory type, as the architecture numbers it (PAT index, MAIR index, PBMT). 0 is ordinary memory.
    quell_u8 memory;
    /// The protection key, or 0.
    quell_u8 key;
    /// Attributes that are specific to the architecture. 0 for ordinary pages and tables.
    quell_u8 special;
};

/// The least flush that a change needs.
struct quell_need {
    /// The CPUs that the change affects.
    enum quell_need_kind kind;
    /// The entries to flush: leaf entries alone, or also walker caches and everything below the entry.
    ///
    /// It's QUELL_SCOPE_TABLES if `break_first` is set, or if the memory type or the encryption changes. The initiator
    /// of such a flush waits until every target has flushed, even with remote flush.
    enum quell_scope scope;
    /// Whether to flush under every tag, because the old or the new entry is global. Valid only for a flush.
    quell_bool every_tag;
    /// Whether to flush between clearing the entry and writing the new one. If not, flush after writing it. Valid only
    /// for a flush.
    quell_bool break_first;
};

/// The deferred flush of one frame: a word in the kernel's frame table.
///
/// It's zero exactly while the frame has no deferred flush, so zeroed memory is a valid start.
struct QUELL_ALIGNED(8) quell_deferred_flush {
    quell_u8 opaque[QUELL_DEFERRED_FLUSH_SIZE];
};

/// A plan for zeroing memory on this processor. quell_zero_plan_new makes it.
struct QUELL_ALIGNED(8) quell_zero_plan {
    quell_u8 opaque[QUELL_ZERO_PLAN_SIZE];
};

/// The result of one check of the suite. The texts don't end with a zero byte.
struct quell_check {
    /// Its name, which begins with the clauses of the contract that it checks.
    const char *name;
    /// The length of the name in bytes.
    quell_size name_length;
    /// The number of CPUs on which it failed.
    quell_u64 failures;
    /// A description of the failure on CPU 0; empty if the check succeeded there.
    const char *saw;
    /// The length of that text in bytes.
    quell_size saw_length;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Returns a status in words: one line without a newline, ended by a zero byte.
///
/// The text is valid for ever. For a number that isn't a status, the text explains that.
///
/// Context: any.
const char *quell_status_text(enum quell_status status);

/// Returns the number of the CPU that executes the call, from 0.
///
/// No other CPU has this number at the same time.
extern quell_u32 quell_hw_this_cpu(void);

/// Executes a full barrier that also shows table stores to the walkers of all CPUs.
///
/// It covers this CPU's own stores. It also covers stores of other CPUs that this CPU has observed: it took the
/// lock under which they were made, for example. On x86 it's `mfence`, on Arm `dsb ish`.
extern void quell_hw_fence(void);

/// Invalidates translations of this CPU alone. The invalidation has taken effect on return.
///
/// After that, no access of this CPU uses a covered entry, unless the walker filled the entry from the tables after
/// the call began. Fills after the call see table stores that this CPU made before it, and those of other CPUs that
/// it has observed. So on Arm the invalidation begins with `dsb ishst`, or with `dsb ish` in a kernel that
/// broadcasts nothing. quell_hw_load_root without `keep` guarantees the same.
///
/// If another CPU sees a release store that this CPU made after the call, the invalidation has taken effect. If
/// `what` names a tag, it's the loaded one.
extern void quell_hw_invalidate(const struct quell_invalidation *what);

/// Starts to invalidate translations on every CPU (`TLBI ... IS`, INVLPGB).
///
/// Fills after its completion see table stores made before the call. quell calls it only if
/// `quell_features.broadcast` is set; otherwise it may trap. A library without the feature "broadcast" needs
/// neither this function nor quell_hw_broadcast_complete.
extern void quell_hw_broadcast_start(const struct quell_invalidation *what);

/// Waits until this CPU's broadcasts are complete on every CPU (`dsb ish`, `tlbsync`).
///
/// quell calls it only if `quell_features.broadcast` is set.
extern void quell_hw_broadcast_complete(void);

/// Loads the root table in frame `root` under `tag`.
///
/// If `keep` is set, entries under the tag may survive. Otherwise none is left on return. On a machine without
/// tags, only global ones survive. Interrupts are masked.
extern void quell_hw_load_root(quell_u64 root,
                               quell_u16 tag,
                               quell_bool keep);

/// Leaves every user root. Until the next quell_hw_load_root, this CPU uses and fills no user translation.
///
/// For example, it loads the kernel's own root on x86, or a reserved table on Arm. It also drops entries under the
/// tag of the root that it loads, except global ones. Interrupts are masked.
extern void quell_hw_unload_root(void);

/// Interrupts each CPU of `targets`; the caller is never one of them.
///
/// Each target eventually calls quell_on_interrupt, and then sees the stores that precede this call. Interrupts are
/// masked, so this function must not wait for other CPUs.
///
/// `targets` is valid until this function returns. Only the words that cover the engine's CPUs are initialised:
/// don't read or copy the others.
extern void quell_hw_interrupt(const struct quell_cpu_set *targets);

/// Masks interrupts on this CPU, and returns whether they were on.
extern quell_bool quell_hw_mask_interrupts(void);

/// Undoes quell_hw_mask_interrupts: turns interrupts on again if `were_on` is true.
extern void quell_hw_restore_interrupts(quell_bool were_on);

/// Runs one turn of a waiting loop (`pause`, `yield`).
///
/// Other CPUs must make progress meanwhile.
extern void quell_hw_relax(void);

#if defined(QUELL_DEBUG_ASSERTIONS)
/// Returns whether this CPU may wait for other CPUs now.
///
/// A kernel can query its lock checker, for example. Only a library with debug assertions needs this function, and
/// panics if it returns false.
extern quell_bool quell_hw_may_wait(void);
#endif

/// Handles a panic: quell calls it when it detects a broken promise. It must not return.
///
/// `message` has `length` bytes of UTF-8, followed by a zero byte, and contains the place in quell's source. If the
/// function returns, this CPU spins for ever. Several CPUs may call it at once, with interrupts on or off. A
/// library that was built for an operating system doesn't call it: it prints the panic and aborts the process.
extern void quell_panic(const char *message,
                        quell_size length);

/// Makes an engine.
///
/// `engine` is zeroed memory, or holds an engine whose CPUs are all offline. The engine keeps the memory that `setup`
/// points to. It doesn't keep `setup` itself, the policy's text or the message. No function destroys an engine: once
/// all of its CPUs are offline, its memory may be used for something else.
///
/// Refuses
/// * a NULL `engine` or `setup`, and memory that isn't aligned,
/// * a header of another version (`interface`),
/// * both or none of `cpus` and `cpu_places`, or a NULL in the latter,
/// * a text that isn't a policy, or that needs a mechanism that the library was built without,
/// * features that contradict each other, and an unsupported number of CPUs,
/// * memory of an engine that has a CPU online, and in a debug library also the memory of such a CPU. It overwrites
///   another engine's `slots` and `ledger` unnoticed,
/// * `start_secondary` in a library without the feature "secondary".
///
/// Context: once, before any CPU is online.
QUELL_MUST_USE
enum quell_status quell_engine_new(struct quell_engine *engine,
                                   const struct quell_setup *setup);

/// Writes an engine's policy to `text`, in the form that quell_setup takes.
///
/// The text ends with a zero byte, and is cut off if it doesn't fit in `size` bytes; 64 are enough.
///
/// Refuses in a library without the feature "text".
///
/// Context: any.
enum quell_status quell_policy_text(const struct quell_engine *engine,
                                    char *text,
                                    quell_size size);

/// Returns whether an engine's policy has a mechanism on.
///
/// `mechanism` is 0 to 4 for S0 to S4. Returns false for any other number, and for memory without an engine.
///
/// Context: any.
quell_bool quell_policy_has(const struct quell_engine *engine,
                      quell_u32 mechanism);

/// Returns the most bytes that the policy allows to be zeroed without a preemption point.
///
/// UINT64_MAX means no limit. Returns 0 for memory without an engine.
///
/// Context: any.
quell_u64 quell_policy_cap(const struct quell_engine *engine);

/// Brings this CPU online: from now on it receives flush requests.
///
/// Call it before the CPU loads its first space and before it uses a kernel mapping that may change. It doesn't
/// synchronize instruction fetches. If the kernel's text changed while the CPU was offline, the kernel must synchronize
/// them afterwards.
///
/// Refuses a CPU that the engine doesn't have, and a CPU that is online.
///
/// Context: on the CPU itself, interrupts masked or nothing to interrupt.
QUELL_MUST_USE
enum quell_status quell_cpu_online(struct quell_engine *engine);

/// Takes this CPU offline: from now on it receives no flush requests.
///
/// The CPU leaves its space and answers its pending requests. Until quell_cpu_online, it must not use user memory, or
/// any kernel mapping whose changes are ever reported to a batch. Before then, free a table of the kernel's half only
/// if this CPU's walker can't reach it.
///
/// `from` is the space that this CPU loaded last, even if the CPU has it loaded lazily, or if the engine made the CPU
/// leave its root. Pass NULL only if there was no such space or it was retired. If you pass a wrong `from`, the loaded
/// space still lists this CPU. Its flushes then interrupt the CPU needlessly until the space is retired.
///
/// Refuses a CPU that isn't online.
///
/// Context: on the CPU itself.
QUELL_MUST_USE
enum quell_status quell_cpu_offline(struct quell_engine *engine,
                                    struct quell_space *from);

/// Handles the shootdown interrupt: takes this CPU's pending flush requests, and flushes.
///
/// A spurious call costs a few loads. Before the engine is made, the call does nothing and returns
/// QUELL_STATUS_NO_ENGINE. `here` is this CPU's state, one of `quell_setup.cpus` or `cpu_places`.
///
/// Refuses a CPU that the engine doesn't have, and another CPU's state.
///
/// Context: interrupts masked; any but an NMI, and not inside quell with interrupts masked. Does not wait.
enum quell_status quell_on_interrupt(struct quell_engine *engine,
                                     struct quell_cpu *here);

/// Takes this CPU's pending flush requests without an interrupt, and flushes.
///
/// Call it in a loop that spins, with interrupts off, for a lock whose holder may be waiting in quell. If there is no
/// request, it costs a few loads.
///
/// Refuses a CPU that the engine doesn't have.
///
/// Context: any but an NMI, and not inside quell with interrupts masked. Does not wait.
enum quell_status quell_poll(struct quell_engine *engine);

/// Returns whether an NMI handler or a probe may access user memory now.
///
/// If not, the caller gives up, as after an access that faults. Other code needn't check. Returns false for memory
/// without an engine, and on a CPU that the engine doesn't have.
///
/// Context: any, an NMI too, on an online CPU.
quell_bool quell_user_access_allowed(const struct quell_engine *engine);

/// Returns whether this CPU has no user root loaded.
///
/// Returns false for memory without an engine, and on a CPU that the engine doesn't have.
///
/// Context: on an online CPU, where it can't switch meanwhile.
quell_bool quell_is_detached(const struct quell_engine *engine);

/// Switches this CPU to the space `to`, and ends lazy mode.
///
/// `from` is the space that this CPU loaded last, even if the CPU has it loaded lazily, or if the engine made the CPU
/// leave its root. Pass NULL only if there was no such space or it was retired. `from` and `to` may be the same space.
///
/// On return, user accesses of this CPU use the current tables of `to`. Every flush of `to` that was complete when the
/// call began has taken effect on this CPU.
///
/// `here` is this CPU's state, one of `quell_setup.cpus` or `cpu_places`. Suppose that the machine has neither tags nor
/// broadcasts, no flush can be deferred, and the library was built with QUELL_UNCHECKED=1. Then a switch to another
/// space calls only one function of the machine, quell_hw_load_root, after about 20 instructions.
///
/// Refuses a CPU that isn't online, another CPU's state, and a space that wasn't made or was retired. Also refuses a
/// kernel space, which every CPU always has loaded.
///
/// Context: interrupts masked, in the scheduler's switch; calls must not nest on one CPU. Does not wait for other CPUs'
/// answers. With system-wide tags it spins while another CPU takes a tag.
QUELL_MUST_USE
enum quell_status quell_switch_to(struct quell_engine *engine,
                                  struct quell_cpu *here,
                                  struct quell_space *from,
                                  struct quell_space *to);

/// Enters lazy mode, for a CPU that becomes idle or runs a kernel thread.
///
/// The root stays loaded, but the CPU doesn't use its user half. Most flushes of this space no longer interrupt the
/// CPU. The exceptions are flushes for freed page-table pages, and the end of the space. quell_switch_to or
/// quell_resume ends lazy mode.
///
/// `here` is this CPU's state. Refuses a CPU that isn't online, and another CPU's state.
///
/// Context: the scheduler's switch; calls must not nest on one CPU. Does not wait.
QUELL_MUST_USE
enum quell_status quell_enter_lazy(struct quell_engine *engine,
                                   struct quell_cpu *here);

/// Ends lazy mode if this CPU still has the root of `space` loaded.
///
/// A kernel thread calls it before it accesses user memory of `space`. An idle CPU calls it at the end of the idle
/// period. Returns false and does nothing if the CPU has left that root meanwhile: then call quell_switch_to. Also
/// returns false if the CPU isn't online, or if a pointer is refused.
///
/// Context: as quell_enter_lazy.
QUELL_MUST_USE
quell_bool quell_resume(struct quell_engine *engine,
                  struct quell_space *space);

/// Notes that this CPU returns to its program (for a `nohz_full` CPU).
///
/// Until quell_enter_kernel, changes of kernel mappings don't interrupt this CPU, unless they were reported with
/// QUELL_SCOPE_TABLES; quell_enter_kernel flushes them. The call has no effect on a CPU that runs no user space.
///
/// Until quell_enter_kernel, this CPU must not use a mapping whose changes are ever reported for a kernel space. So the
/// kernel never unmaps or moves quell, quell's memory, or the text and stack of its exit and entry paths. In that time,
/// the CPU calls no function of quell except quell_on_interrupt.
///
/// Refuses a CPU that isn't online.
///
/// Context: on the CPU itself, interrupts masked. Does not wait.
enum quell_status quell_enter_user(struct quell_engine *engine);

/// Notes that this CPU entered the kernel. Flushes kernel mappings that changed while it ran the program.
///
/// Every interrupt, exception, system call and NMI that may interrupt a program calls it first. If the CPU hasn't
/// called quell_enter_user since the last call, the call costs a few loads.
///
/// Refuses a CPU that isn't online.
///
/// Context: interrupts masked, or an NMI, before the CPU uses a kernel mapping that may change. Does not wait.
enum quell_status quell_enter_kernel(struct quell_engine *engine);

/// Waits until every online CPU has made the flushes that it has acknowledged.
///
/// With remote flush, an initiator may have waited only for receipts: a target has taken the request but may not
/// have flushed yet. The call interrupts no CPU.
///
/// Call it for frames that even a speculative load must not reach, after a batch has returned them or they were reused.
/// For example, their memory type or encryption is about to change, a guest gets exclusive use of them, or they leave
/// the machine.
///
/// It doesn't cover CPUs that received no request. For user mappings, those are CPUs that have the space loaded lazily.
/// For kernel mappings, they're CPUs between quell_enter_user and quell_enter_kernel. A change that is reported with
/// QUELL_SCOPE_TABLES reaches these CPUs, too.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_quiesce(struct quell_engine *engine);

/// Makes every online CPU drop the instructions that it fetched before the call.
///
/// Call it after the kernel's text was written, mapped or unmapped, and after you finished the batch to which the
/// change was reported. If the machine's instruction caches need maintenance, the kernel does that first. The call has
/// no effect on CPUs that are offline, not even when they come online.
///
/// Refuses an engine without `quell_hooks.synchronize_text`, and a CPU that the engine doesn't have.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_synchronize_text(struct quell_engine *engine);

/// Returns whether this CPU is online, between quell_cpu_online and quell_cpu_offline.
///
/// Returns false for memory without an engine, and on a CPU that the engine doesn't have.
///
/// Context: any but an NMI, where the caller stays on this CPU.
quell_bool quell_is_online(const struct quell_engine *engine);

/// Returns whether this CPU runs `space`: it has the space loaded and isn't lazy.
///
/// Returns false if a pointer is refused.
///
/// Context: on an online CPU, where it can't switch meanwhile.
quell_bool quell_runs(const struct quell_engine *engine,
                const struct quell_space *space);

/// Makes this CPU leave `space` if it has the space loaded, lazily or not.
///
/// The CPU then has no user root until quell_switch_to, and no flush of the space interrupts it. If the engine made the
/// CPU leave the root earlier, and no other root is loaded, the space also stops listing this CPU.
///
/// Refuses a CPU that isn't online, and a space that wasn't made or was retired.
///
/// Context: as quell_enter_lazy.
QUELL_MUST_USE
enum quell_status quell_leave(struct quell_engine *engine,
                              struct quell_space *space);

/// Makes an address space that no CPU has loaded.
///
/// Its root table is in frame `root` (the physical address divided by 4096). Until quell_space_retire returns, the root
/// must be a table in the machine's format that maps the kernel as every root does. No other space may have this root.
///
/// `space` is memory of any content, which must not move until the space is retired.
///
/// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_space_new(struct quell_engine *engine,
                                  struct quell_space *space,
                                  quell_u64 root);

/// Makes a space for the kernel's own mappings, which every CPU always has loaded.
///
/// Such mappings are stacks, `vmalloc` memory, I/O mappings and module text, for example. Report their changes to
/// batches like those of any other space. The initiator of a flush sends a request to every online CPU, except those
/// between quell_enter_user and quell_enter_kernel, and waits until each has flushed. A change that is reported with
/// QUELL_SCOPE_TABLES has no exceptions. A kernel may have several such spaces.
///
/// `space` is memory of any content, which must never move: a kernel space can't be retired.
///
/// The root in frame `root` maps the kernel. With QUELL_KERNEL_ENTRIES_GLOBAL every entry that is reported with this
/// space must be global; with QUELL_KERNEL_ENTRIES_TAGGED an entry may be global or not. quell_hw_invalidate must
/// handle QUELL_INVALIDATION_KIND_KERNEL and QUELL_INVALIDATION_KIND_EVERYTHING.
///
/// The kernel may unmap a range that it no longer uses with quell_batch_finish_deferred, whatever its rights were. It
/// may use the addresses again after quell_flush_until, and the frames after quell_flush_before_reuse.
///
/// Refuses an `entries` that isn't in the enumeration. In a library without the feature "kernel" it always refuses.
///
/// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_kernel_space_new(struct quell_engine *engine,
                                         struct quell_space *space,
                                         quell_u64 root,
                                         enum quell_kernel_entries entries);

/// Retires a space in which no user thread will ever run again.
///
/// It makes every CPU leave the space's root. After it returns, no walker reads its tables, so they may be freed, the
/// root included. The space's memory is then zero, and belongs to the caller again.
///
/// If the engine made a CPU leave the space earlier, that CPU may still pass the space as `from` to quell_switch_to or
/// quell_cpu_offline. Such a call writes to the space's memory, and this function doesn't wait for it. So when this
/// function returns, no CPU may be in such a call, and none may make one later. A kernel can, for example, count the
/// CPUs that loaded this space last, and retire it when the count is zero.
///
/// Refuses a space that this CPU runs (switch away or enter lazy mode first), a space with changes in an unfinished
/// batch, and a kernel space.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_space_retire(struct quell_engine *engine,
                                     struct quell_space *space);

/// Returns the id of a space. No other space of the engine ever has the same id.
///
/// Returns 0 for memory without a space.
///
/// Context: any.
quell_u64 quell_space_id(const struct quell_space *space);

/// Returns whether an unfinished batch has changes of a space.
///
/// If so, quell_space_retire refuses the space. Returns false for memory without a space.
///
/// Context: any.
quell_bool quell_space_is_in_batch(const struct quell_space *space);

/// Returns the frame of a space's root table.
///
/// Returns 0 for memory without a space.
///
/// Context: any.
quell_u64 quell_space_root(const struct quell_space *space);

/// Drops this CPU's translations of a range of `space` that has *gained* rights.
///
/// It does nothing if the space isn't loaded. Call it after a fault, on machines whose TLBs keep an entry that refused
/// an access. Other CPUs notice the change by faults of their own. Don't use it for changes that need a flush.
///
/// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_refresh(struct quell_engine *engine,
                                struct quell_space *space,
                                struct quell_range range);

/// Begins a batch in memory of any content.
///
/// `frames` is an array for the names of `room` frames; it may be NULL if `room` is 0. The batch owns the array until
/// it's finished. A full batch must be finished, which costs a shootdown, so choose a long array: 64 frames, for
/// example.
///
/// A batch records ranges for up to QUELL_BATCH_SPACES spaces. If changes of further spaces are reported, the end of
/// the batch flushes all of those spaces. It does so on every CPU that may have them loaded, and on some others.
///
/// Finish every batch to which something was reported. Otherwise its entries are never flushed, and its spaces have a
/// flush pending for ever.
///
/// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_batch_begin(struct quell_engine *engine,
                                    struct quell_batch *batch,
                                    enum quell_purpose purpose,
                                    void **frames,
                                    quell_size room);

/// Returns whether the batch can't take another frame. If so, finish it.
///
/// Returns true for memory without a batch.
///
/// Context: any but an NMI.
quell_bool quell_batch_is_full(struct quell_batch *batch);

/// Returns whether nothing was reported to the batch since it was begun or finished.
///
/// Finishing an empty batch does nothing. Returns true for memory without a batch, and false for a batch whose flush
/// was started.
///
/// Context: any but an NMI.
quell_bool quell_batch_is_empty(struct quell_batch *batch);

/// Returns whether the batch will flush all of `space` in at least this `scope`.
///
/// If so, you may skip further reports of the space until the batch is finished. Always returns false on machines that
/// broadcast invalidations, and for a space beyond the batch's QUELL_BATCH_SPACES. Also returns false for memory
/// without a batch or a space, and for a batch whose flush was started.
///
/// Context: as quell_batch_changed.
quell_bool quell_batch_covers(struct quell_batch *batch,
                        struct quell_space *space,
                        enum quell_scope scope);

/// Reports a change to the batch on behalf of quell_batch_changed. Call that inline function instead.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_report(struct quell_batch *batch,
                                     struct quell_space *space,
                                     quell_u64 start,
                                     quell_u64 pages,
                                     enum quell_stride stride,
                                     enum quell_scope scope);

/// Reports that entries anywhere in `space` changed.
///
/// If you know the range, call quell_batch_changed instead.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_changed_all(struct quell_batch *batch,
                                          struct quell_space *space,
                                          enum quell_scope scope);

/// Reports cleared entries to the batch on behalf of quell_batch_unmapped. Call that inline function instead.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_report_unmapped(struct quell_batch *batch,
                                              struct quell_space *space,
                                              quell_u64 start,
                                              quell_u64 pages,
                                              enum quell_stride stride,
                                              void *frame);

/// Reports that a page-table page that spanned `range` was unlinked from `space`.
///
/// `frame` is the kernel's name of that page. The flush drops walker caches too, and interrupts CPUs that have the
/// space loaded lazily. The initiator waits until every target has flushed. If the table still mapped pages, the flush
/// drops only the first page of each stride of the range.
///
/// Refuses a full batch, and then reports nothing.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_table_unlinked(struct quell_batch *batch,
                                             struct quell_space *space,
                                             struct quell_range range,
                                             void *frame);

/// Adds a frame to the batch without reporting an entry.
///
/// Use it if nothing maps the frame any more, or if its entries were all reported with quell_batch_changed. The latter
/// helps if several spaces mapped the frame, for example.
///
/// Refuses a full batch.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
enum quell_status quell_batch_hold(struct quell_batch *batch,
                                   void *frame);

/// Notifies the batch that the caller dropped the lock under which it reported changes.
///
/// It matters only if batching is off. The batch then flushes these changes, unless its purpose is QUELL_PURPOSE_CALL
/// or its flush may be deferred. The frames stay in its array. So with batching off, a kernel that calls this function
/// after each change flushes each change separately. A kernel that never calls it flushes when the batch is finished.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_batch_unlocked(struct quell_batch *batch);

/// Flushes all reported changes, and returns the frames.
///
/// After it returns, no user access on any CPU uses a reported translation. The batch's array holds `*count` frames, in
/// the order in which they were reported, and belongs to the caller. The batch is then empty and may be used again.
/// `count` may be NULL.
///
/// Context: interrupts on or off. May wait, but not after quell_batch_poll has returned true.
QUELL_MUST_USE
enum quell_status quell_batch_finish(struct quell_batch *batch,
                                     quell_size *count);

/// Starts the flush of the batch without waiting for other CPUs.
///
/// The flush proceeds by itself. Until it's over, only quell_batch_poll and quell_batch_finish accept the batch, and
/// its memory must not move.
///
/// When the flush is over, quell calls `callback` once, with `argument`, on any CPU, with interrupts masked. That may
/// be inside any call of quell except the inline ones: quell_on_interrupt, quell_poll in a lock's loop, a wait of another
/// batch, or quell_batch_start. So the callback must not take a lock that a CPU may hold during a call of quell, such as
/// that of a run queue. It may put a thread on a list without a lock, or finish the batch itself. It must not call any
/// other function of quell.
/// quell_batch_finish refuses the batch until quell has called the callback. The callback may run before this function
/// returns. On a machine that broadcasts invalidations it does, after the barrier that completes them, unless a device
/// has yet to answer.
///
/// Without a callback (NULL), call quell_batch_poll until it returns true, or quell_batch_finish, which waits.
///
/// Refuses in a library without the feature "start".
///
/// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_batch_start(struct quell_batch *batch,
                                    void (*callback)(void *argument),
                                    void *argument);

/// Returns whether a started flush is over, so that quell_batch_finish wouldn't wait.
///
/// Call it on any CPU, any number of times. Each call continues the check of the targets where the last call ended, at
/// the first CPU that hadn't answered. Returns true for a batch whose flush wasn't started, and for memory without a
/// batch.
///
/// If devices also walk the tables (`quell_hooks.secondary_is_done`), call it again once they have answered, because
/// quell gets no notice of their answers.
///
/// On a machine that broadcasts invalidations, the call executes the barrier that completes the flush. It returns true
/// unless a device has yet to answer, or another CPU is checking this batch for its callback.
///
/// Context: any but an NMI. Does not wait for other CPUs.
quell_bool quell_batch_poll(struct quell_batch *batch);

/// Defers the batch's flush until the frames are reused, or else flushes now.
///
/// If it flushed, `*stamp` is zero. As with quell_batch_finish, the array then holds `*count` frames.
///
/// It flushes now if lazy unmap is off, if the ledger is full, or if the batch has
/// * an unlinked table,
/// * mappings of both the kernel and a user space,
/// * changes of more than QUELL_BATCH_SPACES spaces, or
/// * a space with more outstanding batches than quell can count.
///
/// If the flush is deferred, record it in each frame: call quell_deferred_flush_defer with this stamp. Do that before
/// you drop the lock under which you called quell_deferred_flush_begin. You may drop the locks of the page tables
/// before this call. Code that finds an entry already cleared still flushes then (quell_flush_pending): until this call
/// it finds the outstanding batch, and afterwards the deferred flush.
///
/// The caller guarantees that every mapping of every frame was read-only and clean, or was a kernel mapping that no CPU
/// uses any more. quell doesn't check this.
///
/// Context: under the lock of quell_deferred_flush_begin. May wait for other CPUs if it flushes, and for devices if
/// there are any.
QUELL_MUST_USE
enum quell_status quell_batch_finish_deferred(struct quell_batch *batch,
                                              quell_size *count,
                                              struct quell_stamp *stamp);

/// Flushes a change of `space` at once, without a batch.
///
/// Entries in `*range` changed, or anywhere in the space if `range` is NULL. After it returns, no user access on any
/// CPU uses a translation that the change removed.
///
/// It's quicker than a batch with one change, but until it returns, quell_flush_pending doesn't wait for this change.
/// So call it under the lock of the table. Without the lock, other code may find the entry already cleared and rely on
/// that. Such code must then learn of the flush in another way: Linux's mm_tlb_flush_pending, for example.
///
/// `here` is this CPU's state, one of `quell_setup.cpus` or `cpu_places`. Another CPU's is refused.
///
/// Context: after the tables were written, interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush(struct quell_engine *engine,
                              struct quell_cpu *here,
                              struct quell_space *space,
                              const struct quell_range *range,
                              enum quell_scope scope);

/// Flushes all of `space`, or waits for another task's flush that begins after this call.
///
/// It flushes like quell_flush with QUELL_SCOPE_TABLES: entries may have changed anywhere, and page tables may have
/// been freed. It saves time if several threads change one space at once and more than two CPUs have it loaded. `here`
/// is this CPU's state; another CPU's is refused.
///
/// Context: as quell_flush. Masks interrupts for as long as two flushes take at most.
QUELL_MUST_USE
enum quell_status quell_flush_coalesced(struct quell_engine *engine,
                                        struct quell_cpu *here,
                                        struct quell_space *space);

/// Writes the rules of an architecture's TLBs (an `enum quell_architecture`) to `*rules`.
///
/// The rules assume only what the architecture guarantees. A kernel may relax them if its machine guarantees more:
/// RISC-V's Svvptc or Arm's FEAT_BBML1, for example. It may also clear `user_excludes_kernel` if it never accesses user
/// memory in place.
///
/// Context: any.
QUELL_MUST_USE
enum quell_status quell_tlb_rules_of(enum quell_architecture architecture,
                                     struct quell_tlb_rules *rules);

/// Decodes a word of a page table.
///
/// `level` counts from 0, the leaf tables. `c_bit` is the number of the bit that marks encrypted memory (AMD's C-bit,
/// 12 to 51), or 0. A word that isn't present decodes to an entry without flags.
///
/// Context: any.
QUELL_MUST_USE
enum quell_status quell_entry_of(enum quell_architecture architecture,
                                 quell_u32 level,
                                 quell_u64 word,
                                 quell_u32 c_bit,
                                 struct quell_entry *entry);

/// Finds the least flush for a change of one table word from `old` to `new`.
///
/// `old` is the value that the change replaced, not one that was read earlier. Use an exchange instruction where
/// hardware sets bits in the word. Accessed bits may become inexact: clearing one needs no flush, for example.
///
/// The function compares only these two entries. It doesn't see the leaves below a table, so for a table entry the
/// caller must check itself whether any are global.
///
/// Context: any.
QUELL_MUST_USE
enum quell_status quell_flush_needed(const struct quell_tlb_rules *rules,
                                     const struct quell_entry *old,
                                     const struct quell_entry *new_,
                                     struct quell_need *need);

/// Initialises a frame's word: the frame has no deferred flush.
///
/// Zeroed memory is initialised already.
///
/// Context: any.
enum quell_status quell_deferred_flush_init(struct quell_deferred_flush *deferred_flush);

/// Returns whether the frame has no deferred flush, with one acquire load.
///
/// Returns true for NULL.
///
/// Context: any.
quell_bool quell_deferred_flush_is_clear(const struct quell_deferred_flush *deferred_flush);

/// Marks a frame whose entries are about to be cleared without a flush.
///
/// Context: under the lock of the page-cache slot, before the first entry is cleared.
enum quell_status quell_deferred_flush_begin(struct quell_deferred_flush *deferred_flush);

/// Records `*stamp`, which quell_batch_finish_deferred wrote, as the frame's deferred flush.
///
/// A stamp of zero means that the batch flushed. Then the call does the same as quell_deferred_flush_flushed.
///
/// Context: under the lock of quell_deferred_flush_begin.
enum quell_status quell_deferred_flush_defer(struct quell_deferred_flush *deferred_flush,
                                             const struct quell_stamp *stamp);

/// Clears the mark of quell_deferred_flush_begin.
///
/// Use it if the frame was flushed after all, or if its entries were not cleared.
///
/// Context: under the lock of quell_deferred_flush_begin.
enum quell_status quell_deferred_flush_flushed(struct quell_deferred_flush *deferred_flush);

/// Takes a frame back for its page, to be mapped read-only at the same places.
///
/// No flush is needed. Returns false if the frame was reused first, if a pointer is refused, or on a CPU that the
/// engine doesn't have. Then the frame no longer belongs to the page.
///
/// Afterwards the frame has no deferred flush, although CPUs may still use stale entries for pages where it isn't
/// mapped again. So do one of two things:
/// * Map the frame again at every place from which it was unmapped, before you drop the lock.
/// * Treat each entry that still names the frame as a mapping of it. Report the entry to the batch when you remove that
///   mapping.
///
/// Context: under the lock of the page-cache slot. Does not wait.
QUELL_MUST_USE
quell_bool quell_reinstate(struct quell_engine *engine,
                     struct quell_deferred_flush *deferred_flush);

/// Makes the frame's deferred flush if still outstanding. Takes the frame for a new owner.
///
/// Returns whether the caller now owns the frame. Returns false if the frame was reinstated or never had a deferred
/// flush. Also returns false if a pointer is refused, or on a CPU that the engine doesn't have.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
quell_bool quell_flush_before_reuse(struct quell_engine *engine,
                              struct quell_deferred_flush *deferred_flush);

/// Returns whether reusing this frame would interrupt no CPU.
///
/// It costs two loads when no flush is deferred. Returns false if a pointer is refused.
///
/// Context: any but an NMI. Does not wait.
quell_bool quell_is_flushed(const struct quell_engine *engine,
                      const struct quell_deferred_flush *deferred_flush);

/// Makes the frame's deferred flush, so that its entries and page-cache slot may be refilled.
///
/// Call it before you overwrite a marker in a table of `space`: a non-present entry that names the frame. If the
/// frame's batch has not ended yet, the call flushes `space` like quell_flush_pending.
///
/// Call it also before you fill a page-cache slot that held the frame. Hold the slot's lock: then the batch has ended,
/// and any space will do as `space`.
///
/// It costs one load when no flush is deferred. After quell_reinstate it flushes nothing, although other markers may
/// still name the frame.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_before_refill(struct quell_engine *engine,
                                            struct quell_deferred_flush *deferred_flush,
                                            struct quell_space *space);

/// Flushes all pending changes of `space`.
///
/// It's for later observers: code that finds an entry already cleared by another CPU and relies on that. After it
/// returns, no CPU uses a translation of the space that was cleared before the call. It costs three loads when no flush
/// is pending.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_pending(struct quell_engine *engine,
                                      struct quell_space *space);

/// Flushes all outstanding batches of `space`, but leaves flushes that are deferred until reuse.
///
/// It's for code that handles markers one by one and has found an entry cleared without a marker. Other code calls
/// quell_flush_pending. It costs two loads when no batch is outstanding.
///
/// Context: as quell_flush_pending.
QUELL_MUST_USE
enum quell_status quell_flush_pending_batches(struct quell_engine *engine,
                                              struct quell_space *space);

/// Flushes all outstanding batches of `space`, and waits until no TLB uses the old translations.
///
/// quell_flush_pending_batches may return once each target has taken its request (a receipt). This function waits
/// longer, and idle CPUs leave the space's root. It's for code that finds an entry cleared and is about to write an
/// entry of another page size there. The code that cleared the entry must have reported it with QUELL_SCOPE_TABLES. It
/// costs two loads when no batch is outstanding.
///
/// Context: as quell_flush_pending.
QUELL_MUST_USE
enum quell_status quell_flush_pending_tables(struct quell_engine *engine,
                                             struct quell_space *space);

/// Makes all deferred flushes up to `*stamp`.
///
/// After it returns, no CPU uses a translation whose flush a batch deferred before the call, with this stamp or an
/// earlier one. Call it before addresses of the kernel's half are used again. Also call it before the content of a page
/// changes, if the page's former frame was unmapped with `*stamp` and CPUs may still read it. It costs one load when no
/// flush is deferred.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_until(struct quell_engine *engine,
                                    const struct quell_stamp *stamp);

/// Returns whether any flush may be deferred until reuse.
///
/// If it returns false, none is. It may return true because of a stamp that was never used. Returns false for memory
/// without an engine.
///
/// Context: any.
quell_bool quell_has_deferred(const struct quell_engine *engine);

/// Makes every deferred flush.
///
/// A background thread can call it, so that reusing a frame needn't wait. It may miss a batch whose
/// quell_batch_finish_deferred hasn't returned.
///
/// Context: interrupts on or off. May wait.
QUELL_MUST_USE
enum quell_status quell_flush_deferred(struct quell_engine *engine);

/// Flushes this CPU's tag if many flushes were deferred since its last flush.
///
/// Many means a sixteenth of the ledger's entries: 4 deferred flushes with 64 entries, for example. Call it when a CPU
/// is in the kernel anyway, for example at a fault. A later deferred flush then needn't interrupt the CPU. It costs two
/// loads if there's nothing to do.
///
/// Context: any but an NMI, on an online CPU. Does not wait.
enum quell_status quell_catch_up(struct quell_engine *engine);

/// Returns the name of a counter in reports, ended with a zero byte.
///
/// Returns NULL if there is no such counter.
///
/// Context: any.
const char *quell_counter_label(enum quell_counter counter);

/// Returns a sentence that explains a counter, ended with a zero byte.
///
/// Returns NULL if there is no such counter.
///
/// Context: any.
const char *quell_counter_meaning(enum quell_counter counter);

/// Writes the counters, summed over all CPUs, to `counts`.
///
/// `counts` has room for QUELL_COUNTERS numbers and is indexed by `enum quell_counter`. Counters only grow, and wrap
/// around. A small library refuses, because it counts nothing.
///
/// Context: any.
enum quell_status quell_stats(const struct quell_engine *engine,
                              quell_u64 *counts);

/// Writes the counters of one CPU, online or not, as quell_stats does.
///
/// Refuses a CPU that the engine doesn't have.
///
/// Context: any.
enum quell_status quell_cpu_stats(const struct quell_engine *engine,
                                  quell_u32 cpu,
                                  quell_u64 *counts);

/// Plans how quell_zero zeroes memory, from the processor's instructions and caches.
///
/// The policy of `engine` decides whether quell_zero zeroes whole extents or single pages, and how long a run may be.
/// If `engine` is NULL, it zeroes whole extents in runs of at most 32 MB. `plan` is memory of any content.
///
/// If `vectors` is set, zeroing may overwrite vector registers: pass false in a kernel that doesn't save them.
///
/// Context: any but an NMI. Does not wait.
QUELL_MUST_USE
enum quell_status quell_zero_plan_new(struct quell_zero_plan *plan,
                                      const struct quell_engine *engine,
                                      quell_bool vectors);

/// Zeroes `bytes` bytes from `start`.
///
/// The bytes are ordinary memory of the caller that no other code accesses meanwhile. The page at `fault` and its
/// neighbours are zeroed last and are in the caches afterwards. If `fault` is NULL or outside the memory, no
/// page is. The rest may bypass the caches. A later release by the caller makes the zeroes visible to a CPU that acquires it.
///
/// If `preempt` isn't NULL, quell calls it between two runs. It may sleep, and return on another CPU of the same kind.
///
/// Refuses a `start` that isn't a multiple of 4096, and a `bytes` that is 0 or isn't a multiple of 4096.
///
/// Context: any but an NMI, if `preempt` may be called in it. Does not wait.
QUELL_MUST_USE
enum quell_status quell_zero(const struct quell_zero_plan *plan,
                             void *start,
                             quell_size bytes,
                             const void *fault,
                             void (*preempt)(void));

/// Returns the number of CPUs that run the suite, which are numbered from 0.
///
/// The suite may call this function and the other quell_bench_* functions on any CPU.
extern quell_u32 quell_bench_cpus(void);

/// Allocates physically contiguous frames that nothing else uses, and returns the first.
///
/// The suite never returns them.
extern quell_u64 quell_bench_take_frames(quell_u64 frames);

/// Makes a root table that maps only the kernel, not the suite's pages. Returns its frame.
extern quell_u64 quell_bench_new_root(void);

/// Writes the entry of a base page and makes missing tables above it. Invalidates nothing.
extern void quell_bench_set(quell_u64 root,
                            quell_u64 page,
                            quell_u64 frame,
                            enum quell_rights rights);

/// Unlinks the lowest table above a page, and returns its frame. Invalidates nothing.
///
/// The suite calls it only if that table exists.
extern quell_u64 quell_bench_unlink_table(quell_u64 root,
                                         quell_u64 page);

/// Reads a word of a frame through the kernel's own mapping of memory.
extern quell_u64 quell_bench_word(quell_u64 frame,
                                 quell_u32 index);

/// Writes a word of a frame through the kernel's own mapping of memory.
extern void quell_bench_set_word(quell_u64 frame,
                                 quell_u32 index,
                                 quell_u64 value);

/// Loads eight bytes through the loaded root. Returns false if the load faults.
extern quell_bool quell_bench_try_read(quell_u64 address,
                                 quell_u64 *value);

/// Stores eight bytes through the loaded root. Returns false if the store faults.
extern quell_bool quell_bench_try_write(quell_u64 address,
                                  quell_u64 value);

/// Receives the result of a check, on CPU 0.
extern void quell_bench_report(const struct quell_check *check);

/// Makes the suite in memory that it keeps.
///
/// `memory` has `size` bytes: at least QUELL_CONFORMANCE_SIZE, plus 32 for each CPU, aligned to QUELL_LINE_ALIGN. This
/// function exists only in a library with the feature "conformance".
///
/// Refuses memory that is NULL, not aligned or too small, and an engine that wasn't made.
///
/// Context: once, before quell_conformance_run.
QUELL_MUST_USE
enum quell_status quell_conformance_new(struct quell_engine *engine,
                                        void *memory,
                                        quell_size size);

/// Runs each check once on this CPU.
///
/// All CPUs of the suite call it at the same time, and CPU 0 reports the results. The calling CPU is online, takes
/// interrupts, and runs `loaded`, or no space if `loaded` is NULL. On return it runs `loaded` again.
///
/// Refuses to run before quell_conformance_new, and refuses a `loaded` that isn't a space.
///
/// Context: interrupts on. Waits.
QUELL_MUST_USE
enum quell_status quell_conformance_run(struct quell_space *loaded);

/// Turns on a mutant of the engine, so that a test can detect the mistake.
///
/// `quell explore --list` lists the names. Returns QUELL_STATUS_UNSUPPORTED if the library wasn't built with mutants,
/// and QUELL_STATUS_VALUE if there is no mutant of this name.
///
/// Context: any, before the first engine is made.
enum quell_status quell_leave_out(const char *name);

/// Returns the range of `bytes` bytes from `address`, mapped by entries of size `stride`.
///
/// If `address` or `bytes` is not a multiple of that size, the range is empty, and every function refuses it.
static inline struct quell_range quell_range_of(quell_u64 address, quell_u64 bytes, enum quell_stride stride)
{
    quell_u64 size = (quell_u64)4096 << 9 * (unsigned)stride;
    struct quell_range range;
    range.start = address / 4096;
    range.pages = (address | bytes) & (size - 1) ? 0 : bytes / 4096;
    range.stride = stride;
    return range;
}

/// Reports that entries of `space` were cleared or lost rights, without a frame.
///
/// If the range follows the last reported one, the call costs about eight instructions.
///
/// Context: after the tables were written, under their lock. Does not wait for other CPUs. Where invalidations are
/// broadcast and batching is off, it executes the barrier for the broadcasts of its own CPU.
QUELL_MUST_USE
static inline enum quell_status quell_batch_changed(struct quell_batch *batch, struct quell_space *space,
                                                    struct quell_range range, enum quell_scope scope)
{
    if (batch && batch->run.next == range.start && batch->run.of == (quell_size)space + (quell_size)scope + 2 &&
        range.stride == QUELL_STRIDE_BASE && ((range.pages - 1) | ((range.start & 65535) + range.pages)) < 65536) {
        batch->run.next += range.pages;
        return QUELL_STATUS_OK;
    }
    return quell_batch_report(batch, space, range.start, range.pages, range.stride, scope);
}

/// Reports that entries of `space` that mapped `frame` were cleared.
///
/// `frame` is any name that the kernel gives to the frame. quell stores it in the batch's array and never dereferences
/// it. If the range follows the last reported one, the call costs about fourteen instructions.
///
/// Refuses a full batch, and then reports nothing.
///
/// Context: as quell_batch_changed.
QUELL_MUST_USE
static inline enum quell_status quell_batch_unmapped(struct quell_batch *batch, struct quell_space *space,
                                                     struct quell_range range, void *frame)
{
    if (batch && batch->run.next == range.start && batch->run.of == (quell_size)space + QUELL_SCOPE_LEAF + 2 &&
        range.stride == QUELL_STRIDE_BASE && ((range.pages - 1) | ((range.start & 65535) + range.pages)) < 65536 &&
        batch->frames.next != batch->frames.end) {
        *batch->frames.next++ = frame;
        batch->run.next += range.pages;
        return QUELL_STATUS_OK;
    }
    return quell_batch_report_unmapped(batch, space, range.start, range.pages, range.stride, frame);
}

/** @cond */
// The library was built for enums as large as an int. With -fshort-enums the structures would have another layout.
#if defined(__cplusplus)
#define QUELL_ASSERT static_assert
#else
#define QUELL_ASSERT _Static_assert
#endif
QUELL_ASSERT(sizeof(enum quell_status) == sizeof(int), "quell.h is read without -fshort-enums");
QUELL_ASSERT(sizeof(quell_u8) == 1 && (quell_u8)-1 > 0, "quell_u8 is unsigned and has 8 bits");
QUELL_ASSERT(sizeof(quell_u16) == 2 && (quell_u16)-1 > 0, "quell_u16 is unsigned and has 16 bits");
QUELL_ASSERT(sizeof(quell_u32) == 4 && (quell_u32)-1 > 0, "quell_u32 is unsigned and has 32 bits");
QUELL_ASSERT(sizeof(quell_u64) == 8 && (quell_u64)-1 > 0, "quell_u64 is unsigned and has 64 bits");
QUELL_ASSERT(sizeof(quell_size) == sizeof(void *) && (quell_size)-1 > 0, "quell_size is as large as a pointer");
QUELL_ASSERT(sizeof(quell_bool) == 1 && (quell_bool)2 == 1, "quell_bool is _Bool: one byte, 0 or 1");
#undef QUELL_ASSERT
/** @endcond */

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUELL_H */

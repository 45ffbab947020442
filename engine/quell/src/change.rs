//! The decision whether a change of an entry needs a flush, and of which kind.
//!
//! Kernel developers keep arguing about this case by case, so one function decides for all code that writes page
//! tables. It compares an entry before and after the change and returns the smallest flush that keeps the contract.
//! [`flush_needed`] states the rules. Some reasons:
//!
//! * *Tables*: the rights in an entry that points to a table limit all pages below it and are kept by the walker caches.
//!   So the rules for leaves hold there, too, with the larger scope.
//! * *The accessed bit is cleared*: without a flush, a clear accessed bit proves nothing, because the entry may be cached
//!   from before it was cleared.
//! * *The page size, the memory type or the encryption changes*: flush with [`Scope::Tables`], even for a leaf. The
//!   initiator then waits until the flush is complete. With [`Scope::Leaf`] and asynchronous flushes it continues when
//!   each target has received the request: a CPU may then hold both the old and the new entry, or load lines of the
//!   frame into its cache under the old type. Also, [`Scope::Leaf`] doesn't reach CPUs that have the space loaded
//!   lazily.
//!
//! # Break before make
//!
//! If the old and the new entry must never be visible at the same time, [`Flush::break_first`] is set: clear the entry,
//! flush, and only then write the new one. The architecture determines which changes require this ([`Break`]). Compare
//! the old entry with the final one, not with the absent one in between. At an unmap you don't know the next entry yet.
//! If a page of another size may take the place, for example a large page on x86-64, report the unmapped page with
//! [`Scope::Tables`]. Before you write an entry into a place that another CPU has emptied, call
//! [`Engine::flush_pending_tables`](crate::Engine::flush_pending_tables).
//!
//! On x86-64, two page sizes for one address cause a machine check on AMD's family 10h ([erratum
//! 383](https://www.amd.com/system/files/TechDocs/41322_10h_Rev_Gd.pdf)). They do so on most Intel Core and Xeon
//! processors before those that report `PSCHANGE_MC_NO` if instructions are fetched there and the frame or the memory
//! type changes with the size ([iTLB multihit](https://docs.kernel.org/admin-guide/hw-vuln/multihit.html)). Other
//! processors use either translation.
//!
//! The order also matters for the contract. If a frame is replaced by another *with different contents* while programs
//! run, C4 breaks unless the old translation is flushed before any CPU can see the new one.
//!
//! # Sources
//!
//! * x86-64: [Intel's manual](https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html),
//!   volume 3, section 4.10 "Caching Translation Information";
//!   [AMD's manual](https://docs.amd.com/v/u/en-US/24593_3.43), volume 2, section 5.5.
//! * AArch64: [Arm ARM](https://developer.arm.com/documentation/ddi0487/latest), section D8.14 and the rules on
//!   break-before-make there.
//! * RISC-V: [the privileged specification](https://github.com/riscv/riscv-isa-manual), `SFENCE.VMA` and Svvptc.
//!
//! # What it doesn't cover
//!
//! It considers one entry at a time. The caller must know whether leaves *below* a table are global; if so, the flush
//! is for every tag. All sixteen entries of a contiguous row change together, with one flush for all. It doesn't
//! consider which CPUs use the space: [`Batch`](crate::Batch) leaves out CPUs that can't hold the entry. `quell-arch`
//! tests the rules against the manuals, for all pairs of entries.

use crate::entry::Entry;
use crate::hardware::Scope;

/// Describes which entries an architecture's TLBs may keep, and which changes it forbids.
///
/// `quell-arch` defines one for each architecture.
///
/// # Examples
///
/// ```
/// use quell::{Break, Entry, Frame, Need, TlbRules, flush_needed};
/// let x86 = TlbRules {
///     break_before_make: Break::Size,
///     keeps_absent: false,
///     keeps_refused: false,
///     user_excludes_kernel: false,
/// };
/// let mapped = Entry { present: true, frame: Frame(42), ..Entry::ABSENT };
/// // No TLB caches an absent entry. But one may cache the entry that is cleared here.
/// assert_eq!(flush_needed(x86, &Entry::ABSENT, &mapped), Need::Nothing);
/// assert!(matches!(flush_needed(x86, &mapped, &Entry::ABSENT), Need::Flush(_)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlbRules {
    /// The TLB may keep an entry that refused an access (AArch64, RISC-V). On x86-64 the fault drops the entry.
    pub keeps_refused: bool,
    /// The TLB may cache that an entry was absent (RISC-V without Svvptc).
    pub keeps_absent: bool,
    /// The kernel may not use user pages (SMEP and SMAP, PAN). So it loses each page that user mode gains.
    ///
    /// A kernel that accesses user memory only through other mappings may clear this.
    pub user_excludes_kernel: bool,
    /// The changes of a present entry that need break-before-make.
    pub break_before_make: Break,
}

/// Selects the changes of a present entry that need break-before-make.
///
/// That means: clear the entry, flush, and only then write the new one. So the old and the new translation are never
/// visible at the same time.
///
/// # Examples
///
/// ```
/// use quell::{Break, Entry, Frame, Need, TlbRules, flush_needed};
/// let old = Entry { present: true, frame: Frame(42), ..Entry::ABSENT };
/// let new = Entry { frame: Frame(43), ..old };
/// let breaks_first = |break_before_make| {
///     let rules = TlbRules {
///         break_before_make,
/// #         keeps_absent: false,
/// #         keeps_refused: false,
/// #         user_excludes_kernel: false,
///         // …
///     };
///     matches!(flush_needed(rules, &old, &new), Need::Flush(flush) if flush.break_first)
/// };
/// assert!(breaks_first(Break::Translation)); // AArch64
/// assert!(!breaks_first(Break::Size)); // x86-64: the page keeps its size
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Break {
    /// No change needs it: a CPU uses the old or the new translation until it has flushed (RISC-V).
    Never,
    /// Changes that may alter the size of a translation: from a leaf to a table, or from a table to a leaf or another
    /// table. Some x86-64 processors need this: AMD's family 10h ([erratum
    /// 383](https://www.amd.com/system/files/TechDocs/41322_10h_Rev_Gd.pdf)), and Intel's with [iTLB
    /// multihit](https://docs.kernel.org/admin-guide/hw-vuln/multihit.html).
    Size,
    /// The changes of [`Break::Size`], and those that make two translations contradict each other.
    ///
    /// For example: another frame or memory type, a change of the contiguous bit, or an entry that becomes global.
    /// AArch64 needs this (Arm ARM, rule RWHZWS). With FEAT_BBML1 or FEAT_BBML2, sizes may change directly, but a new
    /// frame still needs it.
    Translation,
}

/// Returned by [`flush_needed`]: the smallest flush that a change needs.
///
/// # Examples
///
/// ```
/// use quell::{Entry, Frame, Need, Scope, flush_needed};
/// # use quell::{Break, TlbRules};
/// # let riscv = TlbRules {
/// #     break_before_make: Break::Never,
/// #     keeps_absent: true,
/// #     keeps_refused: true,
/// #     user_excludes_kernel: true,
/// # };
/// let read_only = Entry { present: true, frame: Frame(42), ..Entry::ABSENT };
/// let writable = Entry { writable: true, ..read_only };
/// // A CPU that was refused a store may keep the old entry. No other CPU needs a flush.
/// assert_eq!(flush_needed(riscv, &read_only, &writable), Need::Local(Scope::Leaf));
/// // Here a CPU could continue to store.
/// assert!(matches!(flush_needed(riscv, &writable, &read_only), Need::Flush(_)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// No flush.
    Nothing,
    /// A CPU that was refused an access drops the entry before it retries ([`Cpu::refresh`](crate::Cpu::refresh)). No
    /// other CPU gets a request.
    ///
    /// The CPU that made the change may drop the entry at once, to avoid a fault.
    Local(Scope),
    /// Every CPU that may hold the entry flushes before any code relies on the change.
    Flush(Flush),
}

/// Describes a flush on every CPU that may hold an entry.
///
/// # Examples
///
/// ```
/// use quell::{Entry, Frame, Need, Scope, flush_needed};
/// # use quell::{Break, TlbRules};
/// # let x86 = TlbRules {
/// #     break_before_make: Break::Size,
/// #     keeps_absent: false,
/// #     keeps_refused: false,
/// #     user_excludes_kernel: true,
/// # };
/// // A table replaces a large page of the kernel.
/// let page = Entry { present: true, global: true, frame: Frame(512), ..Entry::ABSENT };
/// let Need::Flush(flush) = flush_needed(x86, &page, &Entry::table(Frame(42))) else { panic!() };
/// assert!(flush.break_first); // clear the entry, flush, then write the new one
/// assert!(flush.every_tag && flush.scope == Scope::Tables);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// Whether the flush covers leaf entries alone, or also walker caches and every translation below the entry.
    ///
    /// With [`Scope::Tables`] the flush also reaches idle CPUs that keep the space loaded. The initiator then waits
    /// until each CPU has flushed, even with [`Policy::asynchronous`](crate::Policy). Always [`Scope::Tables`] if
    /// `break_first` is set.
    pub scope: Scope,
    /// Flush under every tag, because the entry was global, or becomes global where that contradicts other
    /// translations.
    pub every_tag: bool,
    /// Clear the old entry, flush, and then write the new one. If this is `false`, flush after writing the new entry.
    pub break_first: bool,
}

/// Returns the smallest flush that a change of an entry from `old` to `new` needs.
///
/// `old` is the entry that the change has removed, not one that was read earlier: if hardware sets bits in entries, use
/// an atomic exchange. If the entry is cleared first and another one written later, pass that final entry as `new`, not
/// the absent one in between.
///
/// A change that removes or exchanges something needs a flush: for example the mapping, a right, the frame or the
/// memory type. So does clearing the dirty bit, because a CPU could store through the stale entry without setting the
/// bit again. Clearing the accessed bit needs none, although the page may then look idle. If you need exact accessed
/// bits, flush as if the page were unmapped.
///
/// A change that only adds a right needs no flush on other CPUs. At worst, a stale entry refuses an access that the new
/// one allows. On x86-64 the fault drops the stale entry. Elsewhere the CPU that took the fault drops it before it
/// retries. An absent entry that becomes present needs a local flush only on RISC-V processors without Svvptc, which
/// cache absent entries.
///
/// `rules` describes the architecture. The function considers one entry at a time. If an entry points to a table, you
/// must know whether entries *below* it are global. If so, flush under every tag.
pub fn flush_needed(rules: TlbRules, old: &Entry, new: &Entry) -> Need {
    let scope_if = |tables: bool| if tables { Scope::Tables } else { Scope::Leaf };
    let scope = |entry: &Entry| scope_if(entry.table);
    if !old.present {
        return if new.present && rules.keeps_absent {
            Need::Local(scope(new))
        } else {
            Need::Nothing
        };
    }
    let resized = old.table != new.table
        || old.table && (old.frame != new.frame || old.encrypted != new.encrypted)
        || old.contiguous != new.contiguous;
    let retyped = new.present && (old.encrypted != new.encrypted || old.memory != new.memory);
    let replaced = resized
        || old.frame != new.frame
        || old.encrypted != new.encrypted
        || old.memory != new.memory;
    // Where contradicting translations are forbidden, a global one may contradict those of any space.
    let globalised = !old.global && new.global && rules.break_before_make == Break::Translation;
    let lost = !new.present
        || replaced
        || old.key != new.key
        || old.special != new.special
        || old.writable && !new.writable
        || old.executable && !new.executable
        || old.user && !new.user
        || new.user && !old.user && rules.user_excludes_kernel
        || old.dirty && !new.dirty
        || old.global && !new.global;
    if lost || globalised {
        let breaks = match rules.break_before_make {
            Break::Never => false,
            Break::Size => resized,
            Break::Translation => replaced || globalised,
        };
        let break_first = new.present && breaks;
        return Need::Flush(Flush {
            // A receipt isn't enough: when the new entry is written, no TLB may hold the old one.
            scope: scope_if(old.table || break_first || retyped),
            every_tag: old.global || globalised,
            break_first,
        });
    }
    let gained = new.writable && !old.writable
        || new.executable && !old.executable
        || new.user && !old.user
        || new.dirty && !old.dirty
        || new.accessed && !old.accessed;
    if gained && rules.keeps_refused { Need::Local(scope(old)) } else { Need::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Frame;
    use crate::entry::MemoryType;

    const RULES: TlbRules = TlbRules {
        keeps_refused: true,
        keeps_absent: true,
        user_excludes_kernel: true,
        break_before_make: Break::Size,
    };
    const LEAF: Entry = Entry {
        present: true,
        frame: Frame(7),
        writable: true,
        user: true,
        executable: true,
        dirty: true,
        accessed: true,
        ..Entry::ABSENT
    };
    const TABLE: Entry = Entry::table(Frame(7));
    const FLUSH: Flush = Flush { scope: Scope::Leaf, every_tag: false, break_first: false };
    const FLUSH_TABLES: Flush = Flush { scope: Scope::Tables, ..FLUSH };
    /// A receipt is never enough before the new entry is written.
    const BREAK: Flush = Flush { break_first: true, ..FLUSH_TABLES };

    /// Returns `entry` with a change.
    fn with(mut entry: Entry, change: fn(&mut Entry)) -> Entry {
        change(&mut entry);
        entry
    }

    fn breaking(break_before_make: Break) -> TlbRules {
        TlbRules { break_before_make, ..RULES }
    }

    #[test]
    fn each_change_needs_its_flush() {
        const ABSENT: Entry = Entry::ABSENT;
        const NOTHING: Need = Need::Nothing;
        const LOCAL: Need = Need::Local(Scope::Leaf);
        const LEAVES: Need = Need::Flush(FLUSH);
        const TABLES: Need = Need::Flush(FLUSH_TABLES);
        const BREAKS: Need = Need::Flush(BREAK);
        let [riscv, x86, arm] = [Break::Never, Break::Size, Break::Translation].map(breaking);
        let mut finds_nothing = RULES;
        finds_nothing.keeps_absent = false;
        let mut drops_refused = RULES;
        drops_refused.keeps_refused = false;
        let mut shared = RULES;
        shared.user_excludes_kernel = false;
        let read_only = with(LEAF, |entry| (entry.writable, entry.dirty) = (false, false));
        let unused = with(LEAF, |entry| entry.accessed = false);
        let clean = with(LEAF, |entry| entry.dirty = false);
        let kernels = with(LEAF, |entry| entry.user = false);
        let moved = with(LEAF, |entry| entry.frame = Frame(8));
        let global = with(LEAF, |entry| entry.global = true);
        let [retyped, retyped_table] =
            [LEAF, TABLE].map(|entry| with(entry, |e| e.memory = MemoryType(3)));
        let [encrypted, encrypted_table] =
            [LEAF, TABLE].map(|entry| with(entry, |e| e.encrypted = true));
        let every_tag = |flush| Need::Flush(Flush { every_tag: true, ..flush });
        let rows = [
            // A new entry matters only to a CPU that has cached its absence.
            (finds_nothing, ABSENT, LEAF, NOTHING),
            (finds_nothing, ABSENT, TABLE, NOTHING),
            (x86, ABSENT, LEAF, LOCAL),
            (x86, ABSENT, TABLE, Need::Local(Scope::Tables)),
            (x86, ABSENT, ABSENT, NOTHING),
            // A gained right matters only to the CPU that was refused.
            (x86, read_only, LEAF, LOCAL),
            (drops_refused, read_only, LEAF, NOTHING),
            (x86, LEAF, unused, NOTHING),
            // User mode gains the page. The kernel loses it where the two exclude each other.
            (x86, kernels, LEAF, LEAVES),
            (shared, kernels, LEAF, LOCAL),
            (x86, LEAF, clean, LEAVES),
            // No CPU may use a frame under two memory types, so the initiator waits for the flush, even if the size
            // stays.
            (riscv, LEAF, retyped, TABLES),
            (riscv, LEAF, encrypted, TABLES),
            (riscv, TABLE, retyped_table, TABLES),
            (x86, LEAF, retyped, TABLES),
            (x86, LEAF, encrypted, TABLES),
            (x86, TABLE, retyped_table, TABLES),
            // A table that is decrypted differently is another table.
            (x86, TABLE, encrypted_table, BREAKS),
            (arm, LEAF, retyped, BREAKS),
            // A cleared entry has no new type. The code that writes a later entry of another type waits at that time.
            (x86, retyped, ABSENT, LEAVES),
            // A change of the page size breaks first.
            (x86, LEAF, TABLE, BREAKS),
            (x86, TABLE, LEAF, BREAKS),
            (x86, TABLE, Entry::table(Frame(8)), BREAKS),
            (x86, LEAF, moved, LEAVES),
            (arm, LEAF, moved, BREAKS),
            (riscv, LEAF, TABLE, LEAVES),
            // Global entries are flushed under every tag.
            (x86, global, ABSENT, every_tag(FLUSH)),
            (x86, global, LEAF, every_tag(FLUSH)),
            (x86, global, global, NOTHING),
            (x86, LEAF, global, NOTHING),
            (arm, LEAF, global, every_tag(BREAK)),
        ];
        for (rules, old, new, need) in rows {
            assert_eq!(flush_needed(rules, &old, &new), need, "{rules:?}: {old:?} to {new:?}");
        }
    }

    /// Removes or exchanges every right and attribute, of leaves and of tables.
    #[test]
    fn every_loss_needs_a_flush() {
        let changes: [fn(&mut Entry); 6] = [
            |entry| entry.writable = false,
            |entry| entry.executable = false,
            |entry| entry.user = false,
            |entry| entry.key = 1,
            |entry| entry.special = 1,
            |entry| *entry = Entry::ABSENT,
        ];
        for (old, flush) in [(LEAF, FLUSH), (TABLE, FLUSH_TABLES)] {
            for new in changes.map(|change| with(old, change)) {
                assert_eq!(flush_needed(RULES, &old, &new), Need::Flush(flush), "{new:?}");
            }
        }
    }
}

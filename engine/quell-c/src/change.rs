//! Finds the flush that a change of an entry needs: [`quell::flush_needed`] for C.
//!
//! The functions take decoded entries ([`quell_entry`]). [`quell_entry_of`] decodes a word of a page table on x86-64,
//! AArch64 and RISC-V. A kernel with another format fills in the fields itself. No function here needs an engine.

use crate::place::reject;
use crate::status::{answer, quell_status};
use crate::values::{enum_quell_architecture, enum_quell_break, quell_scope};
use core::mem::MaybeUninit;
use quell::{Break, Entry, Frame, Level, MemoryType, Need, TlbRules};
use quell_arch::{aarch64, riscv64, x86_64};

/// An architecture, which decides the format of page-table entries.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_architecture {
    /// x86-64.
    X86_64,
    /// AArch64, 4 KB granule, stage 1.
    Aarch64,
    /// RISC-V, Sv39 and up.
    Riscv64,
}

/// Every architecture, in the order of the numbers in C.
const ARCHITECTURES: [quell_architecture; 3] =
    [quell_architecture::X86_64, quell_architecture::Aarch64, quell_architecture::Riscv64];

impl quell_architecture {
    fn numbered(number: u32) -> Result<Self, quell_status> {
        let found = ARCHITECTURES.get(number as usize);
        found.copied().ok_or(quell_status::Value)
    }

    fn rules(self) -> TlbRules {
        match self {
            Self::X86_64 => x86_64::entry::RULES,
            Self::Aarch64 => aarch64::entry::RULES,
            Self::Riscv64 => riscv64::entry::rules(false),
        }
    }

    /// Decodes a word. Fails if the architecture can't have this encryption bit.
    fn decode(self, word: u64, level: Level, c_bit: u32) -> Result<Entry, quell_status> {
        Ok(match (self, c_bit) {
            (Self::X86_64, 0) => x86_64::entry::decode(word, level),
            (Self::X86_64, 12..=51) => {
                x86_64::entry::Format::with_encryption_bit(c_bit).decode(word, level)
            }
            (Self::Aarch64, 0) => aarch64::entry::decode(word, level),
            (Self::Riscv64, 0) => riscv64::entry::decode(word, level),
            (Self::X86_64 | Self::Aarch64 | Self::Riscv64, _) => return Err(quell_status::Value),
        })
    }
}

/// The bits of `quell_entry.flags`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_entry_flag {
    /// Walkers may use the entry. Without this flag, all other fields are ignored.
    Present = 1,
    /// The entry points to a table of the next level. Without this flag, it maps a page.
    Table = 2,
    /// Stores are allowed. In a table entry, this flag and the next two limit the pages below, which also need the flag
    /// in their own entries.
    Writable = 4,
    /// User mode may use the entry.
    User = 8,
    /// Instruction fetches are allowed: from user mode if `User` is set, otherwise from the kernel.
    Executable = 16,
    /// An access was recorded.
    Accessed = 32,
    /// A store was recorded. Unused in table entries.
    Dirty = 64,
    /// The translation belongs to every address space.
    Global = 128,
    /// The entry is one of sixteen, aligned and adjacent, that map sixteen adjacent frames with the same rights.
    Contiguous = 256,
    /// The memory is encrypted with the machine's key (AMD's C-bit).
    Encrypted = 512,
}

const ALL_FLAGS: u32 = 1023;

/// A decoded page-table entry.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct quell_entry {
    /// The frame of the table, or the first frame of the page.
    pub frame: u64,
    /// Bits of an `enum quell_entry_flag`.
    pub flags: u32,
    /// The memory type, as the architecture numbers it (PAT index, MAIR index, PBMT). 0 is ordinary memory.
    pub memory: u8,
    /// The protection key, or 0.
    pub key: u8,
    /// Attributes that are specific to the architecture. 0 for ordinary pages and tables.
    pub special: u8,
}

/// The changes that need break-before-make: clear the entry, flush, then write the new entry.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_break {
    /// None (RISC-V).
    Never,
    /// Changes of the size of a translation (x86-64).
    Size,
    /// Changes of the size, and any other change after which two translations of one address could contradict each
    /// other (AArch64).
    Translation,
}

/// A machine's TLB rules: the entries that it may keep, and the forbidden changes.
///
/// Every field except the last is 0 or 1.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct quell_tlb_rules {
    /// TLBs may keep an entry that refused an access.
    pub keeps_refused: u32,
    /// TLBs may remember that an entry was absent.
    pub keeps_absent: u32,
    /// The kernel may not access user pages. So it loses access to a page when user mode gains it.
    pub user_excludes_kernel: u32,
    /// The changes that need break-before-make.
    pub break_before_make: enum_quell_break,
}

/// The CPUs that a change affects.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_need_kind {
    /// No CPU.
    Nothing,
    /// A CPU on which the entry caused a fault. It drops the entry (quell_refresh) before it retries. No other CPU is
    /// interrupted.
    Local,
    /// Every CPU that may hold the entry. Report the change to a batch.
    Flush,
}

/// The least flush that a change needs.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct quell_need {
    /// The CPUs that the change affects.
    pub kind: quell_need_kind,
    /// The entries to flush: leaf entries alone, or also walker caches and everything below the entry.
    ///
    /// It's QUELL_SCOPE_TABLES if `break_first` is set, or if the memory type or the encryption changes. The initiator
    /// of such a flush waits until every target has flushed, even with remote flush.
    pub scope: quell_scope,
    /// Whether to flush under every tag, because the old or the new entry is global. Valid only for a flush.
    pub every_tag: bool,
    /// Whether to flush between clearing the entry and writing the new one. If not, flush after writing it. Valid only
    /// for a flush.
    pub break_first: bool,
}

/// Returns each flag of an entry, and the engine's field for it.
fn flags(entry: &mut Entry) -> [(quell_entry_flag, &mut bool); 10] {
    use quell_entry_flag as Flag;
    [
        (Flag::Present, &mut entry.present),
        (Flag::Table, &mut entry.table),
        (Flag::Writable, &mut entry.writable),
        (Flag::User, &mut entry.user),
        (Flag::Executable, &mut entry.executable),
        (Flag::Accessed, &mut entry.accessed),
        (Flag::Dirty, &mut entry.dirty),
        (Flag::Global, &mut entry.global),
        (Flag::Contiguous, &mut entry.contiguous),
        (Flag::Encrypted, &mut entry.encrypted),
    ]
}

impl From<Entry> for quell_entry {
    fn from(mut entry: Entry) -> Self {
        let set = flags(&mut entry).into_iter().filter(|(_, is)| **is);
        quell_entry {
            flags: set.map(|(flag, _)| flag as u32).sum(),
            frame: entry.frame.0,
            memory: entry.memory.0,
            key: entry.key,
            special: entry.special,
        }
    }
}

impl quell_entry {
    /// # Errors
    /// If a flag has no name in the header.
    fn checked(self) -> Result<Entry, quell_status> {
        if self.flags & !ALL_FLAGS != 0 {
            return Err(quell_status::Value);
        }
        let (frame, memory) = (Frame(self.frame), MemoryType(self.memory));
        let Self { key, special, .. } = self;
        let mut entry = Entry { frame, memory, key, special, ..Entry::ABSENT };
        for (flag, is) in flags(&mut entry) {
            *is = self.flags & flag as u32 != 0;
        }
        Ok(entry)
    }
}

impl quell_tlb_rules {
    /// # Errors
    /// If a number has no name in the header.
    fn checked(self) -> Result<TlbRules, quell_status> {
        let yes_or_no = |number| match number {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(quell_status::Value),
        };
        Ok(TlbRules {
            keeps_refused: yes_or_no(self.keeps_refused)?,
            keeps_absent: yes_or_no(self.keeps_absent)?,
            user_excludes_kernel: yes_or_no(self.user_excludes_kernel)?,
            break_before_make: match self.break_before_make {
                0 => Break::Never,
                1 => Break::Size,
                2 => Break::Translation,
                _ => return Err(quell_status::Value),
            },
        })
    }
}

impl From<TlbRules> for quell_tlb_rules {
    fn from(rules: TlbRules) -> Self {
        quell_tlb_rules {
            keeps_refused: rules.keeps_refused.into(),
            keeps_absent: rules.keeps_absent.into(),
            user_excludes_kernel: rules.user_excludes_kernel.into(),
            break_before_make: match rules.break_before_make {
                Break::Never => quell_break::Never as u32,
                Break::Size => quell_break::Size as u32,
                Break::Translation => quell_break::Translation as u32,
            },
        }
    }
}

impl From<Need> for quell_need {
    fn from(need: Need) -> Self {
        let of = |kind, scope: quell::Scope| quell_need {
            kind,
            scope: scope.into(),
            every_tag: false,
            break_first: false,
        };
        match need {
            Need::Nothing => of(quell_need_kind::Nothing, quell::Scope::Leaf),
            Need::Local(scope) => of(quell_need_kind::Local, scope),
            Need::Flush(flush) => quell_need {
                every_tag: flush.every_tag,
                break_first: flush.break_first,
                ..of(quell_need_kind::Flush, flush.scope)
            },
        }
    }
}

/// Writes the rules of an architecture's TLBs (an `enum quell_architecture`) to `*rules`.
///
/// The rules assume only what the architecture guarantees. A kernel may relax them if its machine guarantees more:
/// RISC-V's Svvptc or Arm's FEAT_BBML1, for example. It may also clear `user_excludes_kernel` if it never accesses user
/// memory in place.
///
/// Context: any.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_tlb_rules_of(
    architecture: enum_quell_architecture,
    rules: *mut quell_tlb_rules,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let place = unsafe { out(rules) }?;
        let rules = quell_architecture::numbered(architecture)?.rules();
        place.write(rules.into());
        Ok(())
    })
}

/// Decodes a word of a page table.
///
/// `level` counts from 0, the leaf tables. `c_bit` is the number of the bit that marks encrypted memory (AMD's C-bit,
/// 12 to 51), or 0. A word that isn't present decodes to an entry without flags.
///
/// Context: any.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_entry_of(
    architecture: enum_quell_architecture,
    level: u32,
    word: u64,
    c_bit: u32,
    entry: *mut quell_entry,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let place = unsafe { out(entry) }?;
        let level = match level {
            0..=4 => Level(level as u8),
            _ => return Err(quell_status::Value),
        };
        let entry = quell_architecture::numbered(architecture)?.decode(word, level, c_bit)?;
        place.write(entry.into());
        Ok(())
    })
}

/// Finds the least flush for a change of one table word from `old` to `new`.
///
/// `old` is the value that the change replaced, not one that was read earlier. Use an exchange instruction where
/// hardware sets bits in the word. Accessed bits may become inexact: clearing one needs no flush, for example.
///
/// The function compares only these two entries. It doesn't see the leaves below a table, so for a table entry the
/// caller must check itself whether any are global.
///
/// Context: any.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_needed(
    rules: *const quell_tlb_rules,
    old: *const quell_entry,
    new: *const quell_entry,
    need: *mut quell_need,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and has initialised the values that we read.
        let (place, rules, old, new) =
            unsafe { (out(need)?, *read(rules)?, *read(old)?, *read(new)?) };
        let (rules, old, new) = (rules.checked()?, old.checked()?, new.checked()?);
        place.write(quell::flush_needed(rules, &old, &new).into());
        Ok(())
    })
}

/// Returns the memory for a result.
///
/// # Errors
/// If the pointer is refused.
///
/// # Safety
/// It may be written, or, in a library that checks for misuse, is NULL.
unsafe fn out<'a, T>(place: *mut T) -> Result<&'a mut MaybeUninit<T>, quell_status> {
    reject(place)?;
    // SAFETY: as the caller promises. A library that checks for misuse has refused NULL above.
    Ok(unsafe { &mut *place.cast() })
}

/// Returns a value in C's memory.
///
/// # Errors
/// If the pointer is refused.
///
/// # Safety
/// It was initialised, or, in a library that checks for misuse, is NULL.
unsafe fn read<'a, T>(place: *const T) -> Result<&'a T, quell_status> {
    reject(place)?;
    // SAFETY: as the caller promises. A library that checks for misuse has refused NULL above.
    Ok(unsafe { &*place })
}

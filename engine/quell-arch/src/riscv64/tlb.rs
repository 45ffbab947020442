//! Invalidates translations and loads roots on RISC-V.
//!
//! Callers rely on these facts ([privileged specification](https://github.com/riscv/riscv-isa-manual), "Supervisor
//! Memory-Management Fence Instruction" and "Supervisor Address Translation and Protection (satp) Register"):
//!
//! * SFENCE.VMA works on this processor alone. Other processors must be interrupted.
//! * SFENCE.VMA orders earlier stores to tables before later walks on this processor. That holds for its own stores and
//!   for those of others that it has observed, so the walker needs no other barrier.
//! * With an address, SFENCE.VMA drops only leaf entries of that address. The walker drops its copies of upper tables
//!   only if all addresses are flushed (rs1 = x0).
//! * With an ASID, SFENCE.VMA keeps global entries. Without one (rs2 = x0) it drops them too.
//! * A write of satp drops nothing and orders nothing. If the processor kept entries under the new ASID, it may use
//!   them again.
//! * The processor may cache the fact that an entry is absent. It may also keep an entry that refused an access, until
//!   the processor that faulted executes an SFENCE.VMA.
//!
//! The operands are computed by pure functions, which are tested on every host.

use quell::{Frame, PageRange, Scope, Tag};

/// The mode field of satp for Sv48: 48 bits of address, four levels of tables.
pub const SV48: u64 = 9 << 60;
/// The bits of satp that hold the ASID.
pub const ASID: u64 = 0xffff << ASID_SHIFT;
/// The bits of satp that hold the frame of the root.
pub const ROOT: u64 = (1 << 44) - 1;

const ASID_SHIFT: u32 = 44;

/// Returns the satp value that loads the Sv48 table `root` under `tag`, the ASID.
///
/// # Panics
/// If the root lies beyond 56 bits.
#[inline]
pub const fn satp(root: Frame, tag: Tag) -> u64 {
    assert!(
        root.0 <= ROOT,
        "satp cannot hold the root: it lies beyond 56 bits of physical addresses"
    );
    SV48 | (tag.0 as u64) << ASID_SHIFT | root.0
}

/// One SFENCE.VMA for entries under one tag.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Scope};
/// use quell_arch::riscv64::tlb::{Operation, operations};
/// for operation in operations(PageRange::base(Page(5), 2), Scope::Leaf) {
///     match operation {
///         Operation::Page(address) => println!("sfence.vma {address:#x}, asid"),
///         Operation::Tag => println!("sfence.vma zero, asid"),
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Drops the leaf entries of this address.
    Page(u64),
    /// Drops all entries under the tag, and the walker's copies of tables.
    Tag,
}

/// Returns the operations that together cover `range`.
///
/// For [`Scope::Leaf`] it returns one operation per page of the range's [stride](PageRange::stride). For
/// [`Scope::Tables`] (tables were unlinked) it returns one operation for the whole tag, because no operation with an
/// address reaches the walker's copies of tables.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Scope};
/// use quell_arch::riscv64::tlb::{Operation, operations};
/// let range = PageRange::base(Page(5), 2);
/// assert!(operations(range, Scope::Leaf).eq([Operation::Page(0x5000), Operation::Page(0x6000)]));
/// assert!(operations(range, Scope::Tables).eq([Operation::Tag]));
/// ```
pub fn operations(range: PageRange, scope: Scope) -> impl Iterator<Item = Operation> {
    let step = range.stride.pages();
    let count = match scope {
        Scope::Leaf => range.strides(),
        Scope::Tables => 1,
    };
    (0..count).map(move |stride| match scope {
        Scope::Leaf => Operation::Page(range.start.plus(stride.wrapping_mul(step)).address()),
        Scope::Tables => Operation::Tag,
    })
}

#[cfg(any(test, target_arch = "riscv64"))]
pub(crate) mod instructions {
    use super::*;

    short_blocks! {
        SHORT_BLOCKS of "riscv64";

        sfence_page_of_all(address in "a0"): privileged "sfence.vma a0, zero";
        sfence_of(tag in "a0"): privileged "sfence.vma zero, a0";
        sfence(): privileged "sfence.vma zero, zero";
        fence_rw(): user "fence rw, rw";
        fence_iorw(): user "fence iorw, iorw";
        fence_i(): user "fence.i";
    }

    blocks! {
        BLOCKS of "riscv64";

        unsafe fn sfence_page_of(address: u64, tag: u64) {
            privileged: "sfence.vma a0, a1";
            in("a0") address,
            in("a1") tag,
            options(nostack, preserves_flags)
        }

        /// Reads satp.
        ///
        /// # Safety
        /// The processor is in supervisor mode.
        pub unsafe fn read_satp() -> u64 {
            privileged: "csrr a0, satp";
            returns("a0"),
            options(nomem, nostack, preserves_flags)
        }

        /// Loads satp with a value made by [`satp`].
        ///
        /// It invalidates nothing: entries under the old and the new ASID stay.
        ///
        /// # Safety
        /// The processor is in supervisor mode. The new tables map the running code and its stack like the old tables.
        pub unsafe fn load_satp(value: u64) {
            privileged: "csrw satp, a0";
            in("a0") value,
            options(nostack, preserves_flags)
        }
    }

    /// Executes a full barrier for memory: `fence rw, rw`.
    ///
    /// The barrier doesn't order a walker's reads of the tables: only an SFENCE.VMA of the processor that walks does.
    /// The engine needs no more, for two reasons. Each processor that may hold an entry executes an SFENCE.VMA after
    /// the entry was removed, at the latest when it loads the root. And a processor that faults on an entry that has
    /// become present drops the old entry and retries.
    #[inline]
    pub fn fence() {
        // SAFETY: a barrier.
        unsafe { fence_rw() }
    }

    /// Executes a full barrier for memory and devices: `fence iorw, iorw`.
    ///
    /// Interrupt controllers are devices. If an interrupt is sent after the barrier, its handler sees the stores before
    /// the barrier. If a pending bit is cleared before the barrier, a load after it happens after the clearing.
    #[inline]
    pub fn fence_devices() {
        // SAFETY: a barrier.
        unsafe { fence_iorw() }
    }

    /// Makes stored instructions visible to this processor's own fetches: `fence.i`.
    ///
    /// Other processors need their own `fence.i`.
    #[inline]
    pub fn fence_instructions() {
        // SAFETY: a barrier.
        unsafe { fence_i() }
    }

    /// Drops entries of `tag` on this processor, except global ones. It's complete on return.
    ///
    /// # Safety
    /// The processor is in supervisor mode.
    #[inline]
    pub unsafe fn invalidate(operation: Operation, tag: Tag) {
        let tag = u64::from(tag.0);
        // SAFETY: SFENCE.VMA only drops cached translations.
        unsafe {
            match operation {
                Operation::Page(address) => sfence_page_of(address, tag),
                Operation::Tag => sfence_of(tag),
            }
        }
    }

    /// Drops this processor's leaf entries of an address, under all tags, even global ones.
    ///
    /// It's complete on return.
    ///
    /// # Safety
    /// The processor is in supervisor mode.
    #[inline]
    pub unsafe fn invalidate_page(address: u64) {
        // SAFETY: SFENCE.VMA only drops cached translations, and the caller is in supervisor mode.
        unsafe { sfence_page_of_all(address) }
    }

    /// Drops all entries on this processor, global ones included. It's complete on return.
    ///
    /// # Safety
    /// The processor is in supervisor mode.
    #[inline]
    pub unsafe fn invalidate_all() {
        // SAFETY: SFENCE.VMA only drops cached translations, and the caller is in supervisor mode.
        unsafe { sfence() }
    }

    /// Writes all ones to satp's ASID field and returns its content afterwards.
    ///
    /// # Safety
    /// The processor is in supervisor mode, with interrupts masked. The loaded tables map the running code and its
    /// stack globally.
    pub unsafe fn writable_asid() -> u16 {
        // SAFETY: as the caller promises. The root stays the same, and we drop the entries that were filled under
        // another ASID meanwhile.
        unsafe {
            let before = read_satp();
            load_satp(before | ASID);
            let held = read_satp();
            load_satp(before);
            sfence();
            ((held & ASID) >> ASID_SHIFT) as u16
        }
    }
}
#[cfg(any(test, target_arch = "riscv64"))]
pub use instructions::*;

//! Invalidates translations and loads roots on AArch64.
//!
//! Callers rely on these facts ([Arm ARM](https://developer.arm.com/documentation/ddi0487/latest), "TLB maintenance"):
//!
//! * A store to a table reaches the walkers only after a barrier: `dsb ishst` *before* the TLBI.
//! * A TLBI with suffix IS is broadcast to the inner shareable domain. Without the suffix it affects this processor
//!   alone, so VMALLE1 doesn't flush other CPUs.
//! * A broadcast TLBI is complete only after a `dsb ish` of *the processor that issued it*. For a local TLBI, `dsb nsh`
//!   suffices. After the barrier, an `isb` makes the completion visible to this processor's own instruction stream.
//! * VALE1 and RVALE1 drop leaf entries only. VAE1 and RVAE1 also drop the table entries that the walker cached on the
//!   path to the page. All four also drop global entries of the address, whatever the ASID.
//!
//! The operands are computed by pure functions, which are tested on every host.

use quell::{Frame, PageRange, PageSize, Scope, Tag};

/// Returns the TTBR0_EL1 value that loads `root` under `tag`, the ASID.
///
/// # Panics
/// If the root lies beyond 48 bits: the register holds the upper bits of such addresses elsewhere.
#[inline]
pub const fn ttbr0(root: Frame, tag: Tag) -> u64 {
    assert!(
        root.0 >> 36 == 0,
        "TTBR0 cannot hold the root: it lies beyond 48 bits of physical addresses"
    );
    root.address() | (tag.0 as u64) << 48
}

/// Returns the operand of TLBI ASIDE1(IS), which drops all entries under one ASID.
#[inline]
pub const fn tag_operand(tag: Tag) -> u64 {
    (tag.0 as u64) << 48
}

/// Returns the hint for the level of leaves of `size` with the 4 KB granule (FEAT_TTL).
#[inline]
const fn level_hint(size: PageSize) -> u64 {
    match size {
        PageSize::Base => 0b0111,
        PageSize::Large => 0b0110,
        PageSize::Huge => 0b0101,
    }
}

/// One TLBI by address.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Scope, Tag};
/// use quell_arch::aarch64::tlb::{Operands, Operation, operations};
/// let range = PageRange::base(Page(5), 2);
/// let each = operations(Tag(3), range, Scope::Leaf, Operands::default());
/// // The tag is in the upper bits, the page in the lower ones.
/// assert!(each.eq([Operation::Page(3 << 48 | 5), Operation::Page(3 << 48 | 6)]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// An operation on one page: VAE1 or VALE1, with this operand.
    Page(u64),
    /// An operation on a range: RVAE1 or RVALE1, with this operand.
    Range(u64),
}

/// The operand formats that the processor supports.
///
/// # Examples
///
/// ```
/// use quell_arch::aarch64::features::Features;
/// use quell_arch::aarch64::tlb::Operands;
/// /// Returns the formats for a processor with these features, and addresses of 48 bits.
/// fn operands(features: Features) -> Operands {
///     let Features { range, level_hint, .. } = features;
///     Operands { range, level_hint, wide_addresses: false }
/// }
/// assert_eq!(operands(Features::default()), Operands::default());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operands {
    /// The processor has operations on ranges.
    pub range: bool,
    /// The processor accepts a level hint. Without it, the hint's bits must be zero.
    pub level_hint: bool,
    /// TCR_EL1.DS is set (FEAT_LPA2, 52-bit addresses). The start of a range operation is then in units of 64 KB.
    pub wide_addresses: bool,
}

impl Operands {
    /// The unit of a range operation's start, in base pages.
    const fn unit(self) -> u64 {
        if self.wide_addresses { 16 } else { 1 }
    }

    /// Returns whether a range operation can start at `page`. The start must be a multiple of the unit, and fit into 37
    /// bits; the processor extends the highest. The operand of an operation by page has all 56 bits of an address.
    const fn can_start_at(self, page: u64) -> bool {
        // Page numbers have 52 bits. The bits from the sign on must all be equal.
        let sign = 36 + self.unit().trailing_zeros();
        let upper = page >> sign;
        page.is_multiple_of(self.unit()) && (upper == 0 || upper == (1 << (52 - sign)) - 1)
    }
}

/// Returns the operand of a range operation, which covers `(num + 1) << (5 * scale + 1)` base pages from the unit
/// `start` on.
///
/// `num` is 0 to 31, `scale` 0 to 3.
#[inline]
const fn range_operand(tag: Tag, start: u64, scale: u64, num: u64, hint: u64) -> u64 {
    const GRANULE_4K: u64 = 1 << 46;
    (tag.0 as u64) << 48
        | GRANULE_4K
        | scale << 44
        | num << 39
        | (hint & 3) << 37
        | (start & ((1 << 37) - 1))
}

/// Returns the operations that together cover `range` under `tag`.
///
/// Without range operations, it returns one operation per page of the range's [stride](PageRange::stride). With them,
/// it returns the fewest operations that cover exactly the range. A range operation covers an even number of base
/// pages, so one page may need an operation of its own. Some addresses can't start a range operation: those beyond 48
/// bits, or off a 64 KB boundary with [`Operands::wide_addresses`]. From there, it returns operations by page until a
/// range operation can start.
///
/// The level hint restricts an operation to leaves of one level, so only operations for [`Scope::Leaf`] have it.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Scope, Tag};
/// use quell_arch::aarch64::tlb::{Operands, operations};
/// let range = PageRange::base(Page(4), 64);
/// let by_page = operations(Tag(3), range, Scope::Leaf, Operands::default());
/// assert_eq!(by_page.count(), 64);
/// let by_range = Operands { range: true, ..Operands::default() };
/// assert_eq!(operations(Tag(3), range, Scope::Leaf, by_range).count(), 1);
/// ```
pub fn operations(
    tag: Tag,
    range: PageRange,
    scope: Scope,
    with: Operands,
) -> impl Iterator<Item = Operation> {
    let hint = if with.level_hint && scope == Scope::Leaf { level_hint(range.stride) } else { 0 };
    let stride = range.stride.pages();
    let mut page = range.start.0;
    let mut left = range.strides().saturating_mul(stride);
    core::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        if with.range && left > stride && with.can_start_at(page) {
            for scale in (0..4u64).rev() {
                let shift = 5 * scale + 1;
                let num = (left >> shift).min(32);
                if num > 0 {
                    let start = page / with.unit();
                    let operand = range_operand(tag, start, scale, num - 1, hint);
                    page = page.wrapping_add(num << shift);
                    left -= num << shift;
                    return Some(Operation::Range(operand));
                }
            }
        }
        let operand = tag_operand(tag) | hint << 44 | (page & ((1 << 44) - 1));
        page = page.wrapping_add(stride);
        left = left.saturating_sub(stride);
        Some(Operation::Page(operand))
    })
}

#[cfg(any(test, target_arch = "aarch64"))]
pub(crate) mod instructions {
    use super::*;

    // We write the range forms as SYS because some assemblers don't know their names: op1 0, CRn 8, CRm 2 (IS) or 6, op2
    // 1 (RVAE1), 5 (RVALE1), 3 (RVAAE1) or 7 (RVAALE1).
    short_blocks! {
        SHORT_BLOCKS of "aarch64";

        vale1is(operand in "x0"): privileged "tlbi vale1is, x0";
        vae1is(operand in "x0"): privileged "tlbi vae1is, x0";
        vale1(operand in "x0"): privileged "tlbi vale1, x0";
        vae1(operand in "x0"): privileged "tlbi vae1, x0";
        rvale1is(operand in "x0"): privileged "sys #0, c8, c2, #5, x0";
        rvae1is(operand in "x0"): privileged "sys #0, c8, c2, #1, x0";
        rvale1(operand in "x0"): privileged "sys #0, c8, c6, #5, x0";
        rvae1(operand in "x0"): privileged "sys #0, c8, c6, #1, x0";
        vaale1is(operand in "x0"): privileged "tlbi vaale1is, x0";
        vaae1is(operand in "x0"): privileged "tlbi vaae1is, x0";
        vaale1(operand in "x0"): privileged "tlbi vaale1, x0";
        vaae1(operand in "x0"): privileged "tlbi vaae1, x0";
        rvaale1is(operand in "x0"): privileged "sys #0, c8, c2, #7, x0";
        rvaae1is(operand in "x0"): privileged "sys #0, c8, c2, #3, x0";
        rvaale1(operand in "x0"): privileged "sys #0, c8, c6, #7, x0";
        rvaae1(operand in "x0"): privileged "sys #0, c8, c6, #3, x0";
        aside1is(operand in "x0"): privileged "tlbi aside1is, x0";
        aside1(operand in "x0"): privileged "tlbi aside1, x0";
        vmalle1is(): privileged "tlbi vmalle1is";
        vmalle1(): privileged "tlbi vmalle1";
        dsb_ishst(): user "dsb ishst";
        dsb_ish(): user "dsb ish";
        dsb_ish_isb(): user "dsb ish", "isb";
        dsb_nsh_isb(): user "dsb nsh", "isb";
    }

    blocks! {
        BLOCKS of "aarch64";

        /// Discards instructions that this processor fetched earlier: `isb`.
        ///
        /// # Safety
        /// No condition: the barrier concerns only this processor.
        pub unsafe fn isb() {
            user: "isb";
            options(nostack, preserves_flags)
        }

        /// Loads TTBR0_EL1 with a value made by [`ttbr0`] and synchronises the instruction stream.
        ///
        /// It invalidates nothing: entries under the old and the new ASID stay.
        ///
        /// # Safety
        /// The processor is at exception level 1. The kernel doesn't use the lower half of the address space.
        pub unsafe fn load_ttbr0(value: u64) {
            privileged: "msr ttbr0_el1, x0", "isb";
            in("x0") value,
            options(nostack, preserves_flags)
        }
    }

    /// Orders table stores before the TLBIs that follow: `dsb ishst`.
    #[inline]
    pub fn publish_tables() {
        // SAFETY: a barrier.
        unsafe { dsb_ishst() }
    }

    /// Waits until the TLBIs of this processor are complete on all processors: `dsb ish; isb`.
    #[inline]
    pub fn complete() {
        // SAFETY: barriers.
        unsafe { dsb_ish_isb() }
    }

    /// Waits until the local TLBIs of this processor are complete on it: `dsb nsh; isb`.
    #[inline]
    pub fn complete_local() {
        // SAFETY: barriers.
        unsafe { dsb_nsh_isb() }
    }

    /// Executes a full barrier that also makes table stores visible to all walkers: `dsb ish`.
    #[inline]
    pub fn fence() {
        // SAFETY: a barrier.
        unsafe { dsb_ish() }
    }

    /// Issues one operation. It's complete only after the matching barrier.
    ///
    /// `broadcast` chooses the inner-shareable form.
    ///
    /// # Safety
    /// The processor is at exception level 1, and has range operations if the operation is one.
    #[inline]
    pub unsafe fn tlbi(operation: Operation, scope: Scope, broadcast: bool) {
        // SAFETY: TLBI at level 1 only drops cached translations.
        unsafe {
            match (operation, scope, broadcast) {
                (Operation::Page(x), Scope::Leaf, true) => vale1is(x),
                (Operation::Page(x), Scope::Tables, true) => vae1is(x),
                (Operation::Page(x), Scope::Leaf, false) => vale1(x),
                (Operation::Page(x), Scope::Tables, false) => vae1(x),
                (Operation::Range(x), Scope::Leaf, true) => rvale1is(x),
                (Operation::Range(x), Scope::Tables, true) => rvae1is(x),
                (Operation::Range(x), Scope::Leaf, false) => rvale1(x),
                (Operation::Range(x), Scope::Tables, false) => rvae1(x),
            }
        }
    }

    /// Issues one operation for entries under every ASID, and for global ones, like [`tlbi`].
    ///
    /// The operation must have been made for [`Tag::KERNEL`](quell::Tag::KERNEL).
    ///
    /// # Safety
    /// As [`tlbi`].
    #[inline]
    pub unsafe fn tlbi_any_tag(operation: Operation, scope: Scope, broadcast: bool) {
        // SAFETY: TLBI at level 1 only drops cached translations.
        unsafe {
            match (operation, scope, broadcast) {
                (Operation::Page(x), Scope::Leaf, true) => vaale1is(x),
                (Operation::Page(x), Scope::Tables, true) => vaae1is(x),
                (Operation::Page(x), Scope::Leaf, false) => vaale1(x),
                (Operation::Page(x), Scope::Tables, false) => vaae1(x),
                (Operation::Range(x), Scope::Leaf, true) => rvaale1is(x),
                (Operation::Range(x), Scope::Tables, true) => rvaae1is(x),
                (Operation::Range(x), Scope::Leaf, false) => rvaale1(x),
                (Operation::Range(x), Scope::Tables, false) => rvaae1(x),
            }
        }
    }

    /// Issues the invalidation of all entries under `tag`. It's complete after its barrier.
    ///
    /// # Safety
    /// The processor is at exception level 1.
    #[inline]
    pub unsafe fn tlbi_tag(tag: Tag, broadcast: bool) {
        let x = tag_operand(tag);
        // SAFETY: as for `tlbi`.
        unsafe { if broadcast { aside1is(x) } else { aside1(x) } }
    }

    /// Issues the invalidation of all entries at level 1. It's complete after its barrier.
    ///
    /// # Safety
    /// The processor is at exception level 1.
    #[inline]
    pub unsafe fn tlbi_all(broadcast: bool) {
        // SAFETY: as for `tlbi`.
        unsafe { if broadcast { vmalle1is() } else { vmalle1() } }
    }
}
#[cfg(any(test, target_arch = "aarch64"))]
pub use instructions::*;

#[cfg(test)]
mod tests;

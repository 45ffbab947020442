//! Invalidates translations and loads roots on x86-64.
//!
//! Callers rely on these facts
//! ([Intel's manual](https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html), volume 3,
//! "Caching Translation Information"; AMD's manual, volume 3, INVLPGB and TLBSYNC):
//!
//! * INVLPG drops the page's entries under the *current* PCID, and its global entries. It also drops **all**
//!   paging-structure-cache entries of the current PCID, whatever page they belong to.
//! * INVPCID type 0 drops one page under a named PCID. Type 1 drops a PCID, type 2 everything, and type 3 everything
//!   except global entries.
//! * With CR4.PCIDE, a load of CR3 keeps the entries of the loaded PCID only if bit 63 of the value is set. Entries of
//!   other PCIDs always stay. Without PCIDE it drops all entries except global ones.
//! * INVLPGB starts an invalidation on all processors. It's complete only when *the processor that issued it* has
//!   executed TLBSYNC.
//!
//! Every instruction here that invalidates or loads a root is also a compiler barrier: the compiler moves no memory
//! access across it. In the processor, INVLPG and loads of CR3 are serializing. INVPCID follows table stores without a
//! fence, as in Linux. Before an INVLPGB the engine executes a full barrier. Only INVLPGB affects other processors.

use quell::{Frame, PageRange, PageSize, Scope, Tag};

/// The highest tag: PCIDs have twelve bits.
pub const MAX_TAG: u16 = 0xfff;

/// Returns the CR3 value that loads `root` under `tag`.
///
/// If `keep` is set, the load keeps the tag's TLB entries. If CR4.PCIDE is off, `tag` must be 0 and `keep` false.
///
/// # Panics
/// If the root lies beyond 52 bits, or the tag is above [`MAX_TAG`].
#[inline]
pub const fn cr3(root: Frame, tag: Tag, keep: bool) -> u64 {
    assert!(
        root.0 >> 40 == 0,
        "CR3 cannot hold the root: it lies beyond 52 bits of physical addresses"
    );
    assert!(tag.0 <= MAX_TAG, "CR3 cannot hold the tag: PCIDs have twelve bits");
    root.address() | tag.0 as u64 | (keep as u64) << 63
}

/// One INVLPGB: the values of its three registers.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Scope, Tag};
/// use quell_arch::x86_64::tlb::Broadcast;
/// // A processor whose INVLPGB covers eight pages.
/// let range = PageRange::base(Page(16), 20);
/// let each = Broadcast::range(Tag(3), range, Scope::Leaf, 8);
/// assert!(each.map(|request| request.ecx + 1).eq([8, 8, 4]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broadcast {
    /// The page address, and flags that name the valid fields.
    pub rax: u64,
    /// The number of pages *after the first*. Bit 31 is set if they're pages of 2 MB.
    pub ecx: u32,
    /// The PCID in bits 16 to 27, and a guest's ASID in bits 0 to 15 (0 is the host).
    pub edx: u32,
}

impl Broadcast {
    const ADDRESS: u64 = 1 << 0;
    const PCID: u64 = 1 << 1;
    const ASID: u64 = 1 << 2;
    const GLOBAL: u64 = 1 << 3;
    const LEAF_ONLY: u64 = 1 << 4;
    const LARGE_STRIDE: u32 = 1 << 31;

    /// Drops all of the host's entries under all PCIDs, except global ones.
    pub const ALL: Self = Broadcast { rax: Self::ASID, ecx: 0, edx: 0 };
    /// Drops all of the host's entries, including global ones.
    pub const ALL_AND_GLOBAL: Self = Broadcast { rax: Self::ASID | Self::GLOBAL, ecx: 0, edx: 0 };

    /// Makes the request that drops all entries under one PCID, except global ones.
    #[inline]
    pub const fn tag(tag: Tag) -> Self {
        Broadcast { rax: Self::PCID | Self::ASID, ecx: 0, edx: (tag.0 as u32) << 16 }
    }

    /// Returns the requests that together cover `range` under `tag`.
    ///
    /// `max_pages` is the number of pages that one INVLPGB may cover:
    /// [`Features::invlpgb_pages`](super::features::Features::invlpgb_pages). A 1 GB page is covered in strides of 2
    /// MB, because the instruction has no larger stride.
    pub fn range(
        tag: Tag,
        range: PageRange,
        scope: Scope,
        max_pages: u32,
    ) -> impl Iterator<Item = Self> {
        let which = Self::ADDRESS | Self::PCID | Self::ASID;
        Self::cover(which, tag, range, scope, max_pages)
    }

    /// Returns the requests that cover `range` of the kernel's half of the address space.
    ///
    /// They drop entries under all PCIDs, global ones included. Otherwise it works like [`Broadcast::range`].
    pub fn kernel(range: PageRange, scope: Scope, max_pages: u32) -> impl Iterator<Item = Self> {
        let which = Self::ADDRESS | Self::ASID | Self::GLOBAL;
        Self::cover(which, Tag::KERNEL, range, scope, max_pages)
    }

    fn cover(
        which: u64,
        tag: Tag,
        range: PageRange,
        scope: Scope,
        max_pages: u32,
    ) -> impl Iterator<Item = Self> {
        let (stride, large) = match range.stride {
            PageSize::Base => (1, 0),
            PageSize::Large | PageSize::Huge => (PageSize::Large.pages(), Self::LARGE_STRIDE),
        };
        let leaf_only = if scope == Scope::Leaf { Self::LEAF_ONLY } else { 0 };
        let total = range.pages.div_ceil(stride);
        let step = u64::from(max_pages.clamp(1, 1 << 16));
        (0..total.div_ceil(step)).map(move |chunk| {
            let done = chunk * step;
            let strides = step.min(total - done);
            Broadcast {
                rax: range.start.plus(done * stride).address() | which | leaf_only,
                ecx: (strides - 1) as u32 | large,
                edx: u32::from(tag.0) << 16,
            }
        })
    }
}

#[cfg(any(test, target_arch = "x86_64"))]
pub(crate) mod instructions {
    use super::*;

    /// A type of INVPCID: the translations that it drops on this processor.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use quell::Tag;
    /// use quell_arch::x86_64::tlb::{Invpcid, invpcid};
    /// // SAFETY: a kernel runs at privilege level 0, and has found the instruction in CPUID.
    /// unsafe { invpcid(Invpcid::Tag, Tag(3), 0) };
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u64)]
    pub enum Invpcid {
        /// One address under one PCID, with its walker-cache entries, except global entries.
        Address = 0,
        /// One PCID, except global entries.
        Tag = 1,
        /// All entries, global ones included.
        AllAndGlobal = 2,
        /// All entries except global ones.
        All = 3,
    }

    // Intel leaves the status flags undefined after a move from or to a control register.
    blocks! {
        BLOCKS of "x86_64";

        /// Drops the translation of `address` under the current PCID on this processor.
        ///
        /// It also drops the page's global entries, and the walker caches of the current PCID.
        ///
        /// # Safety
        /// The processor is at privilege level 0.
        pub unsafe fn invlpg(address: u64) {
            privileged: "invlpg [rax]";
            in("rax") address,
            options(nostack, preserves_flags)
        }

        unsafe fn invpcid_raw(kind: u64, descriptor: *const [u64; 2]) {
            privileged: "invpcid rax, [rcx]";
            in("rax") kind,
            in("rcx") descriptor,
            options(nostack, preserves_flags)
        }

        /// Loads CR3 with a value made by [`cr3`].
        ///
        /// # Safety
        /// The processor is at privilege level 0. The root maps everything that the kernel uses afterwards. Bit 63 and
        /// a tag other than 0 are allowed only where CR4.PCIDE is on.
        pub unsafe fn load_cr3(value: u64) {
            privileged: "mov cr3, rax";
            in("rax") value,
            options(nostack)
        }

        /// Reads CR3.
        ///
        /// # Safety
        /// The processor is at privilege level 0.
        pub unsafe fn read_cr3() -> u64 {
            privileged: "mov rax, cr3";
            returns("rax"),
            options(nomem, nostack)
        }

        unsafe fn read_cr4() -> u64 {
            privileged: "mov rax, cr4";
            returns("rax"),
            options(nomem, nostack)
        }

        unsafe fn load_cr4(value: u64) {
            privileged: "mov cr4, rax";
            in("rax") value,
            options(nostack)
        }

        // INVLPGB is 0F 01 FE, for assemblers that don't know the name.
        unsafe fn invlpgb_raw(rax: u64, ecx: u32, edx: u32) {
            privileged: ".byte 0x0f, 0x01, 0xfe";
            in("rax") rax,
            in("ecx") ecx,
            in("edx") edx,
            options(nostack, preserves_flags)
        }

        /// Waits until every INVLPGB of this processor has taken effect on all processors.
        ///
        /// # Safety
        /// The processor is at privilege level 0 and has INVLPGB.
        // TLBSYNC is 0F 01 FF.
        pub unsafe fn tlbsync() {
            privileged: ".byte 0x0f, 0x01, 0xff";
            options(nostack, preserves_flags)
        }

        unsafe fn mfence() {
            user: "mfence";
            options(nostack, preserves_flags)
        }
    }

    /// Executes INVPCID on this processor.
    ///
    /// # Safety
    /// The processor is at privilege level 0 and has INVPCID. If CR4.PCIDE is off, `tag` must be 0 for
    /// [`Invpcid::Address`] and [`Invpcid::Tag`].
    #[inline]
    pub unsafe fn invpcid(kind: Invpcid, tag: Tag, address: u64) {
        let descriptor = [u64::from(tag.0), address];
        // SAFETY: the descriptor is 16 readable bytes; the caller vouches for the rest.
        unsafe { invpcid_raw(kind as u64, &descriptor) }
    }

    /// Drops every translation of this processor, including global ones, by toggling CR4.PGE.
    ///
    /// It's for processors without INVPCID.
    ///
    /// # Safety
    /// The processor is at privilege level 0 with CR4.PGE on and interrupts masked.
    pub unsafe fn flush_all_by_cr4() {
        const PGE: u64 = 1 << 7;
        // SAFETY: we restore the value of CR4; changing PGE drops everything.
        unsafe {
            let cr4 = read_cr4();
            load_cr4(cr4 & !PGE);
            load_cr4(cr4);
        }
    }

    /// Starts a broadcast invalidation. It's complete after [`tlbsync`] on this processor.
    ///
    /// # Safety
    /// The processor is at privilege level 0 and has INVLPGB.
    #[inline]
    pub unsafe fn invlpgb(request: Broadcast) {
        // SAFETY: the instruction only drops translations; the caller vouches for the rest.
        unsafe { invlpgb_raw(request.rax, request.ecx, request.edx) }
    }

    /// Executes a full barrier: earlier stores become visible to the walkers of all processors.
    #[inline]
    pub fn fence() {
        // SAFETY: MFENCE is available wherever SSE2 is, which x86-64 guarantees.
        unsafe { mfence() }
    }
}
#[cfg(any(test, target_arch = "x86_64"))]
pub use instructions::*;

#[cfg(test)]
mod tests {
    use super::*;
    use quell::Page;

    #[test]
    fn ranges_are_covered_exactly_once() {
        let covers = |stride: PageSize, strides: u64, max: u32| {
            let (start, pages) = (Page(0x400), strides * stride.pages());
            let range = PageRange { start, pages, stride };
            let mut next = start.0;
            for one in Broadcast::range(Tag(1), range, Scope::Leaf, max) {
                assert_eq!(one.rax >> 12, next);
                assert_eq!(one.ecx >> 31 != 0, stride == PageSize::Large);
                let count = one.ecx & 0x7fff_ffff;
                assert!(count < max);
                next += (u64::from(count) + 1) * stride.pages();
            }
            assert_eq!(next, start.0 + pages);
        };
        for max in [1, 7, 8, 1 << 16] {
            for strides in [1, 7, 8, 9, 64, 1000] {
                covers(PageSize::Base, strides, max);
                covers(PageSize::Large, strides, max);
            }
        }
    }
}

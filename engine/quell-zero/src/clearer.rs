//! Zeroes memory: the pieces of an extent, one after another.

use crate::machine::PhysicalMemory;
use crate::pieces::ClearPolicy;
use crate::strategy::Temperature;
use crate::zeroed::{OwnedMemory, ZeroedFrame};
use quell::{Extent, Frame};

/// Counts the work of one [`Clearer::extent`].
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame, PAGE_BYTES};
/// use quell_zero::{ClearPolicy, Clearer};
/// # use quell_zero::{PhysicalMemory, Strategy};
/// # struct Machine;
/// # impl PhysicalMemory for Machine { unsafe fn zero(&self, _: Extent, _: Strategy) {} }
/// # let machine = Machine;
/// let policy = ClearPolicy::default();
/// let page = Extent { first: Frame(512), frames: 512 };
/// // SAFETY: no other code uses the page.
/// let stats = unsafe { Clearer::new(&machine, &policy).extent(page, Some(Frame(600)), || ()) };
/// // Before the neighbourhood of frame 600, after it, and the neighbourhood itself.
/// assert_eq!(stats.pieces, 3);
/// assert_eq!(stats.hot_bytes, 5 * PAGE_BYTES);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClearStats {
    /// The number of calls of [`PhysicalMemory::zero`].
    pub pieces: u64,
    /// The number of bytes cleared through the caches, saturating.
    pub hot_bytes: u64,
    /// The number of bytes cleared as [`Temperature::Bypassing`], saturating. They may bypass the caches.
    pub bypassing_bytes: u64,
}

/// Zeroes a machine's memory according to a policy.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{ClearPolicy, Clearer, Plan};
/// # use quell_zero::{PhysicalMemory, Strategy};
/// # struct Machine;
/// # impl PhysicalMemory for Machine { unsafe fn zero(&self, _: Extent, _: Strategy) {} }
/// # let machine = Machine;
/// let policy = ClearPolicy::cooperative(Plan::default()); // at most 32 MB at once
/// let huge = Extent { first: Frame(0), frames: 1 << 18 }; // 1 GB
/// let mut preemption_points = 0;
/// // SAFETY: no other code uses the memory.
/// unsafe { Clearer::new(&machine, &policy).extent(huge, None, || preemption_points += 1) };
/// assert_eq!(preemption_points, 31);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clearer<'a, M> {
    machine: &'a M,
    policy: &'a ClearPolicy,
}

impl<'a, M: PhysicalMemory> Clearer<'a, M> {
    /// Creates a clearer for memory of `machine` with `policy`.
    pub const fn new(machine: &'a M, policy: &'a ClearPolicy) -> Self {
        Clearer { machine, policy }
    }

    /// Zeroes every byte of `extent` exactly once.
    ///
    /// `fault` is the frame for which a page fault waits, if any. We clear that frame and its neighbours last and
    /// through the caches, so that they're cached when the program reads them.
    ///
    /// `preempt` is called between two pieces, never before the first or after the last. It may reschedule, and the
    /// thread may continue on another CPU.
    ///
    /// Publish the memory with a release store. A CPU that reads that store with an acquire load sees the zeros.
    ///
    /// # Safety
    /// The extent is memory of the machine, and the caller owns it: no other code accesses it until the call returns.
    pub unsafe fn extent(
        &self,
        extent: Extent,
        fault: Option<Frame>,
        mut preempt: impl FnMut(),
    ) -> ClearStats {
        let mut done = ClearStats::default();
        for piece in self.policy.pieces(extent, fault) {
            if done.pieces > 0 {
                // A cooperative kernel must offer a preemption point. [mutant ZeroHoldsCpu]
                preempt();
            }
            // The new owner reads every byte. [mutants ZeroSkipsTail, ZeroSkipsFaultingPage]
            // SAFETY: the piece is a part of the extent, which the caller owns.
            unsafe { self.machine.zero(piece.extent, piece.strategy) };
            done.pieces += 1;
            let bytes = match piece.temperature {
                Temperature::Hot => &mut done.hot_bytes,
                Temperature::Bypassing => &mut done.bypassing_bytes,
            };
            *bytes = bytes.saturating_add(piece.extent.bytes());
        }
        done
    }

    /// Zeroes the memory that `frame` owns, and returns `frame` as [`ZeroedFrame`].
    ///
    /// The arguments `fault` and `preempt` are those of [`Clearer::extent`].
    pub fn frame<F: OwnedMemory>(
        &self,
        frame: F,
        fault: Option<Frame>,
        preempt: impl FnMut(),
    ) -> (ZeroedFrame<F>, ClearStats) {
        // SAFETY: the frame owns the memory, and we own the frame.
        let done = unsafe { self.extent(frame.extent(), fault, preempt) };
        (ZeroedFrame::unchecked(frame), done)
    }
}

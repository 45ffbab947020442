//! Divides an extent into pieces, and orders them.
//!
//! A processor that clears a huge page in one go leaves the wrong lines in its caches. The program that faulted then
//! misses on the very page that it needs (+9 % user time with many sequential writers). So we divide an extent into
//! three segments. The *neighbourhood* is the faulting page with a few pages on either side: we clear it last and
//! through the caches. The other two segments are the parts before and after it.
//!
//! A kernel that is preempted only at its own preemption points ("cooperative") must not stay in one instruction for
//! long. So no piece exceeds [`ClearPolicy::cap_bytes`], and we call the kernel's preemption point between pieces. For
//! example, at 10 GB/s 8 MB take about 1 ms and 32 MB about 3 ms. A kernel that can be preempted anywhere needs no cap,
//! because the instructions are interruptible. Without a cap the processor knows the whole length.
//!
//! We also implement the baseline to compare with: if [`ClearPolicy::whole_extents`] is off, every piece is one page.
//! The order is that of the kernel on which the gain of whole extents was measured. In a 2 MB page, the pages after the
//! neighbourhood are cleared in descending order, towards the fault. In a 1 GB page they're cleared in ascending order.
//! The order matters because a processor recognises only one of the two.

use crate::plan::Plan;
use crate::strategy::{Strategy, Temperature};
use quell::PAGE_BYTES;
use quell::{Extent, Frame, PageSize};

/// Selects the pieces in which extents are zeroed, and their order and instructions.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{ClearPolicy, Plan, Strategy, Temperature};
/// let policy = ClearPolicy::cooperative(Plan::uniform(Strategy::Stores));
/// let extent = Extent { first: Frame(0), frames: 512 };
/// // A program has faulted on frame 100: its neighbourhood comes last, through the caches.
/// let last = policy.pieces(extent, Some(Frame(100))).last().unwrap();
/// assert_eq!(last.extent, Extent { first: Frame(98), frames: 5 });
/// assert_eq!(last.temperature, Temperature::Hot);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClearPolicy {
    /// Zero whole extents. If it's off, zero page by page, with a preemption point between pages.
    pub whole_extents: bool,
    /// The maximum number of bytes in one piece, rounded down to pages but at least one page. `None` means no cap.
    pub cap_bytes: Option<u64>,
    /// The number of pages on either side of the faulting page that are cleared last and through the caches, as that
    /// page is. Linux uses two.
    pub neighbours: u64,
    /// The strategy for each length.
    pub plan: Plan,
}

impl ClearPolicy {
    /// Linux's cap for cooperative preemption: 32 MB. From about this length, Zen processors stop allocating cache
    /// lines.
    pub const COOPERATIVE_CAP: u64 = 32 << 20;
    /// The cap of the first published zeroing of extents: 8 MB. That takes about 1 ms at 10 GB/s.
    pub const S1_CAP: u64 = 8 << 20;

    /// Makes a policy for a kernel that is preempted only at its own preemption points.
    ///
    /// It zeroes whole extents in pieces of at most [`ClearPolicy::COOPERATIVE_CAP`].
    pub const fn cooperative(plan: Plan) -> Self {
        ClearPolicy {
            whole_extents: true,
            cap_bytes: Some(Self::COOPERATIVE_CAP),
            neighbours: 2,
            plan,
        }
    }

    /// Makes a policy for a kernel that is preemptible everywhere: whole extents, no cap.
    pub const fn preemptible(plan: Plan) -> Self {
        ClearPolicy { cap_bytes: None, ..Self::cooperative(plan) }
    }

    /// Makes a policy that zeroes page by page, to compare with.
    pub const fn page_by_page(plan: Plan) -> Self {
        ClearPolicy { whole_extents: false, ..Self::cooperative(plan) }
    }

    /// Returns the pieces in which `extent` is cleared, in order. They are disjoint and cover the extent.
    ///
    /// `fault` is the frame that the program reads next. If it's `None` or outside the extent, all pieces are
    /// [`Temperature::Bypassing`]. Frame numbers wrap around.
    pub fn pieces(&self, extent: Extent, fault: Option<Frame>) -> Pieces<'_> {
        // We count all positions from the first frame.
        let end = extent.frames;
        let run = |from: u64, to: u64| Extent { first: extent.first.plus(from), frames: to - from };
        let (from, to) = match fault.map(|Frame(fault)| fault.wrapping_sub(extent.first.0)) {
            Some(at) if at < end => (
                at.saturating_sub(self.neighbours),
                at.saturating_add(1).saturating_add(self.neighbours).min(end),
            ),
            // No neighbourhood: an empty run at the end of the extent.
            _ => (end, end),
        };
        Pieces {
            policy: self,
            // We clear the neighbourhood last: the program then finds it in the caches. [mutant ZeroFaultingPageFirst]
            segments: [
                (run(0, from), Temperature::Bypassing),
                (run(to, end), Temperature::Bypassing),
                (run(from, to), Temperature::Hot),
            ],
            at: 0,
            descends: !self.whole_extents && extent.frames <= PageSize::Large.pages(),
        }
    }

    /// Returns the longest piece in pages.
    fn limit(&self) -> u64 {
        match (self.whole_extents, self.cap_bytes) {
            (false, _) => 1,
            // No other thread runs on the CPU until a piece is cleared. [mutant ZeroIgnoresCap]
            (true, Some(cap)) => (cap / PAGE_BYTES).max(1),
            (true, None) => u64::MAX,
        }
    }
}

impl Default for ClearPolicy {
    /// Returns [`ClearPolicy::cooperative`] with the default plan, ordinary stores.
    fn default() -> Self {
        Self::cooperative(Plan::default())
    }
}

/// Describes a run of frames that is cleared without a preemption point inside.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{ClearPolicy, Temperature};
/// let extent = Extent { first: Frame(0), frames: 512 };
/// let policy = ClearPolicy::default();
/// // The program reads frame 7 next, so its neighbourhood is cleared last and through the caches.
/// let last = policy.pieces(extent, Some(Frame(7))).last().unwrap();
/// assert_eq!((last.extent.first, last.temperature), (Frame(5), Temperature::Hot));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The frames.
    pub extent: Extent,
    /// Whether a program reads the frames next.
    pub temperature: Temperature,
    /// The plan's strategy for this length and temperature.
    pub strategy: Strategy,
}

/// The segment after the neighbourhood of the fault.
const AFTER: usize = 1;

/// Iterates over the pieces of one extent. Made by [`ClearPolicy::pieces`].
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::ClearPolicy;
/// let policy = ClearPolicy { cap_bytes: Some(8 << 20), ..ClearPolicy::default() };
/// let extent = Extent { first: Frame(0), frames: 5120 }; // 20 MB
/// let pieces = policy.pieces(extent, None);
/// assert!(pieces.map(|piece| piece.extent.frames).eq([2048, 2048, 1024]));
/// ```
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    policy: &'a ClearPolicy,
    segments: [(Extent, Temperature); 3],
    at: usize,
    /// Whether the second segment is cleared from its end.
    descends: bool,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while self.at < self.segments.len() && self.segments[self.at].0.frames == 0 {
            self.at += 1;
        }
        let (rest, temperature) = self.segments.get_mut(self.at)?;
        let frames = rest.frames.min(self.policy.limit());
        rest.frames -= frames;
        let first = if self.descends && self.at == AFTER {
            rest.first.plus(rest.frames)
        } else {
            let first = rest.first;
            rest.first = first.plus(frames);
            first
        };
        let extent = Extent { first, frames };
        Some(Piece {
            extent,
            temperature: *temperature,
            strategy: self.policy.plan.strategy(*temperature, extent.bytes()),
        })
    }
}

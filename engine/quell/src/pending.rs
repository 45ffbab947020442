//! The changes of one space in a batch.
//!
//! Callers mostly report pages one by one, in the order of their addresses, and a long unmap reports hundreds. So we
//! keep the path for a page short. A page next to the last range extends it. A page further on gets a range of its own.
//! With more than `full_above` pages the request becomes a full one, and further pages cost nothing. All other changes
//! use [`Request::grow`].

use crate::addr::PageRange;
use crate::hardware::{Hardware, Scope};
use crate::inbox::RequestLimits;
use crate::request::Request;
use crate::space::AddressSpace;
use core::ops::Deref;

/// The outstanding changes of one space.
pub(crate) struct PendingChanges<S> {
    pub(crate) space: S,
    pub(crate) request: Request,
    /// Set if the broadcasts were sent already and only lack completion.
    pub(crate) sent: bool,
    /// Set if no table was written since the space counted the batch as pending.
    pub(crate) fresh: bool,
    /// Set if later changes join the same flush, because nothing is sent early.
    pub(crate) joins: bool,
    /// The number of invalidations of the request, while it consists of ranges.
    pub(crate) strides: u64,
    /// The scope of the request, once it's full and more than one change was reported. Then further changes add
    /// nothing.
    pub(crate) whole: Option<Scope>,
}

impl<H: Hardware, S: Deref<Target = AddressSpace<H>>> PendingChanges<S> {
    /// Makes the entry for the first change of a space.
    ///
    /// `sent`: its broadcasts were sent already. `joins`: later changes join its flush.
    #[inline(always)]
    pub(crate) fn first(
        space: S,
        range: Option<PageRange>,
        scope: Scope,
        sent: bool,
        joins: bool,
    ) -> Self {
        PendingChanges {
            space,
            request: Request::of(range, scope),
            sent,
            fresh: true,
            joins,
            strides: range.map_or(0, PageRange::strides),
            whole: None,
        }
    }

    /// Returns whether this is the entry of `space`, by the space's address.
    #[inline]
    pub(crate) fn is_of(&self, space: &S) -> bool {
        core::ptr::eq(&*self.space, &**space)
    }

    /// Returns whether further changes of this scope add nothing.
    ///
    /// A full request alone isn't enough: while it's the only change, the flush assumes that no table was written
    /// since.
    pub(crate) fn is_whole(&self, scope: Scope) -> bool {
        self.joins && !self.fresh && matches!(self.request, Request::Full(own) if own >= scope)
    }

    /// Adds a change that needs no new entry. Returns `false` if it added nothing.
    ///
    /// That's any change if the whole space is flushed, or a range that follows the last one
    /// ([`Ranges::follow`](crate::request::Ranges)). With more than `most` strides the request becomes a full one.
    #[inline]
    pub(crate) fn take(
        &mut self,
        range: Option<PageRange>,
        scope: Scope,
        most: RequestLimits,
    ) -> bool {
        match (&mut self.request, range) {
            (Request::Full(own), _) if *own >= scope => self.whole = Some(*own),
            (Request::Ranges(ranges, own), Some(range)) if *own == scope => {
                if !ranges.follow(range, most.ranges) {
                    return false;
                }
                self.strides += range.pages;
                if self.strides > most.strides {
                    self.request = Request::Full(scope);
                    self.whole = Some(scope);
                }
            }
            _ => return false,
        }
        self.fresh = false;
        true
    }
}

impl<H: Hardware> AddressSpace<H> {
    /// Counts a batch that has yet to flush this space, for later observers.
    ///
    /// Returns `false`, and counts nothing, if too many batches are outstanding.
    #[inline]
    pub(crate) fn begin_pending(&self) -> bool {
        // Without the limit the count would overflow into the generation. [mutants PendingNotRecorded: bug 3,
        // BatchesCountedWithoutEnd]
        self.begin_batch(Self::MOST_BATCHES)
    }

    #[inline]
    pub(crate) fn end_pending(&self) {
        // [mutant PendingNotRecorded]
        self.end_batch();
    }
}

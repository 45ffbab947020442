//! The changes of one space in a batch.
//!
//! Callers mostly report pages one after the other, in the order of their addresses, and a long unmap reports hundreds.
//! So the path of a page is short: a neighbour makes the last range longer, a page further on gets a range of its own,
//! and with more than `full_above` pages the request is everything, and further pages cost nothing. All other changes
//! go through [`Request::grow`].

use crate::addr::PageRange;
use crate::engine::Engine;
use crate::hardware::{Hardware, Scope};
use crate::inbox::Most;
use crate::request::Request;
use crate::space::AddressSpace;
use core::ops::Deref;

/// The outstanding changes of one space.
pub(crate) struct Pending<S> {
    pub(crate) space: S,
    pub(crate) request: Request,
    /// Broadcasts that were sent already and only lack completion.
    pub(crate) sent: bool,
    /// No table was written since the space's deferred flush was raised.
    pub(crate) fresh: bool,
    /// The batch flushes a change that is added with the rest, and sends nothing before.
    pub(crate) joins: bool,
    /// How many invalidations the request is, as long as it is ranges.
    pub(crate) strides: u64,
    /// Everything is flushed, this much of it, and more than one change was reported: there is nothing to be added.
    pub(crate) whole: Option<Scope>,
}

impl<H: Hardware, S: Deref<Target = AddressSpace<H>>> Pending<S> {
    /// The first change of a space, whose broadcasts were `sent` already or are not, and which later changes `join` or
    /// do not.
    #[inline(always)]
    pub(crate) fn first(
        space: S,
        range: Option<PageRange>,
        scope: Scope,
        sent: bool,
        joins: bool,
    ) -> Self {
        Pending {
            space,
            request: Request::of(range, scope),
            sent,
            fresh: true,
            joins,
            strides: range.map_or(0, PageRange::strides),
            whole: None,
        }
    }

    /// Whether it is of this space: at one place, as which two references to it point.
    #[inline]
    pub(crate) fn is_of(&self, space: &S) -> bool {
        core::ptr::eq(&*self.space, &**space)
    }

    /// Whether nothing of this scope can be added. The first change alone does not do: as long as it is the only one,
    /// the flush relies on tables that were not written since.
    pub(crate) fn is_whole(&self, scope: Scope) -> bool {
        self.joins && !self.fresh && matches!(self.request, Request::Full(own) if own >= scope)
    }

    /// Takes what needs no place of its own: anything if the whole space is flushed, and a range as
    /// [`Ranges::follow`](crate::request::Ranges) does. Becomes everything with more than `most` strides. `false`
    /// if it took nothing.
    #[inline]
    pub(crate) fn take(&mut self, range: Option<PageRange>, scope: Scope, most: Most) -> bool {
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

impl<H: Hardware> Engine<'_, H> {
    /// Tells later observers that a batch defers `space` a flush; `false`, and nothing was counted, if too many do.
    #[inline]
    pub(crate) fn begin_pending(&self, space: &AddressSpace<H>) -> bool {
        // One batch more would run into the generation. [mutants PendingNotRecorded: bug 3, BatchesCountedWithoutEnd]
        space.begin_batch(AddressSpace::<H>::MOST_BATCHES)
    }

    #[inline]
    pub(crate) fn end_pending(&self, space: &AddressSpace<H>) {
        // [mutant PendingNotRecorded]
        space.end_batch();
    }
}

//! Flushes on machines that broadcast invalidations: Arm's `TLBI … IS`, x86's INVLPGB.
//!
//! A broadcast names a system-wide tag, or none on machines without tags. We send it at once. It's complete only when
//! *the CPU that sent it* has waited for completion; another CPU's wait doesn't complete it. So reclaim sends
//! immediately and waits once, and a batch that was carried to another CPU sends everything again.
//!
//! We read the tag after a fence that makes the table stores visible to all walkers. If a rollover came before, we read
//! the new tag. If it comes later, a CPU that runs the space under a new tag walks the changed tables.

use crate::features::Tagging;
use crate::hardware::{Broadcast, Hardware, Invalidation, Scope, Tag};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::this_cpu::Cpu;

impl<H: Hardware> Cpu<'_, H> {
    /// Flushes like [`Cpu::shoot_down`], on a machine that broadcasts.
    pub(crate) fn broadcast_flush<'s>(
        self,
        requests: impl Iterator<Item = (&'s AddressSpace<H>, &'s Request)>,
    ) where
        H: 's,
    {
        self.fence_before_tag();
        let mut sent = false;
        for (space, request) in requests {
            space.next_generation();
            sent |= self.send(space, request);
        }
        if sent {
            self.complete();
        }
    }

    /// Sends the broadcasts of one change now. [`Cpu::complete`] must follow.
    pub(crate) fn broadcast_early(self, space: &AddressSpace<H>, request: &Request) {
        self.fence_before_tag();
        self.send(space, request);
    }

    /// Starts the broadcasts of one change. Returns whether there were any.
    fn send(self, space: &AddressSpace<H>, request: &Request) -> bool {
        self.count(Counter::Requested, 1);
        match self.broadcast_tag(space) {
            _ if space.id().is_kernel() => self.broadcast(None, self.limited(request)),
            Some(tag) => self.broadcast(Some(tag), self.limited(request)),
            None => false,
        }
    }

    /// Flushes everything on every CPU. If `kernel` is set, also flushes global entries.
    pub(crate) fn broadcast_everything(self, kernel: bool) {
        self.fence_before_tag();
        self.count(Counter::Broadcasts, 1);
        // `Invalidation::All` keeps global entries. [mutant KernelLostInMerge]
        self.start(match kernel {
            true => Invalidation::Everything,
            false => Invalidation::All,
        });
        self.complete();
    }

    /// Flushes all of a retired space on every CPU. No CPU has it loaded any more.
    pub(crate) fn broadcast_retired(self, space: &AddressSpace<H>) {
        self.fence_before_tag();
        if let Some(tag) = self.broadcast_tag(space)
            && self.broadcast(Some(tag), &Request::Full(Scope::Tables))
        {
            self.complete();
        }
    }

    /// Waits until this CPU's broadcasts are complete.
    pub(crate) fn complete(self) {
        self.count(Counter::Barriers, 1);
        if let Some(broadcasts) = self.broadcasts() {
            broadcasts.complete();
        }
    }

    /// Makes earlier table stores visible to every walker before a tag is read.
    fn fence_before_tag(self) {
        // Fence pairs with `asid::acquire`: the cleared entry is visible to every walker before we read the tag, so a
        // CPU that loads the space under a newer tag walks the new tables.
        // Without this fence, that CPU could keep the old translation (mutant `BroadcastSkipsFence`, C1).
        self.hw.fence();
    }

    /// Returns the tag for broadcasts of `space`, or `None` if it was never loaded.
    ///
    /// On machines without tags, returns the kernel's tag, because any CPU may have the space loaded.
    fn broadcast_tag(self, space: &AddressSpace<H>) -> Option<Tag> {
        // Without tags there's none to look up. [mutant UntaggedUnflushed]
        if self.features.tagging == Tagging::None {
            return Some(Tag::KERNEL);
        }
        space.tag.dealt()
    }

    /// Starts the broadcasts of a request, under a tag or of kernel mappings, which have none. Returns whether there were
    /// any.
    fn broadcast(self, tag: Option<Tag>, request: &Request) -> bool {
        match request {
            Request::Empty => return false,
            Request::Full(_) => {
                self.count(Counter::Broadcasts, 1);
                self.start(tag.map_or(Invalidation::Everything, Invalidation::Tag));
            }
            Request::Ranges(ranges, scope) => {
                let scope = *scope;
                for range in ranges.iter() {
                    self.count(Counter::Broadcasts, range.strides());
                    self.start(match tag {
                        Some(tag) => Invalidation::Range { tag, range, scope },
                        None => Invalidation::Kernel { range, scope },
                    });
                }
            }
        }
        true
    }

    fn start(self, what: Invalidation) {
        if let Some(broadcasts) = self.broadcasts() {
            broadcasts.start(what);
        }
    }
}

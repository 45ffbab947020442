//! A request on its way to a CPU, as a value and spread over words.
//!
//! What Linux keeps in `struct flush_tlb_info`. Requests of one space merge as [`Request`] does, as long as their flush
//! generations are neighbours; whatever else meets becomes "everything that is loaded", which needs no words at
//! all to be told apart. All accesses to the words are relaxed: who may read them, and when what was read counts,
//! is decided by the [`inbox`](crate::inbox) that they are part of.

use crate::cpu_set::CpuId;
use crate::hardware::Scope;
use crate::request::{self, Request};
use crate::space::SpaceId;
use crate::word::Word;
use core::sync::atomic::Ordering::Relaxed;

/// A request on its way: what to flush of which space, and as of which flush generations.
#[derive(Clone, Copy)]
pub(crate) struct FlushInfo {
    /// The space; `None` for whatever is loaded.
    pub(crate) space: Option<SpaceId>,
    /// The first and the last flush generation that the request covers.
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) request: Request,
}

impl FlushInfo {
    /// Whatever is loaded: flush it whole.
    pub(crate) const EVERYTHING: FlushInfo = FlushInfo::whole(Scope::Leaf);

    /// Whatever is loaded, whole, where this much has changed.
    pub(crate) const fn whole(scope: Scope) -> FlushInfo {
        FlushInfo {
            space: None,
            first: 0,
            last: 0,
            request: Request::Full(scope),
        }
    }

    /// One generation of a space.
    pub(crate) fn of(space: SpaceId, generation: u64, request: Request) -> FlushInfo {
        FlushInfo {
            space: Some(space),
            first: generation,
            last: generation,
            request,
        }
    }

    /// The least request that covers both.
    pub(crate) fn merge(self, other: FlushInfo) -> FlushInfo {
        let scope = self.request.scope().max(other.request.scope());
        if self.space.is_none() || self.space != other.space {
            return FlushInfo::whole(scope);
        }
        FlushInfo {
            space: self.space,
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            // Generations that arrive out of order leave a hole between the two; only
            // neighbours may keep their ranges.
            request: if self.last + 1 >= other.first && other.last + 1 >= self.first {
                self.request.merge(other.request)
            } else {
                Request::Full(scope)
            },
        }
    }
}

/// What words hold.
pub(crate) enum Written {
    /// A request.
    Here(FlushInfo),
    /// That it lies in the outbox of the CPU with this number.
    InOutbox(usize),
}

/// A [`FlushInfo`], spread over seven words, so that it shares a line with the inbox's state.
#[repr(C)]
pub(crate) struct FlushWords<W> {
    /// The id of the space; 0 for whatever is loaded.
    space: W,
    first: W,
    last: W,
    /// The number of ranges and the flags below.
    meta: W,
    ranges: [W; request::RANGES],
}

const META_COUNT: u64 = 0b11;
const META_FULL: u64 = 1 << 2;
const META_TABLES: u64 = 1 << 3;
/// The request is in the outbox of the initiator whose number stands above [`META_SENDER_SHIFT`].
const META_OUTBOX: u64 = 1 << 4;
const META_SENDER_SHIFT: u32 = 16;

impl<W: Word> FlushWords<W> {
    pub(crate) fn new() -> Self {
        FlushWords {
            space: W::new(0),
            first: W::new(0),
            last: W::new(0),
            meta: W::new(0),
            ranges: core::array::from_fn(|_| W::new(0)),
        }
    }

    /// Writes a request. What the words hold meanwhile is of no use: see [`inbox`](crate::inbox).
    pub(crate) fn write(&self, info: &FlushInfo) {
        let mut meta = if info.request.scope() == Scope::Tables {
            META_TABLES
        } else {
            0
        };
        match &info.request {
            Request::Empty => {}
            Request::Full(_) => meta |= META_FULL,
            Request::Ranges(ranges, _) => {
                let list = ranges.as_slice();
                meta |= list.len() as u64;
                for (word, &range) in self.ranges.iter().zip(list) {
                    word.store(request::pack(range), Relaxed);
                }
            }
        }
        self.space
            .store(info.space.map_or(0, |space| space.0), Relaxed);
        self.first.store(info.first, Relaxed);
        self.last.store(info.last, Relaxed);
        self.meta.store(meta, Relaxed);
    }

    /// Writes that the request lies in the outbox of this CPU.
    pub(crate) fn refer_to(&self, sender: CpuId) {
        let sender = u64::from(sender.0) << META_SENDER_SHIFT;
        self.meta.store(META_OUTBOX | sender, Relaxed);
    }

    /// Reads what the words hold.
    #[inline]
    pub(crate) fn read(&self) -> Written {
        let meta = self.meta.load(Relaxed);
        if meta & META_OUTBOX != 0 {
            return Written::InOutbox((meta >> META_SENDER_SHIFT) as usize);
        }
        let scope = if meta & META_TABLES != 0 {
            Scope::Tables
        } else {
            Scope::Leaf
        };
        let count = (meta & META_COUNT) as usize;
        let space = self.space.load(Relaxed);
        Written::Here(FlushInfo {
            space: (space != 0).then_some(SpaceId(space)),
            first: self.first.load(Relaxed),
            last: self.last.load(Relaxed),
            request: if meta & META_FULL != 0 {
                Request::Full(scope)
            } else {
                request::from_packed(self.ranges[..count].iter().map(|w| w.load(Relaxed)), scope)
            },
        })
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.space, "space"),
            (&self.first, "first"),
            (&self.last, "last"),
            (&self.meta, "meta"),
            (&self.ranges[0], "range0"),
            (&self.ranges[1], "range1"),
            (&self.ranges[2], "range2"),
        ];
        let at = |word: &W| core::ptr::from_ref(word) as usize == address;
        names
            .into_iter()
            .find(|(word, _)| at(word))
            .map(|(_, name)| name)
    }
}

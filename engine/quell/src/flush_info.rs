//! A request on its way to a CPU, as a value and encoded in words.
//!
//! It corresponds to Linux's `struct flush_tlb_info`. Requests for one space merge like [`Request`]s if their flush
//! generations are adjacent. If there's a gap between them, they become a request for the whole space. Requests for two
//! spaces become "everything that is loaded". All accesses to the words are relaxed: the state of the
//! [`inbox`](crate::inbox) determines which CPU may read them, and whether the values that it has read are valid. The
//! file is long because its tests compare values and words for every pair of requests.

use crate::cpu_set::CpuId;
use crate::hardware::Scope;
use crate::request::{self, Request};
use crate::space::{KernelEntries, SpaceId};
use crate::word::{Word, is_at, name_at};
use core::sync::atomic::Ordering::Relaxed;

/// A request on its way: the space, the translations to flush, and the flush generations.
///
/// It only refers to the ranges. Their list has room for eleven and mostly holds one, so we don't copy it.
#[derive(Clone, Copy)]
pub(crate) struct FlushInfo<'r> {
    /// The space, or `None` for any space that is loaded.
    pub(crate) space: Option<SpaceId>,
    /// The first and the last flush generation that the request covers.
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) request: &'r Request,
}

impl<'r> FlushInfo<'r> {
    /// Requests a flush of everything that is loaded.
    pub(crate) const EVERYTHING: FlushInfo<'static> = FlushInfo::whole(Scope::Leaf);

    /// Requests no flush: for a request that consists of marks only.
    pub(crate) const NOTHING: FlushInfo<'static> = FlushInfo {
        space: Some(SpaceId::of_kernel(0, KernelEntries::Global)),
        first: 0,
        last: 0,
        request: &Request::Empty,
    };

    /// Makes a request for everything that is loaded, with this scope.
    pub(crate) const fn whole(scope: Scope) -> FlushInfo<'static> {
        FlushInfo { space: None, first: 0, last: 0, request: Request::full(scope) }
    }

    /// Makes the request of one generation of a space.
    #[inline]
    pub(crate) fn of(space: SpaceId, generation: u64, request: &'r Request) -> Self {
        FlushInfo { space: Some(space), first: generation, last: generation, request }
    }

    /// Returns whether it covers kernel mappings only.
    #[inline]
    pub(crate) fn is_kernel(&self) -> bool {
        self.space.is_some_and(SpaceId::is_kernel)
    }

    /// Returns the request in encoded form.
    #[inline]
    pub(crate) fn laid_out(&self) -> EncodedRequest<'r> {
        let (kind, ranges) = match self.request {
            Request::Empty => (0, &[][..]),
            Request::Full(_) => (META_FULL, &[][..]),
            Request::Ranges(ranges, _) => (ranges.packed().len() as u64, ranges.packed()),
        };
        EncodedRequest {
            space: self.space.map_or(0, |space| space.0),
            first: self.first,
            last: self.last,
            meta: kind | tables(self.request.scope()),
            ranges,
        }
    }
}

/// A [`FlushInfo`] encoded as in [`FlushWords`]. We encode once for all targets.
#[derive(Clone, Copy)]
pub(crate) struct EncodedRequest<'r> {
    space: u64,
    first: u64,
    last: u64,
    meta: u64,
    ranges: &'r [u64],
}

impl<'r> EncodedRequest<'r> {
    /// Encodes one generation of a space: a packed range, or the whole space.
    #[inline]
    pub(crate) fn of(
        space: SpaceId,
        generation: u64,
        range: Option<&'r u64>,
        scope: Scope,
    ) -> Self {
        let kind = if range.is_some() { 1 } else { META_FULL };
        EncodedRequest {
            space: space.0,
            first: generation,
            last: generation,
            meta: kind | tables(scope),
            ranges: range.map_or(&[], core::slice::from_ref),
        }
    }

    /// Decodes the request, with its ranges in `request`.
    pub(crate) fn info<'q>(&self, request: &'q mut Request) -> FlushInfo<'q> {
        decode(self.meta, |index| self.ranges[index], request);
        FlushInfo {
            space: (self.space != 0).then_some(SpaceId(self.space)),
            first: self.first,
            last: self.last,
            request,
        }
    }
}

/// Returns the bits that encode a scope.
#[inline]
fn tables(scope: Scope) -> u64 {
    match scope {
        Scope::Leaf => 0,
        Scope::Tables => META_TABLES,
    }
}

/// A request for one range of one space, or for all of it. Most requests are like this.
#[derive(Clone, Copy)]
pub(crate) struct SimpleRequest {
    pub(crate) space: SpaceId,
    /// The first and the last flush generation that the request covers.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The packed range, or `None` for the whole space.
    pub(crate) range: Option<u64>,
    pub(crate) scope: Scope,
}

/// Returns the scope that these bits encode.
#[inline]
fn scope(meta: u64) -> Scope {
    if meta & META_TABLES != 0 { Scope::Tables } else { Scope::Leaf }
}

/// Decodes these bits into `request`. `word` returns the words of its ranges.
#[inline]
fn decode(meta: u64, word: impl FnMut(usize) -> u64, request: &mut Request) {
    if meta & META_FULL != 0 {
        *request = Request::Full(scope(meta));
    } else {
        let count = (meta & META_COUNT) as usize;
        request.become_packed(count.min(request::RANGES), word, scope(meta));
    }
}

/// A request that was read from the words, with room for its ranges.
pub(crate) struct TakenRequest {
    space: Option<SpaceId>,
    first: u64,
    last: u64,
    request: Request,
}

impl TakenRequest {
    /// Makes an empty place to read into.
    #[inline]
    pub(crate) fn new() -> TakenRequest {
        TakenRequest { space: None, first: 0, last: 0, request: Request::Empty }
    }

    #[inline]
    pub(crate) fn info(&self) -> FlushInfo<'_> {
        FlushInfo { space: self.space, first: self.first, last: self.last, request: &self.request }
    }

    /// Becomes a full request if it takes more than `full_above` single invalidations.
    pub(crate) fn limit(&mut self, full_above: u64) {
        self.request.limit(full_above);
    }

    /// Grows to the smallest request that covers `other`, too, with at most `most` ranges.
    ///
    /// A request for kernel mappings and one for a user space become one for all of that user space, which the inbox
    /// also marks as the kernel's. So the target flushes everything, and knows the generation that it has caught up
    /// with.
    pub(crate) fn include(&mut self, other: &FlushInfo<'_>, most: usize) {
        let kernel = self.info().is_kernel();
        if self.space.is_none() || self.space != other.space {
            let scope = self.request.scope().max(other.request.scope());
            (self.space, self.first, self.last) = match (kernel, other.is_kernel()) {
                (true, false) => (other.space, other.first, other.last),
                (false, true) => (self.space, self.first, self.last),
                _ => (None, 0, 0),
            };
            self.request = Request::Full(scope);
            return;
        }
        // Generations that arrive out of order leave a gap between the two. Only adjacent generations may keep their
        // ranges. Requests for kernel mappings are posted to every CPU, so these have no gaps.
        let neighbours = self.last + 1 >= other.first && other.last + 1 >= self.first;
        if neighbours || kernel {
            self.request.include(other.request, most);
        } else {
            self.request.grow(None, other.request.scope(), most);
        }
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

/// The place of the request that was read.
pub(crate) enum RequestPlace {
    /// The words contained it.
    Here,
    /// The outbox of the CPU with this number contains it.
    InOutbox(usize),
}

/// A [`FlushInfo`] encoded in shared words. With up to three ranges it shares a cache line with the inbox's state. With
/// more it needs the next line, too.
#[repr(C)]
pub(crate) struct FlushWords<W> {
    /// The id of the space, or 0 for any space that is loaded.
    space: W,
    first: W,
    last: W,
    /// The number of ranges and the flags below.
    meta: W,
    ranges: [W; request::RANGES],
}

const META_COUNT: u64 = 0b1111;
const META_FULL: u64 = 1 << 4;
const META_TABLES: u64 = 1 << 5;
/// The request is in the outbox of the initiator whose number begins at bit [`META_SENDER_SHIFT`].
const META_OUTBOX: u64 = 1 << 6;
const _: () = assert!(request::RANGES as u64 <= META_COUNT);
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

    /// Writes a request. The words aren't valid meanwhile: see [`inbox`](crate::inbox).
    #[inline]
    pub(crate) fn write(&self, laid: &EncodedRequest<'_>) {
        // The common case: one range.
        if let Some((&first, more)) = laid.ranges.split_first() {
            self.ranges[0].store(first, Relaxed);
            if !more.is_empty() {
                self.write_more(more);
            }
        }
        self.space.store(laid.space, Relaxed);
        self.first.store(laid.first, Relaxed);
        self.last.store(laid.last, Relaxed);
        self.meta.store(laid.meta, Relaxed);
    }

    #[cold]
    fn write_more(&self, ranges: &[u64]) {
        for (word, &range) in self.ranges[1..].iter().zip(ranges) {
            word.store(range, Relaxed);
        }
    }

    /// Grows the words to cover another request for the space, if either is full.
    ///
    /// Then the ranges of the other no longer matter. Otherwise returns `false` and writes nothing. The result is that
    /// of [`TakenRequest::include`].
    pub(crate) fn include_whole(&self, laid: &EncodedRequest<'_>) -> bool {
        let meta = self.meta.load(Relaxed);
        let space = self.space.load(Relaxed);
        let both = meta | laid.meta;
        if both & META_FULL == 0 || meta & META_OUTBOX != 0 || space != laid.space || space == 0 {
            return false;
        }
        let (first, last) = (self.first.load(Relaxed), self.last.load(Relaxed));
        self.first.store(first.min(laid.first), Relaxed);
        self.last.store(last.max(laid.last), Relaxed);
        self.meta.store(META_FULL | (both & META_TABLES), Relaxed);
        true
    }

    /// Writes a reference to the outbox of this CPU.
    pub(crate) fn refer_to(&self, sender: CpuId) {
        let sender = u64::from(sender.0) << META_SENDER_SHIFT;
        self.meta.store(META_OUTBOX | sender, Relaxed);
    }

    /// Reads the words. If they hold a request, decodes it into `taken`.
    #[inline]
    pub(crate) fn read(&self, taken: &mut TakenRequest) -> RequestPlace {
        let meta = self.meta.load(Relaxed);
        if meta & META_OUTBOX != 0 {
            return RequestPlace::InOutbox((meta >> META_SENDER_SHIFT) as usize);
        }
        let space = self.space.load(Relaxed);
        taken.space = (space != 0).then_some(SpaceId(space));
        taken.first = self.first.load(Relaxed);
        taken.last = self.last.load(Relaxed);
        let word = |index: usize| self.ranges[index].load(Relaxed);
        decode(meta, word, &mut taken.request);
        RequestPlace::Here
    }

    /// Reads the words if they hold a lone range of a space, or all of it.
    #[inline]
    pub(crate) fn read_lone(&self) -> Option<SimpleRequest> {
        let meta = self.meta.load(Relaxed);
        let range = match meta & !META_TABLES {
            1 => Some(self.ranges[0].load(Relaxed)),
            META_FULL => None,
            _ => return None,
        };
        // A request for any loaded space has the space 0, which no CPU runs. So it takes the general path.
        Some(SimpleRequest {
            space: SpaceId(self.space.load(Relaxed)),
            first: self.first.load(Relaxed),
            last: self.last.load(Relaxed),
            range,
            scope: scope(meta),
        })
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.space, "inbox.space"),
            (&self.first, "inbox.first"),
            (&self.last, "inbox.last"),
            (&self.meta, "inbox.meta"),
        ];
        let ranges = self.ranges.iter().map(|word| (word, "inbox.ranges[..]"));
        name_at(names.into_iter().chain(ranges), address)
    }
}

/// A [`SimpleRequest`] of one generation, in shared words. All accesses are relaxed: see
/// [`shared_inbox`](crate::shared_inbox).
pub(crate) struct SimpleWords<W> {
    space: W,
    generation: W,
    /// The packed range, if `meta` has no [`META_FULL`].
    range: W,
    meta: W,
}

impl<W: Word> SimpleWords<W> {
    pub(crate) fn new() -> Self {
        SimpleWords { space: W::new(0), generation: W::new(0), range: W::new(0), meta: W::new(0) }
    }

    pub(crate) fn write(&self, request: &SimpleRequest) {
        let kind = if request.range.is_some() { 1 } else { META_FULL };
        self.space.store(request.space.0, Relaxed);
        self.generation.store(request.last, Relaxed);
        self.range.store(request.range.unwrap_or_default(), Relaxed);
        self.meta.store(kind | tables(request.scope), Relaxed);
    }

    pub(crate) fn read(&self) -> SimpleRequest {
        let meta = self.meta.load(Relaxed);
        let generation = self.generation.load(Relaxed);
        SimpleRequest {
            space: SpaceId(self.space.load(Relaxed)),
            first: generation,
            last: generation,
            range: (meta & META_FULL == 0).then(|| self.range.load(Relaxed)),
            scope: scope(meta),
        }
    }

    pub(crate) fn has_word(&self, address: usize) -> bool {
        let words = [&self.space, &self.generation, &self.range, &self.meta];
        words.into_iter().any(|word| is_at(word, address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Page, PageRange};
    use core::sync::atomic::AtomicU64;

    const USERS: [SpaceId; 2] = [SpaceId(4), SpaceId(8)];
    const KERNEL: SpaceId = SpaceId::of_kernel(3, KernelEntries::Global);

    fn requests() -> [Request; 5] {
        let range = |page, scope| Request::range(PageRange::base(Page(page), 2), scope);
        [
            range(5, Scope::Leaf),
            range(9, Scope::Leaf),
            range(9, Scope::Tables),
            Request::Full(Scope::Leaf),
            Request::Full(Scope::Tables),
        ]
    }

    /// Makes requests for each space, with each span of four generations.
    fn infos(requests: &[Request]) -> Vec<FlushInfo<'_>> {
        let mut infos: Vec<_> = [Scope::Leaf, Scope::Tables].map(FlushInfo::whole).into();
        for space in [USERS[0], USERS[1], KERNEL] {
            assert_eq!(space == KERNEL, space.is_kernel());
            for (first, last) in (1..5).flat_map(|first| (first..5).map(move |last| (first, last)))
            {
                for request in requests {
                    infos.push(FlushInfo { first, last, ..FlushInfo::of(space, first, request) });
                }
            }
        }
        infos
    }

    fn taken(info: &FlushInfo<'_>) -> TakenRequest {
        TakenRequest {
            space: info.space,
            first: info.first,
            last: info.last,
            request: *info.request,
        }
    }

    #[test]
    fn what_meets_is_covered_and_no_more_than_must_be() {
        let requests = requests();
        for one in infos(&requests) {
            for other in infos(&requests) {
                let mut both = taken(&one);
                both.include(&other, request::RANGES);
                let scope = one.request.scope().max(other.request.scope());
                if one.space != other.space || one.space.is_none() {
                    // If one of the two is for the kernel, the user space remains.
                    let user = match (one.is_kernel(), other.is_kernel()) {
                        (true, false) => Some(other),
                        (false, true) => Some(one),
                        _ => None,
                    };
                    let told = user.map(|user| (user.space, user.first, user.last));
                    assert_eq!(both.request, Request::Full(scope));
                    assert_eq!((both.space, both.first, both.last), told.unwrap_or((None, 0, 0)));
                    continue;
                }
                assert_eq!(both.space, one.space);
                assert_eq!(both.first, one.first.min(other.first));
                assert_eq!(both.last, one.last.max(other.last));
                let told = |generation: &u64| {
                    (one.first..=one.last).contains(generation)
                        || (other.first..=other.last).contains(generation)
                };
                let request = match (both.first..=both.last).all(|generation| told(&generation))
                    || one.is_kernel()
                {
                    true => one.request.merge(*other.request),
                    false => Request::Full(scope),
                };
                assert_eq!(both.request, request);
            }
        }
    }

    #[test]
    fn what_is_merged_in_the_words_is_what_is_merged_beside_them() {
        let words = FlushWords::<AtomicU64>::new();
        let empty = USERS.map(|space| FlushInfo::of(space, 1, &Request::Empty));
        let requests = requests();
        let infos: Vec<_> = infos(&requests).into_iter().chain(empty).collect();
        let told = |info: &FlushInfo<'_>| (info.space, info.first, info.last, *info.request);
        let mut merged = 0;
        for one in &infos {
            for other in &infos {
                words.write(&one.laid_out());
                let in_words = words.include_whole(&other.laid_out());
                let full = |info: &FlushInfo<'_>| matches!(info.request, Request::Full(_));
                let known = one.space == other.space && one.space.is_some();
                assert_eq!(in_words, known && (full(one) || full(other)));
                let mut read = TakenRequest::new();
                assert!(matches!(words.read(&mut read), RequestPlace::Here));
                let mut both = taken(one);
                if in_words {
                    merged += 1;
                    both.include(other, request::RANGES);
                }
                assert_eq!(told(&read.info()), told(&both.info()));
            }
        }
        assert!(merged > 1000);
        let whole = FlushInfo::of(USERS[0], 1, Request::full(Scope::Leaf)).laid_out();
        words.write(&whole);
        assert!(words.include_whole(&whole));
        words.refer_to(CpuId(77));
        assert!(!words.include_whole(&whole));
        let mut read = TakenRequest::new();
        assert!(matches!(words.read(&mut read), RequestPlace::InOutbox(77)));
    }
}

//! Follows memory that programs gave back until they touch it again.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// The largest number of calls to remember. At the limit, [`Discards`] forgets all.
const CALLS: usize = 1 << 20;

/// A range that a call gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    start: u64,
    /// The site of the call.
    pub site: usize,
    /// The time at which the call returned.
    pub time_ns: u64,
    /// The number of CPUs that it interrupted.
    pub interrupts: u64,
    /// The bin of the gap before its first interrupt.
    pub gap: usize,
    /// Whether we know its fate: it was touched, or we stopped following it.
    pub followed: bool,
    /// Whether recording has paused since. Later calls may have given the range back again.
    pub is_old: bool,
    /// The number of page faults in the range.
    pub refaults: u64,
}

/// The rest of a range after later calls gave parts of it back again.
#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    /// The index of the call in `calls`.
    of: usize,
}

/// The ranges that were given back, by owner.
///
/// An owner is a process or, if a text doesn't contain processes, a program.
#[derive(Debug, Default)]
pub struct Discards {
    /// Parts by owner and start. Parts of one owner don't overlap.
    parts: FxHashMap<u64, BTreeMap<u64, Part>>,
    calls: Vec<Discard>,
    /// The index of the first call that may still be followed.
    recent: usize,
}

/// Splits the part that spans this address, if there is one.
fn cut(parts: &mut BTreeMap<u64, Part>, at: u64) {
    if let Some((_, part)) = parts.range_mut(..at).next_back()
        && part.end > at
    {
        let behind = *part;
        part.end = at;
        parts.insert(at, behind);
    }
}

impl Discards {
    /// Notes that `owner` gave this range back, and takes it from earlier calls. Returns the earlier call that began at
    /// the same address, if it was still followed.
    pub fn add(
        &mut self,
        owner: u64,
        start: u64,
        bytes: u64,
        site: usize,
        time_ns: u64,
        sent: (u64, usize),
    ) -> Option<Discard> {
        if bytes == 0 {
            return None;
        }
        if self.calls.len() >= CALLS {
            *self = Discards::default();
        }
        let end = start.saturating_add(bytes);
        let parts = self.parts.entry(owner).or_default();
        let before = parts.get(&start).map(|part| part.of);
        cut(parts, start);
        cut(parts, end);
        while let Some((&first, _)) = parts.range(start..end).next() {
            parts.remove(&first);
        }
        let of = self.calls.len();
        parts.insert(start, Part { end, of });
        self.calls.push(Discard {
            start,
            site,
            time_ns,
            interrupts: sent.0,
            gap: sent.1,
            followed: false,
            is_old: false,
            refaults: 0,
        });
        let before = &mut self.calls[before?];
        let ends = before.start == start && !std::mem::replace(&mut before.followed, true);
        ends.then_some(*before)
    }

    /// Stops following all ranges, because recording pauses. Calls `each` with those not touched until now.
    pub fn stop_following(&mut self, mut each: impl FnMut(&Discard)) {
        let recent = std::mem::replace(&mut self.recent, self.calls.len());
        for discard in &mut self.calls[recent..] {
            discard.is_old = true;
            if !std::mem::replace(&mut discard.followed, true) {
                each(discard);
            }
        }
    }

    /// Finds the call that gave this address back.
    pub fn find(&mut self, owner: u64, address: u64) -> Option<&mut Discard> {
        let parts = self.parts.get(&owner)?;
        let (_, part) = parts.range(..=address).next_back()?;
        let known = self.calls.get_mut(part.of)?;
        (address < part.end).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each page belongs to the last call that gave it back.
    #[test]
    fn ranges_that_overlap_are_told_apart_page_by_page() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut discards = Discards::default();
            let mut pages = [None; 32];
            for site in 0..12 {
                let start = random(32);
                let count = 1 + random(32 - start);
                discards.add(1, start << 12, count << 12, site, 0, (0, 0));
                pages[start as usize..(start + count) as usize].fill(Some(site));
                for (page, &last) in pages.iter().enumerate() {
                    for address in [page << 12, (page << 12) + 4095] {
                        let found = discards.find(1, address as u64);
                        assert_eq!(found.map(|found| found.site), last, "{address:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_range_that_was_cut_is_followed_once() {
        let mut discards = Discards::default();
        discards.add(1, 0x1000, 0x8000, 7, 5, (1, 0));
        assert!(discards.add(1, 0x3000, 0x1000, 8, 6, (2, 0)).is_none());
        discards.find(1, 0x7000).unwrap().followed = true;
        let mut ended = Vec::new();
        discards.stop_following(|discard| ended.push(discard.interrupts));
        assert_eq!(ended, [2]);
        // The rest of the first call begins at this address, but that call itself doesn't.
        discards.add(1, 0x10000, 0x8000, 7, 7, (4, 0));
        discards.add(1, 0x12000, 0x1000, 8, 8, (8, 0));
        assert!(discards.add(1, 0x13000, 0x1000, 8, 9, (16, 0)).is_none());
        discards.stop_following(|discard| ended.push(discard.interrupts));
        assert_eq!(ended, [2, 4, 8, 16]);
    }

    #[test]
    fn each_range_is_followed_to_its_end_once() {
        let mut discards = Discards::default();
        assert!(discards.add(1, 0x1000, 0x1000, 7, 5, (1, 0)).is_none());
        discards.add(1, 0x5000, 0x1000, 7, 6, (2, 0));
        let before = discards.add(1, 0x1000, 0x1000, 7, 9, (4, 0));
        assert_eq!(before.map(|before| before.interrupts), Some(1));
        discards.find(1, 0x5000).unwrap().followed = true;
        let mut ended = Vec::new();
        discards.stop_following(|discard| ended.push(discard.interrupts));
        discards.stop_following(|discard| ended.push(discard.interrupts));
        assert_eq!(ended, [4]);
        let old = discards.find(1, 0x1000).map(|found| found.is_old);
        assert_eq!(old, Some(true), "its faults still are of this call");
        discards.add(1, 0x9000, 0x1000, 7, 9, (4, 0));
        assert!(!discards.find(1, 0x9000).unwrap().is_old);
    }
}

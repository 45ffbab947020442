//! Which memory a program gave back, and how soon it touched it again.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// How many ranges are remembered in all; beyond that they are forgotten and begun anew.
const RANGES: usize = 1 << 20;

/// A range that a call gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    end: u64,
    /// The site of the call.
    pub site: usize,
    /// When it returned.
    pub time_ns: u64,
    /// How many CPUs it interrupted.
    pub interrupts: u64,
    /// The gap's bin of its first interrupt.
    pub gap: usize,
    /// Whether it was followed to its end: it is known when it was touched, or how long it was not.
    pub followed: bool,
}

/// The ranges that were given back, by program.
#[derive(Debug, Default)]
pub struct Discards {
    ranges: FxHashMap<usize, BTreeMap<u64, Discard>>,
    count: usize,
    /// Where those are that came since the last stretch of time ended.
    recent: Vec<(usize, u64)>,
    /// How often everything was forgotten.
    pub forgotten: u64,
}

impl Discards {
    /// A call gave this range back; what was known of the same range before, if it was not followed to its end.
    pub fn add(
        &mut self,
        program: usize,
        start: u64,
        bytes: u64,
        site: usize,
        time_ns: u64,
        sent: (u64, usize),
    ) -> Option<Discard> {
        if bytes == 0 {
            return None;
        }
        if self.count >= RANGES {
            self.ranges.clear();
            self.recent.clear();
            self.count = 0;
            self.forgotten += 1;
        }
        let discard = Discard {
            end: start.saturating_add(bytes),
            site,
            time_ns,
            interrupts: sent.0,
            gap: sent.1,
            followed: false,
        };
        let before = self
            .ranges
            .entry(program)
            .or_default()
            .insert(start, discard);
        self.count += usize::from(before.is_none());
        self.recent.push((program, start));
        before.filter(|before| !before.followed)
    }

    /// What follows was not recorded: calls `each` with what was not touched until now, and follows it no longer.
    pub fn stop_following(&mut self, mut each: impl FnMut(&Discard)) {
        for (program, start) in std::mem::take(&mut self.recent) {
            let ranges = self.ranges.get_mut(&program);
            let Some(discard) = ranges.and_then(|ranges| ranges.get_mut(&start)) else {
                continue;
            };
            if !std::mem::replace(&mut discard.followed, true) {
                each(discard);
            }
        }
    }

    /// The call that gave back what is touched now, if one did.
    pub fn find(&mut self, program: usize, address: u64) -> Option<&mut Discard> {
        let ranges = self.ranges.get_mut(&program)?;
        let (_, found) = ranges.range_mut(..=address).next_back()?;
        (address < found.end).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_a_range_is_found() {
        let mut discards = Discards::default();
        discards.add(1, 0x1000, 0x2000, 7, 5, (1, 0));
        assert_eq!(discards.find(1, 0x2fff).map(|found| found.site), Some(7));
        assert!(discards.find(1, 0x3000).is_none());
        assert!(discards.find(1, 0xfff).is_none());
        assert!(discards.find(2, 0x1000).is_none());
        discards.add(1, 0x1000, 0x1000, 8, 6, (0, 0));
        assert_eq!(discards.find(1, 0x1fff).map(|found| found.site), Some(8));
        assert!(
            discards.find(1, 0x2fff).is_none(),
            "the later call says what is given back"
        );
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
        assert!(
            discards.find(1, 0x1000).is_some(),
            "its faults still are of this call"
        );
    }
}

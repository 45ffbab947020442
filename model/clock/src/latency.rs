//! Counts the durations of calls: median, 99th percentile and maximum.
//!
//! Durations are counted in classes. A class is a 64th of its power of two wide, so a percentile is at most 1.6 % too
//! high. The number of calls and the maximum are exact. Counting takes no virtual time.

use crate::file::Time;
use std::collections::BTreeMap;

/// Classes of each power of two, as a power of two.
const FINE: u32 = 6;

/// The durations of one kind of call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Latency {
    /// The name of the call in traces.
    pub call: &'static str,
    /// The number of calls that ended.
    pub count: u64,
    /// The longest duration, in picoseconds.
    pub worst: Time,
    classes: Vec<u64>,
}

fn class(duration: Time) -> usize {
    match duration.checked_ilog2() {
        Some(power) if power >= FINE => {
            let fine = (duration >> (power - FINE)) as usize & ((1 << FINE) - 1);
            ((power - FINE + 1) as usize) << FINE | fine
        }
        _ => duration as usize,
    }
}

/// Returns the longest duration of a class.
fn longest(class: usize) -> Time {
    let (power, fine) = ((class >> FINE) as u32, (class & ((1 << FINE) - 1)) as u64);
    match power {
        0 => fine,
        power => (((1 << FINE) + fine + 1) << (power - 1)).wrapping_sub(1),
    }
}

impl Latency {
    fn new(call: &'static str) -> Self {
        Latency { call, count: 0, worst: 0, classes: Vec::new() }
    }

    fn add(&mut self, duration: Time) {
        self.count += 1;
        self.worst = self.worst.max(duration);
        let class = class(duration);
        if class >= self.classes.len() {
            self.classes.resize(class + 1, 0);
        }
        self.classes[class] += 1;
    }

    /// Returns a percentile in picoseconds: the duration that `percent` % of the calls didn't exceed.
    ///
    /// It's 0 if there were no calls.
    pub fn percentile(&self, percent: u64) -> Time {
        let wanted = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return longest(class).min(self.worst);
            }
        }
        0
    }
}

/// The calls of the measured window, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(BTreeMap<&'static str, Latency>);

impl Latencies {
    pub fn add(&mut self, call: &'static str, duration: Time) {
        self.0.entry(call).or_insert_with(|| Latency::new(call)).add(duration);
    }

    /// Returns the latencies, sorted by the names of calls.
    pub fn sorted(self) -> Vec<Latency> {
        self.0.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another_and_are_narrow() {
        let mut before = None;
        for class_of in 0..3000 {
            let longest = longest(class_of);
            assert_eq!(class(longest), class_of);
            if let Some(before) = before {
                assert_eq!(class(before + 1), class_of);
                assert!(longest - before <= 1 + before / 64);
            }
            before = Some(longest);
        }
        assert_eq!(longest(class(Time::MAX)), Time::MAX);
    }

    #[test]
    fn percentiles_are_of_the_calls_that_were_counted() {
        let mut all = Latencies::default();
        for duration in 1..=1000 {
            all.add("unmap", duration * 1000);
        }
        all.add("map", 5);
        let [map, unmap] = &all.sorted()[..] else {
            panic!("two kinds");
        };
        assert_eq!((map.percentile(50), map.percentile(99), map.worst), (5, 5, 5));
        assert_eq!((unmap.count, unmap.worst), (1000, 1_000_000));
        for (percent, exact) in [(50, 500_000), (99, 990_000)] {
            let found = unmap.percentile(percent);
            assert!((exact..=exact + exact / 64).contains(&found), "{found}");
        }
    }
}

//! Keeps the densest stretch of a recording for the page's timeline.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use crate::attribute::{Observer, Slice, Stretch};

/// The number of slices to keep.
const KEPT: usize = 4000;

/// A slice, in nanoseconds since the start of the stretch.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineSlice {
    cpu: u32,
    kind: &'static str,
    start: u64,
    end: u64,
    what: Arc<str>,
    program: Arc<str>,
}

/// Keeps the stretch with the highest density of slices.
#[derive(Debug, Default)]
pub struct Timeline {
    now: Vec<TimelineSlice>,
    best: Vec<TimelineSlice>,
    /// Stretches in which nothing was recorded.
    gaps: Vec<(u64, u64)>,
}

fn length(kept: &[TimelineSlice]) -> u64 {
    let start = kept.iter().map(|one| one.start).min().unwrap_or(0);
    let end = kept.iter().map(|one| one.end).max().unwrap_or(0);
    end - start
}

/// Returns the part of the kept stretch that was not recorded.
pub fn unrecorded(kept: &[TimelineSlice]) -> f64 {
    // All CPUs have the same gaps.
    let of_one = kept.first().map(|one| one.cpu);
    let gaps = kept.iter().filter(|one| one.kind == "gap" && Some(one.cpu) == of_one);
    let missing: u64 = gaps.map(|gap| gap.end - gap.start).sum();
    missing as f64 / length(kept).max(1) as f64
}

impl Timeline {
    /// Returns the kept stretch, with times counted from its start.
    pub fn finish(mut self) -> Vec<TimelineSlice> {
        self.choose();
        let first = self.best.iter().map(|one| one.start).min().unwrap_or(0);
        let last = self.best.iter().map(|one| one.end).max().unwrap_or(0);
        let cpus: BTreeSet<u32> = self.best.iter().map(|one| one.cpu).collect();
        let gaps = self.gaps.iter().map(|&(from, to)| (from.max(first), to.min(last)));
        for (start, end) in gaps.filter(|(from, to)| from < to) {
            self.best.extend(cpus.iter().map(|&cpu| TimelineSlice {
                cpu,
                kind: "gap",
                start,
                end,
                what: "not recorded".into(),
                program: "".into(),
            }));
        }
        for one in &mut self.best {
            one.start -= first;
            one.end -= first;
        }
        self.best
    }

    fn choose(&mut self) {
        let denser = |a: &[TimelineSlice], b: &[TimelineSlice]| {
            let per = |kept: &[TimelineSlice]| kept.len() as f64 / (length(kept).max(1)) as f64;
            a.len() == KEPT && (b.len() < KEPT || per(a) > per(b))
        };
        if self.best.is_empty() || denser(&self.now, &self.best) {
            self.best = std::mem::take(&mut self.now);
        }
        self.now.clear();
    }
}

impl Observer for Timeline {
    fn gap(&mut self, from_ns: u64, to_ns: u64) {
        self.gaps.push((from_ns, to_ns));
    }

    fn slice(&mut self, slice: &Slice) {
        let kind = match slice.kind {
            Stretch::Stolen => "taken",
            Stretch::Other => "other",
            Stretch::Wait => "wait",
            // A call alone doesn't show that a CPU was kept from its work.
            Stretch::Call => return,
        };
        self.now.push(TimelineSlice {
            cpu: slice.cpu,
            kind,
            start: slice.start_ns,
            end: slice.end_ns.max(slice.start_ns),
            what: slice.what.clone(),
            program: slice.program.clone(),
        });
        if self.now.len() >= KEPT {
            self.choose();
        }
    }
}

/// Passes everything to both observers.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn slice(&mut self, slice: &Slice) {
        self.0.slice(slice);
        self.1.slice(slice);
    }

    fn gap(&mut self, from_ns: u64, to_ns: u64) {
        self.0.gap(from_ns, to_ns);
        self.1.gap(from_ns, to_ns);
    }
}

/// Passes everything to the observer, if there is one.
impl<O: Observer> Observer for Option<O> {
    fn slice(&mut self, slice: &Slice) {
        if let Some(observer) = self {
            observer.slice(slice);
        }
    }

    fn gap(&mut self, from_ns: u64, to_ns: u64) {
        if let Some(observer) = self {
            observer.gap(from_ns, to_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(timeline: &mut Timeline, cpu: u32, start_ns: u64, end_ns: u64) {
        timeline.slice(&Slice {
            kind: Stretch::Stolen,
            cpu,
            tid: 1,
            program: "x".into(),
            start_ns,
            end_ns,
            what: "flush".into(),
            site: None,
            origin: None,
        });
    }

    #[test]
    fn time_that_was_not_recorded_is_not_idle() {
        let mut timeline = Timeline::default();
        taken(&mut timeline, 0, 1_000, 1_010);
        taken(&mut timeline, 1, 9_000, 9_010);
        timeline.gap(0, 900);
        timeline.gap(2_000, 8_000);
        let kept = timeline.finish();
        let gaps = kept.iter().filter(|one| one.kind == "gap");
        let gaps: Vec<_> = gaps.map(|one| (one.cpu, one.start, one.end)).collect();
        assert_eq!(gaps, [(0, 1_000, 7_000), (1, 1_000, 7_000)]);
        assert_eq!(unrecorded(&kept), 6_000.0 / 8_010.0);
    }

    #[test]
    fn the_densest_stretch_is_kept() {
        let mut timeline = Timeline::default();
        let mut at = 0;
        for (count, step) in [(KEPT, 1000), (KEPT, 10), (KEPT, 1000), (7, 1)] {
            for _ in 0..count {
                at += step;
                taken(&mut timeline, 0, at, at + 1);
            }
        }
        let kept = timeline.finish();
        assert_eq!((kept.len(), kept[0].start), (KEPT, 0));
        assert_eq!(length(&kept), 10 * (KEPT as u64 - 1) + 1);
    }
}

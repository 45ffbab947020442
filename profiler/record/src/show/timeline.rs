//! A stretch of the recording, kept for the page: what the CPUs did while most was going on.

use serde::Serialize;

use crate::attribute::{Observer, Slice, Stretch};

/// How many slices are kept.
const KEPT: usize = 4000;

/// A slice, in nanoseconds since the begin of the stretch.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    cpu: u32,
    kind: &'static str,
    start: u64,
    end: u64,
    what: String,
    program: String,
}

/// Keeps the stretch in which its slices lie closest together.
#[derive(Debug, Default)]
pub struct Timeline {
    now: Vec<Kept>,
    best: Vec<Kept>,
}

fn length(kept: &[Kept]) -> u64 {
    let start = kept.iter().map(|one| one.start).min().unwrap_or(0);
    let end = kept.iter().map(|one| one.end).max().unwrap_or(0);
    end - start
}

impl Timeline {
    /// The stretch that was kept, its times counted from its begin.
    pub fn finish(mut self) -> Vec<Kept> {
        self.choose();
        let first = self.best.iter().map(|one| one.start).min().unwrap_or(0);
        for one in &mut self.best {
            one.start -= first;
            one.end -= first;
        }
        self.best
    }

    fn choose(&mut self) {
        let denser = |a: &[Kept], b: &[Kept]| {
            let per = |kept: &[Kept]| kept.len() as f64 / (length(kept).max(1)) as f64;
            a.len() == KEPT && (b.len() < KEPT || per(a) > per(b))
        };
        if self.best.is_empty() || denser(&self.now, &self.best) {
            self.best = std::mem::take(&mut self.now);
        }
        self.now.clear();
    }
}

impl Observer for Timeline {
    fn slice(&mut self, slice: &Slice<'_>) {
        let kind = match slice.kind {
            Stretch::Stolen => "taken",
            Stretch::Other => "other",
            Stretch::Wait => "wait",
            // Calls that wait for no CPU hold up no thread.
            Stretch::Call => return,
        };
        self.now.push(Kept {
            cpu: slice.cpu,
            kind,
            start: slice.start_ns,
            end: slice.end_ns.max(slice.start_ns),
            what: slice.what.to_owned(),
            program: slice.program.to_owned(),
        });
        if self.now.len() >= KEPT {
            self.choose();
        }
    }
}

/// Tells two.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn slice(&mut self, slice: &Slice<'_>) {
        self.0.slice(slice);
        self.1.slice(slice);
    }
}

/// Tells nothing if there is none.
impl<O: Observer> Observer for Option<O> {
    fn slice(&mut self, slice: &Slice<'_>) {
        if let Some(observer) = self {
            observer.slice(slice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_densest_stretch_is_kept() {
        let mut timeline = Timeline::default();
        let mut at = 0;
        for (count, step) in [(KEPT, 1000), (KEPT, 10), (KEPT, 1000), (7, 1)] {
            for _ in 0..count {
                at += step;
                timeline.slice(&Slice {
                    kind: Stretch::Stolen,
                    cpu: 0,
                    tid: 1,
                    program: "x",
                    start_ns: at,
                    end_ns: at + 1,
                    what: "flush",
                    site: None,
                });
            }
        }
        let kept = timeline.finish();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0].start, 0);
        assert_eq!(length(&kept), 10 * (KEPT as u64 - 1) + 1);
    }
}

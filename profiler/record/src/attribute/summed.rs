//! Attributes the kernel's sums of all flushes to the sites of recorded events.
//!
//! A sum has the program, the system call and the two innermost frames. A recorded event has the whole stack and the
//! kernel's reason. So we split a sum among the sites of its call that begin with its frames, in proportion to their
//! recorded events. If a sum matches no recorded event, it becomes a site of its own.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::site::{Place, Site};
use super::{Attribution, ENOUGH};
use crate::event::CALLS;
use crate::perf::{Flushes, Sample};
use crate::stack::{self, StackInfo};

/// The kernel's sums, by program, call and frames.
pub(super) type FlushSums = FxHashMap<Place, Flushes>;

impl Attribution {
    pub(super) fn add_sum(
        &mut self,
        sample: &Sample,
        program: usize,
        call: &str,
        flushes: Flushes,
    ) {
        self.seen.queued = true;
        self.seen.flushes = true;
        let place = Place {
            program: self.programs[program].name.clone(),
            call: call.into(),
            frames: sample.stack.iter().map(stack::label).collect(),
        };
        self.summed.entry(place).or_default().add(&flushes);
    }

    /// Sets the weight of each site by the sums.
    pub(super) fn weigh_by_sums(&mut self) {
        let mut sums: Vec<(Place, Flushes)> = self.summed.drain().collect();
        // We sort the sums so that the result doesn't depend on the map's order.
        sums.sort_by(|(a, _), (b, _)| {
            let key = |place: &Place| (place.program.clone(), place.call.clone());
            key(a).cmp(&key(b)).then_with(|| a.frames.cmp(&b.frames))
        });
        let recorded = self.sites.len();
        let mut by_program: FxHashMap<Arc<str>, Vec<usize>> = FxHashMap::default();
        for (index, site) in self.sites.iter().enumerate() {
            let of = by_program.entry(site.place.program.clone()).or_default();
            of.push(index);
        }
        for (place, flushes) in sums {
            // As a rule, a flush in one of these calls is caused by the call itself.
            let own = CALLS.contains(&&*place.call);
            let fits = |&index: &usize| {
                let site = &self.sites[index];
                let asked = site.asked.as_deref().unwrap_or("");
                match own {
                    true => asked == &*place.call && begins_alike(&site.place, &place),
                    // The recorder doesn't record other calls. So only the frames show whether a site is in this call. A
                    // sum of a page fault has no frames.
                    false => !CALLS.contains(&asked) && begins_alike(&site.place, &place),
                }
            };
            let known = by_program.get(&place.program).into_iter().flatten();
            let like: Vec<usize> = known.copied().filter(fits).collect();
            self.share_out(place, flushes, &like);
        }
        for site in &mut self.sites[..recorded] {
            if let Some(summed) = site.summed {
                site.weigh_by(summed);
            }
        }
    }

    /// Splits a sum among these sites. Creates a site for it if they recorded nothing.
    fn share_out(&mut self, place: Place, flushes: Flushes, like: &[usize]) {
        let interrupts: u64 = like.iter().map(|&of| self.sites[of].interrupts).sum();
        let requests: u64 = like.iter().map(|&of| self.sites[of].requests).sum();
        if requests + interrupts == 0 {
            let call: Arc<str> = match &*place.call {
                "" => "page fault".into(),
                call => call.into(),
            };
            let asked = (!place.call.is_empty()).then(|| place.call.clone());
            let mut site = Site::new(Place { call, ..place }, &StackInfo::default(), asked);
            site.add_sum(flushes, 1.0);
            site.weigh_by(flushes);
            self.sites.push(site);
            return;
        }
        if like.len() > 1 && interrupts < ENOUGH {
            self.guessed.0 += flushes.interrupts;
            self.guessed.1 += interrupts;
        }
        for &of in like {
            let site = &mut self.sites[of];
            let part = match interrupts {
                0 => site.requests as f64 / requests as f64,
                all => site.interrupts as f64 / all as f64,
            };
            site.add_sum(flushes, part);
        }
    }
}

/// Returns whether a site and a sum have equal frames, as far as both reach.
fn begins_alike(site: &Place, sum: &Place) -> bool {
    site.frames.iter().zip(sum.frames.iter()).all(|(site, sum)| site == sum)
}

impl Site {
    fn add_sum(&mut self, flushes: Flushes, part: f64) {
        let summed = self.summed.get_or_insert_default();
        summed.add(&flushes.times(part));
    }

    /// Counts all interrupts of the sum as timed. Sets the weight and the costs of a recorded one.
    fn weigh_by(&mut self, summed: Flushes) {
        // The ratio of an interrupt's time to its work, from recorded ones. Without any, the initiator's wait is the
        // bound.
        let around = (self.stolen.least > 0.0).then(|| self.stolen.most / self.stolen.least);
        if self.interrupts == 0 && summed.interrupts > 0 {
            self.interrupts = summed.interrupts;
            self.requests = summed.flushes;
            (self.remote, self.pages, self.full) = (summed.remote, summed.pages, summed.full);
        }
        self.weight = match (self.interrupts, self.requests) {
            (0, 0) => 1.0,
            (0, requests) => summed.flushes as f64 / requests as f64,
            (interrupts, _) => summed.interrupts as f64 / interrupts as f64,
        };
        let weight = if self.weight > 0.0 { self.weight } else { 1.0 };
        let recorded = |of: f64| (of / weight).round();
        let work = summed.work_ns as f64;
        let most = around.map_or(summed.waited_ns as f64, |around| work * around);
        self.waited.least = recorded(summed.waited_ns as f64);
        self.waited.most = self.waited.least;
        self.stolen.least = recorded(work);
        self.stolen.most = recorded(most).max(self.stolen.least);
        self.timed = summed.interrupts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(call: &str, frames: &[&str]) -> Place {
        Place {
            program: "server".into(),
            call: call.into(),
            frames: frames.iter().map(|&frame| frame.into()).collect(),
        }
    }

    #[test]
    fn a_call_that_is_not_recorded_has_the_sites_with_its_frames_or_its_own() {
        let mut from = Attribution::new();
        let site = |at: Place, asked: Option<&str>| Site {
            requests: 2,
            interrupts: 2,
            weight: 1.0,
            asked: asked.map(Arc::from),
            place: at,
            ..Site::default()
        };
        // The kernel's own reason, with the frames of the call around it.
        from.sites = vec![
            site(place("madvise", &["move", "main"]), Some("madvise")),
            site(place("copy-on-write", &["move", "main"]), None),
        ];
        let flushes = Flushes { flushes: 9, remote: 9, interrupts: 9, ..Flushes::default() };
        for frame in ["move", "start"] {
            from.summed.insert(place("ioctl", &[frame]), flushes);
        }
        from.weigh_by_sums();
        let sent = |site: &Site| (site.place.call.to_string(), site.estimate().round());
        let sent: Vec<_> = from.sites.iter().map(sent).collect();
        let expected = [("madvise", 2.0), ("copy-on-write", 9.0), ("ioctl", 9.0)];
        assert_eq!(sent, expected.map(|(call, sent)| (call.to_owned(), sent)));
        assert_eq!(from.guessed, (0, 0));
    }

    #[test]
    fn a_sum_that_few_events_divide_among_sites_is_a_guess() {
        let mut from = Attribution::new();
        for (caller, interrupts) in [("one", 1), ("two", 3)] {
            from.sites.push(Site {
                interrupts,
                requests: interrupts,
                asked: Some("madvise".into()),
                place: place("madvise", &["free", caller]),
                ..Site::default()
            });
        }
        let flushes = Flushes { flushes: 100, interrupts: 100, ..Flushes::default() };
        from.summed.insert(place("madvise", &["free"]), flushes);
        from.weigh_by_sums();
        let sent: Vec<f64> = from.sites.iter().map(Site::estimate).collect();
        assert_eq!(sent, [25.0, 75.0]);
        assert_eq!(from.guessed, (100, 4));
    }
}

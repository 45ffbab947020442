//! Advises on changes that remove interrupts, and estimates their effect.
//!
//! Each piece of advice is arithmetic on the recorded events, not a guess from a list. For example, interrupts that
//! come soon after another one from the same thread and place could share one flush. And a program could have kept
//! memory that it touched again soon. Both results have a range. If the memory was touched before the shared flush, the
//! interrupt counts only in the upper bound. For an interrupt we use its cost in the recording. For a refill we use the
//! cost that the recorder measured on the same host just before. We drop advice that promises less than [`NOISE`] of a
//! program's time.
//!
//! We can't know whether the program's author can make the change, or which side effects it has. Advice names the next
//! bottleneck that the recording shows.

mod changes;
mod knobs;

use std::cmp::Ordering;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serialize;

use changes::{LEAST, Program, Proposal, RemovableWork, changes, place, placed, protects};

use crate::attribute::Attribution;
use crate::attribute::site::Site;
use crate::figures::{Range, count, counted, percents, time};
use crate::line::Line;
use crate::scales::{Kernel, SampleScales};
pub(crate) use changes::filled_again;
pub use knobs::Knob;

/// The least gain to advise for, as a share of a program's CPU time.
pub const NOISE: f64 = 0.005;
/// The least share of all interrupts to advise on, if CPU time isn't known.
const FEW: f64 = 0.05;

/// A change and its effect.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Advice {
    /// The advice in one sentence, with figures.
    pub text: String,
    /// The program.
    pub program: String,
    /// The call.
    pub call: String,
    /// The place.
    pub place: String,
    /// The kind of change.
    ///
    /// It's one of `merge`, `keep`, `cache`, `pool`, `read`, `free`, `huge`, `pin`, `shard`, `reclaim`, `numa`, `ksm`,
    /// `compaction`, `fork`, `protect`, `kernel`.
    pub kind: &'static str,
    /// The number of interrupts now. Includes those of other sites for the same memory.
    pub interrupts: u64,
    /// Bounds for the number of interrupts that are left.
    pub left: (u64, u64),
    /// The gain as a share of the program's CPU time, if that's known.
    pub share: Option<Range>,
    /// The next bottleneck.
    pub next: Option<String>,
    /// The allocator's or runtime's setting that makes the change, if we know one.
    pub knob: Option<Knob>,
    /// What must change.
    pub means: Means,
    /// The change in a few words, without its effect.
    #[serde(skip)]
    pub brief: Line,
    /// The number of interrupts recorded for this advice, if it's small enough to mention.
    #[serde(skip)]
    pub recorded: Option<u64>,
}

/// The part of a system that a change is made to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// A setting of the program's allocator, of its process, or of the kernel. Its user can try it.
    Setting,
    /// The program's code.
    #[default]
    Code,
    /// The kernel's code.
    Kernel,
}

impl Means {
    fn of(kind: &str, knob: Option<&Knob>) -> Means {
        match kind {
            "numa" | "ksm" | "compaction" | "pin" | "reclaim" => Means::Setting,
            "kernel" => Means::Kernel,
            _ if knob.is_some() => Means::Setting,
            _ => Means::Code,
        }
    }
}

impl Advice {
    /// Adds what the same setting changes at another site.
    fn add(&mut self, other: &Advice) {
        self.interrupts += other.interrupts;
        self.left.0 += other.left.0;
        self.left.1 += other.left.1;
        let sum = self.share.zip(other.share);
        self.share = sum.map(|(one, other)| one.plus(other).of_all(1.0));
        let saved = self.share.map_or_else(String::new, percents);
        self.text += &format!(" With {}: {saved} in all.", other.place);
    }

    /// Returns whether the change is another design of the program, or another kernel. Few users can follow it.
    pub fn is_redesign(&self) -> bool {
        self.kind == "shard" || self.means == Means::Kernel
    }

    /// Returns whether the change saves time for certain: the lower bound of its gain exceeds noise.
    pub fn is_sure(&self) -> bool {
        self.share.is_none_or(|share| share.least >= NOISE)
    }
}

/// Returns advice for these sites, the most promising first.
pub fn advise(
    from: &Attribution,
    sites: &[&Site],
    scales: SampleScales,
    cpu_ns: &dyn Fn(&str) -> Option<f64>,
) -> Vec<Advice> {
    let about =
        AdviceInputs { from, scales, cpu_ns, all: from.sites.iter().map(Site::estimate).sum() };
    let mut advice: Vec<Advice> = Vec::new();
    // If a program refills memory often, that's worth advice even if its flushes interrupt few CPUs.
    let is_much_filled = |site: &Site| {
        site.refaults as f64 * scales.faults(from, &site.place.program) >= 10.0 * LEAST
    };
    let mut known: FxHashMap<Arc<str>, Program> = FxHashMap::default();
    // Kernel work for one reason in one program is one site, because one change removes all of it.
    let same_program = |one: &Site, other: &Site| one.place.program == other.place.program;
    let same_reason = |one: &Site, other: &Site| {
        one.kernel && other.kernel && same_program(one, other) && one.place.call == other.place.call
    };
    for site in &merged(sites, same_reason) {
        let name = &site.place.program;
        let program = known.entry(name.clone()).or_insert_with(|| Program::of(from, scales, name));
        if site.estimate() < LEAST && !is_much_filled(site) && !program.is_much_filled(site) {
            continue;
        }
        let proposals = changes(site, from.prices.as_ref(), program).into_iter();
        let (refilled, at) = (program.refilled(site), place(site));
        advice.extend(proposals.filter_map(|change| about.considered(site, change, refilled, &at)));
    }
    // Some changes don't depend on the site.
    for whole in merged(sites, same_program).iter().filter(|site| site.estimate() >= LEAST) {
        let busy = cpu_ns(&whole.place.program).map(|cpu| cpu / from.elapsed_ns().max(1) as f64);
        let proposals = busy.map_or_else(Vec::new, |busy| placed(from, whole, busy));
        // Moving to other CPUs doesn't change page faults.
        let everywhere = |change| about.considered(whole, change, 0.0, "everywhere");
        advice.extend(proposals.into_iter().filter_map(everywhere));
    }
    advice.sort_by(promising);
    gathered(advice)
}

/// Merges advice of one kind for the same setting, because a setting changes all sites of an allocator.
fn gathered(all: Vec<Advice>) -> Vec<Advice> {
    let mut gathered: Vec<Advice> = Vec::new();
    for advice in all {
        let same = |known: &&mut Advice| {
            advice.knob.is_some()
                && known.knob == advice.knob
                && (&known.program, known.kind) == (&advice.program, advice.kind)
        };
        match gathered.iter_mut().find(same) {
            Some(known) => known.add(&advice),
            None => gathered.push(advice),
        }
    }
    gathered.sort_by(promising);
    gathered
}

/// Orders advice by its promise.
///
/// Sure advice comes before unsure advice, and settings come before changes of code. Several processes in place of
/// one, and another kernel, come last. Pinning counts only by its lower bound, for two reasons. Its upper bound includes
/// saved spinning between threads, which no recording shows. And a change at the site would remove the cause.
fn promising(one: &Advice, other: &Advice) -> Ordering {
    let rank = |advice: &Advice| (!advice.is_sure(), advice.means);
    let rank =
        |advice: &Advice| (advice.is_redesign(), advice.means == Means::Kernel, rank(advice));
    let worth = |advice: &Advice| {
        advice.share.map_or(0.0, |share| match advice.kind {
            "pin" => 2.0 * share.least,
            _ => share.least + share.most,
        })
    };
    let fewer = |advice: &Advice| advice.interrupts - advice.left.0.min(advice.interrupts);
    (rank(one).cmp(&rank(other)))
        .then(worth(other).total_cmp(&worth(one)))
        .then(fewer(other).cmp(&fewer(one)))
}

/// The inputs that all advice shares.
struct AdviceInputs<'a> {
    from: &'a Attribution,
    scales: SampleScales,
    cpu_ns: &'a dyn Fn(&str) -> Option<f64>,
    /// All interrupts of the recording.
    all: f64,
}

impl AdviceInputs<'_> {
    /// Returns advice for a change at a site, if it promises more than noise.
    ///
    /// `refilled` is the number of page faults that may have filled memory which the site gave back.
    fn considered(
        &self,
        site: &Site,
        proposal: Proposal,
        refilled: f64,
        at: &str,
    ) -> Option<Advice> {
        let AdviceInputs { from, scales, .. } = *self;
        let matter = site.estimate() >= LEAST;
        let program = &*site.place.program;
        let left = proposal.left;
        let all = site.interrupts as f64;
        let gone = Range { least: (all - left.most).max(0.0), most: (all - left.least).max(0.0) };
        let along = match proposal.kept {
            true => RelatedInterrupts::of(from, site),
            false => RelatedInterrupts::default(),
        };
        let by_part = |along: Range| {
            let part = |gone: f64| gone / site.interrupts.max(1) as f64;
            Range { least: along.least * part(gone.least), most: along.most * part(gone.most) }
        };
        let cpu = (self.cpu_ns)(program);
        let won = self.won(site, gone, &proposal, refilled).plus(by_part(along.ns));
        let share = cpu.map(|cpu| won.of_all(cpu));
        let none = left.least >= all;
        // Some changes can't remove interrupts by their nature.
        let (most, few) = (gone.most * site.weight, none || !matter);
        let matters = match share {
            Some(share) => share.most >= NOISE && (few || most >= LEAST / 2.0),
            None => !few && most >= FEW * self.all,
        };
        if !matters {
            return None;
        }
        let now = site.estimate() + along.interrupts.most;
        let gone = gone.times(site.weight).plus(by_part(along.interrupts));
        let whole = |interrupts: f64| interrupts.round().max(0.0) as u64;
        let left = (whole(now - gone.most), whole(now - gone.least));
        let now = whole(now);
        let counts = match now {
            0 if none => "fewer page faults and calls".to_owned(),
            _ => counts(now, left).whole(),
        };
        let gain = share.map_or_else(String::new, |share| {
            format!("; saves {} of the CPU time of {program}", percents(share))
        });
        let others = with_others(whole(along.interrupts.least), whole(along.interrupts.most));
        // Gaps and targets need interrupts that were recorded whole. Costs only need timed ones.
        let recorded = match proposal.kind {
            "merge" | "protect" | "shard" => site.whole,
            _ => site.timed,
        };
        let is_few = site.estimate() > recorded as f64 && (recorded as f64) < LEAST;
        let recorded = is_few.then_some(recorded);
        let few = recorded.map_or_else(String::new, |recorded| {
            format!(" (based on only {})", counted(recorded, "recorded interrupt"))
        });
        let knob = knobs::knob(proposal.kind, site.place.frames.iter().map(|frame| &**frame));
        let (how, brief) = match &knob {
            Some(knob) => (
                format!(
                    " With {}: {} ({}; {}).",
                    knob.allocator,
                    knob.set.join(" "),
                    knob.memory,
                    knob.source
                ),
                set(knob),
            ),
            None => (String::new(), proposal.brief.clone()),
        };
        Some(Advice {
            text: format!("{}: {counts}{others}{gain}{few}.{how}", proposal.said),
            program: program.to_owned(),
            call: site.place.call.to_string(),
            place: at.to_owned(),
            kind: proposal.kind,
            means: Means::of(proposal.kind, knob.as_ref()),
            interrupts: now,
            left,
            share,
            next: next(from, scales, site, &proposal),
            knob,
            brief,
            recorded,
        })
    }

    /// Computes bounds for the time that a change saves, in nanoseconds. `refilled` is as in
    /// [`considered`](Self::considered).
    ///
    /// We measured prices on this host, but not in this program. So the range also covers the prices at which the
    /// recorded events would explain all of the kernel's time.
    fn won(&self, site: &Site, gone: Range, proposal: &Proposal, refilled: f64) -> Range {
        let AdviceInputs { from, scales, .. } = *self;
        let (prices, program) = (from.prices.as_ref(), &*site.place.program);
        let all = site.interrupts.max(1) as f64;
        let spread = Some(site.spread()).filter(|spread| spread.is_finite()).unwrap_or(0.0);
        let faults = scales.faults(from, program);
        let each_fault = site.fault_ns(prices).unwrap_or_default();
        let serving = site.serving_ns(prices).times(scales.calls(site));
        let Proposal { filled, served, around, .. } = proposal;
        let interrupts =
            |gone: f64, cost: f64, spread: f64| gone * site.weight / all * cost * spread;
        let kernel = Kernel::of(from, scales, program);
        let (cheaper, dearer) = kernel.map_or((1.0, 1.0), |kernel| (kernel.cheaper, kernel.dearer));
        let forks = match (around, prices) {
            (RemovableWork::Forked, Some(prices)) => {
                // Each flush is for one page, and copying a page takes at least as long as zeroing one.
                let copies = match &*site.place.call {
                    "copy-on-write" => site.requests as f64 * scales.calls(site),
                    _ => 0.0,
                };
                // Each process must fault in pages that its parent already has. Shared pages need no zeroing, so we
                // subtract that part of the price.
                let known = from.programs.iter().find(|of| &*of.name == program);
                let started = known.map_or(0.0, |of| of.forked_faults as f64 * faults);
                let each = (prices.fault_ns.least - prices.zero_ns.least).max(0.0);
                copies * prices.fault_ns.least + started * each
            }
            _ => 0.0,
        };
        let refaults = (filled.least * faults * site.refaults as f64).max(proposal.certain);
        let cost = site.waited.plus(site.stolen);
        let least = interrupts(gone.least, cost.least, (1.0 - spread).max(0.0))
            + refaults * each_fault.least
            + served.least * serving.least
            + forks * gone.least / all;
        let most = interrupts(gone.most, cost.most, 1.0 + spread)
            + filled.most * faults * each_fault.most * refilled
            + served.most * serving.most;
        let most = match (around, kernel) {
            (RemovableWork::Nothing, _) | (_, None) => most * dearer,
            (RemovableWork::Kernel, Some(kernel)) => kernel.ns.max(most),
            (RemovableWork::Forked, Some(kernel)) => {
                // While the kernel copies a page for one thread, or a forked process occupies its CPU, the threads
                // that ran beside it may only wait. A recording can't distinguish a spinning thread from a working one.
                let cpu = (self.cpu_ns)(program);
                let beside = cpu.map_or(1.0, |cpu| cpu / from.elapsed_ns().max(1) as f64).max(1.0);
                (kernel.ns.max(most) + kernel.forked_ns) * beside + kernel.forked_ns
            }
        };
        let least = least * cheaper;
        Range { least, most: most.max(least) }
    }
}

/// Describes a setting in a few words.
fn set(knob: &Knob) -> Line {
    // All of them: one alone may do harm.
    let line = Line::new("").text("set ").text(knob.set.join(" "));
    line.remark(format!(" ({})", knob.allocator))
}

/// Describes the number of interrupts now, and bounds for those that a change leaves.
pub(crate) fn counts(now: u64, (least, most): (u64, u64)) -> Line {
    let (interrupts, verb, stays) = match now {
        1 => (" interrupt", " becomes ", " stays"),
        _ => (" interrupts", " become ", " stay"),
    };
    let line = Line::new("").text(count(now)).remark(interrupts);
    if least >= now {
        return line.text(stays);
    }
    line.text(verb).text(match least == most {
        true => count(most),
        false => format!("{} to {}", count(least), count(most)),
    })
}

/// Describes interrupts of other calls for the same memory.
fn with_others(least: u64, most: u64) -> String {
    let with = match (least, most) {
        (_, 0) => return String::new(),
        (least, most) if least == most => count(most),
        (least, most) => format!("{} to {}", count(least), count(most)),
    };
    format!(" (including {with} for the same memory by other calls)")
}

/// Other sites' interrupts for memory that a site gave back, scaled to the whole recording.
///
/// The lower bound has only interrupts that are known to be for such memory. The upper bound adds interrupts for memory
/// whose giver we don't know, because nothing was recorded at that time. It also adds those of sites that protect
/// memory, if only the sender of their interrupts was recorded.
#[derive(Clone, Copy, Default)]
struct RelatedInterrupts {
    interrupts: Range,
    /// The cost of these interrupts, in nanoseconds.
    ns: Range,
}

impl RelatedInterrupts {
    fn of(from: &Attribution, giver: &Site) -> RelatedInterrupts {
        let number = from.sites.iter().position(|site| site.place == giver.place);
        let mut all = RelatedInterrupts::default();
        for site in &from.sites {
            let each = match number.and_then(|giver| site.given.get(&giver)) {
                Some(&given) => {
                    let known: u64 = site.given.values().sum();
                    let unknown = site.interrupts.saturating_sub(known) as f64;
                    let least = given as f64;
                    Range { least, most: least + unknown * least / known.max(1) as f64 }
                }
                None if site.whole == 0
                    && protects(site)
                    && site.place.program == giver.place.program =>
                {
                    Range { least: 0.0, most: site.interrupts as f64 }
                }
                None => continue,
            };
            all.interrupts = all.interrupts.plus(each.times(site.weight));
            let cost = site.waited.plus(site.stolen).times(site.weight);
            let part = each.times(1.0 / site.interrupts.max(1) as f64);
            all.ns =
                all.ns.plus(Range { least: cost.least * part.least, most: cost.most * part.most });
        }
        all
    }
}

/// Merges sites that are alike.
fn merged(sites: &[&Site], alike: impl Fn(&Site, &Site) -> bool) -> Vec<Site> {
    let mut merged: Vec<Site> = Vec::new();
    for &site in sites {
        match merged.iter_mut().find(|known| alike(known, site)) {
            Some(known) => known.add(site),
            None => merged.push(site.clone()),
        }
    }
    merged
}

/// Names the next cost at the site after the change.
fn next(
    from: &Attribution,
    scales: SampleScales,
    site: &Site,
    proposal: &Proposal,
) -> Option<String> {
    let prices = from.prices.as_ref();
    let lock = site.locked_ns as f64 * scales.calls(site);
    let shootdown = (site.waited.least + site.stolen.least) * site.weight;
    let faults = scales.faults(from, &site.place.program);
    let refilling = site.refill_ns(prices).unwrap_or_default().times(faults);
    let filling = Range {
        least: refilling.least * (1.0 - proposal.filled.most),
        most: refilling.most * (1.0 - proposal.filled.least),
    };
    let zeroing = prices.map_or(0.0, |prices| prices.zero_ns.least / prices.fault_ns.least);
    let name = match filling.most > lock {
        true if zeroing > 0.5 => "refilling memory, mostly by zeroing",
        true => "refilling memory",
        false => "mmap_lock",
    };
    let ns = filling.most.max(lock);
    (ns > shootdown * 0.1 && ns > 0.0).then(|| format!("{name} ({})", time(ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &'static str, least: f64, most: f64) -> Advice {
        let (means, share) = (Means::of(kind, None), Some(Range { least, most }));
        Advice { kind, interrupts: 100, share, means, ..Advice::default() }
    }

    #[test]
    fn a_pinned_program_counts_for_what_is_sure_and_what_another_program_would_do_comes_last() {
        let mut advice = [
            of("shard", 0.9, 0.9),
            of("kernel", 0.9, 0.9),
            of("pin", 0.04, 0.16),
            of("reclaim", 0.04, 0.15),
            of("huge", 0.0, 0.9),
            of("keep", 0.01, 0.02),
        ];
        advice.sort_by(promising);
        let kinds = advice.map(|advice| (advice.kind, advice.is_redesign()));
        let of_it = |kind| (kind, ["shard", "kernel"].contains(&kind));
        let order = ["reclaim", "pin", "keep", "huge", "shard", "kernel"];
        assert_eq!(kinds, order.map(of_it));
    }
}

//! What would remove interrupts, and how many.
//!
//! Each piece of advice is arithmetic on the recorded stream, not a guess from a list: how many interrupts came so soon
//! after another of the same thread from the same place that one flush would have served both; how many belonged to
//! memory that was touched again so soon that keeping it would have cost little. Both have a range: a change that is
//! felt in between (the memory was touched before the batch would have been flushed) counts in one end and not in the
//! other. An interrupt is taken to cost what it cost in the recording, and filling a page again what the recorder
//! measured on the same host just before. Advice that promises less than [`NOISE`] of a program's time is not given.
//!
//! The recording does not tell whether the program's author can make the change, and what else it changes. The next
//! bottleneck that the recording shows is named beside it.

mod changes;
mod knobs;

use std::cmp::Ordering;

use serde::Serialize;

use crate::perf::Prices;

use changes::{LEAST, Program, Proposal, Surroundings, changes, place, placed};

use crate::attribute::Attribution;
use crate::attribute::site::Site;
use crate::figures::{Range, count, counted, percents, time, was};
use crate::line::Line;
use crate::scales::{Kernel, Scales};
pub use knobs::Knob;

/// The share of a program's CPU time below which nothing is advised.
pub const NOISE: f64 = 0.005;
/// The share of all interrupts below which nothing is advised where CPU time is not known.
const FEW: f64 = 0.05;

/// A change, and what it would bring.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// In one sentence, with figures.
    pub text: String,
    /// The program.
    pub program: String,
    /// The call.
    pub call: String,
    /// The place.
    pub place: String,
    /// The kind of change: `merge`, `keep`, `cache`, `pool`, `read`, `free`, `huge`, `pin`, `shard`, `reclaim`, `numa`, `ksm`,
    /// `compaction`, `fork`, `protect`, `kernel`.
    pub kind: &'static str,
    /// How many interrupts the site has now.
    pub interrupts: u64,
    /// How many are left, at least and at most.
    pub left: (u64, u64),
    /// What is won of the program's CPU time, if that is known.
    pub share: Option<Range>,
    /// The next limit.
    pub next: Option<String>,
    /// The setting of an allocator or a runtime that does it, if one is known.
    pub knob: Option<Knob>,
    /// The change in a few words, without what it would bring.
    #[serde(skip)]
    pub brief: Line,
    /// How many interrupts were recorded for that, if these are so few that it is said.
    #[serde(skip)]
    pub recorded: Option<u64>,
}

impl Advice {
    /// Whether it may lead: somebody who runs the program can follow it, and what it wins is known well enough that another
    /// recording would say the same.
    pub fn may_lead(&self) -> bool {
        !matches!(self.kind, "shard" | "kernel") && !self.share.is_some_and(Range::is_vague)
    }
}

/// Advice for these sites, that which promises most first; but what must not lead comes last.
pub fn advise(
    from: &Attribution,
    sites: &[&Site],
    scales: Scales,
    cpu_ns: &dyn Fn(&str) -> Option<f64>,
) -> Vec<Advice> {
    let about = About {
        from,
        scales,
        cpu_ns,
        all: from.sites.iter().map(Site::estimate).sum(),
    };
    let mut advice: Vec<Advice> = Vec::new();
    // What interrupts hardly anybody may cost its program what it fills again.
    let is_much_filled = |site: &Site| {
        site.refaults as f64 * scales.faults(from, &site.place.program) >= 10.0 * LEAST
    };
    for site in subjects(sites)
        .iter()
        .filter(|site| site.estimate() >= LEAST || is_much_filled(site))
    {
        let program = Program::of(from, scales, &site.place.program);
        let proposals = changes(site, from.prices.as_ref(), program).into_iter();
        let (refilled, at) = (program.refilled(site), place(site));
        advice.extend(proposals.filter_map(|change| about.considered(site, change, refilled, &at)));
    }
    for whole in programs(sites)
        .iter()
        .filter(|site| site.estimate() >= LEAST)
    {
        let busy = cpu_ns(&whole.place.program).map(|cpu| cpu / from.elapsed_ns().max(1) as f64);
        let proposals = busy.map_or_else(Vec::new, |busy| placed(from, whole, busy));
        // Where it runs changes nothing about what it fills.
        let everywhere = |change| about.considered(whole, change, 0.0, "everywhere");
        advice.extend(proposals.into_iter().filter_map(everywhere));
    }
    advice.sort_by(promising);
    advice
}

/// Which advice promises more, and comes first: what must not lead comes last, and of that what only another program or
/// another kernel could do. That a program is pinned
/// counts as far as it is sure: at most it saves what threads wait for each other by spinning, of which a recording knows
/// nothing, and where its site can be changed that takes the cause away.
fn promising(one: &Advice, other: &Advice) -> Ordering {
    let rewritten = |advice: &Advice| matches!(advice.kind, "shard" | "kernel");
    let worth = |advice: &Advice| {
        advice.share.map_or(0.0, |share| match advice.kind {
            "pin" => 2.0 * share.least,
            _ => share.least + share.most,
        })
    };
    let fewer = |advice: &Advice| advice.interrupts - advice.left.0.min(advice.interrupts);
    (rewritten(one).cmp(&rewritten(other)))
        .then(other.may_lead().cmp(&one.may_lead()))
        .then(worth(other).total_cmp(&worth(one)))
        .then(fewer(other).cmp(&fewer(one)))
}

/// What advice is computed from, whichever site and change it is about.
struct About<'a> {
    from: &'a Attribution,
    scales: Scales,
    cpu_ns: &'a dyn Fn(&str) -> Option<f64>,
    /// All interrupts of the recording.
    all: f64,
}

impl About<'_> {
    /// Advice of a change to a site, if it promises more than noise; of page faults of the program, so many may have
    /// filled what the site had given back.
    fn considered(
        &self,
        site: &Site,
        proposal: Proposal,
        refilled: f64,
        at: &str,
    ) -> Option<Advice> {
        let About { from, scales, .. } = *self;
        let matter = site.estimate() >= LEAST;
        let prices = from.prices.as_ref();
        let program = &*site.place.program;
        let left = proposal.left;
        let all = site.interrupts as f64;
        let gone = Range {
            least: (all - left.most).max(0.0),
            most: (all - left.least).max(0.0),
        };
        let along = match proposal.kept {
            true => Along::of(from, site),
            false => Along::default(),
        };
        let by_part = |along: Range| {
            let part = |gone: f64| gone / site.interrupts.max(1) as f64;
            Range {
                least: along.least * part(gone.least),
                most: along.most * part(gone.most),
            }
        };
        let cpu = (self.cpu_ns)(program);
        let faults = scales.faults(from, program);
        let around = Rest {
            refilled,
            faults,
            forked_faults: from
                .programs
                .iter()
                .find(|of| &*of.name == program)
                .map_or(0.0, |of| of.forked_faults as f64 * faults),
            kernel: Kernel::of(from, scales, program),
            // How many of its threads ran at a time.
            beside: cpu.map_or(1.0, |cpu| (cpu / from.elapsed_ns().max(1) as f64).max(1.0)),
        };
        let won = won(site, gone, &proposal, prices, scales, around).plus(by_part(along.ns));
        let share = cpu.map(|cpu| won.of_all(cpu));
        let none = left.least >= all;
        if !self.matters(gone.most * site.weight, share, none || !matter) {
            return None;
        }
        let now = site.estimate() + along.interrupts.most;
        let gone = gone.times(site.weight).plus(by_part(along.interrupts));
        let whole = |interrupts: f64| interrupts.round().max(0.0) as u64;
        let left = (whole(now - gone.most), whole(now - gone.least));
        let now = whole(now);
        let counts = match none {
            true if now == 0 => "no interrupts, but page faults and calls".to_owned(),
            true => stay(now),
            false => become_fewer(now, left),
        };
        let gain = share.map_or_else(String::new, |share| {
            format!(", {} of the CPU time of {program}", percents(share))
        });
        let others = with_others(whole(along.interrupts.least), whole(along.interrupts.most));
        // How calls follow each other is known of those that were recorded whole, and what they cost of more.
        let recorded = match proposal.kind {
            "merge" | "protect" | "shard" => site.whole,
            _ => site.timed,
        };
        let is_few = site.estimate() > recorded as f64 && (recorded as f64) < LEAST;
        let recorded = is_few.then_some(recorded);
        let few = recorded.map_or_else(String::new, recorded_for_that);
        let knob = knobs::knob(
            proposal.kind,
            site.place.frames.iter().map(|frame| &**frame),
        );
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
            interrupts: now,
            left,
            share,
            next: next(site, &proposal, prices, scales, faults),
            knob,
            brief,
            recorded,
        })
    }

    /// Whether a change is worth advising that takes so many interrupts away at most, and wins this share of the
    /// program's CPU time, if that is known; or `none` of the interrupts, by its nature.
    fn matters(&self, most: f64, share: Option<Range>, none: bool) -> bool {
        match share {
            Some(share) => share.most >= NOISE && (none || most >= LEAST / 2.0),
            None => !none && most >= FEW * self.all,
        }
    }
}

/// A setting in a few words.
fn set(knob: &Knob) -> Line {
    let mut all = knob.set.iter();
    let line = Line::new("")
        .text("set ")
        .text(all.next().map_or("", String::as_str));
    let line = all.fold(line, |line, more| line.remark(format!(" {more}")));
    line.remark(format!(" ({})", knob.allocator))
}

/// What is said of interrupts that a change leaves as they are.
fn stay(now: u64) -> String {
    let stay = if now == 1 { "stays" } else { "stay" };
    format!("{} {stay}", counted(now, "interrupt"))
}

/// What is said of those of which it leaves so many, at least and at most.
fn become_fewer(now: u64, (least, most): (u64, u64)) -> String {
    let becomes = if now == 1 { "becomes" } else { "become" };
    let now = counted(now, "interrupt");
    match least == most {
        true => format!("{now} {becomes} {}", count(most)),
        false => format!("{now} {becomes} {} to {}", count(least), count(most)),
    }
}

/// What is said of the interrupts of other calls that are among them.
fn with_others(least: u64, most: u64) -> String {
    let with = match (least, most) {
        (_, 0) => return String::new(),
        (least, most) if least == most => count(most),
        (least, most) => format!("{} to {}", count(least), count(most)),
    };
    format!(" (with {with} for the same memory by other calls)")
}

/// What is said where few were recorded.
fn recorded_for_that(interrupts: u64) -> String {
    format!(
        " ({} {} recorded for that)",
        counted(interrupts, "interrupt"),
        was(interrupts)
    )
}

/// What other sites flush for memory that a site has given back, made larger as theirs is: what is known to be for such
/// memory, at least, and at most also what is for memory of which nobody knows who gave it back, because nothing was
/// recorded then: so it is, too, where of all that protects memory nothing was recorded but who sent it.
#[derive(Clone, Copy, Default)]
struct Along {
    interrupts: Range,
    /// What these cost, in nanoseconds.
    ns: Range,
}

impl Along {
    fn of(from: &Attribution, giver: &Site) -> Along {
        let number = from.sites.iter().position(|site| site.place == giver.place);
        let mut all = Along::default();
        for site in &from.sites {
            let Some(&given) = number.and_then(|giver| site.given.get(&giver)) else {
                if site.whole == 0 && protects(site) && site.place.program == giver.place.program {
                    let most = |most| Range { least: 0.0, most };
                    let cost = Range::of(site.waited, site.weight)
                        .plus(Range::of(site.stolen, site.weight));
                    all.interrupts = all.interrupts.plus(most(site.estimate()));
                    all.ns = all.ns.plus(most(cost.most));
                }
                continue;
            };
            let known: u64 = site.given.values().sum();
            let unknown = site.interrupts.saturating_sub(known) as f64;
            let each = Range {
                least: given as f64,
                most: given as f64 + unknown * given as f64 / known.max(1) as f64,
            };
            all.interrupts = all.interrupts.plus(each.times(site.weight));
            let cost =
                Range::of(site.waited, site.weight).plus(Range::of(site.stolen, site.weight));
            let part = each.times(1.0 / site.interrupts.max(1) as f64);
            all.ns = all.ns.plus(Range {
                least: cost.least * part.least,
                most: cost.most * part.most,
            });
        }
        all
    }
}

/// Whether a site's flushes change what may be done with memory that stays.
fn protects(site: &Site) -> bool {
    ["mprotect", "pkey_mprotect"].contains(&&*site.place.call)
}

/// What is advised on: each site; but what the kernel does for one reason to one program is one, because one change
/// removes it wherever in the program it happens.
fn subjects(sites: &[&Site]) -> Vec<Site> {
    let mut subjects: Vec<Site> = Vec::new();
    for &site in sites {
        let alike = |known: &&mut Site| {
            known.kernel
                && known.place.program == site.place.program
                && known.place.call == site.place.call
        };
        match subjects.iter_mut().find(alike).filter(|_| site.kernel) {
            Some(known) => known.add(site),
            None => subjects.push(site.clone()),
        }
    }
    subjects
}

/// Each program as one: for changes that do not ask from where it flushes.
fn programs(sites: &[&Site]) -> Vec<Site> {
    let mut programs: Vec<Site> = Vec::new();
    for &site in sites {
        match programs
            .iter_mut()
            .find(|known| known.place.program == site.place.program)
        {
            Some(known) => known.add(site),
            None => programs.push(site.clone()),
        }
    }
    programs
}

/// What the rest of a program tells of how much may be won.
#[derive(Clone, Copy)]
struct Rest {
    /// How many page faults may have filled what the site had given back.
    refilled: f64,
    /// What a page fault of the program that was recorded stands for.
    faults: f64,
    /// How many page faults processes had that were forked and have ended.
    forked_faults: f64,
    kernel: Option<Kernel>,
    /// How many of its threads ran at a time. While the kernel copies a page for one, or a forked process has the CPU
    /// of one, the others may do nothing but wait for that one: a recording does not tell a thread that spins from one
    /// that works.
    beside: f64,
}

/// The time that these interrupts cost, and what else goes with them, in nanoseconds. Prices are of this host and not
/// of this program: the range goes from what they say to what they would have to be for the kernel's time to be spent
/// on what was recorded.
fn won(
    site: &Site,
    gone: Range,
    proposal: &Proposal,
    prices: Option<&Prices>,
    scales: Scales,
    Rest {
        refilled,
        faults,
        forked_faults,
        kernel,
        beside,
    }: Rest,
) -> Range {
    // Of what is merged from several sites, some may not be timed.
    let each = site.stands_for() / site.interrupts.max(1) as f64;
    let spread = Some(site.spread()).filter(|spread| spread.is_finite());
    let spread = spread.unwrap_or(0.0);
    let fault = Range::from(site.fault_ns(prices).unwrap_or_default()).times(faults);
    let serving = Range::from(site.serving_ns(prices)).times(scales.calls(site));
    let Proposal { filled, served, .. } = proposal;
    let interrupts = |gone: f64, cost: u64, spread: f64| gone * each * cost as f64 * spread;
    let (cheaper, dearer) = kernel.map_or((1.0, 1.0), |kernel| (kernel.cheaper, kernel.dearer));
    let least = interrupts(
        gone.least,
        site.waited.least + site.stolen.least,
        (1.0 - spread).max(0.0),
    ) + filled.least * fault.least * site.refaults as f64
        + served.least * serving.least
        + (copying(site, proposal, prices, scales) + starting(proposal, prices, forked_faults))
            * gone.least
            / site.interrupts.max(1) as f64;
    let most = interrupts(gone.most, site.waited.most + site.stolen.most, 1.0 + spread)
        + filled.most * fault.most * refilled
        + served.most * serving.most;
    let most = match (proposal.around, kernel) {
        (Surroundings::Nothing, _) | (_, None) => most * dearer,
        (Surroundings::Kernel, Some(kernel)) => kernel.ns.max(most),
        (Surroundings::Forked, Some(kernel)) => {
            (kernel.ns.max(most) + kernel.forked_ns) * beside + kernel.forked_ns
        }
    };
    let least = least * cheaper;
    Range {
        least,
        most: most.max(least),
    }
}

/// What it takes at least to copy the pages that a fork shares, where that is what would not have to be done: each
/// flush is for one page, and to copy one takes no less than to fill one with zeros.
fn copying(site: &Site, proposal: &Proposal, prices: Option<&Prices>, scales: Scales) -> f64 {
    match (proposal.around, &*site.place.call, prices) {
        (Surroundings::Forked, "copy-on-write", Some(prices)) => {
            prices.fault_ns.0 * site.requests as f64 * scales.calls(site)
        }
        _ => 0.0,
    }
}

/// What forked processes take at least for page faults, where these processes are what would not be started: each has to
/// find for itself what the process that lives on has already. To zero pages is no part of that, because what is shared
/// needs no zeroing.
fn starting(proposal: &Proposal, prices: Option<&Prices>, forked_faults: f64) -> f64 {
    match (proposal.around, prices) {
        (Surroundings::Forked, Some(prices)) => {
            forked_faults * (prices.fault_ns.0 - prices.zero_ns.0).max(0.0)
        }
        _ => 0.0,
    }
}

/// What else a site's calls wait for, once the change has been made.
fn next(
    site: &Site,
    proposal: &Proposal,
    prices: Option<&Prices>,
    scales: Scales,
    faults: f64,
) -> Option<String> {
    let lock = site.locked_ns as f64 * scales.calls(site);
    let shootdown = (site.waited.least + site.stolen.least) as f64 * site.stands_for();
    let refilling = Range::from(site.refill_ns(prices).unwrap_or_default()).times(faults);
    let filling = Range {
        least: refilling.least * (1.0 - proposal.filled.most),
        most: refilling.most * (1.0 - proposal.filled.least),
    };
    let zeroing = prices.map_or(0.0, |prices| prices.zero_ns.0 / prices.fault_ns.0);
    let name = match filling.most > lock {
        true if zeroing > 0.5 => "filling memory again, most of it zeroing",
        true => "filling memory again",
        false => "mmap_lock",
    };
    let ns = filling.most.max(lock);
    (ns > shootdown * 0.1 && ns > 0.0).then(|| format!("{name} ({})", time(ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &'static str, least: f64, most: f64) -> Advice {
        Advice {
            text: String::new(),
            program: String::new(),
            call: String::new(),
            place: String::new(),
            kind,
            interrupts: 100,
            left: (0, 0),
            share: Some(Range { least, most }),
            next: None,
            knob: None,
            brief: Line::new(""),
            recorded: None,
        }
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
        let kinds = advice.map(|advice| advice.kind);
        assert_eq!(kinds, ["reclaim", "pin", "keep", "huge", "shard", "kernel"]);
    }
}

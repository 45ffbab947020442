//! What is said of a recording: figures, and ten lines that answer the question.
//!
//! Figures are of the recording, made larger where only a part was recorded and the rest counted. A time is given as
//! *at least* and *at most*: between the events that lie inside of it and those that lie around it. What these
//! events cost themselves is in the times that they enclose, so all times are upper bounds for a program that is not
//! recorded, and none of them holds what a program loses after an interrupt to caches and translations that
//! were dropped.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::advise::{self, Advice};
use crate::attribute::site::{Site, Span};
use crate::attribute::{Attribution, Evidence, Weight};
use crate::figures::{Range, count, percent, percents, time, times};

/// What was seen of one site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteRow {
    /// The program.
    pub program: String,
    /// The call, or the kernel's own reason.
    pub call: String,
    /// The frames, innermost first.
    pub frames: Vec<String>,
    /// System calls.
    pub calls: u64,
    /// Flushes.
    pub requests: u64,
    /// Those that interrupted others.
    pub remote: u64,
    /// Interrupts, one for each CPU that was asked.
    pub interrupts: u64,
    /// Pages of flushes that named them.
    pub pages: u64,
    /// Flushes of everything.
    pub full: u64,
    /// What initiators waited.
    pub initiator: Range,
    /// What targets lost.
    pub stolen: Range,
    /// What calls waited for `mmap_lock`, in nanoseconds.
    pub locked_ns: f64,
    /// Page faults in what was given back here.
    pub refaults: u64,
    /// Their time, in nanoseconds, if it was recorded.
    pub refault_ns: Option<f64>,
    /// How often each CPU was hit.
    pub hit: Vec<u64>,
    /// Waits and lost time as a share of the program's CPU time, if that is known.
    pub share: Option<Range>,
    /// Whether the kernel did it for a reason of its own.
    pub kernel: bool,
}

impl SiteRow {
    /// The frame that tells most: the program's own, or the outermost that is known.
    pub fn place(&self) -> &str {
        let known = self.frames.iter().rev().find(|frame| *frame != "[unknown]");
        known.map_or("(no stack)", String::as_str)
    }
}

/// What was seen of one program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramRow {
    /// Its name.
    pub name: String,
    /// Its time on CPUs, if that is known, in nanoseconds.
    pub cpu_ns: Option<f64>,
    /// Interrupts that it sent.
    pub sent: u64,
    /// Interrupts that it took.
    pub taken: u64,
    /// What it waited for its targets.
    pub waited: Range,
    /// What it lost as a target.
    pub stolen: Range,
    /// Both, as a share of its CPU time.
    pub share: Option<Range>,
}

/// Interrupts that were no shootdowns.
#[derive(Clone, Debug, Serialize)]
pub struct OtherRow {
    /// Whose they are.
    pub cause: &'static str,
    /// The kernel's functions, with how often.
    pub functions: Vec<(String, u64)>,
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds.
    pub ns: f64,
}

/// A recording, understood.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The lines that answer the question.
    pub answer: Vec<String>,
    /// Sites, those with most interrupts first.
    pub sites: Vec<SiteRow>,
    /// Programs, those that pay most first.
    pub programs: Vec<ProgramRow>,
    /// Other interrupts that call functions.
    pub others: Vec<OtherRow>,
    /// Who interrupts whom: sender, target, how often.
    pub matrix: Vec<(String, String, u64)>,
    /// The same by CPU.
    pub cpu_matrix: Vec<(u32, u32, u64)>,
    /// What would help.
    pub advice: Vec<Advice>,
    /// Whole stacks, folded: program and frames from outside in, and what they weigh.
    #[serde(skip)]
    pub folded: BTreeMap<String, Weight>,
    /// Shootdown interrupts: what `/proc/interrupts` says, or else what was recorded.
    pub interrupts: u64,
    /// Those laid at a call or a reason.
    pub attributed: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Events that were read.
    pub samples: u64,
    /// How many CPUs there are.
    pub cpus: usize,
    /// How long was recorded, in nanoseconds.
    pub ns: u64,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

/// Which functions are whose, beside flushes.
const OWNERS: &[(&str, &str)] = &[
    ("ipi_mb", "membarrier"),
    ("ipi_sync_core", "membarrier"),
    ("ipi_rseq", "membarrier"),
    ("ipi_sync_rq_state", "membarrier"),
    ("rcu_", "RCU"),
    ("do_sync_core", "code patching"),
    ("sched_ttwu_pending", "wake-ups"),
    ("nohz_csd_func", "scheduler"),
    ("__balance_push", "scheduler"),
    ("hrtick", "scheduler"),
    ("remote_function", "perf"),
    ("__perf_event", "perf"),
    ("perf_", "perf"),
    ("kvm_", "KVM"),
    ("ack_kick", "KVM"),
    ("vmclear", "KVM"),
    ("__blk_mq", "block layer"),
    ("blk_mq", "block layer"),
    ("trigger_softirq", "network"),
    ("rps_trigger", "network"),
    ("retrigger_next_event", "clocks"),
    ("clock_was_set", "clocks"),
    ("not told", "not told by the recording"),
];

fn owner(function: &str) -> &'static str {
    let found = OWNERS.iter().find(|(name, _)| function.starts_with(name));
    found.map_or("other parts of the kernel", |(_, owner)| owner)
}

/// Below this share of interrupts and of time it is not the TLB.
const MATTERS: f64 = 0.01;

impl Report {
    /// What the recording says. Of `only`, if a program is named: of sites and advice alone.
    pub fn new(mut from: Attribution, only: Option<&str>) -> Self {
        from.finish();
        let scale = scale(&from);
        let mut programs = programs(&from, scale);
        let cpu_ns: BTreeMap<&str, f64> = programs
            .iter()
            .filter_map(|program| Some((program.name.as_str(), program.cpu_ns?)))
            .collect();
        let of = |site: &&Site| only.is_none_or(|only| &*site.place.program == only);
        let there = |site: &&Site| site.requests > 0 || site.interrupts > 0;
        let mut chosen: Vec<&Site> = from.sites.iter().filter(there).filter(of).collect();
        let weight = |site: &Site| (site.interrupts, site.requests);
        chosen.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.place.frames.cmp(&b.place.frames)));
        let sites: Vec<SiteRow> = chosen
            .iter()
            .map(|site| row(site, scale, cpu_ns.get(&*site.place.program).copied()))
            .collect();
        let advice = advise::advise(&from, &chosen, scale, &|program| cpu_ns.get(program).copied());
        if let Some(only) = only {
            programs.retain(|program| program.name == only);
        }
        let all: f64 = from.sites.iter().map(|site| site.interrupts as f64).sum::<f64>() * scale;
        let mapped = |site: &&Site| &*site.place.call == "kernel mappings";
        let mappings = from.sites.iter().filter(mapped).map(|site| site.interrupts as f64).sum::<f64>() * scale;
        let known = from.sites.iter().filter(|site| &*site.place.call != "unknown");
        let attributed = known.map(|site| site.interrupts as f64).sum::<f64>() * scale;
        let row = from.row("TLB");
        let mut report = Report {
            answer: Vec::new(),
            sites,
            programs,
            others: others(&from, scale),
            matrix: matrix(&from, scale),
            cpu_matrix: cpu_matrix(&from, scale),
            advice,
            folded: folded(&from, scale),
            interrupts: row.unwrap_or(all.round() as u64),
            attributed: attributed.round() as u64,
            lost: from.lost,
            samples: from.samples,
            cpus: from.cpu_count(),
            ns: from.times.map_or(0, |(first, last)| last - first),
            notes: Vec::new(),
        };
        report.notes = notes(&from, scale, &report);
        report.answer = answer(&from, &report, all, mappings, row, only);
        report
    }

    /// The figures as one JSON object, whose keys stay what they are.
    ///
    /// `stack` is the site, innermost frame first, and ends with the program's name in brackets. Times are in
    /// nanoseconds: `initiator_ns` is at least what initiators waited, `stolen_ns` what the interrupts took on
    /// their targets; `null` where the recording has no events that tell.
    pub fn json(&self) -> Value {
        let sites: Vec<Value> = self
            .sites
            .iter()
            .map(|site| {
                let mut stack = site.frames.clone();
                stack.push(format!("[{}]", site.program));
                let told = |ns: f64| (ns > 0.0 || site.interrupts == 0).then_some(ns.round() as u64);
                json!({
                    "stack": stack,
                    "call": site.call,
                    "requests": site.requests,
                    "interrupts": site.interrupts,
                    "pages": site.pages,
                    "initiator_ns": told(site.initiator.least.max(if site.initiator.least == 0.0 { site.initiator.most } else { 0.0 })),
                    "stolen_ns": told(site.stolen.most),
                })
            })
            .collect();
        json!({
            "sites": sites,
            "interrupts": self.interrupts,
            "attributed": self.attributed,
            "lost": self.lost,
        })
    }
}

/// What one recorded interrupt stands for.
fn scale(from: &Attribution) -> f64 {
    let event = match from.evidence() {
        Evidence::Queued => "csd:csd_queue_cpu",
        Evidence::Sent => "ipi:ipi_send_cpumask",
        Evidence::Received | Evidence::Nothing => "tlb:tlb_flush",
    };
    let found = from.counts.iter().find(|count| count.event == event);
    found.filter(|count| count.seen > 0).map_or(1.0, |count| (count.exact as f64 / count.seen as f64).max(1.0))
}

fn scaled(count: u64, scale: f64) -> u64 {
    (count as f64 * scale).round() as u64
}

fn row(site: &Site, scale: f64, cpu_ns: Option<f64>) -> SiteRow {
    let initiator = Range::of(site.waited, scale);
    let stolen = Range::of(site.stolen, scale);
    SiteRow {
        program: site.place.program.to_string(),
        call: site.place.call.to_string(),
        frames: site.place.frames.iter().map(ToString::to_string).collect(),
        calls: scaled(site.calls, scale),
        requests: scaled(site.requests, scale),
        remote: scaled(site.remote, scale),
        interrupts: scaled(site.interrupts, scale),
        pages: scaled(site.pages, scale),
        full: scaled(site.full, scale),
        initiator,
        stolen,
        locked_ns: site.locked_ns as f64 * scale,
        refaults: scaled(site.refaults, scale),
        refault_ns: site.refill_ns().map(|ns| ns * scale),
        hit: site.hit.iter().map(|&hits| scaled(hits, scale)).collect(),
        share: cpu_ns.map(|cpu| initiator.plus(stolen).times(1.0 / cpu)),
        kernel: site.kernel,
    }
}

fn programs(from: &Attribution, scale: f64) -> Vec<ProgramRow> {
    let mut rows: Vec<ProgramRow> = from
        .programs
        .iter()
        .filter(|program| !program.name.starts_with("swapper") && &*program.name != "<idle>")
        .map(|program| {
            let own = from.sites.iter().filter(|site| site.place.program == program.name);
            let mut waited = Span::default();
            let mut sent = 0;
            for site in own {
                waited.add(site.waited.least, site.waited.most);
                sent += site.interrupts;
            }
            let (waited, stolen) = (Range::of(waited, scale), Range::of(program.stolen, scale));
            let cpu_ns = (program.cpu_ns > 0).then(|| program.cpu_ns as f64 * scale_of_time(from));
            ProgramRow {
                name: program.name.to_string(),
                cpu_ns,
                sent: scaled(sent, scale),
                taken: scaled(program.taken, scale),
                waited,
                stolen,
                share: cpu_ns.map(|cpu| waited.plus(stolen).times(1.0 / cpu)),
            }
        })
        .filter(|row| row.sent > 0 || row.taken > 0)
        .collect();
    rows.sort_by(|a, b| {
        let pays = |row: &ProgramRow| row.waited.plus(row.stolen).most;
        pays(b).total_cmp(&pays(a)).then(b.sent.cmp(&a.sent))
    });
    rows
}

/// What a recorded second stands for.
fn scale_of_time(from: &Attribution) -> f64 {
    match (from.windows_ns, from.times) {
        (Some(windows), Some((first, last))) if windows > 0 => {
            ((last - first) as f64 / windows as f64).max(1.0)
        }
        _ => 1.0,
    }
}

fn others(from: &Attribution, scale: f64) -> Vec<OtherRow> {
    let mut by_owner: BTreeMap<&'static str, OtherRow> = BTreeMap::new();
    for (function, of) in &from.functions {
        let cause = owner(function);
        let row = by_owner.entry(cause).or_insert_with(|| OtherRow {
            cause,
            functions: Vec::new(),
            count: 0,
            ns: 0.0,
        });
        row.functions.push((function.to_string(), scaled(of.count, scale)));
        row.count += scaled(of.count, scale);
        row.ns += of.ns as f64 * scale;
    }
    let mut rows: Vec<OtherRow> = by_owner.into_values().collect();
    for row in &mut rows {
        row.functions.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    rows.sort_by(|a, b| b.count.cmp(&a.count));
    rows
}

fn matrix(from: &Attribution, scale: f64) -> Vec<(String, String, u64)> {
    let name = |index: usize| from.programs[index].name.to_string();
    let filled = from.matrix.iter();
    let mut cells: Vec<_> = filled
        .map(|(&(sender, target), &count)| (name(sender), name(target), scaled(count, scale)))
        .collect();
    cells.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.cmp(b)));
    cells
}

fn cpu_matrix(from: &Attribution, scale: f64) -> Vec<(u32, u32, u64)> {
    let filled = from.cpu_matrix.iter();
    let mut cells: Vec<_> = filled
        .map(|(&(sender, target), &count)| (sender, target, scaled(count, scale)))
        .collect();
    cells.sort_unstable();
    cells
}

fn folded(from: &Attribution, scale: f64) -> BTreeMap<String, Weight> {
    let filled = from.folded.iter().map(|(stack, weight)| {
        let weight = Weight {
            interrupts: scaled(weight.interrupts, scale),
            stolen_ns: scaled(weight.stolen_ns, scale),
            waited_ns: scaled(weight.waited_ns, scale),
        };
        (stack.to_string(), weight)
    });
    filled.collect()
}

fn notes(from: &Attribution, scale: f64, report: &Report) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    match from.evidence() {
        Evidence::Queued => {}
        Evidence::Sent => notes.push("This recording has no csd:csd_queue_cpu, which Linux has since 6.4: interrupts are those that were sent with a flush on the stack.".into()),
        Evidence::Received => notes.push("This recording has neither csd:* nor ipi:* of flushes, which Linux has since 6.4: interrupts are flushes seen on targets, laid at whoever had last asked for as many pages.".into()),
        Evidence::Nothing if from.seen.flushes => {}
        Evidence::Nothing => notes.push("This recording has neither tlb:tlb_flush nor csd:csd_queue_cpu: without them nothing can be said of shootdowns. docs/record.md says what to record.".into()),
    }
    if from.asked > 0 && report.attributed < from.asked / 2 {
        notes.push(format!(
            "{} times a CPU was about to ask others to flush (\"remote IPI send\"), which is no count of interrupts: lazy CPUs and CPUs that run another address space are left out after it.",
            count(from.asked)
        ));
    }
    if !from.seen.stacks && from.samples > 0 {
        notes.push("No stacks were recorded: sites are calls and programs. `perf record -g` records them.".into());
    }
    let broken: u64 = from.sites.iter().filter(|site| !site.own && !site.kernel).map(|site| site.interrupts).sum();
    let all: u64 = from.sites.iter().map(|site| site.interrupts).sum();
    if from.seen.stacks && broken * 5 > all && all > 0 {
        notes.push(format!(
            "{} of the interrupts come from stacks that reach no frame of the program's own, mostly for want of frame pointers: build with -fno-omit-frame-pointer, or record with --call-graph dwarf.",
            percent(broken as f64 / all as f64)
        ));
    }
    if !from.seen.switches {
        notes.push("No sched:sched_switch was recorded: shares of CPU time are not known.".into());
    }
    if !from.processes_known() && from.samples > 0 {
        notes.push("Lines do not say which process a thread belongs to (`perf script -F +pid` does): threads with names of their own count as programs.".into());
    }
    if all > 0 && !from.seen.interrupts && !from.seen.functions {
        notes.push("Neither irq_vectors:call_function* nor csd:csd_function_* was recorded: what targets lost is not known.".into());
    }
    if scale > 1.0 {
        notes.push(format!("One of {scale:.1} events was recorded and all were counted: figures are what that stands for."));
    }
    if from.lost > 0 {
        notes.push(format!("{} events were lost, so there was more than is shown.", count(from.lost)));
    }
    if from.host.as_ref().and_then(|host| host.virtual_machine) == Some(true) {
        notes.push(guest(from));
    }
    if from.host.as_ref().is_some_and(|host| host.processor.to_lowercase().contains("aarch64")) {
        notes.push("This is an Arm machine, whose processors flush one another's TLBs without interrupts.".into());
    }
    notes.extend(from.notes.iter().map(ToString::to_string));
    notes
}

/// What cannot be seen in a virtual machine.
fn guest(from: &Attribution) -> String {
    let stolen = |statistics: &quell_perf::Statistics| {
        let found = statistics.cpu_ns.iter().find(|(name, _)| name == "steal");
        found.map(|(_, ns)| *ns)
    };
    let grew = from.before.as_ref().and_then(stolen).zip(from.after.as_ref().and_then(stolen));
    let steal = match grew {
        Some((before, after)) => format!(
            " The hypervisor ran others for {} of this guest's time meanwhile; an initiator whose target is not running then waits that long.",
            time(after.saturating_sub(before) as f64)
        ),
        None => " Steal time would tell how long it ran others; the recording has none.".into(),
    };
    format!("This is a virtual machine: what the hypervisor does to deliver an interrupt lies between its sending and the target's first event, so it is in the initiator's wait, and in no target's time.{steal}")
}

fn answer(from: &Attribution, report: &Report, all: f64, mappings: f64, row: Option<u64>, only: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    let seconds = report.ns as f64 / 1e9;
    let others: u64 = report.others.iter().map(|row| row.count).sum();
    let total = all + others as f64;
    let share = if total > 0.0 { all / total } else { 0.0 };
    lines.push(format!(
        "{} TLB shootdown interrupts in {} on {} CPUs ({} a second): {} of all interrupts that call functions.",
        count(all.round() as u64),
        time(report.ns as f64),
        report.cpus,
        count(if seconds > 0.0 { (all / seconds).round() as u64 } else { 0 }),
        percent(share)
    ));
    if let Some(row) = row {
        let compared = if row > 0 { (report.attributed as f64 - mappings) / row as f64 } else { 1.0 };
        lines.push(format!(
            "Laid at a call or a reason: {}. /proc/interrupts counted {} (row TLB): {}{}.",
            count(report.attributed),
            count(row),
            percent(compared),
            if compared > 1.05 { "; more than all, so the counters were read while nothing was recorded" } else { "" }
        ));
    } else {
        lines.push(format!(
            "Laid at a call or a reason: {} of {}. Not held against /proc/interrupts, which the recording does not have.",
            count(report.attributed),
            count(all.round() as u64)
        ));
    }
    let worst = report.programs.iter().filter_map(|program| Some((program, program.share?)));
    let worst = worst.max_by(|a, b| a.1.most.total_cmp(&b.1.most));
    let dear = worst.as_ref().is_some_and(|(program, share)| share.most >= MATTERS && program.waited.plus(program.stolen).most > 1e6);
    if let Some(site) = report.sites.first().filter(|site| site.interrupts > 0) {
        lines.push(format!(
            "Most come from {}, {} at {}: {} interrupts ({}), {} flushes, {} pages{}.",
            site.program,
            site.call,
            site.place(),
            count(site.interrupts),
            percent(site.interrupts as f64 / all.max(1.0)),
            count(site.requests),
            count(site.pages),
            if site.full > 0 { format!(" and {} times everything", count(site.full)) } else { String::new() }
        ));
        let each = 1.0 / site.remote.max(1) as f64;
        let taken = 1.0 / site.interrupts.max(1) as f64;
        lines.push(format!(
            "Each of these flushes lets its initiator wait {}, and takes {} from each target.",
            if site.initiator.most > 0.0 { times(site.initiator.times(each)) } else { "for a time that is not told".into() },
            if site.stolen.most > 0.0 { times(site.stolen.times(taken)) } else { "a time that is not told".into() }
        ));
    }
    if let Some((program, share)) = &worst {
        lines.push(format!(
            "{} pays most: {} of its CPU time ({}): {} waiting, {} taken away.",
            program.name,
            percents(*share),
            time(program.cpu_ns.unwrap_or(0.0)),
            times(program.waited),
            times(program.stolen)
        ));
    }
    let locked: f64 = report.sites.iter().map(|site| site.locked_ns).sum();
    let refaults: u64 = report.sites.iter().map(|site| site.refaults).sum();
    if locked > 0.0 || refaults > 0 {
        let refault_ns: f64 = report.sites.iter().filter_map(|site| site.refault_ns).sum();
        lines.push(format!(
            "Beside that, the same calls waited {} for mmap_lock, and {} page faults filled again what they had given back{}.",
            time(locked),
            count(refaults),
            if refault_ns > 0.0 { format!(" ({})", time(refault_ns)) } else { String::new() }
        ));
    }
    if let Some(other) = report.others.first().filter(|other| other.count as f64 > all) {
        lines.push(format!(
            "More interrupts are {}'s: {} ({}), {} in all.",
            other.cause,
            count(other.count),
            other.functions.iter().take(3).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
            time(other.ns)
        ));
    }
    lines.push(match (from.evidence(), dear, worst) {
        (Evidence::Nothing, ..) if !from.seen.flushes => "Whether it is the TLB cannot be told from this recording.".into(),
        (_, true, Some((program, share))) => format!(
            "It is the TLB, as far as {} is concerned: {} is what can be won at most.",
            program.name,
            percents(share)
        ),
        (_, false, Some((program, share))) => format!(
            "It is not your TLB: no program loses 1 % of its time to shootdowns ({} loses {}).",
            program.name,
            percent(share.most)
        ),
        (_, _, None) if all < 1.0 => "It is not your TLB: there was no shootdown interrupt.".into(),
        (_, _, None) => "What that is of each program's CPU time cannot be told from this recording.".into(),
    });
    match report.advice.first() {
        Some(advice) => lines.push(format!("Try first: {}", advice.text)),
        None if only.is_some() || all > 0.0 => lines.push("No change promises more than the noise of this recording.".into()),
        None => {}
    }
    lines.truncate(10);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_owners() {
        assert_eq!(owner("ipi_mb"), "membarrier");
        assert_eq!(owner("rcu_exp_handler"), "RCU");
        assert_eq!(owner("something_new"), "other parts of the kernel");
    }
}

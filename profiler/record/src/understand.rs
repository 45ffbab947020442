//! Computes the report from the attributed events. Scales figures up if only a part was recorded, and sorts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attribute::site::{Place, Site, spread};
use crate::attribute::{Attribution, ENOUGH, Program, Weights};
use crate::figures::Range;
use crate::report::{OtherRow, ProgramRow, Report, SiteRow};
use crate::scales::{RAN_NS, SampleScales, scale};
use crate::{advise, answer, notes};

/// The owners of functions other than flushes, by the beginning of the function's name.
const OWNERS: &[(&str, &str)] = &[
    ("ipi_mb", BARRIERS),
    ("ipi_sync_core", BARRIERS),
    ("ipi_rseq", BARRIERS),
    ("ipi_sync_rq_state", BARRIERS),
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
    (UNTOLD, UNKNOWN),
];

/// The function's name if the recording doesn't contain it.
const UNTOLD: &str = "unknown";

/// Owners of functions that a recorder calls, too. It starts and stops events, or patches the kernel's code for them.
const RECORDERS: [&str; 2] = ["perf", "code patching"];

/// Returns whether the recorder itself causes most of the interrupts of this owner.
pub(crate) fn is_recorders(from: &Attribution, cause: &str) -> bool {
    from.windows_ns.is_some() && RECORDERS.contains(&cause)
}

/// The owner whose callers wait for every CPU that they interrupt.
const BARRIERS: &str = "membarrier";

/// The owner of functions without a name: they may be shootdowns, too.
pub(crate) const UNKNOWN: &str = "unknown causes";

fn owner(function: &str) -> &'static str {
    // Without CAP_SYSLOG the kernel hides its functions' names.
    if function.is_empty() {
        return UNKNOWN;
    }
    let found = OWNERS.iter().find(|(name, _)| function.starts_with(name));
    found.map_or("other parts of the kernel", |(_, owner)| owner)
}

/// The largest ratio of the recording's length to that of its windows at which windows show nearly all running threads.
pub(crate) const WHOLE: f64 = 1.25;

impl Report {
    /// Computes the report. With `only`, sites, programs and advice are limited to that program.
    pub fn new(mut from: Attribution, only: Option<&str>) -> Self {
        from.finish();
        let scale = scale(&from);
        let mut programs = programs(&from, scale);
        let cpu_ns: BTreeMap<String, f64> = programs
            .iter()
            .filter_map(|program| Some((program.name.clone(), program.cpu_ns?)))
            .collect();
        let of = |site: &&Site| only.is_none_or(|only| &*site.place.program == only);
        programs.retain(|row| row.sent > 0 || row.taken > 0);
        let there = |site: &&Site| site.requests > 0 || site.interrupts > 0;
        let mut chosen: Vec<&Site> = from.sites.iter().filter(there).filter(of).collect();
        let weight = |site: &Site| (site.estimate().round() as u64, site.requests);
        chosen.sort_by(|a, b| {
            weight(b).cmp(&weight(a)).then_with(|| a.place.frames.cmp(&b.place.frames))
        });
        let scales = SampleScales::of(&from);
        let sites: Vec<SiteRow> = chosen
            .iter()
            .map(|site| {
                let cpu_ns = cpu_ns.get(&*site.place.program).copied();
                row(site, scales, cpu_ns, &from)
            })
            .collect();
        // We don't advise on programs that only shared the machine: the user can't change them, and their CPU time is
        // known only from windows.
        let about = |site: &&&Site| only.is_some() || from.is_about(&site.place.program);
        let own: Vec<&Site> = chosen.iter().filter(about).copied().collect();
        let advice = advise::advise(&from, &own, scales, &|program| cpu_ns.get(program).copied());
        if let Some(only) = only {
            programs.retain(|program| program.name == only);
        }
        let estimate = |of: fn(&str) -> bool| -> f64 {
            let chosen = from.sites.iter().filter(|site| of(&site.place.call));
            chosen.map(Site::estimate).sum()
        };
        let all = estimate(|_| true);
        let mappings = estimate(|call| call == "kernel mappings");
        let attributed = estimate(|call| call != "unknown");
        let row = from.row("TLB");
        let mut report = Report {
            answer: Vec::new(),
            sites,
            programs,
            others: others(&from, scale),
            matrix: matrix(&from),
            advice,
            folded: folded(&from),
            interrupts: row.unwrap_or(all.round() as u64),
            attributed: attributed.round() as u64,
            function_calls: from.row("CAL"),
            lost: from.lost,
            samples: from.samples,
            cpus: from.cpu_count(),
            ns: from.elapsed_ns(),
            pace: (scale / from.scale_of_time()).max(1.0),
            fault_ns: from.prices.map(|prices| prices.fault_ns),
            notes: Vec::new(),
        };
        report.notes = notes::notes(&from, scale, &report);
        report.answer = answer::answer(&from, &report, all, mappings, row, only);
        report
    }
}

fn scaled(count: u64, scale: f64) -> u64 {
    (count as f64 * scale).round() as u64
}

fn row(site: &Site, scales: SampleScales, cpu_ns: Option<f64>, from: &Attribution) -> SiteRow {
    let (scale, calls) = (site.weight, scales.calls(site));
    let faults = scales.faults(from, &site.place.program);
    let interrupts = scaled(site.interrupts, scale);
    let remote = site.summed.map_or(scaled(site.remote, scale), |of| of.remote);
    // Calls have a factor of their own, and flush events may be lost. But one flush interrupts each other CPU at most
    // once.
    let others = from.host.as_ref().map_or(0, |host| host.cpus).max(1) - 1;
    let least = (others > 0).then(|| interrupts.div_ceil(others.into()));
    let requests = match site.summed {
        Some(summed) => summed.flushes,
        None => scaled(site.requests, calls).max(remote).max(least.unwrap_or(0)),
    };
    let (initiator, stolen) = (site.waited.times(scale), site.stolen.times(scale));
    SiteRow {
        program: site.place.program.to_string(),
        thread: site.thread(),
        call: site.place.call.to_string(),
        frames: site.place.frames.iter().map(ToString::to_string).collect(),
        calls: scaled(site.calls, calls),
        requests,
        remote,
        interrupts,
        timed: site.timed,
        whole: site.whole,
        pages: site.summed.map_or(scaled(site.pages, calls), |of| of.pages),
        full: site.summed.map_or(scaled(site.full, calls), |of| of.full),
        initiator,
        stolen,
        locked_ns: site.locked_ns as f64 * calls,
        refaults: scaled(site.refaults, faults),
        share: cpu_ns
            .filter(|_| site.timed > 0)
            .map(|cpu| initiator.plus(stolen).within(site.spread()).of_all(cpu)),
        kernel: site.kernel,
    }
}

fn programs(from: &Attribution, scale: f64) -> Vec<ProgramRow> {
    let mut rows: Vec<ProgramRow> = from
        .programs
        .iter()
        .filter(|program| !program.name.starts_with("swapper") && &*program.name != "<idle>")
        .map(|program| {
            let sites = || from.sites.iter().filter(|site| site.place.program == program.name);
            let sent: f64 = sites().map(Site::estimate).sum();
            let timed = sites().map(|site| site.timed).sum();
            let (taken, stolen) = taken(program, scale);
            let recording = from.prices.as_ref();
            let recording = recording.map_or(0.0, |prices| program.events.ns(prices.event_ns));
            // Prices were measured at another moment. So we subtract the cost of recording only up to half of the time.
            let own = (program.cpu_ns as f64 - recording).max(program.cpu_ns as f64 / 2.0);
            let told = from.ran(&program.name);
            let told = told.map(|ran| (ran.user_ns + ran.kernel_ns) as f64);
            // A thread that runs for a whole window isn't seen to run, so windows tell only if they cover most of the time.
            let is_whole = from.scale_of_time() < WHOLE;
            let seen = (program.cpu_ns > 0 && is_whole).then(|| own * from.scale_of_time());
            let told =
                told.filter(|&told| told >= RAN_NS || seen.is_none() && told >= RAN_NS / 2.0);
            let cpu_ns = told.map(|told| told - recording.min(told / 2.0)).or(seen);
            let waited = waited(sites());
            ProgramRow {
                name: program.name.to_string(),
                cpu_ns,
                sent: sent.round() as u64,
                timed,
                taken,
                waited,
                stolen,
                // Without timed interrupts their cost isn't known.
                share: cpu_ns
                    .filter(|_| sent == 0.0 || timed > 0)
                    .filter(|_| waited.most + stolen.most > 0.0)
                    .map(|cpu| waited.plus(stolen).of_all(cpu)),
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        let pays = |row: &ProgramRow| row.waited.plus(row.stolen).most;
        pays(b).total_cmp(&pays(a)).then(b.sent.cmp(&a.sent))
    });
    rows
}

/// Returns the interrupts that a program took, and the time that they cost it.
fn taken(program: &Program, scale: f64) -> (u64, Range) {
    let seen = program.stolen;
    match program.summed {
        (0, _) => {
            let taken = scaled(program.taken, scale);
            let spread = spread(program.taken, taken as f64);
            (taken, seen.times(scale).within(spread))
        }
        (taken, work_ns) => {
            // The ratio of an interrupt's time to its work is known only from recorded interrupts.
            let around = if seen.least > 0.0 { seen.most / seen.least } else { 1.0 };
            let least = work_ns as f64;
            (taken, Range { least, most: least * around.max(1.0) })
        }
    }
}

/// Returns bounds for the time that a program waited as an initiator, given its sites.
fn waited<'s>(sites: impl Iterator<Item = &'s Site>) -> Range {
    // The variance is large if few interrupts were timed. We add up squares, because sites vary independently.
    let (mut waited, mut variance) = (Range::default(), Range::default());
    for site in sites.filter(|site| site.timed > 0) {
        let of = site.waited.times(site.weight);
        waited = waited.plus(of);
        variance.least += (of.least * site.spread()).powi(2);
        variance.most += (of.most * site.spread()).powi(2);
    }
    Range {
        least: (waited.least - variance.least.sqrt()).max(0.0),
        most: waited.most + variance.most.sqrt(),
    }
}

/// Returns the interrupts that aren't shootdowns, by owner.
///
/// The counts come from the kernel's sums if there are any. Otherwise we assume the same factor as for shootdowns
/// (`scale`).
fn others(from: &Attribution, scale: f64) -> Vec<OtherRow> {
    let mut by_owner: BTreeMap<&'static str, OtherRow> = BTreeMap::new();
    let summed = &from.functions_summed;
    let functions: BTreeSet<&Arc<str>> = from.functions.keys().chain(summed.keys()).collect();
    let mut add = |function: &str, count: u64, ns: Option<f64>| {
        let cause = owner(function);
        let row = by_owner.entry(cause).or_insert_with(|| OtherRow {
            cause,
            functions: Vec::new(),
            count: 0,
            ns: Some(0.0),
            caller_ns: None,
        });
        row.functions.push((function.to_owned(), count));
        row.count += count;
        row.ns = row.ns.zip(ns).map(|(sum, ns)| sum + ns);
    };
    for function in functions {
        let of = from.functions.get(function).copied().unwrap_or_default();
        // The recorder itself sends some of these at the ends of windows, and none in between. So they aren't scaled
        // up.
        let own = is_recorders(from, owner(function));
        let all = match summed.get(function) {
            Some(&count) => count as f64,
            None if own || !summed.is_empty() => of.count as f64,
            None => of.count as f64 * scale,
        };
        let ns = (of.count > 0).then(|| of.ns as f64 * all / of.count as f64);
        add(function, all.round() as u64, ns);
    }
    let mut rows: Vec<OtherRow> = by_owner.into_values().collect();
    for row in &mut rows {
        row.functions.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let (calls, ns) = from.barriers;
        if row.cause == BARRIERS && calls > 0 {
            row.caller_ns = Some(ns as f64 * from.scale_of_time());
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// Returns the interrupts by sender and target. Each sender's are scaled up to all that it sent. If too few of them were
/// recorded to show its targets, it's left out.
fn matrix(from: &Attribution) -> Vec<(String, String, u64)> {
    let name = |index: usize| from.programs[index].name.to_string();
    let mut sent: BTreeMap<&str, f64> = BTreeMap::new();
    for site in &from.sites {
        *sent.entry(&site.place.program).or_default() += site.estimate();
    }
    let mut recorded: BTreeMap<usize, u64> = BTreeMap::new();
    for (&(sender, _), count) in &from.matrix {
        *recorded.entry(sender).or_default() += count;
    }
    let filled = from.matrix.iter();
    let mut cells: Vec<_> = filled
        .filter_map(|(&(sender, target), &count)| {
            let all = sent.get(&*from.programs[sender].name);
            let scale = all.map_or(1.0, |all| all / recorded[&sender] as f64);
            let is_shown = recorded[&sender] >= ENOUGH || scale < 2.0;
            is_shown.then(|| (name(sender), name(target), scaled(count, scale.max(1.0))))
        })
        .collect();
    cells.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.cmp(b)));
    cells
}

/// Returns stacks with their part of the figures of each site. If no whole stack of a site was recorded, its own frames
/// are the stack.
fn folded(from: &Attribution) -> BTreeMap<String, Weights> {
    let mut stacks: BTreeMap<usize, Vec<(&Arc<str>, u64)>> = BTreeMap::new();
    for ((site, stack), &interrupts) in &from.folded {
        let of = stacks.entry(*site).or_default();
        of.push((stack, interrupts));
    }
    let mut folded: BTreeMap<String, Weights> = BTreeMap::new();
    for (index, site) in from.sites.iter().enumerate() {
        let times = [site.stolen.most, site.waited.least].map(|ns| ns * site.weight);
        let all = [site.estimate(), times[0], times[1]].map(|of| of.round() as u64);
        if all[0] == 0 {
            continue;
        }
        let known = stacks.remove(&index).unwrap_or_default();
        let recorded: u64 = known.iter().map(|(_, interrupts)| interrupts).sum();
        let mut add = |stack: String, part: f64| {
            let weights = folded.entry(stack).or_default();
            weights.iter_mut().zip(all).for_each(|(sum, of)| *sum += scaled(of, part));
        };
        if recorded == 0 {
            let Place { program, call, frames } = &site.place;
            let whole = [program].into_iter().chain(frames.iter().rev()).chain([call]);
            let whole: Vec<_> = whole.map(|frame| frame.replace(';', ":")).collect();
            add(whole.join(";"), 1.0);
        }
        for (stack, interrupts) in known {
            add(stack.to_string(), interrupts as f64 / recorded as f64);
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(interrupts: u64, weight: f64, frames: &[&str]) -> Site {
        Site {
            place: Place {
                program: "a".into(),
                call: "madvise".into(),
                frames: frames.iter().map(|&frame| frame.into()).collect(),
            },
            interrupts,
            weight,
            stolen: Range { least: 1.0, most: 1_000.0 },
            ..Site::default()
        }
    }

    #[test]
    fn folded_stacks_add_up_to_their_sites() {
        let mut from = Attribution::new();
        from.sites = vec![site(10, 100.0, &["f"]), site(5, 2.0, &["g", "main"])];
        for (stack, interrupts) in [("a;b", 3), ("a;c", 7)] {
            from.folded.insert((0, stack.into()), interrupts);
        }
        let folded = folded(&from);
        let weights = folded.iter().map(|(stack, of)| (&**stack, of[0], of[1]));
        assert_eq!(
            weights.collect::<Vec<_>>(),
            [
                ("a;b", 300, 30_000),
                ("a;c", 700, 70_000),
                // No stack of the second site was recorded.
                ("a;main;g;madvise", 10, 2_000)
            ]
        );
    }

    #[test]
    fn each_senders_targets_add_up_to_what_it_sent() {
        let mut from = Attribution::new();
        from.programs =
            ["a", "b"].map(|name| Program { name: name.into(), ..Program::default() }).into();
        from.matrix = [((0, 0), 20), ((0, 1), 60), ((1, 0), 5)].into_iter().collect();
        from.sites.push(site(80, 5.0, &[]));
        let cell = |a: &str, b: &str, count| (a.to_owned(), b.to_owned(), count);
        assert_eq!(matrix(&from), [cell("a", "b", 300), cell("a", "a", 100), cell("b", "a", 5)]);
        from.matrix = [((0, 0), 1), ((0, 1), 3)].into_iter().collect();
        assert_eq!(matrix(&from), []);
    }
}

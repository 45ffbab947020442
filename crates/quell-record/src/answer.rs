//! The lines that answer the question, and what a reader should know of the figures.

use crate::attribute::{Attribution, Evidence};
use crate::figures::{Range, count, percent, percents, time, times};
use crate::report::{ProgramRow, Report};

/// Below this share of interrupts and of time it is not the TLB.
const MATTERS: f64 = 0.01;

/// What a reader should know of the figures.
pub fn notes(from: &Attribution, scale: f64, report: &Report) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    match from.evidence() {
        Evidence::Queued => {}
        Evidence::Sent => notes.push("This recording has no csd:csd_queue_cpu, which Linux has since 6.4: interrupts are those that were sent with a flush on the stack.".into()),
        Evidence::Received => notes.push("This recording has neither csd:* nor ipi:* of flushes, which Linux has since 6.4: interrupts are flushes seen on targets, laid at the caller that had last asked for as many pages.".into()),
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
        notes.push(
            "No stacks were recorded: sites are calls and programs. `perf record -g` records them."
                .into(),
        );
    }
    let broken: u64 = from
        .sites
        .iter()
        .filter(|site| {
            site.place
                .frames
                .last()
                .is_some_and(|last| &**last == "[unknown]")
        })
        .map(|site| site.interrupts)
        .sum();
    let all: u64 = from.sites.iter().map(|site| site.interrupts).sum();
    if from.seen.stacks && broken * 5 > all && all > 0 {
        notes.push(format!(
            "{} of the interrupts come from stacks that break off before a frame of the program's own, mostly for want of frame pointers: build with -fno-omit-frame-pointer, or record with --call-graph dwarf.",
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
        let full = from.lost - from.untold;
        let why = match (full, from.untold) {
            (_, 0) => "lost while their buffer was full".to_owned(),
            (0, _) => "lost, and the kernel does not say why".to_owned(),
            (_, untold) => format!(
                "lost, {} while their buffer was full and {}, of which the kernel does not say why",
                count(full),
                count(untold)
            ),
        };
        notes.push(format!(
            "{} {why}; that is {} of those that came while everything was recorded. Flushes, page faults, pages, waits and times are told without them. {}",
            match from.lost {
                1 => "1 event was".to_owned(),
                lost => format!("{} events were", count(lost)),
            },
            percent(from.lost as f64 / (from.lost + from.samples) as f64),
            match from.counted() {
                Some(_) => "Interrupts are counted apart from that, and are not affected.",
                None => "Interrupts are, too.",
            }
        ));
    }
    if from.host.as_ref().and_then(|host| host.virtual_machine) == Some(true) {
        notes.push(guest(from));
    }
    if from
        .host
        .as_ref()
        .is_some_and(|host| host.processor.to_lowercase().contains("aarch64"))
    {
        notes.push(
            "This is an Arm machine, whose processors flush one another's TLBs without interrupts."
                .into(),
        );
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
    let grew = from
        .before
        .as_ref()
        .and_then(stolen)
        .zip(from.after.as_ref().and_then(stolen));
    let steal = match grew {
        Some((before, after)) => format!(
            " The hypervisor ran others for {} of this guest's time meanwhile; an initiator whose target is not running then waits that long.",
            time(after.saturating_sub(before) as f64)
        ),
        None => " Steal time would tell how long it ran others; the recording has none.".into(),
    };
    format!(
        "This is a virtual machine: what the hypervisor does to deliver an interrupt lies between its sending and the target's first event, so it is in the initiator's wait, and in no target's time.{steal}"
    )
}

/// The lines that answer the question.
pub fn answer(
    from: &Attribution,
    report: &Report,
    all: f64,
    mappings: f64,
    row: Option<u64>,
    only: Option<&str>,
) -> Vec<String> {
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
        let compared = if row > 0 {
            (report.attributed as f64 - mappings) / row as f64
        } else {
            1.0
        };
        lines.push(format!(
            "Laid at a call or a reason: {}. /proc/interrupts counted {} (row TLB): {}{}.",
            count(report.attributed),
            count(row),
            percent(compared),
            if compared > 1.05 {
                "; more than all, so the counters were read while nothing was recorded"
            } else {
                ""
            }
        ));
    } else {
        lines.push(format!(
            "Laid at a call or a reason: {} of {}. Not held against /proc/interrupts, which the recording does not have.",
            count(report.attributed),
            count(all.round() as u64)
        ));
    }
    // What shared the machine with what was recorded is told of apart.
    let about = |program: &str| only.is_some() || from.is_about(program);
    let worst = report
        .programs
        .iter()
        .filter(|program| about(&program.name))
        .find_map(|program| Some((program, program.share?)));
    let dear = worst
        .as_ref()
        .is_some_and(|(_, share)| share.most >= MATTERS);
    let mut own = report.sites.iter().filter(|site| about(&site.program));
    let first = own.next().filter(|site| site.interrupts > 0);
    if let Some(site) = first {
        lines.push(format!(
            "Most come from {}, {} at {}: {} interrupts ({}), {} flushes, {} pages{}.",
            site.program,
            site.call,
            site.place(),
            count(site.interrupts),
            percent(site.interrupts as f64 / all.max(1.0)),
            count(site.requests),
            count(site.pages),
            if site.full > 0 {
                format!(" and {} times everything", count(site.full))
            } else {
                String::new()
            }
        ));
        let each = 1.0 / site.remote.max(1) as f64;
        let taken = 1.0 / site.interrupts.max(1) as f64;
        lines.push(format!(
            "Each of these flushes lets its initiator wait {}, and takes {} from each target.",
            if site.initiator.most > 0.0 {
                times(site.initiator.times(each))
            } else {
                "for a time that is not told".into()
            },
            if site.stolen.most > 0.0 {
                times(site.stolen.times(taken))
            } else {
                "a time that is not told".into()
            }
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
    let own = || report.sites.iter().filter(|site| about(&site.program));
    let locked: f64 = own().map(|site| site.locked_ns).sum();
    let refaults: u64 = own().map(|site| site.refaults).sum();
    if locked > 0.0 || refaults > 0 {
        let known = own().filter_map(|site| site.refault_ns);
        let refault_ns = known.fold(Range::default(), Range::plus);
        lines.push(format!(
            "Beside that, {} page faults filled again what these calls had given back{}{}.",
            count(refaults),
            if refault_ns.least > 0.0 {
                format!(" ({})", times(refault_ns))
            } else if refault_ns.most > 0.0 {
                format!(" (at most {})", time(refault_ns.most))
            } else {
                String::new()
            },
            if from.seen.locks {
                format!(", and they waited {} for mmap_lock", time(locked))
            } else {
                String::new()
            }
        ));
    }
    if let Some(other) = report
        .others
        .first()
        .filter(|other| other.count as f64 > all)
    {
        lines.push(format!(
            "More interrupts are {}'s: {} ({}), {} in all.",
            other.cause,
            count(other.count),
            other
                .functions
                .iter()
                .take(3)
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            time(other.ns)
        ));
    }
    let others: Vec<&ProgramRow> = report
        .programs
        .iter()
        .filter(|program| program.sent > 0 && !about(&program.name))
        .collect();
    if let Some(most) = others.iter().max_by_key(|program| program.sent) {
        let all: u64 = others.iter().map(|program| program.sent).sum();
        lines.push(format!(
            "Others on this machine, which the recording is not about, sent {} of these interrupts, {} most: {}.",
            count(all),
            most.name,
            count(most.sent)
        ));
    }
    // A verdict on what was not recorded would be none.
    let seen = report.attributed as f64 - mappings;
    let missed = row.filter(|&row| row >= 50 && seen < 0.5 * row as f64);
    let verdict = match (from.evidence(), dear, worst) {
        _ if missed.is_some() => {
            "Most of what /proc/interrupts counted is not in the recording, so whether it is the TLB cannot be told from it.".into()
        }
        (Evidence::Nothing, ..) if !from.seen.flushes => {
            "Whether it is the TLB cannot be told from this recording.".into()
        }
        (_, true, Some((program, share))) => format!(
            "It {} the TLB, as far as {} is concerned: {} is what can be won at most.",
            if share.least >= MATTERS { "is" } else { "may be" },
            program.name,
            percents(share)
        ),
        (_, false, Some((program, share))) => format!(
            "It is not your TLB: no program loses 1 % of its time to shootdowns ({} loses {}).",
            program.name,
            percent(share.most)
        ),
        (_, _, None) if all < 1.0 => "It is not your TLB: there was no shootdown interrupt.".into(),
        (_, _, None) if !others.is_empty() && first.is_none() => {
            "It is not your TLB: none of these interrupts came from or to what was recorded.".into()
        }
        (_, _, None) => {
            "What that is of each program's CPU time cannot be told from this recording.".into()
        }
    };
    lines.push(verdict);
    match report.advice.iter().find(|advice| about(&advice.program)) {
        Some(advice) => lines.push(format!("Try first: {}", advice.text)),
        None if only.is_some() || first.is_some() => {
            lines.push("No change promises more than the noise of this recording.".into())
        }
        None => {}
    }
    lines.truncate(10);
    lines
}

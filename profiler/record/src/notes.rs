//! Writes the notes below the figures: limits of the recording that a reader must know.

use crate::attribute::site::Site;
use crate::attribute::{Attribution, Evidence};
use crate::figures::{count, counted, percent, time};
use crate::perf::Statistics;
use crate::report::{OtherRow, Report};
use crate::scales;
use crate::understand::is_recorders;

/// Returns the notes for this recording.
pub fn notes(from: &Attribution, scale: f64, report: &Report) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let scope = from.host.as_ref().map_or("", |host| &*host.scope);
    if scope.contains(" and its descendants") {
        notes.push(format!("Recorded: {scope}."));
    }
    match from.evidence() {
        Evidence::Queued => {}
        Evidence::Received => notes.push("No csd:* events (Linux 6.4 or later) were recorded for flushes. An interrupt is counted for each flush on a target, and attributed to the last caller that requested a flush of as many pages.".into()),
        Evidence::Nothing if from.seen.flushes => {}
        Evidence::Nothing => notes.push("Neither tlb:tlb_flush nor csd:csd_queue_cpu was recorded. Shootdowns need one of them: docs/record.md shows the command.".into()),
    }
    if from.asked > 0 && report.attributed < from.asked / 2 {
        notes.push(format!(
            "The recording has {} of the reason \"remote IPI send\". They are no count of interrupts, because the kernel then still skips lazy CPUs and CPUs with another address space.",
            counted(from.asked, "flush event")
        ));
    }
    if !from.seen.stacks && from.samples > 0 {
        notes.push(
            "No stacks were recorded, so a site is only a call and a program. `perf record -g` records stacks."
                .into(),
        );
    }
    let is_unnamed = |other: &OtherRow| other.functions.iter().any(|(name, _)| name.is_empty());
    if report.others.iter().any(is_unnamed) {
        notes.push("The kernel hides the names of its functions, so shootdowns cannot be told from other interrupts. Record as root, or with CAP_SYSLOG.".into());
    }
    let broken: f64 = from
        .sites
        .iter()
        .filter(|site| site.place.frames.last().is_some_and(|last| &**last == "[unknown]"))
        .map(Site::estimate)
        .sum();
    let all: f64 = from.sites.iter().map(Site::estimate).sum();
    if from.seen.stacks && broken * 5.0 > all && all > 0.0 {
        notes.push(format!(
            "{} of the interrupts have stacks that end before a function of the program itself, usually because it has no frame pointers. Build it with -fno-omit-frame-pointer, or record it with `perf record --call-graph dwarf` and --import the text.",
            percent(broken / all)
        ));
    }
    if !from.seen.switches {
        notes.push("No sched:sched_switch was recorded, so shares of CPU time are unknown.".into());
    }
    if !from.processes_known() && from.samples > 0 {
        notes.push("The lines have no process IDs, so a thread with a name of its own counts as a program. `perf script -F +pid` adds them.".into());
    }
    if all > 0.0 && !from.seen.interrupts && !from.seen.functions {
        notes.push("Neither irq_vectors:call_function* nor csd:csd_function_* was recorded, so the time that targets lost is unknown.".into());
    }
    if scale > 1.0 {
        notes.push(format!(
            "Only one in {scale:.1} events was recorded. Figures are scaled to all events."
        ));
    }
    let (guessed, by) = from.guessed;
    if scales::is_much(guessed as f64, all) {
        notes.push(format!(
            "{} come from code that several sites share, and were divided among these in the proportion of {}: so the sites' figures are uncertain. --seconds or --overhead records more.",
            counted(guessed, "interrupt"),
            counted(by, "recorded one")
        ));
    }
    let known: u64 = report.others.iter().map(|row| row.count).sum();
    // Row `CAL` counts shootdowns, too (Linux 4.8 and later).
    let calls = report.function_calls;
    let others = calls.map(|row| row.saturating_sub(report.interrupts));
    if let Some(row) = others.filter(|&row| row > 0) {
        let few = (known as f64) < 0.9 * row as f64;
        let own = report.others.iter().any(|row| is_recorders(from, row.cause));
        notes.push(format!(
            "Row CAL of /proc/interrupts counts {} that are no shootdowns. Their function is known for {} of them{}.{}",
            counted(row, "interrupt"),
            percent((known as f64 / row.max(1) as f64).min(1.0)),
            if few { ", so the real counts of each function may be higher" } else { "" },
            if own { " Those of perf and code patching are mostly quell's own." } else { "" },
        ));
    }
    if from.lost > 0 {
        let full = from.lost - from.unexplained;
        let why = match (full, from.unexplained) {
            (_, 0) => "lost because their buffer was full".to_owned(),
            (0, _) => "lost for an unknown reason".to_owned(),
            (_, unexplained) => format!(
                "lost, {} because their buffer was full and {} for an unknown reason",
                count(full),
                count(unexplained)
            ),
        };
        notes.push(format!(
            "{} {why}: {} of all events while everything was recorded. Flushes, page faults, pages, waits and times do not include \
             them. {}",
            match from.lost {
                1 => "1 event was".to_owned(),
                lost => format!("{} were", counted(lost, "event")),
            },
            percent(from.lost as f64 / (from.lost + from.samples) as f64),
            match from.counted() {
                Some(_) => "Interrupts are complete, because they are counted separately.",
                None => "Nor do interrupts.",
            }
        ));
    }
    if from.host.as_ref().and_then(|host| host.virtual_machine) == Some(true) {
        notes.push(guest(from));
    }
    if from.host.as_ref().is_some_and(|host| host.processor.to_lowercase().contains("aarch64")) {
        notes.push(
            "This is an Arm machine: its processors flush each other's TLBs without interrupts."
                .into(),
        );
    }
    notes.extend(from.notes.iter().map(ToString::to_string));
    notes
}

/// Returns the note on time that can't be seen inside a virtual machine.
fn guest(from: &Attribution) -> String {
    let stolen = |read: &Option<Statistics>| read.as_ref()?.used_ns("steal");
    let grew = stolen(&from.before).zip(stolen(&from.after));
    let steal = match grew {
        Some((before, after)) => format!(
            " During the recording the hypervisor ran other guests for {} of this guest's time. An initiator waits that long if its target is not running.",
            time(after.saturating_sub(before) as f64)
        ),
        None => {
            " How long it ran other guests is unknown, because the recording has no steal time."
                .into()
        }
    };
    format!(
        "This is a virtual machine. The hypervisor's time to deliver an interrupt counts as the initiator's wait, not as the target's loss.{steal}"
    )
}

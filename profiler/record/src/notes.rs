//! Writes the notes below the figures: limits of the recording that a reader must know.

use crate::attribute::{Attribution, Evidence};
use crate::figures::{count, counted, percent, time};
use crate::report::Report;

/// Returns the notes for this recording.
pub fn notes(from: &Attribution, scale: f64, report: &Report) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let scope = from.host.as_ref().map_or("", |host| &*host.scope);
    if scope.contains(" and what it had started") {
        notes.push(format!("This recording is about {scope}."));
    }
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
    let known: u64 = report.others.iter().map(|row| row.count).sum();
    if let Some(row) = report.function_calls {
        let few = (known as f64) < 0.9 * row as f64;
        notes.push(format!(
            "Of the {} that are no shootdowns by the row CAL of /proc/interrupts, the function is known of {}{}.",
            counted(row, "interrupt"),
            percent((known as f64 / row.max(1) as f64).min(1.0)),
            if few { ": where these are many, there are more of each than is said" } else { "" },
        ));
    }
    if from.lost > 0 {
        let full = from.lost - from.unexplained;
        let why = match (full, from.unexplained) {
            (_, 0) => "lost while their buffer was full".to_owned(),
            (0, _) => "lost, and the kernel does not say why".to_owned(),
            (_, unexplained) => format!(
                "lost, {} while their buffer was full and {} for a reason that the kernel does not give",
                count(full),
                count(unexplained)
            ),
        };
        notes.push(format!(
            "{} {why}; together that is {} of those that came while everything was recorded. Flushes, page faults, pages, waits and \
             times are told without them. {}",
            match from.lost {
                1 => "1 event was".to_owned(),
                lost => format!("{} were", counted(lost, "event")),
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

/// Returns the note on time that can't be seen inside a virtual machine.
fn guest(from: &Attribution) -> String {
    let stolen = |statistics: &crate::perf::Statistics| {
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

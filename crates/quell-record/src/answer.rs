//! The lines that answer the question, and what a reader should know of the figures. The file is long because
//! each line says its own and all are of one answer.

use crate::advise::Advice;
use crate::attribute::{Attribution, ENOUGH, Evidence};
use crate::figures::{Range, count, counted, percent, percents, time, times, was};
use crate::report::{ProgramRow, Report, SiteRow};
use crate::scales::is_much;

/// Below this share of interrupts and of time it is not the TLB.
const MATTERS: f64 = 0.01;

/// Interrupts that were not timed have taken no longer than this each, in nanoseconds, their initiators' waits
/// included: some times what the mean of timed ones was on the busiest virtual machine that was recorded.
pub const LONGEST_NS: f64 = 1e6;

/// What is said in place of advice where interrupts were only counted: what is not timed promises nothing by itself.
const TOO_LITTLE: &str = "What would help cannot be told, because none of these was timed: record for longer, or allow more with --overhead.";

/// The same where they were timed, and what came before and after them is not known.
const NOT_WHOLE: &str = "What would help cannot be told, because none of these was recorded with what led to it: record for longer, or allow more with --overhead.";

/// The verdict where all interrupts, however long each took, are too few to matter.
const SO_FEW: &str = "It is not your TLB: so few interrupts take no program 1 % of its time.";

/// What is said in place of a verdict on what was not recorded.
const MISSED: &str = "Most of what /proc/interrupts counted is not in the recording, so whether it is the TLB cannot be told from it.";

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
                "lost, {} while their buffer was full and {} for a reason that the kernel does not give",
                count(full),
                count(untold)
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

/// The lines that answer the question: ten at most. `all` is how many interrupts there were, `mappings` how many of them flushed
/// mappings of the kernel, which the row TLB (`row`) does not count; `only` is the program that was asked for.
pub fn answer(
    from: &Attribution,
    report: &Report,
    all: f64,
    mappings: f64,
    row: Option<u64>,
    only: Option<&str>,
) -> Vec<String> {
    // What shared the machine with what was recorded is told of apart.
    let is_about = |program: &str| only.is_some() || from.is_about(program);
    let (programs, others): (Vec<_>, Vec<_>) = report
        .programs
        .iter()
        .partition(|program| is_about(&program.name));
    let sites: Vec<&SiteRow> = report
        .sites
        .iter()
        .filter(|site| is_about(&site.program))
        .collect();
    let answer = Answer {
        from,
        report,
        all,
        seen: report.attributed as f64 - mappings,
        row,
        first: sites.first().copied().filter(|site| site.interrupts > 0),
        worst: worst(&programs),
        are_few: !programs.iter().any(|program| may_matter(program)),
        untold: programs
            .iter()
            .copied()
            .filter(|program| program.timed == 0 && may_matter(program))
            .find(|program| {
                let sent: u64 = programs.iter().map(|program| program.sent).sum();
                is_much(program.sent as f64, sent as f64)
            }),
        sender: others
            .iter()
            .copied()
            .filter(|program| program.sent > 0)
            .max_by_key(|program| program.sent),
        others,
        sites,
    };
    let mut lines = vec![answer.how_many(), answer.attributed()];
    lines.extend(answer.most_come_from());
    lines.extend(answer.each_takes());
    lines.extend(answer.pays_most());
    lines.extend(answer.filled_again());
    lines.extend(answer.no_shootdowns());
    lines.extend(answer.sent_by_others());
    lines.push(answer.verdict());
    match report
        .advice
        .iter()
        .find(|advice| is_about(&advice.program))
    {
        Some(advice) => {
            let beside = answer.beside(advice).unwrap_or_default();
            lines.push(format!("{beside}Try first: {}", advice.text))
        }
        None if !answer.are_few
            && answer.first.is_some_and(|site| {
                site.timed == 0 || site.initiator.most + site.stolen.most == 0.0
            }) =>
        {
            lines.push(TOO_LITTLE.into())
        }
        None if !answer.are_few
            && answer.worst.is_none_or(|(_, share)| share.most >= MATTERS)
            && answer.first.is_some_and(|site| site.whole == 0) =>
        {
            lines.push(NOT_WHOLE.into())
        }
        None if only.is_some() || answer.first.is_some() => {
            lines.push("No change promises more than the noise of this recording.".into())
        }
        None => {}
    }
    lines
}

/// What the lines are made from, each by a function of its own.
struct Answer<'r> {
    from: &'r Attribution,
    report: &'r Report,
    /// All shootdown interrupts.
    all: f64,
    /// Those of the row TLB that are laid at a call or a reason.
    seen: f64,
    row: Option<u64>,
    /// Sites that it is about, and of them the one that most interrupts come from.
    sites: Vec<&'r SiteRow>,
    first: Option<&'r SiteRow>,
    /// The program that it is about and that pays most.
    worst: Option<(&'r ProgramRow, Range)>,
    /// Whether no program that it is about has sent so many that they may matter.
    are_few: bool,
    /// One that it is about, of whose interrupts, which are many, none was timed.
    untold: Option<&'r ProgramRow>,
    /// Programs that it is not about, and of them the one that sent most interrupts.
    others: Vec<&'r ProgramRow>,
    sender: Option<&'r ProgramRow>,
}

/// The program that pays most, and what share that is of its time. One that sent few of all interrupts and of which too few
/// were timed may have paid anything: it is named only if there is no other.
fn worst<'r>(programs: &[&'r ProgramRow]) -> Option<(&'r ProgramRow, Range)> {
    let sent: u64 = programs.iter().map(|program| program.sent).sum();
    let is_told =
        |program: &ProgramRow| !is_guess(program) || is_much(program.sent as f64, sent as f64);
    let told = programs.iter().filter(|program| is_told(program));
    told.chain(programs)
        .find_map(|program| Some((*program, program.share?)))
}

/// Whether so few of a program's interrupts were timed that its share is a matter of luck.
fn is_guess(program: &ProgramRow) -> bool {
    program.timed < ENOUGH.min(program.sent) || is_much(program.untimed as f64, program.sent as f64)
}

/// Whether the interrupts that a program sent may take enough of its time to matter, whatever each took.
fn may_matter(program: &ProgramRow) -> bool {
    let enough = |cpu_ns: f64| program.sent as f64 * LONGEST_NS >= MATTERS * cpu_ns;
    program.cpu_ns.is_none_or(enough)
}

impl Answer<'_> {
    /// Whether enough interrupts were timed to know whom they hit.
    fn is_timed(&self) -> bool {
        let timed: u64 = self.from.sites.iter().map(|site| site.timed).sum();
        timed >= ENOUGH.min(self.all as u64)
    }

    fn how_many(&self) -> String {
        let seconds = self.report.ns as f64 / 1e9;
        let other: u64 = self.report.others.iter().map(|row| row.count).sum();
        // Where most were not recorded, the kernel's count is the better one.
        let all = match self.row {
            Some(row) if 2.0 * self.all < row as f64 => row as f64,
            _ => self.all,
        };
        let total = all + other as f64;
        let part = |of: f64| if of > 0.0 { all / of } else { 0.0 };
        format!(
            "{} in {} on {} ({} a second): {} of all interrupts that call functions.",
            counted(all.round() as u64, "TLB shootdown interrupt"),
            time(self.report.ns as f64),
            counted(self.report.cpus as u64, "CPU"),
            count(part(seconds).round() as u64),
            percent(part(total))
        )
    }

    fn attributed(&self) -> String {
        let attributed = count(self.report.attributed);
        let Some(row) = self.row else {
            return format!(
                "Laid at a call or a reason: {attributed} of {}. Not held against /proc/interrupts, which the recording does not have.",
                count(self.all.round() as u64)
            );
        };
        let share = if row > 0 { self.seen / row as f64 } else { 1.0 };
        let more = match share > 1.05 {
            true => {
                "; more than all, so more was recorded than lies between the two times at which it was read"
            }
            false => "",
        };
        format!(
            "Laid at a call or a reason: {attributed}. /proc/interrupts counted {} (row TLB): {}{more}.",
            count(row),
            percent(share)
        )
    }

    fn most_come_from(&self) -> Option<String> {
        let site = self.first?;
        let most_come = match self.others.is_empty() {
            true => "Most come",
            false => "Of what was recorded, most come",
        };
        let everything = match site.full {
            0 => String::new(),
            full => format!(" and {} everything", counted(full, "time")),
        };
        Some(format!(
            "{most_come} from {}, {} at {}: {} ({}), {}, {}{everything}.",
            site.program,
            site.call,
            site.place(),
            counted(site.interrupts, "interrupt"),
            percent(site.interrupts as f64 / self.all.max(1.0)),
            counted(site.requests, "flush"),
            counted(site.pages, "page"),
        ))
    }

    fn each_takes(&self) -> Option<String> {
        let site = self.first?;
        let each = |range: Range, of: u64, untold: &str| match range.most > 0.0 {
            true => times(range.times(1.0 / of.max(1) as f64)),
            false => untold.into(),
        };
        let few = match site.timed {
            timed if timed > 0 && timed < ENOUGH.min(site.interrupts) => {
                format!(" ({} {} timed)", count(timed), was(timed))
            }
            _ => String::new(),
        };
        Some(format!(
            "Each of these flushes lets its initiator wait {}, and takes {} from each target{few}.",
            each(site.initiator, site.remote, "for a time that is not told"),
            each(site.stolen, site.interrupts, "a time that is not told")
        ))
    }

    fn pays_most(&self) -> Option<String> {
        let (program, share) = self.worst?;
        let among = match self.others.is_empty() {
            true => "",
            false => "Of what was recorded, ",
        };
        Some(format!(
            "{among}{} pays most: {} of its CPU time ({}): {} waiting, {} taken away.",
            program.name,
            percents(share),
            time(program.cpu_ns.unwrap_or(0.0)),
            times(program.waited),
            times(program.stolen)
        ))
    }

    fn filled_again(&self) -> Option<String> {
        let locked: f64 = self.sites.iter().map(|site| site.locked_ns).sum();
        let refaults: u64 = self.sites.iter().map(|site| site.refaults).sum();
        if locked <= 0.0 && refaults == 0 {
            return None;
        }
        let known = self.sites.iter().filter_map(|site| site.refault_ns);
        let refault_ns = known.fold(Range::default(), Range::plus);
        let took = if refault_ns.least > 0.0 {
            format!(" ({})", times(refault_ns))
        } else if refault_ns.most > 0.0 {
            format!(" (at most {})", time(refault_ns.most))
        } else {
            String::new()
        };
        Some(match (refaults, self.from.seen.locks) {
            (0, _) => format!(
                "Beside that, these calls waited {} for mmap_lock.",
                time(locked)
            ),
            (_, true) => format!(
                "Beside that, {} filled again what these calls had given back{took}, and they waited {} for mmap_lock.",
                counted(refaults, "page fault"),
                time(locked)
            ),
            (_, false) => format!(
                "Beside that, {} filled again what these calls had given back{took}.",
                counted(refaults, "page fault")
            ),
        })
    }

    fn no_shootdowns(&self) -> Option<String> {
        let most = self.report.others.first();
        let other = most.filter(|other| other.count as f64 > self.all)?;
        let functions = other.functions.iter().take(3);
        let functions: Vec<&str> = functions.map(|(name, _)| name.as_str()).collect();
        let took = match other.ns {
            Some(ns) => format!("{} in all", time(ns)),
            None => "of which none was timed".into(),
        };
        Some(format!(
            "More interrupts are {}'s: {} ({}), {took}.",
            other.cause,
            count(other.count),
            functions.join(", "),
        ))
    }

    fn sent_by_others(&self) -> Option<String> {
        let most = self.sender?;
        let all: u64 = self.others.iter().map(|program| program.sent).sum();
        Some(format!(
            "Others on this machine, which the recording is not about, sent {} of these interrupts, most of them by {}: {}.",
            count(all),
            most.name,
            count(most.sent)
        ))
    }

    /// What advice is about that promises more than all interrupts cost, where these are too cheap to matter.
    fn beside(&self, advice: &Advice) -> Option<&'static str> {
        let (_, lost) = self.worst?;
        let more = advice.share.is_some_and(|won| won.most > lost.most);
        (lost.most < MATTERS && more).then_some(
            "The same calls cost more than interrupts: their own time, and page faults. ",
        )
    }

    /// Whether it is the TLB.
    fn verdict(&self) -> String {
        // A verdict on what was not recorded would be none.
        let is_missed = |row: u64| row >= 50 && self.seen < 0.5 * row as f64;
        if self.row.is_some_and(is_missed) {
            return MISSED.into();
        }
        if self.from.evidence() == Evidence::Nothing && !self.from.seen.flushes {
            return "Whether it is the TLB cannot be told from this recording.".into();
        }
        if let Some(program) = self.untold {
            return format!(
                "Whether it is the TLB cannot be told: {} sent {}, of which none was timed.",
                program.name,
                counted(program.sent, "interrupt")
            );
        }
        match self.worst {
            Some((program, share))
                if share.least < MATTERS && share.most >= MATTERS && is_guess(program) =>
            {
                format!(
                    "Whether it is the TLB cannot be told: of {} of {}, {} {} timed, so it may be {} of its time.",
                    counted(program.sent, "interrupt"),
                    program.name,
                    count(program.timed),
                    was(program.timed),
                    percents(share)
                )
            }
            Some((program, share)) if share.most >= MATTERS => format!(
                "It {} the TLB, as far as {} is concerned: {} is what can be won at most.",
                if share.least >= MATTERS {
                    "is"
                } else {
                    "may be"
                },
                program.name,
                percents(share)
            ),
            Some((program, share)) => format!(
                "It is not your TLB: {} loses 1 % of its time to shootdowns ({} loses {}).",
                match self.others.is_empty() {
                    true => "no program",
                    false => "nothing that was recorded",
                },
                program.name,
                percent(share.most)
            ),
            None if self.all < 1.0 => match self.row.unwrap_or(0) {
                0 => "It is not your TLB: there was no shootdown interrupt.".into(),
                // Whosever they are.
                row if row as f64 * LONGEST_NS < MATTERS * self.report.ns as f64 => SO_FEW.into(),
                _ => MISSED.into(),
            },
            None if self.first.is_some() && self.are_few => SO_FEW.into(),
            None if self.sender.is_some() && self.first.is_none() && self.is_timed() => {
                "It is not your TLB: none of these interrupts came from or to what was recorded."
                    .into()
            }
            None => {
                "What that is of each program's CPU time cannot be told from this recording.".into()
            }
        }
    }
}

//! Writes the short answer to the question whether shootdowns cost time.

mod judged;
mod memory;
mod verdict;

use crate::advise::{Advice, Means, counts};
use crate::attribute::{Attribution, ENOUGH};
use crate::figures::{Range, count, counted, percent, percents, span, time};
use crate::line::Line;
use crate::report::{ProgramRow, Report, SiteRow};
use crate::understand::{UNKNOWN, is_recorders};
use judged::{JudgedPrograms, MATTERS};

/// The largest number of lines of the answer.
const LINES: usize = 10;

/// The text in place of advice if interrupts were only counted. We promise nothing from untimed interrupts alone.
const TOO_LITTLE: &str = "unknown: none of these interrupts was timed;";

/// The text in place of advice if nothing around the timed interrupts was recorded.
const NOT_WHOLE: &str = "unknown: no interrupt was recorded together with its cause;";

/// The begin of the effect of a change that is no setting.
const NO_SETTING: &str = "no setting helps; ";

/// The remedy for all of them.
const RECORD_MORE: &str = "record longer (--seconds 30) or at a higher cost (--overhead 10)";

/// Writes the answer: at most [`LINES`] lines of [`COLUMNS`](crate::line::COLUMNS) columns.
///
/// `all` is the number of interrupts. `mappings` of them flushed kernel mappings, which the row TLB (`row`) doesn't
/// count. `only` is the program that the user chose.
pub fn answer<'r>(
    from: &'r Attribution,
    report: &'r Report,
    all: f64,
    mappings: f64,
    row: Option<u64>,
    only: Option<&'r str>,
) -> Vec<String> {
    // Programs that only shared the machine have a line of their own.
    let is_about = |program: &str| only.is_some() || from.is_about(program);
    let (programs, others): (Vec<_>, Vec<_>) =
        report.programs.iter().partition(|program| is_about(&program.name));
    let sites: Vec<&SiteRow> = report.sites.iter().filter(|site| is_about(&site.program)).collect();
    let ran = |program: &str| only.map_or_else(|| is_about(program), |only| program == only);
    let ran = from.ran.iter().filter(|of| ran(&of.comm));
    let judged = JudgedPrograms::new(programs, ran.map(|ran| ran.ns() as f64).sum());
    let answer = Answer {
        from,
        report,
        all,
        seen: report.attributed as f64 - mappings,
        row,
        first: sites.first().copied().filter(|site| site.interrupts > 0),
        worst: judged.worst(),
        judged,
        only,
        sender: others
            .iter()
            .copied()
            .filter(|program| program.sent > 0)
            .max_by_key(|program| program.sent),
        others,
        sites,
    };
    let advice = report.advice.iter().find(|advice| is_about(&advice.program));
    let (verdict, is_shared) = answer.verdict();
    let tried = match advice {
        Some(advice) if advice.is_redesign() => redesign(advice),
        Some(advice) if advice.is_sure() => answer.tried(advice, is_shared),
        Some(advice) => unsure(advice),
        None => answer.nothing_to_try(only.is_some()),
    };
    let mut lines = vec![verdict];
    lines.extend(tried);
    lines.extend([answer.how_many(), answer.attributed()]);
    lines.extend(answer.most_come_from());
    let (flushes, each) = (answer.flushes(), answer.each_takes());
    let paid = answer.pays_most(is_shared);
    let aside = [answer.besides(), answer.no_shootdowns(), answer.sent_by_others()];
    let room = LINES - lines.len() - each.iter().chain(aside.iter().flatten()).count();
    // If room is short, we first drop lines that repeat the tables.
    let flushes = flushes.filter(|_| room > usize::from(paid.is_some()));
    lines.extend(flushes.into_iter().chain(each));
    lines.extend(paid.filter(|_| room > 0));
    lines.extend(aside.into_iter().flatten());
    lines.into_iter().map(String::from).collect()
}

/// The inputs of the lines. Each line has a method of its own.
struct Answer<'r> {
    from: &'r Attribution,
    report: &'r Report,
    /// All shootdown interrupts.
    all: f64,
    /// Interrupts of the row TLB that are attributed to a call or a reason.
    seen: f64,
    row: Option<u64>,
    /// The recording's own sites, and the one with the most interrupts.
    sites: Vec<&'r SiteRow>,
    first: Option<&'r SiteRow>,
    /// The recording's own program that pays most.
    worst: Option<(&'r ProgramRow, Range)>,
    /// The programs that the verdict covers.
    judged: JudgedPrograms<'r>,
    /// The program that the user chose.
    only: Option<&'r str>,
    /// Programs that only shared the machine, and the one that sent the most interrupts.
    others: Vec<&'r ProgramRow>,
    sender: Option<&'r ProgramRow>,
}

impl Answer<'_> {
    /// Returns whether enough interrupts were timed to know their targets.
    fn is_timed(&self) -> bool {
        let timed: u64 = self.from.sites.iter().map(|site| site.timed).sum();
        timed >= ENOUGH.min(self.all as u64)
    }

    fn how_many(&self) -> Line {
        let seconds = self.report.ns as f64 / 1e9;
        // Interrupts of unknown functions may be these.
        let known = self.report.others.iter().filter(|row| row.cause != UNKNOWN);
        let other: u64 = known.map(|row| row.count).sum();
        // If most interrupts weren't recorded, the kernel's count is more accurate.
        let all = match self.row {
            Some(row) if 2.0 * self.all < row as f64 => row as f64,
            _ => self.all,
        };
        // Row `CAL` counts interrupts, those for shootdowns among them. Row `TLB` counts flushes: one interrupt may make
        // several.
        let own = self.own();
        let called = self.report.function_calls.unwrap_or_default();
        let called = called.saturating_sub(own) as f64;
        let total = called.max(all + other.saturating_sub(own) as f64);
        let part = |of: f64| if of > 0.0 { all / of } else { 0.0 };
        let rate = count(part(seconds).round() as u64);
        let cpus = counted(self.report.cpus as u64, "CPU");
        Line::new("Interrupts")
            .text(count(all.round() as u64))
            .text(format!(" in {}", time(self.report.ns as f64)))
            .remark(format!(" ({rate} a second)"))
            .remark(format!(" on {cpus}"))
            .text(format!(", {} of all ", percent(part(total))))
            .text(match self.report.function_calls {
                Some(row) => format!("function calls (CAL {})", count(row)),
                None => "function calls".to_owned(),
            })
    }

    /// Returns the number of function calls by which a recorder starts and stops events.
    fn own(&self) -> u64 {
        let own = self.report.others.iter().filter(|row| is_recorders(self.from, row.cause));
        own.map(|row| row.count).sum()
    }

    fn attributed(&self) -> Line {
        let line = Line::new("Attributed").remark("to a call or a reason: ");
        let line = line.text(count(self.report.attributed));
        let Some(row) = self.row else {
            let all = count(self.all.round() as u64);
            return line.text(format!(" of {all}; /proc/interrupts is not recorded"));
        };
        let share = if row > 0 { self.seen / row as f64 } else { 1.0 };
        let (counted, share_of) = (count(row), percent(share));
        line.text("; /proc/interrupts")
            .remark(" counts")
            .text(format!(" {counted}: {share_of}"))
            .text(match share > 1.05 {
                // More interrupts were recorded than the row grew by between its two readings.
                true => ", over a shorter time",
                false => "",
            })
    }

    /// Begins a line, with "Recorded" if other programs sent or took interrupts, too.
    fn labelled(&self, label: &'static str, said: &str) -> Line {
        if self.others.is_empty() { Line::new(label) } else { Line::new("Recorded").text(said) }
    }

    fn most_come_from(&self) -> Option<Line> {
        let site = self.first?;
        let share = percent(site.interrupts as f64 / self.all.max(1.0));
        Some(
            self.labelled("Most from", "most from ")
                .name(&site.program_and_thread())
                .text(", ")
                .name(&site.call)
                .text(" at ")
                .name(site.place())
                .text(format!(": {} ({share})", count(site.interrupts))),
        )
    }

    fn flushes(&self) -> Option<Line> {
        let site = self.first?;
        let everything = match site.full {
            0 => String::new(),
            full => format!(", {}", counted(full, "full flush")),
        };
        let (flushes, pages) = (counted(site.requests, "flush"), counted(site.pages, "page"));
        Some(Line::new("").remark("with ").text(format!("{flushes}, {pages}")).text(everything))
    }

    fn each_takes(&self) -> Option<Line> {
        let site = self.first?;
        let each = |range: Range, of: u64| match range.most > 0.0 {
            true => span(range.times(1.0 / of.max(1) as f64)),
            false => "unknown".into(),
        };
        let few = match site.timed {
            timed if timed > 0 && timed < ENOUGH.min(site.interrupts) => {
                format!(" ({} timed)", count(timed))
            }
            _ => String::new(),
        };
        Some(
            Line::new("Each flush")
                .text("costs ")
                .remark("its ")
                .text(format!("initiator {}, ", each(site.initiator, site.remote)))
                .remark("each ")
                .text(format!("target {}{few}", each(site.stolen, site.interrupts))),
        )
    }

    /// Names the program that pays most, with its share unless the verdict has it.
    fn pays_most(&self, said: bool) -> Option<Line> {
        let (program, share) = self.worst?;
        let pays = if self.others.is_empty() { "" } else { " pays most" };
        let line = self.labelled("Pays most", "").name(&program.name);
        let line = line.remark(pays);
        let share = format!(": {}", percents(share));
        let (waited, stolen) = (span(program.waited), span(program.stolen));
        let (waited, stolen) = (format!(": waits {waited}"), format!(", interrupted {stolen}"));
        let line = match said {
            true => line.remark(share).text(waited).text(stolen),
            false => line.text(share).remark(waited).remark(stolen),
        };
        Some(line.remark(match program.cpu_ns {
            Some(cpu) => format!(", of {} CPU time", time(cpu)),
            None => String::new(),
        }))
    }

    fn no_shootdowns(&self) -> Option<Line> {
        let is_known = |cause| cause != UNKNOWN && !is_recorders(self.from, cause);
        let most = self.report.others.iter().find(|other| is_known(other.cause));
        let other = most.filter(|other| other.count as f64 > self.all)?;
        let mut functions = other.functions.iter().take(3).map(|(name, _)| name);
        let mut line = Line::new("Not TLB")
            .text(format!("{} for {} (", count(other.count), other.cause))
            .name(functions.next().map_or("", String::as_str));
        for function in functions {
            line = line.remark(format!(", {function}"));
        }
        let line = match other.ns {
            Some(ns) => line.text(format!("), {}", time(ns))).remark(" in all"),
            None => line.text("), none timed"),
        };
        Some(match other.caller_ns {
            Some(ns) => line.remark(format!("; callers wait {}", time(ns))),
            None => line,
        })
    }

    fn sent_by_others(&self) -> Option<Line> {
        let most = self.sender?;
        let all: u64 = self.others.iter().map(|program| program.sent).sum();
        Some(
            Line::new("Others")
                .text(format!("sent {}", count(all)))
                .remark(" of these interrupts")
                .text(", most by ")
                .name(&most.name)
                .text(format!(": {}", count(most.sent))),
        )
    }

    /// Describes the first change to try and its effect. A change of code is never said to be a setting.
    ///
    /// If the verdict contains a share (`said`) of the same program, we don't repeat its name.
    fn tried(&self, advice: &Advice, said: bool) -> Vec<Line> {
        let (label, no_setting) = match advice.means {
            Means::Setting => ("Try first", ""),
            Means::Code => ("In code", NO_SETTING),
            Means::Kernel => ("In kernel", NO_SETTING),
        };
        let change = Line::new(label).then(advice.brief.clone());
        let named = self.worst.filter(|_| said);
        let is_named = named.is_some_and(|(program, _)| program.name == advice.program);
        let mut line = Line::new("").text(no_setting);
        if let Some(share) = advice.share {
            let saves = line.remark("saves ").text(format!("{} of ", percents(share)));
            let owner =
                if is_named { saves.text("its ") } else { saves.name(&advice.program).text("'s ") };
            line = owner.remark("CPU ").text("time");
        }
        let seen = advice.recorded.map_or_else(String::new, |of| format!(" ({} seen)", count(of)));
        let seen = Line::new("").remark(seen);
        let counts = counts(advice.interrupts, advice.left);
        // Cheap interrupts can't explain such a gain. Most of it comes from the calls.
        let line = match (advice.share, self.is_beside(advice)) {
            (Some(_), _) if advice.interrupts == 0 => {
                line.text(", in page faults").remark(" and calls")
            }
            (Some(_), true) => line.text(", mostly in the calls").remark(" themselves").then(seen),
            (Some(_), false) => {
                let whole = line.clone().text("; ").then(counts).then(seen.clone());
                whole.or(line.then(seen))
            }
            (None, _) => line.then(counts).then(seen),
        };
        vec![change, line]
    }

    /// Returns whether advice promises more than all interrupts cost, although these don't matter.
    fn is_beside(&self, advice: &Advice) -> bool {
        self.worst.is_some_and(|(_, lost)| {
            lost.most < MATTERS && advice.share.is_some_and(|won| won.most > lost.most)
        })
    }

    /// Explains why there is no advice. If the user chose a program (`asked`), writes a line even without interrupts.
    fn nothing_to_try(&self, asked: bool) -> Vec<Line> {
        let line = Line::new("Try first");
        let unknown = |why| vec![line.clone().text(why), Line::new("").text(RECORD_MORE)];
        let untimed =
            |site: &SiteRow| site.timed == 0 || site.initiator.most + site.stolen.most == 0.0;
        let may_pay = self.worst.is_none_or(|(_, share)| share.most >= MATTERS);
        match self.first {
            Some(site) if !self.judged.are_few() && untimed(site) => unknown(TOO_LITTLE),
            Some(site) if !self.judged.are_few() && may_pay && site.whole == 0 => {
                unknown(NOT_WHOLE)
            }
            None if !asked => Vec::new(),
            _ => {
                vec![line.text("nothing: no change saves more than the noise of this recording")]
            }
        }
    }
}

/// Describes a change that few users can make, if nothing else helps.
fn redesign(advice: &Advice) -> Vec<Line> {
    let first =
        Line::new("Try first").text("nothing: only another design would help, or another kernel:");
    vec![first, Line::new("").then(advice.brief.clone())]
}

/// Describes a change that may save nothing. It's no advice, so the line says first that nothing is sure to help.
fn unsure(advice: &Advice) -> Vec<Line> {
    let most = advice.share.map_or(1.0, |share| share.most);
    let first = Line::new("Try first")
        .text("nothing: no setting is sure")
        .remark(" to help")
        .text("; ")
        .remark("perhaps ")
        .text(format!("up to {}", percent(most)))
        .text(match advice.means {
            Means::Setting => ":",
            Means::Code => ", in code:",
            Means::Kernel => ", in kernel:",
        });
    vec![first, Line::new("").then(advice.brief.clone())]
}

#[cfg(test)]
mod tests;

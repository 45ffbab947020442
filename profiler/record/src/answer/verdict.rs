//! Writes the verdict: whether shootdowns cost time.

use super::Answer;
use super::judged::{LONGEST_NS, MATTERS, is_guess};
use crate::attribute::Evidence;
use crate::figures::{count, percent, percents};
use crate::line::Line;
use crate::report::{OtherRow, ProgramRow};
use crate::understand::UNKNOWN;

/// The verdict if all interrupts are too few to matter, however long each took.
const SO_FEW: &str = "It is not your TLB: too few interrupts for 1 % of any program's time";

/// The text in place of a verdict if most interrupts weren't recorded.
const MISSED: &str = "Unknown: most interrupts in /proc/interrupts were not recorded";

/// The same if the kernel hid the names by which shootdowns are recognized.
const HIDDEN: &str = "Unknown: the kernel hides function names; record as root (CAP_SYSLOG)";

/// Begins a verdict with this text.
fn said(text: &str) -> Line {
    Line::new("Verdict").text(text)
}

/// Adds that a program was left out, if the line has room.
fn but_for(line: Line, program: &ProgramRow) -> Line {
    let named = line.clone().text("; ").name(&program.name);
    named.text(" not measured").or(line)
}

impl Answer<'_> {
    /// Returns the verdict if no program's share is known.
    fn shareless(&self) -> Line {
        if self.all < 1.0 {
            return said(match self.row.unwrap_or(0) {
                0 => "It is not your TLB: there was no shootdown interrupt",
                // They're too few, whichever program they belong to.
                row if row as f64 * LONGEST_NS < MATTERS * self.report.ns as f64 => SO_FEW,
                _ => MISSED,
            });
        }
        match self.first {
            Some(_) if self.judged.are_few() => self.too_few(),
            None if self.sender.is_some() && self.is_timed() => {
                said("It is not your TLB: the recorded programs sent and took no interrupts")
            }
            _ => said("Unknown: no program's share of CPU time was measured"),
        }
    }

    /// Describes that interrupts are too few to matter.
    fn too_few(&self) -> Line {
        let judged = &self.judged;
        let Some(left_out) = judged.left_out() else {
            return said(SO_FEW);
        };
        let line = said("It is not your TLB: ");
        let most = judged.programs.iter().find(|program| program.sent == judged.most);
        let line = match most.filter(|_| !judged.few) {
            Some(most) => {
                line.name(&most.name).text(" sent too few").remark(" to lose 1 % of its time")
            }
            None => line
                .text("few")
                .remark(" interrupts")
                .text(", under 1 %")
                .remark(" of all CPU time"),
        };
        but_for(line, left_out)
    }

    /// Returns the verdict, and whether it names the share of the program that pays most. If shootdowns don't matter,
    /// page faults may.
    pub(super) fn verdict(&self) -> (Line, bool) {
        let verdict = self.of_tlb();
        let is_no = verdict.0.begins("It is not your TLB");
        let filling = self.filling().filter(|_| is_no);
        filling.and_then(|filling| filling.verdict()).map_or(verdict, |line| (line, false))
    }

    /// Returns the verdict on shootdowns alone.
    fn of_tlb(&self) -> (Line, bool) {
        // Without the events of most interrupts, a verdict would have no basis.
        let is_missed = |row: u64| row >= 50 && self.seen < 0.5 * row as f64;
        if self.row.is_some_and(is_missed) {
            let is_hidden =
                |row: &OtherRow| row.cause == UNKNOWN && 2.0 * row.count as f64 > self.seen;
            let hidden = self.report.others.iter().any(is_hidden);
            return (said(if hidden { HIDDEN } else { MISSED }), false);
        }
        if self.from.evidence() == Evidence::Nothing && !self.from.seen.flushes {
            return (said("Unknown: this recording has no events of shootdowns"), false);
        }
        let is_few = |program| self.judged.are_few() && self.judged.is_left_out(program);
        let Some((program, share)) = self.worst.filter(|(program, _)| !is_few(program)) else {
            return (self.shareless(), false);
        };
        let is_guessed = share.least < MATTERS && is_guess(program);
        let filling = self.filling();
        let filling = filling.and_then(|filling| filling.exceeds(&program.name, share));
        let line = if share.most < MATTERS {
            self.lost_little(program, share.most)
        } else if is_guessed {
            said(&format!("Unknown: {} of ", count(program.timed)))
                .name(&program.name)
                .text(format!("'s {} ", count(program.sent)))
                .remark("interrupts ")
                .text("timed")
                .remark(format!(", so {}", percents(share)))
                .remark(" of its time")
        } else if let Some(filling) = filling {
            said("It is page faults: ")
                .text(format!("{} of ", percents(filling)))
                .name(&program.name)
                .text("'s ")
                .remark("CPU ")
                .text(format!("time; the TLB {}", percents(share)))
        } else {
            let sure = share.least >= MATTERS;
            said(if sure { "It is the TLB: " } else { "It may be the TLB: " })
                .name(&program.name)
                .text(format!(" loses {} of its ", percents(share)))
                .remark("CPU ")
                .text("time")
                .remark(" to it")
        };
        (line, share.most < MATTERS || !is_guessed)
    }

    /// Describes that even the program that pays most loses little.
    fn lost_little(&self, program: &ProgramRow, share: f64) -> Line {
        let (line, share) = (said("It is not your TLB: "), percent(share));
        if let Some(left_out) = self.judged.left_out() {
            let line = line.name(&program.name).text(format!(" loses {share}"));
            return but_for(line.remark(" of its time"), left_out);
        }
        line.text(match self.others.is_empty() {
            true => "no program loses 1 %",
            false => "no recorded program loses 1 %",
        })
        .remark(" of its time")
        .text(" (")
        .name(&program.name)
        .text(format!(" {share})"))
    }
}

//! Whether it is the TLB: which programs the verdict is on.

use crate::attribute::ENOUGH;
use crate::figures::Range;
use crate::report::ProgramRow;
use crate::scales::is_much;

/// Below this share of interrupts and of time it is not the TLB.
pub(super) const MATTERS: f64 = 0.01;

/// Interrupts that were not timed have taken no longer than this each, in nanoseconds, their initiators' waits
/// included: some times what the mean of timed ones was on the busiest virtual machine that was recorded.
pub(super) const LONGEST_NS: f64 = 1e6;

/// The programs that a verdict is on. One that sent a handful of interrupts beside another that sent more does not take it
/// away if these were not timed, nor do a few in all: a shell, say, that starts the program that is recorded. The verdict
/// is on the others then.
pub(super) struct Judged<'r> {
    pub(super) programs: Vec<&'r ProgramRow>,
    /// How many interrupts they sent, and the one that sent most.
    sent: u64,
    pub(super) most: u64,
    /// Whether all together sent no more than a handful, which takes all of them too little time to matter.
    pub(super) few: bool,
}

impl<'r> Judged<'r> {
    /// These, all of which used so much CPU time by the kernel's account, in nanoseconds, or as much as is known of each.
    pub(super) fn new(programs: Vec<&'r ProgramRow>, ran_ns: f64) -> Self {
        let sent = programs.iter().map(|program| program.sent).sum();
        let known: f64 = programs.iter().filter_map(|program| program.cpu_ns).sum();
        let most = programs.iter().map(|program| program.sent).max();
        Judged {
            programs,
            sent,
            most: most.unwrap_or(0),
            few: sent < ENOUGH && sent as f64 * LONGEST_NS < MATTERS * known.max(ran_ns),
        }
    }

    /// Whether a program sent next to nothing: little of all, or a handful where another sent twice as many.
    fn is_aside(&self, program: &ProgramRow) -> bool {
        let is_handful = program.sent < ENOUGH && 2 * program.sent <= self.most;
        is_handful || !is_much(program.sent as f64, self.sent as f64)
    }

    /// The program that pays most, and what share that is of its time. One that sent next to nothing and of which too few
    /// were timed may have paid anything: it is named only if there is no other.
    pub(super) fn worst(&self) -> Option<(&'r ProgramRow, Range)> {
        let is_told = |program: &ProgramRow| !is_guess(program) || !self.is_aside(program);
        let told = self.programs.iter().filter(|program| is_told(program));
        told.chain(&self.programs)
            .find_map(|program| Some((*program, program.share?)))
    }

    /// Whether so few interrupts were sent that it does not matter what they took: by all together, or by each that is not
    /// left out.
    pub(super) fn are_few(&self) -> bool {
        let matters = |program: &ProgramRow| may_matter(program) && !self.is_left_out(program);
        self.few || !self.programs.iter().any(|program| matters(program))
    }

    /// Whether a program has no part in the verdict: it sent so few interrupts, of which so few were timed that they may
    /// matter to it or not.
    pub(super) fn is_left_out(&self, program: &ProgramRow) -> bool {
        program.sent > 0
            && (self.few || self.is_aside(program))
            && is_guess(program)
            && may_matter(program)
            && program.share.is_none_or(|share| share.most >= MATTERS)
    }

    /// One that is left out.
    pub(super) fn left_out(&self) -> Option<&'r ProgramRow> {
        let mut programs = self.programs.iter().copied();
        programs.find(|program| self.is_left_out(program))
    }
}

/// Whether so few of a program's interrupts were timed that its share is a matter of luck.
pub(super) fn is_guess(program: &ProgramRow) -> bool {
    program.timed < ENOUGH.min(program.sent)
}

/// Whether the interrupts that a program sent may take enough of its time to matter, whatever each took.
fn may_matter(program: &ProgramRow) -> bool {
    let enough = |cpu_ns: f64| program.sent as f64 * LONGEST_NS >= MATTERS * cpu_ns;
    program.cpu_ns.is_none_or(enough)
}

//! Selects the programs that the verdict covers.

use crate::attribute::ENOUGH;
use crate::figures::Range;
use crate::report::ProgramRow;
use crate::scales::is_much;

/// The share of interrupts and of time from which the TLB matters.
pub(super) const MATTERS: f64 = 0.01;

/// The share of all CPU time below which a program's loss isn't noticed, whatever its own share is.
const LEAST: f64 = 0.001;

/// The longest time to assume for an untimed interrupt, with its initiator's wait, in nanoseconds.
///
/// It's several times the mean of timed ones on the busiest virtual machine that we recorded.
pub(super) const LONGEST_NS: f64 = 1e6;

/// The programs that a verdict covers.
///
/// We leave a program out if it sent a handful of untimed interrupts beside another that sent more, or if all sent few.
/// For example, this applies to a shell that starts the recorded program.
pub(super) struct JudgedPrograms<'r> {
    pub(super) programs: Vec<&'r ProgramRow>,
    /// The number of interrupts that all sent, and the number that one sent at most.
    sent: u64,
    pub(super) most: u64,
    /// Whether all programs together sent only a handful, which take too little time to matter.
    pub(super) few: bool,
    /// The CPU time of all programs, in nanoseconds.
    cpu_ns: f64,
}

impl<'r> JudgedPrograms<'r> {
    /// Creates the selection. `ran_ns` is the CPU time of all programs by the kernel's account, in nanoseconds. If the
    /// known times of the programs add up to more, we use these.
    pub(super) fn new(programs: Vec<&'r ProgramRow>, ran_ns: f64) -> Self {
        let sent = programs.iter().map(|program| program.sent).sum();
        let known: f64 = programs.iter().filter_map(|program| program.cpu_ns).sum();
        let most = programs.iter().map(|program| program.sent).max();
        let cpu_ns = known.max(ran_ns);
        JudgedPrograms {
            programs,
            sent,
            most: most.unwrap_or(0),
            few: sent < ENOUGH && sent as f64 * LONGEST_NS < MATTERS * cpu_ns,
            cpu_ns,
        }
    }

    /// Returns whether a program sent or ran next to nothing.
    ///
    /// That's a small share of all interrupts or of the time of all, or a handful of interrupts if another program sent
    /// twice as many.
    fn is_aside(&self, program: &ProgramRow) -> bool {
        let is_handful = program.sent < ENOUGH && 2 * program.sent <= self.most;
        let ran = program.cpu_ns.unwrap_or(self.cpu_ns);
        is_handful || !is_much(program.sent as f64, self.sent as f64) || !is_much(ran, self.cpu_ns)
    }

    /// Returns the program that pays most, and its share.
    ///
    /// A program may have sent next to nothing, with too few timed interrupts. We name it only if there is no other. If
    /// all lose little beside the CPU time of all, for example because a script ran for a moment, we name the busiest.
    pub(super) fn worst(&self) -> Option<(&'r ProgramRow, Range)> {
        let shares = |program: &&'r ProgramRow| Some((*program, program.share?));
        let known = || self.programs.iter().filter_map(shares);
        let told = || known().filter(|(program, _)| !is_guess(program) || !self.is_aside(program));
        let is_felt = |(program, _): &(&ProgramRow, Range)| {
            (program.waited.most + program.stolen.most) >= LEAST * self.cpu_ns
        };
        let ran = |(program, _): &(&ProgramRow, Range)| program.cpu_ns.unwrap_or(0.0);
        let busiest = || told().reduce(|a, b| if ran(&b) > ran(&a) { b } else { a });
        let felt = told().find(is_felt);
        felt.or_else(busiest).or_else(|| known().next())
    }

    /// Returns whether the interrupts are too few to matter, however long each took.
    ///
    /// This holds for all together, or for each program that isn't left out.
    pub(super) fn are_few(&self) -> bool {
        let matters = |program: &ProgramRow| may_matter(program) && !self.is_left_out(program);
        self.few || !self.programs.iter().any(|program| matters(program))
    }

    /// Returns whether the verdict leaves a program out.
    ///
    /// It sent few interrupts, and too few were timed to know whether they matter.
    pub(super) fn is_left_out(&self, program: &ProgramRow) -> bool {
        program.sent > 0
            && (self.few || self.is_aside(program))
            && is_guess(program)
            && may_matter(program)
            && program.share.is_none_or(|share| share.most >= MATTERS)
    }

    /// Returns a program that is left out, if there is one.
    pub(super) fn left_out(&self) -> Option<&'r ProgramRow> {
        let mut programs = self.programs.iter().copied();
        programs.find(|program| self.is_left_out(program))
    }
}

/// Returns whether too few interrupts were timed for the program's share to be reliable.
pub(super) fn is_guess(program: &ProgramRow) -> bool {
    program.timed < ENOUGH.min(program.sent)
}

/// Returns whether a program's interrupts may matter, if each took the longest time.
fn may_matter(program: &ProgramRow) -> bool {
    let enough = |cpu_ns: f64| program.sent as f64 * LONGEST_NS >= MATTERS * cpu_ns;
    program.cpu_ns.is_none_or(enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, cpu_ns: f64, lost_ns: f64) -> ProgramRow {
        let lost = Range { least: lost_ns, most: lost_ns };
        ProgramRow {
            name: name.into(),
            cpu_ns: Some(cpu_ns),
            sent: 2 * ENOUGH,
            timed: 2 * ENOUGH,
            waited: lost,
            share: Some(lost.of_all(cpu_ns)),
            ..ProgramRow::default()
        }
    }

    #[test]
    fn a_script_that_ran_for_a_moment_is_not_the_verdict() {
        let worst = |script_ns: f64| {
            let rows = [row("sh", 5e7, script_ns), row("server", 4e9, 1e5)];
            let judged = JudgedPrograms::new(rows.iter().collect(), 0.0);
            judged.worst().map(|(program, _)| program.name.clone())
        };
        assert_eq!(worst(1e6).unwrap(), "server");
        assert_eq!(worst(1e7).unwrap(), "sh");
    }
}

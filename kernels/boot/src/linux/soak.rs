//! Runs third-party programs on one kernel with the engine on, and repeats those that don't simply pass with it off.
//!
//! Both runs use one image, so the engine is the only difference. Nothing that passes with the engine off may fail with
//! it on, and the kernel may not print a complaint that it doesn't also print with the engine off. A program that
//! passes with the engine, without a failed part or a complaint, can't be worse, so we don't repeat it. A program that
//! was killed because it took too long may have met a busy host. We list it, and it counts as failed.

use super::make::Flavour;
use super::programs::{self, ProgramImage};
use crate::versus::{BootCounters, ExitKind, Program, ProgramResult, Soak};
use anyhow::bail;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// The machine's memory in megabytes: twice the huge pages of khugepaged's `collapse_compound_extreme`. With just
/// enough, that test often fails on a stock kernel, too.
const MEMORY_MB: u32 = 2048;

/// Two disks in memory, in kilobytes. The first contains the files, the second the file systems that `fresh` creates.
/// XFS needs at least this size.
const DISKS: [&str; 2] = ["brd.rd_nr=2", "brd.rd_size=327680"];

/// The options of a soak run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The kernel, which must contain the engine.
    pub flavour: Flavour,
    /// An emulator other than QEMU of the system.
    pub emulator: Option<PathBuf>,
    /// The number of CPUs.
    pub cpus: u16,
    /// The lists of mechanisms; one run for each.
    pub mechanisms: Vec<String>,
    /// The run time of each stressor in seconds.
    pub seconds: u64,
    /// Only programs whose name contains one of these are run.
    pub only: Vec<String>,
    /// Words for Linux's command line.
    pub words: Vec<String>,
    /// Whether the machines' clock counts instructions, with one CPU at a time.
    pub counted: bool,
    /// The time after which a silent machine is ended.
    pub limit: Duration,
    /// Whether to show the consoles.
    pub verbose: bool,
}

/// The outcome of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ProgramOutcome {
    Passed,
    Skipped,
    Failed(String),
    /// It wasn't run, or its end wasn't reported.
    Nothing,
}

impl ProgramOutcome {
    fn of(program: &Program, ran: &ProgramResult) -> ProgramOutcome {
        match &ran.how {
            Some(ExitKind::Code(0)) => ProgramOutcome::Passed,
            Some(ExitKind::Code(code)) if programs::is_skip(program, *code) => {
                ProgramOutcome::Skipped
            }
            Some(ExitKind::Code(code)) => ProgramOutcome::Failed(format!("code {code}")),
            Some(ExitKind::Signal(signal)) => ProgramOutcome::Failed(format!("signal {signal}")),
            Some(ExitKind::Late) => ProgramOutcome::Failed("took too long".into()),
            Some(ExitKind::Never(why)) => ProgramOutcome::Failed(why.clone()),
            None => ProgramOutcome::Failed("the kernel ended".into()),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            ProgramOutcome::Passed => "pass",
            ProgramOutcome::Skipped => "skip",
            ProgramOutcome::Failed(_) => "FAIL",
            ProgramOutcome::Nothing => "-",
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            ProgramOutcome::Failed(why) => Some(why),
            _ => None,
        }
    }
}

/// Returns whether a program's run can't be worse than another: it passed with all its parts, and Linux printed no
/// complaint.
fn is_clean(program: &Program, ran: &ProgramResult) -> bool {
    ProgramOutcome::of(program, ran) == ProgramOutcome::Passed
        && ran.failed.is_empty()
        && ran.splats.is_empty()
}

/// One program's results with and without the engine.
struct Row<'a> {
    program: &'a Program,
    without: Option<&'a ProgramResult>,
    with: Option<&'a ProgramResult>,
}

impl Row<'_> {
    fn came(&self) -> [ProgramOutcome; 2] {
        [self.without, self.with].map(|ran| {
            ran.map_or(ProgramOutcome::Nothing, |ran| ProgramOutcome::of(self.program, ran))
        })
    }

    /// Returns the differences for the worse with the engine.
    fn worse(&self, known: &BTreeSet<String>) -> Vec<String> {
        let mut worse = Vec::new();
        let [without, with] = self.came();
        match (&without, &with) {
            (ProgramOutcome::Passed | ProgramOutcome::Skipped, ProgramOutcome::Failed(why)) => {
                worse.push(why.clone())
            }
            (ProgramOutcome::Passed, ProgramOutcome::Skipped) => worse.push("is skipped".into()),
            _ => {}
        }
        let (Some(without), Some(with)) = (self.without, self.with) else {
            return worse;
        };
        let new = with.failed.iter().filter(|part| !without.failed.contains(part));
        worse.extend(new.map(|part| format!("part \"{part}\" fails")));
        let splats = with.splats.iter().map(|lines| title(lines));
        worse.extend(splats.filter(|title| !known.contains(title)));
        worse
    }
}

/// Returns the title of a kernel complaint: its first line, without the parts that vary between runs.
fn title(lines: &[String]) -> String {
    let line = lines.first().map_or("", String::as_str);
    line.split(' ')
        .filter(|word| !word.chars().any(|c| c.is_ascii_digit()) || word.contains(".c:"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The results of a run of programs.
struct SoakRun {
    ran: Vec<ProgramResult>,
    counted: Option<BootCounters>,
}

impl SoakRun {
    /// Returns the run of the program with this number.
    fn of(&self, number: usize) -> Option<&ProgramResult> {
        self.ran.iter().find(|ran| ran.program == number)
    }
}

/// The runs with and without the engine.
pub struct Outcome {
    packed: Rc<ProgramImage>,
    flavour: Flavour,
    cpus: u16,
    mechanisms: String,
    without: Rc<SoakRun>,
    with: SoakRun,
}

impl Request {
    /// Runs the programs with each list of mechanisms, then the unclean ones without the engine.
    ///
    /// # Errors
    /// If a kernel is missing or can't be booted, or if there is nothing to run.
    pub fn run(&self) -> anyhow::Result<Vec<Outcome>> {
        let packed = Rc::new(self.pack()?);
        let with = self.halves(&packed)?;
        let again = (0..packed.programs.len()).filter(|&number| {
            let is_clean = |ran: &ProgramResult| is_clean(&packed.programs[number], ran);
            with.iter().any(|half| !half.of(number).is_some_and(is_clean))
        });
        let without = Rc::new(self.half(&packed, &again.collect::<Vec<_>>(), "off")?);
        let outcome = |(mechanisms, with): (&String, SoakRun)| Outcome {
            packed: packed.clone(),
            flavour: self.flavour,
            cpus: self.cpus,
            mechanisms: mechanisms.clone(),
            without: without.clone(),
            with,
        };
        Ok(self.mechanisms.iter().zip(with).map(outcome).collect())
    }

    /// Runs the programs only with the engine, once for each list of mechanisms. Returns their results.
    ///
    /// # Errors
    /// The errors of [`Request::run`].
    pub fn with_engine(&self) -> anyhow::Result<Vec<ProgramResult>> {
        let halves = self.halves(&self.pack()?)?;
        Ok(halves.into_iter().flat_map(|half| half.ran).collect())
    }

    /// Runs all programs with each list of mechanisms.
    fn halves(&self, packed: &ProgramImage) -> anyhow::Result<Vec<SoakRun>> {
        let every: Vec<usize> = (0..packed.programs.len()).collect();
        let lists = self.mechanisms.iter();
        lists.map(|list| self.half(packed, &every, list)).collect()
    }

    /// Returns the programs, if there is a kernel for them.
    fn pack(&self) -> anyhow::Result<ProgramImage> {
        if !self.flavour.has_engine() {
            bail!(
                "the kernel `stock` has no engine: use another kernel, which runs with the engine on and off"
            );
        }
        let image = self.flavour.image();
        if !image.is_file() {
            let name = self.flavour.name();
            bail!("{} is missing: `build {name}` makes it", image.display());
        }
        let packed = programs::pack(&self.only, self.seconds)?;
        for what in &packed.skipped {
            eprintln!("SKIPPED: {what}");
        }
        if packed.programs.is_empty() {
            bail!("no program to run");
        }
        Ok(packed)
    }

    /// Runs the programs with these numbers.
    fn half(
        &self,
        packed: &ProgramImage,
        numbers: &[usize],
        mechanisms: &str,
    ) -> anyhow::Result<SoakRun> {
        let mut ran = Vec::new();
        if numbers.is_empty() {
            return Ok(SoakRun { ran, counted: None });
        }
        let soak = Soak {
            kernel: self.flavour.image(),
            emulator: self.emulator.clone(),
            mechanisms: Some(mechanisms.into()),
            words: [DISKS.map(String::from).to_vec(), self.words.clone()].concat(),
            cpus: self.cpus,
            memory_mb: MEMORY_MB,
            files: packed.files.clone(),
            programs: numbers.iter().map(|&number| packed.programs[number].clone()).collect(),
            icount: self.counted,
            limit: self.limit,
            verbose: self.verbose,
        };
        let counted = soak.run(|one| {
            let number = numbers[one.program];
            let program = &packed.programs[number];
            let came = ProgramOutcome::of(program, one);
            let (word, seconds) = (came.word(), one.milliseconds.div_ceil(1000));
            let why = came.why().map(|why| format!(": {why}")).unwrap_or_default();
            eprintln!("quell={mechanisms}  {word}  {seconds:>4} s  {}{why}", program.name);
            for line in one.splats.iter().flatten() {
                eprintln!("    {line}");
            }
            if matches!(came, ProgramOutcome::Failed(_)) {
                one.last.iter().for_each(|line| eprintln!("    | {line}"));
            }
            ran.push(ProgramResult { program: number, ..one.clone() });
        })?;
        Ok(SoakRun { ran, counted })
    }
}

impl Outcome {
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.packed.programs.iter().enumerate().map(move |(number, program)| Row {
            program,
            without: self.without.of(number),
            with: self.with.of(number),
        })
    }

    /// Returns the kernel's complaints without the engine.
    fn known(&self) -> BTreeSet<String> {
        self.without.ran.iter().flat_map(|ran| &ran.splats).map(|lines| title(lines)).collect()
    }

    /// Returns whether nothing is worse with the engine, and its counts equal Linux's.
    pub fn holds(&self) -> bool {
        let known = self.known();
        let agree = self.with.counted.as_ref().is_none_or(|counted| counted.agree().is_ok());
        agree && self.rows().all(|row| row.worse(&known).is_empty())
    }

    /// Prints a table and remarks.
    pub fn print(&self) {
        let known = self.known();
        let width =
            self.packed.programs.iter().map(|program| program.name.len()).max().unwrap_or(0);
        println!("{:width$}  off   {}", "program", self.mechanisms);
        let mut counts = [[0usize; 3]; 2];
        for row in self.rows() {
            let came = row.came();
            for (counts, came) in counts.iter_mut().zip(&came) {
                match came {
                    ProgramOutcome::Passed => counts[0] += 1,
                    ProgramOutcome::Skipped => counts[1] += 1,
                    ProgramOutcome::Failed(_) => counts[2] += 1,
                    ProgramOutcome::Nothing => {}
                }
            }
            let worse = row.worse(&known);
            let mark = if worse.is_empty() {
                String::new()
            } else {
                format!("  WORSE: {}", worse.join("; "))
            };
            println!(
                "{:width$}  {:4}  {:4}{mark}",
                row.program.name,
                came[0].word(),
                came[1].word()
            );
        }
        let splats = |half: &SoakRun| half.ran.iter().map(|ran| ran.splats.len()).sum::<usize>();
        for (what, counts, half) in
            [("off", counts[0], &*self.without), (&self.mechanisms, counts[1], &self.with)]
        {
            let [passed, skipped, failed] = counts;
            println!(
                "Linux ({}) on {} CPUs, quell={what}: {passed} passed, {skipped} were skipped, {failed} failed, {} splats",
                self.flavour.name(),
                self.cpus,
                splats(half)
            );
        }
        if let Some(counted) = &self.with.counted {
            println!("the last boot: {counted}");
            if let Err(why) = counted.agree() {
                println!("WORSE: {why}");
            }
        }
        for what in &self.packed.skipped {
            println!("SKIPPED: {what}");
        }
    }

    /// Returns all results, with a row for each program.
    pub fn json(&self) -> Value {
        let known = self.known();
        let half = |came: &ProgramOutcome, ran: Option<&ProgramResult>| {
            json!({
                "came": came.word().to_lowercase(),
                "why": came.why(),
                "milliseconds": ran.map(|ran| ran.milliseconds),
                "parts_passed": ran.map(|ran| ran.passed),
                "parts_failed": ran.map(|ran| &ran.failed),
                "splats": ran.map(|ran| &ran.splats),
            })
        };
        let rows: Vec<Value> = self
            .rows()
            .map(|row| {
                let [without, with] = row.came();
                json!({
                    "program": row.program.name,
                    "linux": half(&without, row.without),
                    "linux_on_quell": half(&with, row.with),
                    "worse": row.worse(&known),
                })
            })
            .collect();
        let counted = self.with.counted.as_ref().map(
            |counted| json!({ "interrupts": counted.interrupts[1], "engine": counted.engine }),
        );
        json!({
            "kernel": self.flavour.name(),
            "cpus": self.cpus,
            "mechanisms": self.mechanisms,
            "skipped": self.packed.skipped,
            "rows": rows,
            "counted": counted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> Program {
        Program {
            name: name.into(),
            command: vec![name.into()],
            seconds: 1,
            memory: None,
            settings: Vec::new(),
        }
    }

    fn ran(how: Option<ExitKind>, failed: &[&str], splats: &[&str]) -> ProgramResult {
        ProgramResult {
            program: 0,
            how,
            milliseconds: 1,
            passed: 1,
            failed: failed.iter().map(|part| part.to_string()).collect(),
            last: Vec::new(),
            splats: splats.iter().map(|line| vec![line.to_string()]).collect(),
        }
    }

    fn worse(without: &ProgramResult, with: &ProgramResult, known: &[&str]) -> Vec<String> {
        let program = program("p");
        let row = Row { program: &program, without: Some(without), with: Some(with) };
        row.worse(&known.iter().map(|title| title.to_string()).collect())
    }

    #[test]
    fn what_passes_without_must_pass_with() {
        let good = ran(Some(ExitKind::Code(0)), &[], &[]);
        for bad in [Some(ExitKind::Code(1)), Some(ExitKind::Signal(11)), Some(ExitKind::Late), None]
        {
            let bad = ran(bad, &[], &[]);
            assert_eq!(worse(&good, &bad, &[]).len(), 1);
            assert!(worse(&bad, &bad, &[]).is_empty());
            assert!(worse(&bad, &good, &[]).is_empty());
        }
        let skipped = ran(Some(ExitKind::Code(4)), &[], &[]);
        assert_eq!(worse(&good, &skipped, &[]), ["is skipped"]);
    }

    #[test]
    fn what_is_not_run_again_is_clean() {
        let clean = |ran: &ProgramResult| is_clean(&program("p"), ran);
        assert!(clean(&ran(Some(ExitKind::Code(0)), &[], &[])));
        assert!(!clean(&ran(Some(ExitKind::Code(4)), &[], &[])));
        assert!(!clean(&ran(Some(ExitKind::Code(1)), &[], &[])));
        assert!(!clean(&ran(None, &[], &[])));
        assert!(!clean(&ran(Some(ExitKind::Code(0)), &["part"], &[])));
        assert!(!clean(&ran(Some(ExitKind::Code(0)), &[], &["BUG: x"])));
    }

    #[test]
    fn a_part_that_fails_shows_though_the_program_fails_on_both() {
        let code = || Some(ExitKind::Code(1));
        let without = ran(code(), &["second"], &[]);
        let with = ran(code(), &["first", "second"], &[]);
        assert_eq!(worse(&without, &with, &[]), ["part \"first\" fails"]);
    }

    #[test]
    fn a_splat_that_is_not_known_shows() {
        let splat = "WARNING: CPU: 1 PID: 70 at mm/rmap.c:12 f+0x1/0x2";
        let good = ran(Some(ExitKind::Code(0)), &[], &[]);
        let bad = ran(Some(ExitKind::Code(0)), &[], &[splat]);
        let title = "WARNING: CPU: PID: at mm/rmap.c:12";
        assert_eq!(worse(&good, &bad, &[]), [title]);
        assert!(worse(&good, &bad, &[title]).is_empty());
    }

    #[test]
    fn stress_ng_says_by_3_that_it_lacks_something() {
        let ended = |code| ran(Some(ExitKind::Code(code)), &[], &[]);
        assert_eq!(
            ProgramOutcome::of(&program("stress-ng --vm 0"), &ended(3)),
            ProgramOutcome::Skipped
        );
        assert_eq!(
            ProgramOutcome::of(&program("cow"), &ended(3)),
            ProgramOutcome::Failed("code 3".into())
        );
        assert_eq!(ProgramOutcome::of(&program("cow"), &ended(4)), ProgramOutcome::Skipped);
    }
}

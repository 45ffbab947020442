//! Runs third-party programs on one kernel with the engine on, and repeats those that don't simply pass with it off.
//!
//! Both runs use one image, so the engine is the only difference. Nothing that passes with the engine off may fail with
//! it on, and the kernel may not print a complaint that it doesn't also print with the engine off. A program that
//! passes with the engine, without a failed part or a complaint, can't be worse, so we don't repeat it. A program that
//! was killed because it took too long may have met a busy host. We list it, and it counts as failed.

use super::checks::{Boot, BootCounters, SHOWN, Splats};
use super::make::Flavour;
use super::programs::{self, ProgramImage};
use crate::versus::linux;
use crate::versus::protocol::{Event, ExitKind, Program};
use anyhow::bail;
use clap::{Args, value_parser};
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

/// Linux's command line, which turns all its checks on and shows its warnings.
const WORDS: [&str; 9] = [
    "console=ttyS0",
    SHOWN,
    "panic=-1",
    "oops=panic",
    // On a busy host, Linux measures the rate of the time-stamp counter wrong, by half and more, and then its
    // time limits are wrong, too.
    "tsc=unstable",
    // On such a host, an interrupt of the timer may also be so late that Linux assumes it was lost and doesn't
    // boot.
    "no_timer_check",
    "mitigations=off",
    // The emulator's CPUs share few CPUs of the host.
    "watchdog_thresh=60",
    "rcupdate.rcu_cpu_stall_timeout=120",
];

/// The arguments of `kernels/linux/run soak`.
#[derive(Args, Clone, Debug)]
pub struct Soak {
    /// Which kernel: `debug`, `kasan` or `mutants`
    #[arg(default_value = "debug")]
    pub kernel: Flavour,
    /// Number of CPUs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=64))]
    pub cpus: u16,
    /// The engine's mechanisms: all, or some of batch, extents, tags, lazy and remote, separated by commas. If given
    /// several times, each is compared with the engine off: for example, `all` and `batch,extents,tags,remote` differ
    /// by lazy unmap
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub mechanisms: Vec<String>,
    /// How long each stressor runs, in seconds
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub seconds: u64,
    /// Only programs that have one of these texts in their name: `--only cow,--mremap`
    #[arg(long, value_name = "TEXTS", value_delimiter = ',', allow_hyphen_values = true)]
    pub only: Vec<String>,
    /// Leave out this rule of the engine, by the name of its mutant; something must fail. Of the kernels `debug` and `mutants`
    #[arg(long, value_name = "RULE")]
    pub forget: Option<String>,
    /// Count instructions instead of time, and let one CPU run at a time: slower, and a run repeats itself
    #[arg(long)]
    pub counted: bool,
    /// Boot in this emulator, which counts instructions, and lets one CPU run at a time. For example, in the machine of
    /// `quell hunt`: QUELL_HUNT='1 9 1 1 0-0 0 0 0' (seed, how aggressive, findings, lazy unmap, hold, NMIs, entries,
    /// boot) and the path that `quell hunt --setup` prints
    #[arg(long, value_name = "FILE")]
    pub emulator: Option<PathBuf>,
    /// How many minutes a machine may be silent before it is ended
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub minutes: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Show every line of the serial console
    #[arg(long)]
    pub verbose: bool,
}

/// The result of a program.
#[derive(Clone, Default, Debug)]
pub struct ProgramResult {
    /// The program's place in the list.
    pub program: usize,
    /// The way in which it ended; `None` if the kernel ended first.
    pub how: Option<ExitKind>,
    /// The time that it took in milliseconds; 0 if the kernel ended first.
    pub milliseconds: u64,
    /// The number of its parts that passed, if reported.
    pub passed: u64,
    /// The names of the parts that failed.
    pub failed: Vec<String>,
    /// The last lines of its output, or of the console if the kernel ended.
    pub last: Vec<String>,
    /// The kernel's complaints during the run. Each entry contains the lines of one complaint.
    pub splats: Vec<Vec<String>>,
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
struct Outcome {
    packed: Rc<ProgramImage>,
    flavour: Flavour,
    cpus: u16,
    mechanisms: String,
    without: Rc<SoakRun>,
    with: SoakRun,
}

impl Soak {
    /// Runs and prints. Returns whether nothing is worse with the engine.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let outcomes = self.outcomes()?;
        if self.json {
            let json: Vec<_> = outcomes.iter().map(Outcome::json).collect();
            println!("{:#}", Value::from(json));
        } else {
            outcomes.iter().for_each(Outcome::print);
        }
        Ok(outcomes.iter().all(Outcome::holds))
    }

    /// Runs the programs with each list of mechanisms, then the unclean ones without the engine.
    fn outcomes(&self) -> anyhow::Result<Vec<Outcome>> {
        let packed = Rc::new(self.pack()?);
        let with = self.halves(&packed)?;
        let again = (0..packed.programs.len()).filter(|&number| {
            let is_clean = |ran: &ProgramResult| is_clean(&packed.programs[number], ran);
            with.iter().any(|half| !half.of(number).is_some_and(is_clean))
        });
        let without = Rc::new(self.half(&packed, &again.collect::<Vec<_>>(), "off")?);
        let outcome = |(mechanisms, with): (&String, SoakRun)| Outcome {
            packed: packed.clone(),
            flavour: self.kernel,
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
    /// If a kernel is missing or can't be booted, or if there is nothing to run.
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
        // Starting a program takes a pair of sockets, which the configuration of `quell` lacks.
        if !self.kernel.has_engine() || self.kernel == Flavour::Quell {
            bail!(
                "the kernel `{}` cannot run programs with the engine on and off: use `debug`, `kasan` or `mutants`",
                self.kernel.name()
            );
        }
        self.kernel.built()?;
        let packed = programs::pack(&self.only, self.seconds)?;
        for what in &packed.skipped {
            eprintln!("SKIPPED: {what}");
        }
        if packed.programs.is_empty() {
            bail!("no program to run");
        }
        Ok(packed)
    }

    /// Runs the programs with these numbers, and shows each result. If one ends the kernel, the next boot continues
    /// after it.
    fn half(
        &self,
        packed: &ProgramImage,
        numbers: &[usize],
        mechanisms: &str,
    ) -> anyhow::Result<SoakRun> {
        let mut run = SoakRun { ran: Vec::new(), counted: None };
        if numbers.is_empty() {
            return Ok(run);
        }
        let kernel = linux::find(Some(&self.kernel.built()?), None, false)?;
        let guest = linux::guest()?;
        let on = format!("quell={mechanisms}");
        let forget = self.kernel.forget(self.forget.as_deref())?;
        let words = WORDS.into_iter().chain([on.as_str()]).chain(DISKS).map(String::from);
        let boot = Boot {
            kernel: &kernel,
            emulator: self.emulator.as_deref(),
            cpus: self.cpus,
            memory_mb: MEMORY_MB,
            icount: self.counted || self.emulator.is_some(),
            words: words.chain(forget).collect(),
            limit: Duration::from_secs(60 * self.minutes),
            verbose: self.verbose,
        };
        let mut first = 0;
        while first < numbers.len() {
            let left = &numbers[first..];
            let list: Vec<Program> =
                left.iter().map(|&number| packed.programs[number].clone()).collect();
            let archive = linux::initial_files(&kernel, &guest, &[], &list, &packed.files)?;
            let mut running = None;
            let (outcome, mut splats, counted) = boot.follow(&archive, |event, splats| {
                if let Ok(event) = event
                    && let Some(ran) = ended(event, &mut running, left, splats)
                {
                    show(mechanisms, packed, &ran);
                    run.ran.push(ran);
                }
            })?;
            if outcome.passed() {
                run.counted = counted;
                break;
            }
            let Some(place) = running else {
                return Err(boot.failed(&outcome));
            };
            let mut last = vec![outcome.failure.unwrap_or_else(|| "it did not end".into())];
            last.extend(outcome.last_lines);
            let (program, splats) = (left[place], splats.take());
            let ran = ProgramResult { program, last, splats, ..ProgramResult::default() };
            show(mechanisms, packed, &ran);
            run.ran.push(ran);
            first += place + 1;
        }
        Ok(run)
    }
}

/// Notes the place of a program that starts. Returns the result of the one that ended. `numbers` are the numbers of the
/// boot's programs.
fn ended(
    event: Event,
    running: &mut Option<usize>,
    numbers: &[usize],
    splats: &mut Splats,
) -> Option<ProgramResult> {
    if let Event::Starts { program, .. } = event {
        *running = Some(program);
    } else if let Event::Ended { how, milliseconds, passed, failed, last, .. } = event {
        let (program, splats) = (numbers[running.take()?], splats.take());
        let how = Some(how);
        return Some(ProgramResult { program, how, milliseconds, passed, failed, last, splats });
    }
    None
}

/// Shows a result on standard error.
fn show(mechanisms: &str, packed: &ProgramImage, ran: &ProgramResult) {
    let program = &packed.programs[ran.program];
    let came = ProgramOutcome::of(program, ran);
    let (word, seconds) = (came.word(), ran.milliseconds.div_ceil(1000));
    let why = came.why().map(|why| format!(": {why}")).unwrap_or_default();
    eprintln!("quell={mechanisms}  {word}  {seconds:>4} s  {}{why}", program.name);
    for line in ran.splats.iter().flatten() {
        eprintln!("    {line}");
    }
    if matches!(came, ProgramOutcome::Failed(_)) {
        ran.last.iter().for_each(|line| eprintln!("    | {line}"));
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
    fn holds(&self) -> bool {
        let known = self.known();
        let agree = self.with.counted.as_ref().is_none_or(|counted| counted.agree().is_ok());
        agree && self.rows().all(|row| row.worse(&known).is_empty())
    }

    /// Prints a table and remarks.
    fn print(&self) {
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
    fn json(&self) -> Value {
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
            how,
            failed: failed.iter().map(|part| part.to_string()).collect(),
            splats: splats.iter().map(|line| vec![line.to_string()]).collect(),
            ..ProgramResult::default()
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
        let (none, code): (&[&str], _) = (&[], |code| Some(ExitKind::Code(code)));
        for (how, failed, splats, clean) in [
            (code(0), none, none, true),
            (code(4), none, none, false),
            (code(1), none, none, false),
            (None, none, none, false),
            (code(0), &["part"], none, false),
            (code(0), none, &["BUG: x"], false),
        ] {
            let ran = ran(how, failed, splats);
            assert_eq!(is_clean(&program("p"), &ran), clean, "{ran:?}");
        }
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

    #[test]
    fn a_splat_belongs_to_the_program_that_runs() {
        let (mut splats, mut running) = (Splats::default(), None);
        let mut event = |event, splats: &mut Splats| ended(event, &mut running, &[3, 4, 5], splats);
        let end = || Event::Ended {
            program: 0,
            how: ExitKind::Code(0),
            milliseconds: 5,
            passed: 0,
            failed: Vec::new(),
            last: Vec::new(),
        };
        assert!(event(Event::Starts { program: 1, name: String::new() }, &mut splats).is_none());
        splats.line("BUG: Bad page state in process x  pfn:00001");
        let ran = event(end(), &mut splats).unwrap();
        assert_eq!((ran.program, ran.splats.len()), (4, 1));
        event(Event::Starts { program: 2, name: String::new() }, &mut splats);
        assert!(event(end(), &mut splats).unwrap().splats.is_empty());
    }
}

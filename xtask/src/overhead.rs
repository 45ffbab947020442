//! `cargo xtask overhead`: what recording costs a program, measured with it and without by turns. The file
//! is long because its three parts share the turns from which they are taken.
//!
//! A program that does the same all the time (`profiler/record/programs/steady.c`) tells each millisecond how much
//! it has done and how much CPU time that took. While it runs, `quell record -p` records it for some seconds, then
//! nothing does, then the other way round, and so on: a turn with and one without that follow each other are a pair,
//! and every other pair is in the opposite order.
//!
//! What an operation takes differs by tens of percent from one second to the next on a virtual machine, and recording
//! may cost one. So it is asked twice, each time where the noise is least. *Outside of windows*, recording makes every
//! operation dearer by the same (a call goes a longer way, an interrupt is counted or recorded), so cheap milliseconds
//! have that as well as dear ones, and what else the machine does makes milliseconds dearer, and none cheaper: what an
//! operation took in the cheapest twentieth of all milliseconds, at most, is compared between the turns of a pair. It
//! differs by a quarter of a percent from one turn to the next where seconds differ by five. *In
//! windows*, operations are dearer by half or more, and there are some tens of windows in a turn, so these milliseconds
//! are compared with the others of the same turn. Third comes the recorder's own CPU time, as the kernel counts it, as
//! a share of all that was used on the machine. The sum is what recording costs. What is told of a kind of work are
//! medians over pairs, and between which of the pairs the true median lies with a confidence of 95 %, whatever the
//! noise looks like: the test of signs. A turn with recording is looked at from the first byte of the recording on, so
//! what opening the events and reading the recording takes is not in the figures; the recorder prints that.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use quell_perf::counters::busy_ns;
use quell_perf::file::Recording;
use quell_perf::live::now_ns;
use quell_perf::{Item, Source, Window};

use super::output;
use super::programs::{median, overhead, release_quell, target, write_table};

/// The kinds of work, each with so many threads.
const KINDS: [(&str, usize); 4] = [("memory", 2), ("memory", 1), ("calls", 1), ("compute", 2)];

/// How long a recording of a turn takes, in seconds, and how much of that is looked at: a recording is in its file
/// within the first second.
const RECORDED: u64 = 5;
const LOOKED_AT: Duration = Duration::from_millis(3900);

/// How long a turn without recording is looked at.
const PLAIN: Duration = Duration::from_secs(2);

/// Which part of the undisturbed slices of a turn counts as cheap, and how many slices tell something.
const CHEAP: f64 = 0.05;
const ENOUGH: usize = 100;

/// A slice counts as undisturbed if all threads ran for so much of it.
const UNDISTURBED: f64 = 0.9;

/// How often it is looked whether something has come.
const POLL: Duration = Duration::from_millis(10);

/// What was asked for.
pub struct Asked {
    pairs: usize,
    write: bool,
    /// All, if none was named.
    kinds: Vec<&'static str>,
}

/// # Errors
/// What is wrong with the arguments, in a line.
pub fn asked(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked {
        pairs: 12,
        write: false,
        kinds: Vec::new(),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--write" => asked.write = true,
            "--pairs" => {
                let number = words.next().and_then(|number| number.parse().ok());
                let enough = number.filter(|&pairs| interval(pairs).is_some());
                asked.pairs = enough
                    .ok_or("--pairs takes a number, from 6: fewer tell nothing with confidence")?;
            }
            name => match KINDS.iter().find(|(kind, _)| *kind == name) {
                Some((kind, _)) => asked.kinds.push(kind),
                None => {
                    return Err(format!(
                        "there is no work {name}; there are memory, calls, compute"
                    ));
                }
            },
        }
    }
    Ok(asked)
}

/// Measures, and prints a table.
///
/// # Errors
/// If `quell` or the program does not build, or nothing can be recorded.
pub fn run(root: &Path, asked: &Asked) -> Result<(), String> {
    let quell = release_quell(root)?;
    let folder = target(root).join("record");
    let program = folder.join("steady");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let compiled = Command::new("cc")
        .args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"])
        .args([&program, &root.join("profiler/record/programs/steady.c")])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return Err("cc does not compile profiler/record/programs/steady.c".into());
    }
    let mut rows = Vec::new();
    for (kind, threads) in KINDS {
        if asked.kinds.is_empty() || asked.kinds.contains(&kind) {
            let mut steady = Steady::start(&program, &folder, kind, threads)?;
            let recording = folder.join("recording");
            let turns = (0..asked.pairs).map(|pair| steady.pair(&quell, &recording, pair % 2 == 1));
            let pairs = turns.collect::<Result<Vec<_>, _>>()?;
            let row = row(kind, threads, &pairs);
            // It takes minutes, and somebody may end it.
            eprintln!("{row}");
            rows.push(row);
        }
    }
    let table = table(&rows, asked.pairs);
    output::print(&table);
    if asked.write {
        write_table(&root.join("docs/record.md"), "cargo xtask overhead", &table)?;
    }
    Ok(())
}

/// The program, as it runs.
struct Steady {
    child: Child,
    threads: usize,
    /// What it says, line by line, from a turn's begin on.
    told: File,
}

/// What the program has done until then, by its own account.
#[derive(Clone, Copy)]
struct Told {
    at_ns: u64,
    done: u64,
    cpu_ns: u64,
}

/// What it did between two lines.
#[derive(Clone, Copy)]
struct Slice {
    from_ns: u64,
    to_ns: u64,
    done: f64,
    cpu_ns: f64,
}

impl Slice {
    fn is_in(&self, window: &Window) -> bool {
        self.from_ns < window.end_ns && window.start_ns < self.to_ns
    }
}

/// What recording has cost in a pair of turns.
struct Pair {
    /// CPU time of an operation without recording, in nanoseconds.
    each_ns: f64,
    /// By which share it took more outside of windows.
    outside: f64,
    /// By which share all took more because of what was dearer in windows.
    windows: f64,
    /// The recorder's own CPU time, as a share of all that was used on the machine.
    recorder: f64,
    /// What the recording said of all this.
    account: f64,
}

impl Pair {
    fn together(&self) -> f64 {
        (1.0 + self.outside) * (1.0 + self.windows) - 1.0 + self.recorder
    }
}

/// A turn in which it was recorded.
struct Recorded {
    slices: Vec<Slice>,
    windows: Vec<Window>,
    /// CPU time of the recorder meanwhile, as a share of all that was used on the machine.
    recorder: f64,
    account: f64,
}

impl Recorded {
    /// What it tells, with what an operation took in a turn without recording.
    fn with(&self, plain_ns: f64, threads: usize) -> Result<Pair, String> {
        let in_window = |slice: &&Slice| self.windows.iter().any(|window| slice.is_in(window));
        let (inside, outside): (Vec<&Slice>, Vec<&Slice>) = self.slices.iter().partition(in_window);
        let outside_ns = undisturbed(outside.iter().copied(), threads)?;
        let sum = |slices: &[&Slice], of: fn(&Slice) -> f64| -> f64 {
            slices.iter().copied().map(of).sum()
        };
        let done = |slice: &Slice| slice.done;
        let cpu = |slice: &Slice| slice.cpu_ns;
        let mean_ns = sum(&outside, cpu) / sum(&outside, done);
        let all_ns = sum(&outside, cpu) + sum(&inside, cpu);
        let dearer_ns = sum(&inside, cpu) - sum(&inside, done) * mean_ns;
        Ok(Pair {
            each_ns: plain_ns,
            outside: outside_ns / plain_ns - 1.0,
            windows: dearer_ns / (all_ns - dearer_ns),
            recorder: self.recorder,
            account: self.account,
        })
    }
}

/// What an operation took at most in the cheapest of the undisturbed slices of a turn.
fn undisturbed<'s>(slices: impl Iterator<Item = &'s Slice>, threads: usize) -> Result<f64, String> {
    let had_its_cpus = |slice: &&Slice| {
        let ran = slice.cpu_ns / (slice.to_ns - slice.from_ns) as f64;
        slice.done > 0.0 && ran >= UNDISTURBED * threads as f64
    };
    let each = slices.filter(had_its_cpus);
    let mut each: Vec<f64> = each.map(|slice| slice.cpu_ns / slice.done).collect();
    each.sort_by(f64::total_cmp);
    match each.len() {
        0..ENOUGH => Err(format!(
            "the program hardly had {threads} CPUs to itself, not even for some milliseconds: measure while less else \
             runs, or with `nice -n -10`"
        )),
        count => Ok(each[(count as f64 * CHEAP) as usize]),
    }
}

/// Slices between lines of the program, of those within a turn.
fn slices(lines: &str, from_ns: u64, to_ns: u64) -> Vec<Slice> {
    let told = lines.lines().filter_map(|line| {
        let mut numbers = line.split(' ').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Told {
            at_ns: next()?,
            done: next()?,
            cpu_ns: next()?,
        })
    });
    let told: Vec<Told> = told
        .filter(|told| (from_ns..to_ns).contains(&told.at_ns))
        .collect();
    let slice = |pair: &[Told]| Slice {
        from_ns: pair[0].at_ns,
        to_ns: pair[1].at_ns,
        done: (pair[1].done - pair[0].done) as f64,
        cpu_ns: (pair[1].cpu_ns - pair[0].cpu_ns) as f64,
    };
    told.windows(2).map(slice).collect()
}

/// CPU time of all threads of a process until now.
fn cpu_ns(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let ran = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    Some(threads.flatten().filter_map(ran).sum())
}

impl Steady {
    fn start(program: &Path, folder: &Path, kind: &str, threads: usize) -> Result<Self, String> {
        let path = folder.join("told");
        let told = File::create(&path).and_then(|file| Ok((file, File::open(&path)?)));
        let (write, told) = told.map_err(|error| format!("{}: {error}", path.display()))?;
        let child = Command::new(program)
            .args([kind, &threads.to_string()])
            .stdout(write)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        // What it touches first is not what it does.
        thread::sleep(Duration::from_millis(300));
        Ok(Self {
            child,
            threads,
            told,
        })
    }

    /// What it does from now on, for so long.
    fn turn(&mut self, time: Duration) -> Result<Vec<Slice>, String> {
        let mut lines = String::new();
        let from_ns = now_ns();
        thread::sleep(time);
        let to_ns = now_ns();
        let read = self.told.read_to_string(&mut lines);
        read.map_err(|error| format!("what the program has told: {error}"))?;
        Ok(slices(&lines, from_ns, to_ns))
    }

    /// What an operation takes while nothing is recorded, in nanoseconds.
    fn plain(&mut self) -> Result<f64, String> {
        undisturbed(self.turn(PLAIN)?.iter(), self.threads)
    }

    /// What it does while it is recorded.
    fn recorded(&mut self, quell: &Path, file: &Path) -> Result<Recorded, String> {
        let _ = fs::remove_file(file);
        let recorder = Command::new(quell)
            .args(["record", "--seconds", &RECORDED.to_string()])
            .args(["-p", &self.child.id().to_string(), "-o"])
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", quell.display()))?;
        let begun = Instant::now();
        let is_recorded = || fs::metadata(file).is_ok_and(|file| file.len() > 0);
        while !is_recorded() && begun.elapsed() < Duration::from_secs(30) {
            thread::sleep(POLL);
        }
        let used = || Some((cpu_ns(recorder.id())? as f64, busy_ns().ok()? as f64));
        let before = used();
        let slices = self.turn(LOOKED_AT);
        let used = used().zip(before);
        let output = recorder
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let account = overhead(&said).and_then(|said| said.strip_suffix(" %")?.parse::<f64>().ok());
        let (Some(account), Some((after, before))) = (account, used) else {
            return Err(said);
        };
        Ok(Recorded {
            slices: slices?,
            windows: windows(file)?,
            recorder: (after.0 - before.0) / (after.1 - before.1),
            account: account / 100.0,
        })
    }

    fn pair(&mut self, quell: &Path, file: &Path, recorded_first: bool) -> Result<Pair, String> {
        let (plain_ns, recorded) = if recorded_first {
            let recorded = self.recorded(quell, file)?;
            (self.plain()?, recorded)
        } else {
            (self.plain()?, self.recorded(quell, file)?)
        };
        recorded.with(plain_ns, self.threads)
    }
}

/// The windows of a recording.
fn windows(file: &Path) -> Result<Vec<Window>, String> {
    let mut recording = Recording::open(file).map_err(|error| error.to_string())?;
    let mut windows = Vec::new();
    while let Some(item) = recording.next().map_err(|error| error.to_string())? {
        if let Item::Window(window) = item {
            windows.push(window);
        }
    }
    Ok(windows)
}

impl Drop for Steady {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Between which of so many figures in their order, from 0, the median of all that there could be lies with a
/// confidence of 95 %: as many lie below it as coins show heads. `None` if not even the least and the greatest enclose
/// it with that confidence.
fn interval(count: usize) -> Option<(usize, usize)> {
    let mut chance = 0.5f64.powi(i32::try_from(count).ok()?);
    let mut below = 0.0;
    let mut first = None;
    for heads in 0..count.div_ceil(2) {
        below += chance;
        if below > 0.025 {
            break;
        }
        first = Some(heads);
        chance *= (count - heads) as f64 / (heads + 1) as f64;
    }
    first.map(|first| (first, count - 1 - first))
}

/// The median of some figures, and the two between which it lies.
fn middle(figures: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let (least, most) = interval(figures.len())?;
    Some((
        median(figures.iter().copied()),
        figures[least],
        figures[most],
    ))
}

fn row(kind: &str, threads: usize, pairs: &[Pair]) -> String {
    let figure = |of: fn(&Pair) -> f64| {
        let told = middle(pairs.iter().map(of));
        told.map_or(String::new(), |(median, least, most)| {
            let [median, least, most] = [median, least, most].map(|share| share * 100.0);
            format!("{median:+.2} % ({least:+.2} to {most:+.2})")
        })
    };
    let each_ns = median(pairs.iter().map(|pair| pair.each_ns));
    let account = median(pairs.iter().map(|pair| pair.account));
    format!(
        "| {kind} | {threads} | {:.1} us | {} | {} | {} | {} | {:.2} % |",
        each_ns / 1e3,
        figure(|pair| pair.outside),
        figure(|pair| pair.windows),
        figure(|pair| pair.recorder),
        figure(Pair::together),
        account * 100.0
    )
}

fn table(rows: &[String], pairs: usize) -> String {
    let mut text = String::from(
        "| work | threads | an operation | dearer outside of windows | in windows | the recorder itself | together | by its own account |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for row in rows {
        let _ = writeln!(text, "{row}");
    }
    let _ = writeln!(
        text,
        "\nMedians of {pairs} pairs; in brackets, where the median lies with 95 % confidence."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_figures_that_the_test_of_signs_names() {
        // From tables of the sign test.
        for (count, expected) in [
            (5, None),
            (6, Some((0, 5))),
            (9, Some((1, 7))),
            (20, Some((5, 14))),
        ] {
            assert_eq!(interval(count), expected, "{count}");
        }
        let told = middle([3.0, 1.0, 2.0, 9.0, 4.0, 5.0].into_iter());
        assert_eq!(told, Some((3.5, 1.0, 9.0)));
    }

    /// A program of one thread whose operations take so many nanoseconds at a time, told each millisecond.
    fn told(each_ns: impl Fn(u64) -> f64) -> String {
        let mut done = 0.0;
        (0..4000).fold(String::new(), |mut text, ms| {
            let at = ms * 1_000_000;
            let _ = writeln!(text, "{at} {done:.0} {at}");
            done += 1e6 / each_ns(ms);
            text
        })
    }

    #[test]
    fn what_recording_costs_is_told_from_what_else_makes_operations_dearer() {
        // Each operation takes 1 % more; all take twice as long in a window of 10 ms in each 500 ms; and three of four
        // milliseconds are made dearer by half and more by something else.
        let noise = |ms: u64| [1.0, 1.5, 1.7, 2.0][(ms % 4) as usize];
        let plain = told(noise);
        let is_open = |ms: u64| ms % 500 < 12;
        let dear = told(|ms| noise(ms) * 1.01 * if is_open(ms) { 2.0 } else { 1.0 });
        let plain_ns = undisturbed(slices(&plain, 0, u64::MAX).iter(), 1).unwrap();
        assert!((plain_ns - 1.0).abs() < 1e-3, "{plain_ns}");
        let recorded = Recorded {
            slices: slices(&dear, 0, u64::MAX),
            windows: (0..8)
                .map(|n| Window {
                    start_ns: n * 500_000_000,
                    end_ns: n * 500_000_000 + 12_000_000,
                })
                .collect(),
            recorder: 0.001,
            account: 0.03,
        };
        let pair = recorded.with(plain_ns, 1).unwrap();
        let near = |figure: f64, expected: f64| (figure - expected).abs() < 0.0005;
        assert!(near(pair.outside, 0.01), "{}", pair.outside);
        // 12 ms in which half of the work is done, of 488 + 6.
        assert!(near(pair.windows, 6.0 / 494.0), "{}", pair.windows);
        assert!(near(pair.recorder, 0.001), "{}", pair.recorder);
        assert!(near(pair.together(), 1.01 * 500.0 / 494.0 - 0.999));
    }

    #[test]
    fn a_program_that_never_has_its_cpus_tells_nothing() {
        let wrong = undisturbed(slices(&told(|_| 1.0), 0, u64::MAX).iter(), 2);
        assert!(wrong.unwrap_err().contains("2 CPUs"));
    }

    #[test]
    fn too_few_pairs_and_unknown_work_are_named() {
        assert!(asked(&["--pairs".into(), "5".into()]).is_err());
        let wrong = asked(&["sleep".into()]).err().unwrap();
        assert!(wrong.contains("sleep") && wrong.contains("memory"));
    }
}

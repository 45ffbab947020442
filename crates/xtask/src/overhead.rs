//! `cargo xtask overhead`: what recording costs a program, measured with it and without by turns.
//!
//! A program that does the same all the time (`crates/quell-record/programs/steady.c`) tells how much it has done and
//! how much CPU time that took. While it runs, `quell record -p` records it for some seconds, then nothing does, then
//! the other way round, and so on: a turn with and one without that follow each other are a pair, and every other pair
//! is in the opposite order, so that what a host becomes slower or faster in the meantime counts as often for the one
//! as for the other. What is told of a kind of work is the median over pairs of how much more an operation took while
//! recorded, and between which of the pairs the true median lies with a confidence of 95 %, whatever the noise looks
//! like: the test of signs. A turn with recording is looked at from the first byte of the recording on, so what opening
//! the events and reading the recording takes is not in the figure; the recorder prints that.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::output;
use super::programs::{median, overhead, release_quell, target, write_table};

/// The kinds of work, each with so many threads.
const KINDS: [(&str, usize); 4] = [("memory", 2), ("memory", 1), ("calls", 1), ("compute", 2)];

/// How long a recording of a turn takes, in seconds, and how much of that is looked at: a recording is in its file
/// within the first second.
const RECORDED: u64 = 3;
const LOOKED_AT: Duration = Duration::from_millis(1900);

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
        .args([
            &program,
            &root.join("crates/quell-record/programs/steady.c"),
        ])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return Err("cc does not compile crates/quell-record/programs/steady.c".into());
    }
    let mut rows = Vec::new();
    for (kind, threads) in KINDS {
        if asked.kinds.is_empty() || asked.kinds.contains(&kind) {
            let steady = Steady::start(&program, kind, threads)?;
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
    /// What it said, and when.
    told: Arc<Mutex<Vec<Told>>>,
}

#[derive(Clone, Copy)]
struct Told {
    at: Instant,
    done: u64,
    cpu_ns: u64,
}

/// What an operation took, in nanoseconds.
#[derive(Clone, Copy)]
struct Took {
    cpu: f64,
    wall: f64,
}

/// An operation without recording, and with it; what the recording said of its own cost, in percent.
struct Pair {
    plain: Took,
    recorded: Took,
    account: f64,
}

impl Steady {
    fn start(program: &Path, kind: &str, threads: usize) -> Result<Self, String> {
        let mut child = Command::new(program)
            .args([kind, &threads.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let lines = BufReader::new(child.stdout.take().ok_or("the program has no output")?);
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = told.clone();
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let at = Instant::now();
                let numbers = line.split_once(' ');
                let numbers =
                    numbers.and_then(|(done, cpu)| Some((done.parse().ok()?, cpu.parse().ok()?)));
                if let Some((done, cpu_ns)) = numbers {
                    let mut told = into.lock().unwrap_or_else(PoisonError::into_inner);
                    told.push(Told { at, done, cpu_ns });
                }
            }
        });
        // What it touches first is not what it does.
        thread::sleep(Duration::from_millis(300));
        Ok(Self { child, told })
    }

    /// What an operation took since then, for as long as a turn is looked at.
    fn took(&self, from: Instant) -> Result<Took, String> {
        let to = from + LOOKED_AT;
        thread::sleep(to.saturating_duration_since(Instant::now()));
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut within = told.iter().filter(|told| (from..to).contains(&told.at));
        let ends = within.next().copied().zip(within.next_back().copied());
        let (first, last) = ends.ok_or("the program has stopped")?;
        let done = (last.done - first.done) as f64;
        Ok(Took {
            cpu: (last.cpu_ns - first.cpu_ns) as f64 / done,
            wall: last.at.duration_since(first.at).as_nanos() as f64 / done,
        })
    }

    /// What an operation takes while it is recorded, and the recording's account of its cost.
    fn recorded(&self, quell: &Path, file: &Path) -> Result<(Took, f64), String> {
        let _ = fs::remove_file(file);
        let recorder = Command::new(quell)
            .args([
                "record",
                "--seconds",
                &RECORDED.to_string(),
                "-p",
                &self.child.id().to_string(),
                "-o",
            ])
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
        let took = self.took(Instant::now());
        let output = recorder
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        let account = overhead(&said).and_then(|said| said.strip_suffix(" %")?.parse().ok());
        Ok((took?, account.ok_or_else(|| said.into_owned())?))
    }

    fn pair(&self, quell: &Path, file: &Path, recorded_first: bool) -> Result<Pair, String> {
        let plain = || self.took(Instant::now());
        let (plain, (recorded, account)) = if recorded_first {
            let recorded = self.recorded(quell, file)?;
            (plain()?, recorded)
        } else {
            (plain()?, self.recorded(quell, file)?)
        };
        Ok(Pair {
            plain,
            recorded,
            account,
        })
    }
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
    let more = |of: fn(&Took) -> f64| {
        let figures = pairs
            .iter()
            .map(|pair| of(&pair.recorded) / of(&pair.plain) - 1.0);
        middle(figures).map_or(String::new(), |(median, least, most)| {
            format!(
                "{:+.2} % ({:+.2} to {:+.2})",
                median * 100.0,
                least * 100.0,
                most * 100.0
            )
        })
    };
    let account = median(pairs.iter().map(|pair| pair.account));
    let each = median(pairs.iter().map(|pair| pair.plain.cpu));
    format!(
        "| {kind} | {threads} | {:.1} us | {} | {} | {account:.2} % |",
        each / 1e3,
        more(|took| took.cpu),
        more(|took| took.wall)
    )
}

fn table(rows: &[String], pairs: usize) -> String {
    let mut text = String::from(
        "| work | threads | CPU time of an operation | CPU time while recorded | time while recorded | by the recorder's account |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
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

    #[test]
    fn how_much_more_an_operation_takes_is_told_pair_by_pair() {
        let pair = |slow: f64| {
            let took = |cpu: f64| Took { cpu, wall: cpu };
            Pair {
                plain: took(1000.0 * slow),
                recorded: took(1020.0 * slow),
                account: 1.5,
            }
        };
        // The host becomes slower all the time, and each pair says the same.
        let pairs: Vec<Pair> = (0..8).map(|n| pair(1.0 + f64::from(n))).collect();
        assert_eq!(
            row("calls", 1, &pairs),
            "| calls | 1 | 4.5 us | +2.00 % (+2.00 to +2.00) | +2.00 % (+2.00 to +2.00) | 1.50 % |"
        );
    }

    #[test]
    fn too_few_pairs_and_unknown_work_are_named() {
        assert!(asked(&["--pairs".into(), "5".into()]).is_err());
        let wrong = asked(&["sleep".into()]).err().unwrap();
        assert!(wrong.contains("sleep") && wrong.contains("memory"));
    }
}

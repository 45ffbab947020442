//! `cargo xtask programs`: real programs as they are, recorded, and as `quell record` advises, by turns: what was
//! predicted, and what happened. The file is long because a fifth of it are its tests.
//!
//! `scripts/real-program` makes each ready. An operation is what the program counts (a request, a read, a transaction);
//! interrupts are those that the command and what it starts send to flush, counted by the kernel for `perf stat` while
//! nothing is recorded; CPU time is what the program says of itself. What is compared are medians over rounds, because
//! a round is a few seconds on a host that does other things as well. The tables in docs/record/ are what `--write`
//! puts there.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

use super::{cargo, output};

/// All programs that there are pages of.
const PROGRAMS: [&str; 9] = [
    "jemalloc",
    "mimalloc",
    "go",
    "go-collect",
    "wasmtime",
    "lmdb",
    "redis",
    "postgres",
    "ag",
];

/// What `scripts/real-program` ends with where a program cannot be had.
const ABSENT: i32 = 3;

/// What was asked for.
pub struct Asked {
    programs: Vec<String>,
    rounds: usize,
    seconds: usize,
    write: bool,
}

/// # Errors
/// What is wrong with the arguments, in a line.
pub fn asked(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked {
        programs: Vec::new(),
        rounds: 3,
        seconds: 6,
        write: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let number = words.next().and_then(|number| number.parse().ok());
            number
                .filter(|&number| number > 0)
                .ok_or(format!("{word} takes a number, from 1"))
        };
        match word.as_str() {
            "--rounds" => asked.rounds = number()?,
            "--seconds" => asked.seconds = number()?,
            "--write" => asked.write = true,
            name if PROGRAMS.contains(&name) => asked.programs.push(name.into()),
            unknown => {
                return Err(format!(
                    "there is no program {unknown}; there are {}",
                    PROGRAMS.join(", ")
                ));
            }
        }
    }
    if asked.programs.is_empty() {
        asked.programs = PROGRAMS.map(str::to_owned).to_vec();
    }
    Ok(asked)
}

/// Runs the programs.
///
/// # Errors
/// If `quell` does not build, or a program does not do what it should.
pub fn run(root: &Path, asked: &Asked) -> Result<(), String> {
    release_quell(root)?;
    for name in &asked.programs {
        let Some(program) = Program::ready(root, name, asked.seconds)? else {
            continue;
        };
        let rounds = (0..asked.rounds).map(|_| program.round());
        let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
        let table = table(&rounds);
        output::print(format_args!("\n{name}\n\n{table}"));
        if asked.write {
            let page = root.join(format!("docs/record/{name}.md"));
            write_table(&page, "cargo xtask programs", &table)?;
        }
    }
    Ok(())
}

/// Builds `quell` as it is released; where it is then.
pub fn release_quell(root: &Path) -> Result<PathBuf, String> {
    let built = cargo::command()
        .current_dir(root)
        .args(["build", "--release", "--quiet", "--package", "quell-cli"])
        .status();
    match built.is_ok_and(|status| status.success()) {
        true => Ok(target(root).join("release/quell")),
        false => Err("quell does not build".into()),
    }
}

/// Where what is built is put.
pub fn target(root: &Path) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => target.into(),
        None => root.join("target"),
    }
}

/// Puts a table in its place in a page: between the line that names the command it comes from, and the next that says it ends.
pub fn write_table(page: &Path, command: &str, table: &str) -> Result<(), String> {
    const END: &str = "<!-- its end -->\n";
    let begin = format!("<!-- {command} -->\n");
    let name = page.display();
    let text = fs::read_to_string(page).map_err(|error| format!("{name}: {error}"))?;
    let place = text.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{begin}{table}{END}{after}"))
    });
    let text = place.ok_or(format!("{name} has no place for its table"))?;
    fs::write(page, text).map_err(|error| format!("{name}: {error}"))
}

/// A program that was made ready.
struct Program {
    name: String,
    /// The kind of advice that is followed.
    kind: String,
    before: Vec<String>,
    after: Vec<String>,
    quell: PathBuf,
    counts: PathBuf,
    recording: PathBuf,
}

/// A run of the program.
struct Run {
    operations: f64,
    /// Seconds.
    cpu: f64,
    /// Interrupts that it sent, if they were counted.
    sent: Option<f64>,
}

impl Run {
    fn cpu_each(&self) -> f64 {
        self.cpu / self.operations
    }

    fn sent_each(&self) -> f64 {
        self.sent.unwrap_or(0.0) / self.operations
    }
}

/// At least, at most.
#[derive(Clone, Copy, Default)]
struct Range(f64, f64);

impl Range {
    /// How far a figure lies outside.
    fn misses(self, figure: f64) -> f64 {
        (self.0 - figure).max(figure - self.1).max(0.0)
    }
}

/// What a recording said.
struct Said {
    /// The share of the program's interrupts and of its CPU time that the advice takes away.
    interrupts: Range,
    cpu: Range,
    /// The share of all that the kernel counted that is laid at a cause.
    attributed: f64,
    /// What recording cost, by its own account, as the recorder says it: a share, or that it was more than all.
    overhead: String,
    /// The lines that answer the question.
    answer: String,
}

struct Round {
    before: Run,
    recorded: Run,
    after: Run,
    said: Said,
}

impl Program {
    /// Has a program made ready; nothing if it cannot be had, which the script says.
    fn ready(root: &Path, name: &str, seconds: usize) -> Result<Option<Self>, String> {
        let script = root.join("scripts/real-program");
        let target = target(root);
        let output = Command::new(&script)
            .args([name, &seconds.to_string()])
            .output()
            .map_err(|error| format!("{}: {error}", script.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(ABSENT) {
            eprint!("{errors}");
            return Ok(None);
        }
        let told = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = told.lines().collect();
        let [name, _, kind, before, after] = lines[..] else {
            return Err(format!("{}: {errors}", script.display()));
        };
        let words = |line: &str| line.split('\t').map(str::to_owned).collect();
        Ok(Some(Program {
            name: name.to_owned(),
            kind: kind.to_owned(),
            before: words(before),
            after: words(after),
            quell: target.join("release/quell"),
            counts: target.join("record/count"),
            recording: target.join("record/recording"),
        }))
    }

    fn round(&self) -> Result<Round, String> {
        let before = self.counted(&self.before)?;
        let (recorded, said) = self.recorded()?;
        let after = self.counted(&self.after)?;
        Ok(Round {
            before,
            recorded,
            after,
            said,
        })
    }

    /// Runs it, and counts its interrupts.
    fn counted(&self, words: &[String]) -> Result<Run, String> {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-o"])
            .arg(&self.counts)
            .args(["-e", "csd:csd_queue_cpu"])
            .args(["--filter", "func.function == flush_tlb_func", "--"])
            .args(words);
        let (out, _) = said(&mut perf)?;
        let counts = fs::read_to_string(&self.counts).unwrap_or_default();
        let count = counts.lines().find(|line| line.contains("csd_queue_cpu"));
        let count = count.and_then(|line| line.split(',').next()?.parse().ok());
        let sent = count.ok_or("perf has counted nothing")?;
        Ok(Run {
            sent: Some(sent),
            ..ran(&out)?
        })
    }

    /// Runs it as it is, recorded as by default.
    fn recorded(&self) -> Result<(Run, Said), String> {
        let mut quell = Command::new(&self.quell);
        quell.args(["record", "--program", &self.name, "-o"]);
        quell.arg(&self.recording).arg("--").args(&self.before);
        let (out, errors) = said(&mut quell)?;
        let mut import = Command::new(&self.quell);
        import
            .args(["record", "--json", "--import"])
            .arg(&self.recording);
        let (json, _) = said(&mut import)?;
        let json: Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        // The program's own line comes first, and tables come behind an empty one.
        let answer = out.lines().skip(1).take_while(|line| !line.is_empty());
        let said = Said {
            answer: answer.map(|line| format!("{line}\n")).collect(),
            overhead: overhead(&errors).ok_or(&errors)?.to_owned(),
            ..self.predicted(&json)
        };
        Ok((ran(&out)?, said))
    }

    fn predicted(&self, json: &Value) -> Said {
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let list = |key: &str| json[key].as_array().cloned().unwrap_or_default();
        let suffix = format!("[{}]", self.name);
        let (mut all, mut mappings) = (0.0, 0.0);
        for site in list("sites") {
            let program = site["stack"].as_array().and_then(|stack| stack.last());
            let interrupts = number(&site["interrupts"]);
            if program.is_some_and(|last| *last == suffix) {
                all += interrupts;
            }
            if site["call"] == "kernel mappings" {
                mappings += interrupts;
            }
        }
        let (mut interrupts, mut cpu) = (Range::default(), Range::default());
        for advice in list("advice") {
            if advice["program"] == self.name && advice["kind"] == self.kind {
                let now = number(&advice["interrupts"]);
                interrupts.0 += (now - number(&advice["left"][1])) / f64::max(all, 1.0);
                interrupts.1 += (now - number(&advice["left"][0])) / f64::max(all, 1.0);
                cpu.0 += number(&advice["share"]["least"]);
                cpu.1 += number(&advice["share"]["most"]);
            }
        }
        let counted = number(&json["interrupts"]);
        Said {
            interrupts: Range(interrupts.0.min(1.0), interrupts.1.min(1.0)),
            cpu: Range(cpu.0.min(1.0), cpu.1.min(1.0)),
            attributed: (number(&json["attributed"]) - mappings) / counted.max(1.0),
            overhead: String::new(),
            answer: String::new(),
        }
    }
}

/// What recording cost, in what the recorder says when it is done.
pub fn overhead(told: &str) -> Option<&str> {
    let (_, rest) = told.split_once("; overhead ")?;
    Some(rest.split_once(',')?.0)
}

/// What a command says on its two outputs.
fn said(command: &mut Command) -> Result<(String, String), String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{command:?} does not start: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    match output.status.success() {
        true => Ok((out, errors)),
        false => Err(format!("{command:?}: {errors}")),
    }
}

/// What a program says of itself: how many operations, and seconds of CPU time.
fn ran(out: &str) -> Result<Run, String> {
    let run = out.lines().find_map(|line| {
        let (operations, cpu) = line.split_once(' ')?;
        Some(Run {
            operations: operations.parse().ok()?,
            cpu: cpu.parse().ok()?,
            sent: None,
        })
    });
    run.filter(|run| run.operations > 0.0)
        .ok_or(format!("a program has done nothing: {out}"))
}

/// The middle of some figures, of which there is one at least.
pub fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    (figures[middle] + figures[figures.len() - 1 - middle]) / 2.0
}

/// What the last recording said, a row for each run, then what was predicted and what happened.
fn table(rounds: &[Round]) -> String {
    let answer = rounds.last().map_or("", |round| round.said.answer.as_str());
    let mut text = format!("```text\n{answer}```\n\n");
    text.push_str(
        "| round | how | operations | CPU us for each | shootdown interrupts for 1000 | attributed | overhead by its own account |\n\
         | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (round, of) in rounds.iter().enumerate() {
        let runs = [
            ("as it is", &of.before),
            ("recorded", &of.recorded),
            ("as advised", &of.after),
        ];
        for (how, run) in runs {
            let sent = match run.sent {
                Some(_) => format!("{:.2}", run.sent_each() * 1000.0),
                None => String::new(),
            };
            let told = match run.sent {
                None => format!("{:.0} % | {}", of.said.attributed * 100.0, of.said.overhead),
                Some(_) => " | ".into(),
            };
            let _ = writeln!(
                text,
                "| {} | {how} | {:.0} | {:.2} | {sent} | {told} |",
                round + 1,
                run.operations,
                run.cpu_each() * 1e6
            );
        }
    }
    let all = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
    let went = |before: f64, after: f64| match before > 0.0 {
        true => 1.0 - after / before,
        false => 0.0,
    };
    let before = all(|round| round.before.cpu_each());
    let cpu = went(before, all(|round| round.after.cpu_each()));
    let sent = went(
        all(|round| round.before.sent_each()),
        all(|round| round.after.sent_each()),
    );
    let spread = |run: fn(&Round) -> f64| {
        let runs = || rounds.iter().map(run);
        (runs().fold(0.0, f64::max) - runs().fold(f64::INFINITY, f64::min)) / median(runs())
    };
    let (spread, spread_recorded) = (
        spread(|round| round.before.cpu_each()),
        spread(|round| round.recorded.cpu_each()),
    );
    let sent_said = Range(
        all(|round| round.said.interrupts.0),
        all(|round| round.said.interrupts.1),
    );
    let cpu_said = Range(all(|round| round.said.cpu.0), all(|round| round.said.cpu.1));
    text.push_str("\n| median | predicted to go | went | off by, of what went | bound |\n| --- | ---: | ---: | ---: | ---: |\n");
    let mut row = |what: &str, said: Range, went: f64, bound: f64| {
        let off = said.misses(went) / went.abs().max(1e-9);
        let _ = writeln!(
            text,
            "| {what} | {:.1} to {:.1} % | {:.1} % | {:.0} % | {:.0} % |",
            said.0 * 100.0,
            said.1 * 100.0,
            went * 100.0,
            off * 100.0,
            bound * 100.0
        );
    };
    row("interrupts for each operation", sent_said, sent, 0.10);
    row(
        "CPU time for each operation",
        cpu_said,
        cpu,
        f64::max(0.25, spread),
    );
    let recorded = all(|round| round.recorded.cpu_each()) / before - 1.0;
    let _ = writeln!(
        text,
        "\nRecording made an operation take {:+.1} % of CPU time;\nruns that were not recorded differ by {:.1} %, recorded ones by {:.1} %.",
        recorded * 100.0,
        spread * 100.0,
        spread_recorded * 100.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(operations: f64, cpu: f64, sent: Option<f64>) -> Run {
        Run {
            operations,
            cpu,
            sent,
        }
    }

    #[test]
    fn what_was_predicted_is_held_against_what_happened() {
        let round = || Round {
            before: run(100.0, 1.0, Some(50.0)),
            recorded: run(100.0, 1.01, None),
            after: run(200.0, 1.0, Some(10.0)),
            said: Said {
                interrupts: Range(0.7, 0.8),
                cpu: Range(0.5, 0.6),
                attributed: 0.99,
                overhead: "1.50 %".into(),
                answer: "It is the TLB.\n".into(),
            },
        };
        let text = table(&[round(), round(), round()]);
        for line in [
            "| interrupts for each operation | 70.0 to 80.0 % | 90.0 % | 11 % | 10 % |",
            "| CPU time for each operation | 50.0 to 60.0 % | 50.0 % | 0 % | 25 % |",
            "| 2 | recorded | 100 | 10100.00 |  | 99 % | 1.50 % |",
            "+1.0 % of CPU time;\nruns that were not recorded differ by 0.0 %, recorded ones by 0.0 %.",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn advice_of_its_kind_and_program_is_added_up() {
        let program = Program {
            name: "lmdb".into(),
            kind: "reclaim".into(),
            before: Vec::new(),
            after: Vec::new(),
            quell: PathBuf::new(),
            counts: PathBuf::new(),
            recording: PathBuf::new(),
        };
        let advice = |program: &str, kind: &str| {
            serde_json::json!({"program": program, "kind": kind, "interrupts": 100, "left": [0, 20],
                "share": {"least": 0.1, "most": 0.3}})
        };
        let site = |program: &str, call: &str| serde_json::json!({"stack": ["f", program], "call": call, "interrupts": 200});
        let json = serde_json::json!({
            "advice": [advice("lmdb", "reclaim"), advice("lmdb", "pin"), advice("cc1", "reclaim")],
            "sites": [site("[lmdb]", "reclaim"), site("[cc1]", "munmap"), site("[cc1]", "kernel mappings")],
            "interrupts": 400, "attributed": 600,
        });
        let said = program.predicted(&json);
        assert_eq!((said.interrupts.0, said.interrupts.1), (0.4, 0.5));
        assert_eq!((said.cpu.0, said.cpu.1), (0.1, 0.3));
        assert_eq!(said.attributed, 1.0);
    }

    #[test]
    fn an_overhead_is_read_as_the_recorder_says_it() {
        let told = |overhead| {
            format!(
                "quell: recorded 9 events in 1.0 s into x; 0 lost; overhead {overhead}, and 4 ms of CPU time before and after"
            )
        };
        for said in ["1.51 %", "more than 100 %"] {
            assert_eq!(overhead(&told(said)), Some(said));
        }
        assert_eq!(overhead("cannot record"), None);
    }

    #[test]
    fn a_word_that_is_no_program_is_named() {
        let wrong = asked(&["memcached".into()]).err().unwrap();
        assert!(wrong.contains("memcached") && wrong.contains("redis"));
        assert!(asked(&["--rounds".into(), "0".into()]).is_err());
    }
}

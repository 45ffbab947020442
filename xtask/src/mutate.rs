//! `cargo xtask mutate`: tries mutants that are derived from the sources.

use quell_mutants::judge::{Check, Effort, Verdict, judge, record};
use quell_mutants::kept::{self, Entry, Kind, PLACE};
use quell_mutants::sources::{self, Mutant};
use quell_mutants::{build, tree};
use serde_json::json;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::path::Path;
use std::{io, thread};

/// The command's options.
#[derive(Debug, Default)]
pub struct Request {
    /// The numbers of the mutants to try; all if empty.
    only: Vec<u32>,
    /// Those of files whose path contains this.
    file: Option<String>,
    /// The number of mutants to draw by the seed.
    sample: Option<usize>,
    seed: u64,
    /// Schedules of generated programs for each.
    schedules: Option<u64>,
    /// Whether these judge before scenarios and tests.
    generated_first: bool,
    jobs: Option<usize>,
    json: bool,
    list: bool,
    thorough: bool,
    /// Whether only the engine's tests judge.
    tests: bool,
}

/// Parses the arguments.
///
/// # Errors
/// Returns a message of one line.
pub fn asked(words: &[String]) -> Result<Request, String> {
    let mut asked = Request::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("`{text}` is not a number"))
        }
        match &**word {
            "--only" => asked.only.push(number(value()?)?),
            "--file" => asked.file = Some(value()?.clone()),
            "--sample" => asked.sample = Some(number(value()?)?),
            "--seed" => asked.seed = number(value()?)?,
            "--schedules" => asked.schedules = Some(number(value()?)?),
            "--generated-first" => asked.generated_first = true,
            "--jobs" => asked.jobs = Some(number(value()?)?),
            "--json" => asked.json = true,
            "--list" => asked.list = true,
            "--tests" => asked.tests = true,
            "--thorough" => asked.thorough = true,
            unknown => return Err(format!("mutate knows no {unknown}")),
        }
    }
    Ok(asked)
}

fn told(number: u32, mutant: &Mutant) -> String {
    let Mutant { name, line } = mutant;
    let nth = if name.nth > 1 { format!(", number {}", name.nth) } else { String::new() };
    format!(
        "{number}: {}:{line}, {}, `{}`: {}{nth}",
        name.file, name.function, name.text, name.change
    )
}

/// Returns the numbers of the chosen mutants.
fn chosen(asked: &Request, mutants: &[Mutant], untyped: &BTreeMap<u32, String>) -> Vec<u32> {
    let fits = |(number, mutant): &(u32, &Mutant)| {
        !untyped.contains_key(number)
            && (asked.only.is_empty() || asked.only.contains(number))
            && asked.file.as_ref().is_none_or(|file| mutant.name.file.contains(file))
    };
    let mut numbers: Vec<u32> = (1..).zip(mutants).filter(fits).map(|(number, _)| number).collect();
    if let Some(most) = asked.sample {
        // We draw by name, not by number, because each new line of the engine changes the numbers. So a seed draws the
        // same mutants as long as they exist.
        let drawn = |number: &u32| {
            let mut hasher = DefaultHasher::new();
            (asked.seed, &mutants[*number as usize - 1].name).hash(&mut hasher);
            hasher.finish()
        };
        numbers.sort_by_key(drawn);
        numbers.truncate(most);
        numbers.sort_unstable();
    }
    numbers
}

/// Returns the mistake in the list of survivors about a mutant, if any.
fn untrue(verdict: &Verdict, kept: Option<&Entry>, thorough: bool) -> Option<String> {
    match (verdict.lives(), kept.map(|entry| entry.kind)) {
        (true, None) => Some(format!("survives, and {PLACE} has no reason")),
        // A quick run may find it or miss it.
        (false, Some(Kind::Deep)) => None,
        (true, Some(Kind::Deep)) if thorough => {
            Some(format!("survives with --thorough, contrary to {PLACE}"))
        }
        (false, Some(_)) => Some(format!("dies, though {PLACE} keeps it ({verdict:?})")),
        _ => None,
    }
}

/// Performs the request.
///
/// # Errors
/// If a step fails, if an unlisted mutant survives, or if a listed one dies or doesn't exist.
pub fn run(root: &Path, asked: &Request) -> io::Result<()> {
    let sources = sources::read(root)?;
    let mutants = sources::mutants(&sources);
    let entries = kept::read(root)?;
    let untrue_list = |wrong: Vec<String>| io::Error::other(wrong.join("\n"));
    let kept = kept::numbers(&entries, &mutants).map_err(untrue_list)?;
    if asked.list {
        for (number, mutant) in (1..).zip(&mutants) {
            println!("{}", told(number, mutant));
        }
        return Ok(());
    }
    tree::copy_derived(root, &sources)?;
    let untyped = build::compile(root, &sources)?;
    let mut wrong: Vec<String> = Vec::new();
    for (number, entry) in &kept {
        if let Some(why) = untyped.get(number) {
            wrong.push(format!(
                "{PLACE} lists code that does not compile ({why}): {}, `{}`",
                entry.file, entry.text
            ));
        }
    }
    let judges = build::judges(root, !asked.tests)?;
    let mut numbers = chosen(asked, &mutants, &untyped);
    let drawn = numbers.len();
    if asked.sample.is_some() {
        numbers.retain(|number| !kept.contains_key(number));
    }
    let jobs =
        asked.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let effort = Effort {
        few: 12,
        more: 40,
        generated: (asked.schedules.unwrap_or(100_000), asked.seed.max(1)),
        generated_first: asked.generated_first,
        last: asked.thorough.then_some(2000),
    };
    // For up to 60 mutants, recording everything costs more than it saves.
    let record = match numbers.len() > 60 {
        true => Some(record(root, &judges, effort, jobs)?),
        false => None,
    };
    let tell = |number: u32, verdict: &Verdict| {
        if asked.json {
            let Mutant { name, line } = &mutants[number as usize - 1];
            let line = json!({
                "number": number, "file": name.file, "line": line, "function": name.function, "text": name.text,
                "change": name.change, "nth": name.nth, "kept": kept.contains_key(&number), "verdict": verdict,
            });
            println!("{line}");
        }
    };
    let mutant = |number: u32| &mutants[number as usize - 1];
    let with_file = |&number: &u32| (number, &*mutant(number).name.file);
    let files: Vec<(u32, &str)> = numbers.iter().map(with_file).collect();
    let verdicts = judge(&judges, record.as_ref(), &files, effort, jobs, tell)?;
    let became: BTreeMap<u32, Verdict> = numbers.into_iter().zip(verdicts).collect();
    wrong.extend(became.iter().filter_map(|(number, verdict)| {
        let entry = kept.get(number).copied();
        let untrue = untrue(verdict, entry, asked.thorough)?;
        Some(format!("{untrue}: {}", told(*number, mutant(*number))))
    }));
    if !asked.json {
        let count = |fits: &dyn Fn(&Verdict) -> bool| became.values().filter(|it| fits(it)).count();
        let killed = |check| {
            count(&|verdict| match verdict {
                Verdict::Killed(by, _) | Verdict::NeverEnded(by) => *by == check,
                Verdict::Survived | Verdict::Unreached => false,
            })
        };
        let listed = { became.iter() }
            .filter(|(number, verdict)| verdict.lives() && kept.contains_key(number))
            .count();
        println!(
            "{drawn} mutants, {} tried with {} generated schedules each: {} killed by scenarios, {} by generated \
             programs, {} by tests; {} live that {PLACE} explains, {} others; {} do not compile",
            became.len(),
            effort.generated.0,
            killed(Check::Scenarios),
            killed(Check::Generator),
            killed(Check::Tests),
            drawn - became.len() + listed,
            count(&Verdict::lives) - listed,
            untyped.len(),
        );
    }
    if wrong.is_empty() { Ok(()) } else { Err(untrue_list(wrong)) }
}

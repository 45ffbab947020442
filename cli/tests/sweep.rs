//! Sweeps: a grid in parts, or interrupted and resumed, gives the same file, byte for byte.

/// The writer of Parquet and its tests. They run with the command's tests, so that the library isn't built a second
/// time with this writer, which takes half a minute to build.
#[cfg(feature = "parquet")]
#[path = "../../model/experiments/src/sweep/parquet.rs"]
mod writer;

#[cfg(feature = "parquet")]
use quell_model::sweep::{Record, columns};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const GRID: &[&str] = &[
    "dontneed",
    "--machine",
    "haswell-server,kunpeng-920",
    "--policy",
    "baseline",
    "--policy",
    "all",
    "--cpus",
    "1,3",
    "--param",
    "pages=1..4",
    "--param",
    "iterations=5",
    "--seeds",
    "2",
];

/// Two machines, two policies, two numbers of CPUs, three numbers of pages, two seeds.
const RUNS: usize = 2 * 2 * 2 * 3 * 2;

fn quell(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.current_dir(folder).args(arguments);
    command.output().expect("quell starts")
}

fn sweep(folder: &Path, more: &[&str]) -> Output {
    quell(folder, &[&["sweep"], GRID, more].concat())
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn good(output: Output) -> String {
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn parts_that_are_merged_are_the_file_of_one_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let said =
        good(sweep(at, &["--results", "whole.jsonl", "--csv", "whole.csv", "--plot", "whole.svg"]));
    assert!(said.contains("breaches of the contract: 0"), "{said}");
    let whole = fs::read(at.join("whole.jsonl")).expect("results");
    assert_eq!(whole.iter().filter(|&&byte| byte == b'\n').count(), 1 + RUNS);
    let csv = fs::read_to_string(at.join("whole.csv")).expect("CSV");
    assert_eq!(csv.lines().count(), 1 + RUNS);
    assert!(fs::read_to_string(at.join("whole.svg")).expect("a plot").contains("<svg"));

    for part in ["1/3", "2/3", "3/3"] {
        let name = format!("part-{}.jsonl", &part[..1]);
        good(sweep(at, &["--shard", part, "--results", &name]));
    }
    let two = quell(at, &["merge", "part-2.jsonl", "part-1.jsonl", "--results", "two.jsonl"]);
    assert_eq!(two.status.code(), Some(1), "a third of it is missing");
    good(quell(
        at,
        &["merge", "part-3.jsonl", "two.jsonl", "part-1.jsonl", "--results", "merged.jsonl"],
    ));
    assert!(fs::read(at.join("merged.jsonl")).expect("results") == whole);

    // Files that disagree about a run aren't parts of one grid.
    let text = String::from_utf8(whole).expect("text");
    let (head, rest) = text.split_once('\n').expect("lines");
    let first = rest.lines().next().expect("a line");
    let other = first.replace("\"violations\":0", "\"violations\":1");
    fs::write(at.join("other.jsonl"), format!("{head}\n{other}\n")).expect("a file");
    let refused = quell(at, &["merge", "whole.jsonl", "other.jsonl", "--results", "x.jsonl"]);
    assert!(!refused.status.success());
    assert!(errors(&refused).contains("the result of run 0 differs"), "{}", errors(&refused));
}

#[cfg(unix)]
#[test]
fn two_sweeps_do_not_write_their_results_over_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    good(sweep(at, &["--results", "shared.jsonl"]));
    let whole = fs::read(at.join("shared.jsonl")).unwrap();
    // Another sweep holds the lock of the file.
    let other = fs::File::open(at.join("shared.jsonl")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = sweep(at, &["--results", "shared.jsonl"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors(&refused).contains("another command"), "{refused:?}");
    assert_eq!(fs::read(at.join("shared.jsonl")).unwrap(), whole);
    drop(other);
    good(sweep(at, &["--results", "shared.jsonl"]));
}

#[test]
fn a_sweep_goes_on_where_it_was_interrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    good(sweep(at, &["--results", "whole.jsonl"]));
    let whole = fs::read_to_string(at.join("whole.jsonl")).expect("results");
    // The file has ten runs, in another order, and half of an eleventh.
    let mut lines = whole.lines();
    let head = lines.next().expect("a head");
    let some: Vec<_> = lines.clone().take(10).collect();
    let mut cut = format!("{head}\n");
    for line in some.iter().rev() {
        cut += &format!("{line}\n");
    }
    cut += &lines.nth(10).expect("an eleventh")[..40];
    fs::write(at.join("cut.jsonl"), cut).expect("a file");
    let again = sweep(at, &["--results", "cut.jsonl"]);
    assert!(
        errors(&again).contains("skipping 10 runs that are already in cut.jsonl"),
        "{}",
        errors(&again)
    );
    good(again);
    assert!(fs::read_to_string(at.join("cut.jsonl")).expect("results") == whole);

    let other = sweep(at, &["--results", "cut.jsonl", "--param", "stride=2"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(errors(&other).contains("a sweep with other runs"), "{}", errors(&other));
    fs::write(at.join("text.jsonl"), "some\ntext\n").expect("a file");
    let other = sweep(at, &["--results", "text.jsonl"]);
    assert!(errors(&other).contains("text.jsonl:1: no results of a sweep"), "{}", errors(&other));
    assert_eq!(fs::read_to_string(at.join("text.jsonl")).expect("it"), "some\ntext\n");
}

/// A command built without the Parquet writer must explain how to get it.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_command_without_parquet_says_how_to_get_it_before_it_runs_anything() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = sweep(folder.path(), &["--results", "x.jsonl", "--parquet", "x.parquet"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = errors(&refused);
    assert!(said.contains("--features parquet"), "{said}");
    let left = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 0, "nothing was run");
}

/// The Parquet file has the columns of the CSV, in order, with the same values in fitting types.
#[cfg(feature = "parquet")]
#[test]
fn parquet_has_what_csv_has_with_types() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let grid = [
        &["sweep"],
        GRID,
        &["--set", "interrupt.send=500ns,2us", "--results", "x.jsonl"],
        &["--csv", "x.csv", "--parquet", "x.parquet"],
    ];
    let said = good(quell(at, &grid.concat()));
    assert!(said.contains("Parquet: x.parquet"), "{said}");
    let csv = fs::read_to_string(at.join("x.csv")).expect("CSV");
    assert!(!csv.contains('"'), "a comma is what separates");
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().expect("a head");
    let file = fs::File::open(at.join("x.parquet")).expect("Parquet");
    let file = SerializedFileReader::new(file).expect("Parquet");
    let fields = file.metadata().file_metadata().schema_descr();
    let found: Vec<_> = fields.columns().iter().map(|c| c.name().to_owned()).collect();
    assert_eq!(found, names);
    let mut rows = 0;
    for row in file.get_row_iter(None).expect("rows") {
        let cells = lines.next().expect("a line for each row");
        let row = row.expect("a row");
        for ((name, field), cell) in row.get_column_iter().zip(cells) {
            let same = match (field, name.as_str()) {
                (Field::ULong(count), "param.interrupt.send") => {
                    [(500, "500ns"), (2000, "2us")].contains(&(*count, cell))
                }
                (Field::ULong(count), _) => cell.parse() == Ok(*count),
                (Field::Double(value), "value" | "window_ns") => cell.parse() == Ok(*value),
                (Field::Double(value), name) if name.starts_with("latency.") => {
                    cell.parse() == Ok(*value)
                }
                (Field::Str(text), "workload" | "machine" | "policy") => cell == text,
                (Field::Null, "error") => cell.is_empty(),
                _ => false,
            };
            assert!(same, "{name}: {field:?} is not {cell:?}");
        }
        rows += 1;
    }
    assert_eq!((rows, lines.count()), (2 * RUNS, 0));
    let again = at.join("y.parquet");
    let place = again.to_str().expect("a path");
    good(quell(at, &["merge", "x.jsonl", "--results", "y.jsonl", "--parquet", place]));
    let [first, again] = ["x.parquet", "y.parquet"].map(|name| fs::read(at.join(name)));
    assert!(first.expect("it") == again.expect("it"));
}

/// Runs the job scripts of `docs/cluster` as a queue would: in a shell that has the number of the part.
#[cfg(unix)]
mod queues {
    use super::*;

    fn example(name: &str) -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cluster");
        fs::read_to_string(file.join(name)).expect("an example")
    }

    /// Returns the text after these words, which only one line may contain.
    fn behind<'t>(text: &'t str, words: &str) -> &'t str {
        let mut found = text.lines().filter_map(|line| Some(line.split_once(words)?.1));
        let one = found.next().expect("the words");
        assert_eq!(found.next(), None);
        one
    }

    fn part(folder: &Path, script: &str, variables: &[(&str, usize)]) {
        let command = Path::new(env!("CARGO_BIN_EXE_quell"));
        let mut path = command.parent().expect("a folder").as_os_str().to_owned();
        path.push(":/usr/bin:/bin");
        let mut shell = Command::new("bash");
        shell.args(["-euc", script]).current_dir(folder).env("PATH", path);
        for (name, value) in variables {
            shell.env(name, value.to_string());
        }
        good(shell.output().expect("a shell"));
    }

    fn merged(folder: &Path) -> Vec<u8> {
        let parts = (0..6).map(|part| format!("part-{part}.jsonl"));
        let parts: Vec<_> = parts.filter(|part| folder.join(part).exists()).collect();
        assert_eq!(parts.len(), 5);
        let parts = parts.iter().map(String::as_str);
        let merge: Vec<_> = ["merge"].into_iter().chain(parts).collect();
        good(quell(folder, &[&merge[..], &["--results", "all.jsonl"]].concat()));
        fs::read(folder.join("all.jsonl")).expect("results")
    }

    /// Checks that one host and the jobs of each queue produce the same results with the examples of this name.
    fn come_to_the_same(example_of: &str) {
        let folders = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
        let [one, slurm, kubernetes] =
            [&folders[0], &folders[1], &folders[2]].map(|dir| dir.path());

        let script = example(&format!("{example_of}.sbatch"));
        assert_eq!(behind(&script, "--array="), "1-5");
        let of = |id, count| [("SLURM_ARRAY_TASK_ID", id), ("SLURM_ARRAY_TASK_COUNT", count)];
        part(one, &script, &of(1, 1));
        for id in 1..=5 {
            part(slurm, &script, &of(id, 5));
        }
        let whole = fs::read(one.join("part-1.jsonl")).expect("results");
        assert!(whole.len() > 1000 && merged(slurm) == whole);

        let job = example(&format!("{example_of}.yaml"));
        assert_eq!(behind(&job, "  completions: "), "5");
        let block = job.split_once("- |\n").expect("a script").1;
        let block = block.lines().take_while(|line| line.starts_with("              "));
        let script = block.collect::<Vec<_>>().join("\n");
        for index in 0..5 {
            part(kubernetes, &script, &[("JOB_COMPLETION_INDEX", index)]);
        }
        assert!(merged(kubernetes) == whole);
    }

    #[test]
    fn a_sweep_by_the_jobs_of_a_queue_is_that_of_one_machine() {
        come_to_the_same("sweep");
    }

    #[test]
    fn a_search_by_the_jobs_of_a_queue_is_that_of_one_machine() {
        come_to_the_same("explore");
    }
}

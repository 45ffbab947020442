//! Sweeps and searches in parts, or interrupted and resumed. They give the same file as one machine, byte for byte, and
//! the same output.

/// The writer of Parquet and its tests. They run with the command's tests, so that the library isn't built a second
/// time with this writer, which takes half a minute to build.
#[cfg(feature = "parquet")]
#[path = "../../model/experiments/src/sweep/parquet.rs"]
mod writer;

#[cfg(feature = "parquet")]
use quell_model::sweep::{Record, columns};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{Ended, Folder, ended};

/// Two machines, two policies, two numbers of CPUs, three numbers of pages, two seeds.
const SWEEP: &str = "sweep dontneed --machine haswell-server,kunpeng-920 --policy baseline \
                     --policy all --cpus 1,3 --param pages=1..4 --param iterations=5 --seeds 2";
const RUNS: usize = 2 * 2 * 2 * 3 * 2;

/// The engine's own scenarios, a workload, and a program that breaks the contract on one machine under one policy. So
/// every complete search fails.
const SEARCH: &str =
    "explore unmap-access table-free dontneed broken.toml --param iterations=1 --schedules 30";
const BROKEN: &str = include_str!("../../python/tests/broken.toml");

/// Returns a folder with the file that the search names.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("broken.toml", BROKEN);
    folder
}

/// Returns the errors without progress lines, which appear if a busy host makes the work slow.
fn errors(ended: &Ended) -> String {
    let is_progress =
        |line: &&str| line.starts_with("searching: ") || line.starts_with("sweeping: ");
    let errors = ended.stderr.lines().filter(|line| !is_progress(line));
    errors.map(|line| format!("{line}\n")).collect()
}

/// Returns the output without the line that names the file.
fn said(ended: &Ended) -> String {
    let lines = ended.stdout.lines().filter(|line| !line.starts_with("results: "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn assert_refused(ended: Ended, why: &str) {
    let errors = errors(&ended.code(2).stderr(why));
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn parts_that_are_merged_are_the_file_of_one_machine() {
    let both = folder();
    for (whole, code, changed) in [
        (SWEEP, 0, ["\"violations\":0", "\"violations\":1"]),
        (SEARCH, 1, ["\"schedules\":30", "\"schedules\":31"]),
    ] {
        let folder = folder();
        let of_one = folder.run(&format!("{whole} --results whole.jsonl")).code(code);
        for part in 1..=3 {
            let part = format!("{whole} --shard {part}/3 --results part-{part}.jsonl");
            let part = folder.run(&part);
            assert!(matches!(part.code, Some(0 | 1)), "{part:?}");
        }
        let merge = |line: &str| folder.run(&format!("merge {line}"));
        let two = merge("part-2.jsonl part-1.jsonl --results two.jsonl");
        two.code(1).stdout(" missing");
        let merged = merge("part-3.jsonl two.jsonl part-1.jsonl --results merged.jsonl").code(code);
        assert!(said(&of_one).ends_with(&said(&merged)), "{of_one:#?} {merged:#?}");
        let file = folder.read("whole.jsonl");
        assert!(folder.read("merged.jsonl") == file);
        // Files that disagree about a run aren't parts of one whole.
        let (head, rows) = file.split_once('\n').expect("lines");
        let differs = rows.replacen(changed[0], changed[1], 1);
        assert_ne!(differs, rows);
        folder.write("differs.jsonl", format!("{head}\n{differs}"));
        let refused = merge("whole.jsonl differs.jsonl --results x.jsonl");
        assert!(errors(&refused).contains("differs from that in another file"), "{refused:?}");
        let (name, _) = whole.split_once(' ').expect("words");
        both.write(name, file);
    }
    both.run(&format!("{SEARCH} --seed 2 --results other-seed"));
    for (parts, why) in [
        ("sweep explore", "no results of a s"),
        ("explore sweep", "no results of a s"),
        ("explore other-seed", "other-seed is from a search with other cases"),
        ("explore --csv x.csv", "--csv: only for parts of a sweep"),
    ] {
        assert_refused(both.run(&format!("merge {parts} --results x.jsonl")), why);
    }
}

#[test]
fn work_goes_on_where_it_was_interrupted() {
    let folder = folder();
    for (whole, each, other, others) in [
        (SWEEP, "runs", "--param stride=2", "a sweep with other runs"),
        (SEARCH, "cases", "--seed 2", "a search with other cases"),
    ] {
        // What the sweep left is no part of a search.
        let _ = fs::remove_file(folder.join("whole.jsonl"));
        let of_one = folder.run(&format!("{whole} --results whole.jsonl"));
        let file = folder.read("whole.jsonl");
        // The file has the last ten runs, backwards, and half of another.
        let lines: Vec<_> = file.lines().collect();
        let some = lines[lines.len() - 10..].iter().rev();
        let some: String = some.map(|line| format!("{line}\n")).collect();
        folder.write("cut.jsonl", format!("{}\n{some}{}", lines[0], &lines[1][..40]));
        let again = folder.run(&format!("{whole} --results cut.jsonl"));
        let again = again.stderr(&format!("skipping 10 {each} that are already in cut.jsonl"));
        assert_eq!(again.code, of_one.code);
        assert!(folder.read("cut.jsonl") == file);
        let other = folder.run(&format!("{whole} {other} --results cut.jsonl"));
        assert_refused(other, others);
    }
    // A changed program makes another search than the file's, and so do minutes in place of schedules.
    folder.write("broken.toml", BROKEN.replace("policy = \"all\"", "policy = \"S4\""));
    let changed = folder.run(&format!("{SEARCH} --results cut.jsonl"));
    assert_refused(changed, "a search with other cases");
    let timed = folder.run("explore unmap-access --minutes 1 --results x.jsonl");
    assert_refused(timed, "--minutes");
    let empty = folder.run("explore unmap-access --machine x86 --policy all --shard 2/2");
    assert_refused(empty, "--shard 2/2");
    folder.write("text.jsonl", "some\ntext\n");
    let text = folder.run(&format!("{SWEEP} --results text.jsonl"));
    assert_refused(text, "text.jsonl:1: no results of a sweep");
    assert_eq!(folder.read("text.jsonl"), "some\ntext\n");
}

#[test]
fn a_search_prints_the_same_cases_with_a_file_and_without() {
    let folder = folder();
    let printed = folder.run(&format!("{SEARCH} --results kept.jsonl")).code(1);
    printed.stdout("VIOLATED").stdout("; 1 violation");
    let file = folder.read("kept.jsonl");
    let mut plain = folder.run(&format!("{SEARCH} --json")).json();
    let rows = plain["scenarios"].as_array_mut().expect("rows");
    for (index, (row, line)) in rows.iter_mut().zip(file.lines().skip(1)).enumerate() {
        // This figure depends on the host.
        row.as_object_mut().expect("a row").remove("schedules_per_cpu_second");
        row["index"] = index.into();
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).expect("a row"), *row);
    }
    assert_eq!(rows.len() + 1, file.lines().count());
}

#[test]
fn a_sweep_writes_a_table_and_a_plot() {
    let folder = Folder::new();
    let files = "--results whole.jsonl --csv whole.csv --plot whole.svg";
    let sweep = folder.run(&format!("{SWEEP} {files}")).code(0);
    sweep.stdout("breaches of the contract: 0");
    for table in ["whole.jsonl", "whole.csv"] {
        assert_eq!(folder.read(table).lines().count(), 1 + RUNS);
    }
    assert!(folder.read("whole.svg").contains("<svg"));
}

#[cfg(unix)]
#[test]
fn two_sweeps_do_not_write_their_results_over_each_other() {
    let folder = Folder::new();
    let sweep =
        || folder.run("sweep dontneed --param iterations=5 --seeds 1 --results shared.jsonl");
    sweep().code(0);
    let whole = folder.read("shared.jsonl");
    // Another sweep holds the lock of the file.
    let other = fs::File::open(folder.join("shared.jsonl")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_refused(sweep(), "another command");
    assert_eq!(folder.read("shared.jsonl"), whole);
    drop(other);
    sweep().code(0);
}

/// Results may only replace regular files. As root, the command could otherwise replace a device by a file.
#[test]
#[cfg(unix)]
fn results_take_the_place_of_files_alone() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let search = |results| {
        let search = "explore unmap-access --machine x86 --policy all --schedules 100";
        folder.run(&format!("{search} --results {results}"))
    };
    symlink("/dev/null", folder.join("device")).expect("a link");
    symlink("kept.jsonl", folder.join("link")).expect("a link");
    assert_refused(search("device"), "--results device: not a regular file");
    // The file is created where the link points, whether it exists already or not.
    for _ in 0..2 {
        search("link").code(0);
        let is_link = |name| folder.join(name).is_symlink();
        assert!(is_link("link") && is_link("device") && !is_link("kept.jsonl"));
    }
    assert_eq!(folder.read("kept.jsonl").lines().count(), 2);
    let merged = folder.run("merge kept.jsonl --results device");
    assert_refused(merged, "--results device: not a regular file");

    // A part is read once, so it may come from a pipe. We read no further than the longest line of results.
    let merge =
        |from: Stdio| ended(folder.quell("merge /dev/stdin --results merged.jsonl").stdin(from));
    let mut cat = Command::new("cat");
    let mut cat =
        cat.arg(folder.join("kept.jsonl")).stdout(Stdio::piped()).spawn().expect("cat starts");
    merge(cat.stdout.take().expect("a pipe").into()).code(0);
    cat.wait().expect("cat ends");
    assert_eq!(folder.read("merged.jsonl"), folder.read("kept.jsonl"));
    let zeros = fs::File::open("/dev/zero").expect("zeros");
    assert_refused(merge(zeros.into()), "more than 64 megabytes");
}

/// Interrupted searches: one signal ends a search in the middle of a case, and it prints its results so far and keeps
/// the cases that were searched to their end. Two signals end it at once.
#[cfg(target_os = "linux")]
#[test]
fn a_search_that_is_interrupted_says_what_it_has_found_unless_it_is_interrupted_twice() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    // We stop the search while both signals arrive, so that it can't check for the first before the second arrives.
    // They are two different ones: a second one of a kind that is already pending is lost.
    let twice = [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT];
    for signals in [&[Signal::INT][..], &twice] {
        let folder = Folder::new();
        let search = "explore two-initiators --schedules 1000000000000 --results kept.jsonl";
        let mut search = folder.quell(search);
        let search = search.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&search);
        let worked = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", search.id())).unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            let times = fields.split_whitespace().skip(11).take(2);
            times.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
        };
        // The search handles signals before it creates the file. After a third of a second of CPU time it surely
        // searches.
        while !folder.has("kept.jsonl") || worked() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for &signal in signals {
            kill_process(pid, signal).unwrap();
            if signal == Signal::STOP {
                // This returns once all threads have stopped.
                waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
            }
        }
        let output: Ended = search.wait_with_output().unwrap().into();
        if signals.len() == 1 {
            assert!(errors(&output).contains("interrupted"), "{output:?}");
            output.code(130).stdout("0 cases");
            assert_eq!(folder.read("kept.jsonl").lines().count(), 1);
        } else {
            // Either of the two may be delivered second.
            assert!([130, 143].map(Some).contains(&output.code), "{output:?}");
            assert!(!errors(&output).contains("interrupted"), "{output:?}");
        }
    }
}

/// A command built without the Parquet writer must explain how to get it.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_command_without_parquet_says_how_to_get_it_before_it_runs_anything() {
    let folder = Folder::new();
    let refused = folder.run(&format!("{SWEEP} --results x.jsonl --parquet x.parquet"));
    refused.code(2).stderr("--features parquet");
    assert!(!folder.has("x.jsonl"), "nothing was run");
}

/// The Parquet file has the columns of the CSV, in order, with the same values in fitting types.
#[cfg(feature = "parquet")]
#[test]
fn parquet_has_what_csv_has_with_types() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    let folder = Folder::new();
    let files = "--results x.jsonl --csv x.csv --parquet x.parquet";
    let sweep = folder.run(&format!("{SWEEP} --set interrupt.send=500ns,2us {files}"));
    sweep.code(0).stdout("Parquet: x.parquet");
    let csv = folder.read("x.csv");
    assert!(!csv.contains('"'), "a comma is what separates");
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().expect("a head");
    let file = fs::File::open(folder.join("x.parquet")).expect("Parquet");
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
    folder.run("merge x.jsonl --results y.jsonl --parquet y.parquet").code(0);
    let [first, again] = ["x.parquet", "y.parquet"].map(|name| fs::read(folder.join(name)));
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

    fn part(folder: &Folder, script: &str, variables: &[(&str, usize)]) {
        let command = Path::new(env!("CARGO_BIN_EXE_quell"));
        let path = format!("{}:/usr/bin:/bin", command.parent().expect("a folder").display());
        let mut shell = Command::new("bash");
        shell.args(["-euc", script]).current_dir(folder.path()).env("PATH", path);
        shell.envs(variables.iter().map(|(name, value)| (name, value.to_string())));
        ended(&mut shell).code(0);
    }

    fn merged(folder: &Folder) -> String {
        let parts = (0..6).map(|part| format!("part-{part}.jsonl"));
        let parts: Vec<_> = parts.filter(|part| folder.has(part)).collect();
        assert_eq!(parts.len(), 5);
        folder.run(&format!("merge {} --results all.jsonl", parts.join(" "))).code(0);
        folder.read("all.jsonl")
    }

    /// Checks that one host and the jobs of each queue produce the same results with the examples of this name.
    fn come_to_the_same(example_of: &str) {
        let [one, slurm, kubernetes] = [(); 3].map(|()| Folder::new());

        let script = example(&format!("{example_of}.sbatch"));
        assert_eq!(behind(&script, "--array="), "1-5");
        let of = |id, count| [("SLURM_ARRAY_TASK_ID", id), ("SLURM_ARRAY_TASK_COUNT", count)];
        part(&one, &script, &of(1, 1));
        for id in 1..=5 {
            part(&slurm, &script, &of(id, 5));
        }
        let whole = one.read("part-1.jsonl");
        assert!(whole.len() > 1000 && merged(&slurm) == whole);

        let job = example(&format!("{example_of}.yaml"));
        assert_eq!(behind(&job, "  completions: "), "5");
        let block = job.split_once("- |\n").expect("a script").1;
        let block = block.lines().take_while(|line| line.starts_with("              "));
        let script = block.collect::<Vec<_>>().join("\n");
        for index in 0..5 {
            part(&kubernetes, &script, &[("JOB_COMPLETION_INDEX", index)]);
        }
        assert!(merged(&kubernetes) == whole);
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

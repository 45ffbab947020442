//! The experiments' commands as a person types them: their output and their errors.

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(args);
    command
}

fn document(args: &[&str]) -> Value {
    let output = quell(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn reproduce_keeps_its_keys_and_its_promise() {
    let found = document(&["reproduce", "--only", "dontneed", "--no-report", "--json"]);
    assert_eq!(found["violations"], 0);
    assert!(found["seconds"].as_f64().unwrap() > 0.0);
    let rows = found["rows"].as_array().unwrap();
    let two = rows.iter().find(|row| row["case"] == "2 threads").unwrap();
    assert_eq!(two["mechanism"], "S4");
    assert_eq!(two["experiment"], "dontneed");
    assert_eq!(two["metric"], "ns per iteration");
    assert_eq!(two["published_before"], 1436.0);
    assert_eq!(two["published_after"], 923.0);
    assert_eq!(two["violations"], 0);
    let number = |key: &str| two[key].as_f64().unwrap();
    let change = number("model_after") / number("model_before") - 1.0;
    assert!((change - number("change_predicted")).abs() < 1e-9);
    assert!((number("change_published") + 0.357).abs() < 1e-3);
    assert!(number("all_on") <= 1.01 * number("model_after"));
    assert_eq!(two["verdict"], "hit");
    let off = number("model_before") / 1436.0 - 1.0;
    assert!((off - number("before_off")).abs() < 1e-9);
    for row in rows {
        let source = row["source"]["url"].as_str().unwrap();
        assert!(source.starts_with("https://lore.kernel.org/"), "{source}");
        assert_ne!(row["verdict"], "shown", "no row is left out of the count");
    }
    assert_eq!(found["skill"]["rows"], rows.len());
    assert!(found["skill"]["rank_correlation"].as_f64().unwrap() > 0.5);
}

#[test]
fn details_name_the_source_of_each_figure_and_the_skill() {
    quell(&["reproduce", "--only", "pingpong", "--details", "--no-report"])
        .assert()
        .success()
        .stdout(
            contains("    https://git.kernel.org/torvalds/c/10af6235e0d3\n")
                .and(contains("Skill: over 3 changes"))
                .and(contains("3 of 3 changes"))
                .and(contains("model before off, %")),
        );
}

/// A short run of every command with `--json`, except those of [`MEASUREMENTS`], `hunt` and `versus linux`. The last two
/// need an emulator that was built, and kernels.
const DOCUMENTS: &[&str] = &[
    "run dontneed --param iterations=10 --json",
    "scale dontneed --param iterations=10 --cpus 1,2 --plot /dev/null --json",
    "stress dontneed --param iterations=10 --json",
    "reproduce --only dontneed --no-report --json",
    "held-out latr --json",
    "list policies --json",
    "explore --list --json",
    "explore unmap-access --schedules 20 --json",
    "explore --replay unmap-access:x86:all: --json",
    "boot --arch x86_64 --kernel . --json",
    "record --import recording --json",
    "advise recording --json",
    "advise recording --replay --machine milan --json",
];

/// Short runs of those that measure the host, and of a long prediction.
const MEASUREMENTS: &[&str] = &[
    "measure engine --rounds 3 --json",
    "measure paths --json --seconds 1",
    "measure host --only pingpong --seconds 1 --no-machine-file --json",
    "measure clear --seconds 1 --max-bytes 64K --json",
    "predict --machine haswell-server --kernel baseline --json",
    "top --seconds 1.2 --json",
    "try --env N=1 --seconds 1 --json -- true",
];

#[cfg(target_os = "linux")]
#[test]
fn every_json_document_says_its_schema() {
    each_says_its_schema(DOCUMENTS);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes long: `cargo xtask ci live`"]
fn every_measurement_says_its_schema() {
    each_says_its_schema(MEASUREMENTS);
}

#[cfg(target_os = "linux")]
fn each_says_its_schema(lines: &[&str]) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let recording = include_str!("../../profiler/record/tests/recordings/perf.txt");
    let emulator = "#!/bin/sh\necho 'quell: {\"event\":\"exit\",\"code\":0}'\n";
    for (name, text) in [
        ("recording", recording),
        ("quell-kernel", "an image"),
        ("quell-user", "an image"),
        ("qemu-system-x86_64", emulator),
    ] {
        std::fs::write(place(name), text).unwrap();
    }
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place("qemu-system-x86_64"), executable).unwrap();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let mut command = quell(&words);
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let output = command.current_dir(folder.path()).env("PATH", path).output();
        let output = output.unwrap();
        if String::from_utf8_lossy(&output.stderr).contains("cannot record") {
            continue;
        }
        let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        let documents: Vec<Value> = documents.map(Result::unwrap).collect();
        assert!(!documents.is_empty(), "{line}: {output:?}");
        for document in documents {
            assert!(document["schema"].as_u64() > Some(0), "{line}: {document}");
        }
    }
}

#[test]
fn every_command_with_json_is_among_those_that_are_tried() {
    fn lacking(command: &clap::Command, path: &str) -> Vec<String> {
        let inner = command.get_subcommands();
        let inner = inner.flat_map(|inner| lacking(inner, &format!("{path}{} ", inner.get_name())));
        let has = command.get_arguments().any(|argument| argument.get_id() == "json");
        let mut tried = DOCUMENTS.iter().chain(MEASUREMENTS);
        let tried = tried.any(|line| line.starts_with(path));
        let own = (has && !tried).then(|| path.to_owned());
        inner.chain(own).collect()
    }
    assert_eq!(lacking(&quell_cli::command(), ""), ["hunt ", "versus linux "]);
}

#[test]
fn held_out_tables_are_there_in_any_folder() {
    let folder = tempfile::tempdir().unwrap();
    let output = quell(&["held-out", "zeroing-order", "latr", "--json"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["tables"][0]["name"], "zeroing-order");
    assert_eq!(found["skill"]["rows"], 2);
    assert!(found["cpu_seconds"].as_f64().unwrap() > 0.0);
    quell(&["held-out", "zeroin"]).assert().code(2).stderr(contains("did you mean `zeroing`?"));
}

#[test]
#[ignore = "builds the copy that leaves guards out: `cargo xtask ci figures`"]
fn what_guards_cost_is_printed_beside_the_gain_and_breaks_nothing() {
    let found = document(&["reproduce", "--guards", "--only", "pingpong", "--json"]);
    assert_eq!(found["violations"], 0, "with a guard left out none counts");
    assert_eq!(found["rows"].as_array().unwrap().len(), 0);
    let guards = found["guards"].as_array().unwrap();
    for guard in guards {
        for key in [
            "mechanism",
            "guard",
            "hole",
            "clause",
            "experiment",
            "case",
            "machine",
            "each",
            "metric",
            "policy_before",
            "policy_after",
            "command",
        ] {
            assert!(!guard[key].as_str().unwrap().is_empty(), "{key}");
        }
        for key in ["before", "shipped", "left_out", "gain", "cost", "seeds", "cpus"] {
            assert!(guard[key].as_f64().unwrap().is_finite(), "{key}");
        }
        assert!(guard["events"].as_object().unwrap().contains_key("shared words"));
        assert_eq!(guard["violations"], 0);
        assert!(guard["failed"].is_null());
    }
    let broken = guards.iter().find(|guard| guard["violations_left_out"] != 0);
    let broken = broken.expect("a switch that trusts its tag breaks the contract");
    // The row's command shows the same breach, and fails.
    let command = broken["command"].as_str().unwrap();
    let words: Vec<_> = command.split_whitespace().skip(1).collect();
    quell(&words)
        .assert()
        .code(1)
        .stdout(contains("left out: SwitchIgnores").and(contains("contract: BROKEN")));
    quell(&["run", "dontneed", "--without", "Nothing"])
        .assert()
        .code(2)
        .stderr(contains("Nothing").and(contains("explore --mutants")));
    quell(&["reproduce", "--guards", "--only", "dontneed"])
        .assert()
        .success()
        .stdout(contains("Cost of the guards").and(contains("idle CPUs are interrupted too")));
}

#[test]
#[ignore = "seconds: `cargo xtask ci figures`"]
fn the_report_needs_nothing_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    quell(&["reproduce", "--only", "dontneed", "--report"])
        .arg(&path)
        .assert()
        .success()
        .stdout(contains("every access of every CPU was checked").and(contains("Report: ")));
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page.contains("<svg") && page.contains("1024"));
    // Only `--guards` leaves guards out, in a copy of the source.
    assert!(!page.contains("Cost of the guards"));
    for foreign in ["<script", "<link", "src=\"http", "@import"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed: &str| {
        let arguments = ["run", "fileio", "--cpus", "4", "--seed", seed, "--json"];
        let brief = ["--param", "duration=1ms", "--param", "size=1M"];
        let mut found = document(&[&arguments[..], &brief[..]].concat());
        assert!(found["accesses_per_second"].as_f64().unwrap() > 0.0);
        let object = found.as_object_mut().unwrap();
        object.retain(|key, _| key != "accesses_per_second" && key != "host_seconds");
        found
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn a_trace_is_one_that_perfetto_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    quell(&["run", "dontneed", "--cpus", "2", "--param", "iterations=5", "--trace"])
        .arg(&path)
        .assert()
        .success()
        .stdout(contains("contract: kept"));
    let trace: Value = serde_json::from_reader(std::fs::File::open(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X"));
}

#[test]
fn scale_prints_baseline_beside_mechanisms() {
    let folder = tempfile::tempdir().unwrap();
    quell(&["scale", "dontneed", "--cpus", "4", "--param", "iterations=20"])
        .current_dir(folder.path())
        .assert()
        .success()
        .stdout(contains("baseline").and(contains("all")));
    assert!(folder.path().join("quell-scale.svg").is_file());
    let plot = folder.path().join("ratio.svg");
    let run = ["scale", "dontneed", "--cpus", "1,2", "--relative", "--json"];
    let brief = ["--param", "iterations=20", "--plot", plot.to_str().unwrap()];
    let found = document(&[&run[..], &brief].concat());
    for point in found["points"].as_array().unwrap() {
        assert_eq!(point["values"][0], 1.0, "{point}");
    }
    let drawn = std::fs::read_to_string(&plot).unwrap();
    let metric = found["metric"].as_str().unwrap();
    assert!(metric.ends_with("as a ratio to baseline"));
    assert!(drawn.contains(metric) && drawn.contains(">dontneed on Two-socket"));
}

#[test]
fn a_call_or_policy_that_is_not_there_is_refused() {
    let refused = |arguments: &[&str], why| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = quell(arguments);
        let command = command.current_dir(folder.path()).assert();
        command.code(2).stderr(contains(why));
    };
    let scale = ["scale", "dontneed", "--cpus", "1", "--show", "dontned"];
    refused(&scale, "dontneed makes no call `dontned`; it makes discard");
    let bound = ["scale", "crowd", "--cpus", "2", "--bound"];
    refused(&bound, "--bound: the figure of crowd is no time");
    let run = ["run", "dontneed", "--policy", "latrr"];
    refused(&run, "did you mean `latr`?");
}

#[test]
fn the_list_explains_every_parameter() {
    quell(&["list"])
        .assert()
        .success()
        .stdout(contains("readers").and(contains("kunpeng-920")).and(contains("S3")));
    let found = document(&["list", "--json"]);
    for key in ["workloads", "machines", "policies", "parameters"] {
        let list = found[key].as_array().unwrap();
        assert!(list.len() > 4, "{key}");
    }
    let values = document(&["list", "parameters", "--machine", "milan", "--json"]);
    for value in values["parameters"].as_array().unwrap() {
        assert_ne!(value["source"], "", "{value}");
    }
}

#[test]
fn a_machine_file_may_be_based_on_another_and_not_on_itself() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write(
        "base.toml",
        "name = \"base\"\nbased_on = \"milan\"\n[cpu]\ncpus = { value = 3, unit = \"CPUs\", source = \"x\" }\n",
    );
    let mine = write("mine.toml", "name = \"mine\"\nbased_on = \"base.toml\"\n");
    let list = |path: &std::path::Path| {
        let mut command = quell(&["list", "parameters", "--json", "--machine"]);
        command.arg(path).assert()
    };
    list(&mine).success().stdout(contains("\"value\": \"3\""));
    write("mine.toml", "name = \"mine\"\nbased_on = \"round.toml\"\n");
    write("round.toml", "name = \"round\"\nbased_on = \"mine.toml\"\n");
    list(&mine).code(2).stderr(contains("is based on itself"));
    let folder = mine.parent().and_then(|folder| folder.file_name()).unwrap();
    let roundabout = format!("../{}/mine.toml", folder.to_str().unwrap());
    write("mine.toml", &format!("name = \"mine\"\nbased_on = \"{roundabout}\"\n"));
    list(&mine).code(2).stderr(contains("is based on itself").and(contains("mine.toml")));
    write("mine.toml", "name = \"mine\"\nbased_on = \"none.toml\"\n");
    list(&mine).code(2).stderr(contains("no machine `none.toml`").and(contains("haswell-server")));
}

#[test]
fn a_parameter_that_is_set_changes_the_run() {
    let time = |set: &str| {
        let run = ["run", "dontneed", "--param", "pages=16", "--json", "--policy", "baseline"];
        let output = quell(&run).args(["--set", set]).assert().success();
        serde_json::from_slice::<serde_json::Value>(&output.get_output().stdout).unwrap()["value"]
            .clone()
    };
    assert_ne!(time("interrupt.send=100ns"), time("interrupt.send=9us"));
    quell(&["run", "dontneed", "--set", "interrupt.sent=1us"])
        .assert()
        .code(2)
        .stderr(contains("--set: interrupt.sent=1us: no parameter `interrupt.sent`"));
}

#[test]
fn completions_know_every_subcommand_and_name() {
    for shell in ["bash", "zsh", "fish"] {
        quell(&["completions", shell])
            .assert()
            .success()
            .stdout(contains("reproduce").and(contains("versus")))
            .stdout(contains("haswell-server").and(contains("baseline")));
    }
    // For fish, clap doesn't complete arguments without an option.
    for shell in ["bash", "zsh"] {
        quell(&["completions", shell])
            .assert()
            .stdout(contains("dontneed").and(contains("unmap-access")))
            .stdout(contains("process-madvise"));
    }
    quell(&["run", "--help"]).assert().stdout(contains("possible values").not());
}

#[test]
fn generated_programs_are_searched_and_their_keys_stay() {
    let found = document(&["explore", "--generate", "--schedules", "1", "--jobs", "1", "--json"]);
    for key in [
        "programs",
        "schedules",
        "schedules_per_second",
        "schedules_per_cpu_second",
        "transitions",
        "pairs",
    ] {
        assert!(found[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(found["violations"].as_array().unwrap().len(), 0);
}

/// A command that runs beside a test and ends with it.
#[cfg(unix)]
struct RunningCommand(Option<std::process::Child>);

#[cfg(unix)]
impl RunningCommand {
    fn process(&mut self) -> &mut std::process::Child {
        self.0.as_mut().unwrap()
    }

    fn wait(mut self) -> std::io::Result<std::process::Output> {
        self.0.take().unwrap().wait_with_output()
    }
}

#[cfg(unix)]
impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // The command may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(unix)]
#[test]
fn a_search_that_is_asked_to_end_says_what_it_has_found_and_can_be_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus");
    let corpus = corpus.to_str().unwrap();
    let search = ["explore", "--generate", "--corpus", corpus, "--json"];
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(search)
        .args(["--minutes", "2"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = RunningCommand(Some(child));
    let kept = || {
        let entries = std::fs::read_dir(corpus).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "toml")).count()
    };
    // We wait no longer than the search, which keeps its first program in the first round.
    while kept() == 0 {
        let ended = child.process().try_wait().unwrap();
        assert_eq!(ended, None, "it has ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let kill = format!("kill -INT {}", child.process().id());
    let killed = std::process::Command::new("sh").args(["-c", &kill]).status();
    assert!(killed.unwrap().success());
    let output = child.wait().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["pairs"].as_u64().unwrap() > 0);
    let before = kept();
    let again = document(&[&search[..], &["--schedules", "1"]].concat());
    assert!(again["programs"].as_u64().unwrap() >= before.min(64) as u64);
    assert!(kept() >= before);
}

/// The machine keeps pages that hold a pattern, and records of frames, in a small part of the touched memory.
#[cfg(unix)]
#[test]
fn sixty_four_gigabytes_are_touched_within_two_of_the_host() {
    let limited =
        "ulimit -v 2097152; exec \"$0\" run demand --cpus 1 --param size=64G --seeds 1 --json";
    let output = std::process::Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_quell")])
        // Each thread would reserve memory.
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["machine_counts"]["zeroed"].as_u64().unwrap() >= 64 << 30);
}

#[test]
fn a_search_of_every_schedule_that_gives_up_is_no_success() {
    let search = ["explore", "unmap-access", "--machine", "x86", "--policy", "all"];
    let all = [&search[..], &["--exhaustive"]].concat();
    quell(&all).assert().code(0).stdout(contains("holds in every schedule"));
    let few = [&all[..], &["--most", "3"]].concat();
    quell(&few).assert().code(3).stdout(contains("not every schedule was run"));
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.jsonl");
    let merged = folder.path().join("merged.jsonl");
    let (kept, merged) = (kept.to_str().unwrap(), merged.to_str().unwrap());
    quell(&[&few[..], &["--results", kept]].concat()).assert().code(3);
    quell(&["merge", kept, "--results", merged]).assert().code(3);
}

#[test]
fn a_case_that_needs_more_schedules_is_neither_success_nor_failure() {
    quell(&["explore", "vm-idle-unmap", "--schedules", "2"])
        .assert()
        .code(3)
        .stdout(contains("never reached: ").and(contains("run more --schedules")));
}

#[test]
fn programs_that_were_written_down_are_searched_and_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unmap.toml");
    let program = include_str!("../../python/tests/broken.toml");
    std::fs::write(&path, program).unwrap();
    let path = path.to_str().unwrap();
    quell(&["explore", path]).assert().code(1).stdout(contains("VIOLATED"));
    // The fixed scheduler lets the first CPU finish, so the second reads a page that is no longer mapped.
    quell(&["explore", "--replay", path, "--lines", "1000"]).assert().stdout(contains("Unmap"));
    std::fs::write(path, program.replace("page = 0, pages", "page = -1, pages")).unwrap();
    quell(&["explore", path]).assert().code(2).stderr(contains("unmap.toml"));
    quell(&["explore", "--generate", "unmap-access"])
        .assert()
        .code(2)
        .stderr(contains("--mutants"));
    quell(&["explore", "--lines", "3"]).assert().code(2).stderr(contains("--replay"));
    quell(&["explore", "--jobs", "0"]).assert().code(2).stderr(contains("--jobs"));
}

#[test]
fn a_figure_that_divides_by_nothing_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nothing.toml");
    let built_in = include_str!("../../testbed/workloads/workloads/munmap.toml");
    let divided = built_in.replace("nanoseconds / done / pages", "nanoseconds / (done - done)");
    assert_ne!(divided, built_in);
    std::fs::write(&path, divided).unwrap();
    quell(&["run", path.to_str().unwrap(), "--param", "iterations=2"])
        .assert()
        .code(1)
        .stderr(contains("divides by zero"));
}

#[test]
fn tags_that_do_not_go_with_broadcasts_are_refused_with_the_way_out_and_none_goes_with_either() {
    let folder = tempfile::tempdir().unwrap();
    for (base, broadcasts) in [("kunpeng-920", "no"), ("milan", "yes")] {
        let path = folder.path().join("changed.toml");
        let run = |tags: &str| {
            let text = format!(
                "name = \"changed\"\ntitle = \"changed\"\nbased_on = \"{base}\"\n{tags}[broadcast]\nhardware = \
                 {{ value = \"{broadcasts}\", source = \"a test\" }}\n"
            );
            std::fs::write(&path, text).unwrap();
            let path = path.to_str().unwrap();
            let short = ["--cpus", "2", "--seeds", "1", "--param", "iterations=5"];
            let run = [&["run", "dontneed", "--machine", path], &short[..]].concat();
            quell(&run).assert()
        };
        run("").code(2).stderr(contains("change tlb.tags"));
        run("[tlb]\ntags = { value = \"none\", source = \"a test\" }\n").success();
    }
}

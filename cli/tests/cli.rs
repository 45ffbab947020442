//! The experiments' commands as a person types them: their output and their errors.

use crate::command::{Folder, document, run};
#[cfg(target_os = "linux")]
use crate::command::{PERF, ended, shell};
use serde_json::Value;

#[test]
fn reproduce_keeps_its_keys_and_its_promise() {
    let found = document("reproduce --only dontneed --no-report --json");
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
    run("reproduce --only pingpong --details --no-report")
        .code(0)
        .stdout("    https://git.kernel.org/torvalds/c/10af6235e0d3\n")
        .stdout("Skill: over 3 changes")
        .stdout("3 of 3 changes")
        .stdout("model before off, %");
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
    let folder = Folder::new();
    folder.write("recording", PERF);
    folder.write("quell-kernel", "an image");
    folder.write("quell-user", "an image");
    let emulator = "#!/bin/sh\necho 'quell: {\"event\":\"exit\",\"code\":0}'\n";
    folder.script("qemu-system-x86_64", emulator);
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    for line in lines {
        let output = ended(folder.quell(line).env("PATH", &path));
        if output.stderr.contains("cannot record") {
            continue;
        }
        let documents = serde_json::Deserializer::from_str(&output.stdout).into_iter();
        let documents: Vec<Value> = documents.map(Result::unwrap).collect();
        assert!(!documents.is_empty(), "{line}: {output:?}");
        for document in documents {
            assert!(document["schema"].as_u64() > Some(0), "{line}: {document}");
        }
        // Without `--json` the command prints something else, for people.
        let output = ended(folder.quell(&line.replace(" --json", "")).env("PATH", &path));
        let shown = matches!(output.code, Some(0 | 1 | 3)) && !output.stdout.is_empty();
        assert!(shown, "{line}: {output:?}");
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
    let found = Folder::new().document("held-out zeroing-order latr --json");
    assert_eq!(found["tables"][0]["name"], "zeroing-order");
    assert_eq!(found["skill"]["rows"], 2);
    assert!(found["cpu_seconds"].as_f64().unwrap() > 0.0);
}

#[test]
#[ignore = "builds the copy that leaves guards out: `cargo xtask ci figures`"]
fn what_guards_cost_is_printed_beside_the_gain_and_breaks_nothing() {
    let found = document("reproduce --guards --only pingpong --json");
    assert_eq!(found["violations"], 0, "with a guard left out none counts");
    assert_eq!(found["rows"].as_array().unwrap().len(), 0);
    let guards = found["guards"].as_array().unwrap();
    for guard in guards {
        let texts = "mechanism guard hole clause experiment case machine each metric policy_before \
                     policy_after command";
        for key in texts.split(' ') {
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
    let command = broken["command"].as_str().unwrap().strip_prefix("quell ").unwrap();
    run(command).code(1).stdout("left out: SwitchIgnores").stdout("contract: BROKEN");
    run("run dontneed --without Nothing").code(2).stderr("Nothing").stderr("explore --mutants");
    run("reproduce --guards --only dontneed")
        .code(0)
        .stdout("Cost of the guards")
        .stdout("idle CPUs are interrupted too");
}

#[test]
#[ignore = "seconds: `cargo xtask ci figures`"]
fn the_report_needs_nothing_from_elsewhere() {
    let folder = Folder::new();
    folder
        .run("reproduce --only dontneed --report report.html")
        .code(0)
        .stdout("every access of every CPU was checked")
        .stdout("Report: ");
    let page = folder.read("report.html");
    assert!(page.contains("<svg") && page.contains("1024"));
    // Only `--guards` leaves guards out, in a copy of the source.
    assert!(!page.contains("Cost of the guards"));
    for foreign in ["<script", "<link", "src=\"http", "@import"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed| {
        let brief = "--cpus 4 --param duration=1ms --param size=1M --json";
        let mut found = document(&format!("run fileio {brief} --seed {seed}"));
        assert!(found["accesses_per_second"].as_f64().unwrap() > 0.0);
        let object = found.as_object_mut().unwrap();
        object.retain(|key, _| key != "accesses_per_second" && key != "host_seconds");
        found
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_trace_is_one_that_perfetto_reads() {
    let folder = Folder::new();
    let run = folder.run("run dontneed --cpus 2 --param iterations=5 --trace trace.json");
    run.code(0).stdout("contract: kept");
    let trace: Value = serde_json::from_str(&folder.read("trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X"));
}

#[test]
fn scale_prints_baseline_beside_mechanisms() {
    let folder = Folder::new();
    let scale = folder.run("scale dontneed --cpus 4 --param iterations=20");
    scale.code(0).stdout("baseline").stdout("all");
    assert!(folder.has("quell-scale.svg"));
    let relative = "scale dontneed --cpus 1,2 --relative --param iterations=20";
    let found = folder.document(&format!("{relative} --plot ratio.svg --json"));
    for point in found["points"].as_array().unwrap() {
        assert_eq!(point["values"][0], 1.0, "{point}");
    }
    let drawn = folder.read("ratio.svg");
    let metric = found["metric"].as_str().unwrap();
    assert!(metric.ends_with("as a ratio to baseline"));
    assert!(drawn.contains(metric) && drawn.contains(">dontneed on Two-socket"));
}

#[test]
fn the_list_explains_every_parameter() {
    run("list").code(0).stdout("readers").stdout("kunpeng-920").stdout("S3");
    let found = document("list --json");
    for key in ["workloads", "machines", "policies", "parameters"] {
        assert!(found[key].as_array().unwrap().len() > 4, "{key}");
    }
    let values = document("list parameters --machine milan --json");
    for value in values["parameters"].as_array().unwrap() {
        assert_ne!(value["source"], "", "{value}");
    }
}

#[test]
fn a_machine_file_may_be_based_on_another_and_not_on_itself() {
    let folder = Folder::new();
    let base = "name = \"base\"\nbased_on = \"milan\"\n";
    let cpus = "[cpu]\ncpus = { value = 3, unit = \"CPUs\", source = \"x\" }\n";
    folder.write("base.toml", base.to_owned() + cpus);
    folder.write("round.toml", "name = \"round\"\nbased_on = \"mine.toml\"\n");
    let list = |based_on: &str| {
        folder.write("mine.toml", format!("name = \"mine\"\nbased_on = \"{based_on}\"\n"));
        folder.run("list parameters --json --machine mine.toml")
    };
    list("base.toml").code(0).stdout("\"value\": \"3\"");
    list("round.toml").code(2).stderr("is based on itself");
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let roundabout = list(&format!("../{name}/mine.toml"));
    roundabout.code(2).stderr("is based on itself").stderr("mine.toml");
    list("none.toml").code(2).stderr("no machine `none.toml`").stderr("haswell-server");
}

#[test]
fn a_parameter_that_is_set_changes_the_run() {
    let run = "run dontneed --param pages=16 --json --policy baseline --set interrupt.send=";
    let time = |send: &str| document(&(run.to_owned() + send))["value"].clone();
    assert_ne!(time("100ns"), time("9us"));
}

#[test]
fn completions_know_every_subcommand_and_name() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&format!("completions {shell}")).code(0);
        // For fish, clap doesn't complete arguments without an option.
        let without_option = ["dontneed", "unmap-access", "process-madvise"];
        let names = ["reproduce", "versus", "haswell-server", "baseline"];
        for name in names.iter().chain(without_option.iter().filter(|_| shell != "fish")) {
            assert!(script.stdout.contains(name), "{shell}: {name}");
        }
    }
    assert!(!run("run --help").stdout.contains("possible values"));
}

#[test]
fn generated_programs_are_searched_and_their_keys_stay() {
    let found = document("explore --generate --schedules 1 --jobs 1 --json");
    let keys = "programs schedules schedules_per_second schedules_per_cpu_second transitions pairs";
    for key in keys.split(' ') {
        assert!(found[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(found["violations"].as_array().unwrap().len(), 0);
}

#[cfg(unix)]
#[test]
fn a_search_that_is_asked_to_end_says_what_it_has_found_and_can_be_gone_on_with() {
    let folder = Folder::new();
    let search = "explore --generate --corpus corpus --json";
    let mut command = folder.quell(&format!("{search} --minutes 2"));
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let kept = || {
        let entries = std::fs::read_dir(folder.join("corpus")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "toml")).count()
    };
    // We wait no longer than the search, which keeps its first program in the first round.
    while kept() == 0 {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["pairs"].as_u64().unwrap() > 0);
    let before = kept();
    let again = folder.document(&format!("{search} --schedules 1"));
    assert!(again["programs"].as_u64().unwrap() >= before.min(64) as u64);
    assert!(kept() >= before);
}

/// The machine keeps pages that hold a pattern, and records of frames, in a small part of the touched memory.
#[cfg(target_os = "linux")]
#[test]
fn sixty_four_gigabytes_are_touched_within_two_of_the_host() {
    // Each thread would reserve memory.
    let limited = "ulimit -v 2097152; RAYON_NUM_THREADS=1 exec";
    let run = "run demand --cpus 1 --param size=64G --seeds 1 --json";
    let output = shell(&format!("{limited} '{}' {run}", env!("CARGO_BIN_EXE_quell")));
    let found = output.code(0).json();
    assert!(found["machine_counts"]["zeroed"].as_u64().unwrap() >= 64 << 30);
}

#[test]
fn a_search_of_every_schedule_that_gives_up_is_no_success() {
    let folder = Folder::new();
    let all = "explore unmap-access --machine x86 --policy all --exhaustive";
    let few = format!("{all} --most 3");
    run(all).code(0).stdout("holds in every schedule");
    run(&few).code(3).stdout("not every schedule was run");
    folder.run(&format!("{few} --results kept.jsonl")).code(3);
    folder.run("merge kept.jsonl --results merged.jsonl").code(3);
}

#[test]
fn a_case_that_needs_more_schedules_is_neither_success_nor_failure() {
    let search = run("explore vm-idle-unmap --schedules 2").code(3);
    search.stdout("never reached: ").stdout("run more --schedules");
}

#[test]
fn programs_that_were_written_down_are_searched_and_repeated() {
    let folder = Folder::new();
    let program = include_str!("../../python/tests/broken.toml");
    folder.write("unmap.toml", program);
    folder.run("explore unmap.toml").code(1).stdout("VIOLATED");
    // The fixed scheduler lets the first CPU finish, so the second reads a page that is no longer mapped.
    folder.run("explore --replay unmap.toml --lines 1000").stdout("Unmap");
    folder.write("unmap.toml", program.replace("page = 0, pages", "page = -1, pages"));
    folder.run("explore unmap.toml").code(2).stderr("unmap.toml");
}

#[test]
fn a_figure_that_divides_by_nothing_is_no_success() {
    let folder = Folder::new();
    let built_in = include_str!("../../testbed/workloads/workloads/munmap.toml");
    let divided = built_in.replace("nanoseconds / done / pages", "nanoseconds / (done - done)");
    assert_ne!(divided, built_in);
    folder.write("nothing.toml", divided);
    let run = folder.run("run nothing.toml --param iterations=2");
    run.code(1).stderr("divides by zero");
}

#[test]
fn tags_that_do_not_go_with_broadcasts_are_refused_with_the_way_out_and_none_goes_with_either() {
    let folder = Folder::new();
    for (base, broadcasts) in [("kunpeng-920", "no"), ("milan", "yes")] {
        let run = |tags: &str| {
            let text = format!(
                "name = \"changed\"\ntitle = \"changed\"\nbased_on = \"{base}\"\n{tags}[broadcast]\nhardware = \
                 {{ value = \"{broadcasts}\", source = \"a test\" }}\n"
            );
            folder.write("changed.toml", text);
            let short = "--cpus 2 --seeds 1 --param iterations=5";
            folder.run(&format!("run dontneed --machine changed.toml {short}"))
        };
        run("").code(2).stderr("change tlb.tags");
        run("[tlb]\ntags = { value = \"none\", source = \"a test\" }\n").code(0);
    }
}

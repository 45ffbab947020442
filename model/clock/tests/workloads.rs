//! Checks that random workload files never panic the machine or the program.
//!
//! We draw programs as trees from the table of statements, so most of them parse and much of them runs. Invalid
//! statements must end the run with an error.

use quell::Policy;
use quell_clock::{Counts, Run, RunError, Setup, built_in};
use quell_workloads::{Failure, STATEMENTS, Workload};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::cell::RefCell;

fn pick<'a>(rng: &mut Pcg64, from: &[&'a str]) -> &'a str {
    from[rng.random_range(0..from.len())]
}

/// The largest number.
const MOST: &str = "18446744073709551615";

fn expression(rng: &mut Pcg64, deep: u32) -> String {
    if deep > 2 || rng.random_range(0..3) > 0 {
        let leaves = [
            "0", "1", "2", "3", "4K", "8K", "64K", "2M", "1us", "a", "b", "c", "p", "s", "cpu",
            "cpus", "area", "t[0]", "t[cpu]", "t[9]", "now", "stopped", "1G", MOST,
        ];
        return pick(rng, &leaves).into();
    }
    let (left, right) = (expression(rng, deep + 1), expression(rng, deep + 1));
    match rng.random_range(0..8) {
        0 => format!("min({left}, {right})"),
        1 => format!("align({left}, {right})"),
        2 => format!("random({left})"),
        3 => format!("choose({left}, {right}, a)"),
        _ => {
            let operators =
                ["+", "+", "*", "-", "/", "%", "<", ">", "==", "&&", "||", "<<", ">>", "|"];
            format!("({left}) {} ({right})", pick(rng, &operators))
        }
    }
}

/// Returns, most of the time, an address or a length at which there is something.
fn likely(rng: &mut Pcg64, key: &str) -> String {
    let from: &[&str] = match key {
        "bytes" => &["4K", "8K", "64K", "p * 4K"],
        "stride" => &["4K", "64", "8K"],
        "node" => &["0", "1"],
        "page" => &["4K", "2M"],
        "file" | "sync" | "truncate" | "file_write" | "file_read" | "shared" | "private" => {
            &["file"]
        }
        "enter" | "exit" => &["process"],
        "repeat" | "below" => &["2", "3", "p"],
        "compute" | "sleep" | "bystand" => &["1us", "200"],
        "offset" => &["0", "8", "4K"],
        "without" | "demote" | "reclaim" | "collapse" | "be" | "value" | "by" | "from" | "if"
        | "while" => &["0", "1", "a"],
        _ => &["area", "area", "area + 4K", "area + random(16) * 8"],
    };
    match rng.random_range(0..4) {
        0 => expression(rng, 0),
        _ => pick(rng, from).into(),
    }
}

fn body(rng: &mut Pcg64, deep: u32) -> String {
    let count = rng.random_range(1..if deep == 0 { 14 } else { 4 });
    let all: Vec<_> = (0..count).map(|_| statement(rng, deep)).collect();
    format!("[{}]", all.join(", "))
}

fn statement(rng: &mut Pcg64, deep: u32) -> String {
    let form = STATEMENTS[rng.random_range(0..STATEMENTS.len())];
    let mut keys: Vec<&str> = form.needs.to_vec();
    keys.extend(form.takes.iter().filter(|_| rng.random_range(0..4) == 0));
    let mut text = String::from("{ ");
    for key in std::iter::once(form.word).chain(keys) {
        let blocks = ["do", "then", "else"];
        let value = match key {
            _ if blocks.contains(&key) && deep > 2 => "[]".into(),
            _ if blocks.contains(&key) => body(rng, deep + 1),
            "use" => "\"block\"".into(),
            "map" | "create" | "spawn" | "fork" | "let" | "for" | "as" | "into" => {
                let names: &[&str] = match key {
                    "map" => &["area"],
                    "create" => &["file"],
                    "spawn" | "fork" => &["process"],
                    "for" | "as" => &["i", "j"],
                    _ => &["a", "b", "s", "t[1]", "t[a]"],
                };
                format!("{:?}", pick(rng, names))
            }
            "add" => "\"s\"".into(),
            "protection" => format!("{:?}", pick(rng, &["none", "r", "rw", "rx"])),
            "order" => format!("{:?}", pick(rng, &["ascending", "descending"])),
            "nothing" | "barrier" | "begin" | "end" | "open" | "close" | "give_up" => "true".into(),
            _ => format!("{:?}", likely(rng, key)),
        };
        text += &format!("{key} = {value}, ");
    }
    text + "}"
}

fn file(rng: &mut Pcg64) -> String {
    let begin = "{ let = \"a\", be = 1 }, { let = \"b\", be = 2 }, { let = \"c\", be = 3 }, { create = \"file\", bytes = \"64K\" }, \
                 { map = \"area\", bytes = \"128K\" }, { let = \"process\", be = 1 }";
    let (leader, other, block) = (body(rng, 0), body(rng, 0), body(rng, 2));
    format!(
        "name = \"drawn\"\ntitle = \"drawn\"\nmechanism = \"S0\"\n\
         [parameters]\np = {{ unit = \"count\", default = 3, meaning = \"some\" }}\n\
         [shared]\ns = 1\nt = 4\n[memory]\ntouched = \"4M\"\n\
         [figure]\nsays = \"it\"\nvalue = \"done / nanoseconds\"\n[operation]\nis = \"one\"\n\
         [blocks]\nblock = {block}\n\
         [[threads]]\nwhen = \"cpu == 0\"\nprogram = [{begin}, {}]\n\
         [[threads]]\nprogram = [{begin}, {}]\n",
        &leader[1..leader.len() - 1],
        &other[1..other.len() - 1],
    )
}

/// Runs a workload for a while. Returns how it ended.
fn run(workload: &Workload, cpus: usize, seed: u64) -> Result<bool, String> {
    let machine = built_in("haswell-server").expect("built in");
    let memory = workload.memory(cpus);
    let setup = Setup {
        cpus: Some(cpus),
        seed,
        node_bytes: Some(memory.node),
        slow_node_bytes: Some(16 << 20),
        // Five milliseconds without progress.
        limit: 5_000_000_000,
        ..Setup::new(&machine)
    };
    let failed = RefCell::new(None::<Failure>);
    let run = Run::new(setup, Policy::ALL);
    let outcome = run.execute(&|user| {
        if let Err(failure) = workload.run(user, seed) {
            failed.borrow_mut().get_or_insert(failure);
        }
    });
    match outcome {
        Ok(outcome) if outcome.run.violation_count > 0 => {
            Err(format!("{:?}", outcome.run.violations))
        }
        Err(RunError::Panic { cpu, message }) => Err(format!("CPU {cpu} panicked: {message}")),
        Ok(_) => Ok(failed.take().is_none()),
        Err(_) => Ok(false),
    }
}

#[test]
fn no_file_drawn_at_random_makes_anything_panic() {
    let (mut read, mut ended, mut all) = (0, 0, 0);
    for seed in 0..200 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let text = file(&mut rng);
        all += 1;
        let Ok(workload) = Workload::parse("drawn.toml", &text) else {
            continue;
        };
        read += 1;
        assert_eq!(workload.check(2), Ok(()));
        match run(&workload, 2, seed) {
            Ok(good) => ended += usize::from(good),
            Err(why) => panic!("seed {seed}: {why}\n{text}"),
        }
    }
    assert!(read > all / 3, "{read} of {all} can be read");
    assert!(ended > read / 50, "{ended} of {read} came to their end");
}

/// Checks fairness: three CPUs read a page of a file by calls without a pause; a fourth cleans that page, and waits for
/// its lock as long as they read.
#[test]
fn cpus_that_take_a_page_lock_again_and_again_do_not_keep_another_from_it() {
    let text = r#"
name = "hammer"
title = "one CPU syncs a file that three read"
mechanism = "S4"
cpus = 4
[shared]
file = 1
[memory]
touched = "64K"
[figure]
says = "us"
value = "nanoseconds / 1e3"
[operation]
is = "sync"
[[threads]]
when = "cpu == 0"
program = [
    { create = "file", bytes = "64K" },
    { map = "area", bytes = "64K", shared = "file" },
    { write = "area", bytes = "64K" },
    { begin = true },
    { repeat = 20, do = [ { sync = "file" }, { write = "area", bytes = "64K" } ] },
    { close = true },
]
[[threads]]
program = [
    { begin = true },
    { while = "!stopped", do = [ { file_read = "file", offset = "random(64) * 8" } ] },
]
"#;
    let workload = Workload::parse("hammer.toml", text).unwrap();
    for seed in 1..=3 {
        assert_eq!(run(&workload, 4, seed), Ok(true), "seed {seed}");
    }
}

/// Runs a workload on a Haswell server with parameters set. Returns the window's length and counts.
fn measured(name: &str, cpus: usize, set: &[&str], parameters: &[&str]) -> (u64, Counts) {
    let machine = built_in("haswell-server").expect("built in");
    let machine = machine.with_text("a test", set).expect("fits");
    let mut workload = Workload::from_name(name).expect("built in");
    for pair in parameters {
        workload.set(pair).expect("a parameter");
    }
    let memory = workload.memory(cpus);
    let setup = Setup { cpus: Some(cpus), node_bytes: Some(memory.node), ..Setup::new(&machine) };
    let outcome = Run::new(setup, Policy::BASELINE).execute(&|user| {
        workload.run(user, 1).expect("runs");
    });
    let run = outcome.expect("runs").run;
    assert_eq!(run.violation_count, 0, "{:?}", run.violations);
    run.window.expect("measured")
}

/// Runs `munmap` for some rounds on two CPUs.
fn munmap(set: &[&str], parameters: &[&str]) -> (u64, Counts) {
    measured("munmap", 2, set, &[parameters, &["iterations=20"]].concat())
}

#[test]
fn syncs_that_are_handed_out_do_not_queue_behind_one_another() {
    let written = |handed_out: &str| {
        let parameters = ["duration=8ms", "sync_every=20", "size=256K", handed_out];
        measured("fileio", 8, &[], &parameters).1.faults
    };
    let (handed, queued) = (written("handed_out=yes"), written("handed_out=no"));
    // Three for two; equal numbers if nothing is handed out.
    assert!(3 * handed > 4 * queued, "{handed} against {queued} faults");
}

#[test]
fn a_request_of_more_ranges_than_the_machine_has_is_flushed_whole() {
    let flushed = |ranges: &str| {
        let (_, counts) = munmap(&[ranges], &["pages=5", "apart=2"]);
        (counts.invalidated_pages, counts.invalidated_tags)
    };
    // Twenty times five pages, on both CPUs.
    assert_eq!(flushed("invalidate.ranges=5"), (200, 0));
    assert_eq!(flushed("invalidate.ranges=4"), (0, 40));
}

#[test]
fn the_allocators_lock_is_taken_with_interrupts_off_where_the_machine_says_so() {
    let took = |masked: &str| {
        let set = [masked, "cpu.mask=1us"];
        // 512 pages are more than a CPU's cache of frames exchanges at once.
        munmap(&set, &["pages=512"]).0
    };
    let (masked, not) = (took("kernel.masked_locks=yes"), took("kernel.masked_locks=no"));
    // Twenty times 512 pages are taken and returned in batches of the cache, each of which masks interrupts twice.
    assert!(masked > not + 20 * 2 * 2_000_000, "{masked} against {not}");
}

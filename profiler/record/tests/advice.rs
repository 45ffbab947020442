//! Checks the advice and its estimated gain on artificial recordings.

use crate::written::{add, count, frame, interrupt, number, prices, ran, read, sample, work};
use quell_record::advise::{Advice, NOISE};
use quell_record::attribute::Attribution;
use quell_record::perf::{Change, CpuTime, Item, ReadTime, Sample, Statistics};
use quell_record::report::Report;

/// A program that gives memory back in 200 rounds, and reuses it at once.
#[derive(Clone, Copy)]
struct Program {
    /// The cost of a page fault, if it's known.
    fault_ns: Option<f64>,
    /// Whether it keeps its CPU busy all the time. Otherwise it sleeps for half of each round.
    busy: bool,
    /// The address of other memory that it protects in each round, before the reuse.
    protected: Option<u64>,
    /// The number of pages that it fills in each round.
    filled: u64,
    /// The number of these pages, from the first, that no call gave back.
    elsewhere: u64,
    /// The length of a round.
    round_ns: u64,
    /// The functions on the stack of its interrupts, in the C library.
    stack: &'static [&'static str],
}

impl Default for Program {
    fn default() -> Self {
        Program {
            fault_ns: None,
            busy: true,
            protected: None,
            filled: 20,
            elsewhere: 0,
            round_ns: 200_000,
            stack: &[],
        }
    }
}

impl Program {
    fn report(self) -> Report {
        Report::new(recorded(self), None)
    }

    fn advice(self, kind: &str) -> Option<Advice> {
        let mut advice = self.report().advice.into_iter();
        advice.find(|advice| advice.kind == kind)
    }
}

/// Returns the advice of this kind for a given cost of a page fault.
fn advice_on_reuse(kind: &str, fault_ns: Option<f64>) -> Option<Advice> {
    let program = Program { fault_ns, ..Program::default() };
    program.advice(kind)
}

/// Returns a recording of the program.
fn recorded(program: Program) -> Attribution {
    let Program { fault_ns, busy, protected, filled, elsewhere, round_ns, stack } = program;
    let mut items = Vec::new();
    items.extend(fault_ns.map(prices));
    let mut add = |event: &str, time_ns, fields| {
        // The thread that continues at the end of a round went to sleep in the middle of it.
        let process = match !busy && time_ns % round_ns == round_ns - 10_000 {
            true => (0, "swapper"),
            false => (7, "server"),
        };
        let mut sample = sample(time_ns, process, event, fields);
        if event == "csd:csd_queue_cpu" {
            sample.stack = stack.iter().map(|symbol| frame(symbol, "libc.so.6")).collect();
        }
        items.push(Item::Sample(sample));
    };
    for call in 0..200 {
        let at = call * round_ns;
        add(
            "syscalls:sys_enter_madvise",
            at,
            vec![number("start", 1 << 20), number("len_in", 20 << 12), number("behavior", 4)],
        );
        interrupt(&mut add, at + 1_000);
        add("syscalls:sys_exit_madvise", at + 10_000, vec![]);
        if let Some(start) = protected {
            let range = vec![number("start", start), number("len", 20 << 12)];
            add("syscalls:sys_enter_mprotect", at + 11_000, range);
            add("csd:csd_queue_cpu", at + 12_000, work());
            add("csd:csd_function_entry", at + 13_000, work());
            add("csd:csd_function_exit", at + 14_000, work());
            add("syscalls:sys_exit_mprotect", at + 15_000, vec![]);
        }
        for page in 0..filled {
            let address = match page.checked_sub(elsewhere) {
                Some(page) => (1 << 20) + (page << 12),
                None => (1 << 30) + (page << 12),
            };
            add(
                "exceptions:page_fault_user",
                at + 20_000 + page * 1_000,
                vec![number("address", address)],
            );
        }
        if !busy {
            add("sched:sched_switch", at + 90_000, vec![number("next_pid", 0)]);
        }
        add("sched:sched_switch", at + round_ns - 10_000, vec![number("next_pid", 7)]);
    }
    let mut all = Attribution::new();
    for item in items {
        all.item(item, &mut ());
    }
    all
}

/// Checks that we don't pin a program if other programs kept the CPUs busy. It may have wanted more CPUs than it got.
#[test]
fn a_program_that_had_to_share_its_cpus_with_others_is_not_pinned() {
    let pinned = |busy_ns: u64| {
        let mut all = recorded(Program { busy: false, ..Program::default() });
        let elapsed_ns = all.elapsed_ns();
        let cpus = 2;
        for (when, ran) in [(ReadTime::Before, 0), (ReadTime::After, busy_ns)] {
            let idle = (u64::from(when == ReadTime::After) * cpus * elapsed_ns).saturating_sub(ran);
            let time_ns = 1 + u64::from(when == ReadTime::After) * elapsed_ns;
            let read = Statistics {
                cpu_ns: vec![("user".into(), ran), ("idle".into(), idle)],
                ..read(when, time_ns)
            };
            all.item(Item::Statistics(read), &mut ());
        }
        let (busy, whole) = (all.busy().unwrap(), (cpus * elapsed_ns) as f64);
        assert!((busy - busy_ns as f64 / whole).abs() < 0.01, "{busy}");
        let advice = Report::new(all, None).advice;
        advice.iter().any(|advice| advice.kind == "pin")
    };
    // The whole is 40 ms on two CPUs.
    assert!(pinned(40_000_000));
    assert!(!pinned(78_000_000));
}

/// Checks that advice names other costs, if it promises more than the interrupts cost.
#[test]
fn advice_that_promises_more_than_interrupts_cost_says_what_else_it_is_about() {
    let program = Program { fault_ns: Some(20_000.0), round_ns: 4_000_000, ..Program::default() };
    let lines = program.report().answer;
    let verdict = lines
        .iter()
        .position(|line| line.contains("It is not your TLB"))
        .unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(
        lines[verdict + 1].starts_with("In code")
            && lines[verdict + 2].contains("no setting helps; ")
            && lines[verdict + 2].contains("mostly in the calls"),
        "{lines:#?}"
    );
}

#[test]
fn advice_on_memory_that_is_used_again_counts_what_it_costs_to_fill() {
    let dear = advice_on_reuse("keep", Some(2_000.0)).unwrap();
    let cheap = advice_on_reuse("keep", Some(200.0)).unwrap();
    let unknown = advice_on_reuse("keep", None).unwrap();
    assert_eq!(dear.left, (0, 0), "{dear:?}");
    let least = |advice: &Advice| advice.share.unwrap().least;
    // There are 20 faults of 2 us in 200 us, beside the time of the calls.
    assert!((least(&dear) - least(&cheap) - 0.18).abs() < 0.02, "{dear:?} {cheap:?}");
    assert!(least(&unknown) < least(&cheap), "{unknown:?} {cheap:?}");
    // MADV_FREE saves only the faults. Without their price it has no known gain.
    let free = advice_on_reuse("free", Some(2_000.0)).unwrap();
    assert_eq!((free.left, free.interrupts), ((200, 200), 200), "{free:?}");
    assert!((least(&free) - 0.2).abs() < 0.03 && free.text.contains("stay"), "{free:?}");
    assert!(advice_on_reuse("free", None).is_none());
    // It keeps one CPU busy and interrupts another one, where its own threads run. So it can't be pinned.
    assert!(advice_on_reuse("pin", None).is_none());
    let shard = advice_on_reuse("shard", None).unwrap();
    assert!(shard.left == (0, 0) && shard.text.contains("one process for each CPU"), "{shard:?}");
    let idle = Program { busy: false, ..Program::default() };
    let pin = idle.advice("pin").unwrap();
    assert!(pin.left == (0, 0) && pin.text.contains("to one CPU"), "{pin:?}");
    assert!(idle.advice("shard").is_none());
}

#[test]
fn what_a_program_fills_that_nobody_was_seen_to_give_back_may_go_too() {
    let share = |filled, elsewhere| {
        let program = Program { fault_ns: Some(500.0), filled, elsewhere, ..Program::default() };
        program.advice("keep").unwrap().share.unwrap()
    };
    // Of the twenty pages filled in each round, ten are elsewhere. Calls before the recording may have given these
    // back.
    let (whole, part, half) = (share(20, 0), share(20, 10), share(10, 0));
    // It's uncertain whether ten faults of 500 ns in 200 us were for such memory.
    assert!((whole.least - part.least - 0.025).abs() < 0.005, "{whole:?} {part:?}");
    // The upper bound assumes that they were. Without them the gain is smaller by ten faults of at most 750 ns.
    assert!((whole.most - part.most).abs() < 0.005, "{whole:?} {part:?}");
    assert!(part.most - half.most > 0.0375 - 0.005, "{part:?} {half:?}");
}

#[test]
fn memory_that_is_kept_is_not_protected_otherwise_because_it_was_given_back() {
    let of = |address| {
        let program = Program { protected: Some(address), ..Program::default() };
        program.advice("keep").unwrap()
    };
    let (same, other) = (of(1 << 20), of(1 << 40));
    assert_eq!((same.interrupts, same.left), (400, (0, 0)), "{same:?}");
    assert!(same.text.contains("including 200 for the same memory"), "{same:?}");
    assert_eq!((other.interrupts, other.left), (200, (0, 0)), "{other:?}");
    let least = |advice: &Advice| advice.share.unwrap().least;
    assert!(least(&same) > least(&other), "{same:?} {other:?}");
}

/// Returns the advice for a server whose kernel flushes for copies after forks, with other items of the recording.
///
/// By the kernel's account it has used 0.1 s in the kernel. If given, `forked_user_ns` is the user time of its forked
/// processes that have ended. A page fault costs `fault_ns`.
fn on_fork(news: &[Item], forked_user_ns: Option<u64>, fault_ns: f64) -> Advice {
    let stack = ["ptep_clear_flush", "wp_page_copy", "do_wp_page", "handle_mm_fault"];
    let stack = stack.map(|symbol| frame(symbol, "[kernel]"));
    let mut all = Attribution::new();
    all.item(prices(fault_ns), &mut ());
    let mut add = |event: &str, time_ns, fields| {
        let stack = stack.clone().into();
        let sample = sample(time_ns, (7, "server"), event, fields);
        let sample = Sample { stack, ..sample };
        all.item(Item::Sample(sample), &mut ());
    };
    for copy in 0..200 {
        let at = copy * 1_000_000;
        interrupt(&mut add, at + 1_000);
        add("sched:sched_switch", at + 10_000, vec![number("next_pid", 7)]);
    }
    for item in news {
        all.item(item.clone(), &mut ());
    }
    if let Some(forked_user_ns) = forked_user_ns {
        let ran = CpuTime { forked_user_ns, ..ran("server", 900_000_000, 100_000_000) };
        all.item(Item::CpuTime(ran), &mut ());
    }
    let report = Report::new(all, None);
    let mut advice = report.advice.into_iter();
    advice.find(|advice| advice.kind == "fork").unwrap()
}

#[test]
fn what_forked_processes_do_by_themselves_goes_at_most_where_they_are_not_started() {
    let share = |forked| on_fork(&[], Some(forked), 0.0).share.unwrap();
    let (none, some) = (share(0), share(30_000_000));
    // This is the time itself, and five threads that may have spun meanwhile, waiting for the one whose CPU it had.
    assert!((some.most - none.most - 6.0 * 0.03).abs() < 0.01, "{none:?} {some:?}");
    // It's possible that only the copies disappear.
    assert_eq!(none.least, some.least);
    assert!(on_fork(&[], None, 0.0).text.contains("fork less often"));
}

#[test]
fn threads_that_ran_beside_a_fork_may_have_waited_for_it_by_spinning() {
    // The server used 1 s of CPU time within 0.2 s, so five threads ran at a time.
    let most = on_fork(&[], Some(0), 0.0).share.unwrap().most;
    assert!((most - 0.5).abs() < 0.02, "{most}");
}

#[test]
fn a_copy_that_is_not_made_saves_at_least_what_it_takes_to_fill_a_page() {
    let least = |fault_ns| on_fork(&[], Some(0), fault_ns).share.unwrap().least;
    // At least half of the 200 copies in one second disappear.
    let copies = least(100_000.0) - least(0.0);
    assert!((copies - 0.01).abs() < 0.001, "{copies}");
}

#[test]
fn a_process_that_is_not_forked_saves_at_least_its_page_faults_if_it_has_ended() {
    let time_ns = 300_000_000;
    let forked = Item::Change(Change::forked(time_ns, 8, 7));
    let exited = Item::Change(Change::exited(time_ns, 8));
    let loaded = Item::Change(Change::named(time_ns, 8, "server", true));
    let fault = |number_of: u64| {
        let fields = vec![number("address", number_of << 12)];
        let event = "exceptions:page_fault_user";
        Item::Sample(sample(time_ns + number_of, (8, "server"), event, fields))
    };
    let faults: Vec<Item> = (1..=200).map(fault).collect();
    let least = |news: &[&[Item]]| on_fork(&news.concat(), Some(0), 100_000.0).share.unwrap().least;
    let (forked, exited, loaded) = ([forked], [exited], [loaded]);
    let none = least(&[]);
    // Half of 200 page faults in one second.
    let ended = least(&[&forked, &faults, &exited]);
    assert!((ended - none - 0.01).abs() < 0.001, "{none} {ended}");
    for lives in [
        least(&[&forked, &faults]),
        least(&[&forked, &loaded, &faults, &exited]),
        least(&[&faults, &exited]),
    ] {
        assert!((lives - none).abs() < 1e-6, "{none} {lives}");
    }
}

/// Returns the advice for a program that maps and unmaps memory with these flags.
fn on_unmapping(flags: u64) -> Vec<Advice> {
    let mut all = Attribution::new();
    let mut add =
        |event: &str, time_ns, fields| add(&mut all, time_ns, (7, "search"), event, fields);
    // The returned value shows where the kernel mapped the memory.
    let place = number("ret", 0x7000_0000);
    for round in 0..200 {
        let at = round * 200_000;
        let asked = [("addr", 0), ("len", 1 << 16), ("prot", 1), ("flags", flags)];
        let asked = asked.map(|(name, value)| number(name, value)).into();
        add("syscalls:sys_enter_mmap", at, asked);
        add("syscalls:sys_exit_mmap", at + 5_000, vec![place.clone()]);
        for page in 0..16 {
            let address = number("address", 0x7000_0000 + (page << 12));
            let event = "exceptions:page_fault_user";
            add(event, at + 10_000 + page * 2_000, vec![address]);
        }
        let range = vec![number("addr", 0x7000_0000), number("len", 1 << 16)];
        add("syscalls:sys_enter_munmap", at + 100_000, range);
        interrupt(&mut add, at + 101_000);
        add("syscalls:sys_exit_munmap", at + 110_000, vec![number("ret", 0)]);
        let next = vec![number("next_pid", 7)];
        add("sched:sched_switch", at + 190_000, next);
    }
    all.item(prices(1_000.0), &mut ());
    Report::new(all, None).advice
}

#[test]
fn files_that_are_mapped_for_a_moment_are_to_be_read() {
    let kinds = |flags| {
        let advice = on_unmapping(flags).into_iter();
        advice.map(|advice| advice.kind).collect::<Vec<_>>()
    };
    // MAP_PRIVATE, without and with MAP_ANONYMOUS.
    let (file, memory) = (kinds(0x2), kinds(0x22));
    assert!(file.contains(&"read") && !file.contains(&"cache"), "{file:?}");
    assert!(memory.contains(&"cache") && !memory.contains(&"read"), "{memory:?}");
    let advice = on_unmapping(0x2);
    let read = advice.iter().find(|advice| advice.kind == "read").unwrap();
    assert_eq!((read.interrupts, read.left), (200, (0, 0)));
    let share = read.share.unwrap();
    // These are the costs of interrupts in a round of 190 us, and at most also the sixteen page faults and both calls.
    assert!((0.015..0.06).contains(&share.least), "{share:?}");
    assert!((0.08..0.25).contains(&share.most), "{share:?}");
}

#[test]
fn a_programs_page_faults_are_as_many_as_the_kernel_has_counted_of_it() {
    // The recording has 4000 faults, twenty in each round. All programs together had ten times as many.
    let refilled = |faults: Option<u64>| {
        let mut all = recorded(Program { fault_ns: Some(1_000.0), ..Program::default() });
        all.item(count("exceptions:page_fault_user", 40_000, 4_000), &mut ());
        let ran =
            faults.map(|faults| CpuTime { faults, ..ran("server", 10_000_000_000, 1_000_000_000) });
        if let Some(ran) = ran {
            all.item(Item::CpuTime(ran), &mut ());
        }
        let sites = Report::new(all, None).sites;
        sites.iter().map(|site| site.refaults).sum::<u64>()
    };
    let (all, own) = (refilled(None), refilled(Some(12_000)));
    // The first round fills memory that no call had given back.
    assert!((39_000..=40_000).contains(&all), "{all}");
    assert!((11_700..=12_000).contains(&own), "{own}");
}

/// Checks that the answer is "nothing" if the gain may be nothing. Another recording might contradict it.
#[test]
fn advice_that_may_save_nothing_is_not_said_to_help() {
    let program = Program {
        fault_ns: Some(16_000.0),
        elsewhere: 19,
        round_ns: 8_000_000,
        ..Program::default()
    };
    let report = program.report();
    let share = report.advice[0].share.unwrap();
    assert!(share.least < NOISE && share.most > 0.05, "{share:?}");
    let lines = report.answer.join("\n");
    assert!(
        lines.contains("\nTry first  nothing: no setting is sure to help; perhaps up to ")
            && lines.contains(" %, in code:\n           keep memory"),
        "{lines}"
    );
    // Analysing the same recording again gives the same result.
    let again = program.report();
    assert_eq!(report.json(), again.json());
}

/// Checks the advice for threads that give their stacks back as they end. No allocator has a setting for that.
#[test]
fn the_stacks_of_threads_that_end_are_kept_by_keeping_the_threads() {
    let stack = &["__madvise", "start_thread", "clone"];
    let report = Program { stack, ..Program::default() }.report();
    let kinds: Vec<_> = report.advice.iter().map(|advice| advice.kind).collect();
    assert!(kinds.contains(&"pool") && !kinds.contains(&"keep"), "{kinds:?}");
}

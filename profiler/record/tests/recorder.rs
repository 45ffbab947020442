//! Records a program with a known number of calls, and compares the recordings with that.
//!
//! These tests need root (or CAP_PERFMON and a readable tracefs). If they can't run, they print that.
#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quell_record::attribute::Attribution;
use quell_record::perf::file::{Recording, Writer};
use quell_record::perf::live::{
    CommandRun, CountMode, EventRequest, Filter, Options, RecordError, Recorder, Scope, Stack,
    SumMode, Summary,
};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use quell_record::perf::{Item, LossReason, Progress, Sample, Source, Statistics, Window};
use quell_record::report::Report;

const CALLS: usize = 5_000;

/// Returns the program. `cargo test` builds it beside this test, unless only this test was built.
fn churn() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/churn");
    assert!(program.exists(), "first: cargo build -p quell-record --example churn");
    program
}

fn wanted(names: &[(&str, bool, Stack)]) -> Vec<EventRequest> {
    let wanted = names.iter().map(|&(event, everywhere, stack)| EventRequest {
        event: event.to_owned(),
        everywhere,
        stack,
        counted: CountMode::Yes,
        filter: None,
    });
    wanted.collect()
}

/// The summary of a recording, and all that it contains.
struct Recorded {
    summary: Summary,
    items: Vec<Item>,
}

/// A shell that has started the program and waits for it. Dropping this ends both.
struct Shell(Child);

impl Shell {
    fn start(calls: usize) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$0\" \"$1\"; exit"]).arg(churn());
        Self(shell.arg(calls.to_string()).process_group(0).spawn().unwrap())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_process_is_recorded_with_the_children_that_it_has_already() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let shell = Shell::start(usize::MAX);
    std::thread::sleep(Duration::from_millis(200));
    // A control group may have its processes in groups below it.
    let group = tempfile::tempdir().unwrap();
    let below = group.path().join("below");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(group.path().join("cgroup.procs"), "").unwrap();
    std::fs::write(below.join("cgroup.procs"), format!("{}\n", shell.0.id())).unwrap();
    for (scope, begins) in [
        (Scope::Processes(vec![shell.0.id()]), "process "),
        (Scope::Cgroup(group.path().into()), "control group "),
    ] {
        let options = Options {
            wanted: wanted(&[("tlb:tlb_flush", false, Stack::Absent)]),
            overhead: f64::INFINITY,
            ..Options::default()
        };
        let Some(recorder) = open(options, scope) else {
            return;
        };
        let said = recorder.host().scope.clone();
        assert!(said.starts_with(begins) && said.contains("its descendants: churn "), "{said}");
        let recorded = run(recorder, |progress, _| progress.kept > 100).unwrap();
        let of_child = recorded.samples().filter(|sample| &*sample.comm == "churn").count();
        assert!(of_child > 50, "{of_child} of {}", recorded.summary.kept);
    }
}

/// Allows one recording at a time.
///
/// When a recording starts or stops, the kernel removes all events of a CPU from their list and adds them again.
/// Another recording misses events on that CPU in this moment, and doesn't count them either.
static ALONE: Mutex<()> = Mutex::new(());

/// Opens a recorder. Returns `None` if this host doesn't allow it.
fn open(options: Options, scope: Scope) -> Option<Recorder> {
    match Recorder::open(options, scope) {
        Ok(recorder) => Some(recorder),
        Err(refused @ (RecordError::Missing(_) | RecordError::Event { .. })) => {
            eprintln!("NOT RUN: {refused}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn read(file: &Path) -> Vec<Item> {
    let mut recording = Recording::open(file).unwrap();
    std::iter::from_fn(|| recording.next().unwrap()).collect()
}

/// Records until the end, or until `stop` returns `true` for the progress and the file. Returns `None` if the kernel
/// was to sum flushes, and can't.
fn run(recorder: Recorder, mut stop: impl FnMut(Progress, &Path) -> bool) -> Option<Recorded> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = Writer::new(file.reopen().unwrap()).unwrap();
    let (summary, _) = recorder.run(writer, |progress| stop(progress, file.path())).unwrap();
    eprintln!("{summary}");
    assert!(Recording::open(file.path()).unwrap().closed());
    let recorded = Recorded { summary, items: read(file.path()) };
    if let Some(refused) = recorded.notes().find(|note| note.contains("not summed in the kernel")) {
        eprintln!("NOT RUN: {refused}");
        return None;
    }
    Some(recorded)
}

/// Records the program. Returns `None` if this host doesn't allow it.
fn record(calls: usize, overhead: f64, wanted: Vec<EventRequest>) -> Option<Recorded> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(churn());
    command.arg(calls.to_string());
    let options = Options { wanted, overhead, ..Options::default() };
    let recorded = run(open(options, Scope::Command(command))?, |_, _| false)?;
    assert!(recorded.summary.exit.unwrap().success());
    let mut last = 0;
    for item in &recorded.items {
        match item {
            Item::Sample(sample) => {
                assert!(last <= sample.time_ns, "the buffers of the CPUs are merged by time");
                last = sample.time_ns;
            }
            Item::Window(window) => {
                assert!(last <= window.end_ns, "{last} is told before {window:?} ends")
            }
            _ => {}
        }
    }
    Some(recorded)
}

impl Recorded {
    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.items.iter().filter_map(|item| match item {
            Item::Sample(sample) => Some(sample),
            _ => None,
        })
    }

    fn of(&self, event: &str) -> impl Iterator<Item = &Sample> {
        self.samples().filter(move |sample| &*sample.event == event)
    }

    /// Returns the calls by which the program gives one page back.
    fn calls(&self, event: &str) -> Vec<&Sample> {
        // A thread that ends gives its stack back, too, but that's larger.
        let own = |call: &&Sample| {
            (call.number("behavior"), call.number("len_in")) == (Some(4), Some(4096))
        };
        self.of(event).filter(own).collect()
    }

    /// Returns the sum of a field of these events.
    fn sum(&self, event: &str, field: &str) -> u64 {
        self.of(event).map(|sample| sample.number(field).unwrap()).sum()
    }

    fn notes(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|item| match item {
            Item::Note(note) => Some(&**note),
            _ => None,
        })
    }

    fn windows(&self) -> Vec<Window> {
        let windows = self.items.iter().filter_map(|item| match item {
            Item::Window(window) => Some(*window),
            _ => None,
        });
        windows.collect()
    }

    /// Returns the kernel's counters before and after.
    fn read(&self) -> [&Statistics; 2] {
        let read = self.items.iter().filter_map(|item| match item {
            Item::Statistics(read) => Some(read),
            _ => None,
        });
        read.collect::<Vec<_>>().try_into().unwrap()
    }

    /// Returns the growth of the row `TLB` of `/proc/interrupts`. Some machines have no such row.
    fn row(&self) -> Option<u64> {
        let [before, after] = self.read().map(|read| read.interrupt("TLB"));
        Some(after? - before?)
    }

    fn exact(&self, event: &str) -> u64 {
        self.summary.counts.iter().find(|count| count.event == event).unwrap().exact
    }
}

#[test]
fn every_call_of_a_program_is_recorded_and_its_interrupts_are_those_that_the_kernel_counts() {
    let madvise = "syscalls:sys_enter_madvise";
    let flush = "tlb:tlb_flush";
    let function = "csd:csd_function_entry";
    let events = [
        (madvise, false, Stack::Unwound),
        (flush, true, Stack::Unwound),
        (function, true, Stack::Absent),
    ];
    let Some(recorded) = record(CALLS, f64::INFINITY, wanted(&events)) else {
        return;
    };
    let calls = recorded.calls(madvise);
    let lost = recorded.summary.lost as usize;
    assert!(calls.len() <= CALLS && calls.len() + lost >= CALLS, "{} and {lost} lost", calls.len());
    assert!(recorded.exact(madvise) >= CALLS as u64);
    assert!(calls.iter().all(|sample| &*sample.comm == "churn"), "{:?}", calls[0]);

    // The program's function must be on the stack, with its name.
    let named = calls.iter().filter(|sample| {
        let mut frames = sample.stack.iter();
        frames.any(|frame| frame.symbol.as_deref().is_some_and(|name| name.contains("give_back")))
    });
    let named = named.count();
    assert!(
        named * 20 >= calls.len() * 19,
        "{named} of {} calls have their function: {:?}",
        calls.len(),
        calls[0].stack
    );

    // Flushes on targets must match the kernel's count of shootdowns in `/proc/interrupts`. The initiator's own part
    // has no queued work. Older kernels lack the event.
    let targets = recorded.of(function).filter(|sample| {
        let name = sample.field("func").and_then(|name| name.text());
        name == Some("flush_tlb_func") && sample.number("csd") != Some(0)
    });
    let targets = targets.count() as u64;
    if let (1.., Some(counted)) = (targets, recorded.row()) {
        eprintln!("{targets} flushes ran on targets, {counted} shootdowns in /proc/interrupts");
        let apart = counted.abs_diff(targets);
        assert!(
            apart * 20 <= counted + 200 + 20 * recorded.summary.lost,
            "{counted} against {targets}"
        );
    }
}

#[test]
fn calls_without_stacks_are_told_from_the_tracepoint_that_all_calls_share() {
    let calls = 1000;
    let names = ["syscalls:sys_enter_madvise", "syscalls:sys_exit_madvise"];
    let mut events = wanted(&names.map(|name| (name, false, Stack::Absent)));
    for event in &mut events {
        event.counted = CountMode::No;
    }
    let Some(recorded) = record(calls, f64::INFINITY, events) else {
        return;
    };
    let lost = recorded.summary.lost as usize;
    let own = recorded.calls(names[0]).len();
    assert!(own <= calls && own + lost >= calls, "{own} and {lost} lost");
    let ended = recorded.of(names[1]);
    let ended = ended.filter(|end| end.number("ret") == Some(0)).count();
    assert!(ended + lost >= calls, "{ended} and {lost} lost");
    for sample in recorded.samples() {
        assert!(names.contains(&&*sample.event), "{sample:?}");
    }
}

#[test]
fn what_fits_into_the_smallest_buffer_is_not_lost_however_late_it_is_read() {
    // With stacks of 4 KiB, these calls take half of the 512 KiB that every user may have.
    let calls = 60;
    let madvise = "syscalls:sys_enter_madvise";
    let events = [(madvise, false, Stack::Unwound)];
    let Some(recorded) = record(calls, f64::INFINITY, wanted(&events)) else {
        return;
    };
    // A call of another program may be counted but not recorded, if recording stops on its CPU at that moment.
    let has_no_room =
        |item: &&Item| matches!(item, Item::Lost(lost) if lost.why == LossReason::Full);
    assert_eq!(recorded.items.iter().find(has_no_room), None);
    assert_eq!(recorded.calls(madvise).len(), calls);
}

#[test]
fn with_a_small_budget_windows_are_recorded_and_everything_is_counted() {
    let (enter, exit) = ("syscalls:sys_enter_madvise", "syscalls:sys_exit_madvise");
    let events = [(enter, false, Stack::Whole), (exit, false, Stack::Absent)];
    let calls = 12 * CALLS;
    // Counting takes 1 % of the program's time, and recording 40 %.
    let Some(recorded) = record(calls, 0.05, wanted(&events)) else {
        return;
    };
    // On a busy host even counting may exceed the limit. Then it stops for a while, and the recording contains this
    // note.
    let was_stopped =
        recorded.notes().any(|note| note.starts_with("Counting interrupts cost more"));
    let counted = recorded.exact(enter);
    assert!(counted >= calls as u64 || was_stopped, "{counted} of {calls}");
    let entered: Vec<&Sample> = recorded.of(enter).collect();
    assert!(entered.len() < calls, "everything was recorded");
    let windows = recorded.windows();
    assert!(!windows.is_empty());
    for sample in &entered {
        // The recorded window begins just before the real one, and ends just after it.
        let inside = windows.iter().any(|w| (w.start_ns..=w.end_ns).contains(&sample.time_ns));
        assert!(inside, "{} is in none of {windows:?}", sample.time_ns);
    }
    // Each recorded call must have its end, except at the edges of windows.
    let mut open = HashMap::new();
    let mut ended = 0;
    for sample in recorded.samples() {
        match &*sample.event == enter {
            true => _ = open.insert(sample.tid, sample.time_ns),
            false => ended += usize::from(open.remove(&sample.tid).is_some()),
        }
    }
    assert!(entered.len() - ended <= 2 * windows.len(), "{} entered, {ended} ended", entered.len());
}

#[test]
fn what_happened_while_prices_were_measured_is_not_in_the_recording() {
    // The interrupt that starts recording on a CPU also ends there, after the start. So that end is recorded.
    let events = [
        ("csd:csd_function_exit", true, Stack::Absent),
        ("irq_vectors:call_function_single_exit", true, Stack::Absent),
    ];
    let Some(recorded) = record(60, f64::INFINITY, wanted(&events)) else {
        return;
    };
    let begun = recorded.read()[0].time_ns;
    assert!(recorded.samples().all(|sample| sample.time_ns >= begun), "before {begun}");
}

#[test]
fn where_the_kernel_refuses_a_filter_everything_is_recorded_or_nothing_and_it_is_said() {
    let enter = "syscalls:sys_enter_madvise";
    let filtered = |or_all| {
        let mut wanted = wanted(&[(enter, false, Stack::Absent)]);
        wanted[0].filter = Some(Filter { text: "no_such_field == 1".to_owned(), or_all });
        wanted
    };
    let mut all = filtered(true);
    all.extend(filtered(false));
    // The same note appears only once.
    all.extend(filtered(false));
    let Some(recorded) = record(60, f64::INFINITY, all) else {
        return;
    };
    // Each call is recorded once, by the first event. The others recorded nothing.
    assert_eq!(recorded.calls(enter).len(), 60);
    assert_eq!(recorded.notes().filter(|note| note.contains("no_such_field")).count(), 2);
}

#[test]
fn what_is_missing_is_said() {
    let none = Recorder::open(
        Options {
            wanted: wanted(&[("tlb:no_such_event", false, Stack::Absent)]),
            ..Options::default()
        },
        Scope::Everything,
    );
    let Err(refused) = none else {
        panic!("an event that no kernel has was opened");
    };
    eprintln!("{refused}");
    assert!(!refused.to_string().contains('\n'));
}

/// Returns the options of a recording for which the kernel adds up flushes.
fn summed() -> Options {
    Options {
        wanted: wanted(&[("tlb:tlb_flush", false, Stack::Absent)]),
        sums: SumMode::Beside,
        // A limit that no host exceeds, or counting would stop for a while. Windows close only so that the cost can be
        // measured, which doesn't happen without a limit.
        overhead: 1000.0,
        ..Options::default()
    }
}

#[test]
fn flushes_are_added_up_in_the_kernel_exactly() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = 60_000u64;
    let mut command = Command::new(churn());
    command.arg(calls.to_string());
    let events = wanted(&[("csd:csd_queue_cpu", true, Stack::Whole)]);
    let mut options = Options { wanted: events, ..summed() };
    options.wanted[0].filter =
        Some(Filter { text: "func.function == flush_tlb_func".to_owned(), or_all: true });
    let Some(recorder) = open(options, Scope::Command(command)) else {
        return;
    };
    let Some(recorded) = run(recorder, |_, _| false) else {
        return;
    };
    let is_own = |sample: &&Sample| {
        let call = sample.field("call").and_then(|call| call.text());
        &*sample.comm == "churn" && call == Some("madvise")
    };
    let own: Vec<&Sample> = recorded.of("sums:flushes").filter(is_own).collect();
    let discarded: u64 = own.iter().map(|sample| sample.number("flushes").unwrap()).sum();
    // Each call gives back one page that was touched. A thread gives its stack back when it ends.
    assert!((calls..=calls + 8).contains(&discarded), "{discarded} flushes of {calls} calls");
    // If the other thread never ran at the same time, no place was looked up. A thread's end is in the C library.
    let most = own.iter().filter(|sum| sum.number("flushes") > Some(8));
    for module in most.flat_map(|sum| &*sum.stack).filter_map(|frame| frame.module.as_ref()) {
        assert!(module.ends_with("/churn"), "{module}");
    }
    let (sent, taken) =
        (recorded.sum("sums:flushes", "interrupts"), recorded.sum("sums:taken", "interrupts"));
    let row = recorded.row().unwrap();
    let mut all = Attribution::new();
    recorded.items.into_iter().for_each(|item| all.item(item, &mut ()));
    let report = Report::new(all, None);
    let folded: u64 = report.folded.values().map(|weights| weights[0]).sum();
    eprintln!("{sent} sent and {taken} taken, {row} in /proc/interrupts, {folded} folded");
    // Each stack has a whole number.
    assert!(folded.abs_diff(sent) <= report.folded.len() as u64, "{folded} of {sent}");
    // The readings of the row are further apart than those of the sums, so the row may contain a few more.
    for counted in [sent, taken] {
        assert!(counted.abs_diff(row) <= row / 100 + 10, "{counted} of {row}");
    }
}

#[test]
fn the_sums_of_a_process_that_has_ended_bear_its_name() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // On one CPU, the recorder reads records only after the program has ended.
    let all = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "env true; sleep 0.1"]);
    let options = Options { overhead: Options::default().overhead, ..summed() };
    let recorder = open(options, Scope::Command(command));
    let recorded = recorder.and_then(|recorder| run(recorder, |_, _| false));
    sched_setaffinity(None, &all).unwrap();
    let Some(recorded) = recorded else {
        return;
    };
    // Each program flushes when it starts.
    for program in ["true", "sleep"] {
        let mut sums = recorded.of("sums:flushes");
        assert!(sums.any(|sum| &*sum.comm == program), "{program}");
    }
}

#[test]
fn a_program_that_ends_while_all_are_recorded_keeps_its_own_counts_and_time() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(recorder) = open(summed(), Scope::Everything) else {
        return;
    };
    let mut program = Command::new(churn());
    let mut running = Some(CommandRun::start(program.arg("60000")).unwrap());
    let mut ended = None;
    let killed = tempfile::NamedTempFile::new().unwrap();
    // Sums are read once a second. A CPU may hold those of the ended program for longer.
    let recorded = run(recorder, |progress, file| {
        if running.as_ref().is_some_and(CommandRun::has_ended) {
            let used = running.take().unwrap().wait().unwrap().0;
            ended = Some((progress.elapsed, used));
        }
        let since = |at| progress.elapsed > at + Duration::from_millis(2_500);
        let stops = ended.as_ref().is_some_and(|(at, _)| since(*at));
        if stops {
            // If the recorder were killed now, it would leave this file.
            std::fs::copy(file, &killed).unwrap();
        }
        stops
    });
    let Some(recorded) = recorded else {
        return;
    };
    let used = ended.unwrap().1;
    let ran = |is_wanted: fn(&str) -> bool| -> Duration {
        let times = recorded.items.iter().filter_map(|item| match item {
            Item::CpuTime(of) if is_wanted(&of.comm) => Some(Duration::from_nanos(of.ns())),
            _ => None,
        });
        times.sum()
    };
    let [before, after] = recorded.read().map(|read| Duration::from_nanos(read.busy_ns()));
    let (all, busy) = (ran(|_| true), after - before);
    assert!(all.abs_diff(busy) <= busy / 5, "{all:?} of {busy:?} on all CPUs");
    let ran = ran(|comm| comm == "churn");
    let (sent, row) = (recorded.sum("sums:flushes", "interrupts"), recorded.row().unwrap());
    eprintln!("{sent} sent, {row} in /proc/interrupts; {ran:?} of {used:?}");
    assert!(sent.abs_diff(row) <= row / 50 + 10, "{sent} of {row}");
    // Its last reading may be a second old. Its rate until then tells the rest.
    let cpu = used.cpu.as_secs_f64();
    assert!((ran.as_secs_f64() - cpu).abs() <= cpu / 2.0 + 0.1, "{ran:?} of {used:?}");
    let own = |recorded: &Recorded| -> u64 {
        let own = recorded.of("sums:flushes").filter(|sum| &*sum.comm == "churn");
        own.map(|sum| sum.number("flushes").unwrap()).sum()
    };
    let whole = own(&recorded);
    let killed = Recorded { items: read(killed.path()), ..recorded };
    assert!(killed.notes().any(|note| note.contains("was killed")));
    assert!(own(&killed).abs_diff(whole) <= whole / 100, "{} of {whole}", own(&killed));
}

/// Protects a page from writes through a userfaultfd, and allows them again, that often.
fn protect_by_ioctl(times: usize) -> rustix::io::Result<()> {
    use rustix::ioctl::{Opcode, Updater, ioctl, opcode::read_write};
    const API: Opcode = read_write::<[u64; 3]>(0xaa, 0x3f);
    const REGISTER: Opcode = read_write::<[u64; 4]>(0xaa, 0);
    const WRITE_PROTECT: Opcode = read_write::<[u64; 3]>(0xaa, 6);
    const PAGE: usize = 4096;
    // SAFETY: a new mapping, which nothing else refers to, and the kernel's numbers and structs.
    unsafe {
        let by = userfaultfd(UserfaultfdFlags::CLOEXEC)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(std::ptr::null_mut(), PAGE, rights, MapFlags::PRIVATE)?;
        let (address, page) = (page as u64, page.cast::<u8>());
        ioctl(&by, Updater::<API, [u64; 3]>::new(&mut [0xaa, 1, 0]))?;
        ioctl(&by, Updater::<REGISTER, [u64; 4]>::new(&mut [address, PAGE as u64, 2, 0]))?;
        for _ in 0..times {
            page.write_volatile(1);
            for protected in [1, 0] {
                let mut range = [address, PAGE as u64, protected];
                ioctl(&by, Updater::<WRITE_PROTECT, _>::new(&mut range))?;
            }
        }
        munmap(page.cast(), PAGE)
    }
}

#[test]
fn flushes_in_a_call_that_is_not_recorded_are_added_up_under_its_name() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(recorder) = open(summed(), Scope::Processes(vec![std::process::id()])) else {
        return;
    };
    let (times, mut protected) = (1_000, Ok(()));
    let recorded = run(recorder, |_, _| {
        protected = protect_by_ioctl(times as usize);
        true
    });
    if let Err(error) = protected {
        return eprintln!("NOT RUN: there is no userfaultfd that protects pages: {error}");
    }
    let Some(recorded) = recorded else {
        return;
    };
    let ioctl = |sum: &&Sample| sum.field("call").and_then(|call| call.text()) == Some("ioctl");
    let sums = recorded.of("sums:flushes").filter(ioctl);
    let sum: u64 = sums.map(|sum| sum.number("flushes").unwrap()).sum();
    // A kernel may flush for each call, or only where rights are taken.
    assert!((times..=2 * times + 20).contains(&sum), "{sum} flushes of {times} pairs of calls");
}

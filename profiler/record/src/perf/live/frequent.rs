//! Events that cost programs something even while nobody records them, because they come so often: system calls and
//! page faults.
//!
//! As soon as one system call is traced, the kernel sends all of them a longer way, some 50 ns longer; and each page
//! fault takes some 16 ns more as soon as these are. Programs that make a million calls a second would lose more by that
//! than recording may cost. So what it takes is in the account: page faults are counted by the kernel anyway, and how
//! many calls all programs make is counted for a moment now and then. Where all that takes a large part of the budget,
//! these events are closed with a window and opened again with the next one.
//!
//! To close a tracepoint takes the kernel some forty milliseconds, in which it waits for all CPUs: that is done beside
//! the reading, and no window is opened meanwhile. Therefore calls are recorded by the two tracepoints that all of them
//! share, and a filter takes out those that are wanted; with two for each kind of call, closing would take a second and
//! a half. The price is that in windows each call of any kind meets the filter, which is in the account as well. What
//! counts all calls is there for the moment alone, because it makes each call longer still.
//!
//! Not guaranteed: a call of a program of 32 bits on a kernel of 64 goes by the name that its number has for the others.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::thread::{self, JoinHandle};

use perf_event::Counter;

use super::options::{Counted, Stack, Stretches, Wanted};
use super::price::Price;
use super::rings::{self, Of, Point, Ring};

/// The tracepoints of all system calls: of their begins, and of their ends.
pub(super) const ALL: [&str; 2] = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];

/// How often all calls are counted for a moment: in windows, and between them.
const COUNT_NS: u64 = 2_000_000_000;

/// Which part of the budget calls and page faults together may take for being traced without these events being closed
/// between windows.
const PART: f64 = 0.25;

/// What is wanted of the two ends of system calls, by the number of the call: the caller's index of each event.
#[derive(Default)]
pub(super) struct Ends([Vec<(u64, usize)>; 2]);

impl Ends {
    /// Takes an event that is one end of a system call, if the tracepoint of all calls tells the same: as it does of
    /// those that carry no stack, are not counted, and are not kept whichever process was running.
    pub(super) fn take(&mut self, wanted: &Wanted, event: usize) -> bool {
        let Some((end, number)) = number(&wanted.event) else {
            return false;
        };
        let alike = !wanted.everywhere
            && wanted.stack == Stack::Absent
            && wanted.counted == Counted::No
            && wanted.filter.is_none()
            && wanted.stretches == Stretches::Windows
            && wanted.every == 1;
        if alike {
            self.0[end].push((number, event));
        }
        alike
    }

    /// The points of both ends, by the numbers of their tracepoints.
    pub(super) fn points(self, all: [u64; 2]) -> impl Iterator<Item = Point> {
        let taken = all
            .into_iter()
            .zip(self.0)
            .filter(|(_, calls)| !calls.is_empty());
        taken.map(|(id, calls)| {
            let numbers: BTreeSet<u64> = calls.iter().map(|&(number, _)| number).collect();
            let each: Vec<String> = numbers
                .iter()
                .map(|number| format!("id == {number}"))
                .collect();
            Point {
                of: Of::Calls(calls),
                id,
                stack: Stack::Absent,
                counted: false,
                everywhere: false,
                filter: CString::new(each.join(" || ")).ok(),
                stretches: Stretches::Windows,
                every: 1,
                frequent: Some(rings::Frequent::Call),
            }
        })
    }
}

/// Which end of which system call an event is: 0 for its begin, 1 for its end, and the call's number on this machine.
/// `None` if it is none of the calls that concern memory.
fn number(event: &str) -> Option<(usize, u64)> {
    let name = event.strip_prefix("syscalls:sys_")?;
    let (end, call) = match name.strip_prefix("enter_") {
        Some(call) => (0, call),
        None => (1, name.strip_prefix("exit_")?),
    };
    let number = match call {
        "brk" => libc::SYS_brk,
        "fallocate" => libc::SYS_fallocate,
        "ftruncate" => libc::SYS_ftruncate,
        "madvise" => libc::SYS_madvise,
        "mbind" => libc::SYS_mbind,
        "membarrier" => libc::SYS_membarrier,
        "migrate_pages" => libc::SYS_migrate_pages,
        "mmap" => libc::SYS_mmap,
        "move_pages" => libc::SYS_move_pages,
        "mprotect" => libc::SYS_mprotect,
        "mremap" => libc::SYS_mremap,
        "msync" => libc::SYS_msync,
        "munmap" => libc::SYS_munmap,
        "pkey_mprotect" => libc::SYS_pkey_mprotect,
        "process_madvise" => libc::SYS_process_madvise,
        "process_mrelease" => libc::SYS_process_mrelease,
        "remap_file_pages" => libc::SYS_remap_file_pages,
        "shmdt" => libc::SYS_shmdt,
        "userfaultfd" => libc::SYS_userfaultfd,
        _ => return None,
    };
    Some((end, number.try_into().ok()?))
}

/// How often something happened, in how much time.
#[derive(Clone, Copy, Default)]
struct Rate {
    count: u64,
    within_ns: u64,
}

impl Rate {
    /// How often in a nanosecond; 0 if nothing is known.
    fn each_ns(self) -> f64 {
        self.count as f64 / self.within_ns.max(1) as f64
    }
}

/// The frequent events on all CPUs.
pub(super) struct Frequent {
    points: Vec<Point>,
    tells_lost: bool,
    /// The number of the tracepoint by which all calls are counted, if any end of a call is recorded.
    all: Option<u64>,
    /// Those that are being closed, and since when.
    closing: Option<(JoinHandle<()>, u64)>,
    /// How long that took the last time, or else may take.
    closing_ns: u64,
    /// Since when they are open, and how long they were before.
    open_ns: Option<u64>,
    was_open_ns: u64,
    /// What counts all calls on each CPU, since when, and whether a window is open.
    counting: Option<(Vec<Counter>, u64, bool)>,
    /// What counted them before, as it is closed.
    ending: Option<JoinHandle<()>>,
    /// When that began last, between windows and in one.
    counted_ns: [u64; 2],
    /// How many calls there are, between windows and in them.
    calls: [Rate; 2],
    /// How many page faults.
    faults: Rate,
}

impl Frequent {
    /// Those of these points, which are open.
    pub(super) fn of(points: Vec<Point>, all: Option<u64>) -> Self {
        let any = points
            .iter()
            .any(|point| point.frequent == Some(rings::Frequent::Call));
        Self {
            points,
            tells_lost: rings::tells_lost(),
            all: all.filter(|_| any),
            closing: None,
            closing_ns: 0,
            open_ns: None,
            was_open_ns: 0,
            counting: None,
            ending: None,
            counted_ns: [0; 2],
            calls: [Rate::default(); 2],
            faults: Rate::default(),
        }
    }

    /// All points, frequent or not, as they were opened on each CPU.
    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Whether there is any.
    fn any(&self) -> bool {
        self.points.iter().any(|point| point.frequent.is_some())
    }

    /// None of them was closed yet: each may take so long.
    pub(super) fn expect_closing(&mut self, each_ns: f64) {
        let frequent = self.points.iter().filter(|point| point.frequent.is_some());
        let tracepoints: BTreeSet<u64> = frequent.map(|point| point.id).collect();
        self.closing_ns = (tracepoints.len() as f64 * each_ns) as u64;
    }

    /// What all programs have lost by them until now, in nanoseconds, of which so many lay in windows.
    pub(super) fn ns(&self, now_ns: u64, price: &Price, in_windows_ns: u64) -> f64 {
        let open = self.open_ns.map_or(0, |since| now_ns.saturating_sub(since));
        self.each_ns(price) * (self.was_open_ns + open) as f64
            + self.calls[1].each_ns() * price.filtered_ns * in_windows_ns as f64
    }

    /// The same of a nanosecond in which they are open and not recorded.
    fn each_ns(&self, price: &Price) -> f64 {
        let [between, within] = self.calls;
        let calls = match between.within_ns {
            0 => within,
            _ => between,
        };
        // Which calls change memory is not counted: at most all.
        calls.each_ns() * (price.call_ns + price.flush_ns) + self.faults.each_ns() * price.fault_ns
    }

    /// How many calls were counted.
    pub(super) fn counted(&self) -> u64 {
        self.calls.iter().map(|calls| calls.count).sum()
    }

    /// There were so many page faults in so much time, all in all.
    pub(super) fn faulted(&mut self, count: u64, within_ns: u64) {
        self.faults = Rate { count, within_ns };
    }

    /// What it will cost to close them, because calls and page faults take longer meanwhile: in nanoseconds, if that is
    /// too large a part of so much that may be spent of a nanosecond; else, or if nothing is known of that, they stay
    /// open.
    pub(super) fn closing_ns(&self, price: &Price, allowed: Option<f64>) -> Option<f64> {
        let cost = self.each_ns(price);
        (cost > PART * allowed?).then_some(cost * self.closing_ns as f64)
    }

    /// Whether they are open, and nobody closes them.
    pub(super) fn are_open(&self) -> bool {
        self.open_ns.is_some() && self.closing.is_none()
    }

    /// The recording begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.open_ns = self.any().then_some(now_ns);
    }

    /// Counts all calls from now until the next time, if it is time for that: those of windows are fewer, because each
    /// takes longer.
    pub(super) fn look(&mut self, rings: &[Ring], now_ns: u64, window: bool) -> io::Result<()> {
        if self.counting.is_some() {
            return self.count_no_more(now_ns);
        }
        let next = self.counted_ns[usize::from(window)] + COUNT_NS;
        let time = |_: &u64| self.are_open() && now_ns >= next;
        if let Some(all) = self.all.filter(time) {
            let counts = rings.iter().map(|ring| ring.count_of(all));
            self.counting = Some((counts.collect::<io::Result<_>>()?, now_ns, window));
            self.counted_ns[usize::from(window)] = now_ns;
        }
        Ok(())
    }

    fn count_no_more(&mut self, now_ns: u64) -> io::Result<()> {
        if let Some((mut counts, since, window)) = self.counting.take() {
            let calls = &mut self.calls[usize::from(window)];
            for count in &mut counts {
                calls.count += count.read()?;
            }
            calls.within_ns += now_ns.saturating_sub(since);
            join(self.ending.replace(thread::spawn(move || drop(counts))));
        }
        Ok(())
    }

    /// Begins to close them.
    pub(super) fn close(&mut self, rings: &mut [Ring], now_ns: u64) -> io::Result<()> {
        self.count_no_more(now_ns)?;
        let mut taken = Vec::new();
        for ring in rings {
            taken.extend(ring.take_frequent(&self.points)?);
        }
        self.closing = Some((thread::spawn(move || drop(taken)), now_ns));
        Ok(())
    }

    /// Whether they are being closed.
    pub(super) fn is_closing(&self) -> bool {
        let closing = self.closing.as_ref();
        closing.is_some_and(|(thread, _)| !thread.is_finished())
    }

    /// Whether they were closed since the last time that this was asked.
    pub(super) fn have_closed(&mut self, now_ns: u64) -> bool {
        let Some((_, since)) = self.closing.take_if(|(thread, _)| thread.is_finished()) else {
            return false;
        };
        self.closing_ns = now_ns.saturating_sub(since);
        if let Some(since) = self.open_ns.take() {
            self.was_open_ns += now_ns.saturating_sub(since);
        }
        true
    }

    /// Opens those that are not, as of now. While no window is. Returns whether there were any.
    pub(super) fn open(&mut self, rings: &mut [Ring], now_ns: u64) -> io::Result<bool> {
        if !self.any() || self.open_ns.is_some() {
            return Ok(false);
        }
        let open = |ring: &mut Ring| ring.open_frequent(&self.points, self.tells_lost);
        rings.iter_mut().try_for_each(open)?;
        self.open_ns = Some(now_ns);
        Ok(true)
    }
}

impl Drop for Frequent {
    fn drop(&mut self) {
        // What is open in the kernel is not left behind.
        join(self.closing.take().map(|(thread, _)| thread));
        join(self.ending.take());
    }
}

/// Waits until it has ended.
fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(event: &str, stack: Stack) -> Wanted {
        Wanted {
            event: event.into(),
            everywhere: false,
            stack,
            counted: Counted::No,
            filter: None,
            stretches: Stretches::Windows,
            every: 1,
        }
    }

    fn point(id: u64, frequent: bool) -> Point {
        Point {
            of: Of::Event(0),
            id,
            stack: Stack::Absent,
            counted: false,
            everywhere: false,
            filter: None,
            stretches: Stretches::Windows,
            every: 1,
            frequent: frequent.then_some(rings::Frequent::Call),
        }
    }

    #[test]
    fn calls_are_told_apart_by_their_numbers_and_the_others_are_left_out() {
        let mut ends = Ends::default();
        let (enter, exit) = ("syscalls:sys_enter_madvise", "syscalls:sys_exit_munmap");
        assert!(ends.take(&wanted(enter, Stack::Absent), 3));
        assert!(ends.take(&wanted(exit, Stack::Absent), 4));
        // Neither its stack nor its count is to be had there; and this is no call.
        assert!(!ends.take(&wanted(enter, Stack::Whole), 5));
        assert!(!ends.take(&wanted("tlb:tlb_flush", Stack::Absent), 6));
        let points: Vec<Point> = ends.points([8, 9]).collect();
        let record = |number: i64| {
            let mut bytes = vec![0; 8];
            bytes.extend(number.to_ne_bytes());
            bytes
        };
        for (at, id, number, event) in [(0, 8, libc::SYS_madvise, 3), (1, 9, libc::SYS_munmap, 4)] {
            let point = &points[at];
            assert_eq!(point.id, id);
            let filter = point.filter.as_ref().unwrap();
            assert_eq!(filter.to_str().unwrap(), format!("id == {number}"));
            assert_eq!(point.of.event(&record(number)), Some(event));
            assert_eq!(point.of.event(&record(libc::SYS_read)), None);
            assert_eq!(point.of.event(&[0; 9]), None);
        }
    }

    #[test]
    fn events_that_cost_too_much_are_closed_even_where_nothing_may_be_spent() {
        let price = Price {
            call_ns: 50.0,
            fault_ns: 20.0,
            ..Price::assumed()
        };
        let mut frequent = Frequent::of(Vec::new(), None);
        frequent.closing_ns = 1_000_000_000;
        // Half a million calls a second, of which each takes 50 ns more, and as much again of page faults: a twentieth
        // of one CPU.
        frequent.calls[0] = Rate {
            count: 500_000,
            within_ns: 1_000_000_000,
        };
        frequent.faulted(1_250_000, 1_000_000_000);
        assert_eq!(frequent.closing_ns(&price, None), None);
        assert_eq!(frequent.closing_ns(&price, Some(0.3)), None);
        let closing = frequent
            .closing_ns(&price, Some(0.1))
            .expect("it is over a quarter");
        assert!((closing - 0.05 * 1e9).abs() < 1.0);
        assert!(frequent.closing_ns(&price, Some(0.0)).is_some());
    }

    #[test]
    fn what_calls_and_page_faults_lose_is_in_the_account_whether_they_are_recorded_or_not() {
        let price = Price {
            call_ns: 50.0,
            filtered_ns: 200.0,
            fault_ns: 20.0,
            ..Price::assumed()
        };
        let mut frequent = Frequent::of(vec![point(1, true)], Some(1));
        frequent.begin(0);
        let million = Rate {
            count: 1_000_000,
            within_ns: 1_000_000_000,
        };
        frequent.calls = [million; 2];
        frequent.faulted(1_000_000, 1_000_000_000);
        let lost = |windows| frequent.ns(1_000_000_000, &price, windows);
        assert!((lost(0) - 70e6).abs() < 1.0, "{}", lost(0));
        assert!((lost(100_000_000) - 90e6).abs() < 1.0);
    }

    #[test]
    fn each_tracepoint_is_closed_once_whatever_is_open_of_it() {
        let points = vec![
            point(1, true),
            point(1, true),
            point(2, true),
            point(3, false),
        ];
        let mut frequent = Frequent::of(points, Some(9));
        frequent.expect_closing(40e6);
        assert_eq!(frequent.closing_ns, 80_000_000);
    }

    #[test]
    fn what_is_open_and_not_being_closed_can_be_closed() {
        let mut frequent = Frequent::of(vec![point(1, true)], None);
        assert!(!frequent.are_open());
        frequent.begin(5);
        assert!(frequent.are_open());
        frequent.close(&mut [], 7).unwrap();
        assert!(!frequent.are_open());
        while frequent.is_closing() {
            thread::yield_now();
        }
        assert!(frequent.have_closed(9) && !frequent.are_open());
        frequent.open(&mut [], 11).unwrap();
        assert!(frequent.are_open());
    }
}

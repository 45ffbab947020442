//! The cost of a line for each CPU.

use super::*;
use crate::file::{Parameter as P, built_in};

struct TestBed {
    costs: Costs,
    lines: Lines,
}

impl TestBed {
    fn new() -> Self {
        let file = built_in("haswell-server").expect("built in");
        let costs = Costs::new(&file);
        let lines = Lines::new(&costs, 256);
        TestBed { costs, lines }
    }

    /// Returns the cost of an access long after all earlier ones, and whether it was a transfer.
    fn cost(&mut self, cpu: usize, address: usize, kind: LineUse) -> (Time, bool) {
        let number = self.lines.number(address);
        let now = 1 << 40;
        let access = self.lines.access(&self.costs, cpu, number, kind, now, None);
        for line in &mut self.lines.lines {
            line.busy = 0;
        }
        (access.ready - now, access.transferred)
    }
}

const LINE: usize = 0x1000;
/// A CPU of the other socket of the Haswell server, and a CPU beyond the first 64 cores.
const FAR: usize = 30;
const BEYOND: usize = 200;

#[test]
fn a_line_in_no_cache_comes_from_memory_and_stays() {
    let mut bed = TestBed::new();
    let (memory, l1) = (bed.costs.time(P::MemoryLatency), bed.costs.time(P::L1Hit));
    assert_eq!(bed.cost(0, LINE, LineUse::Load), (memory, false));
    assert_eq!(bed.cost(0, LINE + 56, LineUse::Load), (l1, false), "same line");
    assert_eq!(bed.cost(0, LINE + 64, LineUse::Load), (memory, false), "another");
}

#[test]
fn a_changed_line_travels_by_distance_and_is_then_shared() {
    for reader in [1, FAR, BEYOND] {
        let mut bed = TestBed::new();
        bed.cost(0, LINE, LineUse::Store);
        let transfer = if reader == 1 {
            bed.costs.time(P::TransferSocket)
        } else {
            bed.costs.time(P::TransferRemote)
        };
        let l1 = bed.costs.time(P::L1Hit);
        assert_eq!(bed.cost(reader, LINE, LineUse::Load), (transfer, true));
        assert_eq!(bed.cost(reader, LINE, LineUse::Load), (l1, false));
        assert_eq!(bed.cost(0, LINE, LineUse::Load), (l1, false));
    }
}

#[test]
fn a_write_takes_the_line_away_from_the_farthest_reader() {
    for (reader, remote) in [(1, false), (FAR, true), (BEYOND, true)] {
        let mut bed = TestBed::new();
        bed.cost(0, LINE, LineUse::Load);
        bed.cost(1, LINE, LineUse::Load);
        bed.cost(reader, LINE, LineUse::Load);
        let transfer = if remote {
            bed.costs.time(P::TransferRemote)
        } else {
            bed.costs.time(P::TransferSocket)
        };
        assert_eq!(bed.cost(0, LINE, LineUse::Modify), (transfer, true));
        assert_eq!(bed.cost(0, LINE, LineUse::Modify), (bed.costs.time(P::L1Hit), false));
        assert!(bed.cost(reader, LINE, LineUse::Load).1, "the reader lost it");
    }
}

#[test]
fn transfers_of_one_line_queue_and_of_others_do_not() {
    let mut bed = TestBed::new();
    let number = bed.lines.number(LINE);
    let other = bed.lines.number(LINE + 64);
    let mut modify =
        |cpu, line, now| bed.lines.access(&bed.costs, cpu, line, LineUse::Modify, now, None).ready;
    modify(0, number, 0);
    modify(0, other, 0);
    let transfer = bed.costs.time(P::TransferSocket);
    let mut modify =
        |cpu, line, now| bed.lines.access(&bed.costs, cpu, line, LineUse::Modify, now, None).ready;
    assert_eq!(modify(1, number, 1_000_000), 1_000_000 + transfer);
    assert_eq!(modify(2, number, 1_000_000), 1_000_000 + 2 * transfer);
    assert_eq!(modify(3, number, 1_000_000), 1_000_000 + 3 * transfer);
    assert_eq!(modify(1, other, 1_000_000), 1_000_000 + transfer);
}

#[test]
fn a_core_keeps_a_line_for_two_hops_of_the_next_transfer() {
    let TestBed { costs, mut lines } = TestBed::new();
    let number = lines.number(LINE);
    let (hop, transfer) = (costs.time(P::TransferSocket) / 3, costs.time(P::TransferSocket));
    lines.access(&costs, 0, number, LineUse::Modify, 0, None);
    let now = 1_000_000;
    let place =
        |lines: &mut Lines, cpu, now| lines.queue(&costs, cpu, number, LineUse::Modify, now);
    assert_eq!(place(&mut lines, 1, now), None, "nobody else asks for it");
    lines.access(&costs, 1, number, LineUse::Modify, now, None);
    let second = place(&mut lines, 2, now).expect("the line is under way");
    assert_eq!((second.leaves, second.ready), (now + 2 * transfer - hop, now + 2 * transfer));
    let third = place(&mut lines, FAR, now).expect("the line is under way");
    assert_eq!(third.ready, second.ready + costs.time(P::TransferRemote));
    assert_eq!(place(&mut lines, 1, now + transfer), None, "still there");
    let arrived = lines.access(&costs, 2, number, LineUse::Modify, second.leaves, Some(second));
    assert_eq!(arrived, LineAccess { ready: second.ready, transferred: true, held: false });
    assert!(place(&mut lines, 1, second.leaves).is_some(), "it has gone");
}

#[test]
fn what_exceeds_a_cache_comes_from_the_next() {
    let mut bed = TestBed::new();
    let lines = bed.costs.l1_lines;
    for line in 0..2 * lines {
        bed.cost(0, 64 * line, LineUse::Load);
    }
    let (l1, l2) = (bed.costs.time(P::L1Hit), bed.costs.time(P::CacheL2Hit));
    assert_eq!(bed.cost(0, 0, LineUse::Load).0, l2);
    assert_eq!(bed.cost(0, 0, LineUse::Load).0, l1);
    for line in 0..2 * bed.costs.l2_lines {
        bed.cost(0, 64 * line, LineUse::Load);
    }
    let llc = bed.costs.time(P::LlcHit);
    assert_eq!(bed.cost(0, 0, LineUse::Load).0, llc);
}

#[test]
fn a_forgotten_line_carries_nothing_over() {
    let mut bed = TestBed::new();
    bed.cost(0, LINE, LineUse::Modify);
    bed.lines.forget(LINE);
    assert!(!bed.cost(1, LINE, LineUse::Modify).1, "no cache had it");
}

#[test]
fn watchers_are_found_until_they_leave() {
    let mut bed = TestBed::new();
    let number = bed.lines.number(LINE);
    assert!(bed.lines.watchers(number).is_empty());
    bed.lines.watch(number, 3);
    bed.lines.watch(number, 5);
    assert_eq!(bed.lines.watchers(number), [3, 5]);
    bed.lines.unwatch(number, 3);
    assert_eq!(bed.lines.watchers(number), [5]);
    bed.lines.unwatch(number, 5);
    assert!(bed.lines.watchers(number).is_empty());
}

//! Checks that generated programs have the sizes at which mistakes show: empty, one, full, and beyond the end.
//!
//! We draw programs as a search does, until each line of the list is met by some run. If the generator never meets a
//! line any more, this test fails, whatever else a search finds. It doesn't matter how often a line is met.

use quell::Counter::{
    self, Broadcasts, DeferralsRefused, EscalatedBatch, EscalatedContention, EscalatedGap,
    EscalatedLength, FlushedFull, FlushedRanges, FlushesDeferred, Merged, Requested, Rollovers,
    Sent, SwitchTagTaken, Switches,
};
use quell_adversary::generate::random;
use quell_adversary::generated::Program;
use quell_adversary::generated::program::Shape;
use quell_adversary::schedule::{Rng, Strategy};
use quell_adversary::{Case, Coverage, MachineEvent, MachineKind, ReachGoal, Scenario, Session};

/// The maximum number of programs that are drawn.
const PROGRAMS: u64 = 6_000;

/// The number of schedules of each program.
const SCHEDULES: u64 = 4;

/// The number of batches of one space that this machine counts at once: half of the range of its counter.
const MOST_BATCHES: u8 = 2;

/// One run: the sizes of its machine, and its results.
struct SizedRun<'r> {
    kind: MachineKind,
    shape: &'r Shape,
    coverage: &'r Coverage,
}

impl SizedRun<'_> {
    fn counted(&self, counter: Counter) -> u64 {
        self.coverage.get(ReachGoal::Engine(counter))
    }

    fn has(&self, counter: Counter) -> bool {
        self.counted(counter) > 0
    }

    fn happened(&self, happening: MachineEvent) -> bool {
        self.coverage.get(ReachGoal::Machine(happening)) > 0
    }

    fn own_tags(&self) -> bool {
        self.kind.tagged() && !self.kind.broadcasts()
    }
}

type Line = (&'static str, fn(&SizedRun<'_>) -> bool);

/// The conditions to meet.
const LINES: &[Line] = &[
    ("no stamp: a deferred flush is refused", |met| {
        met.shape.ledger == 0 && met.has(DeferralsRefused)
    }),
    ("one stamp: a deferred flush is taken", |met| {
        met.shape.ledger == 1 && met.has(FlushesDeferred)
    }),
    ("all stamps in use", |met| {
        met.shape.ledger > 0 && met.counted(FlushesDeferred) == u64::from(met.shape.ledger)
    }),
    ("stamps go round", |met| {
        met.shape.ledger > 0 && met.counted(FlushesDeferred) > u64::from(met.shape.ledger)
    }),
    ("one tag for each CPU, taken over", |met| {
        met.own_tags() && met.shape.tags == 1 && met.has(SwitchTagTaken)
    }),
    ("several tags for each CPU, all in use", |met| {
        met.own_tags() && met.shape.tags > 1 && met.has(SwitchTagTaken)
    }),
    ("system-wide tags roll over", |met| met.has(Rollovers)),
    ("no tags, and broadcasts", |met| !met.kind.tagged() && met.has(Broadcasts)),
    ("one space", |met| met.shape.spaces == 1 && met.has(Requested)),
    ("more spaces or frames than a batch takes", |met| met.has(EscalatedBatch)),
    ("no range is flushed page by page", |met| met.shape.full_above == 0 && met.has(FlushedFull)),
    ("a range is flushed page by page", |met| met.has(FlushedRanges)),
    ("ranges too long", |met| met.has(EscalatedLength)),
    ("one request meets another at a target", |met| met.has(Merged)),
    ("two initiators write to one target", |met| met.has(EscalatedContention)),
    ("a target has missed a request", |met| met.has(EscalatedGap)),
    ("one batch outstanding before the run", |met| {
        met.shape.open_batches == 1 && met.has(Requested)
    }),
    ("as many batches outstanding as are counted", |met| {
        met.shape.open_batches == MOST_BATCHES && met.has(Requested)
    }),
    ("more batches outstanding than are counted", |met| {
        met.shape.open_batches > MOST_BATCHES && met.has(Requested)
    }),
    ("CPUs on both sides of the end of a word", |met| {
        matches!(met.shape.first_cpu, 62 | 63) && met.has(Sent)
    }),
    ("CPUs beyond the second word", |met| met.shape.first_cpu == 126 && met.has(Sent)),
    ("a CPU that has switched", |met| met.has(Switches)),
    ("an NMI handler reads user memory", |met| met.happened(MachineEvent::NmiAccess)),
    ("an NMI handler is refused", |met| met.happened(MachineEvent::NmiRefused)),
    ("an interrupt that no CPU sent", |met| met.happened(MachineEvent::Spurious)),
    ("a thread is preempted", |met| met.happened(MachineEvent::Preempted)),
    ("a CPU leaves", |met| met.happened(MachineEvent::Offline)),
    ("a space ends", |met| met.happened(MachineEvent::SpaceRetired)),
];

#[test]
fn every_size_is_met_empty_at_one_full_and_past_its_end() {
    let mut rng = Rng::new(11);
    let mut missing: Vec<Line> = LINES.to_vec();
    for _ in 0..PROGRAMS {
        if missing.is_empty() {
            break;
        }
        let program = random::engine_program(&mut rng);
        let recorded = random::place(&mut rng, program);
        let Program::Engine { shape, .. } = &recorded.program else {
            unreachable!("a program over the engine was drawn");
        };
        let scenario = Scenario::generated("generated", &recorded.program);
        let mut session = Session::new(Case {
            scenario: &scenario,
            kind: recorded.kind,
            policy: recorded.policy,
            mistake: None,
        });
        for _ in 0..SCHEDULES {
            // We evaluate each run on its own.
            session.coverage = Coverage::default();
            session.run(Strategy::random(rng.draw()));
            let met = SizedRun { kind: recorded.kind, shape, coverage: &session.coverage };
            missing.retain(|(_, is_met)| !is_met(&met));
        }
    }
    let missing: Vec<_> = missing.into_iter().map(|(what, _)| what).collect();
    assert_eq!(missing, Vec::<&str>::new(), "never met in {PROGRAMS} programs");
}

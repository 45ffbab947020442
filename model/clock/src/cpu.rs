//! The state of one CPU.

use crate::costs::Costs;
use crate::counts::Counts;
use crate::file::Time;
use crate::poll::Poll;
use crate::tlb::Tlb;
use quell::{Frame, Invalidate, Tag};
use quell_vm::Call;

/// What a suspended CPU waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// Ready; waits for its turn.
    Running,
    /// It computes until a time, or until an interrupt comes.
    Computing,
    /// It is halted until a time, or until an interrupt comes.
    Halted,
    /// Repeats a waiting loop until its word is written or an interrupt arrives.
    Polling,
}

/// One CPU.
#[derive(Debug)]
pub struct Cpu {
    /// Its clock.
    pub now: Time,
    /// Its translation caches.
    pub tlb: Tlb,
    /// The root loaded, if user translations may be used.
    pub root: Option<Frame>,
    /// The tag loaded.
    pub tag: Tag,
    /// The address space of the root, in the oracle's numbering.
    pub space: u32,
    /// Whether interrupts are off.
    pub masked: bool,
    /// The reason for its suspension.
    pub activity: Activity,
    /// Arrival times of interrupts not yet taken, ascending.
    pub arrivals: Vec<Time>,
    /// When a non-maskable interrupt arrives.
    pub nmi: Option<Time>,
    /// When the last store of this CPU is done.
    pub stores_done: Time,
    /// Broadcast invalidations that this CPU sent and did not wait for.
    pub broadcasts: Vec<Invalidate>,
    /// When the last of them is complete.
    pub broadcasts_done: Time,
    /// Whether this CPU has filled a page since its last wait for broadcasts.
    pub filled_page: bool,
    /// How many broadcasts of others have cost this CPU time.
    pub disturbed_by: u64,
    /// Pages that it has still to put on the lists of reclaim.
    pub collected: usize,
    /// Where the last clear on this CPU ended.
    pub cleared_to: Frame,
    /// The system call under way, and the oracle's count of events when it began.
    pub call: Option<(Call, u32)>,
    /// The line of the program's file that it performs; 0 if unknown.
    pub line: u32,
    /// The state of its waiting loop, if it is in one.
    pub poll: Poll,
    /// When its program ended, if it has.
    pub ended: Option<Time>,
    /// When the handler that runs was entered.
    pub handler_since: Time,
    /// Its counts.
    pub counts: Counts,
}

impl Cpu {
    /// A CPU at time 0 with empty caches and interrupts on.
    pub fn new(costs: &Costs) -> Self {
        Cpu {
            now: 0,
            tlb: Tlb::new(costs),
            root: None,
            tag: Tag::KERNEL,
            space: 0,
            masked: false,
            activity: Activity::Running,
            arrivals: Vec::new(),
            nmi: None,
            stores_done: 0,
            broadcasts: Vec::new(),
            broadcasts_done: 0,
            filled_page: false,
            disturbed_by: 0,
            collected: 0,
            cleared_to: Frame(u64::MAX),
            call: None,
            line: 0,
            poll: Poll::default(),
            ended: None,
            handler_since: 0,
            counts: Counts::default(),
        }
    }

    /// When this CPU next has an interrupt to take; never while they are masked.
    #[inline]
    pub fn due(&self) -> Time {
        let maskable = match self.arrivals.first() {
            Some(&at) if !self.masked => at,
            _ => Time::MAX,
        };
        maskable.min(self.nmi.unwrap_or(Time::MAX))
    }
}

//! The state of one CPU.

use crate::costs::{Collected, Costs};
use crate::counts::Counts;
use crate::file::Time;
use crate::flushes::Protocol;
use crate::lines::Queued;
use crate::poll::WaitLoop;
use crate::tlb::Tlb;
use quell::{Frame, Invalidation, Tag};
use quell_vm::Call;

/// A CPU's reason for being suspended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// Ready; waits for its turn.
    Running,
    /// Computes until a time, or until an interrupt arrives.
    Computing,
    /// Is halted until a time, or until an interrupt arrives.
    Halted,
    /// Repeats a waiting loop until its word is written or an interrupt arrives.
    Polling,
}

#[derive(Debug)]
pub struct Cpu {
    /// Its clock.
    pub now: Time,
    /// Its translation caches.
    pub tlb: Tlb,
    /// The loaded root, if user translations may be used.
    pub root: Option<Frame>,
    /// The loaded tag.
    pub tag: Tag,
    /// The address space of the root, in the oracle's numbering.
    pub space: u32,
    /// Whether interrupts are off.
    pub masked: bool,
    /// Whether interrupts were off when the running handler began.
    pub was_masked: bool,
    /// Whether interrupts arrive even if they are off: its processor executes requests itself.
    pub unmaskable: bool,
    /// The reason for its suspension.
    pub activity: Activity,
    /// Arrival times of interrupts not yet taken, ascending.
    pub arrivals: Vec<Time>,
    /// The arrival of a non-maskable interrupt.
    pub nmi: Option<Time>,
    /// The end of this CPU's last store.
    pub stores_done: Time,
    /// The place of its next access in the queue for a line.
    pub queued: Option<Queued>,
    /// Broadcast invalidations that this CPU sent and hasn't waited for.
    pub broadcasts: Vec<Invalidation>,
    /// The completion of the last of them.
    pub broadcasts_done: Time,
    /// Whether this CPU has filled a page since its last wait for broadcasts.
    pub filled_page: bool,
    /// The number of other CPUs' broadcasts that have cost this CPU time.
    pub disturbed_by: u64,
    /// Pages that it still has to add to the lists of reclaim.
    pub collected: Collected,
    /// The end of the last clear on this CPU.
    pub cleared_to: Frame,
    /// The system call under way, and the oracle's count of events when it began.
    pub call: Option<(Call, u32)>,
    /// Whether it handles a page fault.
    pub in_fault: bool,
    /// Whether it handles an interrupt.
    pub in_interrupt: bool,
    /// The line of the program's file that it performs; 0 if unknown.
    pub line: u32,
    /// The state of its waiting loop, if it is in one.
    pub poll: WaitLoop,
    /// The end of its program, if it has ended.
    pub ended: Option<Time>,
    /// The start of the running handler.
    pub handler_since: Time,
    pub counts: Counts,
}

impl Cpu {
    /// Creates a CPU at time 0 with empty caches and interrupts on.
    pub fn new(costs: &Costs) -> Self {
        Cpu {
            now: 0,
            tlb: Tlb::new(costs),
            root: None,
            tag: Tag::KERNEL,
            space: 0,
            masked: false,
            was_masked: false,
            unmaskable: costs.protocol == Protocol::Rar,
            activity: Activity::Running,
            arrivals: Vec::new(),
            nmi: None,
            stores_done: 0,
            queued: None,
            broadcasts: Vec::new(),
            broadcasts_done: 0,
            filled_page: false,
            disturbed_by: 0,
            collected: Collected::default(),
            cleared_to: Frame(u64::MAX),
            call: None,
            in_fault: false,
            in_interrupt: false,
            line: 0,
            poll: WaitLoop::default(),
            ended: None,
            handler_since: 0,
            counts: Counts::default(),
        }
    }

    /// Returns the time of this CPU's next interrupt; never while they are masked.
    #[inline]
    pub fn due(&self) -> Time {
        let maskable = match self.arrivals.first() {
            Some(&at) if !self.masked || self.unmaskable && !self.in_interrupt => at,
            _ => Time::MAX,
        };
        maskable.min(self.nmi.unwrap_or(Time::MAX))
    }
}

//! Small programs that race: one file each, to be read like litmus tests.
//!
//! Each says what the CPUs do, which known bugs it is about, and which transitions of the protocol
//! it must reach; a scenario in which one of those never fires has not tested what it is for, and
//! fails.

mod cross_shootdown;
mod idle_table_free;
mod idle_unmap;
mod lazy_claim;
mod lazy_idle;
mod lazy_ledger;
mod lazy_rescue;
mod lazy_rewrite;
mod lazy_stranger;
mod lazy_switch;
mod lazy_two_claims;
mod lazy_unmap_call;
mod leaf_meets_table;
mod long_range;
mod nmi_switch;
mod nmi_unmap;
mod offline_answers;
mod offline_shootdown;
mod offline_two;
mod protect_access;
mod reclaim_protect;
mod reclaim_shared;
mod reclaim_unmap;
mod retire_lazy;
mod rollover_switch;
mod rollover_unmap;
mod spurious;
mod switch_unmap;
mod table_free;
mod tag_reuse;
mod two_initiators;
mod unmap_access;

use crate::adversary::coverage::{Coverage, Reach};
use crate::adversary::kind::MachineKind;
use crate::adversary::session::Stage;
use crate::adversary::timeline::Line;
use crate::adversary::tiny::{self, Tiny, TinyProgram};

/// On which machines something applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// On all.
    Every,
    /// Where CPUs are interrupted for a flush.
    Interrupts,
    /// Where invalidations are broadcast.
    Broadcast,
    /// Where system-wide tags run out all the time.
    Scarce,
    /// Where each CPU gives tags their meaning.
    OwnTags,
    /// Where entries carry tags.
    Tagged,
}

impl On {
    /// Whether it applies on this machine.
    pub fn includes(self, kind: &MachineKind) -> bool {
        match self {
            On::Every => true,
            On::Interrupts => !kind.broadcasts(),
            On::Broadcast => kind.broadcasts(),
            On::Scarce => kind.scarce_tags(),
            On::OwnTags => !kind.broadcasts() && kind.tagged(),
            On::Tagged => kind.tagged(),
        }
    }
}

/// What a scenario's CPUs run.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// The engine under the smallest kernel.
    Engine(TinyProgram),
}

impl Program {
    pub(crate) fn frames(&self) -> usize {
        match self {
            Program::Engine(_) => tiny::FRAMES,
        }
    }

    pub(crate) fn table_frames(&self) -> usize {
        match self {
            Program::Engine(_) => tiny::TABLES,
        }
    }

    pub(crate) fn levels(&self) -> u8 {
        match self {
            Program::Engine(_) => 2,
        }
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        match self {
            Program::Engine(program) => program.perform(stage, coverage),
        }
    }
}

/// A small program that races.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What races with what.
    pub about: &'static str,
    /// The known bugs that it is about.
    pub bugs: &'static [&'static str],
    /// How many CPUs it has.
    pub cpus: usize,
    /// On which machines it makes sense.
    pub on: On,
    /// How many NMIs may happen.
    pub nmis: u8,
    /// How many interrupts that nobody sent may come.
    pub spurious: u8,
    /// What must happen at least once, with every mechanism on.
    pub must: &'static [(On, Reach)],
    /// What the CPUs run.
    pub program: Program,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: &'static [Scenario] = &[
        unmap_access::SCENARIO,
        protect_access::SCENARIO,
        switch_unmap::SCENARIO,
        idle_unmap::SCENARIO,
        table_free::SCENARIO,
        idle_table_free::SCENARIO,
        two_initiators::SCENARIO,
        leaf_meets_table::SCENARIO,
        cross_shootdown::SCENARIO,
        nmi_unmap::SCENARIO,
        nmi_switch::SCENARIO,
        spurious::SCENARIO,
        reclaim_unmap::SCENARIO,
        reclaim_protect::SCENARIO,
        reclaim_shared::SCENARIO,
        long_range::SCENARIO,
        tag_reuse::SCENARIO,
        rollover_unmap::SCENARIO,
        rollover_switch::SCENARIO,
        offline_shootdown::SCENARIO,
        offline_answers::SCENARIO,
        offline_two::SCENARIO,
        retire_lazy::SCENARIO,
        lazy_claim::SCENARIO,
        lazy_rewrite::SCENARIO,
        lazy_unmap_call::SCENARIO,
        lazy_rescue::SCENARIO,
        lazy_switch::SCENARIO,
        lazy_idle::SCENARIO,
        lazy_stranger::SCENARIO,
        lazy_two_claims::SCENARIO,
        lazy_ledger::SCENARIO,
    ];

    /// A scenario of the engine's own, on all machines, with neither NMIs nor spurious interrupts.
    const fn engine(
        name: &'static str,
        about: &'static str,
        cpus: usize,
        start: fn(&Tiny<'_>, usize),
        body: fn(&Tiny<'_>, usize),
    ) -> Scenario {
        Scenario {
            name,
            about,
            bugs: &[],
            cpus,
            on: On::Every,
            nmis: 0,
            spurious: 0,
            must: &[],
            program: Program::Engine(TinyProgram { start, body }),
        }
    }

    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Scenario> {
        Self::ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Whether the scenario makes sense on a machine.
    pub fn runs_on(&self, kind: &MachineKind) -> bool {
        self.on.includes(kind)
    }
}

//! Small programs that race: one file each, to be read like litmus tests.
//!
//! Each says what the CPUs do, which known bugs it is about, and which transitions of the protocol
//! it must reach; a scenario in which one of those never fires has not tested what it is for, and
//! fails.

mod cross_shootdown;
mod first_switch_unmap;
mod idle_table_free;
mod idle_unmap;
mod lazy_claim;
mod lazy_gap;
mod lazy_idle;
mod lazy_ledger;
mod lazy_rescue;
mod lazy_rewrite;
mod lazy_stranger;
mod lazy_switch;
mod lazy_two_claims;
mod lazy_unmap_call;
mod lazy_younger;
mod leaf_meets_table;
mod long_range;
mod many_batches;
mod nested_alone;
mod nested_outbox;
mod nested_posting;
mod nmi_idle;
mod nmi_switch;
mod nmi_unmap;
mod offline_answers;
mod offline_for_good;
mod offline_shootdown;
mod offline_two;
mod protect_access;
mod range_tail;
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
mod vm_allocate_flush;
mod vm_collapse_write;
mod vm_copy_on_write;
mod vm_copy_on_write_read;
mod vm_copy_split;
mod vm_discard_twice;
mod vm_exit_lazy;
mod vm_fork_copy;
mod vm_fork_write;
mod vm_idle_unmap;
mod vm_lazy_reclaim_discard;
mod vm_lazy_reclaim_private;
mod vm_lazy_reclaim_protect;
mod vm_luf_file_write;
mod vm_luf_kernel_reuse;
mod vm_luf_map_fixed;
mod vm_luf_shared_write;
mod vm_migrate_reclaim;
mod vm_migrate_write;
mod vm_offline_unmap;
mod vm_owed_dirty;
mod vm_page_out_twice;
mod vm_page_out_write;
mod vm_protect_sync;
mod vm_reclaim_discard;
mod vm_reclaim_fork;
mod vm_reclaim_protect;
mod vm_reclaim_remap;
mod vm_reclaim_unmap;
mod vm_remap_truncate;
mod vm_rescue_claim;
mod vm_rollover_unmap;
mod vm_shadow_fault;
mod vm_shadow_write;
mod vm_split_migrate;
mod vm_swap_in_write;
mod vm_sync_write;
mod vm_table_free;
mod vm_table_free_idle;
mod vm_truncate_fault;
mod vm_unmap_access;
mod vm_unmap_demote;
mod vm_unmap_reclaim;
mod vm_unmap_sync;
mod vm_unmap_truncate;
mod vm_zero_ahead;

use crate::coverage::{Coverage, Reach};
use crate::kind::MachineKind;
use crate::managed::{Managed, ManagedProgram};
use crate::session::Stage;
use crate::tiny::{self, Tiny, TinyProgram};
use quell::mutant::Mutant;
use quell_contract::timeline::Line;

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
    /// The memory manager.
    Managed(ManagedProgram),
}

impl Program {
    pub(crate) fn frames(&self) -> usize {
        match self {
            Program::Engine(_) => tiny::FRAMES,
            Program::Managed(program) => program.frames(),
        }
    }

    pub(crate) fn table_frames(&self) -> usize {
        match self {
            Program::Engine(_) => tiny::TABLES,
            Program::Managed(program) => program.frames(),
        }
    }

    pub(crate) fn levels(&self) -> u8 {
        match self {
            Program::Engine(_) => 2,
            Program::Managed(_) => 4,
        }
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        match self {
            Program::Engine(program) => program.perform(stage, coverage),
            Program::Managed(program) => program.perform(stage, coverage),
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
    /// The mutants that it is there to find, and in which they are looked for first.
    pub finds: &'static [Mutant],
    /// How many CPUs it has.
    pub cpus: usize,
    /// On which machines it makes sense.
    pub on: On,
    /// How many NMIs may happen.
    pub nmis: u8,
    /// How often a CPU may be preempted.
    pub preemptions: u8,
    /// How many interrupts that nobody sent may come.
    pub spurious: u8,
    /// What must happen at least once, with every mechanism on.
    pub must: &'static [(On, Reach)],
    /// Of the schedules that a budget allows, one in so many is run: more than 1 where runs are long,
    /// so that the short ones get their share of the time.
    pub one_in: u64,
    /// More steps than a run takes: those that come later are scheduled fairly, and whoever is not
    /// through then never will be (C7).
    pub steps: u32,
    /// What the CPUs run.
    pub program: Program,
}

/// [`Scenario::steps`], unless a scenario says otherwise.
const STEPS: u32 = 8_000;

impl Scenario {
    /// Every scenario.
    pub const ALL: &'static [Scenario] = &[
        unmap_access::SCENARIO,
        protect_access::SCENARIO,
        switch_unmap::SCENARIO,
        first_switch_unmap::SCENARIO,
        idle_unmap::SCENARIO,
        table_free::SCENARIO,
        idle_table_free::SCENARIO,
        two_initiators::SCENARIO,
        leaf_meets_table::SCENARIO,
        cross_shootdown::SCENARIO,
        nmi_unmap::SCENARIO,
        nmi_switch::SCENARIO,
        nmi_idle::SCENARIO,
        spurious::SCENARIO,
        reclaim_unmap::SCENARIO,
        reclaim_protect::SCENARIO,
        reclaim_shared::SCENARIO,
        long_range::SCENARIO,
        range_tail::SCENARIO,
        tag_reuse::SCENARIO,
        rollover_unmap::SCENARIO,
        rollover_switch::SCENARIO,
        offline_shootdown::SCENARIO,
        offline_answers::SCENARIO,
        offline_two::SCENARIO,
        offline_for_good::SCENARIO,
        nested_posting::SCENARIO,
        nested_outbox::SCENARIO,
        nested_alone::SCENARIO,
        many_batches::SCENARIO,
        retire_lazy::SCENARIO,
        lazy_claim::SCENARIO,
        lazy_rewrite::SCENARIO,
        lazy_unmap_call::SCENARIO,
        lazy_rescue::SCENARIO,
        lazy_switch::SCENARIO,
        lazy_idle::SCENARIO,
        lazy_stranger::SCENARIO,
        lazy_two_claims::SCENARIO,
        lazy_younger::SCENARIO,
        lazy_ledger::SCENARIO,
        lazy_gap::SCENARIO,
        vm_unmap_access::SCENARIO,
        vm_table_free::SCENARIO,
        vm_table_free_idle::SCENARIO,
        vm_reclaim_unmap::SCENARIO,
        vm_reclaim_discard::SCENARIO,
        vm_reclaim_protect::SCENARIO,
        vm_reclaim_remap::SCENARIO,
        vm_reclaim_fork::SCENARIO,
        vm_page_out_twice::SCENARIO,
        vm_page_out_write::SCENARIO,
        vm_swap_in_write::SCENARIO,
        vm_remap_truncate::SCENARIO,
        vm_unmap_truncate::SCENARIO,
        vm_truncate_fault::SCENARIO,
        vm_sync_write::SCENARIO,
        vm_unmap_sync::SCENARIO,
        vm_protect_sync::SCENARIO,
        vm_unmap_reclaim::SCENARIO,
        vm_unmap_demote::SCENARIO,
        vm_migrate_write::SCENARIO,
        vm_migrate_reclaim::SCENARIO,
        vm_collapse_write::SCENARIO,
        vm_split_migrate::SCENARIO,
        vm_copy_split::SCENARIO,
        vm_copy_on_write::SCENARIO,
        vm_copy_on_write_read::SCENARIO,
        vm_fork_write::SCENARIO,
        vm_fork_copy::SCENARIO,
        vm_luf_map_fixed::SCENARIO,
        vm_luf_file_write::SCENARIO,
        vm_luf_shared_write::SCENARIO,
        vm_luf_kernel_reuse::SCENARIO,
        vm_shadow_write::SCENARIO,
        vm_shadow_fault::SCENARIO,
        vm_owed_dirty::SCENARIO,
        vm_rescue_claim::SCENARIO,
        vm_lazy_reclaim_discard::SCENARIO,
        vm_lazy_reclaim_protect::SCENARIO,
        vm_lazy_reclaim_private::SCENARIO,
        vm_zero_ahead::SCENARIO,
        vm_exit_lazy::SCENARIO,
        vm_rollover_unmap::SCENARIO,
        vm_offline_unmap::SCENARIO,
        vm_allocate_flush::SCENARIO,
        vm_discard_twice::SCENARIO,
        vm_idle_unmap::SCENARIO,
    ];

    /// A scenario on all machines, with neither NMIs nor spurious interrupts.
    const fn of(
        name: &'static str,
        about: &'static str,
        cpus: usize,
        one_in: u64,
        program: Program,
    ) -> Scenario {
        Scenario {
            name,
            about,
            bugs: &[],
            finds: &[],
            cpus,
            on: On::Every,
            nmis: 0,
            preemptions: 0,
            spurious: 0,
            must: &[],
            one_in,
            steps: STEPS,
            program,
        }
    }

    /// A scenario of the engine's own.
    const fn engine(
        name: &'static str,
        about: &'static str,
        cpus: usize,
        start: fn(&Tiny<'_>, usize),
        body: fn(&Tiny<'_>, usize),
    ) -> Scenario {
        let program = Program::Engine(TinyProgram {
            start,
            body,
            preempts: |_, _| {},
            epochs: tiny::EPOCHS,
        });
        Self::of(name, about, cpus, 1, program)
    }

    /// A scenario of the engine's own in which `preempts` runs once, in the middle of what a CPU does.
    const fn preempted(
        name: &'static str,
        about: &'static str,
        cpus: usize,
        start: fn(&Tiny<'_>, usize),
        body: fn(&Tiny<'_>, usize),
        preempts: fn(&Tiny<'_>, usize),
    ) -> Scenario {
        let program = Program::Engine(TinyProgram {
            start,
            body,
            preempts,
            epochs: tiny::EPOCHS,
        });
        Scenario {
            preemptions: 1,
            ..Self::of(name, about, cpus, 1, program)
        }
    }

    /// A scenario of the engine's own in which so many debts can be owed at once.
    const fn with_epochs(
        name: &'static str,
        about: &'static str,
        cpus: usize,
        epochs: usize,
        start: fn(&Tiny<'_>, usize),
        body: fn(&Tiny<'_>, usize),
    ) -> Scenario {
        let program = Program::Engine(TinyProgram {
            start,
            body,
            preempts: |_, _| {},
            epochs,
        });
        Self::of(name, about, cpus, 1, program)
    }

    /// A scenario over the memory manager, with 32 frames of memory.
    const fn managed(
        name: &'static str,
        about: &'static str,
        cpus: usize,
        start: fn(&Managed<'_>, usize),
        body: fn(&Managed<'_>, usize),
    ) -> Scenario {
        let program = Program::Managed(ManagedProgram {
            memory: [32, 0],
            start,
            body,
            after: |_| {},
        });
        Self::of(name, about, cpus, 4, program)
    }

    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Scenario> {
        Self::ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Whether the scenario runs over the memory manager.
    pub fn is_managed(&self) -> bool {
        matches!(self.program, Program::Managed(_))
    }

    /// Whether the scenario makes sense on a machine.
    pub fn runs_on(&self, kind: &MachineKind) -> bool {
        self.on.includes(kind)
    }
}

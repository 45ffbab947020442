//! Small programs that race: one file each, or for those that differ in one call, to be read like litmus tests.
//!
//! Each says what the CPUs do, which known bugs it is about, and which transitions of the protocol
//! it must reach; a scenario in which one of those never fires has not tested what it is for, and
//! fails.

mod block;
mod cross_shootdown;
mod execute_access;
mod first_switch_unmap;
mod idle_leave;
mod idle_return;
mod idle_table_free;
mod idle_unmap;
mod isolated_table;
mod isolated_tag;
mod isolated_unmap;
mod joined_unmap;
mod late_content;
mod lazy_background;
mod lazy_claim;
mod lazy_claim_refill;
mod lazy_gap;
mod lazy_idle;
mod lazy_late_fill;
mod lazy_late_settle;
mod lazy_late_switch;
mod lazy_late_unmap;
mod lazy_ledger;
mod lazy_rescue;
mod lazy_rescue_one;
mod lazy_rewrite;
mod lazy_stranger;
mod lazy_switch;
mod lazy_two_claims;
mod lazy_unmap_call;
mod lazy_younger;
mod leaf_meets_table;
mod lock_masked;
mod long_range;
mod many_batches;
mod mixed_sizes;
mod nested_alone;
mod nested_outbox;
mod nested_posting;
mod nmi_alone;
mod nmi_idle;
mod nmi_switch;
mod nmi_unmap;
mod offline_answers;
mod offline_for_good;
mod offline_shootdown;
mod offline_table_free;
mod offline_two;
mod own_claim;
mod own_leave;
mod own_meets_user;
mod own_mixed_debt;
mod own_nmi;
mod own_online;
mod own_online_debt;
mod own_program;
mod own_program_debt;
mod own_program_nmi;
mod own_program_table;
mod own_reuse;
mod own_switch;
mod own_table_free;
mod own_table_switch;
mod own_text;
mod own_text_merged;
mod own_unmap;
mod protect_access;
mod range_tail;
mod reclaim_protect;
mod reclaim_shared;
mod reclaim_unmap;
mod retire_lazy;
mod retire_offline;
mod retire_running;
mod rollover_offline;
mod rollover_switch;
mod rollover_table;
mod rollover_twice;
mod rollover_unmap;
mod spurious;
mod started_offline;
mod started_unmap;
mod switch_at_once;
mod switch_unmap;
mod switch_unmap_range;
mod table_free;
mod table_move;
mod tag_reuse;
mod two_initiators;
mod unmap_access;
mod unplaced_access;
mod unplaced_load;
mod unplaced_own;
mod unplaced_switch;
mod unplaced_tables;
mod unplaced_unmap;
mod unscheduled;
mod vm_allocate_flush;
mod vm_collapse_write;
mod vm_copy_on_write;
mod vm_copy_on_write_read;
mod vm_copy_refill;
mod vm_copy_split;
mod vm_discard_fault;
mod vm_discard_refill;
mod vm_discard_release;
mod vm_discard_store;
mod vm_discard_truncate;
mod vm_discard_twice;
mod vm_execute_sync;
mod vm_exit_lazy;
mod vm_fork_copy;
mod vm_fork_write;
mod vm_idle_unmap;
mod vm_lazy_reclaim_discard;
mod vm_lazy_reclaim_private;
mod vm_lazy_reclaim_protect;
mod vm_lazy_reclaim_remap;
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
mod vm_private_reclaim;
mod vm_protect_sync;
mod vm_reclaim_call;
mod vm_reclaim_fork;
mod vm_reclaim_fork_copy;
mod vm_reclaim_rescued;
mod vm_remap_truncate;
mod vm_rescue_claim;
mod vm_rescue_other;
mod vm_rollover_unmap;
mod vm_shadow_fault;
mod vm_shadow_twice;
mod vm_shadow_write;
mod vm_split_copy;
mod vm_split_migrate;
mod vm_split_zero;
mod vm_swap_in_write;
mod vm_sync_write;
mod vm_table_free;
mod vm_table_free_idle;
mod vm_truncate_fault;
mod vm_truncate_stale;
mod vm_truncate_write;
mod vm_unmap_access;
mod vm_unmap_demote;
mod vm_unmap_reclaim;
mod vm_unmap_sync;
mod vm_unmap_truncate;
mod vm_zero_ahead;
mod vm_zero_move;
mod withdraw;

use crate::scenario::Scenario;

impl Scenario<'static> {
    /// Every scenario.
    pub const ALL: &'static [Scenario<'static>] = &[
        unmap_access::SCENARIO,
        protect_access::SCENARIO,
        execute_access::SCENARIO,
        switch_unmap::SCENARIO,
        switch_unmap_range::SCENARIO,
        switch_at_once::SCENARIO,
        first_switch_unmap::SCENARIO,
        idle_unmap::SCENARIO,
        idle_return::SCENARIO,
        table_free::SCENARIO,
        idle_table_free::SCENARIO,
        idle_leave::SCENARIO,
        table_move::SCENARIO,
        two_initiators::SCENARIO,
        joined_unmap::SCENARIO,
        leaf_meets_table::SCENARIO,
        cross_shootdown::SCENARIO,
        nmi_unmap::SCENARIO,
        nmi_alone::SCENARIO,
        nmi_switch::SCENARIO,
        nmi_idle::SCENARIO,
        spurious::SCENARIO,
        reclaim_unmap::SCENARIO,
        reclaim_protect::SCENARIO,
        reclaim_shared::SCENARIO,
        long_range::SCENARIO,
        range_tail::SCENARIO,
        mixed_sizes::SCENARIO,
        block::UNMAP,
        block::BREAK,
        withdraw::RUNNING,
        withdraw::IDLE,
        tag_reuse::SCENARIO,
        rollover_unmap::SCENARIO,
        rollover_switch::SCENARIO,
        rollover_table::TWICE,
        rollover_table::ONCE,
        rollover_offline::SCENARIO,
        rollover_twice::SCENARIO,
        offline_shootdown::SCENARIO,
        offline_answers::SCENARIO,
        offline_two::SCENARIO,
        offline_for_good::SCENARIO,
        offline_table_free::SCENARIO,
        nested_posting::SCENARIO,
        nested_outbox::SCENARIO,
        nested_alone::SCENARIO,
        many_batches::SCENARIO,
        unplaced_access::SCENARIO,
        unplaced_unmap::SCENARIO,
        unplaced_load::SCENARIO,
        unplaced_switch::SCENARIO,
        unplaced_tables::SCENARIO,
        unplaced_own::SCENARIO,
        retire_lazy::SCENARIO,
        retire_offline::SCENARIO,
        retire_running::SCENARIO,
        unscheduled::SCENARIO,
        late_content::SCENARIO,
        lazy_claim::SCENARIO,
        lazy_rewrite::SCENARIO,
        lazy_claim_refill::SCENARIO,
        lazy_unmap_call::SCENARIO,
        lazy_late_fill::SCENARIO,
        lazy_late_settle::SCENARIO,
        lazy_late_unmap::SCENARIO,
        lazy_late_switch::SCENARIO,
        lazy_rescue::SCENARIO,
        lazy_rescue_one::SCENARIO,
        lazy_switch::SCENARIO,
        lazy_idle::SCENARIO,
        lazy_stranger::SCENARIO,
        lazy_background::SCENARIO,
        lazy_two_claims::SCENARIO,
        lazy_younger::SCENARIO,
        lazy_ledger::SCENARIO,
        lazy_gap::SCENARIO,
        lock_masked::SCENARIO,
        started_unmap::SCENARIO,
        started_offline::SCENARIO,
        own_unmap::SCENARIO,
        own_nmi::SCENARIO,
        own_meets_user::SCENARIO,
        own_switch::SCENARIO,
        own_leave::SCENARIO,
        own_online::SCENARIO,
        own_online_debt::SCENARIO,
        own_reuse::SCENARIO,
        own_claim::SCENARIO,
        own_table_free::SCENARIO,
        own_table_switch::SCENARIO,
        own_text::SCENARIO,
        own_text_merged::SCENARIO,
        own_program::SCENARIO,
        own_program_nmi::SCENARIO,
        own_program_table::SCENARIO,
        own_program_debt::SCENARIO,
        own_mixed_debt::SCENARIO,
        isolated_unmap::SCENARIO,
        isolated_tag::SCENARIO,
        isolated_table::SCENARIO,
        vm_unmap_access::SCENARIO,
        vm_table_free::SCENARIO,
        vm_table_free_idle::SCENARIO,
        vm_reclaim_call::UNMAP,
        vm_reclaim_call::DISCARD,
        vm_reclaim_call::PROTECT,
        vm_reclaim_call::REMAP,
        vm_reclaim_fork::SCENARIO,
        vm_page_out_twice::SCENARIO,
        vm_page_out_write::SCENARIO,
        vm_swap_in_write::SCENARIO,
        vm_remap_truncate::SCENARIO,
        vm_unmap_truncate::SCENARIO,
        vm_reclaim_rescued::RECLAIMED,
        vm_truncate_fault::SCENARIO,
        vm_truncate_stale::AWAY,
        vm_truncate_stale::BACK,
        vm_truncate_stale::MOVED,
        vm_discard_store::DISCARD,
        vm_discard_store::PROTECT,
        vm_rescue_other::SCENARIO,
        vm_lazy_reclaim_remap::SCENARIO,
        vm_reclaim_rescued::MOVED,
        vm_private_reclaim::SCENARIO,
        vm_zero_move::SCENARIO,
        vm_truncate_write::BEYOND,
        vm_truncate_write::WITHIN,
        vm_discard_truncate::SCENARIO,
        vm_discard_fault::SCENARIO,
        vm_discard_refill::SAME_SIZE,
        vm_discard_refill::FILE,
        vm_discard_refill::SMALLER,
        vm_discard_refill::TABLE,
        vm_discard_release::SCENARIO,
        vm_sync_write::SCENARIO,
        vm_unmap_sync::SCENARIO,
        vm_protect_sync::SCENARIO,
        vm_execute_sync::SCENARIO,
        vm_unmap_reclaim::SCENARIO,
        vm_unmap_demote::SCENARIO,
        vm_migrate_write::SCENARIO,
        vm_migrate_reclaim::SCENARIO,
        vm_collapse_write::SCENARIO,
        vm_split_migrate::SCENARIO,
        vm_split_zero::SCENARIO,
        vm_copy_split::SCENARIO,
        vm_split_copy::SCENARIO,
        vm_copy_refill::SCENARIO,
        vm_copy_on_write::SCENARIO,
        vm_copy_on_write_read::SCENARIO,
        vm_reclaim_fork_copy::SCENARIO,
        vm_fork_write::SCENARIO,
        vm_fork_copy::SCENARIO,
        vm_luf_map_fixed::SCENARIO,
        vm_luf_file_write::SCENARIO,
        vm_luf_shared_write::SCENARIO,
        vm_luf_kernel_reuse::SCENARIO,
        vm_shadow_write::SCENARIO,
        vm_shadow_twice::SCENARIO,
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

    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|scenario| scenario.name == name)
    }
}

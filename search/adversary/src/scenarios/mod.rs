//! Lists the scenarios: small programs that race, to be read like litmus tests.
//!
//! Each file is a family, and each row a scenario. A row describes the CPUs' work, the known bugs that it covers, and
//! the transitions of the protocol that it must reach. If one of these transitions never happens, the scenario hasn't
//! tested its race, and fails.

mod halves;
mod lazy;
mod nested;
mod offline;
mod overflow;
mod ranges;
mod retire;
mod tags;
mod unmap;
mod vm_copy;
mod vm_large;
mod vm_lazy;
mod vm_reclaim;
mod vm_truncate;
mod vm_writeback;

// The vocabulary of the rows.
use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, SECOND, THIRD, frame};
use crate::coverage::MachineEvent::*;
use crate::coverage::ReachGoal::{Engine, Machine};
use crate::scenario::{MachineSet::*, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter::*;
use quell::{Hardware, Purpose};
use quell_vm::Call;

/// All families. Short runs come before long ones.
const FAMILIES: &[&[Scenario<'static>]] = &[
    unmap::ALL,
    ranges::ALL,
    tags::ALL,
    offline::ALL,
    nested::ALL,
    overflow::ALL,
    retire::ALL,
    lazy::ALL,
    halves::ALL,
    vm_reclaim::ALL,
    vm_truncate::ALL,
    vm_writeback::ALL,
    vm_large::ALL,
    vm_copy::ALL,
    vm_lazy::ALL,
];

impl Scenario<'static> {
    /// Every scenario.
    pub const ALL: &'static [Scenario<'static>] = &{
        let mut all = [unmap::ALL[0]; count()];
        let (mut family, mut at, mut row) = (0, 0, 0);
        while at < all.len() {
            if row == FAMILIES[family].len() {
                (family, row) = (family + 1, 0);
            } else {
                all[at] = FAMILIES[family][row];
                (at, row) = (at + 1, row + 1);
            }
        }
        all
    };

    /// Returns the scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|scenario| scenario.name == name)
    }
}

/// Returns the number of scenarios.
const fn count() -> usize {
    let (mut family, mut count) = (0, 0);
    while family < FAMILIES.len() {
        count += FAMILIES[family].len();
        family += 1;
    }
    count
}

/// The number of the child if CPU 0 forks first: the second process.
const CHILD: u32 = 2;
/// The number of base pages in a large page.
const LARGE: u64 = 512;

// Steps that several scenarios share.

/// Reads page 0 twice, because the first read may use a TLB entry that no longer exists at the second.
fn read_twice(k: &BareKernel<'_>) {
    k.read(0).read(0);
}

// Starts that several scenarios share.

/// Maps two pages of space 0.
fn two_pages(k: &BareKernel<'_>) {
    k.map_first(2, true);
}

/// Maps a page that has its own table.
fn second_table(k: &BareKernel<'_>) {
    k.map(0, SECOND, frame(1), true).link(0, SECOND);
}

/// Maps a global page of the kernel.
fn own_page(k: &BareKernel<'_>) {
    k.use_own_half().map_own(OWN, frame(0));
}

/// Maps two pages of the kernel, one global and one not.
fn two_own_pages(k: &BareKernel<'_>) {
    own_page(k);
    k.map_own(OWN_TAGGED, frame(1));
}

/// Maps and writes a page.
fn written_page(k: &VmKernel<'_>) {
    k.map(0, 1).write(0, 1).keep_table();
}

/// Maps two pages and writes the first.
fn written_page_of_two(k: &VmKernel<'_>) {
    k.map(0, 2).write(0, 1).keep_table();
}

/// Maps and writes the page of a file.
fn written_file(k: &VmKernel<'_>) {
    k.create(1, 1).map_file(0, 1, 0).write(0, 1).keep_table();
}

/// Maps and reads a file's page, which stays clean.
fn clean_file(k: &VmKernel<'_>) {
    k.read_clean_file(0).keep_table();
}

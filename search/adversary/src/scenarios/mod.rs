//! Small programs that race, to be read like litmus tests: a family a file, a row a scenario.
//!
//! A row says what the CPUs do, which known bugs it is about, and which transitions of the protocol
//! it must reach. A scenario in which one of those never fires has not tested what it is for, and
//! fails.

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

// What rows are made of.
use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, SECOND, THIRD, frame};
use crate::coverage::Happening::*;
use crate::coverage::Reach::{Engine, Machine};
use crate::scenario::{On::*, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter::*;
use quell::{Hardware, Purpose};
use quell_vm::Call;

/// Short runs before long ones.
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

    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|scenario| scenario.name == name)
    }
}

/// How many scenarios there are.
const fn count() -> usize {
    let (mut family, mut count) = (0, 0);
    while family < FAMILIES.len() {
        count += FAMILIES[family].len();
        family += 1;
    }
    count
}

/// The child's number, where CPU 0 forks first: the second process.
const CHILD: u32 = 2;
/// How many base pages a large page has.
const LARGE: u64 = 512;

// What rows of more than one scenario do.

/// Reads page 0 twice: what was in the TLB at first may have gone by then.
fn read_twice(k: &BareKernel<'_>) {
    k.read(0);
    k.read(0);
}

// How they start.

/// Two pages of space 0 are mapped.
fn two_pages(k: &BareKernel<'_>) {
    k.map(0, 0, frame(0), true);
    k.map(0, 1, frame(1), true);
}

/// A page has a table of its own.
fn second_table(k: &BareKernel<'_>) {
    k.map(0, SECOND, frame(1), true);
    k.link(0, SECOND);
}

/// The kernel has a page, which is global.
fn own_page(k: &BareKernel<'_>) {
    k.use_own_half();
    k.map_own(OWN, frame(0));
}

/// The kernel has two pages, of which one is global.
fn two_own_pages(k: &BareKernel<'_>) {
    own_page(k);
    k.map_own(OWN_TAGGED, frame(1));
}

/// A page has been written.
fn written_page(k: &VmKernel<'_>) {
    k.map(0, 1);
    k.write(0, 1);
    k.keep_table();
}

/// Of two pages the first has been written.
fn written_page_of_two(k: &VmKernel<'_>) {
    k.map(0, 2);
    k.write(0, 1);
    k.keep_table();
}

/// A file's page is mapped and has been written.
fn written_file(k: &VmKernel<'_>) {
    let file = k.create(1, 1);
    k.map_file(0, 1, file);
    k.write(0, 1);
    k.keep_table();
}

/// A clean page of a file is mapped and has been read.
fn clean_file(k: &VmKernel<'_>) {
    k.read_clean_file(0);
    k.keep_table();
}

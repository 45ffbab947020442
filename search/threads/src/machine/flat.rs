//! The machine with one-level tables, for programs that write entries themselves.

use super::Threads;
use crate::tables::{FlatTable, KernelTable, Table};
use quell::Features;

impl<const STRESS: bool> Threads<STRESS> {
    /// Creates a machine of `cpus` CPUs with `tables` page tables. Root `Frame(n)` is table `n`.
    ///
    /// # Panics
    /// If there is no CPU.
    pub fn new(cpus: usize, tables: usize, features: Features) -> Self {
        Threads::with_tables(cpus, FlatTable::new(tables), features)
    }

    /// Makes TLBs also fill speculatively from the kernel's half if `has` is set. It has an effect only with `STRESS`.
    #[must_use]
    pub fn with_kernel(mut self, has: bool) -> Self {
        self.tables.speculates_in_kernel = has;
        self
    }

    /// Returns the table of the kernel's half.
    ///
    /// The half begins at page [`FIRST_KERNEL_PAGE`](crate::tables::FIRST_KERNEL_PAGE).
    pub fn kernel_table(&self) -> &KernelTable {
        &self.tables.kernel
    }

    /// Returns the page table with this index.
    pub fn table(&self, index: usize) -> &Table {
        &self.tables.spaces[index]
    }
}

//! Finds the pages that a program uses, so that changes to it use the same ones.

use crate::generated::program::CpuProgram;

/// The maximum number of a program's pages to which we apply changes.
const PAGES_USED: usize = 3;

/// Returns the first few pages in operations of a program, each once.
pub(super) fn few_of<O>(cpu: &[CpuProgram<O>], page: impl Fn(&O) -> Option<u64>) -> Vec<u64> {
    let mut pages = Vec::new();
    for page in cpu.iter().flat_map(CpuProgram::all).filter_map(page) {
        if pages.len() < PAGES_USED && !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages
}

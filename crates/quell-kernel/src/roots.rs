//! Roots of spaces that tests make by themselves, without the memory manager.

use crate::{arch, memory};
use quell::Frame;

/// A new root in which user mode has nothing.
pub fn new_root() -> Frame {
    let root = memory::take_frame();
    arch::paging::prepare_root(root);
    root
}

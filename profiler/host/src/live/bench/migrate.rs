//! Moves pages between two NUMA nodes: one `move_pages` for each page against one for all.
//!
//! This is S0's second experiment. We refuse it if only one node has memory. The kernel doesn't move a page that is
//! already on its destination, so the call would look fast and move no page. Compaction migrates on one node too, but
//! it moves other pages than the measured ones, so we can't use it instead.
//!
//! Not shown: flushes alone. The distance between the nodes is in the time, too.

use std::cell::Cell;

use rustix::mm::Advice;

use super::super::lab::{Halt, Lab, RowSpec, Spinners, refuse};
use super::super::parse;
use crate::memory::{Mapping, page_size};

const PAGES: usize = 256;

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let &[first, second, ..] = &parse::number_list(&nodes)[..] else {
        return Err(refuse(
            "this machine has one NUMA node with memory: there is nowhere to migrate to",
            Some("a machine with two nodes"),
        ));
    };
    lab.split(4);
    let page = page_size();
    let map = Mapping::anonymous(PAGES * page)?;
    let _ = map.advise(0, map.len(), Advice::LinuxNoHugepage);
    map.touch(page, 1);
    let offsets: Vec<usize> = (0..PAGES).map(|i| i * page).collect();
    let target = Cell::new(second as i32);
    let flip = || {
        target.set(if target.get() == second as i32 {
            first as i32
        } else {
            second as i32
        });
        Ok(())
    };
    let move_in_chunks = |chunk: usize| {
        for offsets in offsets.chunks(chunk) {
            let status = map.move_pages(offsets, Some(&vec![target.get(); offsets.len()]))?;
            if let Some(other) = status.iter().find(|&&s| s != target.get()) {
                return Err(std::io::Error::other(format!(
                    "a page was not moved to node {}: status {other}",
                    target.get()
                )));
            }
        }
        Ok(PAGES as u64)
    };
    if let Err(error) = move_in_chunks(PAGES) {
        return Err(refuse(
            format!("pages cannot be moved between the nodes here: {error}"),
            Some("a cpuset that allows both nodes"),
        ));
    }
    for spinning in 0..lab.cpus.len().min(2) {
        let spinners = Spinners::start(&lab.cpus[1..=spinning])?;
        let op = "page moved to the other node";
        let single = format!("move_pages_each/spin{spinning}");
        lab.row(
            RowSpec::single(&single, op).against(&spinners),
            flip,
            || move_in_chunks(1),
        )?;
        let plan = RowSpec::batched(format!("move_pages_all/spin{spinning}"), &single, op);
        lab.row(plan.against(&spinners), flip, || move_in_chunks(PAGES))?;
    }
    Ok(())
}

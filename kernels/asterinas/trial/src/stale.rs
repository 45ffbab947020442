//! Checks whether a program ever reads a frame after its unmapping.

use crate::program::TAKEN;
use crate::world::{World, frames, pass, range};
use alloc::vec::Vec;
use ostd::mm::tlb::TlbFlushOp;
use ostd::mm::{PageFlags, UFrame, VmIo};
use ostd::prelude::*;
use ostd::task::disable_preempt;

const PAGES: usize = 16;
const ROUNDS: usize = 20;

/// Writes into unmapped frames while programs read. Returns `true` if no program sees it, and programs do see it
/// without the flush: otherwise the check has no power.
pub fn check(world: &World) -> bool {
    world.read(PAGES);
    let mut unmapped = 0;
    let mut protected = 0;
    let mut unflushed = 0;
    for _ in 0..ROUNDS {
        unmapped += round(world, |world| world.unmap(PAGES));
        protected += round(world, |world| forbid(world, true));
        unflushed += round(world, |world| forbid(world, false));
    }
    world.read(0);
    println!("trial: stale unmapped {}", unmapped);
    println!("trial: stale protected {}", protected);
    println!("trial: stale unflushed {}", unflushed);
    unmapped == 0 && protected == 0 && unflushed > 0
}

fn round(world: &World, take_away: impl Fn(&World)) -> usize {
    let frames: Vec<UFrame> = frames(PAGES);
    world.map(&frames);
    pass(200_000);
    take_away(world);
    for frame in &frames {
        frame.write_val(0, &TAKEN).expect("a word of a frame");
    }
    pass(200_000);
    world.unmap(PAGES);
    // A CPU that has read the word reports it in this round.
    pass(200_000);
    world.stale()
}

fn forbid(world: &World, flush: bool) {
    let guard = disable_preempt();
    let range = range(PAGES);
    let mut cursor = world.space.cursor_mut(&guard, &range).expect("a range");
    let nothing = |flags: &mut PageFlags, _: &mut _| *flags = PageFlags::empty();
    while let Some(page) = cursor.protect_next(range.end - cursor.virt_addr(), nothing) {
        if flush {
            cursor.flusher().issue_tlb_flush(TlbFlushOp::for_range(page));
        }
        if cursor.virt_addr() >= range.end {
            break;
        }
    }
    cursor.flusher().dispatch_tlb_flush();
    cursor.flusher().sync_tlb_flush();
}

//! System calls that revoke memory from programs, for `quell hunt`.
//!
//! A program on the first CPU calls the kernel again and again, and the others read the pages of the same space. The
//! work of one call is that between two [`call`]s. Frames have no owner but their mapping, which frees them when it ends.

use crate::pinned;
use crate::world::{STAYS, TEXT, World, frames, pass, property, range};
use core::ops::Range;
use ostd::arch::cpu::context::UserContext;
use ostd::mm::tlb::TlbFlushOp;
use ostd::mm::{PAGE_SIZE, PageFlags, Vaddr};
use ostd::prelude::*;
use ostd::task::{Task, disable_preempt};
use ostd::user::{ReturnReason, UserMode};

const ROUNDS: usize = 20;
/// The number of pages that programs read.
const PAGES: usize = 16;
/// Pages with a page table of their own.
const APART: Range<Vaddr> = 0x2000_0000..0x2020_0000;

/// Runs the calls of all rounds.
pub fn run() {
    let world = World::start();
    world.read(PAGES);
    let mut context = UserContext::default();
    context.set_rip(TEXT);
    // The program calls the kernel when it reads the value of r13. The page that stays contains zeros.
    context.set_r12(STAYS);
    context.set_r13(0);
    context.set_r14(1);
    let mut user = UserMode::new(context);
    // ostd frees frames when each CPU has switched to another task.
    pinned::spawn(0, None, || {
        loop {
            Task::yield_now();
        }
    });
    for round in 0..ROUNDS {
        for pages in [1, PAGES, 512] {
            call(&mut user);
            world.map(&frames(pages));
            pass(100_000);
            call(&mut user);
            world.unmap(pages);
        }
        call(&mut user);
        world.map(&frames(PAGES));
        pass(100_000);
        call(&mut user);
        protect(&world);
        call(&mut user);
        world.unmap(PAGES);
        call(&mut user);
        world.map_at(APART.start, &frames(PAGES), property());
        call(&mut user);
        unmap_apart(&world);
        call(&mut user);
        // The programs on the other CPUs notice that the number changes, and let another task run.
        world.read(PAGES + round % 2);
        Task::yield_now();
    }
    call(&mut user);
    println!("trial: end");
}

/// Lets the program run until it calls the kernel.
fn call(user: &mut UserMode) {
    loop {
        match user.execute(|| false) {
            ReturnReason::UserSyscall => return,
            ReturnReason::KernelEvent => {}
            ReturnReason::UserException => {
                panic!("a program ended with {:?}", user.context_mut().take_exception())
            }
        }
    }
}

/// Makes pages read-only.
fn protect(world: &World) {
    let guard = disable_preempt();
    let range = range(PAGES);
    let mut cursor = world.space.cursor_mut(&guard, &range).expect("a range");
    while cursor.virt_addr() < range.end {
        let next = cursor.virt_addr();
        cursor.protect_next(PAGE_SIZE, |flags, _| *flags = PageFlags::R);
        cursor.flusher().issue_tlb_flush(TlbFlushOp::for_single(next));
    }
    cursor.flusher().dispatch_tlb_flush();
    cursor.flusher().sync_tlb_flush();
}

/// Unmaps pages together with their page table.
fn unmap_apart(world: &World) {
    let guard = disable_preempt();
    let mut cursor = world.space.cursor_mut(&guard, &APART).expect("a range");
    cursor.unmap(APART.len());
    cursor.flusher().sync_tlb_flush();
}

//! The racing programs that several races share, or that are too long for the table.

use crate::machine::{Machine, TAGS, World, be, leak, new_space};
use crate::word::LoomWord;
use loom::thread;
use quell::{Extent, Frame, Purpose, Scope, Word};
use quell_zero::{ClearPolicy, Clearer, OwnedMemory, Pool, PooledMemory};

/// Loads the space, and uses its first pages.
fn run_with(world: &World, pages: usize) {
    world.switch(None, &world.space);
    (0..pages).for_each(|page| world.hw.access(page));
}

pub fn run(world: &World) {
    run_with(world, 1);
}

pub fn run_there(world: &World) {
    if world.me() == 1 {
        run(world);
    }
}

/// Prepares CPU 1 and later ones to run the space.
pub fn run_on_all_others(world: &World) {
    if world.me() != 0 {
        run(world);
    }
}

pub fn run_both_pages_there(world: &World) {
    if world.me() == 1 {
        run_with(world, 2);
    }
}

pub fn idle_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        world.engine.this_cpu().enter_lazy();
    }
}

pub fn run_other_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        world.switch(Some(&world.space), &world.other);
    }
}

pub fn idle_with_other_there(world: &World) {
    run_other_there(world);
    if world.me() == 1 {
        world.engine.this_cpu().enter_lazy();
    }
}

pub fn defer_there(world: &World) {
    run_there(world);
    if world.me() == 0 {
        world.unmap_lazily();
    }
}

/// Prepares a page cleared in an unfinished batch that has no place for its space. CPU 1 runs the space.
pub fn overflow_there(world: &World) {
    run_there(world);
    if world.me() == 0 {
        let frames = quell::FrameArray::<usize>::new();
        let mut batch = (world.engine).batch_of_spaces::<_, _, 1>(Purpose::Reclaim, frames);
        batch.changed(&world.other, quell::PageRange::base(quell::Page(1), 1), Scope::Leaf);
        batch.changed(&world.space, world.clear(0), Scope::Leaf);
        core::mem::forget(batch);
    }
}

pub fn unmap(world: &World) {
    world.unmap(0, Purpose::Call, Scope::Leaf);
}

/// Unmaps a page, and waits until each receipt was followed by the flush.
pub fn unmap_and_quiesce(world: &World) {
    unmap(world);
    world.engine.this_cpu().quiesce();
    assert!(!world.hw.holds(1, 0), "the other CPU still holds the page");
}

pub fn unmap_one_by_one(world: &World) {
    world.unmap(0, Purpose::Reclaim, Scope::Leaf);
}

/// Unmaps a page, and shares the flush.
pub fn unmap_coalesced(world: &World, page: usize) {
    world.clear(page);
    world.engine.this_cpu().flush_coalesced(&world.space);
    world.hw.own(page);
}

/// Prepares CPU 1 to run its program undisturbed.
pub fn in_user_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        enter_user(world);
    }
}

/// Enters the kernel, and uses one of its pages.
pub fn enter_kernel(world: &World) {
    world.engine.this_cpu().enter_kernel();
    world.hw.access(0);
}

pub fn enter_user(world: &World) {
    // SAFETY: programs access the kernel's mappings only after they have entered the kernel.
    unsafe { world.engine.this_cpu().enter_user() };
}

/// Prepares an undisturbed program on CPU 1. CPU 0 has left it a flush of the kernel's mappings, for its next kernel
/// entry.
pub fn deferring_there(world: &World) {
    in_user_there(world);
    if world.me() == 0 {
        unmap_own_page(world, 1);
    }
}

/// Unmaps a page of the kernel's half, and gives its frame to a new owner.
pub fn unmap_own(world: &World) {
    unmap_own_page(world, 0);
}

fn unmap_own_page(world: &World, page: usize) {
    let mut batch = world.engine.batch(Purpose::Call);
    let range = world.clear(page);
    batch.unmapped(&world.own, range, page);
    for page in batch.finish() {
        world.hw.own(page);
    }
}

/// Prepares CPU 1 to be offline.
pub fn offline_there(world: &World) {
    if world.me() == 1 {
        world.engine.cpu_offline(None);
    }
}

/// Brings a CPU online. This includes the full barrier of an invalidation of everything, which would hide missing
/// orderings in other races.
pub fn come_online(world: &World) {
    world.engine.cpu_online();
    quell::Hardware::fence(world.hw);
}

/// Replaces instructions that are not fetched any more.
pub fn change_text(world: &World) {
    world.clear(0);
    world.engine.this_cpu().synchronize_text();
    world.hw.own(0);
}

/// Clears the entry under the table's lock, and flushes after dropping it.
pub fn unmap_under_lock(world: &World) {
    let mut batch = world.engine.batch(Purpose::Call);
    let range = world.clear(0);
    batch.unmapped(&world.space, range, 0);
    world.unlock();
    if world.me() == 1 {
        world.hw.access(0);
    }
    for _ in batch.finish() {}
}

/// Flushes as a later observer, and gives the frame to a new owner.
pub fn rely_on_flush_pending(world: &World) {
    world.engine.flush_pending(&world.space);
    world.hw.own(0);
}

pub fn use_and_flush_pending(world: &World) {
    world.hw.access(0);
    world.engine.flush_pending(&world.space);
}

/// Finds the entry cleared as a later observer, and relies on that.
pub fn rely(world: &World) {
    if world.locks() {
        rely_on_flush_pending(world);
    }
}

/// Fills the entry again, or the slot of the page cache.
pub fn refill(world: &World) {
    world.engine.flush_before_refill(&world.deferred_flush, &world.space);
    world.hw.own(0);
}

/// Serves requests that no interrupt announced.
pub fn handle_unasked(world: &World) {
    world.handle_interrupt();
    world.hw.access(0);
}

/// Defers a flush of the other space.
pub fn defer_other(world: &World) {
    let mut batch = world.engine.batch(Purpose::Lazy);
    batch.unmapped(&world.other, quell::PageRange::base(quell::Page(1), 1), 1);
    let _ = batch.finish_deferred();
}

pub fn load(world: &World) {
    world.switch(Some(&world.other), &world.space);
    world.hw.access(0);
}

pub fn resume(world: &World) {
    world.switch(Some(&world.space), &world.space);
    world.hw.access(0);
}

pub fn leave(world: &World) {
    world.hw.access(0);
    world.switch(Some(&world.space), &world.other);
}

pub fn use_page(world: &World) {
    world.hw.access(0);
}

pub fn use_and_reuse(world: &World) {
    world.hw.access(0);
    let _ = world.engine.flush_before_reuse(&world.deferred_flush);
}

pub fn use_and_flush(world: &World) {
    world.hw.access(0);
    world.engine.flush_deferred();
}

pub fn own_if_flushed(world: &World) {
    if world.engine.is_flushed(&world.deferred_flush) {
        world.hw.own(0);
    }
}

pub fn go_idle(world: &World) {
    world.hw.access(0);
    world.engine.this_cpu().enter_lazy();
}

pub fn go_offline(world: &World) {
    world.hw.access(0);
    world.engine.cpu_offline(Some(&world.space));
}

pub fn defer_and_reuse(world: &World) {
    world.unmap_lazily();
    world.flush_before_reuse();
}

pub fn flush_whole(world: &World) {
    world.hw.access(0);
    let mut batch = world.engine.batch::<_, ()>(Purpose::Call);
    batch.changed_all(&world.space, Scope::Leaf);
    for () in batch.finish() {}
    world.hw.access(0);
}

/// Retires a space, whose page table is then freed, while a lazy CPU walks it.
pub fn retire(world: &World) {
    world.engine.retire(&world.space);
    world.hw.own(0);
}

/// Checks that CPU 1 has done all requested work.
pub fn nothing_lost(world: &World) {
    let lost = (0..2).any(|page| world.hw.holds(1, page));
    assert!(!lost, "C1: a request was lost");
}

/// Checks that no two CPUs run two spaces under one tag.
pub fn tags_differ(world: &World) {
    let ((tag, root), (other_tag, other_root)) = (world.hw.runs(0), world.hw.runs(1));
    assert!(tag != other_tag || root == other_root, "C5: one tag for two");
}

/// Prepares a machine whose tags are all assigned. CPU 1 runs the other space and has entries of the first one.
pub fn use_up_tags(world: &World) {
    if world.me() == 1 {
        run_other_there(world);
        // Tag 0 is never assigned, and the space and the other one have their tags.
        for root in 3..TAGS as u64 {
            let passing = leak(new_space(&world.engine, 6 + root));
            world.switch(Some(&world.other), passing);
            world.switch(Some(passing), &world.other);
        }
    }
}

/// Prepares the same machine, with CPU 0 running the space. Its TLB holds page 0.
pub fn use_up_tags_elsewhere(world: &World) {
    use_up_tags(world);
    if world.me() == 0 {
        run(world);
    }
}

/// Enters the space under its present tag, and frees one of its tables.
pub fn free_table_there(world: &World) {
    world.switch(None, &world.space);
    world.unmap(0, Purpose::Call, Scope::Tables);
    let (_, root) = world.hw.runs(0);
    assert!(
        root != world.space.root().0 || !world.hw.holds(0, 0),
        "C6: a walker is below a root whose table was freed"
    );
}

/// The only frame of the pool: its memory is a cell.
struct PoolFrame;

// SAFETY: the program creates two, one for each CPU, and loom reports it if they are used at the same time.
unsafe impl OwnedMemory for PoolFrame {
    fn extent(&self) -> Extent {
        Extent { first: Frame(0), frames: 1 }
    }
}

impl PooledMemory for PoolFrame {
    fn into_raw(self) -> u64 {
        0
    }
    unsafe fn from_raw(_: u64) -> Self {
        PoolFrame
    }
}

/// Makes one CPU zero a frame and put it into the pool. Another CPU takes it out and uses it.
pub fn pool() {
    let slots: &'static mut [LoomWord; 1] = Box::leak(Box::new([LoomWord::new(0)]));
    let pool: &'static Pool<'static, LoomWord, PoolFrame> = leak(Pool::new(slots, 4096));
    let machine = leak(Machine::new(2, false, false));
    machine.own(0);
    let filler = thread::spawn(move || {
        be(1);
        let policy = ClearPolicy::default();
        let (zeroed, _) = Clearer::new(machine, &policy).frame(PoolFrame, None, || ());
        let _ = pool.put(zeroed);
    });
    be(0);
    if let Some(zeroed) = pool.take() {
        let _ = zeroed.into_inner();
        assert_eq!(machine.look(0), 0, "C8: a frame that is not zero");
    }
    filler.join().expect("it ended");
}

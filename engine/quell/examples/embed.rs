//! Embeds the engine in a small program, with two threads as CPUs and a map as each TLB.
//!
//! `cargo run -p quell --example embed` unmaps a page that another CPU is using, gives the frame a new owner as soon as
//! it comes out of the batch, and shows that the other CPU never accesses it again.

use quell::{
    CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidation, LedgerEntry, NoBroadcasts,
    Page, PageRange, PerCpuData, Policy, Purpose, Tag, Tagging,
};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! { static THIS_CPU: Cell<u16> = const { Cell::new(0) }; }

// ANCHOR: machine
/// One CPU: the content of its TLB, and whether it was interrupted.
#[derive(Default)]
struct Cpu {
    tlb: Mutex<HashMap<Page, Frame>>,
    interrupted: AtomicBool,
}

/// A machine of two CPUs without tags and without broadcast invalidation.
#[derive(Default)]
struct Machine {
    cpus: [Cpu; 2],
}

impl Machine {
    fn me(&self) -> &Cpu {
        &self.cpus[self.this_cpu().index()]
    }
}

// SAFETY: the maps hold no translation that `invalidate` should have dropped, each CPU is one thread, and the features
// are true: the machine has no tags and no broadcasts.
unsafe impl Hardware for Machine {
    type Word = AtomicU64;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(THIS_CPU.get())
    }
    fn features(&self) -> Features {
        Features { tagging: Tagging::None, broadcast: false, full_above: 33 }
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidation) {
        let mut tlb = self.me().tlb.lock().unwrap();
        match what {
            Invalidation::Range { range, .. } => tlb.retain(|&page, _| !range.contains(page)),
            // The machine has no tags and no kernel mappings, so it can drop everything.
            _ => tlb.clear(),
        }
    }
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {
        self.invalidate(Invalidation::All);
    }
    fn unload_root(&self) {
        self.invalidate(Invalidation::All);
    }
    fn interrupt(&self, targets: &CpuSet) {
        for cpu in targets.iter() {
            self.cpus[cpu.index()].interrupted.store(true, Ordering::Release);
        }
    }
    fn mask_interrupts(&self) -> bool {
        true // this machine takes interrupts only where it polls
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {
        std::thread::yield_now();
    }
}
// ANCHOR_END: machine

fn main() {
    let machine = Machine::default();
    let cpus = [PerCpuData::new(), PerCpuData::new()];
    let ledger: Vec<LedgerEntry<Machine>> = (0..64).map(|_| LedgerEntry::new()).collect();
    let engine = Engine::new(&machine, &cpus, &ledger, Policy::ALL).expect("a machine that holds");

    // One address space. Its page table is a single entry: page 5 -> frame 42.
    // SAFETY: this machine walks no tables, so a root is only a number.
    let space = unsafe { engine.new_space(Frame(1)) };
    let entry = AtomicU64::new(42);
    let page = Page(5);
    let owner = AtomicU64::new(1); // whose data frame 42 holds
    let accesses = AtomicU64::new(0);
    let done = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            THIS_CPU.set(1);
            engine.cpu_online();
            engine.this_cpu().mask_interrupts().switch(None, &space);
            while !done.load(Ordering::Acquire) {
                // An access uses the TLB, or a walk that fills it.
                let mut tlb = machine.me().tlb.lock().unwrap();
                let walk = Frame(entry.load(Ordering::Acquire));
                let present = walk != Frame(0);
                let hit = tlb.get(&page).copied();
                if hit.is_none() && present {
                    tlb.insert(page, walk);
                }
                drop(tlb);
                if hit.is_some() || present {
                    assert_eq!(
                        owner.load(Ordering::Acquire),
                        1,
                        "used a frame that has a new owner"
                    );
                    accesses.fetch_add(1, Ordering::Release);
                }
                if machine.me().interrupted.swap(false, Ordering::AcqRel) {
                    engine.this_cpu().mask_interrupts().on_interrupt();
                }
            }
            engine.cpu_offline(Some(&space));
        });

        THIS_CPU.set(0);
        engine.cpu_online();
        engine.this_cpu().mask_interrupts().switch(None, &space);
        while accesses.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }

        // ANCHOR: unmap
        // To unmap, clear the entry, pass the frame to the batch, and get it back flushed.
        let mut batch = engine.batch(Purpose::Call);
        entry.store(0, Ordering::Release);
        batch.unmapped(&space, PageRange::base(page, 1), Frame(42));
        for frame in batch.finish() {
            owner.store(2, Ordering::Release);
            println!(
                "{frame:?} has a new owner after {} accesses",
                accesses.load(Ordering::Acquire)
            );
        }
        // ANCHOR_END: unmap
        std::thread::sleep(std::time::Duration::from_millis(20));
        done.store(true, Ordering::Release);
        engine.cpu_offline(Some(&space));
    });

    for (counter, value) in engine.stats().iter().filter(|&(_, value)| value > 0) {
        println!("{:>20} {value}", counter.label());
    }
}

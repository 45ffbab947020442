//! The cost of each call, recorded: interrupts, invalidations, root loads, and counters. One flush too many keeps the
//! contract, so no other test would notice it.
//!
//! `counts/*.txt` are these steps with all their effects, on two CPUs of a machine with tags, of one under
//! `Policy::BASELINE`, and of one that broadcasts. A commit that changes one of these files states why a step costs
//! more, or less. The file is long because it's one sequence, in which every step depends on the state that the last
//! one left.

use crate::support::{
    E, KERNEL_PAGE, Machine, S, kernel_space, one as base, serve, small, space, switch, unmapping,
    world,
};
use quell::{
    Batch, CpuId, DeferredFlush, Frame, Invalidation, KernelEntries, Outcome, Page, PageRange,
    PageSize, Policy, Purpose, Scope, Stats,
};
use std::fmt::Write;

/// A machine and the record of its steps.
struct CostRecord {
    machine: &'static Machine,
    engine: E,
    before: [Stats; 2],
    text: String,
}

fn named(what: Invalidation) -> String {
    let pages =
        |range: PageRange| format!("{:#x}+{} of {:?}", range.start.0, range.pages, range.stride);
    let and = |scope| if scope == Scope::Tables { " and tables" } else { "" };
    match what {
        Invalidation::Range { tag, range, scope } => {
            format!("tag {}: {}{}", tag.0, pages(range), and(scope))
        }
        Invalidation::Tag(tag) => format!("tag {}", tag.0),
        Invalidation::Kernel { range, scope } => {
            format!("kernel: {}{}", pages(range), and(scope))
        }
        Invalidation::All => "all".to_string(),
        Invalidation::Everything => "everything".to_string(),
    }
}

impl CostRecord {
    fn new(machine: Machine, policy: Policy) -> CostRecord {
        let (machine, engine) = world(machine, policy);
        let before = [0, 1].map(|cpu| engine.cpu_stats(CpuId(cpu)));
        let mut told = CostRecord { machine, engine, before, text: String::new() };
        told.step("online", |_| {});
        told
    }

    /// Runs a step on CPU 0, and records its effects.
    fn step<T>(&mut self, name: &str, does: impl FnOnce(&CostRecord) -> T) -> T {
        let result = does(self);
        assert!(!self.machine.masked.get(), "{name}: interrupts stay masked");
        let text = &mut self.text;
        let _ = writeln!(text, "{name}");
        let sent = self.machine.interrupts.take();
        if sent > 0 {
            let _ = writeln!(text, "    {sent} interrupts");
        }
        for (cpu, what) in self.machine.invalidated.take() {
            let _ = writeln!(text, "    CPU {cpu} flushes {}", named(what));
        }
        for what in self.machine.broadcast.0.take() {
            let what = what.map_or("is over".to_string(), named);
            let _ = writeln!(text, "    broadcast {what}");
        }
        for keep in self.machine.kept.take() {
            let stay = if keep { "stay" } else { "go" };
            let _ = writeln!(text, "    a root is loaded, and entries {stay}");
        }
        for cpu in [0, 1] {
            let now = self.engine.cpu_stats(CpuId(cpu));
            let since = now.since(&self.before[usize::from(cpu)]);
            let counted = since.iter().filter(|(_, count)| *count > 0);
            let counted: Vec<String> =
                counted.map(|(counter, count)| format!("{} {count}", counter.label())).collect();
            if !counted.is_empty() {
                let _ = writeln!(text, "    CPU {cpu} counts {}", counted.join(", "));
            }
            self.before[usize::from(cpu)] = now;
        }
        result
    }

    /// Runs a step on CPU 1.
    fn other<T>(&mut self, name: &str, does: impl FnOnce(&CostRecord) -> T) -> T {
        self.machine.me.set(1);
        let result = self.step(name, does);
        self.machine.me.set(0);
        result
    }

    /// Switches on `cpu`.
    fn go(&mut self, cpu: u16, name: &str, from: Option<S>, to: S) {
        self.machine.me.set(cpu);
        self.step(name, |told| switch(told.engine, from, to));
        self.machine.me.set(0);
    }

    /// Unmaps these ranges in one step.
    fn page(&mut self, name: &str, space: S, ranges: &[PageRange]) {
        self.step(name, |told| told.unmap(space, ranges));
    }

    /// Fills and finishes a batch in one step.
    fn batch(&mut self, name: &str, purpose: Purpose, fill: impl FnOnce(&mut Batch<'_, S>)) {
        self.step(name, |told| {
            let mut batch = told.engine.batch(purpose);
            fill(&mut batch);
            batch.finish().for_each(drop);
        });
    }

    /// Flushes without a batch.
    fn alone(&mut self, name: &str, space: S, range: Option<PageRange>, scope: Scope) {
        self.step(name, |told| told.engine.this_cpu().flush(space, range, scope));
    }

    fn deferred(&mut self, name: &str, space: S) -> DeferredFlush<Machine> {
        self.step(name, |told| told.defer(space))
    }

    fn reuse(&mut self, deferred_flush: &DeferredFlush<Machine>) {
        self.step("it is reused", |told| told.reused(deferred_flush));
    }

    /// Reuses a frame, whose flush is deferred if the policy allows it.
    fn reused(&self, deferred_flush: &DeferredFlush<Machine>) {
        let reused = self.engine.flush_before_reuse(deferred_flush).is_some();
        assert_eq!(reused, self.engine.policy().lazy_unmap);
    }

    /// Unmaps these ranges in a batch of [`Purpose::Call`].
    fn unmap(&self, space: S, ranges: &[PageRange]) {
        let mut batch: Batch<'_, S> = self.engine.batch(Purpose::Call);
        for (number, range) in ranges.iter().enumerate() {
            batch.unmapped(space, *range, Frame(number as u64));
        }
        assert!(!batch.is_empty());
        let came_out = batch.finish().count();
        assert_eq!(came_out, ranges.len());
        assert!(batch.is_empty());
    }

    /// Unmaps a page lazily.
    fn defer(&self, space: S) -> DeferredFlush<Machine> {
        let deferred_flush = DeferredFlush::new();
        deferred_flush.begin();
        assert!(!self.engine.is_flushed(&deferred_flush));
        match unmapping(self.engine, Purpose::Lazy, space, 5).finish_deferred() {
            Outcome::Deferred(deferred) => deferred_flush.defer(deferred.stamp()),
            Outcome::Flushed(_) => deferred_flush.clear(),
        }
        deferred_flush
    }

    /// Defers four flushes, lets this CPU catch up, and makes them.
    fn catch_up(&self, space: S) {
        (0..4).for_each(|_| _ = self.defer(space));
        self.engine.this_cpu().catch_up();
    }
}

const PAGE: PageRange = base(5);
const KERNEL_PAGES: PageRange = PageRange::base(Page(KERNEL_PAGE), 34);

/// Runs every step and returns the record.
fn story(machine: Machine, policy: Policy) -> String {
    let mut told = CostRecord::new(machine, policy);
    let engine = told.engine;
    let cpu = || engine.this_cpu();
    let defers = engine.policy().lazy_unmap;
    let (x, y) = (space(engine, 1), space(engine, 2));
    assert!(cpu().is_online() && cpu().is_detached());
    told.go(0, "CPU 0 switches to x", None, x);
    told.page("a page, while CPU 1 runs nothing", x, &[PAGE]);
    let nobody = "a page without a batch, while CPU 1 runs nothing";
    told.alone(nobody, x, Some(PAGE), Scope::Leaf);
    told.go(1, "CPU 1 switches to x", None, x);
    told.page("a page", x, &[PAGE]);
    told.alone("a page without a batch", x, Some(PAGE), Scope::Leaf);
    told.alone("a table without a batch", x, Some(PAGE), Scope::Tables);
    told.alone("all of x without a batch", x, None, Scope::Leaf);
    told.batch("no page", Purpose::Call, |batch| {
        batch.changed(x, PageRange::base(Page(5), 0), Scope::Leaf);
        assert!(batch.is_empty());
    });
    told.page("neighbours", x, &[5, 6, 7].map(base));
    told.page("pages apart", x, &[5, 7].map(base));
    told.page("pages in another order", x, &[7, 5, 6].map(base));
    told.page("the same page twice", x, &[7, 7].map(base));
    let nine = [1, 3, 5, 7, 9, 11, 13, 15, 17].map(base);
    told.page("more ranges than are remembered", x, &nine);
    told.page("33 pages", x, &[PageRange::base(Page(5), 33)]);
    told.page("34 pages", x, &[PageRange::base(Page(5), 34)]);
    let one_by_one: Vec<_> = (0..34).map(base).collect();
    told.page("33 pages one by one", x, &one_by_one[..33]);
    told.page("34 pages one by one", x, &one_by_one);
    let large = PageRange { start: Page(512), pages: 1024, stride: PageSize::Large };
    told.page("two large pages", x, &[large]);
    told.page("a large page and a base page", x, &[large, PAGE]);
    let most = [PageRange::base(Page(0), 65535), base(65535)];
    told.page("more strides than are packed", x, &most);
    told.batch("rights, and a table", Purpose::Call, |batch| {
        batch.changed(x, base(5), Scope::Leaf);
        batch.changed(x, base(6), Scope::Tables);
        batch.changed(x, base(9), Scope::Leaf);
    });
    told.batch("all of x", Purpose::Call, |batch| {
        batch.changed_all(x, Scope::Leaf);
        batch.changed(x, base(5), Scope::Leaf);
        batch.changed(x, base(5), Scope::Tables);
    });
    told.batch("x and y", Purpose::Call, |batch| {
        batch.unmapped(x, base(5), Frame(1));
        batch.unmapped(y, base(5), Frame(2));
        batch.unmapped(x, base(6), Frame(3));
    });
    told.page("y, which no CPU runs", y, &[PAGE]);
    told.batch("reclaim", Purpose::Reclaim, |batch| {
        for page in [5, 8, 2] {
            batch.unmapped(x, base(page), Frame(page));
            batch.unlocked();
        }
    });
    told.step("a batch that is forgotten", |_| {
        drop(unmapping(engine, Purpose::Call, x, 5));
    });
    told.step("flush_pending(x), with no flush pending", |_| engine.flush_pending(x));
    told.step("flush_pending(x), with a batch outstanding", |_| {
        let mut batch = unmapping(engine, Purpose::Reclaim, x, 5);
        batch.unlocked();
        engine.flush_pending_batches(x);
        engine.flush_pending(x);
        assert_eq!(batch.finish().count(), 1);
    });
    told.step("in flight", |told| {
        let mut batch = unmapping(engine, Purpose::Call, x, 5);
        let mut flight = batch.start();
        assert_eq!(flight.is_done(), engine.hw().global);
        told.machine.pending[1].set(false);
        told.machine.on(1, || serve(Some(&engine)));
        assert!(flight.is_done());
        assert_eq!(flight.finish().count(), 1);
    });
    told.step("refresh", |_| {
        cpu().refresh(x, PAGE);
        cpu().refresh(y, PAGE);
    });

    told.other("CPU 1 is lazy", |_| cpu().enter_lazy());
    told.page("a page, while CPU 1 is lazy", x, &[PAGE]);
    told.other("CPU 1 comes back", |_| {
        assert!(cpu().resume(x) && cpu().runs(x));
    });
    told.other("CPU 1 is lazy and comes back", |_| {
        cpu().enter_lazy();
        assert!(!cpu().runs(x) && cpu().resume(x));
    });
    told.other("CPU 1 is lazy", |_| cpu().enter_lazy());
    told.batch("a table, while CPU 1 is lazy", Purpose::Call, |batch| {
        batch.table_unlinked(x, base(0), Frame(7));
    });
    let evicted = !engine.hw().global;
    told.other("CPU 1 has left", |_| {
        assert_eq!(cpu().is_detached(), evicted);
        cpu().enter_lazy();
    });
    told.step("a page and a table, which CPU 1 has left", |told| {
        told.unmap(x, &[PAGE]);
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.table_unlinked(x, base(0), Frame(7));
        assert_eq!(batch.finish().count(), 1);
    });
    told.go(1, "CPU 1 switches to x again", None, x);
    told.go(1, "CPU 1 switches to y", Some(x), y);
    told.other("CPU 1 switches to x and back", |_| {
        switch(engine, Some(y), x);
        switch(engine, Some(x), y);
    });
    told.page("a page, which CPU 1 does not run", x, &[PAGE]);
    told.go(1, "CPU 1 switches to x, which has changed", Some(y), x);
    told.other("CPU 1 leaves", |_| cpu().leave(x));
    told.page("a page, while CPU 1 has none", x, &[PAGE]);
    told.other("CPU 1 is offline", |_| {
        engine.cpu_offline(None);
        assert!(!cpu().is_online() && cpu().is_detached());
    });
    told.page("a page, while CPU 1 is offline", x, &[PAGE]);
    told.other("CPU 1 is online", |_| engine.cpu_online());
    told.go(1, "CPU 1 switches to x", None, x);

    let deferred_flush = told.deferred("a page is deferred", x);
    told.step("it is reused", |told| {
        told.reused(&deferred_flush);
        assert!(deferred_flush.is_clear() && engine.flush_before_reuse(&deferred_flush).is_none());
    });
    let deferred_flush = told.deferred("a page is deferred", x);
    told.step("it is reinstated", |_| {
        assert_eq!(deferred_flush.reinstate(engine), defers);
        assert!(deferred_flush.is_clear() && !deferred_flush.reinstate(engine));
    });
    let deferred_flush = told.deferred("a page is deferred", x);
    told.step("its slot is filled again", |_| {
        engine.flush_before_refill(&deferred_flush, x);
        assert!(engine.is_flushed(&deferred_flush) || !defers);
        engine.flush_before_refill(&deferred_flush, x);
    });
    let deferred_flush = told.deferred("a page is deferred", x);
    let every = "it is reused when every deferred flush is made";
    told.step(every, |told| {
        engine.flush_deferred();
        told.reused(&deferred_flush);
    });
    let two = "two pages are deferred and every deferred flush is made";
    told.step(two, |told| {
        told.defer(x);
        told.defer(y);
        engine.flush_deferred();
        assert!(!engine.has_deferred());
        engine.flush_deferred();
    });
    told.step("a page is deferred, and no batch is outstanding", |told| {
        told.defer(x);
        engine.flush_pending_batches(x);
    });
    told.step("flush_pending(x), with a flush deferred", |_| {
        engine.flush_pending(x);
        engine.flush_pending(x);
    });
    told.step("more is deferred than the ledger holds", |told| {
        (0..6).for_each(|_| _ = told.defer(x));
    });
    told.step("CPU 0 catches up", |_| {
        cpu().catch_up();
        cpu().catch_up();
    });
    told.other("CPU 1 catches up", |_| cpu().catch_up());
    let every = "every deferred flush is made, after all have flushed";
    told.step(every, |_| engine.flush_deferred());
    let deferred_flush = told.deferred("a page is deferred", x);
    told.other("CPU 1 flushes its tag", |_| {
        switch(engine, Some(x), y);
        switch(engine, Some(y), x);
    });
    told.reuse(&deferred_flush);

    let deferred_flush = told.deferred("a page is deferred", x);
    told.other("CPU 1 is lazy", |_| cpu().enter_lazy());
    told.reuse(&deferred_flush);
    told.other("CPU 1 comes back", |_| assert!(cpu().resume(x)));
    told.step("CPU 0 is lazy, and does not catch up", |told| {
        cpu().enter_lazy();
        told.catch_up(y);
        assert!(cpu().resume(x));
        engine.flush_deferred();
    });
    told.step("CPU 0 is lazy", |_| cpu().enter_lazy());
    told.page("a page, while CPU 0 is lazy", x, &[PAGE]);
    told.step("CPU 0 catches up with nothing", |told| {
        told.catch_up(y);
        engine.flush_deferred();
    });
    told.go(0, "CPU 0 comes back", None, x);
    told.other("CPU 1 leaves", |_| cpu().leave(x));
    told.step("CPU 0 is lazy", |_| cpu().enter_lazy());
    told.page("a page, while CPU 0 is lazy and alone", x, &[PAGE]);
    told.go(0, "CPU 0 comes back", None, x);
    told.other("CPU 1 catches up with nothing", |told| {
        told.catch_up(y);
        engine.flush_deferred();
    });
    told.go(1, "CPU 1 switches to x", None, x);

    for entries in [KernelEntries::Global, KernelEntries::Tagged] {
        let kernel = kernel_space(engine, entries);
        let page = base(KERNEL_PAGE);
        let one = format!("a page of the kernel, {entries:?}");
        told.page(&one, kernel, &[page]);
        told.page("34 pages of the kernel", kernel, &[KERNEL_PAGES]);
        told.batch("of the kernel and of x", Purpose::Call, |batch| {
            batch.unmapped(kernel, page, Frame(1));
            batch.unmapped(x, PAGE, Frame(2));
        });
        // SAFETY: no memory is behind any frame.
        told.other("CPU 1 runs a program", |_| unsafe { cpu().enter_user() });
        let program = "a page of the kernel, while CPU 1 runs a program";
        told.page(program, kernel, &[page]);
        let program = "a page of the kernel is deferred while CPU 1 runs a program";
        told.step(program, |told| {
            told.defer(kernel);
            engine.flush_deferred();
        });
        told.page("a page of the program", x, &[PAGE]);
        told.other("CPU 1 enters the kernel", |_| cpu().enter_kernel());
        // SAFETY: no memory is behind any frame.
        told.other("CPU 1 runs a program and enters the kernel", |_| unsafe {
            cpu().enter_user();
            cpu().enter_kernel();
        });
        let everything = "a page of the kernel is deferred, and CPU 1 flushes everything";
        told.step(everything, |told| {
            let deferred_flush = told.defer(kernel);
            told.unmap(kernel, &[KERNEL_PAGES]);
            told.reused(&deferred_flush);
        });
        let user = "a page of the kernel is deferred, and one of x is reused";
        told.step(user, |told| {
            told.defer(kernel);
            told.reused(&told.defer(x));
            assert_eq!(engine.has_deferred(), defers);
        });
        let every = "a page of the kernel is deferred and every deferred flush is made";
        told.step(every, |told| {
            told.defer(kernel);
            engine.flush_deferred();
        });
    }
    let kernel = kernel_space(engine, KernelEntries::Global);
    let deferred_flush = told.deferred("a page is deferred", x);
    told.page("34 pages of the kernel", kernel, &[KERNEL_PAGES]);
    told.reuse(&deferred_flush);
    told.other("CPU 1 is offline, and has left x", |_| {
        engine.cpu_offline(Some(x));
    });
    let offline = "a page of the kernel, while CPU 1 is offline";
    told.page(offline, kernel, &[base(KERNEL_PAGE)]);
    let deferred_flush = told.deferred("a page of the kernel is deferred", kernel);
    told.other("CPU 1 is online", |_| engine.cpu_online());
    told.reuse(&deferred_flush);
    told.page("a page of x, which CPU 1 has left", x, &[PAGE]);
    told.go(1, "CPU 1 switches to x", None, x);
    told.step("x and y, with a place for one", |_| {
        let mut batch = small(engine, Purpose::Reclaim);
        batch.unmapped(y, PAGE, Frame(1));
        batch.unmapped(x, PAGE, Frame(2));
        assert_eq!(batch.finish().count(), 2);
    });
    // SAFETY: no memory is behind any frame.
    told.other("CPU 1 runs a program", |_| unsafe { cpu().enter_user() });
    told.step("text", |told| {
        cpu().synchronize_text();
        let mut cpus = told.machine.synchronized.take();
        cpus.sort_unstable();
        assert_eq!(cpus, [0, 1]);
    });
    told.other("CPU 1 enters the kernel", |_| cpu().enter_kernel());
    told.go(1, "CPU 1 runs y", Some(x), y);
    told.step("y is retired by a CPU that does not run it", |_| cpu().leave(x));
    told.other("x is retired", |_| engine.retire(x));
    told.other("CPU 1 is lazy", |_| cpu().enter_lazy());
    told.step("CPU 0 runs y and is lazy", |_| {
        switch(engine, None, y);
        cpu().enter_lazy();
    });
    told.step("y is retired", |_| engine.retire(y));
    assert!(cpu().is_detached());
    told.text
}

#[test]
fn every_step_costs_what_is_written_down() {
    let tags = include_str!("counts/tags.txt");
    let baseline = include_str!("counts/baseline.txt");
    let broadcast = include_str!("counts/broadcast.txt");
    for (name, global, policy, expected) in [
        ("tags", false, Policy::ALL, tags),
        ("baseline", false, Policy::BASELINE, baseline),
        ("broadcast", true, Policy::ALL, broadcast),
    ] {
        let told = story(Machine::new(global), policy);
        let differs = |(one, other)| one != other;
        let line = told.lines().zip(expected.lines()).position(differs);
        let line = line.map_or(0, |line| line + 1);
        assert!(
            told == expected,
            "counts/{name}.txt differs from line {line} on; it is now\n{told}"
        );
    }
}

#[test]
fn what_was_counted_is_printed_by_name() {
    let (_, engine) = world(Machine::default(), Policy::BASELINE);
    switch(engine, None, space(engine, 1));
    let printed = format!("{:?}", engine.stats());
    assert!(printed.contains("Switches: 1"), "{printed}");
    assert!(!printed.contains("Sent"), "{printed}");
}

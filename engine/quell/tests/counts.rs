//! The cost of each call, recorded: interrupts, invalidations, root loads, and counters. One flush too many keeps the
//! contract, so no other test would notice it.
//!
//! `counts/*.txt` are these steps with all their effects, on two CPUs of a machine with tags, of one under
//! `Policy::BASELINE`, and of one that broadcasts. A commit that changes one of these files states why a step costs
//! more, or less. The file is long because it's one sequence, in which every step depends on the state that the last
//! one left.

use crate::support::{E, Machine, S, kernel_space, one as base, space, switch, world};
use quell::{
    Batch, Counter, CpuId, DeferredFlush, Frame, Invalidate, KernelEntries, Outcome, Page,
    PageRange, PageSize, Policy, Purpose, Scope, Stats,
};
use std::fmt::Write;

/// A machine and the record of its steps.
struct CostRecord {
    machine: &'static Machine,
    engine: E,
    before: [Stats; 2],
    text: String,
}

fn scope_of(scope: Scope) -> &'static str {
    match scope {
        Scope::Leaf => "",
        Scope::Tables => " and tables",
    }
}

fn named(what: Invalidate) -> String {
    let pages =
        |range: PageRange| format!("{:#x}+{} of {:?}", range.start.0, range.pages, range.stride);
    match what {
        Invalidate::Range { tag, range, scope } => {
            format!("tag {}: {}{}", tag.0, pages(range), scope_of(scope))
        }
        Invalidate::Tag(tag) => format!("tag {}", tag.0),
        Invalidate::Kernel { range, scope } => {
            format!("kernel: {}{}", pages(range), scope_of(scope))
        }
        Invalidate::All => "all".to_string(),
        Invalidate::Everything => "everything".to_string(),
    }
}

impl CostRecord {
    fn new(machine: Machine, policy: Policy) -> CostRecord {
        let (machine, engine) = world(machine, policy);
        let before = [0, 1].map(|cpu| engine.cpu_stats(CpuId(cpu)));
        let mut told = CostRecord {
            machine,
            engine,
            before,
            text: String::new(),
        };
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
            let _ = writeln!(
                text,
                "    broadcast {}",
                what.map_or("is over".to_string(), named)
            );
        }
        for keep in self.machine.kept.take() {
            let _ = writeln!(
                text,
                "    a root is loaded, and entries {}",
                if keep { "stay" } else { "go" }
            );
        }
        for cpu in [0, 1] {
            let now = self.engine.cpu_stats(CpuId(cpu));
            let counted: Vec<String> = now
                .since(&self.before[usize::from(cpu)])
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(counter, count)| format!("{} {count}", Counter::label(counter)))
                .collect();
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

    /// Flushes without a batch.
    fn alone(&mut self, name: &str, space: S, range: Option<PageRange>, scope: Scope) {
        self.step(name, |told| {
            told.engine.this_cpu().flush(space, range, scope)
        });
    }

    fn reuse(&mut self, deferred_flush: &DeferredFlush<Machine>) {
        self.step("it is reused", |told| {
            let _ = told.engine.flush_before_reuse(deferred_flush);
        });
    }

    fn batch(&self, purpose: Purpose) -> Batch<'static, S> {
        self.engine.batch(purpose)
    }

    /// Unmaps these ranges in a batch of [`Purpose::Call`].
    fn unmap(&self, space: S, ranges: &[PageRange]) {
        let mut batch = self.batch(Purpose::Call);
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
        let mut batch = self.batch(Purpose::Lazy);
        batch.unmapped(space, base(5), Frame(42));
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => deferred_flush.defer(deferred.stamp()),
            Outcome::Flushed(_) => deferred_flush.clear(),
        }
        deferred_flush
    }
}

/// Runs every step and returns the record.
fn story(machine: Machine, policy: Policy) -> String {
    let mut told = CostRecord::new(machine, policy);
    let engine = told.engine;
    let (x, y) = (space(engine, 1), space(engine, 2));
    assert!(engine.this_cpu().is_online() && engine.this_cpu().is_detached());
    told.go(0, "CPU 0 switches to x", None, x);
    told.page("a page, while CPU 1 runs nothing", x, &[base(5)]);
    told.alone(
        "a page without a batch, while CPU 1 runs nothing",
        x,
        Some(base(5)),
        Scope::Leaf,
    );
    told.go(1, "CPU 1 switches to x", None, x);
    told.page("a page", x, &[base(5)]);
    told.alone("a page without a batch", x, Some(base(5)), Scope::Leaf);
    told.alone("a table without a batch", x, Some(base(5)), Scope::Tables);
    told.alone("all of x without a batch", x, None, Scope::Leaf);
    told.step("no page", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.changed(x, PageRange::base(Page(5), 0), Scope::Leaf);
        assert!(batch.is_empty());
    });
    told.page("neighbours", x, &[base(5), base(6), base(7)]);
    told.page("pages apart", x, &[base(5), base(7)]);
    told.page("pages in another order", x, &[base(7), base(5), base(6)]);
    told.page("the same page twice", x, &[base(7), base(7)]);
    told.page(
        "more ranges than are remembered",
        x,
        &[1, 3, 5, 7, 9, 11, 13, 15, 17].map(base),
    );
    told.page("33 pages", x, &[PageRange::base(Page(5), 33)]);
    told.page("34 pages", x, &[PageRange::base(Page(5), 34)]);
    told.page(
        "33 pages one by one",
        x,
        &(0..33).map(base).collect::<Vec<_>>(),
    );
    told.page(
        "34 pages one by one",
        x,
        &(0..34).map(base).collect::<Vec<_>>(),
    );
    let large = PageRange {
        start: Page(512),
        pages: 1024,
        stride: PageSize::Large,
    };
    told.page("two large pages", x, &[large]);
    told.page("a large page and a base page", x, &[large, base(5)]);
    told.page(
        "more strides than are packed",
        x,
        &[
            PageRange::base(Page(0), 65535),
            PageRange::base(Page(65535), 1),
        ],
    );
    told.step("rights, and a table", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.changed(x, base(5), Scope::Leaf);
        batch.changed(x, base(6), Scope::Tables);
        batch.changed(x, base(9), Scope::Leaf);
        assert_eq!(batch.finish().count(), 0);
    });
    told.step("all of x", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.changed_all(x, Scope::Leaf);
        batch.changed(x, base(5), Scope::Leaf);
        batch.changed(x, base(5), Scope::Tables);
    });
    told.step("x and y", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.unmapped(x, base(5), Frame(1));
        batch.unmapped(y, base(5), Frame(2));
        batch.unmapped(x, base(6), Frame(3));
        assert_eq!(batch.finish().count(), 3);
    });
    told.page("y, which no CPU runs", y, &[base(5)]);
    told.step("reclaim", |told| {
        let mut batch = told.batch(Purpose::Reclaim);
        for (page, frame) in [(5, 1), (8, 2), (2, 3)] {
            batch.unmapped(x, base(page), Frame(frame));
            batch.unlocked();
        }
        assert_eq!(batch.finish().count(), 3);
    });
    told.step("a batch that is forgotten", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.changed(x, base(5), Scope::Leaf);
    });
    told.step("flush_pending(x), with no flush pending", |_| {
        engine.flush_pending(x)
    });
    told.step("flush_pending(x), with a batch outstanding", |told| {
        let mut batch = told.batch(Purpose::Reclaim);
        batch.unmapped(x, base(5), Frame(1));
        batch.unlocked();
        engine.flush_pending_batches(x);
        engine.flush_pending(x);
        assert_eq!(batch.finish().count(), 1);
    });
    told.step("in flight", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.unmapped(x, base(5), Frame(1));
        let mut flight = batch.start();
        let at_once = flight.is_done();
        told.machine.pending[1].set(false);
        told.machine.me.set(1);
        engine.this_cpu().mask_interrupts().on_interrupt();
        told.machine.me.set(0);
        assert!(flight.is_done());
        assert_eq!(flight.finish().count(), 1);
        assert_eq!(at_once, engine.hw().global);
    });
    told.step("refresh", |_| {
        engine.this_cpu().refresh(x, base(5));
        engine.this_cpu().refresh(y, base(5));
    });

    told.other("CPU 1 is lazy", |_| engine.this_cpu().enter_lazy());
    told.page("a page, while CPU 1 is lazy", x, &[base(5)]);
    told.other("CPU 1 comes back", |_| {
        assert!(engine.this_cpu().resume(x) && engine.this_cpu().runs(x))
    });
    told.other("CPU 1 is lazy and comes back", |_| {
        engine.this_cpu().enter_lazy();
        assert!(!engine.this_cpu().runs(x) && engine.this_cpu().resume(x));
    });
    told.other("CPU 1 is lazy", |_| engine.this_cpu().enter_lazy());
    told.step("a table, while CPU 1 is lazy", |told| {
        let mut batch = told.batch(Purpose::Call);
        batch.table_unlinked(x, base(0), Frame(7));
        assert_eq!(batch.finish().count(), 1);
    });
    let evicted = !engine.hw().global;
    told.other("CPU 1 has left", |_| {
        assert_eq!(engine.this_cpu().is_detached(), evicted);
        engine.this_cpu().enter_lazy();
    });
    told.step("a page and a table, which CPU 1 has left", |told| {
        told.unmap(x, &[base(5)]);
        let mut batch = told.batch(Purpose::Call);
        batch.table_unlinked(x, base(0), Frame(7));
        assert_eq!(batch.finish().count(), 1);
    });
    told.go(1, "CPU 1 switches to x again", None, x);
    told.go(1, "CPU 1 switches to y", Some(x), y);
    told.other("CPU 1 switches to x and back", |_| {
        switch(engine, Some(y), x);
        switch(engine, Some(x), y);
    });
    told.page("a page, which CPU 1 does not run", x, &[base(5)]);
    told.go(1, "CPU 1 switches to x, which has changed", Some(y), x);
    told.other("CPU 1 leaves", |_| engine.this_cpu().leave(x));
    told.page("a page, while CPU 1 has none", x, &[base(5)]);
    told.other("CPU 1 is offline", |_| {
        engine.cpu_offline(None);
        assert!(!engine.this_cpu().is_online() && engine.this_cpu().is_detached());
    });
    told.page("a page, while CPU 1 is offline", x, &[base(5)]);
    told.other("CPU 1 is online", |_| engine.cpu_online());
    told.go(1, "CPU 1 switches to x", None, x);

    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.step("it is reused", |_| {
        assert_eq!(
            engine.flush_before_reuse(&deferred_flush).is_some(),
            engine.policy().lazy_unmap
        );
        assert!(deferred_flush.is_clear() && engine.flush_before_reuse(&deferred_flush).is_none());
    });
    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.step("it is reinstated", |_| {
        assert_eq!(deferred_flush.reinstate(engine), engine.policy().lazy_unmap);
        assert!(deferred_flush.is_clear() && !deferred_flush.reinstate(engine));
    });
    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.step("its slot is filled again", |_| {
        engine.flush_before_refill(&deferred_flush, x);
        assert!(engine.is_flushed(&deferred_flush) || !engine.policy().lazy_unmap);
        engine.flush_before_refill(&deferred_flush, x);
    });
    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.step("it is reused when every deferred flush is made", |_| {
        engine.flush_deferred();
        let _ = engine.flush_before_reuse(&deferred_flush);
    });
    told.step(
        "two pages are deferred and every deferred flush is made",
        |told| {
            told.defer(x);
            told.defer(y);
            engine.flush_deferred();
            assert!(!engine.has_deferred());
            engine.flush_deferred();
        },
    );
    told.step("a page is deferred, and no batch is outstanding", |told| {
        told.defer(x);
        engine.flush_pending_batches(x);
    });
    told.step("flush_pending(x), with a flush deferred", |_| {
        engine.flush_pending(x);
        engine.flush_pending(x);
    });
    told.step("more is deferred than the ledger holds", |told| {
        for _ in 0..6 {
            told.defer(x);
        }
    });
    told.step("CPU 0 catches up", |_| {
        engine.this_cpu().catch_up();
        engine.this_cpu().catch_up();
    });
    told.other("CPU 1 catches up", |_| engine.this_cpu().catch_up());
    told.step(
        "every deferred flush is made, after all have flushed",
        |_| engine.flush_deferred(),
    );
    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.other("CPU 1 flushes its tag", |_| {
        switch(engine, Some(x), y);
        switch(engine, Some(y), x);
    });
    told.reuse(&deferred_flush);

    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.other("CPU 1 is lazy", |_| engine.this_cpu().enter_lazy());
    told.reuse(&deferred_flush);
    told.other("CPU 1 comes back", |_| assert!(engine.this_cpu().resume(x)));
    told.step("CPU 0 is lazy, and does not catch up", |told| {
        engine.this_cpu().enter_lazy();
        (0..4).for_each(|_| {
            told.defer(y);
        });
        engine.this_cpu().catch_up();
        assert!(engine.this_cpu().resume(x));
        engine.flush_deferred();
    });
    told.step("CPU 0 is lazy", |_| engine.this_cpu().enter_lazy());
    told.page("a page, while CPU 0 is lazy", x, &[base(5)]);
    told.step("CPU 0 catches up with nothing", |told| {
        (0..4).for_each(|_| {
            told.defer(y);
        });
        engine.this_cpu().catch_up();
        engine.flush_deferred();
    });
    told.go(0, "CPU 0 comes back", None, x);
    told.other("CPU 1 leaves", |_| engine.this_cpu().leave(x));
    told.step("CPU 0 is lazy", |_| engine.this_cpu().enter_lazy());
    told.page("a page, while CPU 0 is lazy and alone", x, &[base(5)]);
    told.go(0, "CPU 0 comes back", None, x);
    told.other("CPU 1 catches up with nothing", |told| {
        (0..4).for_each(|_| {
            told.defer(y);
        });
        engine.this_cpu().catch_up();
        engine.flush_deferred();
    });
    told.go(1, "CPU 1 switches to x", None, x);

    for entries in [KernelEntries::Global, KernelEntries::Tagged] {
        let kernel = kernel_space(engine, entries);
        let page = base(0x7_ffff_f000);
        told.page(
            &format!("a page of the kernel, {entries:?}"),
            kernel,
            &[page],
        );
        told.page(
            "34 pages of the kernel",
            kernel,
            &[PageRange::base(page.start, 34)],
        );
        told.step("of the kernel and of x", |told| {
            let mut batch = told.batch(Purpose::Call);
            batch.unmapped(kernel, page, Frame(1));
            batch.unmapped(x, base(5), Frame(2));
            assert_eq!(batch.finish().count(), 2);
        });
        // SAFETY: no memory is behind any frame.
        told.other("CPU 1 runs a program", |_| unsafe {
            engine.this_cpu().enter_user()
        });
        told.page(
            "a page of the kernel, while CPU 1 runs a program",
            kernel,
            &[page],
        );
        told.step(
            "a page of the kernel is deferred while CPU 1 runs a program",
            |told| {
                told.defer(kernel);
                engine.flush_deferred();
            },
        );
        told.page("a page of the program", x, &[base(5)]);
        told.other("CPU 1 enters the kernel", |_| {
            engine.this_cpu().enter_kernel()
        });
        // SAFETY: no memory is behind any frame.
        told.other("CPU 1 runs a program and enters the kernel", |_| unsafe {
            engine.this_cpu().enter_user();
            engine.this_cpu().enter_kernel();
        });
        told.step(
            "a page of the kernel is deferred, and CPU 1 flushes everything",
            |told| {
                let deferred_flush = told.defer(kernel);
                told.unmap(kernel, &[PageRange::base(page.start, 34)]);
                assert_eq!(
                    engine.flush_before_reuse(&deferred_flush).is_some(),
                    engine.policy().lazy_unmap
                );
            },
        );
        told.step(
            "a page of the kernel is deferred, and one of x is reused",
            |told| {
                told.defer(kernel);
                let deferred_flush = told.defer(x);
                let _ = engine.flush_before_reuse(&deferred_flush);
                assert_eq!(engine.has_deferred(), engine.policy().lazy_unmap);
            },
        );
        told.step(
            "a page of the kernel is deferred and every deferred flush is made",
            |told| {
                told.defer(kernel);
                engine.flush_deferred();
            },
        );
    }
    let kernel = kernel_space(engine, KernelEntries::Global);
    let deferred_flush = told.step("a page is deferred", |told| told.defer(x));
    told.page(
        "34 pages of the kernel",
        kernel,
        &[PageRange::base(Page(0x7_ffff_f000), 34)],
    );
    told.reuse(&deferred_flush);
    told.other("CPU 1 is offline, and has left x", |_| {
        engine.cpu_offline(Some(x));
    });
    told.page(
        "a page of the kernel, while CPU 1 is offline",
        kernel,
        &[base(0x7_ffff_f000)],
    );
    let deferred_flush = told.step("a page of the kernel is deferred", |told| {
        told.defer(kernel)
    });
    told.other("CPU 1 is online", |_| engine.cpu_online());
    told.reuse(&deferred_flush);
    told.page("a page of x, which CPU 1 has left", x, &[base(5)]);
    told.go(1, "CPU 1 switches to x", None, x);
    told.step("text", |told| {
        engine.this_cpu().synchronize_text();
        let mut cpus = told.machine.synchronized.take();
        cpus.sort_unstable();
        assert_eq!(cpus, [0, 1]);
    });
    told.go(1, "CPU 1 runs y", Some(x), y);
    told.step("y is retired by a CPU that does not run it", |_| {
        engine.this_cpu().leave(x)
    });
    told.other("x is retired", |_| engine.retire(x));
    told.other("CPU 1 is lazy", |_| engine.this_cpu().enter_lazy());
    told.step("CPU 0 runs y and is lazy", |_| {
        switch(engine, None, y);
        engine.this_cpu().enter_lazy();
    });
    told.step("y is retired", |_| engine.retire(y));
    assert!(engine.this_cpu().is_detached());
    told.text
}

#[test]
fn every_step_costs_what_is_written_down() {
    let machines = [
        (
            "tags",
            Machine::default(),
            Policy::ALL,
            include_str!("counts/tags.txt"),
        ),
        (
            "baseline",
            Machine::default(),
            Policy::BASELINE,
            include_str!("counts/baseline.txt"),
        ),
        (
            "broadcast",
            Machine::new(true),
            Policy::ALL,
            include_str!("counts/broadcast.txt"),
        ),
    ];
    for (name, machine, policy, expected) in machines {
        let told = story(machine, policy);
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

//! Generated programs over the memory manager, and the judge of what they lose.
//!
//! Every operation is a call that a program may make at any time; the manager must cope. Calls that
//! it refuses are no failure.
//!
//! The oracle of single accesses sees a store that reaches the wrong frame; it does not see one that
//! reaches nothing. So beside it stands [what is expected](super::expected): what memory must hold when a CPU
//! reads it, and when the run is over.

use super::expected::{Behind, Expected, Known, NO_CPU, Place};
use super::program::{CallOp, Flags, Lane, Memory};
use crate::action::MAX_CPUS;
use crate::context;
use crate::coverage::Coverage;
use crate::stage::Stage;
use crate::vm_kernel::{self, FIRST_PROCESS, Parts, VmKernel};
use quell::{Frame, PageSize};
use quell_vm::contract::Clause;
use quell_vm::contract::timeline::Line;
use quell_vm::sim::heap;
use quell_vm::{Backing, Call, ProcessId, Protection};
use std::cell::{Cell, RefCell};

/// A run of a program over the manager.
struct Player<'p> {
    lanes: &'p [Lane<CallOp>],
    flags: Flags,
    expected: RefCell<Expected>,
    begun: Cell<bool>,
    offline: [Cell<bool>; MAX_CPUS],
    flag: [Cell<u8>; MAX_CPUS],
    /// The process whose program each CPU runs while it is in one.
    process: [Cell<Option<ProcessId>>; MAX_CPUS],
    stores: [Cell<u64>; MAX_CPUS],
}

const fn bytes(pages: u64) -> u64 {
    pages << 12
}

/// The rights of this number.
fn protection(rights: u8) -> Protection {
    match rights {
        0 => Protection::NONE,
        1 => Protection::READ,
        2 => Protection::READ_WRITE,
        3 => Protection::READ_EXECUTE,
        _ => Protection {
            execute: true,
            ..Protection::READ_WRITE
        },
    }
}

impl Player<'_> {
    fn expected<R>(&self, body: impl FnOnce(&mut Expected) -> R) -> R {
        // What the judge knows is no part of the machine.
        heap::off(|| body(&mut self.expected.borrow_mut()))
    }

    fn value(&self, me: usize) -> u64 {
        let stores = self.stores[me].get() + 1;
        self.stores[me].set(stores);
        (me as u64 + 1) << 16 | stores
    }

    fn write(&self, k: &VmKernel<'_>, me: usize, page: u64) {
        let Some(process) = k.vm.current() else {
            return;
        };
        let value = self.value(me);
        let place = self.expected(|expected| {
            expected.acts(process);
            let place = expected.place(process, page);
            let before = place.and_then(|place| expected.places.get(&place).copied());
            if let Some(place) = place {
                expected.writes(place, me, value);
            }
            place.map(|place| (place, before))
        });
        if !k.try_write(page, value)
            && let Some((place, before)) = place
        {
            // It was refused, and has changed nothing.
            self.expected(|expected| match (expected.places.get(&place), before) {
                (Some(Known::Written(..)), Some(before)) => {
                    expected.places.insert(place, before);
                }
                (Some(Known::Written(..)), None) => {
                    expected.places.remove(&place);
                }
                _ => {}
            });
        }
    }

    fn read(&self, k: &VmKernel<'_>, me: usize, page: u64) {
        let Some(process) = k.vm.current() else {
            return;
        };
        let Some(held) = k.read(page) else { return };
        let known = self.expected(|expected| {
            let place = expected.place(process, page)?;
            expected.places.get(&place).copied()
        });
        if let Some(Known::Written(writer, value)) = known
            && (writer == me || writer == NO_CPU)
            && value != held
        {
            let account = format!(
                "CPU {me} reads {held:#x} from page {page:#x}, where {value:#x} was written last"
            );
            k.hw.fail(Clause::C2, None::<Frame>, account);
        }
    }

    /// A call that changes what lies behind a range.
    fn change(&self, k: &VmKernel<'_>, page: u64, pages: u64, call: Call, anew: Option<Behind>) {
        let Some(process) = k.vm.current() else {
            return;
        };
        self.expected(|expected| expected.changes(process, page, pages, anew));
        let done = k.try_call(call).is_ok();
        if let (true, false, Some(anew)) = (done, self.begun.get(), anew) {
            self.expected(|expected| {
                expected.flushes_pending(process, page, pages, anew);
                if let Behind::Shared(file, first) = anew {
                    for at in first..first + pages {
                        expected.places.remove(&Place::File(file, at));
                    }
                }
            });
        }
    }

    /// The CPU is back in its program, if it runs one.
    fn back_in_program(&self, k: &VmKernel<'_>, me: usize) {
        let process = if self.offline[me].get() {
            None
        } else {
            context::quietly(|| k.vm.current())
        };
        self.process[me].set(process);
        if process.is_some() {
            context::with(|core| core.enter_program(me));
        }
    }

    /// The manager says what programs could load through translations left behind.
    fn compare_all(&self, k: &VmKernel<'_>) {
        for cpu in 0..self.lanes.len() {
            let Some(process) = self.process[cpu].get() else {
                continue;
            };
            for stale in context::with(|core| core.stale_loads(cpu)) {
                context::as_cpu(cpu, || {
                    k.compare(cpu, process, stale.page, (stale.frame, stale.held));
                });
            }
        }
    }

    /// Makes a call that may be refused, and of which nothing is expected.
    fn may_call(k: &VmKernel<'_>, call: Call) {
        let _ = k.try_call(call);
    }

    fn perform(&self, k: &VmKernel<'_>, me: usize, op: CallOp) {
        // A CPU that has left still tells and waits: else those that wait for it would do so for ever.
        let there = matches!(
            op,
            CallOp::Online | CallOp::Tell { .. } | CallOp::Wait { .. }
        );
        if self.offline[me].get() && !there {
            return;
        }
        match op {
            CallOp::Read { page } => self.read(k, me, page),
            CallOp::Write { page } => self.write(k, me, page),
            CallOp::Fetch { page } => {
                k.fetch(page);
            }
            CallOp::Fill { page, pages } => {
                for page in page..page + pages {
                    self.write(k, me, page);
                    context::come_further();
                }
            }
            CallOp::Map { page, pages, large } => {
                let page_size = match large {
                    true => PageSize::Large,
                    false => PageSize::Base,
                };
                let backing = Backing::Anonymous { page: page_size };
                self.map(k, (page, pages), true, backing, Behind::Memory);
            }
            CallOp::MapFile {
                page,
                pages,
                file,
                from,
                shared,
                write,
            } => {
                let offset = bytes(from);
                let (backing, behind) = match shared {
                    true => (Backing::Shared { file, offset }, Behind::Shared(file, from)),
                    false => (Backing::Private { file, offset }, Behind::Private(file)),
                };
                self.map(k, (page, pages), write, backing, behind);
            }
            CallOp::Unmap { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                self.change(k, page, pages, Call::Unmap { address, bytes }, None);
            }
            CallOp::Discard { page, pages } => self.discard(k, page, pages),
            CallOp::Protect {
                page,
                pages,
                rights,
            } => {
                let call = Call::Protect {
                    address: bytes(page),
                    bytes: bytes(pages),
                    protection: protection(rights),
                };
                Self::may_call(k, call);
            }
            CallOp::PageOut { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                Self::may_call(k, Call::PageOut { address, bytes });
            }
            CallOp::Remap { page, pages, to } => self.remap(k, page, pages, to),
            CallOp::Collapse { page } => {
                let address = bytes(page);
                Self::may_call(k, Call::Collapse { address });
            }
            CallOp::Spawn => Self::may_call(k, Call::Spawn),
            CallOp::Fork => self.fork(k),
            CallOp::Enter { process } => Self::may_call(k, Call::Enter { process }),
            CallOp::Exit { process } => Self::may_call(k, Call::Exit { process }),
            CallOp::Create { pages } => {
                let bytes = bytes(pages);
                Self::may_call(k, Call::Create { bytes });
            }
            CallOp::WriteFile { file, page } => self.write_file(k, me, file, page),
            CallOp::ReadFile { file, page } => {
                let offset = bytes(page);
                Self::may_call(k, Call::Read { file, offset });
            }
            CallOp::Truncate { file, pages } => self.truncate(k, file, pages),
            CallOp::Sync { file } => Self::may_call(k, Call::Sync { file }),
            CallOp::Migrate { page, pages, node } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                let call = Call::Migrate {
                    address,
                    bytes,
                    node,
                };
                Self::may_call(k, call);
            }
            CallOp::Demote { pages } => Self::may_call(k, Call::Demote { pages }),
            CallOp::Reclaim { pages } => Self::may_call(k, Call::Reclaim { pages }),
            CallOp::Idle => Self::may_call(k, Call::Idle { until: 0 }),
            CallOp::Nothing => Self::may_call(k, Call::Nothing),
            CallOp::Offline => {
                k.offline();
                self.offline[me].set(true);
            }
            CallOp::Online => {
                if self.offline[me].replace(false) {
                    k.online();
                    let process = FIRST_PROCESS;
                    Self::may_call(k, Call::Enter { process });
                }
            }
            CallOp::Tell { flag } => {
                if self.begun.get() {
                    k.tell(flag.into());
                    self.flag[me].set(self.flag[me].get().max(flag));
                }
            }
            CallOp::Wait { flag } => {
                if self.begun.get() && self.flags.counts(me, flag, self.flag[me].get()) {
                    self.flag[me].set(flag);
                    k.wait_for(flag.into());
                }
            }
        }
    }

    fn map(
        &self,
        k: &VmKernel<'_>,
        (page, pages): (u64, u64),
        write: bool,
        backing: Backing,
        behind: Behind,
    ) {
        let call = Call::Map {
            address: Some(bytes(page)),
            bytes: bytes(pages),
            protection: match write {
                true => Protection::READ_WRITE,
                false => Protection::READ,
            },
            backing,
        };
        self.change(k, page, pages, call, Some(behind));
    }

    fn discard(&self, k: &VmKernel<'_>, page: u64, pages: u64) {
        let Some(process) = k.vm.current() else {
            return;
        };
        self.expected(|expected| {
            for at in page..page + pages {
                expected.forget(Place::Page(process, at));
            }
        });
        let (address, bytes) = (bytes(page), bytes(pages));
        Self::may_call(k, Call::Discard { address, bytes });
    }

    fn remap(&self, k: &VmKernel<'_>, page: u64, pages: u64, to: u64) {
        let Some(process) = k.vm.current() else {
            return;
        };
        self.expected(|expected| expected.changes(process, to, pages, None));
        let call = Call::Remap {
            address: bytes(page),
            bytes: bytes(pages),
            to: Some(bytes(to)),
        };
        self.change(k, page, pages, call, None);
    }

    fn fork(&self, k: &VmKernel<'_>) {
        let parent = k.vm.current();
        if let (Ok(child), Some(parent)) = (k.try_call(Call::Fork), parent) {
            self.expected(|expected| expected.fork(parent, child as ProcessId));
        }
    }

    fn write_file(&self, k: &VmKernel<'_>, me: usize, file: u32, page: u64) {
        let value = self.value(me);
        let place = Place::File(file, page);
        self.expected(|expected| {
            expected.lengthens(file, page);
            expected.writes(place, me, value);
        });
        let call = Call::Write {
            file,
            offset: bytes(page),
            value,
        };
        if k.try_call(call).is_err() {
            self.expected(|expected| expected.forget(place));
        }
    }

    fn truncate(&self, k: &VmKernel<'_>, file: u32, pages: u64) {
        self.expected(|expected| expected.cut(file, pages));
        let bytes = bytes(pages);
        if k.try_call(Call::Truncate { file, bytes }).is_ok() {
            k.has_truncated(file, pages);
        }
        self.expected(|expected| expected.has_cut(file));
    }

    /// After the run: bytes that no CPU has changed must still be there.
    fn after(&self, k: &VmKernel<'_>) {
        let known: Vec<_> = self.expected(|expected| {
            let mut known: Vec<_> = expected.places.iter().map(|(p, k)| (*p, *k)).collect();
            known.sort_unstable_by_key(|(place, _)| match *place {
                Place::Page(process, page) => (0, process, page),
                Place::File(file, page) => (1, file, page),
            });
            known
        });
        for (place, known) in known {
            let Known::Written(_, value) = known else {
                continue;
            };
            let held = match place {
                Place::Page(process, page) => k.holds(process, page),
                Place::File(file, page) => k.read_file(file, page),
            };
            if let Some(held) = held
                && held != value
            {
                let account =
                    format!("{place:?} holds {held:#x}, where {value:#x} was written last");
                k.hw.fail(Clause::C2, None, account);
            }
        }
    }
}

/// Runs a program over the manager.
pub(super) fn perform(
    memory: &Memory,
    lanes: &[Lane<CallOp>],
    flags: Flags,
    stage: Stage<'_>,
    coverage: &mut Coverage,
) -> Vec<Line> {
    let player = Player {
        lanes,
        flags,
        expected: RefCell::default(),
        begun: Cell::new(false),
        offline: Default::default(),
        flag: Default::default(),
        process: Default::default(),
        stores: Default::default(),
    };
    let parts = Parts {
        start: &|k, cpu| {
            let start = || {
                for &op in &player.lanes[cpu].start {
                    player.perform(k, cpu, op);
                }
            };
            context::faultlessly(|| k.hw.faultlessly(start));
        },
        body: &|k, cpu| {
            if !player.begun.replace(true) {
                player.expected(Expected::begins);
            }
            player.back_in_program(k, cpu);
            for &op in &player.lanes[cpu].run {
                player.perform(k, cpu, op);
                context::come_further();
                player.back_in_program(k, cpu);
                player.compare_all(k);
            }
        },
        after: &|k| player.after(k),
        repeats: false,
    };
    let amounts = [memory.fast, memory.slow];
    vm_kernel::perform(amounts, memory.ledger.into(), &parts, stage, coverage)
}

/// The frame after the last.
pub(super) fn frames(memory: &Memory) -> usize {
    vm_kernel::frames([memory.fast, memory.slow])
}
